//! What people decide about dead letters.

use std::sync::OnceLock;

use sqlx::mysql::MySqlRow;

use super::{
    super::{
        row::{Columns, Values as _},
        session::{Session, Statement},
    },
    OPERATION_IS_OVER, forget_aggregate, let_go,
};
use crate::{
    clock::Timestamp,
    key::Key,
    outbox::{DeadLetter, MessageId},
    record::{AttemptId, AuditEvent, AuditRecord, RecordId},
    scope::Scope,
};

/// What a person decides about dead letters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    Redrive,
    Discard,
}

/// What a person decided about exactly these dead letters: remembered, and done.
pub(super) struct Decide {
    decision: Decision,
    letters: Vec<DeadLetter>,
    reason: String,
    /// When it was decided: the same if the statement runs again, since the answer to COMMIT was lost.
    at: OnceLock<Timestamp>,
}

impl Decide {
    pub(super) fn new(decision: Decision, letters: &[DeadLetter], reason: &str) -> Self {
        let (letters, reason) = (letters.to_vec(), reason.to_owned());
        Decide { decision, letters, reason, at: OnceLock::new() }
    }

    /// Whether it was applied: the letter is still what was looked at.
    async fn one(
        &self,
        session: &mut Session<'_>,
        letter: &DeadLetter,
        now: Timestamp,
        again: bool,
    ) -> sqlx::Result<bool> {
        let over = match self.decision {
            Decision::Redrive => "1",
            Decision::Discard => OPERATION_IS_OVER,
        };
        let dead = session
            .statements
            .named(&format!(
                "SELECT o.scope, o.`key`, o.generation, o.attempt, o.name, o.aggregate \
                 FROM onceward_outbox o WHERE o.message_id = ? AND o.fence = ? \
                 AND o.state = 'dead' AND {over} FOR UPDATE"
            ))
            .integer(letter.message_id.number())
            .integer(letter.fence.number());
        let Some(row) = dead.fetch_optional(&mut *session.connection).await? else {
            return Ok(again && self.is_remembered(session, letter, now).await?);
        };
        let (audit, aggregate) = self.audit(&row, letter, now);
        session.remember(&audit, letter.message_id.number()).await?;
        let act = match self.decision {
            // The claim is forgotten: whoever made it can settle nothing any more.
            Decision::Redrive => session
                .statements
                .named(
                    "UPDATE onceward_outbox SET state = 'ready', attempts = 0, ambiguous = 0, \
                     next_at = ?, attempt = NULL, lease_until = NULL WHERE message_id = ?",
                )
                .integer(now.as_micros()),
            Decision::Discard => {
                session.statements.named("DELETE FROM onceward_outbox WHERE message_id = ?")
            }
        };
        act.integer(letter.message_id.number()).execute(&mut *session.connection).await?;
        if let Some(aggregate) = aggregate.filter(|_| self.decision == Decision::Discard) {
            let_go(session, aggregate).await?;
            forget_aggregate(session, aggregate).await?;
        }
        Ok(true)
    }

    /// Whether this very decision was committed.
    async fn is_remembered(
        &self,
        session: &mut Session<'_>,
        letter: &DeadLetter,
        now: Timestamp,
    ) -> sqlx::Result<bool> {
        let remembered = session
            .statements
            .named(
                "SELECT audit_id FROM onceward_audit_records FORCE INDEX (audit_at) \
                 WHERE `at` = ? AND event = ? AND fence = ? AND apart = ?",
            )
            .integer(now.as_micros())
            .word(self.event().name())
            .integer(letter.fence.number())
            .integer(letter.message_id.number());
        Ok(remembered.fetch_optional(&mut *session.connection).await?.is_some())
    }

    fn event(&self) -> AuditEvent {
        match self.decision {
            Decision::Redrive => AuditEvent::MessageRedriven,
            Decision::Discard => AuditEvent::MessageDiscarded,
        }
    }

    /// Who decided and why, and about which message; and its aggregate. A message that cannot be read
    /// is decided about all the same, and what cannot be read of it does not get into the audit.
    fn audit<'r>(
        &self,
        row: &'r MySqlRow,
        letter: &DeadLetter,
        now: Timestamp,
    ) -> (AuditRecord, Option<&'r [u8]>) {
        let number = letter.message_id.number();
        let id = Columns { row, next: 0 }.id().unwrap_or_else(|_| damaged(number));
        let mut columns = Columns { row, next: 2 };
        // A generation that nobody could read would make the audit record unreadable too.
        let generation = columns.integer("generation").ok().and_then(|it| u32::try_from(it).ok());
        let attempt = columns.optional_bytes("attempt").ok().flatten().unwrap_or_default();
        let name = columns.blob_or_null("name").ok().flatten().unwrap_or_default();
        let name = String::from_utf8_lossy(name);
        let audit = AuditRecord {
            at: now,
            id,
            generation: generation.unwrap_or(u32::MAX),
            event: self.event(),
            attempt: AttemptId::from_bytes(attempt),
            fence: letter.fence,
            reason: format!("{} (message {number}, {name})", self.reason).into(),
            reply: None,
        };
        (audit, columns.blob_or_null("aggregate").ok().flatten())
    }
}

/// Where it is remembered what was decided about a message whose operation cannot be read.
fn damaged(message: i64) -> RecordId {
    RecordId {
        scope: Scope::new("onceward:damaged").expect("a scope"),
        key: Key::new(format!("message-{message:016}")).expect("a key"),
    }
}

impl Statement for Decide {
    type Answer = Vec<MessageId>;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<Vec<MessageId>> {
        let again = self.at.get().copied();
        let now = match again {
            Some(at) => at,
            None => session.now().await?,
        };
        let now = *self.at.get_or_init(|| now);
        let mut letters = self.letters.clone();
        // In one order everywhere, so that two who decide cannot wait for each other in a circle.
        letters.sort_unstable_by_key(|letter| letter.message_id);
        let mut applied = Vec::new();
        for letter in &letters {
            if self.one(session, letter, now, again.is_some()).await? {
                applied.push(letter.message_id);
            }
        }
        Ok(applied)
    }
}
