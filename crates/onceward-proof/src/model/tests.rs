//! The model holds, and finds what is wrong when something is.

use super::{
    explore::{Step, System},
    *,
};

#[test]
fn the_protocol_holds_in_every_state_of_the_small_worlds_and_they_see_every_situation() {
    let mut seen = Seen::default();
    for world in SMALL {
        let explored = explore(*world, None);
        if let Some(counterexample) = explored.counterexample {
            panic!("{}: {counterexample}", world.name);
        }
        seen |= explored.seen;
    }
    let missing: Vec<&str> = seen.missing().into_iter().map(Situation::text).collect();
    assert!(missing.is_empty(), "never came up: {missing:#?}");
}

/// What each mistake leads to, by the id in the message.
const FOUND_AS: [(Mistake, &str); Mistake::ALL.len()] = [
    (Mistake::FenceNotCompared, "I3"),
    (Mistake::AttemptNotCompared, "I7"),
    (Mistake::SweepsLiveLeases, "I3"),
    (Mistake::LeaseOverIsRetryable, "I1"),
    (Mistake::NewAttemptForEachCall, "rule 3"),
    (Mistake::NoDeadlineCheck, "I7"),
    (Mistake::RunsWhenStoreIsSilent, "I7"),
    (Mistake::LostAnswerIsFailure, "I4"),
    (Mistake::DropReleases, "I1"),
    (Mistake::OneEarlyProbe, "I4"),
    (Mistake::ProbesNotApart, "I4"),
    (Mistake::CompletesAfterRelease, "I3"),
    (Mistake::ReplyAfterReleaseIsEvidence, "I1"),
    (Mistake::ReapsWhatIsNotTerminal, "I11"),
    (Mistake::FenceRestarts, "I3"),
    (Mistake::MismatchNotChecked, "I9"),
    (Mistake::LaterUseIsTrusted, "I9"),
    (Mistake::NeverSwept, "live"),
];

#[test]
fn every_mistake_made_on_purpose_is_found_by_a_way_of_a_dozen_steps_at_most() {
    for (mistake, id) in FOUND_AS {
        let found = explore(mistake.world(), Some(mistake)).counterexample;
        let found = found.unwrap_or_else(|| panic!("not found: {}", mistake.text()));
        let (law, _) = found.wrong.split_once(':').expect("a message begins with an id");
        assert_eq!(law, id, "{}: {found}", mistake.text());
        assert!((3..=12).contains(&found.steps.len()), "{}: {found}", mistake.text());
    }
}

#[test]
fn a_world_in_which_a_mistake_shows_holds_without_it() {
    for mistake in [Mistake::OneEarlyProbe, Mistake::CompletesAfterRelease, Mistake::NeverSwept] {
        let found = explore(mistake.world(), None).counterexample;
        assert!(found.is_none(), "{}: {}", mistake.text(), found.expect("there is one"));
    }
}

#[test]
fn a_run_in_which_something_never_came_up_does_not_hold() {
    let report = run(&[]);
    assert_eq!(report.missing().len(), Situation::ALL.len());
    assert!(!report.holds());
    assert!(report.to_string().contains("NEVER: "));
}

/// The protocol with its attempts unsorted.
struct Unsorted(steps::Protocol);

impl System for Unsorted {
    type State = <steps::Protocol as System>::State;
    type Label = <steps::Protocol as System>::Label;

    fn start(&self) -> Self::State {
        self.0.start()
    }

    fn steps(&self, from: &Self::State, steps: &mut Vec<Step<Self::State, Self::Label>>) {
        self.0.steps(from, steps);
    }

    fn canonical(&self, state: &Self::State) -> Self::State {
        *state
    }

    fn is_at_rest(&self, state: &Self::State) -> bool {
        self.0.is_at_rest(state)
    }
}

#[test]
fn sorting_the_attempts_saves_states_and_hides_nothing() {
    let world = SMALL[0];
    for mistake in [None, Some(Mistake::FenceNotCompared)] {
        let sorted = explore(world, mistake);
        let protocol = Unsorted(steps::Protocol::new(world, mistake));
        let unsorted = explore::explore(&protocol, STATES_MAX);
        let length =
            |explored: &Explored| explored.counterexample.as_ref().map(|found| found.steps.len());
        assert_eq!(length(&sorted), length(&unsorted));
        assert_eq!((sorted.depth, sorted.seen), (unsorted.depth, unsorted.seen));
        assert!(sorted.states < unsorted.states);
    }
}

/// Counts up to a limit by one or two, and rests there. With a trap, from which no way leads on.
struct Counter {
    limit: u32,
    wrong_at: Option<u32>,
    trap_at: Option<u32>,
}

impl System for Counter {
    type State = u32;
    type Label = String;

    fn start(&self) -> u32 {
        0
    }

    fn steps(&self, from: &u32, steps: &mut Vec<Step<u32, String>>) {
        if self.trap_at == Some(*from) {
            return;
        }
        for by in [1, 2] {
            let to = from + by;
            if to <= self.limit {
                let wrong = (self.wrong_at == Some(to)).then(|| "wrong".to_owned());
                let label = format!("to {to}");
                steps.push(Step { label, to, fair: true, seen: Seen::default(), wrong });
            }
        }
    }

    fn canonical(&self, state: &u32) -> u32 {
        *state
    }

    fn is_at_rest(&self, state: &u32) -> bool {
        *state == self.limit
    }
}

#[test]
fn the_explorer_visits_every_state_and_every_step_once() {
    let counter = Counter { limit: 10_000, wrong_at: None, trap_at: None };
    let explored = explore::explore(&counter, 20_000);
    assert_eq!((explored.states, explored.transitions, explored.depth), (10_001, 19_999, 5_000));
    assert!(explored.counterexample.is_none());
}

#[test]
fn the_explorer_shows_a_shortest_way_to_what_is_wrong() {
    let counter = Counter { limit: 100, wrong_at: Some(5), trap_at: None };
    let found = explore::explore(&counter, 200).counterexample.expect("something is wrong");
    assert_eq!((&*found.wrong, found.steps.len()), ("wrong", 3));
    assert_eq!(found.steps.last().map(String::as_str), Some("to 5"));
}

#[test]
fn the_explorer_shows_the_way_to_a_state_from_which_rest_cannot_be_reached() {
    let counter = Counter { limit: 100, wrong_at: None, trap_at: Some(7) };
    let found = explore::explore(&counter, 200).counterexample.expect("seven is a trap");
    assert_eq!(found.steps.len(), 4);
    assert_eq!(found.steps.last().map(String::as_str), Some("to 7"));
}

#[test]
fn a_world_that_is_too_large_is_not_taken_for_one_that_holds() {
    let counter = Counter { limit: 100, wrong_at: None, trap_at: None };
    let found = explore::explore(&counter, 50).counterexample.expect("there are more");
    assert!(found.wrong.contains("more than 50 states"));
}
