//! What an attempt does: the story of the engine, reduced to messages.
//!
//! A message that was sent may reach the store at any time and any number of times, or never. Its
//! answer is received in the same step or lost: one that is slow is one after which the attempt was
//! paused, since its deadline counts from when it sent.

use onceward::{
    machine::{self, Decision, Refusal},
    record::{Effects, Record, State as RecordState},
    store::{Ask, Mode, Proof, Reservation, Resolution, Write, Written},
};

use super::{
    label::Label,
    mistake::Mistake,
    situation::Situation,
    state::{Answer, Attempt, Call, Ending, Held, Looked, Message, Phase, Role},
    steps::Steps,
    store::{By, Turn, name_of, now, reply_of, whose},
    world::SETTLE,
};

/// So many generations may begin with a reserve whose answer is lost.
const UNANSWERED_USES: u8 = 2;

/// All steps of one attempt.
pub(super) fn steps(slot: usize, steps: &mut Steps<'_>) {
    let attempt = steps.from.attempts[slot];
    match attempt.phase {
        Phase::Idle if attempt.role != Role::Absent => {
            steps.fair(Label::Asks(slot), |turn| asks(turn, slot));
            steps.unfair(Label::Looks(slot), |turn| {
                let decision = turn.look(slot);
                told(turn, slot, &decision);
            });
        }
        Phase::Asking => asking(slot, attempt, steps),
        Phase::Withdrawing => {
            steps.fair(Label::Answered(slot, Message::Reserve), |turn| withdraws(turn, slot));
        }
        Phase::Holding => holding(slot, steps),
        Phase::Working => working(slot, attempt, steps),
        Phase::Writing(ending) => {
            let message = ending.message();
            steps.fair(Label::Answered(slot, message), |turn| writes(turn, slot, ending));
        }
        Phase::Late => {
            if attempt.has_acted() {
                steps.fair(Label::UpstreamAnswers(slot), |turn| {
                    ends(turn, slot, Ending::CompleteLate);
                });
            }
            steps.fair(Label::NoAnswer(slot), |turn| done(turn, slot));
        }
        Phase::GivingBack => {
            steps.fair(Label::Answered(slot, Message::GiveBack), |turn| {
                deliver(turn, slot, Message::GiveBack);
                done(turn, slot);
            });
        }
        Phase::Idle | Phase::Done | Phase::Dead => {}
    }
    if !attempt.is_over() {
        steps.unfair(Label::Dies(slot), |turn| dies(turn, slot));
    }
    for message in Message::ALL.into_iter().filter(|message| attempt.sent.has(*message)) {
        steps.unfair(Label::Arrives(slot, message), |turn| arrives(turn, slot, message));
    }
}

fn asks(turn: &mut Turn<'_>, slot: usize) {
    let attempt = &mut turn.state.attempts[slot];
    attempt.phase = Phase::Asking;
    attempt.left = turn.world.lease;
    attempt.sent.add(Message::Reserve);
}

fn asking(slot: usize, attempt: Attempt, steps: &mut Steps<'_>) {
    steps.fair(Label::Answered(slot, Message::Reserve), |turn| answered(turn, slot));
    let repeats_anew = steps.makes(Mistake::NewAttemptForEachCall) && attempt.nonce == 0;
    if attempt.left < steps.world.lease || repeats_anew {
        steps.fair(Label::AsksAgain(slot), |turn| {
            turn.state.attempts[slot].nonce += u8::from(repeats_anew);
            asks(turn, slot);
        });
    }
    if attempt.role != Role::Claims {
        steps.unfair(Label::GivesUp(slot), |turn| {
            let silent_runs = turn.makes(Mistake::RunsWhenStoreIsSilent);
            let phase = if silent_runs { Phase::Holding } else { Phase::Withdrawing };
            turn.state.attempts[slot].phase = phase;
        });
    }
}

/// The reserve is answered, and the answer decides.
fn answered(turn: &mut Turn<'_>, slot: usize) {
    let ask = turn.ask(slot);
    let reservation = turn.reserve(slot);
    check_own_grant(turn, slot, &reservation);
    match machine::decide(reservation, &ask, now()) {
        Decision::Execute(lease) => {
            let held = turn.held(&lease);
            moved_on(turn, slot, Phase::Holding);
            turn.state.attempts[slot].lease = Some(held);
        }
        decision => {
            told(turn, slot, &decision);
            done(turn, slot);
        }
    }
}

