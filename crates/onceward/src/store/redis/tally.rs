//! What was acknowledged to this process, by the names under which its writes were counted.
//!
//! The writes over each connection are counted by the server under a name of their own. So nothing that
//! is written after a failover is added to what was counted before it, and what is missing there stays
//! missing until a beat has asked for it.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// So that a store without a canary does not gather them for ever.
const NAMES_MAX: usize = 256;

/// Under which a part of the writes of this process is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    /// Since which epoch: a bucket moved, or something was found to be lost on a connection that holds.
    since: u64,
    /// The number of the connection.
    connection: u64,
}

/// What was acknowledged of writes that one server loses together.
#[derive(Default)]
pub(super) struct Tally(Mutex<Told>);

#[derive(Default)]
struct Told {
    since: u64,
    /// The highest count of each name, until a beat stands for it.
    acked: BTreeMap<Name, u64>,
}

impl Name {
    pub(super) fn connection(self) -> u64 {
        self.connection
    }

    /// As the server keeps it.
    pub(super) fn text(self, writer: &str) -> String {
        format!("{writer}.{}.{}", self.connection, self.since)
    }
}

impl Tally {
    /// The name of a write over this connection, and what was acknowledged under it.
    pub(super) fn name(&self, connection: u64) -> (Name, u64) {
        let told = self.lock();
        let name = Name { since: told.since, connection };
        (name, told.acked.get(&name).copied().unwrap_or(0))
    }

    pub(super) fn acknowledge(&self, name: Name, count: u64) {
        let acked = &mut self.lock().acked;
        let highest = acked.entry(name).or_default();
        *highest = count.max(*highest);
        if acked.len() > NAMES_MAX {
            acked.pop_first();
        }
    }

    /// Nothing more is counted under the names that there are.
    pub(super) fn rename(&self, epoch: u64) {
        let mut told = self.lock();
        told.since = told.since.max(epoch);
    }

    /// Whether writes are still counted under the name of this one.
    pub(super) fn is_current(&self, name: Name) -> bool {
        self.lock().since == name.since
    }

    /// All that a server must have.
    pub(super) fn all(&self) -> Vec<(Name, u64)> {
        self.lock().acked.iter().map(|(name, acked)| (*name, *acked)).collect()
    }

    /// A beat that was acknowledged under this name was counted after these: it stands for them, but for
    /// what was heard of since.
    pub(super) fn forget(&self, asked: &[(Name, u64)], beaten: Name) {
        let mut told = self.lock();
        for (name, acked) in asked.iter().filter(|(name, _)| *name != beaten) {
            if told.acked.get(name).is_some_and(|now| now <= acked) {
                told.acked.remove(name);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_over_one_connection_is_not_added_to_by_another() {
        let tally = Tally::default();
        let (before, _) = tally.name(1);
        tally.acknowledge(before, 50);
        let (after, acked) = tally.name(2);
        assert_eq!(acked, 0);
        tally.acknowledge(after, 7);
        assert_eq!(tally.name(1), (before, 50));
        assert_eq!(tally.all(), [(before, 50), (after, 7)]);
    }

    #[test]
    fn a_beat_stands_for_what_it_asked_for_and_for_nothing_that_was_heard_of_since() {
        let tally = Tally::default();
        let (one, two, beaten) = (tally.name(1).0, tally.name(2).0, tally.name(3).0);
        tally.acknowledge(one, 5);
        tally.acknowledge(two, 5);
        let asked = tally.all();
        tally.acknowledge(two, 6);
        tally.acknowledge(beaten, 1);
        tally.forget(&asked, beaten);
        assert_eq!(tally.all(), [(two, 6), (beaten, 1)]);
    }

    #[test]
    fn a_new_name_on_the_same_connection_begins_anew() {
        let tally = Tally::default();
        let (before, _) = tally.name(1);
        tally.acknowledge(before, 50);
        tally.rename(4);
        let (after, acked) = tally.name(1);
        assert_ne!(after, before);
        assert_eq!(acked, 0);
        assert!(!tally.is_current(before));
    }
}
