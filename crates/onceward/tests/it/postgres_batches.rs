//! Many calls in one statement: what it costs, and that nobody pays for a stranger.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use onceward::{
    Store,
    record::Effects,
    store::{Ask, Mode, Reservation, StoreErrorKind, Write, Written},
    testing::samples::{ask, reply, retry},
};
use onceward_testbed::Postgres;
use tokio::task::JoinSet;

use crate::postgres_home::{Home, attempt, copy, lines, one, run};

/// A store whose server writes each statement to its log.
async fn logged() -> (Home, onceward_testbed::Database<'static>) {
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
    let mut before = statements(&home);
    let mut cost = |what: &str| {
        let after = statements(&home);
        let cost = (after.0 - before.0, after.1 - before.1);
        assert_eq!(cost, (0, 1), "{what}: parsed, executed");
        before = after;
    };
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

/// A table that was never analysed, with this many records of one scope.
pub(crate) async fn never_analysed(rows: u32) -> Home {
    let home = Home::new().await;
    let mut look = home.connection().await;
    for table in ["records", "leases", "replies"] {
        run(&mut look, &format!("ALTER TABLE {table} SET (autovacuum_enabled = false)")).await;
    }
    run(
        &mut look,
        &format!(
            "INSERT INTO records (scope, key, recipe, fingerprint, generation, state, attempt, \
                 fence, attempts, effects, route, method, path, created_at, started_at, \
                 lease_until, max_execution, expires_at, retention, tombstone, void, reap_at) \
             SELECT 'tenant', 'filled-' || n, 1, decode(repeat('01', 32), 'hex'), 1, 'in_progress', \
                    md5(n::text)::uuid, 7, 1, 'external', 'r', 'POST', '/', n, n, 9000, 5, 9000, 5, \
                    5, false, 9000 FROM generate_series(1, {rows}) AS n; \
             INSERT INTO leases (check_at, created_at, phased) \
             SELECT lease_until, created_at, false FROM records"
        ),
    )
    .await;
    home
}

/// How many pages the server looked at for a call, on a connection that made its plans now.
pub(crate) async fn pages(home: &Home, call: &str) -> u64 {
    fewest_pages(home, |_| call.to_owned()).await
}

/// The same of a call that is another one in each round.
async fn fewest_pages(home: &Home, call: impl Fn(u32) -> String) -> u64 {
    let mut look = home.connection().await;
    let mut least = u64::MAX;
    // The first call reads the catalogue too.
    for round in 0..4 {
        let explain = format!("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) {}", call(round));
        run(&mut look, "BEGIN").await;
        let explained = lines(&mut look, &explain).await;
        run(&mut look, "ROLLBACK").await;
        least = least.min(looked_at(&explained));
    }
    least
}

fn looked_at(explained: &[String]) -> u64 {
    let buffers = explained.iter().find_map(|line| line.trim().strip_prefix("Buffers: shared "));
    let buffers = buffers.unwrap_or_else(|| panic!("no buffers in {explained:?}"));
    let counted = ["hit=", "read="].map(|kind| {
        let count = buffers.split(' ').find_map(|part| part.strip_prefix(kind));
        count.map_or(0, |count| count.parse::<u64>().expect("a number"))
    });
    counted.iter().sum()
}

/// An array of 256 of these, for each n of a range.
fn array(from: u32, value: &str) -> String {
    format!("(SELECT array_agg({value}) FROM generate_series({from}, {from} + 255) AS n)")
}

fn reserve_call(schema: &str, from: u32, new_ones: bool) -> String {
    let value = |value: &str| array(from, value);
    format!(
        "SELECT * FROM {schema}.reserve(8, {scope}, {key}, {fingerprint}, {attempt}, {text}, \
         {text}, {text}, true, 1, 5, 5, 5, 5, 'external', NULL, NULL, NULL, {new_ones})",
        scope = value("('tenant')::text"),
        key = value("('filled-' || n)::text"),
        fingerprint = value("decode(repeat('01', 32), 'hex')"),
        attempt = value("gen_random_uuid()"),
        text = value("('x')::text"),
    )
}

fn guarded_call(schema: &str, from: u32, function: &str) -> String {
    let value = |value: &str| array(from, value);
    let rest = match function {
        "renew" => value("5::bigint"),
        _ => [
            value("200::smallint"),
            value("'\\x01'::bytea"),
            value("NULL::text"),
            value("'body'::bytea"),
            function.starts_with("skipping").to_string(),
        ]
        .join(", "),
    };
    let function = function.trim_start_matches("skipping ");
    format!(
        "SELECT * FROM {schema}.{function}(8, {scope}, {key}, {attempt}, {fence}, {rest})",
        scope = value("('tenant')::text"),
        key = value("('filled-' || n)::text"),
        attempt = value("md5(n::text)::uuid"),
        fence = value("7::bigint"),
    )
}

#[tokio::test]
async fn a_batch_on_a_table_that_was_never_analysed_reads_no_more_than_on_one_that_was() {
    const ROWS: u32 = 200_000;
    let home = never_analysed(ROWS).await;
    let schema = &home.schema;
    type Call<'a> = Box<dyn Fn(u32) -> String + 'a>;
    let reserve = |from: u32, new_ones: bool| -> Call<'_> {
        Box::new(move |at| reserve_call(schema, from + at, new_ones))
    };
    let guarded = |from: u32, function: &'static str| -> Call<'_> {
        Box::new(move |at| guarded_call(schema, from + at, function))
    };
    let calls = [
        ("a reserve of what is there", reserve(1, false)),
        ("a reserve of what is not", reserve(ROWS + 1, false)),
        ("a reserve of what is there, thought to be new", reserve(20_001, true)),
        ("a reserve of what is not, as expected", reserve(ROWS + 20_001, true)),
        ("replies", guarded(40_001, "complete_all")),
        ("replies of what is not locked", guarded(60_001, "skipping complete_all")),
        ("a renewal", guarded(80_001, "renew")),
    ];
    // Each round has records of its own: other tests decide for how long the old versions stay that a
    // round leaves behind, and reading them is no matter of plans.
    let mut never = Vec::new();
    for (_, call) in &calls {
        never.push(fewest_pages(&home, |round| call(256 * round)).await);
    }
    run(&mut home.connection().await, "ANALYZE records, leases, replies").await;
    for ((what, call), never) in calls.iter().zip(never) {
        let analysed = fewest_pages(&home, |round| call(256 * (10 + round))).await;
        println!("{what}: {never} pages, {analysed} analysed");
        assert!(never <= 2 * analysed, "{what}: {never} pages, {analysed} analysed");
        assert!(never < 256 * 60, "{what} of 256 elements reads {never} pages");
    }
}

