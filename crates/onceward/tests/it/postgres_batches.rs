//! Many calls in one statement: what it costs.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use http::StatusCode;
use onceward::{
    Operation, Policy, Reply, Store,
    record::Effects,
    store::{Ask, Mode, Reservation, Write, Written},
    testing::samples::{ask, reply, retry},
};
use onceward_testbed::Postgres;
use sqlx::AssertSqlSafe;
use tokio::task::JoinSet;

use crate::{
    postgres_home::{Home, attempt, lines, one, run},
    postgres_sessions::{pool, served},
    service::says,
    shop::failed,
};

/// A store whose server writes each statement to its log.
pub(crate) async fn logged() -> (Home, onceward_testbed::Database<'static>) {
    let database = Postgres::shared().create_database();
    let name = database.name();
    database.psql(&format!("ALTER DATABASE {name} SET log_min_duration_statement = 0"));
    database.psql(&format!("ALTER DATABASE {name} SET log_parameter_max_length = 0"));
    (Home::at(database.url(), |options| options).await, database)
}

/// How many statements the server was sent for this schema: parsed, and executed.
fn statements(home: &Home) -> (usize, usize) {
    let log = Postgres::shared().log();
    let ours = log.lines().filter(|line| line.contains(&home.schema));
    let ours: Vec<&str> = ours.filter(|line| line.contains("duration: ")).collect();
    let count = |word: &str| ours.iter().filter(|line| line.contains(word)).count();
    (count(" parse sqlx_s_"), count(" execute sqlx_s_"))
}

/// Counts what the server was sent since it was asked last.
struct Meter<'h> {
    home: &'h Home,
    seen: (usize, usize),
}

impl<'h> Meter<'h> {
    fn new(home: &'h Home) -> Self {
        Meter { home, seen: statements(home) }
    }

    /// Parsed, and executed.
    fn cost(&mut self) -> (usize, usize) {
        let before = std::mem::replace(&mut self.seen, statements(self.home));
        (self.seen.0 - before.0, self.seen.1 - before.1)
    }
}

/// All at once.
pub(crate) async fn reserve_all<S: Store + 'static>(
    store: &Arc<S>,
    asks: Vec<Ask>,
) -> Vec<Reservation> {
    let mut tasks = JoinSet::new();
    for asked in asks {
        let store = Arc::clone(store);
        tasks.spawn(async move { store.reserve(asked).await.expect("reserve answers") });
    }
    tasks.join_all().await
}

