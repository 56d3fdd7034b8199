//! The outbox in the file: staged in the user's transaction or in one of our own, everything else
//! by the writer.

use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::{Row as _, SqliteConnection, sqlite::SqliteRow};

use super::{SqliteStore, statement::Statement};
use crate::{
    clock::Timestamp,
    outbox::{
        Backlog, Claimed, DEAD_LETTERS_MAX, DeadLetter, ListedMessage, Message, MessageId,
        MessageQuery, MessageState, OutboxStore, Owner, Settlement, Staged, StoredMessage,
    },
    record::{AttemptId, Fence, Lease},
    store::{StoreFuture, message_row::read_message},
};

mod row;
mod sql;

use row::{message_id, read_listed, unreadable};
use sql::{
    ALREADY_SETTLED, BACKLOG, CLAIM, DEAD, DISCARD, DONE, DUE, FORGET, LET_GO, LIST, LIST_OPEN,
    MINE, PURGE, PURGEABLE, REDRIVE, REMEMBER_DISCARDED, REMEMBER_REDRIVEN, RETRY, RUN_OUT, SHOW,
    SHOW_ONE, SHOW_OPEN, STAGE, STAGED_BEFORE, UNREADABLE,
};

/// Stages a message within the transaction that is open on this connection.
///
/// The record must be in progress under this attempt and fence. If it is not, nothing is staged, and
/// the transaction must not commit.
pub(super) async fn stage_in(
    connection: &mut SqliteConnection,
    owner: &Owner,
    message: &Message,
    now: Timestamp,
) -> Result<Staged, sqlx::Error> {
    if let Some(refusal) = message.refusal() {
        return Ok(Staged::Refused(refusal));
    }
    let derived_key = owner.derived_key(&message.name);
    if insert(connection, owner, message, &derived_key, now).await? {
        return Ok(Staged::Applied);
    }
    // Either the attempt has lost its right, or a message with this key is there.
    let before = owned(STAGED_BEFORE, owner).bind(derived_key.clone());
    let Some(before) = before.fetch_optional(&mut *connection).await? else {
        return Ok(Staged::Superseded);
    };
    if before.try_get("same_use")? {
        return Ok(Staged::AlreadyMine);
    }
    // The record was purged and made again, so that the key is new. The message of its former use
    // is in the way of the new one only as long as it is not delivered.
    let forget = sqlx::query(FORGET).bind(before.try_get::<i64, _>("message_id")?);
    if forget.execute(&mut *connection).await?.rows_affected() == 0 {
        return Ok(Staged::Refused("a message of a former use of the key is not delivered yet"));
    }
    match insert(connection, owner, message, &derived_key, now).await? {
        true => Ok(Staged::Applied),
        false => Ok(Staged::Superseded),
    }
}

type Query<'q> = sqlx::query::Query<'q, sqlx::Sqlite, sqlx::sqlite::SqliteArguments>;

fn owned(sql: &'static str, owner: &Owner) -> Query<'static> {
    sqlx::query(sql)
        .bind(owner.id.scope.as_str().to_owned())
        .bind(owner.id.key.as_str().to_owned())
        .bind(i64::from(owner.generation))
        .bind(owner.attempt.as_bytes().to_vec())
        .bind(owner.fence.number())
}

async fn insert(
    connection: &mut SqliteConnection,
    owner: &Owner,
    message: &Message,
    derived_key: &str,
    now: Timestamp,
) -> Result<bool, sqlx::Error> {
    let query = owned(STAGE, owner)
        .bind(derived_key.to_owned())
        .bind(message.name.to_string())
        .bind(message.sink.to_string())
        .bind(message.aggregate.as_deref().map(str::to_owned))
        .bind(message.content_type.to_string())
        .bind(message.payload.to_vec())
        .bind(now.as_micros());
    Ok(query.execute(connection).await?.rows_affected() == 1)
}

struct Stage(Owner, Message);

impl Statement for Stage {
    type Answer = Staged;

    fn run<'c>(
        &'c self,
        connection: &'c mut SqliteConnection,
        now: Timestamp,
    ) -> BoxFuture<'c, Result<Staged, sqlx::Error>> {
        Box::pin(stage_in(connection, &self.0, &self.1, now))
    }
}

