//! What the reaper costs those whom it is not about. Requests come at a steady rate; they are measured
//! while the reaper removes records and while it rests, in turns on one store, until nothing is left
//! to remove. Then the store is filled and reaped again and again, and its size is told.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use onceward::{
    Idempotency, PgOptions, PgStore, Policy, SqliteOptions, SqliteStore, Store, worker::Reaper,
};
use serde::Serialize;
use tempfile::TempDir;
use tokio::{task::JoinSet, time::MissedTickBehavior};

use crate::{
    chart::Bar,
    file::{DAY, request_kept},
    load::percentile_us,
    postgres::{Server, Wanted, connect},
    report::{Finding, median},
};

/// What is asked for.
#[derive(Args)]
pub(crate) struct Options {
    /// Which stores.
    #[arg(long, value_delimiter = ',', default_value = "file,postgres")]
    stores: Vec<Kind>,
    /// How many records are past their retention.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// How many requests come each second, whatever becomes of those before.
    #[arg(long, default_value_t = 1000)]
    rate: u64,
    /// From how many callers.
    #[arg(long, default_value_t = 64)]
    callers: u64,
    /// How long each part is measured, in seconds; with the reaper, until its run has ended.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// How many retentions come to their end, one after the other.
    #[arg(long, default_value_t = 10)]
    cycles: u32,
    /// How many records each of them has.
    #[arg(long, default_value_t = 100_000)]
    cycle_records: u64,
    #[command(flatten)]
    postgres: Wanted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    File,
    Postgres,
}

const DATABASE: &str = "onceward_bench_reap";

/// So many are made at once, to fill a store.
const FILLING: u64 = 256;

pub(crate) async fn run(options: &Options) -> anyhow::Result<Vec<Measured>> {
    let mut results = Vec::new();
    for kind in options.stores.iter().copied() {
        let place = Place::new(kind, &options.postgres).await?;
        results.push(measure(options, kind, &place).await.with_context(|| format!("{kind:?}"))?);
        place.leave().await?;
    }
    Ok(results)
}

/// Where a store is, and how large.
enum Place {
    File { folder: TempDir },
    Postgres { server: Box<Server>, url: String },
}

impl Place {
    async fn new(kind: Kind, postgres: &Wanted) -> anyhow::Result<Place> {
        Ok(match kind {
            Kind::File => Place::File { folder: tempfile::tempdir()? },
            Kind::Postgres => {
                let server = Server::at_or_new(postgres).await?;
                server.settings().await?;
                let url = server.new_database(DATABASE).await?;
                Place::Postgres { server: Box::new(server), url }
            }
        })
    }

    async fn open(&self) -> anyhow::Result<Arc<dyn Store>> {
        Ok(match self {
            Place::File { folder } => {
                Arc::new(SqliteStore::open(SqliteOptions::new(path(folder))).await?)
            }
            Place::Postgres { url, .. } => {
                Arc::new(PgStore::connect(PgOptions::new(url.as_str())).await?)
            }
        })
    }

    /// All that it takes on the disk, its log included.
    async fn bytes(&self) -> anyhow::Result<u64> {
        match self {
            Place::File { folder } => {
                let files = std::fs::read_dir(folder.path())?;
                let sizes = files.map(|file| Ok(file?.metadata()?.len()));
                sizes.sum::<std::io::Result<u64>>().context("the size of the file")
            }
            Place::Postgres { url, .. } => {
                let size = "SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c \
                    JOIN pg_namespace n ON n.oid = c.relnamespace \
                    WHERE n.nspname = 'onceward' AND c.relkind = 'r'";
                let row = connect(url).await?.query_one(size, &[]).await?;
                Ok(u64::try_from(row.try_get::<_, i64>(0)?)?)
            }
        }
    }

    async fn settle(&self) -> anyhow::Result<()> {
        match self {
            Place::File { .. } => Ok(()),
            Place::Postgres { server, url } => server.settle(url).await,
        }
    }

    async fn leave(self) -> anyhow::Result<()> {
        match self {
            Place::File { .. } => Ok(()),
            Place::Postgres { server, .. } => server.drop_database(DATABASE).await,
        }
    }
}

fn path(folder: &TempDir) -> PathBuf {
    folder.path().join("bench.db")
}

