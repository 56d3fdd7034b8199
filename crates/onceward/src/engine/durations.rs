//! How long handlers take, for each route: what a lease is to be sized by.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::Engine;
use crate::{observe, policy::Policy};

/// Each bucket ends at a quarter of a doubling more than the one before, from a millisecond on. The
/// last one has all that is longer than a day.
const BUCKETS: usize = 108;

/// So many samples weigh as much as all before them: what was long ago is forgotten by and by.
const REMEMBERED: u32 = 10_000;

/// Fewer samples say nothing about the slowest in a hundred.
const SAMPLES_LEAST: u32 = 100;

#[derive(Debug, Default)]
pub(super) struct Durations(Mutex<HashMap<Arc<str>, Histogram>>);

#[derive(Debug)]
struct Histogram {
    buckets: [u32; BUCKETS],
    samples: u32,
}

/// How long the handlers of a route took lately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Took {
    /// The name of its policy.
    pub route: Arc<str>,
    /// The lease that its policy gives.
    pub lease: Duration,
    /// How many of them are known.
    pub samples: u32,
    /// Half of them took no longer, but for the width of a bucket.
    pub p50: Duration,
    /// All but one in a hundred took no longer.
    pub p99: Duration,
}

impl Took {
    /// Whether the lease is under three times what the slowest take: a pause of the process, or of the
    /// network, would then be taken for its death.
    pub fn lease_is_short(&self) -> bool {
        self.samples >= SAMPLES_LEAST && self.lease < self.p99 * 3
    }
}

impl Durations {
    pub(super) fn note(&self, route: &Arc<str>, duration: Duration) {
        let mut routes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(histogram) = routes.get_mut(route) {
            return histogram.note(duration);
        }
        routes.entry(Arc::clone(route)).or_default().note(duration);
    }

    fn of(&self, route: &str) -> Option<(u32, Duration, Duration)> {
        let routes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let histogram = routes.get(route)?;
        Some((histogram.samples, histogram.quantile(0.5), histogram.quantile(0.99)))
    }
}

impl Engine {
    /// Tells how long a handler took that was begun then.
    pub(super) fn operation_took(&self, policy: &Policy, begun: Instant) {
        let took = self.clock.monotonic() - begun;
        observe::operation_took(&policy.name, took);
        self.durations.note(&policy.name, took);
    }

    /// How long the handlers of each route took lately in this process, as far as any did.
    pub fn operation_times(&self) -> Vec<Took> {
        let took = self.routes.policies().filter_map(|policy| {
            let (samples, p50, p99) = self.durations.of(&policy.name)?;
            let (route, lease) = (Arc::clone(&policy.name), policy.lease);
            Some(Took { route, lease, samples, p50, p99 })
        });
        took.collect()
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { buckets: [0; BUCKETS], samples: 0 }
    }
}

impl Histogram {
    fn note(&mut self, duration: Duration) {
        if self.samples >= REMEMBERED {
            self.buckets.iter_mut().for_each(|count| *count /= 2);
            self.samples = self.buckets.iter().sum();
        }
        if let Some(count) = self.buckets.get_mut(bucket_of(duration)) {
            *count += 1;
            self.samples += 1;
        }
    }

    fn quantile(&self, part: f64) -> Duration {
        let wanted = (f64::from(self.samples) * part).ceil() as u32;
        let mut seen = 0;
        let at = self.buckets.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        end_of(at.unwrap_or(BUCKETS - 1))
    }
}

fn bucket_of(duration: Duration) -> usize {
    let doublings = (duration.as_secs_f64() * 1000.0).max(1.0).log2();
    ((doublings * 4.0).ceil() as usize).min(BUCKETS - 1)
}

fn end_of(bucket: usize) -> Duration {
    Duration::from_secs_f64((bucket as f64 / 4.0).exp2() / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(samples: impl IntoIterator<Item = u64>) -> Histogram {
        let mut histogram = Histogram::default();
        samples.into_iter().for_each(|millis| histogram.note(Duration::from_millis(millis)));
        histogram
    }

    #[test]
    fn quantiles_are_right_but_for_the_width_of_a_bucket() {
        let histogram = after(1..=1000);
        for (part, exact) in [(0.5, 500.0), (0.99, 990.0)] {
            let found = histogram.quantile(part).as_secs_f64() * 1000.0;
            assert!((exact..exact * 1.2).contains(&found), "{part}: {found}");
        }
        assert_eq!(after([0; 10]).quantile(0.99), Duration::from_millis(1));
        let longest = after([u64::MAX / 2000]).quantile(0.99);
        assert!(longest > Duration::from_secs(86_400), "{longest:?}");
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let slow_then_fast = std::iter::repeat_n(5000, 1000).chain(std::iter::repeat_n(5, 100_000));
        let histogram = after(slow_then_fast);
        assert!(histogram.quantile(0.99) < Duration::from_millis(7));
        assert!(histogram.samples <= REMEMBERED);
    }

    #[test]
    fn a_lease_is_short_under_three_times_the_slowest_and_only_if_enough_is_known() {
        let took = |samples, lease| Took {
            route: "pay".into(),
            lease: Duration::from_secs(lease),
            samples,
            p50: Duration::from_secs(1),
            p99: Duration::from_secs(10),
        };
        assert!(took(100, 29).lease_is_short());
        assert!(!took(100, 30).lease_is_short());
        assert!(!took(99, 29).lease_is_short());
    }
}
