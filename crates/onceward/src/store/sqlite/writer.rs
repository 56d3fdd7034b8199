//! The only task that touches the file: gathers what stands in line into one transaction.

use std::{
    collections::{HashMap, VecDeque},
    panic::AssertUnwindSafe,
    sync::{Arc, atomic::Ordering},
};

use futures_util::FutureExt as _;
use sqlx::{Connection as _, Row as _, SqliteConnection, sqlite::SqliteRow};
use tokio::sync::{mpsc, oneshot, watch};

use super::{
    SqliteOptions, Stats,
    changes::{
        Changes, Read, Select, Writes, begin_and_load, damaged_record, ids_of, load, loaded,
    },
    due::Reaping,
    error::{self, Moment, STORE, store_error},
    log::Log,
    open,
    recent::{Recent, bytes_of},
    row::read_audit,
    sql::AUDIT,
    statement::PendingStatement,
};
use crate::{
    machine::Change,
    record::{AuditRecord, ProviderId, ProviderNote, Record, RecordId, SavedStep},
    scope::Scope,
    store::{
        Identity, IdentityCheck, Reaped, Resumable, ScopeKey, StoreError, Swept, Which,
        step::{Intent, PendingStep},
    },
};

pub(super) type Sender<A> = oneshot::Sender<Result<A, StoreError>>;

/// What can stand in line.
pub(super) enum Work {
    Step(Box<dyn PendingStep>),
    Statement(Box<dyn PendingStatement>),
    Audit(RecordId, Sender<Vec<AuditRecord>>),
    Steps(RecordId, u32, Sender<Vec<SavedStep>>),
    Resumable(Which, u32, Sender<Vec<Resumable>>),
    DueUnknown(u32, Vec<Arc<str>>, Sender<Vec<Record>>),
    ByProviderId(ProviderId, Sender<Option<ProviderNote>>),
    ProviderIds(Vec<RecordId>, Sender<Vec<ProviderNote>>),
    Sweep(u32, Sender<Vec<Swept>>),
    Reap(u32, Sender<Reaped>),
    Ping(Sender<()>),
    CheckIdentity(Identity, Sender<IdentityCheck>),
    AcceptIdentity(Identity, Sender<()>),
    ScopeKeys(Scope, Sender<Vec<ScopeKey>>),
    Checkpoint(Sender<()>),
    Close,
}

/// A transaction takes at most this many steps, so that none of them waits for too many others.
pub(super) const BATCH_MAX: usize = 256;

pub(super) struct Writer {
    /// Gone after it broke; made anew at the next work.
    connection: Option<SqliteConnection>,
    pub(super) options: SqliteOptions,
    pub(super) stats: Arc<Stats>,
    pub(super) recent: Recent,
    pub(super) log: Log,
    /// What waits for requests, and not they for it.
    pub(super) reaping: VecDeque<Reaping>,
    /// The file that was opened. Another one may come to have its name.
    file: Option<(u64, u64)>,
    /// An fsync failed: what is on the disk is not known until the file is opened anew.
    poisoned: bool,
}

/// Why a batch did not commit.
pub(super) struct Failure {
    pub(super) error: sqlx::Error,
    pub(super) moment: Moment,
}

pub(super) type Outcome<T> = Result<T, Failure>;

pub(super) fn before(error: sqlx::Error) -> Failure {
    Failure { error, moment: Moment::Before }
}

impl Failure {
    /// The error for each of several callers, who cannot share one source.
    pub(super) fn for_each(&self) -> StoreError {
        let (kind, context) = error::meaning(&self.error, self.moment);
        StoreError::new(kind, STORE, context).with_source(self.error.to_string())
    }
}

impl Writer {
    pub(super) fn new(
        connection: SqliteConnection,
        options: SqliteOptions,
        stats: Arc<Stats>,
    ) -> Self {
        let file = open::file_at(&options.path);
        Writer {
            connection: Some(connection),
            log: Log::new(&options, file),
            file,
            options,
            stats,
            recent: Recent::default(),
            reaping: VecDeque::new(),
            poisoned: false,
        }
    }

    /// Works until the store is closed or dropped.
    ///
    /// Whoever wants to know when the file is closed waits until `alive` is dropped.
    pub(super) async fn run(mut self, mut line: mpsc::Receiver<Work>, alive: watch::Sender<()>) {
        let mut gathered = Vec::with_capacity(BATCH_MAX);
        // No timer: whatever stands in line when we come back goes together.
        while self.gather(&mut line, &mut gathered).await {
            let turn = AssertUnwindSafe(self.turn(&mut line, &mut gathered)).catch_unwind();
            // Whose answers went with it are told so, and ask again. What the connection was in the
            // middle of is not known: its end takes it back.
            if turn.await.is_err() {
                tracing::error!(store = STORE, "a batch panicked: this is a bug");
                self.give_up();
            }
        }
        self.log.close().await;
        if let Some(connection) = self.connection.take() {
            // Closing writes the log back into the file. If that fails the log stays, and is read
            // at the next start.
            let _ = connection.close().await;
        }
        drop(alive);
    }

