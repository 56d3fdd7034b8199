//! Work without HTTP, in a process of its own: on a store as a library, or on what it is made of.

use std::{
    env,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use clap::{Args, ValueEnum};
use futures_util::future::{BoxFuture, try_join_all};
use onceward::{
    Store,
    store::{Reservation, Written},
};
use rand::seq::IndexedRandom as _;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::{open, raw};
use crate::{file, load::percentile_us, machine::worked_for, report::Workload};

/// So many records at most are made: those in memory must fit there.
const RECORDS_MAX: u64 = 4_000_000;

/// Who works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    Raw,
    Append,
    Calls,
}

/// What to do.
#[derive(Args)]
pub(crate) struct Drive {
    #[arg(long)]
    pub(crate) url: String,
    #[arg(long)]
    pub(crate) form: Form,
    #[arg(long)]
    pub(crate) workload: Workload,
    #[arg(long)]
    pub(crate) in_flight: usize,
    #[arg(long)]
    pub(crate) links: usize,
    #[arg(long)]
    pub(crate) warm_up: f64,
    #[arg(long)]
    pub(crate) seconds: f64,
    #[arg(long)]
    pub(crate) keys: usize,
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Driven {
    pub(crate) requests: usize,
    /// How long that took.
    pub(crate) seconds: f64,
    /// How many records there are now.
    pub(crate) made: u64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) cpu_us: f64,
}

impl Drive {
    /// In a new process, which ends with it. `by` is a program that runs it, with its arguments.
    pub(crate) fn in_a_process(&self, by: &[String]) -> anyhow::Result<Driven> {
        let name = |value: &dyn Fn() -> Option<clap::builder::PossibleValue>| {
            value().map(|value| value.get_name().to_owned()).unwrap_or_default()
        };
        let own = env::current_exe()?;
        let mut command = match by {
            [] => Command::new(own),
            [program, arguments @ ..] => {
                let mut command = Command::new(program);
                command.args(arguments).arg(own);
                command
            }
        };
        let output = command
            .args(["drive", "--url", &self.url])
            .args(["--form", &name(&|| self.form.to_possible_value())])
            .args(["--workload", &name(&|| self.workload.to_possible_value())])
            .args(["--in-flight", &self.in_flight.to_string()])
            .args(["--links", &self.links.to_string()])
            .args(["--warm-up", &self.warm_up.to_string()])
            .args(["--seconds", &self.seconds.to_string()])
            .args(["--keys", &self.keys.to_string()])
            .stderr(Stdio::inherit())
            .output()?;
        ensure!(output.status.success(), "it ended with {}", output.status);
        serde_json::from_slice(&output.stdout).context("what a contestant says about itself")
    }
}

/// One connection, or one caller, that does a few requests at a time.
pub(super) trait Work: Send {
    /// A reserve and a complete of each of these keys, which nobody has used.
    fn first<'a>(&'a mut self, keys: &'a [String]) -> BoxFuture<'a, anyhow::Result<()>>;

    /// Reads what was completed under each of them.
    fn replay<'a>(&'a mut self, keys: &'a [String]) -> BoxFuture<'a, anyhow::Result<()>>;

    /// Keys that belong to this one's server begin with this.
    fn prefix(&self) -> &str {
        ""
    }

    /// Leaves no work of the past to the measurement that comes.
    fn settle(&mut self) -> BoxFuture<'_, anyhow::Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

/// The store, as the engine asks it.
struct Calls(Arc<dyn Store>);

impl Work for Calls {
    fn first<'a>(&'a mut self, keys: &'a [String]) -> BoxFuture<'a, anyhow::Result<()>> {
        Box::pin(async move {
            for key in keys {
                let ask = file::ask(key, file::DAY, 30 * file::DAY)?;
                let Reservation::Granted { lease, .. } = self.0.reserve(ask).await? else {
                    bail!("a random key was taken");
                };
                match self.0.write(&lease, file::completes()).await? {
                    Written::Applied => {}
                    other => bail!("not applied: {other:?}"),
                }
            }
            Ok(())
        })
    }

    fn replay<'a>(&'a mut self, keys: &'a [String]) -> BoxFuture<'a, anyhow::Result<()>> {
        Box::pin(async move {
            for key in keys {
                let ask = file::ask(key, file::DAY, 30 * file::DAY)?;
                let found = self.0.reserve(ask).await?.completed();
                let found = found.context("a key is not completed")?;
                ensure!(found.reply.body_bytes() == raw::BODY, "another reply");
            }
            Ok(())
        })
    }
}

/// Says what came of it as JSON.
pub(crate) async fn drive(drive: &Drive) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(&run(drive).await?)?);
    Ok(())
}