#[tokio::test]
async fn a_locked_record_does_not_hold_up_strangers_and_is_answered_honestly() {
    let home = Home::new().await;
    let locked = home.grant(&ask("locked-0001")).await;
    let mut strangers = Vec::new();
    for number in 0..200 {
        strangers.push(home.grant(&ask(&format!("stranger-{number:04}"))).await);
    }
    let mut other = home.connection().await;
    run(&mut other, "BEGIN; SELECT 1 FROM records WHERE key = 'locked-0001' FOR UPDATE").await;
    let begun = Instant::now();
    let mut writing = JoinSet::new();
    for lease in strangers.into_iter().chain([copy(&locked)]) {
        let store = Arc::clone(&home.store);
        writing.spawn(async move {
            let key = lease.id.key.as_str().to_owned();
            (key, store.write(&lease, Write::Complete(reply("done"))).await)
        });
    }
    let mut stranger_took = Duration::ZERO;
    while let Some(written) = writing.join_next().await {
        match written.expect("no panic") {
            (key, written) if key == "locked-0001" => {
                let error = written.expect_err("somebody has it");
                assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
                assert!(error.to_string().contains("locked"), "{error}");
            }
            (key, written) => {
                assert_eq!(written.expect("write answers"), Written::Applied, "{key}");
                stranger_took = begun.elapsed();
            }
        }
    }
    // They wait for the lock once, and go on together without the one that is locked.
    assert!(stranger_took < Duration::from_secs(5), "strangers took {stranger_took:?}");
    // A look does not wait for it.
    let seen = home.store.reserve(retry(&ask("locked-0001"))).await.expect("reserve answers");
    assert!(matches!(seen, Reservation::Occupied { .. }), "{seen:?}");
    run(&mut other, "COMMIT").await;
    home.write(&locked, Write::Complete(reply("done"))).await;
}

