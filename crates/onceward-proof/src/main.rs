//! The command `onceward-proof`.

use std::{
    fs::File,
    io::{BufReader, BufWriter},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use clap::{Parser, Subcommand, ValueEnum};
use onceward_proof::{
    canonical::command::Canonical,
    check, gate, history, model,
    sim::{self, Run, bugs::Bug, explore, shrink},
    torture::{self, Plan, Store},
};
use onceward_testbed::{DynamoDb, MariaDb, Postgres, Redis, RedisCluster};

/// Simulates and tortures Onceward, and judges what it recorded.
#[derive(Parser)]
#[command(after_help = "Examples:\n  \
    onceward-proof gate                          what ./test asks for\n  \
    onceward-proof sim --seed 42                 one run, with the timeline of its first key\n  \
    onceward-proof sim --seed 42 --bug fails-open --shrink\n  \
    onceward-proof torture --rounds 200          real processes, killed and stopped\n  \
    onceward-proof check history.jsonl")]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Small worlds exhaustively, then seeds, then every deliberate bug.
    Gate {
        /// How many seeds; each is run twice.
        #[arg(long, default_value_t = 10_000)]
        seeds: u64,
        /// The first seed.
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// How many faults at a time in the small worlds.
        #[arg(long, default_value_t = 2)]
        deviations: u32,
    },
    /// Explores every state of the protocol in small worlds, and finds mistakes made on purpose.
    Model,
    /// One simulated world.
    Sim(Sim),
    /// The deliberate bugs, and the seeds that find them.
    Bugs {
        /// How many seeds each of them may need.
        #[arg(long, default_value_t = 10_000)]
        seeds: u64,
    },
    /// Kills, stops and disconnects real `onceward serve` processes under load, and judges what
    /// clients and upstream saw.
    #[command(after_help = TORTURE_EXAMPLES)]
    Torture(Torture),
    /// Compares two implementations of canonical JSON on random documents.
    Canonical(Canonical),
    /// Judges a history.
    Check {
        /// A file of JSON lines.
        file: PathBuf,
    },
}

#[derive(clap::Args)]
struct Sim {
    /// The seed it is drawn from.
    #[arg(long, conflicts_with = "choices")]
    seed: Option<u64>,
    /// The choices it is made of, as a failing run prints them.
    #[arg(long, value_delimiter = ',')]
    choices: Vec<u32>,
    /// A small world instead of one that is drawn from the choices.
    #[arg(long, conflicts_with = "seed")]
    world: Option<String>,
    /// A deliberate bug; see `bugs`.
    #[arg(long)]
    bug: Option<String>,
    /// Looks for a shorter run that fails in the same way.
    #[arg(long, conflicts_with = "world")]
    shrink: bool,
    /// Writes the history to a file.
    #[arg(long)]
    keep: Option<PathBuf>,
}

const TORTURE_EXAMPLES: &str = "\
Examples:
  cargo build -p onceward-server -p onceward-proof
  target/debug/onceward-proof torture --rounds 200
  target/debug/onceward-proof torture --rounds 200 --seed 42 --keep history.jsonl
  target/debug/onceward-proof torture --kills 100 --store postgres

  A store that forgets, to see the judge at work:
    target/debug/onceward-proof torture --rounds 20 --store memory";

