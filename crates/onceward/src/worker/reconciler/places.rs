//! What is being asked about: so many questions at once, and so many of one route.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use tokio::task::{Id, JoinSet};
use tracing::warn;

use super::{End, Reconciler, in_time};
use crate::{
    record::{Record, RecordId},
    store::StoreError,
};

/// The questions that are under way.
#[derive(Default)]
pub(super) struct Places {
    asking: JoinSet<Result<End, StoreError>>,
    taken: HashMap<Id, (RecordId, Arc<str>)>,
    /// Routes of which something was due that the probe does not know.
    foreign: BTreeSet<Arc<str>>,
}

impl Places {
    /// What is due and may be asked about, the longest waiting first.
    pub(super) async fn list(
        &mut self,
        by: &Reconciler,
        limit: u32,
    ) -> Result<Vec<Record>, StoreError> {
        loop {
            let due = in_time(by.store.due_unknown(limit, self.foreign.iter().cloned().collect()))
                .await?;
            if !self.note_foreign(by, &due) {
                return Ok(due);
            }
        }
    }

    /// Fills the free places with what is due. One route after the other has as many as it may have,
    /// so that what stands behind it is seen.
    pub(super) async fn fill(&mut self, by: &Reconciler) -> Result<(), StoreError> {
        loop {
            let except = self.except(by);
            // What was begun just now may be listed as due once more.
            let limit = u32::try_from(self.taken.len()).unwrap_or(0).saturating_add(by.at_once);
            let due =
                in_time(by.store.due_unknown(limit, except.iter().cloned().collect())).await?;
            self.note_foreign(by, &due);
            for record in due {
                let is_asked = self.taken.values().any(|(id, _)| *id == record.id);
                if !is_asked && by.probe.knows(&record.route) {
                    let _ = self.begin(by, record);
                }
            }
            if self.is_full(by) || self.except(by) == except {
                return Ok(());
            }
        }
    }

    fn note_foreign(&mut self, by: &Reconciler, due: &[Record]) -> bool {
        let mut found = false;
        for route in due.iter().map(|record| &record.route) {
            if !by.probe.knows(route) && self.foreign.insert(Arc::clone(route)) {
                warn!(
                    route = &**route,
                    "unknown outcomes of a route that has no probe are left alone"
                );
                found = true;
            }
        }
        found
    }

    fn except(&self, by: &Reconciler) -> BTreeSet<Arc<str>> {
        let routes = self.taken.values().map(|(_, route)| route);
        let full = routes.filter(|route| !self.has_room(by, route));
        full.chain(&self.foreign).cloned().collect()
    }

    fn has_room(&self, by: &Reconciler, route: &str) -> bool {
        let taken = self.taken.values().filter(|(_, other)| **other == *route);
        taken.count() < by.at_once_per_route()
    }

    pub(super) fn is_full(&self, by: &Reconciler) -> bool {
        self.taken.len() >= by.at_once as usize
    }

    /// Whether there may be more that is due than there are places for.
    pub(super) fn may_leave_some(&self, by: &Reconciler) -> bool {
        self.is_full(by) || self.taken.values().any(|(_, route)| !self.has_room(by, route))
    }

    /// Begins a question, or gives it back when there is no place for it.
    pub(super) fn begin(&mut self, by: &Reconciler, record: Record) -> Option<Record> {
        if self.is_full(by) || !self.has_room(by, &record.route) {
            return Some(record);
        }
        let place = (record.id.clone(), Arc::clone(&record.route));
        let by = by.clone();
        let task = self.asking.spawn(async move { by.reconcile(record).await });
        self.taken.insert(task.id(), place);
        None
    }

    /// How the next question ended; `None` when there is none. A failed task has no end.
    ///
    /// # Cancel safety
    /// May be dropped: nothing is lost.
    pub(super) async fn next(&mut self) -> Option<Option<Result<End, StoreError>>> {
        let (id, ended) = match self.asking.join_next_with_id().await? {
            Ok((id, ended)) => (id, Some(ended)),
            Err(failed) => (failed.id(), None),
        };
        self.taken.remove(&id);
        Some(ended)
    }
}
