//! What one caller may ask for: keys and lookups per second, and records in progress.

use std::{sync::Arc, time::Duration};

use axum::{body::Body, response::IntoResponse as _};
use http::{Request, StatusCode};
use onceward::{Limits, Policy, Rate, Settings, testing::StoreCall};
use tokio::sync::Semaphore;

use crate::service::{Answer, EVIL, FOR_EVER, Faults, Run, Service, charge, keyed, pass, says};

fn key(number: u32) -> String {
    format!("order-{number:016}")
}

async fn charged(run: Run) -> String {
    format!("charged {}", run.number)
}

fn limited(limits: Limits) -> Service {
    let settings = Settings { limits, ..Settings::default() };
    Service::with_settings(|memory| memory, Policy::required(), settings, charged)
}

fn creations(rate: Rate) -> Limits {
    Limits { creations: Some(rate), ..Limits::OFF }
}

fn of(credential: &str, key: &str) -> Request<Body> {
    let mut request = charge(key);
    request.headers_mut().insert("authorization", credential.parse().expect("a value"));
    request
}

fn is_limited(answer: &Answer, limit: &str, retry_after: &str) {
    assert_eq!(answer.says(), says(429, "rate_limited"));
    assert_eq!(answer.outcome(), "rate_limited");
    assert_eq!(answer.header("retry-after"), retry_after);
    let document = answer.json();
    assert_eq!(document["retry"], "same_key");
    assert_eq!(document["limit"], limit);
}

#[tokio::test(start_paused = true)]
async fn without_limits_nothing_is_limited() {
    let service = Service::new(Policy::required(), charged);
    for number in 0..500 {
        assert_eq!(service.charge(&key(number)).await.status, 200);
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_key_over_the_quota_is_429_and_runs_when_it_comes_back() {
    let service = limited(creations(Rate::per_second(1).burst(2)));
    for number in 1..=2 {
        assert_eq!(service.charge(&key(number)).await.says(), says(200, "executed"));
    }
    is_limited(&service.charge(&key(3)).await, "creations", "1");
    assert_eq!(service.record(&key(3)).await, None, "nothing is stored");
    assert_eq!(service.runs(), 2);
    // Somebody else has a quota of their own.
    assert_eq!(service.send(of(EVIL, &key(3))).await.says(), says(200, "executed"));
    pass(Duration::from_secs(1)).await;
    assert_eq!(service.charge(&key(3)).await.says(), says(200, "executed"));
    is_limited(&service.charge(&key(4)).await, "creations", "1");
}

#[tokio::test(start_paused = true)]
async fn retry_after_tells_when_the_next_key_may_be_created() {
    let service = limited(creations(Rate::per_second(1).burst(1)));
    service.charge(&key(1)).await;
    service.clock.pause_process(Duration::from_millis(999));
    is_limited(&service.charge(&key(2)).await, "creations", "1");
    service.clock.pause_process(Duration::from_millis(1));
    assert_eq!(service.charge(&key(2)).await.says(), says(200, "executed"));
}

#[tokio::test(start_paused = true)]
async fn replays_conflicts_and_mismatches_are_answered_without_quota_and_use_none() {
    let open = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&open);
    let settings =
        Settings { limits: creations(Rate::per_second(1).burst(3)), ..Settings::default() };
    let service = Service::with_settings(
        |memory| memory,
        Policy::required(),
        settings,
        move |run| {
            let gate = Arc::clone(&gate);
            async move {
                if run.number == 2 {
                    gate.acquire().await.expect("open").forget();
                }
                charged(run).await
            }
        },
    );
    let other = |number| keyed(&key(number)).body(Body::from("other")).expect("a request");
    service.charge(&key(1)).await;
    let slow = service.spawn_charge(&key(2));
    pass(Duration::from_millis(1)).await;
    // With quota left: none of these takes any of it.
    for _ in 0..20 {
        assert_eq!(service.charge(&key(1)).await.says(), says(200, "replayed"));
        assert_eq!(service.charge(&key(2)).await.says(), says(409, "key_in_progress"));
        assert_eq!(service.send(other(1)).await.status, 422);
    }
    assert_eq!(service.charge(&key(3)).await.says(), says(200, "executed"));
    // And without.
    is_limited(&service.charge(&key(4)).await, "creations", "1");
    for _ in 0..20 {
        assert_eq!(service.charge(&key(1)).await.says(), says(200, "replayed"));
        assert_eq!(service.charge(&key(2)).await.says(), says(409, "key_in_progress"));
        assert_eq!(service.send(other(1)).await.status, 422);
    }
    open.add_permits(1);
    assert_eq!(slow.await.expect("answered").says(), says(200, "executed"));
    pass(Duration::from_secs(1)).await;
    assert_eq!(service.charge(&key(4)).await.says(), says(200, "executed"));
}

#[tokio::test(start_paused = true)]
async fn a_rerun_of_a_key_that_did_nothing_uses_no_quota() {
    let settings =
        Settings { limits: creations(Rate::per_second(1).burst(2)), ..Settings::default() };
    let service = Service::with_settings(
        |memory| memory,
        Policy::required(),
        settings,
        |run| async move {
            match run.number {
                1..=5 => StatusCode::TOO_MANY_REQUESTS.into_response(),
                _ => charged(run).await.into_response(),
            }
        },
    );
    for _ in 0..5 {
        assert_eq!(service.charge(&key(1)).await.says(), says(429, "not_executed"));
    }
    assert_eq!(service.charge(&key(1)).await.says(), says(200, "executed"));
    assert_eq!(service.charge(&key(2)).await.says(), says(200, "executed"), "the second of two");
    is_limited(&service.charge(&key(3)).await, "creations", "1");
}

#[tokio::test(start_paused = true)]
async fn many_at_once_create_no_more_keys_than_the_burst() {
    let service = limited(creations(Rate::per_second(1).burst(7)));
    let sent: Vec<_> = (0..100).map(|number| service.spawn_charge(&key(number))).collect();
    let mut executed = 0;
    for answer in sent {
        let answer = answer.await.expect("answered");
        assert!(matches!(answer.status, 200 | 429), "{answer:?}");
        executed += u32::from(answer.status == 200);
    }
    assert_eq!((executed, service.runs()), (7, 7));
}

#[tokio::test(start_paused = true)]
async fn records_in_progress_are_limited_and_an_end_makes_room() {
    let open = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&open);
    let settings =
        Settings { limits: Limits { active: Some(2), ..Limits::OFF }, ..Settings::default() };
    let service = Service::with_settings(
        |memory| memory,
        Policy::required(),
        settings,
        move |run| {
            let gate = Arc::clone(&gate);
            async move {
                gate.acquire().await.expect("open").forget();
                charged(run).await
            }
        },
    );
    let first = service.spawn_charge(&key(1));
    let second = service.spawn_charge(&key(2));
    pass(Duration::from_millis(1)).await;
    is_limited(&service.charge(&key(3)).await, "active", "1");
    assert_eq!(service.charge(&key(1)).await.says(), says(409, "key_in_progress"));
    open.add_permits(2);
    for answer in [first, second] {
        assert_eq!(answer.await.expect("answered").says(), says(200, "executed"));
    }
    pass(Duration::from_millis(1)).await;
    open.add_permits(1);
    assert_eq!(service.charge(&key(3)).await.says(), says(200, "executed"));
}

