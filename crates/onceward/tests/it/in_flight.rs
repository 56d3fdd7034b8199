//! A retry that meets an attempt at work: conflict, wait, accepted.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::body::Body;
use http::Request;
use onceward::{
    InFlight, MemoryStore, Policy, Store,
    testing::{Fault, FaultyStore, StoreCall},
};
use tokio::{sync::Semaphore, time::Instant};

use crate::service::{ACME, BODY, EVIL, FOR_EVER, Faults, Run, Service, keyed, pass, says};

const KEY: &str = "order-0000000000000001";

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A service whose handler answers when it is let go.
fn held(policy: Policy) -> (Service, Arc<Semaphore>) {
    let go = Arc::new(Semaphore::new(0));
    let may_go = Arc::clone(&go);
    let service = Service::new(policy, move |run: Run| {
        let go = Arc::clone(&may_go);
        async move {
            go.acquire().await.expect("open").forget();
            format!("charged {}", run.number)
        }
    });
    (service, go)
}

fn charge_with(name: &str, value: &str) -> Request<Body> {
    keyed(KEY).header(name, value).body(Body::from(BODY)).expect("a request")
}

fn get(location: &str, credential: &str) -> Request<Body> {
    Request::get(location).header("authorization", credential).body(Body::empty()).expect("a get")
}

