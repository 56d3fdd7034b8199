//! What people and cleaners do: look, redrive, discard, purge.

use std::time::Duration;

use super::{OutboxHarness, dead, done, message, retry};
use crate::{
    clock::Clock as _,
    outbox::{Backlog, MessageId, MessageState, Settlement, Staged},
    record::Effects,
    store::Ask,
    testing::samples::{LEASE, ask, retry as retry_of},
};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Stages this many and settles all of them.
async fn settled(on: &OutboxHarness, count: usize, how: Settlement) -> Vec<MessageId> {
    let ids = on.staged((0..count).map(|number| message(&format!("m-{number}")))).await;
    for _ in 0..count {
        let (attempt, claimed) = on.claim_one().await;
        assert!(on.settle(attempt, &claimed, how.clone()).await);
    }
    ids
}

/// Page by page.
pub async fn lists_are_in_order_and_go_on_where_they_ended(on: OutboxHarness) {
    let ids = on.staged(["a", "b", "c", "d", "e"].map(message)).await;
    let mut sorted = ids.clone();
    sorted.sort_unstable();
    assert_eq!(ids, sorted, "ids grow in the order of staging");
    let mut after = None;
    for page in ids.chunks(2) {
        let listed = on.outbox.list(MessageState::Ready, after, 2).await.expect("list answers");
        assert_eq!(listed.iter().map(|m| m.message_id).collect::<Vec<_>>(), page);
        after = listed.last().map(|message| message.message_id);
    }
    assert_eq!(on.outbox.list(MessageState::Ready, after, 2).await.expect("list answers"), []);
    assert_eq!(on.ids(MessageState::Dead).await, []);
}

/// Neither other dead letters nor messages that are not dead.
pub async fn redrive_takes_exactly_the_dead_letters_that_it_is_given(on: OutboxHarness) {
    let done_ones = settled(&on, 1, done("p-1")).await;
    let dead_ones = settled(&on, 3, dead()).await;
    let asked = [dead_ones[2], dead_ones[0], done_ones[0], MessageId::from_stored(999_999)];
    let redriven = on.outbox.redrive(&asked).await.expect("redrive answers");
    assert_eq!(redriven, [dead_ones[0], dead_ones[2]]);
    assert_eq!(on.counts().await, [2, 0, 1, 1]);
    assert_eq!(on.outbox.redrive(&asked).await.expect("redrive answers"), [], "only once");
    assert_eq!(on.outbox.redrive(&[]).await.expect("redrive answers"), []);
}

/// A person has decided that it may be delivered, whatever happened before.
pub async fn a_redriven_message_is_as_if_never_delivered(on: OutboxHarness) {
    on.staged([message("a")]).await;
    on.claim_one().await;
    on.clock.advance(LEASE);
    let (attempt, claimed) = on.claim_one().await;
    assert_eq!((claimed.ambiguous, claimed.attempts), (true, 2));
    assert!(on.settle(attempt, &claimed, dead()).await);
    on.outbox.redrive(&[claimed.message_id]).await.expect("redrive answers");
    let (_, again) = on.claim_one().await;
    assert_eq!((again.ambiguous, again.attempts), (false, 1));
    assert_eq!(again.derived_key, claimed.derived_key, "the key stays");
}

/// Whoever gave it up has no say any more.
pub async fn an_old_claim_cannot_settle_what_was_redriven(on: OutboxHarness) {
    on.staged([message("a")]).await;
    let (attempt, claimed) = on.claim_one().await;
    assert!(on.settle(attempt, &claimed, dead()).await);
    on.outbox.redrive(&[claimed.message_id]).await.expect("redrive answers");
    for settlement in [done("late"), retry(0), dead()] {
        assert!(!on.settle(attempt, &claimed, settlement).await);
    }
    assert_eq!(on.counts().await, [1, 0, 0, 0]);
}

/// Neither other dead letters nor messages that are not dead.
pub async fn discard_deletes_exactly_the_dead_letters_that_it_is_given(on: OutboxHarness) {
    let done_ones = settled(&on, 1, done("p-1")).await;
    let dead_ones = settled(&on, 3, dead()).await;
    let ready = on.staged([message("a")]).await;
    let asked = [dead_ones[1], done_ones[0], ready[0], MessageId::from_stored(999_999)];
    let discarded = on.outbox.discard(&asked).await.expect("discard answers");
    assert_eq!(discarded, [dead_ones[1]]);
    assert_eq!(on.ids(MessageState::Dead).await, [dead_ones[0], dead_ones[2]]);
    assert_eq!(on.counts().await, [1, 0, 1, 2]);
    assert_eq!(on.outbox.discard(&asked).await.expect("discard answers"), []);
}

/// What was held behind it is due at once.
pub async fn a_discarded_dead_letter_lets_its_aggregate_go_on(on: OutboxHarness) {
    let ids = on.staged(["a", "b"].map(|name| message(name).aggregate("order-1"))).await;
    let (attempt, claimed) = on.claim_one().await;
    assert!(on.settle(attempt, &claimed, dead()).await);
    assert_eq!(on.claimed_ids(10).await, []);
    assert_eq!(on.outbox.discard(&ids[..1]).await.expect("discard answers"), ids[..1]);
    assert_eq!(on.claimed_ids(10).await, ids[1..]);
}

