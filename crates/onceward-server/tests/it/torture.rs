//! The binary under torture: killed, stopped and disconnected under load, and everything that
//! clients and upstream saw judged. `ONCEWARD_TORTURE_ROUNDS`, `ONCEWARD_KILLS` and
//! `ONCEWARD_TORTURE_SEED` repeat a run.

use onceward_proof::torture::{Plan, Report, Store, run};
use onceward_testbed::Postgres;

#[test]
fn nothing_acknowledged_is_lost_and_nothing_runs_twice_on_the_file_store() {
    let rounds = number_from("ONCEWARD_TORTURE_ROUNDS").unwrap_or(20);
    let rounds = usize::try_from(rounds).expect("a number of rounds");
    let report = tortured(&plan(rounds));
    report.verdict().expect("no violation");
    assert_eq!(report.counts.lacks(rounds), Vec::<String>::new(), "too little happened");
}

#[test]
fn killed_at_each_edge_two_gateways_on_one_file_lose_nothing_and_repeat_nothing() {
    killed_at_each_edge(Store::File);
}

#[test]
fn killed_at_each_edge_two_gateways_on_one_postgres_lose_nothing_and_repeat_nothing() {
    let database = Postgres::shared().create_database();
    killed_at_each_edge(Store::Postgres(database.url()));
}

fn killed_at_each_edge(store: Store) {
    let per_edge = number_from("ONCEWARD_KILLS").unwrap_or(20);
    let per_edge = usize::try_from(per_edge).expect("a number of kills");
    let plan = Plan::kills(env!("CARGO_BIN_EXE_onceward"), per_edge, seed());
    let report = tortured(&Plan { store, ..plan });
    report.verdict().expect("no violation");
    assert_eq!(report.counts.lacks_kills(per_edge), Vec::<String>::new(), "too little happened");
}

#[test]
fn the_judge_notices_a_store_that_forgets() {
    let report = tortured(&Plan { store: Store::Memory, processes: 1, ..plan(6) });
    let found = |invariant| report.violations.iter().any(|found| found.invariant == invariant);
    assert!(found("I1"), "an effect that was repeated");
    assert!(found("I2"), "a reply that was not replayed");
}

#[test]
fn the_judge_notices_requests_that_are_sent_to_upstream_twice() {
    let report = tortured(&Plan { upstream_resends: true, ..plan(4) });
    assert!(!report.violations.is_empty());
    // And nothing else: it is the effects that are wrong, not what clients are told.
    let other = report.violations.iter().find(|found| found.invariant != "I1");
    assert!(other.is_none(), "{other:?}");
}

fn plan(rounds: usize) -> Plan {
    Plan::new(env!("CARGO_BIN_EXE_onceward"), rounds, seed())
}

fn seed() -> u64 {
    let seed = number_from("ONCEWARD_TORTURE_SEED").unwrap_or_else(rand::random);
    println!("ONCEWARD_TORTURE_SEED={seed}");
    seed
}

fn tortured(plan: &Plan) -> Report {
    let report = run(plan).expect("a run that can be judged");
    println!("{}", report.counts);
    report
}

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}