/// Each retry of it would have to wait for its row.
#[tokio::test]
async fn a_storm_of_retries_for_a_locked_record_does_not_hold_up_single_calls() {
    let home = Home::new().await;
    let asked = Ask { effects: Effects::Phased, ..ask("storm-0001") };
    home.occupy(&asked).await;
    let mut other = home.connection().await;
    run(
        &mut other,
        "UPDATE records SET lease_until = 1; BEGIN; \
         SELECT 1 FROM records WHERE key = 'storm-0001' FOR UPDATE",
    )
    .await;
    let mut storm = JoinSet::new();
    for _ in 0..100 {
        let (store, again) = (Arc::clone(&home.store), retry(&asked));
        storm.spawn(async move { store.reserve(again).await });
    }
    // One of them has come to an end: the others are in line.
    let first = storm.join_next().await.expect("a hundred").expect("no panic");
    println!("the first of the storm: {:?}", first.map(|_| ()));
    let begun = Instant::now();
    home.store.ping().await.expect("well");
    let took = begun.elapsed();
    println!("a ping took {took:?}");
    assert!(took < Duration::from_secs(3), "a ping took {took:?}");
    run(&mut other, "ROLLBACK").await;
    let mut granted = 0;
    while let Some(answer) = storm.join_next().await {
        granted += match answer.expect("no panic") {
            Ok(Reservation::Granted { .. }) => 1,
            Ok(Reservation::Occupied { .. }) | Err(_) => 0,
            Ok(other) => panic!("{other:?}"),
        };
    }
    assert!(granted <= 1, "{granted} of the storm were granted");
}

