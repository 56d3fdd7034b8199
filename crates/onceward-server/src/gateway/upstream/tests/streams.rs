//! Connections in HTTP/2 that requests share, and upstreams that let a request wait.

use tokio::time::sleep;

use super::*;
use crate::gateway::upstream::uploading::REST_TIME_MAX;

/// An upstream in HTTP/2 that answers at once.
#[derive(Clone, Copy)]
struct Answering {
    streams: u32,
    /// Whether it takes the bodies of requests. It keeps them in any case.
    reads: bool,
}

impl Answering {
    /// Tells which connection got what, and which one was closed. The answers of `/endless` do not end.
    fn at_once(self) -> (Upstream<Pipes>, mpsc::UnboundedReceiver<(usize, String)>) {
        let (ends, mut servers) = mpsc::unbounded_channel();
        let (tell, told) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut number = 0;
            while let Some(server) = servers.recv().await {
                number += 1;
                tokio::spawn(self.serve(number, server, tell.clone()));
            }
        });
        let pipes = Pipes(ends, Protocol::Http2);
        let base = Uri::from_static("http://bank");
        (Upstream::through(pipes, base, Duration::from_secs(5)), told)
    }

    async fn serve(
        self,
        number: usize,
        server: DuplexStream,
        tell: mpsc::UnboundedSender<(usize, String)>,
    ) {
        let mut builder = h2::server::Builder::new();
        builder.max_concurrent_streams(self.streams);
        let mut connection = builder.handshake::<_, Bytes>(server).await.expect("HTTP/2");
        let (mut kept, mut endless) = (Vec::new(), Vec::new());
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            let path = request.uri().path().to_owned();
            let mut body = request.into_body();
            if self.reads {
                tokio::spawn(async move {
                    while let Some(Ok(part)) = body.data().await {
                        let _ = body.flow_control().release_capacity(part.len());
                    }
                });
            } else {
                kept.push(body);
            }
            let ends = path != "/endless";
            endless.push(respond.send_response(Response::new(()), ends).expect("answered"));
            tell.send((number, path)).expect("somebody listens");
        }
        // The test may be over.
        let _ = tell.send((number, "closed".to_owned()));
    }
}

async fn post(upstream: &Upstream<Pipes>, path: &str, bytes: usize) -> Response<FromUpstream> {
    let (parts, ()) = Request::post(path).body(()).expect("valid").into_parts();
    let body = Body::full(vec![b'x'; bytes].into());
    upstream.send(parts, body, &true).await.expect("an answer")
}

/// More than upstream takes without being read.
const LARGE: usize = 200_000;

#[tokio::test]
async fn a_request_of_which_upstream_takes_no_more_is_under_way_though_it_is_answered() {
    let (upstream, mut told) = Answering { streams: 1, reads: false }.at_once();
    assert_eq!(answered(Ok(post(&upstream, "/files", LARGE).await)).await, "");
    assert_eq!(told.recv().await, Some((1, "/files".to_owned())));
    let next = timeout(Duration::from_secs(30), post(&upstream, "/charges", 2));
    assert_eq!(answered(Ok(next.await.expect("it does not wait"))).await, "");
    assert_eq!(told.recv().await, Some((2, "/charges".to_owned())));
}

#[tokio::test]
async fn a_request_that_was_taken_and_answered_leaves_its_connection_to_the_next_one() {
    let (upstream, mut told) = Answering { streams: 1, reads: true }.at_once();
    assert_eq!(answered(Ok(post(&upstream, "/files", LARGE).await)).await, "");
    assert_eq!(told.recv().await, Some((1, "/files".to_owned())));
    for _ in 0..100 {
        // The rest of it is taken.
        yield_now().await;
    }
    assert_eq!(answered(Ok(post(&upstream, "/charges", 2).await)).await, "");
    assert_eq!(told.recv().await, Some((1, "/charges".to_owned())));
}