/// What was measured on one store.
#[derive(Serialize)]
pub(crate) struct Measured {
    store: Kind,
    records: u64,
    rate: u64,
    /// How many records the reaper removed, and in what time.
    reaped: u64,
    reaping_seconds: f64,
    pairs: Vec<Pair>,
    /// Bytes when it was full and after it was reaped, retention by retention.
    sizes: Vec<[u64; 2]>,
}

/// Neighbours in time.
#[derive(Serialize)]
struct Pair {
    without: Window,
    with: Window,
}

#[derive(Clone, Copy, Serialize)]
struct Window {
    requests: usize,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
}

async fn measure(options: &Options, kind: Kind, place: &Place) -> anyhow::Result<Measured> {
    let store = place.open().await?;
    let layer = Idempotency::new(Arc::clone(&store), Policy::required());
    let reaper = Reaper::new(Arc::clone(layer.engine()));
    fill(&store, options.records).await?;
    place.settle().await?;
    let mut measured = Measured {
        store: kind,
        records: options.records,
        rate: options.rate,
        reaped: 0,
        reaping_seconds: 0.0,
        pairs: Vec::new(),
        sizes: Vec::new(),
    };
    let mut more = true;
    while more {
        // Each is first in every other pair.
        let rest_first = measured.pairs.len().is_multiple_of(2);
        let mut without = None;
        if rest_first {
            without = Some(options.window(&store, options.rest()).await?.0);
        }
        let (with, (removed, took, is_more)) =
            options.window(&store, options.reap(&reaper)).await?;
        let without = match without {
            Some(without) => without,
            None => options.window(&store, options.rest()).await?.0,
        };
        measured.reaped += removed;
        measured.reaping_seconds += took;
        more = is_more;
        measured.pairs.push(Pair { without, with });
        eprintln!("{kind:?}: {} of {} records removed", measured.reaped, options.records);
    }
    for _ in 0..options.cycles {
        fill(&store, options.cycle_records).await?;
        let full = place.bytes().await?;
        while reaper.run_once().await?.more {}
        measured.sizes.push([full, place.bytes().await?]);
    }
    Ok(measured)
}

