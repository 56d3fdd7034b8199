//! Requests that wait for an attempt at work: woken at once by the task that ends it. For attempts of
//! other processes, one of all who wait looks for all of them, in one call to the store.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::{HeaderMap, HeaderName};
use tokio::{
    sync::{Notify, futures::OwnedNotified},
    time::{Instant, sleep_until, timeout},
};

use crate::{
    policy::{InFlight, Policy},
    record::RecordId,
    store::Store,
};

/// No more requests than this wait at a time in one engine; others get their 409 at once.
const WAITERS_MAX: usize = 10_000;

/// How often is looked for attempts of other processes, which cannot wake anybody here.
const LOOK_EVERY: Duration = Duration::from_millis(250);

static PREFER: HeaderName = HeaderName::from_static("prefer");

/// How long this request may wait: by its policy, or because the client asks for it.
pub(super) fn asked_for(headers: &HeaderMap, policy: &Policy) -> Option<Duration> {
    let by_policy = match policy.in_flight {
        InFlight::Wait(at_most) => Some(at_most),
        InFlight::Conflict | InFlight::Accepted => None,
    };
    let preferences = headers.get_all(&PREFER).iter().filter_map(|value| value.to_str().ok());
    let seconds = preferences
        .flat_map(|value| value.split([',', ';']))
        .filter_map(|preference| preference.split_once('='))
        .filter(|(name, _)| name.trim().eq_ignore_ascii_case("wait"))
        .find_map(|(_, seconds)| seconds.trim().trim_matches('"').parse::<u64>().ok());
    match seconds {
        Some(seconds) => Some(Duration::from_secs(seconds).min(InFlight::WAIT_MAX)),
        None => by_policy,
    }
}

#[derive(Debug, Default)]
pub(super) struct Waiters {
    waiting: Arc<Mutex<Waiting>>,
    /// Held by the one who looks, with the time of the last look.
    looker: tokio::sync::Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
struct Waiting {
    count: usize,
    /// In order, so that they are woken in the same order in every run of a simulation.
    by_record: BTreeMap<RecordId, (usize, Arc<Notify>)>,
}

/// A place among the waiters of one record.
pub(super) struct Waiter {
    waiting: Arc<Mutex<Waiting>>,
    id: RecordId,
    notify: Arc<Notify>,
    give_up: Instant,
}

impl Waiters {
    /// Takes a place, unless there are too many.
    pub(super) fn enter(&self, id: &RecordId, at_most: Duration) -> Option<Waiter> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if at_most.is_zero() || waiting.count >= WAITERS_MAX {
            return None;
        }
        waiting.count += 1;
        let (places, notify) = waiting.by_record.entry(id.clone()).or_default();
        *places += 1;
        Some(Waiter {
            waiting: Arc::clone(&self.waiting),
            id: id.clone(),
            notify: Arc::clone(notify),
            give_up: Instant::now() + at_most,
        })
    }

    /// All records that somebody waits for.
    fn records(&self) -> Vec<RecordId> {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.by_record.keys().cloned().collect()
    }

    /// Looks for all who wait, unless somebody else does. The next one goes on where the last one
    /// was woken.
    async fn look_for_all(&self, store: &dyn Store) -> Infallible {
        let mut looked_at = self.looker.lock().await;
        loop {
            let next = looked_at.map_or_else(Instant::now, |last| last) + LOOK_EVERY;
            sleep_until(next).await;
            *looked_at = Some(Instant::now());
            // If the store does not answer, the next look may.
            if let Ok(Ok(settled)) = timeout(LOOK_EVERY * 4, store.settled(self.records())).await {
                settled.iter().for_each(|id| self.wake(id));
            }
        }
    }

    /// Wakes all who wait for this record.
    pub(super) fn wake(&self, id: &RecordId) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, notify)) = waiting.by_record.get(id) {
            notify.notify_waiters();
        }
    }
}

impl Waiter {
    /// Begins to listen. To be called before the record is looked at, so that nothing that happens
    /// in between is missed.
    pub(super) fn listen(&self) -> OwnedNotified {
        Arc::clone(&self.notify).notified_owned()
    }

    /// Waits until it is time to look again; `false` when it is time to give up.
    pub(super) async fn wait(
        &self,
        woken: OwnedNotified,
        waiters: &Waiters,
        store: &dyn Store,
    ) -> bool {
        if Instant::now() >= self.give_up {
            return false;
        }
        tokio::select! {
            biased;
            () = woken => {}
            () = sleep_until(self.give_up) => {}
            never = waiters.look_for_all(store) => match never {},
        }
        true
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.count = waiting.count.saturating_sub(1);
        if let Some((places, _)) = waiting.by_record.get_mut(&self.id) {
            *places -= 1;
            if *places == 0 {
                waiting.by_record.remove(&self.id);
            }
        }
    }
}