struct Claim {
    limit: u32,
    sinks: Vec<String>,
    lease: Duration,
    attempt: AttemptId,
}

impl Claim {
    /// The ids of what is due for one sink, oldest first.
    async fn due(
        &self,
        connection: &mut SqliteConnection,
        sink: &str,
        room: usize,
        now: Timestamp,
    ) -> Result<Vec<MessageId>, sqlx::Error> {
        let mut ids = Vec::new();
        // What was begun comes first: it has waited for its lease already.
        for sql in [RUN_OUT, DUE] {
            let room = room.saturating_sub(ids.len());
            let room = i64::try_from(room).unwrap_or(i64::MAX);
            let query = sqlx::query(sql).bind(sink.to_owned()).bind(now.as_micros()).bind(room);
            let rows = query.fetch_all(&mut *connection).await?;
            ids.extend(rows.iter().map(message_id).collect::<Result<Vec<_>, _>>()?);
        }
        Ok(ids)
    }

    async fn claim(
        &self,
        connection: &mut SqliteConnection,
        now: Timestamp,
    ) -> Result<Vec<Claimed>, sqlx::Error> {
        let attempt = self.attempt.as_bytes().to_vec();
        let mine = sqlx::query(MINE).bind(attempt.clone()).bind(now.as_micros());
        let mut rows = mine.fetch_all(&mut *connection).await?;
        if rows.is_empty() {
            let mut due = Vec::new();
            for sink in &self.sinks {
                let room = (self.limit as usize).saturating_sub(due.len());
                due.extend(self.due(&mut *connection, sink, room, now).await?);
            }
            let claim = sqlx::query(CLAIM)
                .bind(attempt)
                .bind(now.as_micros())
                .bind(now.plus(self.lease).as_micros())
                .bind(list_of(&due));
            rows = claim.fetch_all(&mut *connection).await?;
        }
        let mut claimed = Vec::with_capacity(rows.len());
        for row in &rows {
            match read_message(row) {
                Ok(message) => claimed.push(message.into()),
                // It would be claimed for ever. As a dead letter it stands in nobody's way.
                Err(_) => {
                    let id = message_id(row)?.number();
                    sqlx::query(UNREADABLE).bind(id).execute(&mut *connection).await?;
                }
            }
        }
        claimed.sort_unstable_by_key(|claimed: &Claimed| claimed.message_id);
        Ok(claimed)
    }
}

impl Statement for Claim {
    type Answer = Vec<Claimed>;

    fn run<'c>(
        &'c self,
        connection: &'c mut SqliteConnection,
        now: Timestamp,
    ) -> BoxFuture<'c, Result<Vec<Claimed>, sqlx::Error>> {
        Box::pin(self.claim(connection, now))
    }
}

struct Settle {
    id: MessageId,
    attempt: AttemptId,
    fence: Fence,
    settlement: Settlement,
}

impl Settle {
    async fn settle(
        &self,
        connection: &mut SqliteConnection,
        now: Timestamp,
    ) -> Result<bool, sqlx::Error> {
        let applied = match &self.settlement {
            Settlement::Done { provider_id } => {
                let done = sqlx::query(DONE).bind(now.as_micros());
                let done = done.bind(provider_id.as_deref().map(str::to_owned));
                let done = self.guarded(done).fetch_optional(&mut *connection).await?;
                if let Some(row) = &done {
                    let_go(connection, row).await?;
                }
                done.is_some()
            }
            Settlement::Retry { after, ambiguous, why } => {
                let retry = sqlx::query(RETRY).bind(now.plus(*after).as_micros());
                let retry = retry.bind(i64::from(*ambiguous)).bind(why.to_string());
                self.guarded(retry).execute(&mut *connection).await?.rows_affected() > 0
            }
            Settlement::Dead { why } => {
                let dead = sqlx::query(DEAD).bind(why.to_string());
                self.guarded(dead).execute(&mut *connection).await?.rows_affected() > 0
            }
        };
        if applied {
            return Ok(true);
        }
        let already = self.guarded(sqlx::query(ALREADY_SETTLED));
        let already = already.bind(self.settlement.state().name());
        Ok(already.fetch_optional(connection).await?.is_some())
    }

