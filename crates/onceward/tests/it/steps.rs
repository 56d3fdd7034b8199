//! The order of the steps, and what each route decides for itself.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::{Router, body::Body, routing::post};
use http::Request;
use onceward::{
    Idempotency, Key, MemoryStore, Policy, Recipe, Routes, Scope, SqliteOptions, SqliteStore,
    Store as _,
    record::{RecordId, State},
    testing::{Fault, StoreCall},
};
use tokio::sync::Semaphore;
use tower::ServiceExt as _;

use crate::service::{ACME, Answer, FOR_EVER, Faults, Run, Service, keyed, says};

const KEY: &str = "order-0000000000000001";
const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test(start_paused = true)]
async fn a_request_that_is_wrong_in_several_ways_gets_the_first_answer() {
    let faults = Faults::default();
    let routes = Routes::with_default(Policy::required().request_bytes_max(10));
    let service = Service::on(
        |memory| faults.on(memory),
        routes.unprotected("POST /open").expect("a pattern"),
        |_| async { "done" },
    );
    let ask = async |path: &str, credential: &str, key: &str, body: &'static str| {
        let request = Request::post(path).header("authorization", credential);
        let request = request.header("idempotency-key", key).body(Body::from(body));
        service.send(request.expect("a request")).await.says()
    };
    let (small, large) = ("small", "larger than the cap");
    assert_eq!(ask("/", ACME, KEY, small).await, says(200, "executed"));
    faults.fail(StoreCall::Reserve, Fault::Refused, FOR_EVER);
    assert_eq!(ask("/open", "", "?", large).await, says(200, ""));
    assert_eq!(ask("/", "", "?", large).await, says(401, "scope_missing"));
    assert_eq!(ask("/", ACME, "?", large).await, says(400, "key_invalid"));
    assert_eq!(ask("/", ACME, KEY, large).await, says(413, "body_too_large"));
    assert_eq!(ask("/", ACME, KEY, "other").await, says(503, "store_unavailable"));
    faults.heal();
    let mismatch = says(422, "key_reused_with_different_payload");
    assert_eq!(ask("/", ACME, KEY, "other").await, mismatch);
    assert_eq!(service.runs(), 2, "the first one, and the one that is not protected");
}

#[tokio::test]
async fn a_handler_finds_its_record_reserved_when_it_begins() {
    let store: Arc<OnceLock<Arc<MemoryStore>>> = Arc::default();
    let seen = Arc::clone(&store);
    let service = Service::on(
        |memory| {
            store.set(Arc::clone(&memory)).expect("made once");
            memory
        },
        Policy::required(),
        move |_| {
            let memory = Arc::clone(seen.get().expect("made before"));
            async move {
                let scope = Scope::of_credential(ACME.as_bytes());
                let id = RecordId { scope, key: Key::new(KEY).expect("a key") };
                let record = memory.load(&id).await.expect("an answer").expect("a record");
                format!("{} {}", record.state.name(), record.attempts)
            }
        },
    );
    assert_eq!(service.record(KEY).await, None);
    assert_eq!(service.charge(KEY).await.text(), "in_progress 1");
    assert_eq!(service.record(KEY).await.expect("a record").state, State::Completed);
}

#[tokio::test]
async fn while_a_handler_runs_the_file_takes_other_keys_and_replays() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = SqliteOptions::new(directory.path().join("store.db"));
    let file = SqliteStore::open(options).await.expect("a store");
    let go = Arc::new(Semaphore::new(0));
    let may_go = Arc::clone(&go);
    let service = Service::on(
        |_| Arc::new(file),
        Policy::required(),
        move |run: Run| {
            let go = Arc::clone(&may_go);
            async move {
                if run.number == 1 {
                    go.acquire().await.expect("open").forget();
                }
                format!("run {}", run.number)
            }
        },
    );
    let long = service.spawn_charge(KEY);
    while service.runs() == 0 {
        tokio::task::yield_now().await;
    }
    for number in 2..10 {
        let key = format!("order-that-is-short-{number}");
        for outcome in ["executed", "replayed"] {
            assert_eq!(service.charge(&key).await.says(), says(200, outcome));
        }
    }
    assert_eq!(service.charge(KEY).await.says(), says(409, "key_in_progress"));
    go.add_permits(1);
    assert_eq!(long.await.expect("answered").text(), "run 1");
}

