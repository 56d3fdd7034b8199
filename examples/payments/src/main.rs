//! The reference application: payments that are made once, whatever dies in between.
//!
//! The modules, in the order in which a start and then a request meet them:

mod cli; // what was asked for
mod service; // the routes, what each declares, and the workers beside them
mod edges; // where tests let the process die
mod payments; // create, capture, refund: steps here and calls to the bank
mod records; // customers and notes: one transaction each
mod failed; // what a client is told when it did not work
mod tables; // the SQL
mod bank; // calls to the bank
mod simulator; // a bank to try it with: a process of its own, with a ledger of its own

use anyhow::Result;
use clap::Parser as _;
use sqlx::{Postgres, Sqlite};

use cli::{Cli, Command, StoreUrl};

#[tokio::main]
async fn main() -> Result<()> {
    let levels = tracing_subscriber::EnvFilter::try_from_default_env();
    let levels = levels.unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt().with_env_filter(levels).with_writer(std::io::stderr).init();
    match Cli::parse().command {
        Command::Bank(args) => simulator::serve(args).await,
        Command::Serve(args) => match &args.store {
            StoreUrl::File(path) => {
                let opened = tables::open_file(path).await?;
                service::serve::<Sqlite>(&args, opened).await
            }
            StoreUrl::Postgres(url) => {
                let opened = tables::connect(url).await?;
                service::serve::<Postgres>(&args, opened).await
            }
        },
    }
}
