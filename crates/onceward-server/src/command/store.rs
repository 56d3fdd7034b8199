//! Whether the store has lost data, and saying that keys may run again.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

use super::{Client, Output, Server, examples, print, print_json};
use crate::admin::api::{AcknowledgeRequest, RegressionView};

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Tells whether the store has lost data that it had acknowledged.
    #[command(after_help = examples::STORE_STATUS)]
    Status(StatusArgs),
    /// Lets keys run again although the store has lost data. What was lost may then run twice.
    #[command(after_help = examples::STORE_ACKNOWLEDGE)]
    Acknowledge(AcknowledgeArgs),
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct AcknowledgeArgs {
    /// What was found out, for whoever reads the audit records.
    #[arg(long, value_name = "TEXT")]
    reason: String,
    #[command(flatten)]
    server: Server,
}

/// Keys are refused.
const REGRESSED: u8 = 2;

pub(super) async fn run(command: StoreCommand) -> Result<ExitCode> {
    let (client, view): (Client, RegressionView) = match command {
        StoreCommand::Status(args) => {
            let client = Client::new(&args.server)?;
            let view = client.get("/regression", &[]).await?;
            (client, view)
        }
        StoreCommand::Acknowledge(args) => {
            let client = Client::new(&args.server)?;
            let asked = AcknowledgeRequest { reason: args.reason };
            let view = client.post("/regression/acknowledge", &asked).await?;
            (client, view)
        }
    };
    match client.output {
        Output::Json => print_json(&view)?,
        Output::Table => show(&view),
    }
    Ok(if view.regressed { ExitCode::from(REGRESSED) } else { ExitCode::SUCCESS })
}

fn show(view: &RegressionView) {
    let lost = match (&view.found_at, &view.lost_after) {
        (None, _) => return print("The store has all that it acknowledged.\n"),
        (Some(found), Some(after)) => format!("what came after {after} (found {found})"),
        (Some(found), None) => format!("anything (found {found})"),
    };
    match &view.refused_until {
        Some(until) if view.regressed => print(&format!(
            "The store may have lost {lost}.\nKeys that may be among it are refused until {until}, \
             or until `onceward store acknowledge`.\n"
        )),
        Some(until) => print(&format!(
            "The store may have lost {lost}, and nobody has acknowledged it.\nThe time limit was \
             over at {until}: keys run again, and what was lost may run twice. `onceward store \
             acknowledge` says that it was looked into.\n"
        )),
        None => print(&format!(
            "Acknowledged: the store may have lost {lost}. Keys run again, on every node within a \
             second or two.\n"
        )),
    }
}
