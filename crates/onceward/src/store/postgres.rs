//! Records in PostgreSQL: the reference store, durable, for many nodes.
//!
//! Concurrent calls share round trips and commits: reserves and writes stand in one line before a few
//! connections. What a batch cannot answer (a record that must be changed to
//! be taken, a write that is not the owner's) goes one by one on other connections, by the rules of
//! [`crate::machine`].
//!
//! Every call is one statement that commits by itself: a connection is never inside a transaction
//! when a call is dropped, and no session state is kept, so that a pooler in transaction mode does.
//!
//! Limits: the primary only; what the server acknowledged and then lost (`synchronous_commit = off`,
//! a failover to a replica that was behind) is lost.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::watch;

use super::{
    Advance, Advanced, Ask, Beat, Claim, Database, Identity, IdentityCheck, Noted, Pulse, Reaped,
    Regression, Reservation, Resolve, Resolved, Resumable, ScopeKey, Store, StoreFuture, Swept,
    Which, Write, Written,
    lane::Lane,
    list::{AuditPage, AuditQuery, Page, Query, Stats},
    turn::Turns,
    witness::Witnesses,
};
use crate::{
    clock::Clock,
    machine,
    record::{AuditRecord, Lease, ProviderId, ProviderNote, Record, RecordId, SavedStep},
    scope::Scope,
};

mod batch;
mod canary;
mod error;
mod examine;
mod list;
mod link;
mod look;
mod migrate;
mod open;
mod outbox;
mod provider_ids;
mod reserve;
mod row;
mod scope_keys;
mod steps;
mod within;
mod workers;
mod write;

use batch::Work;
use link::Link;
use look::{Side, no_request, step};
pub use open::PgConnectError;
use open::Statements;
use reserve::Reserve;
use write::GuardedWrite;

/// Where and how a [`PgStore`] lives.
#[derive(Clone)]
pub struct PgOptions {
    url: Arc<str>,
    schema: Arc<str>,
    migrate: bool,
    connections: [usize; 2],
    clock: Option<Arc<dyn Clock>>,
}

impl PgOptions {
    /// A store in the database of this URL, in the schema `onceward`.
    pub fn new(url: impl Into<Arc<str>>) -> Self {
        PgOptions {
            url: url.into(),
            schema: "onceward".into(),
            migrate: true,
            connections: [2, 4],
            clock: None,
        }
    }

    /// The same in a schema of this name.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<Arc<str>>) -> Self {
        self.schema = schema.into();
        self
    }

    /// Whether the schema may be made or brought to this version. If not, it has to be there.
    #[must_use]
    pub fn migrate(mut self, migrate: bool) -> Self {
        self.migrate = migrate;
        self
    }

    /// How many connections batches and single calls have. Few are best: while they are busy the next
    /// batch gathers.
    #[must_use]
    pub fn connections(mut self, batches: usize, singles: usize) -> Self {
        self.connections = [batches.max(1), singles.max(1)];
        self
    }

    /// Another clock than the server's: for tests.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }
}

impl fmt::Debug for PgOptions {
    /// Without the URL, which may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgOptions").field("schema", &self.schema).finish_non_exhaustive()
    }
}

/// A store in a PostgreSQL database.
pub struct PgStore {
    batches: Lane<Work>,
    side: Lane<Side>,
    database: PgDatabase,
    witnesses: Witnesses,
    /// Where the next sweep goes on, if the last one did not come to the end.
    sweeps_on: Mutex<Option<workers::Place>>,
    closing_batches: watch::Sender<bool>,
    closing_side: watch::Sender<bool>,
}

/// What a transaction of the user's needs to write records of a [`PgStore`].
#[derive(Clone, Debug)]
pub struct PgDatabase {
    /// What the store says it is, wherever one connects to it.
    name: Arc<str>,
    statements: Arc<Statements>,
    clock: Option<Arc<dyn Clock>>,
}

impl fmt::Debug for PgStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgStore").finish_non_exhaustive()
    }
}

