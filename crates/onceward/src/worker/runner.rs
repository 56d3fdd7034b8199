//! Running a worker again and again: with some jitter, so that many processes do not come at once;
//! sooner when there is more to do; later and later while it fails.

use std::{
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use futures_util::FutureExt as _;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::{engine::Engine, observe, store::StoreError};

/// Between two runs of which the first left something to do.
const SOON: Duration = Duration::from_secs(1);

/// After the first failure of a streak. Each further one doubles it, up to the usual time.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Two batches of one run are never closer than this.
const PAUSE_LEAST: Duration = Duration::from_millis(5);

/// What is done again and again.
pub(crate) trait Worker: Sync {
    /// As it is called in logs and metrics.
    const NAME: &'static str;

    /// Whose drain ends it.
    fn engine(&self) -> &Engine;

    /// One bounded run. `true` if it left something to do.
    fn once(&self) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// A number from 0 to 1, by which one process comes at other times than the next.
    fn chance(&self) -> f64 {
        rand::random()
    }
}

/// Chance from a seed, for runs that have to be the same twice.
#[derive(Debug)]
pub(crate) struct Seeded(Mutex<StdRng>);

impl Seeded {
    pub(crate) fn new(seed: u64) -> Self {
        Seeded(Mutex::new(StdRng::seed_from_u64(seed)))
    }

    /// The next number, or one that nobody can foresee where there is no seed.
    pub(crate) fn chance(seeded: Option<&Self>) -> f64 {
        let next = |Seeded(random): &Self| {
            random.lock().unwrap_or_else(PoisonError::into_inner).random::<f64>()
        };
        seeded.map_or_else(rand::random, next)
    }
}

/// Runs a worker every so often, until `stop` or until the engine is told to drain. A run that was begun
/// comes to its end; if the engine drains, after the batch that it is at.
///
/// # Cancel safety
/// May be dropped: a worker's steps are whole or do not happen.
pub(crate) async fn repeat<W: Worker>(
    worker: &W,
    every: Duration,
    stop: impl Future<Output = ()> + Send,
) {
    let (name, engine) = (W::NAME, worker.engine());
    observe::worker_started(name, every, engine.starts(name).then(|| engine.now()));
    let mut failures = 0_u32;
    let mut next = (every / 10).mul_f64(worker.chance());
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            biased;
            () = &mut stop => return,
            is_draining = sleep_unless_draining(engine, next) => if is_draining { return },
        }
        let begun = Instant::now();
        // A panic must not be the end of a worker: nobody would start it again, or notice.
        let once = AssertUnwindSafe(worker.once()).catch_unwind();
        next = match once.await.unwrap_or_else(|_| Err(StoreError::panicked())) {
            Ok(more) => {
                if failures > 0 {
                    info!(worker = name, failures, "a worker is at work again");
                }
                failures = 0;
                observe::worker_ran(name, engine.now(), begun.elapsed());
                let usual = jittered(every, worker.chance()).saturating_sub(begun.elapsed());
                if more { usual.min(SOON) } else { usual }
            }
            Err(error) => {
                // The first of a streak is told; how many there were is told at its end.
                if failures == 0 {
                    let source = std::error::Error::source(&error).map(ToString::to_string);
                    warn!(worker = name, %error, source, "a worker failed, and will try again");
                }
                failures = failures.saturating_add(1);
                observe::worker_failed(name, failures);
                let doubled = AFTER_FAILURE * (1 << (failures - 1).min(10));
                jittered(doubled.min(every), worker.chance())
            }
        };
    }
}

/// Lets requests go first: a worker rests as long as its batch took. `true` if it has to stop.
pub(crate) async fn rest(engine: &Engine, worked: Duration) -> bool {
    sleep_unless_draining(engine, worked.max(PAUSE_LEAST)).await
}

/// `true` if the engine drains.
async fn sleep_unless_draining(engine: &Engine, duration: Duration) -> bool {
    tokio::select! {
        biased;
        () = engine.draining() => true,
        () = sleep(duration) => false,
    }
}

/// About as long: a tenth less to a tenth more.
fn jittered(duration: Duration, chance: f64) -> Duration {
    duration.mul_f64(0.9) + (duration / 5).mul_f64(chance)
}
