//! Messages of the outbox.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::{Args, Subcommand, ValueEnum};

use super::{
    Client, Output, Server, examples,
    keys::given,
    print, print_json,
    table::{plain, table},
};
use crate::admin::api::types::{MessageDetail, MessagePage, MessageView};

#[derive(Debug, Subcommand)]
pub(crate) enum Outbox {
    /// Lists messages in the order in which they were staged.
    #[command(after_help = examples::OUTBOX_LIST)]
    List(ListArgs),
    /// Shows one message, without its payload.
    #[command(after_help = examples::OUTBOX_SHOW)]
    Show {
        /// Its number, as `outbox list` shows it.
        id: String,
        #[command(flatten)]
        server: Server,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only those in this state.
    #[arg(long, value_enum)]
    state: Option<MessageState>,
    /// Only those for this sink.
    #[arg(long, value_name = "NAME")]
    sink: Option<String>,
    /// Only those that were staged at least so long ago, as in 90s, 15m, 2h or 7d.
    #[arg(long, value_name = "DURATION")]
    older_than: Option<String>,
    /// At most so many.
    #[arg(long, value_name = "NUMBER")]
    limit: Option<u32>,
    /// Where the page before ended.
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    #[command(flatten)]
    server: Server,
}

/// Where a message stands.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum MessageState {
    /// To be delivered.
    Ready,
    /// A relay is at work.
    Delivering,
    /// Delivered.
    Done,
    /// Given up: a person must see it.
    Dead,
}

pub(super) async fn run(command: Outbox) -> Result<ExitCode> {
    match command {
        Outbox::List(args) => list(args).await?,
        Outbox::Show { id, server } => show(&id, &server).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(args: ListArgs) -> Result<()> {
    let client = Client::new(&args.server)?;
    let state = args.state.and_then(|state| Some(state.to_possible_value()?.get_name().to_owned()));
    let parameters = given([
        ("state", state),
        ("sink", args.sink),
        ("older_than", args.older_than),
        ("limit", args.limit.map(|limit| limit.to_string())),
        ("after", args.after),
    ]);
    let page: MessagePage = client.get("/messages", &parameters).await?;
    if client.output == Output::Json {
        return print_json(&page);
    }
    let row = |message: &MessageView| {
        let (id, attempts) = (message.id.to_string(), message.attempts.to_string());
        let aggregate = message.aggregate.clone().unwrap_or_default();
        let cells = [&id, &message.state, &message.created_at, &message.sink, &message.name];
        let cells = cells.into_iter().chain([&aggregate, &attempts]);
        let mut row: Vec<String> = cells.map(|cell| plain(cell)).collect();
        row.push(why(message));
        row
    };
    let rows: Vec<Vec<String>> = page.messages.iter().map(row).collect();
    let headings = ["id", "state", "created", "sink", "name", "aggregate", "attempts", "why"];
    print(&table(&headings, &rows));
    if let Some(next) = page.next {
        print(&format!("\nThere is more: --after {next}\n"));
    }
    Ok(())
}

async fn show(id: &str, server: &Server) -> Result<()> {
    let client = Client::new(server)?;
    ensure!(is_number(id), "`{}` is not a message; `outbox list` shows their numbers", plain(id));
    let shown: MessageDetail = client.get(&format!("/messages/{id}"), &[]).await?;
    if client.output == Output::Json {
        return print_json(&shown);
    }
    print_message(&shown.message);
    print(&format!("\n{}\n", shown.advice));
    Ok(())
}

/// Messages have numbers, records have ids that are none.
pub(super) fn is_number(id: &str) -> bool {
    !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit())
}

/// Why it was not delivered, and whether even that is not certain.
pub(super) fn why(message: &MessageView) -> String {
    let why = plain(message.last_error.as_deref().unwrap_or_default());
    if message.ambiguous { format!("may have acted; {why}") } else { why }
}

pub(super) fn print_message(message: &MessageView) {
    let optional = |text: &Option<String>| text.clone().unwrap_or_default();
    let rows = [
        ("id", message.id.to_string()),
        ("state", message.state.clone()),
        ("sink", message.sink.clone()),
        ("name", message.name.clone()),
        ("aggregate", optional(&message.aggregate)),
        ("payload", format!("{} bytes of {}", message.payload_bytes, message.content_type)),
        ("derived key", message.derived_key.clone()),
        ("fence", message.fence.to_string()),
        ("attempts", message.attempts.to_string()),
        ("why", why(message)),
        ("provider id", optional(&message.provider_id)),
        ("created", message.created_at.clone()),
        ("next", message.next_at.clone()),
        ("done", optional(&message.done_at)),
        ("scope", message.scope.clone()),
        ("key", message.key.clone()),
        ("operation", message.operation.clone()),
    ];
    for (name, value) in rows {
        print(&format!("{:<12} {}\n", format!("{name}:"), plain(&value)));
    }
}
