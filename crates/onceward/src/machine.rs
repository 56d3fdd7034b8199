//! The rules: which transitions a record may make, and what a request is answered.
//!
//! Pure: no async, no clock, no I/O, no randomness. The memory and file stores call these functions
//! inside their atomic step; other stores repeat them in their own language and are compared with
//! them by the suite. Nobody else knows the rules.
//!
//! ```text
//! (none) --reserve--> in_progress --complete-----------> completed --retention over--> expired
//!    \--accept--> pending --claim--^  |--release-------> failed_retryable --reserve--> in_progress
//!                                     |--mark unknown--> unknown --resolve--> completed | failed_retryable
//!                                     `--lease over----> by declared effects
//! queued (it was accepted): in_progress --release, or lease over without effects--> pending, later
//!                           unknown --resolve--> completed | pending, and pending --give up--> completed
//! in_progress with steps made --release--> in_progress, its lease over: resumed by the next reserve
//! unknown with steps made --resolve--> completed | in_progress, its lease over
//! completed --void--> expired --reserve--> in_progress (next generation), or --purge--> (none)
//! unknown --complete by the very attempt--> completed
//! released by a word --told that it did execute, or completed by the very attempt--> completed, and
//!                    an incident
//! failed_retryable --retention over--> expired
//! ```

use std::time::Duration;

use crate::{
    clock::Timestamp,
    record::{AuditEvent, AuditRecord, Effects, Fence, Inquiry, Lease, Progress, Record, State},
    reply::Reply,
    store::{Ask, Found, Mode, Reservation, Swept, Write, Written},
};

mod advance;
mod canary;
mod decide;
mod provider;
mod queue;
mod reconcile;
mod resolve;
#[cfg(test)]
pub(crate) mod tests;
mod told;

pub use advance::{ANOTHER_EFFECT_IS_OPEN, STEP_HAS_A_RESULT, advance, keeps_request};
pub use canary::{BEATS_KEPT, BeatStep, beat};
pub use decide::{Decision, Refusal, decide};
pub use provider::{NoteStep, is_made_anew, note};
use queue::pending_again;
pub use queue::{backoff, claim, is_resumable, line_of};
pub use reconcile::{is_due_for_probe, probe_pause};
pub use resolve::resolve;
pub use told::{EXECUTED_AFTER_ALL, RESOLVED_NOT_EXECUTED, is_contradiction, is_incident};
use told::{executed_after_all, must_act_once, was_denied};

/// Why an attempt was given up that may still be at work.
pub(crate) const MAX_EXECUTION_EXCEEDED: &str = "max_execution_exceeded";

/// How long things need to settle before "it did not happen" can be believed: a request that was
/// sent just before its attempt died may still be on its way.
pub const SETTLE: Duration = Duration::from_secs(60);

/// The code of a record whose lease ran out.
pub const LEASE_RAN_OUT: &str = "in_progress_lock_expired";

/// The code of accepted work that was given up before it acted.
pub const GIVEN_UP: &str = "given_up";

/// The code of a record whose attempt ended while an effect was open that must not be called again.
pub const EFFECT_WITHOUT_RESULT: &str = "effect_without_result";

/// One atomic step: what to write, what to remember, what to answer.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Step<A> {
    /// What becomes of the record.
    pub change: Change,
    /// What is worth an audit record.
    pub audit: Option<AuditRecord>,
    /// The answer to the caller.
    pub answer: A,
}

/// What becomes of the record.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// It stays as it is.
    Keep,
    /// It is written.
    Put(Box<Record>),
    /// It goes.
    Remove,
}

impl<A> Step<A> {
    fn keep(answer: A) -> Self {
        Step { change: Change::Keep, audit: None, answer }
    }

    fn put(record: Record, audit: Option<AuditRecord>, answer: A) -> Self {
        Step { change: Change::Put(Box::new(record)), audit, answer }
    }
}

