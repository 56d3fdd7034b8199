//! A store whose calls fail as a test says: before they took effect, after it, or never answered.

use std::{
    future::pending,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{
    record::{AuditRecord, Lease, ProviderId, ProviderNote, Record, RecordId, SavedStep},
    scope::Scope,
    store::{
        Advance, Advanced, Ask, Beat, Claim, Database, Identity, IdentityCheck, Noted, Pulse,
        Reaped, Regression, Reservation, Resolve, Resolved, Resumable, ScopeKey, Store, StoreError,
        StoreErrorKind, StoreFuture, Swept, Which, Write, Written,
        list::{AuditPage, AuditQuery, Page, Query, Stats},
    },
};

/// Which method of a store is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "named after the methods and writes of a store")]
pub enum StoreCall {
    Reserve,
    Claim,
    Renew,
    Complete,
    Release,
    MarkUnknown,
    Save,
    Intend,
    Withdraw,
    Steps,
    Resumable,
    DueUnknown,
    NoteProviderId,
    ByProviderId,
    ProviderIds,
    Resolve,
    Load,
    Audit,
    List,
    AuditLog,
    Stats,
    Sweep,
    Reap,
    PurgeAudit,
    Ping,
    CheckIdentity,
    AcceptIdentity,
    ScopeKeys,
    DropScopeKeys,
    Beat,
    AcknowledgeRegression,
}

impl StoreCall {
    /// All calls, for tests that let each of them fail.
    pub const ALL: [StoreCall; 31] = [
        StoreCall::Reserve,
        StoreCall::Claim,
        StoreCall::Renew,
        StoreCall::Complete,
        StoreCall::Release,
        StoreCall::MarkUnknown,
        StoreCall::Save,
        StoreCall::Intend,
        StoreCall::Withdraw,
        StoreCall::Steps,
        StoreCall::Resumable,
        StoreCall::DueUnknown,
        StoreCall::NoteProviderId,
        StoreCall::ByProviderId,
        StoreCall::ProviderIds,
        StoreCall::Resolve,
        StoreCall::Load,
        StoreCall::Audit,
        StoreCall::List,
        StoreCall::AuditLog,
        StoreCall::Stats,
        StoreCall::Sweep,
        StoreCall::Reap,
        StoreCall::PurgeAudit,
        StoreCall::Ping,
        StoreCall::CheckIdentity,
        StoreCall::AcceptIdentity,
        StoreCall::ScopeKeys,
        StoreCall::DropScopeKeys,
        StoreCall::Beat,
        StoreCall::AcknowledgeRegression,
    ];

    /// Which call a write is.
    pub fn of(write: &Write) -> Self {
        match write {
            Write::Renew(_) => StoreCall::Renew,
            Write::Complete(_) => StoreCall::Complete,
            Write::Release(_) => StoreCall::Release,
            Write::MarkUnknown(_) => StoreCall::MarkUnknown,
        }
    }

    /// Which call an advance is.
    pub fn of_advance(advance: &Advance) -> Self {
        match advance {
            Advance::Save { .. } => StoreCall::Save,
            Advance::Intend { .. } => StoreCall::Intend,
            Advance::Withdraw { .. } => StoreCall::Withdraw,
        }
    }
}

/// How a store call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Not at all.
    None,
    /// It is refused, and has no effect.
    Refused,
    /// It has no effect, and its answer is lost.
    LostBefore,
    /// It takes effect, and its answer is lost.
    LostAfter,
    /// The record cannot be read.
    Corrupt,
    /// It has no effect, and never answers.
    HangsBefore,
    /// It takes effect, and never answers.
    HangsAfter,
}

impl Fault {
    /// All faults, for tests that let a call fail in each way. The last two never answer.
    pub const ALL: [Fault; 6] = [
        Fault::Refused,
        Fault::LostBefore,
        Fault::LostAfter,
        Fault::Corrupt,
        Fault::HangsBefore,
        Fault::HangsAfter,
    ];
}

