//! One encoding of a message.

use bytes::Bytes;
use sqlx::{Row as _, sqlite::SqliteRow};

use super::super::row::{BadRow, Columns};
use crate::{
    outbox::{ListedMessage, Message, MessageId, MessageState, StoredMessage},
    record::{AttemptId, Fence},
};

/// The columns of a message, in the order of [`read_message`].
macro_rules! message_columns {
    () => {
        "scope, key, generation, name, derived_key, sink, aggregate, content_type, payload, state, \
         attempts, ambiguous, next_at, lease_until, attempt, fence, provider_id, last_error, \
         created_at, done_at, message_id"
    };
}
pub(super) use message_columns;

/// The same without the payload, and how long that is.
macro_rules! listed_columns {
    () => {
        "scope, key, generation, name, derived_key, sink, aggregate, content_type, x'' AS payload, \
         state, attempts, ambiguous, next_at, lease_until, attempt, fence, provider_id, last_error, \
         created_at, done_at, message_id, length(payload) AS payload_bytes"
    };
}
pub(super) use listed_columns;

pub(super) fn read_listed(row: &SqliteRow) -> Result<ListedMessage, sqlx::Error> {
    let stored = read_message(row).map_err(|bad| unreadable(row, bad))?;
    let bytes: i64 = row.try_get("payload_bytes")?;
    Ok(ListedMessage { stored, payload_bytes: bytes.unsigned_abs() })
}

pub(super) fn message_id(row: &SqliteRow) -> Result<MessageId, sqlx::Error> {
    row.try_get("message_id").map(MessageId::from_stored)
}

pub(super) fn read_message(row: &SqliteRow) -> Result<StoredMessage, BadRow> {
    let mut columns = Columns { row, next: 0 };
    let operation = columns.id()?;
    let generation = columns.number("generation")?;
    let name = columns.text("name")?.into();
    let derived_key = columns.text("derived_key")?.into();
    let message = Message {
        name,
        sink: columns.text("sink")?.into(),
        aggregate: columns.optional_text("aggregate")?,
        content_type: columns.text("content_type")?.into(),
        payload: Bytes::copy_from_slice(columns.blob("payload")?),
    };
    let state = columns.text("state")?;
    Ok(StoredMessage {
        message,
        operation,
        generation,
        derived_key,
        state: MessageState::from_name(state).ok_or(BadRow("state"))?,
        attempts: columns.number("attempts")?,
        ambiguous: columns.integer("ambiguous")? != 0,
        next_at: columns.time("next_at")?,
        lease_until: columns.optional_time("lease_until")?,
        attempt: columns.optional_bytes("attempt")?.map(AttemptId::from_bytes),
        fence: Fence::from_stored(columns.integer("fence")?),
        provider_id: columns.optional_text("provider_id")?,
        last_error: columns.optional_text("last_error")?,
        created_at: columns.time("created_at")?,
        done_at: columns.optional_time("done_at")?,
        message_id: MessageId::from_stored(columns.integer("message_id")?),
    })
}

/// A row that is not what we wrote. Says which, so that somebody can look at it.
pub(super) fn unreadable(row: &SqliteRow, bad: BadRow) -> sqlx::Error {
    let id = message_id(row).map_or(-1, MessageId::number);
    sqlx::Error::Decode(format!("message {id}: {bad}").into())
}
