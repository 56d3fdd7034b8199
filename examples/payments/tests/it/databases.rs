//! PostgreSQL dies under load, and connections to it are cut at their commits.

use std::sync::Arc;

use futures_util::future::join_all;
use onceward_testbed::{CutProxy, Postgres, READY_FOR_QUERY};
use serde_json::json;

use crate::support::{Memory, Store, World, eventually};

const LOAD: usize = 24;

#[tokio::test(flavor = "multi_thread")]
async fn postgres_is_killed_under_load_and_every_payment_is_made_once() {
    let mut postgres = Postgres::start();
    let url = postgres.url("postgres");
    let world = Arc::new(World::new(Store::at(&url, &url), Memory::Remembers));
    let node = Arc::new(world.node());
    let pay = |number: usize| {
        let (world, node) = (Arc::clone(&world), Arc::clone(&node));
        tokio::spawn(async move {
            let reference = format!("load-{number}");
            let paid = world.pay(&node, &reference).await;
            assert_eq!(world.pay(&node, &reference).await.bytes(), paid.bytes());
            (reference, paid)
        })
    };
    let paying: Vec<_> = (0..LOAD).map(pay).collect();
    for kill in 1..=2 {
        eventually("calls to the bank", async || world.ledger_len() >= kill * LOAD / 4).await;
        postgres.kill_9();
        postgres.start_again();
    }
    for paid in join_all(paying).await {
        let (reference, paid) = paid.expect("it ended");
        assert_eq!(paid.status, 201, "{paid:?}");
        assert_eq!(world.times("authorizations", &reference), 1, "{reference}");
    }
    let payments = world.payments().await;
    assert_eq!(payments.len(), LOAD);
    assert!(payments.values().all(|states| *states == ["authorized"]), "{payments:?}");
}

/// Which commit of a payment is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Commit {
    First,
    Last,
}

/// At a bank that forgets: a payment that was made twice would show.
#[tokio::test(flavor = "multi_thread")]
async fn cut_at_a_commit_a_payment_is_made_once() {
    let postgres = Postgres::shared();
    let database = postgres.create_database();
    let proxy = CutProxy::start(postgres.address());
    let through = postgres.url_through(proxy.address(), database.name());
    let world = World::new(Store::at(&through, &database.url()), Memory::Forgets).lease("10s");
    let node = world.node_without_messages();
    let mut cuts = 0;
    for commit in [Commit::First, Commit::Last] {
        for was_done in [true, false] {
            let reference = format!("{commit:?}-{was_done}");
            let arm = || match was_done {
                true => proxy.cut_after(b"COMMIT", READY_FOR_QUERY),
                false => proxy.cut_before(b"COMMIT"),
            };
            // Time to set the trap while the bank is at work, between the two commits.
            let delay_ms = if commit == Commit::Last { 1000 } else { 0 };
            world.faults(json!({ "delay_ms": delay_ms })).await;
            if commit == Commit::First {
                arm();
            }
            let (paid, ()) = tokio::join!(world.pay(&node, &reference), async {
                if commit == Commit::Last {
                    let is_called = async || world.times("authorizations", &reference) == 1;
                    eventually("the call", is_called).await;
                    arm();
                }
            });
            cuts += 1;
            assert_eq!(proxy.sprung(), cuts, "{reference}");
            assert_eq!(paid.status, 201, "{reference}: {paid:?}");
            assert_eq!(world.pay(&node, &reference).await.bytes(), paid.bytes());
            assert_eq!(world.times("authorizations", &reference), 1, "{reference}");
            assert_eq!(world.payments().await[&reference], ["authorized"]);
        }
    }
}
