//! Who may ask, under which key, and which requests need one.

use std::sync::Arc;

use axum::{
    Router,
    body::{Body, Bytes},
    routing::{get, post},
};
use http::{Method, Request, request};
use onceward::{
    Idempotency, KeyRules, MemoryStore, Operation, Policy, Routes, ScopeRule, Settings,
    key::Syntax,
    policy::Methods,
    testing::{Fault, FaultyStore},
};
use tower::ServiceExt as _;

use crate::service::{ACME, Answer, Run, Service, says};

const KEY: &str = "order-0000000000000001";

/// A service whose store must not be called.
fn unstored(settings: Settings) -> Service {
    Service::with_settings(
        |memory| {
            Arc::new(FaultyStore::new(memory, |call, _| -> Fault {
                panic!("a refused request reached the store: {call:?}")
            }))
        },
        Policy::required(),
        settings,
        |_| async { "charged" },
    )
}

fn open() -> Service {
    Service::new(Policy::required(), |run: Run| async move { format!("run {}", run.number) })
}

fn post_by_acme() -> request::Builder {
    Request::post("/charges").header("authorization", ACME)
}

fn with_keys(keys: &[&str]) -> Request<Body> {
    let request = keys.iter().fold(post_by_acme(), |request, key| {
        request.header(
            "idempotency-key",
            http::HeaderValue::from_bytes(key.as_bytes()).expect("a value"),
        )
    });
    request.body(Body::from("{}")).expect("a request")
}

#[tokio::test]
async fn a_request_without_a_key_is_400_and_reaches_neither_store_nor_handler() {
    for method in [Method::POST, Method::PATCH] {
        let service = unstored(Settings::default());
        let (mut parts, body) = with_keys(&[]).into_parts();
        parts.method = method;
        let refused = service.send(Request::from_parts(parts, body)).await;
        assert_eq!(refused.says(), says(400, "key_missing"));
        assert_eq!((refused.outcome(), service.runs()), ("refused", 0));
    }
}

#[tokio::test]
async fn a_damaged_key_is_400_and_reaches_neither_store_nor_handler() {
    let long = "k".repeat(256);
    let quoted = format!("\"{KEY}");
    for keys in [
        &[""][..],
        &["   "],
        &["short"],
        &[&long],
        &[KEY, KEY],
        &[KEY, "order-0000000000000002"],
        &["order-1, order-2-and-more"],
        &[&quoted],
        &["\"order-0000000000000001\" x"],
        &["order 00000000000000001"],
        &["order-\u{fc}000000000000001"],
        &["(order-0000000000000001)"],
    ] {
        let service = unstored(Settings::default());
        let refused = service.send(with_keys(keys)).await;
        assert_eq!(refused.says(), says(400, "key_invalid"), "{keys:?}");
        let repeats = keys.iter().any(|key| key.len() > 6 && refused.text().contains(*key));
        assert!(!repeats, "the answer repeats the key: {}", refused.text());
        assert_eq!(service.runs(), 0, "{keys:?}");
    }
}

#[tokio::test]
async fn keys_of_all_allowed_lengths_are_taken() {
    for len in [16, 17, 255] {
        assert_eq!(open().send(with_keys(&[&"k".repeat(len)])).await.status, 200, "{len}");
    }
}

#[tokio::test]
async fn a_quoted_and_a_bare_key_are_one() {
    let service = open();
    assert_eq!(service.send(with_keys(&[KEY])).await.says(), says(200, "executed"));
    for same in [format!("\"{KEY}\""), format!(" {KEY} "), format!("\"{KEY}\";a=1")] {
        assert_eq!(service.send(with_keys(&[&same])).await.says(), says(200, "replayed"), "{same}");
    }
    assert_eq!(service.send(with_keys(&["\"order-0000000000000002\""])).await.text(), "run 2");
}

#[tokio::test]
async fn the_strict_syntax_takes_quoted_keys_only() {
    let strict = || {
        let key_rules = KeyRules { syntax: Syntax::Strict, ..KeyRules::default() };
        Settings { key_rules, ..Settings::default() }
    };
    let refused = unstored(strict()).send(with_keys(&[KEY])).await;
    assert_eq!(refused.says(), says(400, "key_invalid"));
    let service =
        Service::with_settings(|memory| memory, Policy::required(), strict(), |_| async { "" });
    assert_eq!(service.send(with_keys(&[&format!("\"{KEY}\"")])).await.status, 200);
}

