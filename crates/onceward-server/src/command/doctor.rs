//! `doctor`: whether a store can be relied on.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use onceward::store::site::{Class, Finding, Verdict};
use serde_json::{Value, json};

use super::{
    FAILED, Output, print, print_json,
    site::{SiteArgs, failed},
    table::{plain, table},
};

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    site: SiteArgs,
    /// What you rely on: with best-effort, what a crash can take is told and not held against it.
    #[arg(long, value_enum, default_value = "durable")]
    class: ClassArg,
    /// How the answer is written.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ClassArg {
    /// What was acknowledged is there after a crash.
    Durable,
    /// It may be lost, and that is known.
    BestEffort,
}

/// The store does not do what its class promises.
const UNSAFE: u8 = 2;

pub(super) async fn run(args: DoctorArgs) -> Result<ExitCode> {
    let (name, site) = args.site.site()?;
    let class = match args.class {
        ClassArg::Durable => Class::Durable,
        ClassArg::BestEffort => Class::BestEffort,
    };
    let findings = site.examine().await.map_err(|error| failed(&name, error))?;
    let findings: Vec<Finding> =
        findings.into_iter().map(|finding| finding.for_class(class)).collect();
    let worst = findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Ok);
    match args.output {
        Output::Json => print_json(&json!({
            "store": name,
            "verdict": worst.name(),
            "findings": findings.iter().map(as_json).collect::<Vec<_>>(),
        }))?,
        Output::Table => show(&findings, worst),
    }
    Ok(match worst {
        Verdict::Ok | Verdict::Note => ExitCode::SUCCESS,
        Verdict::Failed => ExitCode::from(FAILED),
        Verdict::Unsafe => ExitCode::from(UNSAFE),
    })
}

fn as_json(finding: &Finding) -> Value {
    json!({
        "name": finding.name,
        "found": finding.found,
        "verdict": finding.verdict.name(),
        "advice": finding.advice,
    })
}

fn show(findings: &[Finding], worst: Verdict) {
    let rows = findings.iter().map(|finding| {
        let Finding { name, found, verdict, advice, .. } = finding;
        let cells: [&str; 4] = [verdict.name(), name, found, advice];
        cells.map(plain).to_vec()
    });
    let rows: Vec<Vec<String>> = rows.collect();
    print(&table(&["verdict", "what", "found", "advice"], &rows));
    print(match worst {
        Verdict::Ok | Verdict::Note => "\nThe store can be relied on.\n",
        Verdict::Failed => "\nNot everything could be looked at.\n",
        Verdict::Unsafe => "\nThe store is unsafe for what it is declared to be.\n",
    });
}

pub(super) const EXAMPLES: &str = "\
Examples:
  onceward doctor --store postgres://app@db/shop
  onceward doctor --config onceward.toml -o json
  onceward doctor --store memory: --class best-effort

Ends with 0 if the store can be relied on, with 2 if it is unsafe for its class, and with 1 if it, or
something about it, could not be looked at. Nothing is written to the store.";
