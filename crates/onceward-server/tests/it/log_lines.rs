//! One log line for each decision, and nothing in it that a client or upstream sent.

use std::{collections::BTreeMap, process::Command};

use serde_json::Value;

use crate::support::{Act, Connection, Gate, Gateway, Upstream, binary, eventually, request, send};

/// Part of everything that is secret here.
const MARKER: &str = "marked";

const KEY: &str = "marked-key-00000000";

fn command(upstream: &Upstream, toml: &str) -> (Command, tempfile::NamedTempFile) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let toml = format!(
        "config_version = 1\n[gateway]\nupstream = \"http://{}\"\n[store]\nurl = \"memory:\"\n\
         {toml}",
        upstream.address
    );
    std::fs::write(file.path(), toml).expect("written");
    let mut command = binary();
    command.args(["serve", "--log-format", "json", "--config"]).arg(file.path());
    command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    (command, file)
}

/// The lines of decisions so far.
fn decisions(gateway: &Gateway) -> Vec<Value> {
    let log = gateway.log();
    // The last one may not be all there yet.
    let whole = log.rfind('\n').map_or("", |end| &log[..end]);
    let lines = whole.lines().map(|line| serde_json::from_str(line).expect(line));
    lines.filter(|line: &Value| line["target"] == "onceward::decision").collect()
}

struct Story {
    upstream: Upstream,
    gateway: Gateway,
    gate: Gate,
    sent: usize,
    told: String,
}

impl Story {
    fn begin() -> Story {
        let gate = Gate::default();
        let held = gate.clone();
        let upstream = Upstream::start(move |_, seen| {
            let path = seen.line.split([' ', '?']).nth(1).unwrap_or_default();
            match path {
                "/vanish" => Act::SendAndClose(Vec::new(), Gate::default()),
                "/slow" => {
                    let answer = crate::support::response(200, "", "marked-reply");
                    Act::SendLater(Vec::new(), held.clone(), answer)
                }
                "/busy" => Act::Send(crate::support::response(429, "", "marked-reply")),
                _ => Act::Send(crate::support::response(
                    201,
                    "Set-Cookie: marked-cookie=1\r\nX-Kept: marked-header\r\n",
                    "marked-reply",
                )),
            }
        });
        let toml = "[scope]\nfrom = \"authorization\"\n[defaults]\nrequest_bytes_max = 100\n";
        let (mut command, _file) = command(&upstream, toml);
        let gateway = Gateway::start(command.env("RUST_LOG", "trace"));
        Story { upstream, gateway, gate, sent: 0, told: String::new() }
    }

    fn request(&self, path: &str, key: &str, body: &str, credential: bool) -> String {
        let credential = match credential {
            true => "Authorization: Bearer marked-credential",
            false => "X-Nothing: marked",
        };
        let more = [credential, "Cookie: marked-cookie=1", "Connection: close"];
        let request = request(self.gateway.address, key, body, &more);
        request.replacen("/charges", &format!("{path}?token=marked-query"), 1)
    }

    /// Sends one, and waits for its line.
    fn send(&mut self, path: &str, key: &str, body: &str, credential: bool) -> Value {
        let request = self.request(path, key, body, credential);
        let answer = send(self.gateway.address, &request).expect("an answer");
        if answer.header("content-type") == Some("application/problem+json") {
            self.told.push_str(answer.text());
        }
        self.line(answer.status)
    }

    fn line(&mut self, status: u16) -> Value {
        self.sent += 1;
        let sent = self.sent;
        let lines = eventually("the line", || {
            Some(decisions(&self.gateway)).filter(|lines| lines.len() >= sent)
        });
        assert_eq!(lines.len(), sent, "one for each: {lines:?}");
        let line = lines.into_iter().next_back().expect("a line");
        assert_eq!(line["status"], status, "{line}");
        line
    }
}

