//! Connections in: hyper with limits, HTTP/1.1 and HTTP/2 with TLS and without, and a clean stop.

use std::{
    convert::Infallible,
    future::poll_fn,
    io,
    net::{IpAddr, SocketAddr},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, Version, header::CONNECTION};
use http_body_util::{Either, Empty};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::{Notify, Semaphore},
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

use crate::{config::Limits, tls::Certificate};

mod alarm; // timers that hardly ever go off
mod head; // heads that mean two things
mod preface; // first bytes in time
mod stall; // answers that nobody takes

pub(crate) use alarm::Alarms;
use preface::PrefaceInTime;
use stall::NoStall;

/// Where requests came from: one for all of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    ip: IpAddr,
    /// As it is told to upstream.
    pub(crate) written: HeaderValue,
    pub(crate) by_tls: bool,
    /// The timers of the connection.
    pub(crate) alarms: Alarms,
}

impl Peer {
    pub(crate) fn new(address: SocketAddr, by_tls: bool) -> Self {
        let ip = address.ip().to_canonical();
        let written = HeaderValue::from_str(&ip.to_string());
        let written = written.unwrap_or_else(|_| HeaderValue::from_static("unknown"));
        Peer { ip, written, by_tls, alarms: Alarms::default() }
    }

    /// An address of IPv4 that comes in one of IPv6 is one of IPv4.
    pub(crate) fn ip(&self) -> IpAddr {
        self.ip
    }
}

/// A connection that speaks HTTP/2 is asked this often whether it is alive.
const PING_EVERY: Duration = Duration::from_secs(20);

/// What a client may send ahead on one stream, and on all of a connection.
const HTTP2_STREAM_WINDOW: u32 = 64 << 10;
const HTTP2_CONNECTION_WINDOW: u32 = 1 << 20;

/// How often a connection may make us reset its streams before it is closed.
const HTTP2_ERRORS_MAX: usize = 128;

/// As many headers as hyper takes where nothing is said.
const HYPER_HEADERS_MAX: usize = 100;

/// Answers requests.
pub(crate) trait Answer: Clone + Send + Sync + 'static {
    /// What answers are made of.
    type Body: http_body::Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + 'static;

    /// Answers one request. Dropped when its client hangs up.
    fn answer(
        &self,
        peer: &Arc<Peer>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Self::Body>> + Send;
}

/// A listener at work.
pub(crate) struct Listening {
    pub(crate) address: SocketAddr,
    stop: Arc<Stop>,
    /// One for each connection that may be open.
    places: Arc<Semaphore>,
    connections_max: usize,
    accepting: JoinHandle<()>,
}

/// Tells connections to come to their end.
#[derive(Debug, Default)]
struct Stop {
    is_told: AtomicBool,
    told: Notify,
}

impl Stop {
    fn tell(&self) {
        self.is_told.store(true, Ordering::Release);
        self.told.notify_waiters();
    }

    fn is_told(&self) -> bool {
        self.is_told.load(Ordering::Acquire)
    }

    /// Comes back once it is told.
    async fn told(&self) {
        let told = self.told.notified();
        if !self.is_told() {
            told.await;
        }
    }
}

impl Listening {
    /// Takes connections on an address, without TLS and with the usual limits.
    pub(crate) async fn bind(address: SocketAddr, answer: impl Answer) -> Result<Listening> {
        Self::bind_with(address, answer, Limits::default(), None).await
    }

    /// Takes connections on an address. With a certificate, clients have to speak TLS.
    pub(crate) async fn bind_with(
        address: SocketAddr,
        answer: impl Answer,
        limits: Limits,
        certificate: Option<Arc<Certificate>>,
    ) -> Result<Listening> {
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!(
                "cannot listen on {address}; is something else using it? choose another address"
            )
        })?;
        Ok(Self::on(listener, answer, limits, certificate)?)
    }

    fn on(
        listener: TcpListener,
        answer: impl Answer,
        limits: Limits,
        certificate: Option<Arc<Certificate>>,
    ) -> io::Result<Listening> {
        let address = listener.local_addr()?;
        let (stop, places) = (Arc::default(), Arc::new(Semaphore::new(limits.connections_max)));
        let door = Door { answer, limits, certificate, stop: Arc::clone(&stop) };
        let accepting = tokio::spawn(accept(listener, door, Arc::clone(&places)));
        let connections_max = limits.connections_max;
        Ok(Listening { address, stop, places, connections_max, accepting })
    }

    /// Takes no more connections, lets running requests finish, and closes idle connections. After
    /// `at_most`, what is left is cut off.
    pub(crate) async fn stop(self, at_most: Duration) {
        self.stop.tell();
        if self.accepting.await.is_err() {
            return;
        }
        let left = self.connections_max.saturating_sub(self.places.available_permits());
        let all = u32::try_from(self.connections_max).unwrap_or(u32::MAX);
        if timeout(at_most, self.places.acquire_many(all)).await.is_err() {
            warn!(connections = left, "connections did not end in time");
        }
    }
}

/// What every connection of a listener shares.
#[derive(Clone)]
struct Door<A> {
    answer: A,
    limits: Limits,
    certificate: Option<Arc<Certificate>>,
    stop: Arc<Stop>,
}

