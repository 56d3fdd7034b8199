use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use http_body_util::BodyExt as _;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::{
    client::legacy::connect::{Connected, Connection},
    rt::TokioIo,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    sync::mpsc,
    task::yield_now,
};

use super::*;

fn address(base: &str, asked: &str) -> String {
    let upstream = Upstream::new(base.parse().expect(base), Duration::from_secs(30));
    let asked: Uri = asked.parse().expect(asked);
    upstream.address(&asked).expect("usable").to_string()
}

#[tokio::test]
async fn the_path_and_query_are_passed_on_as_they_were_sent() {
    let base = "http://bank:3000";
    assert_eq!(address(base, "/a%2Fb//c?x=%20&x"), "http://bank:3000/a%2Fb//c?x=%20&x");
    assert_eq!(address(base, "http://evil/charges"), "http://bank:3000/charges");
    assert_eq!(address("http://bank/api/", "/v1"), "http://bank/api/v1");
    assert_eq!(address("http://bank", "/"), "http://bank/");
}

/// A kept-alive connection whose other end has gone, which nobody has noticed yet: all tasks are on
/// this thread, and none ran since.
async fn with_a_stale_connection() -> (Upstream<Pipes>, mpsc::UnboundedReceiver<DuplexStream>) {
    let (ends, mut servers) = mpsc::unbounded_channel();
    let upstream = Upstream::through(Pipes(ends), Uri::from_static("http://bank"));
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
    let upstream = Upstream::through(Pipes(ends), Uri::from_static("http://bank"));
    let server = async {
        let mut server = servers.recv().await.expect("a connection");
        server.read_u8().await.expect("the first byte");
    };
    let (sent, ()) = tokio::join!(send(&upstream, true), server);
    let failure = sent.expect_err("no answer");
    assert_eq!(failure, Failure::NoFullAnswer { why: "upstream_gave_no_answer" });
    assert!(servers.try_recv().is_err(), "no new connection");
}

async fn send(upstream: &Upstream<Pipes>, may_act: bool) -> Result<Response<Incoming>, Failure> {
    let (parts, ()) = Request::post("/charges").body(()).expect("valid").into_parts();
    upstream.send(parts, Bytes::from_static(b"{}"), || may_act).await
}

async fn answered(response: Result<Response<Incoming>, Failure>) -> String {
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
#[derive(Clone)]
struct Pipes(mpsc::UnboundedSender<DuplexStream>);

impl tower_service::Service<Uri> for Pipes {
    type Response = Pipe;
    type Error = io::Error;
    type Future = std::future::Ready<io::Result<Pipe>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _address: Uri) -> Self::Future {
        let (client, server) = duplex(1 << 16);
        let refused = |_| io::ErrorKind::ConnectionRefused.into();
        let sent = self.0.send(server).map_err(refused);
        std::future::ready(sent.map(|()| Pipe(TokioIo::new(client))))
    }
}

struct Pipe(TokioIo<DuplexStream>);

impl Connection for Pipe {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl Write for Pipe {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
