//! Records in a table of DynamoDB, for many machines: conditional writes decide who has a record.
//!
//! A reserve is one write that is made only if there is no record; otherwise the service answers with
//! the record that is in the way, in the same round trip. Renewals and completions are one write each,
//! under the attempt and the fence. All else goes through the machine: the record is read, and written
//! if it is still what was read. Nothing is believed that an index says, and nothing that the service's
//! own expiry does: it may lag by days.
//!
//! The service has no clock that a condition could ask. The clock of the process decides, which is the
//! limit of this store; one that is more than ten seconds off, by the dates of the service's answers,
//! decides nothing.

use std::{sync::Arc, time::Duration};

use aws_sdk_dynamodb::{Client, types::TransactWriteItem};

use super::{
    Advance, Advanced, Ask, Beat, Claim, Database, Identity, IdentityCheck, Noted, Pulse, Reaped,
    Regression, Reservation, Resolution, Resolve, Resolved, Resumable, ScopeKey, Store, StoreError,
    StoreFuture, Swept, Which, Write, Written,
    list::{AuditPage, AuditQuery, Page, Query, Stats},
};
use crate::{
    clock::Clock,
    machine,
    record::{AuditRecord, Lease, ProviderId, ProviderNote, Record, RecordId, SavedStep},
    reply::Reply,
    scope::Scope,
};

mod beside;
mod call;
mod examine;
mod item;
mod list;
mod meta;
mod migrate;
mod open;
mod row;
mod skew;
mod step;
mod table;
mod workers;
mod write;

use call::Calls;
pub use open::{DynamoOpenError, DynamoOptions};
use row::{fitting, read_record, record_key};
use skew::Skew;
use step::Seen;

const STORE: &str = "dynamodb";

/// The longest body that is kept. An item has 400 kB, for all that is in it.
const REPLY_CAP: usize = 300 * 1024;

/// How long one call waits for its answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(3);

/// A store on a table of DynamoDB.
///
/// Cheap to clone: clones share connections and the table.
#[derive(Clone, Debug)]
pub struct DynamoStore(Arc<Inner>);

/// The table of a [`DynamoStore`], for transactions of the user's own that complete a record.
#[derive(Clone, Debug)]
pub struct DynamoDatabase(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    client: Client,
    calls: Calls,
    skew: Skew,
    table: String,
    clock: Arc<dyn Clock>,
    /// In how many parts the indexes are written.
    shards: u32,
}

impl DynamoStore {
    /// By how much this machine's clock is off from the service's, at least, and whether it is ahead;
    /// by the date of the last answer.
    pub fn clock_skew(&self) -> (Duration, bool) {
        self.0.skew.at_least()
    }

    /// The name of the table.
    pub fn table(&self) -> &str {
        &self.0.table
    }
}

impl DynamoDatabase {
    /// The write that completes the record of a lease, for a transaction of the user's.
    pub(crate) fn completing(&self, lease: &Lease, reply: Reply) -> TransactWriteItem {
        self.0.completing(lease, &fitting(reply))
    }

    /// Whether an item is a record that this attempt has completed.
    pub(crate) fn is_completed_by(item: &item::Item, lease: &Lease) -> bool {
        write::is_completed_by(item, lease)
    }
}

impl Inner {
    async fn reserve(&self, ask: Ask) -> Result<Reservation, StoreError> {
        self.check_clock().await?;
        let request = Inner::encoded(ask.request.as_deref())?;
        self.step(
            &ask.id,
            Seen::ProbablyAbsent,
            |held, now| {
                // Again with each answer: the one that tells of the record may be the first that shows
                // how far off the clock is.
                self.skew.check()?;
                Ok(machine::reserve(held.map(|it| &it.record), &ask, now))
            },
            |answer, held| {
                let kept = request.as_deref().filter(|_| machine::keeps_request(answer));
                Inner::keep_request(kept, held)
            },
        )
        .await
    }

    async fn claim(&self, claim: Claim) -> Result<Reservation, StoreError> {
        self.check_clock().await?;
        self.step(
            &claim.id,
            Seen::Nothing,
            |held, now| {
                self.skew.check()?;
                Ok(machine::claim(held.map(|it| &it.record), &claim, now))
            },
            |_, _| Vec::new(),
        )
        .await
    }

    async fn resolve(&self, resolve: Resolve) -> Result<Resolved, StoreError> {
        let resolution = match resolve.resolution {
            Resolution::Complete(reply) => Resolution::Complete(fitting(reply)),
            Resolution::GiveUp(reply) => Resolution::GiveUp(fitting(reply)),
            Resolution::Executed { attempt, reply } => {
                Resolution::Executed { attempt, reply: fitting(reply) }
            }
            other => other,
        };
        let resolve = Resolve { resolution, ..resolve };
        self.step(
            &resolve.id,
            Seen::Nothing,
            |held, now| Ok(machine::resolve(held.map(|it| &it.record), resolve.clone(), now)),
            |_, _| Vec::new(),
        )
        .await
    }

    async fn settled(&self, ids: Vec<RecordId>) -> Result<Vec<RecordId>, StoreError> {
        let keys = ids.iter().map(record_key).collect();
        let found = self.get_many(keys, &row::LISTED).await?;
        let found = found.iter().map(|item| read_record(item).map_err(call::damaged));
        let mut at_work = std::collections::HashSet::new();
        for held in found {
            let record = held?.record;
            if record.state.is_at_work() {
                at_work.insert(record.id);
            }
        }
        Ok(ids.into_iter().filter(|id| !at_work.contains(id)).collect())
    }
}