#[tokio::test(start_paused = true)]
async fn a_connection_whose_upstream_leaves_a_request_lying_is_ended_once_its_other_answers_are() {
    let (upstream, mut told) = Answering { streams: 10, reads: false }.at_once();
    let other = post(&upstream, "/endless", 2).await;
    assert_eq!(told.recv().await, Some((1, "/endless".to_owned())));
    assert_eq!(answered(Ok(post(&upstream, "/files", LARGE).await)).await, "");
    assert_eq!(told.recv().await, Some((1, "/files".to_owned())));
    // For a while upstream may still take it.
    sleep(REST_TIME_MAX / 2).await;
    drop(post(&upstream, "/charges", 2).await);
    assert_eq!(told.recv().await, Some((1, "/charges".to_owned())));
    sleep(REST_TIME_MAX).await;
    drop(post(&upstream, "/charges", 2).await);
    assert_eq!(told.recv().await, Some((2, "/charges".to_owned())));
    assert_eq!(told.recv().await, Some((2, "closed".to_owned())), "nobody uses it");
    let mut other = Box::pin(other.into_body().collect());
    assert!(timeout(REST_TIME_MAX, &mut other).await.is_err(), "an answer that goes on goes on");
    drop(other);
    let closed = timeout(REST_TIME_MAX, told.recv()).await.expect("in time");
    assert_eq!(closed, Some((1, "closed".to_owned())));
}

/// Upstream's end of a connection in HTTP/2, frame by frame.
pub(super) struct Frames(DuplexStream);

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;

impl Frames {
    /// Begins, and has said how many streams it allows.
    async fn begin(mut server: DuplexStream, allowed: u32) -> Self {
        let mut preface = [0; 24];
        server.read_exact(&mut preface).await.expect("HTTP/2");
        let mut frames = Frames(server);
        frames.allow(allowed).await;
        frames
    }

    /// `SETTINGS_MAX_CONCURRENT_STREAMS`. Whoever does not listen any more need not know.
    async fn allow(&mut self, streams: u32) {
        let mut frame = vec![0, 0, 6, SETTINGS, 0, 0, 0, 0, 0, 0, 3];
        frame.extend(streams.to_be_bytes());
        let _ = self.0.write_all(&frame).await;
    }

    /// 200, without a body.
    async fn answer(&mut self, stream: u32) {
        let mut frame = vec![0, 0, 1, HEADERS, 5];
        frame.extend(stream.to_be_bytes());
        frame.push(0x88);
        self.0.write_all(&frame).await.expect("written");
    }

    /// The type, the flags and the stream of the next frame.
    async fn next(&mut self) -> Option<(u8, u8, u32)> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        self.0.read_exact(&mut vec![0; length]).await.ok()?;
        Some((head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]])))
    }

    /// The stream of the next request; none if the connection ends before there is one.
    async fn request(&mut self) -> Option<u32> {
        loop {
            if let (HEADERS, _, stream) = self.next().await? {
                return Some(stream);
            }
        }
    }

    /// Until the other end has taken our last settings, without having sent a request.
    async fn are_known(&mut self) {
        loop {
            match self.next().await.expect("open") {
                (SETTINGS, 1, _) => return,
                (kind, ..) => assert_ne!(kind, HEADERS, "a request"),
            }
        }
    }
}

pub(super) fn by_frames() -> (Upstream<Pipes>, mpsc::UnboundedReceiver<DuplexStream>) {
    let (ends, servers) = mpsc::unbounded_channel();
    let pipes = Pipes(ends, Protocol::Http2);
    let base = Uri::from_static("http://bank");
    (Upstream::through(pipes, base, Duration::from_secs(5)), servers)
}

/// Goes on with a request that is not answered, while something else happens.
pub(super) async fn beside<T>(
    sending: &mut (impl Future + Unpin),
    other: impl Future<Output = T>,
) -> T {
    tokio::select! {
        biased;
        _ = sending => panic!("nobody answers"),
        done = other => done,
    }
}

