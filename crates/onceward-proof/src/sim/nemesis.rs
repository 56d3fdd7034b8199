//! What happens to a world by itself: processes die and stand still, clocks jump, the store goes
//! away.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use onceward::{
    record::State,
    store::{Resolution, Resolve},
};
use tokio::time::sleep;

use super::{
    faults::{Disturbance, STORE_LOSES},
    node::Life,
    options::SECOND,
    world::{World, lock},
};

/// Disturbs a world as often as its options say, at moments and in ways that are drawn.
pub(super) async fn disturb(world: Arc<World>) {
    let (all, times, apart) = match world.options.hasty {
        true => (&Disturbance::HASTY[..], 4, 67),
        false => (&Disturbance::ALL[..], 1, 331),
    };
    for _ in 0..world.options.disturbances * times {
        let wait = 1 + u64::from(world.number(60)) * apart;
        sleep(Duration::from_millis(wait)).await;
        if world.is_calm() {
            return;
        }
        let chosen = world.number(u32::try_from(all.len()).unwrap_or(1)) as usize;
        let Some((disturbance, kind)) = all.get(chosen) else { return };
        one(&world, *disturbance, kind).await;
    }
}

async fn one(world: &Arc<World>, disturbance: Disturbance, kind: &'static str) {
    let number = world.number(world.options.nodes);
    let node = world.node(number);
    match disturbance {
        Disturbance::Crash => {
            world.fault(kind, format!("node {number}"));
            world.crash(number, &node.gate);
        }
        Disturbance::Pause => {
            let duration = world.delay();
            world.fault(kind, format!("node {number} for {duration:?}"));
            world.pause(&node.gate, duration);
        }
        Disturbance::Stop => {
            world.fault(kind, format!("node {number}"));
            let (world, at_most) = (Arc::clone(world), SECOND * world.number(4));
            tokio::spawn(async move {
                node.is_closed.store(true, Ordering::Relaxed);
                node.engine.drain(at_most).await;
                // Who crashed meanwhile was started again by that.
                if node.gate.life() != Life::Dead {
                    node.gate.set(Life::Dead);
                    world.replace(number);
                }
            });
        }
        Disturbance::ClockForward => jump(world, kind, i64::from(world.number(20)) * 500_000),
        Disturbance::ClockFarForward => jump(world, kind, 3_700_000_000),
        // Without tombstones a record may be gone before the clock has passed its fence again.
        Disturbance::ClockBack if world.options.keeps_no_tombstones() => {}
        Disturbance::ClockBack => jump(world, kind, i64::from(world.number(20)) * -500_000),
        Disturbance::StoreDown => {
            world.fault(kind, "");
            lock(&world.records).is_down = true;
            sleep(world.delay()).await;
            lock(&world.records).is_down = false;
        }
        Disturbance::StoreRestart => restart(world, kind).await,
        Disturbance::Void => void(world, kind),
    }
}

fn jump(world: &World, kind: &'static str, micros: i64) {
    world.fault(kind, format!("{:+.1} s", micros as f64 / 1e6));
    world.jump(micros);
}

/// Short enough that nobody gives up, with or without its last commits.
async fn restart(world: &World, kind: &'static str) {
    world.fault(kind, "");
    lock(&world.records).is_down = true;
    if !world.options.durable {
        let lost = world.lose_commits(world.delay());
        if lost > 0 {
            world.fault(STORE_LOSES, format!("{lost} commits"));
        }
    }
    sleep(Duration::from_millis(30)).await;
    lock(&world.records).is_down = false;
}

/// An operator withdraws the first stored reply there is.
fn void(world: &World, kind: &'static str) {
    let completed = {
        let records = lock(&world.records);
        records.records.values().find(|record| record.state == State::Completed).cloned()
    };
    let Some(record) = completed else { return };
    world.fault(kind, record.id.key.as_str());
    let resolve = Resolve {
        id: record.id.clone(),
        generation: record.generation,
        fence: record.fence,
        resolution: Resolution::Void,
        reason: "an operator".into(),
    };
    let _ = world.resolve(resolve, record.fence);
}
