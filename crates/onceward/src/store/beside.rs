//! What is kept beside a record that is not terminal: the steps and the request of a phased
//! operation. Written in the transaction that writes the record; gone in the one that brings it to
//! rest.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use super::{Advance, Advanced, Ask, Reservation};
use crate::{
    clock::Timestamp,
    machine::{self, Change, Step},
    record::{Effects, Lease, Record, RecordId, SavedStep, StoredRequest},
};

/// One thing to keep.
pub(super) enum Beside {
    Request(Arc<StoredRequest>),
    Step(SavedStep),
}

/// A reserve, and the request that is kept with it: of phased and of accepted work only. Nobody would
/// go on with another one, and nobody would look for its request when it comes to rest.
pub(super) fn reserve(
    found: Option<&Record>,
    ask: &Ask,
    now: Timestamp,
) -> (Step<Reservation>, Option<Beside>) {
    let step = machine::reserve(found, ask, now);
    let is_kept = |record: &Record| record.effects == Effects::Phased || record.is_queued();
    let is_kept = matches!(&step.change, Change::Put(record) if is_kept(record));
    let kept = ask.request.clone().filter(|_| is_kept && machine::keeps_request(&step.answer));
    (step, kept.map(Beside::Request))
}

/// A step of a phased operation, and the result that is saved with it.
pub(super) fn advance(
    found: Option<&Record>,
    lease: &Lease,
    advance: &Advance,
    saved: bool,
) -> (Step<Advanced>, Option<Beside>) {
    let step = machine::advance(found, lease, advance, saved);
    let kept = match (&step.answer, advance) {
        (Advanced::Applied, Advance::Save { name, result }) => {
            Some(Beside::Step(SavedStep { name: name.clone(), result: result.clone() }))
        }
        _ => None,
    };
    (step, kept)
}

/// What a batch knows of saved steps, and what it has to write.
#[derive(Default)]
pub(super) struct Gathered {
    pub(super) saved: HashSet<(RecordId, u32, Box<str>)>,
    pub(super) kept: HashMap<RecordId, Vec<(u32, Beside)>>,
    pub(super) came_to_rest: HashSet<RecordId>,
    /// Those that came to rest and left it again in this batch.
    pub(super) left_rest: HashSet<RecordId>,
}

impl Gathered {
    pub(super) fn is_saved(&self, record: Option<&Record>, name: Option<&str>) -> bool {
        let (Some(record), Some(name)) = (record, name) else { return false };
        self.saved.contains(&(record.id.clone(), record.generation, name.into()))
    }

    pub(super) fn keep(&mut self, record: &Record, beside: Beside) {
        if let Beside::Step(step) = &beside {
            self.saved.insert((record.id.clone(), record.generation, step.name.clone()));
        }
        self.kept.entry(record.id.clone()).or_default().push((record.generation, beside));
    }

    /// Takes note of what a record has become.
    pub(super) fn follow(&mut self, record: &Record) {
        if record.state.is_terminal() {
            self.drop_all_of(&record.id);
        } else if self.came_to_rest.contains(&record.id) {
            self.left_rest.insert(record.id.clone());
        }
    }

    pub(super) fn drop_all_of(&mut self, id: &RecordId) {
        self.kept.remove(id);
        if !self.saved.is_empty() {
            self.saved.retain(|(of, ..)| of != id);
        }
        self.came_to_rest.insert(id.clone());
    }
}
