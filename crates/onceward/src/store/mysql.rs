//! Records in MySQL or MariaDB: durable, for many nodes.
//!
//! Concurrent calls share round trips and commits: steps stand in one line before a few connections. A
//! batch is one transaction: its rows are locked, [`crate::machine`] decides, and what it says is
//! written. Rows are asked for without waiting (`NOWAIT`), so that one that somebody has locked is not
//! in the way of strangers; it is tried again on another connection, by itself.
//!
//! A connection belongs to a task of ours and never to a call: one that is dropped leaves no
//! transaction open.
//!
//! Limits: the primary only; what the server acknowledged and then lost
//! (`innodb_flush_log_at_trx_commit` other than 1, a failover to a replica that was behind) is lost.

use std::{fmt, sync::Arc, time::Duration};

use tokio::sync::watch;

use super::{
    Advance, Advanced, Ask, Beat, Claim, Database, Identity, IdentityCheck, Mode, Noted, Pulse,
    Reaped, Regression, Reservation, Resolve, Resolved, Resumable, ScopeKey, Store, StoreError,
    StoreFuture, Swept, Which, Write, Written,
    beside::{self, Beside},
    lane::Lane,
    list::{AuditPage, AuditQuery, Page, Query, Stats},
    step::{Intent, RecordStep},
    turn::Turns,
    witness::{Witness, Witnesses},
};
use crate::{
    clock::{Clock, Timestamp},
    machine::{self, Step as MachineStep},
    record::{AuditRecord, Lease, ProviderId, ProviderNote, Record, RecordId, SavedStep},
    scope::Scope,
};

mod batch;
mod canary;
mod error;
mod examine;
mod link;
mod list;
mod migrate;
mod open;
mod outbox;
mod provider_ids;
mod row;
mod scope_keys;
mod session;
mod sql;
mod within;
mod workers;

use batch::{Side, Step};
use error::{STORE, damaged};
use link::Link;
pub use open::MySqlConnectError;
use session::Statement;
use sql::Statements;

/// Where and how a [`MySqlStore`] lives.
#[derive(Clone)]
pub struct MySqlOptions {
    url: Arc<str>,
    prefix: Arc<str>,
    migrate: bool,
    connections: [usize; 2],
    clock: Option<Arc<dyn Clock>>,
}

impl MySqlOptions {
    /// A store in the database of this URL, in tables whose names begin with `onceward_`.
    pub fn new(url: impl Into<Arc<str>>) -> Self {
        MySqlOptions {
            url: url.into(),
            prefix: "onceward_".into(),
            migrate: true,
            connections: [2, 4],
            clock: None,
        }
    }

    /// The same in tables whose names begin with this.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<Arc<str>>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Whether the tables may be made or brought to this version. If not, they have to be there.
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

impl fmt::Debug for MySqlOptions {
    /// Without the URL, which may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySqlOptions").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// A store in a MySQL or MariaDB database.
pub struct MySqlStore {
    batches: Lane<Step>,
    side: Lane<Side>,
    database: MySqlDatabase,
    witnesses: Witnesses,
    closing_batches: watch::Sender<bool>,
    closing_side: watch::Sender<bool>,
}

/// What a transaction of the user's needs to write records of a [`MySqlStore`].
#[derive(Clone, Debug)]
pub struct MySqlDatabase {
    /// What the store says it is, wherever one connects to it.
    name: Arc<str>,
    statements: Arc<Statements>,
    clock: Option<Arc<dyn Clock>>,
}

impl fmt::Debug for MySqlStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySqlStore").finish_non_exhaustive()
    }
}

