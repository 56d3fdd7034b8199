//! The embedded store against what it is made of: the same two writes by hand, one commit each.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use onceward::{
    Effects, Key, Scope, SqliteOptions, SqliteStore, Store,
    fingerprint::Fingerprint,
    record::{AttemptId, RecordId},
    reply::{Reply, ReplyBody},
    store::{Ask, Mode, Reservation, Write, Written},
};
use serde::Serialize;
use sqlx::{
    ConnectOptions as _, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};

use crate::{chart::Bar, report::Finding};

/// One row of the table.
#[derive(Serialize)]
pub(crate) struct Contestant {
    name: &'static str,
    /// Requests/s, round by round.
    rates: Vec<f64>,
    /// Microseconds.
    latencies: Vec<f64>,
    writes_per_commit: f64,
}

pub(crate) async fn run(rounds: u32, seconds: f64) -> anyhow::Result<Vec<Contestant>> {
    let directory = tempfile::tempdir()?;
    let time = Duration::from_secs_f64(seconds);
    let mut table = vec![
        Contestant::new("by hand, 1 at a time"),
        Contestant::new("onceward, 1 at a time"),
        Contestant::new("onceward, 8 at a time"),
        Contestant::new("onceward, 64 at a time"),
        Contestant::new("onceward, 256 at a time"),
    ];
    for round in 0..rounds {
        let file = |name: &str| directory.path().join(format!("{name}-{round}.db"));
        // In a task, as the requests of a server are.
        let by_hand = tokio::spawn(by_hand(file("hand"), time)).await??;
        table[0].add(by_hand, 1.0);
        for (row, concurrency) in [(1, 1), (2, 8), (3, 64), (4, 256)] {
            let (figures, shared) =
                ours(&file(&format!("ours-{concurrency}")), concurrency, time).await?;
            table[row].add(figures, shared);
        }
        eprintln!("round {} of {rounds} done", round + 1);
    }
    Ok(table)
}

struct Figures {
    rate: f64,
    latency_us: f64,
}

const INSERT: &str = "INSERT INTO onceward_records (scope, key, recipe, fingerprint, generation, state, \
    attempt, fence, attempts, effects, route, method, path, created_at, started_at, lease_until, \
    max_execution, finished_at, expires_at, retention, purge_at, last_error, reconcile_after, \
    void, reply_status, reply_headers, reply_schema, reply_encoding, reply_length, reply_body, \
    reply_digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, \
    ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (scope, key) DO NOTHING";

const UPDATE: &str = "UPDATE onceward_records SET (recipe, fingerprint, generation, state, attempt, fence, \
    attempts, effects, route, method, path, created_at, started_at, lease_until, max_execution, \
    finished_at, expires_at, retention, purge_at, last_error, reconcile_after, void, \
    reply_status, reply_headers, reply_schema, reply_encoding, reply_length, reply_body, \
    reply_digest) = (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, \
    ?, ?, ?, ?) WHERE scope = ? AND key = ? AND generation = ? AND state = ? AND fence = ? \
    AND attempt = ? AND lease_until = ?";

type ByHand = sqlx::query::Query<'static, sqlx::Sqlite, sqlx::sqlite::SqliteArguments>;

/// All columns of a record but its address.
fn bind_by_hand(
    query: ByHand,
    state: &'static str,
    attempt: &[u8],
    now: i64,
    reply: Option<(Vec<u8>, Vec<u8>, Vec<u8>)>,
) -> ByHand {
    let query = query.bind(1_i64).bind(vec![7_u8; 32]).bind(1_i64).bind(state);
    let query = query.bind(attempt.to_vec()).bind(now).bind(1_i64).bind("undeclared");
    let query = query.bind("default").bind("POST").bind("/charges").bind(now).bind(now).bind(now);
    let query = query.bind(300_000_000_i64).bind(None::<i64>).bind(now).bind(86_400_000_000_i64);
    let query = query.bind(now + 1).bind(None::<String>).bind(None::<i64>).bind(0_i64);
    let status = reply.as_ref().map(|_| 201_i64);
    let length = reply.as_ref().map(|(body, ..)| body.len() as i64);
    let encoding = reply.as_ref().map(|_| "identity");
    let (body, headers, digest) = reply.map_or((None, None, None), |(body, headers, digest)| {
        (Some(body), Some(headers), Some(digest))
    });
    let query = query.bind(status).bind(headers).bind(None::<String>).bind(encoding);
    query.bind(length).bind(body).bind(digest)
}

