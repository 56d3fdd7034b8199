//! The breaker: while the store is known to be down, requests are refused at once instead of each
//! waiting for it.
//!
//! It opens when as many requests in a row as [`FAILURES_MAX`] gave up on the store, with no answer
//! of the store in between. It then lets one request through at a time, the probe, at growing pauses.
//! Any answer of the store closes it: to the probe, or to the write of an attempt that runs. Attempts
//! that run are never held up by it.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::Engine;
use crate::observe;

/// So many requests have to give up in a row. Each of them repeated its call until its deadline, so
/// that this is no matter of one lost connection.
const FAILURES_MAX: u32 = 3;

/// Pauses between two probes: from the first to the longest, doubling.
const PROBE_PAUSE_FIRST: Duration = Duration::from_secs(1);
const PROBE_PAUSE_LONGEST: Duration = Duration::from_secs(2);

/// A probe gives up after this. Together with the longest pause it bounds how long a store can be
/// back unnoticed.
pub(super) const PROBE_TIME_MAX: Duration = Duration::from_secs(2);

/// A probe that no request has made for so long is made without one.
const PROBE_OVERDUE: Duration = Duration::from_secs(2);

impl Engine {
    /// Asks the store whether it is back, if the breaker is open and no request comes to find out: a
    /// service that gets none while it is not ready would stay so for ever. To be called about once
    /// a second.
    ///
    /// # Cancel safety
    /// May be dropped; the next one asks.
    pub async fn probe_store(&self) {
        let Some(passage) = self.breaker.enter_overdue(self.clock.monotonic()) else { return };
        match timeout(PROBE_TIME_MAX, self.store.ping()).await {
            Ok(Ok(())) => self.breaker.answered(),
            Ok(Err(_)) | Err(_) => passage.failed(self.clock.monotonic()),
        }
    }
}

/// What the breaker of an engine does with requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// They go through.
    Closed,
    /// They are refused: the store is known to be down.
    Open,
    /// They are refused, but for one that finds out whether the store is back.
    HalfOpen,
}

#[derive(Debug)]
enum State {
    Closed { failures: u32 },
    Open { probe_at: Instant, pause: Duration, probing: bool },
}

#[derive(Debug)]
pub(super) struct Breaker {
    /// Whether there is anything but a closed state without failures: all that most requests read.
    troubled: AtomicBool,
    state: Mutex<State>,
}

impl Default for Breaker {
    fn default() -> Self {
        Breaker {
            troubled: AtomicBool::new(false),
            state: Mutex::new(State::Closed { failures: 0 }),
        }
    }
}

/// A request that may ask the store.
#[derive(Debug)]
pub(super) struct Passage<'b> {
    breaker: &'b Breaker,
    is_probe: bool,
}

