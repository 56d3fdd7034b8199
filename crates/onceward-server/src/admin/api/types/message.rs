//! Messages of the outbox, as operators see them.

use onceward::outbox::ListedMessage;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::admin::time::rfc3339;

/// A message of the outbox. Its payload is not part of it.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct MessageView {
    /// Its number, by which it is asked for.
    pub(crate) id: i64,
    /// Where it stands: `ready`, `delivering`, `done` or `dead`.
    pub(crate) state: String,
    /// What it is called within its operation.
    pub(crate) name: String,
    /// The sink it is for.
    pub(crate) sink: String,
    /// What it is about. Later messages of the same aggregate wait for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) aggregate: Option<String>,
    /// The media type of its payload.
    pub(crate) content_type: String,
    /// How long its payload is.
    pub(crate) payload_bytes: u64,
    /// The id of the record of the operation that staged it.
    pub(crate) operation: String,
    /// The scope of that operation.
    pub(crate) scope: String,
    /// The key of that operation.
    pub(crate) key: String,
    /// Which use of the key it was.
    pub(crate) generation: u32,
    /// The key that goes with every delivery of it: by this the receiver may know it.
    pub(crate) derived_key: String,
    /// How often a delivery was begun since it was staged or redriven.
    pub(crate) attempts: u32,
    /// A delivery was begun, and its end is not known: it may have acted.
    pub(crate) ambiguous: bool,
    /// The fence of the last claim. A change that names it applies only if nothing moved since.
    pub(crate) fence: i64,
    /// Not to be delivered before this.
    pub(crate) next_at: String,
    /// Until when the last claim holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lease_until: Option<String>,
    /// What the provider calls it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) provider_id: Option<String>,
    /// Why the last delivery that failed did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_error: Option<String>,
    /// When it was staged.
    pub(crate) created_at: String,
    /// When it was delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) done_at: Option<String>,
}

impl From<&ListedMessage> for MessageView {
    fn from(listed: &ListedMessage) -> Self {
        let (stored, message) = (&listed.stored, &listed.stored.message);
        let text = |text: &Option<Box<str>>| text.as_deref().map(str::to_owned);
        MessageView {
            id: stored.message_id.number(),
            state: stored.state.name().to_owned(),
            name: message.name.to_string(),
            sink: message.sink.to_string(),
            aggregate: text(&message.aggregate),
            content_type: message.content_type.to_string(),
            payload_bytes: listed.payload_bytes,
            operation: stored.operation.handle(),
            scope: stored.operation.scope.as_str().to_owned(),
            key: stored.operation.key.as_str().to_owned(),
            generation: stored.generation,
            derived_key: stored.derived_key.to_string(),
            attempts: stored.attempts,
            ambiguous: stored.ambiguous,
            fence: stored.fence.number(),
            next_at: rfc3339(stored.next_at),
            lease_until: stored.lease_until.map(rfc3339),
            provider_id: text(&stored.provider_id),
            last_error: text(&stored.last_error),
            created_at: rfc3339(stored.created_at),
            done_at: stored.done_at.map(rfc3339),
        }
    }
}

/// A part of a list of messages, in the order of their ids.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct MessagePage {
    /// The messages.
    pub(crate) messages: Vec<MessageView>,
    /// Where to go on: the parameter `after` of the next call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
}

/// One message.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct MessageDetail {
    /// The message.
    pub(crate) message: MessageView,
    /// What an operator can do about it.
    pub(crate) advice: String,
}

/// Decides about a dead letter.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MessageRequest {
    /// Why it is done, for whoever reads the audit records. One line.
    #[schema(
        min_length = 1,
        max_length = 500,
        pattern = r"^[^\u0000-\u001f\u007f-\u009f]*[!-~][^\u0000-\u001f\u007f-\u009f]*$"
    )]
    pub(crate) reason: String,
    /// The fence that was looked at. If the message has another one, nothing happens.
    pub(crate) fence: i64,
}

/// What became of a message.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct MessageChanged {
    /// The message as it stands now; if it was discarded, as it was.
    pub(crate) message: MessageView,
    /// It is gone.
    pub(crate) discarded: bool,
}
