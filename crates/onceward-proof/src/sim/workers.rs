//! The workers of a world: sweeper and reaper on every node, and one reconciler that asks upstream's
//! ledger.

use std::{collections::BTreeMap, sync::Arc};

use onceward::{
    clock::Timestamp,
    machine::SETTLE,
    record::{Fence, Record, RecordId, State},
    store::{Proof, Resolution, Resolve, Resolved, Store},
};
use tokio::time::{Instant, sleep, timeout};

use super::bugs;
use super::{
    node::Gate,
    options::SECOND,
    store::NodeStore,
    upstream::reply,
    world::{Node, World, lock},
};

/// The workers of a node, which live and die with it.
pub(super) fn start_on(world: &Arc<World>, node: &Arc<Node>) {
    let every = world.options.sweep_every;
    let (store, at_most) = (Arc::clone(node.engine.store()), world.options.store_deadline);
    tokio::spawn(node.gate.guard(async move {
        loop {
            sleep(every).await;
            let _ = timeout(at_most, store.sweep(100)).await;
            let _ = timeout(at_most, store.reap(100)).await;
        }
    }));
}

/// When a record was first probed: by the store's clock, and by our own, which does not jump.
type Probes = BTreeMap<(RecordId, u32, Fence), (Timestamp, Instant)>;

/// Asks upstream about records of which nobody knows what became, for as long as the world lasts.
pub(super) async fn reconcile(world: Arc<World>) {
    let store = NodeStore::new(Arc::clone(&world), world.options.nodes, Gate::new(), 0);
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
        let acted = calls.clone().find(|call| call.acted && !call.disowned);
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
