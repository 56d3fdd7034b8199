//! Connections to upstream that can be used again, for a short time.

use std::sync::{Arc, Mutex, MutexGuard};

use hyper::client::conn::{http1, http2};
use tokio::time::Instant;

use super::{
    IDLE_MAX,
    link::Link,
    streams::{Place, Streams},
    uploading::Uploading,
};

/// More idle connections than this are not kept.
const IDLE_CONNECTIONS_MAX: usize = 256;

/// More than these are not shared: each is for one request then.
const SHARED_CONNECTIONS_MAX: usize = 256;

/// A way to send one request.
pub(super) enum Sender {
    Http1(Link),
    /// On a connection that has a task of its own, and is not used again.
    Http1Alone(http1::SendRequest<Uploading>),
    Http2(Http2Sender, Place),
}

pub(super) type Http2Sender = http2::SendRequest<Uploading>;

struct Idle {
    link: Link,
    since: Instant,
}

impl Idle {
    fn is_usable(&self) -> bool {
        self.since.elapsed() < IDLE_MAX && self.link.is_ready()
    }
}

struct Shared {
    sender: Http2Sender,
    streams: Arc<Streams>,
    used: Instant,
}

impl Shared {
    fn is_usable(&self) -> bool {
        let is_open = !self.sender.is_closed() && !self.streams.takes_no_more();
        is_open && (self.streams.is_busy() || self.used.elapsed() < IDLE_MAX)
    }

    fn place(&mut self) -> Option<Sender> {
        let place = Some(&self.streams).filter(|_| self.is_usable())?.place()?;
        self.used = Instant::now();
        Some(Sender::Http2(self.sender.clone(), place))
    }
}

#[derive(Default)]
struct Kept {
    idle: Vec<Idle>,
    shared: Vec<Shared>,
}

#[derive(Default)]
pub(super) struct Pool(Mutex<Kept>);

impl Pool {
    /// A connection that was open when it was last used. Whether it still is, is found before anything is
    /// written.
    pub(super) fn take(&self) -> Option<Sender> {
        let mut kept = self.kept();
        if let Some(shared) = kept.shared.iter_mut().find_map(Shared::place) {
            return Some(shared);
        }
        // The last one that was used is the least likely to be closed.
        while let Some(idle) = kept.idle.pop() {
            if idle.is_usable() {
                return Some(Sender::Http1(idle.link));
            }
        }
        None
    }

    /// Keeps a connection whose answer has been read, unless it has something left to do.
    pub(super) fn keep(&self, link: Link) {
        if !link.is_ready() {
            return;
        }
        let mut kept = self.kept();
        if kept.idle.len() < IDLE_CONNECTIONS_MAX {
            kept.idle.push(Idle { link, since: Instant::now() });
        }
    }

    /// Lets others use a connection too.
    pub(super) fn share(&self, sender: &Http2Sender, streams: Arc<Streams>) {
        let mut kept = self.kept();
        if kept.shared.len() < SHARED_CONNECTIONS_MAX {
            kept.shared.push(Shared { sender: sender.clone(), streams, used: Instant::now() });
        }
    }

    /// Closes what has not been used for too long.
    pub(super) fn prune(&self) {
        self.kept().prune();
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // Whoever panicked left at most a connection less.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Kept {
    fn prune(&mut self) {
        self.idle.retain_mut(|idle| idle.link.is_still_ready() && idle.is_usable());
        self.shared.retain(Shared::is_usable);
    }
}
