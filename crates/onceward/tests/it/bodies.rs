//! Bodies: caps, streams, early answers, and connections that go on after them.

use std::{
    io,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use axum::{body::Body, response::IntoResponse as _};
use bytes::Bytes;
use futures_util::stream;
use http::StatusCode;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use onceward::{
    Policy, Settings,
    record::State,
    testing::{Point, StoreCall},
};

use crate::{
    server::{Raw, RawResponse, Server},
    service::{ACME, Answer, BODY, Run, Service, charge, keyed, pass, says},
};

const KEY: &str = "order-0000000000000001";
const CAP: usize = 1000;

/// Answers a GET with its path; keeps one key busy and one answered.
fn service() -> Service {
    let policy = Policy::required().request_bytes_max(CAP);
    Service::new(policy, |run: Run| async move {
        let path = run.parts.uri.path().to_owned();
        if path == "/slow" {
            std::future::pending::<()>().await;
        }
        format!("{} {}", run.parts.method, path)
    })
}

fn post(path: &str, headers: &str, body: &str) -> String {
    let len = body.len();
    format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {len}\r\n{headers}\r\n{body}")
}

fn chunked(path: &str, headers: &str, body: &str) -> String {
    let len = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n{headers}\r\n\
         {len:x}\r\n{body}\r\n0\r\n\r\n"
    )
}

fn keyed_headers(key: &str) -> String {
    format!("authorization: {ACME}\r\nidempotency-key: {key}\r\n")
}

const NEXT: &str = "GET /next HTTP/1.1\r\nhost: a\r\n\r\n";
/// A body that would be a request of its own, were it left on the connection.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n";

async fn response(raw: &mut Raw) -> RawResponse {
    raw.response().await.expect("the connection goes on")
}

#[tokio::test]
async fn after_an_early_answer_the_next_request_is_the_next_request_and_not_the_rest_of_a_body() {
    let large = format!("{SMUGGLED}{}", "x".repeat(CAP));
    let keyed = keyed_headers(KEY);
    let slow = keyed_headers("order-that-is-slow-01");
    let unscoped = format!("idempotency-key: {KEY}\r\n");
    let unkeyed = format!("authorization: {ACME}\r\n");
    for write in [post as fn(&str, &str, &str) -> String, chunked] {
        let service = service();
        let server = Server::start(service.app.clone()).await;
        let mut raw = server.raw().await;
        // One key is taken by an attempt that does not end, one has its reply.
        let mut busy = server.raw().await;
        busy.write(write("/slow", &slow, SMUGGLED)).await;
        raw.write(write("/charges", &keyed, SMUGGLED)).await;
        assert_eq!(response(&mut raw).await.status, 200);
        while service.runs() < 2 {
            tokio::task::yield_now().await;
        }
        for (case, request, status) in [
            ("key missing", write("/charges", &unkeyed, SMUGGLED), 400),
            ("key missing, large", write("/charges", &unkeyed, &large), 400),
            ("scope missing", write("/charges", &unscoped, SMUGGLED), 401),
            ("too large", write("/charges", &keyed, &large), 413),
            ("in progress", write("/slow", &slow, SMUGGLED), 409),
            ("mismatch", write("/charges", &keyed, BODY), 422),
            ("replay", write("/charges", &keyed, SMUGGLED), 200),
        ] {
            // In one write, as a client that pipelines does.
            raw.write(request + NEXT).await;
            let early = response(&mut raw).await;
            assert_eq!((early.status, early.closes()), (status, false), "{case}");
            let next = response(&mut raw).await;
            assert_eq!((next.status, next.body.as_str()), (200, "GET /next"), "{case}");
        }
    }
}

