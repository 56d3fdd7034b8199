//! How many instructions the parts take that every request goes through. They hardly vary, also on a
//! busy machine, so that they are kept in the repository and compared.

use std::{
    collections::BTreeMap, env, hint::black_box, path::Path, process::Command, time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use clap::{Args, ValueEnum};
use http::{HeaderMap, Request};
use onceward::{
    KeyRules, Profile, Recipe, Rejection,
    clock::Timestamp,
    machine::{self, Change, Refusal},
    record::{Record, State},
    store::Reservation,
};
use serde::{Deserialize, Serialize};

use crate::{chart::Bar, file, postgres::BODY, report::Finding};

/// What is asked for.
#[derive(Args)]
pub(crate) struct Options {
    /// Fail if an operation takes more, or less, than was kept, by more than the tolerance.
    #[arg(long)]
    compare: bool,
    /// Keep these counts.
    #[arg(long, conflicts_with = "compare")]
    update: bool,
    /// By how much a count may differ, in percent.
    #[arg(long, default_value_t = 3.0)]
    tolerance: f64,
}

/// Some times over, under valgrind. The benchmark starts it by itself.
#[derive(Args)]
pub(crate) struct Repeat {
    #[arg(long)]
    operation: Operation,
    #[arg(long)]
    times: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Operation {
    /// A key in quotes.
    KeyQuoted,
    /// A bare key.
    KeyBare,
    /// A JSON body of 205 bytes, canonical.
    FingerprintJson,
    /// The same as bytes.
    FingerprintRaw,
    /// A key that nobody has used: taken, and executed.
    DecideExecute,
    /// A completed key: found, and replayed.
    DecideReplay,
    /// The problem of a key that is in progress.
    Problem,
}

const COUNTER: &str = "valgrind";

/// Few, and more: what is done once is in both, and their difference is what is repeated.
const TIMES: [u32; 2] = [200, 1200];

/// Where the counts are kept.
const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.json");

/// Instructions of each operation, of one build.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Counts {
    compiler: String,
    instructions: BTreeMap<String, u64>,
}

/// Counts, and what is kept of earlier ones.
#[derive(Serialize)]
pub(crate) struct Counted {
    now: Counts,
    kept: Option<Counts>,
    tolerance: f64,
}

/// Whether the program is there that counts.
pub(crate) fn can_be_counted() -> bool {
    Command::new(COUNTER).arg("--version").output().is_ok_and(|output| output.status.success())
}

pub(crate) fn run(options: &Options) -> anyhow::Result<Counted> {
    let mut instructions = BTreeMap::new();
    for operation in Operation::value_variants() {
        let [few, more] = TIMES.map(|times| count(*operation, times));
        let each = (more? - few?) / u64::from(TIMES[1] - TIMES[0]);
        instructions.insert(operation.name(), each);
    }
    let now = Counts { compiler: compiler()?, instructions };
    let kept = match Path::new(KEPT).exists() {
        true => Some(serde_json::from_str(&std::fs::read_to_string(KEPT)?)?),
        false => None,
    };
    if options.update {
        std::fs::write(KEPT, serde_json::to_string_pretty(&now)? + "\n")?;
    }
    let counted = Counted { now, kept, tolerance: options.tolerance };
    if options.compare {
        let off = counted.off()?;
        if !off.is_empty() {
            counted.print();
            bail!("beyond the tolerance of {} %: {}", options.tolerance, off.join(", "));
        }
    }
    Ok(counted)
}

/// One run under valgrind. Its processor has no instructions for SHA-256, which is then software.
fn count(operation: Operation, times: u32) -> anyhow::Result<u64> {
    let output = Command::new(COUNTER)
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(env::current_exe()?)
        .args(["repeat", "--operation", &operation.name(), "--times", &times.to_string()])
        .output()
        .context("valgrind is needed; it is in the package of that name")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {said}", operation.name());
    collected(&said).with_context(|| format!("valgrind does not say what it counted: {said}"))
}

/// `==42== Collected : 1234`
fn collected(said: &str) -> Option<u64> {
    said.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok())
}

fn compiler() -> anyhow::Result<String> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).arg("--version").output()?.stdout;
    Ok(String::from_utf8(version)?.trim().to_owned())
}

