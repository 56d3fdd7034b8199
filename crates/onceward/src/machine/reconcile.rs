//! Unknown outcomes: when they are asked about, how often, and what an answer is worth.

use std::time::Duration;

use super::{
    SETTLE,
    told::{is_success, must_act_once},
};
use crate::{
    clock::Timestamp,
    record::{AttemptId, Inquiry, Record, State},
    reply::Reply,
};

/// Whether somebody should ask what became of it.
pub fn is_due_for_probe(record: &Record, now: Timestamp) -> bool {
    record.state == State::Unknown && record.reconcile_after.is_some_and(|due| due <= now)
}

/// How long after so many probes the next one comes: half a minute, doubling, at most an hour.
pub fn probe_pause(probes: u32) -> Duration {
    let doublings = probes.saturating_sub(1).min(7);
    (SOONEST * (1 << doublings)).min(LATEST)
}

const SOONEST: Duration = Duration::from_secs(30);
const LATEST: Duration = Duration::from_secs(3_600);

/// Takes the record for one probe. Who saw fewer probes than there are comes too late: somebody else
/// is asking. If that one dies, the record is due again after the pause.
pub(super) fn ask(record: &Record, probes: u32, now: Timestamp) -> Option<Record> {
    if record.inquiry.probes != probes || !is_due_for_probe(record, now) {
        return None;
    }
    let mut asked = record.clone();
    asked.inquiry.probes = probes.saturating_add(1);
    asked.inquiry.asked_at = Some(now);
    asked.reconcile_after = Some(now.plus(probe_pause(asked.inquiry.probes)));
    Some(asked)
}

/// What a probe that found nothing executed is worth.
pub(super) enum Heard {
    /// It is not the last one that was begun.
    NotThis,
    /// Not enough. With what is noted of it, and from when on another one would be.
    TooEarly(Box<Record>, Timestamp),
    /// It is the second that counts.
    Believed,
}

/// Proof that a thing did not happen counts only once it cannot happen any more, and needs two probes
/// that came late enough and apart enough: by the store's clock, which may leap, and by that of whoever
/// asks. That one was not there from the beginning; from its own first probe on it has to see as much
/// time pass as an attempt takes that was at work then.
pub(super) fn absent(record: &Record, asked_at: Timestamp, apart: Duration) -> Heard {
    if record.inquiry.asked_at != Some(asked_at) {
        return Heard::NotThis;
    }
    let quiet_since = record.lease_until.plus(record.max_execution).plus(SETTLE);
    let missing = record.max_execution.saturating_add(SETTLE * 2).saturating_sub(apart);
    let mut noted = record.clone();
    let not_before = match record.inquiry.absent_at {
        // So that the one after the next decides.
        _ if asked_at < quiet_since => {
            quiet_since.max(asked_at.plus(missing.saturating_sub(SETTLE)))
        }
        Some(first) if asked_at < first.plus(SETTLE) => first.plus(SETTLE),
        Some(_) if missing.is_zero() => return Heard::Believed,
        Some(_) => asked_at.plus(missing),
        None => {
            noted.inquiry.absent_at = Some(asked_at);
            asked_at.plus(missing.max(SETTLE))
        }
    };
    noted.reconcile_after = Some(not_before);
    Heard::TooEarly(Box::new(noted), not_before)
}

/// Nobody asks any more: a person must.
pub(super) fn dead_letter(record: &mut Record) {
    record.reconcile_after = Some(Timestamp::NEVER);
}

/// As if it had just become unknown.
pub(super) fn redrive(record: &mut Record, now: Timestamp) {
    record.reconcile_after = Some(now);
    record.inquiry = Inquiry::default();
}

/// Whether a result does not go together with the one that is stored. Of one attempt, which acted once,
/// two sources may tell in different words, and of work that may run again two attempts: then it has to
/// be a success for both, or for neither. Of anything else two attempts must not both have come to a
/// result, whatever it is. Bytes are not compared: a store may hold them sealed.
pub(super) fn disagrees(stored: &Record, attempt: AttemptId, reply: &Reply) -> bool {
    let Some(known) = stored.reply.as_ref().filter(|_| stored.state == State::Completed) else {
        return false;
    };
    is_success(known.status) != is_success(reply.status)
        || (must_act_once(stored) && stored.attempt != attempt)
}
