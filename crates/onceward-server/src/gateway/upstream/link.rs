//! One connection to upstream in HTTP/1.1, polled by whoever waits for its answer. A task of its own
//! would have to be woken with each request, and to wake the one that asked with each answer.

use std::{
    fmt,
    future::poll_fn,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::{
    body::Incoming,
    client::conn::{TrySendError, http1},
    rt::{Read, Write},
};
use tokio::{runtime::Handle, sync::oneshot, time::timeout};
use tracing::debug;

use super::{
    Outgoing,
    pool::Pool,
    uploading::{Answered, Noting, REST_TIME_MAX, Stuck, Upload, Uploading},
};

type Connection = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>;

/// So often a connection is polled again at once because it woke itself. Then others may run.
const ROUNDS_MAX: u32 = 8;

/// A connection with at most one request under way. When it is dropped, a task of its own brings it to
/// its end.
pub(super) struct Link {
    sender: http1::SendRequest<Uploading>,
    /// Held by the body of a request too.
    upload: Arc<Upload>,
    stuck: Arc<Stuck>,
    /// None once it has ended.
    connection: Option<Connection>,
    wakes: Arc<Wakes>,
    /// Always the same one, whoever waits.
    waker: Waker,
}

impl Link {
    /// A new connection over a stream.
    pub(super) async fn over(
        stream: impl Read + Write + Send + Unpin + 'static,
    ) -> hyper::Result<Self> {
        let (stream, stuck) = Noting::new(stream);
        let (sender, connection) = http1::Builder::new().handshake(stream).await?;
        let wakes = Arc::<Wakes>::default();
        let waker = Waker::from(Arc::clone(&wakes));
        let connection: Connection = Box::pin(connection);
        let upload = Arc::default();
        Ok(Link { sender, upload, stuck, connection: Some(connection), wakes, waker })
    }

    /// Whether the next request can be sent, as far as is known without looking.
    pub(super) fn is_ready(&self) -> bool {
        self.connection.is_some() && self.sender.is_ready()
    }

    /// The same, after a look if anything has happened since the last one.
    pub(super) fn is_still_ready(&mut self) -> bool {
        if self.wakes.begin() {
            self.poll_connection();
        }
        self.is_ready()
    }

    /// Sends a request. One that was not begun comes back.
    pub(super) async fn send(
        &mut self,
        request: Request<Outgoing>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Uploading>>> {
        let request = Uploading::of(request, &self.upload);
        let mut answer = pin!(self.sender.try_send_request(request));
        poll_fn(|context| self.poll_until(context, |context| answer.as_mut().poll(context))).await
    }

    /// Whether the body of a request ended early, and whether because it was too slow.
    pub(super) fn broke_off(&self) -> Option<bool> {
        self.upload.broke_off()
    }

    /// Whether a request is still being read or written: then the connection needs somebody who polls
    /// it even while nobody reads the answer.
    fn is_uploading(&self) -> bool {
        Arc::strong_count(&self.upload) > 1 || self.stuck.is_stuck()
    }

    /// Lets a task of its own bring the connection to its end, however long it takes as long as somebody
    /// has what comes back.
    fn detach(mut self) -> Option<oneshot::Sender<()>> {
        let mut connection = self.connection.take()?;
        let (attended, unattended) = oneshot::channel();
        let stuck = Arc::clone(&self.stuck);
        tokio::spawn(async move {
            tokio::select! {
                ended = &mut connection => note(ended),
                _ = unattended => finish(connection, stuck).await,
            }
        });
        Some(attended)
    }

    /// Polls the connection until there is what is looked for.
    fn poll_until<T>(
        &mut self,
        context: &mut Context<'_>,
        mut look: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        for _ in 0..ROUNDS_MAX {
            self.wakes.begin();
            let mut found = look(&mut Context::from_waker(&self.waker));
            if found.is_pending() {
                self.poll_connection();
                found = look(&mut Context::from_waker(&self.waker));
            }
            if found.is_ready() || self.wakes.wait(context.waker()) {
                return found;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_connection(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        if let Poll::Ready(ended) = connection.as_mut().poll(&mut Context::from_waker(&self.waker))
        {
            self.connection = None;
            note(ended);
        }
    }
}

fn note(ended: hyper::Result<()>) {
    if let Err(error) = ended {
        debug!(%error, "a connection to upstream ended with an error");
    }
}

impl Drop for Link {
    /// It may have something left to do: the rest of a request whose answer came early, or to say that
    /// it ends.
    fn drop(&mut self) {
        if let (Some(connection), Ok(runtime)) = (self.connection.take(), Handle::try_current()) {
            runtime.spawn(finish(connection, Arc::clone(&self.stuck)));
        }
    }
}

/// The rest of a request that nobody waits for, as long as upstream takes some of it.
async fn finish(mut connection: Connection, stuck: Arc<Stuck>) {
    stuck.has_moved();
    loop {
        match timeout(REST_TIME_MAX, &mut connection).await {
            Ok(ended) => return note(ended),
            Err(_) if stuck.has_moved() => {}
            Err(_) => return debug!("upstream does not read the rest of a request"),
        }
    }
}

/// Wakes whoever waits for a connection. While nobody waits, it is noted: what somebody does with a
/// connection often wakes the connection itself, whose task is the one that runs.
#[derive(Default)]
struct Wakes {
    woken: AtomicBool,
    task: AtomicWaker,
}

impl Wakes {
    /// Nobody waits from here on. Tells whether anything has happened since the last time.
    fn begin(&self) -> bool {
        self.task.take();
        self.woken.swap(false, Ordering::SeqCst)
    }

    /// Waits, unless something has happened since it began.
    fn wait(&self, task: &Waker) -> bool {
        self.task.register(task);
        !self.woken.load(Ordering::SeqCst)
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        self.task.wake();
    }
}

/// The body of an answer, which brings its connection back to the pool when it has been read.
pub(crate) struct FromUpstream {
    body: Incoming,
    /// None if the connection has a task of its own, or is back already.
    link: Option<(Link, Arc<Pool>)>,
    /// Tells that task when this is dropped.
    _attended: Option<oneshot::Sender<()>>,
    /// On a connection that others use too; until the end.
    answered: Option<Answered>,
}

impl FromUpstream {
    pub(super) fn over(body: Incoming, link: Link, pool: &Arc<Pool>) -> Self {
        if link.is_uploading() {
            return FromUpstream { _attended: link.detach(), ..FromUpstream::from(body) };
        }
        let mut from =
            FromUpstream { link: Some((link, Arc::clone(pool))), ..FromUpstream::from(body) };
        if from.body.is_end_stream() {
            from.give_back();
        }
        from
    }

    pub(super) fn among_others(body: Incoming, upload: Arc<Upload>) -> Self {
        let answered = Some(Answered(upload)).filter(|_| !body.is_end_stream());
        FromUpstream { answered, ..FromUpstream::from(body) }
    }

    fn give_back(&mut self) {
        if let Some((link, pool)) = self.link.take() {
            pool.keep(link);
        }
        self.answered = None;
    }
}

impl fmt::Debug for FromUpstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FromUpstream").field(&self.body).finish()
    }
}

/// Of a connection that has a task of its own.
impl From<Incoming> for FromUpstream {
    fn from(body: Incoming) -> Self {
        FromUpstream { body, link: None, _attended: None, answered: None }
    }
}

impl Body for FromUpstream {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        let body = &mut this.body;
        let mut look = |context: &mut Context<'_>| Pin::new(&mut *body).poll_frame(context);
        let polled = match &mut this.link {
            Some((link, _)) => link.poll_until(context, look),
            None => look(context),
        };
        match &polled {
            Poll::Pending => {}
            // Whatever is wrong with it, its end is not waited for.
            Poll::Ready(Some(Err(_))) => (this.link, this.answered) = (None, None),
            Poll::Ready(None) => this.give_back(),
            Poll::Ready(Some(Ok(_))) if this.body.is_end_stream() => this.give_back(),
            Poll::Ready(Some(Ok(_))) => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
