//! The gate: what has to hold before a change is taken.

use std::{
    fmt::Write as _,
    io::{IsTerminal as _, Write as _},
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use crate::{
    check::Violation,
    sim::{
        Run,
        bugs::Bug,
        choices::Made,
        explore::{self, Explored, Failure},
        shrink,
        totals::Totals,
    },
    timeline,
};

/// Explores the small worlds and the seeds, hunts the deliberate bugs, and says whether all is well.
pub fn run(seeds: Range<u64>, deviations: u32) -> bool {
    let small = small_worlds(deviations);
    let drawn = drawn_worlds(seeds.clone());
    let budget = seeds.end - seeds.start;
    let bitten = bugs(budget.min(BUG_BUDGET));
    small && drawn && bitten
}

/// How many seeds a deliberate bug may need.
pub const BUG_BUDGET: u64 = 10_000;

fn small_worlds(deviations: u32) -> bool {
    println!("small worlds: two clients, two nodes, one key, every {deviations} faults");
    let mut passed = true;
    for (name, options) in explore::small_worlds() {
        let begun = Instant::now();
        let explored = explore::small_world(name, &options, deviations);
        let seconds = begun.elapsed().as_secs_f64();
        println!("  {name:<12}{:>9} runs {seconds:>7.1} s", explored.totals.runs);
        passed &= report(&explored);
    }
    passed
}

fn drawn_worlds(seeds: Range<u64>) -> bool {
    let count = seeds.end - seeds.start;
    println!("seeds {} to {}, each twice", seeds.start, seeds.end - 1);
    let begun = Instant::now();
    let done = AtomicU64::new(0);
    let is_terminal = std::io::stderr().is_terminal();
    let a_tenth = count.div_ceil(10);
    let explored = explore::seeds(seeds, |_| {
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        if is_terminal && done.is_multiple_of(1_000) {
            eprint!("\r  {done} of {count} ");
            let _ = std::io::stderr().flush();
        } else if !is_terminal && done.is_multiple_of(a_tenth) {
            println!("  {done} of {count}, {:.0} s", begun.elapsed().as_secs_f64());
        }
    });
    let seconds = begun.elapsed().as_secs_f64();
    print!("{}", explored.totals);
    println!("{count} seeds in {seconds:.1} s: {:.0} seeds/s", count as f64 / seconds);
    let met = enough(&explored.totals, count);
    report(&explored) && met
}

/// Whether the runs met everything that there is to meet, in proportion to their number.
fn enough(totals: &Totals, seeds: u64) -> bool {
    let at_least = (seeds / 500).clamp(1, 100);
    let missing = totals.missing(at_least);
    for missing in &missing {
        println!("NOT ENOUGH {missing}");
    }
    missing.is_empty()
}

fn report(explored: &Explored) -> bool {
    for seed in &explored.unequal {
        println!("NOT THE SAME TWICE: seed {seed}");
    }
    for failure in &explored.failures {
        println!("{}", describe(failure));
    }
    explored.unequal.is_empty() && explored.failures.is_empty()
}

/// A failing run, as short as it can be made, with what is needed to see it again.
fn describe(failure: &Failure) -> String {
    let choices = list(&failure.run.choices);
    match (failure.seed, failure.world) {
        (Some(seed), _) => {
            let (short, run) = shrink::shrink(choices, None);
            let again = format!("onceward-proof sim --seed {seed}");
            let shorter = format!("onceward-proof sim --choices {}", joined(&short));
            format!("FAILED seed {seed}\nagain:   {again}\nshorter: {shorter}\n{}", story(&run))
        }
        (None, world) => {
            let world = world.unwrap_or_default();
            let used = choices.iter().rposition(|chosen| *chosen != 0).map_or(0, |last| last + 1);
            let short = joined(choices.get(..used).unwrap_or_default());
            let again = format!("onceward-proof sim --world {world} --choices {short}");
            format!("FAILED small world {world}\nagain:   {again}\n{}", story(&failure.run))
        }
    }
}

/// What was violated, and the timeline of the key it is about.
pub fn story(run: &Run) -> String {
    let mut story = String::new();
    let Some(violation) = &run.violation else { return story };
    let _ = writeln!(story, "{violation}");
    if let Violation { subject: Some(subject), .. } = violation {
        let _ = writeln!(story, "{}", timeline::render(&run.history, subject));
    }
    story
}

/// The choices of a run, to be given to another.
pub fn list(choices: &[Made]) -> Vec<u32> {
    choices.iter().map(|made| made.chosen).collect()
}

/// A list of choices as the command line takes it.
pub fn joined(list: &[u32]) -> String {
    list.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// Hunts every deliberate bug, and says whether all were found.
pub fn bugs(budget: u64) -> bool {
    println!("deliberate bugs, each to be found within {budget} seeds");
    let mut needed = Vec::new();
    let mut missed = 0;
    let begun = Instant::now();
    for bug in Bug::ALL {
        match explore::find(*bug, 0..budget) {
            Some((seed, run)) => {
                needed.push(seed + 1);
                let violation = run.violation.map(|found| found.invariant).unwrap_or_default();
                let (name, what) = (bug.name(), bug.description());
                println!("  {name:<32}{:>6} seeds  {violation:<5} {what}", seed + 1);
            }
            None => {
                missed += 1;
                println!("  NOT FOUND {}: {}", bug.name(), bug.description());
            }
        }
    }
    needed.sort_unstable();
    let median = needed.get(needed.len() / 2).copied().unwrap_or_default();
    println!(
        "{} of {} found in {:.1} s, median {median} seeds",
        needed.len(),
        Bug::ALL.len(),
        begun.elapsed().as_secs_f64()
    );
    missed == 0
}
