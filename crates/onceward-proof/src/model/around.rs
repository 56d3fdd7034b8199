//! What goes on around the attempts: time, upstream, and the workers.

use onceward::{
    record::State as RecordState,
    store::{Proof, Resolution, Resolved},
};

use super::{
    label::Label,
    mistake::Mistake,
    situation::Situation,
    state::{Call, Looked, Phase, Reconciler, State, Stored, Ticks, Verdict},
    steps::Steps,
    store::{By, Turn, reply_of, two_probes},
    world::SETTLE,
};

/// How much too early the reconciler may begin to probe.
const EARLY: Ticks = 1;

/// All steps that no attempt makes.
pub(super) fn steps(steps: &mut Steps<'_>) {
    let from = *steps.from;
    steps.fair(Label::Tick, |turn| {
        turn.state.tick(turn.world.lease_floor(), -turn.world.tombstone);
    });
    for slot in 0..from.attempts.len() {
        upstream(slot, steps);
    }
    let Some(record) = from.record else { return };
    if !steps.makes(Mistake::NeverSwept) {
        steps.fair(Label::Sweeps, |turn| turn.sweep());
    }
    if steps.world.retention.is_some() {
        steps.fair(Label::Reaps, |turn| turn.reap());
    }
    if steps.world.reconciler {
        reconciler(&record, steps);
    }
    if steps.world.operator {
        operator(&record, steps);
    }
}

fn upstream(slot: usize, steps: &mut Steps<'_>) {
    let Call::Underway(_) = steps.from.attempts[slot].call else { return };
    steps.fair(Label::Acts(slot), |turn| acts(turn, slot));
    steps.unfair(Label::NeverActs(slot), |turn| {
        turn.state.attempts[slot].call = Call::Over;
    });
}

/// The effect, which is there for good. I1: at most one in each use of the key, not counting those
/// of attempts that were answered by a status that is declared re-runnable.
fn acts(turn: &mut Turn<'_>, slot: usize) {
    // A probe may miss what was done at most a settle ago.
    let fresh = if turn.world.reconciler { SETTLE + 1 } else { 0 };
    turn.state.attempts[slot].call = Call::Acted(fresh);
    let attempt = turn.state.attempts[slot];
    let use_no = attempt.lease.map(|lease| lease.use_no);
    let acted = turn
        .state
        .attempts
        .iter()
        .filter(|other| other.has_acted() && other.lease.map(|lease| lease.use_no) == use_no);
    let (mut all, mut counted) = (0, 0);
    for attempt in acted {
        all += 1;
        counted += usize::from(!attempt.rerunnable);
    }
    if counted > 1 && !turn.world.rash {
        turn.wrong("I1: two effects in one generation");
    }
    turn.see(Situation::RerunAfterEffect, all > 1);
    turn.see(Situation::ActedAfterDeath, attempt.phase == Phase::Dead);
    let unknown = turn.state.record.is_some_and(|record| record.state == RecordState::Unknown);
    turn.see(Situation::ActedWhenUnknown, unknown);
}

/// What upstream knows about this use of the key.
struct Truth {
    /// An effect that every probe sees.
    plain: Option<usize>,
    /// An effect, be it that a probe may still miss it.
    any: Option<usize>,
    /// Whether there may be one later.
    may_come: bool,
}

fn truth(state: &State, record: &Stored) -> Truth {
    let mut truth = Truth { plain: None, any: None, may_come: false };
    for (slot, attempt) in state.attempts.iter().enumerate() {
        if attempt.lease.is_none_or(|lease| lease.use_no != record.use_no) {
            continue;
        }
        match attempt.call {
            Call::Acted(0) => truth.plain = Some(slot),
            Call::Acted(_) => truth.any = Some(slot),
            Call::Underway(_) => truth.may_come = true,
            Call::None => truth.may_come |= attempt.phase == Phase::Holding && attempt.left > 0,
            Call::Over => {}
        }
    }
    truth.any = truth.any.or(truth.plain);
    truth
}

fn looked_at(record: &Stored) -> Looked {
    Looked { fence: record.fence, generation: record.generation }
}

