//! Records in one SQLite file: the embedded store, durable on one machine.
//!
//! One task owns the only connection. While a batch is being committed the next one gathers, so that
//! concurrent requests share one fsync, and a request alone goes at once. Inside the transaction the
//! rules are those of [`crate::machine`].
//!
//! Limits: time is the process's own; a network file system is not safe; what the disk acknowledged
//! and then lost is lost. Two processes may share one file safely; SQLite is not fair between them,
//! so that under load one of them may be told to try again.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::{mpsc, oneshot, watch};

use super::{
    Advance, Advanced, Ask, Beat, Claim, Database, Identity, IdentityCheck, Mode, Noted, Pulse,
    Reaped, Regression, Reservation, Resolve, Resolved, Resumable, ScopeKey, Store, StoreError,
    StoreErrorKind, StoreFuture, Swept, Which, Write, Written,
    beside::Beside,
    list::{AuditPage, AuditQuery, Page, Query},
    step::{Intent, PendingStep, RecordStep},
};
use crate::{
    clock::{Clock, SystemClock, Timestamp},
    machine::{self, Change, Step},
    record::{AuditRecord, Lease, ProviderId, ProviderNote, Record, RecordId, SavedStep},
    scope::Scope,
};

mod alone;
mod beside;
mod canary;
mod changes;
mod due;
mod error;
mod examine;
mod list;
mod log;
mod look;
mod migrate;
mod open;
mod outbox;
mod provider_ids;
mod recent;
mod row;
mod scope_keys;
mod sql;
mod statement;
mod within;
mod writer;

use canary::Acknowledge;
use due::PurgeAudit;
pub use open::OpenError;
use provider_ids::Note;
#[cfg(feature = "testing")]
pub(crate) use row::fuzz::fuzz_record;
use writer::{Work, Writer};

/// Where and how a [`SqliteStore`] lives.
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    path: PathBuf,
    clock: Arc<dyn Clock>,
    bytes_max: Option<u64>,
}

impl SqliteOptions {
    /// A store in this file, which is made if it is not there.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        SqliteOptions { path: path.into(), clock: Arc::new(SystemClock), bytes_max: None }
    }

    /// The same on another clock: for tests.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// The same in a file of at most this size. When it is full, calls fail as on a full disk: new
    /// keys are refused, and nothing that was acknowledged is lost.
    #[must_use]
    pub fn bytes_max(mut self, bytes: u64) -> Self {
        self.bytes_max = Some(bytes);
        self
    }
}

/// A store in one SQLite file.
#[derive(Debug)]
pub struct SqliteStore {
    work: mpsc::Sender<Work>,
    /// Ends with the writer, after it closed the file.
    writer: watch::Receiver<()>,
    stats: Arc<Stats>,
    database: SqliteDatabase,
    path: PathBuf,
}

/// The file of a [`SqliteStore`], for transactions of the user's own in it.
#[derive(Clone, Debug)]
pub struct SqliteDatabase {
    clock: Arc<dyn Clock>,
    /// Which file it is, as the system tells files apart.
    file: Option<(u64, u64)>,
}

impl SqliteDatabase {
    /// What time it is for its records.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

/// How many store calls may stand in line before callers wait for a place.
const LINE_MAX: usize = 4096;

/// What the store did since it was opened.
#[derive(Debug, Default)]
struct Stats {
    commits: AtomicU64,
    writes: AtomicU64,
}

impl SqliteStore {
    /// Opens the store, and makes its file if it is not there.
    ///
    /// It works on the runtime that opens it. Other runtimes may call it as long as that one runs;
    /// when it is shut down the store is closed.
    ///
    /// # Errors
    /// When the file is damaged, is not a store of ours, was written by a newer version, cannot be
    /// written, or the disk is full. It is then left as it is.
    ///
    /// # Cancel safety
    /// A file that was being made is left behind under a temporary name, or complete.
    pub async fn open(mut options: SqliteOptions) -> Result<Self, OpenError> {
        let connection = open::open(&mut options).await?;
        let stats = Arc::new(Stats::default());
        let clock = Arc::clone(&options.clock);
        let database = SqliteDatabase { clock, file: open::file_at(&options.path) };
        let path = options.path.clone();
        let (work, line) = mpsc::channel(LINE_MAX);
        let (alive, writer) = watch::channel(());
        tokio::spawn(Writer::new(connection, options, Arc::clone(&stats)).run(line, alive));
        Ok(SqliteStore { work, writer, stats, database, path })
    }

