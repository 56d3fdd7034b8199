//! What the DynamoDB store alone promises: lost answers, back-pressure, sizes, a table that is gone.

use std::sync::Arc;

use aws_sdk_dynamodb::types::AttributeValue;
use http::StatusCode;
use onceward::{
    Canary, DynamoStore, Reply, Store as _,
    record::State,
    reply::ReplyBody,
    store::{DynamoOpenError, Found, Reservation, StoreErrorKind, Write, Written},
    testing::samples::{ask, intend, phased, reply, retry, save},
};
use onceward_testbed::{CutProxy, DynamoDb};
use tokio::task::JoinSet;

use crate::{
    dynamodb_home::{Between, client_at, grant, items, new_table, options_at, store_at},
    postgres_home::insist,
};

/// What the emulator is believed: of many conditional writes at once exactly one is made.
#[tokio::test]
async fn the_emulator_lets_one_of_twelve_racing_writes_win() {
    let endpoint = DynamoDb::shared().endpoint();
    let table = new_table();
    let _store = store_at(&endpoint, &table).await;
    let client = client_at(&endpoint);
    for round in 0..50 {
        let mut racing = JoinSet::new();
        for racer in 0..12 {
            let (client, table) = (client.clone(), table.clone());
            racing.spawn(async move {
                let put = client
                    .put_item()
                    .table_name(table)
                    .item("pk", AttributeValue::S(format!("race-{round}")))
                    .item("sk", AttributeValue::S("x".to_owned()))
                    .item("racer", AttributeValue::N(racer.to_string()))
                    .condition_expression("attribute_not_exists(pk)");
                put.send().await.is_ok()
            });
        }
        let won = racing.join_all().await.into_iter().filter(|won| *won).count();
        assert_eq!(won, 1, "round {round}");
    }
}

async fn behind_a_proxy() -> (DynamoStore, CutProxy) {
    let proxy = CutProxy::start(DynamoDb::shared().address());
    let store = store_at(&format!("http://{}", proxy.address()), &new_table()).await;
    (store, proxy)
}

#[tokio::test]
async fn a_reserve_whose_answer_is_lost_is_granted_once_to_the_same_attempt() {
    let (store, proxy) = behind_a_proxy().await;
    let asked = ask("answer-lost-0001");
    proxy.cut_after(b"answer-lost-0001", b"");
    let epoch = store.epoch();
    let error = store.reserve(asked.clone()).await.expect_err("the answer is lost");
    assert_eq!((error.kind(), proxy.sprung()), (StoreErrorKind::Ambiguous, 1));
    assert_ne!(store.epoch(), epoch, "it may be another server from here on");
    let answer = insist(|| store.reserve(asked.clone())).await;
    let Reservation::Granted { lease, found: Found::Mine } = answer else {
        panic!("expected the grant that was lost: {answer:?}");
    };
    let record = store.load(&asked.id).await.expect("load answers").expect("a record");
    assert_eq!((record.attempts, record.fence), (1, lease.fence));
    let other = store.reserve(retry(&asked)).await.expect("reserve answers");
    assert!(matches!(other, Reservation::Occupied { .. }), "{other:?}");
}

#[tokio::test]
async fn a_reserve_that_never_arrived_is_granted_when_it_is_repeated() {
    let (store, proxy) = behind_a_proxy().await;
    let asked = ask("never-arrived-0001");
    proxy.cut_before(b"never-arrived-0001");
    let error = store.reserve(asked.clone()).await.expect_err("the connection broke");
    assert_eq!((error.kind(), proxy.sprung()), (StoreErrorKind::Ambiguous, 1));
    let answer = insist(|| store.reserve(asked.clone())).await;
    assert!(matches!(answer, Reservation::Granted { found: Found::Absent, .. }), "{answer:?}");
}

#[tokio::test]
async fn writes_whose_answers_are_lost_are_applied_once() {
    let (store, proxy) = behind_a_proxy().await;
    let completed = grant(&store, &ask("completed-0001")).await;
    proxy.cut_after(b"completed-0001", b"");
    let write = Write::Complete(reply("done"));
    let error = store.write(&completed, write.clone()).await.expect_err("the answer is lost");
    assert_eq!(error.kind(), StoreErrorKind::Ambiguous);
    let again = insist(|| store.write(&completed, write.clone())).await;
    assert_eq!(again, Written::AlreadyMine(Some(reply("done"))));

    let released = grant(&store, &ask("released-0001")).await;
    proxy.cut_after(b"failed_retryable", b"");
    let write = Write::Release("declined".into());
    let error = store.write(&released, write.clone()).await.expect_err("the answer is lost");
    assert_eq!(error.kind(), StoreErrorKind::Ambiguous);
    let again = insist(|| store.write(&released, write.clone())).await;
    assert_eq!(again, Written::AlreadyMine(None));
    assert_eq!(proxy.sprung(), 2);
}

