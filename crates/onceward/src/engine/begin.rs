//! Reserve and decide, with patience: for a store that does not answer, and for an attempt at work.

use std::{
    cell::RefCell,
    sync::{Arc, atomic::Ordering},
    thread::LocalKey,
    time::Duration,
};

use bytes::Bytes;
use http::request;
use tokio::time::{Instant, sleep, timeout};
use tracing::{Span, error, info, warn};

use super::{Admitted, Asked, Engine, Exceeded, Limits, quota::Place, resume};
use crate::{
    clock,
    fingerprint::Fingerprint,
    machine::{self, Decision, Refusal},
    observe,
    policy::Policy,
    record::{AttemptId, Effects, Fence, Record, State},
    store::{
        Ask, Claim, Found, IdentityCheck, Mode, Reservation, StoreError, StoreErrorKind,
        StoreFuture, Write, Written,
    },
};

/// How a request begins.
pub(super) enum Begun {
    /// With a decision, and for an execution the monotonic time until which it may be dispatched,
    /// and its place among the active records of its scope.
    Decided(Decision, Instant, Option<Place>),
    /// The key is free, and its caller has no quota left.
    Limited(Exceeded),
    /// The key was granted by a store that has lost data, and may be among it.
    Regressed,
    /// The store could not be asked in time.
    StoreFailed {
        /// The answer to a call was lost: it may have granted the record all the same.
        may_be_granted: bool,
        /// It did not answer, or said that it cannot be used.
        is_down: bool,
    },
}

/// Under which terms a request begins.
#[derive(Clone, Copy)]
pub(super) struct Terms<'a> {
    /// How long it may wait for an attempt at work.
    pub(super) wait: Option<Duration>,
    /// What its scope may ask for.
    pub(super) limits: &'a Limits,
    /// How long a store call is repeated.
    pub(super) patience: Duration,
    /// How the record is taken.
    pub(super) take: Take,
}

/// How an attempt takes its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Take {
    /// If it is free.
    Reserve,
    /// If it waits for a worker, and is still as it was looked at.
    Claim(Fence),
}

/// What is to be thought of a grant.
enum Vouched {
    Yes,
    No,
    Unanswered { is_down: bool },
}

/// A reserve was not answered in time.
struct Unanswered {
    may_be_granted: bool,
    is_down: bool,
}

/// The answer to a reserve.
struct Reserved {
    reservation: Reservation,
    /// When the call that was answered was sent.
    sent: Instant,
    /// Of a granted record.
    place: Option<Place>,
    /// Why the store was only asked to look.
    exceeded: Option<Exceeded>,
}

/// Pauses between repeated store calls: from the first to the longest, doubling.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
pub(super) const PAUSE_LONGEST: Duration = Duration::from_secs(1);

impl Engine {
    /// Finds out what an admitted request asks for. Its head and body are not needed any more to run it.
    pub fn ask(&self, admitted: Admitted, parts: &request::Parts, body: &Bytes) -> Asked {
        let policy = &admitted.policy;
        let keeps_request = policy.effects == Effects::Phased || policy.queued.is_some();
        let ask = Ask {
            method: shared(parts.method.as_str(), &METHOD),
            path: shared(shortened(parts.uri.path()), &PATH),
            request: keeps_request.then(|| Arc::new(resume::stored(parts, body, policy))),
            ..self.ask_again(&admitted, policy.recipe.fingerprint(parts, body))
        };
        Asked { admitted, ask }
    }

    pub(super) fn mode(&self, admitted: &Admitted) -> Mode {
        let may_run = self.drain.is_open() && admitted.unless_known.is_none();
        match may_run && !self.may_be_lost(admitted) {
            true => Mode::Execute,
            false => Mode::LookupOnly,
        }
    }

    /// The same for a request that is known by its fingerprint, to be executed.
    pub(super) fn ask_again(&self, admitted: &Admitted, fingerprint: Fingerprint) -> Ask {
        let policy = &admitted.policy;
        Ask {
            id: admitted.id.clone(),
            fingerprint,
            attempt: AttemptId::random(),
            mode: self.mode(admitted),
            lease: policy.lease,
            max_execution: policy.max_execution,
            retention: policy.retention,
            tombstone: policy.tombstone,
            expired_runs_again: policy.expired_runs_again,
            effects: policy.effects,
            route: Arc::clone(&policy.name),
            method: Arc::default(),
            path: Arc::default(),
            request: None,
            queued_for: policy.queued.as_ref().map_or(Duration::ZERO, |queued| queued.within),
        }
    }

