use std::{future::Future, io};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    sync::mpsc,
    task::yield_now,
};

use super::*;

async fn addresses(base: &str, asked: &str) -> [String; 2] {
    let (ends, _servers) = mpsc::unbounded_channel();
    let base: Uri = base.parse().expect(base);
    let upstream = Upstream::through(Pipes(ends), base, Duration::from_secs(5));
    let request = Request::get(asked).header(HOST, "shop");
    let (mut http1, ()) = request.body(()).expect("valid").into_parts();
    let mut http2 = http1.clone();
    upstream.address_http1(&mut http1).expect("usable");
    upstream.address_http2(&mut http2).expect("usable");
    assert_eq!(http1.headers.get(HOST), Some(&HeaderValue::from_static("shop")));
    assert!(!http2.headers.contains_key(HOST));
    [http1.uri.to_string(), http2.uri.to_string()]
}

#[tokio::test]
async fn the_path_and_query_are_passed_on_as_they_were_sent() {
    for (base, asked, http1, http2) in [
        (
            "http://bank:3000",
            "/a%2Fb//c?x=%20&x",
            "/a%2Fb//c?x=%20&x",
            "http://shop/a%2Fb//c?x=%20&x",
        ),
        ("http://bank:3000", "http://evil/charges", "/charges", "http://shop/charges"),
        ("https://bank/api/", "/v1", "/api/v1", "https://shop/api/v1"),
        ("http://bank", "/", "/", "http://shop/"),
    ] {
        assert_eq!(addresses(base, asked).await, [http1, http2]);
    }
}

/// A kept-alive connection whose other end has gone, which nobody has noticed yet: all tasks are on
/// this thread, and none ran since.
async fn with_a_stale_connection() -> (Upstream<Pipes>, mpsc::UnboundedReceiver<DuplexStream>) {
    let (ends, mut servers) = mpsc::unbounded_channel();
    let upstream =
        Upstream::through(Pipes(ends), Uri::from_static("http://bank"), Duration::from_secs(5));
    let first = async { answered(send(&upstream, true).await).await };
    let server = async {
        let mut server = servers.recv().await.expect("a connection");
        serve(&mut server, "first").await;
        server
    };
    let (first, server) = tokio::join!(first, server);
    assert_eq!(first, "first");
    for _ in 0..10 {
        // The connection goes back to the pool.
        yield_now().await;
    }
    drop(server);
    (upstream, servers)
}

#[tokio::test]
async fn a_connection_found_closed_before_anything_was_written_is_replaced_by_one_new_one() {
    let (upstream, mut servers) = with_a_stale_connection().await;
    let server = async {
        let mut server = servers.recv().await.expect("a new connection");
        serve(&mut server, "second").await;
        server
    };
    let (answer, _server) =
        tokio::join!(async { answered(send(&upstream, true).await).await }, server);
    assert_eq!(answer, "second");
    assert!(servers.try_recv().is_err(), "one new connection");
}

#[tokio::test]
async fn an_attempt_that_lost_its_lease_takes_no_new_connection() {
    let (upstream, mut servers) = with_a_stale_connection().await;
    let failure = send(&upstream, false).await.expect_err("not sent");
    assert_eq!(failure, Failure::NeverSent { why: "lease_over_before_dispatch" });
    assert!(servers.try_recv().is_err(), "no new connection");
}

#[tokio::test]
async fn a_new_connection_that_cannot_be_had_is_a_request_that_was_never_sent() {
    let (upstream, servers) = with_a_stale_connection().await;
    drop(servers);
    let failure = send(&upstream, true).await.expect_err("not sent");
    assert_eq!(failure, Failure::NeverSent { why: "upstream_unreachable" });
}

#[tokio::test]
async fn a_request_of_which_a_byte_was_written_is_not_sent_again() {
    let (ends, mut servers) = mpsc::unbounded_channel();
    let upstream =
        Upstream::through(Pipes(ends), Uri::from_static("http://bank"), Duration::from_secs(5));
    let server = async {
        let mut server = servers.recv().await.expect("a connection");
        server.read_u8().await.expect("the first byte");
    };
    let (sent, ()) = tokio::join!(send(&upstream, true), server);
    let failure = sent.expect_err("no answer");
    assert_eq!(failure, Failure::no_answer("upstream_gave_no_answer"));
    assert!(servers.try_recv().is_err(), "no new connection");
}

