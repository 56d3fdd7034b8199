//! Changing many records or messages: first a plan, then its application.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde_json::{Map, Value, json};

use super::{
    Client, Output,
    keys::{Because, EvidenceArgs, FilterArgs},
    print, print_json,
    table::{plain, table},
};
use crate::admin::api::types::{Action, Applied, Evidence, PlanView, Skipped};

/// How many ids of a plan are shown to people.
const SHOWN_MAX: usize = 5;

/// Many records at once.
#[derive(Debug, Args)]
pub(crate) struct Bulk {
    #[command(flatten)]
    filter: FilterArgs,
    /// Applies a plan that was looked at; or, with --filter, what the filter finds now.
    #[arg(long, value_name = "PLAN:HASH", num_args = 0..=1, default_missing_value = "")]
    apply: Option<String>,
}

pub(super) async fn release(
    client: &Client,
    bulk: Bulk,
    because: Because,
    evidence: EvidenceArgs,
) -> Result<ExitCode> {
    let planned = !bulk.filter.filter.is_empty();
    let evidence = if planned { Some(evidence.evidence()?) } else { None };
    run(client, bulk, ("filter", "release"), because, evidence, None).await
}

pub(super) async fn void(client: &Client, bulk: Bulk, because: Because) -> Result<ExitCode> {
    run(client, bulk, ("filter", "void"), because, None, None).await
}

/// Of those that the filter finds, only these: a filter is about them, whatever else it says.
pub(super) async fn redrive(
    client: &Client,
    bulk: Bulk,
    because: Because,
    only: (&str, &str),
) -> Result<ExitCode> {
    run(client, bulk, ("filter", "redrive"), because, None, Some(only)).await
}

/// The same with dead letters of the outbox.
pub(super) async fn messages(
    client: &Client,
    bulk: Bulk,
    action: &str,
    because: Because,
) -> Result<ExitCode> {
    run(client, bulk, ("messages", action), because, None, None).await
}

async fn run(
    client: &Client,
    bulk: Bulk,
    (of, action): (&str, &str),
    because: Because,
    evidence: Option<Evidence>,
    only: Option<(&str, &str)>,
) -> Result<ExitCode> {
    if bulk.filter.filter.is_empty() {
        let plan = bulk.apply.filter(|plan| !plan.is_empty());
        let plan = plan.context(match of {
            "messages" => "which messages? give a number, or --filter",
            _ => "which records? give an id, --scope and --key, or --filter",
        })?;
        let Some((plan, hash)) = plan.split_once(':') else {
            bail!("--apply takes PLAN:HASH, as the plan was shown");
        };
        return apply(client, plan, hash).await;
    }
    if bulk.apply.as_deref().is_some_and(|plan| !plan.is_empty()) {
        bail!("a plan has its records already: give --filter or --apply PLAN:HASH, not both");
    }
    let mut filter = Map::new();
    for (name, value) in bulk.filter.filter {
        if filter.insert(name.clone(), Value::String(value)).is_some() {
            bail!("--filter {name} is given twice");
        }
    }
    if let Some((name, value)) = only {
        let given = filter.entry(name).or_insert_with(|| Value::String(value.to_owned()));
        if given.as_str() != Some(value) {
            bail!("this command is about {name}={value} only");
        }
    }
    let reason = because.reason.context("why? give --reason")?;
    let mut document = json!({ of: filter, "action": action, "reason": reason });
    if let Some(evidence) = evidence {
        document["evidence"] = serde_json::to_value(evidence)?;
    }
    let plan: PlanView = client.post("/plans", &document).await?;
    if bulk.apply.is_some() {
        return apply(client, &plan.plan, &plan.hash).await;
    }
    match client.output {
        Output::Json => print_json(&plan)?,
        Output::Table => show(&plan),
    }
    Ok(ExitCode::SUCCESS)
}

fn show(plan: &PlanView) {
    let (action, count) = (plan.action.name(), plan.count);
    let of = if plan.messages { "messages" } else { "records" };
    print(&format!("This would {action} {count} {of}; nothing was changed yet.\n"));
    for id in plan.ids.iter().take(SHOWN_MAX) {
        print(&format!("  {}\n", plain(id)));
    }
    if plan.ids.len() > SHOWN_MAX {
        print(&format!("  ... and {} more (-o json shows all)\n", plan.ids.len() - SHOWN_MAX));
    }
    if plan.more {
        print(&format!("More {of} match than one plan may hold: make another one afterwards.\n"));
    }
    if plan.ambiguous > 0 && plan.action == Action::Redrive {
        print(&format!(
            "{} of them may have been delivered (`outbox show` says `may have acted`): look at each \
             before.\n",
            plan.ambiguous
        ));
    }
    let (name, hash) = (&plan.plan, &plan.hash);
    let group = match plan.action {
        Action::Redrive | Action::Discard => "dlq",
        Action::Release | Action::Void => "keys",
    };
    print(&format!(
        "\nUntil {}:\n  onceward {group} {action} --apply {name}:{hash}\n",
        plan.expires_at
    ));
}

async fn apply(client: &Client, plan: &str, hash: &str) -> Result<ExitCode> {
    let document = json!({ "hash": hash });
    let applied: Applied = client.post(&format!("/plans/{plan}/apply"), &document).await?;
    let of = if applied.messages { "messages" } else { "records" };
    match client.output {
        Output::Json => print_json(&applied)?,
        Output::Table => {
            print(&format!("{} {of} were changed.\n", applied.applied));
            show_left("were not", &applied.skipped);
            show_left("may have been, the store did not say; look at them again", &applied.failed);
        }
    }
    match applied.failed.len() {
        0 => Ok(ExitCode::SUCCESS),
        failed => bail!("the store failed for {failed} {of} of the plan"),
    }
}

fn show_left(what: &str, left: &[Skipped]) {
    if left.is_empty() {
        return;
    }
    print(&format!("{} {what}:\n", left.len()));
    let rows = left.iter().map(|it| vec![plain(&it.id), it.code.clone()]);
    print(&table(&["id", "why"], &rows.collect::<Vec<_>>()));
}
