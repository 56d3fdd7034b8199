//! The store: the rules of the machine on a map, at the end of a network that loses, delays and
//! repeats messages. Each node has its own way to it.
//!
//! A call is a message. It takes effect when it arrives, whether or not its caller still waits.

use std::{collections::BTreeMap, future::pending, sync::Arc, time::Duration};

use onceward::{
    clock::Timestamp,
    machine::{self, Change, Step},
    record::{AuditRecord, Fence, Lease, Record, RecordId, State},
    store::{
        Ask, Claim, Identity, IdentityCheck, Reaped, Reservation, Resolution, Resolve, Resolved,
        Store, StoreError, StoreErrorKind, StoreFuture, Swept, Write, Written,
    },
};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep},
};

use super::{
    bugs,
    faults::{ON_ITS_WAY, StoreFault},
    node::Gate,
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

/// The way of one node to the store.
#[derive(Debug)]
pub(super) struct NodeStore {
    pub(super) world: Arc<World>,
    node: u32,
    gate: Arc<Gate>,
    /// How wrong the node's own clock is, in microseconds.
    pub(super) skew: i64,
}

impl NodeStore {
    pub(super) fn new(world: Arc<World>, node: u32, gate: Arc<Gate>, skew: i64) -> Self {
        NodeStore { world, node, gate, skew }
    }

    /// Sends a call, and waits for its answer.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        name: &'static str,
        step: impl Fn(&World) -> T + Send + Sync + 'static,
    ) -> Result<T, StoreError> {
        let world = &self.world;
        // Resolutions are few, and only those that are late meet another attempt.
        let often = if name == "resolve" { 4 } else { 1 };
        let (fault, kind) = world.pick(&StoreFault::ALL, often);
        if fault != StoreFault::None {
            world.fault(kind, format!("node {} at {name}", self.node));
        }
        let mut way = Way { there: Some(ON_ITS_WAY), back: Some(ON_ITS_WAY), again: None };
        let mut error_now = false;
        match fault {
            StoreFault::None | StoreFault::CrashAfter | StoreFault::PauseAfter => {}
            StoreFault::Refused => {
                sleep(ON_ITS_WAY).await;
                return Err(error(StoreErrorKind::Unavailable));
            }
            StoreFault::LostBefore => (way.there, error_now) = (None, true),
            StoreFault::SilentBefore => way.there = None,
            StoreFault::LostAfter => (way.back, error_now) = (None, true),
            StoreFault::SilentAfter => way.back = None,
            StoreFault::Late => (way.there, error_now) = (Some(world.delay()), true),
            StoreFault::SlowThere => way.there = Some(world.delay()),
            StoreFault::SlowBack => way.back = Some(world.delay()),
            StoreFault::Twice => way.again = Some(world.delay()),
            StoreFault::CrashBefore => {
                world.crash(self.node, &self.gate);
                return pending().await;
            }
            StoreFault::PauseBefore => {
                world.pause(&self.gate, world.delay());
                tokio::task::yield_now().await;
            }
        }
        let answer = self.deliver(way, fault, step);
        if error_now {
            sleep(ON_ITS_WAY * 3).await;
            return Err(error(StoreErrorKind::Ambiguous));
        }
        match answer.await {
            Ok(answer) => answer,
            // The message or its answer was lost without a sign.
            Err(_) => pending().await,
        }
    }

    /// The message on its way, which nobody can call back.
    fn deliver<T: Send + 'static>(
        &self,
        way: Way,
        fault: StoreFault,
        step: impl Fn(&World) -> T + Send + Sync + 'static,
    ) -> oneshot::Receiver<Result<T, StoreError>> {
        let (sender, answer) = oneshot::channel();
        let Some(there) = way.there else { return answer };
        let (world, gate, node) = (Arc::clone(&self.world), Arc::clone(&self.gate), self.node);
        tokio::spawn(async move {
            sleep(there).await;
            let arrived = world.arrive(&step);
            match fault {
                StoreFault::CrashAfter => world.crash(node, &gate),
                StoreFault::PauseAfter => world.pause(&gate, world.delay()),
                _ => {}
            }
            if let Some(back) = way.back {
                sleep(back).await;
                let _ = sender.send(arrived);
            }
            if let Some(again) = way.again {
                sleep(again).await;
                let _ = world.arrive(&step);
            }
        });
        answer
    }
}

