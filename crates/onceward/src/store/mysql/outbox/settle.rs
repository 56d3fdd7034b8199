//! What becomes of a message that was claimed, and of one that is done.

use std::time::Duration;

use sqlx::Row as _;

use super::{
    super::{
        error::unreadable,
        row::{Columns, Values as _},
        session::{Session, Statement},
    },
    OPERATION_IS_OVER, forget_aggregate, let_go, micros_before,
};
use crate::{
    outbox::{MessageId, Settlement},
    record::{AttemptId, Fence},
};

pub(super) struct Settle {
    pub(super) id: MessageId,
    pub(super) attempt: AttemptId,
    pub(super) fence: Fence,
    pub(super) settlement: Settlement,
}

impl Statement for Settle {
    type Answer = bool;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<bool> {
        let mine = session
            .statements
            .named(
                "SELECT state, aggregate FROM onceward_outbox \
                 WHERE message_id = ? AND attempt = ? AND fence = ? FOR UPDATE",
            )
            .integer(self.id.number())
            .bytes(self.attempt.as_bytes())
            .integer(self.fence.number());
        let Some(row) = mine.fetch_optional(&mut *session.connection).await? else {
            return Ok(false);
        };
        let mut columns = Columns { row: &row, next: 0 };
        let state = columns.text("state").map_err(unreadable)?;
        if state != "delivering" {
            return Ok(state == self.settlement.state().name());
        }
        let now = session.now().await?;
        let settle = match &self.settlement {
            Settlement::Done { provider_id } => session
                .statements
                .named(
                    "UPDATE onceward_outbox SET state = 'done', done_at = ?, provider_id = ?, \
                     last_error = NULL, ambiguous = 0 WHERE message_id = ?",
                )
                .integer(now.as_micros())
                .text(provider_id.as_deref().map(str::to_owned)),
            Settlement::Retry { after, ambiguous, why } => session
                .statements
                .named(
                    "UPDATE onceward_outbox SET state = 'ready', next_at = ?, \
                     ambiguous = GREATEST(ambiguous, ?), last_error = ? WHERE message_id = ?",
                )
                .integer(now.plus(*after).as_micros())
                .integer(i64::from(*ambiguous))
                .word(why),
            Settlement::Dead { why } => session
                .statements
                .named(
                    "UPDATE onceward_outbox SET state = 'dead', last_error = ? \
                     WHERE message_id = ?",
                )
                .word(why),
        };
        settle.integer(self.id.number()).execute(&mut *session.connection).await?;
        let aggregate = columns.blob_or_null("aggregate").map_err(unreadable)?;
        if let (Settlement::Done { .. }, Some(aggregate)) = (&self.settlement, aggregate) {
            let_go(session, aggregate).await?;
        }
        Ok(true)
    }
}

pub(super) struct PurgeDone {
    pub(super) older_than: Duration,
    pub(super) limit: u32,
}

impl Statement for PurgeDone {
    type Answer = Vec<MessageId>;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<Vec<MessageId>> {
        let before = micros_before(session.now().await?, self.older_than);
        let done = session
            .statements
            .named(&format!(
                "SELECT o.message_id, o.aggregate FROM onceward_outbox o \
                 FORCE INDEX (message_done) WHERE o.state = 'done' AND o.done_at <= ? \
                 AND {OPERATION_IS_OVER} ORDER BY o.done_at LIMIT ? FOR UPDATE SKIP LOCKED"
            ))
            .integer(before)
            .integer(i64::from(self.limit));
        let mut purged = Vec::new();
        for row in done.fetch_all(&mut *session.connection).await? {
            let id: i64 = row.try_get(0)?;
            let purge = "DELETE FROM onceward_outbox WHERE message_id = ?";
            let purge = session.statements.named(purge).integer(id);
            purge.execute(&mut *session.connection).await?;
            purged.push(MessageId::from_stored(id));
            if let Some(aggregate) = row.try_get_unchecked::<Option<Vec<u8>>, _>(1)? {
                forget_aggregate(session, &aggregate).await?;
            }
        }
        purged.sort_unstable();
        Ok(purged)
    }
}
