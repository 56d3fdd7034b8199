//! What workers do, one small step at a time: the store is asked, and what came of it is told.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;
use tracing::warn;

use super::{Engine, begin::timed_out, resume::GivenUp};
use crate::{
    observe,
    record::State,
    store::{
        Reaped, StoreError, StoreFuture, Swept,
        list::{Cursor, Order, Page, Query},
    },
};

impl Engine {
    /// Whether no new work is taken any more.
    pub(crate) fn is_draining(&self) -> bool {
        !self.drain.is_open()
    }

    /// Comes back when no new work is taken any more.
    pub(crate) async fn draining(&self) {
        self.drain.closed().await;
    }

    /// What the store answers, if it does so before its deadline.
    pub(crate) async fn in_time<T>(&self, call: StoreFuture<'_, T>) -> Result<T, StoreError> {
        timeout(self.store_deadline, call).await.unwrap_or_else(|_| Err(timed_out()))
    }

    /// Moves some records on whose lease ran out. Each is logged and counted, and whoever waits for it
    /// here is woken.
    pub(crate) async fn sweep_some(&self, limit: u32) -> Result<Vec<Swept>, StoreError> {
        let swept = self.in_time(self.store.sweep(limit)).await?;
        for one in &swept {
            warn!(
                route = &*one.route,
                key.digest = one.id.key.digest(),
                state = one.state.name(),
                "a lease ran out"
            );
            observe::swept(one.state, &one.route);
            self.waiters.wake(&one.id);
        }
        Ok(swept)
    }

    /// Whether the store stopped before it had looked at all leases.
    pub(crate) fn has_more_to_sweep(&self) -> bool {
        self.store.has_more_to_sweep()
    }

    /// Gives up what is overdue, some of it: those first whose time has been over for longest. With how
    /// many that were, and where to go on.
    pub(crate) async fn give_up_overdue(
        &self,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<(u32, Option<Cursor>), StoreError> {
        let query = Query {
            states: vec![State::Pending],
            overdue: true,
            order: Order::Ascending,
            after,
            limit,
            ..Query::default()
        };
        let Page { records, next } = self.in_time(self.store.list_records(query)).await?;
        let overdue = records.iter().filter(|record| !self.is_from_before_a_loss(record));
        let ends = join_all(overdue.map(|record| self.give_up(record))).await;
        let given_up = ends.into_iter().filter(|end| *end == GivenUp::Yes).count();
        Ok((u32::try_from(given_up).unwrap_or(u32::MAX), next))
    }

    /// Drops the replies of some records past retention, and purges some tombstones.
    pub(crate) async fn reap_some(&self, limit: u32) -> Result<Reaped, StoreError> {
        let reaped = self.in_time(self.store.reap(limit)).await?;
        observe::reaped(reaped);
        Ok(reaped)
    }

    /// Purges some audit records past their own retention.
    pub(crate) async fn purge_some_audit(
        &self,
        older_than: Duration,
        limit: u32,
    ) -> Result<u32, StoreError> {
        let purged = self.in_time(self.store.purge_audit(older_than, limit)).await?;
        observe::purged("audit", purged);
        Ok(purged)
    }
}