impl Operation {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

pub(crate) fn repeat(repeat: &Repeat) -> anyhow::Result<()> {
    let work = repeat.operation.work()?;
    (0..repeat.times).for_each(|_| work());
    Ok(())
}

impl Operation {
    /// It, ready to be done again and again.
    fn work(self) -> anyhow::Result<Box<dyn Fn()>> {
        let now = Timestamp::from_micros(1_794_700_800_000_000);
        Ok(match self {
            Operation::KeyQuoted => reads_key("\"0c6b2f9e-7f52-4e6e-93b5-5b8a3c1f0d11\"")?,
            Operation::KeyBare => reads_key("0c6b2f9e-7f52-4e6e-93b5-5b8a3c1f0d11")?,
            Operation::FingerprintJson => fingerprints(Recipe::canonical())?,
            Operation::FingerprintRaw => fingerprints(Recipe::raw())?,
            Operation::DecideExecute => {
                let ask = file::ask(KEY, file::DAY, file::DAY)?;
                Box::new(move || {
                    let step = machine::reserve(black_box(None), &ask, now);
                    let _ = black_box((machine::decide(step.answer, &ask, now), step.change));
                })
            }
            Operation::DecideReplay => {
                let record = completed(now)?;
                let ask = file::ask(KEY, file::DAY, file::DAY)?;
                Box::new(move || {
                    let step = machine::reserve(black_box(Some(&record)), &ask, now);
                    let _ = black_box((machine::decide(step.answer, &ask, now), step.change));
                })
            }
            Operation::Problem => {
                let retry_after = Duration::from_secs(2);
                let refusal = Refusal::InProgress { state: State::InProgress, retry_after };
                Box::new(move || {
                    let rejection = Rejection::refused(black_box(&refusal), Profile::Ietf);
                    black_box(rejection.into_response(None, Profile::Ietf));
                })
            }
        })
    }
}

const KEY: &str = "0c6b2f9e-7f52-4e6e-93b5-5b8a3c1f0d11";

fn reads_key(value: &str) -> anyhow::Result<Box<dyn Fn()>> {
    let rules = KeyRules::default();
    let headers = HeaderMap::from_iter([("idempotency-key".parse()?, value.parse()?)]);
    ensure!(rules.read(&headers).is_ok_and(|key| key.is_some()), "a good key is refused");
    Ok(Box::new(move || {
        let _ = black_box(rules.read(black_box(&headers)));
    }))
}

fn fingerprints(recipe: Recipe) -> anyhow::Result<Box<dyn Fn()>> {
    let request = Request::post("/v1/payments").header("content-type", "application/json");
    let (parts, ()) = request.body(())?.into_parts();
    Ok(Box::new(move || {
        black_box(recipe.fingerprint(black_box(&parts), black_box(BODY.as_bytes())));
    }))
}

fn completed(now: Timestamp) -> anyhow::Result<Record> {
    let step = machine::reserve(None, &file::ask(KEY, file::DAY, file::DAY)?, now);
    let (Change::Put(record), Reservation::Granted { lease, .. }) = (step.change, step.answer)
    else {
        bail!("a new key is not granted");
    };
    match machine::write(Some(&record), &lease, file::completes(), now).change {
        Change::Put(record) => Ok(*record),
        _ => bail!("a granted key is not completed"),
    }
}

impl Counted {
    /// Which operations differ by more than may be.
    fn off(&self) -> anyhow::Result<Vec<String>> {
        let kept = self.kept.as_ref().context("there are no counts to compare with; --update")?;
        let is_off = |(name, now): &(&String, &u64)| {
            let before = kept.instructions.get(*name);
            before.is_none_or(|before| percent(**now, *before).abs() > self.tolerance)
        };
        Ok(self.now.instructions.iter().filter(is_off).map(|(name, _)| name.clone()).collect())
    }
}

fn percent(now: u64, before: u64) -> f64 {
    (now as f64 / before as f64 - 1.0) * 100.0
}

impl Finding for Counted {
    fn print(&self) {
        println!("\n== instructions, {}", self.now.compiler);
        println!("{:<20}{:>14}{:>14}{:>10}", "", "instructions", "kept", "");
        for (name, now) in &self.now.instructions {
            match self.kept.as_ref().and_then(|kept| kept.instructions.get(name)) {
                Some(kept) => {
                    println!("{name:<20}{now:>14}{kept:>14}{:>+9.1}%", percent(*now, *kept));
                }
                None => println!("{name:<20}{now:>14}"),
            }
        }
    }

    fn json(&self) -> serde_json::Result<serde_json::Value> {
        serde_json::to_value(self)
    }

    fn bars(&self) -> Vec<Bar> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_can_be_repeated() {
        for operation in Operation::value_variants() {
            repeat(&Repeat { operation: *operation, times: 2 }).expect("repeated");
        }
    }

    #[test]
    fn what_valgrind_counted_is_read() {
        let said = "==7== Events    : Ir\n==7== Collected : 123456\n==7==\n";
        assert_eq!(collected(said), Some(123_456));
        assert_eq!(collected("==7== nothing"), None);
    }

    #[test]
    fn only_what_differs_by_more_than_may_be_is_off() {
        let counts = |key: u64| Counts {
            compiler: String::new(),
            instructions: BTreeMap::from([("key".to_owned(), key), ("same".to_owned(), 5)]),
        };
        let compared = |now, kept| Counted { now, kept, tolerance: 3.0 }.off();
        assert_eq!(compared(counts(102), Some(counts(100))).expect("kept"), Vec::<String>::new());
        assert_eq!(compared(counts(104), Some(counts(100))).expect("kept"), ["key"]);
        assert_eq!(compared(counts(96), Some(counts(100))).expect("kept"), ["key"]);
        assert!(compared(counts(100), None).is_err());
    }
}
