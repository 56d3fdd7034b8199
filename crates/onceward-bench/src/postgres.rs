//! Services on a real PostgreSQL with default durability, measured over HTTP: without
//! idempotency, with what teams write by hand, and with Onceward. They take turns; each is a
//! process of its own with two threads, started anew on an empty database for each measurement.

use std::time::Duration;

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
pub(crate) use contestant::{Contestant, Serve, serve};
pub(crate) use database::{Server, Settings, connect};
pub(crate) use fill::fill;
pub(crate) use payment::BODY;

use crate::{
    chart::Shown,
    load::{Load, Service},
    report::{Measurement, Report, Workload},
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
        default_value = "echo,sqlx,sqlx-tuned,tokio-postgres,axum-idempotent,restate,onceward"
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
    /// A server to use, without a database's name; otherwise one is started.
    #[arg(long)]
    url: Option<String>,
}

const DATABASE: &str = "onceward_bench";

pub(crate) async fn run(options: &Options) -> anyhow::Result<Report> {
    let server = Server::at_or_new(options.url.as_deref()).await?;
    let settings = server.settings().await?;
    let mut measurements = Vec::new();
    for connections in options.connections.iter().copied() {
        let run = Run { options, server: &server, connections };
        measurements.extend(run.rounds().await?);
    }
    server.drop_database(DATABASE).await?;
    let report = Report::new("postgres", Some(settings), options.seconds, measurements);
    let by = |(other, label)| {
        let group = "on PostgreSQL: Onceward by";
        Shown { ours: "onceward", other, group, label }
    };
    let others = [
        ("sqlx", "sqlx, by hand"),
        ("tokio-postgres", "tokio-postgres, by hand"),
        ("axum-idempotent", "axum-idempotent"),
        ("restate", "Restate"),
    ];
    Ok(report.showing(others.map(by).into()))
}

/// All rounds with the same number of connections.
struct Run<'a> {
    options: &'a Options,
    server: &'a Server,
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
        let url = self.server.new_database(DATABASE).await?;
        let process = contestant.start(&url, pool.unwrap_or_default())?;
        let mut processes = self.server.processes().to_vec();
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
        let settle = async || self.server.settle(&url).await;
        let figures = load.workload(workload, &service, settle).await;
        let figures =
            figures.with_context(|| format!("{}, {}", contestant.name(), workload.name()))?;
        let measurement = Measurement {
            workload,
            round,
            contestant: contestant.name().to_owned(),
            pool,
            ..Measurement::of(&load, &figures)
        };
        measurement.announce();
        Ok(measurement)
    }
}