impl PgStore {
    /// Connects, and brings the schema to this version under a lock.
    ///
    /// It works on the runtime that connects it, as long as that one runs.
    ///
    /// # Errors
    /// When the server cannot be reached or is too old, or when the schema is newer than this
    /// version.
    pub async fn connect(options: PgOptions) -> Result<Self, PgConnectError> {
        let options = Arc::new(options);
        let name = open::prepare(&options).await?;
        let statements = Arc::new(Statements::of(&options.schema));
        let witnesses = Witnesses::default();
        let link = || Link::new(Arc::clone(&options), Arc::clone(&statements), witnesses.clone());
        let [batches, singles] = options.connections;
        let (closing_batches, batches_close) = watch::channel(false);
        let (closing_side, side_closes) = watch::channel(false);
        let turns = Turns::default();
        let single = (0..singles).map(|_| link().beside(&turns)).collect();
        let side = Lane::start(single, &side_closes);
        let links = (0..batches).map(|_| link().with_side(&side)).collect();
        Ok(PgStore {
            batches: Lane::start(links, &batches_close),
            side,
            database: PgDatabase { name, statements, clock: options.clock.clone() },
            witnesses,
            sweeps_on: Mutex::default(),
            closing_batches,
            closing_side,
        })
    }

    /// Finishes what stands in line, and closes the connections. Later calls fail.
    ///
    /// # Cancel safety
    /// The store closes all the same.
    pub async fn close(&self) {
        self.closing_batches.send_replace(true);
        self.batches.ended().await;
        self.closing_side.send_replace(true);
        self.side.ended().await;
    }

    /// A call on a connection of its own.
    fn single<A, F>(&self, job: F) -> StoreFuture<'_, A>
    where
        A: Send + 'static,
        F: for<'l> FnOnce(&'l mut Link) -> StoreFuture<'l, A> + Send + 'static,
    {
        Box::pin(self.side.ask(move |sender| {
            Side::Job(Box::new(move |link| {
                Box::pin(async move {
                    if sender.is_closed() {
                        return;
                    }
                    // The caller may go. What was done is done all the same.
                    let _ = sender.send(job(link).await);
                })
            }))
        }))
    }
}

