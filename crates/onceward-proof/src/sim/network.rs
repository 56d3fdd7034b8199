//! The way of a node to the store: a network that loses, delays and repeats messages.
//!
//! A call is a message. It takes effect when it arrives, whether or not its caller still waits.

use std::{future::pending, sync::Arc, time::Duration};

use onceward::{
    machine,
    record::{AuditRecord, Lease, Record, RecordId, SavedStep},
    scope::Scope,
    store::{
        Advance, Advanced, Ask, Claim, Identity, IdentityCheck, Reaped, Reservation, Resolve,
        Resolved, Resumable, ScopeKey, Store, StoreError, StoreErrorKind, StoreFuture, Swept,
        Write, Written,
        list::{AuditPage, AuditQuery, Page, Query, Stats},
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
    store::{copy, error},
    world::{World, lock},
};
use crate::history::Cause;

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
                (Ok(Written::Superseded(_)), _) => self.world.told(lease.attempt, sent),
                _ => {}
            }
            answer
        })
    }

    // The worlds have no phased routes yet.
    fn advance<'a>(&'a self, _: &'a Lease, _: Advance) -> StoreFuture<'a, Advanced> {
        Box::pin(async { Err(error(StoreErrorKind::Unavailable)) })
    }

    fn steps<'a>(&'a self, _: &'a RecordId, _: u32) -> StoreFuture<'a, Vec<SavedStep>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn resumable(&self, _: u32) -> StoreFuture<'_, Vec<Resumable>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn due_unknown(&self, _: u32, _: Vec<Arc<str>>) -> StoreFuture<'_, Vec<Record>> {
        Box::pin(async { Ok(Vec::new()) })
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

    fn list_records(&self, query: Query) -> StoreFuture<'_, Page> {
        Box::pin(self.call("list_records", move |world| {
            let now = world.store_now();
            query.page(lock(&world.records).records.values(), now)
        }))
    }

    // As `audit`: nobody in the worlds reads it.
    fn audit_log(&self, _: AuditQuery) -> StoreFuture<'_, AuditPage> {
        Box::pin(self.call("audit_log", |_| AuditPage::default()))
    }

    fn stats(&self) -> StoreFuture<'_, Stats> {
        Box::pin(self.call("stats", |world| {
            let now = world.store_now();
            Stats::count(lock(&world.records).records.values(), now)
        }))
    }

    fn sweep(&self, limit: u32) -> StoreFuture<'_, Vec<Swept>> {
        Box::pin(bugs::sweep(self, limit))
    }

    fn reap(&self, _limit: u32) -> StoreFuture<'_, Reaped> {
        Box::pin(self.call("reap", |world| world.reap()))
    }

    // As `audit`: there is nothing to purge.
    fn purge_audit(&self, _: Duration, _: u32) -> StoreFuture<'_, u32> {
        Box::pin(self.call("purge_audit", |_| 0))
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

    // Nothing is sealed in the worlds: the engine does not know of it.
    fn scope_keys<'a>(
        &'a self,
        _: &'a Scope,
        _: Option<ScopeKey>,
    ) -> StoreFuture<'a, Vec<ScopeKey>> {
        Box::pin(async { Err(error(StoreErrorKind::Unavailable)) })
    }

    fn drop_scope_keys<'a>(&'a self, _: &'a Scope, _: &'a str) -> StoreFuture<'a, u32> {
        Box::pin(async { Ok(0) })
    }
}
