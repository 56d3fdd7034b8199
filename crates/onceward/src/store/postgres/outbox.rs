//! The outbox: staged in the user's transaction or in one of our own, everything else one call at a
//! time.

use std::time::Duration;

use bytes::Bytes;
use sqlx::{Row as _, postgres::PgRow, types::Uuid};

use super::{
    PgStore,
    error::STORE,
    link::{Call, Caller, Link, call},
    row::{BadRow, FoundRow, micros, uuid},
    workers::{fetch, unreadable},
};
use crate::{
    clock::Timestamp,
    key::Key,
    outbox::{
        Backlog, Claimed, DEAD_LETTERS_MAX, DeadLetter, ListedMessage, Message, MessageId,
        MessageQuery, MessageState, OutboxStore, Owner, Settlement, Staged, StoredMessage,
    },
    record::{AttemptId, Fence, Lease, RecordId},
    scope::Scope,
    store::{StoreError, StoreErrorKind, StoreFuture},
};

pub(super) fn bind_stage(
    call: Call<'static>,
    link: &impl Caller,
    lease: &Lease,
    message: &Message,
) -> Call<'static> {
    let owner = Owner::from(lease);
    call.bind(link.now())
        .bind(owner.id.scope.as_str().to_owned())
        .bind(owner.id.key.as_str().to_owned())
        .bind(uuid(owner.attempt))
        .bind(owner.fence.number())
        .bind(owner.derived_key(&message.name))
        .bind(message.name.to_string())
        .bind(message.sink.to_string())
        .bind(message.aggregate.as_deref().map(str::to_owned))
        .bind(message.content_type.to_string())
        .bind(message.payload.to_vec())
}

pub(super) fn read_staged(rows: &[PgRow]) -> Result<Staged, StoreError> {
    match rows.first().and_then(|row| row.try_get(0).ok()) {
        Some("applied") => Ok(Staged::Applied),
        Some("mine") => Ok(Staged::AlreadyMine),
        Some("superseded") => Ok(Staged::Superseded),
        Some("former_use") => {
            Ok(Staged::Refused("a message of a former use of the key is not delivered yet"))
        }
        _ => Err(unreadable()),
    }
}

async fn stage(link: &mut Link, lease: Lease, message: Message) -> Result<Staged, StoreError> {
    if let Some(refusal) = message.refusal() {
        return Ok(Staged::Refused(refusal));
    }
    let bind = |link: &Link| bind_stage(call(&link.statements().stage), link, &lease, &message);
    let rows = fetch(link, bind).await?;
    read_staged(&rows)
}

struct Claim {
    limit: u32,
    sinks: Vec<String>,
    lease: Duration,
    attempt: AttemptId,
}

impl Claim {
    async fn run(self, link: &mut Link) -> Result<Vec<Claimed>, StoreError> {
        let bind = |link: &Link| {
            call(&link.statements().claim_messages)
                .bind(link.now())
                .bind(count(self.limit))
                .bind(self.sinks.clone())
                .bind(micros(self.lease))
                .bind(uuid(self.attempt))
        };
        loop {
            let rows = fetch(link, bind).await?;
            // One call looks at so many. That nothing was taken does not mean that nothing is due.
            if !rows.first().is_some_and(is_nothing) {
                return self.read(link, &rows).await;
            }
        }
    }

    async fn read(&self, link: &mut Link, rows: &[PgRow]) -> Result<Vec<Claimed>, StoreError> {
        let mut claimed = Vec::with_capacity(rows.len());
        for row in rows {
            match read_message(row) {
                Ok(message) => claimed.push(message.into()),
                // It would be claimed for ever. As a dead letter it stands in nobody's way.
                Err(_) => {
                    let id = message_id(row)?.number();
                    let attempt = uuid(self.attempt);
                    let bind = |link: &Link| {
                        call(&link.statements().give_up_message).bind(id).bind(attempt)
                    };
                    fetch(link, bind).await?;
                }
            }
        }
        claimed.sort_unstable_by_key(|claimed: &Claimed| claimed.message_id);
        Ok(claimed)
    }
}

fn count(limit: u32) -> i32 {
    i32::try_from(limit).unwrap_or(i32::MAX)
}

/// A row that says that there is more to look at.
fn is_nothing(row: &PgRow) -> bool {
    matches!(row.try_get::<Option<i64>, _>("message_id"), Ok(None))
}

fn message_id(row: &PgRow) -> Result<MessageId, StoreError> {
    row.try_get("message_id").map(MessageId::from_stored).map_err(|_| unreadable())
}

