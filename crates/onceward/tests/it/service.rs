//! A service behind the layer, in process: its store can be made to fail, its time is tokio's.

use std::{
    collections::HashMap,
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, AtomicU32, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::{FutureExt as _, future::BoxFuture};
use http::{HeaderMap, Method, Request, request};
use http_body_util::BodyExt as _;
use onceward::{
    Engine, Idempotency, Key, MemoryStore, Operation, Routes, Scope, Settings, Store,
    clock::{Clock, Timestamp},
    record::{AuditRecord, Record, RecordId},
    testing::{Fault, FaultyStore, Gate, GatedStore, StoreCall},
};
use tokio::time::Instant;
use tower::ServiceExt as _;

/// The credential of most requests here, and of somebody else.
pub(crate) const ACME: &str = "Bearer acme-secret-credential";
pub(crate) const EVIL: &str = "Bearer evil-secret-credential";

/// Shows the time of tokio, paused or not, and can be moved further ahead.
#[derive(Clone, Debug)]
pub(crate) struct TestClock {
    begun: Instant,
    wall_ahead: Arc<AtomicI64>,
    monotonic_ahead: Arc<AtomicI64>,
}

impl TestClock {
    pub(crate) fn new() -> Self {
        TestClock {
            begun: Instant::now(),
            wall_ahead: Arc::default(),
            monotonic_ahead: Arc::default(),
        }
    }

    /// Moves wall time on, as hours or days that pass.
    pub(crate) fn advance(&self, by: Duration) {
        self.wall_ahead.fetch_add(micros(by), Ordering::SeqCst);
    }

    /// Moves both times on at once, as a process that was stopped and goes on finds them.
    pub(crate) fn pause_process(&self, by: Duration) {
        self.advance(by);
        self.monotonic_ahead.fetch_add(micros(by), Ordering::SeqCst);
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).expect("a duration of this age")
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        let start = Timestamp::from_micros(1_000_000_000_000_000);
        let ahead = self.wall_ahead.load(Ordering::SeqCst).unsigned_abs();
        start.plus(self.begun.elapsed()).plus(Duration::from_micros(ahead))
    }

    fn monotonic(&self) -> Instant {
        let ahead = self.monotonic_ahead.load(Ordering::SeqCst).unsigned_abs();
        Instant::now() + Duration::from_micros(ahead)
    }
}

/// One run of the handler, as it sees its request.
pub(crate) struct Run {
    /// 1 for the first.
    pub(crate) number: u32,
    pub(crate) parts: request::Parts,
    pub(crate) body: Bytes,
}

impl Run {
    pub(crate) fn operation(&self) -> Operation {
        self.parts.extensions.get().cloned().expect("a protected request has its operation")
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.parts.headers.get(name).map(|value| value.to_str().expect("text"))
    }
}

type Work = dyn Fn(Run) -> BoxFuture<'static, Response> + Send + Sync;

/// A service under test.
pub(crate) struct Service {
    pub(crate) app: Router,
    /// The handler without the layer.
    pub(crate) inner: Router,
    pub(crate) engine: Arc<Engine>,
    pub(crate) memory: Arc<MemoryStore>,
    pub(crate) clock: TestClock,
    runs: Arc<AtomicU32>,
}

impl Service {
    /// A service whose handler is `work`.
    pub(crate) fn new<F, R>(
        routes: impl Into<Routes>,
        work: impl Fn(Run) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = R> + Send + 'static,
        R: IntoResponse,
    {
        Self::on(|memory| memory, routes, work)
    }

    /// The same on a store around the memory store.
    pub(crate) fn on<F, R>(
        store: impl FnOnce(Arc<MemoryStore>) -> Arc<dyn Store>,
        routes: impl Into<Routes>,
        work: impl Fn(Run) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = R> + Send + 'static,
        R: IntoResponse,
    {
        Self::with_settings(store, routes, Settings::default(), work)
    }

    /// The same on a store whose calls stop at a gate.
    pub(crate) fn gated<F, R>(
        routes: impl Into<Routes>,
        settings: Settings,
        work: impl Fn(Run) -> F + Send + Sync + 'static,
    ) -> (Self, Gate)
    where
        F: Future<Output = R> + Send + 'static,
        R: IntoResponse,
    {
        let mut made = None;
        let store = |memory: Arc<MemoryStore>| -> Arc<dyn Store> {
            let (store, gate) = GatedStore::new(memory);
            made = Some(gate);
            Arc::new(store)
        };
        let service = Self::with_settings(store, routes, settings, work);
        (service, made.expect("the store was made"))
    }

    /// The same with settings of its own, but for the clock.
    pub(crate) fn with_settings<F, R>(
        store: impl FnOnce(Arc<MemoryStore>) -> Arc<dyn Store>,
        routes: impl Into<Routes>,
        settings: Settings,
        work: impl Fn(Run) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = R> + Send + 'static,
        R: IntoResponse,
    {
        let clock = TestClock::new();
        let memory = Arc::new(MemoryStore::with_clock(Arc::new(clock.clone())));
        let settings = Settings { clock: Arc::new(clock.clone()), ..settings };
        let layer = Idempotency::with_settings(store(Arc::clone(&memory)), routes, settings);
        let engine = Arc::clone(layer.engine());
        let runs = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&runs);
        let work: Arc<Work> = Arc::new(move |run| {
            let working = work(run);
            async move { working.await.into_response() }.boxed()
        });
        let handler = move |request: Request<Body>| {
            let number = counted.fetch_add(1, Ordering::SeqCst) + 1;
            let work = Arc::clone(&work);
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.expect("the body was read before").to_bytes();
                work(Run { number, parts, body }).await
            }
        };
        let inner = Router::new().fallback(handler);
        let app = inner.clone().layer(layer);
        Service { app, inner, engine, memory, clock, runs }
    }

    /// How often the handler was called.
    pub(crate) fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    /// Sends a request and reads its answer to the end.
    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.app.clone().oneshot(request).await.expect("infallible");
        Answer::read(response).await
    }

