//! The body type of requests and responses that pass the layer.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// A body that passes the layer: streamed untouched, or whole in memory.
    #[derive(Debug)]
    pub struct Body<B> {
        begun: Option<Bytes>,
        #[pin]
        rest: Option<B>,
        trailers: Option<HeaderMap>,
    }
}

impl<B> Body<B> {
    /// A body that is in memory.
    pub fn full(bytes: Bytes) -> Self {
        Body { begun: Some(bytes).filter(|bytes| !bytes.is_empty()), rest: None, trailers: None }
    }

    /// A body that is passed on as it comes.
    pub fn streaming(body: B) -> Self {
        Body { begun: None, rest: Some(body), trailers: None }
    }

    /// What was read already, then what is left.
    pub fn begun(begun: Bytes, rest: B) -> Self {
        Body { begun: Some(begun), rest: Some(rest), trailers: None }
    }

    /// All of it, and what comes after it.
    pub(crate) fn with_trailers(bytes: Bytes, trailers: HeaderMap) -> Self {
        Body { trailers: Some(trailers), ..Body::full(bytes) }
    }
}

impl<B: http_body::Body<Data = Bytes>> http_body::Body for Body<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        if let Some(begun) = this.begun.take() {
            return Poll::Ready(Some(Ok(Frame::data(begun))));
        }
        match this.rest.as_pin_mut() {
            Some(rest) => rest.poll_frame(context),
            None => Poll::Ready(this.trailers.take().map(|trailers| Ok(Frame::trailers(trailers)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.begun.is_none()
            && self.trailers.is_none()
            && self.rest.as_ref().is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let begun = self.begun.as_ref().map_or(0, |bytes| bytes.len() as u64);
        let rest = self.rest.as_ref().map_or_else(|| SizeHint::with_exact(0), B::size_hint);
        let mut hint = SizeHint::new();
        hint.set_lower(begun + rest.lower());
        if let Some(upper) = rest.upper() {
            hint.set_upper(begun + upper);
        }
        hint
    }
}
