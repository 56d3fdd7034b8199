//! As the benchmark wants it of a contestant.

use std::{io::Read as _, net::SocketAddr, thread};

/// As all contestants have it that are built here.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Says where this process serves, and ends it with its input: also when the benchmark was killed.
pub(crate) fn say(address: SocketAddr) {
    println!("listening on http://{address}");
    thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
}
