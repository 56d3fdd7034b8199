//! Stopping: no new work, replays go on, what runs finishes or is called unknown.

use std::{sync::Arc, time::Duration};

use onceward::{
    InFlight, Policy, Settings,
    record::State,
    testing::{Fault, Point, StoreCall},
};
use tokio::time::Instant;

use crate::service::{FOR_EVER, Faults, Run, Service, pass, says};

const DONE: &str = "order-of-before-0001";
const RUNNING: &str = "order-that-runs-0001";
const NEW: &str = "order-that-is-new-01";

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A service whose later runs take `time`.
fn service(time: Duration) -> Service {
    Service::new(Policy::required(), move |run: Run| async move {
        if run.number > 1 {
            pass(time).await;
        }
        format!("charged {}", run.number)
    })
}

#[tokio::test(start_paused = true)]
async fn while_it_drains_new_keys_get_503_and_replays_go_on_and_what_runs_finishes() {
    let service = service(seconds(10));
    assert_eq!(service.charge(DONE).await.says(), says(200, "executed"));
    let running = service.spawn_charge(RUNNING);
    pass(seconds(1)).await;

    let engine = Arc::clone(&service.engine);
    let begun = Instant::now();
    let drained = tokio::spawn(async move { engine.drain(seconds(25)).await });
    pass(seconds(1)).await;
    let refused = service.charge(NEW).await;
    assert_eq!(refused.says(), says(503, "store_unavailable"));
    assert_eq!(
        (refused.header("retry-after"), &refused.json()["retry"]),
        ("1", &"same_key".into())
    );
    assert_eq!(service.charge(DONE).await.says(), says(200, "replayed"));
    assert_eq!(service.charge(RUNNING).await.says(), says(409, "key_in_progress"));

    drained.await.expect("drained");
    assert_eq!(begun.elapsed(), seconds(9), "it waits for what runs, and no longer");
    assert_eq!(running.await.expect("answered").says(), says(200, "executed"));
    assert_eq!(service.charge(DONE).await.says(), says(200, "replayed"));
    assert_eq!(service.record(NEW).await, None);
    assert_eq!(service.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_still_runs_at_the_deadline_is_marked_unknown_at_once() {
    let service = service(seconds(100));
    service.charge(DONE).await;
    let running = service.spawn_charge(RUNNING);
    pass(seconds(1)).await;
    let begun = Instant::now();
    service.engine.drain(seconds(25)).await;
    assert_eq!(begun.elapsed(), seconds(25));
    assert_eq!(running.await.expect("answered").says(), says(504, "outcome_unknown"));
    let record = service.record(RUNNING).await.expect("a record");
    assert_eq!(
        (record.state, record.last_error.as_deref()),
        (State::Unknown, Some("process_stopped"))
    );
}

#[tokio::test(start_paused = true)]
async fn an_engine_at_rest_drains_at_once() {
    let service = service(seconds(1));
    service.charge(DONE).await;
    pass(seconds(1)).await;
    let begun = Instant::now();
    service.engine.drain(seconds(25)).await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_handler_past_its_max_execution_does_not_hold_up_the_end() {
    let policy = Policy::required().max_execution(seconds(5)).expect("long enough");
    let service = Service::new(policy, |_| std::future::pending::<String>());
    assert_eq!(service.charge(RUNNING).await.says(), says(504, "outcome_unknown"));
    let begun = Instant::now();
    service.engine.drain(seconds(1)).await;
    assert_eq!(begun.elapsed(), seconds(1));
    assert_eq!(service.record(RUNNING).await.expect("a record").state, State::Unknown);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_does_not_hold_up_the_end_for_ever() {
    let faults = Faults::default();
    faults.fail(StoreCall::Complete, Fault::HangsBefore, FOR_EVER);
    let service =
        Service::on(|memory| faults.on(memory), Policy::required(), |_| async { "charged" });
    assert_eq!(service.charge(RUNNING).await.says(), says(409, "outcome_unknown"));
    let begun = Instant::now();
    service.engine.drain(seconds(1)).await;
    assert!(begun.elapsed() <= seconds(6), "the deadline and one store deadline");
    assert_eq!(service.record(RUNNING).await.expect("a record").state, State::InProgress);
}

#[tokio::test(start_paused = true)]
async fn what_was_granted_and_not_dispatched_at_the_end_is_released() {
    let (service, gate) =
        Service::gated(Policy::required(), Settings::default(), |_| async { "charged" });
    let running = service.spawn_charge(RUNNING);
    gate.expect(StoreCall::Reserve, Point::Before).await.pass();
    let granted = gate.expect(StoreCall::Reserve, Point::After).await;
    let engine = Arc::clone(&service.engine);
    let drained = tokio::spawn(async move { engine.drain(seconds(1)).await });
    pass(seconds(2)).await;
    drop(gate);
    granted.pass();
    drained.await.expect("drained");
    assert_eq!(running.await.expect("answered").says(), says(503, "store_unavailable"));
    assert_eq!(service.record(RUNNING).await.expect("a record").state, State::FailedRetryable);
    assert_eq!(service.runs(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_told_to_come_back_when_its_attempt_is_cut_off_by_the_end() {
    let policy = Policy::required().in_flight(InFlight::Wait(seconds(10)));
    let service = Service::new(policy, |_| std::future::pending::<String>());
    let running = service.spawn_charge(RUNNING);
    pass(seconds(1)).await;
    let waiter = service.spawn_charge(RUNNING);
    pass(seconds(1)).await;
    service.engine.drain(seconds(2)).await;
    assert_eq!(running.await.expect("answered").says(), says(504, "outcome_unknown"));
    assert_eq!(waiter.await.expect("answered").says(), says(409, "outcome_unknown"));
}