    /// Does what was gathered.
    async fn turn(&mut self, line: &mut mpsc::Receiver<Work>, gathered: &mut Vec<Work>) {
        let mut steps = Vec::with_capacity(gathered.len());
        let mut statements = Vec::new();
        let mut others = Vec::new();
        for work in gathered.drain(..) {
            match work {
                Work::Step(step) => steps.push(step),
                Work::Statement(statement) => statements.push(statement),
                Work::Close => line.close(),
                other => others.push(other),
            }
        }
        let came = steps.len();
        self.steps(steps).await;
        self.statements(statements).await;
        for other in others {
            self.other(other).await;
        }
        self.reap_a_piece(came).await;
        self.tend_log().await;
    }

    /// Waits for work, unless there is something to reap. `false` when there will be no more of either.
    async fn gather(&self, line: &mut mpsc::Receiver<Work>, gathered: &mut Vec<Work>) -> bool {
        let work = line.recv_many(gathered, BATCH_MAX);
        if self.reaping.is_empty() {
            return work.await > 0;
        }
        // What came meanwhile goes first; if nothing has, we go on.
        let _ = work.now_or_never();
        true
    }

    async fn steps(&mut self, mut steps: Vec<Box<dyn PendingStep>>) {
        if steps.is_empty() {
            return;
        }
        if self.changes_nothing(&mut steps) && self.is_unchanged().await {
            let all = steps.iter().map(|_| Ok(())).collect();
            return answer(steps, all);
        }
        if steps.iter().all(|step| step.intent() == Intent::Look) {
            return self.looks(steps).await;
        }
        if let [step] = &mut *steps {
            match self.alone(step).await {
                Ok(true) => return answer(steps, vec![Ok(())]),
                Ok(false) => {}
                Err(failure) => {
                    return steps.into_iter().for_each(|step| step.answer(Err(failure.for_each())));
                }
            }
        }
        let failure = match self.batch(&mut steps).await {
            Ok(committed) => return answer(steps, committed),
            Err(failure) => failure,
        };
        // One element that cannot be written must not fail the rest: each goes alone.
        if steps.len() == 1 || !error::may_be_about_one_element(&failure.error) {
            return steps.into_iter().for_each(|step| step.answer(Err(failure.for_each())));
        }
        for step in steps {
            let mut single = vec![step];
            match self.batch(&mut single).await {
                Ok(committed) => answer(single, committed),
                Err(failure) => {
                    single.into_iter().for_each(|step| step.answer(Err(failure.for_each())));
                }
            }
        }
    }

    /// One transaction. Returns for each step whether its record could be read.
    async fn batch(
        &mut self,
        steps: &mut [Box<dyn PendingStep>],
    ) -> Outcome<Vec<Result<(), StoreError>>> {
        let mut found = self.begin_and_load(ids_of(steps)).await?;
        let asked = steps.iter().filter_map(|it| Some((it.id().clone(), it.step_name()?.into())));
        let mut beside = self.load_saved(asked.collect()).await?;
        let now = self.options.clock.now();
        let mut readable = Vec::with_capacity(steps.len());
        // What was in the file before.
        let mut changed: HashMap<RecordId, Option<Record>> = HashMap::new();
        let mut audits = Vec::new();
        for step in steps {
            // A step sees what those before it in the same transaction wrote.
            let current = match found.get(step.id()) {
                Some(Err(())) => {
                    readable.push(Err(damaged_record()));
                    continue;
                }
                Some(Ok(record)) => Some(record),
                None => None,
            };
            let saved = beside.is_saved(current, step.step_name());
            let ran = step.run(current, saved, now);
            readable.push(Ok(()));
            audits.extend(ran.audit);
            match ran.change {
                Change::Keep => {}
                Change::Put(record) => {
                    beside.follow(&record);
                    let before = found.insert(step.id().clone(), Ok(*record));
                    note(&mut changed, step.id(), before);
                }
                Change::Remove => {
                    beside.drop_all_of(step.id());
                    let before = found.remove(step.id());
                    note(&mut changed, step.id(), before);
                }
            }
            if let (Some(kept), Some(Ok(record))) = (ran.beside, found.get(step.id())) {
                beside.keep(record, kept);
            }
        }
        let mut removed = Vec::new();
        let mut writes = Writes::default();
        for (id, before) in &changed {
            match found.get(id) {
                Some(Ok(record)) => writes.add(before.as_ref(), record),
                Some(Err(())) => {}
                None => removed.push(id),
            }
        }
        let Writes { puts, reserved, completed } = &writes;
        let (buried, removed, audits) = (&[][..], &*removed, &*audits);
        let changes = Changes { puts, reserved, completed, buried, removed, audits, beside };
        self.write_and_commit(changes).await?;
        found.into_values().flatten().for_each(|record| self.recent.note(record));
        Ok(readable)
    }

