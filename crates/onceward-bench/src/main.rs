//! Benchmarks: contestants are interleaved within one run, and compared by ratio. A figure is worth
//! something only with the command that made it.

use clap::{Parser, Subcommand};

mod file;
mod fingerprint;

#[derive(Parser)]
#[command(about = "Measures Onceward beside its yardsticks")]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// The fingerprint, beside parsing the same body with serde_json.
    Fingerprint,
    /// The embedded store: requests (reserve and complete) per second, and writes per fsync.
    File {
        /// How many rounds; contestants take turns in each.
        #[arg(long, default_value_t = 5)]
        rounds: u32,
        /// How long each contestant runs in a round, in seconds.
        #[arg(long, default_value_t = 2.0)]
        seconds: f64,
    },
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Arguments::parse().what {
        What::Fingerprint => {
            fingerprint::run();
            Ok(())
        }
        What::File { rounds, seconds } => file::run(rounds, seconds).await,
    }
}
