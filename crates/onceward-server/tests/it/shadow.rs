//! Routes with `key = "shadow"`: nothing is changed, and what would have been done is told.

use std::thread;

use serde_json::Value;

use crate::support::{
    ALICE, Act, Connection, Gate, Gateway, Upstream, admin, document, eventually, get, ok, post,
    request, response, send,
};

const SHADOW: &str = "[defaults]\nkey = \"shadow\"\n";
const KEY: &str = "order-0000000000000001";

fn metric(gateway: &Gateway, would: &str) -> String {
    let metrics = get(gateway.admin, "/metrics");
    let name = format!("onceward_shadow_total{{route=\"default\",would=\"{would}\"}} ");
    let line = metrics.text().lines().find_map(|line| line.strip_prefix(&name));
    line.unwrap_or_else(|| panic!("{name} in\n{}", metrics.text())).to_owned()
}

#[test]
fn every_request_passes_and_what_would_have_been_done_is_counted_and_logged() {
    let upstream = Upstream::start(|number, _| ok(&format!("run {number}")));
    let gateway = Gateway::with(upstream.address, &format!("{SHADOW}{ALICE}"));
    for would in ["execute", "replay", "idempotency_key_missing"] {
        assert_eq!(metric(&gateway, would), "0", "{would}");
    }
    let without = "POST /charges HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: \
                   close\r\n\r\n{}";
    let mut answers = vec![send(gateway.address, without).expect("answer")];
    for (key, body) in [(KEY, "{}"), (KEY, "{}"), (KEY, "[]"), ("short", "{}"), (KEY, "{}")] {
        answers.push(post(gateway.address, key, body, &[]));
    }
    for (number, answer) in answers.iter().enumerate() {
        assert_eq!((answer.status, answer.text()), (200, &*format!("run {number}")));
        assert_eq!(answer.header("onceward-outcome"), None);
    }
    for (would, times) in [
        ("execute", "1"),
        ("replay", "2"),
        ("idempotency_key_reused_with_different_payload", "1"),
        ("idempotency_key_missing", "1"),
        ("idempotency_key_invalid", "1"),
        ("idempotency_key_in_progress", "0"),
    ] {
        assert_eq!(metric(&gateway, would), times, "{would}");
    }
    let seen = |log: &String| log.matches("shadow: a protected route").count() == 5;
    let log = eventually("five lines", || Some(gateway.log()).filter(seen));
    assert!(!log.contains(KEY));
    let listed = document(&admin(&gateway, "GET", "/api/v1/shadow", None));
    let would = |it: &Value| it["would"].as_str().expect("a word").to_owned();
    let would: Vec<String> =
        listed["observations"].as_array().expect("a list").iter().map(would).collect();
    let expected = [
        "idempotency_key_missing",
        "replay",
        "idempotency_key_reused_with_different_payload",
        "idempotency_key_invalid",
        "replay",
    ];
    assert_eq!(would, expected);
    assert!(!listed.to_string().contains(KEY));
    let seen = &upstream.seen()[1];
    assert_eq!((seen.header("idempotency-key"), &*seen.body), (Some(KEY), &b"{}"[..]));
    assert_eq!(seen.header("onceward-operation"), None);
}

#[test]
fn two_at_once_both_pass_and_the_second_would_have_been_a_conflict() {
    let gate = Gate::default();
    let at_gate = gate.clone();
    let upstream = Upstream::start(move |_, _| {
        Act::SendLater(Vec::new(), at_gate.clone(), response(200, "", "done"))
    });
    let gateway = Gateway::with(upstream.address, SHADOW);
    let to = gateway.address;
    let running: Vec<_> = (0..2).map(|_| thread::spawn(move || post(to, KEY, "{}", &[]))).collect();
    gate.reached_by(2);
    assert_eq!(metric(&gateway, "idempotency_key_in_progress"), "1");
    gate.open();
    for answer in running {
        assert_eq!(answer.join().expect("no panic").text(), "done");
    }
}

#[test]
fn a_request_on_a_shadow_route_arrives_while_the_client_still_sends() {
    use std::io::{Read as _, Write as _};
    let gate = Gate::default();
    let arrived = gate.clone();
    let upstream = Upstream::of_connections(move |_, mut stream| {
        let mut seen = Vec::new();
        let mut byte = [0; 1];
        for part in [&b"first-half"[..], b"other-half"] {
            while !seen.ends_with(part) && stream.read_exact(&mut byte).is_ok() {
                seen.push(byte[0]);
            }
            arrived.open();
        }
        let _ = stream.write_all(&response(200, "", "both"));
    });
    let gateway = Gateway::with(upstream.address, SHADOW);
    let mut connection = Connection::open(gateway.address).expect("connected");
    let whole = request(gateway.address, KEY, "first-halfother-half", &[]);
    let (first, other) = whole.split_at(whole.len() - 10);
    connection.write(first.as_bytes()).expect("written");
    gate.pass();
    connection.write(other.as_bytes()).expect("written");
    assert_eq!(connection.read_answer().expect("answer").text(), "both");
    eventually("the verdict", || (metric(&gateway, "execute") == "1").then_some(()));
}
