//! What can be asked of a store.
//!
//! A store decides one thing, whether a record is free, and returns the record that is in the way in
//! the same round trip. Everything else is decided by [`crate::machine`]. Stores that can run Rust
//! inside their atomic step call the machine directly; the others repeat its rules in their own
//! language and are held to them by the suite in `onceward::testing`.

use std::{collections::BTreeSet, fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    clock::Timestamp,
    fingerprint::Fingerprint,
    record::{
        AttemptId, AuditRecord, Effects, Fence, Lease, ProviderId, ProviderNote, Record, RecordId,
        SavedStep, State, StoredRequest,
    },
    reply::Reply,
    scope::Scope,
};

#[cfg(any(feature = "sqlite", feature = "mysql"))]
mod beside;
mod canary;
#[cfg(feature = "dynamodb")]
mod dynamodb;
mod error;
#[cfg(any(
    feature = "sqlite",
    feature = "postgres",
    feature = "mysql",
    feature = "redis",
    feature = "dynamodb",
    feature = "encryption"
))]
mod headers;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod lane;
pub mod list;
pub(crate) mod mark;
mod memory;
#[cfg(any(feature = "sqlite", feature = "mysql"))]
mod message_row;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(
    feature = "postgres",
    feature = "mysql",
    feature = "redis",
    feature = "dynamodb",
    feature = "encryption"
))]
mod request;
#[cfg(any(feature = "sqlite", feature = "mysql"))]
mod row;
mod scope_key;
#[cfg(feature = "encryption")]
mod sealed;
pub mod site;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(any(feature = "sqlite", feature = "mysql"))]
mod step;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod turn;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod witness;

pub use canary::{Beat, Beaten, NodeId, Pulse, Regression};
#[cfg(feature = "dynamodb")]
pub use dynamodb::{DynamoDatabase, DynamoOpenError, DynamoOptions, DynamoStore};
pub use error::{StoreError, StoreErrorKind};
use list::{AuditPage, AuditQuery, Page, Query, Stats};
pub use memory::MemoryStore;
#[cfg(feature = "mysql")]
pub use mysql::{MySqlConnectError, MySqlDatabase, MySqlOptions, MySqlStore};
#[cfg(feature = "postgres")]
pub use postgres::{PgConnectError, PgDatabase, PgOptions, PgStore};
#[cfg(feature = "redis")]
pub use redis::{CachedStore, RedisConnectError, RedisOptions, RedisStore};
pub use scope_key::{SCOPE_WIDE, ScopeKey};
#[cfg(feature = "encryption")]
pub use sealed::{KeyRing, KeyRingError, RingKey, SealedDatabase, SealedStore};
#[cfg(all(feature = "sqlite", feature = "testing"))]
pub(crate) use sqlite::fuzz_record;
#[cfg(feature = "sqlite")]
pub use sqlite::{OpenError, SqliteDatabase, SqliteOptions, SqliteStore};

