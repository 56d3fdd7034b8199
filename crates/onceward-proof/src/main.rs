//! The command `onceward-proof`.

use clap::{Parser, Subcommand};
use onceward_proof::canonical::command::Canonical;

#[derive(Parser)]
#[command(about = "Simulates and tortures Onceward, and judges what it recorded")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compares two implementations of canonical JSON on random documents.
    Canonical(Canonical),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Canonical(canonical) => canonical.run(),
    }
}