#[tokio::test(start_paused = true)]
async fn a_waiting_duplicate_takes_no_place_of_a_new_key() {
    let open = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&open);
    let settings =
        Settings { limits: Limits { active: Some(2), ..Limits::OFF }, ..Settings::default() };
    let service = Service::with_settings(
        |memory| memory,
        Policy::required(),
        settings,
        move |run| {
            let gate = Arc::clone(&gate);
            async move {
                if run.number == 1 {
                    gate.acquire().await.expect("open").forget();
                }
                charged(run).await
            }
        },
    );
    let first = service.spawn_charge(&key(1));
    pass(Duration::from_millis(1)).await;
    let patient = keyed(&key(1)).header("prefer", "wait=5").body(Body::from(crate::service::BODY));
    let waiting = service.spawn(patient.expect("a request"));
    pass(Duration::from_millis(1)).await;
    assert_eq!(service.charge(&key(2)).await.says(), says(200, "executed"));
    open.add_permits(1);
    assert_eq!(first.await.expect("answered").says(), says(200, "executed"));
    assert_eq!(waiting.await.expect("answered").says(), says(200, "replayed"));
}

#[tokio::test(start_paused = true)]
async fn lookups_over_the_quota_are_429_before_the_store_is_asked() {
    let faults = Faults::default();
    let limits = Limits { lookups: Some(Rate::per_second(2)), ..Limits::OFF };
    let settings = Settings { limits, ..Settings::default() };
    let service =
        Service::with_settings(|memory| faults.on(memory), Policy::required(), settings, charged);
    assert_eq!(service.charge(&key(1)).await.says(), says(200, "executed"));
    assert_eq!(service.charge(&key(1)).await.says(), says(200, "replayed"));
    // A store that would be asked would never answer.
    faults.fail(StoreCall::Reserve, onceward::testing::Fault::HangsBefore, FOR_EVER);
    let begun = tokio::time::Instant::now();
    is_limited(&service.charge(&key(1)).await, "lookups", "1");
    assert_eq!(begun.elapsed(), Duration::ZERO);
    faults.heal();
    pass(Duration::from_millis(500)).await;
    assert_eq!(service.charge(&key(1)).await.says(), says(200, "replayed"));
}

#[tokio::test(start_paused = true)]
async fn questions_about_the_state_are_lookups_too() {
    let service = limited(Limits { lookups: Some(Rate::per_second(2)), ..Limits::OFF });
    let ask = |credential| {
        let request = Request::builder().uri("/.onceward/operations/guess");
        request.header("authorization", credential).body(Body::empty()).expect("a request")
    };
    for _ in 0..2 {
        assert_eq!(service.send(ask(EVIL)).await.status, 404);
    }
    is_limited(&service.send(ask(EVIL)).await, "lookups", "1");
    assert_eq!(service.send(ask(crate::service::ACME)).await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn an_engine_under_other_limits_knows_what_was_used() {
    let mut service = limited(creations(Rate::per_second(1).burst(2)));
    service.charge(&key(1)).await;
    let settings = Settings {
        limits: creations(Rate::per_second(1).burst(1)),
        clock: Arc::new(service.clock.clone()),
        ..Settings::default()
    };
    let under = service.engine.under(Policy::required().into(), settings);
    let layer = onceward::Idempotency::from(Arc::new(under));
    service.app = axum::Router::new().fallback(|| async { "charged" }).layer(layer);
    is_limited(&service.charge(&key(2)).await, "creations", "1");
    assert_eq!(service.charge(&key(1)).await.says(), says(200, "replayed"));
}
