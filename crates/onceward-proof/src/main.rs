//! The command `onceward-proof`.

use clap::{Parser, Subcommand};
use onceward_proof::model;

#[derive(Parser)]
#[command(about = "Simulates and tortures Onceward, and judges what it recorded")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Explores every state of the protocol in small worlds, and finds mistakes made on purpose.
    Model,
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Model => explore_model(),
    }
}

fn explore_model() -> anyhow::Result<()> {
    let report = model::run(&[model::SMALL, model::LARGE].concat());
    print!("{report}");
    anyhow::ensure!(report.holds(), "the model does not hold");
    Ok(())
}
