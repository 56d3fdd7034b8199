use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use super::*;
use crate::{
    check, gate,
    history::Cause,
    sim::{
        explore::{small_world, small_worlds},
        node::{Gate, Life},
        totals::Totals,
    },
};

#[test]
fn a_seed_is_a_whole_run() {
    for seed in 0..20 {
        let (first, second) = (run_seed(seed, None), run_seed(seed, None));
        assert_eq!(first.history, second.history, "seed {seed}");
        assert_eq!(first.trace, second.trace, "seed {seed}");
        let list = gate::list(&first.choices);
        assert_eq!(run_list(list, None).trace, first.trace, "seed {seed}, by its choices");
    }
    assert_ne!(run_seed(1, None).trace, run_seed(2, None).trace);
}

#[test]
fn in_the_dull_world_nothing_breaks_and_everything_is_answered() {
    let run = run_list(Vec::new(), None);
    assert_eq!((run.violation, run.faults.len(), run.excused), (None, 0, 0));
    let mut totals = Totals::default();
    let run = run_list(Vec::new(), None);
    totals.add(&run);
    assert_eq!((totals.calls, totals.effects), (1, 1));
    assert_eq!(totals.answers.get("executed"), Some(&1));
    assert_eq!(totals.answers.values().sum::<u64>(), totals.requests);
}

#[test]
fn the_first_seeds_violate_nothing() {
    let explored = explore::seeds(0..300, |_| {});
    assert!(explored.failures.is_empty(), "{}", gate::story(&explored.failures[0].run));
    assert!(explored.unequal.is_empty(), "{:?}", explored.unequal);
    assert_eq!(explored.totals.runs, 300);
}

#[test]
fn no_single_fault_at_any_call_of_a_small_world_violates_anything() {
    for (name, options) in small_worlds() {
        let explored = small_world(name, &options, 1);
        assert!(explored.failures.is_empty(), "{name}: {}", gate::story(&explored.failures[0].run));
        assert!(explored.totals.runs > 60, "{name}: {}", explored.totals.runs);
        assert!(explored.totals.faults.len() > 35, "{name}: {:?}", explored.totals.faults);
    }
}

#[test]
fn a_set_of_runs_that_met_too_little_is_not_enough() {
    let mut totals = Totals::default();
    totals.add(&run_list(Vec::new(), None));
    let missing = totals.missing(1);
    for name in ["crash_after_store", "upstream_acts_late", "unknown -> completed by resolve"] {
        assert!(missing.iter().any(|missing| missing.starts_with(name)), "{name}: {missing:?}");
    }
    let taken = "none -> in_progress by reserve";
    assert!(!missing.iter().any(|missing| missing.starts_with(taken)), "{missing:?}");
    let nothing_succeeded = Totals { requests: 9, ..Totals::default() };
    assert!(nothing_succeeded.missing(0).iter().any(|missing| missing.contains("0 replies")));
}

#[test]
fn a_bug_is_found_made_short_and_told() {
    let (seed, run) = explore::find(Bug::CutIsNeverSent, 0..500).expect("found");
    let again = run_seed(seed, Some(Bug::CutIsNeverSent));
    assert_eq!(again.violation, run.violation);
    assert_eq!(run_seed(seed, None).violation, None, "it is the bug, not the seed");
    let long = gate::list(&run.choices);
    let (short, shrunk) = shrink::shrink(long.clone(), Some(Bug::CutIsNeverSent));
    let unlike_zero = |list: &[u32]| list.iter().filter(|chosen| **chosen != 0).count();
    assert!(unlike_zero(&short) < unlike_zero(&long), "{short:?} of {long:?}");
    let violation = shrunk.violation.as_ref().expect("still fails");
    assert_eq!(violation.invariant, "I1");
    let story = gate::story(&shrunk);
    assert!(story.contains("ACTS") && story.contains(" acted"), "{story}");
}

#[test]
fn names_of_bugs_are_unique_and_known() {
    assert!(Bug::ALL.len() >= 30, "{}", Bug::ALL.len());
    for bug in Bug::ALL {
        assert_eq!(Bug::from_name(bug.name()), Some(*bug));
        assert!(bug.description().ends_with('.'), "{}", bug.description());
    }
    assert_eq!(Bug::from_name("no-such-bug"), None);
}

