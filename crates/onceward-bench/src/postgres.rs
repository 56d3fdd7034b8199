//! Services on a real PostgreSQL with default durability, measured over HTTP: without
//! idempotency, with what teams write by hand, and with Onceward. They take turns; each is a
//! process of its own with two threads, started anew on an empty database for each measurement.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use clap::Args;

mod by_hand; // the yardsticks
mod contestant; // who takes part, and their processes
mod database; // the server, and a new database each time
mod fill; // many records in a short time
mod payment; // what all of them serve
mod peers; // alternatives that others publish
pub(crate) mod size; // small and large tables

pub(crate) use by_hand::TABLE;
use contestant::Started;
pub(crate) use contestant::{Contestant, Serve, serve};
pub(crate) use database::{Server, Settings, Wanted, connect};
pub(crate) use fill::fill;
pub(crate) use payment::BODY;

use crate::{
    chart::Shown,
    gateway,
    load::{Load, Service},
    report::{Measurement, Report, Workload},
    stores::{Kind, Place, Site},
};

/// What is asked for.
#[derive(Args)]
pub(crate) struct Options {
    /// How many rounds; contestants take turns in each.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// How long each contestant is measured in a round, in seconds.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// How long it runs before that, in seconds.
    #[arg(long, default_value_t = 1.0)]
    warm_up: f64,
    /// How many requests are under way at a time; several numbers are measured one after another.
    #[arg(long, value_delimiter = ',', default_value = "64")]
    connections: Vec<usize>,
    /// Which workloads.
    #[arg(long, value_delimiter = ',', default_value = "first,replay")]
    workloads: Vec<Workload>,
    /// Who takes part.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "echo,sqlx,sqlx-tuned,tokio-postgres,axum-idempotent,restate,onceward,\
            onceward-file,gateway-memory,gateway-file,gateway-postgres"
    )]
    contestants: Vec<Contestant>,
    /// How many completed keys the replays choose from.
    #[arg(long, default_value_t = 2000)]
    keys: usize,
    /// Sizes of pool to try for those who have one; the best is used, for each workload its own.
    #[arg(long, value_delimiter = ',', default_value = "8,16,32")]
    pools: Vec<u32>,
    /// How long each size of pool is tried, twice, in seconds.
    #[arg(long, default_value_t = 2.0)]
    calibration: f64,
    /// The gateway; otherwise it is built if it takes part.
    #[arg(long)]
    binary: Option<PathBuf>,
    #[command(flatten)]
    server: Wanted,
}

pub(crate) async fn run(options: &Options) -> anyhow::Result<Report> {
    let binary = match &options.binary {
        None if options.contestants.iter().any(|one| one.is_gateway()) => Some(gateway::build()?),
        named => named.clone(),
    };
    let postgres = Site::start(Kind::Postgres, &options.server).await?;
    let (memory, file) = (Kind::Memory, Kind::File);
    let others =
        [Site::start(memory, &options.server).await?, Site::start(file, &options.server).await?];
    let mut measurements = Vec::new();
    for connections in options.connections.iter().copied() {
        let binary = binary.as_deref();
        let run = Run { options, binary, postgres: &postgres, others: &others, connections };
        measurements.extend(run.rounds().await?);
    }
    let report = Report::new("postgres", postgres.settings(), options.seconds, measurements);
    postgres.leave().await?;
    Ok(report.about(OURS).showing(shown()))
}

/// Who is compared with all others.
const OURS: &[&str] =
    &["onceward", "onceward-file", "gateway-memory", "gateway-file", "gateway-postgres"];

/// What is drawn of it.
fn shown() -> Vec<Shown> {
    const POSTGRES: (&str, &str) = ("onceward", "on PostgreSQL: Onceward by");
    const FILE: (&str, &str) = ("onceward-file", "on a file: Onceward by");
    let all = [
        (POSTGRES, "sqlx", "sqlx, by hand"),
        (POSTGRES, "tokio-postgres", "tokio-postgres, by hand"),
        (POSTGRES, "axum-idempotent", "axum-idempotent"),
        (POSTGRES, "restate", "Restate"),
        (FILE, "sqlx", "sqlx, by hand"),
        (FILE, "restate", "Restate"),
    ];
    all.map(|((ours, group), other, label)| Shown { ours, other, group, label }).into()
}

/// All rounds with the same number of connections.
struct Run<'a> {
    options: &'a Options,
    binary: Option<&'a Path>,
    postgres: &'a Site,
    others: &'a [Site],
    connections: usize,
}