impl Store for PgStore {
    fn reserve(&self, ask: Ask) -> StoreFuture<'_, Reservation> {
        Box::pin(self.batches.ask(move |sender| Work::Reserve(Reserve { ask, sender })))
    }

    fn claim(&self, claim: Claim) -> StoreFuture<'_, Reservation> {
        self.single(move |link| {
            Box::pin(async move {
                let decide = |found: Option<&Record>, now| machine::claim(found, &claim, now);
                let claimed = step(link, &claim.id, None, no_request, decide).await;
                if let Ok(Reservation::Granted { lease, .. }) = &claimed {
                    link.acknowledged(lease, false);
                }
                claimed.map_err(look::StepFailed::into_error)
            })
        })
    }

    fn write<'a>(&'a self, lease: &'a Lease, write: Write) -> StoreFuture<'a, Written> {
        let lease = Lease { id: lease.id.clone(), ..*lease };
        Box::pin(self.batches.ask(move |sender| Work::Write(GuardedWrite { lease, write, sender })))
    }

    fn due_unknown(&self, limit: u32, except: Vec<Arc<str>>) -> StoreFuture<'_, Vec<Record>> {
        self.single(move |link| Box::pin(workers::due_unknown(link, limit, except)))
    }

    fn note_provider_id<'a>(&'a self, lease: &'a Lease, id: ProviderId) -> StoreFuture<'a, Noted> {
        let lease = Lease { id: lease.id.clone(), ..*lease };
        self.single(move |link| Box::pin(provider_ids::note(link, lease, id)))
    }

    fn by_provider_id<'a>(&'a self, id: &'a ProviderId) -> StoreFuture<'a, Option<ProviderNote>> {
        let id = id.clone();
        self.single(move |link| Box::pin(provider_ids::by_id(link, id)))
    }

    fn provider_ids(&self, of: Vec<RecordId>) -> StoreFuture<'_, Vec<ProviderNote>> {
        self.single(move |link| Box::pin(provider_ids::of(link, of)))
    }

    fn resolve(&self, resolve: Resolve) -> StoreFuture<'_, Resolved> {
        self.single(move |link| Box::pin(look::resolve(link, resolve)))
    }

    fn advance<'a>(&'a self, lease: &'a Lease, advance: Advance) -> StoreFuture<'a, Advanced> {
        let lease = Lease { id: lease.id.clone(), ..*lease };
        self.single(move |link| Box::pin(steps::advance(link, lease, advance)))
    }

    fn steps<'a>(&'a self, id: &'a RecordId, generation: u32) -> StoreFuture<'a, Vec<SavedStep>> {
        let id = id.clone();
        self.single(move |link| Box::pin(steps::saved(link, id, generation)))
    }

    fn resumable(&self, which: Which, limit: u32) -> StoreFuture<'_, Vec<Resumable>> {
        self.single(move |link| Box::pin(steps::resumable(link, which, limit)))
    }

    fn load<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Option<Record>> {
        let id = id.clone();
        self.single(move |link| {
            Box::pin(async move {
                let (found, now) = look::load_one(link, &id).await?;
                Ok(machine::load(found.as_deref(), now))
            })
        })
    }

    fn settled(&self, ids: Vec<RecordId>) -> StoreFuture<'_, Vec<RecordId>> {
        self.single(move |link| Box::pin(workers::settled(link, ids)))
    }

    fn audit<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Vec<AuditRecord>> {
        let id = id.clone();
        self.single(move |link| Box::pin(workers::audit(link, id)))
    }

    fn list_records(&self, query: Query) -> StoreFuture<'_, Page> {
        Box::pin(list::page(self, query))
    }

    fn audit_log(&self, query: AuditQuery) -> StoreFuture<'_, AuditPage> {
        self.single(move |link| Box::pin(list::audit_page(link, query)))
    }

    fn stats(&self) -> StoreFuture<'_, Stats> {
        self.single(|link| Box::pin(list::stats(link)))
    }

    fn sweep(&self, limit: u32) -> StoreFuture<'_, Vec<Swept>> {
        Box::pin(workers::sweep(self, limit))
    }

    fn has_more_to_sweep(&self) -> bool {
        self.sweeps_on.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn reap(&self, limit: u32) -> StoreFuture<'_, Reaped> {
        self.single(move |link| Box::pin(workers::reap(link, limit)))
    }

    fn purge_audit(&self, older_than: Duration, limit: u32) -> StoreFuture<'_, u32> {
        self.single(move |link| Box::pin(workers::purge_audit(link, older_than, limit)))
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        self.single(|link| Box::pin(workers::ping(link)))
    }

    fn check_identity<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, IdentityCheck> {
        let identity = identity.clone();
        self.single(move |link| Box::pin(workers::check_identity(link, identity)))
    }

    fn accept_identity<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, ()> {
        let identity = identity.clone();
        self.single(move |link| Box::pin(workers::accept_identity(link, identity)))
    }

    fn scope_keys<'a>(
        &'a self,
        scope: &'a Scope,
        proposed: Option<ScopeKey>,
    ) -> StoreFuture<'a, Vec<ScopeKey>> {
        let scope = scope.clone();
        self.single(move |link| Box::pin(scope_keys::keys_of(link, scope, proposed)))
    }

    fn drop_scope_keys<'a>(&'a self, scope: &'a Scope, reason: &'a str) -> StoreFuture<'a, u32> {
        let (scope, reason) = (scope.clone(), reason.into());
        self.single(move |link| Box::pin(scope_keys::drop_keys_of(link, scope, reason)))
    }

    fn beat(&self, beat: Beat) -> StoreFuture<'_, Pulse> {
        self.single(move |link| Box::pin(canary::beat(link, beat)))
    }

    fn acknowledge_regression<'a>(
        &'a self,
        reason: &'a str,
    ) -> StoreFuture<'a, Option<Regression>> {
        let reason = reason.into();
        self.single(move |link| Box::pin(canary::acknowledge(link, reason)))
    }

    fn epoch(&self) -> u64 {
        self.witnesses.epoch()
    }

    fn database(&self) -> Option<Database> {
        Some(Database::Postgres(self.database.clone()))
    }
}
