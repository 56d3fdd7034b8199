//! The commands of operators, as they type them.

use std::process::Output;

use onceward_testbed::Postgres;
use serde_json::Value;

use crate::support::{ALICE, Act, Gate, Gateway, TOKEN, Upstream, binary, ok, post};

struct Ended {
    code: Option<i32>,
    said: String,
    complained: String,
}

fn ended(output: Output) -> Ended {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    Ended { code: output.status.code(), said: text(output.stdout), complained: text(output.stderr) }
}

fn operate(gateway: &Gateway, line: &[&str]) -> Ended {
    let mut command = binary();
    command.args(line).env("ONCEWARD_ADMIN", format!("http://{}", gateway.admin));
    ended(command.env("ONCEWARD_ADMIN_TOKEN", TOKEN).output().expect("it ends"))
}

fn done(gateway: &Gateway, line: &[&str]) -> String {
    let ended = operate(gateway, line);
    assert_eq!(ended.code, Some(0), "{line:?}: {}{}", ended.said, ended.complained);
    ended.said
}

fn with_unknown(count: u32) -> (Upstream, Gateway) {
    let upstream = Upstream::start(|_, seen| match &seen.body[..] {
        b"\"vanish\"" => Act::SendAndClose(Vec::new(), Gate::default()),
        _ => ok("done"),
    });
    let gateway = Gateway::with(upstream.address, ALICE);
    for number in 0..count {
        post(gateway.address, &format!("order-{number:016}"), "\"vanish\"", &[]);
    }
    (upstream, gateway)
}

#[test]
fn an_operator_works_through_unknown_records_at_a_terminal() {
    let (_upstream, gateway) = with_unknown(4);
    let listed = done(&gateway, &["unknown", "list"]);
    assert_eq!(listed.lines().count(), 5, "{listed}");
    let listed = done(&gateway, &["keys", "list", "--filter", "state=unknown", "-o", "json"]);
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    let id = listed["records"][0]["id"].as_str().expect("an id");
    let shown = done(&gateway, &["keys", "show", id]);
    assert!(shown.contains("unknown") && shown.contains("created"), "{shown}");
    let by_key = ["keys", "show", "--scope", "anonymous", "--key", "order-0000000000000000"];
    assert!(done(&gateway, &by_key).contains("order-0000000000000000"));
    let why = ["--reason", "ticket 7", "--evidence", "the ledger"];
    let fence = shown.lines().find_map(|line| line.strip_prefix("fence:")).expect("shown").trim();
    let resolve = ["keys", "resolve", id, "--completed", "--status", "201", "--body", "x"];
    let resolve = [&resolve[..], &["--fence", fence]].concat();
    assert!(done(&gateway, &[&resolve[..], &why].concat()).contains("completed"));
    done(&gateway, &["keys", "void", id, "--reason", "ticket 8"]);
    // Many: first a plan, which changes nothing.
    let filter = ["keys", "release", "--filter", "state=unknown"];
    let plan = done(&gateway, &[&filter[..], &why].concat());
    assert!(plan.contains("would release 3 records"), "{plan}");
    assert_eq!(done(&gateway, &["unknown", "list"]).lines().count(), 4);
    let apply = plan.split("--apply ").nth(1).expect("what to type").trim();
    let applied = done(&gateway, &["keys", "release", "--apply", apply]);
    assert!(applied.contains("3 records were changed"), "{applied}");
    assert_eq!(done(&gateway, &["unknown", "list"]).lines().count(), 1);
    let audit = done(&gateway, &["audit"]);
    assert!(audit.contains("alice: ticket 7; evidence: the ledger"), "{audit}");
    assert!(done(&gateway, &["stats"]).contains("failed_retryable  3"));
    assert_eq!(done(&gateway, &["keys", "export"]).lines().count(), 4);
}

/// What stands for a record in the answers of an admin listener.
fn record(fence: i64) -> Value {
    let mut record = serde_json::json!({
        "id": "v1.YQ.Yg", "state": "unknown", "generation": 3, "fence": fence, "attempts": 1,
        "void": false,
    });
    for text in ["scope", "key", "attempt", "effects", "route", "method", "path", "created_at"] {
        record[text] = "x".into();
    }
    for time in ["started_at", "lease_until", "expires_at"] {
        record[time] = "2026-01-01T00:00:00Z".into();
    }
    record
}

