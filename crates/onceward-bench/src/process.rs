//! A process that serves, and says where: from outside and from inside.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    thread,
};

use anyhow::Context as _;
use tokio::net::TcpListener;

/// Says where this process serves, and ends it with its input: also when the benchmark was killed.
pub(crate) fn serves(listener: &TcpListener) -> anyhow::Result<()> {
    println!("listening on http://{}", listener.local_addr()?);
    thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    Ok(())
}

/// A contestant's process. Ends when dropped.
pub(crate) struct Process {
    pub(crate) address: SocketAddr,
    child: Child,
}

impl Process {
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// It tells its address in its first line.
    pub(crate) fn start(name: &str, command: &mut Command) -> anyhow::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        let output = child.stdout.take().context("a piped output")?;
        BufReader::new(output).read_line(&mut line)?;
        let address = line.trim().strip_prefix("listening on http://");
        match address.and_then(|address| address.parse().ok()) {
            Some(address) => Ok(Process { address, child }),
            None => {
                let _ = child.kill();
                anyhow::bail!("{name} did not start: {}", child.wait()?)
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