/// What a store method returns: boxed, so that stores are chosen at run time.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Keeps records. Every method is one atomic step.
///
/// # What an implementation promises
///
/// 1. `reserve` grants a record to at most one attempt at a time, and each grant has a larger fence
///    than any grant of that scope and key before.
/// 2. A write whose attempt or fence is not the record's changes nothing and answers
///    [`Written::Superseded`].
/// 3. Every call may be repeated with the same arguments after a lost answer: a repeated `reserve`
///    of one attempt answers [`Reservation::Granted`] again, a repeated write
///    [`Written::AlreadyMine`], a repeated advance [`Advanced::AlreadyMine`].
/// 4. What was acknowledged survives a crash, as far as the store's own page promises.
/// 5. A damaged record is an error, never an absent one.
/// 6. The steps and the request of a record are kept as long as it is not terminal, go with the very
///    change that makes it so, and are never those of an earlier generation.
///
/// `onceward::store_suite!` checks these.
///
/// # Cancel safety
///
/// Every future may be dropped at any await. The step then happened as a whole or not at all, and
/// the store stays usable; the caller does not know which and repeats the call to learn it.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Takes the record if it is free, else returns what is in the way.
    fn reserve(&self, ask: Ask) -> StoreFuture<'_, Reservation>;

    /// Takes a record that waits for a worker: see [`resumable`](Self::resumable). Answers as `reserve`
    /// does.
    fn claim(&self, claim: Claim) -> StoreFuture<'_, Reservation>;

    /// Renews, completes, releases or marks unknown, guarded by the lease's attempt and fence.
    fn write<'a>(&'a self, lease: &'a Lease, write: Write) -> StoreFuture<'a, Written>;

    /// Moves a phased operation on by one step, guarded as `write` is. The record and the result of
    /// the step change together.
    fn advance<'a>(&'a self, lease: &'a Lease, advance: Advance) -> StoreFuture<'a, Advanced>;

    /// The steps that were saved in this generation of the record, oldest first.
    fn steps<'a>(&'a self, id: &'a RecordId, generation: u32) -> StoreFuture<'a, Vec<SavedStep>>;

    /// At most `limit` of these records that wait for a worker: phased ones that are in progress, their
    /// lease over, and without an open effect that must not be called again; and pending ones that are
    /// due. Pending ones come first, in each kind whoever has waited longest; a record that somebody is
    /// at work on may be left out.
    fn resumable(&self, which: Which, limit: u32) -> StoreFuture<'_, Vec<Resumable>>;

    /// At most `limit` records whose outcome is unknown and that are due to be asked about. Whoever has
    /// waited longest comes first; those of the routes `except` are left out. Who wants to ask takes
    /// one by [`Resolution::Ask`].
    fn due_unknown(&self, limit: u32, except: Vec<Arc<str>>) -> StoreFuture<'_, Vec<Record>>;

    /// Notes what a provider calls the operation of this lease. Nothing else about the record changes,
    /// and the state that it is in does not matter: an attempt that has lost its record may be the one
    /// that acted. What another operation has stays there; that is an incident, and audited here.
    fn note_provider_id<'a>(&'a self, lease: &'a Lease, id: ProviderId) -> StoreFuture<'a, Noted>;

    /// Which operation has this provider id.
    fn by_provider_id<'a>(&'a self, id: &'a ProviderId) -> StoreFuture<'a, Option<ProviderNote>>;

    /// The provider ids of these records, of all generations, in the order of the records and each
    /// record's in the order in which they were noted. They are kept as long as their record is, its
    /// tombstone too.
    fn provider_ids(&self, of: Vec<RecordId>) -> StoreFuture<'_, Vec<ProviderNote>>;

    /// Decides from outside what nobody inside can know: the reconciler and operators.
    fn resolve(&self, resolve: Resolve) -> StoreFuture<'_, Resolved>;

    /// The record as it stands now, expiry taken into account.
    fn load<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Option<Record>>;

    /// Those of these records that nobody is at work on any more, for requests that wait for them; one
    /// that is not there is among them, and one whose lease is over may be. One call for all that a
    /// process waits for. A store that is shared should override it by one round trip.
    fn settled(&self, ids: Vec<RecordId>) -> StoreFuture<'_, Vec<RecordId>> {
        Box::pin(async move {
            let mut settled = Vec::new();
            for id in ids {
                let record = self.load(&id).await?;
                if record.is_none_or(|record| !record.state.is_at_work()) {
                    settled.push(id);
                }
            }
            Ok(settled)
        })
    }

    /// The audit records of one scope and key, oldest first.
    fn audit<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Vec<AuditRecord>>;

    /// Records for operators, in pages, as they would be loaded now; without what was replied. Must
    /// not hold up requests.
    fn list_records(&self, query: Query) -> StoreFuture<'_, Page>;

    /// Audit records of all scopes and keys, the latest first, in pages.
    fn audit_log(&self, query: AuditQuery) -> StoreFuture<'_, AuditPage>;

    /// How many records there are in each state. A store with many of them may estimate, and says
    /// so: its effort is bounded.
    fn stats(&self) -> StoreFuture<'_, Stats>;

    /// Moves at most `limit` records on whose lease ran out, and tells which. May do fewer, so that
    /// requests do not wait: nothing is left when it tells of none, unless there is more to sweep.
    fn sweep(&self, limit: u32) -> StoreFuture<'_, Vec<Swept>>;

    /// Whether the last sweep stopped before it had looked at everything, since that would have taken
    /// too long: the next one goes on from there.
    fn has_more_to_sweep(&self) -> bool {
        false
    }

    /// Drops the bodies of at most `limit` records past retention and purges tombstones past
    /// theirs. Never touches a record that is not terminal. May do fewer, as `sweep` may.
    fn reap(&self, limit: u32) -> StoreFuture<'_, Reaped>;

    /// Deletes at most `limit` audit records that are older than this, the oldest first, and tells how
    /// many. They have a retention of their own: what was done to a record is told for longer than the
    /// record is kept, and never goes before it. Those of a generation that is still there, be it as a
    /// tombstone, stay. May do fewer, as `sweep` may.
    fn purge_audit(&self, older_than: Duration, limit: u32) -> StoreFuture<'_, u32>;

    /// Whether the store answers: for readiness, and for the breaker's probe.
    fn ping(&self) -> StoreFuture<'_, ()>;

    /// Compares the identity settings with those the store was first used with, and remembers them
    /// if it is new. See [`Identity`].
    fn check_identity<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, IdentityCheck>;

    /// Replaces the remembered identity settings: an operator's decision.
    fn accept_identity<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, ()>;

    /// The data keys that this scope has and had, the oldest first. If none of those it has is wrapped
    /// by the same key as the proposed one, the proposed one is added, in the same step. See
    /// [`ScopeKey`].
    fn scope_keys<'a>(
        &'a self,
        scope: &'a Scope,
        proposed: Option<ScopeKey>,
    ) -> StoreFuture<'a, Vec<ScopeKey>>;

    /// Forgets the data keys that this scope has, and keeps their ids. Tells how many there were, and
    /// leaves an audit record for each.
    fn drop_scope_keys<'a>(&'a self, scope: &'a Scope, reason: &'a str) -> StoreFuture<'a, u32>;

    /// Counts a beat of a node, durably. If the last one that is here is under what was acknowledged to
    /// the node, acknowledged commits are gone: that is remembered in the same step, told to every node
    /// from then on, and left as an audit record. See [`crate::canary::Canary`].
    fn beat(&self, beat: Beat) -> StoreFuture<'_, Pulse>;

    /// Forgets that something was lost, and leaves an audit record: an operator's decision. Tells what
    /// was known.
    fn acknowledge_regression<'a>(&'a self, reason: &'a str)
    -> StoreFuture<'a, Option<Regression>>;

    /// A number that is another one whenever a call may have gone to another server than the calls
    /// before: a store that connects anew counts that before it answers. It stays the same for a store
    /// that never does.
    fn epoch(&self) -> u64 {
        0
    }

    /// The longest body of a reply that is kept: a longer one is completed without it.
    fn reply_cap(&self) -> usize {
        usize::MAX
    }

    /// How transactions of the user's own take part, if the records live where they can. A store
    /// around another one answers with that one's.
    fn database(&self) -> Option<Database> {
        None
    }
}