#[test]
fn a_command_decides_about_the_record_that_it_or_its_user_looked_at() {
    // An admin listener whose record moves between the look and the decision.
    let listener = Upstream::start(|_, seen| {
        if seen.line.starts_with("GET") {
            let shown = serde_json::json!({
                "record": record(41), "timeline": [], "advice": "none"
            });
            return ok(&shown.to_string());
        }
        let problem = r#"{"code":"record_changed","detail":"The record has moved."}"#;
        Act::Send(crate::support::response(409, "Connection: close\r\n", problem))
    });
    let why = ["--reason", "x"];
    let known = ["--reason", "x", "--evidence", "x"];
    for line in [
        [&["keys", "void", "v1.YQ.Yg"][..], &why].concat(),
        [&["keys", "release", "v1.YQ.Yg"][..], &known].concat(),
        [&["keys", "resolve", "v1.YQ.Yg", "--not-executed"][..], &known].concat(),
    ] {
        for (fence, sent) in [(&[][..], 41), (&["--fence", "7"], 7)] {
            let before = listener.count();
            let mut command = binary();
            command.args(&line).args(fence).env("ONCEWARD_ADMIN_TOKEN", TOKEN);
            command.env("ONCEWARD_ADMIN", format!("http://{}", listener.address));
            let ended = ended(command.output().expect("it ends"));
            assert_eq!(ended.code, Some(1), "{line:?}: {}", ended.complained);
            assert!(ended.complained.contains("record_changed"), "{}", ended.complained);
            let seen = listener.seen();
            assert_eq!(seen.len() - before, 2, "a look, and a decision that is not repeated");
            let decision: Value = serde_json::from_slice(&seen[before + 1].body).expect("JSON");
            let bound = (&decision["generation"], &decision["fence"]);
            assert_eq!(bound, (&3.into(), &sent.into()), "{line:?}");
        }
    }
    let many = ["keys", "void", "--filter", "state=completed", "--fence", "7", "--reason", "x"];
    let many = ended(binary().args(many).output().expect("it ends"));
    assert!(many.code == Some(1) && many.complained.contains("--fence"), "{}", many.complained);
}

#[test]
fn a_plan_tells_records_apart_of_which_the_store_did_not_say() {
    let mut postgres = Postgres::start();
    let upstream = Upstream::start(|_, _| Act::SendAndClose(Vec::new(), Gate::default()));
    let store = format!("[store]\nurl = \"{}\"\n{ALICE}", postgres.url("postgres"));
    let gateway = Gateway::with(upstream.address, &store);
    for number in 0..5 {
        post(gateway.address, &format!("order-{number:016}"), "{}", &[]);
    }
    let plan = || {
        let line = ["keys", "release", "--filter", "state=unknown", "-o", "json"];
        let why = ["--reason", "ticket 7", "--evidence", "the ledger"];
        let plan = done(&gateway, &[&line[..], &why].concat());
        let plan: Value = serde_json::from_str(&plan).expect("JSON");
        assert_eq!(plan["count"], 5);
        format!("{}:{}", plan["plan"].as_str().expect("text"), plan["hash"].as_str().expect("text"))
    };
    let apply = |plan: &str| operate(&gateway, &["keys", "release", "--apply", plan, "-o", "json"]);
    let doomed = plan();
    postgres.kill_9();
    let ended = apply(&doomed);
    assert_eq!(ended.code, Some(1), "{}", ended.complained);
    assert!(ended.complained.contains("5 records"), "{}", ended.complained);
    let applied: Value = serde_json::from_str(&ended.said).expect("JSON");
    assert_eq!((&applied["applied"], &applied["skipped"]), (&0.into(), &serde_json::json!([])));
    let codes = applied["failed"].as_array().expect("failed").iter().map(|it| it["code"].as_str());
    let codes: Vec<&str> = codes.map(|code| code.expect("a code")).collect();
    assert_eq!(codes, [&["store_unavailable"; 3][..], &["not_tried"; 2]].concat());
    postgres.start_again();
    crate::support::eventually("a plan", || {
        let listed = operate(&gateway, &["stats"]);
        (listed.code == Some(0)).then_some(())
    });
    let ended = apply(&plan());
    assert_eq!(ended.code, Some(0), "{}", ended.complained);
    let applied: Value = serde_json::from_str(&ended.said).expect("JSON");
    assert_eq!((&applied["applied"], &applied["failed"]), (&5.into(), &serde_json::json!([])));
}