#[tokio::test]
async fn one_element_that_the_server_refuses_does_not_fail_the_others() {
    let home = Home::new().await;
    let mut asks: Vec<Ask> = (0..50).map(|number| ask(&format!("good-{number:02}"))).collect();
    asks.push(Ask { route: "pay\0ments".into(), ..ask("poisoned") });
    let mut tasks = JoinSet::new();
    for asked in asks {
        let store = Arc::clone(&home.store);
        tasks.spawn(async move { (asked.clone(), store.reserve(asked).await) });
    }
    for (asked, answer) in tasks.join_all().await {
        match (asked.id.key.as_str(), answer) {
            ("poisoned", Err(error)) => assert_eq!(error.kind(), StoreErrorKind::Unavailable),
            ("poisoned", Ok(answer)) => panic!("a text cannot hold a NUL: {answer:?}"),
            (_, answer) => {
                let answer = answer.expect("reserve answers");
                assert!(matches!(answer, Reservation::Granted { .. }), "{answer:?}");
            }
        }
    }
    let mut look = home.connection().await;
    assert_eq!(one::<i64>(&mut look, "SELECT count(*) FROM records").await, 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_finishes_what_stands_in_line_and_tells_the_rest() {
    let home = Home::new().await;
    let mut tasks = JoinSet::new();
    for number in 0..3_000 {
        let store = Arc::clone(&home.store);
        tasks.spawn(async move {
            let asked = ask(&format!("closing-{number:05}"));
            (asked.id.key.as_str().to_owned(), store.reserve(asked).await)
        });
    }
    // Some have been answered, most have not.
    let mut answers = vec![tasks.join_next().await.expect("some").expect("no panic")];
    home.store.close().await;
    answers.extend(tasks.join_all().await);
    let mut look = home.connection().await;
    let there = lines(&mut look, "SELECT key FROM records ORDER BY key").await;
    let mut granted = Vec::new();
    for (key, answer) in answers {
        match answer {
            Ok(Reservation::Granted { .. }) => granted.push(key),
            Ok(other) => panic!("{key}: {other:?}"),
            Err(error) => {
                let said = error.kind();
                assert!(
                    said == StoreErrorKind::Ambiguous || there.binary_search(&key).is_err(),
                    "{key}: {error:?}"
                );
            }
        }
    }
    granted.sort();
    assert!(granted.iter().all(|key| there.binary_search(key).is_ok()));
    println!("{} granted, {} there", granted.len(), there.len());
    let late = home.store.reserve(ask("late")).await.expect_err("closed");
    assert!(late.to_string().contains("closed"), "{late}");
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

#[tokio::test]
async fn pending_work_that_is_due_is_found_by_its_index_among_many_records() {
    let home = never_analysed(20_000).await;
    let mut look = home.connection().await;
    let pend = "UPDATE records SET state = 'pending', queued_until = 9000, lease_until = record_id, \
                due_at = record_id, give_up_at = 9000 WHERE record_id <= 3000; \
                DELETE FROM leases WHERE created_at <= 3000";
    run(&mut look, pend).await;
    let due = format!("SELECT * FROM {}.resumable(2000, false, 16, 0)", home.schema);
    assert_eq!(lines(&mut look, &format!("SELECT record_id::text FROM ({due}) d")).await.len(), 16);
    let looked_at = pages(&home, &due).await;
    assert!(looked_at < 100, "{looked_at} pages");
    // Without it, all of them would be looked at.
    run(&mut look, "DROP INDEX records_due").await;
    let looked_at = pages(&home, &due).await;
    assert!(looked_at > 500, "{looked_at} pages");
}

#[tokio::test]
async fn work_that_waits_is_found_among_many_leases_of_what_has_completed() {
    let home = never_analysed(20_000).await;
    let mut look = home.connection().await;
    run(&mut look, "UPDATE records SET state = 'completed', reply_status = 200").await;
    let phased = |key: &str| Ask { effects: Effects::Phased, ..ask(key) };
    home.occupy(&phased("alone")).await;
    let together = (0..3).map(|number| phased(&format!("together-{number}"))).collect();
    reserve_all(&home.store, together).await;
    let accepted = Ask { mode: Mode::Accept, ..ask("accepted") };
    let _: Reservation = home.store.reserve(accepted).await.expect("an answer");
    let due = format!("SELECT * FROM {}.resumable({}, false, 16, 0)", home.schema, i64::MAX);
    let found = format!("SELECT key FROM ({due}) d JOIN records USING (record_id) ORDER BY key");
    let all = ["accepted", "alone", "together-0", "together-1", "together-2"];
    assert_eq!(lines(&mut look, &found).await, all);
    let looked_at = pages(&home, &due).await;
    assert!(looked_at < 100, "{looked_at} pages");
}

#[tokio::test]
async fn what_the_reaper_takes_is_found_by_its_index_among_many_records() {
    let home = never_analysed(20_000).await;
    let mut look = home.connection().await;
    let end = "UPDATE records SET state = 'failed_retryable', expires_at = record_id, \
               reap_at = record_id WHERE record_id <= 3000; \
               DELETE FROM leases WHERE created_at <= 3000";
    run(&mut look, end).await;
    let reap = format!("SELECT expired + purged FROM {}.reap(2000, 16)", home.schema);
    let looked_at = pages(&home, &reap).await;
    assert!(looked_at < 500, "{looked_at} pages");
    // Without it, all of them would be looked at.
    run(&mut look, "DROP INDEX records_reap").await;
    let looked_at = pages(&home, &reap).await;
    assert!(looked_at > 600, "{looked_at} pages");
}
