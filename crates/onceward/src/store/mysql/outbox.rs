//! The outbox: staged in the user's transaction or in one of our own, everything else on connections
//! of our own.

use std::time::Duration;

use sqlx::Row as _;

use super::{MySqlStore, row::Values as _, session::Session};
use crate::{
    clock::Timestamp,
    outbox::{
        Backlog, Claimed, DeadLetter, ListedMessage, Message, MessageId, MessageQuery,
        MessageState, OutboxStore, Settlement, Staged, StoredMessage,
    },
    record::{AttemptId, Fence, Lease},
    store::StoreFuture,
};

mod claim;
mod decide;
mod settle;
mod show;
mod stage;

use claim::Claim;
use decide::{Decide, Decision};
use settle::{PurgeDone, Settle};
use show::{CountBacklog, List, Show, ShowOne};
use stage::Stage;
pub(super) use stage::stage_in;

/// The columns of a message, in the order of `read_message`.
const COLUMNS: &str = "scope, `key`, generation, name, derived_key, sink, aggregate, content_type, \
    payload, state, attempts, ambiguous, next_at, lease_until, attempt, fence, provider_id, \
    last_error, created_at, done_at, message_id";

/// The operation that staged a message is over and will not stage it again.
const OPERATION_IS_OVER: &str = "NOT EXISTS (SELECT 1 FROM onceward_records r \
    WHERE r.scope = o.scope AND r.`key` = o.`key` AND r.generation = o.generation \
    AND r.created_at = o.record_created_at AND r.state NOT IN ('completed', 'expired'))";

/// The next of an aggregate is held no more. For whoever has locked and ended the one before.
async fn let_go(session: &mut Session<'_>, aggregate: &[u8]) -> sqlx::Result<()> {
    let next = "SELECT message_id FROM onceward_outbox FORCE INDEX (message_order) \
        WHERE open_aggregate = ? ORDER BY message_id LIMIT 1";
    let next = session.statements.named(next).bytes(aggregate);
    let Some(next) = next.fetch_optional(&mut *session.connection).await? else { return Ok(()) };
    let free = session
        .statements
        .named("UPDATE onceward_outbox SET held = 0 WHERE message_id = ? AND held = 1")
        .integer(next.try_get::<i64, _>(0)?);
    free.execute(&mut *session.connection).await.map(drop)
}

/// An aggregate without messages needs no row, unless somebody stages one just now.
async fn forget_aggregate(session: &mut Session<'_>, aggregate: &[u8]) -> sqlx::Result<()> {
    let lock = "SELECT aggregate FROM onceward_aggregates WHERE aggregate = ? \
        FOR UPDATE SKIP LOCKED";
    let lock = session.statements.named(lock).bytes(aggregate);
    if lock.fetch_optional(&mut *session.connection).await?.is_none() {
        return Ok(());
    }
    let forget = session.statements.named(
        "DELETE FROM onceward_aggregates WHERE aggregate = ? AND NOT EXISTS (\
         SELECT 1 FROM onceward_outbox o WHERE o.open_aggregate = ?)",
    );
    forget.bytes(aggregate).bytes(aggregate).execute(&mut *session.connection).await.map(drop)
}

fn micros_before(now: Timestamp, age: Duration) -> i64 {
    let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
    now.as_micros().saturating_sub(age)
}

impl OutboxStore for MySqlStore {
    fn stage<'a>(&'a self, lease: &'a Lease, message: Message) -> StoreFuture<'a, Staged> {
        self.state(Stage(lease.into(), message))
    }

    fn claim<'a>(
        &'a self,
        limit: u32,
        sinks: &'a [&'a str],
        lease: Duration,
        attempt: AttemptId,
    ) -> StoreFuture<'a, Vec<Claimed>> {
        let sinks = sinks.iter().map(|sink| (*sink).to_owned()).collect();
        let claim = Claim { limit, sinks, lease, attempt };
        self.job(move |link| Box::pin(claim.make(link)))
    }

    fn settle<'a>(
        &'a self,
        id: MessageId,
        attempt: AttemptId,
        fence: Fence,
        settlement: Settlement,
    ) -> StoreFuture<'a, bool> {
        self.state(Settle { id, attempt, fence, settlement })
    }

    fn list(
        &self,
        state: MessageState,
        after: Option<MessageId>,
        limit: u32,
    ) -> StoreFuture<'_, Vec<StoredMessage>> {
        self.state(List { state, after, limit })
    }

    fn list_messages(&self, query: MessageQuery) -> StoreFuture<'_, Vec<ListedMessage>> {
        self.state(Show(query))
    }

    fn load_message(&self, id: MessageId) -> StoreFuture<'_, Option<ListedMessage>> {
        self.state(ShowOne(id))
    }

    fn redrive<'a>(
        &'a self,
        letters: &'a [DeadLetter],
        reason: &'a str,
    ) -> StoreFuture<'a, Vec<MessageId>> {
        self.state(Decide::new(Decision::Redrive, letters, reason))
    }

    fn discard<'a>(
        &'a self,
        letters: &'a [DeadLetter],
        reason: &'a str,
    ) -> StoreFuture<'a, Vec<MessageId>> {
        self.state(Decide::new(Decision::Discard, letters, reason))
    }

    fn purge_done(&self, older_than: Duration, limit: u32) -> StoreFuture<'_, Vec<MessageId>> {
        self.state(PurgeDone { older_than, limit })
    }

    fn backlog(&self) -> StoreFuture<'_, Backlog> {
        self.state(CountBacklog)
    }
}
