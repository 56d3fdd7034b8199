//! Dead letters of both kinds: operations whose outcome is unknown, and messages of the outbox.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};
use serde::Serialize;

use super::{
    Client, Output, Server,
    bulk::{self, Bulk},
    examples,
    keys::{self, Because, given},
    outbox::{is_number, print_message, why},
    print, print_json,
    table::{plain, table},
};
use crate::admin::api::types::{
    KeyPage, MessageChanged, MessageDetail, MessagePage, MessageRequest, MessageView,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Dlq {
    /// Lists dead letters: operations on which the reconciler has given up, the oldest first, and
    /// messages of the outbox that could not be delivered.
    #[command(after_help = examples::DLQ_LIST)]
    List(keys::ListArgs),
    /// Hands operations back to the reconciler, which asks about them at once; has messages delivered
    /// anew. A message is named by its number.
    #[command(after_help = examples::DLQ_REDRIVE)]
    Redrive(RedriveLetters),
    /// Deletes messages that are dead letters, and lets go what waited behind them.
    #[command(after_help = examples::DLQ_DISCARD)]
    Discard(DiscardLetters),
}

#[derive(Debug, Args)]
pub(crate) struct RedriveLetters {
    #[command(flatten)]
    redrive: keys::RedriveArgs,
    /// --filter is about messages of the outbox: sink, older_than or dead (=true).
    #[arg(long, requires = "filter")]
    messages: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DiscardLetters {
    /// The number of a message, as `dlq list` shows it.
    message: Option<String>,
    /// Its fence, as `outbox show` shows it. If it has another one by now, nothing happens.
    #[arg(long, value_name = "NUMBER", requires = "message")]
    fence: Option<i64>,
    #[command(flatten)]
    because: Because,
    #[command(flatten)]
    bulk: Bulk,
    #[command(flatten)]
    server: Server,
}

pub(super) async fn run(command: Dlq) -> Result<ExitCode> {
    match command {
        Dlq::List(args) => list(args).await,
        Dlq::Redrive(RedriveLetters { redrive, messages }) => match redrive.message() {
            Some(id) => {
                let client = Client::new(&redrive.server)?;
                decide(&client, &id, "redrive", redrive.looked_at.fence, redrive.because).await
            }
            None if messages => {
                redrive.is_about_many()?;
                let client = Client::new(&redrive.server)?;
                bulk::messages(&client, redrive.bulk, "redrive", redrive.because).await
            }
            None => keys::redrive(redrive, ("dead", "true")).await,
        },
        Dlq::Discard(args) => discard(args).await,
    }
}

async fn discard(args: DiscardLetters) -> Result<ExitCode> {
    let client = Client::new(&args.server)?;
    match args.message.as_deref() {
        None => bulk::messages(&client, args.bulk, "discard", args.because).await,
        Some(id) if is_number(id) => decide(&client, id, "discard", args.fence, args.because).await,
        Some(id) => bail!(
            "`{}` is not the number of a message. An operation whose outcome is unknown is not \
             thrown away: its client may ask again, and must be told what happened. Find out \
             whether it acted, then `onceward keys resolve` or `onceward keys release` it",
            plain(id)
        ),
    }
}

async fn decide(
    client: &Client,
    id: &str,
    verb: &str,
    fence: Option<i64>,
    because: Because,
) -> Result<ExitCode> {
    let reason = because.reason.context("--reason")?;
    // About the message as it was shown to whoever decides, or as it is just now.
    let fence = match fence {
        Some(fence) => fence,
        None => {
            let shown: MessageDetail = client.get(&format!("/messages/{id}"), &[]).await?;
            shown.message.fence
        }
    };
    let document = MessageRequest { reason, fence };
    let path = format!("/messages/{id}/{verb}");
    let changed: MessageChanged = client.post(&path, &document).await?;
    match client.output {
        Output::Json => print_json(&changed)?,
        Output::Table if changed.discarded => print(&format!("Message {id} was discarded.\n")),
        Output::Table => print_message(&changed.message),
    }
    Ok(ExitCode::SUCCESS)
}

/// Both kinds, as a document.
#[derive(Serialize)]
struct DeadLetters {
    /// The operations.
    #[serde(flatten)]
    operations: KeyPage,
    messages: Vec<MessageView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_message: Option<String>,
}

/// A kind that does not know one of the conditions, or to which the cursor does not belong, is not
/// listed.
async fn list(args: keys::ListArgs) -> Result<ExitCode> {
    let client = Client::new(&args.server)?;
    let of_messages = args.after.as_deref().map(is_number);
    let names: Vec<&str> = args.filter.filter.iter().map(|(name, _)| name.as_str()).collect();
    let all_of_messages = names.iter().all(|name| matches!(*name, "sink" | "older_than" | "dead"));
    let messages = match all_of_messages && of_messages != Some(false) {
        true => messages(&client, &args).await?,
        false => MessagePage { messages: Vec::new(), next: None },
    };
    let operations = match !names.contains(&"sink") && of_messages != Some(true) {
        true => {
            let mut args = args;
            args.filter.filter.retain(|(name, _)| name != "dead");
            keys::page(&client, args.oldest_first(("dead", "true"))).await?
        }
        false => KeyPage { records: Vec::new(), next: None },
    };
    if client.output == Output::Json {
        let MessagePage { messages, next } = messages;
        print_json(&DeadLetters { operations, messages, next_message: next })?;
    } else {
        show(&operations, &messages);
    }
    Ok(ExitCode::SUCCESS)
}

async fn messages(client: &Client, args: &keys::ListArgs) -> Result<MessagePage> {
    let condition = |name: &str| {
        let mut conditions = args.filter.filter.iter();
        conditions.find(|(given, _)| given == name).map(|(_, value)| value.clone())
    };
    let parameters = given([
        ("state", Some("dead".to_owned())),
        ("sink", condition("sink")),
        ("older_than", condition("older_than")),
        ("limit", args.limit.map(|limit| limit.to_string())),
        ("after", args.after.clone()),
    ]);
    match client.get("/messages", &parameters).await {
        // There is nothing to list, and that is no failure.
        Err(error) if Client::is_refusal(&error, "no_outbox") => {
            Ok(MessagePage { messages: Vec::new(), next: None })
        }
        answered => answered,
    }
}

fn show(operations: &KeyPage, messages: &MessagePage) {
    let mut rows = Vec::new();
    for it in &operations.records {
        let about = plain(&format!("{} {}", it.method, it.path));
        let why = plain(it.last_error.as_deref().unwrap_or_default());
        let scope_and_key = [plain(&it.scope), plain(&it.key)];
        rows.push(row("operation", &it.created_at, scope_and_key, about, why, plain(&it.id)));
    }
    for it in &messages.messages {
        let about = plain(&format!("{} to {}", it.name, it.sink));
        let scope_and_key = [plain(&it.scope), plain(&it.key)];
        rows.push(row("message", &it.created_at, scope_and_key, about, why(it), it.id.to_string()));
    }
    print(&table(&["kind", "created", "scope", "key", "about", "why", "id"], &rows));
    for (kind, next) in [("operations", &operations.next), ("messages", &messages.next)] {
        if let Some(next) = next {
            print(&format!("\nThere are more {kind}: --after {next}\n"));
        }
    }
}

fn row(
    kind: &str,
    created: &str,
    [scope, key]: [String; 2],
    about: String,
    why: String,
    id: String,
) -> Vec<String> {
    vec![kind.to_owned(), created.to_owned(), scope, key, about, why, id]
}
