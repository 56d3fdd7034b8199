//! Where messages go.

use std::{fmt, future::Future, pin::Pin, time::Duration};

use super::{Message, MessageId};

/// What [`Sink::deliver`] returns.
pub type SinkFuture<'a> = Pin<Box<dyn Future<Output = Delivered> + Send + 'a>>;

/// Delivers messages to somebody. Makes one try and says honestly how it ended: retries are the
/// relay's.
///
/// # Cancel safety
/// A delivery that takes too long is dropped, and then counts as ambiguous.
pub trait Sink: fmt::Debug + Send + Sync + 'static {
    /// Whether the receiver acts once on deliveries with the same key. A sink that says so wrongly
    /// will act twice.
    fn is_idempotent(&self) -> bool;

    /// Makes one try.
    fn deliver(&self, delivery: Delivery) -> SinkFuture<'_>;
}

/// One try to deliver a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The message's id, for logs.
    pub message_id: MessageId,
    /// The same for every try of this message: what the receiver tells repetitions by.
    pub key: Box<str>,
    /// What is delivered.
    pub message: Message,
    /// Which try this is: 1 for the first.
    pub attempt_number: u32,
}

/// How a try ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// The receiver acted.
    Done {
        /// What the receiver calls it.
        provider_id: Option<String>,
    },
    /// Known not to have acted: may be tried again.
    NotDelivered(String),
    /// The same, and the receiver asks not to be tried again before this time.
    Later {
        /// How long to wait at least.
        after: Duration,
        /// Why.
        why: String,
    },
    /// The receiver will never take it: a dead letter.
    Refused(String),
    /// May have acted.
    Ambiguous(String),
}
