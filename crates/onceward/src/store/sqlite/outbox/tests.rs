//! What only this outbox has: its plans, its damaged rows, and what it shares a transaction with.

use std::sync::Arc;

use sqlx::Connection as _;
use tempfile::TempDir;

use super::*;
use crate::{
    clock::ManualClock,
    store::{Store as _, StoreErrorKind, sqlite::SqliteOptions},
    testing::outbox::{OutboxHarness, SINK, done, message},
};

async fn outbox() -> (TempDir, OutboxHarness, SqliteConnection) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store.db");
    let clock = ManualClock::default();
    let options = SqliteOptions::new(&path).clock(Arc::new(clock.clone()));
    let store = Arc::new(SqliteStore::open(options).await.expect("a store"));
    let url = format!("sqlite://{}", path.display());
    let raw = SqliteConnection::connect(&url).await.expect("a connection");
    (directory, OutboxHarness { store: store.clone(), outbox: store, clock }, raw)
}

async fn plan(raw: &mut SqliteConnection, sql: &str) -> String {
    let explain = sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}"));
    let steps: Vec<(i64, i64, i64, String)> =
        sqlx::query_as(explain).fetch_all(raw).await.expect("a plan");
    steps.into_iter().map(|step| step.3).collect::<Vec<_>>().join("; ")
}

#[tokio::test]
async fn every_statement_finds_what_it_looks_for_by_an_index() {
    let (_directory, _on, mut raw) = outbox().await;
    for (sql, index) in [
        (DUE, "onceward_outbox_ready"),
        (DUE, "onceward_outbox_aggregate"),
        (RUN_OUT, "onceward_outbox_delivering"),
        (MINE, "onceward_outbox_claim"),
        (CLAIM, "PRIMARY KEY"),
        (DONE, "PRIMARY KEY"),
        (LET_GO, "onceward_outbox_aggregate"),
        (STAGE, "onceward_outbox_aggregate"),
        (LIST_OPEN, "onceward_outbox_open"),
        (LIST, "PRIMARY KEY"),
        (SHOW_OPEN, "onceward_outbox_open"),
        (SHOW, "PRIMARY KEY"),
        (SHOW_ONE, "PRIMARY KEY"),
        (REMEMBER_REDRIVEN, "PRIMARY KEY"),
        (REMEMBER_DISCARDED, "PRIMARY KEY"),
        (REDRIVE, "PRIMARY KEY"),
        (DISCARD, "PRIMARY KEY"),
        (PURGEABLE, "onceward_outbox_done"),
        (PURGE, "PRIMARY KEY"),
    ] {
        let plan = plan(&mut raw, sql).await;
        assert!(plan.contains(index), "{index}: {plan}\n{sql}");
        assert!(!plan.contains("SCAN onceward_outbox"), "{plan}\n{sql}");
        assert!(!plan.contains("TEMP B-TREE"), "{plan}\n{sql}");
    }
    let twin = plan(&mut raw, "SELECT 1 FROM onceward_outbox WHERE last_error = 'x'").await;
    assert!(twin.contains("SCAN onceward_outbox"), "the twin without an index: {twin}");
}

#[tokio::test]
async fn what_is_held_behind_a_dead_letter_is_not_looked_at_by_claims() {
    let (_directory, on, mut raw) = outbox().await;
    on.staged((0..50).map(|number| message(&format!("m-{number}")).aggregate("order-1"))).await;
    let held = "SELECT count(*) FROM onceward_outbox WHERE state = 'ready' AND held = 0";
    let held: i64 = sqlx::query_scalar(held).fetch_one(&mut raw).await.expect("a number");
    assert_eq!(held, 1, "the head only");
    // A flag that is wrong is no way around the order.
    let forged = "UPDATE onceward_outbox SET held = 0";
    sqlx::query(forged).execute(&mut raw).await.expect("forged");
    assert_eq!(on.claim(100).await.1.len(), 1);
}

#[tokio::test]
async fn a_message_that_cannot_be_read_is_a_dead_letter_and_in_nobodys_way() {
    let (_directory, on, mut raw) = outbox().await;
    let ids = on.staged(["a", "b"].map(message)).await;
    let damage = "UPDATE onceward_outbox SET generation = 99999999999 WHERE message_id = ?";
    sqlx::query(damage).bind(ids[0].number()).execute(&mut raw).await.expect("damaged");
    assert_eq!(on.claimed_ids(10).await, ids[1..]);
    let error = on.outbox.list(MessageState::Dead, None, 10).await.expect_err("not absent");
    let cause = std::error::Error::source(&error).expect("a cause").to_string();
    assert!(cause.contains(&format!("message {}", ids[0])), "{cause}");
    // Nobody can look at it but in the table.
    let fence = sqlx::query_scalar("SELECT fence FROM onceward_outbox WHERE message_id = ?");
    let fence: i64 = fence.bind(ids[0].number()).fetch_one(&mut raw).await.expect("a fence");
    let letter = DeadLetter { message_id: ids[0], fence: Fence::from_stored(fence) };
    let discarded = on.outbox.discard(&[letter], "ticket 7").await.expect("discard answers");
    assert_eq!(discarded, ids[..1]);
    assert_eq!(on.outbox.list(MessageState::Dead, None, 10).await.expect("list answers"), []);
}

#[tokio::test]
async fn settlements_that_come_together_share_a_transaction_and_each_gets_its_own_answer() {
    let (_directory, on, _raw) = outbox().await;
    on.staged((0..100).map(|number| message(&format!("m-{number:03}")))).await;
    let (attempt, claimed) = on.claim(100).await;
    let stranger = AttemptId::random();
    let settled = claimed.iter().enumerate().map(|(number, claimed)| {
        let attempt = if number % 3 == 0 { stranger } else { attempt };
        on.settle(attempt, claimed, done(&format!("p-{}", claimed.message.name)))
    });
    let settled = futures_util::future::join_all(settled).await;
    let expected: Vec<bool> = (0..100).map(|number| number % 3 != 0).collect();
    assert_eq!(settled, expected);
    for stored in on.outbox.list(MessageState::Done, None, 100).await.expect("list answers") {
        let expected = format!("p-{}", stored.message.name);
        assert_eq!(stored.provider_id.as_deref(), Some(&*expected));
    }
}

#[tokio::test]
async fn a_file_that_is_full_refuses_a_message_and_keeps_the_others() {
    let directory = tempfile::tempdir().expect("a directory");
    let clock = ManualClock::default();
    let options = SqliteOptions::new(directory.path().join("store.db")).bytes_max(400_000);
    let store = SqliteStore::open(options.clock(Arc::new(clock.clone()))).await.expect("a store");
    let store = Arc::new(store);
    let on = OutboxHarness { store: store.clone(), outbox: store.clone(), clock };
    let lease = on.begun("order-1").await;
    let large = Message::new("large", SINK, vec![0; 1 << 20]);
    let small = message("small");
    let (large, small) =
        tokio::join!(on.outbox.stage(&lease, large), on.outbox.stage(&lease, small));
    let error = large.expect_err("no room");
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
    assert_eq!(small.expect("stage answers"), Staged::Applied, "its neighbour is not to blame");
    assert_eq!(on.claim_one().await.1.message, message("small"));
    store.ping().await.expect("it is well");
}
