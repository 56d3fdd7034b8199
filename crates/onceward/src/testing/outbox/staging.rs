//! Staging: what is there afterwards, and what is refused.

use super::{OutboxHarness, SINK, done, message};
use crate::{
    clock::Clock as _,
    outbox::{Message, MessageState, Staged},
    record::{Effects, Fence, Lease},
    store::{Ask, Write},
    testing::samples::{LEASE, RETENTION, TOMBSTONE, ask, id, retry},
};

/// What is listed is what was given, ready and never delivered.
pub async fn a_staged_message_is_ready_with_all_that_it_was_given(on: OutboxHarness) {
    let lease = on.begun("order-1").await;
    let given = message("receipt").aggregate("order-1").content_type("text/plain");
    assert_eq!(on.stage(&lease, given.clone()).await, Staged::Applied);
    let listed = on.outbox.list(MessageState::Ready, None, 10).await.expect("list answers");
    let [stored] = &*listed else { panic!("expected one message: {listed:?}") };
    assert_eq!((&stored.message, &stored.operation), (&given, &id("tenant", "order-1")));
    assert_eq!((stored.state, stored.generation), (MessageState::Ready, 1));
    assert_eq!((stored.attempts, stored.ambiguous), (0, false));
    assert_eq!((stored.created_at, stored.next_at), (on.clock.now(), on.clock.now()));
    assert_eq!((stored.lease_until, stored.attempt, stored.done_at), (None, None, None));
    assert_eq!((&stored.provider_id, &stored.last_error), (&None, &None));
    assert!(stored.derived_key.len() >= 16);
    let (_, claimed) = on.claim_one().await;
    assert_eq!((claimed.message, claimed.operation), (given, id("tenant", "order-1")));
    assert_eq!(claimed.derived_key, stored.derived_key);
}

/// Payloads are bytes, and may be none or many.
pub async fn a_message_of_any_bytes_survives(on: OutboxHarness) {
    let lease = on.begun("order-1").await;
    let every_byte: Vec<u8> = (0..=255).collect();
    let large = vec![b'x'; 1 << 20];
    for (name, payload) in [("none", vec![]), ("every byte", every_byte), ("large", large)] {
        let given = Message::new(name, SINK, payload);
        assert_eq!(on.stage(&lease, given.clone()).await, Staged::Applied);
        assert_eq!(on.claim_one().await.1.message, given, "{name}");
    }
    let spoken = Message::new("\u{e9}\u{4e16}", SINK, "x").aggregate("\u{1f980}'\"; --");
    assert_eq!(on.stage(&lease, spoken.clone()).await, Staged::Applied);
    assert_eq!(on.claim_one().await.1.message, spoken);
}

/// One name is one message, and the first one stays.
pub async fn the_same_message_staged_twice_is_one(on: OutboxHarness) {
    let lease = on.begun("order-1").await;
    assert_eq!(on.stage(&lease, message("receipt")).await, Staged::Applied);
    assert_eq!(on.stage(&lease, message("receipt")).await, Staged::AlreadyMine);
    let other = Message::new("receipt", "elsewhere", "other");
    assert_eq!(on.stage(&lease, other).await, Staged::AlreadyMine);
    let listed = on.outbox.list(MessageState::Ready, None, 10).await.expect("list answers");
    assert_eq!(listed.iter().map(|m| &m.message).collect::<Vec<_>>(), [&message("receipt")]);
    assert_eq!(on.stage(&lease, message("invoice")).await, Staged::Applied);
    assert_eq!(on.counts().await, [2, 0, 0, 0]);
}

/// An attempt that goes on with the work of another one stages what is there already, delivered or
/// not.
pub async fn a_message_staged_again_by_the_next_attempt_is_one(on: OutboxHarness) {
    let ask = Ask { effects: Effects::None, ..ask("order-1") };
    let first = on.granted(ask.clone()).await;
    assert_eq!(on.stage(&first, message("receipt")).await, Staged::Applied);
    on.clock.advance(LEASE);
    let second = on.granted(retry(&ask)).await;
    assert_eq!(on.stage(&second, message("receipt")).await, Staged::AlreadyMine);
    let (attempt, claimed) = on.claim_one().await;
    assert!(on.settle(attempt, &claimed, done("p-1")).await);
    on.clock.advance(LEASE);
    let third = on.granted(retry(&ask)).await;
    assert_eq!(on.stage(&third, message("receipt")).await, Staged::AlreadyMine);
    assert_eq!(on.counts().await, [0, 0, 1, 0]);
}

/// What makes a message one: scope, key, generation and name.
pub async fn other_names_keys_scopes_and_generations_are_other_messages(on: OutboxHarness) {
    let first = Ask { expired_runs_again: true, ..ask("order-1") };
    let lease = on.granted(first.clone()).await;
    assert_eq!(on.stage(&lease, message("receipt")).await, Staged::Applied);
    assert_eq!(on.stage(&lease, message("invoice")).await, Staged::Applied);
    on.complete(&lease).await;
    let elsewhere = Ask { id: id("another", "order-1"), ..ask("order-1") };
    for other in [ask("order-2"), elsewhere] {
        let lease = on.granted(other).await;
        assert_eq!(on.stage(&lease, message("receipt")).await, Staged::Applied);
    }
    on.clock.advance(RETENTION);
    let next = on.granted(retry(&first)).await;
    assert_eq!(next.generation, 2);
    assert_eq!(on.stage(&next, message("receipt")).await, Staged::Applied);
    let listed = on.outbox.list(MessageState::Ready, None, 10).await.expect("list answers");
    let mut keys: Vec<_> = listed.iter().map(|message| &message.derived_key).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!((listed.len(), keys.len()), (5, 5));
}

