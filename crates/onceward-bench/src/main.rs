//! Benchmarks: contestants are interleaved within one run, and compared by ratio. A figure is worth
//! something only with the command that made it.

use clap::{Parser, Subcommand};
use tokio::runtime::Builder;

mod file;
mod fingerprint;
mod gateway; // the binary, beside a plain proxy
mod load; // requests over kept-alive connections, from one thread
mod machine; // who else used it during a measurement
mod postgres; // HTTP services on a real PostgreSQL: by hand, and with Onceward
mod process; // contestants, each a process of its own
mod reap; // what the reaper costs those whom it is not about
mod report; // tables and ratios

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
    /// Services on PostgreSQL, over HTTP: no idempotency, by hand, and Onceward.
    Postgres(postgres::Options),
    /// Onceward on PostgreSQL, over HTTP, with few and with many records in its tables.
    PostgresSize(postgres::size::Options),
    /// The gateway on each store, over HTTP, beside a plain proxy.
    Gateway(gateway::Options),
    /// Requests while a million records past their retention are removed, and while they are not; and
    /// how large a store is after each of many retentions.
    Reap(reap::Options),
    /// The plain proxy, until its input ends. The benchmark starts it by itself.
    #[command(hide = true)]
    Proxy(gateway::proxy::Proxy),
    /// One of these services, until its input ends. The benchmark starts it by itself.
    #[command(hide = true)]
    Serve(postgres::Serve),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().what {
        What::Fingerprint => {
            fingerprint::run();
            Ok(())
        }
        What::File { rounds, seconds } => {
            let threads = Builder::new_multi_thread().enable_all().build()?;
            threads.block_on(file::run(rounds, seconds))
        }
        // One thread for the load, so that it takes as little as it can from what it measures.
        What::Postgres(options) => {
            let one_thread = Builder::new_current_thread().enable_all().build()?;
            one_thread.block_on(postgres::run(options))
        }
        What::PostgresSize(options) => {
            let one_thread = Builder::new_current_thread().enable_all().build()?;
            one_thread.block_on(postgres::size::run(options))
        }
        What::Gateway(options) => {
            let one_thread = Builder::new_current_thread().enable_all().build()?;
            one_thread.block_on(gateway::run(options))
        }
        What::Reap(options) => {
            let threads = Builder::new_multi_thread().enable_all().build()?;
            threads.block_on(reap::run(options))
        }
        What::Proxy(proxy) => {
            let threads = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            threads.block_on(gateway::proxy::serve(proxy))
        }
        What::Serve(service) => {
            let threads = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            threads.block_on(postgres::serve(service))
        }
    }
}
