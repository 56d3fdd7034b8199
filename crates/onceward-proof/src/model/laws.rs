//! What must hold whenever the record changes: the state drawing of the design, told a second time
//! and independently of the machine, with who may take which arrow.

use onceward::record::{Effects, State as RecordState};

use super::{
    situation::Situation,
    state::{FenceNo, Name, Phase, Stored},
    store::{By, Turn},
};

/// Why the record changed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cause {
    Reserve { name: Name, asks: u8, claims: bool, granted: bool, began: bool },
    Write { name: Name, fence: FenceNo, completes: bool },
    Sweep,
    Reap,
    Resolve { release: bool, void: bool, by: By },
}

/// Judges a change that was just made.
pub(super) fn judge(turn: &mut Turn<'_>, before: Option<Stored>, cause: Cause) {
    let after = turn.state.record;
    if before == after {
        return;
    }
    let verdict = match cause {
        Cause::Reserve { .. } => reserved(turn, before, after, cause),
        Cause::Write { name, fence, completes } => {
            written(turn, before, after, name, fence, completes)
        }
        Cause::Sweep => swept(turn, before, after),
        Cause::Reap => reaped(turn, before, after),
        Cause::Resolve { release, void, by } => resolved(turn, before, after, release, void, by),
    };
    if let Err(why) = verdict {
        turn.wrong(why);
    }
    at_rest_or_with_ticket(turn, after);
}

type Verdict = Result<(), String>;

fn law(holds: bool, why: &str) -> Verdict {
    if holds { Ok(()) } else { Err(why.into()) }
}

fn lease_is_over(record: &Stored) -> bool {
    record.state == RecordState::InProgress && record.lease_until <= 0
}

fn may_run_again(effects: Effects) -> bool {
    matches!(effects, Effects::None | Effects::Local | Effects::Phased)
}

fn reserved(
    turn: &mut Turn<'_>,
    before: Option<Stored>,
    after: Option<Stored>,
    cause: Cause,
) -> Verdict {
    let Cause::Reserve { name, asks, claims, granted, began } = cause else { return Ok(()) };
    let Some(after) = after else { return law(false, "I11: a reserve removed the record") };
    if granted {
        let grows = turn.state.fence_max.is_none_or(|max| after.fence > max);
        law(grows, "I3: a grant whose fence is not larger than every fence before")?;
        law(after.attempt == name, "I3: a grant in the name of another attempt")?;
        turn.state.fence_max = Some(after.fence);
    }
    if began {
        return new_use(turn, before, after);
    }
    let Some(before) = before else { return law(false, "I7: a record out of nothing") };
    law(before.generation == after.generation, "I11: a generation that nobody began")?;
    law(claims || before.asks == asks, "I9: another fingerprint moved the record")?;
    use RecordState::{FailedRetryable, InProgress, Pending, Unknown};
    match (before.state, after.state) {
        (Pending, InProgress) => {
            turn.see(Situation::Claimed, true);
            law(claims && granted, "a pending record was taken without a claim")
        }
        (InProgress, InProgress) if !granted => {
            turn.see(Situation::Regranted, true);
            let same = before.attempt == name && before.fence == after.fence;
            law(same, "I3: a lease was prolonged for another attempt")
        }
        (InProgress, InProgress) => {
            turn.see(Situation::TwoGrants, true);
            turn.see(Situation::LeaseOverTaken, before.effects != Effects::Phased);
            turn.see(Situation::PhasedResumed, before.effects == Effects::Phased);
            let over = lease_is_over(&before) && may_run_again(before.effects);
            law(over, "I1: a record was taken from an attempt that may still act")
        }
        (InProgress, Unknown) => {
            turn.see(Situation::LeaseOverFoundByReserve, true);
            law(lease_is_over(&before), "I3: a live lease was ended by a reserve")
        }
        (InProgress, Pending) => {
            let over = lease_is_over(&before) && may_run_again(before.effects);
            law(over && before.queued, "I1: work was queued again that may still act")
        }
        (FailedRetryable, InProgress) => {
            turn.see(Situation::ReservedAgain, true);
            turn.see(Situation::TwoGrants, true);
            law(granted, "I3: a record was taken without a grant")?;
            law(before.attempt != name, "an attempt that gave its record back got it again")
        }
        (FailedRetryable, Pending) => {
            turn.see(Situation::AcceptedAgain, true);
            Ok(())
        }
        (Unknown, _) => law(false, "I4: a reserve moved an unknown record"),
        (from, to) => Err(format!("no arrow from {} to {} by reserve", from.name(), to.name())),
    }
}

