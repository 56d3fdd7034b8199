//! What workers ask of the stores that keep rows: damaged ones, and ones that are looked at and left.

use std::{sync::Arc, time::Duration};

use onceward::{
    Engine, PgOptions, Policy, Routes, Settings, SqliteOptions, SqliteStore, Store,
    clock::{Clock as _, ManualClock, Timestamp},
    record::State,
    store::{
        Ask, Mode, Reaped, Reservation, Which, Write,
        list::{Order, Query},
    },
    testing::samples::{LEASE, RETENTION, TOMBSTONE, ask, reply, retry},
    worker::{Sweep, Sweeper},
};
use onceward_testbed::Postgres;

use crate::{
    file_store::{directory, granted, run_sql},
    postgres_batches::{never_analysed, pages},
    postgres_home::{Home, lines, run},
};

const DAY: Duration = Duration::from_secs(86_400);

fn clock() -> ManualClock {
    ManualClock::new(Timestamp::from_micros(1_000_000_000_000_000))
}

async fn postgres(clock: &ManualClock) -> Home {
    let clock = Arc::new(clock.clone());
    let options = move |options: PgOptions| options.clock(clock);
    Home::at(Postgres::shared().url("postgres"), options).await
}

#[tokio::test]
async fn a_damaged_reply_is_reaped_with_its_record() {
    let (directory, clock) = (directory(), clock());
    let path = directory.path().join("store.db");
    let options = SqliteOptions::new(&path).clock(Arc::new(clock.clone()));
    let store = SqliteStore::open(options).await.expect("a store");
    for key in ["sound", "damaged"] {
        let lease = granted(&store, &ask(key)).await;
        let _ = store.write(&lease, Write::Complete(reply("done"))).await.expect("an answer");
    }
    run_sql(&path, "UPDATE records SET reply_digest = zeroblob(8) WHERE key = 'damaged'").await;
    store.load(&ask("damaged").id).await.expect_err("it is damaged");
    assert_eq!(store.reap(10).await.expect("an answer"), Reaped::default());
    clock.advance(RETENTION);
    let reaped = store.reap(10).await.expect("an answer");
    assert_eq!(reaped, Reaped { expired: 2, purged: 0 });
    for key in ["sound", "damaged"] {
        let found = store.reserve(retry(&ask(key))).await.expect("an answer");
        let Reservation::Occupied { record, .. } = found else { panic!("{key}: {found:?}") };
        let tombstone = (State::Expired, Some(reply("done").status_only()));
        assert_eq!((record.state, record.reply), tombstone, "{key}");
    }
    clock.advance(TOMBSTONE);
    assert_eq!(store.reap(10).await.expect("an answer"), Reaped { expired: 0, purged: 2 });
}

/// Accepts some work of which the first three cannot be read any more, and goes through the rest.
async fn unreadable_work_is_passed_by(store: Arc<dyn Store>, clock: &ManualClock) {
    let queued = |key: &str| Ask { mode: Mode::Accept, queued_for: DAY, ..ask(key) };
    for limit in [1, 2, 10] {
        let waiting = store.resumable(Which::Accepted, limit).await.expect("an answer");
        let keys: Vec<_> = waiting.iter().map(|one| one.record.id.key.as_str()).collect();
        let expected = ["key-3", "key-4"];
        assert_eq!(keys, expected[..expected.len().min(limit as usize)], "at most {limit}");
    }
    let order = Order::Ascending;
    let query = Query { states: vec![State::Pending], order, limit: 1, ..Query::default() };
    let first = store.list_records(query.clone()).await.expect("an answer");
    let second = Query { after: first.next.clone(), ..query };
    let second = store.list_records(second).await.expect("an answer");
    assert_eq!((&first.records[0].id, first.records.len()), (&queued("key-3").id, 1));
    assert_eq!((&second.records[0].id, second.records.len()), (&queued("key-4").id, 1));
    assert_eq!(second.next, None);
    clock.advance(DAY);
    let settings = Settings { clock: Arc::new(clock.clone()), ..Settings::default() };
    let engine = Engine::new(store, Routes::from(Policy::required()), settings);
    let swept = Sweeper::new(Arc::new(engine)).run_once().await.expect("the store answers");
    assert_eq!(swept, Sweep { given_up: 2, ..Sweep::default() });
}

async fn accept_five(store: &dyn Store, clock: &ManualClock) {
    for number in 0..5 {
        let ask = Ask { mode: Mode::Accept, queued_for: DAY, ..ask(&format!("key-{number}")) };
        let _: Reservation = store.reserve(ask).await.expect("an answer");
        clock.advance(Duration::from_millis(1));
    }
}

#[tokio::test]
async fn work_that_cannot_be_read_keeps_nobody_behind_it_in_a_file() {
    let (directory, clock) = (directory(), clock());
    let path = directory.path().join("store.db");
    let options = SqliteOptions::new(&path).clock(Arc::new(clock.clone()));
    let store = Arc::new(SqliteStore::open(options).await.expect("a store"));
    accept_five(&*store, &clock).await;
    run_sql(&path, "UPDATE records SET attempts = -1 WHERE key < 'key-3'").await;
    unreadable_work_is_passed_by(store, &clock).await;
}

#[tokio::test]
async fn work_that_cannot_be_read_keeps_nobody_behind_it_in_postgres() {
    let clock = clock();
    let home = postgres(&clock).await;
    accept_five(&*home.store, &clock).await;
    run(&mut home.connection().await, "UPDATE records SET attempts = -1 WHERE key < 'key-3'").await;
    unreadable_work_is_passed_by(home.store, &clock).await;
}

