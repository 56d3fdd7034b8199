//! Many runs, on all cores: first every small deviation from a dull run, then seeds.

use std::{
    collections::BTreeMap,
    num::NonZero,
    ops::Range,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use onceward::Effects;

use super::{
    Run,
    bugs::Bug,
    choices::Choices,
    cost,
    options::{Options, RouteOptions},
    run, run_seed,
    totals::Totals,
};

/// What came of a set of runs.
#[derive(Debug, Default)]
pub struct Explored {
    /// What they met.
    pub totals: Totals,
    /// Those that failed, by seed or by list of choices. No more than a few are kept.
    pub failures: Vec<Failure>,
    /// Seeds that did not give the same run twice.
    pub unequal: Vec<u64>,
}

/// A run that failed.
#[derive(Debug)]
pub struct Failure {
    /// The seed, or none for a small world.
    pub seed: Option<u64>,
    /// The small world, if it is one.
    pub world: Option<&'static str>,
    /// The run.
    pub run: Run,
}

const FAILURES_KEPT: usize = 5;

impl Explored {
    fn merge(&mut self, other: Explored) {
        self.totals.merge(other.totals);
        self.unequal.extend(other.unequal);
        self.failures.extend(other.failures);
        self.failures.sort_by_key(|failure| failure.seed);
        self.failures.truncate(FAILURES_KEPT);
    }

    fn take(&mut self, run: Run, seed: Option<u64>, world: Option<&'static str>) {
        self.totals.add(&run);
        if run.violation.is_some() && self.failures.len() < FAILURES_KEPT {
            self.failures.push(Failure { seed, world, run });
        }
    }
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Does the work with every number of a range, on all cores, until one of them says to stop.
fn on_all_cores<R: Send>(
    range: Range<u64>,
    new: impl Fn() -> R + Sync,
    work: impl Fn(&mut R, u64) -> bool + Sync,
    merge: impl Fn(&mut R, R),
) -> R {
    let next = AtomicU64::new(range.start);
    let stop = AtomicBool::new(false);
    let mut all = new();
    thread::scope(|scope| {
        let workers = (0..cores()).map(|_| {
            scope.spawn(|| {
                let mut mine = new();
                while !stop.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= range.end {
                        break;
                    }
                    if !work(&mut mine, number) {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
                mine
            })
        });
        let workers: Vec<_> = workers.collect();
        for worker in workers {
            match worker.join() {
                Ok(mine) => merge(&mut all, mine),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    all
}

/// Runs all seeds of a range, each of them twice: the second run must be the first one again.
pub fn seeds(range: Range<u64>, progress: impl Fn(u64) + Sync) -> Explored {
    let work = |explored: &mut Explored, seed| {
        let run = run_seed(seed, None);
        if run_seed(seed, None).trace != run.trace {
            explored.unequal.push(seed);
        }
        explored.take(run, Some(seed), None);
        progress(seed);
        true
    };
    on_all_cores(range, Explored::default, work, Explored::merge)
}

/// The first seed of a range that finds a bug, with its run.
pub fn find(bug: Bug, range: Range<u64>) -> Option<(u64, Run)> {
    let first = |one: &mut Option<(u64, Run)>, other: Option<(u64, Run)>| {
        let earlier = match (&one, &other) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some((one, _)), Some((other, _))) => other < one,
        };
        if earlier {
            *one = other;
        }
    };
    let work = |found: &mut Option<(u64, Run)>, seed| {
        let run = run_seed(seed, Some(bug));
        if run.violation.is_none() {
            return true;
        }
        first(found, Some((seed, run)));
        false
    };
    on_all_cores(range, || None, work, first)
}

/// The small worlds: two clients, two nodes, one key.
pub fn small_worlds() -> BTreeMap<&'static str, Options> {
    let plain = RouteOptions::plain;
    let waiting = onceward::InFlight::Wait(std::time::Duration::from_secs(3));
    let worlds = [
        ("external", plain(Effects::External)),
        ("undeclared", plain(Effects::Undeclared)),
        ("none", plain(Effects::None)),
        ("waiting", RouteOptions { in_flight: waiting, ..plain(Effects::External) }),
    ];
    worlds.into_iter().map(|(name, route)| (name, Options::smallest(route))).collect()
}

/// Runs a small world once. There one fault alone is also judged by what it cost.
pub fn small_run(options: &Options, list: Vec<u32>, bug: Option<Bug>) -> Run {
    let mut run = run(options.clone(), Choices::from_list(list), bug);
    run.violation = run.violation.take().or_else(|| cost::check(&run));
    run
}

/// Runs a small world with every choice of at most `deviations` faults at any calls.
pub fn small_world(name: &'static str, options: &Options, deviations: u32) -> Explored {
    let dull = small_run(options, Vec::new(), None);
    let firsts = deviations_of(&dull, &[]);
    let count = firsts.len() as u64;
    let mut explored = Explored::default();
    explored.take(dull, None, Some(name));
    if deviations == 0 {
        return explored;
    }
    let work = |explored: &mut Explored, number| {
        if let Some(list) = usize::try_from(number).ok().and_then(|number| firsts.get(number)) {
            deviate(explored, name, options, list, deviations);
        }
        true
    };
    explored.merge(on_all_cores(0..count, Explored::default, work, Explored::merge));
    explored
}

/// Runs a list of choices, and every list that goes on from it with more faults.
fn deviate(
    explored: &mut Explored,
    name: &'static str,
    options: &Options,
    list: &[u32],
    deviations: u32,
) {
    let run = small_run(options, list.to_vec(), None);
    let more = if deviations > 1 { deviations_of(&run, list) } else { Vec::new() };
    explored.take(run, None, Some(name));
    for list in more {
        deviate(explored, name, options, &list, deviations - 1);
    }
}

/// All lists that have one more fault than `list`, after its last one.
fn deviations_of(run: &Run, list: &[u32]) -> Vec<Vec<u32>> {
    let mut lists = Vec::new();
    for (position, made) in run.choices.iter().enumerate().skip(list.len()) {
        if made.fault {
            for chosen in 1..made.of {
                let mut longer = list.to_vec();
                longer.resize(position, 0);
                longer.push(chosen);
                lists.push(longer);
            }
        }
    }
    lists
}
