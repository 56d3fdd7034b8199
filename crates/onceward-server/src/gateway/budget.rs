//! How many bytes of bodies are in memory, all requests together.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

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
        let bytes = self.bytes(body, cap, BESIDES);
        Arc::clone(&self.room).try_acquire_many_owned(bytes).ok()
    }

    /// The same for a body that has to be taken: who waits comes before all that is new. Nobody
    /// waits who has room already, or all would wait for each other.
    pub(super) fn wait<B: http_body::Body>(
        &self,
        body: &B,
        cap: usize,
        at_most: Duration,
    ) -> impl Future<Output = Option<Room>> + use<B> {
        let (bytes, room) = (self.bytes(body, cap, 0), Arc::clone(&self.room));
        async move {
            if let Ok(room) = Arc::clone(&room).try_acquire_many_owned(bytes) {
                return Some(room);
            }
            timeout(at_most, room.acquire_many_owned(bytes)).await.ok()?.ok()
        }
    }

    fn bytes(&self, body: &impl http_body::Body, cap: usize, besides: u64) -> u32 {
        let cap = u64::try_from(cap).unwrap_or(u64::MAX);
        let bytes = body.size_hint().exact().unwrap_or(cap).min(cap).saturating_add(besides);
        // A single body always fits, or its route could never be used.
        u32::try_from(bytes).unwrap_or(u32::MAX).min(self.total)
    }
}

/// Gives back what a body did not need after all.
pub(super) fn shrink(room: &mut Room, bytes: usize) {
    drop(room.split(room.num_permits().saturating_sub(bytes)));
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

    #[tokio::test(start_paused = true)]
    async fn who_waits_gets_room_before_all_that_is_new_or_gives_up() {
        let budget = Budget::new(10 + EACH);
        let held = budget.take(&of(10), 100).expect("room");
        let patience = Duration::from_secs(5);
        assert!(budget.wait(&of(1), 100, patience).await.is_none());
        let free = async {
            assert!(budget.take(&of(0), 100).is_none(), "somebody waits");
            drop(held);
        };
        let body = of(EACH);
        let (waited, ()) = tokio::join!(biased; budget.wait(&body, EACH, patience), free);
        let mut waited = waited.expect("room");
        assert!(budget.take(&of(0), 100).is_none());
        shrink(&mut waited, 10);
        assert!(budget.take(&of(0), 100).is_some(), "what was not needed is free");
    }
}
