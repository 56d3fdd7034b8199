//! The relay: claims messages, hands each to its sink, and settles it.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt as _, future::join_all};
use rand::{SeedableRng as _, rngs::StdRng};
use tokio::{task::JoinSet, time::sleep};

use super::{Backoff, OutboxStore, Sink};
use crate::{
    canary::Canary,
    clock::{Clock as _, SystemClock},
    observe,
};

mod courier;
#[cfg(test)]
mod tests;

use courier::{Courier, Ended, Rules};

/// Delivers the messages of an outbox. Any number of relays may work on one outbox.
///
/// Each sink has its own places, so that one which hangs does not stop the others. A message that
/// fails waits, and gives its place to the next one.
///
/// ```no_run
/// # use std::{sync::Arc, time::Duration};
/// # use onceward::{OutboxStore, Relay, Sink};
/// # async fn relay(store: Arc<dyn OutboxStore>, ledger: impl Sink) {
/// let relay = Relay::new(store).sink("ledger", ledger);
/// let relayed = relay.run_once(100).await;
/// println!("{} delivered", relayed.delivered);
/// # }
/// ```
pub struct Relay {
    store: Arc<dyn OutboxStore>,
    sinks: BTreeMap<Box<str>, Arc<dyn Sink>>,
    rules: Rules,
    canary: Option<Arc<Canary>>,
    concurrency: u32,
    poll: Duration,
    random: Arc<Mutex<StdRng>>,
}

/// What a relay did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Relayed {
    /// Messages that are done.
    pub delivered: u32,
    /// Messages that will be delivered again.
    pub retried: u32,
    /// Messages that became dead letters.
    pub dead: u32,
    /// Deliveries whose message somebody else had claimed before they ended. What came of them was
    /// not written.
    pub superseded: u32,
    /// Store calls that were given up. What they were about is claimed again when its lease is over.
    pub store_failures: u32,
}

/// As it is called in metrics.
const NAME: &str = "relay";

impl Relayed {
    fn count(&mut self, ended: Ended) {
        match ended {
            Ended::Delivered => self.delivered += 1,
            Ended::Retried => self.retried += 1,
            Ended::Dead => self.dead += 1,
            Ended::Superseded => self.superseded += 1,
            Ended::NotWritten => self.store_failures += 1,
        }
    }

    fn plus(self, other: Relayed) -> Relayed {
        Relayed {
            delivered: self.delivered + other.delivered,
            retried: self.retried + other.retried,
            dead: self.dead + other.dead,
            superseded: self.superseded + other.superseded,
            store_failures: self.store_failures + other.store_failures,
        }
    }
}

impl Relay {
    /// A relay without sinks.
    pub fn new(store: Arc<dyn OutboxStore>) -> Self {
        Relay {
            store,
            sinks: BTreeMap::new(),
            rules: Rules {
                attempts_max: 12,
                backoff: Backoff::default(),
                delivery_timeout: Duration::from_secs(20),
            },
            canary: None,
            concurrency: 16,
            poll: Duration::from_secs(1),
            random: Arc::new(Mutex::new(rand::make_rng())),
        }
    }

    /// The same with a sink of this name. Messages for sinks that no relay has stay where they are.
    #[must_use]
    pub fn sink(mut self, name: impl Into<Box<str>>, sink: impl Sink) -> Self {
        self.sinks.insert(name.into(), Arc::new(sink));
        self
    }

    /// The same that delivers nothing while this canary of the messages' store knows of a loss that
    /// nobody has acknowledged: a message may have been delivered in what was lost. Without one, such
    /// messages are delivered again, under the same key.
    #[must_use]
    pub fn canary(mut self, canary: Arc<Canary>) -> Self {
        self.canary = Some(canary);
        self
    }

    /// The same with at most this many tries for each message, at least 1. 12 by default.
    #[must_use]
    pub fn attempts_max(mut self, attempts: u32) -> Self {
        self.rules.attempts_max = attempts.max(1);
        self
    }

