//! `onceward config`, `routes` and `explain`: what a configuration means, and what a code means. All
//! of it is told without opening a store or a port.

use std::{io::Write as _, process::ExitCode};

use anyhow::Result;
use serde_json::{Value, json};

use crate::{
    cli::{ConfigCommand, ExplainArgs, FileArgs, Output},
    config::Config,
};

mod codes; // the pages of the error codes
mod contract; // what clients have to know
mod schema; // the file as a JSON Schema
mod show; // settings, named as in the file
mod table; // columns

/// `onceward config ...`.
pub(crate) fn config(command: ConfigCommand) -> ExitCode {
    ended(match command {
        ConfigCommand::Check(args) => check(args),
        ConfigCommand::Show(args) => {
            let output = args.output;
            load(args).map(|config| match output {
                Output::Table => show::table(&config),
                Output::Json => pretty(&show::json(&config)),
            })
        }
        ConfigCommand::Schema => Ok(pretty(&schema::schema())),
        ConfigCommand::Contract(args) => {
            let output = args.output;
            load(args).map(|config| match output {
                Output::Table => contract::markdown(&config),
                Output::Json => pretty(&contract::json(&config)),
            })
        }
    })
}

/// `onceward routes ...`.
pub(crate) fn routes(args: FileArgs) -> ExitCode {
    let output = args.output;
    ended(load(args).map(|config| match output {
        Output::Table => show::routes_table(&config),
        Output::Json => pretty(&show::routes_json(&config)),
    }))
}

/// `onceward explain CODE`.
pub(crate) fn explain(args: &ExplainArgs) -> ExitCode {
    ended(codes::page(&args.code).map(|page| match args.output {
        Output::Table => page.text.to_owned(),
        Output::Json => pretty(&page.json()),
    }))
}

fn load(args: FileArgs) -> Result<Config> {
    Config::load(args.into_serve())
}

fn check(args: FileArgs) -> Result<String> {
    let output = args.output;
    let config = load(args)?;
    let warnings = &config.routes.warnings;
    Ok(match output {
        Output::Table => {
            let told = warnings.iter().map(|warning| format!("warning: {warning}\n"));
            format!("{}the configuration can be used\n", told.collect::<String>())
        }
        Output::Json => pretty(&json!({ "valid": true, "warnings": warnings })),
    })
}

/// Prints what was asked for, or the one line that says what is wrong.
fn ended(answer: Result<String>) -> ExitCode {
    match answer {
        Ok(text) => {
            // Whoever reads may stop before the end.
            let _ = std::io::stdout().lock().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("onceward: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}