impl Breaker {
    /// Lets a request through, or says when to come back.
    pub(super) fn enter(&self, now: Instant) -> Result<Passage<'_>, Duration> {
        let passage = |is_probe| Passage { breaker: self, is_probe };
        if !self.troubled.load(Ordering::Acquire) {
            return Ok(passage(false));
        }
        match &mut *self.state() {
            State::Closed { .. } => Ok(passage(false)),
            State::Open { pause, probing: true, .. } => Err(*pause),
            State::Open { probe_at, .. } if now < *probe_at => Err(*probe_at - now),
            State::Open { probing, .. } => {
                *probing = true;
                Ok(passage(true))
            }
        }
    }

    /// Lets a probe through that nobody has made in time.
    fn enter_overdue(&self, now: Instant) -> Option<Passage<'_>> {
        if !self.troubled.load(Ordering::Acquire) {
            return None;
        }
        match &mut *self.state() {
            State::Open { probe_at, probing, .. }
                if !*probing && now >= *probe_at + PROBE_OVERDUE =>
            {
                *probing = true;
                Some(Passage { breaker: self, is_probe: true })
            }
            _ => None,
        }
    }

    /// The store answered somebody.
    pub(super) fn answered(&self) {
        if !self.troubled.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.state();
        if let State::Open { .. } = *state {
            info!("the store answers again: the breaker is closed");
            observe::breaker_is_open(false);
        }
        *state = State::Closed { failures: 0 };
        self.troubled.store(false, Ordering::Release);
    }

    pub(super) fn shows(&self) -> BreakerState {
        match *self.state() {
            State::Closed { .. } => BreakerState::Closed,
            State::Open { probing: false, .. } => BreakerState::Open,
            State::Open { probing: true, .. } => BreakerState::HalfOpen,
        }
    }

    fn failed(&self, is_probe: bool, now: Instant) {
        let mut state = self.state();
        self.troubled.store(true, Ordering::Release);
        match &mut *state {
            State::Closed { failures } if *failures + 1 < FAILURES_MAX => *failures += 1,
            State::Closed { .. } => {
                warn!("the store does not answer: the breaker is open, and requests are refused");
                observe::breaker_is_open(true);
                let pause = PROBE_PAUSE_FIRST;
                *state = State::Open { probe_at: now + pause, pause, probing: false };
            }
            State::Open { probe_at, pause, probing } if is_probe => {
                *pause = (*pause * 2).min(PROBE_PAUSE_LONGEST);
                *probe_at = now + *pause;
                *probing = false;
            }
            // It began before the breaker opened, and tells nothing new.
            State::Open { .. } => {}
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Passage<'_> {
    /// How long this request may repeat its calls, where others may for `store_deadline`.
    pub(super) fn patience(&self, store_deadline: Duration) -> Duration {
        if self.is_probe { store_deadline.min(PROBE_TIME_MAX) } else { store_deadline }
    }

    /// The request gave up on the store.
    pub(super) fn failed(mut self, now: Instant) {
        self.breaker.failed(self.is_probe, now);
        self.is_probe = false;
    }
}

impl Drop for Passage<'_> {
    /// A probe that learned nothing leaves its place to the next.
    fn drop(&mut self) {
        if let (true, State::Open { probing, .. }) = (self.is_probe, &mut *self.breaker.state()) {
            *probing = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// A breaker that opened at this time.
    fn open(now: Instant) -> Breaker {
        let breaker = Breaker::default();
        for _ in 0..FAILURES_MAX {
            breaker.enter(now).expect("closed").failed(now);
        }
        assert_eq!(breaker.shows(), BreakerState::Open);
        breaker
    }

    #[test]
    fn failures_in_a_row_open_it_and_an_answer_in_between_does_not_let_it() {
        let (now, breaker) = (Instant::now(), Breaker::default());
        for _ in 0..10 {
            for _ in 1..FAILURES_MAX {
                breaker.enter(now).expect("closed").failed(now);
            }
            assert_eq!(breaker.shows(), BreakerState::Closed);
            breaker.answered();
        }
        let refused = open(now).enter(now).expect_err("open");
        assert_eq!(refused, PROBE_PAUSE_FIRST);
    }

    #[test]
    fn one_probe_at_a_time_goes_through_and_its_success_closes_it() {
        let now = Instant::now();
        let breaker = open(now);
        assert!(breaker.enter(now + seconds(1) - Duration::from_millis(1)).is_err(), "too early");
        let probe = breaker.enter(now + seconds(1)).expect("a probe");
        assert_eq!(breaker.shows(), BreakerState::HalfOpen);
        assert_eq!(probe.patience(seconds(5)), PROBE_TIME_MAX);
        assert!(breaker.enter(now + seconds(60)).is_err(), "one at a time");
        breaker.answered();
        assert_eq!(breaker.shows(), BreakerState::Closed);
        let others = breaker.enter(now).expect("closed");
        assert_eq!(others.patience(seconds(5)), seconds(5));
    }

    #[test]
    fn a_probe_that_fails_keeps_it_open_and_pauses_grow_to_their_bound() {
        let mut now = Instant::now();
        let breaker = open(now);
        for pause in [1, 2, 2, 2] {
            assert_eq!(breaker.enter(now).expect_err("open"), seconds(pause));
            now += seconds(pause);
            breaker.enter(now).expect("a probe").failed(now);
        }
        assert!(PROBE_PAUSE_LONGEST + PROBE_TIME_MAX < seconds(10), "the promise of recovery");
    }

    #[test]
    fn a_probe_that_learns_nothing_leaves_its_place() {
        let now = Instant::now();
        let breaker = open(now);
        drop(breaker.enter(now + seconds(1)).expect("a probe"));
        assert_eq!(breaker.shows(), BreakerState::Open);
        assert!(breaker.enter(now + seconds(1)).is_ok());
    }

    #[test]
    fn a_probe_that_no_request_makes_is_made_without_one() {
        let now = Instant::now();
        assert!(Breaker::default().enter_overdue(now).is_none(), "closed");
        let breaker = open(now);
        let due = now + PROBE_PAUSE_FIRST;
        assert!(breaker.enter_overdue(due).is_none(), "a request may still come");
        let probe = breaker.enter_overdue(due + PROBE_OVERDUE).expect("a probe");
        assert!(breaker.enter_overdue(due + seconds(60)).is_none(), "one at a time");
        probe.failed(due);
        assert!(breaker.enter_overdue(due + PROBE_OVERDUE).is_none(), "the pause has grown");
        let last = PROBE_PAUSE_LONGEST + PROBE_OVERDUE + PROBE_TIME_MAX + seconds(1);
        assert!(last < seconds(10), "the promise of recovery, without a request");
    }

    #[test]
    fn who_began_before_it_opened_does_not_put_off_the_probe() {
        let now = Instant::now();
        let breaker = Breaker::default();
        let early = breaker.enter(now).expect("closed");
        for _ in 0..FAILURES_MAX {
            breaker.enter(now).expect("closed").failed(now);
        }
        let probe = breaker.enter(now + seconds(1)).expect("a probe");
        early.failed(now + seconds(1));
        assert_eq!(breaker.shows(), BreakerState::HalfOpen);
        drop(probe);
    }
}
