//! "It did execute": what a source says of one attempt, whatever was decided about it meanwhile.

use super::{Change, Step, audit, complete, reconcile::disagrees};
use crate::{
    clock::Timestamp,
    record::{AttemptId, AuditEvent, AuditRecord, Effects, Fence, Record, State},
    reply::Reply,
    store::{Proof, Resolution, Resolve, Resolved, Written},
};

/// The code of a record that was released because somebody said that its attempt had not acted.
pub const RESOLVED_NOT_EXECUTED: &str = "resolved_not_executed";

/// The code of a completed record that was said not to have acted before.
pub const EXECUTED_AFTER_ALL: &str = "executed_after_all";

/// What was told, and of which attempt.
pub(super) struct Told<'a> {
    pub(super) generation: u32,
    pub(super) fence: Fence,
    pub(super) attempt: AttemptId,
    pub(super) reason: &'a str,
}

impl Told<'_> {
    fn remembered(
        &self,
        record: &Record,
        event: AuditEvent,
        reply: Reply,
        now: Timestamp,
    ) -> AuditRecord {
        AuditRecord {
            generation: self.generation,
            attempt: self.attempt,
            fence: self.fence,
            ..audit(record, event, self.reason, Some(reply), now)
        }
    }
}

/// `record` is `stored` after its lease. Where nobody is at work, the reply is stored, so that nothing
/// runs again; where somebody is, or was, it is kept as evidence.
pub(super) fn executed(
    stored: &Record,
    record: &Record,
    told: &Told<'_>,
    reply: Reply,
    now: Timestamp,
) -> Step<Resolved> {
    let is_its_own = record.attempt == told.attempt;
    let may_complete = match record.state {
        State::Unknown => is_its_own,
        // A phased operation that nobody is at.
        State::InProgress => is_its_own && !record.lease_is_live(now),
        // Whoever came after the attempt did not act, and nobody is at it now.
        State::FailedRetryable => true,
        State::Pending => record.attempts > 0,
        State::Completed | State::Expired => false,
    };
    if may_complete && record.generation == told.generation {
        return completes(record, told, reply, now);
    }
    let is_known = is_its_own && record.generation == told.generation;
    let answer = Resolved::Refused(Box::new(stored.clone()));
    let event = match is_told_incident(record, told.generation, told.attempt, &reply) {
        true => AuditEvent::Incident,
        // It is at it, or has said the same, or its time is over.
        false if is_known => return Step::keep(answer),
        false => AuditEvent::SupersededResult,
    };
    let remembered = told.remembered(record, event, reply, now);
    Step { change: Change::Keep, audit: Some(remembered), answer }
}

/// Whether somebody said of the last attempt that it did not act, and nobody has taken the record since.
pub(super) fn was_denied(record: &Record) -> bool {
    matches!(record.state, State::FailedRetryable | State::Pending)
        && record.last_error.as_deref() == Some(RESOLVED_NOT_EXECUTED)
}

/// The attempt that was said not to have acted comes with its reply. It keeps its fence, so that the
/// same write repeated is known for what it is.
pub(super) fn executed_after_all(record: &Record, reply: Reply, now: Timestamp) -> Step<Written> {
    let remembered = audit(record, AuditEvent::Incident, "", Some(reply.clone()), now);
    let mut completed = record.clone();
    complete(&mut completed, reply, now);
    completed.last_error = Some(EXECUTED_AFTER_ALL.into());
    Step::put(completed, Some(remembered), Written::AppliedAfterRelease)
}

fn completes(record: &Record, told: &Told<'_>, reply: Reply, now: Timestamp) -> Step<Resolved> {
    let was_denied = matches!(record.state, State::FailedRetryable | State::Pending)
        || record.last_error.as_deref() == Some(RESOLVED_NOT_EXECUTED);
    let event = if was_denied { AuditEvent::Incident } else { AuditEvent::ResolvedCompleted };
    let remembered = told.remembered(record, event, reply.clone(), now);
    let mut resolved = record.clone();
    resolved.attempt = told.attempt;
    complete(&mut resolved, reply, now);
    resolved.last_error = was_denied.then(|| EXECUTED_AFTER_ALL.into());
    // The attempt itself may still come with a reply of its own: that is then evidence.
    resolved.fence = Fence::next(Some(record.fence), now);
    let answer = Resolved::Applied(Box::new(resolved.clone()));
    Step::put(resolved, Some(remembered), answer)
}

/// Whether an attempt is said to have acted while another one is at work, or may have acted, or came
/// to something else.
fn is_told_incident(stored: &Record, generation: u32, attempt: AttemptId, reply: &Reply) -> bool {
    let acts_again = matches!(stored.state, State::InProgress | State::Unknown)
        && stored.attempt != attempt
        && stored.generation == generation
        && must_act_once(stored);
    acts_again || is_incident(stored, generation, attempt, reply)
}

/// Whether what an attempt came to does not go together with the reply that is stored.
pub fn is_incident(stored: &Record, generation: u32, attempt: AttemptId, reply: &Reply) -> bool {
    stored.generation == generation && disagrees(stored, attempt, reply)
}

/// Whether what was decided, and what came of it, is an incident: for those who count them.
pub fn is_contradiction(decided: &Resolve, resolved: &Resolved) -> bool {
    let is_the_one =
        |record: &Record| record.generation == decided.generation && record.fence == decided.fence;
    match (resolved, &decided.resolution) {
        (Resolved::Applied(record), Resolution::Executed { .. } | Resolution::Complete(_)) => {
            record.last_error.as_deref() == Some(EXECUTED_AFTER_ALL)
        }
        (Resolved::Refused(record), Resolution::Executed { attempt, reply }) => {
            is_told_incident(record, decided.generation, *attempt, reply)
        }
        (Resolved::Refused(record), Resolution::Complete(reply)) => {
            is_the_one(record) && disagrees(record, record.attempt, reply)
        }
        (Resolved::Refused(record), Resolution::Release(Proof::Authoritative)) => {
            is_the_one(record) && has_succeeded(record)
        }
        _ => false,
    }
}

/// Whether a success is stored.
pub(super) fn has_succeeded(record: &Record) -> bool {
    let reply = record.reply.as_ref().filter(|_| record.state == State::Completed);
    reply.is_some_and(|reply| is_success(reply.status))
}

pub(super) fn is_success(status: http::StatusCode) -> bool {
    status.is_success() || status.is_redirection()
}

pub(super) fn must_act_once(record: &Record) -> bool {
    matches!(record.effects, Effects::External | Effects::Undeclared)
}
