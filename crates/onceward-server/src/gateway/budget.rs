//! How many bytes of bodies are in memory, all requests together.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What a request takes besides its body: its head, its task, its record.
const BESIDES: u64 = 4 << 10;

/// Room for bodies.
pub(super) struct Budget {
    total: u32,
    room: Arc<Semaphore>,
}

/// Room that is taken until it is dropped.
pub(super) type Room = OwnedSemaphorePermit;

impl Budget {
    pub(super) fn new(bytes: usize) -> Self {
        let total = u32::try_from(bytes).unwrap_or(u32::MAX);
        // More than any machine has is no limit.
        let room = Semaphore::new(usize::try_from(total).unwrap_or(Semaphore::MAX_PERMITS));
        Budget { total, room: Arc::new(room) }
    }

    /// Room for a body: what it says it has, or the most that it may have.
    pub(super) fn take(&self, body: &impl http_body::Body, cap: usize) -> Option<Room> {
        let cap = u64::try_from(cap).unwrap_or(u64::MAX);
        let bytes = body.size_hint().exact().unwrap_or(cap).min(cap).saturating_add(BESIDES);
        // A single body always fits, or its route could never be used.
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.total);
        Arc::clone(&self.room).try_acquire_many_owned(bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::{Full, channel::Channel};

    use super::*;

    const EACH: usize = 4 << 10;

    fn of(length: usize) -> Full<Bytes> {
        Full::new(vec![0; length].into())
    }

    #[test]
    fn bodies_take_the_room_that_is_there_and_give_it_back() {
        let budget = Budget::new(10 + 2 * EACH);
        let first = budget.take(&of(6), 100).expect("room");
        assert!(budget.take(&of(5), 100).is_none());
        let second = budget.take(&of(4), 100).expect("room");
        assert!(budget.take(&of(0), 100).is_none(), "without a body it needs room too");
        drop((first, second));
        assert!(budget.take(&of(10), 100).is_some());
    }

    #[test]
    fn a_body_of_unknown_length_takes_its_cap_and_none_takes_more_than_all() {
        let budget = Budget::new(10 + 2 * EACH);
        let (_sender, unknown) = Channel::<Bytes>::new(1);
        let held = budget.take(&unknown, 8).expect("room");
        assert!(budget.take(&of(3), 100).is_none());
        drop(held);
        assert!(budget.take(&of(100 * EACH), 100 * EACH).is_some());
    }
}
