//! The way of a node to the store: a network that loses, delays and repeats messages.
//!
//! A call is a message. It takes effect when it arrives, whether or not its caller still waits.

use std::{future::pending, sync::Arc, time::Duration};

use onceward::{
    machine,
    record::{AuditRecord, Lease, ProviderId, ProviderNote, Record, RecordId, SavedStep},
    scope::Scope,
    store::{
        Advance, Advanced, Ask, Beat, Claim, Identity, IdentityCheck, Noted, Pulse, Reaped,
        Regression, Reservation, Resolve, Resolved, Resumable, ScopeKey, Store, StoreError,
        StoreErrorKind, StoreFuture, Swept, Which, Write, Written,
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

/// The way of one node to the store.
#[derive(Debug)]
pub(super) struct NodeStore {
    pub(super) world: Arc<World>,
    pub(super) node: u32,
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
        // In the calm no caller vanishes, so that nothing has to go its way without one.
        if self.world.is_calm() {
            return self.look(name, step).await;
        }
        let fault = self.fault(name).await;
        self.send(fault, step).await
    }

    /// Asks for something without changing it. If all is well nobody need care what becomes of a
    /// question whose caller is gone.
    async fn look<T: Send + 'static>(
        &self,
        name: &'static str,
        step: impl Fn(&World) -> T + Send + Sync + 'static,
    ) -> Result<T, StoreError> {
        match self.fault(name).await {
            StoreFault::None => {
                sleep(ON_ITS_WAY * 2).await;
                self.world.arrive(&step)
            }
            fault => self.send(fault, step).await,
        }
    }

    /// What happens to a call.
    async fn fault(&self, name: &'static str) -> StoreFault {
        // Some tasks of the library are spawned by itself, and stand still only here.
        self.gate.alive().await;
        let world = &self.world;
        // Resolutions are few, and only those that are late meet another attempt.
        let often = if name == "resolve" { 4 } else { 1 };
        let (fault, kind) = world.pick(&StoreFault::ALL, often);
        if fault != StoreFault::None {
            world.fault(kind, format!("node {} at {name}", self.node));
        }
        fault
    }

    async fn send<T: Send + 'static>(
        &self,
        fault: StoreFault,
        step: impl Fn(&World) -> T + Send + Sync + 'static,
    ) -> Result<T, StoreError> {
        let world = &self.world;
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
            let (sent, lease) = (Instant::now(), claim.lease);
            let answer = self.call("claim", move |world| bugs::claim(world, &claim)).await;
            if let Ok(Reservation::Granted { lease: granted, .. }) = &answer {
                self.world.told(granted.attempt, sent + lease);
            }
            answer
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
                (
                    Ok(Written::Applied | Written::AppliedAfterRelease | Written::AlreadyMine(_)),
                    Some(by),
                ) => {
                    self.world.told(lease.attempt, sent + by);
                }
                (Ok(Written::Superseded(_)), _) => self.world.told(lease.attempt, sent),
                _ => {}
            }
            answer
        })
    }

    fn advance<'a>(&'a self, lease: &'a Lease, advance: Advance) -> StoreFuture<'a, Advanced> {
        let lease = copy(lease);
        Box::pin(self.call("advance", move |world| {
            let answer = bugs::advance(world, &lease, &advance);
            world.check_saved(&lease, &advance, &answer);
            answer
        }))
    }

    fn steps<'a>(&'a self, id: &'a RecordId, generation: u32) -> StoreFuture<'a, Vec<SavedStep>> {
        let id = id.clone();
        Box::pin(self.look("steps", move |world| bugs::steps(world, &id, generation)))
    }

    fn resumable(&self, which: Which, limit: u32) -> StoreFuture<'_, Vec<Resumable>> {
        Box::pin(self.look("resumable", move |world| world.resumable(which, limit)))
    }

    // Everybody looks all the time. What breaks is worth a choice only where there is something to see.
    fn due_unknown(&self, limit: u32, except: Vec<Arc<str>>) -> StoreFuture<'_, Vec<Record>> {
        Box::pin(async move {
            self.gate.alive().await;
            if self.world.due_unknown(limit, &except).is_empty() {
                sleep(ON_ITS_WAY * 2).await;
                return Ok(Vec::new());
            }
            self.look("due_unknown", move |world| world.due_unknown(limit, &except)).await
        })
    }

    // No handler of a world knows a provider id.
    fn note_provider_id<'a>(&'a self, _: &'a Lease, _: ProviderId) -> StoreFuture<'a, Noted> {
        Box::pin(async { Err(error(StoreErrorKind::Unavailable)) })
    }

    fn by_provider_id<'a>(&'a self, _: &'a ProviderId) -> StoreFuture<'a, Option<ProviderNote>> {
        Box::pin(async { Ok(None) })
    }

    fn provider_ids(&self, _: Vec<RecordId>) -> StoreFuture<'_, Vec<ProviderNote>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn resolve(&self, resolve: Resolve) -> StoreFuture<'_, Resolved> {
        Box::pin(self.call("resolve", move |world| {
            let looked_at = resolve.fence;
            bugs::resolve(world, resolve.clone(), looked_at)
        }))
    }

    fn load<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Option<Record>> {
        let id = id.clone();
        Box::pin(self.look("load", move |world| {
            let now = world.store_now();
            machine::load(lock(&world.records).records.get(&id), now)
        }))
    }

    fn audit<'a>(&'a self, _id: &'a RecordId) -> StoreFuture<'a, Vec<AuditRecord>> {
        Box::pin(self.look("audit", |_| Vec::new()))
    }

    fn list_records(&self, query: Query) -> StoreFuture<'_, Page> {
        Box::pin(self.look("list_records", move |world| {
            let now = world.store_now();
            query.page(lock(&world.records).records.values(), now)
        }))
    }

    // As `audit`: nobody in the worlds reads it.
    fn audit_log(&self, _: AuditQuery) -> StoreFuture<'_, AuditPage> {
        Box::pin(self.look("audit_log", |_| AuditPage::default()))
    }

    fn stats(&self) -> StoreFuture<'_, Stats> {
        Box::pin(self.look("stats", |world| {
            let now = world.store_now();
            Stats::count(lock(&world.records).records.values(), now)
        }))
    }

    fn sweep(&self, limit: u32) -> StoreFuture<'_, Vec<Swept>> {
        Box::pin(bugs::sweep(self, limit))
    }

    fn reap(&self, limit: u32) -> StoreFuture<'_, Reaped> {
        let skew = self.skew;
        Box::pin(self.call("reap", move |world| world.reap(limit, skew)))
    }

    // As `audit`: there is nothing to purge.
    fn purge_audit(&self, _: Duration, _: u32) -> StoreFuture<'_, u32> {
        Box::pin(self.look("purge_audit", |_| 0))
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        Box::pin(self.look("ping", |_| ()))
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

    // The store of a world loses nothing that it acknowledged, and no node has a canary.
    fn beat(&self, _: Beat) -> StoreFuture<'_, Pulse> {
        Box::pin(async { Err(error(StoreErrorKind::Unavailable)) })
    }

    fn acknowledge_regression<'a>(&'a self, _: &'a str) -> StoreFuture<'a, Option<Regression>> {
        Box::pin(async { Ok(None) })
    }
}