/// One measurement to make.
#[derive(Clone, Copy)]
struct Turn {
    workload: Workload,
    contestant: Contestant,
    pool: Option<u32>,
}

impl Run<'_> {
    async fn rounds(&self) -> anyhow::Result<Vec<Measurement>> {
        let turns = self.calibrate().await?;
        let mut measurements = Vec::new();
        for round in 0..self.options.rounds {
            // Everybody is first, and last, in some round.
            let mut order = turns.clone();
            order.rotate_left(round as usize % turns.len().max(1));
            for turn in order {
                measurements.push(self.measure(turn, round, self.options.seconds).await?);
            }
        }
        Ok(measurements)
    }

    /// Who takes part, each with the pool that was fastest for the workload.
    async fn calibrate(&self) -> anyhow::Result<Vec<Turn>> {
        let mut turns = Vec::new();
        for workload in self.options.workloads.iter().copied() {
            for contestant in self.options.contestants.iter().copied() {
                let mut turn = Turn { workload, contestant, pool: None };
                if contestant.has_pool() {
                    turn.pool = self.best_pool(turn).await?;
                }
                turns.push(turn);
            }
        }
        Ok(turns)
    }

    async fn best_pool(&self, turn: Turn) -> anyhow::Result<Option<u32>> {
        // More than there are requests under way is the same as one for each of them.
        let mut pools = self.options.pools.clone();
        pools.sort_unstable();
        let smaller = pools.partition_point(|pool| (*pool as usize) < self.connections);
        pools.truncate(smaller + 1);
        if pools.len() <= 1 {
            return Ok(pools.first().copied());
        }
        let mut rates = vec![0.0; pools.len()];
        for _ in 0..2 {
            for (pool, rate) in pools.iter().zip(&mut rates) {
                let turn = Turn { pool: Some(*pool), ..turn };
                *rate += self.measure(turn, 0, self.options.calibration).await?.per_second;
            }
        }
        let best = pools.iter().zip(&rates).max_by(|one, other| one.1.total_cmp(other.1));
        Ok(best.map(|(pool, _)| *pool))
    }

    async fn measure(&self, turn: Turn, round: u32, seconds: f64) -> anyhow::Result<Measurement> {
        let Turn { workload, contestant, pool } = turn;
        // Also where nobody keeps anything in it: so the one before leaves no work to this one.
        let database = self.postgres.new_place().await?;
        let elsewhere;
        let (site, place) = match self.others.iter().find(|site| site.kind == contestant.store()) {
            Some(site) => {
                elsewhere = site.new_place().await?;
                (site, &elsewhere)
            }
            None => (self.postgres, &database),
        };
        let empty = match OURS.contains(&contestant.name()) {
            true => site.bytes_prepared(place).await?,
            false => site.bytes(place).await?,
        };
        let process = self.start(turn, place)?;
        let own_empty = process.bytes()?;
        let mut processes = self.postgres.processes();
        processes.extend(process.id());
        let load = Load {
            connections: self.connections,
            warm_up: Duration::from_secs_f64(self.options.warm_up),
            time: Duration::from_secs_f64(seconds),
            processes: &processes,
            contestant: process.id(),
        };
        let service = Service {
            target: process.target(),
            replays: contestant.replays(),
            keys: self.options.keys,
        };
        let settle = async || self.postgres.settle(&database).await;
        let figures = load.workload(workload, &service, settle).await;
        let figures =
            figures.with_context(|| format!("{}, {}", contestant.name(), workload.name()))?;
        let own_full = process.bytes()?;
        // The last that a file gets comes with the end of the process.
        drop(process);
        let (empty, full) = match own_full {
            Some(_) => (own_empty, own_full),
            None => (empty, site.bytes(place).await?),
        };
        let measurement = Measurement {
            workload,
            round,
            contestant: contestant.name().to_owned(),
            pool,
            ..Measurement::of(&load, &figures)
        };
        measurement.announce();
        let made = if contestant.replays() { figures.answered } else { 0 };
        Ok(measurement.with_bytes(empty, full, made))
    }

    fn start(&self, turn: Turn, place: &Place) -> anyhow::Result<Started> {
        match self.binary.filter(|_| turn.contestant.is_gateway()) {
            Some(binary) => Contestant::gateway(binary, &place.url),
            None => turn.contestant.start(&place.url, turn.pool.unwrap_or_default()),
        }
    }
}
