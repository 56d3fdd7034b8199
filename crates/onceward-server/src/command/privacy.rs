//! Keys for sealing, and erasing what was sealed for a scope.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use onceward::RingKey;

use super::{Client, Output, Server, examples, print, print_json, table::plain};
use crate::admin::api::types::{ErasureRequest, ErasureView};

#[derive(Debug, Subcommand)]
pub(crate) enum Privacy {
    /// Prints a fresh secret for privacy.keys.
    #[command(after_help = examples::PRIVACY_NEW_KEY)]
    NewKey,
    /// Erases the stored replies of one scope, by dropping the keys they are sealed with. Without
    /// --apply it only says what that would be.
    #[command(after_help = examples::PRIVACY_ERASE)]
    Erase(EraseArgs),
}

#[derive(Debug, Args)]
pub(crate) struct EraseArgs {
    /// The scope, as `keys list` shows it.
    #[arg(long)]
    scope: String,
    /// Why it is done, for whoever reads the audit records.
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Does it. It cannot be undone.
    #[arg(long)]
    apply: bool,
    #[command(flatten)]
    server: Server,
}

pub(super) async fn run(command: Privacy) -> Result<ExitCode> {
    match command {
        Privacy::NewKey => {
            print(&format!("{}\n", RingKey::random_secret()));
            Ok(ExitCode::SUCCESS)
        }
        Privacy::Erase(args) => erase(args).await,
    }
}

async fn erase(args: EraseArgs) -> Result<ExitCode> {
    let client = Client::new(&args.server)?;
    let EraseArgs { scope, reason, apply, .. } = args;
    let mut asked = ErasureRequest { scope, reason, hash: None };
    let mut erasure: ErasureView = client.post("/erasures", &asked).await?;
    if apply {
        asked.hash = Some(erasure.hash);
        erasure = client.post("/erasures", &asked).await?;
    }
    match client.output {
        Output::Json => print_json(&erasure)?,
        Output::Table => show(&erasure),
    }
    Ok(ExitCode::SUCCESS)
}

fn show(erasure: &ErasureView) {
    let ErasureView { scope, applied, data_keys, records, at_work, .. } = erasure;
    let scope = plain(scope);
    if *data_keys == 0 {
        print(&format!(
            "Nothing is sealed for scope {scope}. What was stored without sealing goes with its \
             retention.\n"
        ));
        return;
    }
    if *applied {
        print(&format!(
            "{data_keys} data keys of scope {scope} were dropped. Retries of what is done are told \
             that the reply is not stored any more. Other processes notice within 30 s.\n"
        ));
        return;
    }
    print(&format!(
        "This would drop {data_keys} data keys of scope {scope}, which has {records} records; \
         nothing was changed yet.\n"
    ));
    if *at_work > 0 {
        print(&format!(
            "{at_work} of them are not at rest: their kept requests and steps would go too.\n"
        ));
    }
    print("It cannot be undone. The same with --apply does it.\n");
}