/// Attempt and fence decide, as for every write.
pub async fn an_attempt_that_lost_its_right_stages_nothing(on: OutboxHarness) {
    let ask = Ask { effects: Effects::None, ..ask("order-1") };
    let old = on.granted(ask.clone()).await;
    on.clock.advance(LEASE);
    let new = on.granted(retry(&ask)).await;
    assert_eq!(on.stage(&old, message("receipt")).await, Staged::Superseded);
    let fence = Fence::from_stored(new.fence.number() + 1);
    let forged = Lease { id: new.id.clone(), fence, ..new };
    assert_eq!(on.stage(&forged, message("receipt")).await, Staged::Superseded);
    let forged = Lease { id: new.id.clone(), attempt: old.attempt, ..new };
    assert_eq!(on.stage(&forged, message("receipt")).await, Staged::Superseded);
    let forged = Lease { id: id("tenant", "order-2"), ..new };
    assert_eq!(on.stage(&forged, message("receipt")).await, Staged::Superseded);
    assert_eq!(on.counts().await, [0; 4]);
    assert_eq!(on.stage(&new, message("receipt")).await, Staged::Applied);
    assert_eq!(on.stage(&old, message("receipt")).await, Staged::Superseded);
}

/// A record that came to rest has no attempt that may act.
pub async fn an_operation_that_is_over_stages_nothing(on: OutboxHarness) {
    let ends = [
        ("completed", None),
        ("retryable", Some(Write::Release("not_sent".into()))),
        ("unknown", Some(Write::MarkUnknown("reset".into()))),
    ];
    for (key, write) in ends {
        let lease = on.begun(key).await;
        match write {
            None => on.complete(&lease).await,
            Some(write) => drop(on.store.write(&lease, write).await.expect("write answers")),
        }
        assert_eq!(on.stage(&lease, message("receipt")).await, Staged::Superseded, "{key}");
    }
    assert_eq!(on.counts().await, [0; 4]);
}

/// Found at staging and not at delivery, when nobody is there to hear it.
pub async fn a_message_that_no_sink_could_take_is_refused(on: OutboxHarness) {
    let lease = on.begun("order-1").await;
    let long = |length: usize| "x".repeat(length);
    for (why, bad) in [
        ("no name", message("")),
        ("long name", message(&long(256))),
        ("no sink", Message::new("receipt", "", "x")),
        ("empty aggregate", message("receipt").aggregate("")),
        ("long aggregate", message("receipt").aggregate(long(256))),
        ("zero byte", message("receipt").aggregate("a\0b")),
        ("two header lines", message("receipt").content_type("text/plain\r\nx: y")),
    ] {
        let staged = on.stage(&lease, bad).await;
        assert!(matches!(staged, Staged::Refused(_)), "{why}: {staged:?}");
    }
    assert_eq!(on.counts().await, [0; 4]);
    let longest = message(&long(255)).aggregate(long(255)).content_type("text/plain");
    assert_eq!(on.stage(&lease, longest).await, Staged::Applied);
}

/// After its tombstone is gone a key is new, and so is its message, though it has the same name.
pub async fn a_key_that_was_purged_and_made_again_stages_its_message_anew(on: OutboxHarness) {
    on.staged([message("first")]).await;
    let lease = on.begun("order-1").await;
    assert_eq!(on.stage(&lease, message("receipt")).await, Staged::Applied);
    for claimed in &on.claim(10).await.1 {
        let attempt = attempt_of(&on, claimed.message_id).await;
        assert!(on.settle(attempt, claimed, done("p-1")).await);
    }
    on.complete(&lease).await;
    purge_record(&on).await;
    let lease = on.begun("order-1").await;
    assert_eq!(lease.generation, 1);
    assert_eq!(on.stage(&lease, message("receipt")).await, Staged::Applied);
    assert_eq!(on.counts().await, [1, 0, 1, 0], "in the place of the former one");
    assert_eq!(on.claim_one().await.1.message, message("receipt"));
}

/// Two messages with one key cannot be told apart by a sink, so that the first has to be settled.
pub async fn an_undelivered_message_of_a_former_use_is_in_the_way_of_the_next(on: OutboxHarness) {
    let lease = on.begun("order-1").await;
    assert_eq!(on.stage(&lease, message("receipt")).await, Staged::Applied);
    on.complete(&lease).await;
    purge_record(&on).await;
    let lease = on.begun("order-1").await;
    let staged = on.stage(&lease, message("receipt")).await;
    assert!(matches!(staged, Staged::Refused(_)), "{staged:?}");
    let (attempt, claimed) = on.claim_one().await;
    assert!(on.settle(attempt, &claimed, done("p-1")).await);
    assert_eq!(on.stage(&lease, message("receipt")).await, Staged::Applied);
}

async fn attempt_of(on: &OutboxHarness, id: crate::outbox::MessageId) -> crate::record::AttemptId {
    let listed = on.outbox.list(MessageState::Delivering, None, 10).await.expect("list answers");
    let found = listed.into_iter().find(|message| message.message_id == id);
    found.and_then(|message| message.attempt).expect("a claim")
}

async fn purge_record(on: &OutboxHarness) {
    on.clock.advance(RETENTION);
    on.store.reap(100).await.expect("reap answers");
    on.clock.advance(TOMBSTONE);
    on.store.reap(100).await.expect("reap answers");
}
