//! Workers when something fails: one kind of work, one record, or they themselves.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use http::StatusCode;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use onceward::{
    Effects, Finding, Policy, Probe, Queued, Reconciler, Reply, Resumer, Store as _, Unknown,
    record::State,
    store::{Reservation, Resolution, Resolve, Resolved},
    testing::{
        Fault, FaultyStore, StoreCall,
        samples::{LEASE, ask},
    },
    worker::{ProbeFuture, Reaper, Sweeper},
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
    let record = service.memory.load(&ask("key").id).await.expect("memory answers");
    let record = record.expect("a record");
    let resolve = Resolve {
        id: record.id,
        generation: record.generation,
        fence: record.fence,
        resolution: Resolution::Complete(Reply::new(StatusCode::OK, "charged")),
        reason: "ticket 7".into(),
    };
    let resolved = service.memory.resolve(resolve).await.expect("memory answers");
    assert!(matches!(resolved, Resolved::Applied(_)), "{resolved:?}");
    let reaper = Reaper::new(Arc::clone(&service.engine));
    // Its retention, then its tombstone; what happened to it is left.
    for _ in 0..2 {
        service.clock.advance(Reaper::AUDIT_RETENTION);
        service.memory.reap(10).await.expect("memory answers");
    }
    let audit = async || service.memory.audit(&ask("key").id).await.expect("memory answers").len();
    assert_eq!(audit().await, 2);
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

/// What is told of a worker, for alerts.
fn told(handle: &PrometheusHandle, name: &str, worker: &str) -> f64 {
    let rendered = handle.render();
    let line = format!("{name}{{worker=\"{worker}\"}} ");
    let line = rendered.lines().find_map(|it| it.strip_prefix(&line));
    line.unwrap_or_else(|| panic!("{name}:\n{rendered}")).parse().expect("a number")
}

#[test]
fn a_worker_that_never_ends_a_run_looks_so_however_often_it_is_started() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().start_paused(true).build().expect("a runtime");
    let told = |name: &str| told(&handle, name, "sweeper");
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let faults = Faults::default();
            let policy = Policy::required();
            let service = Service::on(|memory| faults.on(memory), policy, |_| async { "charged" });
            faults.fail(StoreCall::Sweep, Fault::Refused, FOR_EVER);
            let mut started = Vec::new();
            for _ in 0..2 {
                let sweeper = Sweeper::new(Arc::clone(&service.engine));
                sweeper.run(SECOND * 30, tokio::time::sleep(SECOND * 40)).await;
                assert!(told("onceward_worker_failed_in_a_row") >= 3.0);
                assert_eq!(told("onceward_worker_period_seconds"), 30.0);
                started.push(told("onceward_worker_last_run_timestamp_seconds"));
            }
            assert_eq!(started[0], started[1]);
            faults.heal();
            let sweeper = Sweeper::new(Arc::clone(&service.engine));
            sweeper.run(SECOND * 30, tokio::time::sleep(SECOND * 40)).await;
            assert_eq!(told("onceward_worker_failed_in_a_row"), 0.0);
            assert!(told("onceward_worker_last_run_timestamp_seconds") > started[1] + 80.0);
        });
    });
}

/// Is never asked anything here.
#[derive(Debug)]
struct NoBank;

impl Probe for NoBank {
    fn ask<'a>(&'a self, _: &'a Unknown) -> ProbeFuture<'a> {
        Box::pin(async { Finding::StillUnknown })
    }
}

#[test]
fn a_dispatcher_or_reconciler_that_cannot_look_for_work_is_seen_to_stand_still() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().start_paused(true).build().expect("a runtime");
    let last = |worker| told(&handle, "onceward_worker_last_run_timestamp_seconds", worker);
    let failed = |worker| told(&handle, "onceward_worker_failed_in_a_row", worker);
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let faults = Faults::default();
            let service = Service::on(|memory| faults.on(memory), queued(), |_| async { "done" });
            let dispatcher = Resumer::new(Arc::clone(&service.engine), service.inner.clone());
            let reconciler = Reconciler::new(faults.on(service.memory.clone()), NoBank);
            tokio::spawn(async move { dispatcher.run(SECOND * 5, 2).await });
            let reconciler = reconciler.every(SECOND * 7);
            tokio::spawn(async move { reconciler.run(pending()).await });
            for (worker, period) in [("dispatcher", 5.0), ("reconciler", 7.0)] {
                pass(SECOND * 20).await;
                assert_eq!(told(&handle, "onceward_worker_period_seconds", worker), period);
                let before = last(worker);
                pass(SECOND * 20).await;
                assert!(last(worker) > before, "the {worker} looks");
                faults.fail(StoreCall::Resumable, Fault::Refused, FOR_EVER);
                faults.fail(StoreCall::DueUnknown, Fault::Refused, FOR_EVER);
                pass(SECOND).await;
                let before = last(worker);
                pass(SECOND * 40).await;
                assert_eq!(last(worker), before, "the {worker} does not");
                assert!(failed(worker) >= 3.0, "{worker}: {}", failed(worker));
                faults.heal();
                pass(SECOND * 20).await;
                assert!(last(worker) > before, "the {worker} looks again");
                assert_eq!(failed(worker), 0.0);
            }
        });
    });
}

#[test]
fn a_dispatcher_that_has_its_hands_full_is_seen_to_be_there() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().start_paused(true).build().expect("a runtime");
    let last = || told(&handle, "onceward_worker_last_run_timestamp_seconds", "dispatcher");
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let service = Service::new(queued(), |_| pending::<&str>());
            let dispatcher = Resumer::new(Arc::clone(&service.engine), service.inner.clone());
            let working = tokio::spawn(async move { dispatcher.run(SECOND * 5, 1).await });
            service.charge(KEY).await;
            pass(SECOND * 10).await;
            assert_eq!(service.runs(), 1, "its hands are full");
            let before = last();
            pass(SECOND * 20).await;
            assert!(last() > before, "it is there");
            // The twin: one that is not there is not seen.
            working.abort();
            pass(SECOND).await;
            let before = last();
            pass(SECOND * 20).await;
            assert_eq!(last(), before);
        });
    });
}

#[tokio::test(start_paused = true)]
async fn a_look_that_panics_is_not_the_end_of_a_reconciler() {
    let service = Service::new(Policy::required(), |_| async { "charged" });
    let looks = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&looks);
    let store = FaultyStore::new(service.memory.clone(), move |call, _| {
        if call == StoreCall::DueUnknown && counted.fetch_add(1, Ordering::SeqCst) == 0 {
            panic!("as it should");
        }
        Fault::None
    });
    let reconciler = Reconciler::new(Arc::new(store), NoBank);
    let reconciler = reconciler.every(SECOND);
    let running = tokio::spawn(async move { reconciler.run(pending()).await });
    pass(SECOND * 5).await;
    assert!(!running.is_finished());
    assert!(looks.load(Ordering::SeqCst) > 1, "it looks again");
}