/// A database in which records live beside the user's own data, with what is needed to write them in
/// a transaction of the user's.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Database {
    /// The SQLite file of a [`SqliteStore`].
    #[cfg(feature = "sqlite")]
    Sqlite(SqliteDatabase),
    /// The database of a [`PgStore`].
    #[cfg(feature = "postgres")]
    Postgres(PgDatabase),
    /// The database of a [`MySqlStore`].
    #[cfg(feature = "mysql")]
    MySql(MySqlDatabase),
    /// The table of a [`DynamoStore`].
    #[cfg(feature = "dynamodb")]
    Dynamo(DynamoDatabase),
    /// The database of the store in a [`SealedStore`].
    #[cfg(feature = "encryption")]
    Sealed(SealedDatabase),
}

/// Everything `reserve` needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The record.
    pub id: RecordId,
    /// What is asked.
    pub fingerprint: Fingerprint,
    /// The attempt that asks; the same one when the call is repeated.
    pub attempt: AttemptId,
    /// Whether to execute, to accept for later, or only to look.
    pub mode: Mode,
    /// How long the attempt may be silent.
    pub lease: Duration,
    /// How long the attempt may go on renewing.
    pub max_execution: Duration,
    /// How long the record is kept once it is at rest.
    pub retention: Duration,
    /// How long its tombstone is kept after that.
    pub tombstone: Duration,
    /// Whether an expired key may run again as the next generation.
    pub expired_runs_again: bool,
    /// What the work can do to the world.
    pub effects: Effects,
    /// The name of the policy.
    pub route: Arc<str>,
    /// The request's method.
    pub method: Arc<str>,
    /// The request's path without its query.
    pub path: Arc<str>,
    /// The whole request, of phased and of queued work only. The first grant of a generation keeps it
    /// beside the record, for a worker that may have to go on with it.
    pub request: Option<Arc<StoredRequest>>,
    /// How long accepted work may wait to be begun ([`Mode::Accept`]).
    pub queued_for: Duration,
}