/// Takes connections until it is told to stop.
async fn accept(listener: TcpListener, door: Door<impl Answer>, places: Arc<Semaphore>) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = door.stop.told() => return,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Too many open files, or a connection that is gone already: the next may do.
                warn!(%error, "a connection could not be accepted");
                sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        // Closed at once, so that the client or its balancer can go elsewhere.
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            warn!("a connection was closed: limits.connections are open");
            continue;
        };
        let door = door.clone();
        tokio::spawn(async move {
            door.take(stream, peer).await;
            drop(place);
        });
    }
}

impl<A: Answer> Door<A> {
    async fn take(self, stream: TcpStream, peer: SocketAddr) {
        // Small answers are to leave at once. A socket that cannot be told so still works.
        let _ = stream.set_nodelay(true);
        let Some(certificate) = &self.certificate else {
            return self.serve(stream, peer).await;
        };
        let acceptor = TlsAcceptor::from(certificate.current());
        let handshake = timeout(self.limits.head_time_max, acceptor.accept(stream));
        let shaken = tokio::select! {
            shaken = handshake => shaken,
            // Nothing was asked yet.
            () = self.stop.told() => return,
        };
        match shaken {
            Ok(Ok(stream)) => self.serve(stream, peer).await,
            Ok(Err(error)) => debug!(%error, "a TLS handshake failed"),
            Err(_) => debug!("a TLS handshake did not end in time"),
        }
    }

    async fn serve(
        self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        peer: SocketAddr,
    ) {
        let Door { answer, limits, certificate, stop } = self;
        let peer = Arc::new(Peer::new(peer, certificate.is_some()));
        let server = server(&limits, peer.alarms.clone());
        // One for each connection: what all of them count in, all processors want at once.
        let own = Arc::new((answer, peer));
        let service = service_fn(move |request: Request<Incoming>| {
            let own = Arc::clone(&own);
            async move {
                let (answer, peer) = &*own;
                Ok::<_, Infallible>(match head::refusal(&request, &limits) {
                    None => answer.answer(peer, request).await.map(Either::Right),
                    Some(status) => refused(status, request.version()).map(Either::Left),
                })
            }
        });
        let stream = NoStall::new(stream, limits.stall_time_max);
        let stream = TokioIo::new(PrefaceInTime::new(stream, limits.head_time_max));
        let mut connection = pin!(server.serve_connection_with_upgrades(stream, service));
        let (mut told, mut listens, mut is_ending) = (pin!(stop.told()), false, false);
        let ended = poll_fn(|context| {
            // Listened to once: this is always the same task.
            let may_be_told = !listens || stop.is_told();
            listens = true;
            if !is_ending && may_be_told && told.as_mut().poll(context).is_ready() {
                is_ending = true;
                connection.as_mut().graceful_shutdown();
            }
            connection.as_mut().poll(context)
        });
        if let Err(error) = ended.await {
            debug!(error, "a connection ended with an error");
        }
    }
}

/// The body is not read, so that the connection has to end.
fn refused(status: StatusCode, version: Version) -> Response<Empty<Bytes>> {
    let mut response = Response::new(Empty::new());
    *response.status_mut() = status;
    if version < Version::HTTP_2 {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn server(limits: &Limits, alarms: Alarms) -> auto::Builder<TokioExecutor> {
    let mut server = auto::Builder::new(TokioExecutor::new());
    server
        .http1()
        .timer(alarms)
        .header_read_timeout(limits.head_time_max)
        // A head has to fit into the buffer.
        .max_buf_size(limits.head_bytes_max);
    // With a number of its own, hyper clears room for as many headers with each request.
    if limits.headers_max != HYPER_HEADERS_MAX {
        server.http1().max_headers(limits.headers_max);
    }
    let head_bytes_max = u32::try_from(limits.head_bytes_max).unwrap_or(u32::MAX);
    server
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_EVERY)
        .max_concurrent_streams(limits.http2_streams_max)
        .max_pending_accept_reset_streams(limits.http2_resets_max)
        .max_local_error_reset_streams(HTTP2_ERRORS_MAX)
        .initial_stream_window_size(HTTP2_STREAM_WINDOW)
        .initial_connection_window_size(HTTP2_CONNECTION_WINDOW)
        .max_header_list_size(head_bytes_max);
    server
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
        time::Instant,
    };

    use super::*;

    const HEAD_TIME_MAX: Duration = Duration::from_secs(10);

    async fn hello(_request: Request<Incoming>) -> Result<Response<String>, Infallible> {
        Ok(Response::new("hello".to_owned()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_finish_the_head_of_its_request_is_cut_off() {
        let (mut client, stream) = duplex(1 << 10);
        client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n").await.expect("written");
        let begun = Instant::now();
        let server = server(&Limits::default(), Alarms::default());
        let ended = server.serve_connection(TokioIo::new(stream), service_fn(hello)).await;
        assert!(ended.is_err());
        assert_eq!(begun.elapsed(), HEAD_TIME_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_slow_but_in_time_is_answered() {
        let (mut client, stream) = duplex(1 << 10);
        let server = server(&Limits::default(), Alarms::default());
        let serving = server.serve_connection(TokioIo::new(stream), service_fn(hello));
        let asking = async {
            client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n").await.expect("written");
            sleep(HEAD_TIME_MAX - Duration::from_secs(1)).await;
            client.write_all(b"Connection: close\r\n\r\n").await.expect("written");
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.expect("an answer");
            answer
        };
        let (served, answer) = tokio::join!(serving, asking);
        assert!(served.is_ok());
        assert!(answer.ends_with("hello"), "{answer}");
    }
}
