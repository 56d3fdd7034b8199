//! How the process ends, as docs/guide/running.md says.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Command, Stdio},
    sync::{Mutex, mpsc::channel},
    thread,
};

use crate::{
    canary, demo, doctor, migrate, operate,
    support::{
        Act, Gate, Gateway, Home, LONGEST, Upstream, binary, ok, on_each_durable_store, response,
        send, until_not_ready,
    },
};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/running.md");

/// A row of the page's table, a code and whose it is, and the test that shows it.
type Row = (&'static str, &'static str, fn());

const ROWS: &[Row] = &[
    ("0", "every command", a_yes_and_a_clean_end_are_0),
    ("1", "every command", mistakes_on_the_command_line_and_a_no_are_1),
    ("1", "`config`, `routes list`, `explain`", mistakes_on_the_command_line_and_a_no_are_1),
    (
        "1",
        "`routes audit`, `doctor`, `migrate`",
        doctor::what_cannot_be_looked_at_is_1_and_no_password_is_told,
    ),
    ("1", "`ledger check`", ledgers_that_differ_are_3_and_those_that_agree_are_0),
    (
        "1",
        "commands that ask the admin API (`docs/guide/admin.md`)",
        operate::errors_say_what_to_do,
    ),
    ("1", "`demo`", a_demo_that_is_ended_in_the_middle_of_its_story_is_1),
    ("2", "`serve`, `demo`", what_cannot_start_is_2),
    ("2", "`routes audit`", operate::unprotected_endpoints_are_found_in_a_document_and_in_traffic),
    (
        "2",
        "`store status`",
        canary::a_store_that_was_put_back_runs_nothing_twice_until_an_operator_says_so,
    ),
    ("2", "`doctor`", doctor::memory_is_unsafe_unless_best_effort_is_declared),
    (
        "2",
        "`migrate`",
        migrate::a_newer_schema_that_lets_this_version_in_is_served_and_another_one_is_not,
    ),
    ("3", "`ledger check`", ledgers_that_differ_are_3_and_those_that_agree_are_0),
    ("3", "`migrate status`", migrate::a_schema_is_planned_made_once_and_then_current),
    ("130", "`serve`", a_second_signal_ends_it_at_once_with_130),
];

/// The first two cells of each row of the page's table.
fn rows_of(page: &str) -> Vec<(&str, &str)> {
    let table = page.split("## Exit codes").nth(1).expect("the section");
    let table = table.split("\n## ").next().expect("its text");
    let rows = table.lines().filter_map(|line| {
        let (code, rest) = line.strip_prefix("| ")?.split_once(" | ")?;
        Some((code, rest.split_once(" | ")?.0))
    });
    rows.filter(|(code, _)| code.parse::<u8>().is_ok()).collect()
}

fn ended(command: &mut Command) -> Option<i32> {
    command.output().expect("the binary runs").status.code()
}

#[test]
fn every_exit_code_is_the_one_that_the_page_says() {
    let page = std::fs::read_to_string(PAGE).expect("the page");
    let shown: Vec<_> = ROWS.iter().map(|(code, whose, _)| (*code, *whose)).collect();
    assert_eq!(rows_of(&page), shown, "each row has a test");
}

#[test]
fn a_yes_and_a_clean_end_are_0() {
    let upstream = Upstream::start(|_, _| ok("done"));
    let mut gateway = Gateway::before(upstream.address);
    gateway.signal("TERM");
    assert_eq!(gateway.exit_status().code(), Some(0));
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/examples/minimal.toml");
    assert_eq!(ended(binary().args(["config", "check", example])), Some(0));
    assert_eq!(ended(binary().args(["explain", "idempotency_key_missing"])), Some(0));
    assert_eq!(ended(binary().arg("--help")), Some(0));
}

#[test]
fn mistakes_on_the_command_line_and_a_no_are_1() {
    assert_eq!(ended(binary().args(["serve", "--no-such-flag"])), Some(1));
    assert_eq!(ended(&mut binary()), Some(1), "no command");
    assert_eq!(ended(binary().args(["explain", "no_such_code"])), Some(1));
    let wrong = tempfile::NamedTempFile::new().expect("temporary file");
    std::fs::write(wrong.path(), "config_version = 1\n[gatway]\n").expect("written");
    assert_eq!(ended(binary().args(["config", "check"]).arg(wrong.path())), Some(1));
    assert_eq!(ended(binary().args(["routes", "list"]).arg(wrong.path())), Some(1));
}