/// What a free record is reserved for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// To execute at once.
    Execute,
    /// To be executed later by whoever claims it.
    Accept,
    /// Not at all: a caller without quota, or a process that drains, still gets its replays.
    LookupOnly,
}

/// Everything `claim` needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The record.
    pub id: RecordId,
    /// The attempt that claims.
    pub attempt: AttemptId,
    /// How long it may be silent.
    pub lease: Duration,
    /// How long it may go on renewing.
    pub max_execution: Duration,
    /// What the work can do to the world, as it is declared now.
    pub effects: Effects,
    /// The fence that was looked at: if the record moved since, nothing is taken, for it may be
    /// another generation with another request. `None` takes whatever is pending.
    pub fence: Option<Fence>,
}

/// All a store may decide: free, or not.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Reservation {
    /// The attempt may execute.
    Granted {
        /// Its right to do so.
        lease: Lease,
        /// Why the record was free.
        found: Found,
    },
    /// The record was free and is now pending ([`Mode::Accept`]).
    Accepted {
        /// Why the record was free.
        found: Found,
    },
    /// A record is in the way.
    Occupied {
        /// As it stands now.
        record: Box<Record>,
        /// This very call found its lease run out and moved it on.
        lease_ran_out: bool,
    },
    /// A completed record within its retention is in the way of a `reserve`: what a store may answer
    /// instead of `Occupied`, in short.
    Completed(Box<Completed>),
    /// Nothing is in the way and nothing was taken ([`Mode::LookupOnly`], or nothing to claim).
    Free,
}

impl Reservation {
    /// What a retry needs of the record in the way, if that is completed.
    pub fn completed(&self) -> Option<Completed> {
        match self {
            Reservation::Occupied { record, .. } => Completed::of(record),
            Reservation::Completed(completed) => Some((**completed).clone()),
            _ => None,
        }
    }
}

/// As much of a completed record as a retry needs. All of it is several times the work to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completed {
    /// What was asked.
    pub fingerprint: Fingerprint,
    /// Which use of the key it was.
    pub generation: u32,
    /// The attempt that has the record.
    pub attempt: AttemptId,
    /// The fence of the record.
    pub fence: Fence,
    /// When the reply will be gone.
    pub expires_at: Timestamp,
    /// What it was answered with.
    pub reply: Reply,
}

impl Completed {
    /// This much of a record, if it is completed.
    pub fn of(record: &Record) -> Option<Self> {
        let reply = record.reply.as_ref().filter(|_| record.state == State::Completed)?;
        Some(Completed {
            fingerprint: record.fingerprint,
            generation: record.generation,
            attempt: record.attempt,
            fence: record.fence,
            expires_at: record.expires_at,
            reply: reply.clone(),
        })
    }
}

/// Why a record was free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// There was none.
    Absent,
    /// Known not to have acted.
    Retryable,
    /// An attempt without effects, or one that can be resumed, ran out of its lease.
    LeaseOver,
    /// Past retention: this is a new generation.
    Expired,
    /// It waited to be claimed.
    Pending,
    /// This attempt has it already: the answer to the first call was lost.
    Mine,
}

/// What an attempt may write to its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Move the end of the lease to now plus this.
    Renew(Duration),
    /// Store the final reply.
    Complete(Reply),
    /// The attempt ends without a reply: the same request may run again. Known not to have acted, but
    /// for the steps of a phased operation, which then waits at its recovery point. A queued one waits
    /// to be claimed again. With a stable code that says why.
    Release(Box<str>),
    /// May have acted. With a stable code that says why.
    MarkUnknown(Box<str>),
}

