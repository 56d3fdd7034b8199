//! `migrate`: the schema of a store, ahead of a start.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use onceward::store::site::{Schema, Standing, Step};
use serde_json::{Value, json};

use super::{
    Output, examples, print, print_json,
    site::{SiteArgs, failed},
    table::table,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Migrate {
    /// Shows which migrations would be applied, and what they do. Changes nothing.
    #[command(after_help = examples::MIGRATE_PLAN)]
    Plan(MigrateArgs),
    /// Applies what is pending, under a lock; says so if there is nothing to do.
    #[command(after_help = examples::MIGRATE_UP)]
    Up(MigrateArgs),
    /// Tells which version is there and which one is known, and ends with 3 when something is pending.
    #[command(after_help = examples::MIGRATE_STATUS)]
    Status(MigrateArgs),
}

#[derive(Debug, Args)]
pub(crate) struct MigrateArgs {
    #[command(flatten)]
    site: SiteArgs,
    /// How the answer is written.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

/// This version must not use the schema.
const INCOMPATIBLE: u8 = 2;

/// Migrations are pending.
const PENDING: u8 = 3;

pub(super) async fn run(command: Migrate) -> Result<ExitCode> {
    let (Migrate::Plan(args) | Migrate::Up(args) | Migrate::Status(args)) = &command;
    let (name, site) = args.site.site()?;
    let schema = site.schema().await.map_err(|error| failed(&name, error))?;
    let standing = schema.standing();
    match &command {
        // Told as a status is: there is nothing that this version could do.
        _ if matches!(standing, Standing::Incompatible | Standing::Changed) => {
            show_status(args.output, &schema)?;
        }
        Migrate::Plan(_) => {
            show_steps(args.output, "pending", &schema.pending, &outlook(&schema))?;
        }
        Migrate::Status(_) => show_status(args.output, &schema)?,
        Migrate::Up(_) => {
            let applied = site.migrate().await.map_err(|error| failed(&name, error))?;
            let end = match applied.last() {
                None => "Nothing to do.\n".to_owned(),
                Some(last) => format!("The schema has version {}.\n", last.version),
            };
            show_steps(args.output, "applied", &applied, &end)?;
        }
    }
    Ok(match (&command, standing) {
        (_, Standing::Incompatible | Standing::Changed) => ExitCode::from(INCOMPATIBLE),
        (Migrate::Status(_), Standing::Absent | Standing::Behind) => ExitCode::from(PENDING),
        _ => ExitCode::SUCCESS,
    })
}

/// What a plan comes to.
fn outlook(schema: &Schema) -> String {
    // Nobody is at work on a schema that is not there.
    let breaks = schema.found > 0 && schema.pending.iter().any(|step| step.migration.breaks);
    match schema.standing() {
        Standing::Absent | Standing::Behind if breaks => {
            "Processes of the version before must be stopped first: they cannot use what this makes.\n"
        }
        Standing::Behind => "Processes of the version before may go on meanwhile.\n",
        _ => verdict(schema),
    }
    .to_owned()
}

fn verdict(schema: &Schema) -> &'static str {
    match schema.standing() {
        Standing::Absent => "There is no schema yet; `onceward migrate up` makes it.\n",
        Standing::Behind => "`onceward migrate plan` shows what is pending.\n",
        Standing::Current => "Nothing is pending.\n",
        Standing::Ahead => "The schema is newer, and this version may use it.\n",
        Standing::Incompatible => {
            "The schema is newer, and this version must not use it: use a newer onceward.\n"
        }
        Standing::Changed => {
            "Another build made the schema, with other migrations under the same numbers. This version must \
             not use it: use the onceward that made it, or a new schema.\n"
        }
    }
}

fn show_status(output: Output, schema: &Schema) -> Result<()> {
    match output {
        Output::Json => print_json(&json!({
            "standing": schema.standing().name(),
            "version": schema.found,
            "known": schema.known,
            "compatible_since": schema.since,
            "pending": schema.pending.iter().map(as_json).collect::<Vec<_>>(),
            "changed": schema.changed.as_ref().map(as_json),
        })),
        Output::Table => {
            let row = [
                schema.standing().name().to_owned(),
                schema.found.to_string(),
                schema.known.to_string(),
                schema.pending.len().to_string(),
            ];
            print(&table(&["standing", "version", "known", "pending"], &[row.to_vec()]));
            print(&format!("\n{}", verdict(schema)));
            Ok(())
        }
    }
}

fn show_steps(output: Output, what: &str, steps: &[Step], end: &str) -> Result<()> {
    match output {
        Output::Json => print_json(&json!({
            what: steps.iter().map(as_json).collect::<Vec<_>>(),
            "message": end.trim_end(),
        })),
        Output::Table => {
            if !steps.is_empty() {
                let rows = steps.iter().map(|step| {
                    let migration = step.migration;
                    let older = if migration.breaks { "must stop" } else { "go on" };
                    let cells = [migration.name, older, migration.about].map(str::to_owned);
                    [vec![step.version.to_string()], cells.to_vec()].concat()
                });
                let rows: Vec<Vec<String>> = rows.collect();
                print(&table(&["version", "name", "older processes", "what it does"], &rows));
                print("\n");
            }
            print(end);
            Ok(())
        }
    }
}

fn as_json(step: &Step) -> Value {
    json!({
        "version": step.version,
        "name": step.migration.name,
        "about": step.migration.about,
        "breaks_older_processes": step.migration.breaks,
    })
}

pub(super) const EXAMPLES: &str = "\
Examples:
  onceward migrate status --store postgres://app@db/shop
  onceward migrate plan --config onceward.toml
  onceward migrate up --config onceward.toml -o json

`status` ends with 0 if nothing is pending and with 3 otherwise. All end with 2 if this version must not
use the schema, and with 1 if it could not be reached. `serve` applies what is pending when it starts,
unless that shuts out processes which may be at work.";
