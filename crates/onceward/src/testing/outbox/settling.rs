//! Settling: how a delivery ended, guarded by attempt and fence.

use std::time::Duration;

use super::{OutboxHarness, dead, done, message, retry};
use crate::{
    clock::Clock as _,
    outbox::{MessageState, Settlement, StoredMessage},
    record::{AttemptId, Fence},
    testing::samples::LEASE,
};

async fn only(on: &OutboxHarness, state: MessageState) -> StoredMessage {
    let mut listed = on.outbox.list(state, None, 10).await.expect("list answers");
    assert_eq!(listed.len(), 1, "{state:?}");
    listed.remove(0)
}

/// One step writes both. A message is never done without what the provider calls it.
pub async fn the_provider_id_is_there_when_done_is(on: OutboxHarness) {
    on.staged([message("a")]).await;
    let (attempt, claimed) = on.claim_one().await;
    assert_eq!(only(&on, MessageState::Delivering).await.provider_id, None);
    on.clock.advance(Duration::from_secs(3));
    assert!(on.settle(attempt, &claimed, done("ch_1")).await);
    let stored = only(&on, MessageState::Done).await;
    assert_eq!(stored.provider_id.as_deref(), Some("ch_1"));
    assert_eq!((stored.done_at, stored.attempts), (Some(on.clock.now()), 1));
    assert_eq!(on.claimed_ids(10).await, []);
    on.staged([message("b")]).await;
    let (attempt, claimed) = on.claim_one().await;
    assert!(on.settle(attempt, &claimed, Settlement::Done { provider_id: None }).await);
    let listed = on.outbox.list(MessageState::Done, Some(stored.message_id), 10).await;
    assert_eq!(listed.expect("list answers")[0].provider_id, None, "a provider may have none");
}

/// To the microsecond.
pub async fn a_retry_is_due_after_its_wait_and_not_before(on: OutboxHarness) {
    let ids = on.staged([message("a")]).await;
    let (attempt, claimed) = on.claim_one().await;
    assert!(on.settle(attempt, &claimed, retry(60)).await);
    let stored = only(&on, MessageState::Ready).await;
    assert_eq!(stored.next_at, on.clock.now().plus(Duration::from_secs(60)));
    assert_eq!(stored.last_error.as_deref(), Some("not today"));
    on.clock.advance(Duration::from_secs(60) - Duration::from_micros(1));
    assert_eq!(on.claimed_ids(10).await, []);
    on.clock.advance(Duration::from_micros(1));
    assert_eq!(on.claimed_ids(10).await, ids);
}

/// By claims and not by settlements: a message that kills its relay is counted too.
pub async fn attempts_are_counted_by_claims(on: OutboxHarness) {
    on.staged([message("a")]).await;
    for expected in 1..=4 {
        let (attempt, claimed) = on.claim_one().await;
        assert_eq!(claimed.attempts, expected);
        if expected % 2 == 0 {
            assert!(on.settle(attempt, &claimed, retry(0)).await);
        } else {
            on.clock.advance(LEASE);
        }
    }
}

/// A person must see it, and automation leaves it alone.
pub async fn a_dead_letter_keeps_its_reason_and_is_not_claimed(on: OutboxHarness) {
    on.staged([message("a")]).await;
    let (attempt, claimed) = on.claim_one().await;
    assert!(on.settle(attempt, &claimed, dead()).await);
    let stored = only(&on, MessageState::Dead).await;
    assert_eq!((stored.last_error.as_deref(), stored.done_at), (Some("never"), None));
    on.clock.advance(LEASE * 1000);
    assert_eq!(on.claimed_ids(10).await, []);
}

