//! What becomes dearer as there is more of it: records, traffic, one tenant, waiters at one key, bytes of a
//! body, operations in flight, and the time of a sync.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use clap::{Args, ValueEnum};
use onceward::Store;
use serde::Serialize;
use tokio::task::JoinSet;

mod bodies;
mod disk;
mod renewals;
mod sizes;
mod traffic; // over HTTP: memory of the gateway, and a hot tenant
mod waiters;

use crate::{
    chart::Bar,
    file::key,
    postgres::Wanted,
    report::{Finding, median},
    stores::{Kind, Place, Site, open},
};

/// What is asked for.
#[derive(Args)]
pub(crate) struct Options {
    /// Which parts.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "sizes,memory,tenant,waiters,bodies,renewals,disk"
    )]
    parts: Vec<Part>,
    /// On which stores; `disk` knows the file and PostgreSQL.
    #[arg(long, value_delimiter = ',', default_value = "file,postgres")]
    stores: Vec<Kind>,
    /// Numbers of records, each in a store of its own; that of 0 is a new one in each round.
    #[arg(long, value_delimiter = ',', default_value = "0,100000,1000000,10000000")]
    sizes: Vec<u64>,
    /// How many rounds; what is compared takes turns in each.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// How long each is measured in a round, in seconds, where that is not a number of requests.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// How many requests are made where it is a number of them.
    #[arg(long, default_value_t = 5000)]
    requests: u64,
    /// How many requests are under way at a time.
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// How long the gateway is under load while its memory is watched, in seconds.
    #[arg(long, default_value_t = 120.0)]
    sustained: f64,
    /// How many wait for one key.
    #[arg(long, default_value_t = 1000)]
    waiters: u64,
    /// How many operations are in flight whose leases are renewed.
    #[arg(long, default_value_t = 10_000)]
    operations: u64,
    /// Sizes of replies, in bytes.
    #[arg(long, value_delimiter = ',', default_value = "1000,10000,100000,1000000")]
    bodies: Vec<usize>,
    /// The gateway; otherwise it is built.
    #[arg(long)]
    binary: Option<std::path::PathBuf>,
    #[command(flatten)]
    postgres: Wanted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Reserve and complete, replay, sweep and reap with many records.
    Sizes,
    /// Memory of the gateway under sustained traffic.
    Memory,
    /// A tenant of few requests beside one of many.
    Tenant,
    /// One key that many wait for.
    Waiters,
    /// Large replies.
    Bodies,
    /// Leases of many operations at once.
    Renewals,
    /// A disk that takes a millisecond for each sync.
    Disk,
}

/// One quantity under several circumstances, in the same rounds.
#[derive(Debug, Serialize)]
pub(crate) struct Figure {
    part: &'static str,
    store: &'static str,
    what: String,
    unit: &'static str,
    /// All rows are compared with so many of the first.
    bases: usize,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    label: String,
    rounds: Vec<f64>,
}

impl Row {
    /// Round by round, and then the median.
    fn by(&self, base: &Row) -> f64 {
        let ratios = self.rounds.iter().zip(&base.rounds).map(|(one, other)| one / other);
        median(&ratios.collect::<Vec<_>>())
    }
}

impl Figure {
    fn new(part: &'static str, kind: Kind, what: impl Into<String>, unit: &'static str) -> Self {
        Figure { part, store: kind.name(), what: what.into(), unit, bases: 1, rows: Vec::new() }
    }

    fn add(&mut self, label: &str, value: f64) {
        match self.rows.iter_mut().find(|row| row.label == label) {
            Some(row) => row.rounds.push(value),
            None => self.rows.push(Row { label: label.to_owned(), rounds: vec![value] }),
        }
    }

