//! The floors that we have set ourselves, beside what runs have measured. Each is a ratio within a run;
//! what counts is the median of its rounds.

use std::{fmt, fs, path::PathBuf};

use anyhow::{Context as _, ensure};
use clap::Args;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::report::{Workload, median};

mod table; // all of them

use table::FLOORS;

/// What is asked for.
#[derive(Args)]
pub(crate) struct Options {
    /// What `--json` wrote, of one run or of several. Of what is in more than one the last counts.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// A ratio that is not to come below, or above, a number.
struct Floor {
    /// What it is about, for people.
    about: &'static str,
    ratio: Of,
    bound: Bound,
    /// What we would like to reach.
    aim: Option<f64>,
}

/// Where a ratio is found.
enum Of {
    /// In a report of a command: one contestant by another, over the same connections.
    Contestants {
        command: &'static str,
        /// Of the report, where a command makes several.
        title: &'static str,
        connections: usize,
        workload: Workload,
        what: &'static str,
        ours: &'static str,
        other: &'static str,
    },
    /// In a figure of `growth`: one row by another.
    Rows { store: &'static str, what: &'static str, row: &'static str, base: &'static str },
}

#[derive(Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    fn holds(self, ratio: f64) -> bool {
        match self {
            Bound::AtLeast(least) => ratio >= least,
            Bound::AtMost(most) => ratio <= most,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::AtLeast(least) => write!(f, "at least {least}"),
            Bound::AtMost(most) => write!(f, "at most {most}"),
        }
    }
}

/// What became of a floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Reached,
    Missed,
    NotMeasured,
}

/// A floor, and the ratio of each round.
struct Judged {
    floor: &'static Floor,
    rounds: Vec<f64>,
}

impl Judged {
    fn verdict(&self) -> Verdict {
        match median(&self.rounds) {
            // Of no rounds.
            ratio if ratio.is_nan() => Verdict::NotMeasured,
            ratio if self.floor.bound.holds(ratio) => Verdict::Reached,
            _ => Verdict::Missed,
        }
    }
}

impl fmt::Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Floor { about, bound, aim, .. } = self.floor;
        let verdict = match self.verdict() {
            Verdict::Reached => "reached",
            Verdict::Missed => "MISSED",
            Verdict::NotMeasured => "not measured",
        };
        let measured = match self.rounds.as_slice() {
            [] => String::new(),
            rounds => {
                let min = rounds.iter().copied().fold(f64::INFINITY, f64::min);
                let max = rounds.iter().copied().fold(0.0, f64::max);
                format!("{:.2} ({min:.2} - {max:.2})", median(rounds))
            }
        };
        let aim = aim.map(|aim| format!(", aim {aim}")).unwrap_or_default();
        write!(f, "{verdict:<14}{about:<74}{measured:<24}{bound}{aim}")
    }
}

/// Prints what became of each floor.
///
/// # Errors
/// When one is missed, or a file cannot be read.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let judged = judge(&Measured::read(&options.files)?);
    judged.iter().for_each(|one| println!("{one}"));
    let count = |verdict| judged.iter().filter(|one| one.verdict() == verdict).count();
    let (missed, unknown) = (count(Verdict::Missed), count(Verdict::NotMeasured));
    println!(
        "\n{} floors: {} reached, {missed} missed, {unknown} not measured",
        judged.len(),
        count(Verdict::Reached)
    );
    ensure!(missed == 0, "floors are missed");
    Ok(())
}

fn judge(measured: &Measured) -> Vec<Judged> {
    let judged = |floor: &'static Floor| Judged { floor, rounds: measured.rounds(&floor.ratio) };
    FLOORS.iter().map(judged).collect()
}

/// A part of what `--json` writes of a command over HTTP.
#[derive(Deserialize)]
struct Report {
    title: String,
    ratios: Vec<Ratio>,
}

#[derive(Deserialize)]
struct Ratio {
    connections: usize,
    workload: Workload,
    what: String,
    contestant: String,
    to: String,
    rounds: Vec<f64>,
}

/// A part of what it writes of `growth`.
#[derive(Deserialize)]
struct Figure {
    part: String,
    store: String,
    what: String,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    label: String,
    rounds: Vec<f64>,
}

/// All files, the later ones first.
struct Measured(Vec<Map<String, Value>>);

impl Measured {
    fn read(files: &[PathBuf]) -> anyhow::Result<Measured> {
        let mut all = Vec::new();
        for file in files.iter().rev() {
            let name = file.display().to_string();
            let text = fs::read_to_string(file).with_context(|| name.clone())?;
            all.push(serde_json::from_str(&text).context(name)?);
        }
        Ok(Measured(all))
    }

    /// What a command found, the latest first. What was written by another version may have another
    /// form: then it was not measured.
    fn of<T: DeserializeOwned>(&self, command: &str) -> impl Iterator<Item = T> {
        let found = self.0.iter().filter_map(move |file| file.get(command)?.as_array());
        found.flat_map(|all| all.iter().rev()).filter_map(|one| T::deserialize(one).ok())
    }

    /// The ratio of each round; none if it was not measured.
    fn rounds(&self, of: &Of) -> Vec<f64> {
        let found = match *of {
            Of::Contestants { command, title, connections, workload, what, ours, other } => {
                let reports = self.of::<Report>(command).filter(|report| report.title == title);
                let mut ratios = reports.flat_map(|report| report.ratios).filter(|ratio| {
                    (ratio.connections, ratio.workload, ratio.what.as_str())
                        == (connections, workload, what)
                });
                ratios.find_map(|ratio| match (&*ratio.contestant, &*ratio.to) {
                    pair if pair == (ours, other) => Some(ratio.rounds),
                    // Whoever is named later is told by those before.
                    pair if pair == (other, ours) => {
                        Some(ratio.rounds.iter().map(|ratio| 1.0 / ratio).collect())
                    }
                    _ => None,
                })
            }
            Of::Rows { store, what, row, base } => {
                let mut figures = self.of::<Figure>("growth").filter(|figure| {
                    (&*figure.part, &*figure.store, &*figure.what) == ("sizes", store, what)
                });
                figures.find_map(|figure| {
                    let of = |label| figure.rows.iter().find(|row| row.label == label);
                    let pairs = of(row)?.rounds.iter().zip(&of(base)?.rounds);
                    Some(pairs.map(|(one, other)| one / other).collect())
                })
            }
        };
        found.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