    /// Finishes what stands in line, and closes the file. Later calls fail.
    ///
    /// # Cancel safety
    /// The store closes all the same.
    pub async fn close(&self) {
        // Somebody else may have said so already. The file is closed when the writer has ended.
        let _ = self.work.send(Work::Close).await;
        self.ended().await;
    }

    /// How many transactions were committed with something to write, and how many writes they held:
    /// their ratio says how many writes shared one fsync.
    pub fn commits_and_writes(&self) -> (u64, u64) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (load(&self.stats.commits), load(&self.stats.writes))
    }

    /// One atomic step on one record.
    fn step<A: Send + 'static>(
        &self,
        id: RecordId,
        decide: impl Fn(Option<&Record>, Timestamp) -> Step<A> + Send + 'static,
    ) -> StoreFuture<'_, A> {
        self.step_beside(id, Intent::Write, None, move |found, _, now| (decide(found, now), None))
    }

    /// The same with more to write than the record. If it is about a step of a phased operation, it
    /// is told whether that is saved.
    fn step_beside<A: Send + 'static>(
        &self,
        id: RecordId,
        intent: Intent,
        step_name: Option<Box<str>>,
        decide: impl Fn(Option<&Record>, bool, Timestamp) -> (Step<A>, Option<Beside>) + Send + 'static,
    ) -> StoreFuture<'_, A> {
        self.ask(move |sender| Work::Step(step_of(id, intent, step_name, decide, sender)))
    }

    /// A step that changes nothing, whatever it finds.
    fn look<A: Send + 'static>(
        &self,
        id: RecordId,
        decide: impl Fn(Option<&Record>, Timestamp) -> A + Send + 'static,
    ) -> StoreFuture<'_, A> {
        let decide = move |found: Option<&Record>, _: bool, now| {
            (Step { change: Change::Keep, audit: None, answer: decide(found, now) }, None)
        };
        self.ask(move |sender| Work::Step(step_of(id, Intent::Look, None, decide, sender)))
    }

    /// Hands work to the writer. Once it stands in line it is done, whether or not somebody still
    /// waits for the answer.
    fn ask<A: Send + 'static>(
        &self,
        work: impl FnOnce(oneshot::Sender<Result<A, StoreError>>) -> Work + Send + 'static,
    ) -> StoreFuture<'_, A> {
        Box::pin(async move {
            let (sender, mut answer) = oneshot::channel();
            if self.work.send(work(sender)).await.is_err() {
                return Err(closed());
            }
            // Work that came into the line while the writer ended with its runtime may stay there: its
            // answer would never come, and its sender would never be dropped.
            let answered = tokio::select! {
                biased;
                answered = &mut answer => answered.ok(),
                () = self.ended() => answer.try_recv().ok(),
            };
            let unanswered = "no answer: it was closed, or it panicked";
            answered.unwrap_or_else(|| {
                Err(StoreError::new(StoreErrorKind::Ambiguous, error::STORE, unanswered))
            })
        })
    }

    /// Waits until nobody writes any more and the file is closed.
    async fn ended(&self) {
        let mut writer = self.writer.clone();
        while writer.changed().await.is_ok() {}
    }
}

/// A step as it stands in line. Nothing is noted of it: one file does not become another one.
fn step_of<A: Send + 'static>(
    id: RecordId,
    intent: Intent,
    step_name: Option<Box<str>>,
    decide: impl Fn(Option<&Record>, bool, Timestamp) -> (Step<A>, Option<Beside>) + Send + 'static,
    sender: oneshot::Sender<Result<A, StoreError>>,
) -> Box<dyn PendingStep> {
    let (store, notes) = (error::STORE, |_: &A| None::<()>);
    Box::new(RecordStep { store, id, step_name, intent, decide, notes, answer: None, sender })
}

fn closed() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, error::STORE, "it is closed")
}

