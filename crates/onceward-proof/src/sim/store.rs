//! The store: the rules of the machine on a map.

use std::{collections::BTreeMap, time::Duration};

use onceward::{
    clock::Timestamp,
    machine::{self, Change, Step},
    record::{Fence, Lease, Record, RecordId, State},
    store::{
        Ask, Proof, Reaped, Reservation, Resolution, Resolve, Resolved, StoreError, StoreErrorKind,
        Swept, Write, Written,
    },
};
use tokio::time::Instant;

use super::{
    bugs,
    options::RETENTION,
    world::{World, lock},
};
use crate::{
    check::Violation,
    history::{Cause, What},
};

/// What the store holds.
#[derive(Debug, Default)]
pub(super) struct Records {
    pub(super) records: BTreeMap<RecordId, Record>,
    /// What was there before each commit, for a store that forgets its last ones.
    pub(super) before: Vec<(Instant, RecordId, Option<Record>)>,
    pub(super) is_down: bool,
    /// How wrong its clock is, in microseconds.
    pub(super) clock_skew: i64,
}

pub(super) fn error(kind: StoreErrorKind) -> StoreError {
    StoreError::new(kind, "simulated", "a fault of the simulation")
}

impl World {
    pub(super) fn arrive<T>(&self, step: &impl Fn(&World) -> T) -> Result<T, StoreError> {
        if lock(&self.records).is_down {
            return Err(error(StoreErrorKind::Unavailable));
        }
        Ok(step(self))
    }

    /// One atomic step on one record.
    pub(super) fn step<A>(
        &self,
        id: &RecordId,
        cause: Cause,
        decide: impl FnOnce(Option<&Record>, Timestamp) -> Step<A>,
    ) -> A {
        let now = self.store_now();
        let before = lock(&self.records).records.get(id).cloned();
        let step = decide(before.as_ref(), now);
        let after = match step.change {
            Change::Keep => return step.answer,
            Change::Put(record) => Some(*record),
            Change::Remove => None,
        };
        self.put(id, before, after, cause);
        step.answer
    }

    /// Replaces a record.
    pub(super) fn put(
        &self,
        id: &RecordId,
        before: Option<Record>,
        after: Option<Record>,
        cause: Cause,
    ) {
        if before == after {
            return;
        }
        let from = before.as_ref().map(|record| self.stand(record));
        let to = after.as_ref().map(|record| self.stand(record));
        {
            let mut records = lock(&self.records);
            match after {
                Some(record) => drop(records.records.insert(id.clone(), record)),
                None => drop(records.records.remove(id)),
            }
            records.before.push((Instant::now(), id.clone(), before));
        }
        self.record(What::Moved { subject: self.subject(id), from, to, cause });
    }

    /// Forgets the commits of the last `window`.
    pub(super) fn lose_commits(&self, window: Duration) -> usize {
        let since = Instant::now().checked_sub(window);
        let mut lost = 0;
        loop {
            let last = {
                let mut records = lock(&self.records);
                let is_recent = |at: Instant| since.is_none_or(|since| at >= since);
                match records.before.last() {
                    Some((at, _, _)) if is_recent(*at) => records.before.pop(),
                    _ => None,
                }
            };
            let Some((_, id, before)) = last else { return lost };
            let now = lock(&self.records).records.get(&id).cloned();
            self.put(&id, now, before, Cause::Lost);
            // Forgetting is not a commit of its own.
            lock(&self.records).before.pop();
            lost += 1;
        }
    }

    pub(super) fn reserve(&self, ask: &Ask) -> Reservation {
        let cause = Cause::Reserve {
            attempt: self.attempt_name(ask.attempt),
            now: self.store_now().as_micros(),
        };
        self.step(&ask.id, cause, |found, now| machine::reserve(found, ask, now))
    }

    pub(super) fn write(&self, lease: &Lease, write: Write) -> Written {
        let cause = self.cause_of_write(lease, &write);
        self.step(&lease.id, cause, |found, now| machine::write(found, lease, write, now))
    }

    /// I6: what the store says it granted is there.
    pub(super) fn check_granted(&self, ask: &Ask, answer: &Reservation) {
        let Reservation::Granted { lease, .. } = answer else { return };
        // The owner counts from when it sent this call, be it the first or a repeated one.
        self.check_there(lease, "was granted", |record, now| {
            record.lease_is_live(now) && record.lease_until >= now.plus(ask.lease)
        });
    }

