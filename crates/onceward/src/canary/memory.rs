//! What was acknowledged, in a file: written as a whole, durable, and refused if it is anything else.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
    time::{Duration, SystemTime},
};

use tracing::info;

use crate::store::NodeId;

/// The first word of the file, with the version of its form.
const KIND: &str = "onceward-canary/1";

/// A file that is older is not counted on: the store forgets nodes that have gone, some time later.
const KEPT: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// What a node remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) node: NodeId,
    /// The highest count that the store has acknowledged to it.
    pub(super) acked: u64,
}

/// What the file says; `None` if there is none, or if it is too old.
pub(super) fn read(path: &Path) -> io::Result<Option<Memory>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut words = text.split_whitespace();
    let (kind, node, acked) = (words.next(), words.next(), words.next());
    let node = node.and_then(|node| node.parse().ok());
    let acked = acked.and_then(|acked| acked.parse().ok());
    let (Some(KIND), Some(node), Some(acked), None) = (kind, node, acked, words.next()) else {
        let what = format!("{} is not the file of a canary", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    };
    let age = SystemTime::now().duration_since(fs::metadata(path)?.modified()?);
    if age.is_ok_and(|age| age > KEPT) {
        info!("what the canary remembers is more than 30 days old, and is not counted on");
        return Ok(None);
    }
    Ok(Some(Memory { node, acked }))
}

/// Under another name first, so that there is never half of it.
pub(super) fn write(path: &Path, memory: Memory) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let mut file = File::create(&new)?;
    writeln!(file, "{KIND} {} {}", memory.node, memory.acked)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => File::open(parent)?.sync_all(),
        None => File::open(".")?.sync_all(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_anything_else_refused() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("canary");
        assert_eq!(read(&path).expect("no file is no error"), None);
        let memory = Memory { node: NodeId::from_bytes([7; 16]), acked: 41 };
        write(&path, memory).expect("written");
        write(&path, Memory { acked: 42, ..memory }).expect("written again");
        assert_eq!(read(&path).expect("readable"), Some(Memory { acked: 42, ..memory }));
        let node = memory.node;
        for text in [
            String::new(),
            KIND.to_owned(),
            format!("{KIND} {node}"),
            format!("{KIND} {node} many"),
            format!("{KIND} {node} 4 2"),
            format!("onceward-canary/2 {node} 42"),
        ] {
            fs::write(&path, &text).expect("written");
            let refused = read(&path).expect_err("not the file of a canary");
            assert_eq!(refused.kind(), io::ErrorKind::InvalidData, "{text}");
        }
    }
}