/// The same for what was granted: each must be completed.
pub(crate) async fn complete_all<S: Store + 'static>(
    store: &Arc<S>,
    granted: impl IntoIterator<Item = Reservation>,
) {
    let mut tasks = JoinSet::new();
    for answer in granted {
        let Reservation::Granted { lease, .. } = answer else { panic!("{answer:?}") };
        let store = Arc::clone(store);
        tasks.spawn(async move { store.write(&lease, Write::Complete(reply("done"))).await });
    }
    for written in tasks.join_all().await {
        assert_eq!(written.expect("write answers"), Written::Applied);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_calls_at_once_are_a_few_statements() {
    let (home, _database) = logged().await;
    let asks: Vec<Ask> = (0..1_000).map(|number| ask(&format!("many-{number:04}"))).collect();
    let granted = reserve_all(&home.store, asks.clone()).await;
    assert!(granted.iter().all(|answer| matches!(answer, Reservation::Granted { .. })));
    let (_, executed) = statements(&home);
    assert!(executed < 100, "{executed} statements for 1000 reserves");

    complete_all(&home.store, granted).await;
    let (_, with_writes) = statements(&home);
    assert!(with_writes - executed < 100, "{} statements for 1000 writes", with_writes - executed);
    let replayed = reserve_all(&home.store, asks.iter().map(retry).collect()).await;
    assert!(replayed.iter().all(|answer| answer.completed().is_some()));
    let (_, with_replays) = statements(&home);
    assert!(with_replays - with_writes < 100, "{} for 1000 replays", with_replays - with_writes);
}

#[tokio::test(flavor = "multi_thread")]
async fn reserves_and_writes_share_a_statement_and_are_answered_each_for_itself() {
    let (home, _database) = logged().await;
    let known: Vec<Ask> = (0..200).map(|number| ask(&format!("known-{number:04}"))).collect();
    let granted = reserve_all(&home.store, known.clone()).await;
    let (_, before) = statements(&home);
    let mut tasks = JoinSet::new();
    for (number, answer) in granted.into_iter().enumerate() {
        let Reservation::Granted { lease, .. } = answer else { panic!("{answer:?}") };
        let store = Arc::clone(&home.store);
        tasks.spawn(async move {
            let written = store.write(&lease, Write::Complete(reply("done"))).await;
            assert_eq!(written.expect("write answers"), Written::Applied);
        });
        let store = Arc::clone(&home.store);
        let new = ask(&format!("new-{number:04}"));
        tasks.spawn(async move {
            let reserved = store.reserve(new).await.expect("reserve answers");
            assert!(matches!(reserved, Reservation::Granted { .. }), "{reserved:?}");
        });
    }
    while let Some(answered) = tasks.join_next().await {
        answered.expect("no panic");
    }
    let (_, after) = statements(&home);
    assert!(after - before < 60, "{} statements for 400 calls", after - before);
    let log = Postgres::shared().log();
    let both = |line: &&str| line.contains(&home.schema) && line.contains("LEFT JOIN");
    assert!(log.lines().any(|line| both(&line)), "no statement was shared");
    let refused = log.lines().find(|line| line.contains("STATEMENT: ") && both(line));
    assert_eq!(refused, None, "the server did not take it");
    for replay in reserve_all(&home.store, known.iter().map(retry).collect()).await {
        assert!(replay.completed().is_some(), "{replay:?}");
    }
}

/// No engine does so. The answers must be told apart all the same.
#[tokio::test(flavor = "multi_thread")]
async fn one_attempt_that_asks_for_two_records_gets_only_what_is_free() {
    let home = Home::new().await;
    for round in 0..20 {
        let held = ask(&format!("held-{round:04}"));
        home.occupy(&held).await;
        let alone = ask(&format!("alone-{round:04}"));
        let for_held = retry(&held);
        let for_free = Ask { attempt: for_held.attempt, ..ask(&format!("zfree-{round:04}")) };
        let look = Ask { mode: Mode::LookupOnly, ..for_free.clone() };
        // While one is on its way, the others gather.
        let answers = reserve_all(&home.store, vec![alone, for_held.clone(), for_free, look]).await;
        let granted = |answer: &&Reservation| match answer {
            Reservation::Granted { lease, .. } => lease.id == for_held.id,
            _ => false,
        };
        assert_eq!(answers.iter().find(granted), None);
    }
}

/// Has what was counted told to whoever asks; before version 15 deadlocks are told at once.
const FLUSH: &str = "DO $$ BEGIN PERFORM pg_stat_force_next_flush(); \
                     EXCEPTION WHEN undefined_function THEN NULL; END $$";

/// Somebody's transaction takes records in another order than a batch does.
#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_with_another_transaction_loses_no_write() {
    let database = Postgres::shared().create_database();
    let name = database.name();
    database.psql(&format!("ALTER DATABASE {name} SET deadlock_timeout = '80ms'"));
    let home = Home::at(database.url(), |options| options).await;
    let (mut other, mut look) = (home.connection().await, home.connection().await);
    run(&mut other, "SET deadlock_timeout = '60s'").await;
    let waiting = "SELECT count(*) FROM pg_stat_activity \
                   WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    for round in 0..100 {
        let alone = home.grant(&ask(&format!("alone-{round:04}"))).await;
        let first = home.grant(&ask(&format!("first-{round:04}"))).await;
        let second = home.grant(&ask(&format!("second-{round:04}"))).await;
        let lock = |key: &str| {
            format!("SELECT 1 FROM records WHERE key = '{key}-{round:04}' FOR NO KEY UPDATE")
        };
        run(&mut other, &format!("BEGIN; {}", lock("second"))).await;
        let write = |lease| {
            let store = Arc::clone(&home.store);
            tokio::spawn(async move { store.write(&lease, Write::Complete(reply("done"))).await })
        };
        // While one is on its way, the others gather.
        let writes = [write(alone), write(first), write(second)];
        for _ in 0..20 {
            if one::<i64>(&mut look, waiting).await > 0 {
                break;
            }
        }
        // In time for a circle, mostly.
        let _ = attempt(&mut other, &lock("first")).await;
        run(&mut other, "ROLLBACK").await;
        for written in writes {
            let written = written.await.expect("no panic");
            assert_eq!(written.expect("write answers"), Written::Applied, "round {round}");
        }
        run(&mut other, FLUSH).await;
        let seen: i64 = one(&mut other, deadlocks).await;
        if seen > 0 {
            return;
        }
    }
    panic!("no deadlock in 100 rounds");
}

