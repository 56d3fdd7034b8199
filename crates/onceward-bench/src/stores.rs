//! Each store beside its raw limit: the writes and reads that the store's engine is asked for at least,
//! without Onceward and without HTTP. All take turns within one run, each in a process of its own, in an
//! empty place each time.

use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, ValueEnum};

mod drive; // work without HTTP, in a process of its own
mod open; // a store by its URL
mod raw; // the limits
mod site; // servers, and a new place for each measurement

pub(crate) use drive::{Drive, Form, drive};
pub(crate) use open::open;
pub(crate) use site::{Kind, Place, Site, bytes_in};

use crate::{
    chart::Shown,
    load::{Load, Service},
    machine::Snapshot,
    postgres::{self, Wanted},
    report::{Measurement, Report, Workload},
};

/// What is asked for.
#[derive(Args)]
pub(crate) struct Options {
    /// Which stores.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "memory,file,postgres,mariadb,redis,redis-cluster,dynamodb"
    )]
    pub(crate) stores: Vec<Kind>,
    /// How many rounds; contestants take turns in each.
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: u32,
    /// How long each contestant is measured in a round, in seconds.
    #[arg(long, default_value_t = 10.0)]
    pub(crate) seconds: f64,
    /// How long it runs before that, in seconds.
    #[arg(long, default_value_t = 1.0)]
    pub(crate) warm_up: f64,
    /// How many requests are under way at a time; several numbers are measured one after another.
    #[arg(long, value_delimiter = ',', default_value = "64")]
    pub(crate) connections: Vec<usize>,
    /// Which workloads.
    #[arg(long, value_delimiter = ',', default_value = "first,replay")]
    pub(crate) workloads: Vec<Workload>,
    /// Who takes part.
    #[arg(long, value_delimiter = ',', default_value = "raw,append,echo,calls,http")]
    pub(crate) contestants: Vec<Contestant>,
    /// How many completed keys the replays choose from.
    #[arg(long, default_value_t = 2000)]
    pub(crate) keys: usize,
    /// How long each way to batch is tried for the raw limits, in seconds; the fastest is used.
    #[arg(long, default_value_t = 1.0)]
    pub(crate) calibration: f64,
    #[command(flatten)]
    pub(crate) postgres: Wanted,
}

/// Who takes part on each store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Contestant {
    /// The engine of the store, asked for as little as will do, in batches.
    Raw,
    /// Bytes appended to a file and synced, beside the file store only.
    Append,
    /// A service without a store: the ceiling of HTTP.
    Echo,
    /// The store as a library, without HTTP.
    Calls,
    /// The service behind the layer on the store.
    Http,
}

impl Contestant {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Contestant::Raw => "raw",
            Contestant::Append => "append",
            Contestant::Echo => "echo",
            Contestant::Calls => "calls",
            Contestant::Http => "http",
        }
    }

    /// What is appended cannot be found again by its key.
    fn takes_part(self, kind: Kind, workload: Workload) -> bool {
        self != Contestant::Append || kind == Kind::File && workload == Workload::First
    }
}

/// One report for each store.
pub(crate) async fn run(options: &Options) -> anyhow::Result<Vec<Report>> {
    let mut reports = Vec::new();
    for kind in options.stores.iter().copied() {
        let site = Site::start(kind, &options.postgres).await?;
        let mut measurements = Vec::new();
        for connections in options.connections.iter().copied() {
            let run = Run { options, site: &site, connections };
            measurements.extend(run.rounds().await?);
        }
        let title = format!("stores: {}", kind.name());
        let report = Report::new(title, site.settings(), options.seconds, measurements);
        let by = |(other, group)| Shown { ours: "http", other, group, label: kind.name() };
        let mut shown = vec![by(("echo", "over HTTP by HTTP without a store"))];
        // Maps without HTTP are no limit that anybody could come near to.
        if kind != Kind::Memory {
            shown.push(by(("raw", "over HTTP by the raw limit of the store, without HTTP")));
        }
        reports.push(report.showing(shown));
        site.leave().await?;
    }
    Ok(reports)
}

/// All rounds on one store with the same number of requests under way.
struct Run<'a> {
    options: &'a Options,
    site: &'a Site,
    connections: usize,
}

/// One measurement to make.
#[derive(Clone, Copy)]
struct Turn {
    workload: Workload,
    contestant: Contestant,
    /// On how many connections the raw limit is driven.
    links: usize,
}

