//! The application dies, at every edge of a payment and under load.

use std::cell::Cell;

use futures_util::future::join_all;
use serde_json::json;

use crate::support::{Answer, Memory, Node, Store, World, eventually, order};

on_both!(
    killed_at_any_edge_a_payment_is_made_once_and_ends_in_the_same_bytes,
    killed_at_any_edge_a_capture_and_a_refund_are_made_once_and_end_in_the_same_bytes,
    killed_at_any_edge_a_payment_at_a_bank_that_forgets_is_made_once_or_unknown,
    killed_at_any_edge_a_customer_and_a_note_are_written_once_and_end_in_the_same_bytes,
    a_worker_goes_on_with_a_payment_that_no_client_comes_back_for,
    killed_under_load_every_payment_is_made_once,
    killed_under_load_no_payment_at_a_bank_that_forgets_is_made_twice,
);

const EDGES: [&str; 9] = [
    "before_reserve",
    "after_reserve",
    "in_first_phase",
    "after_first_phase",
    "before_bank",
    "after_bank",
    "before_complete",
    "in_complete",
    "after_complete",
];

async fn killed_at_any_edge_a_payment_is_made_once_and_ends_in_the_same_bytes(store: Store) {
    let world = World::new(store, Memory::Remembers);
    for edge in EDGES {
        let node = world.node_dying_at(edge);
        let paid = world.pay(&node, edge).await;
        assert!(world.died_at(edge), "{edge}");
        assert_eq!((paid.status, paid.json()["state"].as_str()), (201, Some("authorized")));
        assert_eq!(world.pay(&node, edge).await.bytes(), paid.bytes(), "{edge}");
        assert_eq!(world.times("authorizations", edge), 1, "{edge}");
    }
    let payments = world.payments().await;
    assert_eq!(payments.len(), EDGES.len());
    assert!(payments.values().all(|states| *states == ["authorized"]), "{payments:?}");
    // Somebody has to deliver what those that died could not.
    let _node = world.node();
    eventually("the messages", async || {
        EDGES.iter().all(|edge| world.times("payment.authorized", edge) == 1)
    })
    .await;
    assert!(EDGES.iter().all(|edge| world.times("payment.created", edge) == 1));
}

async fn killed_at_any_edge_a_capture_and_a_refund_are_made_once_and_end_in_the_same_bytes(
    store: Store,
) {
    let world = World::new(store, Memory::Remembers);
    let mut paths = Vec::new();
    {
        let node = world.node();
        for edge in EDGES {
            paths.push(format!("/payments/{}", world.pay(&node, edge).await.id()));
        }
    }
    for (edge, path) in EDGES.into_iter().zip(paths) {
        for (step, state) in [("capture", "captured"), ("refund", "refunded")] {
            let node = world.node_dying_at(edge);
            let (path, key) = (format!("{path}/{step}"), format!("key-of-the-{step}-{edge}"));
            let done = world.settle(&node, &path, &key, &json!({})).await;
            assert!(world.died_at(edge), "{step} {edge}");
            assert_eq!((done.status, done.json()["state"].as_str()), (200, Some(state)));
            let again = world.settle(&node, &path, &key, &json!({})).await;
            assert_eq!(again.bytes(), done.bytes(), "{step} {edge}");
            assert_eq!(world.times(&format!("{step}s"), edge), 1, "{step} {edge}");
            assert_eq!(world.payments().await[edge], [state], "{step} {edge}");
        }
    }
}

async fn killed_at_any_edge_a_payment_at_a_bank_that_forgets_is_made_once_or_unknown(store: Store) {
    let world = World::new(store, Memory::Forgets);
    for edge in EDGES {
        let node = world.node_dying_at(edge);
        let paid = world.pay(&node, edge).await;
        assert!(world.died_at(edge), "{edge}");
        // Between the intent and its result nobody knows, and nobody guesses.
        let is_between = ["before_bank", "after_bank"].contains(&edge);
        assert_eq!((paid.is_unknown(), paid.status == 201), (is_between, !is_between), "{edge}");
        let again = world.pay(&node, edge).await;
        assert_eq!((again.status, again.code()), (paid.status, paid.code()), "{edge}");
        let made = usize::from(edge != "before_bank");
        assert_eq!(world.times("authorizations", edge), made, "{edge}");
        assert_eq!(world.payments().await[edge].len(), 1, "{edge}");
    }
}