    /// Reserves and decides; where the policy or the client says so, waits for an attempt at work.
    pub(super) async fn begin(&self, admitted: &Admitted, ask: &Ask, terms: Terms<'_>) -> Begun {
        match self.check_identity(&ask.route, terms.patience).await {
            Some(IdentityCheck::Same) => {}
            checked => {
                return Begun::StoreFailed { may_be_granted: false, is_down: checked.is_none() };
            }
        }
        let waiter = terms.wait.and_then(|at_most| self.waiters.enter(&ask.id, at_most));
        loop {
            let woken = waiter.as_ref().map(|waiter| waiter.listen());
            let reserved = match self.reserve_within(ask, &terms).await {
                Ok(reserved) => reserved,
                Err(Unanswered { may_be_granted, is_down }) => {
                    return Begun::StoreFailed { may_be_granted, is_down };
                }
            };
            let Reserved { reservation, sent, place, exceeded } = reserved;
            if is_ours_already(&reservation, ask) {
                // An earlier call of ours was granted, and taken for lost before it was answered.
                return Begun::StoreFailed { may_be_granted: true, is_down: false };
            }
            if let (Reservation::Free, Some(exceeded)) = (&reservation, exceeded) {
                return Begun::Limited(exceeded);
            }
            let claims = matches!(terms.take, Take::Claim(_));
            if claims && !matches!(reservation, Reservation::Granted { .. }) {
                // Somebody else was faster. There is no client to be told of it.
                return Begun::Decided(Decision::Refuse(Refusal::NotTaken), sent, None);
            }
            if let Reservation::Granted { .. } | Reservation::Accepted { .. } = &reservation {
                match self.vouch(admitted, terms.patience).await {
                    Vouched::Yes => {}
                    Vouched::No => return Begun::Regressed,
                    Vouched::Unanswered { is_down } => {
                        return Begun::StoreFailed { may_be_granted: true, is_down };
                    }
                }
            }
            self.count_reservation(&reservation, ask);
            let decision = machine::decide(reservation, ask, self.clock.now());
            let at_work = matches!(decision, Decision::Refuse(Refusal::InProgress { .. }));
            let look_again = match (at_work, &waiter, woken) {
                (true, Some(waiter), Some(woken)) => {
                    waiter.wait(woken, &self.waiters, &*self.store).await
                }
                _ => false,
            };
            if !look_again {
                return Begun::Decided(decision, sent + ask.lease, place);
            }
        }
    }

    /// Whether the store has lost data, and this key may be among it, as far as is known.
    fn may_be_lost(&self, admitted: &Admitted) -> bool {
        self.canary.as_ref().is_some_and(|canary| {
            let regression = canary.regression();
            regression.is_some_and(|regression| !admitted.is_younger(canary, regression))
        })
    }

    /// Whether a grant can be believed: the store that gave it still has what it acknowledged. Asked of
    /// it only if it may have become another one; else the answer is there.
    async fn vouch(&self, admitted: &Admitted, patience: Duration) -> Vouched {
        let Some(canary) = &self.canary else { return Vouched::Yes };
        let vouched = match canary.is_vouched() {
            true => Ok(canary.regression()),
            false => timeout(patience, canary.vouch()).await.unwrap_or_else(|_| Err(timed_out())),
        };
        match vouched {
            Ok(Some(regression)) if !admitted.is_younger(canary, regression) => Vouched::No,
            Ok(_) => Vouched::Yes,
            Err(error) => {
                self.store_failed("beat", &error, &admitted.policy.name);
                Vouched::Unanswered { is_down: !canary.is_mustering() }
            }
        }
    }

