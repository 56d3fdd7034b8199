//! Programs of other versions than the system has: where `fetch` has put them.

use std::{env, path::PathBuf};

use crate::watchdog::is_root;

/// A file in one of the folders that were fetched.
///
/// # Panics
///
/// If it is not there.
pub(crate) fn fetched(file: &str) -> PathBuf {
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = match is_root() {
        // Servers run as somebody who may not look into root's home.
        true => PathBuf::from("/var/cache"),
        false => env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home).unwrap_or_default(),
    };
    let file = cache.join("onceward").join(file);
    assert!(file.exists(), "no {} on this machine; ./test fetches it", file.display());
    file
}
