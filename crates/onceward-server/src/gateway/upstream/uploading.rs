//! A request on its way. While its body is read, or its bytes are not all written, somebody has to poll
//! its connection; and on one that others use too it counts as under way.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::Request;
use http_body::{Body, Frame, SizeHint};
use hyper::rt::{Read, ReadBufCursor, Write};
use onceward::tower::holding;
use tokio::{runtime::Handle, time::sleep};
use tracing::debug;

use super::{IDLE_MAX, Outgoing, streams::Place};
use crate::gateway::paced::is_too_slow;

/// For as long as this upstream may take nothing of a request that nobody waits for.
pub(super) const REST_TIME_MAX: Duration = Duration::from_secs(60);

/// What becomes of a request. Held by whatever has a part of it.
#[derive(Default)]
pub(super) struct Upload {
    /// None on a connection of its own.
    place: Option<Place>,
    has_moved: AtomicBool,
    broke_off: AtomicBool,
    was_too_slow: AtomicBool,
}

impl Upload {
    pub(super) fn among_others(place: Place) -> Arc<Self> {
        Arc::new(Upload { place: Some(place), ..Upload::default() })
    }

    /// Whether its body ended early, and whether because it was too slow.
    pub(super) fn broke_off(&self) -> Option<bool> {
        let broke_off = self.broke_off.load(Ordering::Relaxed);
        broke_off.then(|| self.was_too_slow.load(Ordering::Relaxed))
    }

    pub(super) fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }
}

/// A body, and what is told of it until hyper has done with it.
pub(super) struct Uploading {
    body: Outgoing,
    upload: Arc<Upload>,
}

impl Uploading {
    pub(super) fn of(request: Request<Outgoing>, upload: &Arc<Upload>) -> Request<Self> {
        request.map(|body| Uploading { body, upload: Arc::clone(upload) })
    }

    /// As it was, if it was not begun.
    pub(super) fn unsent(request: Request<Self>) -> Request<Outgoing> {
        request.map(|uploading| uploading.body)
    }
}

impl Body for Uploading {
    type Data = Bytes;
    type Error = <Outgoing as Body>::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Uploading { body, upload } = self.get_mut();
        let polled = Pin::new(body).poll_frame(context);
        match polled {
            // h2 takes all of a part as soon as upstream takes a byte of it, and a stream ends when
            // its last byte is written.
            Poll::Ready(Some(Ok(frame))) if upload.place.is_some() => {
                upload.has_moved.store(true, Ordering::Relaxed);
                let upload = Arc::clone(upload);
                Poll::Ready(Some(Ok(frame.map_data(|bytes| holding(bytes, upload)))))
            }
            Poll::Ready(Some(Err(error))) => {
                upload.was_too_slow.store(is_too_slow(&*error), Ordering::Relaxed);
                upload.broke_off.store(true, Ordering::Relaxed);
                Poll::Ready(Some(Err(error)))
            }
            polled => polled,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A request among others whose answer has begun. When this is dropped, nobody waits for the rest of it.
pub(super) struct Answered(pub(super) Arc<Upload>);

impl Drop for Answered {
    fn drop(&mut self) {
        if Arc::strong_count(&self.0) > 1
            && let Ok(runtime) = Handle::try_current()
        {
            self.0.has_moved.store(false, Ordering::Relaxed);
            runtime.spawn(attend(Arc::downgrade(&self.0)));
        }
    }
}

/// Gives the connection of a request up once upstream takes nothing more of it. The request would have
/// its place there for ever, and others would wait for it.
async fn attend(upload: Weak<Upload>) {
    loop {
        sleep(REST_TIME_MAX).await;
        let Some(upload) = upload.upgrade() else { return };
        let Some(place) = &upload.place else { return };
        if !upload.has_moved.swap(false, Ordering::Relaxed) {
            debug!("upstream does not take the rest of a request");
            place.leave_lying();
            break;
        }
    }
    // The answers of others may take as long as they like.
    while let Some(upload) = upload.upgrade() {
        if upload.place.as_ref().is_none_or(Place::ends_what_lies) {
            return;
        }
        drop(upload);
        sleep(IDLE_MAX).await;
    }
}

/// What the other end of a connection takes.
#[derive(Debug, Default)]
pub(super) struct Stuck {
    is_stuck: AtomicBool,
    has_moved: AtomicBool,
}

impl Stuck {
    /// Whether there are bytes that the other end does not take yet.
    pub(super) fn is_stuck(&self) -> bool {
        self.is_stuck.load(Ordering::Relaxed)
    }

    /// Whether it took any since this was asked last.
    pub(super) fn has_moved(&self) -> bool {
        self.has_moved.swap(false, Ordering::Relaxed)
    }
}

/// A stream that notes what it is told to write.
pub(super) struct Noting<S> {
    stream: S,
    stuck: Arc<Stuck>,
}

impl<S> Noting<S> {
    pub(super) fn new(stream: S) -> (Self, Arc<Stuck>) {
        let stuck = Arc::<Stuck>::default();
        (Noting { stream, stuck: Arc::clone(&stuck) }, stuck)
    }

    /// TLS takes more than it can send: only a flush tells that all of it was sent.
    fn note_write(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &written {
            Poll::Ready(_) => self.stuck.has_moved.store(true, Ordering::Relaxed),
            Poll::Pending => self.stuck.is_stuck.store(true, Ordering::Relaxed),
        }
        written
    }
}

impl<S: Read + Unpin> Read for Noting<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}

impl<S: Write + Unpin> Write for Noting<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.note_write(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(context, parts);
        this.note_write(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(context);
        this.stuck.is_stuck.store(flushed.is_pending(), Ordering::Relaxed);
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
