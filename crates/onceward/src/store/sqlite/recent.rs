//! Records as they are in the file, as far as this process knows: as it wrote or read them last.
//!
//! SQLite says whether anybody else has committed since (`PRAGMA data_version`: another process, or a
//! transaction of the user's). If nobody has, what is kept here *is* what the file holds, and need not
//! be read again; if somebody has, all of it is forgotten. Nothing depends on it being complete.

use std::{collections::HashMap, mem::take};

use crate::{
    record::{Record, RecordId, State},
    reply::ReplyBody,
};

#[derive(Default)]
pub(super) struct Recent {
    /// When it is full it takes the place of the other one: so those go that nobody came back to.
    young: HashMap<RecordId, Record>,
    young_bytes: usize,
    old: HashMap<RecordId, Record>,
    /// The state of the file that they are of.
    version: Option<i64>,
}

/// How many of them a half holds, and how many bytes of replies.
const COUNT_MAX: usize = 10_000;
const BYTES_MAX: usize = 8 << 20;

impl Recent {
    pub(super) fn get(&self, id: &RecordId) -> Option<&Record> {
        self.young.get(id).or_else(|| self.old.get(id))
    }

    /// What was committed, or read under the version that holds. Attempts that go on are written to
    /// next, and replies are sent again soon if ever; nobody waits for the others.
    pub(super) fn note(&mut self, record: Record) {
        self.forget(&record.id);
        if !matches!(record.state, State::InProgress | State::Completed) {
            return;
        }
        self.young_bytes += bytes_of(&record);
        self.young.insert(record.id.clone(), record);
        if self.young.len() >= COUNT_MAX || self.young_bytes >= BYTES_MAX {
            self.old = take(&mut self.young);
            self.young_bytes = 0;
        }
    }

    pub(super) fn forget(&mut self, id: &RecordId) {
        self.old.remove(id);
        if let Some(record) = self.young.remove(id) {
            self.young_bytes -= bytes_of(&record);
        }
    }

    /// Whether the file is in the state that they are of.
    pub(super) fn is_of(&self, version: i64) -> bool {
        self.version == Some(version)
    }

    /// Keeps them if they are of this state of the file. `None` is none that is known.
    pub(super) fn keep_if_of(&mut self, version: Option<i64>) {
        if version.is_none() || self.version != version {
            *self = Recent { version, ..Recent::default() };
        }
    }
}

/// Of its reply.
pub(super) fn bytes_of(record: &Record) -> usize {
    match record.reply.as_ref().map(|reply| &reply.body) {
        Some(ReplyBody::Stored(body)) => body.len(),
        _ => 0,
    }
}
