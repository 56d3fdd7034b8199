//! What was acknowledged, in a file: written as a whole, durable, and refused if it is anything else.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Write as _},
    path::{Path, PathBuf},
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

/// A file that nobody else has, as long as this lives.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) path: PathBuf,
    /// Beside the file, which is another one each time that it is written.
    _lock: File,
}

impl Place {
    /// Takes it. Two processes that were one node would fill up what each other has lost.
    pub(super) fn take(path: PathBuf) -> io::Result<Self> {
        let beside = beside(&path, ".lock");
        let told = |error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", beside.display()))
        };
        // What it holds is nothing, and it is never removed: another process may have it open.
        let lock = File::options().create(true).append(true).open(&beside).map_err(told)?;
        match lock.try_lock() {
            Ok(()) => Ok(Place { path, _lock: lock }),
            Err(TryLockError::WouldBlock) => {
                let what = format!(
                    "{} is in use by another process: each needs a file of its own",
                    path.display()
                );
                Err(io::Error::new(io::ErrorKind::ResourceBusy, what))
            }
            Err(TryLockError::Error(error)) => Err(told(error)),
        }
    }
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
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
    let new = beside(path, ".new");
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

    #[test]
    fn a_file_is_one_canarys_at_a_time() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("canary");
        let held = Place::take(path.clone()).expect("nobody has it");
        // Also after it was written, and so became another file.
        let memory = Memory { node: NodeId::from_bytes([7; 16]), acked: 41 };
        write(&path, memory).expect("written");
        let refused = Place::take(path.clone()).expect_err("somebody has it");
        assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
        assert!(refused.to_string().contains("in use by another process"), "{refused}");
        let _other = Place::take(home.path().join("other")).expect("another file");
        drop(held);
        let again = Place::take(path).expect("nobody has it any more");
        assert_eq!(read(&again.path).expect("readable"), Some(memory));
    }
}
