//! A store around another one that never sees what was replied: replies, the results of steps and kept
//! requests are sealed on their way in and opened on their way out.
//!
//! ```text
//! ring key (this process) --wraps--> data key of a scope (the store) --seals--> replies, steps, requests
//! ```
//!
//! Everything is sealed for its place: the scope, the key, and the generation, attempt and fence of a
//! reply. What is moved to another record, or put back from an earlier one, does not open, and that is
//! an error; never an empty reply. Dropping the data keys of a scope erases what was sealed for it:
//! of its replies the status is left, so that a retry is told that the work is done.
//!
//! What was written before stays readable as it is. Not sealed are: scope, key, method, path, route,
//! status, times, sizes, names of steps, reasons, and the messages of an outbox.

use std::{sync::Arc, time::Duration};

use tracing::error;

use super::{
    Advance, Advanced, Ask, Beat, Claim, Database, Identity, IdentityCheck, Mode, Noted, Pulse,
    Reaped, Regression, Reservation, Resolution, Resolve, Resolved, Resumable, ScopeKey, Store,
    StoreError, StoreFuture, Swept, Which, Write, Written,
    list::{AuditPage, AuditQuery, Page, Query, Stats},
};
use crate::{
    record::{
        AttemptId, AuditRecord, Lease, ProviderId, ProviderNote, Record, RecordId, SavedStep,
    },
    scope::Scope,
};

mod contents;
mod data_keys;
mod envelope;
mod ring;
mod seals;

use envelope::Of;
pub use ring::{KeyRing, KeyRingError, RingKey};
pub(crate) use seals::Seals;

/// A store that keeps replies, results of steps and requests sealed.
#[derive(Debug)]
pub struct SealedStore {
    inner: Arc<dyn Store>,
    seals: Seals,
}

/// The database of a [`SealedStore`], for transactions of the user's own in it.
#[derive(Clone, Debug)]
#[cfg_attr(
    not(any(feature = "sqlite", feature = "postgres", feature = "mysql", feature = "dynamodb")),
    expect(dead_code, reason = "only transactions use it")
)]
pub struct SealedDatabase {
    pub(crate) inner: Box<Database>,
    pub(crate) seals: Seals,
}

impl SealedStore {
    /// A store around `inner` with these keys.
    pub fn new(inner: Arc<dyn Store>, ring: KeyRing) -> Self {
        SealedStore { seals: Seals::new(Arc::clone(&inner), ring), inner }
    }

    /// Replaces the keys: to rotate them while the process runs.
    pub fn set_ring(&self, ring: KeyRing) {
        self.seals.keys().set_ring(ring);
    }

    async fn resolve_sealed(&self, mut resolve: Resolve) -> Result<Resolved, StoreError> {
        if let Resolution::Complete(reply) | Resolution::GiveUp(reply) = &mut resolve.resolution {
            // The attempt that the reply is for: if it is another one by then, nothing happens.
            let record = self.inner.load(&resolve.id).await?;
            let nobody = AttemptId::from_bytes([0; 16]);
            let of = Of {
                id: &resolve.id,
                generation: resolve.generation,
                attempt: record.map_or(nobody, |record| record.attempt),
                fence: resolve.fence,
            };
            *reply = self.seals.seal_resolved(of, reply).await?;
        }
        if let Resolution::Executed { attempt, reply } = &mut resolve.resolution {
            let of = Of {
                id: &resolve.id,
                generation: resolve.generation,
                attempt: *attempt,
                fence: resolve.fence,
            };
            *reply = self.seals.seal_resolved(of, reply).await?;
        }
        let mut resolved = self.inner.resolve(resolve).await?;
        if let Resolved::Applied(record) | Resolved::Refused(record) = &mut resolved {
            self.seals.open_record(record).await?;
        }
        Ok(resolved)
    }

    async fn opened(&self, record: Option<Record>) -> Result<Option<Record>, StoreError> {
        let Some(mut record) = record else { return Ok(None) };
        self.seals.open_record(&mut record).await?;
        Ok(Some(record))
    }

    /// One that cannot be opened is told of without its request: it must not hide the others.
    async fn open_resumable(&self, resumable: &mut Resumable) {
        let Some(request) = resumable.request.take() else { return };
        let record = &resumable.record;
        match self.seals.open_request(&record.id, &record.fingerprint, request).await {
            Ok(request) => resumable.request = Some(request),
            Err(error) => error!(%error, "the request of a phased operation cannot be opened"),
        }
    }
}

