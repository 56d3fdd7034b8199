//! What is left behind on a server: no open transaction, no changed setting, whatever was dropped,
//! and whatever stands between.

use std::{sync::Arc, time::Duration};

use axum::response::IntoResponse;
use http::StatusCode;
use onceward::{
    Idempotency, Operation, PgOptions, PgStore, Policy, Reply, Store,
    record::Effects,
    store::{Reservation, Resolution, Resolve, StoreErrorKind, Which, Write},
    testing::samples::{ask, claim, phased, reply, save},
};
use onceward_testbed::Postgres;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use sqlx::{Connection as _, PgConnection, PgPool, postgres::PgPoolOptions};
use tower::ServiceExt as _;

use crate::{
    postgres_home::{Home, lines, one, run, whole},
    service::{Answer, charge},
    shop::failed,
};

/// Connections to this database that are inside a transaction and do nothing.
const IDLE: &str = "SELECT pid || ' ' || state || ' ' || query FROM pg_stat_activity \
                    WHERE datname = current_database() AND state LIKE 'idle in transaction%'";

/// A connection may be seen between two statements of a transaction that goes on.
async fn nobody_stays_in_a_transaction(home: &Home) {
    let mut look = home.connection().await;
    let mut found = Vec::new();
    for _ in 0..50 {
        found = lines(&mut look, IDLE).await;
        if found.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("left inside a transaction: {found:?}");
}

/// Polls a call for a random while, and drops it then.
async fn drop_soon<T>(random: &mut StdRng, call: impl Future<Output = T>) {
    let while_ = Duration::from_micros(random.random_range(0..4_000));
    // Whether it came to an answer is of no interest.
    let _ = tokio::time::timeout(while_, call).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_dropped_at_any_moment_leave_no_transaction_open() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let database = Postgres::shared().create_database();
    let home = Home::at(database.url(), |options| options).await;
    let mut random = StdRng::seed_from_u64(seed);
    let store = &home.store;
    for number in 0..80 {
        let asked = phased(&format!("dropped-{number:04}"));
        drop_soon(&mut random, store.reserve(asked.clone())).await;
        let Reservation::Granted { lease, .. } =
            store.reserve(asked.clone()).await.expect("reserve answers")
        else {
            panic!("the same attempt has it");
        };
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
}

/// A pool of the user's own.
pub(crate) async fn pool(home: &Home) -> PgPool {
    PgPoolOptions::new().max_connections(4).connect(&home.url).await.expect("a pool")
}

/// Runs a handler for a record that it holds.
pub(crate) async fn served<F, R>(
    home: &Home,
    policy: Policy,
    key: &str,
    handler: impl Fn(Operation) -> F + Clone + Send + Sync + 'static,
) -> Answer
where
    F: Future<Output = R> + Send + 'static,
    R: IntoResponse,
{
    let layer = Idempotency::new(Arc::clone(&home.store) as Arc<dyn Store>, policy);
    let app = axum::Router::new().fallback(handler).layer(layer);
    let response = app.oneshot(charge(key)).await.expect("infallible");
    Answer::read(response).await
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_and_phases_that_are_dropped_at_any_moment_leave_none_open() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let database = Postgres::shared().create_database();
    let home = Home::at(database.url(), |options| options).await;
    let pool = pool(&home).await;
    let policy = || Policy::required().effects(Effects::Phased).expect("allowed");
    for number in 0..100_u64 {
        let (pool, key) = (pool.clone(), format!("dropped-phase-{number:08}"));
        let answer = served(&home, policy(), &key, move |operation: Operation| {
            let pool = pool.clone();
            async move {
                let mut random = StdRng::seed_from_u64(seed ^ number);
                let phase = operation.phase(&pool, "pack", async |tx| {
                    sqlx::query("SELECT 1").execute(&mut *tx).await?;
                    Ok::<_, sqlx::Error>(1)
                });
                drop_soon(&mut random, phase).await;
                let work = operation.transaction(&pool, async |tx| {
                    sqlx::query("SELECT pg_sleep(0.001)").execute(&mut *tx).await?;
                    Ok::<_, sqlx::Error>(Reply::new(StatusCode::CREATED, "done"))
                });
                drop_soon(&mut random, work).await;
                "answered"
            }
        });
        answer.await;
    }
    nobody_stays_in_a_transaction(&home).await;
    // And the pool is whole.
    let held = futures_util::future::join_all((0..4).map(|_| pool.acquire())).await;
    assert!(held.iter().all(Result::is_ok));
}

/// Settings that our functions change while they run.
const SETTINGS: [&str; 7] = [
    "lock_timeout",
    "enable_seqscan",
    "enable_bitmapscan",
    "enable_hashjoin",
    "enable_mergejoin",
    "plan_cache_mode",
    "jit",
];

#[tokio::test]
async fn the_users_connection_keeps_its_settings() {
    let home = Home::new().await;
    let pool = PgPoolOptions::new().max_connections(1).connect(&home.url).await.expect("a pool");
    let show = {
        let pool = pool.clone();
        async move || {
            let mut shown = Vec::new();
            let mut connection = pool.acquire().await.expect("a connection");
            for setting in SETTINGS {
                shown.push(one::<String>(&mut connection, &format!("SHOW {setting}")).await);
            }
            shown
        }
    };
    run(&mut pool.acquire().await.expect("a connection"), "SET lock_timeout = '7s'").await;
    let before = show().await;
    let policy = || Policy::required().effects(Effects::Local).expect("allowed");
    let handler_pool = pool.clone();
    let during = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = Arc::clone(&during);
    let answer = served(&home, policy(), "settings-0000000001", move |operation| {
        let (pool, seen) = (handler_pool.clone(), Arc::clone(&seen));
        async move {
            let mut tx = pool.begin().await.expect("begun");
            let reply = Reply::new(StatusCode::CREATED, "done");
            operation.complete_in(&mut *tx, reply).await.expect("written");
            let mut shown = Vec::new();
            for setting in SETTINGS {
                shown.push(one::<String>(&mut tx, &format!("SHOW {setting}")).await);
            }
            *seen.lock().expect("not poisoned") = shown;
            tx.commit().await.expect("committed");
            "done"
        }
    });
    assert_eq!(answer.await.status, 201);
    assert_eq!(*during.lock().expect("not poisoned"), before, "inside the transaction");
    assert_eq!(show().await, before, "after it");

    // The same after a failure: somebody else has the record locked.
    let (url, schema) = (home.url.clone(), home.schema.clone());
    let answer = served(&home, policy(), "settings-0000000002", move |operation| {
        let (pool, url, schema) = (pool.clone(), url.clone(), schema.clone());
        async move {
            let mut other = PgConnection::connect(&url).await.expect("a connection");
            run(&mut other, &format!("BEGIN; SELECT 1 FROM {schema}.records FOR UPDATE")).await;
            let mut tx = pool.begin().await.expect("begun");
            let reply = Reply::new(StatusCode::CREATED, "done");
            let error = operation.complete_in(&mut *tx, reply).await.expect_err("locked");
            tx.rollback().await.expect("rolled back");
            run(&mut other, "ROLLBACK").await;
            Err::<(), _>(failed(error))
        }
    });
    assert_eq!(answer.await.status, 500);
    assert_eq!(show().await, before, "after a failure");
}

/// A lock that is not had in time would be the end of the user's whole transaction.
#[tokio::test]
async fn a_complete_in_a_transaction_waits_for_a_renewal_that_is_slow_to_commit() {
    let home = Home::new().await;
    let pool = pool(&home).await;
    let policy = Policy::required().effects(Effects::Local).expect("allowed");
    let (url, schema) = (home.url.clone(), home.schema.clone());
    let answer = served(&home, policy, "slow-renewal-00000001", move |operation| {
        let (pool, url, schema) = (pool.clone(), url.clone(), schema.clone());
        async move {
            let mut renewing = PgConnection::connect(&url).await.expect("a connection");
            let renew = format!("BEGIN; UPDATE {schema}.records SET lease_until = lease_until + 1");
            run(&mut renewing, &renew).await;
            let commits = tokio::spawn(async move {
                // As long as a disk or a replica may take.
                tokio::time::sleep(Duration::from_millis(400)).await;
                run(&mut renewing, "COMMIT").await;
            });
            let done = operation.transaction(&pool, async |_| {
                Ok::<_, sqlx::Error>(Reply::new(StatusCode::CREATED, "done"))
            });
            let done = done.await;
            commits.await.expect("no panic");
            done.map_err(failed)
        }
    });
    let answer = answer.await;
    assert_eq!((answer.status, answer.text()), (201, "done"));
}

#[tokio::test]
async fn a_read_only_server_is_named_and_left_when_it_is_writable_again() {
    let database = Postgres::shared().create_database();
    let home = Home::at(database.url(), |options| options).await;
    home.occupy(&ask("before")).await;
    let name = database.name();
    database.psql(&format!("ALTER DATABASE {name} SET default_transaction_read_only = on"));
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
               WHERE application_name = 'onceward' AND datname = current_database()";
    database.psql(end);
    // Sent on a connection that was ended: nobody can say that it was not carried out.
    let error = home.store.reserve(ask("during")).await.expect_err("read-only");
    assert_eq!(error.kind(), StoreErrorKind::Ambiguous, "{}", whole(&error));
    let error = home.store.reserve(ask("during")).await.expect_err("read-only");
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{}", whole(&error));
    assert!(whole(&error).contains("read-only"), "{}", whole(&error));
    let error = home.store.ping().await.expect_err("not well");
    assert!(whole(&error).contains("read-only"), "{}", whole(&error));
    Postgres::shared().psql(
        "postgres",
        &format!("ALTER DATABASE {name} SET default_transaction_read_only = off"),
    );
    home.occupy(&ask("during")).await;
    home.store.ping().await.expect("well");
}

#[tokio::test]
async fn a_wrong_password_is_said_to_be_one_and_not_told_to_anybody() {
    let postgres = Postgres::start();
    // Before version 14 it is not the default.
    let scram = "SET password_encryption = 'scram-sha-256'; ALTER ROLE postgres PASSWORD 'right'";
    postgres.psql("postgres", scram);
    let access = postgres.dir().join("data/pg_hba.conf");
    let lines = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n";
    std::fs::write(&access, lines).expect("its rules");
    let reload = postgres.psql("postgres", "SELECT pg_reload_conf()");
    assert_eq!(reload.trim(), "t");
    let connect = async |password: &str| {
        let url = postgres.url("postgres").replace("postgres@", &format!("postgres:{password}@"));
        PgStore::connect(PgOptions::new(url)).await
    };
    // The server reads its rules again when it comes to it.
    let error = loop {
        match connect("sesame-0000").await {
            Ok(store) => store.close().await,
            Err(error) => break error,
        }
    };
    let said = whole(&error);
    assert!(said.contains("password authentication failed"), "{said}");
    assert!(!said.contains("sesame-0000") && !format!("{error:?}").contains("sesame-0000"));
    connect("right").await.expect("the right one");
}

#[tokio::test]
async fn whoever_is_no_postgresql_is_found_out_soon() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("postgres://postgres@{}/postgres", listener.local_addr().expect("bound"));
    let talks = tokio::spawn(async move {
        let (mut http, _) = listener.accept().await.expect("a client");
        let mut some = [0; 8];
        let _ = http.read(&mut some).await;
        let _ = http.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        let silent = listener.accept().await.expect("a client");
        std::future::pending::<()>().await;
        drop(silent);
    });
    for says in ["HTTP", "nothing"] {
        let connecting = PgStore::connect(PgOptions::new(&*url));
        let connected = tokio::time::timeout(Duration::from_secs(20), connecting).await;
        let error = connected.unwrap_or_else(|_| panic!("it waits for whoever says {says}"));
        println!("{says}: {}", whole(&error.expect_err("not a server")));
    }
    talks.abort();
    let nobody = PgStore::connect(PgOptions::new("postgres://postgres@127.0.0.1:1/x")).await;
    assert!(whole(&nobody.expect_err("nobody")).contains("refused"));
}