    fn print(&self) {
        println!("\n{}, {}: {} ({})", self.part, self.store, self.what, self.unit);
        let bases = &self.rows[..self.bases.min(self.rows.len())];
        let head: String =
            bases.iter().map(|base| format!("{:>26}", format!("by {}", base.label))).collect();
        println!("{:<28}{:>14}{:>26}{head}", "", "median", "(min - max)");
        for row in &self.rows {
            let (min, max) =
                row.rounds.iter().fold((f64::INFINITY, 0.0), |(min, max): (f64, f64), it| {
                    (min.min(*it), max.max(*it))
                });
            let ratios: String =
                bases.iter().map(|base| format!("{:>26.2}", row.by(base))).collect();
            let spread = format!("{min:.1} - {max:.1}");
            println!("{:<28}{:>14.1}{spread:>26}{ratios}", row.label, median(&row.rounds));
        }
    }
}

impl Finding for Vec<Figure> {
    fn print(&self) {
        println!("\n== growth: by other rows round by round");
        self.iter().for_each(Figure::print);
    }

    fn json(&self) -> serde_json::Result<serde_json::Value> {
        serde_json::to_value(self)
    }

    fn bars(&self) -> Vec<Bar> {
        Vec::new()
    }
}

pub(crate) async fn run(options: &Options) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for part in options.parts.iter().copied() {
        eprintln!("growth: {part:?}");
        if part == Part::Disk {
            figures.extend(disk::run(options).await?);
            continue;
        }
        for kind in options.stores.iter().copied() {
            let site = Site::start(kind, &options.postgres).await?;
            figures.extend(match part {
                Part::Sizes => sizes::run(options, &site).await?,
                Part::Memory => traffic::memory(options, &site).await?,
                Part::Tenant => traffic::tenant(options, &site).await?,
                Part::Waiters => waiters::run(options, &site).await?,
                Part::Bodies => bodies::run(options, &site).await?,
                Part::Renewals => renewals::run(options, &site).await?,
                Part::Disk => Vec::new(),
            });
            site.leave().await?;
        }
    }
    Ok(figures)
}

/// A store in an empty place.
async fn empty(site: &Site) -> anyhow::Result<(Place, Arc<dyn Store>)> {
    let place = site.new_place().await?;
    let store = open(&place.url).await?;
    Ok((place, store))
}

/// Does something so many times from so many callers. Returns how long each took, in nanoseconds and
/// sorted, and how long all together.
async fn repeat<F, W>(times: u64, callers: usize, work: F) -> anyhow::Result<(Vec<u64>, Duration)>
where
    F: Fn(u64) -> W + Clone + Send + 'static,
    W: Future<Output = anyhow::Result<()>> + Send,
{
    let next = Arc::new(AtomicU64::new(0));
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let (next, work) = (Arc::clone(&next), work.clone());
        tasks.spawn(async move {
            let mut latencies = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= times {
                    return anyhow::Ok(latencies);
                }
                let begun = Instant::now();
                work(number).await?;
                latencies.push(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
            }
        });
    }
    let mut latencies = Vec::new();
    while let Some(some) = tasks.join_next().await {
        latencies.extend(some??);
    }
    latencies.sort_unstable();
    Ok((latencies, begun.elapsed()))
}

fn micros_each(all: Duration, times: u64) -> f64 {
    all.as_secs_f64() * 1e6 / times.max(1) as f64
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        options: Options,
    }

    /// All that needs no server and no other program.
    #[tokio::test(flavor = "multi_thread")]
    async fn every_part_measures_a_file() {
        let words = "growth --parts sizes,waiters,bodies,renewals --stores file --sizes 0,50,100 \
            --rounds 2 --seconds 0.05 --requests 30 --waiters 20 --operations 40 --bodies 100,5000";
        let options = Only::parse_from(words.split_whitespace()).options;
        let figures = run(&options).await.expect("measured");
        for part in ["sizes", "waiters", "bodies", "renewals"] {
            assert!(figures.iter().any(|figure| figure.part == part), "{part}");
        }
        for figure in &figures {
            assert!(!figure.rows.is_empty(), "{}", figure.what);
            assert!(figure.rows.iter().all(|row| row.rounds.len() == 2), "{}", figure.what);
            if figure.part == "sizes" {
                let labels: Vec<_> = figure.rows.iter().map(|row| &*row.label).collect();
                assert_eq!(labels, ["empty", "50 records", "100 records"], "{}", figure.what);
                assert_eq!(figure.bases, 2, "by the empty one, and by the smallest that is not");
            }
        }
    }
}
