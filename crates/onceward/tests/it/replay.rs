//! Replays over a real socket, HTTP/1.1 and HTTP/2: the same bytes, and what is said beside them.

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, HeaderValue, StatusCode},
    response::{IntoResponse as _, Response},
    routing::{any, post},
};
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{Request, request};
use http_body_util::{BodyExt as _, StreamBody};
use onceward::{Policy, Routes};
use tokio::sync::mpsc;

use crate::{
    server::{Client, Protocol, Server, Upload, whole},
    service::{ACME, Answer, BODY, Run, Service, says},
};

const KEY: &str = "order-0000000000000001";

fn charge() -> Request<Upload> {
    builder().header("idempotency-key", KEY).body(whole(BODY)).expect("a request")
}

fn builder() -> request::Builder {
    Request::post("/charges?trace=1").header("authorization", ACME)
}

/// A reply with all kinds of headers, and a body that is not text.
fn rich(run: &Run) -> Response {
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("link", "<a>; rel=next"),
        ("content-type", "application/octet-stream"),
        ("link", "<b>; rel=prev"),
        ("link", "<a>; rel=next"),
        ("etag", "\"v1\""),
        ("location", "/charges/1"),
        ("cache-control", "max-age=60"),
        ("set-cookie", "session=secret"),
        ("access-control-allow-origin", "https://a.example"),
    ] {
        headers.append(name, HeaderValue::from_static(value));
    }
    let number = u8::try_from(run.number).expect("few runs");
    let body: Vec<u8> = (0..=255).chain([number]).collect();
    (StatusCode::CREATED, headers, body).into_response()
}

async fn clients(app: &Router) -> Vec<(Protocol, Client)> {
    let server = Server::start(app.clone()).await;
    let mut clients = Vec::new();
    for protocol in Protocol::BOTH {
        clients.push((protocol, server.client(protocol).await));
    }
    clients
}

/// What must be the same on a replay.
fn kept(answer: &Answer) -> (u16, &Bytes, Vec<Vec<&str>>) {
    let names = ["link", "content-type", "etag", "location", "content-length"];
    (answer.status, &answer.body, names.map(|name| answer.all(name)).to_vec())
}

#[tokio::test]
async fn first_reply_and_replay_are_the_same_bytes() {
    for protocol in Protocol::BOTH {
        let policy = Policy::required().schema_version("2024-06");
        let service = Service::new(policy, |run| async move { rich(&run) });
        let server = Server::start(service.app.clone()).await;
        let mut client = server.client(protocol).await;
        let first = client.send(charge()).await;
        assert_eq!(first.says(), says(201, "executed"), "{protocol:?}");
        assert_eq!(first.all("link"), ["<a>; rel=next", "<b>; rel=prev", "<a>; rel=next"]);
        assert_eq!(first.body.len(), 257);
        for _ in 0..3 {
            let replay = client.send(charge()).await;
            assert_eq!(kept(&replay), kept(&first), "{protocol:?}");
        }
        // And for a retry over the other protocol.
        for (_, mut client) in clients(&service.app).await {
            assert_eq!(kept(&client.send(charge()).await), kept(&first), "{protocol:?}");
        }
        assert_eq!(service.runs(), 1);
    }
}

#[tokio::test]
async fn a_replay_says_that_it_is_one_and_a_first_reply_does_not() {
    let policy = Policy::required().schema_version("2024-06");
    let service = Service::new(policy, |run| async move { rich(&run) });
    for (protocol, mut client) in clients(&service.app).await.into_iter().take(1) {
        let (first, replay) = (client.send(charge()).await, client.send(charge()).await);
        for (answer, replayed, outcome, cache) in
            [(&first, "", "executed", "max-age=60"), (&replay, "true", "replayed", "no-store")]
        {
            assert_eq!(answer.header("idempotent-replayed"), replayed, "{protocol:?}");
            assert_eq!(answer.outcome(), outcome);
            assert_eq!(answer.header("cache-control"), cache);
            assert_eq!(answer.header("onceward-schema-version"), "2024-06");
            assert!(answer.header("idempotency-expires").ends_with(" GMT"));
        }
        // What was one caller's or one origin's is not sent again.
        assert_eq!(first.header("set-cookie"), "session=secret");
        for name in ["set-cookie", "access-control-allow-origin"] {
            assert!(first.headers.contains_key(name) && !replay.headers.contains_key(name));
        }
    }
}

