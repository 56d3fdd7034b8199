//! `ledger`: our operations beside the provider's export.

use std::{
    fs::File,
    io::{BufReader, BufWriter, Read, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, Subcommand};
use onceward::{LookupKey, store::list::Span};

use super::Output;
use crate::ledger::{Check, Columns, Export, Format, OwnFile, Summary};

mod own; // where our side is, and what of it is read
mod progress; // how far it has come
mod report; // what was found

use own::OwnArgs;
use progress::Progress;
use report::Report;

/// The two sides differ.
const DIFFERENT: u8 = 3;

#[derive(Debug, Subcommand)]
pub(crate) enum Ledger {
    /// Compares our operations with the provider's export, and ends with 3 when they differ.
    ///
    /// Our side is what the store knows: ids and amounts in stored replies, ids that were noted of
    /// operations, ids of delivered messages, and what is unknown or was not executed. The other side is a file of the provider's,
    /// CSV with a line of names or lines of JSON. A row that cannot be read ends the check with 1, and
    /// its line is told.
    #[command(after_help = CHECK_EXAMPLES)]
    Check(Box<CheckArgs>),
    /// Prints our side as lines of JSON, for a check elsewhere or later.
    #[command(after_help = EXPORT_EXAMPLES)]
    Export(Box<ExportArgs>),
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    own: OwnArgs,
    #[command(flatten)]
    period: PeriodArgs,
    #[command(flatten)]
    progress: ProgressArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    provider: ProviderArgs,
    /// Our side from a file that `ledger export` wrote, instead of a store.
    #[arg(
        long,
        value_name = "FILE",
        help_heading = "Our side",
        conflicts_with_all = ["config", "store", "filter", "id", "provider", "amount", "currency",
            "effect", "sink", "message_amount", "message_currency", "our_minor_units"]
    )]
    ours: Option<PathBuf>,
    #[command(flatten)]
    own: OwnArgs,
    #[command(flatten)]
    period: PeriodArgs,
    /// How the result is shown: a table with the first findings of each kind, or all of them as lines
    /// of JSON with the summary as the last line.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
    /// Writes all findings to this file too, as -o json does.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Where both sides are kept while they are compared: about as much room as both have.
    #[arg(long, value_name = "FOLDER")]
    temp_dir: Option<PathBuf>,
    #[command(flatten)]
    progress: ProgressArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "The provider's side")]
struct ProviderArgs {
    /// The provider's export; - for standard input.
    #[arg(long, value_name = "FILE")]
    export: PathBuf,
    /// How it is written; by default as its name ends: .csv, .jsonl or .ndjson.
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// The column with the provider's id. In JSON a member, or a pointer such as /charge/id.
    #[arg(long, value_name = "COLUMN", default_value = "id")]
    id_column: String,
    /// The column with the amount. Without it amounts are not compared.
    #[arg(long, value_name = "COLUMN")]
    amount_column: Option<String>,
    /// The column with the currency.
    #[arg(long, value_name = "COLUMN", requires = "amount_column")]
    currency_column: Option<String>,
    /// The column with the idempotency key that the provider saw. With it, double charges are found,
    /// and charges whose outcome is unknown here.
    #[arg(long, value_name = "COLUMN")]
    key_column: Option<String>,
    /// The column with the time: RFC 3339, or without a zone (UTC), or seconds since 1970.
    #[arg(long, value_name = "COLUMN")]
    time_column: Option<String>,
    /// Only rows with this value in this column count, such as type=charge. Several hold at once.
    #[arg(long = "where", value_name = "COLUMN=VALUE", value_parser = super::keys::condition)]
    only: Vec<(String, String)>,
    /// Amounts are whole numbers of the smallest unit, which has this many decimal places.
    #[arg(long, value_name = "PLACES", default_value_t = 0, hide_default_value = true,
        value_parser = clap::value_parser!(u8).range(..=18))]
    export_minor_units: u8,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "The period")]
