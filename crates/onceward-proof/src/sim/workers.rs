//! The workers of a world: sweeper, reaper, relay, and whoever goes on with operations, on every node;
//! and one reconciler that asks upstream's ledger.

use std::{collections::BTreeMap, future::pending, sync::Arc, time::Duration};

use bytes::Bytes;
use http::Request;
use onceward::{
    OutboxStore, Policy, Relay,
    clock::Timestamp,
    machine::SETTLE,
    outbox::Backoff,
    record::{Fence, Record, RecordId, State},
    store::{Proof, Resolution, Resolve, Resolved, Store, Which},
    tower::{Task, work_in},
    worker::{Reaper, Sweeper},
};
use tokio::time::{Instant, sleep, timeout};

use super::{
    bugs,
    bugs::Bug,
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

/// The workers of a node, which live and die with it. All of them are the library's own.
pub(super) fn start_on(world: &Arc<World>, number: u32, node: &Arc<Node>, outbox: NodeOutbox) {
    let options = &world.options;
    let (sweep_every, reap_every) = (options.sweep_every, options.reap_every);
    let seed = u64::from(number) * 4 + u64::from(world.number(4));
    let sweeper = Sweeper::new(Arc::clone(&node.engine)).seed(seed);
    tokio::spawn(node.gate.guard(async move { sweeper.run(sweep_every, pending()).await }));
    let mut reaper = Reaper::new(Arc::clone(&node.engine)).seed(seed);
    let outbox: Arc<dyn OutboxStore> = Arc::new(outbox);
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

/// When a record was first probed: by the store's clock, and by our own, which does not jump.
type Probes = BTreeMap<(RecordId, u32, Fence), (Timestamp, Instant)>;

/// Asks upstream about records of which nobody knows what became, for as long as the world lasts.
pub(super) async fn reconcile(world: Arc<World>) {
    let mut probes = Probes::new();
    loop {
        sleep(SECOND * 10).await;
        let unknown: Vec<Record> = {
            let records = lock(&world.records);
            let all = records.records.values();
            all.filter(|record| record.state == State::Unknown).cloned().collect()
        };
        for record in unknown {
            let Some(resolution) = probe(&world, &record, &mut probes) else { continue };
            let resolve = Resolve {
                id: record.id.clone(),
                generation: record.generation,
                fence: record.fence,
                resolution,
                reason: "the ledger of upstream".into(),
            };
            // A process of its own, which is started again at once.
            let store = NodeStore::new(Arc::clone(&world), world.options.nodes, Gate::new(), 0);
            let resolved = timeout(world.options.store_deadline, store.resolve(resolve)).await;
            if let Ok(Ok(Resolved::TooEarly { not_before })) = resolved {
                // What was seen so far does not count. Not before then, a probe does.
                let first = Timestamp::from_micros(not_before.as_micros() - settle());
                let seen = (record.id, record.generation, record.fence);
                probes.insert(seen, (first, Instant::now()));
            }
        }
    }
}

fn settle() -> i64 {
    i64::try_from(SETTLE.as_micros()).unwrap_or(i64::MAX)
}

/// What is known about a record, if that is enough to decide.
fn probe(world: &World, record: &Record, probes: &mut Probes) -> Option<Resolution> {
    let now = world.store_now();
    let (acted, in_flight) = {
        let ledger = lock(&world.ledger);
        let calls = ledger.calls.iter();
        let began = Some(record.created_at);
        let calls = calls.filter(|call| call.id == record.id && call.use_began == began);
        // Of an operation in steps, the last one makes the reply.
        let last = |call: &&Entry| call.step.is_none_or(|step| step == steps::LAST);
        let acted = calls.clone().filter(last).find(|call| call.acted && !call.disowned);
        (acted.map(|call| call.answer.clone()), calls.clone().any(|call| !call.is_over))
    };
    if let Some(answer) = acted {
        return Some(Resolution::Complete(reply(&answer)));
    }
    if bugs::believes_one_probe(world) {
        return Some(Resolution::Release(Proof::Authoritative));
    }
    // Somebody who can look into every wire would know at once. Sometimes there is such a one.
    if !in_flight && !world.may_still_call(record) && world.number(4) == 3 {
        return Some(Resolution::Release(Proof::Authoritative));
    }
    let seen = (record.id.clone(), record.generation, record.fence);
    let (first, begun) = *probes.entry(seen).or_insert((now, Instant::now()));
    // A first probe that was moved into the future counts from when it is due.
    let waited = now.as_micros() - first.as_micros() >= settle() && begun.elapsed() >= SETTLE;
    waited.then_some(Resolution::Release(Proof::TwoProbes { first, second: now }))
}

impl World {
    /// Whether the attempt of this record could still make a call, for all that it was told.
    fn may_still_call(&self, record: &Record) -> bool {
        self.lease_left(record.attempt).is_none_or(|left| left > 0)
    }
}