    fn guarded<'q>(&self, query: Query<'q>) -> Query<'q> {
        let query = query.bind(self.id.number()).bind(self.attempt.as_bytes().to_vec());
        query.bind(self.fence.number())
    }
}

impl Statement for Settle {
    type Answer = bool;

    fn run<'c>(
        &'c self,
        connection: &'c mut SqliteConnection,
        now: Timestamp,
    ) -> BoxFuture<'c, Result<bool, sqlx::Error>> {
        Box::pin(self.settle(connection, now))
    }
}

/// Lets the next message of an aggregate go, after this one was done or is gone.
async fn let_go(connection: &mut SqliteConnection, row: &SqliteRow) -> Result<(), sqlx::Error> {
    if let Some(aggregate) = row.try_get::<Option<String>, _>("aggregate")? {
        sqlx::query(LET_GO).bind(aggregate).execute(connection).await?;
    }
    Ok(())
}

struct List {
    state: MessageState,
    after: Option<MessageId>,
    limit: u32,
}

impl Statement for List {
    type Answer = Vec<StoredMessage>;

    fn run<'c>(
        &'c self,
        connection: &'c mut SqliteConnection,
        _now: Timestamp,
    ) -> BoxFuture<'c, Result<Vec<StoredMessage>, sqlx::Error>> {
        let sql = if self.state == MessageState::Done { LIST } else { LIST_OPEN };
        let query = sqlx::query(sql)
            .bind(self.state.name())
            .bind(self.after.map_or(i64::MIN, MessageId::number))
            .bind(i64::from(self.limit));
        Box::pin(async move {
            let rows = query.fetch_all(connection).await?;
            let read = |row| read_message(row).map_err(|bad| unreadable(row, bad));
            rows.iter().map(read).collect()
        })
    }
}

struct Show(MessageQuery);

impl Statement for Show {
    type Answer = Vec<ListedMessage>;

    fn run<'c>(
        &'c self,
        connection: &'c mut SqliteConnection,
        now: Timestamp,
    ) -> BoxFuture<'c, Result<Vec<ListedMessage>, sqlx::Error>> {
        let MessageQuery { state, sink, older_than, after, limit } = &self.0;
        let open = state.is_some_and(|state| state != MessageState::Done);
        let before = older_than.map_or(i64::MAX, |age| micros_before(now, age));
        let query = sqlx::query(if open { SHOW_OPEN } else { SHOW })
            .bind(after.map_or(i64::MIN, MessageId::number))
            .bind(sink.as_deref().map(str::to_owned))
            .bind(before)
            .bind(i64::from(*limit))
            .bind(state.map(MessageState::name));
        Box::pin(
            async move { query.fetch_all(connection).await?.iter().map(read_listed).collect() },
        )
    }
}

struct ShowOne(MessageId);

impl Statement for ShowOne {
    type Answer = Option<ListedMessage>;

    fn run<'c>(
        &'c self,
        connection: &'c mut SqliteConnection,
        _now: Timestamp,
    ) -> BoxFuture<'c, Result<Option<ListedMessage>, sqlx::Error>> {
        let query = sqlx::query(SHOW_ONE).bind(self.0.number());
        Box::pin(async move {
            query.fetch_optional(connection).await?.as_ref().map(read_listed).transpose()
        })
    }
}

fn micros_before(now: Timestamp, age: Duration) -> i64 {
    let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
    now.as_micros().saturating_sub(age)
}

/// What a person decided about exactly these dead letters: remembered, and then done.
struct Decide {
    remember: &'static str,
    sql: &'static str,
    letters: Vec<DeadLetter>,
    reason: String,
}

impl Statement for Decide {
    type Answer = Vec<MessageId>;

