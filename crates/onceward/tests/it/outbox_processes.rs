//! Relays that are killed at any moment. The judge is a ledger in this process, which they deliver
//! to over HTTP.

use std::{
    collections::BTreeMap,
    env,
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Json, Router, body::Bytes, extract::State, routing::post};
use http::HeaderMap;
use onceward::{
    Message, OutboxStore, PgOptions, PgStore, Relay, SqliteOptions, SqliteStore, Store,
    clock::{Clock, SystemClock, Timestamp},
    outbox::{HttpSink, MessageState, Relayed, Staged, StoredMessage},
    store::{Reservation, Write},
    testing::samples::{ask, reply},
};
use onceward_testbed::Postgres;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::net::TcpListener;

use crate::postgres_home::new_schema;

const PLACE: &str = "ONCEWARD_TEST_OUTBOX_PLACE";
const LEDGER: &str = "ONCEWARD_TEST_OUTBOX_LEDGER";
const ROUND: &str = "ONCEWARD_TEST_OUTBOX_ROUND";
const HOST: &str = "outbox_processes::killed_relays_lose_nothing_and_repeat_nothing";

const ROUNDS: u32 = 15;
/// For each of the two sinks.
const MESSAGES: usize = 300;
const AGGREGATES: usize = 20;
const DELIVERIES: u32 = 8;

/// Every round is an hour after the one before, so that the leases of the killed are over.
#[derive(Debug)]
struct Ahead(u32);

impl Clock for Ahead {
    fn now(&self) -> Timestamp {
        SystemClock.now().plus(Duration::from_secs(3600) * self.0)
    }
}

/// What is asked of it here.
trait Both: Store + OutboxStore {}
impl<S: Store + OutboxStore> Both for S {}

/// At a path, or in a schema (`SCHEMA@URL`).
async fn open(place: &str, round: u32) -> Arc<dyn Both> {
    let clock = Arc::new(Ahead(round));
    match place.split_once('@') {
        Some((schema, url)) => {
            let options = PgOptions::new(url).schema(schema).clock(clock);
            Arc::new(PgStore::connect(options).await.expect("a store"))
        }
        None => {
            let options = SqliteOptions::new(place).clock(clock);
            Arc::new(SqliteStore::open(options).await.expect("a store"))
        }
    }
}

fn relay(store: Arc<dyn Both>, ledger: &str) -> Relay {
    let once = HttpSink::idempotent(&format!("{ledger}/once")).expect("a sink");
    let each = HttpSink::not_idempotent(&format!("{ledger}/each")).expect("a sink");
    Relay::new(store)
        .sink("once", once.provider_id_from_json("/entry"))
        .sink("each", each.provider_id_from_json("/entry"))
        .concurrency(DELIVERIES)
}

/// What was done, in order: entry numbers are positions.
#[derive(Default)]
struct Ledger {
    /// By key: one entry for each.
    once: Vec<(String, Bytes)>,
    repeated: usize,
    /// By arrival.
    each: Vec<Bytes>,
}

type Shared = Arc<Mutex<Ledger>>;

/// A little time on either side of the effect, for the blow to fall into.
async fn some_time() {
    tokio::time::sleep(Duration::from_micros(rand::random_range(0..4000))).await;
}

async fn once(
    State(ledger): State<Shared>,
    headers: HeaderMap,
    body: Bytes,
) -> Json<serde_json::Value> {
    some_time().await;
    let key = headers["idempotency-key"].to_str().expect("text").to_owned();
    let entry = {
        let mut ledger = ledger.lock().expect("not poisoned");
        match ledger.once.iter().position(|(known, _)| *known == key) {
            Some(entry) => {
                assert_eq!(ledger.once[entry].1, body, "one key, one message");
                ledger.repeated += 1;
                entry
            }
            None => {
                ledger.once.push((key, body));
                ledger.once.len() - 1
            }
        }
    };
    some_time().await;
    Json(serde_json::json!({ "entry": entry }))
}

async fn each(State(ledger): State<Shared>, body: Bytes) -> Json<serde_json::Value> {
    some_time().await;
    let entry = {
        let mut ledger = ledger.lock().expect("not poisoned");
        ledger.each.push(body);
        ledger.each.len() - 1
    };
    some_time().await;
    Json(serde_json::json!({ "entry": entry }))
}

async fn serve(ledger: Shared) -> String {
    let app = Router::new().route("/once", post(once)).route("/each", post(each));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move { axum::serve(listener, app.with_state(ledger)).await });
    url
}

/// This test once more, as a relay that works until it is killed.
fn start(place: &str, ledger: &str, round: u32) -> Child {
    let program = env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args(["--exact", HOST, "--nocapture"]).env(PLACE, place).env(LEDGER, ledger);
    command.env(ROUND, round.to_string()).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("started");
    let said = BufReader::new(child.stdout.as_mut().expect("piped")).lines();
    assert!({ said }.any(|line| line.expect("text").ends_with("ready")), "it works");
    child
}