#[tokio::test]
async fn a_step_whose_answer_is_lost_is_saved_once() {
    let (store, proxy) = behind_a_proxy().await;
    let lease = grant(&store, &phased("stepped-0001")).await;
    proxy.cut_after(b"step#", b"");
    let step = save("charge", "42");
    let error = store.advance(&lease, step.clone()).await.expect_err("the answer is lost");
    assert_eq!(error.kind(), StoreErrorKind::Ambiguous);
    let again = insist(|| store.advance(&lease, step.clone())).await;
    assert_eq!(again, onceward::store::Advanced::AlreadyMine);
    assert_eq!(store.steps(&lease.id, 1).await.expect("steps answers").len(), 1);
}

#[tokio::test]
async fn what_is_throttled_is_made_again_within_its_time() {
    for code in
        ["ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded"]
    {
        let between = Between::start(DynamoDb::shared().address(), code).await;
        let store = store_at(&between.endpoint(), &new_table()).await;
        let calls = between.calls.load(std::sync::atomic::Ordering::SeqCst);
        between.throttled.store(3, std::sync::atomic::Ordering::SeqCst);
        let lease = grant(&store, &ask("throttled-0001")).await;
        let made = between.calls.load(std::sync::atomic::Ordering::SeqCst) - calls;
        assert_eq!(made, 4, "three were refused with {code}");
        let written = store.write(&lease, Write::Complete(reply("done"))).await;
        assert_eq!(written.expect("write answers"), Written::Applied);
    }
}

