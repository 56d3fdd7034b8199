//! The outbox: messages that are committed together with business rows, and delivered afterwards.
//!
//! A handler stages a message in its own transaction (`Operation::stage`); if that commits, the message is there, else
//! it never was. A [`Relay`] claims messages, hands each to its [`Sink`] under a key that stays the
//! same however often it is delivered, and settles it.
//!
//! ```text
//! stage --> ready --claim--> delivering --done---------------> done --purge--> (none)
//!             ^                 |  `------dead---------------> dead --discard--> (none)
//!             |----- retry -----'                               |
//!             `------------------------ redrive ----------------'
//! ```
//!
//! Delivery is at least once. It is once for a sink that knows keys; for one that does not, a
//! delivery whose end is not known is a dead letter and never a second delivery.

use std::{fmt, time::Duration};

use crate::{
    clock::Timestamp,
    record::{AttemptId, Fence, Lease, RecordId},
    store::StoreFuture,
};

mod message;
mod sink;
mod backoff;
mod relay;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod stage;
#[cfg(feature = "worker")]
mod http;

pub use backoff::Backoff;
#[cfg(feature = "worker")]
pub use http::{BadSink, HttpSink};
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql", feature = "testing"))]
pub(crate) use message::Owner;
pub use message::{
    DeadLetter, ListedMessage, Message, MessageId, MessageQuery, MessageState, StoredMessage,
};
pub use relay::{Relay, Relayed};
pub use sink::{Delivered, Delivery, Sink, SinkFuture};

/// Keeps messages. Implemented by stores in which a message can commit with the user's own rows.
///
/// # What an implementation promises
///
/// 1. Of an aggregate only the head is claimed: the earliest message of it that is not done. So all
///    others are held behind a delivery, a retry that is not due and a dead letter.
/// 2. A message is claimed by one attempt at a time, and each claim has a larger fence than any claim
///    of that message before.
/// 3. A settlement whose attempt or fence is not the message's changes nothing.
/// 4. Every call may be repeated with the same arguments after a lost answer: a repeated claim of one
///    attempt returns the same messages, a repeated settlement answers that it was applied.
/// 5. What is deleted is deleted by its exact id, and an id is never used again.
/// 6. What a person decided is audited in the step that does it: both are there, or neither. It holds
///    for the dead letter that was looked at, by its fence, and not for one that was given up since.
///
/// `onceward::outbox_suite!` checks these.
///
/// # Cancel safety
///
/// Every future may be dropped at any await. The step then happened as a whole or not at all.
pub trait OutboxStore: fmt::Debug + Send + Sync + 'static {
    /// Stages a message in a transaction of its own. To commit it together with business rows, stage
    /// it in their transaction.
    fn stage<'a>(&'a self, lease: &'a Lease, message: Message) -> StoreFuture<'a, Staged>;

    /// Takes at most `limit` messages for these sinks that are due, or whose delivery was begun and
    /// whose lease ran out, for `lease`. Counts an attempt of each.
    fn claim<'a>(
        &'a self,
        limit: u32,
        sinks: &'a [&'a str],
        lease: Duration,
        attempt: AttemptId,
    ) -> StoreFuture<'a, Vec<Claimed>>;

    /// Writes how a delivery ended. Answers whether that was applied: not if somebody else has
    /// claimed the message since.
    fn settle<'a>(
        &'a self,
        id: MessageId,
        attempt: AttemptId,
        fence: Fence,
        settlement: Settlement,
    ) -> StoreFuture<'a, bool>;

    /// The messages in this state with a larger id than `after`, in the order of their ids.
    fn list(
        &self,
        state: MessageState,
        after: Option<MessageId>,
        limit: u32,
    ) -> StoreFuture<'_, Vec<StoredMessage>>;

    /// What operators see: messages without their payloads, in the order of their ids.
    fn list_messages(&self, query: MessageQuery) -> StoreFuture<'_, Vec<ListedMessage>>;

    /// One message without its payload.
    fn load_message(&self, id: MessageId) -> StoreFuture<'_, Option<ListedMessage>>;

    /// Makes dead letters ready again, as if never delivered: a person has decided that they may be
    /// delivered. Returns which of these were still the dead letters that were looked at. For each an
    /// audit record about its operation is written in the same step: the reason, and which message.
    fn redrive<'a>(
        &'a self,
        letters: &'a [DeadLetter],
        reason: &'a str,
    ) -> StoreFuture<'a, Vec<MessageId>>;

    /// Deletes dead letters for good, and lets go what they held. Returns which of these it were; each
    /// is audited as by `redrive`. One whose operation may still run is kept: it would be staged and
    /// delivered anew.
    fn discard<'a>(
        &'a self,
        letters: &'a [DeadLetter],
        reason: &'a str,
    ) -> StoreFuture<'a, Vec<MessageId>>;

    /// Deletes at most `limit` messages that have been done for longer than this, oldest first, and
    /// returns which. One whose operation may still run is kept, as by `discard`.
    fn purge_done(&self, older_than: Duration, limit: u32) -> StoreFuture<'_, Vec<MessageId>>;

    /// How much waits, for a dashboard. Reads no message.
    fn backlog(&self) -> StoreFuture<'_, Backlog>;
}

/// How much waits in an outbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Dead letters, counted up to [`DEAD_LETTERS_MAX`].
    pub dead_letters: u32,
    /// When the first is due, or was, of those that are ready and that no other one holds.
    pub due_at: Option<Timestamp>,
}

/// Dead letters are counted up to this.
pub const DEAD_LETTERS_MAX: u32 = 1000;

/// What came of staging a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Staged {
    /// It is staged, if the transaction commits.
    Applied,
    /// The message of this name was staged in this generation before. It stays as it was.
    AlreadyMine,
    /// The attempt has lost its right: the transaction must be rolled back.
    Superseded,
    /// The message cannot be staged, and why.
    Refused(&'static str),
}

/// A message that was claimed for delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// Its id.
    pub message_id: MessageId,
    /// What is to be delivered.
    pub message: Message,
    /// The operation that staged it.
    pub operation: RecordId,
    /// The key that goes with every delivery of it.
    pub derived_key: Box<str>,
    /// How often a delivery was begun, with this one.
    pub attempts: u32,
    /// The fence of this claim.
    pub fence: Fence,
    /// An earlier delivery was begun, and its end is not known: it may have acted.
    pub ambiguous: bool,
}

impl From<StoredMessage> for Claimed {
    fn from(stored: StoredMessage) -> Self {
        Claimed {
            message_id: stored.message_id,
            message: stored.message,
            operation: stored.operation,
            derived_key: stored.derived_key,
            attempts: stored.attempts,
            fence: stored.fence,
            ambiguous: stored.ambiguous,
        }
    }
}

/// How a delivery ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// Delivered. What the provider calls it is written in the same step.
    Done {
        /// The provider's id for it.
        provider_id: Option<Box<str>>,
    },
    /// To be delivered again.
    Retry {
        /// Not before this long from now.
        after: Duration,
        /// This delivery may have acted: later claims say so.
        ambiguous: bool,
        /// Why it was not delivered.
        why: Box<str>,
    },
    /// Given up on: a dead letter.
    Dead {
        /// Why.
        why: Box<str>,
    },
}

impl Settlement {
    /// The state that a message has afterwards.
    pub fn state(&self) -> MessageState {
        match self {
            Settlement::Done { .. } => MessageState::Done,
            Settlement::Retry { .. } => MessageState::Ready,
            Settlement::Dead { .. } => MessageState::Dead,
        }
    }
}
