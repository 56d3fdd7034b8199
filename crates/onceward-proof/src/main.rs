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
        Command::Model => {
            for world in model::SMALL.iter().chain(model::ALL) {
                let e = model::explore(*world, None);
                println!("{:40} {:>8} states {:>9} trans depth {} {:.2?}", world.name, e.states, e.transitions, e.depth, e.took);
                if let Some(c) = e.counterexample { println!("{c}"); }
            }
            let mut seen = model::Seen::default();
            for m in model::Mistake::ALL {
                let e = model::explore(m.world(), Some(m));
                println!("{:60} {:>8} states {:.2?}", m.text(), e.states, e.took);
                match e.counterexample { Some(c) => println!("{c}"), None => println!("   NOT FOUND") }
            }
            Ok(())
        }
    }
}
