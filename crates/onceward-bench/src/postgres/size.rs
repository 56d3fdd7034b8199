//! What it costs that a table is large: the same load on stores with few and with many records.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use clap::Args;

use super::{
    contestant::Contestant,
    database::{self, Server, Wanted},
    fill::fill,
};
use crate::{
    load::{Answered, Keys, Load, Target},
    report::{Measurement, Report, Workload},
};

/// What is asked for.
#[derive(Args)]
pub(crate) struct Options {
    /// Numbers of records, each in a database of its own.
    #[arg(long, value_delimiter = ',', default_value = "100000,10000000")]
    sizes: Vec<u64>,
    /// How many rounds; sizes and workloads take turns in each.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// How long each is measured in a round, in seconds.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// How long it runs before that, in seconds.
    #[arg(long, default_value_t = 1.0)]
    warm_up: f64,
    /// How many requests are under way at a time.
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// How many keys, from all over the table, the replays choose from.
    #[arg(long, default_value_t = 100_000)]
    keys: u64,
    #[command(flatten)]
    server: Wanted,
}

pub(crate) async fn run(options: &Options) -> anyhow::Result<Report> {
    let server = Server::at_or_new(&options.server).await?;
    let settings = server.settings().await?;
    let mut filled = Vec::new();
    for size in options.sizes.iter().copied() {
        filled.push(Filled::new(options, &server, size).await?);
    }
    let workloads = [Workload::First, Workload::Replay];
    let mut turns: Vec<_> =
        workloads.iter().flat_map(|workload| filled.iter().map(|one| (*workload, one))).collect();
    let mut measurements = Vec::new();
    for round in 0..options.rounds {
        for (workload, filled) in turns.iter().copied() {
            let load = options.load(&server);
            measurements.push(filled.measure(&server, load, workload, round).await?);
        }
        turns.rotate_left(1);
    }
    for filled in &filled {
        server.drop_database(&filled.database).await?;
    }
    Ok(Report::new("postgres-size", Some(settings), options.seconds, measurements))
}

impl Options {
    fn load<'a>(&self, server: &'a Server) -> Load<'a> {
        Load {
            connections: self.connections,
            warm_up: Duration::from_secs_f64(self.warm_up),
            time: Duration::from_secs_f64(self.seconds),
            processes: server.processes(),
            contestant: None,
        }
    }
}

/// A database with records.
struct Filled {
    name: String,
    database: String,
    last_record: i64,
    answered: Arc<[Answered]>,
}

impl Filled {
    /// One real request, and copies of its record under other keys.
    async fn new(options: &Options, server: &Server, size: u64) -> anyhow::Result<Self> {
        let database = format!("onceward_bench_{size}");
        let url = server.new_database(&database).await?;
        let process = Contestant::Onceward.start(&url, 0)?;
        let load = options.load(server);
        let real = load.preload(Target::payments(process.address()), 1).await?;
        let real = real.first().context("one answer")?;
        drop(process);
        let keys = fill(&url, size, options.keys).await?;
        let answered: Vec<Answered> =
            keys.iter().map(|key| real.under(key)).collect::<anyhow::Result<_>>()?;
        let client = database::connect(&url).await?;
        let last = client.query_one("SELECT max(record_id) FROM onceward.records", &[]).await?;
        Ok(Filled {
            name: format!("{size} records"),
            database,
            last_record: last.try_get(0)?,
            answered: answered.into(),
        })
    }

    async fn measure(
        &self,
        server: &Server,
        load: Load<'_>,
        workload: Workload,
        round: u32,
    ) -> anyhow::Result<Measurement> {
        let url = server.url(&self.database);
        self.forget_new_records(&url).await?;
        server.settle(&url).await?;
        let process = Contestant::Onceward.start(&url, 0)?;
        let keys = match workload {
            Workload::First => Keys::New,
            Workload::Replay => Keys::Same(Arc::clone(&self.answered)),
        };
        let figures = load.run(Target::payments(process.address()), keys).await?;
        let measurement = Measurement {
            workload,
            round,
            contestant: self.name.clone(),
            pool: None,
            ..Measurement::of(&load, &figures)
        };
        measurement.announce();
        Ok(measurement)
    }

    /// A small table would not stay small.
    async fn forget_new_records(&self, url: &str) -> anyhow::Result<()> {
        let client = database::connect(url).await?;
        for table in ["records", "replies"] {
            let delete = format!("DELETE FROM onceward.{table} WHERE record_id > $1");
            client.execute(&delete, &[&self.last_record]).await?;
        }
        client.batch_execute("DELETE FROM onceward.leases").await?;
        Ok(())
    }
}