    /// What the file holds of these: what is known here, if nobody else has written since, and what
    /// is read.
    async fn begin_and_load(&mut self, mut ids: Vec<RecordId>) -> Outcome<HashMap<RecordId, Read>> {
        let unknown: Vec<_> =
            ids.iter().filter(|id| self.recent.get(id).is_none()).cloned().collect();
        let rows = self.begin_and_fetch(begin_and_load(&unknown)).await?;
        let (version, rows) = rows.split_at(rows.len().min(1));
        self.recent.keep_if_of(version.first().and_then(|row| row.try_get(0).ok()));
        let mut found = loaded(&unknown, rows);
        // All but those that were read, unless somebody else has written.
        ids.retain(|id| match self.recent.get(id) {
            Some(record) => {
                found.insert(id.clone(), Ok(record.clone()));
                false
            }
            None => unknown.binary_search(id).is_err(),
        });
        if !ids.is_empty() {
            let rows = match &mut self.connection {
                Some(connection) => load(&ids).fetch_all(connection).await,
                None => Err(sqlx::Error::WorkerCrashed),
            };
            match rows {
                Ok(rows) => found.extend(loaded(&ids, &rows)),
                Err(error) => return Err(self.roll_back(before(error)).await),
            }
        }
        Ok(found)
    }

    /// A query that begins a transaction first.
    pub(super) async fn begin_and_fetch(&mut self, query: Select<'_>) -> Outcome<Vec<SqliteRow>> {
        match query.fetch_all(self.connection().await?).await {
            Ok(rows) => Ok(rows),
            Err(error) => Err(self.roll_back(before(error)).await),
        }
    }

