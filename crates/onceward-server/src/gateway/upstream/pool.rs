//! Connections to upstream that can be used again, for a short time.

use std::sync::{Arc, Mutex, MutexGuard};

use hyper::client::conn::{http1, http2};
use tokio::time::Instant;

use super::{IDLE_MAX, Outgoing, link::Link};

/// More idle connections than this are not kept.
const IDLE_CONNECTIONS_MAX: usize = 256;

/// Requests that wait for their answer on one connection; the next one gets another. Most servers
/// allow as many, and hyper waits where one allows less.
const STREAMS_MAX: usize = 100;

/// A way to send one request.
pub(super) enum Sender {
    Http1(Link),
    /// On a connection that has a task of its own, and is not used again.
    Http1Alone(http1::SendRequest<Outgoing>),
    /// With a token for each request that is under way.
    Http2(http2::SendRequest<Outgoing>, Arc<()>),
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
    sender: http2::SendRequest<Outgoing>,
    under_way: Arc<()>,
    used: Instant,
}

impl Shared {
    fn is_usable(&self) -> bool {
        let busy = Arc::strong_count(&self.under_way) > 1;
        !self.sender.is_closed() && (busy || self.used.elapsed() < IDLE_MAX)
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
        // One token is ours.
        let free = |shared: &&mut Shared| {
            Arc::strong_count(&shared.under_way) <= STREAMS_MAX && shared.is_usable()
        };
        if let Some(shared) = kept.shared.iter_mut().find(free) {
            shared.used = Instant::now();
            return Some(Sender::Http2(shared.sender.clone(), Arc::clone(&shared.under_way)));
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
    pub(super) fn share(&self, sender: &http2::SendRequest<Outgoing>, under_way: &Arc<()>) {
        let (sender, under_way) = (sender.clone(), Arc::clone(under_way));
        self.kept().shared.push(Shared { sender, under_way, used: Instant::now() });
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
