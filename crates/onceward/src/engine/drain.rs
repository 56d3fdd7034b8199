//! Stopping: no new work, a time for what runs, then a clear word about the rest.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

/// Takes work.
const OPEN: u8 = 0;
/// Takes none, and lets what runs come to its end.
const DRAINING: u8 = 1;
/// What still runs is to be marked unknown.
const OVER: u8 = 2;

#[derive(Clone, Debug, Default)]
pub(super) struct Drain(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    phase: AtomicU8,
    running: AtomicUsize,
    /// Wakes those who wait for either to change, in the order in which they came.
    changed: Notify,
}

/// One request that runs.
pub(super) struct Running<'d>(&'d Inner);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let was_last = self.0.running.fetch_sub(1, Ordering::SeqCst) == 1;
        // Nobody waits for the last one before new ones are refused.
        if was_last && self.0.phase.load(Ordering::SeqCst) != OPEN {
            self.0.changed.notify_waiters();
        }
    }
}

impl Inner {
    /// Comes back when something is so. Listens before it looks, so that no change is missed.
    async fn wait_for(&self, is_so: impl Fn(&Inner) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if is_so(self) {
                return;
            }
            changed.await;
        }
    }

    fn is_idle(&self) -> bool {
        self.running.load(Ordering::SeqCst) == 0
    }

    fn is_over(&self) -> bool {
        self.phase.load(Ordering::SeqCst) == OVER
    }

    fn enter(&self, phase: u8) {
        self.phase.fetch_max(phase, Ordering::SeqCst);
        self.changed.notify_waiters();
    }
}

impl Drain {
    pub(super) fn enter(&self) -> Running<'_> {
        self.0.running.fetch_add(1, Ordering::SeqCst);
        Running(&self.0)
    }

    pub(super) fn is_open(&self) -> bool {
        self.0.phase.load(Ordering::SeqCst) == OPEN
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.is_over()
    }

    /// Comes back when no new work is taken any more.
    #[cfg(any(feature = "worker", feature = "testing"))]
    pub(super) async fn closed(&self) {
        self.0.wait_for(|inner| inner.phase.load(Ordering::SeqCst) != OPEN).await;
    }

    /// Comes back when what runs has to end now.
    pub(super) async fn over(&self) {
        self.0.wait_for(Inner::is_over).await;
    }

    /// Sleeps, but not past the end.
    pub(super) async fn pause(&self, duration: Duration) {
        tokio::select! {
            biased;
            () = self.over() => {}
            () = sleep(duration) => {}
        }
    }

    pub(super) async fn close(&self, at_most: Duration, last_words: Duration) {
        self.0.enter(DRAINING);
        let _ = timeout(at_most, self.0.wait_for(Inner::is_idle)).await;
        self.0.enter(OVER);
        let _ = timeout(last_words, self.0.wait_for(Inner::is_idle)).await;
    }
}