struct PeriodArgs {
    /// What one side alone has is told from this time on.
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// What one side alone has is told before this time.
    #[arg(long, value_name = "TIME")]
    before: Option<String>,
    /// Our records are read from so long before the period until so long after it, so that what
    /// stands at its borders finds its other half.
    #[arg(long, value_name = "DURATION", default_value = "24h")]
    slack: String,
}

impl PeriodArgs {
    fn span(&self) -> Result<Span> {
        let moment = |name: &str, text: &Option<String>| {
            let moment = text.as_deref().map(crate::ledger::moment).transpose();
            moment.with_context(|| name.to_owned())
        };
        let span =
            Span { from: moment("--from", &self.from)?, before: moment("--before", &self.before)? };
        if let (Some(from), Some(before)) = (span.from, span.before) {
            ensure!(from < before, "--from is not before --before");
        }
        Ok(span)
    }
}

#[derive(Debug, Args)]
struct ProgressArgs {
    /// Tells on stderr how far it has come, even if that is not a terminal.
    #[arg(long)]
    progress: bool,
}

pub(super) async fn run(command: Ledger) -> Result<ExitCode> {
    match command {
        Ledger::Check(args) => check(*args).await,
        Ledger::Export(args) => export(*args).await,
    }
}

async fn export(args: ExportArgs) -> Result<ExitCode> {
    let mut progress = Progress::new(args.progress.progress);
    let side = args.own.side(args.period.span()?, &args.period.slack)?;
    let mut stdout = BufWriter::new(std::io::stdout().lock());
    let mut count = 0_u64;
    let read = side.read(|entry, _| {
        count += 1;
        progress.row(|| format!("{count} entries of ours"));
        serde_json::to_writer(&mut stdout, &entry)?;
        stdout.write_all(b"\n").context("the export cannot be written")
    });
    read.await?;
    progress.end();
    stdout.flush().context("the export cannot be written")?;
    Ok(ExitCode::SUCCESS)
}

async fn check(args: CheckArgs) -> Result<ExitCode> {
    let period = args.period.span()?;
    let side = match &args.ours {
        Some(_) => None,
        None => Some(args.own.side(period, &args.period.slack)?),
    };
    if let Some(side) = &side {
        let amounts = args.provider.amount_column.is_none() || side.has_amounts();
        ensure!(
            amounts,
            "--amount-column is given, and not where our replies tell the amount: give --amount"
        );
    }
    let mut report = Report::new(args.output, args.report.as_deref())?;
    let mut progress = Progress::new(args.progress.progress);
    let temporary = args.temp_dir.clone().unwrap_or_else(std::env::temp_dir);
    let keys = args.provider.key_column.is_some();
    let lookup_key = side.as_ref().and_then(|side| side.lookup_key());
    let mut check = Check::new(&temporary, period, keys, |finding| report.add(finding))?;
    read_export(&args.provider, lookup_key, &mut check, &mut progress)?;
    let mut count = 0_u64;
    let mut counted = |progress: &mut Progress| {
        count += 1;
        progress.row(|| format!("{count} entries of ours"));
    };
    match (&side, &args.ours) {
        (Some(side), _) => {
            let add = side.read(|entry, at| {
                counted(&mut progress);
                check.ours(entry, Some(at))
            });
            add.await?;
        }
        (None, Some(path)) => {
            let file = BufReader::with_capacity(1 << 18, open(path)?);
            let read = OwnFile(file).read(|entry, at| {
                counted(&mut progress);
                check.ours(entry, at)
            });
            read.with_context(|| path.display().to_string())?;
        }
        (None, None) => {}
    }
    progress.done(&format!("{count} entries of ours"));
    let summary = check.finish(|part| progress.step(|| format!("comparing, part {part}")))?;
    progress.end();
    report.end(&summary)?;
    Ok(code(&summary))
}