async fn work_until_killed() {
    let given = |name| env::var(name).expect("given to the child");
    let round = given(ROUND).parse().expect("a number");
    let store = open(&given(PLACE), round).await;
    let relay = relay(store, &given(LEDGER));
    std::io::stdout().write_all(b"ready\n").expect("said");
    relay.run(std::future::pending()).await;
}

async fn stage_all(store: &dyn Both) {
    let reserved = store.reserve(ask("order-1")).await.expect("an answer");
    let Reservation::Granted { lease, .. } = reserved else { panic!("expected a grant") };
    for number in 0..MESSAGES {
        let payload = format!("{number:04}");
        let aggregate = format!("account-{}", number % AGGREGATES);
        let once = Message::new(format!("once-{number}"), "once", payload.clone());
        let each = Message::new(format!("each-{number}"), "each", payload);
        for message in [once.aggregate(aggregate), each] {
            let staged = store.stage(&lease, message).await.expect("an answer");
            assert_eq!(staged, Staged::Applied);
        }
    }
    let _written = store.write(&lease, Write::Complete(reply("ok"))).await.expect("an answer");
}

async fn listed(store: &dyn Both, state: MessageState, sink: &str) -> Vec<StoredMessage> {
    let listed = store.list(state, None, 10_000).await.expect("an answer");
    listed.into_iter().filter(|stored| *stored.message.sink == *sink).collect()
}

#[test]
fn killed_relays_lose_nothing_and_repeat_nothing() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    // Started by itself, this test is one of the relays.
    match env::var_os(PLACE) {
        Some(_) => runtime.block_on(work_until_killed()),
        None => {
            let directory = tempfile::tempdir().expect("a directory");
            let path = directory.path().join("store.db").display().to_string();
            runtime.block_on(kill_and_judge(&path));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_relays_on_postgres_lose_nothing_and_repeat_nothing() {
    let url = Postgres::shared().url("postgres");
    kill_and_judge(&format!("{}@{url}", new_schema())).await;
}

async fn kill_and_judge(place: &str) {
    let seed = env::var("ONCEWARD_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(rand::random);
    eprintln!("ONCEWARD_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    stage_all(&*open(place, 0).await).await;
    let ledger = Shared::default();
    let url = serve(Arc::clone(&ledger)).await;
    for round in 1..=ROUNDS {
        let mut child = start(place, &url, round);
        tokio::time::sleep(Duration::from_micros(random.random_range(0..60_000))).await;
        child.kill().expect("killed");
        child.wait().expect("ended");
    }
    // One that is not killed does what is left.
    let store = open(place, ROUNDS + 1).await;
    let rest = relay(Arc::clone(&store), &url).run_once(u32::MAX).await;
    assert_eq!((rest.retried, rest.superseded, rest.store_failures), (0, 0, 0), "{rest:?}");
    judge(&*store, &ledger, rest).await;
}

async fn judge(store: &dyn Both, ledger: &Shared, rest: Relayed) {
    let ledger = std::mem::take(&mut *ledger.lock().expect("not poisoned"));
    let once = listed(store, MessageState::Done, "once").await;
    assert_eq!(once.len(), MESSAGES, "every message ends delivered");
    assert_eq!(ledger.once.len(), MESSAGES, "and acted once");
    for stored in &once {
        let entry: usize = stored.provider_id.as_deref().expect("an id").parse().expect("a number");
        let (key, body) = &ledger.once[entry];
        assert_eq!((&**key, body), (&*stored.derived_key, &stored.message.payload));
    }
    let mut last = BTreeMap::new();
    for (_, body) in &ledger.once {
        let number: usize = std::str::from_utf8(body).expect("text").parse().expect("a number");
        let before = last.insert(number % AGGREGATES, number);
        assert!(before < Some(number), "{number} came after {before:?} of its aggregate");
    }
    let mut arrivals: BTreeMap<Bytes, u32> = BTreeMap::new();
    ledger.each.iter().for_each(|body| *arrivals.entry(body.clone()).or_default() += 1);
    let done = listed(store, MessageState::Done, "each").await;
    let dead = listed(store, MessageState::Dead, "each").await;
    assert_eq!(done.len() + dead.len(), MESSAGES, "every message is settled");
    assert!(done.iter().all(|stored| arrivals.get(&stored.message.payload) == Some(&1)));
    assert!(arrivals.values().all(|arrivals| *arrivals == 1), "no second delivery: {arrivals:?}");
    for stored in &dead {
        assert!(stored.ambiguous, "{stored:?}");
        assert_eq!(stored.last_error.as_deref(), Some("an earlier delivery may have acted"));
    }
    let acted = dead.iter().filter(|stored| arrivals.contains_key(&stored.message.payload));
    let (acted, repeated) = (acted.count(), ledger.repeated);
    eprintln!(
        "left for the last {}, repeated {repeated}, dead letters {}, of which {acted} had acted",
        rest.delivered,
        dead.len()
    );
    assert!(dead.len() <= (ROUNDS * DELIVERIES) as usize, "only what was being delivered");
    assert!(repeated + dead.len() > 0, "some blow fell into a delivery");
}
