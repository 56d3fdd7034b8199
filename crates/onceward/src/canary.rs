//! The canary: finds out that a store has lost what it had acknowledged, and lets no key run that may
//! be among it.
//!
//! A store that is put back from a backup, emptied, or replaced by a replica that was behind answers
//! as if nothing had happened: keys that ran look new. Nobody inside the store can see that. So each
//! process counts a *beat* in the store every second, and remembers outside of it the highest count
//! that was acknowledged. A store that then counts from a lower one has *regressed*. Every node is
//! told, and until somebody acknowledges it, or a time limit passes, a key that is free is refused
//! with `idempotency_store_regressed`. What is stored is still replayed, and keys that are known to be
//! younger than the loss run.
//!
//! A beat a second finds a loss a second late. What ran in that second would run twice, so that a
//! grant is not believed when the store may have changed under it ([`Store::epoch`]): it waits for a
//! beat of its own.

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep};
use tracing::{error, info, warn};

use crate::{
    clock::{Clock, SystemClock, Timestamp},
    key::Key,
    observe,
    store::{Beat, NodeId, Regression, Store, StoreError},
};

mod memory;
#[cfg(test)]
mod tests;

use memory::{Memory, Place};

/// After a failover nothing is vouched for until every other node has been there, or for this long:
/// what one of them has lost, only that one knows.
const MUSTER_TIME_MAX: Duration = Duration::from_secs(10);

/// Between two looks whether they have.
const MUSTER_PAUSE: Duration = Duration::from_millis(100);

/// A client's clock may be ahead by this.
const AHEAD_MAX: Duration = Duration::from_secs(300);

/// Watches one store for one process. Given to an engine by [`Settings::canary`], and kept beating by
/// a [`Beater`](crate::worker::Beater).
///
/// [`Settings::canary`]: crate::Settings::canary
#[derive(Debug)]
pub struct Canary {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    limit: Duration,
    file: Option<Place>,
    known: Mutex<Known>,
    /// Held by the one that beats.
    beating: tokio::sync::Mutex<()>,
    /// One more than the epoch of the store in which the last beat was sent; 0 before the first.
    vouched: AtomicU64,
    /// So that requests need not lock: whether something is lost that nobody has acknowledged.
    regressed: AtomicBool,
}

/// What is remembered outside of the store.
#[derive(Debug)]
struct Known {
    memory: Memory,
    regression: Option<Regression>,
    /// The count that the file has.
    saved: u64,
    /// Since when other nodes are waited for.
    mustering: Option<Instant>,
}

impl Known {
    /// Whether nobody is waited for any more.
    fn muster(&mut self, absent: u32, now: Instant) -> bool {
        if absent == 0 {
            self.mustering = None;
            return true;
        }
        let since = *self.mustering.get_or_insert(now);
        let is_over = now.saturating_duration_since(since) >= MUSTER_TIME_MAX;
        if is_over {
            warn!(absent, "the store changed hands, and not every node has been there since");
        }
        is_over
    }
}

/// Says at its end in which epoch the store was vouched for, if it was.
struct Vouching<'a> {
    vouched: &'a AtomicU64,
    epoch: Option<u64>,
}

impl Drop for Vouching<'_> {
    fn drop(&mut self) {
        self.vouched.store(self.epoch.map_or(0, |epoch| epoch + 1), Ordering::SeqCst);
    }
}

impl Canary {
    /// How long keys are refused by default: as long as a reply is kept.
    pub const LIMIT: Duration = Duration::from_secs(24 * 60 * 60);