    /// I6: what the store says it wrote is there.
    pub(super) fn check_applied(&self, lease: &Lease, write: &Write, answer: &Written) {
        if *answer != Written::Applied {
            return;
        }
        let what = format!("was acknowledged: {}", word(write));
        // Retention counts from here, by the policy and not by what the record says of itself.
        let kept = |record: &Record, now: Timestamp| record.expires_at >= now.plus(RETENTION);
        self.check_there(lease, &what, |record, now| match write {
            Write::Renew(by) => record.lease_until >= now.plus(*by),
            Write::Complete(reply) => record.reply.as_ref() == Some(reply) && kept(record, now),
            Write::Release(_) => record.state == State::FailedRetryable && kept(record, now),
            Write::MarkUnknown(_) => record.state == State::Unknown,
        });
    }

    fn check_there(
        &self,
        lease: &Lease,
        what: &str,
        is_there: impl FnOnce(&Record, Timestamp) -> bool,
    ) {
        let now = self.store_now();
        let found = lock(&self.records).records.get(&lease.id).cloned();
        let mine = |record: &Record| record.attempt == lease.attempt && record.fence == lease.fence;
        if found.is_some_and(|record| mine(&record) && is_there(&record, now)) {
            return;
        }
        let attempt = self.attempt_name(lease.attempt);
        self.violate(Violation {
            invariant: "I6",
            subject: Some(self.subject(&lease.id)),
            what: format!("{what} to {attempt}, and is not in the store"),
        });
    }

    pub(super) fn cause_of_write(&self, lease: &Lease, write: &Write) -> Cause {
        Cause::Write {
            write: word(write).into(),
            attempt: self.attempt_name(lease.attempt),
            fence: lease.fence.number(),
        }
    }

    /// `looked_at` is the fence of the record that whoever resolves it has seen.
    pub(super) fn resolve(&self, resolve: Resolve, looked_at: Fence) -> Resolved {
        let (resolution, proof) = match &resolve.resolution {
            Resolution::Complete(_) | Resolution::Executed { .. } => ("complete", None),
            Resolution::GiveUp(_) => ("give_up", None),
            Resolution::Release(Proof::Authoritative) => ("release", Some("authoritative")),
            Resolution::Release(Proof::TwoProbes { .. }) => ("release", Some("two_probes")),
            Resolution::Void => ("void", None),
            Resolution::Ask { .. } => ("ask", None),
            Resolution::Absent { .. } => ("release", Some("two_probes")),
            Resolution::DeadLetter { .. } => ("dead_letter", None),
            Resolution::Redrive => ("redrive", None),
        };
        let cause = Cause::Resolve {
            resolution: resolution.into(),
            proof: proof.map(Into::into),
            fence: looked_at.number(),
            now: self.store_now().as_micros(),
        };
        let id = resolve.id.clone();
        self.step(&id, cause, |found, now| machine::resolve(found, resolve, now))
    }

    pub(super) fn sweep(&self, limit: u32) -> Vec<Swept> {
        let ids: Vec<RecordId> = lock(&self.records).records.keys().cloned().collect();
        let now = self.store_now().as_micros();
        let swept = ids.iter().filter_map(|id| {
            self.step(id, Cause::Sweep { now }, |found, now| match found {
                Some(record) => machine::sweep(record, now),
                None => Step { change: Change::Keep, audit: None, answer: None },
            })
        });
        swept.take(limit as usize).collect()
    }

    pub(super) fn reap(&self) -> Reaped {
        let ids: Vec<RecordId> = lock(&self.records).records.keys().cloned().collect();
        let at = self.store_now();
        let mut reaped = Reaped::default();
        for id in ids {
            let Some(record) = lock(&self.records).records.get(&id).cloned() else { continue };
            let left = match bugs::reap(self, &record, at) {
                Change::Keep => continue,
                Change::Put(left) => {
                    reaped.expired += 1;
                    Some(*left)
                }
                Change::Remove => {
                    reaped.purged += 1;
                    None
                }
            };
            self.put(&id, Some(record), left, Cause::Reap { now: at.as_micros() });
        }
        reaped
    }
}

fn word(write: &Write) -> &'static str {
    match write {
        Write::Renew(_) => "renew",
        Write::Complete(_) => "complete",
        Write::Release(_) => "release",
        Write::MarkUnknown(_) => "mark_unknown",
    }
}

/// A lease is not meant to be copied; a message that carries one is.
pub(super) fn copy(lease: &Lease) -> Lease {
    Lease {
        id: lease.id.clone(),
        attempt: lease.attempt,
        fence: lease.fence,
        generation: lease.generation,
        attempt_number: lease.attempt_number,
        until: lease.until,
    }
}
