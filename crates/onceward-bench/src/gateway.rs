//! The gateway before a service, measured over HTTP beside a plain proxy before the same service.
//! All of them are processes of their own, started anew for each measurement.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use clap::{Args, ValueEnum};
use tempfile::TempDir;

pub(crate) mod proxy; // the yardstick

use crate::{
    load::{self, Figures, Keys, Load},
    postgres::{self, BODY, Server},
    process::Process,
    report::{Measurement, Output, Report, Workload},
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
        default_value = "direct,proxy,unprotected,memory,file,postgres"
    )]
    contestants: Vec<Contestant>,
    /// How many completed keys the replays choose from.
    #[arg(long, default_value_t = 2000)]
    keys: usize,
    /// The gateway; otherwise it is built.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// A PostgreSQL server to use, without a database's name; otherwise one is started.
    #[arg(long)]
    url: Option<String>,
    /// In which form to print.
    #[arg(short, long, default_value = "table")]
    output: Output,
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
}

impl Contestant {
    fn name(self) -> &'static str {
        match self {
            Contestant::Direct => "direct",
            Contestant::Proxy => "proxy",
            Contestant::Unprotected => "unprotected",
            Contestant::Memory => "memory",
            Contestant::File => "file",
            Contestant::Postgres => "postgres",
        }
    }

    /// Whether a key sent again gets the first answer.
    fn replays(self) -> bool {
        matches!(self, Contestant::Memory | Contestant::File | Contestant::Postgres)
    }
}

const DATABASE: &str = "onceward_bench_gateway";

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let binary = options.binary.clone().map_or_else(build, Ok)?;
    let server = match options.contestants.contains(&Contestant::Postgres) {
        true => Some(Server::at_or_new(options.url.as_deref()).await?),
        false => None,
    };
    let settings = match &server {
        Some(server) => Some(server.settings().await?),
        None => None,
    };
    let bench = Bench { options: &options, binary, server, own: [std::process::id()] };
    let mut measurements = Vec::new();
    for connections in options.connections.iter().copied() {
        let mut turns: Vec<_> = options
            .workloads
            .iter()
            .flat_map(|workload| options.contestants.iter().map(|one| (*workload, *one)))
            .collect();
        for round in 0..options.rounds {
            for (workload, contestant) in turns.iter().copied() {
                let figures = bench.measure(contestant, workload, connections).await;
                let figures = figures
                    .with_context(|| format!("{}, {}", contestant.name(), workload.name()))?;
                let measurement = Measurement {
                    workload,
                    round,
                    contestant: contestant.name().to_owned(),
                    ..Measurement::of(&bench.load(connections), &figures)
                };
                measurement.announce();
                measurements.push(measurement);
            }
            // Everybody is first, and last, in some round.
            turns.rotate_left(1);
        }
    }
    if let Some(server) = &bench.server {
        server.drop_database(DATABASE).await?;
    }
    Report::new(settings, options.seconds, measurements).print(options.output)
}

/// Builds the gateway as it is in this workspace.
fn build() -> anyhow::Result<PathBuf> {
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
    server: Option<Server>,
    /// The processes of the benchmark where it has no server.
    own: [u32; 1],
}

impl Bench<'_> {
    fn load(&self, connections: usize) -> Load<'_> {
        Load {
            connections,
            warm_up: Duration::from_secs_f64(self.options.warm_up),
            time: Duration::from_secs_f64(self.options.seconds),
            processes: self.server.as_ref().map_or(&self.own, Server::processes),
            contestant: None,
        }
    }

    async fn measure(
        &self,
        contestant: Contestant,
        workload: Workload,
        connections: usize,
    ) -> anyhow::Result<Figures> {
        let upstream = postgres::Contestant::Echo.start("", 0)?;
        let directory = tempfile::tempdir()?;
        let before = self.start(contestant, &upstream, &directory).await?;
        let measured = before.as_ref().unwrap_or(&upstream);
        let address = measured.address;
        let load = Load { contestant: Some(measured.id()), ..self.load(connections) };
        let body = BODY.as_bytes();
        let keys = match workload {
            Workload::First => Keys::New,
            Workload::Replay => {
                let answered = Arc::from(load.preload(address, self.options.keys, body).await?);
                match contestant.replays() {
                    true => Keys::Same(answered),
                    false => Keys::Ignored(answered),
                }
            }
        };
        if let (Contestant::Postgres, Some(server)) = (contestant, &self.server) {
            server.settle(&server.url(DATABASE)).await?;
        }
        let figures = load.run(address, keys, body).await?;
        if contestant.replays() {
            // What was answered must have been kept, or it was no work.
            load::check(address, &figures.last, body).await?;
        }
        Ok(figures)
    }

    /// What stands before the service.
    async fn start(
        &self,
        contestant: Contestant,
        upstream: &Process,
        directory: &TempDir,
    ) -> anyhow::Result<Option<Process>> {
        let store = match contestant {
            Contestant::Direct => return Ok(None),
            Contestant::Proxy => {
                let mut command = Command::new(env::current_exe()?);
                let upstream = upstream.address.to_string();
                let process = command.args(["proxy", "--upstream", &upstream]);
                return Process::start(contestant.name(), process).map(Some);
            }
            Contestant::Unprotected | Contestant::Memory => "memory:".to_owned(),
            Contestant::File => format!("file:{}", directory.path().join("bench.db").display()),
            Contestant::Postgres => {
                let server = self.server.as_ref().context("a server was started for it")?;
                server.new_database(DATABASE).await?
            }
        };
        // What is off is passed on as any other request that nobody protects.
        let key = if contestant == Contestant::Unprotected { "off" } else { "required" };
        let config = directory.path().join("onceward.toml");
        std::fs::write(
            &config,
            format!(
                "config_version = 1\n[gateway]\nupstream = \"http://{}\"\n\
                 listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n[store]\nurl = \"{store}\"\n\
                 [[route]]\nmatch = \"POST /payments\"\nkey = \"{key}\"\n",
                upstream.address
            ),
        )?;
        let mut command = Command::new(&self.binary);
        let command = command.args(["serve", "--config"]).arg(&config).stderr(Stdio::null());
        Process::start(contestant.name(), command).map(Some)
    }
}
