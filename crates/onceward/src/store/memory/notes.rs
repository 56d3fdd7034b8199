//! Which operation has which provider id.

use std::collections::HashMap;

use crate::record::{ProviderId, ProviderNote, RecordId};

/// Found by the id, and by the record.
#[derive(Debug, Default)]
pub(super) struct Notes {
    by_id: HashMap<ProviderId, ProviderNote>,
    of: HashMap<RecordId, Vec<ProviderId>>,
}

impl Notes {
    pub(super) fn get(&self, id: &ProviderId) -> Option<&ProviderNote> {
        self.by_id.get(id)
    }

    pub(super) fn of<'a>(&'a self, record: &RecordId) -> impl Iterator<Item = &'a ProviderNote> {
        self.of.get(record).into_iter().flatten().filter_map(|id| self.by_id.get(id))
    }

    pub(super) fn put(&mut self, note: ProviderNote) {
        let ids = self.of.entry(note.record.clone()).or_default();
        if !ids.contains(&note.id) {
            ids.push(note.id.clone());
        }
        self.by_id.insert(note.id.clone(), note);
    }

    /// The record is gone.
    pub(super) fn forget(&mut self, record: &RecordId) {
        for id in self.of.remove(record).into_iter().flatten() {
            self.by_id.remove(&id);
        }
    }
}
