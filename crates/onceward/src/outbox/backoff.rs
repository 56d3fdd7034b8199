//! How long to wait before the next try.

use std::time::Duration;

/// Waits that double up to a limit, with full jitter: any time between none and the whole wait, so
/// that messages that failed together do not come back together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The longest wait after the first try.
    pub first: Duration,
    /// The longest wait of all.
    pub max: Duration,
}

impl Default for Backoff {
    /// From 1 second to 10 minutes.
    fn default() -> Self {
        Backoff { first: Duration::from_secs(1), max: Duration::from_secs(600) }
    }
}

impl Backoff {
    /// The longest wait after this many tries.
    pub fn ceiling(&self, attempts: u32) -> Duration {
        let doubled = 2_u32.checked_pow(attempts.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first.saturating_mul(doubled).min(self.max)
    }

    /// The wait after this many tries, for a random number.
    pub fn delay(&self, attempts: u32, random: u64) -> Duration {
        let ceiling = u64::try_from(self.ceiling(attempts).as_micros()).unwrap_or(u64::MAX);
        // The upper half of the product: evenly spread from 0 to the ceiling, without a division.
        let spread = (u128::from(random) * (u128::from(ceiling) + 1)) >> 64;
        Duration::from_micros(u64::try_from(spread).unwrap_or(ceiling))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_ceiling_doubles_from_a_second_to_ten_minutes_and_stays_there() {
        let backoff = Backoff::default();
        let seconds = |attempts| backoff.ceiling(attempts).as_secs();
        let ceilings: Vec<u64> = (1..=12).map(seconds).collect();
        assert_eq!(ceilings, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]);
        assert_eq!((seconds(0), seconds(33), seconds(u32::MAX)), (1, 600, 600));
    }

    #[test]
    fn jitter_is_full_and_evenly_spread() {
        let backoff = Backoff { first: SECOND, max: SECOND };
        assert_eq!(backoff.delay(1, 0), Duration::ZERO);
        assert_eq!(backoff.delay(1, u64::MAX), SECOND);
        assert_eq!(backoff.delay(1, u64::MAX / 4).as_millis(), 250);
        assert_eq!(backoff.delay(1, u64::MAX / 2 + 1).as_millis(), 500);
    }

    #[test]
    fn waits_of_any_length_do_not_overflow() {
        let backoff = Backoff { first: Duration::MAX, max: Duration::MAX };
        assert_eq!(backoff.ceiling(u32::MAX), Duration::MAX);
        assert_eq!(backoff.delay(7, u64::MAX), Duration::from_micros(u64::MAX));
    }
}
