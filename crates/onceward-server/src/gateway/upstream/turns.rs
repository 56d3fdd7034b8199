//! Who makes the next connection that can be shared.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Semaphore, SemaphorePermit};

/// One for all, at first: whoever comes while a connection is made will probably share it. Where one is
/// not enough, the next ones are made by two at once, then by four, and so on.
pub(super) struct Turns {
    free: Semaphore,
    count: AtomicUsize,
}

impl Default for Turns {
    fn default() -> Self {
        Turns { free: Semaphore::new(1), count: 1.into() }
    }
}

impl Turns {
    /// The turn to make one, and whether somebody else had it before.
    pub(super) async fn take(&self) -> (Turn<'_>, bool) {
        if let Ok(permit) = self.free.try_acquire() {
            return (Turn { permit, turns: self }, false);
        }
        let permit = self.free.acquire().await.expect("never closed");
        (Turn { permit, turns: self }, true)
    }
}

pub(super) struct Turn<'a> {
    permit: SemaphorePermit<'a>,
    turns: &'a Turns,
}

impl Turn<'_> {
    /// After a wait there was nothing to share, and one more was made.
    pub(super) fn too_few(&self) {
        self.turns.count.fetch_add(1, Ordering::Relaxed);
        self.turns.free.add_permits(1);
    }

    /// After a wait there was.
    pub(super) fn enough(self) {
        let one_less = |count: usize| (count > 1).then(|| count - 1);
        let fewer = self.turns.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        if fewer.is_ok() {
            self.permit.forget();
        }
    }
}