    /// Whether the store was used with the same identity settings before. Asked until it is so:
    /// under other settings every key would look new, and everything would run again.
    /// `None` when it did not answer.
    pub(super) async fn check_identity(
        &self,
        route: &str,
        patience: Duration,
    ) -> Option<IdentityCheck> {
        if self.identity_is_same.load(Ordering::Relaxed) {
            return Some(IdentityCheck::Same);
        }
        let identity = self.identity();
        let check = timeout(patience, async {
            // One asks for all: a crowd at the start would stand in line for one row.
            let _asks = self.identity_asked.lock().await;
            match self.identity_is_same.load(Ordering::Relaxed) {
                true => Ok(IdentityCheck::Same),
                false => self.store.check_identity(&identity).await,
            }
        });
        match check.await.unwrap_or_else(|_| Err(timed_out())) {
            Ok(IdentityCheck::Same) => {
                self.identity_is_same.store(true, Ordering::Relaxed);
                Some(IdentityCheck::Same)
            }
            Ok(IdentityCheck::Different) => {
                error!(
                    "the store was used with another scope rule or key: nothing is executed until \
                     the settings are put back or the new ones are accepted"
                );
                Some(IdentityCheck::Different)
            }
            Err(error) => {
                self.store_failed("check_identity", &error, route);
                None
            }
        }
    }

    /// Reserves where the scope has quota left for it, and else only looks: a replay is answered all
    /// the same.
    async fn reserve_within(&self, ask: &Ask, terms: &Terms<'_>) -> Result<Reserved, Unanswered> {
        let mut looked = None;
        loop {
            let place = match ask.mode {
                Mode::LookupOnly => Ok(None),
                Mode::Execute | Mode::Accept => {
                    self.quota.place(terms.limits, &ask.id.scope, self.clock.monotonic())
                }
            };
            match (place, looked) {
                (Ok(mut place), _) => {
                    let (reservation, sent) = self.reserve(ask, terms).await?;
                    match (&mut place, &reservation) {
                        (Some(place), Reservation::Granted { found, .. }) => {
                            place.granted(is_creation(*found));
                        }
                        // It is active when it runs, under no limit of its caller's.
                        (Some(accepted), Reservation::Accepted { found }) => {
                            accepted.granted(is_creation(*found));
                            place = None;
                        }
                        // It may have to wait now, without taking the place of somebody else.
                        _ => place = None,
                    }
                    return Ok(Reserved { reservation, sent, place, exceeded: None });
                }
                (Err(exceeded), Some(sent)) => {
                    let (reservation, place) = (Reservation::Free, None);
                    return Ok(Reserved { reservation, sent, place, exceeded: Some(exceeded) });
                }
                (Err(_), None) => {
                    let look = Ask { mode: Mode::LookupOnly, ..ask.clone() };
                    let (reservation, sent) = self.reserve(&look, terms).await?;
                    if reservation != Reservation::Free {
                        return Ok(Reserved { reservation, sent, place: None, exceeded: None });
                    }
                    // Replays that were on their way may have given back what they did not use.
                    looked = Some(sent);
                }
            }
        }
    }