#[tokio::test(start_paused = true)]
async fn by_default_a_retry_gets_a_conflict_with_advice_and_the_address_of_the_state() {
    let (service, go) = held(Policy::required());
    let first = service.spawn_charge(KEY);
    pass(seconds(1)).await;
    let begun = Instant::now();
    let retry = service.charge(KEY).await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert_eq!(retry.says(), says(409, "key_in_progress"));
    assert_eq!((retry.outcome(), retry.header("cache-control")), ("conflict", "no-store"));
    let after: u64 = retry.header("retry-after").parse().expect("seconds");
    assert!((1..=5).contains(&after), "{after}");
    assert!(retry.header("location").starts_with("/.onceward/operations/"));
    assert!(!retry.header("location").contains("order"), "the address does not show the key");
    go.add_permits(1);
    let first = first.await.expect("answered");
    assert_eq!(first.says(), says(200, "executed"));
    let retry = service.charge(KEY).await;
    assert_eq!((retry.says(), retry.text()), (says(200, "replayed"), first.text()));
    assert_eq!(service.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn many_waiters_are_woken_at_once_and_all_get_the_same_reply() {
    let (service, go) = held(Policy::required().in_flight(InFlight::Wait(seconds(10))));
    let first = service.spawn_charge(KEY);
    pass(Duration::from_millis(1)).await;
    let waiters: Vec<_> = (0..50).map(|_| service.spawn_charge(KEY)).collect();
    // Not on a multiple of the time after which a waiter looks by itself.
    pass(Duration::from_millis(100)).await;
    let done = Instant::now();
    go.add_permits(1);
    assert_eq!(first.await.expect("answered").says(), says(200, "executed"));
    for waiter in waiters {
        let retry = waiter.await.expect("answered");
        assert_eq!((retry.says(), retry.text()), (says(200, "replayed"), "charged 1"));
    }
    assert_eq!(done.elapsed(), Duration::ZERO, "they were woken, they did not look by themselves");
    assert_eq!(service.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_sees_what_another_process_completed() {
    let (service, go) = held(Policy::required().in_flight(InFlight::Wait(seconds(10))));
    // The other engine cannot wake the waiters of this one.
    let other = onceward::Idempotency::from(Arc::new(onceward::Engine::new(
        service.memory.clone(),
        Policy::required().into(),
        onceward::Settings {
            clock: Arc::new(service.clock.clone()),
            ..onceward::Settings::default()
        },
    )));
    let may_go = Arc::clone(&go);
    let app = axum::Router::new()
        .fallback(move || async move {
            may_go.acquire().await.expect("open").forget();
            "charged elsewhere"
        })
        .layer(other);
    let first = tokio::spawn(tower::ServiceExt::oneshot(app, crate::service::charge(KEY)));
    pass(Duration::from_millis(1)).await;
    let waiter = service.spawn_charge(KEY);
    pass(seconds(1)).await;
    go.add_permits(1);
    let retry = waiter.await.expect("answered");
    assert_eq!((retry.says(), retry.text()), (says(200, "replayed"), "charged elsewhere"));
    first.await.expect("joined").expect("infallible");
    assert_eq!(service.runs(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_whose_time_is_over_gets_the_conflict() {
    let (service, _go) = held(Policy::required().in_flight(InFlight::Wait(seconds(3))));
    let _first = service.spawn_charge(KEY);
    pass(Duration::from_millis(1)).await;
    let begun = Instant::now();
    assert_eq!(service.charge(KEY).await.says(), says(409, "key_in_progress"));
    assert_eq!(begun.elapsed(), seconds(3));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_runs_what_the_first_attempt_is_known_not_to_have_done() {
    let go = Arc::new(Semaphore::new(0));
    let may_go = Arc::clone(&go);
    let service =
        Service::new(Policy::required().in_flight(InFlight::Wait(seconds(10))), move |run: Run| {
            let go = Arc::clone(&may_go);
            async move {
                go.acquire().await.expect("open").forget();
                match run.number {
                    1 => (http::StatusCode::TOO_MANY_REQUESTS, "busy".to_owned()),
                    number => (http::StatusCode::OK, format!("charged {number}")),
                }
            }
        });
    let first = service.spawn_charge(KEY);
    pass(Duration::from_millis(1)).await;
    let waiters: Vec<_> = (0..5).map(|_| service.spawn_charge(KEY)).collect();
    pass(Duration::from_millis(1)).await;
    go.add_permits(1);
    assert_eq!(first.await.expect("answered").status, 429);
    pass(Duration::from_millis(1)).await;
    assert_eq!(service.runs(), 2, "one of the waiters, and only one");
    go.add_permits(1);
    for waiter in waiters {
        let answer = waiter.await.expect("answered");
        assert_eq!((answer.status, answer.text()), (200, "charged 2"));
    }
    assert_eq!(service.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_client_may_ask_to_wait_and_not_for_longer_than_ten_seconds() {
    for (prefer, waits) in [
        ("wait=3", seconds(3)),
        ("Wait=3", seconds(3)),
        ("respond-async, wait=3", seconds(3)),
        ("wait=600", seconds(10)),
        ("wait=0", Duration::ZERO),
        ("wait=soon", Duration::ZERO),
    ] {
        let (service, _go) = held(Policy::required());
        let _first = service.spawn_charge(KEY);
        pass(Duration::from_millis(1)).await;
        let begun = Instant::now();
        let retry = service.send(charge_with("prefer", prefer)).await;
        assert_eq!(retry.says(), says(409, "key_in_progress"), "{prefer}");
        assert_eq!(begun.elapsed(), waits, "{prefer}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_policy_cannot_make_anybody_wait_for_longer_than_ten_seconds() {
    let (service, _go) = held(Policy::required().in_flight(InFlight::Wait(seconds(3600))));
    let _first = service.spawn_charge(KEY);
    pass(Duration::from_millis(1)).await;
    let begun = Instant::now();
    assert_eq!(service.charge(KEY).await.says(), says(409, "key_in_progress"));
    assert_eq!(begun.elapsed(), seconds(10));
}

#[tokio::test(start_paused = true)]
async fn an_accepted_retry_gets_an_address_that_tells_its_own_scope_how_it_stands() {
    let (service, go) = held(Policy::required().in_flight(InFlight::Accepted));
    let first = service.spawn_charge(KEY);
    pass(Duration::from_millis(1)).await;
    let retry = service.charge(KEY).await;
    assert_eq!(retry.says(), says(202, "accepted"));
    assert_eq!(retry.header("retry-after"), "1");
    let location = retry.header("location").to_owned();

    let status = service.send(get(&location, ACME)).await;
    assert_eq!((status.status, &status.json()["state"]), (200, &"in_progress".into()));
    assert_eq!(status.header("cache-control"), "no-store");
    let of_other = service.send(get(&location, EVIL)).await;
    assert_eq!(of_other.status, 404);
    assert_eq!(service.send(get("/.onceward/operations/AAAA", ACME)).await, of_other);
    let nobody = Request::get(&location).body(Body::empty()).expect("a get");
    assert_eq!(service.send(nobody).await.says(), says(401, "scope_missing"));

    go.add_permits(1);
    first.await.expect("answered");
    let status = service.send(get(&location, ACME)).await.json();
    assert_eq!((&status["state"], &status["status"]), (&"completed".into(), &200.into()));
    assert!(status["expires"].is_string());
    assert_eq!(service.charge(KEY).await.says(), says(200, "replayed"));
    assert_eq!(service.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_asks_for_its_operation_by_its_own_key() {
    let (service, go) = held(Policy::required());
    go.add_permits(1);
    let key = "order/100%-0000000000000001";
    service.charge(key).await;
    let address = "/.onceward/operations/order%2F100%25-0000000000000001";
    let status = service.send(get(address, ACME)).await;
    let told = status.json();
    assert_eq!((status.status, &told["state"]), (200, &"completed".into()));
    assert_eq!((&told["outcome"], &told["retry"]), (&"executed".into(), &"same_key".into()));
    assert!(told["expires"].is_string());
    // Somebody else's, one that is not there, and what cannot be a key.
    let foreign = service.send(get(address, EVIL)).await;
    assert_eq!(foreign.status, 404);
    for absent in ["order-0000000000000002", "%zz", "%", "%C3%A4", ""] {
        let absent = format!("/.onceward/operations/{absent}");
        assert_eq!(service.send(get(&absent, ACME)).await, foreign, "{absent}");
    }
}

/// How long an answer takes must not tell whether there is something: it is the calls that take time.
#[tokio::test(start_paused = true)]
async fn what_is_absent_and_what_is_somebody_elses_cost_the_same_calls_of_the_store() {
    let calls = Arc::<Mutex<Vec<StoreCall>>>::default();
    let (noted, go) = (Arc::clone(&calls), Arc::new(Semaphore::new(0)));
    let may_go = Arc::clone(&go);
    let listen = |memory: Arc<MemoryStore>| -> Arc<dyn Store> {
        Arc::new(FaultyStore::new(memory, move |call, _| {
            noted.lock().expect("not poisoned").push(call);
            Fault::None
        }))
    };
    let service = Service::on(listen, Policy::required(), move |_| {
        let go = Arc::clone(&may_go);
        async move {
            go.acquire().await.expect("open").forget();
            "charged"
        }
    });
    let first = service.spawn_charge(KEY);
    pass(Duration::from_millis(1)).await;
    let opaque = service.charge(KEY).await.header("location").to_owned();
    let by_key = format!("/.onceward/operations/{KEY}");
    let ask = async |address: &str, who: &str| {
        calls.lock().expect("not poisoned").clear();
        let status = service.send(get(address, who)).await.status;
        (status, calls.lock().expect("not poisoned").clone())
    };
    let mut first = Some(first);
    for is_running in [true, false] {
        if let Some(first) = first.take_if(|_| !is_running) {
            go.add_permits(1);
            assert_eq!(first.await.expect("answered").status, 200);
        }
        let absent = ask("/.onceward/operations/order-of-nobody-000001", EVIL).await;
        assert_eq!(absent, (404, vec![StoreCall::Load]));
        for address in [&*opaque, &by_key] {
            assert_eq!(ask(address, EVIL).await, absent, "{address}, while it runs: {is_running}");
            assert_eq!(ask(address, ACME).await, (200, vec![StoreCall::Load]), "the twin");
        }
        // One of the right shape that opens for nobody.
        let broken = opaque.replace(|letter: char| letter.is_ascii_digit(), "A");
        assert_eq!(ask(&broken, EVIL).await, absent);
    }
}

#[tokio::test(start_paused = true)]
async fn who_asks_for_states_too_often_is_told_to_wait_and_nobody_else() {
    let (service, _go) = held(Policy::required());
    let address = "/.onceward/operations/order-0000000000000001";
    for _ in 0..50 {
        assert_eq!(service.send(get(address, ACME)).await.status, 404);
    }
    let refused = service.send(get(address, ACME)).await;
    assert_eq!(refused.says(), says(429, "rate_limited"));
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(service.send(get(address, EVIL)).await.status, 404);
    pass(seconds(1)).await;
    assert_eq!(service.send(get(address, ACME)).await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn a_status_that_the_store_does_not_tell_in_time_is_503() {
    let faults = Faults::default();
    let service =
        Service::on(|memory| faults.on(memory), Policy::required(), |_| async { "charged" });
    service.charge(KEY).await;
    let (held, _go) = held(Policy::required());
    let _first = held.spawn_charge(KEY);
    pass(Duration::from_millis(1)).await;
    let location = held.charge(KEY).await.header("location").to_owned();

    assert_eq!(service.send(get(&location, ACME)).await.status, 200);
    for fault in [Fault::HangsBefore, Fault::Refused, Fault::Corrupt] {
        faults.fail(StoreCall::Load, fault, FOR_EVER);
        let begun = Instant::now();
        let status = service.send(get(&location, ACME)).await;
        assert_eq!(status.says(), says(503, "store_unavailable"), "{fault:?}");
        assert!(begun.elapsed() <= seconds(5), "{fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_threads_under_few_keys_run_each_key_once_and_all_get_its_reply() {
    let policy = Policy::required().in_flight(InFlight::Wait(seconds(10)));
    let service = Service::new(policy, |run: Run| async move {
        tokio::task::yield_now().await;
        format!("charged {}", run.number)
    });
    for round in 0..20 {
        let keys: Vec<_> = (0..4).map(|key| format!("order-of-round-{round}-{key}")).collect();
        let clients: Vec<_> =
            (0..64).map(|client| (client % 4, service.spawn_charge(&keys[client % 4]))).collect();
        let mut replies = vec![std::collections::HashSet::new(); 4];
        for (key, client) in clients {
            let answer = client.await.expect("answered");
            assert_eq!(answer.status, 200);
            replies[key].insert(answer.body);
        }
        assert!(replies.iter().all(|replies| replies.len() == 1), "{replies:?}");
        assert_eq!(service.runs(), (round + 1) * 4);
    }
}
