//! The workers of a world, on every node: sweeper, reaper, relay, whoever goes on with operations, and a
//! reconciler that asks upstream's ledger. All of them are the library's own.

use std::{future::pending, sync::Arc, time::Duration};

use bytes::Bytes;
use http::Request;
use onceward::{
    OutboxStore, Policy, Relay,
    outbox::Backoff,
    record::{AttemptId, Record, State},
    store::{Resolution, Resolve, Which},
    tower::{Task, work_in},
    worker::{Finding, Probe, ProbeFuture, Reaper, Reconciler, Sweeper, Unknown},
};
use tokio::time::sleep;

use super::{
    bugs,
    bugs::Bug,
    faults::{ON_ITS_WAY, ProbeFault},
    network::NodeStore,
    node::Gate,
    options::SECOND,
    outbox::{NodeOutbox, NodeSink, SINKS, TRIES_MAX},
    steps,
    upstream::{Call, Entry, reply},
    world::{Node, World, lock},
};
use crate::history::Subject;

/// How often a worker looks for operations that wait.
const LOOK_EVERY: Duration = Duration::from_secs(15);

/// How many operations it is at, at most.
const AT_ONCE: u32 = 4;

/// How long delivered messages are kept.
const MESSAGES_KEPT: Duration = Duration::from_secs(1800);

/// The workers of a node, which live and die with it.
pub(super) fn start_on(world: &Arc<World>, number: u32, node: &Arc<Node>, store: &Arc<NodeStore>) {
    let options = &world.options;
    let (sweep_every, reap_every) = (options.sweep_every, options.reap_every);
    let seed = u64::from(number) * 4 + u64::from(world.number(4));
    let sweeper = Sweeper::new(Arc::clone(&node.engine)).seed(seed);
    tokio::spawn(node.gate.guard(async move { sweeper.run(sweep_every, pending()).await }));
    let mut reaper = Reaper::new(Arc::clone(&node.engine)).seed(seed);
    let reconciler = reconciler(world, number, node, Arc::clone(store));
    tokio::spawn(node.gate.guard(async move { reconciler.run(pending()).await }));
    let outbox: Arc<dyn OutboxStore> = Arc::new(NodeOutbox(Arc::clone(store)));
    if world.outbox.is_some() {
        reaper = reaper.outbox(Arc::clone(&outbox), MESSAGES_KEPT);
        let relay = relay(world, number, node, outbox).seed(seed);
        tokio::spawn(node.gate.guard(async move {
            relay.run(pending()).await;
        }));
    }
    tokio::spawn(node.gate.guard(async move { reaper.run(reap_every, pending()).await }));
    if options.has_work() {
        let (world, gate) = (Arc::clone(world), Arc::clone(&node.gate));
        let spawn_on = Arc::clone(&node.gate);
        let handler =
            move |request: Request<Bytes>, _: &Policy| handler_of(&world, number, &gate, &request);
        let spawn = move |task: Task| drop(tokio::spawn(spawn_on.guard(task)));
        let engine = Arc::clone(&node.engine);
        let work = work_in(engine, Which::All, LOOK_EVERY, AT_ONCE, handler, spawn);
        tokio::spawn(node.gate.guard(work));
    }
}

fn relay(world: &Arc<World>, number: u32, node: &Node, outbox: Arc<dyn OutboxStore>) -> Relay {
    let tries = match world.bug {
        Some(Bug::NoDeadLetters) => u32::MAX,
        _ => TRIES_MAX,
    };
    let relay = Relay::new(outbox)
        .attempts_max(tries)
        .delivery_timeout(SECOND * 2)
        .backoff(Backoff { first: SECOND, max: SECOND * 8 })
        .concurrency(2)
        .poll(SECOND * 10);
    SINKS.into_iter().fold(relay, |relay, (name, knows_keys)| {
        let (world, gate) = (Arc::clone(world), Arc::clone(&node.gate));
        relay.sink(name, NodeSink { world, node: number, gate, knows_keys })
    })
}

/// What a worker calls, from nothing but the request that was kept.
fn handler_of(world: &Arc<World>, node: u32, gate: &Arc<Gate>, request: &Request<Bytes>) -> Call {
    let kept = "a request of the simulation is kept whole";
    let asked: serde_json::Value = serde_json::from_slice(request.body()).expect(kept);
    let tenant = asked.get("who").and_then(serde_json::Value::as_str).expect(kept).to_owned();
    let amount = asked.get("amount").and_then(serde_json::Value::as_f64).expect(kept);
    let key = request.headers().get("idempotency-key").and_then(|key| key.to_str().ok());
    let key = key.expect(kept).trim_matches('"').to_owned();
    let route = request.uri().path().rsplit('-').next().and_then(|route| route.parse().ok());
    Call {
        world: Arc::clone(world),
        node,
        gate: Arc::clone(gate),
        subject: Subject { tenant, key },
        asks: format!("pay {amount}"),
        route: route.expect(kept),
        came_too_late: false,
    }
}