async fn run(drive: &Drive) -> anyhow::Result<Driven> {
    let (mut workers, each) = match drive.form {
        Form::Calls => {
            let store = open(&drive.url).await?;
            let caller = |_| Box::new(Calls(Arc::clone(&store))) as Box<dyn Work>;
            ((0..drive.in_flight).map(caller).collect(), 1)
        }
        form => {
            let each = drive.in_flight.div_ceil(drive.links.max(1)).max(1);
            (raw::workers(form, &drive.url, drive.links, each).await?, each)
        }
    };
    let mut completed = Vec::new();
    if drive.workload == Workload::Replay {
        let keys_each = drive.keys.div_ceil(workers.len()).next_multiple_of(each);
        let all = workers.iter_mut().map(|worker| complete(worker, keys_each, each));
        completed = try_join_all(all).await?;
    }
    let made = completed.iter().map(|keys| keys.len() as u64).sum();
    if let Some(first) = workers.first_mut() {
        first.settle().await?;
    }
    let hours = Hours::new(drive);
    let made = Arc::new(AtomicU64::new(made));
    let mut tasks = JoinSet::new();
    for (index, worker) in workers.into_iter().enumerate() {
        // Each sends again what it completed itself: in a Cluster others have other servers.
        let keys = completed.get(index).cloned();
        tasks.spawn(work(worker, each, keys, hours, Arc::clone(&made)));
    }
    tokio::time::sleep_until(hours.from.into()).await;
    let own = std::process::id();
    let before = worked_for(own)?;
    let mut latencies = Vec::new();
    while let Some(some) = tasks.join_next().await {
        latencies.extend(some??);
    }
    let seconds = hours.from.elapsed().as_secs_f64();
    let worked = worked_for(own)? - before;
    ensure!(!latencies.is_empty(), "nothing was done within the time");
    latencies.sort_unstable();
    Ok(Driven {
        requests: latencies.len(),
        seconds,
        made: made.load(Ordering::Relaxed),
        p50_us: percentile_us(&latencies, 0.5),
        p99_us: percentile_us(&latencies, 0.99),
        cpu_us: worked * 1e6 / latencies.len() as f64,
    })
}

async fn complete(
    worker: &mut Box<dyn Work>,
    count: usize,
    each: usize,
) -> anyhow::Result<Arc<[String]>> {
    let keys: Vec<String> = (0..count).map(|_| key(worker.prefix())).collect();
    for batch in keys.chunks(each) {
        worker.first(batch).await?;
    }
    Ok(keys.into())
}

/// What is done within them is counted.
#[derive(Clone, Copy)]
struct Hours {
    from: Instant,
    until: Instant,
}

impl Hours {
    fn new(drive: &Drive) -> Self {
        let from = Instant::now() + Duration::from_secs_f64(drive.warm_up);
        Hours { from, until: from + Duration::from_secs_f64(drive.seconds) }
    }
}

/// One batch after the other. Each of a batch takes as long as the whole one.
async fn work(
    mut worker: Box<dyn Work>,
    each: usize,
    completed: Option<Arc<[String]>>,
    hours: Hours,
    made: Arc<AtomicU64>,
) -> anyhow::Result<Vec<u64>> {
    let mut latencies = Vec::with_capacity(1 << 16);
    let mut begun = Instant::now();
    while begun < hours.until && made.load(Ordering::Relaxed) < RECORDS_MAX {
        match &completed {
            Some(completed) => {
                let keys: Vec<String> = completed.sample(&mut rand::rng(), each).cloned().collect();
                worker.replay(&keys).await?;
            }
            None => {
                let keys: Vec<String> = (0..each).map(|_| key(worker.prefix())).collect();
                worker.first(&keys).await?;
                made.fetch_add(each as u64, Ordering::Relaxed);
            }
        }
        let done = Instant::now();
        if begun >= hours.from {
            let took = u64::try_from((done - begun).as_nanos()).unwrap_or(u64::MAX);
            latencies.extend(std::iter::repeat_n(took, each));
        }
        begun = done;
    }
    Ok(latencies)
}

/// As clients make them: random, so that they are spread all over an index.
fn key(prefix: &str) -> String {
    format!("{prefix}{:032x}", rand::random::<u128>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(url: String, form: Form, workload: Workload) -> Drive {
        let (in_flight, links) = (8, 2);
        Drive { url, form, workload, in_flight, links, warm_up: 0.0, seconds: 0.05, keys: 20 }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn memory_and_file_are_driven_raw_and_by_calls() {
        for form in [Form::Raw, Form::Calls] {
            for workload in [Workload::First, Workload::Replay] {
                let folder = tempfile::tempdir().expect("a folder");
                let file = format!("file:{}", folder.path().join("bench.db").display());
                for url in ["memory:".to_owned(), file] {
                    let driven = run(&short(url, form, workload)).await.expect("driven");
                    assert!(driven.requests > 0 && driven.p50_us <= driven.p99_us);
                    assert!(workload == Workload::Replay || driven.made >= driven.requests as u64);
                }
            }
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn appended_bytes_are_synced_in_batches() {
        let folder = tempfile::tempdir().expect("a folder");
        let url = format!("file:{}", folder.path().join("bench.db").display());
        let driven = run(&Drive { links: 1, ..short(url, Form::Append, Workload::First) }).await;
        assert!(driven.expect("driven").requests.is_multiple_of(8));
    }
}