    fn take(&self, ask: &Ask, take: Take) -> StoreFuture<'_, Reservation> {
        match take {
            Take::Reserve => self.store.reserve(ask.clone()),
            Take::Claim(fence) => self.store.claim(Claim {
                id: ask.id.clone(),
                attempt: ask.attempt,
                lease: ask.lease,
                max_execution: ask.max_execution,
                effects: ask.effects,
                fence: Some(fence),
            }),
        }
    }

    /// Repeats the same reserve under the same attempt until it is answered or the deadline passes.
    /// With the time at which the answered call was sent: the lease counts from there.
    async fn reserve(
        &self,
        ask: &Ask,
        terms: &Terms<'_>,
    ) -> Result<(Reservation, Instant), Unanswered> {
        let give_up = Instant::now() + terms.patience;
        let mut pause = PAUSE_FIRST;
        let mut may_be_granted = false;
        loop {
            let sent = self.clock.monotonic();
            let answer = clock::until(give_up, self.take(ask, terms.take)).await;
            let error = match answer {
                Some(Ok(found)) if may_be_granted && self.may_be_ours(&found, ask, terms.take) => {
                    timed_out()
                }
                Some(Ok(reservation)) => {
                    self.breaker.answered();
                    return Ok((reservation, sent));
                }
                Some(Err(error)) => error,
                None => timed_out(),
            };
            self.store_failed("reserve", &error, &ask.route);
            may_be_granted |= error.kind() == StoreErrorKind::Ambiguous;
            let is_down = error.may_be_repeated();
            if !is_down || Instant::now() + pause >= give_up {
                return Err(Unanswered { may_be_granted, is_down });
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_LONGEST);
        }
    }

    /// Takes back a reserve that was not answered: if it was granted after all, nothing was
    /// dispatched under it, so that it is released. Asking means repeating the same reserve, since a
    /// mere look would not see a commit that is still on its way.
    ///
    /// Work that was accepted stays accepted: somebody may have begun it by now.
    pub(super) async fn withdraw(&self, ask: &Ask, take: Take) {
        if ask.mode != Mode::Execute {
            return;
        }
        let mut pause = PAUSE_FIRST;
        while !self.drain.is_over() {
            let answer = timeout(self.store_deadline, self.take(ask, take)).await;
            if let Ok(Ok(_)) = &answer {
                self.breaker.answered();
            }
            match answer {
                Ok(Ok(Reservation::Granted { lease, .. })) => {
                    let release = Write::Release("reserve_not_acknowledged".into());
                    let released = self.store.write(&lease, release);
                    match timeout(self.store_deadline, released).await {
                        // Taken for lost in between: found so, and given back, in the next round.
                        Ok(Ok(Written::Superseded(Some(record)))) if is_ours(&record, ask) => {}
                        Ok(Ok(_)) => return self.waiters.wake(&ask.id),
                        Ok(Err(_)) | Err(_) => {}
                    }
                }
                Ok(Ok(Reservation::Occupied { record, .. }))
                    if is_ours(&record, ask) && record.state == State::Unknown =>
                {
                    let Record { id, generation, fence, route, .. } = &*record;
                    if self.give_back(id, *generation, *fence, route).await {
                        return;
                    }
                }
                Ok(Ok(found)) if self.may_be_ours(&found, ask, take) => {}
                Ok(Ok(_)) => return,
                Ok(Err(error)) if !error.may_be_repeated() => return,
                Ok(Err(_)) | Err(_) => {}
            }
            self.drain.pause(pause).await;
            pause = (pause * 2).min(PAUSE_LONGEST);
        }
    }

    /// Whether an earlier call of this attempt may be taking what is said to be in the way: nobody is at
    /// it any more, and somebody has it locked.
    fn may_be_ours(&self, found: &Reservation, ask: &Ask, take: Take) -> bool {
        let Reservation::Occupied { record, .. } = found else { return false };
        // All that a claim finds is in its way, unless it is the one that was looked at.
        matches!(take, Take::Reserve)
            && ask.mode == Mode::Execute
            && record.state == State::InProgress
            && record.fingerprint == ask.fingerprint
            && !record.lease_is_live(self.clock.now())
    }

    /// What a record that is in the way means to a request with the same fingerprint.
    pub(super) fn decide_on(&self, record: Box<Record>) -> Decision {
        let ask = Ask {
            id: record.id.clone(),
            fingerprint: record.fingerprint,
            attempt: record.attempt,
            mode: Mode::LookupOnly,
            lease: Duration::ZERO,
            max_execution: record.max_execution,
            retention: record.retention,
            tombstone: record.tombstone,
            expired_runs_again: false,
            effects: record.effects,
            route: record.route.clone(),
            method: record.method.clone(),
            path: record.path.clone(),
            request: None,
            queued_for: Duration::ZERO,
        };
        let reservation = Reservation::Occupied { record, lease_ran_out: false };
        machine::decide(reservation, &ask, self.clock.now())
    }

    pub(super) fn store_failed(&self, call: &'static str, error: &StoreError, route: &str) {
        let source = std::error::Error::source(error).map(ToString::to_string);
        warn!(call, route, %error, source, "a store call failed");
        observe::count(observe::STORE_ERROR, route);
    }

    pub(super) fn count_reservation(&self, reservation: &Reservation, ask: &Ask) {
        let route = &*ask.route;
        match reservation {
            Reservation::Granted { lease, found } => {
                let span = Span::current();
                span.record("attempt", lease.attempt_number);
                span.record("generation", lease.generation);
                match found {
                    Found::Absent | Found::Mine => {
                        observe::count_often(observe::RESERVE_CREATED, &ask.route);
                    }
                    Found::Pending if lease.attempt_number > 1 => {
                        observe::count(observe::RESERVE_FAILED_RETRY, route);
                    }
                    // It was counted when it was accepted.
                    Found::Pending => {}
                    Found::Retryable => observe::count(observe::RESERVE_FAILED_RETRY, route),
                    Found::LeaseOver => {
                        observe::count(observe::ZOMBIE_KEY, route);
                        observe::count(observe::RESERVE_FAILED_RETRY, route);
                    }
                    Found::Expired => {
                        let generation = lease.generation;
                        info!(route, generation, "an expired key runs again");
                        observe::expired_run_again(route);
                        observe::count(observe::RESERVE_CREATED, route);
                    }
                }
            }
            Reservation::Occupied { record, lease_ran_out } => {
                if *lease_ran_out {
                    let (state, key) = (record.state.name(), &record.id.key);
                    warn!(route, key.digest = key.digest(), state, "a lease ran out");
                    observe::count(observe::ZOMBIE_KEY, route);
                    if record.state == State::Unknown {
                        observe::count(observe::RECONCILE_SCHEDULED, route);
                    }
                }
                if record.state == State::Completed && record.fingerprint == ask.fingerprint {
                    observe::count_often(observe::RESERVE_REPLAY, &ask.route);
                }
            }
            Reservation::Completed(found) if found.fingerprint == ask.fingerprint => {
                observe::count_often(observe::RESERVE_REPLAY, &ask.route);
            }
            Reservation::Completed(_) => {}
            Reservation::Accepted { found: Found::Retryable } => {
                observe::count(observe::RESERVE_FAILED_RETRY, route);
            }
            Reservation::Accepted { .. } => observe::count(observe::RESERVE_CREATED, route),
            Reservation::Free => {}
        }
    }

    pub(super) fn count_refusal(&self, refusal: &Refusal, policy: &Policy) {
        let counter = match refusal {
            Refusal::Mismatch => observe::RESERVE_KEY_MISUSE,
            Refusal::InProgress { .. } => observe::RESERVE_IN_PROGRESS,
            Refusal::OutcomeUnknown => observe::RESERVE_UNKNOWN,
            Refusal::Expired { .. } | Refusal::ReplyNotStored { .. } | Refusal::NotTaken => return,
        };
        observe::count(counter, &policy.name);
    }
}

