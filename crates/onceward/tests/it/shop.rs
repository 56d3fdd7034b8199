//! A service with a database of its own: its orders and our records in one SQLite file. Others whom it
//! calls keep a ledger of what they did.

use std::{
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use axum::{Router, body::Body, response::IntoResponse};
use http::{Request, StatusCode};
use onceward::{
    Engine, Idempotency, Operation, Policy, Settings, SqliteOptions, SqliteStore, Store,
    record::{Lease, Record, RecordId},
    store::{Proof, Resolution, Resolve, Resolved, Write, Written},
};
use sqlx::{
    SqliteConnection, SqlitePool,
    sqlite::{SqliteConnectOptions, SqlitePoolOptions},
};
use tempfile::TempDir;
use tower::ServiceExt as _;

use crate::service::{ACME, Answer, TestClock, charge};

/// The shop, as its handlers have it.
#[derive(Clone)]
pub(crate) struct Shop {
    pub(crate) pool: SqlitePool,
    pub(crate) store: Arc<SqliteStore>,
    pub(crate) clock: TestClock,
    pub(crate) ledger: Ledger,
    runs: Arc<AtomicU32>,
    dir: Arc<TempDir>,
}

impl Shop {
    pub(crate) async fn open() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let clock = TestClock::new();
        let options = SqliteOptions::new(dir.path().join("shop.db")).clock(Arc::new(clock.clone()));
        let store = Arc::new(SqliteStore::open(options).await.expect("a store"));
        let pool = pool_on(dir.path().join("shop.db")).await;
        sqlx::query("CREATE TABLE orders (name TEXT NOT NULL)").execute(&pool).await.expect("made");
        let runs = Arc::default();
        Shop { pool, store, clock, ledger: Ledger::default(), runs, dir: Arc::new(dir) }
    }

    /// The path of the file.
    pub(crate) fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("shop.db")
    }

    /// The shop behind the layer.
    pub(crate) fn serve<F, R>(
        &self,
        policy: Policy,
        handler: impl Fn(Shop, Operation) -> F + Clone + Send + Sync + 'static,
    ) -> Served
    where
        F: Future<Output = R> + Send + 'static,
        R: IntoResponse,
    {
        self.serve_on(Arc::clone(&self.store) as Arc<dyn Store>, policy, handler)
    }

    /// The same with a store around that of the shop.
    pub(crate) fn serve_on<F, R>(
        &self,
        store: Arc<dyn Store>,
        policy: Policy,
        handler: impl Fn(Shop, Operation) -> F + Clone + Send + Sync + 'static,
    ) -> Served
    where
        F: Future<Output = R> + Send + 'static,
        R: IntoResponse,
    {
        let settings = Settings { clock: Arc::new(self.clock.clone()), ..Settings::default() };
        let layer = Idempotency::with_settings(store, policy, settings);
        let engine = Arc::clone(layer.engine());
        let shop = self.clone();
        let handler = move |operation: Operation| {
            shop.runs.fetch_add(1, Ordering::SeqCst);
            handler(shop.clone(), operation)
        };
        let inner = Router::new().fallback(handler);
        Served { app: inner.clone().layer(layer), inner, engine }
    }

    /// How often a handler was called.
    pub(crate) fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    /// The orders there are.
    pub(crate) async fn orders(&self) -> Vec<String> {
        let orders = sqlx::query_scalar("SELECT name FROM orders ORDER BY rowid");
        orders.fetch_all(&self.pool).await.expect("orders")
    }

    /// Somebody takes the attempt that is at work for lost; and says that it did not act.
    pub(crate) async fn taken_for_lost(&self, key: &str, is_released: bool) {
        let record = self.record(key).await.expect("a record");
        taken_for_lost(&*self.store, &record, is_released).await;
    }

    pub(crate) async fn record(&self, key: &str) -> Option<Record> {
        self.store.load(&acme(key)).await.expect("the store answers")
    }
}

/// Somebody takes the attempt that is at work for lost; and says that it did not act.
pub(crate) async fn taken_for_lost(store: &dyn Store, record: &Record, is_released: bool) {
    let Record { id, attempt, fence, generation, attempts, lease_until, .. } = record.clone();
    let lease =
        Lease { id, attempt, fence, generation, attempt_number: attempts, until: lease_until };
    let unknown = store.write(&lease, Write::MarkUnknown("gone".into())).await;
    assert_eq!(unknown.expect("an answer"), Written::Applied);
    if !is_released {
        return;
    }
    let resolve = Resolve {
        id: lease.id,
        generation,
        fence,
        resolution: Resolution::Release(Proof::Authoritative),
        reason: "the provider".into(),
    };
    let resolved = store.resolve(resolve).await.expect("an answer");
    assert!(matches!(resolved, Resolved::Applied(_)), "{resolved:?}");
}

pub(crate) fn acme(key: &str) -> RecordId {
    RecordId {
        scope: onceward::Scope::of_credential(ACME.as_bytes()),
        key: onceward::Key::new(key).expect("a key"),
    }
}

/// A pool of the shop's own.
pub(crate) async fn pool_on(path: impl AsRef<std::path::Path>) -> SqlitePool {
    let options = SqliteConnectOptions::new().filename(path).create_if_missing(true);
    SqlitePoolOptions::new().max_connections(4).connect_with(options).await.expect("a pool")
}

/// Writes an order.
pub(crate) async fn order(tx: &mut SqliteConnection, name: &str) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO orders (name) VALUES (?)").bind(name).execute(tx).await?;
    Ok(())
}

/// A service that runs.
#[derive(Clone)]
pub(crate) struct Served {
    pub(crate) app: Router,
    /// What is behind the layer.
    pub(crate) inner: Router,
    pub(crate) engine: Arc<Engine>,
}

impl Served {
    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        Answer::read(self.app.clone().oneshot(request).await.expect("infallible")).await
    }

    pub(crate) async fn charge(&self, key: &str) -> Answer {
        self.send(charge(key)).await
    }

    pub(crate) fn spawn_charge(&self, key: &str) -> tokio::task::JoinHandle<Answer> {
        let (served, request) = (self.clone(), charge(key));
        tokio::spawn(async move { served.send(request).await })
    }
}

/// What somebody else did, and under which key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger(Arc<Mutex<Entries>>);

#[derive(Debug, Default)]
struct Entries {
    calls: Vec<String>,
    done: Vec<String>,
}

impl Ledger {
    /// Somebody who acts once for each key, and gives the same answer again.
    pub(crate) fn act_once(&self, key: &str) -> String {
        let mut entries = self.0.lock().expect("not poisoned");
        entries.calls.push(key.to_owned());
        if !entries.done.iter().any(|done| done == key) {
            entries.done.push(key.to_owned());
        }
        format!("receipt for {key}")
    }

    /// Somebody who acts each time.
    pub(crate) fn act(&self, key: &str) -> String {
        let mut entries = self.0.lock().expect("not poisoned");
        entries.calls.push(key.to_owned());
        entries.done.push(key.to_owned());
        format!("receipt {}", entries.done.len())
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.0.lock().expect("not poisoned").calls.clone()
    }

    pub(crate) fn done(&self) -> Vec<String> {
        self.0.lock().expect("not poisoned").done.clone()
    }
}

/// A handler's own word for what went wrong.
pub(crate) fn failed(error: impl std::fmt::Debug) -> (StatusCode, String) {
    (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:?}"))
}