#[tokio::test]
async fn the_list_of_leases_is_cleared_by_the_sweeper_and_loses_nothing_that_is_in_progress() {
    let clock = clock();
    let home = postgres(&clock).await;
    let mut look = home.connection().await;
    let [done, renewed, locked, vanished] = ["done", "renewed", "locked", "vanished"].map(ask);
    let lease = home.grant(&done).await;
    home.write(&lease, Write::Complete(reply("done"))).await;
    let lease = home.grant(&renewed).await;
    home.write(&lease, Write::Renew(LEASE * 3)).await;
    home.occupy(&locked).await;
    home.occupy(&vanished).await;
    let listed = "SELECT check_at::text FROM leases ORDER BY check_at";
    assert_eq!(lines(&mut look, listed).await.len(), 4);
    // All of them began at one moment: what is found by it must be told apart.
    clock.advance(LEASE);
    let mut other = home.connection().await;
    run(&mut other, "BEGIN; SELECT 1 FROM records WHERE key = 'locked' FOR UPDATE").await;
    let swept = home.store.sweep(10).await.expect("sweep answers");
    assert_eq!(swept.iter().map(|swept| &swept.id).collect::<Vec<_>>(), [&vanished.id]);
    assert_eq!(home.store.sweep(10).await.expect("sweep answers"), []);
    run(&mut other, "ROLLBACK").await;
    let swept = home.store.sweep(10).await.expect("sweep answers");
    assert_eq!(swept.iter().map(|swept| &swept.id).collect::<Vec<_>>(), [&locked.id]);
    assert_eq!(home.store.sweep(10).await.expect("sweep answers"), []);
    clock.advance(LEASE * 2);
    let swept = home.store.sweep(10).await.expect("sweep answers");
    assert_eq!(swept.iter().map(|swept| &swept.id).collect::<Vec<_>>(), [&renewed.id]);
    assert_eq!(home.store.sweep(10).await.expect("sweep answers"), []);
    assert_eq!(lines(&mut look, listed).await, Vec::<String>::new());
}

#[tokio::test]
async fn one_statement_of_a_worker_looks_at_no_more_rows_than_it_may() {
    let clock = clock();
    let home = postgres(&clock).await;
    let mut look = home.connection().await;
    for number in 0..10 {
        let lease = home.grant(&ask(&format!("key-{number}"))).await;
        home.write(&lease, Write::Renew(LEASE * 2)).await;
    }
    for number in 0..5 {
        home.occupy(&ask(&format!("vanished-{number}"))).await;
    }
    clock.advance(LEASE);
    let now = clock.now().as_micros();
    let schema = &home.schema;
    let listed = format!("SELECT count(*)::text FROM leases WHERE check_at <= {now}");
    assert_eq!(lines(&mut look, &listed).await, ["15"]);
    run(&mut look, &format!("SELECT * FROM {schema}.sweep({now}, 4)")).await;
    let swept = home.store.sweep(4).await.expect("sweep answers");
    assert_eq!((swept.len(), swept[0].state), (1, State::Unknown));
    assert_eq!(home.store.sweep(4).await.expect("sweep answers"), []);
    assert_eq!(lines(&mut look, &listed).await, ["0"], "what was renewed is filed again");
    // The same of the reaper: what is not at rest is filed again.
    run(&mut look, "UPDATE records SET reap_at = 0").await;
    let filed = format!("SELECT count(*)::text FROM records WHERE reap_at <= {now}");
    run(&mut look, &format!("SELECT * FROM {schema}.reap({now}, 4)")).await;
    assert_eq!(lines(&mut look, &filed).await, ["11"]);
    assert_eq!(home.store.reap(4).await.expect("reap answers"), Reaped::default());
    assert_eq!(lines(&mut look, &filed).await, ["0"]);
}

#[tokio::test]
async fn overdue_work_is_found_by_its_index_on_a_table_that_was_never_analysed() {
    let home = never_analysed(20_000).await;
    let mut look = home.connection().await;
    let pend = "UPDATE records SET state = 'pending', queued_until = record_id, lease_until = 0, \
                due_at = 0, give_up_at = record_id WHERE record_id <= 3000; \
                DELETE FROM leases WHERE created_at <= 3000";
    run(&mut look, pend).await;
    let list = |states: &str| {
        let filter = format!(
            r#"{{"states": [{states}], "overdue": true, "descending": false, "limit": 16, "skipped": 0}}"#
        );
        format!("SELECT * FROM {}.list(2000, '{filter}')", home.schema)
    };
    let pending = list("\"pending\"");
    // Of the 2000 that are overdue it reads those that it returns, and not each of them to sort them.
    let looked_at = pages(&home, &pending).await;
    assert!(looked_at < 50, "{looked_at} pages");
    for (states, expected) in [("\"pending\"", 16), ("", 16), ("\"unknown\"", 0)] {
        let found = format!("SELECT queued_until::text FROM ({}) found", list(states));
        let found = lines(&mut look, &found).await;
        let first: Vec<String> = (1..=expected).map(|time| time.to_string()).collect();
        assert_eq!(found, first, "states [{states}]");
    }
    // Without it, many would be looked at.
    run(&mut look, "DROP INDEX records_give_up").await;
    let looked_at = pages(&home, &pending).await;
    assert!(looked_at > 500, "{looked_at} pages");
}