/// A relay that was paused and replaced changes nothing when it wakes up.
pub async fn a_stale_relay_cannot_settle(on: OutboxHarness) {
    on.staged([message("a")]).await;
    let (old, stale) = on.claim_one().await;
    on.clock.advance(LEASE);
    let (new, claimed) = on.claim_one().await;
    let before = only(&on, MessageState::Delivering).await;
    for settlement in [done("late"), retry(0), dead()] {
        assert!(!on.settle(old, &stale, settlement).await);
    }
    assert_eq!(only(&on, MessageState::Delivering).await, before);
    assert!(on.settle(new, &claimed, done("ch_1")).await);
    assert!(!on.settle(old, &stale, done("late")).await);
    assert_eq!(only(&on, MessageState::Done).await.provider_id.as_deref(), Some("ch_1"));
}

/// Either alone is not enough.
pub async fn a_settlement_needs_its_attempt_and_its_fence(on: OutboxHarness) {
    on.staged([message("a"), message("b")]).await;
    let (attempt, claimed) = on.claim_one().await;
    let (_, other) = on.claim_one().await;
    assert!(!on.settle(AttemptId::random(), &claimed, done("x")).await);
    let fence = Fence::from_stored(claimed.fence.number() - 1);
    let forged = crate::outbox::Claimed { fence, ..claimed.clone() };
    assert!(!on.settle(attempt, &forged, done("x")).await);
    let forged = crate::outbox::Claimed { message_id: other.message_id, ..claimed.clone() };
    assert!(!on.settle(attempt, &forged, done("x")).await);
    assert_eq!(on.counts().await, [0, 2, 0, 0]);
    assert!(on.settle(attempt, &claimed, done("ch_1")).await);
}

/// State and fence decide, not the time of the lease.
pub async fn a_late_relay_that_nobody_replaced_settles(on: OutboxHarness) {
    on.staged([message("a")]).await;
    let (attempt, claimed) = on.claim_one().await;
    on.clock.advance(LEASE * 3);
    assert!(on.settle(attempt, &claimed, done("ch_1")).await);
    assert_eq!(on.claimed_ids(10).await, []);
}

/// After a lost answer it is asked again, and the answer is that it was applied.
pub async fn a_repeated_settlement_is_applied_once(on: OutboxHarness) {
    for (settlement, state) in [
        (done("ch_1"), MessageState::Done),
        (retry(60), MessageState::Ready),
        (dead(), MessageState::Dead),
    ] {
        on.staged([message("a")]).await;
        let (attempt, claimed) = on.claim_one().await;
        assert!(on.settle(attempt, &claimed, settlement.clone()).await);
        let before = only(&on, state).await;
        on.clock.advance(Duration::from_secs(1));
        assert!(on.settle(attempt, &claimed, settlement).await);
        assert_eq!(only(&on, state).await, before);
    }
}

/// The first word counts.
pub async fn what_is_settled_is_not_settled_otherwise(on: OutboxHarness) {
    on.staged([message("a")]).await;
    let (attempt, claimed) = on.claim_one().await;
    assert!(on.settle(attempt, &claimed, done("ch_1")).await);
    assert!(!on.settle(attempt, &claimed, retry(0)).await);
    assert!(!on.settle(attempt, &claimed, dead()).await);
    assert_eq!(on.counts().await, [0, 0, 1, 0]);
}

/// A later failure that is known does not make an earlier one known.
pub async fn a_message_whose_delivery_may_have_acted_stays_ambiguous(on: OutboxHarness) {
    on.staged([message("a")]).await;
    let (attempt, claimed) = on.claim_one().await;
    let after = Duration::ZERO;
    let why = || "reset".into();
    let unsure = Settlement::Retry { after, ambiguous: true, why: why() };
    assert!(on.settle(attempt, &claimed, unsure).await);
    let (attempt, claimed) = on.claim_one().await;
    assert!(claimed.ambiguous);
    let sure = Settlement::Retry { after, ambiguous: false, why: why() };
    assert!(on.settle(attempt, &claimed, sure).await);
    let (attempt, claimed) = on.claim_one().await;
    assert!(claimed.ambiguous, "still");
    assert!(on.settle(attempt, &claimed, done("ch_1")).await);
    assert!(!only(&on, MessageState::Done).await.ambiguous, "now it is known");
}