/// How long a message and its answer are on their way; `None` for those that never arrive.
struct Way {
    there: Option<Duration>,
    back: Option<Duration>,
    again: Option<Duration>,
}

pub(super) fn error(kind: StoreErrorKind) -> StoreError {
    StoreError::new(kind, "simulated", "a fault of the simulation")
}

impl World {
    fn arrive<T>(&self, step: &impl Fn(&World) -> T) -> Result<T, StoreError> {
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
            Resolution::Complete(_) => ("complete", None),
            Resolution::Release(onceward::store::Proof::Authoritative) => {
                ("release", Some("authoritative"))
            }
            Resolution::Release(onceward::store::Proof::TwoProbes { .. }) => {
                ("release", Some("two_probes"))
            }
            Resolution::Void => ("void", None),
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

impl Store for NodeStore {
    fn reserve(&self, ask: Ask) -> StoreFuture<'_, Reservation> {
        Box::pin(async move {
            let sent = Instant::now();
            let lease = ask.lease;
            let answer = bugs::reserve(self, ask).await;
            if let Ok(Reservation::Granted { lease: granted, .. }) = &answer {
                self.world.told(granted.attempt, sent + lease);
            }
            answer
        })
    }

    fn claim(&self, claim: Claim) -> StoreFuture<'_, Reservation> {
        Box::pin(async move {
            let cause = Cause::Reserve {
                attempt: self.world.attempt_name(claim.attempt),
                now: self.world.store_now().as_micros(),
            };
            self.call("claim", move |world| {
                let cause = cause.clone();
                world.step(&claim.id, cause, |found, now| machine::claim(found, &claim, now))
            })
            .await
        })
    }

    fn write<'a>(&'a self, lease: &'a Lease, write: Write) -> StoreFuture<'a, Written> {
        Box::pin(async move {
            let sent = Instant::now();
            let renewed_by = match &write {
                Write::Renew(by) => Some(*by),
                _ => None,
            };
            let answer = bugs::write(self, copy(lease), write).await;
            match (&answer, renewed_by) {
                (Ok(Written::Applied | Written::AlreadyMine(_)), Some(by)) => {
                    self.world.told(lease.attempt, sent + by);
                }
                (Ok(Written::Superseded(_)), Some(_)) => self.world.told(lease.attempt, sent),
                _ => {}
            }
            answer
        })
    }

    fn resolve(&self, resolve: Resolve) -> StoreFuture<'_, Resolved> {
        Box::pin(self.call("resolve", move |world| bugs::resolve(world, resolve.clone())))
    }

    fn load<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Option<Record>> {
        let id = id.clone();
        Box::pin(self.call("load", move |world| {
            let now = world.store_now();
            machine::load(lock(&world.records).records.get(&id), now)
        }))
    }

    fn audit<'a>(&'a self, _id: &'a RecordId) -> StoreFuture<'a, Vec<AuditRecord>> {
        Box::pin(self.call("audit", |_| Vec::new()))
    }

    fn sweep(&self, limit: u32) -> StoreFuture<'_, Vec<Swept>> {
        Box::pin(bugs::sweep(self, limit))
    }

    fn reap(&self, _limit: u32) -> StoreFuture<'_, Reaped> {
        Box::pin(self.call("reap", |world| world.reap()))
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        Box::pin(self.call("ping", |_| ()))
    }

    fn check_identity<'a>(&'a self, _: &'a Identity) -> StoreFuture<'a, IdentityCheck> {
        // All nodes of a world are set up alike, and each asks once: no faults worth having.
        Box::pin(async { Ok(IdentityCheck::Same) })
    }

    fn accept_identity<'a>(&'a self, _: &'a Identity) -> StoreFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }
}
