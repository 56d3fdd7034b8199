//! The gateway before a service, measured over HTTP beside a plain proxy before the same service.
//! All of them are processes of their own, started anew for each measurement.

use std::{
    env,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use clap::{Args, ValueEnum};
use tempfile::TempDir;

pub(crate) mod proxy; // the yardstick

use crate::{
    chart::Shown,
    load::{Load, Service, Target},
    postgres::{self, Wanted},
    process::Process,
    report::{Measurement, Report, Workload},
    stores::{Kind, Site},
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
        default_value = "direct,proxy,unprotected,memory,file,postgres,mariadb,redis,redis-cluster,\
            dynamodb"
    )]
    contestants: Vec<Contestant>,
    /// How many completed keys the replays choose from.
    #[arg(long, default_value_t = 2000)]
    keys: usize,
    /// The gateway; otherwise it is built.
    #[arg(long)]
    binary: Option<PathBuf>,
    #[command(flatten)]
    postgres: Wanted,
}

/// Who takes part, each before the same service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Contestant {
    /// Nobody: the service itself.
    Direct,
    /// A plain proxy.
    Proxy,
    /// The gateway, on a route that it does not protect.
    Unprotected,
    /// The gateway on `memory:`.
    Memory,
    /// The gateway on `file:`.
    File,
    /// The gateway on `postgres://`.
    Postgres,
    /// The gateway on `mysql://`.
    Mariadb,
    /// The gateway on `redis://`.
    Redis,
    /// The gateway on `redis+cluster://`.
    RedisCluster,
    /// The gateway on `dynamodb://`.
    Dynamodb,
}

impl Contestant {
    fn name(self) -> &'static str {
        match self {
            Contestant::Direct => "direct",
            Contestant::Proxy => "proxy",
            Contestant::Unprotected => "unprotected",
            _ => self.store().map_or("", Kind::name),
        }
    }

    /// The store in which keys are kept, so that one sent again gets the first answer.
    fn store(self) -> Option<Kind> {
        match self {
            Contestant::Direct | Contestant::Proxy | Contestant::Unprotected => None,
            Contestant::Memory => Some(Kind::Memory),
            Contestant::File => Some(Kind::File),
            Contestant::Postgres => Some(Kind::Postgres),
            Contestant::Mariadb => Some(Kind::Mariadb),
            Contestant::Redis => Some(Kind::Redis),
            Contestant::RedisCluster => Some(Kind::RedisCluster),
            Contestant::Dynamodb => Some(Kind::Dynamodb),
        }
    }
}

pub(crate) async fn run(options: &Options) -> anyhow::Result<Report> {
    let binary = options.binary.clone().map_or_else(build, Ok)?;
    let mut sites = Vec::new();
    for kind in options.contestants.iter().filter_map(|contestant| contestant.store()) {
        sites.push(Site::start(kind, &options.postgres).await?);
    }
    let settings = sites.iter().find_map(Site::settings);
    let bench = Bench { options, binary, sites };
    let mut measurements = Vec::new();
    for connections in options.connections.iter().copied() {
        let mut turns: Vec<_> = options
            .workloads
            .iter()
            .flat_map(|workload| options.contestants.iter().map(|one| (*workload, *one)))
            .collect();
        for round in 0..options.rounds {
            for (workload, contestant) in turns.iter().copied() {
                let measured = bench.measure(contestant, workload, connections).await;
                let measured = measured
                    .with_context(|| format!("{}, {}", contestant.name(), workload.name()))?;
                let contestant = contestant.name().to_owned();
                let measurement = Measurement { round, contestant, ..measured };
                measurement.announce();
                measurements.push(measurement);
            }
            // Everybody is first, and last, in some round.
            turns.rotate_left(1);
        }
    }
    for site in bench.sites {
        site.leave().await?;
    }
    let report = Report::new("gateway", settings, options.seconds, measurements);
    let by = |(ours, label)| Shown {
        ours,
        other: "proxy",
        group: "through the gateway by a plain proxy",
        label,
    };
    let ours = [
        ("unprotected", "a route without keys"),
        ("memory", "memory"),
        ("file", "file"),
        ("postgres", "PostgreSQL"),
    ];
    Ok(report.showing(ours.map(by).into()))
}

