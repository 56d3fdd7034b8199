//! A service with a database of its own: its orders and our records in one place. Others whom it
//! calls keep a ledger of what they did.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    task::Poll,
    time::Duration,
};

use axum::{Router, body::Body, response::IntoResponse};
use http::{Request, StatusCode};
use onceward::{
    Engine, Idempotency, Operation, Policy, Settings, Store,
    clock::Clock,
    record::{Lease, Record, RecordId},
    store::{Proof, Resolution, Resolve, Resolved, Write, Written},
};
use sqlx::{Pool, Sqlite, Transaction};
use tower::ServiceExt as _;

use crate::service::{ACME, Answer, TestClock, charge};

mod database; // which ones there are

pub(crate) use database::{Database, Networked, on_database, on_each_database, pool_on};

/// The shop, as its handlers have it.
pub(crate) struct Shop<D: Database = Sqlite> {
    pub(crate) pool: Pool<D>,
    pub(crate) store: Arc<D::Store>,
    pub(crate) clock: TestClock,
    pub(crate) ledger: Ledger,
    runs: Arc<AtomicU32>,
    place: Arc<D::Place>,
}

impl<D: Database> Clone for Shop<D> {
    fn clone(&self) -> Self {
        Shop {
            pool: self.pool.clone(),
            store: Arc::clone(&self.store),
            clock: self.clock.clone(),
            ledger: self.ledger.clone(),
            runs: Arc::clone(&self.runs),
            place: Arc::clone(&self.place),
        }
    }
}

/// A place with records and a table of orders.
pub(crate) struct Opened<D: Database> {
    pub(crate) pool: Pool<D>,
    pub(crate) store: Arc<D::Store>,
    pub(crate) place: D::Place,
}

impl<D: Database> Opened<D> {
    pub(crate) async fn new(clock: Arc<dyn Clock>) -> Self {
        let place = D::place();
        let store = Arc::new(D::store(&place, clock).await);
        let pool = D::pool(&place).await;
        let mut connection = pool.acquire().await.expect("a connection");
        D::run(&mut connection, D::ORDERS).await.expect("made");
        drop(connection);
        Opened { pool, store, place }
    }
}

impl Shop<Sqlite> {
    /// The path of the file.
    pub(crate) fn path(&self) -> std::path::PathBuf {
        self.place.path().join("shop.db")
    }
}

impl<D: Database> Shop<D> {
    pub(crate) async fn open() -> Self {
        let clock = TestClock::new();
        let Opened { pool, store, place } = Opened::new(Arc::new(clock.clone())).await;
        let (runs, ledger) = (Arc::default(), Ledger::default());
        Shop { pool, store, clock, ledger, runs, place: Arc::new(place) }
    }

    /// The same with a pool whose transactions do not wait long for those of others.
    pub(crate) async fn open_impatient() -> Self {
        let shop = Self::open().await;
        Shop { pool: D::impatient_pool(&shop.place).await, ..shop }
    }

    /// Begins a transaction that is going to write.
    pub(crate) async fn begin(&self) -> Transaction<'static, D> {
        D::begin_to_write(&self.pool).await.expect("begun")
    }

    /// The same with a pool whose connections lead through this address.
    pub(crate) async fn behind(self, address: std::net::SocketAddr) -> Self
    where
        D: Networked,
    {
        Shop { pool: D::pool(&D::through(&self.place, address)).await, ..self }
    }

    /// A place that no transaction of the shop's reaches, with the same names.
    pub(crate) fn elsewhere(&self) -> D::Place {
        D::elsewhere(&self.place)
    }

    /// No connection of the pool stays inside a transaction. One may be there for a moment: a server is
    /// told later of what was dropped.
    pub(crate) async fn nobody_stays_in_a_transaction(&self) {
        let mut open = 0;
        for _ in 0..50 {
            open = D::idle_in_transactions(&self.place, &self.pool).await;
            if open == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{open} connections are left inside a transaction");
    }

    /// The shop behind the layer.
    pub(crate) fn serve<F, R>(
        &self,
        policy: Policy,
        handler: impl Fn(Shop<D>, Operation) -> F + Clone + Send + Sync + 'static,
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
        handler: impl Fn(Shop<D>, Operation) -> F + Clone + Send + Sync + 'static,
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
        D::orders(&self.pool).await
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

/// No transaction here waits more often, mostly.
pub(crate) const WAITS_MAX: u32 = 12;

/// Drops a call at this of its waits, the first being 1. Nothing if it comes to its end before.
pub(crate) async fn dropped_at<T>(wait: u32, call: impl Future<Output = T>) -> Option<T> {
    let (mut call, mut waits) = (pin!(call), 0);
    poll_fn(|context| match call.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => {
            waits += 1;
            if waits == wait { Poll::Ready(None) } else { Poll::Pending }
        }
    })
    .await
}
