//! The sweeper: attempts whose lease ran out, and accepted work that nobody began in time.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::runner::{Seeded, Worker, repeat, rest};
use crate::{engine::Engine, record::State, store::StoreError};

/// So many records in one call of the store: requests do not wait behind it for long.
const BATCH: u32 = 100;

/// So many calls in one run.
const BATCHES_MAX: u32 = 100;

/// Moves records on whose attempt vanished, by its declared effects: what may have acted becomes
/// `unknown`, what cannot have acted may run again, a phased operation waits to be gone on with. Ends
/// accepted work that was not begun in its time with a stored 504, also where nothing is dispatched.
///
/// ```
/// # fn example() {
/// use std::sync::Arc;
/// use onceward::{Idempotency, MemoryStore, Policy, worker::Sweeper};
///
/// let layer = Idempotency::new(Arc::new(MemoryStore::new()), Policy::required());
/// let sweeper = Sweeper::new(Arc::clone(layer.engine()));
/// tokio::spawn(async move { sweeper.run(Sweeper::EVERY, std::future::pending()).await });
/// # }
/// ```
#[derive(Debug)]
pub struct Sweeper {
    engine: Arc<Engine>,
    batches_max: u32,
    seeded: Option<Seeded>,
}

/// What one run of the sweeper did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sweep {
    /// Attempts that may have acted.
    pub unknown: u32,
    /// Attempts that cannot have acted: the same request may run again.
    pub retryable: u32,
    /// Attempts at queued work that cannot have acted: it is begun again.
    pub pending: u32,
    /// Accepted work that was not begun in its time: its client is told so.
    pub given_up: u32,
    /// It stopped at its bound, and there may be more to do.
    pub more: bool,
}

impl Worker for Sweeper {
    const NAME: &'static str = "sweeper";

    fn engine(&self) -> &Engine {
        &self.engine
    }

    fn chance(&self) -> f64 {
        Seeded::chance(self.seeded.as_ref())
    }

    async fn once(&self) -> Result<bool, StoreError> {
        self.run_once().await.map(|sweep| sweep.more)
    }
}

impl Sweeper {
    /// How often it runs by default.
    pub const EVERY: Duration = Duration::from_secs(30);

    /// A sweeper for the records of this engine's store.
    pub fn new(engine: Arc<Engine>) -> Self {
        Sweeper { engine, batches_max: BATCHES_MAX, seeded: None }
    }

    /// The same with jitter from a seed: for tests.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Sweeper { seeded: Some(Seeded::new(seed)), ..self }
    }

    /// One bounded run, in small batches with pauses between them.
    ///
    /// # Errors
    /// When the store does not answer: with the first error, after all was tried. What was done stays
    /// done.
    ///
    /// # Cancel safety
    /// May be dropped: each record was moved on, or it was not.
    pub async fn run_once(&self) -> Result<Sweep, StoreError> {
        let mut sweep = Sweep::default();
        let swept = self.sweep(&mut sweep).await;
        if !matches!(swept, Ok(true)) {
            // What fails for the one must not keep the other for ever.
            let given_up = self.give_up(&mut sweep).await;
            swept.and(given_up)?;
        }
        Ok(sweep)
    }

    /// Runs every so often, until `stop` or until the engine is told to drain. A run that was begun
    /// comes to its end.
    ///
    /// # Cancel safety
    /// May be dropped, as `run_once`.
    pub async fn run(&self, every: Duration, stop: impl Future<Output = ()> + Send) {
        repeat(self, every, stop).await;
    }

    async fn sweep(&self, sweep: &mut Sweep) -> Result<bool, StoreError> {
        for _ in 0..self.batches_max {
            let begun = Instant::now();
            let swept = self.engine.sweep_some(BATCH).await?;
            if swept.is_empty() {
                sweep.more = self.engine.has_more_to_sweep();
                return Ok(self.engine.is_draining());
            }
            for one in swept {
                match one.state {
                    State::Unknown => sweep.unknown += 1,
                    State::Pending => sweep.pending += 1,
                    _ => sweep.retryable += 1,
                }
            }
            if rest(&self.engine, begun.elapsed()).await {
                return Ok(true);
            }
        }
        sweep.more = true;
        Ok(false)
    }

    async fn give_up(&self, sweep: &mut Sweep) -> Result<(), StoreError> {
        let mut after = None;
        for _ in 0..self.batches_max {
            let begun = Instant::now();
            let (given_up, next) = self.engine.give_up_overdue(after, BATCH).await?;
            sweep.given_up += given_up;
            if next.is_none() || rest(&self.engine, begun.elapsed()).await {
                return Ok(());
            }
            // One that cannot be given up is passed by.
            after = next;
        }
        sweep.more = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
