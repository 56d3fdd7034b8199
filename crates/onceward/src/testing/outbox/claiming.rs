//! Claiming: what is due, in which order, and for whom.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures_util::future::join_all;

use super::{OutboxHarness, SINK, dead, done, message, retry};
use crate::{
    clock::Timestamp,
    outbox::{Message, MessageState},
    record::AttemptId,
    testing::samples::LEASE,
};

/// A relay gets nothing that it cannot deliver.
pub async fn messages_are_claimed_for_the_sinks_that_are_asked_for(on: OutboxHarness) {
    let ids = on.staged([message("a"), Message::new("b", "mail", "x"), message("c")]).await;
    assert_eq!(on.claimed_ids(10).await, [ids[0], ids[2]]);
    let none = on.outbox.claim(10, &[], LEASE, AttemptId::random()).await.expect("claim answers");
    assert_eq!(none, []);
    let both = on.outbox.claim(10, &["mail", SINK], LEASE, AttemptId::random()).await;
    let both: Vec<_> = both.expect("claim answers").iter().map(|m| m.message_id).collect();
    assert_eq!(both, [ids[1]]);
}

/// Oldest first.
pub async fn a_claim_stops_at_its_limit_and_goes_on_next_time(on: OutboxHarness) {
    let ids = on.staged(["a", "b", "c"].map(message)).await;
    assert_eq!(on.claimed_ids(0).await, []);
    assert_eq!(on.claimed_ids(2).await, ids[..2]);
    assert_eq!(on.claimed_ids(2).await, ids[2..]);
    assert_eq!(on.claimed_ids(2).await, []);
}

/// The next one is claimed when the one before is done, and not earlier.
pub async fn messages_of_one_aggregate_are_claimed_one_after_the_other(on: OutboxHarness) {
    let of_one = ["a", "b", "c"].map(|name| message(name).aggregate("order-1"));
    let ids = on.staged(of_one).await;
    let other = on.staged([message("d").aggregate("order-2")]).await;
    let (attempt, claimed) = on.claim(10).await;
    let claimed_ids: Vec<_> = claimed.iter().map(|claimed| claimed.message_id).collect();
    assert_eq!(claimed_ids, [ids[0], other[0]], "one of each aggregate");
    assert_eq!(on.claimed_ids(10).await, [], "held behind a delivery");
    assert!(on.settle(attempt, &claimed[0], done("p-1")).await);
    for id in &ids[1..] {
        let (attempt, claimed) = on.claim_one().await;
        assert_eq!(claimed.message_id, *id);
        assert_eq!(on.claimed_ids(10).await, []);
        assert!(on.settle(attempt, &claimed, done("p-1")).await);
    }
    assert_eq!(on.claimed_ids(10).await, []);
}

/// Without an aggregate there is no order to keep.
pub async fn messages_without_an_aggregate_are_not_held(on: OutboxHarness) {
    let ids = on.staged(["a", "b", "c"].map(message)).await;
    let (attempt, claimed) = on.claim_one().await;
    assert!(on.settle(attempt, &claimed, dead()).await);
    let (attempt, claimed) = on.claim_one().await;
    assert!(on.settle(attempt, &claimed, retry(60)).await);
    assert_eq!(on.claimed_ids(10).await, ids[2..]);
}

/// Who goes on behind something that was given up may do the second thing without the first.
pub async fn an_aggregate_is_held_behind_its_dead_letter(on: OutboxHarness) {
    let ids = on.staged(["a", "b"].map(|name| message(name).aggregate("order-1"))).await;
    let stranger = on.staged([message("c").aggregate("order-2")]).await;
    let (attempt, claimed) = on.claim_one().await;
    assert!(on.settle(attempt, &claimed, dead()).await);
    assert_eq!(on.claimed_ids(10).await, stranger);
    on.clock.advance(LEASE * 1000);
    assert_eq!(on.claimed_ids(10).await, stranger, "however long one waits");
    on.redrive(&ids[..1], "ticket 7").await;
    let (attempt, claimed) = on.claim_one().await;
    assert_eq!(claimed.message_id, ids[0]);
    assert!(on.settle(attempt, &claimed, done("p-1")).await);
    assert_eq!(on.claimed_ids(10).await, ids[1..]);
}

/// A retry keeps its place.
pub async fn an_aggregate_is_held_behind_a_retry_that_is_not_due(on: OutboxHarness) {
    let ids = on.staged(["a", "b"].map(|name| message(name).aggregate("order-1"))).await;
    let (attempt, claimed) = on.claim_one().await;
    assert!(on.settle(attempt, &claimed, retry(60)).await);
    assert_eq!(on.claimed_ids(10).await, []);
    on.clock.advance(Duration::from_secs(60));
    assert_eq!(on.claimed_ids(10).await, ids[..1]);
}

