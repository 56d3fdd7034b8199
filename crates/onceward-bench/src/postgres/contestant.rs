//! The contestants, each a service in a process of its own.

use std::{env, net::SocketAddr, path::Path, process::Command};

use axum::{Router, body::Bytes, routing::post, serve::ListenerExt as _};
use clap::{Args, ValueEnum};
use onceward::{Idempotency, Policy};
use onceward_testbed::Restate;
use serde::Serialize;
use tempfile::TempDir;
use tokio::net::TcpListener;

use super::{by_hand, payment, peers};
use crate::{
    gateway,
    load::Target,
    process::{self, Process},
    stores::{self, Kind},
};

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
    /// The published crate of this name, on its own store for PostgreSQL.
    AxumIdempotent,
    /// Restate's server before a service of its Rust SDK, on its own log.
    Restate,
    /// The layer on the store of the URL, both with their defaults.
    Onceward,
    /// The same on a file.
    OncewardFile,
    /// The binary before `echo`, on `memory:`.
    GatewayMemory,
    /// The same on a file.
    GatewayFile,
    /// The same on PostgreSQL.
    GatewayPostgres,
}

impl Contestant {
    /// The name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Contestant::Echo => "echo",
            Contestant::Sqlx => "sqlx",
            Contestant::SqlxTuned => "sqlx-tuned",
            Contestant::TokioPostgres => "tokio-postgres",
            Contestant::AxumIdempotent => "axum-idempotent",
            Contestant::Restate => "restate",
            Contestant::Onceward => "onceward",
            Contestant::OncewardFile => "onceward-file",
            Contestant::GatewayMemory => "gateway-memory",
            Contestant::GatewayFile => "gateway-file",
            Contestant::GatewayPostgres => "gateway-postgres",
        }
    }

    /// Where it keeps its keys. Restate has a place of its own.
    pub(crate) fn store(self) -> Kind {
        match self {
            Contestant::Echo | Contestant::Restate | Contestant::GatewayMemory => Kind::Memory,
            Contestant::OncewardFile | Contestant::GatewayFile => Kind::File,
            Contestant::Sqlx
            | Contestant::SqlxTuned
            | Contestant::TokioPostgres
            | Contestant::AxumIdempotent
            | Contestant::Onceward
            | Contestant::GatewayPostgres => Kind::Postgres,
        }
    }

    /// Whether it is the gateway, before a service that knows no keys.
    pub(crate) fn is_gateway(self) -> bool {
        matches!(
            self,
            Contestant::GatewayMemory | Contestant::GatewayFile | Contestant::GatewayPostgres
        )
    }

    /// Whether a key sent again gets the first answer.
    pub(crate) fn replays(self) -> bool {
        self != Contestant::Echo
    }

    /// Whether its size of pool is to be found out. Others have none, or choose it themselves.
    pub(crate) fn has_pool(self) -> bool {
        matches!(
            self,
            Contestant::Sqlx
                | Contestant::SqlxTuned
                | Contestant::TokioPostgres
                | Contestant::AxumIdempotent
        )
    }

    /// Its process.
    pub(crate) fn start(self, url: &str, pool: u32) -> anyhow::Result<Started> {
        match self {
            Contestant::AxumIdempotent => return peers::axum_idempotent(url, pool),
            Contestant::Restate => return peers::restate(),
            _ => {}
        }
        let mut command = Command::new(env::current_exe()?);
        command.args(["serve", "--contestant", self.name(), "--url", url]);
        let service = Process::start(self.name(), command.args(["--pool", &pool.to_string()]))?;
        Ok(Started { path: "/payments", headers: "", service, before: None })
    }

    /// The gateway on a store, before the service alone.
    pub(crate) fn gateway(binary: &Path, store: &str) -> anyhow::Result<Started> {
        let started = Contestant::Echo.start("", 0)?;
        let settings = tempfile::tempdir()?;
        let process =
            gateway::serve(binary, store, "required", started.address(), settings.path())?;
        Ok(Started { before: Some(Before::Gateway { process, _settings: settings }), ..started })
    }

    async fn service(self, url: &str, pool: u32) -> anyhow::Result<Router> {
        match self {
            Contestant::Echo => Ok(pays()),
            Contestant::Sqlx => by_hand::sqlx::service(url, pool, false).await,
            Contestant::SqlxTuned => by_hand::sqlx::service(url, pool, true).await,
            Contestant::TokioPostgres => by_hand::tokio_postgres::service(url, pool as usize).await,
            Contestant::Onceward | Contestant::OncewardFile => onceward(url).await,
            _ => anyhow::bail!("{} has a program of its own", self.name()),
        }
    }
}

/// A contestant that runs: its service, and what is before that.
pub(crate) struct Started {
    pub(super) path: &'static str,
    pub(super) headers: &'static str,
    pub(super) service: Process,
    pub(super) before: Option<Before>,
}

/// Whom requests reach first.
pub(super) enum Before {
    Restate(Restate),
    Gateway { process: Process, _settings: TempDir },
}

impl Started {
    /// Where the load is sent.
    pub(crate) fn address(&self) -> SocketAddr {
        match &self.before {
            None => self.service.address,
            Some(Before::Restate(restate)) => restate.ingress(),
            Some(Before::Gateway { process, .. }) => process.address,
        }
    }

    pub(crate) fn target(&self) -> Target<'static> {
        let Started { path, headers, .. } = *self;
        Target { path, headers, ..Target::payments(self.address()) }
    }

    /// The process whose work is measured.
    pub(crate) fn id(&self) -> Option<u32> {
        match &self.before {
            None => Some(self.service.id()),
            Some(Before::Restate(restate)) => restate.pid(),
            Some(Before::Gateway { process, .. }) => Some(process.id()),
        }
    }

    /// What is kept in a place of its own.
    pub(crate) fn bytes(&self) -> anyhow::Result<Option<u64>> {
        match &self.before {
            Some(Before::Restate(restate)) => stores::bytes_in(&restate.data()).map(Some),
            _ => Ok(None),
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
    Ok(pays().layer(Idempotency::new(stores::open(url).await?, Policy::required())))
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
pub(crate) async fn serve(service: &Serve) -> anyhow::Result<()> {
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
