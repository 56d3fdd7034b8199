//! One encoding of a message, for the stores that keep them in the same columns.

use bytes::Bytes;

use super::row::{BadRow, Columns, Fields};
use crate::{
    outbox::{Message, MessageId, MessageState, StoredMessage},
    record::{AttemptId, Fence},
};

pub(super) fn read_message<R: Fields>(row: &R) -> Result<StoredMessage, BadRow> {
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