fn read_message(row: &PgRow) -> Result<StoredMessage, BadRow> {
    let row = FoundRow::by_name(row);
    let operation = RecordId {
        scope: Scope::new(row.text("scope")?).map_err(|_| BadRow("scope"))?,
        key: Key::new(row.text("key")?).map_err(|_| BadRow("key"))?,
    };
    let message = Message {
        name: row.text("name")?.into(),
        sink: row.text("sink")?.into(),
        aggregate: row.optional_text("aggregate")?,
        content_type: row.text("content_type")?.into(),
        payload: Bytes::copy_from_slice(row.get("payload")?),
    };
    let attempt: Option<Uuid> = row.get("attempt")?;
    Ok(StoredMessage {
        message_id: row.get("message_id").map(MessageId::from_stored)?,
        message,
        operation,
        generation: row.number("generation")?,
        derived_key: row.text("derived_key")?.into(),
        state: MessageState::from_name(row.text("state")?).ok_or(BadRow("state"))?,
        attempts: row.number("attempts")?,
        ambiguous: row.get("ambiguous")?,
        next_at: row.time("next_at")?,
        lease_until: row.optional_time("lease_until")?,
        attempt: attempt.map(|attempt| AttemptId::from_bytes(attempt.into_bytes())),
        fence: row.fence()?,
        provider_id: row.optional_text("provider_id")?,
        last_error: row.optional_text("last_error")?,
        created_at: row.time("created_at")?,
        done_at: row.optional_time("done_at")?,
    })
}

/// A row that is not what we wrote. Says which, so that somebody can look at it.
fn damaged(row: &PgRow, bad: &BadRow) -> StoreError {
    let id = message_id(row).map_or(-1, MessageId::number);
    StoreError::new(StoreErrorKind::Corrupt, STORE, "a message cannot be read")
        .with_source(format!("message {id}: {bad}"))
}

struct Settle {
    id: MessageId,
    attempt: AttemptId,
    fence: Fence,
    settlement: Settlement,
}

impl Settle {
    async fn run(self, link: &mut Link) -> Result<bool, StoreError> {
        let rows = fetch(link, |link| self.bind(link)).await?;
        rows.first().and_then(|row| row.try_get(0).ok()).ok_or_else(unreadable)
    }

    fn bind(&self, link: &Link) -> Call<'static> {
        let (provider_id, wait, ambiguous, why) = match &self.settlement {
            Settlement::Done { provider_id } => (provider_id.as_deref(), 0, false, None),
            Settlement::Retry { after, ambiguous, why } => {
                (None, micros(*after), *ambiguous, Some(&**why))
            }
            Settlement::Dead { why } => (None, 0, false, Some(&**why)),
        };
        call(&link.statements().settle_message)
            .bind(link.now())
            .bind(self.id.number())
            .bind(uuid(self.attempt))
            .bind(self.fence.number())
            .bind(self.settlement.state().name())
            .bind(provider_id.map(storable))
            .bind(wait)
            .bind(ambiguous)
            .bind(why.map(storable))
    }
}

/// Text of a sink. PostgreSQL takes no zero bytes, and a settlement must not fail for one.
fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

async fn list(
    link: &mut Link,
    state: MessageState,
    after: Option<MessageId>,
    limit: u32,
) -> Result<Vec<StoredMessage>, StoreError> {
    let bind = |link: &Link| {
        let statements = link.statements();
        let statement = match state {
            MessageState::Done => &statements.done_messages,
            _ => &statements.open_messages,
        };
        let after = after.map_or(i64::MIN, MessageId::number);
        call(statement).bind(state.name()).bind(after).bind(i64::from(limit))
    };
    let rows = fetch(link, bind).await?;
    rows.iter().map(|row| read_message(row).map_err(|bad| damaged(row, &bad))).collect()
}

fn read_listed(row: &PgRow) -> Result<ListedMessage, StoreError> {
    let stored = read_message(row).map_err(|bad| damaged(row, &bad))?;
    let bytes: i64 = row.try_get("payload_bytes").map_err(|_| unreadable())?;
    Ok(ListedMessage { stored, payload_bytes: bytes.unsigned_abs() })
}

async fn show(link: &mut Link, query: MessageQuery) -> Result<Vec<ListedMessage>, StoreError> {
    let MessageQuery { state, sink, older_than, after, limit } = query;
    let bind = |link: &Link| {
        let statements = link.statements();
        let open = state.is_some_and(|state| state != MessageState::Done);
        call(if open { &statements.show_open_messages } else { &statements.show_messages })
            .bind(after.map_or(i64::MIN, MessageId::number))
            .bind(sink.as_deref().map(storable))
            .bind(older_than.map(micros))
            .bind(i64::from(limit))
            .bind(state.map(MessageState::name))
            .bind(link.now())
    };
    fetch(link, bind).await?.iter().map(read_listed).collect()
}

