//! Bodies that have to keep moving.

use std::{
    error::Error,
    fmt,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep_until};

/// A body that fails when it is too slow.
#[derive(Debug)]
pub(crate) struct Paced<B = Incoming> {
    body: B,
    limit: Limit,
    waiting: Option<Pin<Box<Sleep>>>,
}

/// How slow a body may be.
#[derive(Clone, Copy, Debug)]
enum Limit {
    None,
    /// No more than this may pass between two parts.
    Stall(Duration),
    /// All of it has to be there by then.
    Until(Instant),
}

/// Why a body ended early.
#[derive(Debug)]
pub(crate) struct TooSlow;

impl fmt::Display for TooSlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the body did not come in time")
    }
}

impl Error for TooSlow {}

impl<B> Paced<B> {
    /// Without limits of its own.
    pub(crate) fn free(body: B) -> Self {
        Paced { body, limit: Limit::None, waiting: None }
    }

    pub(crate) fn no_stall(body: B, at_most: Duration) -> Self {
        Paced { limit: Limit::Stall(at_most), ..Self::free(body) }
    }

    /// From now on, no more than this may pass between two parts.
    pub(crate) fn no_more_stall(self, at_most: Duration) -> Self {
        Paced { limit: Limit::Stall(at_most), waiting: None, ..self }
    }

    pub(crate) fn until(body: B, deadline: Option<Instant>) -> Self {
        Paced { limit: deadline.map_or(Limit::None, Limit::Until), ..Self::free(body) }
    }

    fn fails_at(&self) -> Option<Instant> {
        match self.limit {
            Limit::None => None,
            Limit::Stall(at_most) => Some(Instant::now() + at_most),
            Limit::Until(deadline) => Some(deadline),
        }
    }
}

type Reason = Box<dyn Error + Send + Sync>;

impl<B> http_body::Body for Paced<B>
where
    B: http_body::Body<Data = Bytes, Error: Into<Reason>> + Unpin,
{
    type Data = Bytes;
    type Error = Reason;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Reason>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            this.waiting = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        if this.waiting.is_none() {
            this.waiting = this.fails_at().map(|limit| Box::pin(sleep_until(limit)));
        }
        let late =
            this.waiting.as_mut().is_some_and(|limit| limit.as_mut().poll(context).is_ready());
        match late {
            true => Poll::Ready(Some(Err(TooSlow.into()))),
            false => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Whether a body that was too slow is what an error comes from.
pub(crate) fn is_too_slow(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.is::<TooSlow>() {
            return true;
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, channel::Channel};
    use tokio::time::sleep;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_body_may_take_long_as_long_as_it_moves() {
        let (mut sender, body) = Channel::<Bytes>::new(1);
        let sending = async move {
            for _ in 0..5 {
                sleep(LIMIT - Duration::from_secs(1)).await;
                sender.send_data("x".into()).await.expect("read");
            }
        };
        let ((), read) = tokio::join!(sending, Paced::no_stall(body, LIMIT).collect());
        assert_eq!(read.expect("all of it").to_bytes(), "xxxxx");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stands_still_fails() {
        let (_sender, body) = Channel::<Bytes>::new(1);
        let begun = Instant::now();
        let error = Paced::no_stall(body, LIMIT).collect().await.expect_err("too slow");
        assert!(is_too_slow(&*error));
        assert_eq!(begun.elapsed(), LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_with_a_deadline_fails_though_it_moves() {
        let (mut sender, body) = Channel::<Bytes>::new(1);
        tokio::spawn(async move {
            while sender.send_data("x".into()).await.is_ok() {
                sleep(Duration::from_secs(1)).await;
            }
        });
        let begun = Instant::now();
        let body = Paced::until(body, Some(begun + LIMIT));
        assert!(is_too_slow(&*body.collect().await.expect_err("too slow")));
        assert_eq!(begun.elapsed(), LIMIT);
    }
}
