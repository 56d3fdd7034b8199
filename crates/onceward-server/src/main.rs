//! `onceward`: safe retries for HTTP services in any language.
//!
//! The modules, in the order in which a start meets them:

mod cli; // what was asked for
mod log; // log lines, written by a thread of their own
mod config; // the TOML file and the flags, made one, and what is refused
mod store; // store URLs, opened
mod tls; // certificates
mod listener; // connections in: hyper with time limits, and a clean stop
mod traffic; // what was passed on without protection
mod gateway; // requests through the engine to upstream and back
mod admin; // /livez, /readyz, /metrics, and the admin API
mod workers; // what is done though no client comes
mod serve; // all of it together, until a signal
mod ledger; // our operations beside the provider's export
mod describe; // configurations, routes and error codes, for people
mod command; // what operators do, by the admin API
mod demo; // a bank, a gateway, and a story in the terminal

use std::process::ExitCode;

use clap::Parser as _;

use cli::{Cli, Command, RoutesCommand};

/// Requests begin on one thread and often end on another, which the system's allocator is slow at.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Nobody may be left to read it.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
    let logs = log::install(cli.log_format, cli.command.log_level());
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.into()),
    };
    let ended = runtime.block_on(async {
        match cli.command {
            Command::Serve(args) => serve::serve(args).await.map(|()| ExitCode::SUCCESS),
            Command::Demo(args) => demo::demo(args).await,
            Command::Config(command) => Ok(describe::config(command)),
            Command::Routes(RoutesCommand::List(args)) => Ok(describe::routes(args)),
            Command::Routes(RoutesCommand::Audit(args)) => Ok(command::audit(args).await),
            Command::Routes(RoutesCommand::Shadow(args)) => Ok(command::shadow(args).await),
            Command::Explain(args) => Ok(describe::explain(&args)),
            Command::Operate(command) => Ok(command::run(command).await),
        }
    });
    drop(runtime);
    drop(logs);
    ended.unwrap_or_else(|error| failed(&error))
}

/// One line that says what is wrong and what to do.
fn failed(error: &anyhow::Error) -> ExitCode {
    eprintln!("onceward: {error:#}");
    ExitCode::from(2)
}
