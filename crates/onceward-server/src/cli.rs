//! The command line.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};

mod describe; // config, routes, explain

pub(crate) use describe::{ConfigCommand, ExplainArgs, FileArgs, Output, RoutesCommand};

/// Safe retries for HTTP services in any language.
///
/// A client attaches an Idempotency-Key; the work behind that key never runs twice unless the first
/// run is known not to have acted, and every stored reply is replayed byte for byte.
#[derive(Debug, Parser)]
#[command(name = "onceward", version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,

    /// How log lines are written to stderr. Levels are set by RUST_LOG.
    #[arg(long, global = true, value_enum, default_value = "text")]
    pub(crate) log_format: LogFormat,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Stands in front of one HTTP service and makes its POST and PATCH requests safe to retry.
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(ServeArgs),
    /// Starts a small bank and a gateway in front of it, and tells a story whose every step is
    /// checked.
    #[command(after_help = DEMO_EXAMPLES)]
    Demo(DemoArgs),
    /// Checks, shows and describes a configuration.
    #[command(subcommand, after_help = describe::CONFIG_EXAMPLES)]
    Config(ConfigCommand),
    /// Which rules hold for which requests.
    #[command(subcommand, after_help = describe::ROUTES_EXAMPLES)]
    Routes(RoutesCommand),
    /// Says what an error code means and what to do about it.
    #[command(after_help = describe::EXPLAIN_EXAMPLES)]
    Explain(ExplainArgs),
    #[command(flatten)]
    Operate(crate::command::Operate),
}

impl Command {
    /// What is logged unless RUST_LOG says otherwise.
    pub(crate) fn log_level(&self) -> &'static str {
        match self {
            Command::Serve(_) => "info",
            // A story is told on the same screen, and it has a lease that runs out.
            Command::Demo(_) => "error",
            Command::Config(_) | Command::Routes(_) | Command::Explain(_) | Command::Operate(_) => {
                "warn"
            }
        }
    }
}

/// Flags of `serve`. Each overrides what the config file says.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ServeArgs {
    /// The service to protect, as in http://127.0.0.1:3000.
    #[arg(long, value_name = "URL")]
    pub(crate) upstream: Option<String>,

    /// Where clients connect [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<SocketAddr>,

    /// Where /livez, /readyz, /metrics and the admin API are served; without ONCEWARD_ADMIN_TOKEN
    /// a loopback address [default: 127.0.0.1:8081].
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) admin: Option<SocketAddr>,

    /// Where records are kept: file:PATH, postgres://..., mysql://..., redis://..., dynamodb://TABLE, or
    /// memory: for trying things out
    /// [default: file:./onceward.db].
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,

    /// How callers are told apart: authorization, header:NAME, jwt:CLAIM or anonymous
    /// [default: authorization].
    #[arg(long, value_name = "RULE")]
    pub(crate) scope: Option<String>,

    /// A named set of rules: ietf or stripe [default: ietf].
    #[arg(long, value_name = "NAME")]
    pub(crate) profile: Option<String>,

    /// A TOML file with all settings.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Runs only the workers, without a listener for clients: those are served by other processes on
    /// the same store, with the same configuration.
    #[arg(long, value_enum, conflicts_with = "no_workers")]
    pub(crate) only: Option<Only>,

    /// Serves clients without running workers: those run in other processes on the same store.
    #[arg(long)]
    pub(crate) no_workers: bool,

    /// Uses a store that was written under another scope rule, key syntax, fingerprint key or
    /// privacy.hash_keys. Keys of before will look new.
    #[arg(long)]
    pub(crate) accept_identity_change: bool,
}

/// What a process can be asked to do alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Only {
    /// Sweeper, reaper, surveyor, and the dispatch of queued requests.
    Worker,
}

/// Flags of `demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Ends after the story instead of serving on.
    #[arg(long)]
    pub(crate) no_wait: bool,
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

const EXAMPLES: &str = "\
Examples:
  onceward demo --no-wait
  onceward serve --upstream http://127.0.0.1:3000
  onceward serve --config onceward.toml
  onceward config check onceward.toml
  onceward explain idempotency_key_in_progress
  onceward keys list --filter state=unknown";

const DEMO_EXAMPLES: &str = "\
Examples:
  The story, and then a bank and a gateway to try things on, until Ctrl-C:
    onceward demo

  The story alone, which ends with 0 if every step was as it should be:
    onceward demo --no-wait";

const SERVE_EXAMPLES: &str = "\
Examples:
  Callers are told apart by their Authorization header, records are kept in ./onceward.db:
    onceward serve --upstream http://127.0.0.1:3000

  To try things out, without credentials and without a file:
    onceward serve --upstream http://127.0.0.1:3000 --store memory: --scope anonymous
    curl -i -X POST http://127.0.0.1:8080/charges -H 'Idempotency-Key: order-0000000000000001'

  Settings in a file, and another port:
    onceward serve --config onceward.toml --listen 127.0.0.1:9090

  The workers in a process of their own:
    onceward serve --config onceward.toml --no-workers
    onceward serve --config onceward.toml --only worker --admin 127.0.0.1:8082

A config file:
  config_version = 1
  [gateway]
  upstream = \"http://127.0.0.1:3000\"
  [store]
  url = \"file:/var/lib/onceward/onceward.db\"
  [scope]
  from = \"jwt:sub\"
  jwt_secret = \"${env:JWT_SECRET}\"
  [defaults]
  effects = \"external\"
  retention = \"48h\"";

#[cfg(test)]
mod tests;
