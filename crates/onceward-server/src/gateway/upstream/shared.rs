//! A connection to upstream for many requests at a time, in HTTP/2. A task of its own polls it.

use std::{
    mem,
    pin::{Pin, pin},
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use hyper::{
    client::conn::http2,
    rt::{Executor, Read, Write},
};
use hyper_util::rt::TokioTimer;
use tokio::task::unconstrained;
use tracing::debug;

use super::{
    pool::Http2Sender,
    streams::Streams,
    uploading::{Noting, Stuck, Uploading},
};

/// A connection that speaks HTTP/2 and has requests under way is asked this often whether it lives.
const PING_EVERY: Duration = Duration::from_secs(20);

/// Of the head of an answer in HTTP/2.
const HTTP2_HEAD_BYTES_MAX: u32 = 64 << 10;

/// A new one over a stream, and the count of its streams.
pub(super) async fn open(
    stream: impl Read + Write + Send + Unpin + 'static,
) -> hyper::Result<(Http2Sender, Arc<Streams>)> {
    let (stream, stuck) = Noting::new(stream);
    let spawner = Spawner::default();
    let mut builder = http2::Builder::new(spawner.clone());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_EVERY)
        // Until upstream has said how many.
        .initial_max_send_streams(1)
        .max_header_list_size(HTTP2_HEAD_BYTES_MAX);
    let (sender, requests) = builder.handshake(stream).await?;
    let streams = Streams::new(requests.current_max_send_streams());
    let wire = spawner.first().expect("hyper spawns what reads and writes in the handshake");
    let requests = Some(requests);
    tokio::spawn(Driven { requests, wire, stuck, streams: Arc::clone(&streams) });
    Ok((sender, streams))
}

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Keeps the first thing that hyper wants to have spawned, which reads and writes, and spawns the rest:
/// bodies, and who waits for an answer.
#[derive(Clone, Default)]
struct Spawner(Arc<Mutex<First>>);

#[derive(Default)]
enum First {
    #[default]
    Expected,
    Kept(Task),
    Taken,
}

impl Spawner {
    fn first(&self) -> Option<Task> {
        let mut first = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match mem::replace(&mut *first, First::Taken) {
            First::Kept(task) => Some(task),
            First::Expected | First::Taken => None,
        }
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Spawner {
    fn execute(&self, task: F) {
        let mut first = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*first {
            First::Expected => *first = First::Kept(Box::pin(task)),
            First::Kept(_) | First::Taken => drop(tokio::spawn(task)),
        }
    }
}

/// A connection that is polled. Both halves by one task, so that it is known what one has done when the
/// other comes; when it is dropped, nothing more is sent.
struct Driven<S: Read + Write + Send + Unpin + 'static> {
    /// What takes requests; none once it takes no more.
    requests: Option<http2::Connection<Noting<S>, Uploading, Spawner>>,
    /// What reads and writes.
    wire: Task,
    stuck: Arc<Stuck>,
    streams: Arc<Streams>,
}

impl<S: Read + Write + Send + Unpin + 'static> Future for Driven<S> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let look = this.streams.look(context.waker());
        let mut allowed = 0;
        let mut taking = Poll::Pending;
        if let Some(requests) = &mut this.requests {
            // All that were begun, however many.
            taking = pin!(unconstrained(&mut *requests)).poll(context);
        }
        let is_over = this.wire.as_mut().poll(context).is_ready();
        if let Some(requests) = &this.requests {
            allowed = requests.current_max_send_streams();
        }
        let goes_on = this.streams.see(look, allowed, this.stuck.is_stuck());
        if let Poll::Ready(ended) = taking {
            this.requests = None;
            this.streams.allow(0);
            if let Err(error) = ended {
                debug!(%error, "a connection to upstream ended with an error");
            }
        }
        if is_over || !goes_on { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl<S: Read + Write + Send + Unpin + 'static> Drop for Driven<S> {
    fn drop(&mut self) {
        self.streams.end();
    }
}