#[tokio::test]
async fn a_key_in_the_trailers_does_not_count() {
    use http_body_util::{BodyExt as _, StreamBody};
    let trailers = http::HeaderMap::from_iter([(
        onceward::key::IDEMPOTENCY_KEY.clone(),
        http::HeaderValue::from_static(KEY),
    )]);
    let frames = |trailers| {
        futures_util::stream::iter([
            Ok::<_, std::io::Error>(http_body::Frame::data(Bytes::from_static(b"{}"))),
            Ok(http_body::Frame::trailers(trailers)),
        ])
    };
    let body = Body::new(StreamBody::new(frames(trailers.clone())).boxed_unsync());
    let service = unstored(Settings::default());
    let refused = service.send(post_by_acme().body(body).expect("a request")).await;
    assert_eq!(refused.says(), says(400, "key_missing"));

    // Beside a key in the header section it changes nothing.
    let service = open();
    assert_eq!(service.send(with_keys(&["order-0000000000000002"])).await.text(), "run 1");
    let body = Body::new(StreamBody::new(frames(trailers)).boxed_unsync());
    let request = post_by_acme().header("idempotency-key", "order-0000000000000002");
    let answer = service.send(request.body(body).expect("a request")).await;
    assert_eq!((answer.says(), answer.text()), (says(200, "replayed"), "run 1"));
}

#[tokio::test]
async fn other_methods_need_no_key_and_a_key_on_them_is_ignored() {
    for method in [Method::GET, Method::HEAD, Method::OPTIONS, Method::PUT, Method::DELETE] {
        for key in [None, Some(KEY), Some("?")] {
            let service = unstored(Settings::default());
            for run in 1..=2 {
                let mut request = Request::builder().method(&method).uri("/charges");
                if let Some(key) = key {
                    request = request.header("idempotency-key", key);
                }
                let answer = service.send(request.body(Body::empty()).expect("a request")).await;
                assert_eq!((answer.status, answer.outcome()), (200, ""), "{method}");
                assert_eq!(service.runs(), run, "{method}");
            }
        }
    }
}

#[tokio::test]
async fn put_and_delete_are_protected_where_the_route_opts_in() {
    let by_policy = || Policy::required().methods(Methods::UnsafeAndIdempotent);
    let by_pattern = Routes::only().route("PUT|DELETE /charges", Policy::required());
    for routes in [Routes::from(by_policy()), by_pattern.expect("a pattern")] {
        for method in [Method::PUT, Method::DELETE] {
            let service = Service::new(routes.clone(), |_| async { "done" });
            let request = |key: Option<&str>| {
                let request = post_by_acme().method(&method);
                let request = match key {
                    Some(key) => request.header("idempotency-key", key),
                    None => request,
                };
                request.body(Body::empty()).expect("a request")
            };
            assert_eq!(service.send(request(None)).await.says(), says(400, "key_missing"));
            assert_eq!(service.send(request(Some(KEY))).await.says(), says(200, "executed"));
            assert_eq!(service.send(request(Some(KEY))).await.says(), says(200, "replayed"));
        }
    }
}

#[tokio::test]
async fn an_optional_key_protects_when_it_is_there_and_a_damaged_one_is_not_taken_for_none() {
    let service =
        Service::new(Policy::optional(), |run: Run| async move { run.number.to_string() });
    let unkeyed = || Request::post("/charges").body(Body::empty()).expect("a request");
    assert_eq!(service.send(unkeyed()).await.outcome(), "");
    assert_eq!(service.send(unkeyed()).await.text(), "2");
    assert_eq!(service.send(with_keys(&[KEY])).await.says(), says(200, "executed"));
    assert_eq!(service.send(with_keys(&[KEY])).await.says(), says(200, "replayed"));
    assert_eq!(service.send(with_keys(&["?"])).await.says(), says(400, "key_invalid"));
    assert_eq!(service.send(with_keys(&[KEY, KEY])).await.says(), says(400, "key_invalid"));
    assert_eq!(service.runs(), 3);
}

#[tokio::test]
async fn without_a_credential_nothing_runs() {
    let request = || Request::post("/charges").header("idempotency-key", KEY);
    for refused in [
        request().body(Body::empty()),
        request().header("authorization", "").body(Body::empty()),
        request().header("authorization", ACME).header("authorization", ACME).body(Body::empty()),
    ] {
        let service = unstored(Settings::default());
        let refused = service.send(refused.expect("a request")).await;
        assert_eq!((refused.says(), service.runs()), (says(401, "scope_missing"), 0));
    }
}

#[tokio::test]
async fn a_bearer_token_shaped_like_a_jwt_is_refused_and_an_opaque_one_is_not() {
    let jwt = "Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhY21lIn0.c2lnbmF0dXJl";
    let by = |credential: &str| {
        let request = Request::post("/charges").header("idempotency-key", KEY);
        request.header("authorization", credential).body(Body::empty()).expect("a request")
    };
    let service = unstored(Settings::default());
    let refused = service.send(by(jwt)).await;
    assert_eq!((refused.says(), service.runs()), (says(400, "scope_unstable"), 0));
    assert!(refused.json()["detail"].as_str().expect("text").contains("jwt:CLAIM"));
    assert_eq!(open().send(by("Bearer sk_live_abc.def.ghi")).await.status, 200);
}