#[tokio::test]
async fn what_is_throttled_for_too_long_is_unavailable_and_was_not_done() {
    let code = "ProvisionedThroughputExceededException";
    let between = Between::start(DynamoDb::shared().address(), code).await;
    let store = store_at(&between.endpoint(), &new_table()).await;
    between.throttled.store(u32::MAX, std::sync::atomic::Ordering::SeqCst);
    let asked = ask("throttled-0001");
    let error = store.reserve(asked.clone()).await.expect_err("throttled");
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    between.throttled.store(0, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(store.load(&asked.id).await.expect("load answers"), None);
}

#[tokio::test]
async fn a_clock_that_is_far_off_decides_nothing_but_completes_what_it_began() {
    let between = Between::start(DynamoDb::shared().address(), "unused").await;
    let store = store_at(&between.endpoint(), &new_table()).await;
    let lease = grant(&store, &ask("begun-0001")).await;
    for ahead in [60, -60] {
        between.ahead.store(ahead, std::sync::atomic::Ordering::SeqCst);
        store.ping().await.expect("a ping answers");
        let (off, _) = store.clock_skew();
        assert!(off.as_secs() > 50, "{off:?}");
        let refused = [
            store.reserve(ask("another-0001")).await.expect_err("refused"),
            store.sweep(10).await.expect_err("refused"),
            store.reap(10).await.expect_err("refused"),
        ];
        assert!(refused.iter().all(|error| error.kind() == StoreErrorKind::Unavailable));
    }
    let written = store.write(&lease, Write::Complete(reply("done"))).await;
    assert_eq!(written.expect("write answers"), Written::Applied);
    between.ahead.store(0, std::sync::atomic::Ordering::SeqCst);
    store.ping().await.expect("a ping answers");
    let _lease = grant(&store, &ask("another-0001")).await;
}

#[tokio::test]
async fn a_body_that_is_too_large_for_an_item_is_completed_without_it() {
    let store = store_at(&DynamoDb::shared().endpoint(), &new_table()).await;
    let cap = store.reply_cap();
    assert_eq!(cap, 300 * 1024);
    for (key, length, kept) in [("just-fits-0001", cap, true), ("too-large-0001", cap + 1, false)] {
        let asked = ask(key);
        let lease = grant(&store, &asked).await;
        let large = Reply::new(StatusCode::CREATED, vec![7; length]);
        let written = store.write(&lease, Write::Complete(large)).await;
        assert_eq!(written.expect("write answers"), Written::Applied);
        let record = store.load(&asked.id).await.expect("load answers").expect("a record");
        let stored = record.reply.expect("a reply");
        assert_eq!((record.state, stored.status), (State::Completed, StatusCode::CREATED));
        assert_eq!(stored.body != ReplyBody::NotStored, kept, "{key}");
    }
}

#[tokio::test]
async fn what_was_beside_a_record_is_gone_when_it_ends() {
    let table = new_table();
    let endpoint = DynamoDb::shared().endpoint();
    let (store, client) = (store_at(&endpoint, &table).await, client_at(&endpoint));
    let lease = grant(&store, &phased("phased-0001")).await;
    for step in [save("book", "1"), intend("charge", true), save("charge", "2")] {
        let advanced = store.advance(&lease, step).await.expect("advance answers");
        assert_eq!(advanced, onceward::store::Advanced::Applied);
    }
    assert!(items(&client, &table).await.len() >= 3, "the record and its steps");
    let written = store.write(&lease, Write::Complete(reply("done"))).await;
    assert_eq!(written.expect("write answers"), Written::Applied);
    assert_eq!(items(&client, &table).await.len(), 1, "the record alone");
}

#[tokio::test]
async fn a_table_is_made_once_and_refused_when_it_is_not_ours() {
    let endpoint = DynamoDb::shared().endpoint();
    let table = new_table();
    let missing = DynamoStore::open(options_at(&endpoint, &table).create_table(false)).await;
    assert!(matches!(missing, Err(DynamoOpenError::NoTable(name)) if name == table));
    let mut opening = JoinSet::new();
    for _ in 0..4 {
        let options = options_at(&endpoint, &table);
        opening.spawn(async { DynamoStore::open(options).await.map(drop) });
    }
    for opened in opening.join_all().await {
        opened.expect("whoever comes first makes it");
    }
    let again = DynamoStore::open(options_at(&endpoint, &table).create_table(false)).await;
    again.expect("it is there").ping().await.expect("a ping answers");
    let other = client_at(&endpoint)
        .update_item()
        .table_name(&table)
        .key("pk", AttributeValue::S("meta".to_owned()))
        .key("sk", AttributeValue::S("schema".to_owned()))
        .update_expression("SET version = :v REMOVE compatible_since")
        .expression_attribute_values(":v", AttributeValue::N("9".to_owned()));
    other.send().await.expect("changed");
    let refused = DynamoStore::open(options_at(&endpoint, &table)).await;
    assert!(matches!(refused, Err(DynamoOpenError::Newer { found: 9, known: 1, .. })));
}

/// Work at a crash: what was acknowledged is there, and nothing is granted twice.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_survives_a_kill_of_the_server() {
    let mut server = tokio::task::spawn_blocking(DynamoDb::start).await.expect("started");
    let store = Arc::new(store_at(&server.endpoint(), &new_table()).await);
    let mut working = JoinSet::new();
    for worker in 0..8 {
        let store = Arc::clone(&store);
        working.spawn(async move {
            let mut done = Vec::new();
            for number in 0..1000 {
                let asked = ask(&format!("key-{worker}-{number}"));
                let Ok(Reservation::Granted { lease, .. }) = store.reserve(asked.clone()).await
                else {
                    return (done, asked, None);
                };
                let complete = Write::Complete(reply("done"));
                if store.write(&lease, complete).await.is_err() {
                    return (done, asked, Some(lease));
                }
                done.push(asked);
            }
            panic!("the server was not killed");
        });
    }
    tokio::time::sleep(std::time::Duration::from_millis(400)).await;
    let server = tokio::task::spawn_blocking(move || {
        server.kill_9();
        server.start_again();
        server
    });
    let _server = server.await.expect("started again");
    let mut acknowledged = 0;
    for (done, last, lease) in working.join_all().await {
        acknowledged += done.len();
        for asked in done {
            let found = insist(|| store.load(&asked.id)).await.expect("it was acknowledged");
            assert_eq!((found.state, found.attempts), (State::Completed, 1));
        }
        // Whoever lost an answer repeats it with the same attempt.
        match lease {
            None => {
                let again = insist(|| store.reserve(last.clone())).await;
                assert!(matches!(again, Reservation::Granted { .. }), "{again:?}");
            }
            Some(lease) => {
                let write = Write::Complete(reply("done"));
                let again = insist(|| store.write(&lease, write.clone())).await;
                assert!(matches!(again, Written::Applied | Written::AlreadyMine(Some(_))));
            }
        }
        let found = insist(|| store.load(&last.id)).await.expect("a record");
        assert_eq!(found.attempts, 1);
    }
    assert!(acknowledged > 8, "{acknowledged} were done before the blow");
}

/// A server that comes back empty, with a table that another process has made there.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_was_lost_is_reported_before_anything_runs_again() {
    let started = tokio::task::spawn_blocking(DynamoDb::start_in_memory);
    let mut server = started.await.expect("started");
    let (endpoint, table) = (server.endpoint(), new_table());
    let store = Arc::new(store_at(&endpoint, &table).await);
    let canary = Canary::new(Arc::clone(&store) as Arc<dyn onceward::Store>);
    assert_eq!(canary.beat().await.expect("a beat"), None);
    let epoch = store.epoch();
    let restarted = tokio::task::spawn_blocking(move || {
        server.kill_9();
        server.start_again();
        server
    });
    let _server = restarted.await.expect("started again");
    let error = store.reserve(ask("run-before-0001")).await.expect_err("there is no table");
    assert!(error.may_be_repeated());
    assert_ne!(store.epoch(), epoch);
    let _other = store_at(&endpoint, &table).await;
    let lost = canary.beat().await.expect("a beat").expect("a regression");
    assert_eq!(lost.since, None, "nothing is left");
    let told = store.acknowledge_regression("ticket 7").await.expect("an answer");
    assert!(told.is_some());
    assert_eq!(canary.beat().await.expect("a beat"), None);
}