/// What writes rows and nothing else: one that is declared `local`, and one that is `single`.
async fn killed_at_any_edge_a_customer_and_a_note_are_written_once_and_end_in_the_same_bytes(
    store: Store,
) {
    let world = World::new(store, Memory::Remembers);
    let payment = {
        let node = world.node();
        world.pay(&node, "tea").await.id()
    };
    let edges = ["before_reserve", "after_reserve", "in_complete", "after_complete"];
    let notes = format!("/payments/{payment}/notes");
    for (number, edge) in edges.into_iter().enumerate() {
        for (path, body) in [
            ("/customers", json!({ "email": format!("{edge}@example.org") })),
            (&*notes, json!({ "text": edge })),
        ] {
            let node = world.node_dying_at(edge);
            let key = format!("key-of-{edge}-{}", &path[path.len() - 5..]);
            let written = world.settle(&node, path, &key, &body).await;
            assert!(world.died_at(edge), "{path} {edge}");
            assert_eq!(written.status, 201, "{path} {edge}: {written:?}");
            let again = world.settle(&node, path, &key, &body).await;
            assert_eq!((again.bytes(), again.replayed), (written.bytes(), true), "{path} {edge}");
        }
        let customers = world.rows("SELECT id, email FROM customers").await;
        let notes = world.rows("SELECT payment_id, text FROM notes").await;
        assert_eq!((customers.len(), notes.len()), (number + 1, number + 1), "{edge}");
    }
}

async fn a_worker_goes_on_with_a_payment_that_no_client_comes_back_for(store: Store) {
    let world = World::new(store, Memory::Remembers);
    let node = world.node_dying_at("after_first_phase");
    let key = "key-of-the-payment-tea";
    let cut = world.post(node.address(), "/payments", Some(key), &order("tea")).await;
    assert!(cut.is_none() && world.died_at("after_first_phase"));
    // As after a deployment: the next process would die there, too, if it were told to.
    drop(node);
    let node = world.node();
    eventually("the worker", async || world.payments().await["tea"] == ["authorized"]).await;
    let first = world.pay(&node, "tea").await;
    assert_eq!((first.status, first.replayed), (201, true));
    assert_eq!(world.times("authorizations", "tea"), 1);
}

const CLIENTS: usize = 8;
const PAYMENTS_EACH: usize = 4;
const KILLS: usize = 3;

/// Pays a lot while the application is killed again and again. What each payment ended in.
async fn paid_while_killed(world: &World) -> Vec<(String, Answer)> {
    let node = world.node();
    let is_over = Cell::new(false);
    let client = async |client: usize| {
        let mut answers = Vec::new();
        for number in 0..PAYMENTS_EACH {
            let reference = format!("load-{client}-{number}");
            let paid = world.pay(&node, &reference).await;
            assert_eq!(world.pay(&node, &reference).await.code(), paid.code());
            answers.push((reference, paid));
        }
        answers
    };
    let paying = async {
        let answers = join_all((0..CLIENTS).map(client)).await;
        is_over.set(true);
        answers.into_iter().flatten().collect()
    };
    let (answers, kills) = tokio::join!(paying, kill_again_and_again(world, &node, &is_over));
    assert!(kills > 0, "the load was over before anything was killed");
    answers
}

/// Each time in the middle of something: the bank has just been called.
async fn kill_again_and_again(world: &World, node: &Node, is_over: &Cell<bool>) -> usize {
    for kill in 0..KILLS {
        let seen = world.ledger_len();
        let is_called = async || is_over.get() || world.ledger_len() >= seen + 3;
        eventually("calls to the bank", is_called).await;
        if is_over.get() {
            return kill;
        }
        node.kill_9();
        node.revive();
    }
    KILLS
}

async fn killed_under_load_every_payment_is_made_once(store: Store) {
    let world = World::new(store, Memory::Remembers);
    for (reference, paid) in paid_while_killed(&world).await {
        assert_eq!(paid.status, 201, "{paid:?}");
        assert_eq!(world.times("authorizations", &reference), 1, "{reference}");
    }
    let payments = world.payments().await;
    assert_eq!(payments.len(), CLIENTS * PAYMENTS_EACH);
    assert!(payments.values().all(|states| *states == ["authorized"]), "{payments:?}");
}

async fn killed_under_load_no_payment_at_a_bank_that_forgets_is_made_twice(store: Store) {
    let world = World::new(store, Memory::Forgets);
    for (reference, paid) in paid_while_killed(&world).await {
        let made = world.times("authorizations", &reference);
        match paid.status {
            201 => assert_eq!(made, 1, "{reference}"),
            _ => assert!(paid.is_unknown() && made <= 1, "{reference}: {made}, {paid:?}"),
        }
    }
    assert!(world.payments().await.values().all(|states| states.len() == 1));
}
