//! Messages: each is received once, under one key, behind those of its aggregate.

use std::collections::BTreeMap;

use super::{Verdict, Violation, known::Known};
use crate::history::{MessageNo, Settled, Subject, What};

/// The messages that were seen so far.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    messages: BTreeMap<MessageNo, Message>,
}

#[derive(Debug)]
struct Message {
    subject: Subject,
    aggregate: String,
    tries_max: u32,
    /// How often a delivery was begun since it was staged or redriven.
    tries: u32,
    key: Option<String>,
    received: u32,
    end: Option<Settled>,
}

impl Message {
    fn is_over(&self) -> bool {
        matches!(self.end, Some(Settled::Done | Settled::Discarded))
    }
}

impl Known {
    /// What is wrong with the outbox at the end of the world.
    pub(super) fn end_of_outbox(&self) -> impl Iterator<Item = Violation> + '_ {
        let over = self.calm && self.ended;
        let left = self.outbox.messages.iter().filter(|(_, message)| !message.is_over());
        let left = left.map(|(number, message)| {
            let what = format!("message {number} was never delivered");
            Violation::of("I10", &message.subject, what)
        });
        left.filter(move |_| over)
    }
}

impl Outbox {
    pub(super) fn has(&self, number: MessageNo) -> bool {
        self.messages.contains_key(&number)
    }

    pub(super) fn check(&self, what: &What) -> Verdict {
        let (What::Delivers { message: number, .. }
        | What::Received { message: number }
        | What::Settled { message: number, .. }) = what
        else {
            return Ok(());
        };
        let Some(message) = self.messages.get(number) else {
            let what = format!("message {number} is on its way, which nobody staged");
            return Err(Violation { invariant: "I10", subject: None, what });
        };
        let wrong = |what: &str| {
            Err(Violation::of("I10", &message.subject, format!("message {number} {what}")))
        };
        match what {
            What::Delivers { key, .. } => {
                if message.key.as_ref().is_some_and(|known| known != key) {
                    return wrong("is delivered under another key than before");
                }
                if self.others(*number).any(|other| other.key.as_ref() == Some(key)) {
                    return wrong("is delivered under the key of another one");
                }
                if message.tries >= message.tries_max {
                    return wrong("is tried more often than it may be");
                }
                if self.before(*number, message).any(|before| !before.is_over()) {
                    return wrong("is delivered before an earlier one of its aggregate");
                }
                Ok(())
            }
            What::Received { .. } if message.received > 0 => wrong("was received twice"),
            What::Settled { end: Settled::Done, .. } if message.received == 0 => {
                wrong("is done, and nobody received it")
            }
            _ => Ok(()),
        }
    }

    /// Whatever is not delivered is a dead letter, or held behind one of its own aggregate.
    pub(super) fn check_rested(&self) -> Verdict {
        let is_dead = |message: &Message| message.end == Some(Settled::Dead);
        let late = self.messages.iter().find(|(number, message)| {
            let is_held = self.before(**number, message).any(is_dead);
            !message.is_over() && !is_dead(message) && !is_held
        });
        let Some((number, message)) = late else { return Ok(()) };
        let what = format!("message {number} waits, and no dead letter of its aggregate holds it");
        Err(Violation::of("I10", &message.subject, what))
    }

    fn before<'a>(
        &'a self,
        number: MessageNo,
        message: &'a Message,
    ) -> impl Iterator<Item = &'a Message> {
        let before = self.messages.range(..number).map(|(_, before)| before);
        before.filter(|before| before.aggregate == message.aggregate)
    }

    fn others(&self, number: MessageNo) -> impl Iterator<Item = &Message> {
        let others = self.messages.iter().filter(move |(other, _)| **other != number);
        others.map(|(_, other)| other)
    }

    pub(super) fn learn(&mut self, what: &What) {
        match what {
            What::Staged { message, subject, aggregate, tries_max } => {
                let staged = Message {
                    subject: subject.clone(),
                    aggregate: aggregate.clone(),
                    tries_max: *tries_max,
                    tries: 0,
                    key: None,
                    received: 0,
                    end: None,
                };
                self.messages.insert(*message, staged);
            }
            What::Delivers { message, key } => {
                if let Some(message) = self.messages.get_mut(message) {
                    message.tries += 1;
                    message.key.get_or_insert_with(|| key.clone());
                }
            }
            What::Received { message } => {
                if let Some(message) = self.messages.get_mut(message) {
                    message.received += 1;
                }
            }
            What::Settled { message, end } => {
                if let Some(message) = self.messages.get_mut(message) {
                    message.end = Some(*end);
                    if *end == Settled::Redriven {
                        message.tries = 0;
                    }
                }
            }
            _ => {}
        }
    }
}