/// Not those that are ready, being delivered or dead, and not those that are too young.
pub async fn purge_deletes_exactly_the_done_ones_that_are_old_enough(on: OutboxHarness) {
    let old = settled(&on, 3, done("p-1")).await;
    let dead_ones = settled(&on, 1, dead()).await;
    on.clock.advance(Duration::from_secs(1));
    let young = settled(&on, 2, done("p-2")).await;
    on.staged([message("a"), message("b")]).await;
    on.claim_one().await;
    on.clock.advance(DAY - Duration::from_secs(1));
    assert_eq!(on.outbox.purge_done(DAY * 2, 10).await.expect("purge answers"), []);
    assert_eq!(on.outbox.purge_done(DAY, 10).await.expect("purge answers"), old);
    assert_eq!(on.ids(MessageState::Done).await, young);
    assert_eq!(on.ids(MessageState::Dead).await, dead_ones);
    assert_eq!(on.counts().await, [1, 1, 2, 1]);
}

/// The numbers that a dashboard shows: of dead letters, and of the one that has waited for longest of
/// those that may be delivered.
pub async fn the_backlog_is_what_is_dead_and_the_first_that_is_due(on: OutboxHarness) {
    let backlog = async || on.outbox.backlog().await.expect("backlog answers");
    assert_eq!(backlog().await, Backlog::default());
    settled(&on, 2, done("p-1")).await;
    settled(&on, 3, dead()).await;
    assert_eq!(backlog().await, Backlog { dead_letters: 3, due_at: None });
    let first = on.clock.now();
    on.staged([message("a").aggregate("order-1")]).await;
    on.clock.advance(Duration::from_secs(1));
    let second = on.clock.now();
    on.staged([message("b").aggregate("order-1"), message("c")]).await;
    on.clock.advance(DAY);
    assert_eq!(backlog().await, Backlog { dead_letters: 3, due_at: Some(first) });
    // The second is held behind the first, and the third is not.
    on.claim_one().await;
    assert_eq!(backlog().await, Backlog { dead_letters: 3, due_at: Some(second) });
}

/// In bounded bites.
pub async fn purge_stops_at_its_limit_and_goes_on_next_time(on: OutboxHarness) {
    let ids = settled(&on, 5, done("p-1")).await;
    for bite in ids.chunks(2) {
        let purged = on.outbox.purge_done(Duration::ZERO, 2).await.expect("purge answers");
        assert_eq!(purged, bite);
    }
    assert_eq!(on.outbox.purge_done(Duration::ZERO, 2).await.expect("purge answers"), []);
}

/// Else somebody who looked at a message and deletes it would delete another one.
pub async fn an_id_is_never_used_again(on: OutboxHarness) {
    let dead_ones = settled(&on, 2, dead()).await;
    on.outbox.discard(&dead_ones).await.expect("discard answers");
    let done_ones = settled(&on, 2, done("p-1")).await;
    on.outbox.purge_done(Duration::ZERO, 10).await.expect("purge answers");
    let ready = on.staged([message("a")]).await;
    assert!(dead_ones[1] < done_ones[0] && done_ones[1] < ready[0]);
}

/// An operation that is not over stages again what it staged before. If that were gone it would be
/// delivered a second time.
pub async fn what_an_open_operation_would_stage_again_is_kept(on: OutboxHarness) {
    let ask = Ask { effects: Effects::None, ..ask("order-1") };
    let lease = on.granted(ask.clone()).await;
    assert_eq!(on.stage(&lease, message("delivered")).await, Staged::Applied);
    assert_eq!(on.stage(&lease, message("given up")).await, Staged::Applied);
    let (attempt, claimed) = on.claim_one().await;
    assert!(on.settle(attempt, &claimed, done("p-1")).await);
    let (attempt, claimed) = on.claim_one().await;
    assert!(on.settle(attempt, &claimed, dead()).await);
    let dead_ones = on.ids(MessageState::Dead).await;
    on.clock.advance(LEASE);
    let nothing = Vec::<MessageId>::new();
    assert_eq!(on.outbox.purge_done(Duration::ZERO, 10).await.expect("purge answers"), nothing);
    assert_eq!(on.outbox.discard(&dead_ones).await.expect("discard answers"), nothing);
    let resumed = on.granted(retry_of(&ask)).await;
    for name in ["delivered", "given up"] {
        assert_eq!(on.stage(&resumed, message(name)).await, Staged::AlreadyMine);
    }
    on.complete(&resumed).await;
    assert_eq!(on.outbox.discard(&dead_ones).await.expect("discard answers"), dead_ones);
    assert_eq!(on.outbox.purge_done(Duration::ZERO, 10).await.expect("purge answers").len(), 1);
}
