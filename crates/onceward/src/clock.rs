//! Time, as an argument: wall time for what stores keep, monotonic time for what a process promises
//! itself.

use std::{
    fmt,
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    task::Poll,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::time::{Instant, sleep_until};

/// Microseconds since 1970, UTC. Ours, so that no time library is part of the public interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Later than every time: for what is not going to happen.
    pub const NEVER: Timestamp = Timestamp(i64::MAX);

    /// A timestamp from microseconds since 1970.
    pub const fn from_micros(micros: i64) -> Self {
        Timestamp(micros)
    }

    /// Microseconds since 1970.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// This time plus a duration; stays at the far end instead of overflowing.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        let micros = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        Timestamp(self.0.saturating_add(micros))
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// As the standard library has it, for HTTP dates. Times before 1970 become 1970.
    pub fn to_system_time(self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(u64::try_from(self.0).unwrap_or(0))
    }
}

/// Where the time comes from. Stores that have a clock of their own (SQL servers) use that one; the
/// memory and file stores use this, which is the limit of what they promise across machines.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Wall time: what lease ends and retention ends are compared with.
    fn now(&self) -> Timestamp;

    /// Monotonic time: what an owner compares its own deadline with, right before it acts. Must not
    /// follow steps of the wall clock.
    fn monotonic(&self) -> Instant {
        Instant::now()
    }
}

/// What comes of a future until a time. Most are ready at once, and a timer is made only for those that
/// are not.
pub(crate) async fn until<F: Future>(deadline: Instant, future: F) -> Option<F::Output> {
    let (mut future, mut timer) = (pin!(future), pin!(None));
    poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        if timer.is_none() {
            timer.set(Some(sleep_until(deadline)));
        }
        let late = timer.as_mut().as_pin_mut().map(|timer| timer.poll(context));
        late.unwrap_or(Poll::Pending).map(|()| None)
    })
    .await
}

/// The clock of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }
}

/// A wall clock that stands still until it is told to move: for tests.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    /// A clock that shows `start`.
    pub fn new(start: Timestamp) -> Self {
        ManualClock(Arc::new(AtomicI64::new(start.as_micros())))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.set(self.now().plus(by));
    }

    /// Sets the clock, backwards too.
    pub fn set(&self, to: Timestamp) {
        self.0.store(to.as_micros(), Ordering::SeqCst);
    }
}

impl Default for ManualClock {
    /// Starts in September 2001, a round number that is easy to read in failures.
    fn default() -> Self {
        ManualClock::new(Timestamp(1_000_000_000_000_000))
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}