/// Takes the record if it is free, else answers with what is in the way.
pub fn reserve(found: Option<&Record>, ask: &Ask, now: Timestamp) -> Step<Reservation> {
    let Some(stored) = found else { return begin(None, ask, Found::Absent, now) };
    if is_held_by(stored, ask) {
        return regrant(stored, ask.lease, now);
    }
    // An attempt does not come again after its end: such a call was delayed on its way, and nobody
    // is left to run under it.
    let was_ours = stored.attempt == ask.attempt;
    let record = match after_retention(stored, now) {
        Some(record) => record,
        None if was_ours => tombstone(stored),
        // The tombstone's time is over too: the key is new, but its fence still grows.
        None => return begin(Some((stored.fence, 0)), ask, Found::Absent, now),
    };
    if record.state == State::Expired && (ask.expired_runs_again || record.void) && !was_ours {
        return begin(Some((record.fence, record.generation)), ask, Found::Expired, now);
    }
    let occupied =
        |record| Reservation::Occupied { record: Box::new(record), lease_ran_out: false };
    // From here on only the same request may change anything.
    if record.fingerprint != ask.fingerprint {
        return Step::keep(occupied(record));
    }
    if record.state != State::InProgress || record.lease_is_live(now) {
        return match record.state {
            State::FailedRetryable if !was_ours => {
                grant_again(record, ask, Found::Retryable, None, now)
            }
            _ => Step::keep(occupied(record)),
        };
    }
    let (moved, audit) = after_lease(&record, now);
    match moved.state {
        State::FailedRetryable if was_ours => Step::keep(occupied(record)),
        // It was begun, so that it is nothing to accept: a worker goes on with it.
        State::InProgress if ask.mode == Mode::Accept => Step::keep(occupied(record)),
        State::FailedRetryable | State::InProgress => {
            grant_again(moved, ask, Found::LeaseOver, audit, now)
        }
        // A look leaves the moving to the sweeper, or to whoever comes to execute.
        _ if ask.mode == Mode::LookupOnly => Step::keep(occupied(record)),
        _ => {
            let seen = Box::new(moved.clone());
            let answer = Reservation::Occupied { record: seen, lease_ran_out: true };
            Step::put(moved, audit, answer)
        }
    }
}

fn is_held_by(record: &Record, ask: &Ask) -> bool {
    record.attempt == ask.attempt
        && record.fingerprint == ask.fingerprint
        && match ask.mode {
            Mode::Execute => record.state == State::InProgress,
            Mode::Accept => record.state == State::Pending,
            Mode::LookupOnly => false,
        }
}

/// The answer to a repeated call of an attempt that has the record already.
fn regrant(record: &Record, lease: Duration, now: Timestamp) -> Step<Reservation> {
    if record.state == State::Pending {
        return Step::keep(Reservation::Accepted { found: Found::Mine });
    }
    let mut record = record.clone();
    // The owner counts its deadline from the time it sent this call, so the lease must reach there.
    record.lease_until = record.lease_until.max(now.plus(lease));
    let lease = lease_of(&record);
    Step::put(record, None, Reservation::Granted { lease, found: Found::Mine })
}

/// A new generation, after the fence and the generation of the one before.
fn begin(
    before: Option<(Fence, u32)>,
    ask: &Ask,
    found: Found,
    now: Timestamp,
) -> Step<Reservation> {
    if ask.mode == Mode::LookupOnly {
        return Step::keep(Reservation::Free);
    }
    let record = Record {
        id: ask.id.clone(),
        fingerprint: ask.fingerprint,
        generation: before.map_or(1, |(_, generation)| generation.saturating_add(1)),
        state: State::Pending,
        attempt: ask.attempt,
        fence: Fence::next(before.map(|(fence, _)| fence), now),
        attempts: 0,
        effects: ask.effects,
        route: ask.route.clone(),
        method: ask.method.clone(),
        path: ask.path.clone(),
        created_at: now,
        started_at: now,
        lease_until: now,
        max_execution: ask.max_execution,
        finished_at: None,
        expires_at: now.plus(ask.retention),
        retention: ask.retention,
        tombstone: ask.tombstone,
        reply: None,
        last_error: None,
        reconcile_after: None,
        inquiry: Inquiry::default(),
        void: false,
        progress: Progress::default(),
        queued_until: (ask.mode == Mode::Accept).then(|| now.plus(ask.queued_for)),
    };
    if ask.mode == Mode::Accept {
        return Step::put(record, None, Reservation::Accepted { found });
    }
    grant(record, ask.lease, found, None, now)
}