#[tokio::test]
async fn every_post_of_a_router_under_one_layer_asks_for_a_key() {
    let paths = ["/carts", "/carts/1/address", "/carts/1/payment"];
    let layer = Idempotency::new(Arc::new(MemoryStore::new()), Policy::required());
    let router = paths
        .into_iter()
        .fold(Router::new(), |router, path| router.route(path, post(|| async { "done" })));
    let app = router.layer(layer);
    let send = async |request: http::request::Builder| {
        let request = request.body(Body::from("{}")).expect("a request");
        let response = app.clone().oneshot(request).await;
        Answer::read(response.unwrap_or_else(|never| match never {})).await.says()
    };
    for (number, path) in paths.into_iter().enumerate() {
        let unkeyed = Request::post(path).header("authorization", ACME);
        assert_eq!(send(unkeyed).await, says(400, "key_missing"), "{path}");
        let key = format!("step-of-the-flow-{number}");
        for outcome in ["executed", "replayed"] {
            assert_eq!(send(keyed(&key).uri(path)).await, says(200, outcome), "{path}");
        }
    }
}

#[tokio::test]
async fn each_route_has_its_own_times() {
    let with = |lease: Duration, retention: Duration| {
        Policy::required().lease(lease).and_then(|policy| policy.retention(retention))
    };
    let month = 30 * 24 * HOUR;
    let routes = Routes::with_default(Policy::required())
        .route("POST /slow", with(HOUR, month).expect("allowed"))
        .expect("a pattern");
    let service = Service::new(routes, |_| async { "done" });
    for (path, key, lease, retention) in [
        ("/slow", "order-of-a-slow-route", HOUR, month),
        ("/else", "order-of-another-route", Duration::from_secs(60), 24 * HOUR),
    ] {
        let request = keyed(key).uri(path).body(Body::empty()).expect("a request");
        assert_eq!(service.send(request).await.status, 200);
        let record = service.record(key).await.expect("a record");
        assert_eq!(record.lease_until.since(record.started_at), lease, "{path}");
        let finished = record.finished_at.expect("at rest");
        assert_eq!(record.expires_at.since(finished), retention, "{path}");
    }
}

#[tokio::test]
async fn each_route_chooses_what_of_its_requests_counts() {
    let of = |recipe: Recipe| Policy::required().fingerprint(recipe);
    let exclude = Recipe::canonical().exclude(&["/sent_at"]).expect("a pointer");
    let routes = Routes::with_default(Policy::required())
        .route("POST /raw", of(Recipe::raw()))
        .and_then(|routes| routes.route("POST /exclude", of(exclude)))
        .expect("patterns");
    let service = Service::new(routes, |_| async { "done" });
    let first = r#"{"amount":1,"sent_at":5}"#;
    let reordered = r#"{"sent_at": 5, "amount": 1}"#;
    let later = r#"{"amount":1,"sent_at":6}"#;
    for (path, key, of_reordered, of_later) in [
        ("/raw", "order-compared-raw-1", 422, 422),
        ("/exclude", "order-without-a-time", 200, 200),
        ("/else", "order-compared-whole", 200, 422),
    ] {
        for (body, status) in [(first, 200), (reordered, of_reordered), (later, of_later)] {
            let request = keyed(key).uri(path).body(Body::from(body)).expect("a request");
            assert_eq!(service.send(request).await.status, status, "{path} {body}");
        }
    }
    assert_eq!(service.runs(), 3);
}

#[tokio::test]
async fn a_replay_does_not_change_with_what_happened_since() {
    // The handler tells the state of a resource that every run changes.
    let service =
        Service::new(
            Policy::required(),
            |run: Run| async move { format!("balance {}", run.number) },
        );
    assert_eq!(service.charge(KEY).await.text(), "balance 1");
    assert_eq!(service.charge("order-0000000000000002").await.text(), "balance 2");
    let replay = service.charge(KEY).await;
    assert_eq!((replay.says(), replay.text()), (says(200, "replayed"), "balance 1"));
}
