//! Others in the way on MariaDB: deadlocks, locks that are not let go of, and snapshots. Whoever called
//! gets a true answer.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use http::StatusCode;
use onceward::{
    Idempotency, Operation, Policy, Reply, Store,
    record::{Effects, Lease, State},
    store::{Reservation, StoreErrorKind, Write, Written},
    testing::samples::{ask, phased, reply, save},
};
use onceward_testbed::MariaDb;
use sqlx::{MySqlConnection, mysql::MySqlPoolOptions};
use tokio::{task::JoinSet, time::timeout};
use tower::ServiceExt as _;

use crate::{
    mysql_home::{Home, numbers, one, run},
    service::{Answer, charge, says},
    shop::failed,
};

/// The transaction in this database that waits for a lock, if there is one.
const WAITS: &str = "SELECT COALESCE(MAX(t.trx_id), 0) FROM information_schema.innodb_trx t \
    JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id \
    WHERE p.db = DATABASE() AND t.trx_state = 'LOCK WAIT'";

/// Until somebody in this database waits for a lock, who is not this one.
async fn somebody_waits(look: &mut MySqlConnection, but: u64) -> u64 {
    let waits = async {
        loop {
            let waits: u64 = one(look, &format!("SELECT CAST(({WAITS}) AS UNSIGNED)")).await;
            if waits != 0 && waits != but {
                return waits;
            }
            // What the server tells of transactions is looked up anew only if nobody has asked for a
            // tenth of a second.
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
    };
    timeout(Duration::from_secs(10), waits).await.expect("somebody waits")
}

/// A phased operation with a step, whose completion deletes that.
async fn with_a_step(home: &Home, key: &str) -> Lease {
    let lease = home.grant(&phased(key)).await;
    let _ = home.store.advance(&lease, save("pack", "1")).await.expect("advance answers");
    lease
}

/// A transaction of somebody else's that has done so much that another one is undone in its place, and
/// has the steps locked.
async fn heavy(home: &Home) -> MySqlConnection {
    let mut other = home.connection().await;
    let numbers = numbers(1_000);
    let ballast = format!(
        "CREATE TABLE IF NOT EXISTS ballast (number INTEGER); BEGIN; \
         INSERT INTO ballast SELECT number FROM {numbers}; \
         SELECT * FROM onceward_steps FOR UPDATE"
    );
    run(&mut other, &ballast).await;
    other
}

#[tokio::test]
async fn a_batch_that_a_deadlock_undid_is_made_again_and_its_caller_answered() {
    let home = Home::new().await;
    let lease = with_a_step(&home, "deadlock-0001").await;
    let mut other = heavy(&home).await;
    let store = Arc::clone(&home.store);
    let write = tokio::spawn(async move {
        store.write(&lease, Write::Complete(reply("done"))).await.expect("write answers")
    });
    // It has the record, and waits for the step; who has the step waits for the record.
    let mut look = home.connection().await;
    somebody_waits(&mut look, 0).await;
    run(&mut other, "SELECT * FROM onceward_records FOR UPDATE").await;
    let (_, _, told): (String, String, String) =
        sqlx::query_as("SHOW ENGINE INNODB STATUS").fetch_one(&mut look).await.expect("a status");
    let database: String = one(&mut look, "SELECT DATABASE()").await;
    let deadlock = told.split("LATEST DETECTED DEADLOCK").nth(1).expect("a deadlock");
    let deadlock = deadlock.split("\nTRANSACTIONS\n").next().expect("its chapter");
    assert!(deadlock.contains(&database), "it is ours: {deadlock}");
    run(&mut other, "COMMIT").await;
    assert_eq!(write.await.expect("no panic"), Written::Applied);
    let record = home.store.load(&phased("deadlock-0001").id).await.expect("load answers");
    assert_eq!(record.expect("a record").state, State::Completed);
    assert_eq!(one::<i64>(&mut look, "SELECT COUNT(*) FROM onceward_steps").await, 0);
}

#[tokio::test]
async fn a_lock_that_is_not_had_in_time_is_tried_for_again() {
    let home = Home::new().await;
    let lease = with_a_step(&home, "lock-wait-0001").await;
    let mut other = heavy(&home).await;
    let store = Arc::clone(&home.store);
    let write = tokio::spawn(async move {
        store.write(&lease, Write::Complete(reply("done"))).await.expect("write answers")
    });
    let mut look = home.connection().await;
    let first = somebody_waits(&mut look, 0).await;
    // Its wait was over, and it is in another transaction now.
    somebody_waits(&mut look, first).await;
    run(&mut other, "ROLLBACK").await;
    assert_eq!(write.await.expect("no panic"), Written::Applied);
}

#[tokio::test]
async fn a_lock_that_is_never_let_go_of_holds_up_no_stranger_and_is_said_to_be_in_the_way() {
    let url = Home::new().await.url;
    let home = Home::at(url, |options| options.connections(1, 1)).await;
    let lease = with_a_step(&home, "lock-kept-0001").await;
    let mut other = heavy(&home).await;
    let store = Arc::clone(&home.store);
    let write =
        tokio::spawn(async move { store.write(&lease, Write::Complete(reply("done"))).await });
    let mut look = home.connection().await;
    somebody_waits(&mut look, 0).await;
    // Strangers, on the one connection that batches have.
    let strangers = (0..20).map(|number| {
        let store = Arc::clone(&home.store);
        async move { store.reserve(ask(&format!("stranger-{number:04}"))).await }
    });
    let strangers: JoinSet<_> = strangers.collect();
    let strangers = timeout(Duration::from_secs(4), strangers.join_all()).await;
    for answer in strangers.expect("nobody waits for long") {
        let answer = answer.expect("reserve answers");
        assert!(matches!(answer, Reservation::Granted { .. }), "{answer:?}");
    }
    // Nothing happened, and that is what the caller is told.
    let error = write.await.expect("no panic").expect_err("the step is locked");
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
    run(&mut other, "ROLLBACK").await;
    let record = home.store.load(&phased("lock-kept-0001").id).await.expect("load answers");
    assert_eq!(record.expect("a record").state, State::InProgress);
}

#[tokio::test(flavor = "multi_thread")]
async fn among_transactions_that_lock_records_in_any_order_every_call_is_answered_and_granted_once()
{
    let home = Home::new().await;
    let mut leases = Vec::new();
    for number in 0..24 {
        leases.push(with_a_step(&home, &format!("crowd-{number:04}")).await);
    }
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut others = JoinSet::new();
    for seed in 0..3 {
        let (mut other, stopped) = (home.connection().await, stopped.clone());
        others.spawn(async move {
            let mut undone = 0_u32;
            while !*stopped.borrow() {
                for sql in [
                    "BEGIN".to_owned(),
                    format!(
                        "UPDATE onceward_steps SET result = result ORDER BY RAND({seed}) LIMIT 3"
                    ),
                    "UPDATE onceward_records SET fence = fence ORDER BY RAND() LIMIT 3".to_owned(),
                    "COMMIT".to_owned(),
                ] {
                    if sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut other).await.is_err() {
                        undone += 1;
                        run(&mut other, "ROLLBACK").await;
                        break;
                    }
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            undone
        });
    }
    let mut calls = JoinSet::new();
    for (number, lease) in leases.into_iter().enumerate() {
        let store = Arc::clone(&home.store);
        calls.spawn(async move {
            let mut refused = 0;
            loop {
                match store.write(&lease, Write::Complete(reply(format!("done {number}")))).await {
                    Ok(written) => {
                        assert!(
                            matches!(written, Written::Applied | Written::AlreadyMine(Some(_))),
                            "{written:?}"
                        );
                        break;
                    }
                    // To be called again is a true answer, too.
                    Err(error) => {
                        assert_ne!(error.kind(), StoreErrorKind::Corrupt, "{error:?}");
                        refused += 1;
                        assert!(refused < 20, "never answered: {error:?}");
                    }
                }
            }
        });
    }
    calls.join_all().await;
    stop.send_replace(true);
    let undone: u32 = others.join_all().await.into_iter().sum();
    println!("{undone} transactions of others were undone");
    for number in 0..24 {
        let id = phased(&format!("crowd-{number:04}")).id;
        let record = home.store.load(&id).await.expect("load answers").expect("a record");
        assert_eq!((record.state, record.attempts), (State::Completed, 1));
        assert_eq!(record.reply, Some(reply(format!("done {number}"))));
    }
}

/// A lease is renewed while a transaction is open: that changes the record behind its back.
#[tokio::test]
async fn a_transaction_with_a_strict_snapshot_can_complete_what_was_renewed_meanwhile() {
    let home = Arc::new(Home::new().await);
    let pool = MySqlPoolOptions::new().max_connections(1).after_connect(|connection, _| {
        Box::pin(async move {
            run(connection, "SET SESSION innodb_snapshot_isolation = 1").await;
            run(connection, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ").await;
            Ok(())
        })
    });
    let pool = pool.connect(&home.url).await.expect("a pool");
    let (handler_home, handler_pool) = (Arc::clone(&home), pool.clone());
    let handler = move |operation: Operation| {
        let (home, pool) = (Arc::clone(&handler_home), handler_pool.clone());
        async move {
            let done = operation.transaction(&pool, async |tx| {
                sqlx::query("SELECT COUNT(*) FROM onceward_records").execute(&mut *tx).await?;
                // As a renewal does.
                let mut other = home.connection().await;
                run(&mut other, "UPDATE onceward_records SET lease_until = lease_until + 1").await;
                Ok::<_, sqlx::Error>(Reply::new(StatusCode::CREATED, "done"))
            });
            done.await.map_err(failed)
        }
    };
    let policy = Policy::required().effects(Effects::Local).expect("allowed");
    let store = Arc::clone(&home.store) as Arc<dyn Store>;
    let app = axum::Router::new().fallback(handler).layer(Idempotency::new(store, policy));
    let answer = app.oneshot(charge("snapshot-0000000001")).await.expect("infallible");
    assert_eq!(Answer::read(answer).await.says(), says(201, "executed"));
    // The user's own statements are judged as before: the setting is the user's.
    let mut tx = pool.begin().await.expect("begun");
    sqlx::query("SELECT COUNT(*) FROM onceward_records").execute(&mut *tx).await.expect("seen");
    let mut other = home.connection().await;
    run(&mut other, "UPDATE onceward_records SET lease_until = lease_until + 1").await;
    let locked = sqlx::query("SELECT * FROM onceward_records FOR UPDATE").execute(&mut *tx).await;
    let error = locked.expect_err("it has changed");
    assert!(error.to_string().contains("1020"), "{error}");
}

/// An insert cannot be asked not to wait: each part of a batch would wait for a second again.
#[tokio::test]
async fn strangers_in_a_batch_wait_once_for_the_gap_that_somebody_has_locked() {
    let server = MariaDb::shared();
    let url = server.url(&server.create_database());
    let home = Home::at(url, |options| options.connections(1, 4)).await;
    for edge in ["gap-0000", "gap-9999"] {
        home.occupy(&ask(edge)).await;
    }
    let mut other = home.connection().await;
    let gap = format!(
        "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ; BEGIN; \
         SELECT * FROM onceward_records FORCE INDEX (record_key) \
         WHERE scope = '{}' AND `key` = 'gap-5555' FOR UPDATE",
        ask("gap-5555").id.scope.as_str()
    );
    run(&mut other, &gap).await;
    let reserve = |key: String| {
        let store = Arc::clone(&home.store);
        async move { store.reserve(ask(&key)).await }
    };
    let within = tokio::spawn(reserve("gap-4444".into()));
    let strangers = (0..63).map(|number| reserve(format!("a-stranger-{number:04}")));
    let strangers = timeout(Duration::from_secs(4), join_all(strangers)).await;
    for answer in strangers.expect("nobody waits for long") {
        let answer = answer.expect("reserve answers");
        assert!(matches!(answer, Reservation::Granted { .. }), "{answer:?}");
    }
    run(&mut other, "COMMIT").await;
    // It may have come in time, or been told that it was locked for longer than one waits.
    let _ = within.await.expect("no panic");
}
