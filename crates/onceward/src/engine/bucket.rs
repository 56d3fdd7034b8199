//! How often a scope, and all of them together, may ask for the state of operations. Nobody waits: who
//! asks too often is told when to come again.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::scope::Scope;

/// So many questions at once, and so many in each second after that.
#[derive(Clone, Copy, Debug)]
struct Pace {
    burst: f64,
    per_second: f64,
}

const OF_A_SCOPE: Pace = Pace { burst: 50.0, per_second: 20.0 };

/// Of all scopes together: whoever makes up credentials makes up scopes, and each question is a look
/// into the store.
const OF_ALL: Pace = Pace { burst: 1000.0, per_second: 1000.0 };

/// So many scopes are remembered. One that is forgotten begins anew.
const SCOPES_MAX: usize = 10_000;

/// A bucket of tokens for each scope that asked lately, and one for all of them.
#[derive(Debug, Default)]
pub(super) struct Buckets(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    scopes: HashMap<Scope, Bucket>,
    all: Option<Bucket>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    pace: Pace,
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn full(pace: Pace, at: Instant) -> Self {
        Bucket { pace, tokens: pace.burst, at }
    }

    fn fill(&mut self, now: Instant) {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + since * self.pace.per_second).min(self.pace.burst);
        self.at = now;
    }

    /// After how long there is a token; none if there is one.
    fn missing(&mut self, now: Instant) -> Option<Duration> {
        self.fill(now);
        let missing = 1.0 - self.tokens;
        (missing > 0.0).then(|| Duration::from_secs_f64(missing / self.pace.per_second))
    }
}

impl Buckets {
    /// Takes a token, or tells after how long there is one.
    pub(super) fn take(&self, scope: &Scope, now: Instant) -> Result<(), Duration> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { scopes, all } = &mut *inner;
        if scopes.len() >= SCOPES_MAX && !scopes.contains_key(scope) {
            scopes.retain(|_, bucket| {
                bucket.fill(now);
                bucket.tokens < bucket.pace.burst
            });
            if scopes.len() >= SCOPES_MAX {
                scopes.clear();
            }
        }
        let own = scopes.entry(scope.clone()).or_insert_with(|| Bucket::full(OF_A_SCOPE, now));
        let all = all.get_or_insert_with(|| Bucket::full(OF_ALL, now));
        if let Some(missing) = own.missing(now).or_else(|| all.missing(now)) {
            return Err(missing);
        }
        own.tokens -= 1.0;
        all.tokens -= 1.0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(number: usize) -> Scope {
        Scope::new(format!("tenant-{number}")).expect("scope")
    }

    #[test]
    fn a_burst_is_let_through_then_so_many_a_second_and_nobody_else_suffers() {
        let (buckets, now) = (Buckets::default(), Instant::now());
        let let_through =
            |scope: &Scope, now| (0..1000).filter(|_| buckets.take(scope, now).is_ok()).count();
        assert_eq!(let_through(&scope(1), now), 50);
        assert_eq!(buckets.take(&scope(1), now), Err(Duration::from_millis(50)));
        assert_eq!(let_through(&scope(2), now), 50);
        assert_eq!(let_through(&scope(1), now + Duration::from_secs(1)), 20);
        assert_eq!(let_through(&scope(1), now + Duration::from_secs(100)), 50);
    }

    #[test]
    fn many_scopes_do_not_fill_the_memory() {
        let (buckets, now) = (Buckets::default(), Instant::now());
        for number in 0..3 * SCOPES_MAX {
            let now = now + Duration::from_millis(u64::try_from(number).expect("small"));
            assert_eq!(buckets.take(&scope(number), now), Ok(()));
        }
        assert!(buckets.0.lock().expect("lock").scopes.len() <= SCOPES_MAX);
    }

    #[test]
    fn who_makes_up_scopes_does_not_ask_more_than_all_may_together() {
        let (buckets, now) = (Buckets::default(), Instant::now());
        let let_through = |first: usize, now| {
            (0..5000).filter(|number| buckets.take(&scope(first + number), now).is_ok()).count()
        };
        assert_eq!(let_through(0, now), 1000);
        assert_eq!(buckets.take(&scope(9999), now), Err(Duration::from_millis(1)));
        assert_eq!(let_through(5000, now + Duration::from_millis(500)), 500);
    }
}
