//! Steps that change nothing: from what is known here, or from the file.

use super::{
    changes::{damaged_record, ids_of, load, loaded},
    sql::DATA_VERSION,
    writer::{Writer, answer, before},
};
use crate::{
    machine::Change,
    store::step::{Intent, PendingStep, Ran},
};

impl Writer {
    /// Reads what was committed, outside any transaction: so they wait for nobody who writes.
    pub(super) async fn looks(&mut self, mut steps: Vec<Box<dyn PendingStep>>) {
        let ids = ids_of(&steps);
        let read = match self.connection().await {
            Ok(connection) => load(&ids).fetch_all(connection).await.map_err(before),
            Err(failure) => Err(failure),
        };
        let found = match read {
            Ok(rows) => loaded(&ids, &rows),
            Err(failure) => {
                return steps.into_iter().for_each(|step| step.answer(Err(failure.for_each())));
            }
        };
        let now = self.options.clock.now();
        let look = |step: &mut Box<dyn PendingStep>| {
            let current = found.get(step.id()).map(Result::as_ref).transpose();
            let current = current.map_err(|()| damaged_record())?;
            step.run(current, false, now);
            Ok(())
        };
        let looked = steps.iter_mut().map(look).collect();
        answer(steps, looked);
    }

    /// Whether all of them are about records that are known here, and write nothing: looks, and reserves
    /// of what is there. Whoever repeats a write waits for the write lock: a commit that is on its way
    /// is not seen without it.
    pub(super) fn changes_nothing(&self, steps: &mut [Box<dyn PendingStep>]) -> bool {
        let now = self.options.clock.now();
        steps.iter_mut().all(|step| match self.recent.get(step.id()) {
            Some(record) if step.intent() != Intent::Write => {
                let ran = step.run(Some(record), false, now);
                matches!(ran, Ran { change: Change::Keep, audit: None, beside: None })
            }
            _ => false,
        })
    }

    /// Whether what is known here is what the file holds.
    pub(super) async fn is_unchanged(&mut self) -> bool {
        let Ok(connection) = self.connection().await else { return false };
        let version = sqlx::query_scalar(DATA_VERSION).fetch_one(connection).await;
        version.is_ok_and(|version| self.recent.is_of(version))
    }
}