/// Whether a key was granted that was not there before, or is new as its next generation.
fn is_creation(found: Found) -> bool {
    match found {
        Found::Absent | Found::Expired | Found::Mine => true,
        Found::Retryable | Found::LeaseOver | Found::Pending => false,
    }
}

fn is_ours(record: &Record, ask: &Ask) -> bool {
    record.attempt == ask.attempt
}

/// Whether what is in the way is an attempt that has not begun: our own.
fn is_ours_already(reservation: &Reservation, ask: &Ask) -> bool {
    match reservation {
        Reservation::Occupied { record, .. } => is_ours(record, ask),
        Reservation::Completed(found) => found.attempt == ask.attempt,
        _ => false,
    }
}

/// The store did not answer in time: whether it did what it was asked is not known.
pub(super) fn timed_out() -> StoreError {
    StoreError::new(StoreErrorKind::Ambiguous, "any", "no answer in time")
}

/// So many characters of a path are kept.
const PATH_MAX: usize = 255;

/// Paths are kept for operators to read, not to be parsed.
fn shortened(path: &str) -> &str {
    // As many bytes are no more characters.
    if path.len() <= PATH_MAX {
        return path;
    }
    path.char_indices().nth(PATH_MAX).map_or(path, |(end, _)| &path[..end])
}

thread_local! {
    static METHOD: RefCell<Arc<str>> = RefCell::default();
    static PATH: RefCell<Arc<str>> = RefCell::default();
}

/// Requests that come one after the other often say the same: it is then in memory once, for all of
/// their records.
fn shared(text: &str, last: &'static LocalKey<RefCell<Arc<str>>>) -> Arc<str> {
    last.with_borrow_mut(|last| {
        if **last != *text {
            *last = text.into();
        }
        Arc::clone(last)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_again_is_in_memory_once_and_what_is_not_is_told_apart() {
        let [first, again] = [(); 2].map(|()| shared("/charges", &PATH));
        assert!(Arc::ptr_eq(&first, &again));
        for other in ["/refunds", "", "/charges"] {
            assert_eq!(&*shared(other, &PATH), other);
        }
    }
}