    /// A canary that remembers as long as this process lives.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Canary {
            store,
            clock: Arc::new(SystemClock),
            limit: Canary::LIMIT,
            file: None,
            known: Mutex::new(Known {
                memory: Memory { node: NodeId::random(), acked: 0 },
                regression: None,
                saved: 0,
                mustering: None,
            }),
            beating: tokio::sync::Mutex::default(),
            vouched: AtomicU64::new(0),
            regressed: AtomicBool::new(false),
        }
    }

    /// The same with a file that remembers when the process does not. It must not be where the store
    /// is, and belongs to one process at a time: a lock beside it, `FILE.lock`, is held until this is
    /// dropped.
    ///
    /// # Errors
    /// When another process has the file, when it is there and cannot be read, or is of another kind,
    /// and when its folder cannot be written to.
    pub fn remembering(mut self, file: impl Into<PathBuf>) -> io::Result<Self> {
        let file = Place::take(file.into())?;
        if let Some(memory) = memory::read(&file.path)? {
            let known = self.known.get_mut().unwrap_or_else(PoisonError::into_inner);
            (known.memory, known.saved) = (memory, memory.acked);
        }
        Ok(Canary { file: Some(file), ..self })
    }

    /// The same, where keys run again when this is over, whether or not somebody has acknowledged the
    /// loss: as long as clients may come back with a key. [`Canary::LIMIT`] unless said otherwise.
    #[must_use]
    pub fn limit(self, limit: Duration) -> Self {
        Canary { limit, ..self }
    }

    /// How long keys are refused.
    pub fn time_limit(&self) -> Duration {
        self.limit
    }

    /// The same on another clock.
    #[must_use]
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Canary { clock, ..self }
    }

    /// What is lost, while keys are refused for it.
    pub fn regression(&self) -> Option<Regression> {
        if !self.regressed.load(Ordering::Relaxed) {
            return None;
        }
        let regression = self.lock().regression?;
        let is_over = self.clock.now() >= regression.found.plus(self.limit);
        if is_over && self.regressed.swap(false, Ordering::Relaxed) {
            info!("the time is over for which keys are refused after the store lost data");
            observe::store_is_regressed(false);
        }
        (!is_over).then_some(regression)
    }

    /// What is lost and nobody has acknowledged, also when the time limit is over and keys run again.
    pub fn unacknowledged(&self) -> Option<Regression> {
        self.lock().regression
    }

    /// Whether this key cannot be one that was lost: it says by itself that it was made after the loss
    /// was found. A client's clock may be wrong by five minutes.
    pub(crate) fn is_younger(&self, key: &Key, regression: Regression) -> bool {
        let (earliest, latest) =
            (regression.found.plus(AHEAD_MAX), self.clock.now().plus(AHEAD_MAX));
        key.made_at().is_some_and(|made_at| earliest < made_at && made_at <= latest)
    }

    /// What is lost, by the word of a store that is the one that is asked now: with a beat, if it may
    /// have become another one since the last.
    ///
    /// # Errors
    /// When the store does not answer.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub(crate) async fn vouch(&self) -> Result<Option<Regression>, StoreError> {
        loop {
            let one = self.beating.lock().await;
            if !self.is_vouched() {
                self.beat_once().await?;
            }
            drop(one);
            let regression = self.regression();
            if regression.is_some() || self.is_vouched() {
                return Ok(regression);
            }
            sleep(MUSTER_PAUSE).await;
        }
    }

    /// Whether the last beat was sent to the store that is asked now.
    pub(crate) fn is_vouched(&self) -> bool {
        self.vouched.load(Ordering::SeqCst) == self.store.epoch() + 1
    }

    /// Beats, and remembers what was acknowledged.
    ///
    /// # Errors
    /// When the store does not answer.
    ///
    /// # Cancel safety
    /// May be dropped: the beat was then made or not, and is not counted on.
    pub async fn beat(&self) -> Result<Option<Regression>, StoreError> {
        let one = self.beating.lock().await;
        self.beat_once().await?;
        drop(one);
        Ok(self.regression())
    }

    async fn beat_once(&self) -> Result<(), StoreError> {
        let Memory { node, acked } = self.lock().memory;
        // Read before: what connects meanwhile is not vouched for by this beat.
        let epoch = self.store.epoch();
        // A beat that is not heard of, or does not meet all, takes back what the last one said.
        let mut vouching = Vouching { vouched: &self.vouched, epoch: None };
        let pulse = self.store.beat(Beat { node, acked }).await?;
        observe::store_epoch(epoch);
        let mut known = self.lock();
        known.memory.acked = known.memory.acked.max(pulse.count);
        let before = std::mem::replace(&mut known.regression, pulse.regression);
        let is_complete = known.muster(pulse.absent, self.clock.monotonic());
        drop(known);
        // First what is lost, then that the store was asked: who reads them does so the other way round.
        self.tell(before, pulse.regression);
        vouching.epoch = is_complete.then_some(epoch);
        Ok(())
    }

    /// Whether other nodes are waited for: the store answers, and may not be believed yet.
    pub(crate) fn is_mustering(&self) -> bool {
        self.lock().mustering.is_some()
    }

    fn tell(&self, before: Option<Regression>, now: Option<Regression>) {
        if before == now {
            return;
        }
        let is_over =
            |regression: Regression| self.clock.now() >= regression.found.plus(self.limit);
        let now = now.filter(|regression| !is_over(*regression));
        self.regressed.store(now.is_some(), Ordering::Relaxed);
        observe::store_is_regressed(now.is_some());
        match now {
            // It goes on, and the store says so at its own pace.
            Some(Regression { since: None, .. })
                if before.is_some_and(|before| before.since.is_none()) => {}
            Some(Regression { since, found }) => {
                observe::store_regressed();
                error!(
                    lost_after_us = since.map(Timestamp::as_micros),
                    found_us = found.as_micros(),
                    "the store has lost data that it had acknowledged: keys that may be among it are \
                     refused until somebody acknowledges the loss or the time limit is over"
                );
            }
            None if before.is_some() => info!("the loss of the store's data was acknowledged"),
            None => {}
        }
    }

    /// Writes down what was acknowledged, if there is a file and it is behind.
    ///
    /// # Errors
    /// When the file cannot be written.
    ///
    /// # Cancel safety
    /// May be dropped: the file is the old one or the new one.
    pub async fn save(&self) -> io::Result<()> {
        let Some(file) = self.file.as_ref().map(|file| file.path.clone()) else { return Ok(()) };
        let (memory, saved) = {
            let known = self.lock();
            (known.memory, known.saved)
        };
        if memory.acked == saved {
            return Ok(());
        }
        let written = tokio::task::spawn_blocking(move || memory::write(&file, memory)).await;
        written.map_err(io::Error::other)??;
        self.lock().saved = memory.acked;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