#[derive(clap::Args)]
struct Torture {
    /// The binary under torture [default: `onceward` beside this program].
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// How often a process is killed or stopped. Each kind has had its turn after 20 rounds.
    #[arg(long, default_value_t = 60)]
    rounds: usize,
    /// Kills only, so often at each edge, instead of rounds.
    #[arg(long, value_name = "PER_EDGE")]
    kills: Option<usize>,
    /// The seed of a plan that was run before.
    #[arg(long)]
    seed: Option<u64>,
    /// Where records are kept. `memory` forgets, which the judge must find.
    #[arg(long, value_enum, default_value = "file")]
    store: StoreArg,
    /// Writes the history to a file.
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum StoreArg {
    File,
    // Each a server of its own, for this run.
    Postgres,
    MariaDb,
    Redis,
    RedisCluster,
    DynamoDb,
    Memory,
}

fn main() -> anyhow::Result<ExitCode> {
    let passed = match Arguments::parse().what {
        What::Gate { seeds, from, deviations } => gate::run(from..from + seeds, deviations),
        What::Model => explore_model(),
        What::Sim(sim) => simulate(sim)?,
        What::Bugs { seeds } => gate::bugs(seeds),
        What::Torture(asked) => torture(asked)?,
        What::Canonical(canonical) => {
            canonical.run()?;
            true
        }
        What::Check { file } => judge(&file)?,
    };
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn explore_model() -> bool {
    let report = model::run(&[model::SMALL, model::LARGE].concat());
    print!("{report}");
    report.holds()
}

fn simulate(asked: Sim) -> anyhow::Result<bool> {
    let bug = asked.bug.map(|name| {
        Bug::from_name(&name).with_context(|| format!("no bug is named `{name}`: see `bugs`"))
    });
    let bug = bug.transpose()?;
    let mut run = match (asked.seed, asked.world) {
        (Some(seed), _) => sim::run_seed(seed, bug),
        (None, None) => sim::run_list(asked.choices, bug),
        (None, Some(world)) => {
            let worlds = explore::small_worlds();
            let options = worlds.get(&*world).with_context(|| {
                let names: Vec<_> = worlds.keys().copied().collect();
                format!("no small world is named `{world}`: there are {}", names.join(", "))
            })?;
            explore::small_run(options, asked.choices, bug)
        }
    };
    if asked.shrink && run.violation.is_some() {
        let (list, shorter) = shrink::shrink(gate::list(&run.choices), bug);
        println!("shorter: --choices {}", gate::joined(&list));
        run = shorter;
    }
    if let Some(file) = asked.keep {
        let to = File::create(&file).with_context(|| format!("creating {}", file.display()))?;
        history::write(&run.history, BufWriter::new(to))?;
    }
    print!("{}", gate::story(&run));
    summary(&run);
    Ok(run.violation.is_none())
}

fn torture(asked: Torture) -> anyhow::Result<bool> {
    let binary = match asked.binary {
        Some(binary) => binary,
        None => std::env::current_exe().context("finding this program")?.with_file_name("onceward"),
    };
    let seed = asked.seed.unwrap_or_else(rand::random);
    println!("--seed {seed}");
    let mut plan = match asked.kills {
        Some(per_edge) => Plan::kills(binary, per_edge, seed),
        None => Plan::new(binary, asked.rounds, seed),
    };
    plan.store = match asked.store {
        StoreArg::File => Store::File,
        StoreArg::Postgres => Store::At(Postgres::shared().url("postgres")),
        StoreArg::MariaDb => {
            let server = MariaDb::shared();
            Store::At(server.url(&server.create_database()))
        }
        StoreArg::Redis => Store::At(Redis::shared().url()),
        StoreArg::RedisCluster => Store::At(RedisCluster::shared().url()),
        StoreArg::DynamoDb => Store::At(DynamoDb::shared().url("torture")),
        StoreArg::Memory => Store::Memory,
    };
    let report = torture::run(&plan)?;
    print!("{}", report.counts);
    if let Some(file) = &asked.keep {
        report.keep(file)?;
    }
    if let Err(error) = report.verdict() {
        println!("{error:#}");
        return Ok(false);
    }
    let lacks = match asked.kills {
        Some(per_edge) => report.counts.lacks_kills(per_edge),
        None => report.counts.lacks(plan.rounds),
    };
    if !lacks.is_empty() {
        println!("no violation, but too little happened:\n{}", lacks.join("\n"));
        return Ok(false);
    }
    println!("no violation");
    Ok(true)
}

fn summary(run: &Run) {
    let (events, seconds) = (run.history.len(), run.simulated().as_secs_f64());
    println!("{events} events in {seconds:.1} simulated seconds, trace {:016x}", run.trace);
}

fn judge(file: &Path) -> anyhow::Result<bool> {
    let from = File::open(file).with_context(|| format!("opening {}", file.display()))?;
    let history = history::read(BufReader::new(from)).context("reading the history")?;
    let violations = check::judge(&history);
    for violation in &violations {
        println!("{violation}");
    }
    println!("{} events, {} violations", history.len(), violations.len());
    Ok(violations.is_empty())
}