/// The same generation once more, under the rules of the request that asks now.
fn grant_again(
    mut record: Record,
    ask: &Ask,
    found: Found,
    audit: Option<AuditRecord>,
    now: Timestamp,
) -> Step<Reservation> {
    if ask.mode == Mode::LookupOnly {
        return Step::keep(Reservation::Free);
    }
    record.attempt = ask.attempt;
    record.fence = Fence::next(Some(record.fence), now);
    record.effects = effects_of_next(&record, ask.effects);
    record.route = ask.route.clone();
    record.max_execution = ask.max_execution;
    record.retention = ask.retention;
    record.tombstone = ask.tombstone;
    if ask.mode == Mode::Accept {
        record.state = State::Pending;
        record.finished_at = None;
        record.lease_until = now;
        record.queued_until = Some(now.plus(ask.queued_for));
        return Step::put(record, audit, Reservation::Accepted { found });
    }
    grant(record, ask.lease, found, audit, now)
}

/// What the next attempt is said to do. What is declared when it runs decides, should it vanish; but where
/// earlier attempts made steps, under a policy that has changed since, it is not without effects: it
/// stays one that a worker finds and goes on with.
fn effects_of_next(record: &Record, declared: Effects) -> Effects {
    match declared {
        Effects::Local | Effects::None if !record.progress.is_none() => Effects::Phased,
        declared => declared,
    }
}

fn grant(
    mut record: Record,
    lease: Duration,
    found: Found,
    audit: Option<AuditRecord>,
    now: Timestamp,
) -> Step<Reservation> {
    record.state = State::InProgress;
    record.attempts = record.attempts.saturating_add(1);
    record.started_at = now;
    record.lease_until = now.plus(lease);
    record.finished_at = None;
    let lease = lease_of(&record);
    Step::put(record, audit, Reservation::Granted { lease, found })
}

fn lease_of(record: &Record) -> Lease {
    Lease {
        id: record.id.clone(),
        attempt: record.attempt,
        fence: record.fence,
        generation: record.generation,
        attempt_number: record.attempts,
        until: record.lease_until,
    }
}

/// Renews, completes, releases or marks unknown, if the attempt still may.
///
/// State and fence decide, not lease time: an owner that comes late but whom nobody replaced is
/// still the one who knows.
pub fn write(found: Option<&Record>, lease: &Lease, write: Write, now: Timestamp) -> Step<Written> {
    let Some(stored) = found else { return Step::keep(Written::Superseded(None)) };
    let mine = stored.attempt == lease.attempt && stored.fence == lease.fence;
    let late_completion =
        mine && stored.state == State::Unknown && matches!(write, Write::Complete(_));
    if mine && matches!(&write, Write::Release(why) if is_suspended(stored, why, now)) {
        return Step::keep(Written::AlreadyMine(None));
    }
    if mine && (stored.state == State::InProgress || late_completion) {
        return apply(stored.clone(), write, now);
    }
    let write = match write {
        // Nobody has run it again: with this reply nobody will.
        Write::Complete(reply) if mine && was_denied(stored) => {
            return executed_after_all(stored, reply, now);
        }
        other => other,
    };
    let repeated = match (stored.state, &write) {
        // The handler may have completed it inside its own transaction, before the engine wrote.
        (State::Completed, _) => true,
        (State::FailedRetryable | State::Pending, Write::Release(_)) => true,
        (State::Unknown, Write::MarkUnknown(_)) => true,
        (State::Unknown, Write::Release(_)) => stored.progress.must_not_go_on(),
        _ => false,
    };
    if mine && repeated {
        return Step::keep(Written::AlreadyMine(stored.reply.clone()));
    }
    superseded(stored, lease, write, now)
}

