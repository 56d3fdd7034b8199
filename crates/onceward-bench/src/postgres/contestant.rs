//! The contestants, each a service in a process of its own.

use std::{env, process::Command, sync::Arc};

use axum::{Router, body::Bytes, routing::post, serve::ListenerExt as _};
use clap::{Args, ValueEnum};
use onceward::{Idempotency, PgOptions, PgStore, Policy};
use serde::Serialize;
use tokio::net::TcpListener;

use super::{by_hand, payment};
use crate::process::{self, Process};

/// Who takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Contestant {
    /// No idempotency, no database: the ceiling.
    Echo,
    /// By hand, with sqlx and its pool as they come.
    Sqlx,
    /// By hand, with as few of sqlx's round trips as can be had.
    SqlxTuned,
    /// By hand, with tokio-postgres and deadpool.
    TokioPostgres,
    /// The layer on a `PgStore`, with its defaults.
    Onceward,
}

impl Contestant {
    /// The name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Contestant::Echo => "echo",
            Contestant::Sqlx => "sqlx",
            Contestant::SqlxTuned => "sqlx-tuned",
            Contestant::TokioPostgres => "tokio-postgres",
            Contestant::Onceward => "onceward",
        }
    }

    /// Whether a key sent again gets the first answer.
    pub(crate) fn replays(self) -> bool {
        self != Contestant::Echo
    }

    /// Whether its size of pool is to be found out. Others have none, or choose it themselves.
    pub(crate) fn has_pool(self) -> bool {
        matches!(self, Contestant::Sqlx | Contestant::SqlxTuned | Contestant::TokioPostgres)
    }

    /// Its process.
    pub(crate) fn start(self, url: &str, pool: u32) -> anyhow::Result<Process> {
        let mut command = Command::new(env::current_exe()?);
        command.args(["serve", "--contestant", self.name(), "--url", url]);
        Process::start(self.name(), command.args(["--pool", &pool.to_string()]))
    }

    async fn service(self, url: &str, pool: u32) -> anyhow::Result<Router> {
        match self {
            Contestant::Echo => Ok(pays()),
            Contestant::Sqlx => by_hand::sqlx::service(url, pool, false).await,
            Contestant::SqlxTuned => by_hand::sqlx::service(url, pool, true).await,
            Contestant::TokioPostgres => by_hand::tokio_postgres::service(url, pool as usize).await,
            Contestant::Onceward => onceward(url).await,
        }
    }
}

/// The service alone.
fn pays() -> Router {
    let pay = |body: Bytes| async move {
        let (status, body) = payment::pay(&body);
        by_hand::answer(status, body)
    };
    Router::new().route("/payments", post(pay))
}

/// The same service behind the layer.
async fn onceward(url: &str) -> anyhow::Result<Router> {
    let store = PgStore::connect(PgOptions::new(url)).await?;
    Ok(pays().layer(Idempotency::new(Arc::new(store), Policy::required())))
}

/// Which service to be.
#[derive(Args)]
pub(crate) struct Serve {
    #[arg(long)]
    contestant: Contestant,
    #[arg(long)]
    url: String,
    #[arg(long)]
    pool: u32,
}

/// Serves on a free port, says which, and ends with its input: also when the benchmark was killed.
pub(crate) async fn serve(service: Serve) -> anyhow::Result<()> {
    let app = service.contestant.service(&service.url, service.pool).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    process::serves(&listener)?;
    let listener = listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            eprintln!("no TCP_NODELAY: {error}");
        }
    });
    axum::serve(listener, app).await?;
    Ok(())
}
