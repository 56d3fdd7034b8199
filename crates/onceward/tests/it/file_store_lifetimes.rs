//! Futures that are dropped, stores that are closed while busy, and runtimes that end.

use std::{future::Future, sync::Arc, task::Poll, time::Duration};

use futures_util::future::join_all;
use onceward::{
    Store,
    record::{AttemptId, State},
    store::{Ask, Reservation, StoreErrorKind, Write, Written},
};
use tokio::{runtime, time::timeout};

use crate::file_store::{ask, directory, granted, open, reply};

/// Nothing here may take longer, however slow the machine.
const FOR_EVER: Duration = Duration::from_secs(30);

/// Polls a future so many times and drops it.
async fn poll_and_drop<T>(future: impl Future<Output = T>, times: usize) -> Option<T> {
    let mut future = Box::pin(future);
    for _ in 0..times {
        let polled = std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context)));
        if let Poll::Ready(output) = polled.await {
            return Some(output);
        }
        tokio::task::yield_now().await;
    }
    None
}

#[tokio::test]
async fn a_call_dropped_at_any_await_happened_as_a_whole_or_not_at_all() {
    let directory = directory();
    let store = open(&directory.path().join("store.db")).await.expect("a store");
    for times in 0..40 {
        let ask = ask(&format!("order-{times}"));
        // Company makes it a batch, every other time.
        let company = (times % 2 == 0).then(|| crate::file_store::ask(&format!("other-{times}")));
        let company = join_all(company.into_iter().map(|ask| store.reserve(ask)));
        let (dropped, _) = tokio::join!(poll_and_drop(store.reserve(ask.clone()), times), company);
        let seen = store.load(&ask.id).await.expect("an answer");
        assert!(dropped.is_none() || seen.is_some(), "an answer means that it happened");
        let lease = granted(&store, &ask).await;
        if let Some(record) = seen {
            assert_eq!((record.state, record.fence), (State::InProgress, lease.fence));
        }
        let complete = || store.write(&lease, Write::Complete(reply(b"paid")));
        let dropped = poll_and_drop(complete(), times).await;
        let again = complete().await.expect("an answer");
        match (dropped, again) {
            (_, Written::AlreadyMine(Some(stored))) => assert_eq!(stored, reply(b"paid")),
            (None, Written::Applied) => {}
            other => panic!("{times}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn every_caller_of_close_returns_after_the_file_is_closed() {
    let directory = directory();
    let store = open(&directory.path().join("store.db")).await.expect("a store");
    let busy = join_all((0..50).map(|number| store.reserve(ask(&format!("order-{number}")))));
    let is_closed = || async {
        store.close().await;
        !directory.path().join("store.db-wal").exists()
    };
    // Comes when the line is closed already and the file may not be.
    let late = async {
        while store.ping().await.is_ok() {
            tokio::task::yield_now().await;
        }
        is_closed().await
    };
    let (answers, first, second, third) = tokio::join!(busy, is_closed(), is_closed(), late);
    assert!(answers.iter().all(|answer| matches!(answer, Ok(Reservation::Granted { .. }))));
    assert!(first, "the first caller returned before the file was closed");
    assert!(second, "the second caller returned before the file was closed");
    assert!(third, "the third caller returned before the file was closed");
    timeout(FOR_EVER, store.close()).await.expect("closing once more does nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_while_many_stand_in_line_answers_every_one_of_them() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let store = Arc::new(open(&path).await.expect("a store"));
    // More than have a place in line.
    let calls: Vec<_> = (0..6000)
        .map(|number| {
            let store = Arc::clone(&store);
            let ask = ask(&format!("order-{number}"));
            tokio::spawn(async move { (ask.id.clone(), store.reserve(ask).await) })
        })
        .collect();
    tokio::task::yield_now().await;
    timeout(FOR_EVER, store.close()).await.expect("closed");
    let answers = timeout(FOR_EVER, join_all(calls)).await.expect("all are answered");
    let store = open(&path).await.expect("a store");
    let (mut granted, mut refused) = (0, 0);
    for answer in answers {
        let (id, answer) = answer.expect("no panic");
        let there = store.load(&id).await.expect("an answer").is_some();
        match answer {
            Ok(Reservation::Granted { .. }) => {
                assert!(there, "granted and lost");
                granted += 1;
            }
            Err(error) if error.kind() == StoreErrorKind::Unavailable => {
                assert!(!there, "refused and done");
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    eprintln!("{granted} granted, {refused} refused");
    assert_eq!(granted + refused, 6000);
}

#[test]
fn a_store_whose_runtime_is_gone_says_so_and_does_not_hang() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let first = runtime::Runtime::new().expect("a runtime");
    let second = runtime::Runtime::new().expect("a runtime");
    let store = Arc::new(first.block_on(open(&path)).expect("a store"));
    // Another runtime may call while the one that opened the store lives.
    let lease = second.block_on(granted(&*store, &ask("order-1")));
    // Calls that are on their way when it ends.
    let calls: Vec<_> = (0..2000)
        .map(|number| {
            let store = Arc::clone(&store);
            let ask = ask(&format!("storm-{number}"));
            second.spawn(async move { (ask.clone(), store.reserve(ask).await) })
        })
        .collect();
    first.shutdown_timeout(Duration::from_secs(5));
    let answers = second.block_on(async {
        let late = timeout(FOR_EVER, store.write(&lease, Write::Complete(reply(b"late")))).await;
        let error = late.expect("no hang").expect_err("nobody is there to write");
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("closed"), "{error}");
        timeout(FOR_EVER, join_all(calls)).await.expect("no hang")
    });
    second.block_on(async {
        let store = open(&path).await.expect("the file is whole");
        for answer in answers {
            let (ask, answer) = answer.expect("no panic");
            let again = Ask { attempt: AttemptId::random(), ..ask };
            let free = matches!(
                store.reserve(again).await.expect("an answer"),
                Reservation::Granted { .. }
            );
            match answer {
                Ok(Reservation::Granted { .. }) => assert!(!free, "granted and lost"),
                Ok(other) => panic!("{other:?}"),
                Err(error) => match error.kind() {
                    StoreErrorKind::Unavailable => assert!(free, "refused and done"),
                    StoreErrorKind::Ambiguous => {}
                    StoreErrorKind::Corrupt => panic!("{error}"),
                },
            }
        }
    });
}

#[tokio::test]
async fn a_store_that_is_dropped_with_calls_in_line_does_them_and_closes_the_file() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let store = open(&path).await.expect("a store");
    for number in 0..20 {
        assert!(poll_and_drop(store.reserve(ask(&format!("order-{number}"))), 1).await.is_none());
    }
    drop(store);
    let log = directory.path().join("store.db-wal");
    let closed = async {
        while log.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(FOR_EVER, closed).await.expect("the file is closed");
    let store = open(&path).await.expect("a store");
    for number in 0..20 {
        let record = store.load(&ask(&format!("order-{number}")).id).await.expect("an answer");
        assert_eq!(record.expect("done").state, State::InProgress, "order-{number}");
    }
}