    /// The charge of most tests here, under this key.
    pub(crate) async fn charge(&self, key: &str) -> Answer {
        self.send(charge(key)).await
    }

    /// The same, by a client that does not wait for it.
    pub(crate) fn spawn_charge(&self, key: &str) -> tokio::task::JoinHandle<Answer> {
        self.spawn(charge(key))
    }

    pub(crate) fn spawn(&self, request: Request<Body>) -> tokio::task::JoinHandle<Answer> {
        let app = self.app.clone();
        tokio::spawn(
            async move { Answer::read(app.oneshot(request).await.expect("infallible")).await },
        )
    }

    pub(crate) async fn record(&self, key: &str) -> Option<Record> {
        self.memory.load(&acme(key)).await.expect("memory answers")
    }

    pub(crate) async fn audit(&self, key: &str) -> Vec<AuditRecord> {
        self.memory.audit(&acme(key)).await.expect("memory answers")
    }
}

fn acme(key: &str) -> RecordId {
    let key = Key::new(key).expect("a key");
    RecordId { scope: Scope::of_credential(ACME.as_bytes()), key }
}

/// The body of most requests here.
pub(crate) const BODY: &str = r#"{"amount":100}"#;

/// A request to be charged, under this key.
pub(crate) fn charge(key: &str) -> Request<Body> {
    keyed(key).body(Body::from(BODY)).expect("a request")
}

/// The same, not yet finished.
pub(crate) fn keyed(key: &str) -> request::Builder {
    Request::builder()
        .method(Method::POST)
        .uri("/charges")
        .header("authorization", ACME)
        .header("content-type", "application/json")
        .header("idempotency-key", key)
}

/// A response, read to its end.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) async fn read<B>(response: Response<B>) -> Self
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: std::fmt::Debug,
    {
        let (parts, body) = response.into_parts();
        let body = body.collect().await.expect("a whole body").to_bytes();
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("text"))
    }

    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        self.headers.get_all(name).iter().map(|value| value.to_str().expect("text")).collect()
    }

    pub(crate) fn outcome(&self) -> &str {
        self.header("onceward-outcome")
    }

    /// Status and code, or status and outcome of an answer that is not a rejection: all that most
    /// tests have to say.
    pub(crate) fn says(&self) -> (u16, String) {
        let is_problem = self.header("content-type") == "application/problem+json";
        let word = match is_problem {
            true => self.json()["code"].as_str().expect("a code").replace("idempotency_", ""),
            false => self.outcome().to_owned(),
        };
        (self.status, word)
    }
}

pub(crate) fn says(status: u16, word: &str) -> (u16, String) {
    (status, word.to_owned())
}

/// Lets time go by. With tokio's paused time it takes none.
pub(crate) async fn pass(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// Which calls of a store fail, and how.
#[derive(Clone, Default)]
pub(crate) struct Faults(Arc<Mutex<HashMap<StoreCall, (Fault, u32)>>>);

impl Faults {
    /// The next `times` calls fail.
    pub(crate) fn fail(&self, call: StoreCall, fault: Fault, times: u32) {
        self.0.lock().expect("not poisoned").insert(call, (fault, times));
    }

    /// All is well from now on.
    pub(crate) fn heal(&self) {
        self.0.lock().expect("not poisoned").clear();
    }

    /// A store with these faults.
    pub(crate) fn on(&self, inner: Arc<MemoryStore>) -> Arc<dyn Store> {
        let faults = Arc::clone(&self.0);
        Arc::new(FaultyStore::new(inner, move |call, _| {
            match faults.lock().expect("not poisoned").get_mut(&call) {
                Some((fault, times)) if *times > 0 => {
                    *times -= 1;
                    *fault
                }
                _ => Fault::None,
            }
        }))
    }
}

pub(crate) const FOR_EVER: u32 = u32::MAX;
