//! The binary under torture: killed, stopped and disconnected under load, and everything that
//! clients and upstream saw judged. `ONCEWARD_TORTURE_ROUNDS`, `ONCEWARD_KILLS` and
//! `ONCEWARD_TORTURE_SEED` repeat a run.

use std::{sync::Mutex, time::Duration};

use onceward_proof::{
    history::What,
    torture::{Crash, Plan, Report, STORE_KILLED, Store, run},
};
use onceward_testbed::{DynamoDb, MariaDb, Postgres, Redis, RedisCluster};

#[test]
fn nothing_acknowledged_is_lost_and_nothing_runs_twice_on_the_file_store() {
    let rounds = number_from("ONCEWARD_TORTURE_ROUNDS").unwrap_or(20);
    let rounds = usize::try_from(rounds).expect("a number of rounds");
    let report = tortured(&plan(rounds));
    report.verdict().expect("no violation");
    assert_eq!(report.counts.lacks(rounds), Vec::<String>::new(), "too little happened");
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_runs_twice_on_postgres() {
    let rounds = number_from("ONCEWARD_TORTURE_ROUNDS").unwrap_or(20);
    let rounds = usize::try_from(rounds).expect("a number of rounds");
    let database = Postgres::shared().create_database();
    let report = tortured(&Plan { store: Store::At(database.url()), ..plan(rounds) });
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
    killed_at_each_edge(Store::At(database.url()));
}

#[test]
fn killed_at_each_edge_two_gateways_on_one_mariadb_lose_nothing_and_repeat_nothing() {
    let server = MariaDb::shared();
    killed_sometimes_at_each_edge(server.url(&server.create_database()));
}

#[test]
fn killed_at_each_edge_two_gateways_on_one_redis_lose_nothing_and_repeat_nothing() {
    let redis = Redis::start();
    killed_sometimes_at_each_edge(redis.url());
}

#[test]
fn killed_at_each_edge_two_gateways_on_one_cluster_lose_nothing_and_repeat_nothing() {
    let cluster = RedisCluster::start();
    killed_sometimes_at_each_edge(cluster.url());
}

#[test]
fn killed_at_each_edge_two_gateways_on_one_dynamodb_lose_nothing_and_repeat_nothing() {
    killed_sometimes_at_each_edge(DynamoDb::shared().url("torture-edges"));
}

/// On the file and on PostgreSQL the gateway has been killed often; what is another's is the store.
fn killed_sometimes_at_each_edge(url: String) {
    killed_so_often_at_each_edge(Store::At(url), kills(3));
}

fn killed_at_each_edge(store: Store) {
    killed_so_often_at_each_edge(store, kills(20));
}

fn kills(otherwise: usize) -> usize {
    let kills = number_from("ONCEWARD_KILLS");
    kills.map_or(otherwise, |kills| usize::try_from(kills).expect("a number of kills"))
}

fn killed_so_often_at_each_edge(store: Store, per_edge: usize) {
    let plan = Plan::kills(env!("CARGO_BIN_EXE_onceward"), per_edge, seed());
    let report = tortured(&Plan { store, ..plan });
    report.verdict().expect("no violation");
    assert_eq!(report.counts.lacks_kills(per_edge), Vec::<String>::new(), "too little happened");
}

#[test]
fn a_postgres_that_is_killed_under_load_loses_nothing_and_nothing_runs_twice() {
    let server = Postgres::start();
    let url = server.url("postgres");
    let server = Mutex::new(server);
    let crash = move || {
        let mut server = server.lock().expect("lock");
        server.kill_9();
        server.start_again();
    };
    killed_under_load(url, Crash::by(crash), false).verdict().expect("no violation");
}

#[test]
fn a_mariadb_that_is_killed_under_load_loses_nothing_and_nothing_runs_twice() {
    let server = MariaDb::start();
    let url = server.url(&server.create_database());
    let server = Mutex::new(server);
    let crash = move || {
        let mut server = server.lock().expect("lock");
        server.kill_9();
        server.start_again();
    };
    killed_under_load(url, Crash::by(crash), false).verdict().expect("no violation");
}

#[test]
fn a_redis_that_is_killed_under_load_loses_nothing_and_nothing_runs_twice() {
    let redis = Redis::start();
    let url = redis.url();
    let redis = Mutex::new(redis);
    let crash = move || {
        let mut redis = redis.lock().expect("lock");
        redis.kill_9();
        redis.start_again();
    };
    killed_under_load(url, Crash::by(crash), false).verdict().expect("no violation");
}

#[test]
fn a_dynamodb_that_is_killed_under_load_loses_nothing_and_nothing_runs_twice() {
    let dynamodb = DynamoDb::start();
    let url = dynamodb.url("torture-kills");
    let dynamodb = Mutex::new(dynamodb);
    let crash = move || {
        let mut dynamodb = dynamodb.lock().expect("lock");
        dynamodb.kill_9();
        dynamodb.start_again();
    };
    killed_under_load(url, Crash::by(crash), false).verdict().expect("no violation");
}

/// Each blow to the cache is another one: killed, so that it comes back empty; flushed while it answers;
/// silent for longer than anybody waits for it. What it held is asked of the durable store.
fn a_cache_that_is_struck_under_load_changes_nothing(store: Store) {
    let redis = Redis::start_forgetful();
    let cache = redis.url();
    let redis = Mutex::new((0, redis));
    let blow = move || {
        let mut redis = redis.lock().expect("lock");
        let (number, redis) = &mut *redis;
        *number += 1;
        match *number % 3 {
            1 => {
                redis.kill_9();
                redis.start_again();
            }
            2 => drop(redis.cli(&["FLUSHALL"])),
            _ => {
                redis.hold();
                std::thread::sleep(Duration::from_millis(200));
                redis.go();
            }
        }
    };
    let times = (crashes() * 3).min(30);
    let plan = Plan::crashes(env!("CARGO_BIN_EXE_onceward"), times, Crash::by(blow), seed());
    let plan = Plan { store, cache: Some(cache), ..plan };
    judged(&plan).verdict().expect("no violation");
}

#[test]
fn a_cache_that_is_killed_and_flushed_under_load_changes_nothing_on_postgres() {
    let database = Postgres::shared().create_database();
    a_cache_that_is_struck_under_load_changes_nothing(Store::At(database.url()));
}

#[test]
fn a_cache_that_is_killed_and_flushed_under_load_changes_nothing_on_a_file() {
    a_cache_that_is_struck_under_load_changes_nothing(Store::File);
}

/// A Cluster replicates asynchronously, so that what was acknowledged may be gone. Then the canary says
/// so, and keys are refused; nothing runs twice.
#[test]
fn a_master_of_a_cluster_that_is_killed_under_load_makes_nothing_run_twice() {
    let cluster = RedisCluster::start();
    let url = cluster.url();
    let cluster = Mutex::new(cluster);
    let crash = move || {
        let mut cluster = cluster.lock().expect("lock");
        let master = cluster.masters()[0];
        cluster.kill_9(master);
        cluster.wait_until_whole();
        cluster.start_again(master);
        cluster.wait_until_whole();
    };
    fails_closed(&killed_under_load(url, Crash::by(crash), true));
}

#[test]
fn a_redis_that_forgets_everything_when_it_is_killed_makes_nothing_run_twice() {
    let redis = Redis::start_forgetful();
    let url = redis.url();
    let redis = Mutex::new(redis);
    let crash = move || {
        let mut redis = redis.lock().expect("lock");
        redis.kill_9();
        redis.start_again();
    };
    let report = killed_under_load(url, Crash::by(crash), true);
    fails_closed(&report);
    assert!(says_regressed(&report), "the loss is reported");
}

fn says_regressed(report: &Report) -> bool {
    report.history.iter().any(|event| match &event.what {
        What::Answered { answer, .. } => {
            answer.code().as_deref() == Some("idempotency_store_regressed")
        }
        _ => false,
    })
}

/// No effect is seen twice; and what is amiss beside that was said to be lost.
fn fails_closed(report: &Report) {
    let twice = report.violations.iter().find(|found| found.invariant == "I1");
    assert!(twice.is_none(), "{twice:?}");
    let other = report.violations.first();
    assert!(other.is_none() || says_regressed(report), "{other:?}");
}

fn killed_under_load(url: String, crash: Crash, may_lose: bool) -> Report {
    let plan = Plan::crashes(env!("CARGO_BIN_EXE_onceward"), crashes(), crash, seed());
    judged(&Plan { store: Store::At(url), may_lose, ..plan })
}

fn crashes() -> usize {
    (kills(20) / 10).max(1)
}

/// Of a run in which servers were killed.
fn judged(plan: &Plan) -> Report {
    let Plan { may_lose, rounds: times, .. } = *plan;
    let report = tortured(plan);
    assert_eq!(report.counts.faults.get(STORE_KILLED), Some(&times));
    // Nobody goes on who was told of a loss, which may be after the first.
    let counts = &report.counts;
    let lacks = if may_lose { counts.lacks_effects(1) } else { counts.lacks_crashes(times) };
    assert_eq!(lacks, Vec::<String>::new(), "too little happened");
    report
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
