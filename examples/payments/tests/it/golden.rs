//! Header, reserve, fingerprint; business state and message in one transaction; the external call;
//! completion; the same bytes for every retry.

use serde_json::json;

use crate::support::{Memory, Store, World, eventually, order};

on_both!(
    a_payment_goes_the_whole_way_and_every_retry_gets_the_same_bytes,
    customers_and_notes_are_written_once,
);

async fn a_payment_goes_the_whole_way_and_every_retry_gets_the_same_bytes(store: Store) {
    let world = World::new(store, Memory::Remembers).lease("10s");
    let node = world.node();
    let missing = world.post(node.address(), "/payments", None, &order("tea")).await;
    assert_eq!(missing.expect("an answer").code(), "idempotency_key_missing");
    assert!(world.ledger("tea").is_empty());

    let created = world.pay(&node, "tea").await;
    assert_eq!((created.status, created.replayed), (201, false));
    let again = world.pay(&node, "tea").await;
    assert_eq!((again.bytes(), again.replayed), (created.bytes(), true));
    let key = "key-of-the-payment-tea";
    let other = world.settle(&node, "/payments", key, &order("coffee")).await;
    assert_eq!(other.code(), "idempotency_key_reused_with_different_payload");

    let path = format!("/payments/{}", created.id());
    for (step, state) in [("capture", "captured"), ("refund", "refunded")] {
        let path = format!("{path}/{step}");
        let key = format!("key-of-the-{step}-of-tea");
        let done = world.settle(&node, &path, &key, &json!({})).await;
        assert_eq!((done.status, done.json()["state"].as_str()), (200, Some(state)));
        let again = world.settle(&node, &path, &key, &json!({})).await;
        assert_eq!((again.bytes(), again.replayed), (done.bytes(), true));
        // The same once more is another request, and the payment is not in that state any more.
        let twice = world.settle(&node, &path, &format!("another-{key}"), &json!({})).await;
        assert_eq!((twice.status, twice.code()), (409, String::new()));
    }
    assert_eq!(world.get(&node, &path).await["state"], "refunded");
    assert_eq!(world.payments().await["tea"], ["refunded"]);
    let all = ["authorizations", "captures", "refunds"];
    for kind in all {
        assert_eq!(world.times(kind, "tea"), 1, "{kind}");
    }
    let told = ["payment.created", "payment.authorized", "payment.captured", "payment.refunded"];
    eventually("four messages", async || world.ledger("tea").len() >= 7).await;
    let mut ledger = world.ledger("tea");
    ledger.retain(|kind| !all.contains(&&**kind));
    assert_eq!(ledger, told);
}

async fn customers_and_notes_are_written_once(store: Store) {
    let world = World::new(store, Memory::Remembers).lease("10s");
    let node = world.node();
    let (key, ann) = ("key-of-the-customer-ann", json!({ "email": "ann@example.org" }));
    let created = world.settle(&node, "/customers", key, &ann).await;
    assert_eq!((created.status, created.replayed), (201, false));
    let again = world.settle(&node, "/customers", key, &ann).await;
    assert_eq!((again.bytes(), again.replayed), (created.bytes(), true));
    let taken = world.settle(&node, "/customers", "another-key-of-ann-1", &ann).await;
    assert_eq!((taken.status, taken.code()), (409, String::new()));
    assert_eq!(world.rows("SELECT id, email FROM customers").await.len(), 1);

    let path = format!("/payments/{}/notes", world.pay(&node, "tea").await.id());
    let (key, note) = ("key-of-the-note-about-tea", json!({ "text": "green" }));
    // At once: only one of them reserves, in the transaction that writes the note.
    let settle = || world.settle(&node, &path, key, &note);
    let (one, two) = tokio::join!(settle(), settle());
    assert_eq!((one.status, one.bytes()), (201, two.bytes()));
    assert_eq!(world.rows("SELECT payment_id, text FROM notes").await.len(), 1);
    let nowhere = world.settle(&node, "/payments/none/notes", "key-of-no-note-0001", &note).await;
    assert_eq!(nowhere.status, 404);
}
