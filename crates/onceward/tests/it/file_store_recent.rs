//! What a process remembers of the records it wrote, and when it does not rely on it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use http::StatusCode;
use onceward::{
    Reply, SqliteStore, Store,
    record::{AttemptId, Lease, State},
    store::{Ask, Reservation, Resolution, Resolve, Write, Written},
};
use sqlx::Connection as _;

use crate::file_store::{ask, directory, granted, open, raw, reply, run_sql};

fn again(key: &str) -> Ask {
    Ask { attempt: AttemptId::random(), ..ask(key) }
}

/// Completes these keys in one batch.
async fn completed(store: &SqliteStore, keys: &[&str]) -> Vec<Lease> {
    let leases = join_all(keys.iter().map(|key| async { granted(store, &ask(key)).await })).await;
    let complete = |lease| store.write(lease, Write::Complete(reply(b"paid")));
    for written in join_all(leases.iter().map(complete)).await {
        assert_eq!(written.expect("an answer"), Written::Applied);
    }
    leases
}

async fn replayed(store: &SqliteStore, key: &str) -> bool {
    match store.reserve(again(key)).await.expect("an answer") {
        Reservation::Occupied { record, .. } => record.reply == Some(reply(b"paid")),
        _ => false,
    }
}

#[tokio::test]
async fn replays_of_recent_replies_wait_for_no_other_process_that_writes() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let store = open(&path).await.expect("a store");
    completed(&store, &["order-1", "order-2"]).await;
    let mut other = raw(&path).await;
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut other).await.expect("the write lock");
    let replays = join_all(["order-1", "order-2"].map(|key| replayed(&store, key)));
    assert_eq!(replays.await, [true, true]);
    let first = tokio::time::timeout(Duration::from_millis(200), store.reserve(ask("order-3")));
    assert!(first.await.is_err(), "a new key needs the lock");
    other.close().await.expect("closed");
}

#[tokio::test]
async fn who_repeats_a_write_waits_for_another_process_that_writes() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let store = open(&path).await.expect("a store");
    let lease = completed(&store, &["order-1"]).await.remove(0);
    let mut other = raw(&path).await;
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut other).await.expect("the write lock");
    // Its commit may be on its way, and nobody sees it without the lock.
    let mut repeat = std::pin::pin!(store.write(&lease, Write::Complete(reply(b"paid"))));
    let early = tokio::time::timeout(Duration::from_millis(200), repeat.as_mut()).await;
    assert!(early.is_err(), "{early:?}");
    sqlx::raw_sql("ROLLBACK").execute(&mut other).await.expect("released");
    let written = repeat.await.expect("an answer");
    assert_eq!(written, Written::AlreadyMine(Some(reply(b"paid"))));
}

/// Bytes that somebody counts: a limit of memory, or the buffer of a connection.
struct Counted {
    _by: Arc<()>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        b"paid"
    }
}

#[tokio::test]
async fn what_is_remembered_does_not_hold_the_memory_that_a_reply_came_in() {
    let directory = directory();
    let store = open(&directory.path().join("store.db")).await.expect("a store");
    let lease = granted(&store, &ask("order-1")).await;
    let counted = Arc::new(());
    let body = Bytes::from_owner(Counted { _by: Arc::clone(&counted) });
    let write = Write::Complete(Reply::new(StatusCode::CREATED, body));
    assert_eq!(store.write(&lease, write).await.expect("an answer"), Written::Applied);
    assert_eq!(Arc::strong_count(&counted), 1);
}

#[tokio::test]
async fn a_reply_that_another_process_voided_is_not_replayed_any_more() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let (ours, theirs) = (open(&path).await.expect("a store"), open(&path).await.expect("another"));
    let leases = completed(&ours, &["order-1", "order-2"]).await;
    assert!(replayed(&ours, "order-1").await && replayed(&ours, "order-2").await);
    let lease = &leases[0];
    let void = Resolve {
        id: lease.id.clone(),
        generation: lease.generation,
        fence: lease.fence,
        resolution: Resolution::Void,
        reason: "test".into(),
    };
    let _ = theirs.resolve(void).await.expect("an answer");
    let granted = ours.reserve(again("order-1")).await.expect("an answer");
    assert!(matches!(granted, Reservation::Granted { .. }), "{granted:?}");
    assert!(replayed(&ours, "order-2").await, "the other one is still there");
}

#[tokio::test]
async fn a_batch_of_completions_sees_what_another_process_did_to_one_of_them() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let store = open(&path).await.expect("a store");
    let asks = ["order-1", "order-2", "order-3"].map(ask);
    let leases = join_all(asks.iter().map(|ask| granted(&store, ask))).await;
    run_sql(
        &path,
        "UPDATE onceward_records SET state = 'unknown', fence = fence + 1 WHERE key = 'order-2'",
    )
    .await;
    let complete = |lease| store.write(lease, Write::Complete(reply(b"paid")));
    for (lease, written) in leases.iter().zip(join_all(leases.iter().map(complete)).await) {
        let written = written.expect("an answer");
        let superseded = matches!(written, Written::Superseded(Some(_)));
        assert_eq!(superseded, lease.id.key.as_str() == "order-2", "{written:?}");
        let record = store.load(&lease.id).await.expect("an answer").expect("a record");
        assert_eq!(record.state == State::Completed, !superseded);
    }
}

#[tokio::test]
async fn what_is_completed_in_a_batch_is_in_the_file_as_it_is_remembered() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let store = open(&path).await.expect("a store");
    let leases = completed(&store, &["order-1", "order-2", "order-3"]).await;
    let remembered = join_all(leases.iter().map(|lease| store.load(&lease.id))).await;
    drop(store);
    let store = open(&path).await.expect("the same store");
    for (lease, remembered) in leases.iter().zip(remembered) {
        let stored = store.load(&lease.id).await.expect("an answer");
        assert_eq!(stored, remembered.expect("an answer"));
        assert_eq!(stored.expect("a record").reply, Some(reply(b"paid")));
    }
}

#[tokio::test]
async fn the_log_does_not_grow_for_as_long_as_requests_come() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let store = Arc::new(open(&path).await.expect("a store"));
    let callers = (0..64).map(|caller| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            for number in 0..150 {
                let lease = granted(&*store, &ask(&format!("{caller}-{number}"))).await;
                let written = store.write(&lease, Write::Complete(reply(&[b'x'; 1000]))).await;
                assert_eq!(written.expect("an answer"), Written::Applied);
            }
        })
    });
    for caller in join_all(callers).await {
        caller.expect("no panic");
    }
    let log = std::fs::metadata(directory.path().join("store.db-wal")).expect("there").len();
    assert!(log < 24 << 20, "{log} bytes, of far more that were written to it");
}
