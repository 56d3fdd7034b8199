//! The command `onceward-proof`.

use std::{
    io::{BufReader, IsTerminal as _},
    path::PathBuf,
    process::ExitCode,
    time::Instant,
};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use onceward_proof::{
    check, gate, history,
    sim::{self, bugs::Bug, explore, shrink},
};

/// Simulates and tortures Onceward, and judges what it recorded.
#[derive(Parser)]
#[command(after_help = "Examples:\n  \
    onceward-proof gate                          what ./test asks for\n  \
    onceward-proof sim --seed 42                 one run, with the timeline of its first key\n  \
    onceward-proof sim --seed 42 --bug fails-open --shrink\n  \
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
    /// One simulated world.
    Sim {
        /// The seed it is drawn from.
        #[arg(long, conflicts_with = "choices")]
        seed: Option<u64>,
        /// The choices it is made of, as a failing run prints them.
        #[arg(long, value_delimiter = ',')]
        choices: Vec<u32>,
        /// A deliberate bug; see `bugs`.
        #[arg(long)]
        bug: Option<String>,
        /// Looks for a shorter run that fails in the same way.
        #[arg(long)]
        shrink: bool,
        /// Writes the history to a file.
        #[arg(long)]
        keep: Option<PathBuf>,
    },
    /// The deliberate bugs, and the seeds that find them.
    Bugs {
        /// How many seeds each of them may need.
        #[arg(long, default_value_t = 10_000)]
        seeds: u64,
    },
    /// Judges a history.
    Check {
        /// A file of JSON lines.
        file: PathBuf,
    },
}

fn main() -> anyhow::Result<ExitCode> {
    let passed = match Arguments::parse().what {
        What::Gate { seeds, from, deviations } => gate::run(from..from + seeds, deviations),
        What::Sim { seed, choices, bug, shrink, keep } => simulate(seed, choices, bug, shrink, keep)?,
        What::Bugs { seeds } => gate::bugs(seeds),
        What::Check { file } => judge(&file)?,
    };
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
