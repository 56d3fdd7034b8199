//! What operators do at a terminal. All of it goes through the admin API, but for `routes audit` and
//! `openapi`, which also work alone, and `ledger`, `doctor` and `migrate`, which go to the store.

use std::{io, process::ExitCode};

use anyhow::Result;
use clap::{Args, CommandFactory as _, Subcommand, ValueEnum};

use crate::cli::{Cli, Output};

mod bulk; // many records: a plan, and its application
mod client; // the admin API, from outside
mod dlq; // dead letters of both kinds
mod doctor; // whether a store can be relied on
mod examples; // what their help ends with
mod keys; // one record, and lists
mod ledger; // beside the provider's export
mod migrate; // the schema of a store
mod outbox; // messages
mod privacy; // keys for sealing, and erasing
mod store; // whether the store has lost data
mod routes; // routes audit
mod site; // a store that is looked at and not opened
mod table; // for people

use client::Client;
pub(crate) use routes::{
    AUDIT_EXAMPLES as ROUTES_AUDIT_EXAMPLES, AuditArgs, SHADOW_EXAMPLES as ROUTES_SHADOW_EXAMPLES,
    ShadowArgs,
};

/// Something that is not unprotected, nor a refusal of ours, went wrong.
const FAILED: u8 = 1;

#[derive(Debug, Subcommand)]
pub(crate) enum Operate {
    /// Looks at records, and decides about them.
    #[command(subcommand, after_help = examples::KEYS)]
    Keys(keys::Keys),
    /// Records whose outcome nobody knows.
    #[command(subcommand, after_help = examples::UNKNOWN)]
    Unknown(keys::Unknown),
    /// Messages of the outbox.
    #[command(subcommand, after_help = examples::OUTBOX)]
    Outbox(outbox::Outbox),
    /// Dead letters: unknown records on which the reconciler has given up, and messages that could not
    /// be delivered.
    #[command(subcommand, after_help = examples::DLQ)]
    Dlq(dlq::Dlq),
    /// Lists what was decided and by whom, the latest first.
    #[command(after_help = examples::AUDIT)]
    Audit(keys::AuditArgs),
    /// Counts records by state.
    #[command(after_help = examples::STATS)]
    Stats(keys::StatsArgs),
    /// Compares our operations with what the provider says.
    #[command(subcommand, after_help = ledger::EXAMPLES)]
    Ledger(ledger::Ledger),
    /// Keys for sealing stored replies, and erasing those of one scope.
    #[command(subcommand, after_help = examples::PRIVACY)]
    Privacy(privacy::Privacy),
    /// Tells whether the store has lost data, and lets keys run again if so.
    #[command(subcommand, after_help = examples::STORE)]
    Store(store::StoreCommand),
    /// Tells whether a store can be relied on: settings, rights, clock, schema.
    #[command(after_help = doctor::EXAMPLES)]
    Doctor(doctor::DoctorArgs),
    /// The schema of a store: which version it has, and bringing it to this one.
    #[command(subcommand, after_help = migrate::EXAMPLES)]
    Migrate(migrate::Migrate),
    /// Prints the OpenAPI document of the admin API.
    #[command(after_help = examples::OPENAPI)]
    Openapi,
    /// Prints what a shell needs to complete commands.
    #[command(after_help = examples::COMPLETIONS)]
    Completions {
        /// The shell.
        shell: Shell,
    },
}

/// Which shell.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Shell {
    /// bash
    Bash,
    /// zsh
    Zsh,
    /// fish
    Fish,
}

/// Where the server is, and how answers are shown.
#[derive(Clone, Debug, Args)]
pub(crate) struct Server {
    /// The admin listener of the server.
    #[arg(
        long,
        value_name = "URL",
        env = "ONCEWARD_ADMIN",
        default_value = "http://127.0.0.1:8081"
    )]
    admin: String,

    /// The token of the admin API; better in the environment than on a command line.
    #[arg(long, value_name = "TOKEN", env = "ONCEWARD_ADMIN_TOKEN", hide_env_values = true)]
    token: Option<String>,

    /// How answers are shown.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

/// Runs a command. Errors are told here, so that 2 and 3 are left for what a command found.
pub(crate) async fn run(command: Operate) -> ExitCode {
    let ended = match command {
        Operate::Keys(command) => keys::run(command).await,
        Operate::Unknown(command) => keys::unknown(command).await,
        Operate::Outbox(command) => outbox::run(command).await,
        Operate::Dlq(command) => dlq::run(command).await,
        Operate::Audit(args) => keys::audit(args).await,
        Operate::Stats(args) => keys::stats(args).await,
        Operate::Ledger(command) => ledger::run(command).await,
        Operate::Privacy(command) => privacy::run(command).await,
        Operate::Store(command) => store::run(command).await,
        Operate::Doctor(args) => doctor::run(args).await,
        Operate::Migrate(command) => migrate::run(command).await,
        Operate::Openapi => print_json(&crate::admin::api::document()).map(|()| ExitCode::SUCCESS),
        Operate::Completions { shell } => {
            complete(shell);
            Ok(ExitCode::SUCCESS)
        }
    };
    told(ended)
}

/// `routes audit`, which works without a server too.
pub(crate) async fn audit(args: AuditArgs) -> ExitCode {
    told(routes::audit(args).await)
}

/// `routes shadow`.
pub(crate) async fn shadow(args: ShadowArgs) -> ExitCode {
    told(routes::shadow(args).await)
}

fn told(ended: Result<ExitCode>) -> ExitCode {
    ended.unwrap_or_else(|error| {
        eprintln!("onceward: {error:#}");
        ExitCode::from(FAILED)
    })
}

fn complete(shell: Shell) {
    let shell = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "onceward", &mut script);
    // Whoever closed the pipe has enough.
    let _ = io::Write::write_all(&mut io::stdout(), &script);
}

fn print_json(value: &impl serde::Serialize) -> Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?));
    Ok(())
}

fn print(text: &str) {
    // As `complete` does.
    let _ = io::Write::write_all(&mut io::stdout(), text.as_bytes());
}
