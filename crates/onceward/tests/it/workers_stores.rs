//! What workers ask of the stores that keep rows: damaged ones, and ones that are looked at and left.

use std::{sync::Arc, time::Duration};

use onceward::{
    Engine, MySqlOptions, PgOptions, Policy, Routes, Settings, SqliteOptions, SqliteStore, Store,
    clock::{Clock as _, ManualClock, Timestamp},
    record::State,
    store::{
        Ask, Mode, Reaped, Reservation, Which, Write,
        list::{Order, Query, Sort},
    },
    testing::samples::{LEASE, RETENTION, TOMBSTONE, ask, reply, retry},
    worker::{Sweep, Sweeper},
};
use onceward_testbed::{CutProxy, MariaDb, Postgres};
use tokio::time::timeout;

use crate::{
    file_store::{directory, granted, run_sql},
    mysql_home,
    postgres_bugs::change,
    postgres_home::{Home, lines, run},
    postgres_plans::{never_analysed, pages},
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
    run_sql(&path, "UPDATE onceward_records SET reply_digest = zeroblob(8) WHERE key = 'damaged'")
        .await;
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
    run_sql(&path, "UPDATE onceward_records SET attempts = -1 WHERE key < 'key-3'").await;
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

const HELD: [&str; 3] = ["first", "locked", "last"];

async fn complete(store: &dyn Store, keys: &[&str]) {
    for key in keys {
        let lease = granted(store, &ask(key)).await;
        let _ = store.write(&lease, Write::Complete(reply("done"))).await.expect("an answer");
    }
}

/// What is reaped while somebody holds a row that is due, if that comes to an end. Nobody else holds
/// anything: what waits here waits for that row.
async fn reaped_meanwhile(store: &dyn Store) -> Option<Reaped> {
    timeout(Duration::from_millis(900), store.reap(10)).await.ok()?.ok()
}

const TWO_EXPIRED: Reaped = Reaped { expired: 2, purged: 0 };
const TWO_PURGED: Reaped = Reaped { expired: 0, purged: 2 };

#[tokio::test]
async fn the_reaper_passes_over_a_record_that_somebody_holds_on_postgres() {
    let clock = clock();
    let home = postgres(&clock).await;
    let mut other = home.connection().await;
    let lock = "BEGIN; SELECT 1 FROM records WHERE key = 'locked' FOR UPDATE";
    complete(&*home.store, &HELD).await;
    for (after, two, one) in [
        (RETENTION, TWO_EXPIRED, Reaped { expired: 1, purged: 0 }),
        (TOMBSTONE, TWO_PURGED, Reaped { expired: 0, purged: 1 }),
    ] {
        clock.advance(after);
        run(&mut other, lock).await;
        assert_eq!(reaped_meanwhile(&*home.store).await, Some(two));
        run(&mut other, "ROLLBACK").await;
        assert_eq!(home.store.reap(10).await.expect("reap answers"), one);
    }
    // Its twin: one that does not skip what is locked waits for it.
    change(&mut home.connection().await, &home.schema, "reap", &[(" SKIP LOCKED", "")]).await;
    complete(&*home.store, &HELD).await;
    clock.advance(RETENTION);
    run(&mut other, lock).await;
    assert_ne!(reaped_meanwhile(&*home.store).await, Some(TWO_EXPIRED));
}

#[tokio::test]
async fn the_reaper_passes_over_a_record_that_somebody_holds_on_mariadb() {
    for skips in [true, false] {
        let (clock, server) = (clock(), MariaDb::shared());
        let database = server.create_database();
        let proxy = CutProxy::start(server.address());
        let url = server.url_through(proxy.address(), &database);
        let time = Arc::new(clock.clone());
        let options = move |options: MySqlOptions| options.clock(time);
        let home = mysql_home::Home::at(url, options).await;
        if !skips {
            proxy.replace(b" FOR UPDATE SKIP LOCKED", b"                       ");
        }
        complete(&*home.store, &HELD).await;
        clock.advance(RETENTION);
        // Past the proxy, which waits for the rest of what begins as the text that it replaces.
        let (store, url) = (Arc::clone(&home.store), server.url(&database));
        let mut other = mysql_home::Home { store, url }.connection().await;
        let lock = format!(
            "BEGIN; SELECT 1 FROM onceward_records FORCE INDEX (record_key) \
             WHERE scope = '{}' AND `key` = 'locked' FOR UPDATE",
            ask("locked").id.scope.as_str()
        );
        mysql_home::run(&mut other, &lock).await;
        let reaped = reaped_meanwhile(&*home.store).await;
        mysql_home::run(&mut other, "ROLLBACK").await;
        assert_eq!(reaped == Some(TWO_EXPIRED), skips, "{reaped:?}");
        if skips {
            let last = home.store.reap(10).await.expect("reap answers");
            assert_eq!(last, Reaped { expired: 1, purged: 0 });
        }
    }
}

/// Many leases, and one that ran out, of which the sweeper has to do something.
async fn backlog(first: &str) -> Home {
    let home = never_analysed(20_000).await;
    let mut look = home.connection().await;
    run(&mut look, first).await;
    home
}

const SETTLED: &str = "UPDATE records SET state = 'completed', reply_status = 200 WHERE record_id > 1; \
                       UPDATE leases SET check_at = created_at";

#[tokio::test]
async fn a_lease_that_ran_out_does_not_wait_for_the_clearing_of_a_long_list() {
    let home = backlog(SETTLED).await;
    let mut look = home.connection().await;
    let statement =
        format!("SELECT key FROM {}.sweep(50000, 10) WHERE key IS NOT NULL", home.schema);
    assert_eq!(lines(&mut look, &statement).await, ["filled-1"]);
    assert_eq!(home.store.sweep(10).await.expect("sweep answers"), []);
    let listed = "SELECT count(*)::text FROM leases";
    assert_eq!(lines(&mut look, listed).await, ["0"], "and is cleared all the same");
    assert!(!home.store.has_more_to_sweep());
}

#[tokio::test]
async fn a_lease_that_ran_out_is_found_behind_many_that_have_to_stay() {
    let stay = "UPDATE records SET effects = 'phased' WHERE record_id < 20000; \
                UPDATE leases SET check_at = created_at, phased = created_at < 20000";
    let home = backlog(stay).await;
    let statement = format!("SELECT * FROM {}.sweep(50000, 10)", home.schema);
    let looked_at = pages(&home, &statement).await;
    assert!(looked_at < 20_000, "{looked_at} pages");
    for expected in [&["filled-20000"][..], &[]] {
        let swept = home.store.sweep(10).await.expect("sweep answers");
        let keys: Vec<_> = swept.iter().map(|swept| swept.id.key.as_str()).collect();
        assert_eq!(keys, expected);
    }
    assert_eq!(home.store.resumable(Which::All, 10).await.expect("an answer").len(), 10);
}

#[tokio::test]
async fn a_sweep_ends_when_its_caller_has_gone() {
    let home = backlog(SETTLED).await;
    let begun = async {
        while !home.store.has_more_to_sweep() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        swept = home.store.sweep(10) => panic!("it has come to its end: {swept:?}"),
        () = begun => {}
    }
    // Waits for what was sent, and for nothing else.
    home.store.close().await;
    let mut look = home.connection().await;
    let listed = lines(&mut look, "SELECT count(*)::text FROM leases").await;
    let listed: u32 = listed[0].parse().expect("a number");
    assert!((10_000..20_000).contains(&listed), "{listed} leases are left");
}

#[tokio::test]
async fn what_is_in_progress_is_listed_and_counted_among_many_leases_of_what_has_completed() {
    let home = never_analysed(25_000).await;
    let mut look = home.connection().await;
    let end = "UPDATE records SET state = 'completed', reply_status = 200 \
               WHERE record_id NOT IN (1, 12000, 12001, 25000); \
               UPDATE leases SET check_at = created_at";
    run(&mut look, end).await;
    let all = ["filled-1", "filled-12000", "filled-12001", "filled-25000"];
    for (sort, order) in [
        (Sort::CreatedAt, Order::Ascending),
        (Sort::CreatedAt, Order::Descending),
        (Sort::ExpiresAt, Order::Ascending),
        (Sort::ExpiresAt, Order::Descending),
    ] {
        let states = vec![State::InProgress];
        let mut query = Query { states, sort, order, limit: 3, ..Query::default() };
        let mut keys = Vec::new();
        loop {
            let page = home.store.list_records(query.clone()).await.expect("an answer");
            keys.extend(page.records.iter().map(|it| it.id.key.as_str().to_owned()));
            query.after = page.next;
            if query.after.is_none() {
                break;
            }
        }
        if order == Order::Descending {
            keys.reverse();
        }
        assert_eq!(keys, all, "{sort:?} {order:?}");
    }
    let filter = r#"{"states": ["in_progress"], "descending": false, "limit": 16, "skipped": 0,
                     "created_from": 12000, "created_before": 12500}"#;
    let list = format!("SELECT * FROM {}.list(100, '{filter}')", home.schema);
    let looked_at = pages(&home, &list).await;
    assert!(looked_at < 5_000, "{looked_at} pages");
    // The first are those whose lease was over first.
    let stats = format!("SELECT * FROM {}.stats(100, 1000)", home.schema);
    let counted = format!(
        "SELECT concat_ws(' ', records, estimated, oldest) FROM ({stats}) s WHERE state = 'in_progress'"
    );
    assert_eq!(lines(&mut look, &counted).await, ["1 t 1"]);
    let looked_at = pages(&home, &stats).await;
    assert!(looked_at < 20_000, "{looked_at} pages");
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
