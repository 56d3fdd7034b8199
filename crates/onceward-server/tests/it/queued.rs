//! Requests that are accepted and executed later, through the real binary on real stores: once, whatever
//! happens to the gateway or to upstream.

use std::{
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use serde_json::Value;

use crate::support::{
    Act, Answer, Gate, Gateway, Home, Seen, Upstream, admin, binary, document, eventually, nowhere,
    ok, on_each_durable_store, on_each_store, post, response, send,
};

const KEY: &str = "order-0000000000000001";
const QUEUED: &str = "[defaults]\nexecution = \"queued\"\n";
/// Without which no request is stored.
const SEALED: &str = "[privacy]\n\
    keys = [{ id = \"a\", secret = \"YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE=\" }]\n";

on_each_store!(
    a_request_is_accepted_at_once_and_its_reply_replayed_byte_for_byte,
    an_upstream_that_is_down_is_tried_again_and_acts_once_when_it_is_up,
    an_upstream_that_hangs_up_after_reading_is_not_asked_again,
    what_cannot_be_executed_in_time_is_given_up_with_a_stored_answer,
);

on_each_durable_store!(
    what_was_accepted_by_a_gateway_that_was_killed_before_it_began_is_executed_once,
    a_gateway_that_is_killed_while_upstream_works_leaves_what_cannot_be_known_unknown,
    two_gateways_on_one_store_send_each_accepted_request_once,
    a_stop_finishes_what_is_on_its_way_and_leaves_the_rest_to_the_next,
    a_request_that_waits_cannot_be_read_in_the_store,
);

/// Asks until it is not only accepted any more.
fn final_answer(gateway: &Gateway, key: &str) -> Answer {
    eventually("the final answer", || {
        let answer = post(gateway.address, key, "{}", &[]);
        (answer.status != 202).then_some(answer)
    })
}

fn record(gateway: &Gateway) -> Value {
    document(&admin(gateway, "GET", "/api/v1/keys", None))["records"][0].clone()
}

fn start(home: &Home, upstream: &Upstream, toml: &str) -> Gateway {
    before(home, upstream.address, toml)
}

fn before(home: &Home, upstream: SocketAddr, toml: &str) -> Gateway {
    Gateway::with(upstream, &home.settings(&format!("{SEALED}{QUEUED}{toml}")))
}

fn a_request_is_accepted_at_once_and_its_reply_replayed_byte_for_byte(home: &Home) {
    let gate = Gate::default();
    let at_gate = gate.clone();
    let body = "{\"id\": \"ch_1\",  \"amount\":1.00}";
    let upstream = Upstream::start(move |_, _| {
        let headers = "Content-Type: application/json\r\nX-Charge: ch_1\r\nSet-Cookie: a=b\r\n";
        Act::SendLater(Vec::new(), at_gate.clone(), response(201, headers, body))
    });
    let gateway = start(home, &upstream, "");
    let accepted = post(gateway.address, KEY, "{}", &[]);
    assert_eq!((accepted.status, accepted.text().contains("pending")), (202, true));
    assert_eq!(accepted.header("onceward-outcome"), Some("accepted"));
    assert!(accepted.header("retry-after").is_some());
    let location = accepted.header("location").expect("an address").to_owned();
    gate.reached_by(1);
    let again = post(gateway.address, KEY, "{}", &[]);
    assert_eq!((again.status, again.header("location")), (202, Some(&*location)));
    gate.open();
    let reply = final_answer(&gateway, KEY);
    assert_eq!((reply.status, reply.text(), reply.is_replay()), (201, body, true));
    assert_eq!((reply.header("x-charge"), reply.header("set-cookie")), (Some("ch_1"), None));
    assert!(reply.header("idempotency-expires").is_some());
    let later = post(gateway.address, KEY, "{}", &[]);
    assert_eq!((later.status, &later.body), (201, &reply.body));
    let state = format!("GET {location} HTTP/1.1\r\nHost: x\r\n\r\n");
    let state = send(gateway.address, &state).expect("an answer");
    assert!(state.text().contains("\"completed\""), "{}", state.text());
    let other = post(gateway.address, KEY, "{\"other\":1}", &[]);
    assert_eq!(other.summary(), "422 idempotency_key_reused_with_different_payload");
    assert_eq!(upstream.count(), 1);
}

#[test]
fn upstream_sees_the_request_as_it_would_have_at_once_and_only_listed_headers() {
    let sent = [
        "Authorization: Bearer secret-of-the-client",
        "Cookie: session=1",
        "X-Tenant: 7",
        "User-Agent: tests",
        "Onceward-Fence: 1",
        "X-Forwarded-For: 10.1.1.1",
        "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ];
    let seen_under = |settings: &str| -> Seen {
        let upstream = Upstream::start(|_, _| ok("done"));
        let gateway = start(&Home::memory(), &upstream, settings);
        let accepted = post(gateway.address, KEY, "{\"a\": 1}", &sent);
        assert_eq!(accepted.status, 202);
        eventually("the dispatch", || upstream.seen().pop())
    };
    let seen = seen_under("");
    assert_eq!((&*seen.line, &*seen.body), ("POST /charges HTTP/1.1", &b"{\"a\": 1}"[..]));
    for (name, value) in [
        ("content-type", Some("application/json")),
        ("idempotency-key", Some(KEY)),
        ("user-agent", Some("tests")),
        ("x-forwarded-proto", Some("http")),
        ("authorization", None),
        ("cookie", None),
        ("x-tenant", None),
        ("onceward-attempt", None),
    ] {
        assert_eq!(seen.header(name), value, "{name}");
    }
    let addresses: Vec<&str> = seen
        .headers
        .iter()
        .filter(|(name, _)| name == "x-forwarded-for")
        .map(|(_, value)| value.as_str())
        .collect();
    assert_eq!(addresses.join(", "), "10.1.1.1, 127.0.0.1", "{:?}", seen.headers);
    assert!(seen.header("traceparent").is_some() && seen.header("onceward-operation").is_some());
    assert!(seen.header("onceward-attempt-id").is_some());
    assert_ne!(seen.header("onceward-fence"), Some("1"));

    let seen = seen_under("queued_headers = [\"authorization\", \"x-tenant\"]\n");
    assert_eq!(seen.header("authorization"), Some("Bearer secret-of-the-client"));
    assert_eq!((seen.header("x-tenant"), seen.header("user-agent")), (Some("7"), None));
}

fn an_upstream_that_is_down_is_tried_again_and_acts_once_when_it_is_up(home: &Home) {
    let address = nowhere();
    let gateway = before(home, address, "");
    assert_eq!(post(gateway.address, KEY, "{}", &[]).status, 202);
    let waiting = eventually("the first attempt", || {
        let record = record(&gateway);
        (record["attempts"] == 1 && record["state"] == "pending").then_some(record)
    });
    assert_eq!(waiting["last_error"], "upstream_unreachable", "{waiting}");
    assert!(waiting["due_at"].is_string() && waiting["queued_until"].is_string(), "{waiting}");
    assert_eq!(post(gateway.address, KEY, "{}", &[]).status, 202);
    let upstream =
        Upstream::on(TcpListener::bind(address).expect("the same port"), |_, _| ok("done"));
    let reply = final_answer(&gateway, KEY);
    assert_eq!((reply.status, reply.text()), (200, "done"));
    assert_eq!(upstream.count(), 1);
    let attempt = upstream.seen()[0].header("onceward-attempt").map(str::to_owned);
    assert!(attempt.is_some_and(|attempt| attempt.parse::<u32>().is_ok_and(|it| it > 1)));
}

fn an_upstream_that_hangs_up_after_reading_is_not_asked_again(home: &Home) {
    let gate = Gate::default();
    let closed = gate.clone();
    let upstream = Upstream::start(move |_, _| Act::SendAndClose(Vec::new(), closed.clone()));
    let gateway = start(home, &upstream, "");
    assert_eq!(post(gateway.address, KEY, "{}", &[]).status, 202);
    gate.pass();
    let unknown = final_answer(&gateway, KEY);
    assert_eq!(unknown.summary(), "409 idempotency_outcome_unknown");
    // Longer than the first pauses between attempts.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!((upstream.count(), &record(&gateway)["state"]), (1, &"unknown".into()));
}

fn what_cannot_be_executed_in_time_is_given_up_with_a_stored_answer(home: &Home) {
    let address = nowhere();
    let gateway = before(home, address, "queued_for = \"2s\"\n");
    assert_eq!(post(gateway.address, KEY, "{}", &[]).status, 202);
    let given_up = final_answer(&gateway, KEY);
    assert_eq!(given_up.summary(), "504 idempotency_not_executed");
    assert!(given_up.is_replay() && given_up.text().contains("\"retry\":\"new_key\""));
    let upstream =
        Upstream::on(TcpListener::bind(address).expect("the same port"), |_, _| ok("done"));
    let later = post(gateway.address, KEY, "{}", &[]);
    assert_eq!((later.status, &later.body), (504, &given_up.body));
    assert_eq!(upstream.count(), 0);
    let metrics =
        send(gateway.admin, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("answer");
    assert!(metrics.text().contains("onceward_queued_given_up_total{route=\"default\"} 1"));
}

fn what_was_accepted_by_a_gateway_that_was_killed_before_it_began_is_executed_once(home: &Home) {
    let upstream = Upstream::start(|_, _| ok("done"));
    {
        // Its own upstream is down, so that it cannot have begun.
        let gateway = before(home, nowhere(), "lease = \"2s\"\n");
        for number in 0..5 {
            let key = format!("order-{number:016}");
            assert_eq!(post(gateway.address, &key, "{}", &[]).status, 202);
        }
        // Each was tried, and none of them is now.
        eventually("five that wait", || {
            let page = document(&admin(&gateway, "GET", "/api/v1/keys", None));
            let records = page["records"].as_array().expect("a list");
            let waits = |record: &&Value| record["state"] == "pending" && record["attempts"] != 0;
            (records.iter().filter(waits).count() == 5).then_some(())
        });
        gateway.signal("KILL");
    }
    let next = start(home, &upstream, "lease = \"2s\"\n");
    for number in 0..5 {
        let reply = final_answer(&next, &format!("order-{number:016}"));
        assert_eq!((reply.status, reply.text()), (200, "done"), "{}", reply.summary());
    }
    assert_eq!(upstream.count(), 5);
}

fn a_gateway_that_is_killed_while_upstream_works_leaves_what_cannot_be_known_unknown(home: &Home) {
    for (effects, expected) in [("external", "409 idempotency_outcome_unknown"), ("none", "200 -")]
    {
        let key = format!("order-{effects:0>16}");
        let gate = Gate::default();
        let at_gate = gate.clone();
        let upstream = Upstream::start(move |number, _| match number {
            0 => Act::SendLater(Vec::new(), at_gate.clone(), response(200, "", "late")),
            _ => ok("done"),
        });
        let settings = format!("effects = \"{effects}\"\nlease = \"2s\"\n");
        let gateway = start(home, &upstream, &settings);
        assert_eq!(post(gateway.address, &key, "{}", &[]).status, 202);
        gate.reached_by(1);
        gateway.signal("KILL");
        drop(gateway);
        let next = start(home, &upstream, &settings);
        let told = final_answer(&next, &key);
        assert_eq!(told.summary(), expected, "{effects}");
        assert_eq!(upstream.count(), if effects == "none" { 2 } else { 1 });
        gate.open();
    }
}

fn two_gateways_on_one_store_send_each_accepted_request_once(home: &Home) {
    let upstream = Upstream::start(|_, _| ok("done"));
    let gateways = [start(home, &upstream, ""), start(home, &upstream, "")];
    let keys: Vec<String> = (0..60).map(|number| format!("order-{number:016}")).collect();
    for (number, key) in keys.iter().enumerate() {
        let answer = post(gateways[number % 2].address, key, "{}", &[]);
        assert_eq!(answer.status, 202, "{}", answer.summary());
    }
    for (number, key) in keys.iter().enumerate() {
        let reply = final_answer(&gateways[(number + 1) % 2], key);
        assert_eq!((reply.status, reply.text()), (200, "done"));
    }
    assert_eq!(upstream.count(), keys.len());
}

fn a_stop_finishes_what_is_on_its_way_and_leaves_the_rest_to_the_next(home: &Home) {
    let gate = Gate::default();
    let at_gate = gate.clone();
    let upstream = Upstream::start(move |number, _| match number {
        0 => Act::SendLater(Vec::new(), at_gate.clone(), response(200, "", "first")),
        _ => ok("next"),
    });
    let mut gateway = start(home, &upstream, "");
    assert_eq!(post(gateway.address, KEY, "{}", &[]).status, 202);
    gate.reached_by(1);
    gateway.signal("TERM");
    let ready = gateway.admin;
    eventually("the end of readiness", || {
        let answer =
            send(ready, "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("answer");
        (answer.status == 503).then_some(())
    });
    gate.open();
    assert_eq!(gateway.exit_status().code(), Some(0));
    let next = start(home, &upstream, "");
    let reply = post(next.address, KEY, "{}", &[]);
    assert_eq!((reply.status, reply.text(), reply.is_replay()), (200, "first", true));
    assert_eq!(upstream.count(), 1);
}

fn a_request_that_waits_cannot_be_read_in_the_store(home: &Home) {
    let upstream = Upstream::start(|_, _| Act::Send(response(429, "", "busy")));
    let gateway = start(home, &upstream, "queued_headers = [\"x-card\"]\n");
    let accepted =
        post(gateway.address, KEY, "{\"iban\": \"marker-body\"}", &["X-Card: marker-head"]);
    assert_eq!(accepted.status, 202);
    eventually("an attempt", || (upstream.count() > 0).then_some(()));
    assert_eq!(upstream.seen()[0].header("x-card"), Some("marker-head"), "upstream is told");
    assert!(home.holds(KEY), "what is not sealed is there");
    assert!(!home.holds("marker-body") && !home.holds("marker-head"));
}

#[test]
fn settings_that_make_no_sense_for_queued_routes_are_refused() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let file = folder.path().join("onceward.toml");
    for (lines, why) in [
        ("queued_for = \"1h\"", "queued_for has a meaning only with execution = \"queued\""),
        ("execution = \"queud\"", "did you mean `queued`?"),
        ("execution = \"queued\"\nqueued_for = \"31d\"", "between one second and 30 days"),
        (
            "execution = \"queued\"\nqueued_headers = [\"Onceward-Fence\"]",
            "said anew at each attempt",
        ),
        ("execution = \"queued\"\nqueued_headers = [\"a b\"]", "is not the name of a header"),
        ("execution = \"queued\"", "seal them with privacy.keys"),
    ] {
        let toml = format!(
            "config_version = 1\n[gateway]\nupstream = \"http://127.0.0.1:1\"\n[scope]\n\
             from = \"anonymous\"\n[defaults]\n{lines}\n"
        );
        std::fs::write(&file, toml).expect("written");
        let output = binary().args(["config", "check", "--config"]).arg(&file).output();
        let output = output.expect("the binary runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(why), "{lines}: {said}");
    }
}
