//! Connections to upstream that can be used again, for a short time.

use std::sync::{Arc, Mutex, MutexGuard};

use hyper::client::conn::{http1, http2};
use tokio::time::Instant;

use super::{IDLE_MAX, Outgoing};

/// More idle connections than this are not kept.
const IDLE_CONNECTIONS_MAX: usize = 256;

/// Requests that wait for their answer on one connection; the next one gets another. Most servers
/// allow as many, and hyper waits where one allows less.
const STREAMS_MAX: usize = 100;

/// A way to send one request.
pub(super) enum Sender {
    Http1(http1::SendRequest<Outgoing>),
    /// With a token for each request that is under way.
    Http2(http2::SendRequest<Outgoing>, Arc<()>),
}

struct Idle {
    sender: http1::SendRequest<Outgoing>,
    since: Instant,
}

impl Idle {
    fn is_usable(&self) -> bool {
        !self.sender.is_closed() && self.since.elapsed() < IDLE_MAX
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
    /// A connection that was open when it was last looked at.
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
        // The last one that was used is the least likely to be closed. Where the answer to its last
        // request is still being read, it is busy.
        let ready =
            kept.idle.iter().rposition(|idle| idle.sender.is_ready() && idle.is_usable())?;
        Some(Sender::Http1(kept.idle.remove(ready).sender))
    }

    /// Keeps a connection whose answer has begun. It can be used again once that has been read.
    pub(super) fn keep(&self, sender: http1::SendRequest<Outgoing>) {
        let mut kept = self.kept();
        if kept.idle.len() < IDLE_CONNECTIONS_MAX {
            kept.idle.push(Idle { sender, since: Instant::now() });
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
        self.idle.retain(Idle::is_usable);
        self.shared.retain(Shared::is_usable);
    }
}