#[test]
fn there_is_one_json_line_for_each_decision_and_no_secret_in_any() {
    let mut story = Story::begin();
    let mut outcomes = BTreeMap::new();
    let mut tell = |line: &Value| {
        let outcome = line["outcome"].as_str().expect("an outcome").to_owned();
        *outcomes.entry(outcome).or_insert(0) += 1;
    };
    let body = "{\"card\":\"marked-body\"}";
    let first = story.send("/charges", KEY, body, true);
    tell(&first);
    assert_eq!((&first["attempt"], &first["generation"]), (&1.into(), &1.into()));
    assert_eq!((&first["route"], &first["message"]), (&"default".into(), &"decision".into()));
    assert!(first["duration_ms"].as_f64().is_some_and(|took| took > 0.0), "{first}");
    assert!(first["timestamp"].is_string() && first["key.digest"].is_string(), "{first}");
    let replayed = story.send("/charges", KEY, body, true);
    assert_eq!(replayed["key.digest"], first["key.digest"]);
    assert_eq!(replayed["generation"], 1);
    tell(&replayed);
    tell(&story.send("/charges", KEY, "{\"card\":\"marked-other\"}", true));
    tell(&story.send("/vanish", "marked-key-vanish", body, true));
    tell(&story.send("/vanish", "marked-key-vanish", body, true));
    tell(&story.send("/busy", "marked-key-busy-000", body, true));
    tell(&story.send("/charges", "marked", body, true));
    tell(&story.send("/charges", KEY, body, false));
    tell(&story.send("/charges", KEY, &"marked-body".repeat(20), true));
    // A retry while the first one runs; then the first one's client hangs up.
    let slow = story.request("/slow", "marked-key-slow-000", body, true);
    let mut hangs_up = Connection::open(story.gateway.address).expect("a connection");
    hangs_up.write(slow.as_bytes()).expect("sent");
    eventually("the request at upstream", || {
        story.upstream.seen().iter().any(|seen| seen.line.contains("/slow")).then_some(())
    });
    tell(&story.send("/slow", "marked-key-slow-000", body, true));
    drop(hangs_up);
    story.gate.open();
    tell(&story.line(200));
    tell(&story.send("/slow", "marked-key-slow-000", body, true));
    let expected = [
        ("conflict", 1),
        ("executed", 2),
        ("mismatch", 1),
        ("not_executed", 1),
        ("refused", 3),
        ("replayed", 2),
        ("unknown", 2),
    ];
    assert_eq!(outcomes, expected.map(|(outcome, count)| (outcome.to_owned(), count)).into());
    let metrics = format!("GET /metrics HTTP/1.1\r\nHost: {}\r\n\r\n", story.gateway.admin);
    let metrics = send(story.gateway.admin, &metrics).expect("metrics");
    for (what, text) in
        [("logs", &*story.gateway.log()), ("metrics", metrics.text()), ("errors", &story.told)]
    {
        let lines: Vec<&str> = text.lines().filter(|line| line.contains(MARKER)).collect();
        assert!(!text.is_empty() && lines.is_empty(), "{what}: {lines:#?}");
    }
}

#[test]
fn a_request_that_never_reached_upstream_has_its_line_too() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let nobody = format!("http://{}", free.local_addr().expect("bound"));
    drop(free);
    let mut command = binary();
    command.args(["serve", "--log-format", "json", "--upstream", &nobody, "--store", "memory:"]);
    command.args(["--scope", "anonymous", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    let gateway = Gateway::start(&mut command);
    let request = request(gateway.address, KEY, "marked-body", &["Connection: close"]);
    let answer = send(gateway.address, &request).expect("an answer");
    assert_eq!(answer.summary(), "502 idempotency_upstream_unreachable");
    let lines =
        eventually("the line", || Some(decisions(&gateway)).filter(|lines| !lines.is_empty()));
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!((&lines[0]["outcome"], &lines[0]["status"]), (&"not_executed".into(), &502.into()));
    assert!(!gateway.log().contains(MARKER), "{}", gateway.log());
}

#[test]
fn who_does_not_read_the_log_holds_up_no_request_and_no_stop() {
    let upstream = Upstream::start(|_, _| Act::Send(crate::support::response(201, "", "done")));
    let (mut command, _file) = command(&upstream, "[scope]\nfrom = \"anonymous\"\n");
    let (mut gateway, unread) = Gateway::start_unread(command.env("RUST_LOG", "info"));
    // Many times what a pipe takes.
    let mut connection = Connection::open(gateway.address).expect("a connection");
    for number in 0..1500 {
        let key = format!("key-of-request-{number:04}");
        let request = request(gateway.address, &key, "{}", &[]);
        connection.write(request.as_bytes()).expect("sent");
        let answer = connection.read_answer().expect("an answer");
        assert_eq!(answer.status, 201, "request {number}");
    }
    drop(connection);
    gateway.signal("TERM");
    assert!(gateway.exit_status().success());
    drop(unread);
}
