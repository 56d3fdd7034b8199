//! A bank that declines, is away, or whose answers are lost.

use serde_json::json;

use crate::support::{Memory, Store, World, order};

on_both!(
    a_payment_that_was_declined_stays_so_for_its_key,
    a_lost_answer_of_a_bank_that_remembers_is_asked_for_again,
    a_lost_answer_of_a_bank_that_forgets_is_an_unknown_outcome,
);

async fn a_payment_that_was_declined_stays_so_for_its_key(store: Store) {
    let world = World::new(store, Memory::Remembers).lease("10s");
    let node = world.node();
    world.faults(json!({ "refuse": 1 })).await;
    let declined = world.pay(&node, "tea").await;
    assert_eq!((declined.status, declined.json()["state"].as_str()), (402, Some("declined")));
    // The bank would take it now. It is not asked.
    let again = world.pay(&node, "tea").await;
    assert_eq!((again.bytes(), again.replayed), (declined.bytes(), true));
    assert_eq!(world.times("authorizations", "tea"), 0);
    assert_eq!(world.pay(&node, "coffee").await.status, 201);
}

async fn a_lost_answer_of_a_bank_that_remembers_is_asked_for_again(store: Store) {
    let world = World::new(store, Memory::Remembers).lease("10s");
    let node = world.node();
    world.faults(json!({ "lose": 1 })).await;
    let key = "key-of-the-payment-tea";
    let first = world.post(node.address(), "/payments", Some(key), &order("tea")).await;
    assert_eq!(first.expect("an answer").status, 503);
    assert_eq!(world.times("authorizations", "tea"), 1);
    assert_eq!(world.pay(&node, "tea").await.status, 201);
    assert_eq!(world.times("authorizations", "tea"), 1);
    assert_eq!(world.payments().await["tea"], ["authorized"]);
}

async fn a_lost_answer_of_a_bank_that_forgets_is_an_unknown_outcome(store: Store) {
    let world = World::new(store, Memory::Forgets).lease("10s");
    let node = world.node();
    world.faults(json!({ "lose": 1 })).await;
    let key = "key-of-the-payment-tea";
    let first = world.post(node.address(), "/payments", Some(key), &order("tea")).await;
    let first = first.expect("an answer");
    assert_eq!((first.status, &*first.code()), (502, "idempotency_outcome_unknown"));
    for _ in 0..3 {
        assert!(world.pay(&node, "tea").await.is_unknown());
    }
    assert_eq!(world.times("authorizations", "tea"), 1);
    assert_eq!(world.payments().await["tea"], ["pending"]);
    assert_eq!(world.pay(&node, "coffee").await.status, 201);
}