#[tokio::test]
async fn a_connection_is_used_again_only_when_its_answer_has_been_read() {
    let (ends, mut servers) = mpsc::unbounded_channel();
    let upstream =
        Upstream::through(Pipes(ends), Uri::from_static("http://bank"), Duration::from_secs(5));
    let server = async {
        let mut server = servers.recv().await.expect("a connection");
        serve(&mut server, &"long".repeat(100_000)).await;
        server
    };
    let client = async {
        let busy = send(&upstream, true).await.expect("an answer has begun");
        assert!(upstream.pool.take().is_none(), "its connection is busy");
        let length = busy.into_body().collect().await.expect("all of it").to_bytes().len();
        assert_eq!(length, 400_000);
        for _ in 0..10 {
            yield_now().await;
        }
    };
    let (_server, ()) = tokio::join!(server, client);
    assert!(upstream.pool.take().is_some(), "its connection is free again");
    assert!(upstream.pool.take().is_none(), "and there was one");
}

#[tokio::test]
async fn the_rest_of_a_request_is_sent_though_its_answer_came_early() {
    let (ends, mut servers) = mpsc::unbounded_channel();
    let upstream =
        Upstream::through(Pipes(ends), Uri::from_static("http://bank"), Duration::from_secs(5));
    let body = Bytes::from(vec![b'x'; 200_000]);
    let (parts, ()) = Request::post("/files").body(()).expect("valid").into_parts();
    let answered =
        async { answered(upstream.send(parts, Body::full(body.clone()), &true).await).await };
    let server = async {
        let mut server = servers.recv().await.expect("a connection");
        server.read_u8().await.expect("the first byte");
        let answer = b"HTTP/1.1 202 Accepted\r\nContent-Length: 5\r\n\r\nearly";
        server.write_all(answer).await.expect("written");
        server
    };
    let (answer, mut server) = tokio::join!(answered, server);
    assert_eq!(answer, "early");
    assert!(upstream.pool.take().is_none(), "its connection is busy");
    let mut seen = Vec::new();
    while !seen.ends_with(&body) {
        assert_ne!(server.read_buf(&mut seen).await.expect("no error"), 0, "cut off");
    }
}

#[tokio::test]
async fn who_gives_up_on_an_answer_closes_its_connection() {
    let (ends, mut servers) = mpsc::unbounded_channel();
    let upstream =
        Upstream::through(Pipes(ends), Uri::from_static("http://bank"), Duration::from_secs(5));
    let mut sending = Box::pin(send(&upstream, true));
    let mut server = tokio::select! {
        _ = &mut sending => unreachable!("nobody answers"),
        server = servers.recv() => server.expect("a connection"),
    };
    let mut seen = vec![0; 4];
    tokio::select! {
        _ = &mut sending => unreachable!("nobody answers"),
        read = server.read_exact(&mut seen) => assert_eq!(read.ok(), Some(4)),
    }
    drop(sending);
    server.read_to_end(&mut seen).await.expect("closed");
    assert!(upstream.pool.take().is_none());
}

#[tokio::test]
async fn a_kept_connection_that_was_closed_is_found_by_a_look() {
    let (upstream, _servers) = with_a_stale_connection().await;
    let Some(Sender::Http1(mut link)) = upstream.pool.take() else { panic!("a kept one") };
    assert!(link.is_ready(), "nobody has looked");
    assert!(!link.is_still_ready(), "its other end has gone");
}

async fn send(
    upstream: &Upstream<Pipes>,
    may_act: bool,
) -> Result<Response<FromUpstream>, Failure> {
    let (parts, ()) = Request::post("/charges").body(()).expect("valid").into_parts();
    upstream.send(parts, Body::full(Bytes::from_static(b"{}")), &may_act).await
}

async fn answered(response: Result<Response<FromUpstream>, Failure>) -> String {
    let body = response.expect("an answer").into_body().collect().await.expect("whole");
    String::from_utf8(body.to_bytes().to_vec()).expect("text")
}

/// Reads one request and answers it.
async fn serve(server: &mut DuplexStream, body: &str) {
    let mut seen = Vec::new();
    while !seen.ends_with(b"\r\n\r\n{}") {
        seen.push(server.read_u8().await.expect("a whole request"));
    }
    let length = body.len();
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}");
    server.write_all(answer.as_bytes()).await.expect("written");
}

/// Connects by pipes in memory, and hands their other ends to the test.
struct Pipes(mpsc::UnboundedSender<DuplexStream>);

impl Dial for Pipes {
    type Stream = DuplexStream;

    fn dial(
        &self,
        _only_http1: bool,
    ) -> impl Future<Output = io::Result<(DuplexStream, Protocol)>> + Send {
        let (client, server) = duplex(1 << 16);
        let refused = |_| io::ErrorKind::ConnectionRefused.into();
        let sent = self.0.send(server).map_err(refused);
        std::future::ready(sent.map(|()| (client, Protocol::Http1)))
    }

    fn may_share(&self) -> bool {
        false
    }
}