/// Rule 3: an attempt is not turned away by its own grant.
fn check_own_grant(turn: &mut Turn<'_>, slot: usize, reservation: &Reservation) {
    let Reservation::Occupied { record, .. } = reservation else { return };
    if usize::from(name_of(record.attempt).slot) != slot {
        return;
    }
    let live = record.lease_is_live(now());
    turn.see(Situation::OwnLeaseOver, record.state == RecordState::Unknown);
    if live {
        turn.wrong("rule 3: an attempt was turned away by its own grant");
    }
}

/// I9, and I2: what a client is told is about its own request.
fn told(turn: &mut Turn<'_>, slot: usize, decision: &Decision) {
    let asks = turn.state.attempts[slot].asks;
    match decision {
        Decision::Replay { reply, .. } => {
            turn.see(Situation::Replayed, true);
            let Answer::Of(whose) = whose(reply) else {
                return turn.wrong("I2: a replay without the stored body");
            };
            let worker = turn.state.attempts[usize::from(whose)];
            if worker.asks != asks {
                turn.wrong("I9: a request got the reply of another");
            }
            if turn.world.acts() && !worker.has_acted() {
                turn.wrong("I2: a replay of what was never done");
            }
        }
        Decision::Refuse(Refusal::Mismatch) => {
            turn.see(Situation::Mismatch, true);
            if turn.state.record.is_some_and(|record| record.asks == asks) {
                turn.wrong("I9: the same request was refused as another");
            }
        }
        Decision::Refuse(Refusal::NotTaken) => {}
        Decision::Refuse(refusal) => {
            turn.see(Situation::ToldUnknown, *refusal == Refusal::OutcomeUnknown);
            if turn.state.record.is_some_and(|record| record.asks != asks) {
                turn.wrong("I9: a request was told how another stands");
            }
        }
        Decision::Execute(_) | Decision::Accepted => {}
    }
}

/// Not answered in time: the reserve is repeated in the background, and what it took is given back.
fn withdraws(turn: &mut Turn<'_>, slot: usize) {
    match turn.reserve(slot) {
        Reservation::Granted { lease, .. } => {
            let held = turn.held(&lease);
            moved_on(turn, slot, Phase::Idle);
            turn.state.attempts[slot].lease = Some(held);
            ends(turn, slot, Ending::ReleaseWithdrawn);
        }
        Reservation::Occupied { record, .. } if is_own_unknown(turn, slot, &record) => {
            moved_on(turn, slot, Phase::GivingBack);
            let fence = turn.state.record.map_or(0, |record| record.fence);
            let use_no = turn.state.record.map_or(0, |record| record.use_no);
            let generation = turn.state.record.map_or(0, |record| record.generation);
            let attempt = &mut turn.state.attempts[slot];
            attempt.lease = Some(Held { fence, generation, use_no });
            attempt.sent.add(Message::GiveBack);
        }
        _ => done(turn, slot),
    }
}

fn is_own_unknown(turn: &Turn<'_>, slot: usize, record: &Record) -> bool {
    name_of(record.attempt) == turn.name(slot) && record.state == RecordState::Unknown
}

fn holding(slot: usize, steps: &mut Steps<'_>) {
    let left = steps.from.attempts[slot].left;
    if left > 0 || steps.makes(Mistake::NoDeadlineCheck) {
        steps.fair(Label::Calls(slot), |turn| calls(turn, slot));
    }
    steps.fair(Label::NeverCalls(slot), |turn| {
        turn.see(Situation::LeaseOverBeforeCall, left == 0);
        ends(turn, slot, Ending::Release);
    });
    renewing(slot, steps);
}

fn renewing(slot: usize, steps: &mut Steps<'_>) {
    if !steps.world.renews {
        return;
    }
    steps.fair(Label::Renews(slot), |turn| {
        turn.state.attempts[slot].sent.add(Message::Renew);
        let written = turn.write(slot, renewal(turn));
        let attempt = &mut turn.state.attempts[slot];
        attempt.left = match written {
            Written::Applied | Written::AppliedAfterRelease | Written::AlreadyMine(_) => {
                turn.world.lease
            }
            Written::Superseded(_) => 0,
        };
        after_call(attempt);
    });
    steps.unfair(Label::SendsRenewal(slot), |turn| {
        turn.state.attempts[slot].sent.add(Message::Renew);
    });
}