type Plan = dyn FnMut(StoreCall, u32) -> Fault + Send;

/// A store whose calls fail as a plan says.
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    plan: Mutex<(u32, Box<Plan>)>,
}

impl FaultyStore {
    /// A store around `inner`. The plan is asked at every call, with the number of calls before.
    pub fn new(
        inner: Arc<dyn Store>,
        plan: impl FnMut(StoreCall, u32) -> Fault + Send + 'static,
    ) -> Self {
        FaultyStore { inner, plan: Mutex::new((0, Box::new(plan))) }
    }

    fn fault(&self, call: StoreCall) -> Fault {
        let mut plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        let number = plan.0;
        plan.0 += 1;
        (plan.1)(call, number)
    }

    fn call<'a, T: Send + 'a>(
        &'a self,
        call: StoreCall,
        inner: impl FnOnce() -> StoreFuture<'a, T> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move {
            let error = |kind| Err(StoreError::new(kind, "faulty", "a fault of the test"));
            match self.fault(call) {
                Fault::None => inner().await,
                Fault::Refused => error(StoreErrorKind::Unavailable),
                Fault::LostBefore => error(StoreErrorKind::Ambiguous),
                Fault::Corrupt => error(StoreErrorKind::Corrupt),
                Fault::HangsBefore => pending().await,
                Fault::LostAfter => {
                    inner().await?;
                    error(StoreErrorKind::Ambiguous)
                }
                Fault::HangsAfter => {
                    inner().await?;
                    pending().await
                }
            }
        })
    }
}

impl std::fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FaultyStore({:?})", self.inner)
    }
}

