//! All steps from one state.

use onceward::{
    record::{RecordId, State as RecordState},
    testing::samples::id,
};

use super::{
    around,
    explore::{Step, System},
    label::Label,
    mistake::Mistake,
    protocol,
    situation::Seen,
    state::{Phase, Role, State},
    store::Turn,
    world::World,
};

/// A world, with or without a mistake in it.
pub(super) struct Protocol {
    world: World,
    mistake: Option<Mistake>,
    id: RecordId,
}

impl Protocol {
    pub(super) fn new(world: World, mistake: Option<Mistake>) -> Self {
        Protocol { world, mistake, id: id("s", "k") }
    }
}

impl System for Protocol {
    type State = State;
    type Label = Label;

    fn start(&self) -> State {
        self.world.start()
    }

    fn steps(&self, from: &State, steps: &mut Vec<Step<State, Label>>) {
        let mut steps = Steps { protocol: self, world: &self.world, from, steps };
        for slot in 0..from.attempts.len() {
            protocol::steps(slot, &mut steps);
        }
        around::steps(&mut steps);
    }

    fn canonical(&self, state: &State) -> State {
        state.sorted()
    }

    /// The record is at rest, or unknown with a ticket, and no attempt is at work. What nobody is
    /// left to take up, because the world has no more comers, counts too.
    fn is_at_rest(&self, state: &State) -> bool {
        let nobody_comes = !state
            .attempts
            .iter()
            .any(|attempt| attempt.phase == Phase::Idle && attempt.role != Role::Absent);
        let record = state.record.is_none_or(|record| match record.state {
            RecordState::Completed | RecordState::FailedRetryable | RecordState::Expired => true,
            RecordState::Unknown => record.has_ticket,
            RecordState::Pending => nobody_comes,
            RecordState::InProgress => {
                record.effects == onceward::Effects::Phased
                    && record.lease_until <= 0
                    && nobody_comes
            }
        });
        record && state.attempts.iter().all(|attempt| attempt.is_over())
    }
}

/// Where steps are collected.
pub(super) struct Steps<'a> {
    protocol: &'a Protocol,
    pub(super) world: &'a World,
    pub(super) from: &'a State,
    steps: &'a mut Vec<Step<State, Label>>,
}

impl Steps<'_> {
    pub(super) fn makes(&self, mistake: Mistake) -> bool {
        self.protocol.mistake == Some(mistake)
    }

    /// A step that can be counted on when nothing fails any more.
    pub(super) fn fair(&mut self, label: Label, change: impl FnOnce(&mut Turn<'_>)) {
        self.add(label, true, change);
    }

    /// A step that is a fault, or somebody's choice.
    pub(super) fn unfair(&mut self, label: Label, change: impl FnOnce(&mut Turn<'_>)) {
        self.add(label, false, change);
    }

    fn add(&mut self, label: Label, fair: bool, change: impl FnOnce(&mut Turn<'_>)) {
        let mut turn = Turn {
            world: self.world,
            id: &self.protocol.id,
            mistake: self.protocol.mistake,
            state: *self.from,
            seen: Seen::default(),
            wrong: None,
            possible: true,
        };
        change(&mut turn);
        turn.state.forget();
        turn.state.number_fences();
        if !turn.possible {
            return;
        }
        if turn.state != *self.from || turn.wrong.is_some() {
            let Turn { state: to, seen, wrong, .. } = turn;
            self.steps.push(Step { label, to, fair, seen, wrong });
        }
    }
}
