//! Connections to upstream that can be used again, for a short time.

use std::sync::{Arc, Mutex, MutexGuard};

use hyper::client::conn::{http1, http2};
use tokio::time::Instant;

use super::{IDLE_MAX, Outgoing, link::Link, uploading::Uploading};

/// More idle connections than this are not kept.
const IDLE_CONNECTIONS_MAX: usize = 256;

/// Requests that are under way on one connection; the next one gets another.
const STREAMS_MAX: usize = 100;

/// A way to send one request.
pub(super) enum Sender {
    Http1(Link),
    /// On a connection that has a task of its own, and is not used again.
    Http1Alone(http1::SendRequest<Outgoing>),
    Http2(Http2Sender, Arc<Streams>),
}

pub(super) type Http2Sender = http2::SendRequest<Uploading<Streams>>;

/// The streams of one connection: as many as are held beside the pool's own are under way, from before
/// a request is begun until both it and its answer have ended.
///
/// hyper takes more than upstream allows, and lets them wait without a word. Such a request is taken
/// for sent, and may be sent long after everybody has given it up.
pub(super) struct Streams {
    /// How many upstream allows.
    allowed: Box<dyn Fn() -> usize + Send + Sync>,
}

impl Streams {
    pub(super) fn new(allowed: impl Fn() -> usize + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Streams { allowed: Box::new(allowed) })
    }
}

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
        let busy = self.under_way() > 0;
        !self.sender.is_closed() && (busy || self.used.elapsed() < IDLE_MAX)
    }

    fn has_room(&self) -> bool {
        self.under_way() < STREAMS_MAX.min((self.streams.allowed)())
    }

    /// An answer and the body of its request may both hold one: too many are counted then, never too
    /// few.
    fn under_way(&self) -> usize {
        Arc::strong_count(&self.streams) - 1
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
        let free = |shared: &&mut Shared| shared.is_usable() && shared.has_room();
        if let Some(shared) = kept.shared.iter_mut().find(free) {
            shared.used = Instant::now();
            return Some(Sender::Http2(shared.sender.clone(), Arc::clone(&shared.streams)));
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
    pub(super) fn share(&self, sender: &Http2Sender, streams: &Arc<Streams>) {
        let (sender, streams) = (sender.clone(), Arc::clone(streams));
        self.kept().shared.push(Shared { sender, streams, used: Instant::now() });
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