/// A request on a connection on which upstream has just said that it allows none.
pub(super) async fn not_allowed(
    upstream: &Upstream<Pipes>,
    servers: &mut mpsc::UnboundedReceiver<DuplexStream>,
) -> (impl Future<Output = Result<Response<FromUpstream>, Failure>> + Unpin, Frames) {
    let mut sending = Box::pin(send(upstream, true));
    let server = async {
        let mut server = Frames::begin(servers.recv().await.expect("a connection"), 0).await;
        server.are_known().await;
        server
    };
    let server = beside(&mut sending, server).await;
    (sending, server)
}

#[tokio::test]
async fn a_request_that_was_given_up_before_upstream_allowed_it_is_never_sent() {
    let (upstream, mut servers) = by_frames();
    let (sending, mut server) = not_allowed(&upstream, &mut servers).await;
    drop(sending);
    for _ in 0..10 {
        yield_now().await;
    }
    server.allow(100).await;
    assert_eq!(server.request().await, None);
}

#[tokio::test]
async fn a_request_that_upstream_allows_late_is_sent_then() {
    let (upstream, mut servers) = by_frames();
    let (sending, mut server) = not_allowed(&upstream, &mut servers).await;
    let served = async {
        server.allow(100).await;
        assert_eq!(server.request().await, Some(1));
        server.answer(1).await;
    };
    let (answer, ()) = tokio::join!(sending, served);
    assert_eq!(answered(answer).await, "");
}

/// Two requests on one connection, of which upstream allows the second no more when it comes.
async fn with_one_too_many<F: Future + Unpin>(
    mut first: F,
    mut second: F,
    servers: &mut mpsc::UnboundedReceiver<DuplexStream>,
) -> (F, F, Frames) {
    let server = async {
        let mut server = Frames::begin(servers.recv().await.expect("a connection"), 2).await;
        server.are_known().await;
        assert_eq!(server.request().await, Some(1));
        server
    };
    let mut server = beside(&mut first, server).await;
    // Nobody reads it before the second one was begun.
    server.allow(1).await;
    beside(&mut second, server.are_known()).await;
    (first, second, server)
}

#[tokio::test]
async fn a_request_that_is_given_up_when_upstream_has_come_to_allow_fewer_is_never_sent() {
    let (upstream, mut servers) = by_frames();
    let [first, second] = [(), ()].map(|()| Box::pin(send(&upstream, true)));
    let (first, second, mut server) = with_one_too_many(first, second, &mut servers).await;
    drop(second);
    for _ in 0..10 {
        yield_now().await;
    }
    server.allow(100).await;
    assert_eq!(server.request().await, None);
    // What was under way on the same connection is lost, and nobody says that it was not done.
    assert_eq!(first.await.expect_err("cut off"), Failure::no_answer("upstream_gave_no_answer"));
}

#[tokio::test]
async fn a_request_waits_for_a_place_that_upstream_has_taken_back() {
    let (upstream, mut servers) = by_frames();
    let [first, second] = [(), ()].map(|()| Box::pin(send(&upstream, true)));
    let (first, second, mut server) = with_one_too_many(first, second, &mut servers).await;
    let served = async {
        server.answer(1).await;
        assert_eq!(server.request().await, Some(3));
        server.answer(3).await;
    };
    let (first, second, ()) = tokio::join!(first, second, served);
    assert_eq!(answered(first).await, "");
    assert_eq!(answered(second).await, "");
}

#[tokio::test]
async fn who_gives_up_at_once_does_not_cut_off_those_who_share_the_connection() {
    let (upstream, mut servers) = by_frames();
    let mut first = Box::pin(send(&upstream, true));
    let mut server = beside(&mut first, async {
        let server = servers.recv().await.expect("a connection");
        let mut server = Frames::begin(server, 100).await;
        assert_eq!(server.request().await, Some(1));
        server
    })
    .await;
    for _ in 0..10 {
        yield_now().await;
    }
    for _ in 0..10 {
        let mut hasty = Box::pin(send(&upstream, true));
        beside(&mut hasty, async {}).await;
    }
    assert!(servers.try_recv().is_err(), "they share it");
    for _ in 0..10 {
        yield_now().await;
    }
    let (answer, ()) = tokio::join!(first, server.answer(1));
    assert_eq!(answered(answer).await, "");
}