/// Makes records whose retention is over at once.
async fn fill(store: &Arc<dyn Store>, count: u64) -> anyhow::Result<()> {
    let left = Arc::new(AtomicU64::new(count));
    let mut tasks = JoinSet::new();
    for _ in 0..FILLING {
        let (store, left) = (Arc::clone(store), Arc::clone(&left));
        tasks.spawn(async move {
            let take =
                || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
            while take().is_ok() {
                request_kept(&*store, Duration::ZERO, Duration::ZERO).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

impl Options {
    /// Requests, for as long as something else goes on.
    async fn window<T>(
        &self,
        store: &Arc<dyn Store>,
        meanwhile: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<(Window, T)> {
        let stop = Arc::new(AtomicBool::new(false));
        let begin = tokio::time::Instant::now();
        let callers = self.callers.max(1);
        let every = Duration::from_secs_f64(callers as f64 / self.rate.max(1) as f64);
        let mut tasks = JoinSet::new();
        for caller in 0..callers {
            let (store, stop) = (Arc::clone(store), Arc::clone(&stop));
            // They come one after the other, and not all at once.
            let first = begin + every.mul_f64(caller as f64 / callers as f64);
            tasks.spawn(async move {
                let mut ticks = tokio::time::interval_at(first, every);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
                let mut latencies = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    // From when it should have begun: a stall delays those behind it too.
                    let due = ticks.tick().await;
                    request_kept(&*store, DAY, 30 * DAY).await?;
                    latencies.push(u64::try_from(due.elapsed().as_nanos()).unwrap_or(u64::MAX));
                }
                anyhow::Ok(latencies)
            });
        }
        let came = meanwhile.await;
        stop.store(true, Ordering::Relaxed);
        let mut latencies = Vec::new();
        while let Some(some) = tasks.join_next().await {
            latencies.extend(some??);
        }
        latencies.sort_unstable();
        Ok((Window::of(&latencies), came?))
    }

    async fn rest(&self) -> anyhow::Result<()> {
        tokio::time::sleep(Duration::from_secs_f64(self.seconds)).await;
        Ok(())
    }

    /// The reaper as it is. How many it removed, in what time, and whether there is more.
    async fn reap(&self, reaper: &Reaper) -> anyhow::Result<(u64, f64, bool)> {
        let begun = Instant::now();
        let mut removed = 0;
        loop {
            let reap = reaper.run_once().await?;
            removed += u64::from(reap.expired + reap.purged);
            let took = begun.elapsed().as_secs_f64();
            if !reap.more || took >= self.seconds {
                return Ok((removed, took, reap.more));
            }
        }
    }
}

impl Window {
    fn of(sorted: &[u64]) -> Window {
        let at = |share: f64| percentile_us(sorted, share);
        Window { requests: sorted.len(), p50_us: at(0.5), p99_us: at(0.99), max_us: at(1.0) }
    }
}

impl Finding for Vec<Measured> {
    fn print(&self) {
        self.iter().for_each(Measured::print);
    }

    fn json(&self) -> serde_json::Result<serde_json::Value> {
        serde_json::to_value(self)
    }

    fn bars(&self) -> Vec<Bar> {
        Vec::new()
    }
}

impl Measured {
    fn print(&self) {
        let name = match self.store {
            Kind::File => "file",
            Kind::Postgres => "postgres",
        };
        println!(
            "\n{name}: {} records removed in {:.1} s ({:.0}/s) beside {} requests/s",
            self.reaped,
            self.reaping_seconds,
            self.reaped as f64 / self.reaping_seconds,
            self.rate
        );
        let figures = |of: fn(&Pair) -> f64| median(&self.pairs.iter().map(of).collect::<Vec<_>>());
        println!("{:<16}{:>12}{:>12}{:>12}", "", "p50 ms", "p99 ms", "max ms");
        for (what, of) in [
            (
                "without reaper",
                [
                    figures(|pair| pair.without.p50_us),
                    figures(|pair| pair.without.p99_us),
                    figures(|pair| pair.without.max_us),
                ],
            ),
            (
                "with reaper",
                [
                    figures(|pair| pair.with.p50_us),
                    figures(|pair| pair.with.p99_us),
                    figures(|pair| pair.with.max_us),
                ],
            ),
        ] {
            let [p50, p99, max] = of.map(|micros| micros / 1e3);
            println!("{what:<16}{p50:>12.3}{p99:>12.3}{max:>12.3}");
        }
        let ratios: Vec<f64> =
            self.pairs.iter().map(|pair| pair.with.p99_us / pair.without.p99_us).collect();
        let each: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
        println!("p99 with / without: {:.2}   by pair {}", median(&ratios), each.join(" "));
        let mega = |bytes: u64| bytes as f64 / 1e6;
        println!("size in MB, full and reaped, retention by retention:");
        for (cycle, [full, reaped]) in self.sizes.iter().enumerate() {
            println!("{:>4}{:>12.1}{:>12.1}", cycle + 1, mega(*full), mega(*reaped));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn all_that_is_past_its_retention_is_removed_and_what_came_meanwhile_is_not() {
        let place = Place::new(Kind::File, &Wanted::default()).await.expect("a folder");
        let options = Options {
            stores: vec![Kind::File],
            records: 300,
            rate: 100,
            callers: 4,
            seconds: 0.1,
            cycles: 2,
            cycle_records: 50,
            postgres: Wanted::default(),
        };
        let measured = measure(&options, Kind::File, &place).await.expect("measured");
        assert_eq!(measured.reaped, 300);
        assert_eq!(measured.sizes.len(), 2);
        let served: usize =
            measured.pairs.iter().map(|pair| pair.with.requests + pair.without.requests).sum();
        let store = place.open().await.expect("opened");
        let stats = store.stats().await.expect("counted");
        let left: u64 = stats.counts.iter().map(|count| count.records).sum();
        assert_eq!(left, served as u64);
    }

    #[test]
    fn percentiles_are_of_what_was_seen() {
        let sorted: Vec<u64> = (1..=100).map(|micros| micros * 1000).collect();
        let window = Window::of(&sorted);
        assert_eq!((window.p50_us, window.p99_us, window.max_us), (50.0, 99.0, 100.0));
    }
}