impl Write {
    /// Whether this is the completion that stored this very reply.
    pub(crate) fn is_completion_with(&self, stored: &Reply) -> bool {
        matches!(self, Write::Complete(reply) if reply == stored)
    }
}

/// Whether the write was the attempt's to make.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Written {
    /// It was, and is durable.
    Applied,
    /// It was, and is durable: the completion of an attempt that somebody had said not to have acted,
    /// and whose record nobody has taken since. An incident.
    AppliedAfterRelease,
    /// It was made before, by this attempt; or it is late, and this attempt has completed the record,
    /// whatever it writes now. With the stored reply of a completed record.
    AlreadyMine(Option<Reply>),
    /// It was not: the record moved on. A reply is kept as evidence and not applied.
    Superseded(Option<Box<Record>>),
}

/// How an attempt moves its phased operation on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advance {
    /// A phase, or the result of an effect: moves the recovery point to `name` and saves the result.
    /// Closes the open effect of that name.
    Save {
        /// The name of the step.
        name: Box<str>,
        /// What it came to.
        result: Bytes,
    },
    /// The effect of this name is about to be called.
    Intend {
        /// The name of the effect.
        name: Box<str>,
        /// Whether its downstream is declared idempotent.
        idempotent: bool,
    },
    /// The effect of this name is known not to have acted.
    Withdraw {
        /// The name of the effect.
        name: Box<str>,
    },
}

impl Advance {
    /// The name of the step.
    pub fn name(&self) -> &str {
        match self {
            Advance::Save { name, .. }
            | Advance::Intend { name, .. }
            | Advance::Withdraw { name } => name,
        }
    }
}

/// Whether the step was the attempt's to make.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Advanced {
    /// It was, and is durable.
    Applied,
    /// It stands already: the answer to the first call was lost, or an earlier attempt made it.
    AlreadyMine,
    /// It was not: the record moved on, or is gone.
    Superseded(Option<Box<Record>>),
    /// Steps come one after the other, each name once. With a stable code that says what is wrong;
    /// nothing happened.
    Refused(&'static str),
}

/// Whether a provider id is the operation's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Noted {
    /// It is, and that is durable.
    Applied,
    /// It was noted before, by this attempt or a later one.
    AlreadyMine,
    /// Another operation has it, or an earlier use of the key. It stays there.
    Taken,
    /// There is no such use of the key any more.
    Absent,
}

/// An operation that waits for a worker: a phased one that was cut off, or a pending one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumable {
    /// Its record.
    pub record: Box<Record>,
    /// The request it began with, if one was kept.
    pub request: Option<StoredRequest>,
}

/// Which operations a worker goes on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All that wait: phased ones that were cut off, and those that were accepted for later.
    All,
    /// Those that were accepted for later.
    Accepted,
}

impl Which {
    /// Whether this is one of them.
    pub fn includes(self, record: &Record) -> bool {
        self == Which::All || record.is_queued()
    }
}

/// A decision about a record from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolve {
    /// The record.
    pub id: RecordId,
    /// The generation that was looked at.
    pub generation: u32,
    /// The fence that was looked at: if the record moved since, nothing happens.
    pub fence: Fence,
    /// What is decided.
    pub resolution: Resolution,
    /// By whom and why.
    pub reason: Box<str>,
}

