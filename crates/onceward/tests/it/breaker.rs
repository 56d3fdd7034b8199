//! The breaker: while the store is known to be down, requests are refused at once.

use std::{sync::Arc, time::Duration};

use axum::body::Body;
use onceward::{
    Limits, Policy, Rate, Settings,
    engine::BreakerState,
    record::State,
    testing::{Fault, StoreCall},
};
use tokio::{sync::Semaphore, time::Instant};

use crate::service::{FOR_EVER, Faults, Run, Service, charge, keyed, pass, says};

/// How long a store call is repeated by default.
const DEADLINE: Duration = Duration::from_secs(5);

fn key(number: u32) -> String {
    format!("order-{number:016}")
}

async fn charged(run: Run) -> String {
    format!("charged {}", run.number)
}

fn service(faults: &Faults) -> Service {
    Service::on(|memory| faults.on(memory), Policy::required(), charged)
}

/// Lets requests fail until the breaker is open.
async fn open(service: &Service, faults: &Faults, fault: Fault) {
    faults.fail(StoreCall::Reserve, fault, FOR_EVER);
    for number in 0..3 {
        assert_eq!(service.engine.breaker_state(), BreakerState::Closed);
        let answer = service.charge(&key(number)).await;
        assert_eq!(answer.says(), says(503, "store_unavailable"));
    }
    assert_eq!(service.engine.breaker_state(), BreakerState::Open);
}

