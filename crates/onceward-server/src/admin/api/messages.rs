//! Messages of the outbox: looking at them, and deciding about dead letters.

use http::StatusCode;
use onceward::{
    OutboxStore,
    outbox::{DeadLetter, ListedMessage, MessageId, MessageQuery, MessageState},
    record::Fence,
};

use super::{
    Problem, resolve,
    types::{MessageChanged, MessageDetail, MessagePage, MessageRequest, MessageView},
};
use crate::admin::access::Who;

/// What is done with a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Redrive,
    Discard,
}

/// A dead letter as it was looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Letter {
    pub(super) id: MessageId,
    pub(super) fence: Fence,
}

pub(super) fn no_outbox() -> Problem {
    let detail =
        "This store keeps no messages: an outbox is in stores of file:, postgres:// and mysql://.";
    Problem::new(StatusCode::NOT_FOUND, "no_outbox", detail)
}

fn absent() -> Problem {
    Problem::not_found("There is no message of this number.")
}

fn id_of(text: &str) -> Result<MessageId, Problem> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| digits);
    number.map(MessageId::from_stored).ok_or_else(absent)
}

pub(super) async fn list(
    outbox: &dyn OutboxStore,
    query: MessageQuery,
) -> Result<MessagePage, Problem> {
    let limit = query.limit as usize;
    let listed = outbox.list_messages(query).await?;
    let next = listed.last().filter(|_| listed.len() >= limit);
    let next = next.map(|last| last.stored.message_id.to_string());
    Ok(MessagePage { messages: listed.iter().map(MessageView::from).collect(), next })
}

pub(super) async fn show(outbox: &dyn OutboxStore, id: &str) -> Result<MessageDetail, Problem> {
    let listed = outbox.load_message(id_of(id)?).await?.ok_or_else(absent)?;
    Ok(MessageDetail {
        message: MessageView::from(&listed),
        advice: advice(listed.stored.state, listed.stored.ambiguous).to_owned(),
    })
}

fn advice(state: MessageState, ambiguous: bool) -> &'static str {
    match state {
        MessageState::Ready => {
            "It is delivered when it is due, and after all earlier ones of its aggregate."
        }
        MessageState::Delivering => "Nothing to do: a relay is at work, or its lease will run out.",
        MessageState::Done => "Nothing to do: it was delivered.",
        MessageState::Dead if ambiguous => {
            "A delivery may have acted. Find out at its sink, by its derived key: if it did, discard \
             it; if it did not, redrive it."
        }
        MessageState::Dead => {
            "It was not delivered. When its sink can take it, redrive it; if it is of no use any \
             more, discard it."
        }
    }
}

pub(super) async fn decide(
    outbox: &dyn OutboxStore,
    id: &str,
    decision: Decision,
    asked: MessageRequest,
    who: &Who,
) -> Result<MessageChanged, Problem> {
    let reason = resolve::because(who, &asked.reason, None)?;
    let letter = Letter { id: id_of(id)?, fence: Fence::from_stored(asked.fence) };
    let before = apply(outbox, letter, decision, &reason).await?;
    let discarded = decision == Decision::Discard;
    let after = if discarded { None } else { outbox.load_message(letter.id).await? };
    Ok(MessageChanged { message: MessageView::from(&after.unwrap_or(before)), discarded })
}

/// Does it, or says why not. Returns the message as it was.
pub(super) async fn apply(
    outbox: &dyn OutboxStore,
    letter: Letter,
    decision: Decision,
    reason: &str,
) -> Result<ListedMessage, Problem> {
    let found = outbox.load_message(letter.id).await?.ok_or_else(absent)?;
    let state = found.stored.state;
    if state != MessageState::Dead {
        let detail = format!(
            "Only a dead letter is redriven or discarded. This message is {}: there is nothing to \
             do.",
            state.name()
        );
        return Err(Problem::conflict("not_dead_letter", detail));
    }
    // The write is guarded by the fence: somebody may have redriven it, and it was given up again,
    // perhaps for another reason.
    let letters = [DeadLetter { message_id: letter.id, fence: letter.fence }];
    let applied = match decision {
        Decision::Redrive => outbox.redrive(&letters, reason).await?,
        Decision::Discard => outbox.discard(&letters, reason).await?,
    };
    if applied.contains(&letter.id) {
        return Ok(found);
    }
    let now = outbox.load_message(letter.id).await?;
    let is_the_one = now.is_some_and(|now| {
        now.stored.state == MessageState::Dead && now.stored.fence == letter.fence
    });
    if decision == Decision::Discard && is_the_one {
        let detail = "The operation that staged it may still run, and would stage and deliver it \
                      anew: it is kept. Let the operation end, or resolve it, and discard it then.";
        return Err(Problem::conflict("operation_open", detail));
    }
    Err(changed())
}

fn changed() -> Problem {
    let detail = "The message has moved since it was looked at. Look again.";
    Problem::conflict("message_changed", detail)
}