/// What a reconciler or an operator may decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// `unknown` becomes `completed`: this is what had happened. What was resolved as not executed does
    /// so too, and is an incident. `pending` becomes `completed`: it is
    /// given up, and this is what its client is told.
    Complete(Reply),
    /// A source says that this attempt acted, and what came of it. Guarded by the attempt, not by the
    /// fence: `unknown` becomes `completed`, and so does what was released meanwhile, which is an
    /// incident. Where another attempt is at work, or was, the reply is kept as evidence only.
    Executed {
        /// The attempt that acted.
        attempt: AttemptId,
        /// What its client is to be told.
        reply: Reply,
    },
    /// `pending` becomes `completed`, once the time is over for which it may be queued: it will not be
    /// executed, and this is what its client is told.
    GiveUp(Reply),
    /// `unknown` becomes `failed_retryable`: it did not act, and here is how we know. A phased
    /// operation becomes `in_progress`: its open effect did not act, and it waits to be gone on with.
    /// A queued one becomes `pending`: its client was promised that it would be executed.
    Release(Proof),
    /// `completed` becomes `expired`: the next use runs as a new generation.
    Void,
    /// `unknown` stays so, and whoever says this asks what became of it: it is due again after a
    /// pause that doubles. Refused if it is not due, or if another number of probes was begun than
    /// this: then somebody else asks.
    Ask {
        /// How many probes had been begun.
        probes: u32,
    },
    /// The probe that was begun then found nothing executed. The second one that counts makes the record
    /// `failed_retryable`, as [`Proof::TwoProbes`] would; before that it is noted, the answer is
    /// [`Resolved::TooEarly`], and the record is due again at that time.
    Absent {
        /// Which probe: [`Inquiry::asked_at`](crate::record::Inquiry::asked_at) of when it was begun.
        /// One from before a redrive is not taken for one after it.
        asked_at: Timestamp,
        /// How much earlier whoever asks began the first probe of its own about this attempt that found
        /// nothing executed: by its monotonic clock, and nothing if this is the first. The store's clock
        /// may leap, so that what it says counts only if it is as long by that one.
        apart: Duration,
    },
    /// `unknown` becomes a dead letter: nobody asks any more, and a person must see it. Refused if
    /// another probe was begun since.
    DeadLetter {
        /// The last probe that was seen, as above.
        asked_at: Option<Timestamp>,
    },
    /// `unknown` is due at once, as if it had just become so, be it a dead letter or not.
    Redrive,
}

/// How it is known that an unknown attempt did not act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// A source that cannot be wrong about it, such as the provider's ledger or an operator.
    Authoritative,
    /// Two probes that found nothing. Counts only when both came late enough and apart enough: see
    /// [`crate::machine::SETTLE`].
    TwoProbes {
        /// When the first one asked.
        first: Timestamp,
        /// When the second one asked.
        second: Timestamp,
    },
}

/// Whether a resolution was applied.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Resolved {
    /// It was.
    Applied(Box<Record>),
    /// There is no such record.
    Absent,
    /// The record is not what was looked at, or is not in a state that can be resolved this way.
    Refused(Box<Record>),
    /// Proof that a thing did not happen is not accepted before this time.
    TooEarly {
        /// From when on it would be.
        not_before: Timestamp,
    },
}

/// A record that the sweeper moved on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swept {
    /// Which one.
    pub id: RecordId,
    /// Where it stands now.
    pub state: State,
    /// The attempt whose lease ran out.
    pub attempt: AttemptId,
    /// The name of the policy under which it was at work.
    pub route: Arc<str>,
}

/// What the reaper did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    /// Records that became tombstones.
    pub expired: u32,
    /// Tombstones, or records without one, that are gone.
    pub purged: u32,
}

/// The settings that make a key what it is: if they drift, every key looks new and everything runs
/// again. A digest of them lives in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity(Box<str>);

impl Identity {
    /// The identity of a scope rule, a key syntax, and the fingerprint keys that are used, in any
    /// order.
    pub fn new(
        scope_rule: &str,
        key_syntax: &str,
        fingerprint_keys: impl IntoIterator<Item = [u8; 8]>,
    ) -> Self {
        use sha2::{Digest, Sha256};
        let mut hash = Sha256::new();
        hash.update(b"onceward-identity/1");
        for part in [scope_rule.as_bytes(), key_syntax.as_bytes()] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let fingerprint_keys: BTreeSet<[u8; 8]> = fingerprint_keys.into_iter().collect();
        fingerprint_keys.iter().for_each(|id| hash.update(id));
        Identity(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// An identity as a store has it.
    pub fn from_stored(digest: impl Into<Box<str>>) -> Self {
        Identity(digest.into())
    }

    /// The digest, in hexadecimal.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What came of comparing identities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum IdentityCheck {
    /// The store was empty of one, or had the same.
    Same,
    /// The store was used with other settings.
    Different,
}
