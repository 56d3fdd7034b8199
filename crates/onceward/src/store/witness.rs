//! What a store that is reached over connections saw acknowledged: a server that lacks it, as after a
//! failover to a replica that was behind, has lost something.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{Advance, Beat, NodeId};
use crate::record::Lease;
#[cfg(feature = "mysql")]
use crate::record::{Record, State};

/// What all connections of a store share.
#[derive(Clone, Default)]
pub(super) struct Witnesses {
    epoch: Arc<AtomicU64>,
    seen: Arc<Mutex<Seen>>,
    /// Held while a beat asks for what was seen.
    pub(super) asking: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
struct Seen {
    /// Of each connection, by its number.
    last: Vec<Option<Witness>>,
    /// Of connections that are no more, until a beat has asked for them.
    before: VecDeque<Witness>,
    /// The highest count of a beat that was answered, also to a caller that had gone.
    acked: Option<(NodeId, u64)>,
}

/// So that a store without a canary does not gather them for ever.
const BEFORE_MAX: usize = 256;

/// The last of what was acknowledged on a connection, of that which must not be forgotten: a grant, a
/// completion, a step. A server has a commit only if it has those that came before on the same
/// connection: if this one is there, nothing is lost.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Witness {
    /// A lease is not given twice: here it is only looked at.
    pub(super) lease: Arc<Lease>,
    pub(super) completed: bool,
    /// The step that was saved, or the effect that was about to be called.
    pub(super) step: Option<Box<str>>,
}

impl Witness {
    /// This was granted, or completed.
    pub(super) fn of(lease: &Lease, completed: bool) -> Self {
        let lease = Arc::new(Lease { id: lease.id.clone(), ..*lease });
        Witness { lease, completed, step: None }
    }

    /// This step of a phased operation was made; and whether it stays. One that was withdrawn leaves
    /// nothing to be found.
    pub(super) fn of_step(lease: &Lease, advance: &Advance) -> Option<(Self, bool)> {
        let (name, is_final) = match advance {
            Advance::Save { name, .. } => (name, true),
            Advance::Intend { name, .. } => (name, false),
            Advance::Withdraw { .. } => return None,
        };
        Some((Witness { step: Some(name.clone()), ..Witness::of(lease, false) }, is_final))
    }

    /// Whether the record, as it is now, has lost what was acknowledged. `saved` says whether the step
    /// is among those that are. A record that is further than it was told of was not lost.
    #[cfg(feature = "mysql")]
    pub(super) fn is_lost(&self, record: Option<&Record>, saved: bool) -> bool {
        let Witness { lease, completed, step } = self;
        let Some(record) = record.filter(|record| record.generation >= lease.generation) else {
            return true;
        };
        if record.generation > lease.generation {
            return false;
        }
        // What was made after its own grant was made anew, since the first is gone; and so was an
        // attempt of the same number that began later. A fence is not under the time of its grant; one
        // alone is moved on by a resolve.
        let granted = lease.fence.number();
        let same_attempt = record.attempts == lease.attempt_number;
        record.attempts < lease.attempt_number
            || record.created_at.as_micros() > granted
            || same_attempt && record.fence < lease.fence
            || same_attempt && record.fence > lease.fence && record.started_at.as_micros() > granted
            || *completed && record.attempts > lease.attempt_number
            || *completed && !matches!(record.state, State::Completed | State::Expired)
            || step.as_deref().is_some_and(|name| {
                let open = record.progress.open_effect.as_ref().map(|effect| &*effect.name);
                record.fence == lease.fence
                    && record.state == State::InProgress
                    && open != Some(name)
                    && !saved
            })
    }
}

impl Witnesses {
    /// A place for one more connection.
    pub(super) fn place(&self) -> usize {
        let last = &mut self.lock().last;
        last.push(None);
        last.len() - 1
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// A connection is made anew. Counted before anything is asked on it.
    pub(super) fn next_epoch(&self) -> u64 {
        self.epoch.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(super) fn put(&self, place: usize, witness: Witness) {
        if let Some(last) = self.lock().last.get_mut(place) {
            *last = Some(witness);
        }
    }

    /// The same beside what was there: it may be taken back.
    pub(super) fn put_beside(&self, place: usize, witness: Witness) {
        self.retire(place);
        self.put(place, witness);
    }

    /// The connection is another one from now on, perhaps to another server: what was acknowledged on
    /// the old one must not be replaced by what the new one says.
    pub(super) fn retire(&self, place: usize) {
        let Seen { last, before, .. } = &mut *self.lock();
        before.extend(last.get_mut(place).and_then(Option::take));
        let too_many = before.len().saturating_sub(BEFORE_MAX);
        before.drain(..too_many);
    }

    /// An effect that was announced, on whichever connection, is about to be withdrawn: no beat may
    /// ask for it from then on.
    pub(super) async fn withdraw(&self, lease: &Lease, name: &str) {
        let is_it = |witness: &Witness| {
            witness.step.as_deref() == Some(name)
                && witness.lease.id == lease.id
                && witness.lease.fence == lease.fence
        };
        self.remove(is_it);
        drop(self.asking.lock().await);
    }

    /// The count that was acknowledged to this node, by its own word or by ours.
    pub(super) fn acked(&self, beat: Beat) -> u64 {
        let seen = self.lock().acked.filter(|(node, _)| *node == beat.node);
        seen.map_or(beat.acked, |(_, count)| count.max(beat.acked))
    }

    pub(super) fn all(&self) -> Vec<Witness> {
        let seen = self.lock();
        seen.last.iter().flatten().chain(&seen.before).cloned().collect()
    }

    /// A beat was acknowledged after these: it stands for them. They may be purged one day.
    pub(super) fn forget(&self, vouched: &[Witness], node: NodeId, count: u64) {
        self.lock().acked = Some((node, count));
        self.remove(|witness| vouched.contains(witness));
    }

    fn remove(&self, is_it: impl Fn(&Witness) -> bool) {
        let mut seen = self.lock();
        for last in &mut seen.last {
            last.take_if(|witness| is_it(witness));
        }
        seen.before.retain(|witness| !is_it(witness));
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