/// Once upstream is called, the deadline decides nothing any more.
fn after_call(attempt: &mut Attempt) {
    if attempt.phase != Phase::Holding {
        attempt.left = 0;
    }
}

fn renewal(turn: &Turn<'_>) -> Write {
    Write::Renew(machine::SETTLE * u32::try_from(turn.world.lease).unwrap_or_default())
}

/// Calls upstream. Here, and nowhere else, an effect begins: I7 asks for a live lease.
fn calls(turn: &mut Turn<'_>, slot: usize) {
    let name = turn.name(slot);
    let lease = turn.state.attempts[slot].lease;
    let granted = turn.state.record.is_some_and(|record| {
        let mine = record.attempt == name && lease.is_some_and(|held| held.fence == record.fence);
        mine && record.state == RecordState::InProgress && record.lease_until > 0
    });
    if !granted {
        turn.wrong("I7: upstream is called without a grant that is alive");
    }
    let acts = turn.world.acts();
    let attempt = &mut turn.state.attempts[slot];
    attempt.phase = Phase::Working;
    attempt.left = 0;
    // Where nothing is done to the world, it does not matter when.
    attempt.call =
        if acts { Call::Underway(turn.world.max_execution + SETTLE) } else { Call::Acted(0) };
}

fn working(slot: usize, attempt: Attempt, steps: &mut Steps<'_>) {
    if attempt.has_acted() {
        steps.fair(Label::UpstreamAnswers(slot), |turn| ends(turn, slot, Ending::Complete));
    }
    if steps.world.effects == Effects::Undeclared {
        steps.fair(Label::UpstreamFails(slot), |turn| {
            let attempt = &mut turn.state.attempts[slot];
            attempt.rerunnable = true;
            if !attempt.has_acted() {
                attempt.call = Call::Over;
            }
            ends(turn, slot, Ending::ReleaseAnswered);
        });
    }
    steps.unfair(Label::NoAnswer(slot), |turn| {
        let ending = match turn.world.effects {
            _ if turn.makes(Mistake::LostAnswerIsFailure) => Ending::Release,
            // Of work in steps the record knows how far it came, whatever became of the handler.
            Effects::Phased | Effects::Local => Ending::ReleaseAnswered,
            _ => Ending::Unknown,
        };
        ends(turn, slot, ending);
    });
    steps.fair(Label::TakesTooLong(slot), |turn| ends(turn, slot, Ending::UnknownLate));
    renewing(slot, steps);
}

fn ends(turn: &mut Turn<'_>, slot: usize, ending: Ending) {
    let attempt = &mut turn.state.attempts[slot];
    attempt.phase = Phase::Writing(ending);
    attempt.left = 0;
    attempt.sent.add(ending.message());
}

/// The outcome is written and the answer received.
fn writes(turn: &mut Turn<'_>, slot: usize, ending: Ending) {
    let written = turn.write(slot, outcome(slot, ending.message()));
    let superseded = match written {
        Written::Superseded(record) => Some(record),
        Written::Applied | Written::AppliedAfterRelease | Written::AlreadyMine(_) => None,
    };
    match (ending, superseded) {
        (Ending::UnknownLate, superseded) => {
            if let Some(record) = superseded {
                tell_superseded(turn, slot, record);
            }
            turn.state.attempts[slot].phase = Phase::Late;
        }
        (Ending::Release, Some(Some(record))) if is_ours_and_unknown(turn, slot, &record) => {
            let attempt = &mut turn.state.attempts[slot];
            attempt.phase = Phase::GivingBack;
            attempt.sent.add(Message::GiveBack);
        }
        (Ending::CompleteLate | Ending::ReleaseWithdrawn, superseded) => {
            let withdrawn = ending == Ending::ReleaseWithdrawn && superseded.is_none();
            turn.see(Situation::Withdrawn, withdrawn);
            done(turn, slot);
        }
        (_, Some(record)) => {
            tell_superseded(turn, slot, record);
            done(turn, slot);
        }
        (_, None) => done(turn, slot),
    }
}

