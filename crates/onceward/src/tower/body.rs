//! The body type of requests and responses that pass the layer.

use std::{
    fmt,
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
        // In a box, since few have any and all are moved around.
        trailers: Option<Box<HeaderMap>>,
        watcher: Option<Watcher>,
    }
}

/// Somebody who sees a body pass, and cannot change it.
pub trait Watch: Send + 'static {
    /// A part of the body passes.
    fn part(&mut self, part: &Bytes);

    /// All of it has passed. Not called for a body that breaks off.
    fn end(self: Box<Self>);
}

/// The same bytes, and something that is kept for as long as somebody has them.
pub fn holding(bytes: Bytes, held: impl Send + 'static) -> Bytes {
    Bytes::from_owner(Holding { bytes, _held: held })
}

/// Bytes, and what is given back when they are gone.
struct Holding<T> {
    bytes: Bytes,
    _held: T,
}

impl<T> AsRef<[u8]> for Holding<T> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

struct Watcher(Box<dyn Watch>);

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watcher")
    }
}

impl<B> Body<B> {
    /// A body that is in memory.
    pub fn full(bytes: Bytes) -> Self {
        let begun = Some(bytes).filter(|bytes| !bytes.is_empty());
        Body { begun, rest: None, trailers: None, watcher: None }
    }

    /// A body that is passed on as it comes.
    pub fn streaming(body: B) -> Self {
        Body { rest: Some(body), ..Body::full(Bytes::new()) }
    }

    /// What was read already, then what is left.
    pub fn begun(begun: Bytes, rest: B) -> Self {
        Body { begun: Some(begun), ..Body::streaming(rest) }
    }

    /// The same, and something that is kept for as long as somebody has the bytes that are in
    /// memory: a server may have taken them all and sent none.
    #[must_use]
    pub fn holding(mut self, held: impl Send + 'static) -> Self {
        let begun = self.begun.take();
        self.begun = begun.map(|bytes| holding(bytes, held));
        self
    }

    /// All of it, and what comes after it.
    pub(crate) fn with_trailers(bytes: Bytes, trailers: HeaderMap) -> Self {
        Body { trailers: Some(Box::new(trailers)), ..Body::full(bytes) }
    }
}

impl<B: http_body::Body> Body<B> {
    /// A body that is passed on as it comes, while somebody looks on.
    pub fn watched(body: B, watch: impl Watch) -> Self {
        // Nobody asks for a part of a body that has none.
        if body.is_end_stream() {
            Box::new(watch).end();
            return Self::streaming(body);
        }
        Body { watcher: Some(Watcher(Box::new(watch))), ..Self::streaming(body) }
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
            Some(mut rest) => {
                let polled = rest.as_mut().poll_frame(context);
                if let Some(watcher) = this.watcher {
                    let over = match &polled {
                        Poll::Ready(Some(Ok(frame))) => {
                            frame.data_ref().inspect(|part| watcher.0.part(part));
                            // A body of a known length is not asked again after its last part.
                            rest.is_end_stream()
                        }
                        Poll::Ready(None) => true,
                        Poll::Ready(Some(Err(_))) | Poll::Pending => false,
                    };
                    if over && let Some(watcher) = this.watcher.take() {
                        watcher.0.end();
                    }
                }
                polled
            }
            None => {
                Poll::Ready(this.trailers.take().map(|trailers| Ok(Frame::trailers(*trailers))))
            }
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http_body::Body as _;
    use http_body_util::{BodyExt as _, Full, StreamBody};

    use super::*;

    #[derive(Clone, Default)]
    struct Notes(Arc<Mutex<String>>);

    impl Notes {
        fn add(&self, text: &str) {
            self.0.lock().expect("lock").push_str(text);
        }

        fn read(&self) -> String {
            self.0.lock().expect("lock").clone()
        }
    }

    impl Watch for Notes {
        fn part(&mut self, part: &Bytes) {
            self.add(std::str::from_utf8(part).expect("text"));
        }

        fn end(self: Box<Self>) {
            self.add(".");
        }
    }

    fn streamed(
        parts: Vec<Result<&'static str, &'static str>>,
    ) -> impl http_body::Body<Data = Bytes, Error = &'static str> + Unpin {
        let frame = |part: Result<&'static str, _>| part.map(|part| Frame::data(Bytes::from(part)));
        StreamBody::new(futures_util::stream::iter(parts.into_iter().map(frame)))
    }

    #[tokio::test]
    async fn a_watched_body_passes_as_it_is_and_its_end_is_seen_once() {
        let notes = Notes::default();
        let passed = Body::watched(streamed(vec![Ok("a"), Ok("b")]), notes.clone());
        assert_eq!(passed.collect().await.expect("whole").to_bytes(), "ab");
        assert_eq!(notes.read(), "ab.");
    }

    #[tokio::test]
    async fn what_a_body_holds_is_kept_until_its_bytes_are_gone() {
        let held = Arc::new(());
        let body = Body::<Full<Bytes>>::full("abc".into()).holding(Arc::clone(&held));
        let bytes = body.collect().await.expect("whole").to_bytes();
        assert_eq!((&*bytes, Arc::strong_count(&held)), (&b"abc"[..], 2));
        drop(bytes);
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_has_no_end() {
        let notes = Notes::default();
        let passed = Body::watched(streamed(vec![Ok("a"), Err("cut off")]), notes.clone());
        assert!(passed.collect().await.is_err());
        assert_eq!(notes.read(), "a");
    }

    #[tokio::test]
    async fn a_body_of_a_known_length_is_seen_to_its_end_though_nobody_asks_again() {
        let notes = Notes::default();
        let mut passed = Body::watched(Full::new(Bytes::from("abc")), notes.clone());
        assert_eq!(passed.size_hint().exact(), Some(3));
        let frame = passed.frame().await.expect("a frame").expect("data");
        assert_eq!(frame.into_data().expect("data"), "abc");
        assert!(passed.is_end_stream());
        assert_eq!(notes.read(), "abc.");
        let empty = Notes::default();
        let passed = Body::watched(Full::new(Bytes::new()), empty.clone());
        assert!(passed.is_end_stream());
        assert_eq!(empty.read(), ".");
    }
}