impl MySqlStore {
    /// Connects, and brings the tables to this version under a lock.
    ///
    /// It works on the runtime that connects it, as long as that one runs.
    ///
    /// # Errors
    /// When the server cannot be reached, is too old or is set up so that a store would not work, or
    /// when the tables are newer than this version.
    pub async fn connect(options: MySqlOptions) -> Result<Self, MySqlConnectError> {
        let options = Arc::new(options);
        let prepared = open::prepare(&options).await?;
        let statements = Arc::new(Statements::of(&options.prefix));
        let within = Arc::new(Statements::within(&options.prefix, prepared.has_snapshots));
        let witnesses = Witnesses::default();
        let link = || Link::new(Arc::clone(&options), Arc::clone(&statements), witnesses.clone());
        let [batches, singles] = options.connections;
        let (closing_batches, batches_close) = watch::channel(false);
        let (closing_side, side_closes) = watch::channel(false);
        let turns = Turns::default();
        let single = (0..singles).map(|_| link().beside(&turns)).collect();
        let side = Lane::start(single, &side_closes);
        let links = (0..batches).map(|_| link().with_side(&side)).collect();
        Ok(MySqlStore {
            batches: Lane::start(links, &batches_close),
            side,
            database: MySqlDatabase {
                name: prepared.name,
                statements: within,
                clock: options.clock.clone(),
            },
            witnesses,
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

    /// One atomic step on one record.
    fn step<A: Send + 'static>(
        &self,
        step: Asked,
        decide: impl Fn(Option<&Record>, bool, Timestamp) -> (MachineStep<A>, Option<Beside>)
        + Send
        + 'static,
        notes: impl Fn(&A) -> Option<batch::Noted> + Send + 'static,
    ) -> StoreFuture<'_, A> {
        let Asked { id, step_name, bytes, reserves } = step;
        Box::pin(self.batches.ask(move |sender| {
            let (intent, answer) = (Intent::Write, None);
            let pending =
                RecordStep { store: STORE, id, step_name, intent, decide, notes, answer, sender };
            Step { pending: Box::new(pending), bytes, reserves, lost: false, inserts: false }
        }))
    }

    /// A call on a connection of its own.
    fn job<A, F>(&self, job: F) -> StoreFuture<'_, A>
    where
        A: Send + 'static,
        F: for<'l> FnOnce(&'l mut Link) -> StoreFuture<'l, A> + Send + 'static,
    {
        Box::pin(self.side.ask(move |sender| {
            Side::Job(Box::new(move |link| {
                Box::pin(async move {
                    if !sender.is_closed() {
                        // The caller may go. What was done is done all the same.
                        let _ = sender.send(job(link).await);
                    }
                    Ok(())
                })
            }))
        }))
    }

    fn state<S: Statement>(&self, statement: S) -> StoreFuture<'_, S::Answer> {
        self.job(move |link| Box::pin(async move { link.state(&statement).await }))
    }

    /// The record as it was committed last, with the server's time.
    async fn look(&self, id: &RecordId) -> Result<(Option<Record>, Timestamp), StoreError> {
        let (mut found, now) = self.state(workers::Load(vec![id.clone()])).await?;
        let found = found.remove(id).map(|found| found.record).transpose();
        Ok((found.map_err(|()| damaged())?, now))
    }
}

/// What a step is about.
struct Asked {
    id: RecordId,
    step_name: Option<Box<str>>,
    bytes: usize,
    reserves: bool,
}

impl Asked {
    fn of(id: &RecordId) -> Self {
        Asked { id: id.clone(), step_name: None, bytes: 512, reserves: false }
    }
}

fn copy(lease: &Lease) -> Lease {
    Lease { id: lease.id.clone(), ..*lease }
}

/// A grant that was committed.
fn granted(reservation: &Reservation) -> Option<batch::Noted> {
    match reservation {
        Reservation::Granted { lease, .. } => Some((Witness::of(lease, false), true)),
        _ => None,
    }
}

