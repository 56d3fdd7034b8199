//! A request on its way. While its body is read, or its bytes are not all written, somebody has to poll
//! its connection; and on one that others use too it counts as under way.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http::Request;
use http_body::{Body, Frame, SizeHint};
use hyper::rt::{Read, ReadBufCursor, Write};

use super::Outgoing;

/// A body, and what is held until hyper has done with it.
pub(super) struct Uploading<T> {
    body: Outgoing,
    _held: Arc<T>,
}

impl<T> Uploading<T> {
    pub(super) fn of(request: Request<Outgoing>, held: &Arc<T>) -> Request<Self> {
        request.map(|body| Uploading { body, _held: Arc::clone(held) })
    }

    /// As it was, if it was not begun.
    pub(super) fn unsent(request: Request<Self>) -> Request<Outgoing> {
        request.map(|uploading| uploading.body)
    }
}

impl<T> Body for Uploading<T> {
    type Data = Bytes;
    type Error = <Outgoing as Body>::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Whether hyper has bytes that the other end does not take yet.
#[derive(Debug, Default)]
pub(super) struct Stuck(AtomicBool);

impl Stuck {
    pub(super) fn is_stuck(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A stream that notes whether it is stuck.
pub(super) struct Noting<S> {
    stream: S,
    stuck: Arc<Stuck>,
}

impl<S> Noting<S> {
    pub(super) fn new(stream: S) -> (Self, Arc<Stuck>) {
        let stuck = Arc::<Stuck>::default();
        (Noting { stream, stuck: Arc::clone(&stuck) }, stuck)
    }

    fn note(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.stuck.0.store(written.is_pending(), Ordering::Relaxed);
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
        this.note(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(context, parts);
        this.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
