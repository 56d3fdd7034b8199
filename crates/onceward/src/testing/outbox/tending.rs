//! What people and cleaners do: look, redrive, discard, purge.

use std::time::Duration;

use bytes::Bytes;

use super::{OutboxHarness, dead, done, message, retry};
use crate::{
    clock::Clock as _,
    outbox::{
        Backlog, DeadLetter, Message, MessageId, MessageQuery, MessageState, Settlement, Staged,
    },
    record::{AuditEvent, Effects},
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

/// Each condition alone and together, page by page, and one by its id.
pub async fn operators_list_messages_by_state_sink_and_age_without_their_payloads(
    on: OutboxHarness,
) {
    let dead_ones = settled(&on, 2, dead()).await;
    let elsewhere = Message::new("c", "elsewhere", "longer than its name").aggregate("order-1");
    let other = on.staged([elsewhere.clone()]).await;
    on.clock.advance(DAY);
    let young = on.staged([message("d")]).await;
    let all = [&dead_ones[..], &other, &young].concat();
    let query = MessageQuery { limit: 100, ..MessageQuery::default() };
    let list = async |query: &MessageQuery| {
        let listed = on.outbox.list_messages(query.clone()).await.expect("list answers");
        listed.iter().map(|it| it.stored.message_id).collect::<Vec<_>>()
    };
    assert_eq!(list(&query).await, all);
    let state = |state| MessageQuery { state: Some(state), ..query.clone() };
    assert_eq!(list(&state(MessageState::Dead)).await, dead_ones);
    assert_eq!(list(&state(MessageState::Done)).await, []);
    assert_eq!(list(&state(MessageState::Ready)).await, [&other[..], &young].concat());
    let sink = MessageQuery { sink: Some("elsewhere".into()), ..query.clone() };
    assert_eq!(list(&sink).await, other);
    let both = MessageQuery { sink: Some("elsewhere".into()), ..state(MessageState::Dead) };
    assert_eq!(list(&both).await, []);
    let old = MessageQuery { older_than: Some(DAY), ..query.clone() };
    assert_eq!(list(&old).await, all[..3]);
    let page = MessageQuery { after: Some(all[0]), limit: 2, ..query.clone() };
    assert_eq!(list(&page).await, all[1..3]);
    let loaded = on.outbox.load_message(other[0]).await.expect("load answers").expect("there");
    assert_eq!(loaded.payload_bytes, elsewhere.payload.len() as u64);
    assert_eq!(loaded.stored.message, Message { payload: Bytes::new(), ..elsewhere });
    let absent = on.outbox.load_message(MessageId::from_stored(999_999)).await;
    assert_eq!(absent.expect("load answers"), None);
}

/// Neither other dead letters nor messages that are not dead.
pub async fn redrive_takes_exactly_the_dead_letters_that_it_is_given(on: OutboxHarness) {
    let done_ones = settled(&on, 1, done("p-1")).await;
    let dead_ones = settled(&on, 3, dead()).await;
    let asked = [dead_ones[2], dead_ones[0], done_ones[0], MessageId::from_stored(999_999)];
    let redriven = on.redrive(&asked, "ticket 7").await;
    assert_eq!(redriven, [dead_ones[0], dead_ones[2]]);
    assert_eq!(on.counts().await, [2, 0, 1, 1]);
    assert_eq!(on.redrive(&asked, "ticket 7").await, [], "only once");
    assert_eq!(on.redrive(&[], "ticket 7").await, []);
}

/// A person has decided that it may be delivered, whatever happened before.
pub async fn a_redriven_message_is_as_if_never_delivered(on: OutboxHarness) {
    on.staged([message("a")]).await;
    on.claim_one().await;
    on.clock.advance(LEASE);
    let (attempt, claimed) = on.claim_one().await;
    assert_eq!((claimed.ambiguous, claimed.attempts), (true, 2));
    assert!(on.settle(attempt, &claimed, dead()).await);
    on.redrive(&[claimed.message_id], "ticket 7").await;
    let (_, again) = on.claim_one().await;
    assert_eq!((again.ambiguous, again.attempts), (false, 1));
    assert_eq!(again.derived_key, claimed.derived_key, "the key stays");
}

/// It was redriven and given up again since: perhaps for another reason, and perhaps it acted.
pub async fn who_looked_at_an_earlier_dead_letter_decides_nothing(on: OutboxHarness) {
    let ids = settled(&on, 1, dead()).await;
    let look = async || on.outbox.load_message(ids[0]).await.expect("load answers").expect("there");
    let earlier = [DeadLetter::from(&look().await.stored)];
    assert_eq!(on.redrive(&ids, "ticket 7").await, ids);
    let (attempt, claimed) = on.claim_one().await;
    assert!(on.settle(attempt, &claimed, dead()).await);
    let before = look().await;
    for _ in 0..2 {
        let redriven = on.outbox.redrive(&earlier, "ticket 8").await.expect("redrive answers");
        let discarded = on.outbox.discard(&earlier, "ticket 8").await.expect("discard answers");
        assert_eq!((redriven, discarded), (vec![], vec![]));
    }
    assert_eq!(look().await, before);
    let audit = on.store.audit(&before.stored.operation).await.expect("audit answers");
    assert_eq!(audit.len(), 1, "{audit:?}");
    let now = [DeadLetter::from(&before.stored)];
    assert_eq!(on.outbox.discard(&now, "ticket 9").await.expect("discard answers"), ids);
}

/// Whoever gave it up has no say any more.
pub async fn an_old_claim_cannot_settle_what_was_redriven(on: OutboxHarness) {
    on.staged([message("a")]).await;
    let (attempt, claimed) = on.claim_one().await;
    assert!(on.settle(attempt, &claimed, dead()).await);
    on.redrive(&[claimed.message_id], "ticket 7").await;
    for settlement in [done("late"), retry(0), dead()] {
        assert!(!on.settle(attempt, &claimed, settlement).await);
    }
    assert_eq!(on.counts().await, [1, 0, 0, 0]);
}

/// Also those that one claim took, and that one call redrives: they differ by their message only.
pub async fn every_redriven_and_every_discarded_message_is_audited_once(on: OutboxHarness) {
    let ids = on.staged(["a", "b"].map(message)).await;
    let mut operation = None;
    let mut give_up = async || {
        let (attempt, claimed) = on.claim(10).await;
        assert_eq!(claimed.len(), 2);
        for claimed in &claimed {
            assert!(on.settle(attempt, claimed, dead()).await);
        }
        operation = Some(claimed[0].operation.clone());
        (attempt, claimed[0].fence)
    };
    let mut expected = Vec::new();
    let mut remembered = |event, (attempt, fence), why: &str| {
        for (id, name) in ids.iter().zip(["a", "b"]) {
            expected.push((event, attempt, fence, format!("{why} (message {id}, {name})")));
        }
    };
    let first = give_up().await;
    assert_eq!(on.redrive(&ids, "alice: 1").await, ids);
    remembered(AuditEvent::MessageRedriven, first, "alice: 1");
    assert_eq!(on.redrive(&ids, "alice: 2").await, []);
    let second = give_up().await;
    assert_eq!(on.redrive(&ids, "alice: 3").await, ids);
    remembered(AuditEvent::MessageRedriven, second, "alice: 3");
    let third = give_up().await;
    assert_eq!(on.discard(&ids, "bob: 4").await, ids);
    remembered(AuditEvent::MessageDiscarded, third, "bob: 4");
    assert_eq!(on.discard(&ids, "bob: 5").await, []);
    let operation = operation.expect("given up");
    let audit = on.store.audit(&operation).await.expect("audit answers");
    assert!(audit.iter().all(|it| it.generation == 1 && it.at == on.clock.now()));
    let mut audit: Vec<_> = audit
        .into_iter()
        .map(|it| (it.event, it.attempt, it.fence, String::from(it.reason)))
        .collect();
    // Of one call, in any order.
    audit.sort_by_key(|it| (it.2, it.0.name(), it.3.clone()));
    assert_eq!(audit, expected);
}

/// Nothing was decided about them.
pub async fn what_is_not_a_dead_letter_or_is_kept_leaves_no_audit_record(on: OutboxHarness) {
    let lease = on.begun("order-1").await;
    assert_eq!(on.stage(&lease, message("a")).await, Staged::Applied);
    let ready = on.ids(MessageState::Ready).await;
    assert_eq!(on.redrive(&ready, "x").await, []);
    let (attempt, claimed) = on.claim_one().await;
    assert!(on.settle(attempt, &claimed, dead()).await);
    let kept = on.discard(&[claimed.message_id], "x").await;
    assert_eq!(kept, [], "its operation may still run");
    assert_eq!(on.store.audit(&lease.id).await.expect("audit answers"), []);
    on.complete(&lease).await;
    on.discard(&[claimed.message_id], "x").await;
    assert_eq!(on.store.audit(&lease.id).await.expect("audit answers").len(), 1, "the twin");
}

/// Neither other dead letters nor messages that are not dead.
pub async fn discard_deletes_exactly_the_dead_letters_that_it_is_given(on: OutboxHarness) {
    let done_ones = settled(&on, 1, done("p-1")).await;
    let dead_ones = settled(&on, 3, dead()).await;
    let ready = on.staged([message("a")]).await;
    let asked = [dead_ones[1], done_ones[0], ready[0], MessageId::from_stored(999_999)];
    let discarded = on.discard(&asked, "ticket 7").await;
    assert_eq!(discarded, [dead_ones[1]]);
    assert_eq!(on.ids(MessageState::Dead).await, [dead_ones[0], dead_ones[2]]);
    assert_eq!(on.counts().await, [1, 0, 1, 2]);
    assert_eq!(on.discard(&asked, "ticket 7").await, []);
}

/// What was held behind it is due at once.
pub async fn a_discarded_dead_letter_lets_its_aggregate_go_on(on: OutboxHarness) {
    let ids = on.staged(["a", "b"].map(|name| message(name).aggregate("order-1"))).await;
    let (attempt, claimed) = on.claim_one().await;
    assert!(on.settle(attempt, &claimed, dead()).await);
    assert_eq!(on.claimed_ids(10).await, []);
    assert_eq!(on.discard(&ids[..1], "ticket 7").await, ids[..1]);
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
    on.discard(&dead_ones, "ticket 7").await;
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
    assert_eq!(on.discard(&dead_ones, "ticket 7").await, nothing);
    let resumed = on.granted(retry_of(&ask)).await;
    for name in ["delivered", "given up"] {
        assert_eq!(on.stage(&resumed, message(name)).await, Staged::AlreadyMine);
    }
    on.complete(&resumed).await;
    assert_eq!(on.discard(&dead_ones, "ticket 7").await, dead_ones);
    assert_eq!(on.outbox.purge_done(Duration::ZERO, 10).await.expect("purge answers").len(), 1);
}
