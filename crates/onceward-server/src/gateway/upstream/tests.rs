use std::{future::Future, io};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    sync::mpsc,
    task::yield_now,
};

use super::*;

mod blame; // who is to blame for an answer that did not come
mod dialing; // many requests that need connections at once
mod rest; // what is left of a request when its answer is there
mod streams; // connections in HTTP/2 that requests share

async fn addresses(base: &str, asked: &str) -> [String; 2] {
    let (ends, _servers) = mpsc::unbounded_channel();
    let base: Uri = base.parse().expect(base);
    let upstream = Upstream::through(Pipes(ends, Protocol::Http1), base, Duration::from_secs(5));
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
    let upstream = Upstream::through(
        Pipes(ends, Protocol::Http1),
        Uri::from_static("http://bank"),
        Duration::from_secs(5),
    );
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
    let upstream = Upstream::through(
        Pipes(ends, Protocol::Http1),
        Uri::from_static("http://bank"),
        Duration::from_secs(5),
    );
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
    let upstream = Upstream::through(
        Pipes(ends, Protocol::Http1),
        Uri::from_static("http://bank"),
        Duration::from_secs(5),
    );
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

/// An upload that upstream answers after its first byte, and upstream's end of the connection.
async fn answered_early(body: &Bytes) -> (Upstream<Pipes>, Response<FromUpstream>, DuplexStream) {
    let (ends, mut servers) = mpsc::unbounded_channel();
    let upstream = Upstream::through(
        Pipes(ends, Protocol::Http1),
        Uri::from_static("http://bank"),
        Duration::from_secs(5),
    );
    let (parts, ()) = Request::post("/files").body(()).expect("valid").into_parts();
    let sent = upstream.send(parts, Body::full(body.clone()), &true);
    let server = async {
        let mut server = servers.recv().await.expect("a connection");
        server.read_u8().await.expect("the first byte");
        let answer = b"HTTP/1.1 202 Accepted\r\nContent-Length: 5\r\n\r\nearly";
        server.write_all(answer).await.expect("written");
        server
    };
    let (sent, server) = tokio::join!(sent, server);
    (upstream, sent.expect("an answer"), server)
}

async fn is_sent_whole(body: &Bytes, server: &mut DuplexStream) {
    let mut seen = Vec::new();
    while !seen.ends_with(body) {
        assert_ne!(server.read_buf(&mut seen).await.expect("no error"), 0, "cut off");
    }
}

#[tokio::test]
async fn the_rest_of_a_request_is_sent_though_its_answer_came_early() {
    let body = Bytes::from(vec![b'x'; 200_000]);
    let (upstream, response, mut server) = answered_early(&body).await;
    assert_eq!(answered(Ok(response)).await, "early");
    assert!(upstream.pool.take().is_none(), "its connection is busy");
    is_sent_whole(&body, &mut server).await;
}

#[tokio::test]
async fn the_rest_of_a_request_is_sent_while_nobody_reads_its_answer() {
    let body = Bytes::from(vec![b'x'; 200_000]);
    let (_upstream, unread, mut server) = answered_early(&body).await;
    let sent = timeout(Duration::from_secs(30), is_sent_whole(&body, &mut server));
    sent.await.expect("it does not stand still");
    assert_eq!(answered(Ok(unread)).await, "early");
}

#[tokio::test]
async fn who_gives_up_on_an_answer_closes_its_connection() {
    let (ends, mut servers) = mpsc::unbounded_channel();
    let upstream = Upstream::through(
        Pipes(ends, Protocol::Http1),
        Uri::from_static("http://bank"),
        Duration::from_secs(5),
    );
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

/// Answers in HTTP/2, one stream at a time on each connection, and tells which connection got what.
/// The answers of `/endless` do not end.
fn one_stream_at_a_time() -> (Upstream<Pipes>, mpsc::UnboundedReceiver<(usize, String)>) {
    let (ends, mut servers) = mpsc::unbounded_channel();
    let (tell, told) = mpsc::unbounded_channel();
    let serve = async |number, server, tell: mpsc::UnboundedSender<_>| {
        let mut builder = h2::server::Builder::new();
        builder.max_concurrent_streams(1);
        let mut connection = builder.handshake::<_, Bytes>(server).await.expect("HTTP/2");
        let mut endless = Vec::new();
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            let path = request.uri().path().to_owned();
            let ends = path != "/endless";
            endless.push(respond.send_response(Response::new(()), ends).expect("answered"));
            tell.send((number, path)).expect("somebody listens");
        }
    };
    tokio::spawn(async move {
        let mut number = 0;
        while let Some(server) = servers.recv().await {
            number += 1;
            tokio::spawn(serve(number, server, tell.clone()));
        }
    });
    let pipes = Pipes(ends, Protocol::Http2);
    let base = Uri::from_static("http://bank");
    (Upstream::through(pipes, base, Duration::from_secs(5)), told)
}

#[tokio::test]
async fn a_request_does_not_wait_for_answers_that_have_not_ended() {
    let (upstream, mut told) = one_stream_at_a_time();
    let (parts, ()) = Request::get("/endless").body(()).expect("valid").into_parts();
    let endless = upstream.send(parts, Body::full(Bytes::new()), &true).await.expect("a head");
    assert_eq!(told.recv().await, Some((1, "/endless".to_owned())));
    assert_eq!(answered(send(&upstream, true).await).await, "");
    assert_eq!(told.recv().await, Some((2, "/charges".to_owned())));
    // The twin: once it has ended, its connection takes the next one.
    drop(endless);
    assert_eq!(answered(send(&upstream, true).await).await, "");
    assert_eq!(told.recv().await, Some((1, "/charges".to_owned())));
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
struct Pipes(mpsc::UnboundedSender<DuplexStream>, Protocol);

impl Dial for Pipes {
    type Stream = DuplexStream;

    fn dial(
        &self,
        _only_http1: bool,
    ) -> impl Future<Output = io::Result<(DuplexStream, Protocol)>> + Send {
        let (client, server) = duplex(1 << 16);
        let refused = |_| io::ErrorKind::ConnectionRefused.into();
        let sent = self.0.send(server).map_err(refused);
        std::future::ready(sent.map(|()| (client, self.1)))
    }

    fn may_share(&self) -> bool {
        self.1 == Protocol::Http2
    }
}