impl Store for MySqlStore {
    fn reserve(&self, ask: Ask) -> StoreFuture<'_, Reservation> {
        if ask.mode == Mode::LookupOnly {
            return Box::pin(async move {
                let (found, now) = self.look(&ask.id).await?;
                Ok(machine::reserve(found.as_ref(), &ask, now).answer)
            });
        }
        let bytes = 512 + ask.request.as_ref().map_or(0, |request| request.body.len());
        let asked = Asked { bytes, reserves: true, ..Asked::of(&ask.id) };
        self.step(asked, move |found, _, now| beside::reserve(found, &ask, now), granted)
    }

    fn claim(&self, claim: Claim) -> StoreFuture<'_, Reservation> {
        let asked = Asked::of(&claim.id);
        self.step(asked, move |found, _, now| (machine::claim(found, &claim, now), None), granted)
    }

    fn write<'a>(&'a self, lease: &'a Lease, write: Write) -> StoreFuture<'a, Written> {
        let (guard, noted) = (copy(lease), copy(lease));
        let (bytes, completes) = match &write {
            Write::Complete(reply) => (512 + reply.body_bytes().len(), true),
            _ => (512, false),
        };
        let asked = Asked { bytes, ..Asked::of(&lease.id) };
        let decide = move |found: Option<&Record>, _: bool, now| {
            (machine::write(found, &guard, write.clone(), now), None)
        };
        self.step(asked, decide, move |written| {
            // The handler may have completed it in a transaction of its own.
            let completed = match written {
                Written::Applied => completes,
                Written::AppliedAfterRelease => true,
                Written::AlreadyMine(reply) => reply.is_some(),
                Written::Superseded(_) => false,
            };
            completed.then(|| (Witness::of(&noted, true), true))
        })
    }

    fn advance<'a>(&'a self, lease: &'a Lease, advance: Advance) -> StoreFuture<'a, Advanced> {
        let (guard, noted, known) = (copy(lease), copy(lease), advance.clone());
        let bytes = match &advance {
            Advance::Save { result, .. } => 512 + result.len(),
            _ => 512,
        };
        let step_name = Some(advance.name().into());
        let asked = Asked { bytes, step_name, ..Asked::of(&lease.id) };
        let withdrawn = match &advance {
            Advance::Withdraw { name } => Some(name.clone()),
            _ => None,
        };
        let decide = move |found: Option<&Record>, saved: bool, _| {
            beside::advance(found, &guard, &advance, saved)
        };
        let step = self.step(asked, decide, move |advanced| match advanced {
            Advanced::Applied | Advanced::AlreadyMine => Witness::of_step(&noted, &known),
            _ => None,
        });
        Box::pin(async move {
            if let Some(name) = withdrawn {
                self.witnesses.withdraw(lease, &name).await;
            }
            step.await
        })
    }

    fn steps<'a>(&'a self, id: &'a RecordId, generation: u32) -> StoreFuture<'a, Vec<SavedStep>> {
        self.state(workers::Steps(id.clone(), generation))
    }

    fn resumable(&self, which: Which, limit: u32) -> StoreFuture<'_, Vec<Resumable>> {
        self.state(workers::Waiting(which, limit))
    }

    fn due_unknown(&self, limit: u32, except: Vec<Arc<str>>) -> StoreFuture<'_, Vec<Record>> {
        self.state(workers::DueUnknown(limit, except))
    }

    fn note_provider_id<'a>(&'a self, lease: &'a Lease, id: ProviderId) -> StoreFuture<'a, Noted> {
        self.state(provider_ids::Note { lease: copy(lease), id })
    }

    fn by_provider_id<'a>(&'a self, id: &'a ProviderId) -> StoreFuture<'a, Option<ProviderNote>> {
        self.state(provider_ids::ById(id.clone()))
    }

    fn provider_ids(&self, of: Vec<RecordId>) -> StoreFuture<'_, Vec<ProviderNote>> {
        self.state(provider_ids::Of(of))
    }

    fn resolve(&self, resolve: Resolve) -> StoreFuture<'_, Resolved> {
        let asked = Asked::of(&resolve.id);
        let decide = move |found: Option<&Record>, _: bool, now| {
            (machine::resolve(found, resolve.clone(), now), None)
        };
        self.step(asked, decide, |_| None)
    }

    fn load<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Option<Record>> {
        Box::pin(async move {
            let (found, now) = self.look(id).await?;
            Ok(machine::load(found.as_ref(), now))
        })
    }

    fn settled(&self, ids: Vec<RecordId>) -> StoreFuture<'_, Vec<RecordId>> {
        self.state(workers::Settled(ids))
    }

    fn audit<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Vec<AuditRecord>> {
        self.state(workers::Audit(id.clone()))
    }

    fn list_records(&self, query: Query) -> StoreFuture<'_, Page> {
        self.state(list::List(query))
    }

    fn audit_log(&self, query: AuditQuery) -> StoreFuture<'_, AuditPage> {
        self.state(list::ListAudit(query))
    }

    fn stats(&self) -> StoreFuture<'_, Stats> {
        self.state(list::CountStates)
    }

    fn sweep(&self, limit: u32) -> StoreFuture<'_, Vec<Swept>> {
        self.state(workers::Sweep(limit))
    }

    fn reap(&self, limit: u32) -> StoreFuture<'_, Reaped> {
        self.state(workers::Reap(limit))
    }

    fn purge_audit(&self, older_than: Duration, limit: u32) -> StoreFuture<'_, u32> {
        self.state(workers::PurgeAudit { older_than, limit })
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        self.state(workers::Ping)
    }

    fn check_identity<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, IdentityCheck> {
        self.state(workers::CheckIdentity(identity.clone()))
    }

    fn accept_identity<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, ()> {
        self.state(workers::AcceptIdentity(identity.clone()))
    }

    fn scope_keys<'a>(
        &'a self,
        scope: &'a Scope,
        proposed: Option<ScopeKey>,
    ) -> StoreFuture<'a, Vec<ScopeKey>> {
        self.state(scope_keys::KeysOf(scope.clone(), proposed))
    }

    fn drop_scope_keys<'a>(&'a self, scope: &'a Scope, reason: &'a str) -> StoreFuture<'a, u32> {
        self.state(scope_keys::DropKeysOf(scope.clone(), reason.into()))
    }

    fn beat(&self, beat: Beat) -> StoreFuture<'_, Pulse> {
        self.job(move |link| Box::pin(canary::beat(link, beat)))
    }

    fn acknowledge_regression<'a>(
        &'a self,
        reason: &'a str,
    ) -> StoreFuture<'a, Option<Regression>> {
        self.state(canary::Acknowledge(reason.into()))
    }

    fn epoch(&self) -> u64 {
        self.witnesses.epoch()
    }

    fn database(&self) -> Option<Database> {
        Some(Database::MySql(self.database.clone()))
    }
}
