//! Keys through the gateway, on each store.

use std::thread;

use crate::support::{
    Act, Connection, Gate, Gateway, Home, Upstream, ok, on_each_store, post, response, send,
};

const KEY: &str = "order-0000000000000001";

on_each_store!(
    a_retry_gets_the_first_reply_byte_for_byte,
    a_client_that_hangs_up_cancels_nothing_and_its_retry_gets_the_reply,
    two_at_once_are_one_execution_and_one_conflict,
    requests_that_must_not_run_are_refused_before_upstream_sees_them,
    the_profile_stripe_takes_short_keys_and_needs_none,
    a_reply_over_the_cap_is_passed_on_once_and_never_run_again,
    callers_of_one_key_do_not_meet,
);

fn a_retry_gets_the_first_reply_byte_for_byte(home: &Home) {
    let upstream = Upstream::start(|number, _| {
        let headers = "Content-Type: text/x\r\nLink: <a>\r\nETag: \"1\"\r\nLink: <b>\r\n\
                       Set-Cookie: s=1\r\nX-Hop: 1\r\nConnection: X-Hop\r\n";
        Act::Send(response(201, headers, &format!("run {number} \u{e9}\0\n")))
    });
    let gateway = home.gateway(&upstream, "");
    let first = post(gateway.address, KEY, r#"{"amount": 10.0}"#, &[]);
    let retry = post(gateway.address, &format!("\"{KEY}\""), r#"{ "amount":10 }"#, &[]);
    assert_eq!((first.status, first.text()), (201, "run 0 \u{e9}\0\n"));
    assert_eq!((retry.status, &retry.body), (first.status, &first.body));
    for name in ["content-type", "link", "etag"] {
        assert_eq!(retry.all(name), first.all(name), "{name}");
    }
    assert_eq!(retry.all("link"), ["<a>", "<b>"]);
    assert_eq!(first.all("set-cookie"), ["s=1"]);
    assert_eq!(retry.header("set-cookie"), None);
    assert_eq!(first.header("x-hop"), None);
    assert_eq!(first.header("onceward-outcome"), Some("executed"));
    assert_eq!(retry.header("onceward-outcome"), Some("replayed"));
    assert!(retry.is_replay() && !first.is_replay());
    assert_eq!(upstream.count(), 1);
}

fn a_client_that_hangs_up_cancels_nothing_and_its_retry_gets_the_reply(home: &Home) {
    let gate = Gate::default();
    let at_gate = gate.clone();
    let upstream = Upstream::start(move |_, _| {
        Act::SendLater(Vec::new(), at_gate.clone(), response(200, "", "done"))
    });
    let gateway = home.gateway(&upstream, "");
    let mut client = Connection::open(gateway.address).expect("connected");
    let request = crate::support::request(gateway.address, KEY, "{}", &[]);
    client.write(request.as_bytes()).expect("written");
    gate.reached_by(1);
    drop(client);
    assert_eq!(post(gateway.address, KEY, "{}", &[]).summary(), "409 idempotency_key_in_progress");
    gate.open();
    let retry = post(gateway.address, KEY, "{}", &["Prefer: wait=10"]);
    assert_eq!((retry.status, retry.text(), retry.is_replay()), (200, "done", true));
    assert_eq!(upstream.count(), 1);
}

fn two_at_once_are_one_execution_and_one_conflict(home: &Home) {
    let gate = Gate::default();
    let at_gate = gate.clone();
    let upstream = Upstream::start(move |_, _| {
        Act::SendLater(Vec::new(), at_gate.clone(), response(200, "", "done"))
    });
    let gateway = home.gateway(&upstream, "");
    let to = gateway.address;
    let first = thread::spawn(move || post(to, KEY, "{}", &[]));
    gate.reached_by(1);
    let second = post(to, KEY, "{}", &[]);
    assert_eq!(second.summary(), "409 idempotency_key_in_progress");
    let location = second.header("location").expect("where to ask").to_owned();
    let ask = format!("GET {location} HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(send(to, &ask).expect("answer").text().contains("\"in_progress\""));
    gate.open();
    assert_eq!(first.join().expect("no panic").text(), "done");
    assert!(send(to, &ask).expect("answer").text().contains("\"completed\""));
    assert_eq!(upstream.count(), 1);
}

fn requests_that_must_not_run_are_refused_before_upstream_sees_them(home: &Home) {
    let upstream = Upstream::start(|_, _| ok("done"));
    let gateway = home.gateway(&upstream, "[defaults]\nrequest_bytes_max = 10");
    let to = gateway.address;
    let no_key = "POST /charges HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
    let missing = send(to, no_key).expect("answer");
    assert_eq!(missing.summary(), "400 idempotency_key_missing");
    assert_eq!(missing.header("content-type"), Some("application/problem+json"));
    assert_eq!(post(to, "short", "{}", &[]).summary(), "400 idempotency_key_invalid");
    let large = "x".repeat(100_000);
    assert_eq!(post(to, KEY, &large, &[]).summary(), "413 idempotency_body_too_large");
    assert_eq!(upstream.count(), 0);
    assert_eq!(post(to, KEY, "{}", &[]).status, 200, "a refusal is not stored under the key");
    let mismatch = post(to, KEY, "[]", &[]);
    assert_eq!(mismatch.summary(), "422 idempotency_key_reused_with_different_payload");
    assert_eq!(upstream.count(), 1);
}

fn the_profile_stripe_takes_short_keys_and_needs_none(home: &Home) {
    let upstream = Upstream::start(|_, _| Act::Send(response(500, "", "broken")));
    let gateway = home.gateway(&upstream, "[defaults]\nprofile = \"stripe\"");
    let to = gateway.address;
    assert_eq!(post(to, "k", "{}", &[]).text(), "broken");
    assert!(post(to, "k", "{}", &[]).is_replay(), "errors are stored too");
    assert_eq!(post(to, "k", "[]", &[]).status, 400);
    assert_eq!(upstream.count(), 1);
    let no_key = "POST /charges HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(send(to, no_key).expect("answer").text(), "broken");
    assert_eq!(upstream.count(), 2);
}

fn a_reply_over_the_cap_is_passed_on_once_and_never_run_again(home: &Home) {
    let large = "y".repeat(200_000);
    let body = large.clone();
    let upstream = Upstream::start(move |_, _| Act::Send(response(200, "", &body)));
    let gateway = home.gateway(&upstream, "[defaults]\nreply_bytes_max = 1000");
    let first = post(gateway.address, KEY, "{}", &[]);
    assert_eq!((first.status, first.text()), (200, large.as_str()));
    let retry = post(gateway.address, KEY, "{}", &[]);
    assert_eq!(retry.summary(), "410 idempotency_reply_not_stored");
    assert_eq!(upstream.count(), 1);
}

#[test]
fn after_an_early_answer_the_connection_is_not_left_in_the_middle_of_a_body() {
    let upstream = Upstream::start(|_, _| ok("done"));
    let gateway = Gateway::before(upstream.address);
    let inner = "POST /smuggled HTTP/1.1\r\nHost: x\r\nIdempotency-Key: smuggled-000000001\r\n\
                 Content-Length: 0\r\n\r\n";
    // Each is refused before its body is needed; the body looks like a request.
    for key in ["Idempotency-Key: short\r\n", ""] {
        let mut connection = Connection::open(gateway.address).expect("connected");
        let refused = format!(
            "POST /charges HTTP/1.1\r\nHost: x\r\n{key}Content-Length: {}\r\n\r\n{inner}",
            inner.len()
        );
        connection.write(refused.as_bytes()).expect("written");
        assert_eq!(connection.read_answer().expect("answer").status, 400);
        connection.write(b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n").expect("written");
        assert_eq!(connection.read_answer().expect("answer").text(), "done");
    }
    let lines: Vec<String> = upstream.seen().into_iter().map(|seen| seen.line).collect();
    assert_eq!(lines, ["GET /next HTTP/1.1", "GET /next HTTP/1.1"]);
}

fn callers_of_one_key_do_not_meet(home: &Home) {
    let upstream = Upstream::start(|number, _| ok(&format!("run {number}")));
    let gateway = home.gateway(&upstream, "[scope]\nfrom = \"header:X-Account\"\n");
    let of = |account: &str| post(gateway.address, KEY, "{}", &[&format!("X-Account: {account}")]);
    for (account, run) in [("acme", "run 0"), ("evil", "run 1"), ("ac", "run 2")] {
        let (first, retry) = (of(account), of(account));
        assert_eq!((first.text(), first.is_replay()), (run, false), "{account}");
        assert_eq!((retry.text(), retry.is_replay()), (run, true), "{account}");
    }
    assert_eq!(upstream.count(), 3);
}

#[test]
fn a_header_scope_is_taken_from_trusted_peers_only() {
    let upstream = Upstream::start(|number, _| ok(&format!("run {number}")));
    let scope = "[scope]\nfrom = \"header:X-Account\"\n";
    let trusting = Gateway::with(upstream.address, scope);
    let of = |account: &str| post(trusting.address, KEY, "{}", &[&format!("X-Account: {account}")]);
    assert_eq!(
        (of("acme").text(), of("acme").text(), of("evil").text()),
        ("run 0", "run 0", "run 1")
    );
    let missing = post(trusting.address, KEY, "{}", &[]);
    assert_eq!(missing.summary(), "401 idempotency_scope_missing");

    let elsewhere = format!("{scope}trusted_proxies = [\"10.0.0.0/8\"]\n");
    let wary = Gateway::with(upstream.address, &elsewhere);
    let spoofed = post(wary.address, KEY, "{}", &["X-Account: acme"]);
    assert_eq!(spoofed.summary(), "401 idempotency_scope_missing");
    assert_eq!(upstream.count(), 2);
}

#[test]
fn callers_are_told_apart_by_a_claim_of_their_token() {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
    use hmac::{Hmac, KeyInit as _, Mac as _};
    let secret = "0123456789abcdef0123456789abcdef";
    let token = |subject: &str, number: u32| {
        let part = |json: String| URL_SAFE_NO_PAD.encode(json);
        let head = part(r#"{"alg":"HS256","typ":"JWT"}"#.to_owned());
        let claims = format!(r#"{{"sub":"{subject}","exp":4102444800,"jti":"{number}"}}"#);
        let signed = format!("{head}.{}", part(claims));
        let mut mac = Hmac::<sha2::Sha256>::new_from_slice(secret.as_bytes()).expect("key");
        mac.update(signed.as_bytes());
        let signature = URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes());
        format!("Authorization: Bearer {signed}.{signature}")
    };
    let upstream = Upstream::start(|number, _| ok(&format!("run {number}")));
    let scope = format!("[scope]\nfrom = \"jwt:sub\"\njwt_secret = \"{secret}\"\n");
    let gateway = Gateway::with(upstream.address, &scope);
    let with = |line: &str| post(gateway.address, KEY, "{}", &[line]);
    assert_eq!(with(&token("alice", 1)).text(), "run 0");
    assert_eq!(with(&token("alice", 2)).text(), "run 0", "a refreshed token is the same caller");
    assert_eq!(with(&token("bob", 1)).text(), "run 1");
    let forged = token("alice", 1).replace("Bearer ey", "Bearer eyx");
    assert_eq!(with(&forged).summary(), "401 idempotency_scope_missing");
}