#[tokio::test]
async fn a_call_that_is_alone_is_one_round_trip() {
    let (home, _database) = logged().await;
    // The connection of those who are alone has prepared its statements: for what is new, and for what
    // is there.
    for number in 0..2 {
        let warm = ask(&format!("warm-{number}"));
        let lease = home.grant(&warm).await;
        home.write(&lease, Write::Renew(Duration::from_secs(90))).await;
        home.write(&lease, Write::Complete(reply("done"))).await;
        for _ in 0..2 {
            let replay = home.store.reserve(retry(&warm)).await.expect("reserve answers");
            assert!(replay.completed().is_some(), "{replay:?}");
        }
    }
    home.occupy(&ask("warm-again")).await;
    let mut meter = Meter::new(&home);
    let mut cost = |what: &str| assert_eq!(meter.cost(), (0, 1), "{what}: parsed, executed");
    let asked = ask("alone-0001");
    let lease = home.grant(&asked).await;
    cost("a reserve that is granted");
    let busy = home.store.reserve(retry(&asked)).await.expect("reserve answers");
    assert!(matches!(busy, Reservation::Occupied { .. }), "{busy:?}");
    cost("a reserve that finds work in progress");
    home.write(&lease, Write::Renew(Duration::from_secs(90))).await;
    cost("a renewal");
    home.write(&lease, Write::Complete(reply("done"))).await;
    cost("a complete");
    let replay = home.store.reserve(retry(&asked)).await.expect("reserve answers");
    assert!(replay.completed().is_some(), "{replay:?}");
    cost("a replay");
}

/// One that finds what can be taken, and one that takes it if it is still so.
#[tokio::test]
async fn a_takeover_is_two_round_trips() {
    let (home, _database) = logged().await;
    let to_be_taken =
        |key: &str| Ask { effects: Effects::None, expired_runs_again: true, ..ask(key) };
    let [warm, warmer, retryable] = ["warm", "warmer", "retryable"].map(to_be_taken);
    let [lease_over, expired] = ["lease-over", "expired"].map(to_be_taken);
    for asked in [&warm, &warmer, &retryable] {
        let lease = home.grant(asked).await;
        home.write(&lease, Write::Release("declined".into())).await;
    }
    home.occupy(&lease_over).await;
    let lease = home.grant(&expired).await;
    home.write(&lease, Write::Complete(reply("done"))).await;
    run(
        &mut home.connection().await,
        "UPDATE records SET lease_until = 1 WHERE key = 'lease-over'; \
         UPDATE records SET expires_at = 1 WHERE key = 'expired'",
    )
    .await;
    // The statements of a takeover after one for a new key, and after another takeover.
    for asked in [&warm, &warmer] {
        home.occupy(&retry(asked)).await;
    }
    let mut meter = Meter::new(&home);
    for asked in [&retryable, &lease_over, &expired] {
        home.occupy(&retry(asked)).await;
        assert_eq!(meter.cost(), (0, 2), "{}: parsed, executed", asked.id.key.as_str());
    }
    // And its twin: what cannot be taken is only found.
    let busy = home.store.reserve(retry(&expired)).await.expect("reserve answers");
    assert!(matches!(busy, Reservation::Occupied { .. }), "{busy:?}");
    assert_eq!(meter.cost(), (0, 1));
}

