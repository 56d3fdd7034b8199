//! A connection to upstream for many requests at a time, in HTTP/2. A task of its own polls it.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use hyper::{
    client::conn::http2,
    rt::{Read, Write},
};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tracing::debug;

use super::pool::{Http2Sender, Streams};

/// A connection that speaks HTTP/2 and has requests under way is asked this often whether it lives.
const PING_EVERY: Duration = Duration::from_secs(20);

/// Of the head of an answer in HTTP/2.
const HTTP2_HEAD_BYTES_MAX: u32 = 64 << 10;

/// A new one over a stream, and the count of its streams.
pub(super) async fn open(
    stream: impl Read + Write + Send + Unpin + 'static,
) -> hyper::Result<(Http2Sender, Arc<Streams>)> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_EVERY)
        // Until upstream has said how many.
        .initial_max_send_streams(1)
        .max_header_list_size(HTTP2_HEAD_BYTES_MAX);
    let (sender, connection) = builder.handshake(stream).await?;
    let connection = Arc::new(Mutex::new(Some(connection)));
    let polled = Polled(Arc::clone(&connection));
    tokio::spawn(poll_fn(move |context| polled.poll(context)));
    let streams = Streams::new(move || {
        let connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
        connection.as_ref().map_or(0, |connection| connection.current_max_send_streams())
    });
    Ok((sender, streams))
}

/// A connection that a task polls, while others ask it something. Gone when it has ended, or nobody polls
/// it any more: what is sent to it would wait for ever.
struct Polled<C>(Arc<Mutex<Option<C>>>);

impl<C: Future<Output = hyper::Result<()>> + Unpin> Polled<C> {
    fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(connection) = &mut *connection else { return Poll::Ready(()) };
        Pin::new(connection).poll(context).map(|ended| {
            if let Err(error) = ended {
                debug!(%error, "a connection to upstream ended with an error");
            }
        })
    }
}

impl<C> Drop for Polled<C> {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