fn code(summary: &Summary) -> ExitCode {
    if summary.agree { ExitCode::SUCCESS } else { ExitCode::from(DIFFERENT) }
}

fn read_export(
    args: &ProviderArgs,
    lookup_key: Option<LookupKey>,
    check: &mut Check<'_>,
    progress: &mut Progress,
) -> Result<()> {
    let path = &args.export;
    let export = Export {
        format: format(args)?,
        lookup_key,
        columns: Columns {
            id: args.id_column.clone(),
            amount: args.amount_column.clone(),
            currency: args.currency_column.clone(),
            key: args.key_column.clone(),
            time: args.time_column.clone(),
            only: args.only.clone(),
            minor_units: args.export_minor_units,
        },
    };
    let size = std::fs::metadata(path).map(|metadata| metadata.len()).unwrap_or_default();
    let input: Box<dyn Read> = match path.to_str() {
        Some("-") => Box::new(std::io::stdin().lock()),
        _ => Box::new(open(path)?),
    };
    let mut rows = 0_u64;
    let read = export.read(input, |row, bytes| {
        rows += 1;
        progress.row(|| match (bytes * 100).checked_div(size) {
            Some(percent) => format!("{rows} rows of the export, {percent} %"),
            None => format!("{rows} rows of the export"),
        });
        match row {
            Some((charge, at)) => check.theirs(charge, at),
            None => {
                check.leave_out();
                Ok(())
            }
        }
    });
    read.with_context(|| path.display().to_string())?;
    progress.done(&format!("{rows} rows of the export"));
    Ok(())
}

fn format(args: &ProviderArgs) -> Result<Format> {
    let ending = args.export.extension().and_then(|ending| ending.to_str());
    match (args.format, ending.map(str::to_ascii_lowercase).as_deref()) {
        (Some(format), _) => Ok(format),
        (None, Some("csv")) => Ok(Format::Csv),
        (None, Some("jsonl" | "ndjson")) => Ok(Format::Jsonl),
        _ => bail!("how is {} written? give --format csv or jsonl", args.export.display()),
    }
}

fn open(path: &Path) -> Result<File> {
    File::open(path).with_context(|| format!("{} cannot be read", path.display()))
}

pub(super) const EXAMPLES: &str = "\
Examples:
  onceward ledger check --config onceward.toml --id /id --amount /amount \\
      --export charges.csv --amount-column amount --key-column idempotency_key \\
      --from 2026-11-15T00:00:00Z --before 2026-11-16T00:00:00Z
  onceward ledger export --config onceward.toml --id /id > ours.jsonl
  onceward ledger check --ours ours.jsonl --export charges.jsonl -o json";

const CHECK_EXAMPLES: &str = "\
Examples:
  One day of a provider that has our keys, and amounts in cents on both sides:
    onceward ledger check --config onceward.toml --id /id --amount /amount --currency /currency \\
        --export charges.csv --amount-column amount --currency-column currency \\
        --key-column idempotency_key --time-column created \\
        --from 2026-11-15T00:00:00Z --before 2026-11-16T00:00:00Z

  An export with refunds and fees in it, and amounts such as 10.50 beside our 1050:
    onceward ledger check --config onceward.toml --id /charge/id --amount /charge/amount \\
        --our-minor-units 2 --export balance.csv --id-column source --amount-column gross \\
        --where type=charge

  Messages of the outbox to one sink, and all findings in a file:
    onceward ledger check --config onceward.toml --sink bank --export bank.jsonl --report diff.jsonl

  Without the store:
    onceward ledger check --ours ours.jsonl --export charges.csv

Ends with 0 when both sides agree, 3 when they differ, 1 when they cannot be compared.";

const EXPORT_EXAMPLES: &str = "\
Examples:
  onceward ledger export --config onceward.toml --id /id --amount /amount > ours.jsonl
  onceward ledger export --store file:./onceward.db --id /id --filter route='POST /v1/charges'";
