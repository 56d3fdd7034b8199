//! Work that waits for a worker: what was accepted for later, and phased operations that were cut off.

use std::time::Duration;

use super::{Step, after_lease, after_retention, effects_of_next, grant, known, regrant};
use crate::{
    clock::Timestamp,
    record::{Effects, Fence, Record, State},
    store::{Claim, Found, Reservation},
};

/// Takes a record that waits for a worker, if it is still the one that was looked at: a pending one
/// that is due, or a phased one that can be gone on with.
pub fn claim(found: Option<&Record>, claim: &Claim, now: Timestamp) -> Step<Reservation> {
    let Some(mut record) = found.and_then(|stored| after_retention(stored, now)) else {
        return Step::keep(Reservation::Free);
    };
    // As in `reserve`: an attempt does not come again after its end. Whoever accepted it had none.
    let is_over = record.attempt == claim.attempt && record.attempts > 0;
    if record.state == State::InProgress && record.attempt == claim.attempt {
        return regrant(&record, claim.lease, now);
    }
    let is_the_one = claim.fence.is_none_or(|fence| fence == record.fence);
    if is_over || !is_the_one || !is_resumable(&record, now) {
        let record = Box::new(record);
        return Step::keep(Reservation::Occupied { record, lease_ran_out: false });
    }
    let (found, remembered) = match record.state {
        State::Pending => (Found::Pending, None),
        _ => (Found::LeaseOver, after_lease(&record, now).1),
    };
    record.attempt = claim.attempt;
    record.fence = Fence::next(Some(record.fence), now);
    record.max_execution = claim.max_execution;
    record.effects = effects_of_next(&record, claim.effects);
    grant(record, claim.lease, found, remembered, now)
}

fn is_due(record: &Record, now: Timestamp) -> bool {
    record.state == State::Pending && record.lease_until <= now
}

/// The attempt did nothing: the next one may begin after a while.
pub(super) fn pending_again(record: &mut Record, why: Box<str>, now: Timestamp) {
    record.state = State::Pending;
    record.last_error = Some(why);
    known(record);
    record.lease_until = now.plus(backoff(record.attempts));
}

/// How long queued work waits after so many attempts: a second, doubling, at most a minute.
pub fn backoff(attempts: u32) -> Duration {
    let doublings = attempts.saturating_sub(1).min(6);
    (SOONEST * (1 << doublings)).min(LATEST)
}

const SOONEST: Duration = Duration::from_secs(1);
const LATEST: Duration = Duration::from_secs(60);

/// Whether an operation waits for a worker: a phased one to be gone on with, a pending one to be
/// begun.
pub fn is_resumable(record: &Record, now: Timestamp) -> bool {
    is_due(record, now)
        || record.state == State::InProgress
            && record.effects == Effects::Phased
            && !record.lease_is_live(now)
            && !record.progress.must_not_go_on()
}

/// Where an operation that waits for a worker stands in line: what is pending before what is phased,
/// then by the time from which it waits. A phased one may wait for ever for somebody who can go on
/// with it, and must not stand in the way of those that need nobody in particular.
pub fn line_of(record: &Record) -> (bool, Timestamp) {
    (record.state != State::Pending, record.lease_until)
}
