//! The command line of what is told and not served.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::ServeArgs;
use crate::command::{AuditArgs, ROUTES_AUDIT_EXAMPLES, ROUTES_SHADOW_EXAMPLES, ShadowArgs};

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Says whether a gateway would start with this configuration, and if not, why.
    #[command(after_help = CHECK_EXAMPLES)]
    Check(FileArgs),
    /// Shows the configuration as it would hold, with all defaults. Secrets are masked.
    #[command(after_help = SHOW_EXAMPLES)]
    Show(FileArgs),
    /// Prints the JSON Schema of the file, for editors.
    #[command(after_help = SCHEMA_EXAMPLES)]
    Schema,
    /// Prints what clients of your API have to know, in Markdown, for your own documentation.
    #[command(after_help = CONTRACT_EXAMPLES)]
    Contract(FileArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum RoutesCommand {
    /// Lists the routes in the order in which they are tried, the defaults last.
    #[command(after_help = LIST_EXAMPLES)]
    List(FileArgs),
    /// Lists endpoints that change something, and ends with 2 when one of them is not protected.
    ///
    /// Reads an OpenAPI document, a configuration, and what a running server has seen, each where it
    /// is given. PUT and DELETE are idempotent by themselves and not listed.
    #[command(after_help = ROUTES_AUDIT_EXAMPLES)]
    Audit(AuditArgs),
    /// Lists what a running server would have done on routes with `key = "shadow"`.
    #[command(after_help = ROUTES_SHADOW_EXAMPLES)]
    Shadow(ShadowArgs),
}

/// A configuration: a file, and the flags of `serve` that would override it.
#[derive(Debug, Args)]
pub(crate) struct FileArgs {
    /// A TOML file with all settings.
    #[arg(value_name = "FILE", conflicts_with = "config")]
    pub(crate) file: Option<PathBuf>,

    /// How the answer is written.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,

    #[command(flatten)]
    pub(crate) serve: ServeArgs,
}

impl FileArgs {
    /// The flags as `serve` would get them.
    pub(crate) fn into_serve(self) -> ServeArgs {
        ServeArgs { config: self.file.or(self.serve.config), ..self.serve }
    }
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// An error code, as in the member `code` of a problem document.
    #[arg(value_name = "CODE")]
    pub(crate) code: String,

    /// How the answer is written.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
}

/// For whom an answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    Table,
    /// For programs.
    Json,
}

const CHECK_EXAMPLES: &str = "\
Examples:
  onceward config check onceward.toml
  onceward config check onceward.toml --upstream http://127.0.0.1:3000

Ends with 0 if the configuration can be used, and with 1 if not.";

const SHOW_EXAMPLES: &str = "\
Examples:
  onceward config show onceward.toml
  onceward config show --upstream http://127.0.0.1:3000 -o json";

const SCHEMA_EXAMPLES: &str = "\
Examples:
  onceward config schema > onceward.schema.json
  An editor that knows TOML schemas takes it from the first line of the file:
    #:schema ./onceward.schema.json";

const CONTRACT_EXAMPLES: &str = "\
Examples:
  onceward config contract onceward.toml > docs/idempotency.md
  onceward config contract onceward.toml -o json";

pub(super) const CONFIG_EXAMPLES: &str = "\
Examples:
  onceward config check onceward.toml
  onceward config show onceward.toml
  onceward config contract onceward.toml > docs/idempotency.md";

pub(super) const ROUTES_EXAMPLES: &str = "\
Examples:
  onceward routes list onceward.toml
  onceward routes audit --openapi openapi.yaml --config onceward.toml
  onceward routes shadow";

const LIST_EXAMPLES: &str = "\
Examples:
  onceward routes list onceward.toml
  onceward routes list onceward.toml -o json";

pub(super) const EXPLAIN_EXAMPLES: &str = "\
Examples:
  onceward explain idempotency_key_in_progress
  onceward explain key_missing -o json";