/// How often the store itself has sent this call to the server, on connections of its own.
async fn sent_by_the_store(home: &Home, call: &str) -> usize {
    let own = "SELECT ' [' || pid || '] ' FROM pg_stat_activity \
               WHERE datname = current_database() AND application_name = 'onceward'";
    let own = lines(&mut home.connection().await, own).await;
    let log = Postgres::shared().log();
    let call = format!("{}\".{call}(", home.schema);
    let sent = log.lines().filter(|line| line.contains(" execute sqlx_s_") && line.contains(&call));
    sent.filter(|line| own.iter().any(|pid| line.contains(pid))).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_single_requests_at_once_the_store_itself_writes_nothing() {
    const REQUESTS: usize = 20;
    let (home, _database) = logged().await;
    let pool = pool(&home).await;
    let mut look = home.connection().await;
    run(&mut look, "CREATE TABLE orders (key text)").await;
    let insert = format!("INSERT INTO {}.orders VALUES ($1)", home.schema);
    let order = async |number: usize| {
        let key = format!("single-{number:010}");
        let (pool, insert, ordered) = (pool.clone(), insert.clone(), key.clone());
        let handler = move |operation: Operation| {
            let (pool, insert, ordered) = (pool.clone(), insert.clone(), ordered.clone());
            async move {
                let done = operation.transaction(&pool, async |tx| {
                    let order = sqlx::query(AssertSqlSafe(insert)).bind(ordered);
                    order.execute(&mut *tx).await?;
                    Ok::<_, sqlx::Error>(Reply::new(StatusCode::CREATED, "ordered"))
                });
                done.await.map_err(failed)
            }
        };
        served(&home, Policy::required().single(), &key, handler).await.says()
    };
    let answers = join_all((0..REQUESTS).map(order)).await;
    assert_eq!(answers, vec![says(201, "executed"); REQUESTS]);
    // Whoever wrote the order wrote the record last.
    let together =
        "SELECT count(*) FROM orders o JOIN records r ON r.key = o.key AND r.xmin = o.xmin";
    assert_eq!(one::<i64>(&mut look, together).await, REQUESTS as i64);
    for call in ["reserve_one", "complete_one", "complete_all", "renew", "change"] {
        assert_eq!(sent_by_the_store(&home, call).await, 0, "{call}");
    }
    // It looked, before each handler ran.
    assert!(sent_by_the_store(&home, "reserve").await > 0);
    // And its twin: of any other route it is the store that writes.
    let answer = served(&home, Policy::required(), "another-0000000001", |_| async { "done" });
    assert_eq!(answer.await.says(), says(200, "executed"));
    assert_eq!(sent_by_the_store(&home, "complete_one").await, 1);
}

/// Hundreds of retries of one large reply must fit into memory, and into the time of a call.
#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_replays_of_a_large_reply_is_answered() {
    let home = Home::new().await;
    let asked = ask("large-0001");
    let lease = home.grant(&asked).await;
    let body = vec![b'x'; 1 << 20];
    home.write(&lease, Write::Complete(reply(body.clone()))).await;
    let asks = (0..300).map(|_| retry(&asked)).collect();
    for answer in reserve_all(&home.store, asks).await {
        let completed = answer.completed().unwrap_or_else(|| panic!("{answer:?}"));
        assert_eq!(completed.reply.body_bytes().len(), body.len());
    }
}