/// Rule 6: "not executed" is believed of two probes one settle apart, after the quiet time. The
/// reconciler of the model probes whenever it likes: the store refuses what comes too early.
fn reconciler(record: &Stored, steps: &mut Steps<'_>) {
    if let Reconciler::Decided { of, verdict } = steps.from.reconciler {
        steps.fair(Label::Resolves, |turn| decided(turn, of, verdict));
        steps.unfair(Label::DropsVerdict, |turn| turn.state.reconciler = Reconciler::Idle);
        return;
    }
    if record.state != RecordState::Unknown {
        if steps.from.reconciler != Reconciler::Idle {
            steps.unfair(Label::DropsVerdict, |turn| turn.state.reconciler = Reconciler::Idle);
        }
        return;
    }
    // Of all probes that come too early, the last ones are enough.
    let quiet = record.lease_until + steps.world.max_execution + SETTLE;
    if quiet > EARLY && !steps.makes(Mistake::OneEarlyProbe) {
        return;
    }
    let of = looked_at(record);
    let truth = truth(steps.from, record);
    if let Some(slot) = truth.any {
        steps.fair(Label::ProbeFinds, |turn| {
            let verdict = Verdict::Completed(slot as u8);
            turn.state.reconciler = Reconciler::Decided { of, verdict };
        });
    }
    if truth.plain.is_none() {
        let missed = truth.any.is_some();
        steps.unfair(Label::ProbeFindsNothing, |turn| {
            turn.see(Situation::ProbeMissed, missed);
            turn.state.reconciler = found_nothing(turn, of);
        });
    }
}

fn found_nothing(turn: &Turn<'_>, of: Looked) -> Reconciler {
    let once = turn.makes(Mistake::OneEarlyProbe);
    match turn.state.reconciler {
        Reconciler::Probed { of: before, first } if before == of => {
            let verdict = Verdict::NotExecuted { first, second: 0 };
            Reconciler::Decided { of, verdict }
        }
        _ if once => {
            let verdict = Verdict::NotExecuted { first: 0, second: 0 };
            Reconciler::Decided { of, verdict }
        }
        _ => Reconciler::Probed { of, first: 0 },
    }
}

/// The verdict reaches the store: as often as it likes, until it is dropped.
fn decided(turn: &mut Turn<'_>, of: Looked, verdict: Verdict) {
    let resolution = match verdict {
        Verdict::Completed(slot) => Resolution::Complete(reply_of(usize::from(slot))),
        Verdict::NotExecuted { .. } if turn.makes(Mistake::OneEarlyProbe) => {
            Resolution::Release(Proof::Authoritative)
        }
        Verdict::NotExecuted { first, second } => {
            let apart = i8::from(turn.makes(Mistake::ProbesNotApart) && first == second);
            Resolution::Release(two_probes(first, second + apart))
        }
    };
    let answer = turn.resolve(of, resolution, By::Reconciler);
    turn.see(Situation::ProofTooEarly, matches!(answer, Resolved::TooEarly { .. }));
    // It may come twice; once it was refused it is refused for ever.
    if !matches!(answer, Resolved::Applied(_)) {
        turn.state.reconciler = Reconciler::Idle;
    }
}

/// An operator who has asked the provider, and cannot be wrong; a rash one can.
fn operator(record: &Stored, steps: &mut Steps<'_>) {
    let of = looked_at(record);
    if record.state == RecordState::Completed {
        steps.unfair(Label::Voids, |turn| {
            drop(turn.resolve(of, Resolution::Void, By::Operator));
        });
    }
    let over = record.state == RecordState::InProgress && record.lease_until <= 0;
    if record.state != RecordState::Unknown && !over {
        return;
    }
    let truth = truth(steps.from, record);
    let rash = steps.world.rash;
    if let Some(slot) = truth.any {
        steps.unfair(Label::OperatorCompletes, |turn| {
            let complete = Resolution::Complete(reply_of(slot));
            drop(turn.resolve(of, complete, By::Operator));
        });
    }
    if rash || (truth.any.is_none() && !truth.may_come) {
        steps.unfair(Label::OperatorReleases, |turn| {
            let release = Resolution::Release(Proof::Authoritative);
            drop(turn.resolve(of, release, By::Operator));
        });
    }
}
