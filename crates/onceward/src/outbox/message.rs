//! What is delivered, and what a store holds about it.

use std::{fmt, time::Duration};

use bytes::Bytes;

use crate::{
    clock::Timestamp,
    record::{AttemptId, Fence, RecordId},
};
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql", feature = "testing"))]
use crate::{operation::derived_key, record::Lease};

/// A message for a sink.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    /// What it is called within its operation: one generation has one message of a name.
    pub name: Box<str>,
    /// The sink it is for.
    pub sink: Box<str>,
    /// What it is about. Messages of one aggregate are delivered one after the other, in the order
    /// in which they were staged; all others in any order.
    pub aggregate: Option<Box<str>>,
    /// The media type of the payload.
    pub content_type: Box<str>,
    /// What is delivered.
    pub payload: Bytes,
}

impl Message {
    /// A message of this name for this sink.
    pub fn new(
        name: impl Into<Box<str>>,
        sink: impl Into<Box<str>>,
        payload: impl Into<Bytes>,
    ) -> Self {
        Message {
            name: name.into(),
            sink: sink.into(),
            aggregate: None,
            content_type: "application/octet-stream".into(),
            payload: payload.into(),
        }
    }

    /// The same with a JSON payload.
    ///
    /// # Errors
    /// When the value cannot be written as JSON.
    pub fn json(
        name: impl Into<Box<str>>,
        sink: impl Into<Box<str>>,
        value: &impl serde::Serialize,
    ) -> Result<Self, serde_json::Error> {
        let payload = serde_json::to_vec(value)?;
        Ok(Message::new(name, sink, payload).content_type("application/json"))
    }

    /// The same as part of this aggregate.
    #[must_use]
    pub fn aggregate(mut self, aggregate: impl Into<Box<str>>) -> Self {
        self.aggregate = Some(aggregate.into());
        self
    }

    /// The same with this media type.
    #[must_use]
    pub fn content_type(mut self, content_type: impl Into<Box<str>>) -> Self {
        self.content_type = content_type.into();
        self
    }

    /// Why it cannot be staged, if so. What is staged is never found to be impossible later.
    #[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql", feature = "testing"))]
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        let fits = |text: &str| (1..=255).contains(&text.len()) && !text.contains('\0');
        if !fits(&self.name) {
            Some("a message's name must have 1 to 255 bytes")
        } else if !fits(&self.sink) {
            Some("a sink's name must have 1 to 255 bytes")
        } else if !self.aggregate.as_deref().is_none_or(fits) {
            Some("an aggregate must have 1 to 255 bytes")
        } else if !fits(&self.content_type)
            || http::HeaderValue::from_str(&self.content_type).is_err()
        {
            Some("a media type must be a header value of 1 to 255 bytes")
        } else {
            None
        }
    }
}

/// Says what it is and how long, not what is in it.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("name", &self.name)
            .field("sink", &self.sink)
            .field("aggregate", &self.aggregate)
            .field("content_type", &self.content_type)
            .field("payload_len", &self.payload.len())
            .finish()
    }
}

/// The number of a message in its store. Grows in the order of staging and is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(i64);

impl MessageId {
    /// An id as a store or an operator has it.
    pub const fn from_stored(number: i64) -> Self {
        MessageId(number)
    }

    /// The number.
    pub const fn number(self) -> i64 {
        self.0
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where a message stands. Stored by these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MessageState {
    /// To be delivered.
    Ready,
    /// A relay holds its lease.
    Delivering,
    /// Delivered.
    Done,
    /// A dead letter: automation gave up on it, and a person must see it.
    Dead,
}

impl MessageState {
    /// All states.
    pub const ALL: [MessageState; 4] =
        [MessageState::Ready, MessageState::Delivering, MessageState::Done, MessageState::Dead];

    /// The name under which the state is stored and shown.
    pub const fn name(self) -> &'static str {
        match self {
            MessageState::Ready => "ready",
            MessageState::Delivering => "delivering",
            MessageState::Done => "done",
            MessageState::Dead => "dead",
        }
    }

    /// The state of that name.
    pub fn from_name(name: &str) -> Option<MessageState> {
        MessageState::ALL.into_iter().find(|state| state.name() == name)
    }
}

/// A message as its store holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredMessage {
    /// Its id.
    pub message_id: MessageId,
    /// What is to be delivered.
    pub message: Message,
    /// The operation that staged it.
    pub operation: RecordId,
    /// The generation of that operation.
    pub generation: u32,
    /// The key that goes with every delivery of it.
    pub derived_key: Box<str>,
    /// Where it stands.
    pub state: MessageState,
    /// How often a delivery was begun since it was staged or redriven.
    pub attempts: u32,
    /// A delivery was begun, and its end is not known: it may have acted.
    pub ambiguous: bool,
    /// Not to be delivered before this.
    pub next_at: Timestamp,
    /// Until when the last claim holds.
    pub lease_until: Option<Timestamp>,
    /// The last claim.
    pub attempt: Option<AttemptId>,
    /// The fence of the last claim; 0 before the first.
    pub fence: Fence,
    /// What the provider calls it, if it said so; there as soon as it is done.
    pub provider_id: Option<Box<str>>,
    /// Why the last delivery that failed did.
    pub last_error: Option<Box<str>>,
    /// When it was staged.
    pub created_at: Timestamp,
    /// When it was done.
    pub done_at: Option<Timestamp>,
}

/// A dead letter as somebody looked at it. One that was redriven and given up again has another fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The message.
    pub message_id: MessageId,
    /// The fence of its last claim.
    pub fence: Fence,
}

impl From<&StoredMessage> for DeadLetter {
    fn from(stored: &StoredMessage) -> Self {
        DeadLetter { message_id: stored.message_id, fence: stored.fence }
    }
}

/// Which messages are listed. Empty: all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageQuery {
    /// In this state.
    pub state: Option<MessageState>,
    /// For this sink.
    pub sink: Option<Box<str>>,
    /// Staged at least so long ago.
    pub older_than: Option<Duration>,
    /// With a larger id than this.
    pub after: Option<MessageId>,
    /// At most so many.
    pub limit: u32,
}

/// A message as lists show it: its payload is not read, only measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedMessage {
    /// The message. Its payload is empty here.
    pub stored: StoredMessage,
    /// How long its payload is.
    pub payload_bytes: u64,
}

/// Who stages: the attempt that must hold the record.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql", feature = "testing"))]
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) id: RecordId,
    pub(crate) generation: u32,
    pub(crate) attempt: AttemptId,
    pub(crate) fence: Fence,
}

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql", feature = "testing"))]
impl Owner {
    pub(crate) fn derived_key(&self, name: &str) -> String {
        derived_key(&self.id, self.generation, name)
    }
}

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql", feature = "testing"))]
impl From<&Lease> for Owner {
    fn from(lease: &Lease) -> Self {
        let Lease { generation, attempt, fence, .. } = *lease;
        Owner { id: lease.id.clone(), generation, attempt, fence }
    }
}