impl Store for SealedStore {
    fn reserve(&self, ask: Ask) -> StoreFuture<'_, Reservation> {
        Box::pin(async move {
            let id = ask.id.clone();
            let looks = ask.mode == Mode::LookupOnly;
            // Before anything is granted: work that cannot be kept sealed must not begin.
            if !looks {
                self.seals.prepare(&id.scope).await?;
            }
            let ask = self.seals.seal_ask(ask).await?;
            let reservation = self.inner.reserve(ask).await?;
            // Who finds a free key may be about to take it, in a transaction in which the store
            // cannot be written to by anybody else.
            if looks && reservation == Reservation::Free {
                self.seals.prepare(&id.scope).await?;
            }
            self.seals.open_reservation(&id, reservation).await
        })
    }

    fn claim(&self, claim: Claim) -> StoreFuture<'_, Reservation> {
        Box::pin(async move {
            // As for `reserve`.
            let id = claim.id.clone();
            self.seals.prepare(&id.scope).await?;
            let reservation = self.inner.claim(claim).await?;
            self.seals.open_reservation(&id, reservation).await
        })
    }

    fn write<'a>(&'a self, lease: &'a Lease, write: Write) -> StoreFuture<'a, Written> {
        Box::pin(async move {
            let write = match write {
                Write::Complete(reply) => {
                    Write::Complete(self.seals.seal_reply(lease.into(), &reply).await?)
                }
                other => other,
            };
            let written = self.inner.write(lease, write).await?;
            self.seals.open_written(lease, written).await
        })
    }

    fn advance<'a>(&'a self, lease: &'a Lease, advance: Advance) -> StoreFuture<'a, Advanced> {
        Box::pin(async move {
            let advance = self.seals.seal_advance(lease, advance).await?;
            let advanced = self.inner.advance(lease, advance).await?;
            self.seals.open_advanced(advanced).await
        })
    }

    fn steps<'a>(&'a self, id: &'a RecordId, generation: u32) -> StoreFuture<'a, Vec<SavedStep>> {
        Box::pin(async move {
            let mut steps = self.inner.steps(id, generation).await?;
            for step in &mut steps {
                let result = std::mem::take(&mut step.result);
                step.result = self.seals.open_step(id, generation, &step.name, result).await?;
            }
            Ok(steps)
        })
    }

    fn resumable(&self, which: Which, limit: u32) -> StoreFuture<'_, Vec<Resumable>> {
        Box::pin(async move {
            let mut resumable = self.inner.resumable(which, limit).await?;
            for one in &mut resumable {
                self.open_resumable(one).await;
            }
            Ok(resumable)
        })
    }

    /// What is unknown has no reply.
    fn due_unknown(&self, limit: u32, except: Vec<Arc<str>>) -> StoreFuture<'_, Vec<Record>> {
        self.inner.due_unknown(limit, except)
    }

    /// As they are, as scopes and keys are: they are found by equality, and by people.
    fn note_provider_id<'a>(&'a self, lease: &'a Lease, id: ProviderId) -> StoreFuture<'a, Noted> {
        self.inner.note_provider_id(lease, id)
    }

    fn by_provider_id<'a>(&'a self, id: &'a ProviderId) -> StoreFuture<'a, Option<ProviderNote>> {
        self.inner.by_provider_id(id)
    }

    fn provider_ids(&self, of: Vec<RecordId>) -> StoreFuture<'_, Vec<ProviderNote>> {
        self.inner.provider_ids(of)
    }

    fn resolve(&self, resolve: Resolve) -> StoreFuture<'_, Resolved> {
        Box::pin(self.resolve_sealed(resolve))
    }

    fn load<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Option<Record>> {
        Box::pin(async move { self.opened(self.inner.load(id).await?).await })
    }

    fn settled(&self, ids: Vec<RecordId>) -> StoreFuture<'_, Vec<RecordId>> {
        self.inner.settled(ids)
    }

    fn audit<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Vec<AuditRecord>> {
        Box::pin(async move {
            let mut audit = self.inner.audit(id).await?;
            for one in &mut audit {
                self.seals.open_audit(one).await;
            }
            Ok(audit)
        })
    }

    fn list_records(&self, query: Query) -> StoreFuture<'_, Page> {
        self.inner.list_records(query)
    }

    fn audit_log(&self, query: AuditQuery) -> StoreFuture<'_, AuditPage> {
        self.inner.audit_log(query)
    }

    fn stats(&self) -> StoreFuture<'_, Stats> {
        self.inner.stats()
    }

    fn sweep(&self, limit: u32) -> StoreFuture<'_, Vec<Swept>> {
        self.inner.sweep(limit)
    }

    fn reap(&self, limit: u32) -> StoreFuture<'_, Reaped> {
        self.inner.reap(limit)
    }

    fn purge_audit(&self, older_than: Duration, limit: u32) -> StoreFuture<'_, u32> {
        self.inner.purge_audit(older_than, limit)
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        self.inner.ping()
    }

    fn check_identity<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, IdentityCheck> {
        self.inner.check_identity(identity)
    }

    fn accept_identity<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, ()> {
        self.inner.accept_identity(identity)
    }

    fn scope_keys<'a>(
        &'a self,
        scope: &'a Scope,
        proposed: Option<ScopeKey>,
    ) -> StoreFuture<'a, Vec<ScopeKey>> {
        self.inner.scope_keys(scope, proposed)
    }

    fn drop_scope_keys<'a>(&'a self, scope: &'a Scope, reason: &'a str) -> StoreFuture<'a, u32> {
        Box::pin(async move {
            let dropped = self.inner.drop_scope_keys(scope, reason).await;
            self.seals.keys().forget(scope);
            dropped
        })
    }

    fn beat(&self, beat: Beat) -> StoreFuture<'_, Pulse> {
        self.inner.beat(beat)
    }

    fn acknowledge_regression<'a>(
        &'a self,
        reason: &'a str,
    ) -> StoreFuture<'a, Option<Regression>> {
        self.inner.acknowledge_regression(reason)
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
        let inner = Box::new(self.inner.database()?);
        Some(Database::Sealed(SealedDatabase { inner, seals: self.seals.clone() }))
    }
}
