//! The surveyor: how many records there are and how old the open ones, as numbers for a dashboard.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tracing::warn;

use super::runner::{Worker, repeat};
use crate::{
    engine::Engine,
    observe,
    outbox::OutboxStore,
    record::State,
    store::{
        StoreError,
        list::{PAGE_MAX, Query},
    },
};

/// Looks at the store and sets gauges: records in each state, the age of the oldest that is unknown, in
/// progress or pending, the unknown outcomes that were given up, the lag and the dead letters of an outbox, what handlers take. Warns once of each
/// route whose lease is under three times what its slowest handlers take. Changes nothing.
#[derive(Debug)]
pub struct Surveyor {
    engine: Arc<Engine>,
    outbox: Option<Arc<dyn OutboxStore>>,
    warned: Mutex<HashSet<Arc<str>>>,
}

impl Worker for Surveyor {
    const NAME: &'static str = "surveyor";

    fn engine(&self) -> &Engine {
        &self.engine
    }

    async fn once(&self) -> Result<bool, StoreError> {
        self.run_once().await.map(|()| false)
    }
}

impl Surveyor {
    /// How often it runs by default.
    pub const EVERY: Duration = Duration::from_secs(15);

    /// A surveyor of this engine and its store.
    pub fn new(engine: Arc<Engine>) -> Self {
        Surveyor { engine, outbox: None, warned: Mutex::default() }
    }

    /// Looks at this outbox too.
    #[must_use]
    pub fn outbox(self, outbox: Arc<dyn OutboxStore>) -> Self {
        Surveyor { outbox: Some(outbox), ..self }
    }

    /// One look.
    ///
    /// # Errors
    /// When the store does not answer. The gauges then keep what was seen last.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn run_once(&self) -> Result<(), StoreError> {
        self.look_at_handlers();
        let stats = self.engine.in_time(self.engine.store().stats()).await?;
        let dead_letters = match stats.of(State::Unknown).records {
            0 => 0,
            _ => self.dead_letters().await?,
        };
        let now = self.engine.now();
        observe::surveyed(&stats, dead_letters, now);
        let Some(outbox) = &self.outbox else { return Ok(()) };
        let backlog = self.engine.in_time(outbox.backlog()).await?;
        let lag = backlog.due_at.map(|due_at| now.since(due_at));
        observe::outbox_surveyed(lag.unwrap_or_default(), backlog.dead_letters);
        Ok(())
    }

    /// The unknown outcomes on which a reconciler has given up, counted up to a page.
    async fn dead_letters(&self) -> Result<usize, StoreError> {
        let (states, limit) = (vec![State::Unknown], PAGE_MAX);
        let given_up = Query { states, dead_letters: true, limit, ..Query::default() };
        let page = self.engine.in_time(self.engine.store().list_records(given_up)).await?;
        Ok(page.records.len())
    }

    /// Runs every so often, until `stop` or until the engine is told to drain.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn run(&self, every: Duration, stop: impl Future<Output = ()> + Send) {
        repeat(self, every, stop).await;
    }

    /// Tells what handlers take in this process, and warns of leases that are short for it. Asks no
    /// store: for processes that leave the rest to others.
    pub fn look_at_handlers(&self) {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        for took in self.engine.operation_times() {
            observe::took(&took);
            if !took.lease_is_short() {
                warned.remove(&took.route);
            } else if warned.insert(Arc::clone(&took.route)) {
                warn!(
                    route = &*took.route,
                    lease_seconds = took.lease.as_secs_f64(),
                    p99_seconds = took.p99.as_secs_f64(),
                    "a lease is under three times what the slowest handlers take"
                );
            }
        }
    }
}
