//! A process that is killed anywhere in an operation, and another one that goes on. What was done for
//! the operation outside of its database stands in a ledger of its own.

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use axum::Router;
use http::StatusCode;
use onceward::{
    Effect, EffectError, Effects, Idempotency, Operation, Policy, Reply, Settings, SqliteOptions,
    SqliteStore,
    clock::{Clock, SystemClock, Timestamp},
};
use sqlx::Sqlite;
use tower::ServiceExt as _;

use crate::{
    service::{Answer, charge, says},
    shop::{Database as _, failed, pool_on},
};

const KEY: &str = "order-0000000000000001";
const FOLDER: &str = "ONCEWARD_TEST_SHOP";
const EDGE: &str = "ONCEWARD_TEST_EDGE";
const PAYMENT: &str = "ONCEWARD_TEST_PAYMENT";
const HOST: &str =
    "phases_killed::killed_anywhere_the_operation_is_gone_on_with_and_nothing_is_done_twice";

/// Where the process can be killed, in order.
const EDGES: [&str; 8] = [
    "before",
    "in the first phase",
    "after the first phase",
    "before the call",
    "after the call",
    "after the effect",
    "in the last phase",
    "after the last phase",
];

/// Says where it is and waits to be killed, if it is to be killed here.
async fn edge(name: &str) {
    if env::var(EDGE).is_ok_and(|edge| edge == name) {
        println!("@here");
        std::future::pending::<()>().await;
    }
}

async fn handle(folder: PathBuf, operation: Operation) -> Result<Reply, (StatusCode, String)> {
    let pool = pool_on(folder.join("shop.db")).await;
    edge("before").await;
    let ordered = operation.phase(&pool, "order", async |tx| {
        Sqlite::order(tx, "tea").await?;
        edge("in the first phase").await;
        Ok::<_, sqlx::Error>(())
    });
    ordered.await.map_err(failed)?;
    edge("after the first phase").await;
    let payment = match env::var(PAYMENT).as_deref() {
        Ok("not idempotent") => Effect::not_idempotent("pay"),
        _ => Effect::idempotent("pay"),
    };
    let paid = operation.effect(payment, async |key| {
        edge("before the call").await;
        let ledger = fs::OpenOptions::new().append(true).create(true).open(folder.join("ledger"));
        ledger.and_then(|mut it| it.write_all(format!("{key}\n").as_bytes())).expect("written");
        edge("after the call").await;
        Ok::<_, EffectError<&str>>(())
    });
    paid.await.map_err(failed)?;
    edge("after the effect").await;
    let shipped = operation.phase(&pool, "ship", async |tx| {
        Sqlite::order(tx, "parcel").await?;
        edge("in the last phase").await;
        Ok::<_, sqlx::Error>(())
    });
    shipped.await.map_err(failed)?;
    edge("after the last phase").await;
    Ok(Reply::new(StatusCode::CREATED, "ordered"))
}

/// The clock of a process that comes when every lease of the first one is over.
#[derive(Debug)]
struct Later;

impl Clock for Later {
    fn now(&self) -> Timestamp {
        SystemClock.now().plus(Duration::from_secs(3600))
    }
}

async fn send(folder: &Path, clock: Arc<dyn Clock>) -> Answer {
    let options = SqliteOptions::new(folder.join("shop.db")).clock(Arc::clone(&clock));
    let store = Arc::new(SqliteStore::open(options).await.expect("a store"));
    let pool = pool_on(folder.join("shop.db")).await;
    sqlx::query(Sqlite::ORDERS).execute(&pool).await.expect("made");
    let policy = Policy::required().effects(Effects::Phased).expect("allowed");
    let layer =
        Idempotency::with_settings(store, policy, Settings { clock, ..Settings::default() });
    let shop = folder.to_owned();
    let handler = move |operation: Operation| handle(shop.clone(), operation);
    let app = Router::new().fallback(handler).layer(layer);
    Answer::read(app.oneshot(charge(KEY)).await.expect("infallible")).await
}

/// Kills a process that has come to this edge, and goes on in this one.
async fn killed_at(edge: &str, payment: &str) -> (Answer, Vec<String>, Vec<String>) {
    let folder = tempfile::tempdir().expect("a directory");
    let mut process = Command::new(env::current_exe().expect("this program"))
        .args(["--exact", "--nocapture", HOST])
        .env(FOLDER, folder.path())
        .env(EDGE, edge)
        .env(PAYMENT, payment)
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let mut said = BufReader::new(process.stdout.take().expect("piped")).lines();
    assert!(said.any(|line| line.expect("text").ends_with("@here")), "it came to: {edge}");
    process.kill().expect("killed");
    process.wait().expect("ended");
    let answer = send(folder.path(), Arc::new(Later)).await;
    let pool = pool_on(folder.path().join("shop.db")).await;
    let orders = Sqlite::orders(&pool).await;
    let ledger = fs::read_to_string(folder.path().join("ledger")).unwrap_or_default();
    (answer, orders, ledger.lines().map(ToOwned::to_owned).collect())
}

#[tokio::test]
async fn killed_anywhere_the_operation_is_gone_on_with_and_nothing_is_done_twice() {
    // Started by itself, this test is the process that is killed.
    if let Some(folder) = env::var_os(FOLDER) {
        send(Path::new(&folder), Arc::new(SystemClock)).await;
        return;
    }
    for edge in EDGES {
        let (answer, orders, mut keys) = killed_at(edge, "idempotent").await;
        assert_eq!((answer.says(), answer.text()), (says(201, "executed"), "ordered"), "{edge}");
        assert_eq!(orders, ["tea", "parcel"], "{edge}");
        keys.dedup();
        assert_eq!(keys.len(), 1, "one derived key, killed {edge}: {keys:?}");
    }
    for edge in EDGES {
        let (answer, orders, keys) = killed_at(edge, "not idempotent").await;
        let open = edge.ends_with("the call");
        let told = if open { says(409, "outcome_unknown") } else { says(201, "executed") };
        assert_eq!(answer.says(), told, "{edge}");
        assert_eq!(orders.len(), if open { 1 } else { 2 }, "{edge}");
        assert_eq!(keys.len(), usize::from(edge != "before the call"), "{edge}");
    }
}
