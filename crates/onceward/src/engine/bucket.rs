//! How often a scope, an address, and all of them together, may ask for the state of operations. Nobody
//! waits: who asks too often is told when to come again.

use std::{
    collections::HashMap,
    hash::Hash,
    net::{IpAddr, Ipv6Addr},
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

/// Of an address, whatever the scopes: whoever makes up credentials makes up scopes. Behind one address
/// there may be many callers.
const OF_AN_ADDRESS: Pace = Pace { burst: 200.0, per_second: 100.0 };

/// Of all together: each question is a look into the store.
const OF_ALL: Pace = Pace { burst: 1000.0, per_second: 1000.0 };

/// So many scopes are remembered, and so many addresses. What is forgotten begins anew.
const REMEMBERED_MAX: usize = 10_000;

/// A bucket of tokens for each scope and each address that asked lately, and one for all of them.
#[derive(Debug, Default)]
pub(super) struct Buckets(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    scopes: HashMap<Scope, Bucket>,
    addresses: HashMap<IpAddr, Bucket>,
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
    pub(super) fn take(
        &self,
        scope: &Scope,
        from: Option<IpAddr>,
        now: Instant,
    ) -> Result<(), Duration> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { scopes, addresses, all } = &mut *inner;
        let from = from.map(subscriber);
        let of_address = from.map(|from| bucket_of(addresses, &from, OF_AN_ADDRESS, now));
        let of_scope = bucket_of(scopes, scope, OF_A_SCOPE, now);
        let of_all = all.get_or_insert_with(|| Bucket::full(OF_ALL, now));
        let mut buckets: Vec<&mut Bucket> =
            of_address.into_iter().chain([of_scope, of_all]).collect();
        if let Some(missing) = buckets.iter_mut().find_map(|bucket| bucket.missing(now)) {
            return Err(missing);
        }
        buckets.iter_mut().for_each(|bucket| bucket.tokens -= 1.0);
        Ok(())
    }
}

/// The bucket of somebody, full if he was not there.
fn bucket_of<'b, K: Clone + Eq + Hash>(
    buckets: &'b mut HashMap<K, Bucket>,
    of: &K,
    pace: Pace,
    now: Instant,
) -> &'b mut Bucket {
    if buckets.len() >= REMEMBERED_MAX && !buckets.contains_key(of) {
        buckets.retain(|_, bucket| {
            bucket.fill(now);
            bucket.tokens < bucket.pace.burst
        });
        if buckets.len() >= REMEMBERED_MAX {
            buckets.clear();
        }
    }
    buckets.entry(of.clone()).or_insert_with(|| Bucket::full(pace, now))
}

/// Whoever has an address of IPv6 has all those of its network.
fn subscriber(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
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
        let let_through = |scope: &Scope, now| {
            (0..1000).filter(|_| buckets.take(scope, None, now).is_ok()).count()
        };
        assert_eq!(let_through(&scope(1), now), 50);
        assert_eq!(buckets.take(&scope(1), None, now), Err(Duration::from_millis(50)));
        assert_eq!(let_through(&scope(2), now), 50);
        assert_eq!(let_through(&scope(1), now + Duration::from_secs(1)), 20);
        assert_eq!(let_through(&scope(1), now + Duration::from_secs(100)), 50);
    }

    #[test]
    fn many_scopes_do_not_fill_the_memory() {
        let (buckets, now) = (Buckets::default(), Instant::now());
        for number in 0..3 * REMEMBERED_MAX {
            let now = now + Duration::from_millis(u64::try_from(number).expect("small"));
            assert_eq!(buckets.take(&scope(number), None, now), Ok(()));
        }
        assert!(buckets.0.lock().expect("lock").scopes.len() <= REMEMBERED_MAX);
    }

    #[test]
    fn who_makes_up_scopes_does_not_ask_more_than_all_may_together() {
        let (buckets, now) = (Buckets::default(), Instant::now());
        let let_through = |first: usize, now| {
            (0..5000)
                .filter(|number| buckets.take(&scope(first + number), None, now).is_ok())
                .count()
        };
        assert_eq!(let_through(0, now), 1000);
        assert_eq!(buckets.take(&scope(9999), None, now), Err(Duration::from_millis(1)));
        assert_eq!(let_through(5000, now + Duration::from_millis(500)), 500);
    }

    #[test]
    fn who_makes_up_scopes_takes_nothing_from_other_addresses() {
        let (buckets, now) = (Buckets::default(), Instant::now());
        let let_through = |from: &str, now| {
            let from = Some(from.parse().expect("an address"));
            (0..1000).filter(|number| buckets.take(&scope(*number), from, now).is_ok()).count()
        };
        assert_eq!(let_through("203.0.113.7", now), 200);
        assert_eq!(let_through("203.0.113.8", now), 200);
        assert_eq!(let_through("2001:db8::1", now), 200);
        assert_eq!(let_through("2001:db8::2", now), 0, "of the same network");
        assert_eq!(let_through("::ffff:203.0.113.7", now), 0, "the same address");
        assert_eq!(let_through("203.0.113.7", now + Duration::from_secs(1)), 100);
    }
}