/// Completes in a transaction of the user's that is still to be committed, if the attempt still may.
///
/// Of an attempt that was said not to have acted it is refused where the transaction is all that it
/// does: rolled back, what was said is true, and a retry runs once. Where something else may have acted,
/// a rollback does not take it back, and the reply counts as in [`write()`].
pub fn complete_in(
    found: Option<&Record>,
    lease: &Lease,
    reply: Reply,
    now: Timestamp,
) -> Step<Written> {
    match found {
        Some(stored) if was_denied(stored) && !must_act_once(stored) => {
            superseded(stored, lease, Write::Complete(reply), now)
        }
        _ => write(found, lease, Write::Complete(reply), now),
    }
}

/// The record moved on. A result is kept as evidence.
fn superseded(stored: &Record, lease: &Lease, write: Write, now: Timestamp) -> Step<Written> {
    let audit = match write {
        Write::Complete(reply) => {
            let event = match is_incident(stored, lease.generation, lease.attempt, &reply) {
                true => AuditEvent::Incident,
                false => AuditEvent::SupersededResult,
            };
            Some(AuditRecord {
                attempt: lease.attempt,
                fence: lease.fence,
                generation: lease.generation,
                ..audit(stored, event, "", Some(reply), now)
            })
        }
        _ => None,
    };
    Step {
        change: Change::Keep,
        audit,
        answer: Written::Superseded(Some(Box::new(stored.clone()))),
    }
}

fn apply(mut record: Record, write: Write, now: Timestamp) -> Step<Written> {
    let mut remembered = None;
    match write {
        Write::Renew(by) => record.lease_until = record.lease_until.max(now.plus(by)),
        Write::Complete(reply) => {
            if record.state == State::Unknown {
                let evidence = Some(reply.clone());
                remembered = Some(audit(&record, AuditEvent::LateCompletion, "", evidence, now));
            }
            complete(&mut record, reply, now);
        }
        Write::Release(why) => release(&mut record, why, now),
        Write::MarkUnknown(why) => unknown(&mut record, why, now),
    }
    Step::put(record, remembered, Written::Applied)
}

fn complete(record: &mut Record, reply: Reply, now: Timestamp) {
    record.state = State::Completed;
    record.reply = Some(reply);
    record.last_error = None;
    known(record);
    rest(record, now);
}

/// Whoever has made a step has acted: it is never said to have failed, but waits to be gone on with.
fn release(record: &mut Record, why: Box<str>, now: Timestamp) {
    if record.progress.is_none() {
        not_acted(record, why, now);
    } else if record.progress.must_not_go_on() {
        unknown(record, EFFECT_WITHOUT_RESULT.into(), now);
    } else {
        record.last_error = Some(why);
        record.lease_until = now;
    }
}

fn is_suspended(record: &Record, why: &str, now: Timestamp) -> bool {
    record.state == State::InProgress
        && !record.progress.is_none()
        && !record.progress.must_not_go_on()
        && record.last_error.as_deref() == Some(why)
        && record.lease_until <= now
}

/// Nothing was done. Where a client was promised that it will be, it waits to be claimed again.
fn not_acted(record: &mut Record, why: Box<str>, now: Timestamp) {
    match record.is_queued() {
        true => pending_again(record, why, now),
        false => retryable(record, why, now),
    }
}

fn retryable(record: &mut Record, why: Box<str>, now: Timestamp) {
    record.state = State::FailedRetryable;
    record.last_error = Some(why);
    known(record);
    rest(record, now);
}

fn unknown(record: &mut Record, why: Box<str>, now: Timestamp) {
    record.state = State::Unknown;
    record.last_error = Some(why);
    record.reconcile_after = Some(now);
}