/// So many probes, and then a person must look: few, so that it happens.
const PROBES_MAX: u32 = 4;

/// How long a probe may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The reconciler of a node: what it has seen for itself is gone with its process.
fn reconciler(world: &Arc<World>, number: u32, node: &Node, store: Arc<NodeStore>) -> Reconciler {
    let (world, gate) = (Arc::clone(world), Arc::clone(&node.gate));
    Reconciler::new(store, Auditor { world, node: number, gate })
        .probes_max(PROBES_MAX)
        .patience(PATIENCE)
}

/// Asks upstream's ledger what became of an operation.
#[derive(Debug)]
struct Auditor {
    world: Arc<World>,
    node: u32,
    gate: Arc<Gate>,
}

impl Probe for Auditor {
    fn ask<'a>(&'a self, unknown: &'a Unknown) -> ProbeFuture<'a> {
        Box::pin(async move {
            self.gate.alive().await;
            let (world, on_its_way) = (&self.world, ON_ITS_WAY * 2);
            let (fault, kind) = world.pick(&ProbeFault::ALL, 4);
            if fault != ProbeFault::None {
                world.fault(kind, format!("node {}", self.node));
            }
            match fault {
                ProbeFault::None => sleep(on_its_way).await,
                ProbeFault::Lost => {
                    sleep(on_its_way).await;
                    return Finding::StillUnknown;
                }
                ProbeFault::Silent => return pending().await,
                ProbeFault::Slow => sleep(PATIENCE - SECOND / 2).await,
                ProbeFault::Panics => {
                    std::panic::resume_unwind(Box::new("a panic of the simulation"))
                }
                ProbeFault::Crash => {
                    world.crash(self.node, &self.gate);
                    return pending().await;
                }
            }
            let found = world.look_up(unknown);
            sleep(on_its_way).await;
            found
        })
    }
}

impl World {
    /// What upstream's ledger knows of an operation now.
    fn look_up(&self, unknown: &Unknown) -> Finding {
        let (acted, in_flight) = {
            let ledger = lock(&self.ledger);
            let calls = ledger.calls.iter();
            let began = Some(unknown.created_at);
            let calls = calls.filter(|call| call.id == unknown.id && call.use_began == began);
            // Of an operation in steps, the last one makes the reply.
            let last = |call: &&Entry| call.step.is_none_or(|step| step == steps::LAST);
            let acted = calls.clone().filter(last).find(|call| call.acted && !call.disowned);
            (acted.map(|call| call.answer.clone()), calls.clone().any(|call| !call.is_over))
        };
        if let Some(answer) = acted {
            return Finding::Completed(reply(&answer));
        }
        // Somebody who can look into every wire would know at once. Sometimes there is such a one.
        let is_over = !in_flight && !self.may_still_call(unknown.attempt);
        let sees_all = is_over && self.number(4) == 3;
        Finding::NotExecuted { authoritative: sees_all || bugs::believes_one_probe(self) }
    }

    /// Whether this attempt could still make a call, for all that it was told.
    fn may_still_call(&self, attempt: AttemptId) -> bool {
        self.lease_left(attempt).is_none_or(|left| left > 0)
    }
}

/// A person who has dead letters asked about again; and, once all is well, whatever is not known.
pub(super) async fn redrive(world: Arc<World>) {
    let mut was_calm = false;
    loop {
        sleep(SECOND * 30).await;
        let anew = world.is_calm() && !was_calm;
        was_calm |= anew;
        let stuck: Vec<Record> = {
            let records = lock(&world.records);
            let unknown = records.records.values().filter(|it| it.state == State::Unknown);
            unknown.filter(|it| anew || it.is_dead_letter()).cloned().collect()
        };
        for record in stuck {
            if record.is_dead_letter() {
                world.met("unknown_dead_letter_redriven");
            }
            let fence = record.fence;
            let _ = bugs::resolve(&world, operator_redrives(record), fence);
        }
    }
}

fn operator_redrives(record: Record) -> Resolve {
    Resolve {
        id: record.id,
        generation: record.generation,
        fence: record.fence,
        resolution: Resolution::Redrive,
        reason: "an operator".into(),
    }
}
