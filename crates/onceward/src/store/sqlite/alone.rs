//! A step that stands alone in line takes one statement instead of a transaction of four.
//!
//! It is run on what we believe the record to be: absent, or as we wrote it last. The statement
//! holds only if that is still so, because another process may have been at the file, or a transaction
//! of the user's; if not, the step goes the long way. So does a step with more to write than its
//! record. What goes with a record that comes to rest goes by triggers.

use std::sync::atomic::Ordering;

use super::{
    error::Moment,
    recent::bytes_of,
    row::{bind_id, bind_progress, bind_record, bind_rest},
    sql::{INSERT_IF_ABSENT, UPDATE_IF_UNCHANGED},
    writer::{Failure, Outcome, Writer},
};
use crate::{
    machine::Change,
    record::State,
    store::step::{PendingStep, Ran},
};

impl Writer {
    /// Tries the short way. `false` means that nothing was done.
    pub(super) async fn alone(&mut self, step: &mut Box<dyn PendingStep>) -> Outcome<bool> {
        if step.step_name().is_some() {
            return Ok(false);
        }
        let believed = self.recent.get(step.id()).cloned();
        if believed.as_ref().is_some_and(|record| record.state != State::InProgress) {
            return Ok(false);
        }
        let ran = step.run(believed.as_ref(), false, self.options.clock.now());
        let Ran { change: Change::Put(record), audit: None, beside: None } = ran else {
            return Ok(false);
        };
        let query = match &believed {
            None => bind_record(sqlx::query(INSERT_IF_ABSENT), &record),
            Some(believed) => {
                let query = bind_rest(sqlx::query(UPDATE_IF_UNCHANGED), &record);
                let query = bind_id(query, &believed.id)
                    .bind(i64::from(believed.generation))
                    .bind(believed.state.name())
                    .bind(believed.fence.number())
                    .bind(believed.attempt.as_bytes().to_vec())
                    .bind(believed.lease_until.as_micros())
                    .bind(believed.last_error.as_deref().map(str::to_owned));
                bind_progress(query, &believed.progress)
            }
        };
        // Until it is known to be written: after an error nobody knows what the file holds.
        self.recent.forget(step.id());
        match query.execute(self.connection().await?).await {
            Ok(done) if done.rows_affected() == 0 => Ok(false),
            Ok(_) => {
                self.log.note(bytes_of(&record));
                self.recent.note(*record);
                self.stats.commits.fetch_add(1, Ordering::Relaxed);
                self.stats.writes.fetch_add(1, Ordering::Relaxed);
                Ok(true)
            }
            // The statement commits by itself, so that an error may be one of its commit.
            Err(error) => Err(self.roll_back(Failure { error, moment: Moment::Commit }).await),
        }
    }
}
