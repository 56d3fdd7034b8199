//! The commands in the README, as they stand there. Only the way to the binary and the ports are
//! replaced: the one is not built yet for readers, the others may be taken.

use std::{
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
};

use crate::{
    demo::alone,
    support::{Act, Gateway, Upstream, response},
};

const README: &str = include_str!("../../../../README.md");

/// What readers type instead of the path of the binary.
const CARGO: &str = "cargo run --release -- ";

/// The blocks that are to be typed into a shell.
fn blocks() -> Vec<&'static str> {
    let fenced = README.split("```sh\n").skip(1);
    fenced.map(|rest| rest.split("\n```").next().expect("the end of a block")).collect()
}

fn block(begins: &str) -> &'static str {
    let found = blocks().into_iter().find(|block| block.starts_with(begins));
    found.unwrap_or_else(|| panic!("no block begins with `{begins}`"))
}

/// A command of the README in a shell, in this folder, with the binary of these tests.
fn typed(line: &str) -> Command {
    let binary = env!("CARGO_BIN_EXE_onceward");
    let mut shell = Command::new("sh");
    // The shell makes way, so that a signal is for the command itself.
    shell.args(["-c", &format!("exec {}", line.replace(CARGO, &format!("{binary} ")))]);
    shell.env_remove("RUST_LOG").env("NO_COLOR", "1").stdin(Stdio::null());
    shell
}

fn answer_to(line: &str) -> String {
    let output = typed(line).output().expect("sh");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Killed when dropped, if it was not waited for.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn every_block_of_commands_is_run_by_a_test() {
    let begins: Vec<&str> =
        blocks().iter().map(|block| block.split(" -").next().expect("a word")).collect();
    // The last one runs these tests.
    assert_eq!(begins, ["cargo run", "cargo run", "curl", "./test"]);
}

#[test]
fn the_gateway_and_the_request_of_the_readme_do_what_it_says() {
    let service = Upstream::start(|number, _| {
        let json = "Content-Type: application/json\r\nX-Run: ";
        Act::Send(response(201, &format!("{json}{number}\r\n"), "{\"id\":1}"))
    });
    let folder = tempfile::tempdir().expect("temporary folder");
    let serve = block("cargo run --release -- serve");
    let serve = replaced(serve, "127.0.0.1:3000", service.address);
    let mut serve = typed(&format!("{serve} --listen 127.0.0.1:0 --admin 127.0.0.1:0"));
    let gateway = Gateway::start(serve.current_dir(folder.path()));
    let curl = replaced(block("curl"), "127.0.0.1:8080", gateway.address);
    let curl = curl.replacen("curl ", "curl -sS ", 1);
    let [first, retry] = [answer_to(&curl), answer_to(&curl)];
    assert!(first.starts_with("HTTP/1.1 201 "), "{first}");
    assert!(!first.contains("idempotent-replayed"), "{first}");
    // The retry differs by what marks it as one.
    let (marks, rest): (Vec<&str>, Vec<&str>) = retry.lines().partition(|line| {
        let ours = ["idempotent-replayed", "onceward-outcome", "cache-control", "date"];
        ours.iter().any(|name| line.starts_with(name))
    });
    assert!(marks.contains(&"idempotent-replayed: true"), "{retry}");
    for line in rest {
        assert!(first.lines().any(|of_first| of_first == line), "{line} is new in\n{retry}");
    }
    assert!(retry.contains("x-run: 0") && retry.ends_with("{\"id\":1}"), "{retry}");
    assert_eq!(service.count(), 1, "the service is not asked again");
    assert!(folder.path().join("onceward.db").exists(), "the file that the command names");
}

#[test]
fn the_demo_of_the_readme_serves_on_and_the_lines_that_it_prints_work() {
    let _alone = alone();
    let mut demo = typed(block("cargo run --release -- demo"));
    let mut demo = Killed(demo.stdout(Stdio::piped()).spawn().expect("sh"));
    let lines = BufReader::new(demo.0.stdout.take().expect("piped")).lines();
    let lines = lines.map(|line| line.expect("text"));
    let told: Vec<String> = lines.take_while(|line| line != "Ctrl-C ends it.").collect();
    let told = told.join("\n");
    let commands = told.split("\n  curl ").skip(1);
    let commands = commands.map(|rest| rest.split("\n\n").next().expect("a first part"));
    let answers: Vec<_> = commands.map(|rest| answer_to(&format!("curl -sS {rest}"))).collect();
    let [first, retry, mismatch, ledger, metrics] = &answers[..] else { panic!("{told}") };
    assert!(first.starts_with("HTTP/1.1 201 "), "{first}");
    assert!(retry.contains("idempotent-replayed: true"), "{retry}");
    assert!(mismatch.starts_with("HTTP/1.1 422 "), "{mismatch}");
    assert_eq!(ledger.matches("\"amount\":500").count(), 1, "{ledger}");
    assert_eq!(ledger.matches("\"amount\":900").count(), 0, "{ledger}");
    assert!(metrics.contains("api_idempotency_"), "{metrics}");
    answer_to(&format!("kill -INT {}", demo.0.id()));
    assert_eq!(demo.0.wait().expect("waited").code(), Some(0));
}

/// The text with another address in it; it has to be there.
fn replaced(text: &str, address: &str, by: SocketAddr) -> String {
    assert!(text.contains(address), "{address} in `{text}`");
    text.replace(address, &by.to_string())
}
