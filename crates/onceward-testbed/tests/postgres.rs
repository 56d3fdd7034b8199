//! PostgreSQL servers come, crash, and go without a trace.

use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use onceward_testbed::{CutProxy, Postgres, READY_FOR_QUERY};

const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn a_server_answers_and_is_as_durable_as_by_default() {
    let postgres = Postgres::start();
    for setting in ["fsync", "synchronous_commit", "full_page_writes", "autovacuum"] {
        assert_eq!(postgres.psql("postgres", &format!("SHOW {setting}")), "on", "{setting}");
    }
    assert_eq!(postgres.psql("postgres", "SHOW max_connections"), "200");
    assert_eq!(postgres.psql("postgres", "SELECT 1, 'two' UNION SELECT 3, NULL"), "1|two\n3|");
}

#[test]
#[should_panic(expected = "relation \"absent\" does not exist")]
fn a_failed_statement_is_a_panic_with_the_servers_message() {
    Postgres::shared().psql("postgres", "SELECT * FROM absent");
}

#[test]
fn a_dropped_server_is_gone_with_its_directory() {
    let postgres = Postgres::start();
    let (address, dir) = (postgres.address(), postgres.dir().to_owned());
    assert!(TcpStream::connect(address).is_ok() && dir.exists());
    drop(postgres);
    assert!(TcpStream::connect(address).is_err() && !dir.exists());
}

#[test]
fn a_held_server_can_be_dropped() {
    let mut postgres = Postgres::start();
    let dir = postgres.dir().to_owned();
    postgres.hold();
    drop(postgres);
    assert!(!dir.exists());
}

#[test]
fn a_killed_server_can_be_dropped_and_leaves_no_shared_memory() {
    let mut postgres = Postgres::start();
    let dir = postgres.dir().to_owned();
    let status = fs::read_to_string(dir.join("data/postmaster.pid")).expect("it runs");
    // The seventh line holds the key and the number of the segment.
    let segment = status.lines().nth(6).and_then(|line| line.split_whitespace().last());
    let segment = segment.expect("a segment").to_owned();
    let exists = || {
        let segments = fs::read_to_string("/proc/sysvipc/shm").expect("the segments");
        segments.lines().any(|line| line.split_whitespace().nth(1) == Some(&segment))
    };
    postgres.kill_9();
    assert!(exists(), "a crash cleans nothing up");
    drop(postgres);
    assert!(!exists() && !dir.exists());
}

#[test]
fn a_commit_can_be_done_without_its_client_learning_it_and_can_be_lost() {
    let postgres = Postgres::shared();
    let database = postgres.create_database();
    database.psql("CREATE TABLE paid (n int)");
    let proxy = CutProxy::start(postgres.address());
    let url = postgres.url_through(proxy.address(), database.name());
    let pay = |n: u32| {
        let mut psql = Command::new("psql");
        psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", &url, "-c", "BEGIN"]);
        psql.args(["-c", &format!("INSERT INTO paid VALUES ({n})"), "-c", "COMMIT"]);
        psql.stderr(Stdio::null()).status().expect("psql").success()
    };
    assert!(pay(1));
    proxy.cut_after(b"COMMIT", READY_FOR_QUERY);
    assert!(!pay(2));
    proxy.cut_before(b"COMMIT");
    assert!(!pay(3));
    assert!(pay(4));
    assert_eq!(proxy.sprung(), 2);
    assert_eq!(database.psql("SELECT n FROM paid ORDER BY n"), "1\n2\n4");
}

#[test]
fn two_servers_at_a_time_know_nothing_of_each_other() {
    let (one, other) = (Postgres::start(), Postgres::start());
    one.psql("postgres", "CREATE TABLE only_here ()");
    let seen = "SELECT count(*) FROM pg_tables WHERE tablename = 'only_here'";
    assert_eq!((&*one.psql("postgres", seen), &*other.psql("postgres", seen)), ("1", "0"));
}