fn new_use(turn: &mut Turn<'_>, before: Option<Stored>, after: Stored) -> Verdict {
    turn.see(Situation::Accepted, after.state == RecordState::Pending);
    let Some(before) = before else {
        turn.see(Situation::Reserved, after.state == RecordState::InProgress);
        turn.see(Situation::NewAfterPurge, turn.state.uses > 1);
        return Ok(());
    };
    law(before.state.is_terminal(), "I11: a new generation over a record that is not terminal")?;
    let gone = before.expires_at.saturating_add(turn.world.tombstone) <= 0;
    let expired = before.state == RecordState::Expired || before.expires_at <= 0;
    law(expired, "I11: a new generation before retention is over")?;
    let nothing_behind = before.void || before.state == RecordState::FailedRetryable;
    let runs_again = turn.world.expired_runs_again || nothing_behind || gone;
    law(runs_again, "I11: an expired key ran again against its policy")?;
    turn.see(Situation::ExpiredRunsAgain, !gone && !nothing_behind);
    turn.see(Situation::VoidRunsAgain, !gone && nothing_behind && !turn.world.expired_runs_again);
    turn.see(Situation::NewAfterPurge, gone);
    Ok(())
}

fn written(
    turn: &mut Turn<'_>,
    before: Option<Stored>,
    after: Option<Stored>,
    name: Name,
    fence: FenceNo,
    completes: bool,
) -> Verdict {
    use RecordState::{Completed, FailedRetryable, InProgress, Pending, Unknown};
    let (Some(before), Some(after)) = (before, after) else {
        return law(false, "I11: a write made or removed a record");
    };
    let owner = before.attempt == name && before.fence == fence;
    law(owner, "I3: a write of a lost owner changed the record")?;
    let same = after.attempt == name && after.fence == fence && before.asks == after.asks;
    law(same, "I3: a write changed whose record it is")?;
    match (before.state, after.state) {
        (InProgress, InProgress) => law(!completes, "a completion that did not complete"),
        (InProgress, Completed) => {
            turn.see(Situation::Completed, true);
            law(completes, "completed without a reply")
        }
        (InProgress, FailedRetryable) => {
            turn.see(Situation::Released, true);
            law(!before.queued, "accepted work was released and nobody will begin it")
        }
        (InProgress, Pending) => {
            turn.see(Situation::QueuedAgain, true);
            law(before.queued, "work waits for a worker that was never accepted")
        }
        (InProgress, Unknown) => {
            turn.see(Situation::MarkedUnknown, true);
            Ok(())
        }
        (Unknown, Completed) => {
            turn.see(Situation::LateCompletion, true);
            law(completes, "I4: an unknown record moved without proof")
        }
        (Unknown, _) => law(false, "I4: an unknown record moved without proof"),
        (FailedRetryable | Pending, Completed) if before.denied => {
            turn.see(Situation::CompletedAfterRelease, true);
            law(completes, "completed without a reply")
        }
        _ => law(false, "I3: a write of an attempt that had lost its record changed it"),
    }
}

