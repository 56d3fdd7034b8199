//! Simulated worlds: the real engine and the real rules, with everything around them simulated and
//! broken on purpose.
//!
//! A world has nodes with an engine each, a store, an upstream with a ledger, clients, workers, and
//! a clock that jumps from one thing to the next. One thread, no real time, no randomness but the
//! choices: a seed, or a list of choices, is a whole run.
//!
//! A run has two parts. In the storm, faults happen. In the calm after it there are none, and every
//! client must get a final answer in bounded time.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
    time::Duration,
};

use onceward::record::{Record, State};
use tokio::time::{sleep, timeout};

pub mod choices; // every choice of a run, from one place
pub mod options; // what a world is like
pub mod faults; // what breaks, by name
pub mod bugs; // deliberate bugs, to see that they are found
mod panics; // tasks that panic must not go unnoticed
mod world; // what all parts of a run share
mod node; // processes that die and stand still
mod store; // the rules of the machine on a map
mod network; // the way to it, which loses, delays and repeats
mod upstream; // the work, and its ledger
mod steps; // work in steps
mod outbox; // messages, and who receives them
mod client; // those who ask
mod workers; // sweeper, reaper, relay, resumer, reconciler; and who redrives
mod nemesis; // what happens by itself
mod cost; // what one fault may cost
pub mod explore; // all small deviations, then seeds, on all cores
pub mod shrink; // the shortest list of choices that still fails
pub mod totals; // what a set of runs has met
#[cfg(test)]
mod tests;

use crate::{
    check::Violation,
    history::{Event, What},
};
use bugs::Bug;
use choices::{Choices, Made};
use client::Wish;
use options::{Options, SECOND};
use upstream::Entry;
use world::{World, lock};

/// A run that is over.
#[derive(Debug)]
pub struct Run {
    /// What the judge found.
    pub violation: Option<Violation>,
    /// What happened.
    pub history: Vec<Event>,
    /// What was chosen.
    pub choices: Vec<Made>,
    /// How often each fault happened.
    pub faults: BTreeMap<&'static str, u64>,
    /// How often things met that seldom do.
    pub met: BTreeMap<&'static str, u64>,
    /// How many keys the store's declared class excused.
    pub excused: usize,
    /// A digest of everything that happened: the same for the same choices.
    pub trace: u64,
}

impl Run {
    /// How much time passed in the world.
    pub fn simulated(&self) -> Duration {
        self.history.last().map_or(Duration::ZERO, Event::time)
    }
}

/// Runs a world that is drawn from a seed.
pub fn run_seed(seed: u64, bug: Option<Bug>) -> Run {
    let mut choices = Choices::from_seed(seed);
    let options = Options::drawn(&mut choices);
    run(options, choices, bug)
}

/// Runs a world that is drawn from a list of choices.
pub fn run_list(list: Vec<u32>, bug: Option<Bug>) -> Run {
    let mut choices = Choices::from_list(list);
    let options = Options::drawn(&mut choices);
    run(options, choices, bug)
}

/// Runs a world.
pub fn run(options: Options, choices: Choices, bug: Option<Bug>) -> Run {
    panics::watch();
    let panics_before = panics::seen();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap_or_else(|error| unreachable!("a runtime without I/O: {error}"));
    let remains = runtime.block_on(async {
        let world = World::new(options, choices, bug);
        tokio::select! {
            biased;
            () = world.failed() => {}
            () = live(&world) => {}
        }
        world.end()
    });
    drop(runtime);
    let excused = remains.judge.exempted();
    let panicked = (panics::seen() > panics_before).then(|| Violation {
        invariant: "PANIC",
        subject: None,
        what: "a task panicked".into(),
    });
    let finished = remains.judge.finish(&remains.history).err();
    let mut hash = DefaultHasher::new();
    remains.history.hash(&mut hash);
    Run {
        violation: panicked.or(remains.violation).or(finished),
        history: remains.history,
        choices: remains.choices.made().to_vec(),
        faults: remains.faults,
        met: remains.met,
        excused,
        trace: hash.finish(),
    }
}

async fn live(world: &Arc<World>) {
    tokio::spawn(workers::redrive(Arc::clone(world)));
    tokio::spawn(nemesis::disturb(Arc::clone(world)));
    let clients = (0..world.options.clients).map(|number| client::run(Arc::clone(world), number));
    let clients: Vec<_> = clients.map(tokio::spawn).collect();
    for client in clients {
        let _ = client.await;
    }
    world.calm_down();
    lock(&world.records).is_down = false;
    // What is late is late by less than this.
    sleep(SECOND * 40).await;
    rest(world).await;
    for (number, wish) in (0..).zip(wishes(world)) {
        come_to_an_end(world, &wish, number).await;
    }
    let at_rest = async {
        while is_at_work(world) {
            sleep(SECOND).await;
        }
    };
    let _ = timeout(SECOND * 300, at_rest).await;
    world.end_of_messages().await;
    world.record(What::End);
}

/// Waits until nobody is at work, though no client comes: that takes a lease, the time of an attempt
/// and a sweep at most.
async fn rest(world: &World) {
    let within = world.options.at_work_max();
    let at_work = || {
        let records = lock(&world.records);
        records.records.values().any(|record| record.state == State::InProgress)
    };
    let mut waited = Duration::ZERO;
    while at_work() && waited < within {
        sleep(SECOND).await;
        waited += SECOND;
    }
    let within = u64::try_from(within.as_micros()).unwrap_or(u64::MAX);
    world.record(What::Rested { within });
}

fn is_at_work(world: &World) -> bool {
    let at_work = |record: &Record| matches!(record.state, State::InProgress | State::Pending);
    let on_its_way = |call: &Entry| !call.is_over;
    lock(&world.records).records.values().any(at_work)
        || lock(&world.ledger).calls.iter().any(on_its_way)
}

/// One wish for each key of the world.
fn wishes(world: &World) -> BTreeSet<Wish> {
    let options = &world.options;
    let tenants = 0..options.tenants;
    tenants
        .flat_map(|tenant| (0..options.keys).map(move |key| (tenant, key)))
        .map(|(tenant, key)| Wish::new(world, tenant, key, 0))
        .collect()
}

/// Asks until the answer is final. Nothing is broken any more, so that there must be one.
async fn come_to_an_end(world: &Arc<World>, wish: &Wish, node: u32) {
    // Each node has to see for itself that a probe finds nothing, and they take turns.
    for _ in 0..60 {
        let answer = client::ask(world, wish, node).await;
        if answer.as_ref().is_some_and(client::is_final) {
            return;
        }
        sleep(SECOND * 20).await;
    }
    world.violate(Violation {
        invariant: "I8",
        subject: Some(wish.subject.clone()),
        what: "no final answer within twenty minutes after the last fault".into(),
    });
}
