//! The effect ledger: what was really done, kept apart from the history.

use std::{
    fs::{File, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use anyhow::{Context as _, Result};

use crate::history::{CallNo, Subject};

/// An append-only file: one line for each effect, on disk before it is acknowledged.
pub(super) struct Ledger {
    path: PathBuf,
    file: Mutex<File>,
}

impl Ledger {
    pub(super) fn create(path: &Path) -> Result<Ledger> {
        let file = OpenOptions::new().append(true).create_new(true).open(path);
        let file = Mutex::new(file.context("the ledger cannot be created")?);
        Ok(Ledger { path: path.to_owned(), file })
    }

    /// Writes the effect of a call. On disk when it comes back.
    pub(super) fn append(&self, call: CallNo, subject: &Subject) -> Result<()> {
        let file = {
            let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
            let line = format!("{call} {} {}\n", subject.tenant, subject.key);
            file.write_all(line.as_bytes()).context("the ledger cannot be written")?;
            file.try_clone().context("the ledger cannot be synced")?
        };
        // Outside of the lock, so that those who wait share the time of the disk.
        file.sync_data().context("the ledger cannot be synced")
    }

    /// The calls that had an effect, and on what, in the order of the file.
    pub(super) fn read(&self) -> Result<Vec<(CallNo, Subject)>> {
        let text = std::fs::read_to_string(&self.path).context("the ledger cannot be read")?;
        let entry = |line: &str| -> Option<(CallNo, Subject)> {
            let mut words = line.split(' ');
            let call = words.next()?.parse().ok()?;
            let (tenant, key) = (words.next()?.to_owned(), words.next()?.to_owned());
            Some((call, Subject { tenant, key }))
        };
        let entries = text.lines().map(|line| entry(line).context("a damaged line in the ledger"));
        entries.collect()
    }
}
