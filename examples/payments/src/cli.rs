//! The command line.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand};

/// Payments that are made once, whatever dies in between.
#[derive(Debug, Parser)]
#[command(name = "payments")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Takes payments.
    Serve(ServeArgs),
    /// Plays the bank, and the receiver of notifications.
    Bank(BankArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Where payments and records are kept, together: file:PATH or postgres://...
    #[arg(long, value_name = "URL", value_parser = store_url)]
    pub(crate) store: StoreUrl,

    /// The bank, as in http://127.0.0.1:4000.
    #[arg(long, value_name = "URL")]
    pub(crate) bank: String,

    /// The bank acts each time it is called, whatever the key. A call whose end is not known is then
    /// never repeated: the outcome is unknown until somebody finds out.
    #[arg(long)]
    pub(crate) bank_is_forgetful: bool,

    /// Who is told about payments; nobody without it.
    #[arg(long, value_name = "URL")]
    pub(crate) notify: Option<String>,

    /// Where clients connect.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:3000")]
    pub(crate) listen: SocketAddr,

    /// How long an attempt may be silent before others go on with it.
    #[arg(long, value_name = "SECONDS", default_value = "30s", value_parser = seconds)]
    pub(crate) lease: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct BankArgs {
    /// Where its customers connect.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:4000")]
    pub(crate) listen: SocketAddr,

    /// What it did, one JSON document a line: the truth.
    #[arg(long, value_name = "FILE")]
    pub(crate) ledger: PathBuf,

    /// Acts each time it is called, whatever the key.
    #[arg(long)]
    pub(crate) forgetful: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum StoreUrl {
    File(PathBuf),
    Postgres(String),
}

fn store_url(text: &str) -> Result<StoreUrl, String> {
    if let Some(path) = text.strip_prefix("file:") {
        return Ok(StoreUrl::File(path.into()));
    }
    if text.starts_with("postgres://") || text.starts_with("postgresql://") {
        return Ok(StoreUrl::Postgres(text.to_owned()));
    }
    Err("a store is file:PATH or postgres://...".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.strip_suffix('s').and_then(|number| number.parse().ok());
    seconds.map(Duration::from_secs).ok_or_else(|| "seconds are written 30s".to_owned())
}