    fn run<'c>(
        &'c self,
        connection: &'c mut SqliteConnection,
        now: Timestamp,
    ) -> BoxFuture<'c, Result<Vec<MessageId>, sqlx::Error>> {
        Box::pin(async move {
            let pairs = |it: &DeadLetter| [it.message_id.number(), it.fence.number()];
            let letters: Vec<_> = self.letters.iter().map(pairs).collect();
            let list = serde_json::to_string(&letters).unwrap_or_else(|_| "[]".to_owned());
            let remember = sqlx::query(self.remember).bind(list.clone());
            let remember = remember.bind(now.as_micros()).bind(self.reason.clone());
            remember.execute(&mut *connection).await?;
            OnExactly { sql: self.sql, list }.apply(connection, now).await
        })
    }
}

/// A statement on exactly these messages, which returns those that it was applied to.
struct OnExactly {
    sql: &'static str,
    list: String,
}

impl OnExactly {
    async fn apply(
        &self,
        connection: &mut SqliteConnection,
        now: Timestamp,
    ) -> Result<Vec<MessageId>, sqlx::Error> {
        let query = sqlx::query(self.sql).bind(self.list.clone()).bind(now.as_micros());
        let rows = query.fetch_all(&mut *connection).await?;
        if self.sql == DISCARD {
            for row in &rows {
                let_go(connection, row).await?;
            }
        }
        let mut applied = rows.iter().map(message_id).collect::<Result<Vec<_>, _>>()?;
        applied.sort_unstable();
        Ok(applied)
    }
}

struct PurgeDone {
    older_than: Duration,
    limit: u32,
}

impl Statement for PurgeDone {
    type Answer = Vec<MessageId>;

    fn run<'c>(
        &'c self,
        connection: &'c mut SqliteConnection,
        now: Timestamp,
    ) -> BoxFuture<'c, Result<Vec<MessageId>, sqlx::Error>> {
        Box::pin(async move {
            let before = micros_before(now, self.older_than);
            let seen = sqlx::query(PURGEABLE).bind(before).bind(i64::from(self.limit));
            let seen = seen.fetch_all(&mut *connection).await?;
            let ids = seen.iter().map(message_id).collect::<Result<Vec<_>, _>>()?;
            OnExactly { sql: PURGE, list: list_of(&ids) }.apply(connection, now).await
        })
    }
}

/// How much waits.
struct CountBacklog;

impl Statement for CountBacklog {
    type Answer = Backlog;

    fn run<'c>(
        &'c self,
        connection: &'c mut SqliteConnection,
        _: Timestamp,
    ) -> BoxFuture<'c, Result<Backlog, sqlx::Error>> {
        Box::pin(async move {
            let row = sqlx::query(BACKLOG).bind(DEAD_LETTERS_MAX).fetch_one(connection).await?;
            let due_at: Option<i64> = row.try_get(1)?;
            let due_at = due_at.map(Timestamp::from_micros);
            Ok(Backlog { dead_letters: row.try_get(0)?, due_at })
        })
    }
}

/// Ids as one value, so that a statement is the same for any number of them.
fn list_of(ids: &[MessageId]) -> String {
    let numbers: Vec<i64> = ids.iter().map(|id| id.number()).collect();
    serde_json::to_string(&numbers).unwrap_or_else(|_| "[]".to_owned())
}

impl OutboxStore for SqliteStore {
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
        self.state(Claim { limit, sinks, lease, attempt })
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
        let (letters, reason) = (letters.to_vec(), reason.to_owned());
        self.state(Decide { remember: REMEMBER_REDRIVEN, sql: REDRIVE, letters, reason })
    }

    fn discard<'a>(
        &'a self,
        letters: &'a [DeadLetter],
        reason: &'a str,
    ) -> StoreFuture<'a, Vec<MessageId>> {
        let (letters, reason) = (letters.to_vec(), reason.to_owned());
        self.state(Decide { remember: REMEMBER_DISCARDED, sql: DISCARD, letters, reason })
    }

    fn purge_done(&self, older_than: Duration, limit: u32) -> StoreFuture<'_, Vec<MessageId>> {
        self.state(PurgeDone { older_than, limit })
    }

    fn backlog(&self) -> StoreFuture<'_, Backlog> {
        self.state(CountBacklog)
    }
}

#[cfg(test)]
mod tests;