/// What happens to one thing happens in one order, wherever it is told.
pub async fn an_aggregate_has_one_order_over_all_sinks(on: OutboxHarness) {
    let mail = Message::new("a", "mail", "x").aggregate("order-1");
    let ids = on.staged([mail, message("b").aggregate("order-1")]).await;
    assert_eq!(on.claimed_ids(10).await, []);
    let attempt = AttemptId::random();
    let mail = on.outbox.claim(10, &["mail"], LEASE, attempt).await.expect("claim answers");
    assert_eq!(mail.iter().map(|m| m.message_id).collect::<Vec<_>>(), ids[..1]);
    assert!(on.settle(attempt, &mail[0], done("p-1")).await);
    assert_eq!(on.claimed_ids(10).await, ids[1..]);
}

/// A relay at work is left alone until the very end of its lease.
pub async fn a_live_lease_is_not_claimed_again(on: OutboxHarness) {
    let ids = on.staged([message("a")]).await;
    assert_eq!(on.claimed_ids(10).await, ids);
    on.clock.advance(LEASE - Duration::from_micros(1));
    assert_eq!(on.claimed_ids(10).await, []);
    on.clock.advance(Duration::from_micros(1));
    assert_eq!(on.claimed_ids(10).await, ids);
}

/// The relay may have died before or after the sink acted: nobody knows, and that is said.
pub async fn a_lease_that_ran_out_is_claimed_again_and_flagged_ambiguous(on: OutboxHarness) {
    on.staged([message("a"), message("b")]).await;
    let (_, first) = on.claim_one().await;
    assert!(!first.ambiguous);
    on.clock.advance(LEASE);
    let again = on.claim(10).await.1;
    let told: Vec<_> = again.iter().map(|m| (&*m.message.name, m.ambiguous, m.attempts)).collect();
    assert_eq!(told, [("a", true, 2), ("b", false, 1)]);
    assert_eq!(again[0].derived_key, first.derived_key);
}

/// As for records: a fence never returns.
pub async fn every_claim_has_a_larger_fence_even_when_the_clock_steps_back(on: OutboxHarness) {
    let ids = on.staged([message("a")]).await;
    let mut last = None;
    for start in [2_000_000_000_000_000, 1_500_000_000_000_000, 1_700_000_000_000_000] {
        on.clock.set(Timestamp::from_micros(start));
        on.redrive(&ids, "ticket 7").await;
        let (attempt, claimed) = on.claim_one().await;
        assert!(last < Some(claimed.fence), "{last:?} {:?}", claimed.fence);
        last = Some(claimed.fence);
        assert!(on.settle(attempt, &claimed, dead()).await);
    }
}

/// After a lost answer: else what nobody delivered would look as if somebody had.
pub async fn a_repeated_claim_of_one_attempt_returns_the_same_messages(on: OutboxHarness) {
    on.staged(["a", "b", "c"].map(message)).await;
    let attempt = AttemptId::random();
    let first = on.claim_as(attempt, 2).await;
    on.clock.advance(LEASE / 2);
    assert_eq!(on.claim_as(attempt, 2).await, first);
    assert_eq!(first.len(), 2);
    assert!(first.iter().all(|claimed| claimed.attempts == 1 && !claimed.ambiguous));
    on.clock.advance(LEASE / 2);
    let late = on.claim_as(attempt, 2).await;
    assert!(late.iter().all(|claimed| claimed.attempts == 2 && claimed.ambiguous), "{late:?}");
}

/// However many relays ask at the same time.
pub async fn of_many_concurrent_claims_each_message_is_in_one(on: OutboxHarness) {
    let staged = (0..60).map(|number| {
        let message = message(&format!("m-{number}"));
        if number < 20 { message.aggregate(format!("order-{}", number % 5)) } else { message }
    });
    let ids = on.staged(staged).await;
    let on = Arc::new(on);
    let claims = (0..30).map(|_| {
        let on = Arc::clone(&on);
        tokio::spawn(async move { on.claimed_ids(4).await })
    });
    let mut claimed: Vec<_> =
        join_all(claims).await.into_iter().flat_map(|ids| ids.expect("no panic")).collect();
    // What all of them passed over, while somebody else was looking at it, is there for the next.
    loop {
        let more = on.claimed_ids(4).await;
        if more.is_empty() {
            break;
        }
        claimed.extend(more);
    }
    let distinct: BTreeSet<_> = claimed.iter().copied().collect();
    assert_eq!(claimed.len(), distinct.len(), "none twice");
    // Five heads, and all that have no aggregate.
    let expected: BTreeSet<_> = ids[..5].iter().chain(&ids[20..]).copied().collect();
    assert_eq!(distinct, expected);
    assert_eq!(on.ids(MessageState::Delivering).await.len(), 45);
}
