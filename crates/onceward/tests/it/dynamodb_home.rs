//! A table of its own for each test, other eyes on it, and a service in between that misbehaves.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, AtomicU32, Ordering::SeqCst},
    },
    time::{Duration, SystemTime},
};

use aws_sdk_dynamodb::{
    Client,
    config::{BehaviorVersion, Credentials, Region},
    types::AttributeValue,
};
use axum::{Router, body::Body, response::Response};
use http::{HeaderName, Request, Uri};
use hyper_util::{client::legacy, rt::TokioExecutor};
use onceward::{
    DynamoOptions, DynamoStore, Store as _,
    record::Lease,
    store::{Ask, Reservation},
};

pub(crate) type Item = HashMap<String, AttributeValue>;

pub(crate) fn new_table() -> String {
    format!("home_{:016x}", rand::random::<u64>())
}

/// The store on a table at this endpoint.
pub(crate) async fn store_at(endpoint: &str, table: &str) -> DynamoStore {
    DynamoStore::open(options_at(endpoint, table)).await.expect("a store")
}

pub(crate) fn options_at(endpoint: &str, table: &str) -> DynamoOptions {
    DynamoOptions::new(table).endpoint(endpoint).region("local").shards(2)
}

/// A client of the user's own.
pub(crate) fn client_at(endpoint: &str) -> Client {
    let credentials = Credentials::new("user", "user", None, None, "test");
    let config = aws_sdk_dynamodb::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("local"))
        .credentials_provider(credentials)
        .endpoint_url(endpoint);
    Client::from_conf(config.build())
}

/// Reserves what must be free.
pub(crate) async fn grant(store: &DynamoStore, ask: &Ask) -> Lease {
    match store.reserve(ask.clone()).await.expect("reserve answers") {
        Reservation::Granted { lease, .. } => lease,
        other => panic!("expected a grant, found {other:?}"),
    }
}

/// All items of a table that are not about the table itself.
pub(crate) async fn items(client: &Client, table: &str) -> Vec<Item> {
    let all = client.scan().table_name(table).consistent_read(true).send().await.expect("a scan");
    let all = all.items.unwrap_or_default().into_iter();
    all.filter(|item| item["pk"] != AttributeValue::S("meta".to_owned())).collect()
}

/// Stands before the emulator, and says what a service says that has too much to do, or whose clock is
/// not ours.
pub(crate) struct Between {
    pub(crate) address: SocketAddr,
    /// How many of the next calls are throttled.
    pub(crate) throttled: Arc<AtomicU32>,
    /// How many calls came.
    pub(crate) calls: Arc<AtomicU32>,
    /// How many seconds its date is ahead.
    pub(crate) ahead: Arc<AtomicI64>,
    cancelled: Arc<Mutex<Cancelled>>,
}

/// How many of the next transactions are cancelled, and for which reasons.
type Cancelled = (u32, &'static [&'static str]);

impl Between {
    pub(crate) async fn start(target: SocketAddr, code: &'static str) -> Between {
        let (throttled, calls, ahead) = (Arc::default(), Arc::default(), Arc::default());
        let cancelled = Arc::default();
        let between = Between { address: target, throttled, calls, ahead, cancelled };
        let (throttled, calls) = (Arc::clone(&between.throttled), Arc::clone(&between.calls));
        let (ahead, cancelled) = (Arc::clone(&between.ahead), Arc::clone(&between.cancelled));
        let client = legacy::Client::builder(TokioExecutor::new()).build_http();
        let handler = move |mut request: Request<Body>| {
            calls.fetch_add(1, SeqCst);
            let refuses =
                throttled.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
            let is_transaction = request.headers()["x-amz-target"]
                .to_str()
                .is_ok_and(|target| target.ends_with(".TransactWriteItems"));
            let reasons = is_transaction.then(|| next_reasons(&cancelled)).flatten();
            let date = date(ahead.load(SeqCst));
            let client = client.clone();
            async move {
                if refuses {
                    let kind = format!("com.amazonaws.dynamodb.v20120810#{code}");
                    let body = format!("{{\"__type\":\"{kind}\",\"message\":\"too much\"}}");
                    return Response::builder().status(400).body(Body::from(body)).expect("one");
                }
                if let Some(reasons) = reasons {
                    let body = cancellation(reasons);
                    return Response::builder().status(400).body(Body::from(body)).expect("one");
                }
                *request.uri_mut() = Uri::try_from(format!("http://{target}/")).expect("a URI");
                let response = client.request(request).await.expect("the emulator answers");
                let mut response = response.map(Body::new);
                let name = HeaderName::from_static("date");
                response.headers_mut().insert(name, date.parse().expect("a date"));
                response
            }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let app = Router::new().fallback(handler);
        tokio::spawn(async move { axum::serve(listener, app).await });
        Between { address, ..between }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Cancels so many of the next transactions, for these reasons.
    pub(crate) fn cancel(&self, times: u32, reasons: &'static [&'static str]) {
        *self.cancelled.lock().expect("not poisoned") = (times, reasons);
    }
}

/// Why this transaction is cancelled, if it is.
fn next_reasons(cancelled: &Mutex<Cancelled>) -> Option<&'static [&'static str]> {
    let mut cancelled = cancelled.lock().expect("not poisoned");
    cancelled.0 = cancelled.0.checked_sub(1)?;
    Some(cancelled.1)
}

/// How the service says so.
fn cancellation(reasons: &[&str]) -> String {
    let reasons: Vec<_> = reasons.iter().map(|code| serde_json::json!({ "Code": code })).collect();
    let kind = "com.amazonaws.dynamodb.v20120810#TransactionCanceledException";
    serde_json::json!({ "__type": kind, "message": "cancelled", "CancellationReasons": reasons })
        .to_string()
}

fn date(ahead: i64) -> String {
    let by = Duration::from_secs(ahead.unsigned_abs());
    let now = SystemTime::now();
    httpdate::fmt_http_date(if ahead < 0 { now - by } else { now + by })
}