/// Implements `Store` for a wrapper that has `inner` and `call`.
macro_rules! wrapped_store {
    ($wrapper:ty) => {
        impl Store for $wrapper {
            fn reserve(&self, ask: Ask) -> StoreFuture<'_, Reservation> {
                self.call(StoreCall::Reserve, move || self.inner.reserve(ask))
            }

            fn claim(&self, claim: Claim) -> StoreFuture<'_, Reservation> {
                self.call(StoreCall::Claim, move || self.inner.claim(claim))
            }

            fn write<'a>(&'a self, lease: &'a Lease, write: Write) -> StoreFuture<'a, Written> {
                self.call(StoreCall::of(&write), move || self.inner.write(lease, write))
            }

            fn advance<'a>(
                &'a self,
                lease: &'a Lease,
                advance: Advance,
            ) -> StoreFuture<'a, Advanced> {
                let call = StoreCall::of_advance(&advance);
                self.call(call, move || self.inner.advance(lease, advance))
            }

            fn steps<'a>(
                &'a self,
                id: &'a RecordId,
                generation: u32,
            ) -> StoreFuture<'a, Vec<SavedStep>> {
                self.call(StoreCall::Steps, move || self.inner.steps(id, generation))
            }

            fn resumable(&self, which: Which, limit: u32) -> StoreFuture<'_, Vec<Resumable>> {
                self.call(StoreCall::Resumable, move || self.inner.resumable(which, limit))
            }

            fn due_unknown(
                &self,
                limit: u32,
                except: Vec<Arc<str>>,
            ) -> StoreFuture<'_, Vec<Record>> {
                let call = move || self.inner.due_unknown(limit, except);
                self.call(StoreCall::DueUnknown, call)
            }

            fn note_provider_id<'a>(
                &'a self,
                lease: &'a Lease,
                id: ProviderId,
            ) -> StoreFuture<'a, Noted> {
                let inner = move || self.inner.note_provider_id(lease, id);
                self.call(StoreCall::NoteProviderId, inner)
            }

            fn by_provider_id<'a>(
                &'a self,
                id: &'a ProviderId,
            ) -> StoreFuture<'a, Option<ProviderNote>> {
                self.call(StoreCall::ByProviderId, move || self.inner.by_provider_id(id))
            }

            fn provider_ids(&self, of: Vec<RecordId>) -> StoreFuture<'_, Vec<ProviderNote>> {
                self.call(StoreCall::ProviderIds, move || self.inner.provider_ids(of))
            }

            fn resolve(&self, resolve: Resolve) -> StoreFuture<'_, Resolved> {
                self.call(StoreCall::Resolve, move || self.inner.resolve(resolve))
            }

            fn load<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Option<Record>> {
                self.call(StoreCall::Load, move || self.inner.load(id))
            }

            fn settled(&self, ids: Vec<RecordId>) -> StoreFuture<'_, Vec<RecordId>> {
                self.call(StoreCall::Load, move || self.inner.settled(ids))
            }

            fn audit<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Vec<AuditRecord>> {
                self.call(StoreCall::Audit, move || self.inner.audit(id))
            }

            fn list_records(&self, query: Query) -> StoreFuture<'_, Page> {
                self.call(StoreCall::List, move || self.inner.list_records(query))
            }

            fn audit_log(&self, query: AuditQuery) -> StoreFuture<'_, AuditPage> {
                self.call(StoreCall::AuditLog, move || self.inner.audit_log(query))
            }

            fn stats(&self) -> StoreFuture<'_, Stats> {
                self.call(StoreCall::Stats, move || self.inner.stats())
            }

            fn sweep(&self, limit: u32) -> StoreFuture<'_, Vec<Swept>> {
                self.call(StoreCall::Sweep, move || self.inner.sweep(limit))
            }

            fn reap(&self, limit: u32) -> StoreFuture<'_, Reaped> {
                self.call(StoreCall::Reap, move || self.inner.reap(limit))
            }

            fn purge_audit(
                &self,
                older_than: std::time::Duration,
                limit: u32,
            ) -> StoreFuture<'_, u32> {
                self.call(StoreCall::PurgeAudit, move || self.inner.purge_audit(older_than, limit))
            }

            fn ping(&self) -> StoreFuture<'_, ()> {
                self.call(StoreCall::Ping, move || self.inner.ping())
            }

            fn check_identity<'a>(
                &'a self,
                identity: &'a Identity,
            ) -> StoreFuture<'a, IdentityCheck> {
                self.call(StoreCall::CheckIdentity, move || self.inner.check_identity(identity))
            }

            fn accept_identity<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, ()> {
                self.call(StoreCall::AcceptIdentity, move || self.inner.accept_identity(identity))
            }

            fn scope_keys<'a>(
                &'a self,
                scope: &'a Scope,
                proposed: Option<ScopeKey>,
            ) -> StoreFuture<'a, Vec<ScopeKey>> {
                self.call(StoreCall::ScopeKeys, move || self.inner.scope_keys(scope, proposed))
            }

            fn drop_scope_keys<'a>(
                &'a self,
                scope: &'a Scope,
                reason: &'a str,
            ) -> StoreFuture<'a, u32> {
                let inner = move || self.inner.drop_scope_keys(scope, reason);
                self.call(StoreCall::DropScopeKeys, inner)
            }

            fn beat(&self, beat: Beat) -> StoreFuture<'_, Pulse> {
                self.call(StoreCall::Beat, move || self.inner.beat(beat))
            }

            fn acknowledge_regression<'a>(
                &'a self,
                reason: &'a str,
            ) -> StoreFuture<'a, Option<Regression>> {
                let inner = move || self.inner.acknowledge_regression(reason);
                self.call(StoreCall::AcknowledgeRegression, inner)
            }

            fn has_more_to_sweep(&self) -> bool {
                self.inner.has_more_to_sweep()
            }

            fn epoch(&self) -> u64 {
                self.inner.epoch()
            }

            fn reply_cap(&self) -> usize {
                self.inner.reply_cap()
            }

            fn database(&self) -> Option<Database> {
                self.inner.database()
            }
        }
    };
}
pub(super) use wrapped_store;

wrapped_store!(FaultyStore);
