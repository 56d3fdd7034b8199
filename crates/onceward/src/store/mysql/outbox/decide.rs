//! What people decide about dead letters.

use sqlx::mysql::MySqlRow;

use super::{
    super::{
        error::unreadable,
        row::{BadRow, Columns, Values as _},
        session::{Session, Statement},
    },
    OPERATION_IS_OVER, let_go,
};
use crate::{
    clock::Timestamp,
    outbox::{DeadLetter, MessageId},
    record::{AttemptId, AuditEvent, AuditRecord, RecordId},
};

/// What a person decides about dead letters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    Redrive,
    Discard,
}

/// What a person decided about exactly these dead letters: remembered, and done.
pub(super) struct Decide {
    pub(super) decision: Decision,
    pub(super) letters: Vec<DeadLetter>,
    pub(super) reason: String,
}

impl Decide {
    /// Whether it was applied: the letter is still what was looked at.
    async fn one(
        &self,
        session: &mut Session<'_>,
        letter: &DeadLetter,
        now: Timestamp,
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
            return Ok(false);
        };
        let (audit, aggregate) = self.audit(&row, letter, now).map_err(unreadable)?;
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
        }
        Ok(true)
    }

    /// Who decided and why, and about which message; and its aggregate.
    fn audit<'r>(
        &self,
        row: &'r MySqlRow,
        letter: &DeadLetter,
        now: Timestamp,
    ) -> Result<(AuditRecord, Option<&'r [u8]>), BadRow> {
        let mut columns = Columns { row, next: 0 };
        let id: RecordId = columns.id()?;
        // A generation that nobody could read would make the audit record unreadable too.
        let generation = u32::try_from(columns.integer("generation")?).unwrap_or(u32::MAX);
        let attempt = columns.optional_bytes("attempt")?.unwrap_or_default();
        let name = columns.text("name")?;
        let audit = AuditRecord {
            at: now,
            id,
            generation,
            event: match self.decision {
                Decision::Redrive => AuditEvent::MessageRedriven,
                Decision::Discard => AuditEvent::MessageDiscarded,
            },
            attempt: AttemptId::from_bytes(attempt),
            fence: letter.fence,
            reason: format!("{} (message {}, {name})", self.reason, letter.message_id.number())
                .into(),
            reply: None,
        };
        Ok((audit, columns.blob_or_null("aggregate")?))
    }
}

impl Statement for Decide {
    type Answer = Vec<MessageId>;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<Vec<MessageId>> {
        let now = session.now().await?;
        let mut letters = self.letters.clone();
        // In one order everywhere, so that two who decide cannot wait for each other in a circle.
        letters.sort_unstable_by_key(|letter| letter.message_id);
        let mut applied = Vec::new();
        for letter in &letters {
            if self.one(session, letter, now).await? {
                applied.push(letter.message_id);
            }
        }
        Ok(applied)
    }
}