impl Store for DynamoStore {
    fn reserve(&self, ask: Ask) -> StoreFuture<'_, Reservation> {
        Box::pin(self.0.reserve(ask))
    }

    fn claim(&self, claim: Claim) -> StoreFuture<'_, Reservation> {
        Box::pin(self.0.claim(claim))
    }

    fn write<'a>(&'a self, lease: &'a Lease, write: Write) -> StoreFuture<'a, Written> {
        let write = match write {
            Write::Complete(reply) => Write::Complete(fitting(reply)),
            other => other,
        };
        Box::pin(self.0.write(lease, write))
    }

    fn advance<'a>(&'a self, lease: &'a Lease, advance: Advance) -> StoreFuture<'a, Advanced> {
        Box::pin(self.0.advance(lease, advance))
    }

    fn steps<'a>(&'a self, id: &'a RecordId, generation: u32) -> StoreFuture<'a, Vec<SavedStep>> {
        Box::pin(self.0.steps(id, generation))
    }

    fn resumable(&self, which: Which, limit: u32) -> StoreFuture<'_, Vec<Resumable>> {
        Box::pin(self.0.resumable(which, limit))
    }

    fn due_unknown(&self, limit: u32, except: Vec<Arc<str>>) -> StoreFuture<'_, Vec<Record>> {
        Box::pin(self.0.due_unknown(limit, except))
    }

    fn note_provider_id<'a>(&'a self, lease: &'a Lease, id: ProviderId) -> StoreFuture<'a, Noted> {
        Box::pin(self.0.note_provider_id(lease, id))
    }

    fn by_provider_id<'a>(&'a self, id: &'a ProviderId) -> StoreFuture<'a, Option<ProviderNote>> {
        Box::pin(self.0.by_provider_id(id))
    }

    fn provider_ids(&self, of: Vec<RecordId>) -> StoreFuture<'_, Vec<ProviderNote>> {
        Box::pin(self.0.provider_ids(of))
    }

    fn resolve(&self, resolve: Resolve) -> StoreFuture<'_, Resolved> {
        Box::pin(self.0.resolve(resolve))
    }

    fn load<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Option<Record>> {
        Box::pin(async move {
            let held = self.0.load(id).await?;
            Ok(machine::load(held.as_deref().map(|held| &held.record), self.0.clock.now()))
        })
    }

    fn settled(&self, ids: Vec<RecordId>) -> StoreFuture<'_, Vec<RecordId>> {
        Box::pin(self.0.settled(ids))
    }

    fn audit<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Vec<AuditRecord>> {
        Box::pin(self.0.audit(id))
    }

    fn list_records(&self, query: Query) -> StoreFuture<'_, Page> {
        Box::pin(self.0.list_records(query))
    }

    fn audit_log(&self, query: AuditQuery) -> StoreFuture<'_, AuditPage> {
        Box::pin(self.0.audit_log(query))
    }

    fn stats(&self) -> StoreFuture<'_, Stats> {
        Box::pin(self.0.stats())
    }

    fn sweep(&self, limit: u32) -> StoreFuture<'_, Vec<Swept>> {
        Box::pin(async move {
            self.0.check_clock().await?;
            self.0.sweep(limit).await
        })
    }

    fn reap(&self, limit: u32) -> StoreFuture<'_, Reaped> {
        Box::pin(async move {
            self.0.check_clock().await?;
            self.0.reap(limit).await
        })
    }

    fn purge_audit(&self, older_than: Duration, limit: u32) -> StoreFuture<'_, u32> {
        Box::pin(self.0.purge_audit(older_than, limit))
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        Box::pin(self.0.ping())
    }

    fn check_identity<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, IdentityCheck> {
        Box::pin(self.0.check_identity(identity))
    }

    fn accept_identity<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, ()> {
        Box::pin(self.0.accept_identity(identity))
    }

    fn scope_keys<'a>(
        &'a self,
        scope: &'a Scope,
        proposed: Option<ScopeKey>,
    ) -> StoreFuture<'a, Vec<ScopeKey>> {
        Box::pin(self.0.scope_keys(scope, proposed))
    }

    fn drop_scope_keys<'a>(&'a self, scope: &'a Scope, reason: &'a str) -> StoreFuture<'a, u32> {
        Box::pin(self.0.drop_scope_keys(scope, reason))
    }

    fn beat(&self, beat: Beat) -> StoreFuture<'_, Pulse> {
        Box::pin(self.0.beat(beat))
    }

    fn acknowledge_regression<'a>(
        &'a self,
        reason: &'a str,
    ) -> StoreFuture<'a, Option<Regression>> {
        Box::pin(self.0.acknowledge_regression(reason))
    }

    /// Counts broken connections and missing tables: after either, a grant waits for a beat.
    fn epoch(&self) -> u64 {
        self.0.calls.epoch()
    }

    fn reply_cap(&self) -> usize {
        REPLY_CAP
    }

    fn database(&self) -> Option<Database> {
        Some(Database::Dynamo(DynamoDatabase(Arc::clone(&self.0))))
    }
}