#[tokio::test]
async fn the_scope_may_come_from_a_header_or_an_extension() {
    #[derive(Clone)]
    struct Account(String);
    let from_extension =
        ScopeRule::extension("account", |account: &Account| Some(account.0.clone()));
    for scope in [ScopeRule::header(http::HeaderName::from_static("x-account")), from_extension] {
        let settings = Settings { scope, ..Settings::default() };
        let service = Service::with_settings(
            |memory| memory,
            Policy::required(),
            settings,
            |run: Run| async move { run.number.to_string() },
        );
        let of = |account: &str| {
            let request = Request::post("/charges").header("idempotency-key", KEY);
            let request = request.header("x-account", account).extension(Account(account.into()));
            request.body(Body::empty()).expect("a request")
        };
        for (account, expected) in [("a", "1"), ("b", "2"), ("a", "1"), ("b", "2")] {
            assert_eq!(service.send(of(account)).await.text(), expected);
        }
        let nobody = Request::post("/charges").header("idempotency-key", KEY);
        let nobody = nobody.body(Body::empty()).expect("a request");
        assert_eq!(service.send(nobody).await.says(), says(401, "scope_missing"));
    }
}

#[tokio::test]
async fn each_route_has_its_own_policy_and_the_first_match_wins() {
    let routes = Routes::with_default(Policy::required().schema_version("default"))
        .unprotected("POST /health")
        .and_then(|routes| routes.route("POST /v1/*", Policy::optional().schema_version("v1")))
        .and_then(|routes| routes.route("POST /v1/**", Policy::required().schema_version("deep")))
        .expect("patterns");
    let service = Service::new(routes, |_| async { "done" });
    let to = |path: &str, key: bool| {
        let request = post_by_acme().uri(path);
        let request = if key { request.header("idempotency-key", KEY) } else { request };
        request.body(Body::empty()).expect("a request")
    };
    for (path, key, status, version) in [
        ("/health", true, 200, ""),
        ("/v1/a", false, 200, ""),
        ("/v1/a", true, 200, "v1"),
        ("/v1/a/b", false, 400, ""),
        ("/else", false, 400, ""),
    ] {
        let answer = service.send(to(path, key)).await;
        let seen = (answer.status, answer.header("onceward-schema-version"));
        assert_eq!(seen, (status, version), "{path} {key}");
    }
}

#[tokio::test]
async fn a_handler_gets_its_operation_as_an_extractor() {
    async fn handler(operation: Operation) -> String {
        let first = operation.derived_key("charge") == operation.derived_key("charge");
        format!("{} {} {first}", operation.attempt_number(), operation.may_act())
    }
    let layer = Idempotency::new(Arc::new(MemoryStore::new()), Policy::required());
    let app =
        Router::new().route("/charges", post(handler)).route("/reads", get(handler)).layer(layer);
    let response = app.clone().oneshot(with_keys(&[KEY])).await.expect("infallible");
    assert_eq!(Answer::read(response).await.text(), "1 true true");
    // Where there is no operation, the handler is not run without it.
    let unprotected = Request::get("/reads").body(Body::empty()).expect("a request");
    let response = app.oneshot(unprotected).await.expect("infallible");
    assert_eq!(response.status(), 500);
}

#[tokio::test]
async fn under_other_identity_settings_nothing_runs_until_they_are_accepted() {
    let memory = Arc::new(MemoryStore::new());
    let app = |scope: ScopeRule| {
        let layer = Idempotency::scoped(Arc::clone(&memory) as _, Policy::required(), scope);
        let identity = layer.engine().identity();
        (Router::new().route("/charges", post(|| async { "charged" })).layer(layer), identity)
    };
    let ask = async |app: Router| {
        let request = post_by_acme().header("x-account", "acme").header("idempotency-key", KEY);
        let request = request.body(Body::empty()).expect("a request");
        let response = app.oneshot(request).await.unwrap_or_else(|never| match never {});
        Answer::read(response).await.says()
    };
    let (before, _) = app(ScopeRule::authorization());
    assert_eq!(ask(before).await, says(200, "executed"));
    let (after, identity) = app(ScopeRule::header(http::HeaderName::from_static("x-account")));
    assert_eq!(ask(after.clone()).await, says(503, "store_unavailable"));
    onceward::Store::accept_identity(&*memory, &identity).await.expect("an answer");
    assert_eq!(ask(after).await, says(200, "executed"));
}