/// A run as it was, to be changed.
fn copy(run: &Run) -> Run {
    Run {
        violation: run.violation.clone(),
        history: run.history.clone(),
        choices: run.choices.clone(),
        faults: run.faults.clone(),
        met: run.met.clone(),
        ..*run
    }
}

#[test]
fn every_bug_has_its_row_in_the_page() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/proof.md");
    let page = std::fs::read_to_string(page).expect("docs/proof.md");
    for bug in Bug::ALL {
        let row = format!("| `{}` | {} |", bug.name(), bug.description());
        assert!(page.contains(&row), "{row}");
    }
}

/// A store of the class that may lose its last commits, which did.
fn forgetful() -> Run {
    let lost = |event: &Event| matches!(&event.what, What::Moved { cause: Cause::Lost, .. });
    (0..5_000)
        .map(|seed| run_seed(seed, None))
        .find(|run| run.history.iter().any(lost))
        .expect("a store that forgets")
}

#[test]
fn a_store_may_forget_only_where_that_is_its_declared_class() {
    let mut run = forgetful();
    assert_eq!(run.violation, None);
    assert!(run.excused > 0);
    let Some(What::World { durable, .. }) = run.history.first_mut().map(|event| &mut event.what)
    else {
        panic!("a history begins with its world");
    };
    *durable = true;
    let found = check::judge(&run.history);
    assert!(found.iter().any(|violation| violation.invariant == "I6"), "{found:?}");
}

#[tokio::test(start_paused = true)]
async fn a_paused_process_does_nothing_and_goes_on_later() {
    let (gate, steps) = (Gate::new(), Arc::new(AtomicU32::new(0)));
    let mine = Arc::clone(&steps);
    tokio::spawn(gate.guard(async move {
        loop {
            sleep(SECOND).await;
            mine.fetch_add(1, Ordering::SeqCst);
        }
    }));
    sleep(SECOND * 3 + SECOND / 2).await;
    assert_eq!(steps.load(Ordering::SeqCst), 3);
    gate.set(Life::Paused);
    sleep(SECOND * 10).await;
    assert_eq!(steps.load(Ordering::SeqCst), 3);
    gate.set(Life::Running);
    sleep(SECOND * 2).await;
    assert!(steps.load(Ordering::SeqCst) > 3);
}

#[tokio::test(start_paused = true)]
async fn a_killed_process_drops_its_tasks_where_they_stand_and_stays_dead() {
    let (gate, held) = (Gate::new(), Arc::new(()));
    let mine = Arc::clone(&held);
    tokio::spawn(gate.guard(async move {
        sleep(SECOND * 100).await;
        drop(mine);
    }));
    sleep(SECOND).await;
    assert_eq!(Arc::strong_count(&held), 2);
    gate.set(Life::Dead);
    sleep(SECOND).await;
    assert_eq!(Arc::strong_count(&held), 1);
    gate.set(Life::Running);
    assert_eq!(gate.life(), Life::Dead);
}

#[test]
fn a_task_that_panics_does_not_go_unnoticed() {
    panics::watch();
    let before = panics::seen();
    let caught = std::panic::catch_unwind(|| panic!("a panic of this test"));
    assert!(caught.is_err());
    assert_eq!(panics::seen(), before + 1);
    let resumed = std::panic::catch_unwind(|| std::panic::resume_unwind(Box::new("on purpose")));
    assert!(resumed.is_err());
    assert_eq!(panics::seen(), before + 1, "a fault that asks for a panic is not one");
}

#[test]
fn a_single_fault_that_could_be_made_good_may_cost_nothing() {
    let (name, options) = small_worlds().into_iter().next().expect("a small world");
    let lists = (0..200).flat_map(|place| (1..22).map(move |chosen| (place, chosen)));
    let cost_an_outcome = lists
        .map(|(place, chosen)| {
            let list = std::iter::repeat_n(0, place).chain([chosen]).collect();
            explore::small_run(&options, list, None)
        })
        .find(|run| run.faults.contains_key("crash_after_upstream"))
        .expect(name);
    // The process died: nobody can know.
    assert_eq!(cost_an_outcome.violation, None);
    assert_eq!(cost::check(&cost_an_outcome), None);
    let as_if = |kind| Run { faults: [(kind, 1)].into(), ..copy(&cost_an_outcome) };
    let found = cost::check(&as_if("store_refused")).expect("a refused call can be repeated");
    assert_eq!(found.invariant, "I8");
    assert_eq!(cost::check(&as_if("pause_after_store")), None);
}