/// There is nothing to ask for any more.
fn known(record: &mut Record) {
    record.reconcile_after = None;
    record.inquiry = Inquiry::default();
}

/// Retention runs from the moment the record comes to rest.
fn rest(record: &mut Record, now: Timestamp) {
    record.finished_at = Some(now);
    record.expires_at = now.plus(record.retention);
}

fn audit(
    record: &Record,
    event: AuditEvent,
    reason: &str,
    reply: Option<Reply>,
    now: Timestamp,
) -> AuditRecord {
    AuditRecord {
        at: now,
        id: record.id.clone(),
        generation: record.generation,
        event,
        attempt: record.attempt,
        fence: record.fence,
        reason: reason.into(),
        reply,
    }
}

/// Moves a record on whose lease ran out, by its declared effects. A phased one stays, to be resumed
/// at its recovery point by whoever reserves it next, unless an effect is open that must not be
/// called again.
fn after_lease(record: &Record, now: Timestamp) -> (Record, Option<AuditRecord>) {
    let mut moved = record.clone();
    match record.effects {
        _ if record.progress.must_not_go_on() => unknown(&mut moved, LEASE_RAN_OUT.into(), now),
        Effects::Undeclared | Effects::External => unknown(&mut moved, LEASE_RAN_OUT.into(), now),
        Effects::Phased => {}
        // Earlier attempts made steps, under a policy that has changed since.
        Effects::Local | Effects::None if !record.progress.is_none() => {}
        Effects::Local | Effects::None => not_acted(&mut moved, LEASE_RAN_OUT.into(), now),
    }
    let remembered = audit(record, AuditEvent::LeaseExpired, moved.state.name(), None, now);
    (moved, Some(remembered))
}

/// What retention leaves of a record: itself, a tombstone, or nothing.
fn after_retention(record: &Record, now: Timestamp) -> Option<Record> {
    if !is_past_retention(record, now) {
        return Some(record.clone());
    }
    if now >= record.purge_at() {
        return None;
    }
    Some(tombstone(record))
}

fn is_past_retention(record: &Record, now: Timestamp) -> bool {
    record.state.is_terminal() && now >= record.expires_at
}

fn tombstone(record: &Record) -> Record {
    let mut record = record.clone();
    // Nothing stands behind the tombstone of something that never acted.
    record.void |= record.state == State::FailedRetryable;
    record.state = State::Expired;
    // How it ended is kept; what was answered is not.
    record.reply = record.reply.map(Reply::status_only);
    record
}

/// The record as a reader sees it now.
pub fn load(found: Option<&Record>, now: Timestamp) -> Option<Record> {
    after_retention(found?, now)
}

/// The state in which the record is loaded; `None` if it is gone.
pub fn state_at(record: &Record, now: Timestamp) -> Option<State> {
    match is_past_retention(record, now) {
        false => Some(record.state),
        true => (now < record.purge_at()).then_some(State::Expired),
    }
}

/// Moves the record on if its lease ran out.
pub fn sweep(record: &Record, now: Timestamp) -> Step<Option<Swept>> {
    let ran_out = record.state == State::InProgress && !record.lease_is_live(now);
    if !ran_out {
        return Step::keep(None);
    }
    let (moved, remembered) = after_lease(record, now);
    if moved.state == State::InProgress {
        return Step::keep(None);
    }
    let Record { state, attempt, .. } = moved;
    let swept = Swept { id: moved.id.clone(), state, attempt, route: moved.route.clone() };
    Step::put(moved, remembered, Some(swept))
}

/// Drops the body of a record past retention, and the record once its tombstone's time is over.
pub fn reap(record: &Record, now: Timestamp) -> Change {
    match state_at(record, now) {
        None => Change::Remove,
        Some(state) if state != record.state => Change::Put(Box::new(tombstone(record))),
        Some(_) => Change::Keep,
    }
}
