//! The command `onceward-proof`.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use onceward_proof::torture::{self, Plan, Store};

/// Simulates and tortures Onceward, and judges what it recorded.
#[derive(Debug, Parser)]
#[command(name = "onceward-proof")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Kills, stops and disconnects real `onceward serve` processes under load, and judges what
    /// clients and upstream saw.
    #[command(after_help = TORTURE_EXAMPLES)]
    Torture(TortureArgs),
}

const TORTURE_EXAMPLES: &str = "\
Examples:
  cargo build -p onceward-server -p onceward-proof
  target/debug/onceward-proof torture --rounds 200
  target/debug/onceward-proof torture --rounds 200 --seed 42 --keep history.jsonl

  A store that forgets, to see the judge at work:
    target/debug/onceward-proof torture --rounds 20 --store memory";

#[derive(Debug, Args)]
struct TortureArgs {
    /// The binary under torture [default: `onceward` beside this program].
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,

    /// How often a process is killed or stopped.
    #[arg(long, default_value_t = 45)]
    rounds: usize,

    /// The seed of a plan that was run before.
    #[arg(long)]
    seed: Option<u64>,

    /// Where records are kept. `memory` forgets, which the judge must find.
    #[arg(long, value_enum, default_value = "file")]
    store: StoreArg,

    /// Writes the history here.
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum StoreArg {
    File,
    Memory,
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Torture(args) => torture(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn torture(args: TortureArgs) -> Result<()> {
    let binary = match args.binary {
        Some(binary) => binary,
        None => std::env::current_exe().context("this program")?.with_file_name("onceward"),
    };
    let seed = args.seed.unwrap_or_else(rand::random);
    println!("--seed {seed}");
    let mut plan = Plan::new(binary, args.rounds, seed);
    plan.store = match args.store {
        StoreArg::File => Store::File,
        StoreArg::Memory => Store::Memory,
    };
    let report = torture::run(&plan)?;
    print!("{}", report.counts);
    if let Some(path) = &args.keep {
        report.keep(path)?;
    }
    report.verdict()?;
    let lacks = report.counts.lacks(args.rounds);
    if !lacks.is_empty() {
        bail!("no violation, but too little happened:\n{}", lacks.join("\n"));
    }
    println!("no violation");
    Ok(())
}