impl Run<'_> {
    async fn rounds(&self) -> anyhow::Result<Vec<Measurement>> {
        let mut turns = Vec::new();
        for workload in self.options.workloads.iter().copied() {
            for contestant in self.options.contestants.iter().copied() {
                if contestant.takes_part(self.site.kind, workload) {
                    turns.push(self.calibrated(workload, contestant).await?);
                }
            }
        }
        let mut measurements = Vec::new();
        for round in 0..self.options.rounds {
            for turn in turns.iter().copied() {
                measurements.push(self.measure(turn, round, self.options.seconds).await?);
            }
            // Everybody is first, and last, in some round.
            turns.rotate_left(1);
        }
        Ok(measurements)
    }

    /// A limit is the best that can be had: few connections with large batches, or more with small ones.
    async fn calibrated(&self, workload: Workload, contestant: Contestant) -> anyhow::Result<Turn> {
        let ways = match contestant {
            Contestant::Raw => self.site.kind.ways_to_batch(self.connections),
            Contestant::Append => vec![1],
            _ => vec![self.connections],
        };
        let turn = |links| Turn { workload, contestant, links };
        let mut best = (turn(ways[0]), 0.0);
        for links in ways.iter().copied().filter(|_| ways.len() > 1) {
            let tried = self.measure(turn(links), 0, self.options.calibration).await?;
            if tried.per_second > best.1 {
                best = (turn(links), tried.per_second);
            }
        }
        Ok(best.0)
    }

    async fn measure(&self, turn: Turn, round: u32, seconds: f64) -> anyhow::Result<Measurement> {
        let place = self.site.new_place().await?;
        let empty = match turn.contestant {
            Contestant::Calls | Contestant::Http => self.site.bytes_prepared(&place).await?,
            _ => self.site.bytes(&place).await?,
        };
        let measured = match turn.contestant {
            Contestant::Echo | Contestant::Http => self.serve(turn, &place, seconds).await,
            _ => self.drive(turn, &place, seconds),
        };
        let name = turn.contestant.name();
        let (measured, made) = measured.with_context(|| {
            format!("{}: {name}, {}", self.site.kind.name(), turn.workload.name())
        })?;
        // As the place is at the end of a run, with what updates leave behind.
        let full = self.site.bytes(&place).await?;
        let measurement = Measurement {
            round,
            workload: turn.workload,
            contestant: name.to_owned(),
            pool: match turn.contestant {
                Contestant::Raw => Some(u32::try_from(turn.links)?),
                _ => None,
            },
            ..measured
        };
        let measurement = measurement.with_bytes(empty, full, made);
        measurement.announce();
        Ok(measurement)
    }

    /// Over HTTP. Returns also how many records there are now.
    async fn serve(
        &self,
        turn: Turn,
        place: &Place,
        seconds: f64,
    ) -> anyhow::Result<(Measurement, u64)> {
        let contestant = match turn.contestant {
            Contestant::Echo => postgres::Contestant::Echo,
            _ => postgres::Contestant::Onceward,
        };
        let process = contestant.start(&place.url, 0)?;
        let processes = self.site.processes();
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
        let settle = async || self.site.settle(place).await;
        let figures = load.workload(turn.workload, &service, settle).await?;
        let made = if service.replays { figures.answered } else { 0 };
        Ok((Measurement::of(&load, &figures), made))
    }

    /// Without HTTP.
    fn drive(&self, turn: Turn, place: &Place, seconds: f64) -> anyhow::Result<(Measurement, u64)> {
        let drive = Drive {
            url: place.url.clone(),
            form: match turn.contestant {
                Contestant::Raw => Form::Raw,
                Contestant::Append => Form::Append,
                _ => Form::Calls,
            },
            workload: turn.workload,
            in_flight: self.connections,
            links: turn.links,
            warm_up: self.options.warm_up,
            seconds,
            keys: self.options.keys,
        };
        let processes = self.site.processes();
        let before = Snapshot::take(&processes)?;
        let driven = drive.in_a_process(&[])?;
        let interference = Snapshot::take(&processes)?.since(before);
        let measurement = Measurement {
            connections: self.connections,
            workload: turn.workload,
            round: 0,
            contestant: String::new(),
            pool: None,
            requests: driven.requests,
            per_second: driven.requests as f64 / driven.seconds,
            p50_us: driven.p50_us,
            p99_us: driven.p99_us,
            cpu_us: Some(driven.cpu_us),
            bytes: None,
            interference,
        };
        Ok((measurement, driven.made))
    }
}
