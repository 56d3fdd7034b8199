//! The worker that goes on without a client, when clocks, stores and other work are in its way.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use http::StatusCode;
use onceward::{
    Effect, EffectError, Effects, Policy, Queued, Resumer, Routes, Settings, Store as _,
    engine::Resumed,
    record::State,
    store::{Ask, Reservation, Which},
    testing::{
        Fault, FaultyStore, StoreCall,
        samples::{self, LEASE},
    },
};

use crate::service::{FOR_EVER, Faults, Run, Service, TestClock, pass, says};

const KEY: &str = "order-0000000000000001";
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

fn queued() -> Policy {
    Policy::required().queued(Queued::default()).expect("allowed")
}

async fn charged(run: Run) -> String {
    format!("charged {}", run.number)
}

/// A worker of another process, whose clock is this much ahead of the store's.
fn ahead(service: &Service, by: Duration) -> Resumer<axum::Router> {
    let clock = TestClock::new();
    clock.advance(by);
    let settings = Settings { clock: Arc::new(clock), ..Settings::default() };
    let engine = service.engine.under(Routes::from(queued()), settings);
    Resumer::new(Arc::new(engine), service.inner.clone())
}

#[tokio::test(start_paused = true)]
async fn a_worker_whose_clock_is_ahead_executes_what_is_in_time_by_the_clock_of_the_store() {
    let service = Service::new(queued(), charged);
    for number in 0..40 {
        service.charge(&format!("order-{number:016}")).await;
    }
    let worker = ahead(&service, DAY * 2);
    let first = worker.run_once(32).await.expect("the store answers");
    assert_eq!(first, Resumed { taken: 32, ..Resumed::default() });
    let second = worker.run_once(32).await.expect("the store answers");
    assert_eq!((second.taken, service.runs()), (8, 40));
    assert_eq!(service.charge(KEY).await.says(), says(200, "replayed"));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_given_up_is_counted_and_hides_nobody() {
    let faults = Faults::default();
    let service = Service::on(|memory| faults.on(memory), queued(), charged);
    for number in 0..3 {
        service.charge(&format!("order-{number:016}")).await;
    }
    service.clock.advance(DAY);
    service.charge("order-of-today-0000000000").await;
    faults.fail(StoreCall::Resolve, Fault::Refused, FOR_EVER);
    let worker = Resumer::new(Arc::clone(&service.engine), service.inner.clone());
    let looked = worker.run_once(10).await.expect("the store answers");
    assert_eq!(looked, Resumed { taken: 1, left: 3, given_up: 0 });
    // So many more are looked at next time: with two places, the one of today is still found.
    service.charge("order-of-today-0000000001").await;
    let working = tokio::spawn(async move { worker.run(SECOND, 2).await });
    pass(SECOND * 5).await;
    assert_eq!(service.runs(), 2);
    faults.heal();
    pass(SECOND * 5).await;
    assert_eq!(service.charge(KEY).await.says(), says(504, "not_executed"));
    working.abort();
}

/// How often a worker with a backlog looks within ten seconds, when claims fail like this.
async fn looks(fault: Fault) -> (u32, u32) {
    let looks = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&looks);
    let plan = move |call, _| match call {
        StoreCall::Resumable => {
            counted.fetch_add(1, Ordering::SeqCst);
            Fault::None
        }
        StoreCall::Claim | StoreCall::Ping => fault,
        _ => Fault::None,
    };
    let on = |memory: Arc<onceward::MemoryStore>| -> Arc<dyn onceward::Store> {
        Arc::new(FaultyStore::new(memory, plan))
    };
    let service = Service::on(on, queued(), charged);
    for number in 0..100 {
        service.charge(&format!("order-{number:016}")).await;
    }
    let worker = Resumer::new(Arc::clone(&service.engine), service.inner.clone());
    let working = tokio::spawn(async move { worker.run(SECOND, 32).await });
    pass(SECOND * 10).await;
    working.abort();
    (looks.load(Ordering::SeqCst), service.runs())
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_gets_nothing_looks_no_more_often_than_it_should() {
    let (looks, runs) = looks(Fault::Refused).await;
    assert!(looks <= 12 && runs == 0, "{looks} looks, {runs} runs");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_gets_something_looks_again_at_once() {
    assert_eq!(looks(Fault::None).await.1, 100);
}

#[tokio::test(start_paused = true)]
async fn a_worker_for_accepted_work_reads_nothing_that_it_does_not_run() {
    let service = Service::new(queued(), charged);
    for number in 0..10 {
        let phased = Ask {
            effects: Effects::Phased,
            request: Some(Arc::new(samples::request("{}"))),
            ..samples::ask(&format!("phased-{number}"))
        };
        let granted = service.memory.reserve(phased).await.expect("memory answers");
        assert!(matches!(granted, Reservation::Granted { .. }));
    }
    service.clock.advance(LEASE);
    service.charge(KEY).await;
    let told = |which| {
        let memory = Arc::clone(&service.memory);
        async move { memory.resumable(which, 100).await.expect("memory answers").len() }
    };
    assert_eq!((told(Which::Accepted).await, told(Which::All).await), (1, 11));
}

#[tokio::test(start_paused = true)]
async fn a_look_that_panics_is_not_the_last_one() {
    let panics = Arc::new(Mutex::new(3_u32));
    let left = Arc::clone(&panics);
    let plan = move |call, _| {
        let mut left = left.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if call == StoreCall::Resumable && *left > 0 {
            *left -= 1;
            panic!("a fault of the test");
        }
        Fault::None
    };
    let on = |memory: Arc<onceward::MemoryStore>| -> Arc<dyn onceward::Store> {
        Arc::new(FaultyStore::new(memory, plan))
    };
    let service = Service::on(on, queued(), charged);
    let worker = Resumer::new(Arc::clone(&service.engine), service.inner.clone());
    let working = tokio::spawn(async move { worker.run(SECOND, 2).await });
    pass(SECOND * 5).await;
    service.charge(KEY).await;
    pass(SECOND).await;
    let record = service.record(KEY).await.expect("a record");
    assert_eq!((record.state, service.runs()), (State::Completed, 1));
    working.abort();
}

/// How often a service in steps is called within a minute that never comes further than its first one.
async fn calls_of_what_does_not_go_on(client_comes: bool) -> u32 {
    let phased = Policy::required().effects(Effects::Phased).expect("allowed");
    let service = Service::new(phased, |run: Run| async move {
        let book = Effect::idempotent("book");
        let book = run.operation().effect(book, async |key| Ok::<_, EffectError<&str>>(key)).await;
        book.expect("a step");
        StatusCode::INTERNAL_SERVER_ERROR
    });
    service.charge(KEY).await;
    let worker = Resumer::new(Arc::clone(&service.engine), service.inner.clone());
    let working = tokio::spawn(async move { worker.run(SECOND, 2).await });
    for _ in 0..6 {
        pass(SECOND * 10).await;
        if client_comes {
            assert_eq!(service.charge(KEY).await.status, 500, "it is not held up");
        }
    }
    working.abort();
    service.runs() - 1
}

#[tokio::test(start_paused = true)]
async fn a_phased_operation_that_does_not_go_on_is_tried_less_and_less_and_its_client_need_not_wait()
 {
    // After 1, 2, 4, 8, 16 and 32 seconds, and the look after that.
    let tried = calls_of_what_does_not_go_on(false).await;
    assert!((5..=7).contains(&tried), "{tried}");
    let with_a_client = calls_of_what_does_not_go_on(true).await;
    assert!((8..=12).contains(&with_a_client), "{with_a_client}");
}