async fn show_one(link: &mut Link, id: MessageId) -> Result<Option<ListedMessage>, StoreError> {
    let bind = |link: &Link| call(&link.statements().show_message).bind(id.number());
    fetch(link, bind).await?.first().map(read_listed).transpose()
}

async fn backlog(link: &mut Link) -> Result<Backlog, StoreError> {
    let most = i64::from(DEAD_LETTERS_MAX);
    let rows = fetch(link, |link| call(&link.statements().backlog).bind(most)).await?;
    let row = rows.first().ok_or_else(unreadable)?;
    let dead_letters: i64 = row.try_get(0).map_err(|_| unreadable())?;
    let due_at: Option<i64> = row.try_get(1).map_err(|_| unreadable())?;
    Ok(Backlog {
        dead_letters: u32::try_from(dead_letters).unwrap_or(0),
        due_at: due_at.map(Timestamp::from_micros),
    })
}

/// A call that returns the ids of the messages that it was applied to.
async fn applied(
    link: &mut Link,
    bind: impl Fn(&Link) -> Call<'static>,
) -> Result<Vec<MessageId>, StoreError> {
    let rows = fetch(link, bind).await?;
    let id = |row: &PgRow| row.try_get(0).map(MessageId::from_stored).map_err(|_| unreadable());
    let mut ids = rows.iter().map(id).collect::<Result<Vec<_>, _>>()?;
    ids.sort_unstable();
    Ok(ids)
}

fn numbers(letters: &[DeadLetter]) -> Vec<i64> {
    letters.iter().map(|letter| letter.message_id.number()).collect()
}

fn fences(letters: &[DeadLetter]) -> Vec<i64> {
    letters.iter().map(|letter| letter.fence.number()).collect()
}

impl OutboxStore for PgStore {
    fn stage<'a>(&'a self, lease: &'a Lease, message: Message) -> StoreFuture<'a, Staged> {
        let lease = Lease { id: lease.id.clone(), ..*lease };
        self.single(move |link| Box::pin(stage(link, lease, message)))
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
        self.single(move |link| Box::pin(claim.run(link)))
    }

    fn settle<'a>(
        &'a self,
        id: MessageId,
        attempt: AttemptId,
        fence: Fence,
        settlement: Settlement,
    ) -> StoreFuture<'a, bool> {
        let settle = Settle { id, attempt, fence, settlement };
        self.single(move |link| Box::pin(settle.run(link)))
    }

    fn list(
        &self,
        state: MessageState,
        after: Option<MessageId>,
        limit: u32,
    ) -> StoreFuture<'_, Vec<StoredMessage>> {
        self.single(move |link| Box::pin(list(link, state, after, limit)))
    }

    fn list_messages(&self, query: MessageQuery) -> StoreFuture<'_, Vec<ListedMessage>> {
        self.single(move |link| Box::pin(show(link, query)))
    }

    fn load_message(&self, id: MessageId) -> StoreFuture<'_, Option<ListedMessage>> {
        self.single(move |link| Box::pin(show_one(link, id)))
    }

    fn redrive<'a>(
        &'a self,
        letters: &'a [DeadLetter],
        reason: &'a str,
    ) -> StoreFuture<'a, Vec<MessageId>> {
        let (ids, fences, reason) = (numbers(letters), fences(letters), storable(reason));
        self.single(move |link| {
            Box::pin(applied(link, move |link| {
                let redrive = call(&link.statements().redrive).bind(link.now());
                redrive.bind(ids.clone()).bind(fences.clone()).bind(reason.clone())
            }))
        })
    }

    fn discard<'a>(
        &'a self,
        letters: &'a [DeadLetter],
        reason: &'a str,
    ) -> StoreFuture<'a, Vec<MessageId>> {
        let (ids, fences, reason) = (numbers(letters), fences(letters), storable(reason));
        self.single(move |link| {
            Box::pin(applied(link, move |link| {
                let discard = call(&link.statements().discard).bind(link.now());
                discard.bind(ids.clone()).bind(fences.clone()).bind(reason.clone())
            }))
        })
    }

    fn purge_done(&self, older_than: Duration, limit: u32) -> StoreFuture<'_, Vec<MessageId>> {
        self.single(move |link| {
            Box::pin(applied(link, move |link| {
                call(&link.statements().purge_done)
                    .bind(link.now())
                    .bind(micros(older_than))
                    .bind(count(limit))
            }))
        })
    }

    fn backlog(&self) -> StoreFuture<'_, Backlog> {
        self.single(move |link| Box::pin(backlog(link)))
    }
}
