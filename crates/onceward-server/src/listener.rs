//! Connections in: hyper with time limits, HTTP/1.1 and HTTP/2 without TLS, and a clean stop.

use std::{convert::Infallible, io, net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http::{Request, Response};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tracing::{debug, warn};

mod preface;
use preface::PrefaceInTime;

/// Where a request came from: in the extensions of every request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// A client has this long to send the head of a request.
const HEAD_TIME_MAX: Duration = Duration::from_secs(10);

/// A connection that speaks HTTP/2 is asked this often whether it is alive.
const PING_EVERY: Duration = Duration::from_secs(20);

const HTTP2_STREAMS_MAX: u32 = 100;
const HTTP2_HEADERS_MAX: u32 = 16 << 10;

/// Answers requests.
pub(crate) trait Answer: Clone + Send + Sync + 'static {
    /// What answers are made of.
    type Body: http_body::Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + 'static;

    /// Answers one request. Dropped when its client hangs up.
    fn answer(
        self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Self::Body>> + Send;
}

/// A listener at work.
pub(crate) struct Listening {
    pub(crate) address: SocketAddr,
    stop: oneshot::Sender<()>,
    accepting: JoinHandle<GracefulShutdown>,
}

impl Listening {
    /// Takes connections on an address.
    pub(crate) async fn bind(address: SocketAddr, answer: impl Answer) -> Result<Listening> {
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!(
                "cannot listen on {address}; is something else using it? choose another address"
            )
        })?;
        Ok(Self::on(listener, answer)?)
    }

    /// Takes connections on an open socket.
    pub(crate) fn on(listener: TcpListener, answer: impl Answer) -> io::Result<Listening> {
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let accepting = tokio::spawn(accept(listener, answer, stopped));
        Ok(Listening { address, stop, accepting })
    }

    /// Takes no more connections, lets running requests finish, and closes idle connections. After
    /// `at_most`, what is left is cut off.
    pub(crate) async fn stop(self, at_most: Duration) {
        drop(self.stop);
        let Ok(connections) = self.accepting.await else { return };
        let left = connections.count();
        if timeout(at_most, connections.shutdown()).await.is_err() {
            warn!(connections = left, "connections did not end in time");
        }
    }
}

async fn accept(
    listener: TcpListener,
    answer: impl Answer,
    mut stopped: oneshot::Receiver<()>,
) -> GracefulShutdown {
    let connections = GracefulShutdown::new();
    let server = server();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = &mut stopped => return connections,
        };
        match accepted {
            Ok((stream, peer)) => serve(&server, &connections, stream, peer, answer.clone()),
            Err(error) => {
                // Too many open files, or a connection that is gone already: the next may do.
                warn!(%error, "a connection could not be accepted");
                sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

fn server() -> auto::Builder<TokioExecutor> {
    let mut server = auto::Builder::new(TokioExecutor::new());
    server.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIME_MAX);
    server
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_EVERY)
        .max_concurrent_streams(HTTP2_STREAMS_MAX)
        .max_header_list_size(HTTP2_HEADERS_MAX);
    server
}

fn serve(
    server: &auto::Builder<TokioExecutor>,
    connections: &GracefulShutdown,
    stream: TcpStream,
    peer: SocketAddr,
    answer: impl Answer,
) {
    // Small answers are to leave at once. A socket that cannot be told so still works.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        let response = answer.clone().answer(request);
        async move { Ok::<_, Infallible>(response.await) }
    });
    let stream = TokioIo::new(PrefaceInTime::new(stream, HEAD_TIME_MAX));
    let connection = server.serve_connection(stream, service).into_owned();
    let connection = connections.watch(connection);
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            debug!(error, "a connection ended with an error");
        }
    });
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
        time::Instant,
    };

    use super::*;

    async fn hello(_request: Request<Incoming>) -> Result<Response<String>, Infallible> {
        Ok(Response::new("hello".to_owned()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_finish_the_head_of_its_request_is_cut_off() {
        let (mut client, stream) = duplex(1 << 10);
        client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n").await.expect("written");
        let begun = Instant::now();
        let server = server();
        let ended = server.serve_connection(TokioIo::new(stream), service_fn(hello)).await;
        assert!(ended.is_err());
        assert_eq!(begun.elapsed(), HEAD_TIME_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_slow_but_in_time_is_answered() {
        let (mut client, stream) = duplex(1 << 10);
        let server = server();
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