    /// The same with these waits between tries.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.rules.backoff = backoff;
        self
    }

    /// The same with this long for each delivery: 20 seconds by default. After three times as long
    /// another relay takes a message of one that vanished.
    #[must_use]
    pub fn delivery_timeout(mut self, timeout: Duration) -> Self {
        self.rules.delivery_timeout = timeout;
        self
    }

    /// The same with at most this many deliveries at a time for each sink, at least 1. 16 by default.
    #[must_use]
    pub fn concurrency(mut self, deliveries: u32) -> Self {
        self.concurrency = deliveries.max(1);
        self
    }

    /// The same that looks this often for messages when there were none. Every second by default.
    #[must_use]
    pub fn poll(mut self, interval: Duration) -> Self {
        self.poll = interval;
        self
    }

    /// The same with jitter from a seed: for tests.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.random = Arc::new(Mutex::new(StdRng::seed_from_u64(seed)));
        self
    }

    /// Delivers what is due, at most `limit` messages for each sink, and waits until that is done.
    ///
    /// # Cancel safety
    /// Deliveries that were begun are cut off: they may have acted, and count as ambiguous when their
    /// lease is over. To stop without that, use [`run`](Self::run) with a signal.
    pub async fn run_once(&self, limit: u32) -> Relayed {
        self.work(|_| Place { left: limit, stop: None }).await
    }

    /// Delivers until the signal comes, then finishes what it delivers.
    ///
    /// # Cancel safety
    /// As [`run_once`](Self::run_once).
    pub async fn run(&self, shutdown: impl Future<Output = ()> + Send) -> Relayed {
        let shutdown = shutdown.shared();
        // Who has no sinks has nothing to look for.
        if !self.sinks.is_empty() {
            observe::worker_begins(NAME, self.poll);
        }
        self.work(|_| Place { left: u32::MAX, stop: Some(Box::pin(shutdown.clone())) }).await
    }

    async fn work<'a>(&self, place: impl Fn(&str) -> Place<'a>) -> Relayed {
        observe::register_sinks(self.sinks.keys().map(|name| &**name));
        let failures = AtomicU32::new(0);
        let working = self.sinks.iter().map(|(name, sink)| {
            let courier = Courier {
                store: Arc::clone(&self.store),
                name: name.clone(),
                sink: Arc::clone(sink),
                rules: self.rules,
                canary: self.canary.clone(),
                random: Arc::clone(&self.random),
            };
            self.serve(courier, place(name), &failures)
        });
        join_all(working).await.into_iter().fold(Relayed::default(), Relayed::plus)
    }

    /// Works for one sink. Never claims more than it begins at once: what is claimed and not begun
    /// would look as if it had been, if this process died.
    async fn serve(&self, courier: Courier, mut place: Place<'_>, failures: &AtomicU32) -> Relayed {
        let courier = Arc::new(courier);
        let mut relayed = Relayed::default();
        let mut deliveries = JoinSet::new();
        let mut look = true;
        loop {
            let in_flight = u32::try_from(deliveries.len()).unwrap_or(u32::MAX);
            let room = self.concurrency.saturating_sub(in_flight).min(place.left);
            if look && room > 0 {
                let claimed = courier.claim(room).await;
                if place.stop.is_some() {
                    tell_of_look(claimed.is_some(), failures);
                }
                relayed.store_failures += u32::from(claimed.is_none());
                let (claim, messages) = claimed.unwrap_or_default();
                let count = u32::try_from(messages.len()).unwrap_or(u32::MAX);
                look = count >= room;
                place.left = place.left.saturating_sub(count);
                for message in messages {
                    deliveries.spawn(Arc::clone(&courier).deliver(claim, message));
                }
            } else if look && place.stop.is_some() {
                // All its places are taken: it need not look, and does not stand still.
                observe::worker_was_there(NAME, SystemClock.now());
            }
            tokio::select! {
                biased;
                () = stopped(&mut place.stop), if place.stop.is_some() => {
                    place = Place { left: 0, stop: None };
                }
                Some(ended) = deliveries.join_next() => {
                    relayed.count(ended.unwrap_or(Ended::NotWritten));
                    while let Some(ended) = deliveries.try_join_next() {
                        relayed.count(ended.unwrap_or(Ended::NotWritten));
                    }
                    // What was held behind it may be due now.
                    look = true;
                }
                () = sleep(self.poll), if place.stop.is_some() => look = true,
                else => return relayed,
            }
        }
    }
}

/// How much a sink's worker may still begin, and what ends it.
struct Place<'a> {
    left: u32,
    stop: Option<Pin<Box<dyn Future<Output = ()> + Send + 'a>>>,
}

/// Looks of a relay that runs, for all its sinks together: they are in one store.
fn tell_of_look(answered: bool, failures: &AtomicU32) {
    if answered {
        failures.store(0, Ordering::Relaxed);
        observe::worker_was_there(NAME, SystemClock.now());
    } else {
        observe::worker_failed(NAME, failures.fetch_add(1, Ordering::Relaxed).saturating_add(1));
    }
}

async fn stopped(stop: &mut Option<Pin<Box<dyn Future<Output = ()> + Send + '_>>>) {
    match stop {
        Some(stop) => stop.await,
        None => std::future::pending().await,
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay")
            .field("store", &self.store)
            .field("sinks", &self.sinks)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}
