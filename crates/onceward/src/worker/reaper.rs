//! The reaper: what is past its retention.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::runner::{Seeded, Worker, repeat, rest};
use crate::{
    engine::Engine,
    observe,
    outbox::OutboxStore,
    store::{Reaped, StoreError},
};

/// So many rows in one call of the store: requests do not wait behind it for long.
const BATCH: u32 = 50;

/// So many calls for each kind of thing in one run.
const BATCHES_MAX: u32 = 800;

/// Drops the replies of records past their retention, then their tombstones, then what was remembered
/// of them; and messages of an outbox that were delivered long ago. Never touches a record that is not
/// terminal: what is unknown stays, however old it is.
///
/// ```
/// # fn example() {
/// use std::sync::Arc;
/// use onceward::{Idempotency, MemoryStore, Policy, worker::Reaper};
///
/// let layer = Idempotency::new(Arc::new(MemoryStore::new()), Policy::required());
/// let reaper = Reaper::new(Arc::clone(layer.engine()));
/// tokio::spawn(async move { reaper.run(Reaper::EVERY, std::future::pending()).await });
/// # }
/// ```
#[derive(Debug)]
pub struct Reaper {
    engine: Arc<Engine>,
    audit_retention: Duration,
    outbox: Option<(Arc<dyn OutboxStore>, Duration)>,
    batches_max: u32,
    seeded: Option<Seeded>,
}

/// What one run of the reaper did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reap {
    /// Records that became tombstones.
    pub expired: u32,
    /// Tombstones, or records without one, that are gone.
    pub purged: u32,
    /// Audit records that are gone.
    pub audits: u32,
    /// Delivered messages that are gone.
    pub messages: u32,
    /// It stopped at its bound, and there may be more to do.
    pub more: bool,
}

impl Worker for Reaper {
    const NAME: &'static str = "reaper";

    fn engine(&self) -> &Engine {
        &self.engine
    }

    fn chance(&self) -> f64 {
        Seeded::chance(self.seeded.as_ref())
    }

    async fn once(&self) -> Result<bool, StoreError> {
        self.run_once().await.map(|reap| reap.more)
    }
}

impl Reaper {
    /// How often it runs by default.
    pub const EVERY: Duration = Duration::from_secs(5 * 60);

    /// How long audit records are kept by default: a year.
    pub const AUDIT_RETENTION: Duration = Duration::from_secs(365 * 24 * 3600);

    /// A reaper for the records of this engine's store.
    pub fn new(engine: Arc<Engine>) -> Self {
        Reaper {
            engine,
            audit_retention: Self::AUDIT_RETENTION,
            outbox: None,
            batches_max: BATCHES_MAX,
            seeded: None,
        }
    }

    /// Keeps audit records for so long.
    #[must_use]
    pub fn audit_retention(self, audit_retention: Duration) -> Self {
        Reaper { audit_retention, ..self }
    }

    /// Purges delivered messages of this outbox, once they were done for so long.
    #[must_use]
    pub fn outbox(self, outbox: Arc<dyn OutboxStore>, kept_for: Duration) -> Self {
        Reaper { outbox: Some((outbox, kept_for)), ..self }
    }

    /// The same with jitter from a seed: for tests.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Reaper { seeded: Some(Seeded::new(seed)), ..self }
    }

    /// One bounded run, in small batches with pauses between them.
    ///
    /// # Errors
    /// When the store does not answer: with the first error, after all was tried. What was done stays
    /// done.
    ///
    /// # Cancel safety
    /// May be dropped: each record was reaped, or it was not.
    pub async fn run_once(&self) -> Result<Reap, StoreError> {
        let mut reap = Reap::default();
        let mut failed = None;
        for kind in [Kind::Record, Kind::Audit, Kind::Message] {
            // One kind that fails must not keep the others for ever.
            if let Err(error) = self.in_batches(kind, &mut reap).await {
                failed.get_or_insert(error);
            }
        }
        failed.map_or(Ok(reap), Err)
    }

    /// Runs every so often, until `stop` or until the engine is told to drain. A run that was begun
    /// comes to its end.
    ///
    /// # Cancel safety
    /// May be dropped, as `run_once`.
    pub async fn run(&self, every: Duration, stop: impl Future<Output = ()> + Send) {
        repeat(self, every, stop).await;
    }

    /// Until nothing is left, the bound is reached, or the engine drains.
    async fn in_batches(&self, kind: Kind, reap: &mut Reap) -> Result<(), StoreError> {
        for _ in 0..self.batches_max {
            if self.engine.is_draining() {
                return Ok(());
            }
            let begun = Instant::now();
            if self.batch(kind, reap).await? == 0 || rest(&self.engine, begun.elapsed()).await {
                return Ok(());
            }
        }
        reap.more = true;
        Ok(())
    }

    async fn batch(&self, kind: Kind, reap: &mut Reap) -> Result<u32, StoreError> {
        match (kind, &self.outbox) {
            (Kind::Record, _) => {
                let Reaped { expired, purged } = self.engine.reap_some(BATCH).await?;
                (reap.expired, reap.purged) = (reap.expired + expired, reap.purged + purged);
                Ok(expired + purged)
            }
            (Kind::Audit, _) => {
                let purged = self.engine.purge_some_audit(self.audit_retention, BATCH).await?;
                reap.audits += purged;
                Ok(purged)
            }
            (Kind::Message, None) => Ok(0),
            (Kind::Message, Some((outbox, kept_for))) => {
                let purged = self.engine.in_time(outbox.purge_done(*kept_for, BATCH)).await?;
                let purged = u32::try_from(purged.len()).unwrap_or(u32::MAX);
                observe::purged("message", purged);
                reap.messages += purged;
                Ok(purged)
            }
        }
    }
}

/// What is kept for a while, and not for ever.
#[derive(Clone, Copy)]
enum Kind {
    Record,
    Audit,
    Message,
}

#[cfg(test)]
mod tests;