#[tokio::test(start_paused = true)]
async fn while_the_store_is_known_to_be_down_requests_are_refused_at_once() {
    for fault in [Fault::Refused, Fault::LostBefore, Fault::HangsBefore] {
        let faults = Faults::default();
        let service = service(&faults);
        open(&service, &faults, fault).await;
        let begun = Instant::now();
        for number in 10..30 {
            let refused = service.charge(&key(number)).await;
            assert_eq!(refused.says(), says(503, "store_unavailable"), "{fault:?}");
            assert_eq!(refused.header("retry-after"), "1", "{fault:?}");
        }
        assert_eq!(begun.elapsed(), Duration::ZERO, "{fault:?}");
        assert_eq!(service.runs(), 0, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn it_recovers_within_ten_seconds_of_the_store() {
    for fault in [Fault::Refused, Fault::HangsBefore] {
        for down in [0, 1, 3, 7, 8, 9, 10, 61] {
            let faults = Faults::default();
            let service = service(&faults);
            open(&service, &faults, fault).await;
            // Clients that come all the time, and do not wait for each other.
            let clients: Vec<_> = (0..(down + 10) * 10)
                .map(|tenth| {
                    let request =
                        crate::service::charge(&key(100 + u32::try_from(tenth).expect("few")));
                    let app = service.app.clone();
                    tokio::spawn(async move {
                        pass(Duration::from_millis(tenth * 100 + 50)).await;
                        tower::ServiceExt::oneshot(app, request).await.expect("infallible").status()
                    })
                })
                .collect();
            pass(Duration::from_secs(down)).await;
            faults.heal();
            pass(Duration::from_secs(10)).await;
            assert_eq!(service.engine.breaker_state(), BreakerState::Closed, "{fault:?} {down}");
            assert_eq!(service.charge(&key(1)).await.says(), says(200, "executed"));
            drop(clients);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn one_request_at_a_time_finds_out_whether_the_store_is_back() {
    let faults = Faults::default();
    let service = service(&faults);
    open(&service, &faults, Fault::HangsBefore).await;
    pass(Duration::from_secs(1)).await;
    let probe = service.spawn_charge(&key(10));
    pass(Duration::from_millis(1)).await;
    assert_eq!(service.engine.breaker_state(), BreakerState::HalfOpen);
    let begun = Instant::now();
    for number in 20..40 {
        assert_eq!(service.charge(&key(number)).await.says(), says(503, "store_unavailable"));
    }
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert_eq!(probe.await.expect("answered").says(), says(503, "store_unavailable"));
    assert!(begun.elapsed() < Duration::from_secs(3), "a probe is not as patient as others");
    assert_eq!(service.engine.breaker_state(), BreakerState::Open);
    // The next one finds it.
    faults.heal();
    pass(Duration::from_secs(2)).await;
    assert_eq!(service.charge(&key(10)).await.says(), says(200, "executed"));
    assert_eq!(service.engine.breaker_state(), BreakerState::Closed);
    assert_eq!(service.charge(&key(11)).await.says(), says(200, "executed"));
}

#[tokio::test(start_paused = true)]
async fn an_answer_in_between_keeps_it_closed() {
    let faults = Faults::default();
    let service = service(&faults);
    for number in 0..10 {
        faults.fail(StoreCall::Reserve, Fault::HangsBefore, FOR_EVER);
        assert_eq!(service.charge(&key(number)).await.status, 503);
        assert_eq!(service.charge(&key(number)).await.status, 503);
        faults.heal();
        assert_eq!(service.charge(&key(number)).await.says(), says(200, "executed"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_read_does_not_open_it() {
    let faults = Faults::default();
    let service = service(&faults);
    faults.fail(StoreCall::Reserve, Fault::Corrupt, FOR_EVER);
    for _ in 0..20 {
        assert_eq!(service.charge(&key(1)).await.status, 503);
    }
    assert_eq!(service.engine.breaker_state(), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn attempts_that_run_are_not_held_up_and_their_writes_close_it() {
    let (faults, open_gate) = (Faults::default(), Arc::new(Semaphore::new(0)));
    let gate = Arc::clone(&open_gate);
    let service = Service::on(
        |memory| faults.on(memory),
        Policy::required(),
        move |run| {
            let gate = Arc::clone(&gate);
            async move {
                gate.acquire().await.expect("open").forget();
                charged(run).await
            }
        },
    );
    let running = service.spawn_charge(&key(99));
    pass(Duration::from_millis(1)).await;
    open(&service, &faults, Fault::Refused).await;
    open_gate.add_permits(1);
    assert_eq!(running.await.expect("answered").says(), says(200, "executed"));
    let record = service.record(&key(99)).await.expect("a record");
    assert_eq!(record.state, State::Completed);
    assert_eq!(service.engine.breaker_state(), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn engines_of_one_service_share_it() {
    let faults = Faults::default();
    let service = service(&faults);
    open(&service, &faults, Fault::Refused).await;
    let later = service.engine.under(Policy::required().into(), Settings::default());
    assert_eq!(later.breaker_state(), BreakerState::Open);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_never_says_who_it_is_opens_it_too() {
    let faults = Faults::default();
    let service = service(&faults);
    faults.fail(StoreCall::CheckIdentity, Fault::HangsBefore, FOR_EVER);
    let begun = Instant::now();
    for number in 0..3 {
        assert_eq!(service.charge(&key(number)).await.status, 503);
    }
    assert_eq!(begun.elapsed(), DEADLINE * 3);
    assert_eq!(service.engine.breaker_state(), BreakerState::Open);
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_answers_after_the_request_was_read_and_before_any_limit() {
    let faults = Faults::default();
    let limits = Limits { lookups: Some(Rate::per_second(1).burst(3)), ..Limits::OFF };
    let settings = Settings { limits, ..Settings::default() };
    let policy = Policy::required().request_bytes_max(20);
    let service = Service::with_settings(|memory| faults.on(memory), policy, settings, charged);
    faults.fail(StoreCall::Reserve, Fault::Refused, FOR_EVER);
    let sent: Vec<_> = (0..3).map(|number| service.spawn_charge(&key(number))).collect();
    for answer in sent {
        assert_eq!(answer.await.expect("answered").says(), says(503, "store_unavailable"));
    }
    let large = keyed(&key(1)).body(Body::from("x".repeat(30))).expect("a request");
    let mut nameless = charge(&key(1));
    nameless.headers_mut().remove("authorization");
    assert_eq!(service.send(nameless).await.says(), says(401, "scope_missing"));
    assert_eq!(service.charge("short").await.says(), says(400, "key_invalid"));
    assert_eq!(service.send(large).await.says(), says(413, "body_too_large"));
    // More than the limit, which is not asked: no lookup is made.
    for number in 0..20 {
        assert_eq!(service.charge(&key(number)).await.says(), says(503, "store_unavailable"));
    }
    faults.heal();
    pass(Duration::from_secs(10)).await;
    for _ in 0..3 {
        assert_eq!(service.charge(&key(1)).await.status, 200);
    }
    assert_eq!(service.charge(&key(1)).await.says(), says(429, "rate_limited"));
}