#[tokio::test]
async fn concurrent_requests_under_one_key_run_once_over_either_protocol() {
    for protocol in Protocol::BOTH {
        let service = Service::new(Policy::required(), |run| async move {
            tokio::task::yield_now().await;
            rich(&run)
        });
        let server = Server::start(service.app.clone()).await;
        let mut tasks = Vec::new();
        for _ in 0..20 {
            let mut client = server.client(protocol).await;
            tasks.push(tokio::spawn(async move { client.send(charge()).await }));
        }
        let mut executed = 0;
        for task in tasks {
            let answer = task.await.expect("joined");
            executed += u32::from(answer.outcome() == "executed");
            assert!([201, 409].contains(&answer.status), "{protocol:?} {}", answer.status);
        }
        assert_eq!((executed, service.runs()), (1, 1), "{protocol:?}");
    }
}

#[tokio::test]
async fn a_client_that_resets_its_connection_gets_the_reply_on_its_retry() {
    for protocol in Protocol::BOTH {
        let (begun, mut has_begun) = mpsc::channel(1);
        let (go, may_go) = tokio::sync::watch::channel(false);
        let service = Service::new(Policy::required(), move |run| {
            let (begun, mut may_go) = (begun.clone(), may_go.clone());
            async move {
                begun.send(()).await.expect("the test listens");
                may_go.wait_for(|go| *go).await.expect("the test lives");
                rich(&run)
            }
        });
        let server = Server::start(service.app.clone()).await;
        let mut client = server.client(protocol).await;
        let request = tokio::spawn(async move { client.send(charge()).await });
        has_begun.recv().await.expect("the handler runs");
        request.abort();
        assert!(request.await.expect_err("aborted").is_cancelled());
        go.send(true).expect("the handler waits");
        // Waits for the record, not for a while: the retry asks to wait.
        let retry = builder().header("idempotency-key", KEY).header("prefer", "wait=10");
        let retry = retry.body(whole(BODY)).expect("a request");
        let retry = server.client(protocol).await.send(retry).await;
        assert_eq!(retry.says(), says(201, "replayed"), "{protocol:?}");
        assert_eq!(service.runs(), 1, "{protocol:?}");
    }
}

fn echo_app(routes: Routes) -> Router {
    let service = Service::new(routes.clone(), |run| async move { rich(&run) });
    let layer = onceward::Idempotency::from(service.engine);
    let echo = |body: Body| async { Body::from_stream(body.into_data_stream()) };
    Router::new().route("/echo", any(echo)).route("/charges", post(echo)).layer(layer)
}

#[tokio::test]
async fn a_route_without_a_policy_streams_both_ways_and_is_not_buffered() {
    let routes = Routes::only().route("POST /charges", Policy::required()).expect("a pattern");
    let unkeyed = Routes::from(Policy::optional());
    for routes in [routes, unkeyed] {
        for (protocol, mut client) in clients(&echo_app(routes.clone())).await {
            let (chunks, receiver) = mpsc::unbounded_channel();
            let frames = futures_util::stream::unfold(receiver, |mut receiver| async move {
                let chunk: &'static str = receiver.recv().await?;
                Some((Ok(http_body::Frame::data(Bytes::from_static(chunk.as_bytes()))), receiver))
            });
            let request = Request::post("/echo").body(StreamBody::new(frames).boxed_unsync());
            chunks.send("first").expect("open");
            let response = client.begin(request.expect("a request")).await;
            assert!(!response.headers().contains_key("onceward-outcome"), "{protocol:?}");
            let back = response.into_body().into_data_stream();
            // HTTP/2 may end with an empty frame.
            let mut back = back
                .map(|data| data.expect("data"))
                .filter(|data| std::future::ready(!data.is_empty()))
                .boxed();
            let mut next = async || back.next().await;
            assert_eq!(next().await.as_deref(), Some(&b"first"[..]), "{protocol:?}");
            // The response has begun while the request goes on.
            chunks.send("second").expect("open");
            assert_eq!(next().await.as_deref(), Some(&b"second"[..]), "{protocol:?}");
            drop(chunks);
            assert_eq!(next().await, None, "{protocol:?}");
        }
    }
}
