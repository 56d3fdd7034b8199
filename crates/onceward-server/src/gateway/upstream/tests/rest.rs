//! What is left of a request when its answer is there.

use std::{
    pin::Pin,
    sync::{Mutex, atomic::AtomicBool},
    task::{Context, Poll},
};

use hyper::{server::conn::http1 as server, service::service_fn};
use tokio::{io::AsyncWrite, sync::oneshot, time::sleep};

use super::*;
use crate::gateway::upstream::uploading::{Noting, REST_TIME_MAX};

/// A client that uploads bit by bit.
pub(super) struct Client(DuplexStream);

impl Client {
    /// What it sends is the body of a request to upstream.
    pub(super) async fn begin() -> (Self, Outgoing) {
        let (mut client, gateway) = duplex(1 << 16);
        let (give, given) = oneshot::channel();
        let give = Mutex::new(Some(give));
        let service = service_fn(move |request: Request<hyper::body::Incoming>| {
            let give = give.lock().expect("not poisoned").take().expect("one request");
            let _ = give.send(request.into_body());
            std::future::pending::<Result<Response<String>, io::Error>>()
        });
        let serving = server::Builder::new().serve_connection(TokioIo::new(gateway), service);
        tokio::spawn(serving);
        let head = b"POST / HTTP/1.1\r\nHost: shop\r\nTransfer-Encoding: chunked\r\n\r\n";
        client.write_all(head).await.expect("written");
        let body = given.await.expect("a request");
        (Client(client), Body::streaming(Paced::free(body)))
    }

    pub(super) async fn send(&mut self, part: &str) {
        let chunk = format!("{:x}\r\n{part}\r\n", part.len());
        self.0.write_all(chunk.as_bytes()).await.expect("written");
    }

    async fn end(&mut self) {
        self.0.write_all(b"0\r\n\r\n").await.expect("written");
    }
}

/// An upload that upstream has answered after its first byte, whose answer was read.
async fn answered_early() -> (Upstream<Pipes>, Client, DuplexStream) {
    let (ends, mut servers) = mpsc::unbounded_channel();
    let upstream = Upstream::through(
        Pipes(ends, Protocol::Http1),
        Uri::from_static("http://bank"),
        Duration::from_secs(5),
    );
    let (client, body) = Client::begin().await;
    let (parts, ()) = Request::post("/files").body(()).expect("valid").into_parts();
    let sent = upstream.send(parts, body, &true);
    let server = async {
        let mut server = servers.recv().await.expect("a connection");
        server.read_u8().await.expect("the first byte");
        let answer = b"HTTP/1.1 202 Accepted\r\nContent-Length: 5\r\n\r\nearly";
        server.write_all(answer).await.expect("written");
        server
    };
    let (sent, server) = tokio::join!(sent, server);
    assert_eq!(answered(sent).await, "early");
    (upstream, client, server)
}

#[tokio::test(start_paused = true)]
async fn an_upload_whose_answer_came_early_may_take_as_long_as_it_moves() {
    let (_upstream, mut client, mut server) = answered_early().await;
    let uploading = async {
        for _ in 0..12 {
            sleep(REST_TIME_MAX / 6).await;
            client.send("x").await;
        }
        client.end().await;
    };
    let mut seen = Vec::new();
    let reading = async {
        while !seen.ends_with(b"0\r\n\r\n") {
            assert_ne!(server.read_buf(&mut seen).await.expect("no error"), 0, "cut off");
        }
    };
    let ((), ()) = tokio::join!(uploading, reading);
    assert_eq!(String::from_utf8_lossy(&seen).matches("1\r\nx\r\n").count(), 12);
}

#[tokio::test(start_paused = true)]
async fn an_upload_whose_answer_came_early_ends_when_upstream_stops_reading() {
    let (_upstream, mut client, mut server) = answered_early().await;
    // More than the pipes hold.
    let stuck = async {
        loop {
            client.send(&"x".repeat(1000)).await;
        }
    };
    let _: Result<(), _> = timeout(Duration::from_secs(1), stuck).await;
    sleep(3 * REST_TIME_MAX).await;
    let rest = timeout(REST_TIME_MAX, server.read_to_end(&mut Vec::new())).await;
    rest.expect("it has ended").expect("no error");
}

/// A stream that takes everything, and sends nothing before it is told to.
#[derive(Default)]
struct Withholding {
    sends: Arc<AtomicBool>,
}

impl tokio::io::AsyncRead for Withholding {
    fn poll_read(
        self: Pin<&mut Self>,
        _context: &mut Context<'_>,
        _buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

impl AsyncWrite for Withholding {
    fn poll_write(
        self: Pin<&mut Self>,
        _context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.sends.load(Ordering::Relaxed) {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[test]
fn what_a_stream_took_and_did_not_send_is_not_sent() {
    let stream = Withholding::default();
    let sends = Arc::clone(&stream.sends);
    let (mut stream, stuck) = Noting::new(TokioIo::new(stream));
    let mut stream = Pin::new(&mut stream);
    let context = &mut Context::from_waker(std::task::Waker::noop());
    assert!(!stuck.is_stuck(), "there was nothing to send");
    assert!(stream.as_mut().poll_write(context, b"x").is_ready());
    assert!(stream.as_mut().poll_flush(context).is_pending());
    assert!(stuck.is_stuck());
    assert!(stream.as_mut().poll_write(context, b"y").is_ready());
    assert!(stuck.is_stuck(), "it took more, and still sent nothing");
    sends.store(true, Ordering::Relaxed);
    assert!(stream.as_mut().poll_flush(context).is_ready());
    assert!(!stuck.is_stuck());
}
