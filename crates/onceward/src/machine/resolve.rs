//! What a reconciler or an operator may decide, and which proof is believed.

use super::{
    Change, GIVEN_UP, MAX_EXECUTION_EXCEEDED, SETTLE, Step, after_lease, after_retention, audit,
    complete, known, not_acted,
    reconcile::{Heard, absent, ask, dead_letter, disagrees, redrive},
    told::{RESOLVED_NOT_EXECUTED, Told, executed, has_succeeded, was_denied},
    tombstone,
};
use crate::{
    clock::Timestamp,
    record::{AuditEvent, Effects, Fence, Record, State},
    reply::Reply,
    store::{Proof, Resolution, Resolve, Resolved},
};

/// Applies what a reconciler or an operator decided, if the record is still what they looked at.
pub fn resolve(found: Option<&Record>, resolve: Resolve, now: Timestamp) -> Step<Resolved> {
    let Some(stored) = found.and_then(|stored| after_retention(stored, now)) else {
        return Step::keep(Resolved::Absent);
    };
    let ran_out = stored.state == State::InProgress && !stored.lease_is_live(now);
    let record = if ran_out { after_lease(&stored, now).0 } else { stored.clone() };
    let reason = resolve.reason;
    let told = |attempt| Told {
        generation: resolve.generation,
        fence: resolve.fence,
        attempt,
        reason: &reason,
    };
    if let Resolution::Executed { attempt, reply } = resolve.resolution {
        return executed(&stored, &record, &told(attempt), reply, now);
    }
    if record.generation != resolve.generation || record.fence != resolve.fence {
        return Step::keep(Resolved::Refused(Box::new(stored)));
    }
    let mut resolved = record.clone();
    let mut decided_reply = None;
    let event = match (record.state, resolve.resolution) {
        (State::Unknown, Resolution::Complete(reply)) => {
            decided_reply = Some(reply.clone());
            complete(&mut resolved, reply, now);
            // The attempt itself may still come with a reply of its own: that is then evidence.
            resolved.fence = Fence::next(Some(record.fence), now);
            AuditEvent::ResolvedCompleted
        }
        // A phased operation that nobody is at, and that perhaps nobody can go on with.
        (State::InProgress, Resolution::Complete(reply)) if ran_out => {
            decided_reply = Some(reply.clone());
            complete(&mut resolved, reply, now);
            resolved.fence = Fence::next(Some(record.fence), now);
            AuditEvent::ResolvedCompleted
        }
        // Somebody said that it had not acted, and now somebody says that it has.
        (_, Resolution::Complete(reply)) if was_denied(&record) => {
            return executed(&stored, &record, &told(record.attempt), reply, now);
        }
        // Nobody has begun, or whoever did has not acted: this is what its client is told instead.
        (State::Pending, Resolution::Complete(reply)) => {
            decided_reply = Some(reply.clone());
            given_up(&mut resolved, reply, now)
        }
        (State::Pending, Resolution::GiveUp(reply)) => {
            if let Some(not_before) = record.queued_until.filter(|end| now < *end) {
                return Step::keep(Resolved::TooEarly { not_before });
            }
            decided_reply = Some(reply.clone());
            given_up(&mut resolved, reply, now)
        }
        (State::Unknown, Resolution::Release(proof)) => {
            if let Err(not_before) = believe(&record, proof, now) {
                return Step::keep(Resolved::TooEarly { not_before });
            }
            not_executed(&mut resolved, now);
            AuditEvent::Released
        }
        (State::Unknown, Resolution::Ask { probes }) => {
            let Some(asked) = ask(&record, probes, now) else {
                return Step::keep(Resolved::Refused(Box::new(stored)));
            };
            let answer = Resolved::Applied(Box::new(asked.clone()));
            return Step::put(asked, None, answer);
        }
        (State::Unknown, Resolution::Absent { asked_at, apart }) => {
            match absent(&record, asked_at, apart) {
                Heard::NotThis => return Step::keep(Resolved::Refused(Box::new(stored))),
                Heard::TooEarly(noted, not_before) => {
                    return Step::put(*noted, None, Resolved::TooEarly { not_before });
                }
                Heard::Believed => {
                    not_executed(&mut resolved, now);
                    AuditEvent::Released
                }
            }
        }
        (State::Unknown, Resolution::DeadLetter { asked_at })
            if !record.is_dead_letter() && record.inquiry.asked_at == asked_at =>
        {
            dead_letter(&mut resolved);
            AuditEvent::DeadLettered
        }
        (State::Unknown, Resolution::Redrive) => {
            redrive(&mut resolved, now);
            AuditEvent::Redriven
        }
        // It stands; that somebody else says something else is worth a look.
        (State::Completed, Resolution::Complete(reply))
            if disagrees(&record, record.attempt, &reply) =>
        {
            let remembered = audit(&record, AuditEvent::Incident, &reason, Some(reply), now);
            let answer = Resolved::Refused(Box::new(stored));
            return Step { change: Change::Keep, audit: Some(remembered), answer };
        }
        (State::Completed, Resolution::Release(Proof::Authoritative)) if has_succeeded(&record) => {
            let remembered = audit(&record, AuditEvent::Incident, &reason, None, now);
            let answer = Resolved::Refused(Box::new(stored));
            return Step { change: Change::Keep, audit: Some(remembered), answer };
        }
        (State::Completed, Resolution::Void) => {
            resolved = tombstone(&record);
            resolved.void = true;
            resolved.expires_at = now;
            AuditEvent::Voided
        }
        _ => return Step::keep(Resolved::Refused(Box::new(stored))),
    };
    let remembered = audit(&record, event, &reason, decided_reply, now);
    let answer = Resolved::Applied(Box::new(resolved.clone()));
    Step::put(resolved, Some(remembered), answer)
}

fn given_up(record: &mut Record, reply: Reply, now: Timestamp) -> AuditEvent {
    complete(record, reply, now);
    record.last_error = Some(GIVEN_UP.into());
    record.fence = Fence::next(Some(record.fence), now);
    AuditEvent::GivenUp
}

/// The last attempt did not act. If steps were made before, they stand.
fn not_executed(record: &mut Record, now: Timestamp) {
    let why = RESOLVED_NOT_EXECUTED.into();
    if record.progress.is_none() {
        return not_acted(record, why, now);
    }
    record.state = State::InProgress;
    record.progress.open_effect = None;
    // Whatever the last attempt was declared to do, it did not: what is left are the steps.
    record.effects = Effects::Phased;
    record.lease_until = now;
    record.last_error = Some(why);
    known(record);
    // The attempt itself may still come: it has lost its right.
    record.fence = Fence::next(Some(record.fence), now);
}

/// Proof that a thing did not happen counts only once it cannot happen any more. Whoever knows all
/// about the past does not know what an attempt will do that goes on after its time.
fn believe(record: &Record, proof: Proof, now: Timestamp) -> Result<(), Timestamp> {
    let Proof::TwoProbes { first, second } = proof else {
        let goes_on = record.last_error.as_deref() == Some(MAX_EXECUTION_EXCEEDED);
        let not_before = record.lease_until.plus(record.max_execution);
        return if goes_on && now < not_before { Err(not_before) } else { Ok(()) };
    };
    let quiet_since = record.lease_until.plus(record.max_execution).plus(SETTLE);
    let first_counts = first.max(quiet_since);
    let not_before = first_counts.plus(SETTLE);
    if first >= quiet_since && second >= not_before && second <= now {
        return Ok(());
    }
    Err(not_before)
}