#[test]
fn what_was_committed_survives_a_kill_and_what_was_not_does_not() {
    let mut postgres = Postgres::start();
    postgres.psql("postgres", "CREATE TABLE kept (n int); INSERT INTO kept VALUES (1)");
    let mut open = Command::new("psql")
        .args(["-X", "-q", &postgres.url("postgres")])
        .args(["-c", "BEGIN", "-c", "INSERT INTO kept VALUES (2)", "-c", "SELECT pg_sleep(600)"])
        .stderr(Stdio::null())
        .spawn()
        .expect("psql");
    let asleep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    until(|| postgres.psql("postgres", asleep) == "1");
    postgres.kill_9();
    assert!(TcpStream::connect(postgres.address()).is_err());
    assert!(!open.wait().expect("psql ends").success());
    postgres.start_again();
    assert_eq!(postgres.psql("postgres", "SELECT n FROM kept"), "1");
    assert!(postgres.log().contains("automatic recovery in progress"));
}

#[test]
fn a_held_server_is_silent_and_goes_on() {
    let mut postgres = Postgres::start();
    postgres.hold();
    let mut asked = Command::new("psql")
        .args(["-X", "-A", "-t", &postgres.url("postgres"), "-c", "SELECT 1"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("psql");
    sleep(Duration::from_millis(300));
    assert!(asked.try_wait().expect("a child").is_none(), "a held server answered");
    postgres.go();
    assert_eq!(asked.wait_with_output().expect("an answer").stdout, b"1\n");
    let begun = Instant::now();
    postgres.hold_for(Duration::from_millis(200));
    assert!(begun.elapsed() >= Duration::from_millis(200));
    assert_eq!(postgres.psql("postgres", "SELECT 1"), "1");
}

#[test]
fn databases_of_the_shared_server_are_apart_and_go_with_their_guards() {
    let postgres = Postgres::shared();
    let (one, other) = (postgres.create_database(), postgres.create_database());
    one.psql("CREATE TABLE here ()");
    other.psql("CREATE TABLE here ()");
    assert_eq!(one.psql("SELECT current_database()"), one.name());
    let name = one.name().to_owned();
    let exists = format!("SELECT count(*) FROM pg_database WHERE datname = '{name}'");
    assert_eq!(postgres.psql("postgres", &exists), "1");
    drop(one);
    assert_eq!(postgres.psql("postgres", &exists), "0");
}

/// Set for a process of ours that starts a server and waits to be killed.
const OWNER: &str = "ONCEWARD_TESTBED_OWNER";

#[test]
fn a_server_ends_with_an_owner_that_was_killed() {
    if env::var_os(OWNER).is_some() {
        let postgres = Postgres::shared();
        println!("\nstarted {} {}", postgres.address(), postgres.dir().display());
        loop {
            sleep(PATIENCE);
        }
    }
    let mut owner = Command::new(env::current_exe().expect("this test"))
        .args(["--exact", "a_server_ends_with_an_owner_that_was_killed", "--nocapture"])
        .env(OWNER, "yes")
        .stdout(Stdio::piped())
        .spawn()
        .expect("this test again");
    let said = BufReader::new(owner.stdout.take().expect("piped")).lines();
    let (address, dir) = said
        .map_while(Result::ok)
        .find_map(|line| started(&line))
        .expect("the owner started a server");
    assert!(TcpStream::connect(address).is_ok() && dir.exists());
    owner.kill().expect("killed");
    owner.wait().expect("dead");
    until(|| TcpStream::connect(address).is_err() && !dir.exists());
}

fn started(line: &str) -> Option<(SocketAddr, PathBuf)> {
    let (address, dir) = line.strip_prefix("started ")?.split_once(' ')?;
    Some((address.parse().ok()?, Path::new(dir).to_owned()))
}

fn until(condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "not in time");
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_promoted_standby_has_what_was_shipped_and_nothing_else() {
    let mut primary = Postgres::start();
    let shipping = CutProxy::start(primary.address());
    let standby = primary.standby(shipping.address());
    primary.psql("postgres", "CREATE TABLE seen (what text)");
    primary.psql("postgres", "INSERT INTO seen VALUES ('shipped')");
    primary.wait_for(&standby);
    shipping.lead_to(None);
    shipping.cut();
    primary.psql("postgres", "INSERT INTO seen VALUES ('lost')");
    primary.kill_9();
    standby.promote();
    assert_eq!(standby.psql("postgres", "SELECT what FROM seen"), "shipped");
    standby.psql("postgres", "INSERT INTO seen VALUES ('written')");
}