#[test]
fn what_cannot_start_is_2() {
    let serve = |args: &[&str]| {
        let usual = ["serve", "--upstream", "http://127.0.0.1:9", "--admin", "127.0.0.1:0"];
        ended(binary().args(usual).args(args))
    };
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = taken.local_addr().expect("bound").to_string();
    assert_eq!(serve(&["--store", "memory:", "--listen", &taken]), Some(2), "a port in use");
    assert_eq!(serve(&["--store", "file:/does/not/exist/x.db"]), Some(2), "no such folder");
    assert_eq!(serve(&["--store", "memory:", "--scope", "nobody"]), Some(2), "settings");
    let nowhere = ended(binary().args(["demo", "--no-wait"]).env("TMPDIR", "/does/not/exist"));
    assert_eq!(nowhere, Some(2), "no place for the store of the demo");
}

#[test]
fn a_demo_that_is_ended_in_the_middle_of_its_story_is_1() {
    let _alone = demo::alone();
    let mut demo = binary().arg("demo").stdout(Stdio::piped()).spawn().expect("the binary runs");
    let mut told = BufReader::new(demo.stdout.take().expect("piped"));
    let mut line = String::new();
    assert!(told.read_line(&mut line).expect("text") > 0, "the story begins");
    let kill = format!("kill -INT {}", demo.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().expect("sh").success());
    told.read_to_string(&mut line).expect("the end");
    assert_eq!(demo.wait().expect("waited").code(), Some(1), "{line}");
}

#[test]
fn ledgers_that_differ_are_3_and_those_that_agree_are_0() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path
    };
    let ours = file("ours.jsonl", "{\"provider_id\":\"c1\"}\n");
    let check = |theirs: &str| {
        let export = file("theirs.csv", theirs);
        let mut command = binary();
        command.args(["ledger", "check", "--ours"]).arg(&ours).arg("--export").arg(export);
        ended(&mut command)
    };
    assert_eq!(check("id\nc1\n"), Some(0));
    assert_eq!(check("id\nc1\nc2\n"), Some(3));
    assert_eq!(check("id\n\"\"\n"), Some(1), "a row without an id cannot be compared");
}

#[test]
fn a_second_signal_ends_it_at_once_with_130() {
    let gate = Gate::default();
    let at_gate = gate.clone();
    let upstream = Upstream::start(move |_, _| {
        Act::SendLater(Vec::new(), at_gate.clone(), response(200, "", "done"))
    });
    let mut gateway = Gateway::before(upstream.address);
    let to = gateway.address;
    let running = thread::spawn(move || send(to, &request(KEY)));
    gate.reached_by(1);
    gateway.signal("TERM");
    until_not_ready(&gateway);
    gateway.signal("INT");
    assert_eq!(gateway.exit_status().code(), Some(130));
    assert!(running.join().expect("no panic").is_err(), "nobody answers any more");
    gate.open();
}

on_each_durable_store!(what_is_still_at_work_after_the_drain_is_unknown_at_once_and_the_end_is_0,);

fn what_is_still_at_work_after_the_drain_is_unknown_at_once_and_the_end_is_0(home: &Home) {
    let store = home.settings("[defaults]\nlease = \"5m\"\nmax_execution = \"5m\"\n");
    let (called, calls) = channel();
    let called = Mutex::new(called);
    let upstream = Upstream::of_connections(move |_, mut stream| {
        let mut some = [0; 1024];
        while stream.read(&mut some).is_ok_and(|read| read > 0) {
            let request = String::from_utf8_lossy(&some).starts_with("POST");
            called.lock().expect("lock").send(request).expect("the test waits");
        }
    });
    let mut gateway = Gateway::with(upstream.address, &store);
    let mut client = TcpStream::connect(gateway.address).expect("connected");
    client.write_all(request(KEY).as_bytes()).expect("sent");
    assert!(calls.recv_timeout(LONGEST).expect("upstream is called"));
    gateway.signal("TERM");
    // The drain takes 25 s by design, and nothing here is busy meanwhile.
    client.set_read_timeout(Some(LONGEST + LONGEST)).expect("set");
    let mut first = String::new();
    client.read_to_string(&mut first).expect("an answer, and the end");
    assert!(first.starts_with("HTTP/1.1 504 "), "{first}");
    assert!(first.contains("\"idempotency_outcome_unknown\""), "{first}");
    assert_eq!(gateway.exit_status().code(), Some(0));
    let next = Gateway::with(upstream.address, &store);
    let retry = send(next.address, &request(KEY)).expect("answer");
    assert_eq!(retry.summary(), "409 idempotency_outcome_unknown");
    assert!(calls.try_recv().is_err(), "it is not sent again");
}

const KEY: &str = "order-0000000000000001";

fn request(key: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {key}\r\nContent-Length: 2\r\n\r\n{{}}")
}
