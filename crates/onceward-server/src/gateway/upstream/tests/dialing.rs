//! Many requests that need connections at once.

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use super::*;

/// Takes its time to connect.
struct Slow(Pipes);

impl Dial for Slow {
    type Stream = DuplexStream;

    async fn dial(&self, only_http1: bool) -> io::Result<(DuplexStream, Protocol)> {
        sleep(Duration::from_millis(100)).await;
        self.0.dial(only_http1).await
    }

    fn may_share(&self) -> bool {
        self.0.may_share()
    }
}

const REQUESTS: usize = 100;

/// How many connections are made for many requests at once, whose answers do not end.
async fn connections(protocol: Protocol, streams: u32) -> usize {
    let (ends, mut servers) = mpsc::unbounded_channel();
    let (tell, mut told) = mpsc::unbounded_channel();
    let serve = async |server, streams: u32| {
        let mut builder = h2::server::Builder::new();
        builder.max_concurrent_streams(streams);
        let mut connection = builder.handshake::<_, Bytes>(server).await.expect("HTTP/2");
        let mut endless = Vec::new();
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            endless.push(respond.send_response(Response::new(()), false).expect("answered"));
        }
    };
    let serve_http1 = async |mut server: DuplexStream| {
        let mut head = vec![0; 4];
        server.read_exact(&mut head).await.expect("a request");
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        server.write_all(answer).await.expect("written");
        std::future::pending::<()>().await;
    };
    tokio::spawn(async move {
        while let Some(server) = servers.recv().await {
            tell.send(()).expect("somebody counts");
            match protocol {
                Protocol::Http1 => drop(tokio::spawn(serve_http1(server))),
                Protocol::Http2 => drop(tokio::spawn(serve(server, streams))),
            }
        }
    });
    let base = Uri::from_static("http://bank");
    // Whether it can be shared is not known before there is one.
    let upstream = Upstream::through(Slow(Pipes(ends, protocol)), base, Duration::from_secs(5));
    upstream.may_share.store(true, Ordering::Relaxed);
    let begun = Instant::now();
    let sent = join_all((0..REQUESTS).map(|_| async {
        let (parts, ()) = Request::get("/endless").body(()).expect("valid").into_parts();
        upstream.send(parts, Body::full(Bytes::new()), &true).await
    }));
    let answers = sent.await;
    assert_eq!(answers.iter().find_map(|answer| answer.as_ref().err()), None);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    let mut made = 0;
    while told.try_recv().is_ok() {
        made += 1;
    }
    made
}

#[tokio::test(start_paused = true)]
async fn requests_that_each_need_a_connection_do_not_wait_for_each_other() {
    assert_eq!(connections(Protocol::Http2, 1).await, REQUESTS);
    assert_eq!(connections(Protocol::Http1, 1).await, REQUESTS);
}

#[tokio::test(start_paused = true)]
async fn requests_that_can_share_a_connection_do_not_make_one_each() {
    let made = connections(Protocol::Http2, 200).await;
    assert!(made < 5, "{made}");
}