/// The same rows in the same table by the same two statements, without a store around them: one
/// commit for each write, on a connection that nobody shares.
async fn by_hand(path: PathBuf, time: Duration) -> anyhow::Result<Figures> {
    SqliteStore::open(SqliteOptions::new(&path)).await?.close().await;
    let mut connection: SqliteConnection = SqliteConnectOptions::new()
        .filename(&path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .disable_statement_logging()
        .connect()
        .await?;
    let begun = Instant::now();
    let mut done = 0_i64;
    while begun.elapsed() < time {
        let (key, attempt, now) = (key(), rand::random::<[u8; 16]>().to_vec(), 1_000_000 + done);
        let reserve = sqlx::query(INSERT).bind("acme").bind(key.clone());
        let reserve = bind_by_hand(reserve, "in_progress", &attempt, now, None);
        reserve.execute(&mut connection).await?;
        let body = Some((vec![b'x'; 200], vec![1_u8; 40], vec![2_u8; 8]));
        let complete = bind_by_hand(sqlx::query(UPDATE), "completed", &attempt, now, body);
        let complete = complete.bind("acme").bind(key).bind(1_i64).bind("in_progress").bind(now);
        complete.bind(attempt).bind(now).execute(&mut connection).await?;
        done += 1;
    }
    Ok(Figures::of(done.unsigned_abs(), 1, begun.elapsed()))
}

async fn ours(path: &Path, concurrency: u64, time: Duration) -> anyhow::Result<(Figures, f64)> {
    let store = Arc::new(SqliteStore::open(SqliteOptions::new(path)).await?);
    let done = Arc::new(AtomicU64::new(0));
    let begun = Instant::now();
    let callers = (0..concurrency).map(|_| {
        let (store, done) = (Arc::clone(&store), Arc::clone(&done));
        tokio::spawn(async move {
            while begun.elapsed() < time {
                request(&*store).await?;
                done.fetch_add(1, Ordering::Relaxed);
            }
            anyhow::Ok(())
        })
    });
    for caller in futures_util::future::join_all(callers).await {
        caller??;
    }
    let figures = Figures::of(done.load(Ordering::Relaxed), concurrency, begun.elapsed());
    let (commits, writes) = store.commits_and_writes();
    store.close().await;
    Ok((figures, writes as f64 / commits.max(1) as f64))
}

/// Reserve and complete, as one request does.
async fn request(store: &dyn Store) -> anyhow::Result<()> {
    request_kept(store, DAY, 30 * DAY).await
}

pub(crate) const DAY: Duration = Duration::from_secs(86_400);

/// The same for a record that is kept for so long, and its tombstone for so long after that.
pub(crate) async fn request_kept(
    store: &dyn Store,
    retention: Duration,
    tombstone: Duration,
) -> anyhow::Result<()> {
    granted_and_completed(store, ask(&key(), retention, tombstone)?).await
}

/// The same under a key that nobody has used, kept for a day.
pub(crate) async fn complete(store: &dyn Store, key: &str) -> anyhow::Result<()> {
    granted_and_completed(store, ask(key, DAY, 30 * DAY)?).await
}

async fn granted_and_completed(store: &dyn Store, ask: Ask) -> anyhow::Result<()> {
    let Reservation::Granted { lease, .. } = store.reserve(ask).await? else {
        bail!("a random key was taken");
    };
    match store.write(&lease, completes()).await? {
        Written::Applied => Ok(()),
        other => bail!("not applied: {other:?}"),
    }
}

/// What the engine asks a store for a new request.
pub(crate) fn ask(key: &str, retention: Duration, tombstone: Duration) -> anyhow::Result<Ask> {
    Ok(Ask {
        id: RecordId { scope: Scope::new("acme").context("scope")?, key: Key::new(key)? },
        fingerprint: Fingerprint::from_stored(1, [7; 32]),
        attempt: AttemptId::random(),
        mode: Mode::Execute,
        lease: Duration::from_secs(60),
        max_execution: Duration::from_secs(300),
        retention,
        tombstone,
        expired_runs_again: false,
        effects: Effects::Undeclared,
        route: "default".into(),
        method: "POST".into(),
        path: "/charges".into(),
        request: None,
        queued_for: DAY,
    })
}

/// The end of such a request: a reply of 200 bytes.
pub(crate) fn completes() -> Write {
    Write::Complete(Reply {
        status: http::StatusCode::CREATED,
        headers: vec![(
            http::header::CONTENT_TYPE,
            http::HeaderValue::from_static("application/json"),
        )],
        body: ReplyBody::Stored(Bytes::from_static(&[b'x'; 200])),
        schema_version: None,
    })
}

pub(crate) fn key() -> String {
    format!("{:032x}", rand::random::<u128>())
}

impl Figures {
    fn of(done: u64, concurrency: u64, elapsed: Duration) -> Self {
        let rate = done as f64 / elapsed.as_secs_f64();
        Figures { rate, latency_us: concurrency as f64 / rate * 1e6 }
    }
}

impl Contestant {
    fn new(name: &'static str) -> Self {
        Contestant { name, rates: Vec::new(), latencies: Vec::new(), writes_per_commit: 0.0 }
    }

    fn add(&mut self, figures: Figures, writes_per_commit: f64) {
        self.rates.push(figures.rate);
        self.latencies.push(figures.latency_us);
        self.writes_per_commit = writes_per_commit;
    }
}

impl Finding for Vec<Contestant> {
    fn print(&self) {
        print(self);
    }

    fn json(&self) -> serde_json::Result<serde_json::Value> {
        serde_json::to_value(self)
    }

    fn bars(&self) -> Vec<Bar> {
        Vec::new()
    }
}

fn print(table: &[Contestant]) {
    let sorted = |values: &[f64]| {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        values
    };
    println!(
        "{:<26} {:>12} {:>17} {:>12} {:>14} {:>10}",
        "", "requests/s", "(min - max)", "mean us", "writes/commit", "ratio"
    );
    for row in table {
        let rates = sorted(&row.rates);
        let latencies = sorted(&row.latencies);
        let middle = rates.len() / 2;
        // The ratio to the first row, round by round, so that drift of the machine cancels out.
        let ratios: Vec<f64> =
            row.rates.iter().zip(&table[0].rates).map(|(rate, base)| rate / base).collect();
        println!(
            "{:<26} {:>12.0} {:>8.0} -{:>7.0} {:>12.0} {:>14.1} {:>10.2}",
            row.name,
            rates[middle],
            rates[0],
            rates[rates.len() - 1],
            latencies[middle],
            row.writes_per_commit,
            sorted(&ratios)[middle],
        );
    }
}
