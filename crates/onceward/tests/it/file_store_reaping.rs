//! A file that is reaped while requests come.

use std::{pin::pin, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use onceward::{
    SqliteOptions, SqliteStore, Store,
    clock::ManualClock,
    store::{Ask, Reaped, Reservation, Write},
};
use tempfile::TempDir;

use crate::file_store::{ask, directory, granted, reply};

const DAY: Duration = Duration::from_secs(86_400);

/// A store with so many records whose time is over, tombstones and all.
async fn with_records_of_the_past(count: usize) -> (TempDir, SqliteStore) {
    let directory = directory();
    let clock = ManualClock::default();
    let options = SqliteOptions::new(directory.path().join("store.db"));
    let store = SqliteStore::open(options.clock(Arc::new(clock.clone()))).await.expect("a store");
    for number in 0..count {
        let ask = Ask { tombstone: Duration::ZERO, ..ask(&format!("past-{number}")) };
        let lease = granted(&store, &ask).await;
        let _ = store.write(&lease, Write::Complete(reply(b"paid"))).await.expect("an answer");
    }
    clock.advance(2 * DAY);
    (directory, store)
}

/// Lets the writer take what stands in line.
async fn begin() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_request_that_comes_while_a_file_is_reaped_is_answered_first() {
    let (_directory, store) = with_records_of_the_past(100).await;
    let mut reaping = pin!(store.reap(100));
    assert!(reaping.as_mut().now_or_never().is_none());
    begin().await;
    let reserved = store.reserve(ask("present")).await.expect("an answer");
    assert!(matches!(reserved, Reservation::Granted { .. }), "{reserved:?}");
    assert!(reaping.as_mut().now_or_never().is_none(), "it was not waited for");
    let reaped = reaping.await.expect("an answer");
    assert_eq!(reaped, Reaped { expired: 0, purged: 100 }, "all that was asked for");
    assert!(store.load(&ask("present").id).await.expect("an answer").is_some());
}

#[tokio::test]
async fn two_reaps_at_once_remove_each_record_once_and_a_limit_holds() {
    let (_directory, store) = with_records_of_the_past(60).await;
    let (first, second) = tokio::join!(store.reap(25), store.reap(25));
    let reaped = Reaped { expired: 0, purged: 25 };
    assert_eq!((first.expect("an answer"), second.expect("an answer")), (reaped, reaped));
    assert_eq!(store.reap(25).await.expect("an answer"), Reaped { expired: 0, purged: 10 });
    assert_eq!(store.reap(25).await.expect("an answer"), Reaped::default());
}

#[tokio::test]
async fn a_file_that_is_closed_while_it_is_reaped_is_reaped_first() {
    let (_directory, store) = with_records_of_the_past(100).await;
    let mut reaping = pin!(store.reap(100));
    assert!(reaping.as_mut().now_or_never().is_none());
    begin().await;
    store.close().await;
    assert_eq!(reaping.await.expect("an answer").purged, 100);
}