    pub(super) async fn write_and_commit(&mut self, changes: Changes<'_>) -> Outcome<()> {
        let writes = changes.written().count() + changes.removed.len();
        changes.ids().for_each(|id| self.recent.forget(id));
        changes.written().for_each(|record| self.log.note(bytes_of(record)));
        changes.removed.iter().for_each(|_| self.log.note(0));
        let Some(connection) = &mut self.connection else {
            return Err(before(sqlx::Error::WorkerCrashed));
        };
        if let Err(failure) = changes.write_and_commit(connection).await {
            return Err(self.roll_back(failure).await);
        }
        if writes > 0 {
            self.stats.commits.fetch_add(1, Ordering::Relaxed);
            self.stats.writes.fetch_add(writes as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// After a failure the connection is rolled back, or given up if it cannot be.
    pub(super) async fn roll_back(&mut self, failure: Failure) -> Failure {
        if error::is_failed_sync(&failure.error) {
            self.poison();
        }
        if let Some(connection) = &mut self.connection {
            let rolled_back = sqlx::query("ROLLBACK").execute(&mut *connection).await;
            // SQLite has rolled back by itself when it says that there is no transaction.
            let usable = rolled_back.is_ok() || connection.ping().await.is_ok();
            if !usable || self.poisoned {
                self.give_up();
            }
        }
        failure
    }

    /// What is on the disk is not known any more.
    pub(super) fn poison(&mut self) {
        self.poisoned = true;
    }

    pub(super) fn open_connection(&mut self) -> Option<&mut SqliteConnection> {
        self.connection.as_mut()
    }

    /// The next one who needs a connection makes a new one.
    pub(super) fn give_up(&mut self) {
        self.connection = None;
        // Each connection counts the states of the file for itself.
        self.recent = Recent::default();
    }

    pub(super) async fn connection(&mut self) -> Outcome<&mut SqliteConnection> {
        if self.poisoned {
            let broken = std::io::Error::other("an fsync failed; the process has to be restarted");
            return Err(before(sqlx::Error::Io(broken)));
        }
        // A file without its name can be written to, and nobody would find again what was
        // acknowledged; while another process may grant the same keys in a new file.
        if self.file.is_none() || open::file_at(&self.options.path) != self.file {
            let moved =
                std::io::Error::other("the file was removed or replaced since it was opened");
            return Err(before(sqlx::Error::Io(moved)));
        }
        if self.connection.is_none() {
            let opened = open::reopen(&self.options).await;
            let opened =
                opened.map_err(|error| before(sqlx::Error::Configuration(error.into())))?;
            self.connection = Some(opened);
        }
        self.connection.as_mut().ok_or_else(|| before(sqlx::Error::WorkerCrashed))
    }

    async fn other(&mut self, work: Work) {
        let single = |failure: Failure| store_error(failure.error, failure.moment);
        match work {
            Work::Audit(id, sender) => {
                let _ = sender.send(self.audit(&id).await.map_err(single));
            }
            Work::Steps(id, generation, sender) => {
                let _ = sender.send(self.saved_steps(&id, generation).await.map_err(single));
            }
            Work::Resumable(which, limit, sender) => {
                let _ = sender.send(self.resumable(which, limit).await.map_err(single));
            }
            Work::DueUnknown(limit, except, sender) => {
                let _ = sender.send(self.due_unknown(limit, &except).await.map_err(single));
            }
            Work::ByProviderId(id, sender) => {
                let _ = sender.send(self.by_provider_id(&id).await.map_err(single));
            }
            Work::ProviderIds(of, sender) => {
                let _ = sender.send(self.provider_ids(&of).await.map_err(single));
            }
            Work::Sweep(limit, sender) => {
                let _ = sender.send(self.sweep(limit).await.map_err(single));
            }
            Work::Reap(limit, sender) => self.reaping.push_back(Reaping::new(limit, sender)),
            Work::Ping(sender) => {
                let _ = sender.send(self.ping().await.map_err(single));
            }
            Work::CheckIdentity(identity, sender) => {
                let _ = sender.send(self.check_identity(&identity).await.map_err(single));
            }
            Work::AcceptIdentity(identity, sender) => {
                let _ = sender.send(self.accept_identity(&identity).await.map_err(single));
            }
            Work::ScopeKeys(scope, sender) => {
                let _ = sender.send(self.scope_keys(&scope).await.map_err(single));
            }
            Work::Checkpoint(sender) => {
                let _ = sender.send(self.checkpoint().await.map_err(single));
            }
            Work::Step(_) | Work::Statement(_) | Work::Close => {
                unreachable!("sorted out when the batch was gathered")
            }
        }
    }

    async fn audit(&mut self, id: &RecordId) -> Outcome<Vec<AuditRecord>> {
        let query = sqlx::query(AUDIT).bind(id.scope.as_str().to_owned());
        let query = query.bind(id.key.as_str().to_owned());
        let rows = query.fetch_all(self.connection().await?).await.map_err(before)?;
        let decode = |error| before(sqlx::Error::Decode(Box::new(error)));
        rows.iter().map(|row| read_audit(row).map_err(decode)).collect()
    }

    async fn ping(&mut self) -> Outcome<()> {
        let connection = self.connection().await?;
        // A transaction that takes the write lock: to answer reads only is not to be well.
        let pinged = sqlx::raw_sql("BEGIN IMMEDIATE; ROLLBACK").execute(connection).await;
        match pinged {
            Ok(_) => Ok(()),
            Err(error) => Err(self.roll_back(before(error)).await),
        }
    }

    async fn check_identity(&mut self, identity: &Identity) -> Outcome<IdentityCheck> {
        let remember = "INSERT INTO onceward_meta (name, value) VALUES ('identity', ?) \
                        ON CONFLICT (name) DO NOTHING";
        self.write_meta(remember, identity.as_str()).await?;
        let known = sqlx::query_scalar("SELECT value FROM onceward_meta WHERE name = 'identity'");
        let known: String = known.fetch_one(self.connection().await?).await.map_err(before)?;
        Ok(match known == identity.as_str() {
            true => IdentityCheck::Same,
            false => IdentityCheck::Different,
        })
    }

    async fn accept_identity(&mut self, identity: &Identity) -> Outcome<()> {
        let accept = "INSERT INTO onceward_meta (name, value) VALUES ('identity', ?) \
                      ON CONFLICT (name) DO UPDATE SET value = excluded.value";
        self.write_meta(accept, identity.as_str()).await
    }

    /// A statement that commits by itself, so that an error may be one of its commit.
    async fn write_meta(&mut self, sql: &'static str, value: &str) -> Outcome<()> {
        let query = sqlx::query(sql).bind(value.to_owned());
        match query.execute(self.connection().await?).await {
            Ok(_) => Ok(()),
            Err(error) => Err(self.roll_back(Failure { error, moment: Moment::Commit }).await),
        }
    }
}

/// A record may change more than once in a batch: what was in the file is what it was at first.
fn note(changed: &mut HashMap<RecordId, Option<Record>>, id: &RecordId, before: Option<Read>) {
    changed.entry(id.clone()).or_insert_with(|| before.and_then(Result::ok));
}

pub(super) fn answer(steps: Vec<Box<dyn PendingStep>>, committed: Vec<Result<(), StoreError>>) {
    steps.into_iter().zip(committed).for_each(|(step, committed)| step.answer(committed));
}
