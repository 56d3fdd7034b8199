//! How the file holds the columns of messages.

use sqlx::{Row as _, sqlite::SqliteRow};

use super::super::row::BadRow;
use crate::{
    outbox::{ListedMessage, MessageId},
    store::message_row::read_message,
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

/// A row that is not what we wrote. Says which, so that somebody can look at it.
pub(super) fn unreadable(row: &SqliteRow, bad: BadRow) -> sqlx::Error {
    let id = message_id(row).map_or(-1, MessageId::number);
    sqlx::Error::Decode(format!("message {id}: {bad}").into())
}
