//! Workers when something fails: one kind of work, one record, or they themselves.

use std::{future::pending, sync::Arc, time::Duration};

use onceward::{
    Effects, Policy, Queued, Store as _,
    record::State,
    store::Reservation,
    testing::{
        Fault, FaultyStore, StoreCall,
        samples::{LEASE, ask},
    },
    worker::{Reaper, Sweeper},
};

use crate::service::{FOR_EVER, Faults, Service, pass, says};

const KEY: &str = "order-0000000000000001";
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

fn queued() -> Policy {
    Policy::required().queued(Queued::default()).expect("allowed")
}

#[tokio::test(start_paused = true)]
async fn records_that_cannot_be_reaped_do_not_keep_audit_records_for_ever() {
    let faults = Faults::default();
    let policy = Policy::required();
    let service = Service::on(|memory| faults.on(memory), policy, |_| async { "charged" });
    let _: Reservation = service.memory.reserve(ask("key")).await.expect("memory answers");
    service.clock.advance(LEASE);
    service.memory.sweep(10).await.expect("memory answers");
    service.clock.advance(Reaper::AUDIT_RETENTION);
    let reaper = Reaper::new(Arc::clone(&service.engine));
    let audit = async || service.memory.audit(&ask("key").id).await.expect("memory answers").len();
    assert_eq!(audit().await, 1);
    faults.fail(StoreCall::Reap, Fault::Refused, FOR_EVER);
    reaper.run_once().await.expect_err("records cannot be reaped");
    assert_eq!(audit().await, 0);
    faults.heal();
    reaper.run_once().await.expect("all is well");
}

#[tokio::test(start_paused = true)]
async fn leases_that_cannot_be_swept_do_not_keep_accepted_work_for_ever() {
    let faults = Faults::default();
    let service = Service::on(|memory| faults.on(memory), queued(), |_| async { "charged" });
    service.charge(KEY).await;
    service.clock.advance(DAY);
    let sweeper = Sweeper::new(Arc::clone(&service.engine));
    faults.fail(StoreCall::Sweep, Fault::Refused, FOR_EVER);
    sweeper.run_once().await.expect_err("leases cannot be swept");
    assert_eq!(service.charge(KEY).await.says(), says(504, "not_executed"));
    // And the other way round.
    let _: Reservation = service.memory.reserve(ask("key")).await.expect("memory answers");
    service.clock.advance(LEASE);
    faults.heal();
    faults.fail(StoreCall::List, Fault::Refused, FOR_EVER);
    sweeper.run_once().await.expect_err("accepted work cannot be listed");
    let record = service.memory.load(&ask("key").id).await.expect("memory answers");
    assert_eq!(record.map(|record| record.state), Some(State::Unknown));
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_panics_is_tried_again() {
    let mut panics = 3;
    let plan = move |call, _| {
        if call == StoreCall::Sweep && panics > 0 {
            panics -= 1;
            panic!("a fault of the test");
        }
        Fault::None
    };
    let on = |memory: Arc<onceward::MemoryStore>| -> Arc<dyn onceward::Store> {
        Arc::new(FaultyStore::new(memory, plan))
    };
    let policy = Policy::required().effects(Effects::External).expect("allowed");
    let service = Service::on(on, policy, |_| async { "charged" });
    let _: Reservation = service.memory.reserve(ask("key")).await.expect("memory answers");
    service.clock.advance(LEASE);
    let sweeper = Sweeper::new(Arc::clone(&service.engine));
    let running = tokio::spawn(async move { sweeper.run(SECOND * 30, pending()).await });
    pass(SECOND * 20).await;
    assert!(!running.is_finished());
    let record = service.memory.load(&ask("key").id).await.expect("memory answers");
    assert_eq!(record.map(|record| record.state), Some(State::Unknown));
    running.abort();
}