#[tokio::test]
async fn a_body_that_is_too_long_to_drain_ends_the_connection_after_a_readable_answer() {
    let server = Server::start(service().app).await;
    let mut raw = server.raw().await;
    let headers = keyed_headers(KEY);
    let head = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999\r\n{headers}\r\n");
    raw.write(head).await;
    raw.write(vec![b'x'; (8 << 20) + 1]).await;
    let refused = response(&mut raw).await;
    assert_eq!((refused.status, refused.closes()), (413, true));
    assert!(raw.response().await.is_none(), "and nothing of the body is taken for a request");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_is_not_waited_for_for_ever() {
    let service = service();
    let never = stream::pending::<Result<Bytes, io::Error>>();
    let begun = tokio::time::Instant::now();
    let refused = service.send(keyed("short").body(Body::from_stream(never)).expect("ok")).await;
    assert_eq!((refused.says(), refused.header("connection")), (says(400, "key_invalid"), "close"));
    assert_eq!(begun.elapsed(), Duration::from_secs(5));
}

#[tokio::test]
async fn a_body_of_exactly_the_cap_is_taken() {
    let service = service();
    for (len, status) in [(CAP, 200), (CAP + 1, 413)] {
        for known in [true, false] {
            let chunks = stream::iter([Ok::<_, io::Error>(Bytes::from(vec![b' '; len]))]);
            let body = if known { Body::from(vec![b' '; len]) } else { Body::from_stream(chunks) };
            let answer = service.send(keyed(KEY).body(body).expect("a request")).await;
            assert_eq!(answer.status, status, "{len} {known}");
        }
    }
    assert_eq!(service.runs(), 1);
}

#[tokio::test]
async fn a_protected_handler_sees_the_request_as_it_was_sent() {
    let service = Service::new(Policy::required(), |run: Run| async move {
        assert_eq!((run.parts.uri.path(), run.header("x-own")), ("/charges", Some("1")));
        assert_eq!(run.header("idempotency-key"), Some(KEY));
        run.body
    });
    let sent: Vec<_> = (0..30).map(|n| Ok::<_, io::Error>(Bytes::from(format!("{n},")))).collect();
    let body = Body::from_stream(stream::iter(sent));
    let answer = service.send(keyed(KEY).header("x-own", "1").body(body).expect("ok")).await;
    let expected: String = (0..30).map(|n| format!("{n},")).collect();
    assert_eq!((answer.status, answer.text()), (200, expected.as_str()));
}

#[tokio::test]
async fn consent_to_send_the_body_is_given_to_a_request_that_may_run() {
    let server = Server::start(service().app).await;
    let mut raw = server.raw().await;
    let headers = keyed_headers(KEY) + "expect: 100-continue\r\n";
    let head = format!("POST /charges HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n{headers}\r\n");
    raw.write(head).await;
    assert_eq!(response(&mut raw).await.status, 100);
    raw.write("{}").await;
    assert_eq!(response(&mut raw).await.status, 200);
    raw.write(NEXT).await;
    assert_eq!(response(&mut raw).await.body, "GET /next");
}

#[tokio::test]
async fn a_refused_request_is_not_asked_for_its_body() {
    let server = Server::start(service().app).await;
    let good = keyed_headers(KEY);
    for (headers, length, status) in [("", 2, 401), (good.as_str(), CAP + 1, 413)] {
        let mut raw = server.raw().await;
        let head = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n");
        raw.write(format!("{head}{headers}expect: 100-continue\r\n\r\n")).await;
        let refused = response(&mut raw).await;
        assert_eq!((refused.status, refused.closes()), (status, true));
        assert!(raw.response().await.is_none());
    }
}

#[tokio::test]
async fn a_body_that_was_asked_for_and_is_too_large_is_drained() {
    let server = Server::start(service().app).await;
    let mut raw = server.raw().await;
    let headers = keyed_headers(KEY) + "expect: 100-continue\r\n";
    let request = chunked("/charges", &headers, &"x".repeat(3 * CAP));
    let (head, body) = request.split_at(request.find("\r\n\r\n").expect("a head") + 4);
    raw.write(head).await;
    assert_eq!(response(&mut raw).await.status, 100);
    raw.write(body).await;
    let refused = response(&mut raw).await;
    assert_eq!((refused.status, refused.closes()), (413, false));
    raw.write(NEXT).await;
    assert_eq!(response(&mut raw).await.body, "GET /next");
}

fn chunks(count: usize, end: Option<io::ErrorKind>) -> Body {
    let data = (0..count).map(|n| Ok(Bytes::from(format!("chunk {n};"))));
    let end = end.map(|kind| Err(io::Error::from(kind)));
    Body::from_stream(stream::iter(data.chain(end).collect::<Vec<_>>()))
}

#[tokio::test(start_paused = true)]
async fn a_streaming_reply_under_the_cap_is_stored_and_replayed_whole() {
    let service = Service::new(Policy::required(), |_| async { chunks(50, None) });
    let first = service.charge(KEY).await;
    assert!(first.text().ends_with("chunk 49;"));
    let retry = service.charge(KEY).await;
    assert_eq!((retry.says(), &retry.body), (says(200, "replayed"), &first.body));
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_breaks_off_is_unknown_and_never_stored() {
    let broken = Some(io::ErrorKind::ConnectionReset);
    for count in [0, 1, 50] {
        let service =
            Service::new(Policy::required(), move |_| async move { chunks(count, broken) });
        assert_eq!(service.charge(KEY).await.says(), says(502, "outcome_unknown"), "{count}");
        assert_eq!(service.charge(KEY).await.says(), says(409, "outcome_unknown"), "{count}");
        let record = service.record(KEY).await.expect("a record");
        assert_eq!((record.state, record.reply), (State::Unknown, None), "{count}");
        assert_eq!(service.runs(), 1, "{count}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_over_the_cap_is_completed_without_its_body_before_its_first_byte() {
    let policy = Policy::required().reply_bytes_max(20);
    let (service, gate) = Service::gated(policy, Settings::default(), |_| async {
        (StatusCode::CREATED, chunks(50, None)).into_response()
    });
    let client = service.spawn_charge(KEY);
    gate.expect(StoreCall::Reserve, Point::Before).await.pass();
    gate.expect(StoreCall::Reserve, Point::After).await.pass();
    for point in [Point::Before, Point::After] {
        let completing = gate.expect(StoreCall::Complete, point).await;
        pass(Duration::from_secs(1)).await;
        assert!(!client.is_finished(), "no answer before the store acknowledged");
        completing.pass();
    }
    drop(gate);
    let first = client.await.expect("answered");
    assert_eq!((first.says(), first.text().len()), (says(201, "executed"), 440));
    assert!(first.text().starts_with("chunk 0;chunk 1;") && first.text().ends_with("chunk 49;"));

    let retry = service.charge(KEY).await;
    assert_eq!(
        (retry.says(), retry.outcome()),
        (says(410, "reply_not_stored"), "reply_not_stored")
    );
    assert_eq!(retry.json()["original_status"], 201);
    assert_eq!(service.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_reply_of_exactly_the_cap_is_stored() {
    for (cap, expected) in [(440, says(200, "replayed")), (439, says(410, "reply_not_stored"))] {
        let policy = Policy::required().reply_bytes_max(cap);
        let service = Service::new(policy, |_| async { chunks(50, None) });
        assert_eq!(service.charge(KEY).await.text().len(), 440);
        assert_eq!(service.charge(KEY).await.says(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_over_the_cap_is_passed_on_as_it_comes() {
    static SENT: AtomicU32 = AtomicU32::new(0);
    let policy = Policy::required().reply_bytes_max(20);
    let service = Service::new(policy, |_| async {
        let endless = stream::unfold((), |()| async {
            pass(Duration::from_secs(1)).await;
            SENT.fetch_add(1, Ordering::SeqCst);
            Some((Ok::<_, io::Error>(Bytes::from_static(b"0123456789")), ()))
        });
        Body::from_stream(endless)
    });
    let response = tower::ServiceExt::oneshot(service.app.clone(), charge(KEY)).await;
    let (parts, body) = response.expect("infallible").into_parts();
    assert_eq!((parts.status.as_u16(), SENT.load(Ordering::SeqCst)), (200, 3));
    let three = futures_util::StreamExt::take(body.into_data_stream(), 3);
    let response = http::Response::new(Body::from_stream(three));
    assert_eq!(Answer::read(response).await.body.len(), 50, "30 that were read, then 10 and 10");
}

#[tokio::test(start_paused = true)]
async fn a_reply_with_trailers_is_passed_on_with_them_and_not_kept_without_them() {
    let service = Service::new(Policy::required(), |_| async {
        let trailers = http::HeaderMap::from_iter([(
            http::HeaderName::from_static("grpc-status"),
            http::HeaderValue::from_static("0"),
        )]);
        let frames = [Frame::data(Bytes::from_static(b"message")), Frame::trailers(trailers)];
        Body::new(StreamBody::new(stream::iter(frames.map(Ok::<_, io::Error>))))
    });
    let first = tower::ServiceExt::oneshot(service.app.clone(), charge(KEY)).await;
    let first = first.expect("infallible").into_body().collect().await.expect("a whole body");
    assert_eq!(first.trailers().expect("trailers")["grpc-status"], "0");
    assert_eq!(first.to_bytes().as_ref(), b"message");
    assert_eq!(service.charge(KEY).await.says(), says(410, "reply_not_stored"));
    assert_eq!(service.runs(), 1);
}