impl Store for SqliteStore {
    fn reserve(&self, ask: Ask) -> StoreFuture<'_, Reservation> {
        if ask.mode == Mode::LookupOnly {
            return self
                .look(ask.id.clone(), move |found, now| machine::reserve(found, &ask, now).answer);
        }
        self.step_beside(ask.id.clone(), Intent::Reserve, None, move |found, _, now| {
            super::beside::reserve(found, &ask, now)
        })
    }

    fn claim(&self, claim: Claim) -> StoreFuture<'_, Reservation> {
        self.step(claim.id.clone(), move |found, now| machine::claim(found, &claim, now))
    }

    fn write<'a>(&'a self, lease: &'a Lease, write: Write) -> StoreFuture<'a, Written> {
        let guard = Lease { id: lease.id.clone(), ..*lease };
        // It is kept for a while: what it came in must not be kept with it.
        let write = match write {
            Write::Complete(reply) => Write::Complete(reply.compact()),
            other => other,
        };
        self.step(lease.id.clone(), move |found, now| {
            machine::write(found, &guard, write.clone(), now)
        })
    }

    fn advance<'a>(&'a self, lease: &'a Lease, advance: Advance) -> StoreFuture<'a, Advanced> {
        let guard = Lease { id: lease.id.clone(), ..*lease };
        let name = Some(advance.name().into());
        self.step_beside(lease.id.clone(), Intent::Write, name, move |found, saved, _| {
            super::beside::advance(found, &guard, &advance, saved)
        })
    }

    fn steps<'a>(&'a self, id: &'a RecordId, generation: u32) -> StoreFuture<'a, Vec<SavedStep>> {
        let id = id.clone();
        self.ask(move |sender| Work::Steps(id, generation, sender))
    }

    fn resumable(&self, which: Which, limit: u32) -> StoreFuture<'_, Vec<Resumable>> {
        self.ask(move |sender| Work::Resumable(which, limit, sender))
    }

    fn due_unknown(&self, limit: u32, except: Vec<Arc<str>>) -> StoreFuture<'_, Vec<Record>> {
        self.ask(move |sender| Work::DueUnknown(limit, except, sender))
    }

    fn note_provider_id<'a>(&'a self, lease: &'a Lease, id: ProviderId) -> StoreFuture<'a, Noted> {
        let lease = Lease { id: lease.id.clone(), ..*lease };
        self.state(Note { lease, id })
    }

    fn by_provider_id<'a>(&'a self, id: &'a ProviderId) -> StoreFuture<'a, Option<ProviderNote>> {
        let id = id.clone();
        self.ask(move |sender| Work::ByProviderId(id, sender))
    }

    fn provider_ids(&self, of: Vec<RecordId>) -> StoreFuture<'_, Vec<ProviderNote>> {
        self.ask(move |sender| Work::ProviderIds(of, sender))
    }

    fn resolve(&self, resolve: Resolve) -> StoreFuture<'_, Resolved> {
        self.step(resolve.id.clone(), move |found, now| {
            machine::resolve(found, resolve.clone(), now)
        })
    }

    fn load<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Option<Record>> {
        self.look(id.clone(), machine::load)
    }

    fn audit<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Vec<AuditRecord>> {
        let id = id.clone();
        self.ask(move |sender| Work::Audit(id, sender))
    }

    fn list_records(&self, query: Query) -> StoreFuture<'_, Page> {
        Box::pin(self.list_page(query))
    }

    fn audit_log(&self, query: AuditQuery) -> StoreFuture<'_, AuditPage> {
        Box::pin(self.audit_page(query))
    }

    fn stats(&self) -> StoreFuture<'_, super::list::Stats> {
        Box::pin(self.count_states())
    }

    fn sweep(&self, limit: u32) -> StoreFuture<'_, Vec<Swept>> {
        self.ask(move |sender| Work::Sweep(limit, sender))
    }

    fn reap(&self, limit: u32) -> StoreFuture<'_, Reaped> {
        self.ask(move |sender| Work::Reap(limit, sender))
    }

    fn purge_audit(&self, older_than: Duration, limit: u32) -> StoreFuture<'_, u32> {
        self.state(PurgeAudit { older_than, limit })
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        self.ask(Work::Ping)
    }

    fn check_identity<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, IdentityCheck> {
        let identity = identity.clone();
        self.ask(move |sender| Work::CheckIdentity(identity, sender))
    }

    fn accept_identity<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, ()> {
        let identity = identity.clone();
        self.ask(move |sender| Work::AcceptIdentity(identity, sender))
    }

    fn scope_keys<'a>(
        &'a self,
        scope: &'a Scope,
        proposed: Option<ScopeKey>,
    ) -> StoreFuture<'a, Vec<ScopeKey>> {
        Box::pin(self.keys_of(scope, proposed))
    }

    fn drop_scope_keys<'a>(&'a self, scope: &'a Scope, reason: &'a str) -> StoreFuture<'a, u32> {
        Box::pin(self.drop_keys_of(scope, reason))
    }

    fn beat(&self, beat: Beat) -> StoreFuture<'_, Pulse> {
        self.state(beat)
    }

    fn acknowledge_regression<'a>(
        &'a self,
        reason: &'a str,
    ) -> StoreFuture<'a, Option<Regression>> {
        self.state(Acknowledge(reason.into()))
    }

    fn database(&self) -> Option<Database> {
        Some(Database::Sqlite(self.database.clone()))
    }
}
