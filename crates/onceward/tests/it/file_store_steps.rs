//! Steps and requests in the file: written with their record, and gone with it, whoever writes.

use std::{path::Path, sync::Arc, time::Duration};

use futures_util::future::join_all;
use onceward::{
    Effects, SqliteOptions, SqliteStore, Store,
    clock::ManualClock,
    record::{AttemptId, Lease, State},
    store::{Advanced, Ask, Database, Resolution, Resolve, Which, Write, Written},
    testing::samples::{request, save},
};

use crate::file_store::{ask, directory, granted, open, raw, reply, run_sql};

fn phased(key: &str) -> Ask {
    Ask { effects: Effects::Phased, request: Some(Arc::new(request("body"))), ..ask(key) }
}

async fn saved(store: &SqliteStore, lease: &Lease, name: &str) {
    let answer = store.advance(lease, save(name, "result")).await.expect("an answer");
    assert_eq!(answer, Advanced::Applied);
}

/// How many rows there are beside the records: steps and requests.
async fn rows(path: &Path) -> (i64, i64) {
    let count =
        "SELECT (SELECT count(*) FROM onceward_steps), (SELECT count(*) FROM onceward_requests)";
    sqlx::query_as(count).fetch_one(&mut raw(path).await).await.expect("a count")
}

#[tokio::test]
async fn steps_and_the_request_survive_the_process() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let clock = ManualClock::default();
    let options = SqliteOptions::new(&path).clock(Arc::new(clock.clone()));
    let store = SqliteStore::open(options.clone()).await.expect("a store");
    let ask = phased("order-1");
    let lease = granted(&store, &ask).await;
    saved(&store, &lease, "charge").await;
    // Not closed: dropped as a process that dies would.
    drop(store);
    clock.advance(Duration::from_secs(60));
    let store = SqliteStore::open(options).await.expect("the same store");
    let waiting = store.resumable(Which::All, 10).await.expect("an answer");
    assert_eq!(waiting.len(), 1);
    assert_eq!(waiting[0].request, Some(request("body")));
    assert_eq!(waiting[0].record.progress.recovery_point.as_deref(), Some("charge"));
    assert_eq!(store.steps(&ask.id, 1).await.expect("an answer").len(), 1);
}

#[tokio::test]
async fn rows_beside_a_record_go_with_the_call_that_brings_it_to_rest() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let store = open(&path).await.expect("a store");
    let ends = [
        Write::Complete(reply(b"paid")),
        Write::Renew(Duration::from_secs(1)),
        Write::MarkUnknown("reset".into()),
        Write::Release("why".into()),
    ];
    for (number, end) in ends.into_iter().enumerate() {
        let lease = granted(&store, &phased(&format!("order-{number}"))).await;
        saved(&store, &lease, "charge").await;
        let before = rows(&path).await;
        let at_rest = matches!(end, Write::Complete(_));
        // Alone in line, so that it takes the short way.
        assert_eq!(store.write(&lease, end).await.expect("an answer"), Written::Applied);
        let gone = i64::from(at_rest);
        assert_eq!(rows(&path).await, (before.0 - gone, before.1 - gone), "{number}");
    }
}

#[tokio::test]
async fn what_a_phased_attempt_left_goes_with_a_later_one_that_is_not_phased_any_more() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let clock = ManualClock::default();
    let options = SqliteOptions::new(&path).clock(Arc::new(clock.clone()));
    let store = SqliteStore::open(options).await.expect("a store");
    let first = phased("order-1");
    let _ = granted(&store, &first).await;
    assert_eq!(rows(&path).await, (0, 1), "its request");
    // Its route was declared anew since, and it vanished before its first step.
    clock.advance(Duration::from_secs(60));
    let again = Ask { attempt: AttemptId::random(), effects: Effects::None, ..first };
    let lease = granted(&store, &again).await;
    let record = store.load(&lease.id).await.expect("an answer").expect("a record");
    assert_eq!((record.effects, record.attempts), (Effects::None, 2));
    assert_eq!(rows(&path).await, (0, 1), "still there");
    let written = store.write(&lease, Write::Complete(reply(b"paid"))).await.expect("an answer");
    assert_eq!(written, Written::Applied);
    assert_eq!(rows(&path).await, (0, 0));
}

