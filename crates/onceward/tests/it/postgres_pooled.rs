//! PgBouncer in transaction mode between stores and their server: each transaction may run on another
//! connection, and the pool may die. `./test` also has the suites go through one.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use onceward::{
    Canary, PgOptions, PgStore, Policy, Settings, Store,
    store::{PgConnectError, Reservation, Write, Written},
    testing::samples::{ask, reply},
};
use onceward_testbed::{Database, PgBouncer, Postgres};
use tokio::task::JoinSet;

use crate::{
    postgres_home::{insist, whole},
    postgres_lost_answers::{Ledger, contend, settle_accounts},
    service::{Service, says},
};

const EARLY: &str = "order-0000000000000001";
const LATE: &str = "order-0000000000000002";

/// A database behind a pool of its own, which has four connections to it.
fn pooled() -> (PgBouncer, Database<'static>) {
    let postgres = Postgres::shared();
    (PgBouncer::start(postgres), postgres.create_database())
}

async fn store(bouncer: &PgBouncer, database: &Database<'_>) -> Arc<PgStore> {
    let store = PgStore::connect(PgOptions::new(bouncer.url(database.name()))).await;
    Arc::new(store.unwrap_or_else(|error| panic!("{}", whole(&error))))
}

#[tokio::test]
async fn a_pool_that_forgets_prepared_statements_is_refused() {
    let postgres = Postgres::shared();
    let bouncer = PgBouncer::start_forgetful(postgres);
    let database = postgres.create_database();
    let connected = PgStore::connect(PgOptions::new(bouncer.url(database.name()))).await;
    let error = connected.expect_err("statements of others under the same names");
    assert!(matches!(error, PgConnectError::ForgetfulPool), "{}", whole(&error));
    assert!(error.to_string().contains("PgBouncer 1.21"), "{error}");
}

/// Two stores have twelve connections between them, for which the pool has four.
#[tokio::test(flavor = "multi_thread")]
async fn two_stores_behind_one_pool_grant_each_key_once_and_keep_its_lease() {
    let (bouncer, database) = pooled();
    let stores = [store(&bouncer, &database).await, store(&bouncer, &database).await];
    let mut tasks = JoinSet::new();
    for number in 0..600 {
        let store = Arc::clone(&stores[number % 2]);
        tasks.spawn(async move {
            let asked = ask(&format!("work-{:05}", number / 2));
            let answer = insist(|| store.reserve(asked.clone())).await;
            let Reservation::Granted { lease, .. } = answer else { return 0 };
            let renew = Write::Renew(Duration::from_secs(90));
            for write in [renew, Write::Complete(reply("done"))] {
                let written = insist(|| store.write(&lease, write.clone())).await;
                assert!(!matches!(written, Written::Superseded(_)), "{written:?}");
            }
            1
        });
    }
    let granted: u32 = tasks.join_all().await.into_iter().sum();
    assert_eq!(granted, 300);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_survives_a_pool_that_is_killed_under_load() {
    let (mut bouncer, database) = pooled();
    let store = store(&bouncer, &database).await;
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let load = tokio::spawn(contend(Arc::clone(&store), Arc::clone(&ledger), 0..2_000));
    for _ in 0..3 {
        let done = || ledger.lock().expect("not poisoned").acknowledged.len();
        let (enough, begun) = (done() + 50, Instant::now());
        while done() < enough && !load.is_finished() {
            assert!(begun.elapsed() < Duration::from_secs(60), "no progress");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(!load.is_finished(), "it was killed under load");
        tokio::task::block_in_place(|| {
            bouncer.kill_9();
            bouncer.start_again();
        });
    }
    load.await.expect("no panic");
    settle_accounts(&store, &ledger, 2_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canary_finds_through_a_pool_what_the_store_has_lost_and_nothing_else() {
    let (mut bouncer, database) = pooled();
    let store = store(&bouncer, &database).await;
    let canary = Arc::new(Canary::new(Arc::clone(&store) as Arc<dyn Store>));
    let settings = Settings {
        canary: Some(Arc::clone(&canary)),
        store_deadline: Duration::from_secs(20),
        ..Settings::default()
    };
    let given = Arc::clone(&store);
    let work = |_| async { "charged" };
    let service = Service::with_settings(|_| given, Policy::required(), settings, work);
    assert_eq!(service.charge(EARLY).await.says(), says(200, "executed"));
    // A pool that is killed has lost nothing, and the next key runs without a beat of somebody else.
    tokio::task::block_in_place(|| {
        bouncer.kill_9();
        bouncer.start_again();
    });
    assert_eq!(service.charge(EARLY).await.says(), says(200, "replayed"));
    assert_eq!(service.charge(LATE).await.says(), says(200, "executed"));
    assert_eq!(canary.regression(), None);
    // What was acknowledged on a connection that the pool keeps is gone behind it.
    tokio::task::block_in_place(|| {
        database.psql(&format!("DELETE FROM onceward.records WHERE key = '{LATE}'"))
    });
    canary.beat().await.expect("a beat");
    assert!(canary.regression().is_some(), "it is reported");
    assert_eq!(service.charge(LATE).await.says(), says(503, "store_regressed"));
    assert_eq!(service.runs(), 2);
}
