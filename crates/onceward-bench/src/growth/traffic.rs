//! Over HTTP: the memory of the gateway under sustained traffic, and a tenant of few requests beside one
//! of many.

use std::{net::SocketAddr, time::Duration};

use anyhow::Context as _;

use super::{Figure, Options};
use crate::{
    gateway,
    load::{Keys, Load, Target, percentile_us},
    postgres::Contestant,
    stores::Site,
};

/// How often the memory is looked at.
const LOOKS: u32 = 10;

/// What the process holds in memory after each tenth of the time.
pub(super) async fn memory(options: &Options, site: &Site) -> anyhow::Result<Vec<Figure>> {
    let binary = options.binary.clone().map_or_else(gateway::build, Ok)?;
    let directory = tempfile::tempdir()?;
    let place = site.new_place().await?;
    let upstream = Contestant::Echo.start("", 0)?;
    let gateway =
        gateway::serve(&binary, &place.url, "required", upstream.address(), directory.path())?;
    let what = format!("resident memory over {} s of new keys", options.sustained);
    let mut figure = Figure::new("memory", site.kind, what, "MB");
    figure.add("at rest", resident(gateway.id())?);
    let time = Duration::from_secs_f64(options.sustained / f64::from(LOOKS));
    let mut answered = 0;
    for _ in 0..LOOKS {
        let load = load(options, time, options.connections);
        answered += load.run(Target::payments(gateway.address), Keys::New).await?.answered;
        figure.add(&format!("after {answered} requests"), resident(gateway.id())?);
    }
    Ok(vec![figure])
}

fn load(options: &Options, time: Duration, connections: usize) -> Load<'static> {
    let warm_up = Duration::from_secs_f64((options.seconds / 10.0).min(1.0));
    Load { connections, warm_up, time, processes: &[], contestant: None }
}

/// Of a process, in megabytes.
fn resident(process: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()).context("VmRSS")?;
    Ok(kilobytes.parse::<f64>()? / 1e3)
}

/// A tenant with one request at a time, alone and beside one with all connections full.
pub(super) async fn tenant(options: &Options, site: &Site) -> anyhow::Result<Vec<Figure>> {
    let mut p50 = Figure::new("tenant", site.kind, "a quiet tenant's requests, p50", "us");
    let mut p99 = Figure::new("tenant", site.kind, "a quiet tenant's requests, p99", "us");
    for _ in 0..options.rounds {
        for hot in [false, true] {
            let place = site.new_place().await?;
            let service = Contestant::Onceward.start(&place.url, 0)?;
            let label = if hot { "beside a hot tenant" } else { "alone" };
            let latencies = quiet(options, service.address(), hot).await?;
            p50.add(label, percentile_us(&latencies, 0.5));
            p99.add(label, percentile_us(&latencies, 0.99));
        }
    }
    Ok(vec![p50, p99])
}

async fn quiet(options: &Options, address: SocketAddr, hot: bool) -> anyhow::Result<Vec<u64>> {
    let time = Duration::from_secs_f64(options.seconds);
    let few = load(options, time, 1);
    let target = Target { credential: "sk_bench_quiet", ..Target::payments(address) };
    if !hot {
        return Ok(few.run(target, Keys::New).await?.latencies);
    }
    let many = load(options, time, options.connections);
    let (few, many) =
        tokio::join!(few.run(target, Keys::New), many.run(Target::payments(address), Keys::New));
    many?;
    Ok(few?.latencies)
}