#[tokio::test]
async fn what_comes_and_goes_within_one_batch_leaves_nothing_beside_it() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let store = open(&path).await.expect("a store");
    let ask = phased("order-1");
    let lease = granted(&store, &ask).await;
    saved(&store, &lease, "charge").await;
    let void = Resolve {
        id: ask.id.clone(),
        generation: 1,
        fence: lease.fence,
        resolution: Resolution::Void,
        reason: "test".into(),
    };
    let again = Ask { attempt: AttemptId::random(), request: None, ..ask.clone() };
    let (commits, _) = store.commits_and_writes();
    // All of them are in line before the store begins with the first.
    let (completed, voided, begun) = tokio::join!(
        store.write(&lease, Write::Complete(reply(b"paid"))),
        store.resolve(void),
        store.reserve(again),
    );
    assert_eq!(completed.expect("an answer"), Written::Applied);
    let _ = (voided.expect("an answer"), begun.expect("an answer"));
    assert_eq!(store.commits_and_writes().0, commits + 1, "one batch");
    let record = store.load(&ask.id).await.expect("an answer").expect("a record");
    assert_eq!((record.state, record.generation), (State::InProgress, 2));
    assert_eq!(rows(&path).await, (0, 0), "what the first generation left");
}

#[tokio::test]
async fn a_step_that_another_connection_made_is_not_undone_by_a_renewal() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let store = open(&path).await.expect("a store");
    let ask = phased("order-1");
    let lease = granted(&store, &ask).await;
    saved(&store, &lease, "book").await;
    // As a transaction of the user's does.
    run_sql(&path, "UPDATE onceward_records SET recovery_point = 'charge'").await;
    let renew = Write::Renew(Duration::from_secs(600));
    assert_eq!(store.write(&lease, renew).await.expect("an answer"), Written::Applied);
    let record = store.load(&ask.id).await.expect("an answer").expect("a record");
    assert_eq!(record.progress.recovery_point.as_deref(), Some("charge"));
    assert!(record.lease_until > lease.until);
    run_sql(&path, "UPDATE onceward_records SET open_effect = 'mail', effect_idempotent = 0").await;
    let release = Write::Release("why".into());
    assert_eq!(store.write(&lease, release).await.expect("an answer"), Written::Applied);
    let record = store.load(&ask.id).await.expect("an answer").expect("a record");
    assert_eq!(record.state, State::Unknown, "the open effect was seen");
}

#[tokio::test]
async fn concurrent_steps_share_commits() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let store = open(&path).await.expect("a store");
    let mut leases = Vec::new();
    for number in 0..50 {
        leases.push(granted(&store, &phased(&format!("order-{number}"))).await);
    }
    let (commits, writes) = store.commits_and_writes();
    let advances = leases.iter().map(|lease| store.advance(lease, save("charge", "result")));
    for answer in join_all(advances).await {
        assert_eq!(answer.expect("an answer"), Advanced::Applied);
    }
    let (commits_after, writes_after) = store.commits_and_writes();
    assert_eq!(writes_after - writes, 50);
    assert!(commits_after - commits < 10, "{} commits", commits_after - commits);
    assert_eq!(rows(&path).await, (50, 50));
}

#[tokio::test]
async fn a_damaged_request_does_not_stand_in_the_way_of_the_others() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let clock = ManualClock::default();
    let options = SqliteOptions::new(&path).clock(Arc::new(clock.clone()));
    let store = SqliteStore::open(options).await.expect("a store");
    for number in 0..6 {
        let _ = granted(&store, &phased(&format!("order-{number}"))).await;
        clock.advance(Duration::from_millis(1));
    }
    run_sql(
        &path,
        "UPDATE onceward_requests SET headers = x'0100000001' WHERE key = 'order-0'; \
         UPDATE onceward_requests SET uri = 'not a target' WHERE key = 'order-1'; \
         UPDATE onceward_requests SET method = '' WHERE key = 'order-2'; \
         UPDATE onceward_records SET effect_idempotent = NULL, open_effect = NULL, attempts = -1 \
         WHERE key = 'order-3'",
    )
    .await;
    clock.advance(Duration::from_secs(60));
    for limit in [1, 2, 10] {
        let waiting = store.resumable(Which::All, limit).await.expect("an answer");
        let keys: Vec<_> = waiting.iter().map(|one| one.record.id.key.as_str()).collect();
        let expected = ["order-4", "order-5"];
        assert_eq!(keys, expected[..expected.len().min(limit as usize)], "at most {limit}");
    }
}

#[tokio::test]
async fn the_file_says_how_transactions_take_part_and_what_time_it_is() {
    let directory = directory();
    let clock = ManualClock::default();
    let options = SqliteOptions::new(directory.path().join("store.db"));
    let store = SqliteStore::open(options.clock(Arc::new(clock.clone()))).await.expect("a store");
    let Some(Database::Sqlite(database)) = store.database() else {
        panic!("expected the file of the store")
    };
    clock.advance(Duration::from_secs(7));
    assert_eq!(database.now(), onceward::clock::Clock::now(&clock));
    assert!(onceward::MemoryStore::new().database().is_none());
}