/// Builds the gateway as it is in this workspace.
pub(crate) fn build() -> anyhow::Result<PathBuf> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let build = ["build", "--release", "--bin", "onceward"];
    let built = Command::new(cargo).current_dir(workspace).args(build).status()?;
    ensure!(built.success(), "the gateway could not be built: {built}");
    let binary = env::current_exe()?.with_file_name("onceward");
    ensure!(binary.exists(), "run this from a release build: there is no {}", binary.display());
    Ok(binary)
}

struct Bench<'a> {
    options: &'a Options,
    binary: PathBuf,
    sites: Vec<Site>,
}

impl Bench<'_> {
    async fn measure(
        &self,
        contestant: Contestant,
        workload: Workload,
        connections: usize,
    ) -> anyhow::Result<Measurement> {
        let site = self.sites.iter().find(|site| contestant.store() == Some(site.kind));
        let place = match site {
            Some(site) => Some((site, site.new_place().await?)),
            None => None,
        };
        let empty = match &place {
            Some((site, place)) => site.bytes_prepared(place).await?,
            None => None,
        };
        let upstream = postgres::Contestant::Echo.start("", 0)?;
        let directory = tempfile::tempdir()?;
        let url = place.as_ref().map_or("memory:", |(_, place)| &place.url);
        let before = self.start(contestant, upstream.address(), &directory, url)?;
        let processes = site.map_or_else(|| vec![std::process::id()], Site::processes);
        let load = Load {
            connections,
            warm_up: Duration::from_secs_f64(self.options.warm_up),
            time: Duration::from_secs_f64(self.options.seconds),
            processes: &processes,
            contestant: before.as_ref().map_or(upstream.id(), |process| Some(process.id())),
        };
        let address = before.as_ref().map_or(upstream.address(), |process| process.address);
        let service = Service {
            target: Target::payments(address),
            replays: place.is_some(),
            keys: self.options.keys,
        };
        let settle = async || match &place {
            Some((site, place)) => site.settle(place).await,
            None => Ok(()),
        };
        let figures = load.workload(workload, &service, settle).await?;
        let measurement = Measurement { workload, ..Measurement::of(&load, &figures) };
        // The last that a file gets comes with the end of the process.
        drop(before);
        let full = match &place {
            Some((site, place)) => site.bytes(place).await?,
            None => None,
        };
        Ok(measurement.with_bytes(empty, full, figures.answered))
    }

    /// What stands before the service.
    fn start(
        &self,
        contestant: Contestant,
        upstream: SocketAddr,
        directory: &TempDir,
        store: &str,
    ) -> anyhow::Result<Option<Process>> {
        match contestant {
            Contestant::Direct => return Ok(None),
            Contestant::Proxy => {
                let mut command = Command::new(env::current_exe()?);
                let process = command.args(["proxy", "--upstream", &upstream.to_string()]);
                return Process::start(contestant.name(), process).map(Some);
            }
            _ => {}
        }
        // What is off is passed on as any other request that nobody protects.
        let key = if contestant == Contestant::Unprotected { "off" } else { "required" };
        serve(&self.binary, store, key, upstream, directory.path()).map(Some)
    }
}

/// The gateway on a store, before a service. Its settings are in this directory.
pub(crate) fn serve(
    binary: &Path,
    store: &str,
    key: &str,
    upstream: SocketAddr,
    directory: &Path,
) -> anyhow::Result<Process> {
    let durability = match store.starts_with("redis") {
        true => "durability = \"best-effort\"\n",
        false => "",
    };
    let config = directory.join("onceward.toml");
    std::fs::write(
        &config,
        format!(
            "config_version = 1\n[gateway]\nupstream = \"http://{upstream}\"\n\
             listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n\
             [store]\nurl = \"{store}\"\n{durability}\
             [[route]]\nmatch = \"POST /payments\"\nkey = \"{key}\"\n"
        ),
    )?;
    let mut command = Command::new(binary);
    let command = command.args(["serve", "--config"]).arg(&config).stderr(Stdio::null());
    Process::start("onceward", command)
}
