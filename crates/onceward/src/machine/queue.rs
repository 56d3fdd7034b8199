//! Work that was accepted for later: when it is begun, and that it is begun again.

use std::time::Duration;

use super::{Step, after_retention, grant, known, regrant};
use crate::{
    clock::Timestamp,
    record::{Effects, Fence, Record, State},
    store::{Claim, Found, Reservation},
};

/// Takes a pending record for execution, if it is due.
pub fn claim(found: Option<&Record>, claim: &Claim, now: Timestamp) -> Step<Reservation> {
    let Some(mut record) = found.and_then(|stored| after_retention(stored, now)) else {
        return Step::keep(Reservation::Free);
    };
    // As in `reserve`: an attempt does not come again after its end. Whoever accepted it had none.
    let is_over = record.attempt == claim.attempt && record.attempts > 0;
    match record.state {
        State::InProgress if record.attempt == claim.attempt => regrant(&record, claim.lease, now),
        State::Pending if is_due(&record, now) && !is_over => {
            record.attempt = claim.attempt;
            record.fence = Fence::next(Some(record.fence), now);
            record.max_execution = claim.max_execution;
            // What is declared when it runs decides, should the attempt vanish.
            record.effects = claim.effects;
            grant(record, claim.lease, Found::Pending, None, now)
        }
        _ => Step::keep(Reservation::Occupied { record: Box::new(record), lease_ran_out: false }),
    }
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