fn is_ours_and_unknown(turn: &Turn<'_>, slot: usize, record: &Record) -> bool {
    let fence = turn.state.record.map(|record| record.fence);
    let same = turn.state.attempts[slot].lease.map(|held| held.fence) == fence;
    same && is_own_unknown(turn, slot, record)
}

/// The record says what the client of a superseded attempt is told, if it is still about the same
/// use of the key: the same generation, and the same request, since a purged key counts anew.
fn tell_superseded(turn: &mut Turn<'_>, slot: usize, record: Option<Box<Record>>) {
    let Some(held) = turn.state.attempts[slot].lease else { return };
    let mut ask = Ask { mode: Mode::LookupOnly, ..turn.ask(slot) };
    let Some(record) = record else { return };
    if turn.makes(Mistake::LaterUseIsTrusted) {
        ask.fingerprint = record.fingerprint;
    }
    let same_request = record.fingerprint == ask.fingerprint;
    if record.generation == u32::from(held.generation) && same_request {
        let reservation = Reservation::Occupied { record, lease_ran_out: false };
        told(turn, slot, &machine::decide(reservation, &ask, now()));
    }
}

/// The attempt no longer waits for its reserve.
fn moved_on(turn: &mut Turn<'_>, slot: usize, phase: Phase) {
    let attempt = &mut turn.state.attempts[slot];
    attempt.phase = phase;
    if !turn.world.late_reserves {
        attempt.sent.remove(Message::Reserve);
    }
    if !turn.world.late_writes && attempt.is_over() {
        attempt.sent.keep_only(Message::Reserve);
    }
}

fn done(turn: &mut Turn<'_>, slot: usize) {
    moved_on(turn, slot, Phase::Done);
    turn.state.attempts[slot].left = 0;
}

fn dies(turn: &mut Turn<'_>, slot: usize) {
    let held = turn.state.attempts[slot].lease.is_some();
    moved_on(turn, slot, Phase::Dead);
    let attempt = &mut turn.state.attempts[slot];
    attempt.left = 0;
    if turn.mistake == Some(Mistake::DropReleases) && held {
        attempt.sent.add(Message::Release);
    }
}

/// A copy of a message reaches the store, and nobody hears the answer.
fn arrives(turn: &mut Turn<'_>, slot: usize, message: Message) {
    let attempt = &mut turn.state.attempts[slot];
    let waits = matches!(attempt.phase, Phase::Asking | Phase::Withdrawing);
    if message == Message::Reserve && !waits {
        // One late copy is enough, and keeps the number of grants finite.
        attempt.sent.remove(message);
    }
    let uses = turn.state.uses;
    deliver(turn, slot, message);
    // Nothing new is learned from more generations that nobody runs in.
    turn.possible = turn.state.uses == uses || uses < UNANSWERED_USES;
}

fn deliver(turn: &mut Turn<'_>, slot: usize, message: Message) {
    match message {
        Message::Reserve => {
            let waits = !turn.state.attempts[slot].is_over();
            let granted = matches!(turn.reserve(slot), Reservation::Granted { .. });
            turn.see(Situation::GrantedToNobody, granted && !waits);
        }
        Message::Renew => drop(turn.write(slot, renewal(turn))),
        Message::Complete | Message::Release | Message::MarkUnknown => {
            drop(turn.write(slot, outcome(slot, message)));
        }
        Message::GiveBack => {
            let Some(held) = turn.state.attempts[slot].lease else { return };
            let of = Looked { fence: held.fence, generation: held.generation };
            let release = Resolution::Release(Proof::Authoritative);
            drop(turn.resolve(of, release, By::Attempt));
        }
    }
}

fn outcome(slot: usize, message: Message) -> Write {
    match message {
        Message::Complete => Write::Complete(reply_of(slot)),
        Message::MarkUnknown => Write::MarkUnknown("".into()),
        _ => Write::Release("".into()),
    }
}

impl Ending {
    fn message(self) -> Message {
        match self {
            Ending::Complete | Ending::CompleteLate => Message::Complete,
            Ending::Release | Ending::ReleaseAnswered | Ending::ReleaseWithdrawn => {
                Message::Release
            }
            Ending::Unknown | Ending::UnknownLate => Message::MarkUnknown,
        }
    }
}