fn swept(turn: &mut Turn<'_>, before: Option<Stored>, after: Option<Stored>) -> Verdict {
    let (Some(before), Some(after)) = (before, after) else {
        return law(false, "I11: the sweeper removed a record");
    };
    law(lease_is_over(&before), "I3: the sweeper ended a live lease")?;
    law(before.fence == after.fence, "I3: the sweeper changed the fence")?;
    let again = if before.queued { RecordState::Pending } else { RecordState::FailedRetryable };
    let retryable = after.state == again;
    turn.see(Situation::LeaseOverRetryable, retryable);
    turn.see(Situation::LeaseOverUnknown, after.state == RecordState::Unknown);
    let by_effects = retryable == matches!(before.effects, Effects::None | Effects::Local);
    law(by_effects, "I1: the end of a lease was taken for proof that nothing was done")
}

fn reaped(turn: &mut Turn<'_>, before: Option<Stored>, after: Option<Stored>) -> Verdict {
    let Some(before) = before else { return Ok(()) };
    law(before.state.is_terminal(), "I11: the reaper touched a record that is not terminal")?;
    law(before.expires_at <= 0, "I11: the reaper came before retention was over")?;
    let Some(after) = after else {
        turn.see(Situation::Purged, true);
        let gone = before.expires_at.saturating_add(turn.world.tombstone) <= 0;
        return law(gone, "I11: a tombstone was purged before its time");
    };
    turn.see(Situation::CompletedExpired, before.state == RecordState::Completed);
    let never_acted = before.state == RecordState::FailedRetryable;
    turn.see(Situation::RetryableExpired, never_acted);
    law(after.void || !never_acted, "the tombstone of what never acted is not void")?;
    law(after.state == RecordState::Expired, "I11: the reaper left something else than a tombstone")
}

fn resolved(
    turn: &mut Turn<'_>,
    before: Option<Stored>,
    after: Option<Stored>,
    release: bool,
    void: bool,
    by: By,
) -> Verdict {
    let (Some(before), Some(after)) = (before, after) else {
        return law(false, "I11: a resolution made or removed a record");
    };
    if void {
        turn.see(Situation::Voided, true);
        law(before.state == RecordState::Completed, "void of what is not completed")?;
        let voided = after.state == RecordState::Expired && after.void;
        return law(voided, "void left something behind the tombstone");
    }
    let open = before.state == RecordState::Unknown || lease_is_over(&before);
    law(open, "I4: a resolution of a record that is not unknown")?;
    if !release {
        turn.see(Situation::FoundCompleted, by == By::Reconciler);
        turn.see(Situation::OperatorCompleted, by == By::Operator);
        let newer = after.fence > before.fence;
        law(newer, "I3: the attempt's own later word would pass for a repetition")?;
        turn.state.fence_max = turn.state.fence_max.max(Some(after.fence));
        return law(after.state == RecordState::Completed, "a resolution that did not resolve");
    }
    let again = if before.queued { RecordState::Pending } else { RecordState::FailedRetryable };
    law(after.state == again, "a release that did not release")?;
    turn.see(Situation::FoundNotExecuted, by == By::Reconciler);
    turn.see(Situation::OperatorReleased, by == By::Operator);
    turn.see(Situation::GivenBack, by == By::Attempt);
    let owner = &turn.state.attempts[usize::from(before.attempt.slot)];
    let under_this_grant = owner.lease.is_some_and(|lease| lease.fence == before.fence);
    let may_act = matches!(owner.call, super::state::Call::Underway(_))
        || (owner.phase == Phase::Holding && owner.left > 0);
    let acted = under_this_grant && (owner.has_acted() || may_act);
    // Who says so without knowing answers for what comes of it.
    let rash = by == By::Operator && turn.world.rash;
    law(!acted || rash, "I4: taken for not executed, although it acted or still may")
}

/// I8, the half that is seen at once: what is unknown has a ticket.
fn at_rest_or_with_ticket(turn: &mut Turn<'_>, after: Option<Stored>) {
    let Some(after) = after else { return };
    if after.state == RecordState::Unknown && !after.has_ticket {
        turn.wrong("I8: an unknown record that nobody will look at");
    }
    let replied = matches!(after.reply, Some(super::state::Answer::Of(_)));
    if replied != (after.state == RecordState::Completed) {
        turn.wrong("I2: a reply without completion, or completion without a reply");
    }
}
