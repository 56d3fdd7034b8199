//! Time, as an argument: wall time for what stores keep, monotonic time for what a process promises
//! itself.

use std::{
    fmt,
    future::poll_fn,
    num::NonZeroU64,
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
///
/// Counted from the earliest one, which is never zero: one that may be missing takes no more room, and
/// a record has many.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(NonZeroU64);

impl Timestamp {
    /// Later than every time: for what is not going to happen.
    pub const NEVER: Timestamp = Timestamp::from_micros(i64::MAX);

    /// Where 1970 lies.
    const EPOCH: u64 = 1 << 63;

    /// A timestamp from microseconds since 1970.
    pub const fn from_micros(micros: i64) -> Self {
        match NonZeroU64::new(micros.cast_unsigned() ^ Self::EPOCH) {
            Some(count) => Timestamp(count),
            // The earliest there is, but for one microsecond.
            None => Timestamp(NonZeroU64::MIN),
        }
    }

    /// Microseconds since 1970.
    pub const fn as_micros(self) -> i64 {
        (self.0.get() ^ Self::EPOCH).cast_signed()
    }

    /// This time plus a duration; stays at the far end instead of overflowing.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        let micros = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        Timestamp::from_micros(self.as_micros().saturating_add(micros))
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub fn since(self, earlier: Timestamp) -> Duration {
        let micros = self.as_micros().saturating_sub(earlier.as_micros());
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }

    /// As the standard library has it, for HTTP dates. Times before 1970 become 1970.
    pub fn to_system_time(self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(u64::try_from(self.as_micros()).unwrap_or(0))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Timestamp").field(&self.as_micros()).finish()
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
        Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
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
        ManualClock::new(Timestamp::from_micros(1_000_000_000_000_000))
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_ordered_and_come_back_as_they_were() {
        let micros = [i64::MIN + 1, -1, 0, 1, 1_000_000_000_000_000, i64::MAX];
        let times = micros.map(Timestamp::from_micros);
        assert!(times.is_sorted_by(|earlier, later| earlier < later));
        assert_eq!(times.map(Timestamp::as_micros), micros);
        assert_eq!(Timestamp::from_micros(i64::MIN), times[0]);
    }

    #[test]
    fn a_time_that_may_be_missing_takes_no_more_room() {
        assert_eq!(size_of::<Option<Timestamp>>(), size_of::<Timestamp>());
    }
}
