//! What was found, for people and for programs.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufWriter, Stdout, Write},
    path::Path,
};

use anyhow::{Context as _, Result};
use serde_json::json;

use super::super::{
    Output, print,
    table::{plain, table},
};
use crate::ledger::{Amount, Finding, Kind, Summary};

/// A table shows so many of each kind.
const SHOWN: usize = 20;

const UNWRITTEN: &str = "the report cannot be written";

/// Takes findings as they come, and keeps few of them.
pub(super) struct Report {
    stdout: Option<BufWriter<Stdout>>,
    file: Option<BufWriter<File>>,
    shown: BTreeMap<Kind, Vec<Vec<String>>>,
}

impl Report {
    pub(super) fn new(output: Output, file: Option<&Path>) -> Result<Report> {
        let created = |path: &Path| {
            File::create(path).with_context(|| format!("{} cannot be written", path.display()))
        };
        Ok(Report {
            stdout: (output == Output::Json).then(|| BufWriter::new(std::io::stdout())),
            file: file.map(created).transpose()?.map(BufWriter::new),
            shown: BTreeMap::new(),
        })
    }

    pub(super) fn add(&mut self, finding: &Finding) -> Result<()> {
        self.line(finding)?;
        if self.stdout.is_none() {
            let shown = self.shown.entry(finding.kind).or_default();
            if shown.len() < SHOWN {
                shown.push(row(finding));
            }
        }
        Ok(())
    }

    fn line(&mut self, value: &impl serde::Serialize) -> Result<()> {
        if let Some(stdout) = &mut self.stdout {
            write_line(stdout, value)?;
        }
        if let Some(file) = &mut self.file {
            write_line(file, value)?;
        }
        Ok(())
    }

    pub(super) fn end(mut self, summary: &Summary) -> Result<()> {
        self.line(&json!({ "summary": summary }))?;
        if let Some(mut file) = self.file.take() {
            file.flush().context(UNWRITTEN)?;
        }
        if let Some(mut stdout) = self.stdout.take() {
            return stdout.flush().context(UNWRITTEN);
        }
        self.tables(summary);
        print(&counts(summary));
        Ok(())
    }

    fn tables(&self, summary: &Summary) {
        let headings = ["line", "provider id", "there", "here", "state", "scope", "key"];
        for (kind, rows) in &self.shown {
            let count = summary.findings.get(kind).copied().unwrap_or_default();
            print(&format!("{} ({count}): {}\n", kind.name(), kind.advice()));
            print(&table(&headings, rows));
            if count > rows.len() as u64 {
                print("More of them: -o json or --report lists all.\n");
            }
            print("\n");
        }
    }
}

fn write_line(to: &mut impl Write, value: &impl serde::Serialize) -> Result<()> {
    serde_json::to_writer(&mut *to, value).context(UNWRITTEN)?;
    to.write_all(b"\n").context(UNWRITTEN)
}

fn row(finding: &Finding) -> Vec<String> {
    let money = |amount: Option<Amount>, currency: &Option<String>| {
        let amount = amount.map(|amount| amount.to_string());
        let parts: Vec<String> = amount.into_iter().chain(currency.clone()).collect();
        plain(&parts.join(" "))
    };
    let joined = |texts: Vec<String>| {
        let mut texts: Vec<String> = texts.iter().map(|text| plain(text)).collect();
        texts.dedup();
        texts.join(", ")
    };
    let ids = finding.theirs.iter().map(|it| it.id.clone());
    let ids = ids.chain(finding.ours.iter().filter_map(|it| it.provider_id.clone()));
    let mut ids: Vec<String> = ids.collect();
    ids.sort_unstable();
    let ours = &finding.ours;
    let keys = ours.iter().map(|it| it.key.clone());
    let keys = keys
        .chain(finding.theirs.iter().filter_map(|it| it.key.clone()).filter(|_| ours.is_empty()));
    vec![
        joined(finding.theirs.iter().map(|it| it.line.to_string()).collect()),
        joined(ids),
        joined(finding.theirs.iter().map(|it| money(it.amount, &it.currency)).collect()),
        joined(ours.iter().map(|it| money(it.amount, &it.currency)).collect()),
        joined(ours.iter().map(|it| it.state.name().to_owned()).collect()),
        joined(ours.iter().map(|it| it.scope.clone()).collect()),
        joined(keys.collect()),
    ]
}

fn counts(summary: &Summary) -> String {
    let mut rows = vec![
        ("charges of the provider", summary.charges),
        ("left out by --where", summary.left_out),
        ("entries of ours", summary.entries),
        ("on both sides", summary.matched),
        ("on both sides, by key", summary.matched_by_key),
        ("amounts not compared", summary.amounts_not_compared),
        ("outside the period", summary.outside),
        ("ours, no charge", summary.no_charge),
        ("ours, forgotten", summary.forgotten),
    ];
    let found = summary.findings.iter().filter(|(_, count)| **count > 0);
    rows.extend(found.map(|(kind, count)| (kind.name(), *count)));
    let rows: Vec<Vec<String>> =
        rows.into_iter().map(|(name, count)| vec![name.to_owned(), count.to_string()]).collect();
    let judged = match summary.differences() {
        0 => "Both sides agree.\n".to_owned(),
        1 => "There is 1 difference.\n".to_owned(),
        many => format!("There are {many} differences.\n"),
    };
    format!("{}\n{judged}", table(&["what", "count"], &rows))
}
