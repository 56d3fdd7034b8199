//! Two processes on one file. The judge is a ledger that every handler writes to.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use axum::{Router, routing::post};
use onceward::{Idempotency, InFlight, Policy, SqliteOptions, SqliteStore};
use tower::ServiceExt as _;

use crate::service::{Answer, charge};

const KEYS: usize = 40;
const FOLDER: &str = "ONCEWARD_TEST_FOLDER";

/// A process that has opened the store and begins when its input is closed.
fn another_process(folder: &Path) -> Child {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args(["--exact", "processes::two_processes_on_one_file_run_each_key_once"]);
    command.arg("--nocapture").env(FOLDER, folder);
    let mut process =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
    let said = BufReader::new(process.stdout.as_mut().expect("piped")).lines();
    let ready = { said }.any(|line| line.expect("text").ends_with("ready"));
    assert!(ready, "it opened the store");
    process
}

#[test]
fn two_processes_on_one_file_run_each_key_once() {
    // Started by itself, this test is one of the two processes.
    if let Some(folder) = std::env::var_os(FOLDER) {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        return runtime.block_on(each_key_is_answered_with_200(folder.into()));
    }
    let folder = tempfile::tempdir().expect("a directory");
    fs::write(folder.path().join("ledger"), "").expect("written");
    let mut processes = [another_process(folder.path()), another_process(folder.path())];
    processes.iter_mut().for_each(|process| drop(process.stdin.take()));
    for process in processes {
        let ended = process.wait_with_output().expect("ended");
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
    }
    let ledger = fs::read_to_string(folder.path().join("ledger")).expect("read");
    let mut effects: Vec<&str> = ledger.lines().collect();
    effects.sort_unstable();
    let expected: Vec<String> = (0..KEYS).map(key).collect();
    assert_eq!(effects, expected, "each key has one effect");
}

fn key(number: usize) -> String {
    format!("order-of-two-processes-{number:02}")
}

async fn each_key_is_answered_with_200(folder: PathBuf) {
    let options = SqliteOptions::new(folder.join("store.db"));
    let store = Arc::new(SqliteStore::open(options).await.expect("a store"));
    let effect = move |request: http::Request<axum::body::Body>| {
        let file = fs::OpenOptions::new().append(true).open(folder.join("ledger"));
        let key = request.headers()["idempotency-key"].to_str().expect("text");
        let line = format!("{key}\n");
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("written");
        async { "charged" }
    };
    let policy = Policy::required().in_flight(InFlight::Wait(Duration::from_secs(10)));
    let app = Router::new().route("/charges", post(effect)).layer(Idempotency::new(store, policy));
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).expect("the end of the input");
    let answers = (0..KEYS).map(|number| app.clone().oneshot(charge(&key(number))));
    for answer in futures_util::future::join_all(answers).await {
        let answer = Answer::read(answer.unwrap_or_else(|never| match never {})).await;
        assert_eq!((answer.status, answer.text()), (200, "charged"));
    }
}
