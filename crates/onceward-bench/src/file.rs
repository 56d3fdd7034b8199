//! The embedded store against what it is made of: the same two writes by hand, one commit each.

use std::{
    path::Path,
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
use sqlx::{
    ConnectOptions as _, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};

/// One row of the table.
struct Contestant {
    name: &'static str,
    rates: Vec<f64>,
    latencies: Vec<f64>,
    writes_per_commit: f64,
}

pub(crate) async fn run(rounds: u32, seconds: f64) -> anyhow::Result<()> {
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
        let by_hand = by_hand(&file("hand"), time).await?;
        table[0].add(by_hand, 1.0);
        for (row, concurrency) in [(1, 1), (2, 8), (3, 64), (4, 256)] {
            let (figures, shared) =
                ours(&file(&format!("ours-{concurrency}")), concurrency, time).await?;
            table[row].add(figures, shared);
        }
        eprintln!("round {} of {rounds} done", round + 1);
    }
    print(&table);
    Ok(())
}

struct Figures {
    rate: f64,
    latency_us: f64,
}

/// The same rows in the same table, written by hand: one statement and one commit for each write,
/// on a connection that nobody shares.
async fn by_hand(path: &Path, time: Duration) -> anyhow::Result<Figures> {
    SqliteStore::open(SqliteOptions::new(path)).await?.close().await;
    let mut connection: SqliteConnection = SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .disable_statement_logging()
        .connect()
        .await?;
    let insert = "INSERT INTO records (scope, key, recipe, fingerprint, generation, state, \
        attempt, fence, attempts, effects, route, method, path, created_at, started_at, \
        lease_until, max_execution, expires_at, retention, purge_at, void) \
        VALUES ('acme', ?, 1, ?, 1, 'in_progress', ?, ?, 1, 'undeclared', 'default', 'POST', \
        '/charges', ?, ?, ?, 300000000, ?, 86400000000, ?, 0) ON CONFLICT DO NOTHING";
    let update = "UPDATE records SET state = 'completed', finished_at = ?, expires_at = ?, \
        reply_status = 201, reply_headers = ?, reply_encoding = 'identity', reply_length = 200, \
        reply_body = ? WHERE scope = 'acme' AND key = ? AND attempt = ? AND fence = ? \
        AND state = 'in_progress'";
    let begun = Instant::now();
    let mut done = 0_i64;
    while begun.elapsed() < time {
        let (key, attempt, now) = (key(), rand::random::<[u8; 16]>().to_vec(), 1_000_000 + done);
        let reserve = sqlx::query(insert).bind(key.clone()).bind(vec![7_u8; 32]);
        let reserve = reserve.bind(attempt.clone()).bind(now);
        let reserve = reserve.bind(now).bind(now).bind(now).bind(now).bind(now + 1);
        reserve.execute(&mut connection).await?;
        let complete = sqlx::query(update).bind(now).bind(now + 1).bind(vec![1_u8; 40]);
        let complete = complete.bind(vec![b'x'; 200]).bind(key).bind(attempt).bind(now);
        complete.execute(&mut connection).await?;
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
    let id = RecordId { scope: Scope::new("acme").context("scope")?, key: Key::new(key())? };
    let ask = Ask {
        id,
        fingerprint: Fingerprint::from_stored(1, [7; 32]),
        attempt: AttemptId::random(),
        mode: Mode::Execute,
        lease: Duration::from_secs(60),
        max_execution: Duration::from_secs(300),
        retention: Duration::from_secs(86_400),
        tombstone: Duration::from_secs(30 * 86_400),
        expired_runs_again: false,
        effects: Effects::Undeclared,
        route: "default".into(),
        method: "POST".into(),
        path: "/charges".into(),
    };
    let Reservation::Granted { lease, .. } = store.reserve(ask).await? else {
        bail!("a random key was taken");
    };
    let reply = Reply {
        status: http::StatusCode::CREATED,
        headers: vec![(
            http::header::CONTENT_TYPE,
            http::HeaderValue::from_static("application/json"),
        )],
        body: ReplyBody::Stored(Bytes::from_static(&[b'x'; 200])),
        schema_version: None,
    };
    match store.write(&lease, Write::Complete(reply)).await? {
        Written::Applied => Ok(()),
        other => bail!("not applied: {other:?}"),
    }
}

fn key() -> String {
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
