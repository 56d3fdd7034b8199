//! What is left behind on a server: no open transaction and no changed setting, whatever was dropped.

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use onceward::{
    Idempotency, Operation, Policy, Reply, Store,
    record::Effects,
    store::{Reservation, Resolution, Resolve, Which, Write},
    testing::samples::{ask, claim, phased, reply, save},
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use sqlx::mysql::MySqlPoolOptions;
use tower::ServiceExt as _;

use crate::{
    mysql_home::{Home, one},
    service::{Answer, charge},
    shop::failed,
};

/// Transactions on this server whose connection uses our database and does nothing.
const IDLE: &str = "SELECT COUNT(*) FROM information_schema.innodb_trx t \
    JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id \
    WHERE p.db = DATABASE() AND p.command = 'Sleep'";

/// Whoever has no connection from a pool by then has lost one.
const POOL_TIME_MAX: Duration = Duration::from_secs(10);

/// A connection may be seen between two statements of a transaction that goes on.
async fn nobody_stays_in_a_transaction(home: &Home) {
    let mut look = home.connection().await;
    for _ in 0..50 {
        if one::<i64>(&mut look, IDLE).await == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("somebody is left inside a transaction");
}

/// Polls a call for a random while, and drops it then.
async fn drop_soon<T>(random: &mut StdRng, call: impl Future<Output = T>) {
    let while_ = Duration::from_micros(random.random_range(0..4_000));
    // Whether it came to an answer is of no interest.
    let _ = tokio::time::timeout(while_, call).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_dropped_at_any_moment_leave_no_transaction_open_on_mariadb() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let home = Home::new().await;
    let mut random = StdRng::seed_from_u64(seed);
    let store = &home.store;
    for number in 0..40 {
        let asked = phased(&format!("dropped-{number:04}"));
        drop_soon(&mut random, store.reserve(asked.clone())).await;
        let reserved = store.reserve(asked.clone()).await.expect("reserve answers");
        let Reservation::Granted { lease, .. } = reserved else { panic!("{reserved:?}") };
        drop_soon(&mut random, store.write(&lease, Write::Renew(Duration::from_secs(90)))).await;
        drop_soon(&mut random, store.advance(&lease, save("pack", "1"))).await;
        drop_soon(&mut random, store.load(&asked.id)).await;
        drop_soon(&mut random, store.steps(&asked.id, 1)).await;
        drop_soon(&mut random, store.sweep(10)).await;
        drop_soon(&mut random, store.reap(10)).await;
        drop_soon(&mut random, store.resumable(Which::All, 10)).await;
        drop_soon(&mut random, store.claim(claim(&asked))).await;
        drop_soon(&mut random, store.write(&lease, Write::MarkUnknown("reset".into()))).await;
        let resolve = Resolve {
            id: asked.id.clone(),
            generation: 1,
            fence: lease.fence,
            resolution: Resolution::Complete(reply("done")),
            reason: "ticket 7".into(),
        };
        drop_soon(&mut random, store.resolve(resolve)).await;
        store.ping().await.expect("usable");
    }
    nobody_stays_in_a_transaction(&home).await;
    // And its twin: one that is left open is seen.
    let mut open = home.connection().await;
    crate::mysql_home::run(&mut open, "BEGIN; SELECT * FROM onceward_records FOR UPDATE").await;
    let mut look = home.connection().await;
    // What the server tells of transactions is a little old.
    while one::<i64>(&mut look, IDLE).await == 0 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_and_phases_that_are_dropped_at_any_moment_leave_none_open_on_mariadb() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let home = Home::new().await;
    let pool = MySqlPoolOptions::new().max_connections(4).acquire_timeout(POOL_TIME_MAX);
    let pool = pool.connect(&home.url).await.expect("a pool");
    for number in 0..60_u64 {
        let policy = Policy::required().effects(Effects::Phased).expect("allowed");
        let handler_pool = pool.clone();
        let handler = move |operation: Operation| {
            let pool = handler_pool.clone();
            async move {
                let mut random = StdRng::seed_from_u64(seed ^ number);
                let phase = operation.phase(&pool, "pack", async |tx| {
                    sqlx::query("SELECT 1").execute(&mut *tx).await?;
                    Ok::<_, sqlx::Error>(1)
                });
                drop_soon(&mut random, phase).await;
                let work = operation.transaction(&pool, async |tx| {
                    sqlx::query("SELECT SLEEP(0.001)").execute(&mut *tx).await?;
                    Ok::<_, sqlx::Error>(Reply::new(StatusCode::CREATED, "done"))
                });
                drop_soon(&mut random, work).await;
                "answered"
            }
        };
        let layer = Idempotency::new(Arc::clone(&home.store) as Arc<dyn Store>, policy);
        let app = axum::Router::new().fallback(handler).layer(layer);
        let request = charge(&format!("dropped-phase-{number:08}"));
        Answer::read(app.oneshot(request).await.expect("infallible")).await;
    }
    nobody_stays_in_a_transaction(&home).await;
    // And the pool is whole, with connections that know which answer is whose.
    let held = futures_util::future::join_all((0..4).map(|_| pool.acquire())).await;
    for (number, held) in held.into_iter().enumerate() {
        let said = one::<i64>(&mut held.expect("a place"), &format!("SELECT {number}")).await;
        assert_eq!(said, number as i64);
    }
}

#[tokio::test]
async fn the_users_connection_keeps_its_settings_on_mariadb() {
    let home = Home::new().await;
    let pool = MySqlPoolOptions::new().max_connections(1).connect(&home.url).await.expect("a pool");
    let set = "SET SESSION innodb_lock_wait_timeout = 7";
    sqlx::raw_sql(set).execute(&pool).await.expect("set");
    let handler_pool = pool.clone();
    let handler = move |operation: Operation| {
        let pool = handler_pool.clone();
        async move {
            let done = operation.transaction(&pool, async |_| {
                Ok::<_, sqlx::Error>(Reply::new(StatusCode::CREATED, "done"))
            });
            done.await.map_err(failed)
        }
    };
    let store = Arc::clone(&home.store) as Arc<dyn Store>;
    let layer = Idempotency::new(store, Policy::required().single());
    let app = axum::Router::new().fallback(handler).layer(layer);
    let answer = app.oneshot(charge("settings-0000000001")).await.expect("infallible");
    assert_eq!(Answer::read(answer).await.status, 201);
    let mut connection = pool.acquire().await.expect("a connection");
    let shown: u64 =
        one(&mut connection, "SELECT CAST(@@SESSION.innodb_lock_wait_timeout AS UNSIGNED)").await;
    assert_eq!(shown, 7);
    assert!(home.store.load(&ask("none").id).await.expect("answers").is_none());
}
