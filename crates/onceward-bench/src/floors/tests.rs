use clap::Parser as _;
use serde_json::json;

use super::*;
use crate::{
    Arguments,
    machine::Interference,
    report::{self, Finding as _, Measurement},
};

fn measured(
    contestant: &str,
    workload: Workload,
    round: u32,
    (per_second, cpu_us): (f64, f64),
) -> Measurement {
    Measurement {
        connections: 64,
        workload,
        round,
        contestant: contestant.to_owned(),
        pool: None,
        requests: 1,
        per_second,
        p50_us: 1.0,
        p99_us: 1.0,
        cpu_us: Some(cpu_us),
        bytes: None,
        interference: Interference { foreign: 0.0, steal: 0.0 },
    }
}

/// A run of the gateway as it is written: first executions at this many times the rate of the proxy, and an
/// unprotected route at so much of its CPU.
fn gateway(rates: &[f64], cpu: f64) -> Value {
    let mut all = Vec::new();
    for (round, rate) in rates.iter().enumerate() {
        let round = u32::try_from(round).expect("a round");
        let measured = |contestant, figures| measured(contestant, Workload::First, round, figures);
        all.push(measured("proxy", (1000.0, 10.0)));
        all.push(measured("unprotected", (900.0, 10.0 * cpu)));
        all.push(measured("memory", (1000.0 * rate, 20.0)));
    }
    let report = report::Report::new("gateway", None, 1.0, all);
    json!({ "gateway": vec![report].json().expect("JSON"), "chart": [] })
}

fn growth(empty: f64, million: f64) -> Value {
    let row = |label: &str, micros: f64| json!({ "label": label, "rounds": [micros, micros] });
    json!({ "growth": [{
        "part": "sizes", "store": "file", "what": "reserve and complete", "unit": "us each", "bases": 2,
        "rows": [row("empty", empty), row("100000 records", empty), row("1000000 records", million)],
    }]})
}

/// Files of these, in this order.
fn files(folder: &tempfile::TempDir, all: &[Value]) -> Vec<PathBuf> {
    let write = |(number, one): (usize, &Value)| {
        let file = folder.path().join(format!("{number}.json"));
        fs::write(&file, one.to_string()).expect("written");
        file
    };
    all.iter().enumerate().map(write).collect()
}

/// What became of those floors that have to do with these files.
fn told(all: &[Value]) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let judged = judge(&Measured::read(&files(&folder, all)).expect("read"));
    assert_eq!(judged.len(), FLOORS.len());
    let known = judged.iter().filter(|one| one.verdict() != Verdict::NotMeasured);
    known.map(|one| one.to_string().split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

fn ends_well(all: &[Value]) -> bool {
    let folder = tempfile::tempdir().expect("a folder");
    run(&Options { files: files(&folder, all) }).is_ok()
}

#[test]
fn a_floor_is_reached_or_missed_by_the_median_of_its_rounds_which_are_told() {
    let good = [gateway(&[0.79, 0.81, 0.9], 1.05)];
    assert_eq!(
        told(&good),
        [
            "reached memory, first executions through the gateway by a plain proxy 0.81 (0.79 - 0.90) \
             at least 0.8",
            "reached CPU of a request on an unprotected route by a plain proxy 1.05 (1.05 - 1.05) \
             at most 1.1",
        ]
    );
    assert!(ends_well(&good), "what is not measured is not missed");
    let bad = [gateway(&[0.79, 0.78, 0.9], 1.2)];
    let missed = told(&bad);
    assert!(missed.iter().all(|line| line.starts_with("MISSED")), "{missed:?}");
    assert!(!ends_well(&bad));
}

#[test]
fn what_grows_is_judged_by_the_times_that_it_takes() {
    let about = "file, pairs of reserve and complete at 10^6 records by an empty one";
    let reached = format!("reached {about} 0.80 (0.80 - 0.80) at least 0.6");
    assert_eq!(told(&[growth(40.0, 50.0)]), [reached]);
    assert!(!ends_well(&[growth(40.0, 80.0)]));
}

#[test]
fn of_several_files_the_last_counts_and_nothing_measured_is_nothing_missed() {
    let (bad, good) = (gateway(&[0.5], 1.0), gateway(&[0.9], 1.0));
    assert!(ends_well(&[bad.clone(), good.clone()]));
    assert!(!ends_well(&[good, bad]));
    assert_eq!(told(&[json!({})]), Vec::<String>::new());
    assert!(ends_well(&[json!({ "gateway": [{ "title": "gateway" }] })]), "another form");
    assert!(run(&Options { files: vec!["/nowhere/x.json".into()] }).is_err());
}

#[test]
fn a_ratio_is_found_whoever_of_the_two_was_named_first() {
    let ratio = |contestant: &str, to: &str, rounds: [f64; 1]| {
        json!({ "gateway": [{ "title": "gateway", "ratios": [{
            "connections": 64, "workload": "first", "what": "requests/s",
            "contestant": contestant, "to": to, "median": rounds[0], "rounds": rounds,
        }]}]})
    };
    assert_eq!(told(&[ratio("memory", "proxy", [0.5])]), told(&[ratio("proxy", "memory", [2.0])]));
    assert_eq!(told(&[ratio("file", "proxy", [0.5])]), Vec::<String>::new());
}

/// A floor with a name that nobody has would never be measured.
#[test]
fn every_floor_is_about_what_its_command_measures() {
    let understood = |words: &[&str]| {
        Arguments::try_parse_from([&["onceward-bench"][..], words].concat()).is_ok()
    };
    for Floor { about, ratio, .. } in FLOORS {
        match *ratio {
            Of::Contestants { command: "postgres-size", ours, other, .. } => {
                let sizes = [ours, other].map(|one| one.strip_suffix(" records").expect("records"));
                assert!(understood(&["postgres-size", "--sizes", &sizes.join(",")]), "{about}");
            }
            Of::Contestants { command, title, connections, ours, other, .. } => {
                let contestants = [ours, other].join(",");
                let connections = connections.to_string();
                let words = [command, "--contestants", &contestants, "--connections", &connections];
                assert!(understood(&words), "{about}");
                let of_a_store = title.strip_prefix("stores: ");
                let store = of_a_store.map(|store| understood(&["stores", "--stores", store]));
                assert!(store.unwrap_or(title == command), "{about}");
            }
            Of::Rows { store, row, base, .. } => {
                let size = |row: &str| match row {
                    "empty" => "0".to_owned(),
                    row => row.strip_suffix(" records").expect("records").to_owned(),
                };
                let sizes = [size(row), size(base)].join(",");
                assert!(understood(&["growth", "--stores", store, "--sizes", &sizes]), "{about}");
            }
        }
    }
    assert!(!understood(&["gateway", "--contestants", "memory,nobody"]), "names are checked");
}
