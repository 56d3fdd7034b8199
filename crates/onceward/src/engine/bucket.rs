//! How often a scope may ask for the state of its operations. Nobody waits: who asks too often is told
//! when to come again.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::scope::Scope;

/// So many questions at once.
const BURST: f64 = 50.0;

/// So many in each second after that.
const PER_SECOND: f64 = 20.0;

/// So many scopes are remembered. One that is forgotten begins anew.
const SCOPES_MAX: usize = 10_000;

/// A bucket of tokens for each scope that asked lately.
#[derive(Debug, Default)]
pub(super) struct Buckets(Mutex<HashMap<Scope, Bucket>>);

#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn full(at: Instant) -> Self {
        Bucket { tokens: BURST, at }
    }

    fn fill(&mut self, now: Instant) {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        *self = Bucket { tokens: (self.tokens + since * PER_SECOND).min(BURST), at: now };
    }
}

impl Buckets {
    /// Takes a token, or tells after how long there is one.
    pub(super) fn take(&self, scope: &Scope, now: Instant) -> Result<(), Duration> {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= SCOPES_MAX && !buckets.contains_key(scope) {
            buckets.retain(|_, bucket| {
                bucket.fill(now);
                bucket.tokens < BURST
            });
            if buckets.len() >= SCOPES_MAX {
                buckets.clear();
            }
        }
        let bucket = buckets.entry(scope.clone()).or_insert_with(|| Bucket::full(now));
        bucket.fill(now);
        if bucket.tokens < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - bucket.tokens) / PER_SECOND));
        }
        bucket.tokens -= 1.0;
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
            assert_eq!(buckets.take(&scope(number), now), Ok(()));
        }
        assert!(buckets.0.lock().expect("lock").len() <= SCOPES_MAX);
    }
}