#[test]
fn every_change_needs_a_reason() {
    let (_upstream, gateway) = with_unknown(1);
    let id = "v1.YQ.Yg";
    for line in [
        &["keys", "void", id][..],
        &["keys", "release", id, "--evidence", "x"],
        &["keys", "release", id, "--reason", "x"],
        &["keys", "resolve", id, "--not-executed", "--evidence", "x"],
        &["keys", "resolve", id, "--reason", "x", "--evidence", "x"],
    ] {
        let ended = operate(&gateway, line);
        assert_eq!(ended.code, Some(1), "{line:?}: {}", ended.complained);
    }
    let absent = operate(&gateway, &["keys", "void", id, "--reason", "x"]);
    assert_eq!(absent.code, Some(1));
    assert!(absent.complained.contains("not_found"), "{}", absent.complained);
}

#[test]
pub(crate) fn errors_say_what_to_do() {
    let mut nobody = binary();
    nobody.args(["stats", "--admin", "http://127.0.0.1:9"]);
    let nobody = ended(nobody.output().expect("it ends"));
    assert_eq!(nobody.code, Some(1));
    assert!(nobody.complained.contains("is `onceward serve` running"), "{}", nobody.complained);
    let (_upstream, gateway) = with_unknown(0);
    let mut stranger = binary();
    stranger.args(["stats", "--admin", &format!("http://{}", gateway.admin)]);
    let stranger = ended(stranger.env_remove("ONCEWARD_ADMIN_TOKEN").output().expect("it ends"));
    assert_eq!(stranger.code, Some(1));
    assert!(stranger.complained.contains("ONCEWARD_ADMIN_TOKEN"), "{}", stranger.complained);
    let typing_error = operate(&gateway, &["keys", "list", "--filter", "stat=unknown"]);
    assert!(typing_error.complained.contains("`stat`"), "{}", typing_error.complained);
}

#[test]
pub(crate) fn unprotected_endpoints_are_found_in_a_document_and_in_traffic() {
    let directory = tempfile::tempdir().expect("temporary folder");
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("text").to_owned()
    };
    let openapi = file(
        "openapi.yaml",
        "openapi: 3.0.3\npaths:\n  /charges:\n    post: {}\n    get: {}\n  /c/{id}:\n    put: {}\n",
    );
    let optional = "[gateway]\nupstream = \"http://127.0.0.1:1\"\n[defaults]\nkey = \"optional\"\n";
    let optional = file("onceward.toml", &format!("config_version = 1\n{optional}"));
    let audit = |more: &[&str]| {
        let line = [&["routes", "audit", "--openapi", &openapi], more].concat();
        ended(binary().args(line).output().expect("it ends"))
    };
    let protected = audit(&[]);
    assert_eq!(protected.code, Some(0), "{}{}", protected.said, protected.complained);
    assert!(protected.said.contains("/charges") && !protected.said.contains("/c/{id}"));
    assert_eq!(audit(&["--config", &optional]).code, Some(2));
    assert_eq!(audit(&["--config", &optional, "--allow-optional"]).code, Some(0));
    assert_eq!(audit(&["--config", "/no/such/file"]).code, Some(1));
    let upstream = Upstream::start(|_, _| ok("done"));
    let settings = format!("[defaults]\nkey = \"optional\"\n{ALICE}");
    let gateway = Gateway::with(upstream.address, &settings);
    post(gateway.address, "order-0000000000000001", "{}", &[]);
    assert_eq!(operate(&gateway, &["routes", "audit", "--traffic"]).code, Some(0));
    let request = "POST /charges/42/refund HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
    crate::support::send(gateway.address, request).expect("answer");
    let seen = operate(&gateway, &["routes", "audit", "--traffic"]);
    assert_eq!(seen.code, Some(2), "{}{}", seen.said, seen.complained);
    assert!(seen.said.contains("/charges/{}/refund"), "{}", seen.said);
}

#[test]
fn the_document_and_completions_are_printed_without_a_server() {
    let openapi = ended(binary().arg("openapi").output().expect("it ends"));
    let openapi: Value = serde_json::from_str(&openapi.said).expect("JSON");
    assert_eq!(openapi["openapi"], "3.1.0");
    for shell in ["bash", "zsh", "fish"] {
        let script = ended(binary().args(["completions", shell]).output().expect("it ends"));
        assert!(script.code == Some(0) && script.said.contains("keys"), "{shell}");
    }
    for command in ["keys", "audit", "stats", "ledger", "completions"] {
        let help = ended(binary().args([command, "--help"]).output().expect("it ends"));
        assert!(help.said.contains("Examples:"), "{command}");
    }
}
