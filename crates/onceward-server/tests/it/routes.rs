//! Rules that differ from route to route.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::support::{
    Act, Answer, Connection, Gate, Gateway, Home, Upstream, get, ok, on_each_store, response, send,
};

const KEY: &str = "order-0000000000000001";

on_each_store!(
    a_5xx_means_what_its_route_says,
    requests_that_are_too_old_are_refused_before_anything_is_reserved,
);

fn ask(gateway: &Gateway, line: &str, key: Option<&str>, more: &str) -> Answer {
    let key = key.map(|key| format!("Idempotency-Key: {key}\r\n")).unwrap_or_default();
    let request = format!(
        "{line} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{key}{more}\
         Content-Length: 2\r\nConnection: close\r\n\r\n{{}}"
    );
    send(gateway.address, &request).expect("answer")
}

fn outcome(answer: &Answer) -> &str {
    answer.header("onceward-outcome").unwrap_or("passed")
}

#[test]
fn each_route_has_its_own_rules_and_the_first_match_wins() {
    let upstream = Upstream::start(|number, _| ok(&format!("run {number}")));
    let gateway = Gateway::with(
        upstream.address,
        "[[route]]\nmatch = \"POST /off/**\"\nkey = \"off\"\n\
         [[route]]\nmatch = \"POST /optional\"\nkey = \"optional\"\n\
         [[route]]\nmatch = \"POST|PUT /put\"\n\
         [[route]]\nmatch = \"* /all\"\nmethods = [\"DELETE\"]\n",
    );
    for (line, without, with) in [
        ("POST /off/a", "passed", "passed"),
        ("POST /optional", "passed", "executed"),
        ("PUT /put", "refused", "executed"),
        ("PATCH /put", "refused", "executed"),
        ("PUT /other", "passed", "passed"),
        ("DELETE /all", "refused", "executed"),
        ("PUT /all", "passed", "passed"),
        ("POST /other", "refused", "executed"),
        // Spellings of a path that services take for the same are one route.
        ("POST /off/../put", "refused", "executed"),
        ("POST //%70ut/", "refused", "executed"),
    ] {
        assert_eq!(outcome(&ask(&gateway, line, None, "")), without, "{line} without a key");
        let key = format!("{KEY}-{}", line.replace([' ', '%'], "-"));
        assert_eq!(outcome(&ask(&gateway, line, Some(&key), "")), with, "{line}");
        let again = outcome(&ask(&gateway, line, Some(&key), "")).to_owned();
        assert_eq!(again, with.replace("executed", "replayed"), "{line} again");
    }
    // What is compared in one form is sent on as it came.
    assert!(upstream.seen().iter().any(|seen| seen.line == "POST /off/../put HTTP/1.1"));
    let damaged = ask(&gateway, "POST /optional", Some("x"), "");
    assert_eq!(damaged.summary(), "400 idempotency_key_invalid");
}

#[test]
fn a_route_that_is_off_is_streamed_both_ways_and_keeps_its_key() {
    let gate = Gate::default();
    let at_gate = gate.clone();
    let upstream = Upstream::start(move |_, _| {
        let first = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nfirst \r\n";
        Act::SendLater(first.to_vec(), at_gate.clone(), b"4\r\nlast\r\n0\r\n\r\n".to_vec())
    });
    let toml =
        "[defaults]\nrequest_bytes_max = 1\n[[route]]\nmatch = \"POST /stream\"\nkey = \"off\"\n";
    let gateway = Gateway::with(upstream.address, toml);
    let mut connection = Connection::open(gateway.address).expect("connected");
    let post = format!(
        "POST /stream HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {KEY}\r\nContent-Length: 2\r\n\r\n{{}}"
    );
    connection.write(post.as_bytes()).expect("written");
    let mut answer = connection.read_head().expect("head");
    assert!(connection.read_chunk(&mut answer.body).expect("chunk"));
    assert_eq!(answer.text(), "first ", "while upstream holds the rest back");
    gate.open();
    while connection.read_chunk(&mut answer.body).expect("chunk") {}
    assert_eq!((answer.text(), answer.header("onceward-outcome")), ("first last", None));
    assert_eq!(upstream.seen()[0].header("idempotency-key"), Some(KEY));
    assert_eq!(ask(&gateway, "POST /other", Some(KEY), "").status, 413, "the cap of the others");
}

fn a_5xx_means_what_its_route_says(home: &Home) {
    let upstream = Upstream::start(|_, _| Act::Send(response(500, "", "broken")));
    let gateway = home.gateway(
        &upstream,
        "[[route]]\nmatch = \"POST /store\"\non_5xx = \"store\"\n\
         [[route]]\nmatch = \"POST /unknown\"\non_5xx = \"unknown\"\n\
         [[route]]\nmatch = \"POST /external\"\neffects = \"external\"\n\
         [[route]]\nmatch = \"POST /retry\"\neffects = \"external\"\non_5xx = \"retry\"\n",
    );
    for (line, again, runs) in [
        ("POST /store", "500 -", 1),
        ("POST /unknown", "409 idempotency_outcome_unknown", 1),
        ("POST /external", "409 idempotency_outcome_unknown", 1),
        ("POST /retry", "500 -", 2),
        ("POST /default", "500 -", 2),
    ] {
        let key = format!("{KEY}{}", line.replace(' ', ""));
        let before = upstream.count();
        ask(&gateway, line, Some(&key), "");
        assert_eq!(ask(&gateway, line, Some(&key), "").summary(), again, "{line}");
        assert_eq!(upstream.count() - before, runs, "{line}");
    }
}

#[test]
fn a_route_counts_under_its_own_name() {
    let upstream = Upstream::start(|_, _| ok("done"));
    let gateway = Gateway::with(upstream.address, "[[route]]\nmatch = \"POST /v1/**\"\n");
    ask(&gateway, "POST /v1/charges", Some(KEY), "");
    let metrics = get(gateway.admin, "/metrics");
    for line in [
        "api_idempotency_reserve_created_total{route=\"POST /v1/**\"} 1",
        "api_idempotency_reserve_created_total{route=\"default\"} 0",
    ] {
        assert!(metrics.text().lines().any(|given| given == line), "{}", metrics.text());
    }
}

/// A UUIDv7 that was made so many seconds ago.
fn uuid_v7(seconds_ago: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let millis = (now - Duration::from_secs(seconds_ago)).as_millis();
    let text = format!("{millis:012x}");
    format!("{}-{}-7cc3-98c4-dc0c0c07398f", &text[..8], &text[8..])
}

fn requests_that_are_too_old_are_refused_before_anything_is_reserved(home: &Home) {
    let upstream = Upstream::start(|_, _| ok("done"));
    let gateway = home.gateway(
        &upstream,
        "[[route]]\nmatch = \"POST /key\"\nmax_request_age = \"1h\"\n[[route]]\n\
         match = \"POST /header\"\nmax_request_age = \"1h\"\nmax_request_age_header = \"X-Sent\"\n",
    );
    let too_old = "400 idempotency_request_too_old";
    for key in [uuid_v7(3700), uuid_v7(0).replace("-7", "-4"), KEY.to_owned()] {
        assert_eq!(ask(&gateway, "POST /key", Some(&key), "").summary(), too_old, "{key}");
    }
    let seconds = |ago: u64| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        format!("X-Sent: {}\r\n", now.as_secs() - ago)
    };
    for header in [String::new(), seconds(3700), "X-Sent: soon\r\n".to_owned()] {
        let answer = ask(&gateway, "POST /header", Some(KEY), &header);
        assert_eq!(answer.summary(), too_old, "{header}");
    }
    assert_eq!(upstream.count(), 0);
    let key = uuid_v7(3500);
    assert_eq!(outcome(&ask(&gateway, "POST /key", Some(&key), "")), "executed");
    assert_eq!(outcome(&ask(&gateway, "POST /key", Some(&key), "")), "replayed");
    // The key was refused before and was not taken then.
    assert_eq!(outcome(&ask(&gateway, "POST /header", Some(KEY), &seconds(10))), "executed");
    assert_eq!(outcome(&ask(&gateway, "POST /header", Some(KEY), &seconds(0))), "replayed");
    // A client that comes back late for a reply that is kept gets it.
    assert_eq!(outcome(&ask(&gateway, "POST /header", Some(KEY), &seconds(3700))), "replayed");
    assert_eq!(upstream.count(), 2);
}

#[test]
fn no_spelling_of_a_path_leads_past_protection() {
    let upstream = Upstream::start(|_, _| ok("done"));
    let carved_out = "[[route]]\nmatch = \"POST /webhooks/**\"\nkey = \"off\"\n";
    let gateway = Gateway::with(upstream.address, carved_out);
    for path in [
        "/webhooks/..;/v1/charges",
        "/webhooks/..%2Fv1/charges",
        "/webhooks/..%5cv1/charges",
        "/v1/charges/../../webhooks/x",
    ] {
        let answer = ask(&gateway, &format!("POST {path}"), None, "");
        assert_eq!(answer.summary(), "400 idempotency_key_missing", "{path}");
    }
    assert_eq!(upstream.count(), 0);
    let hook = ask(&gateway, "POST /webhooks/bank/1", None, "");
    assert_eq!((hook.status, upstream.count()), (200, 1));
}

#[test]
fn upper_and_lower_case_lead_neither_past_protection_nor_out_of_it() {
    let upstream = Upstream::start(|_, _| ok("done"));
    let gateway = Gateway::with(
        upstream.address,
        "[defaults]\nkey = \"off\"\n[[route]]\nmatch = \"POST /v1/hooks\"\nkey = \"off\"\n\
         [[route]]\nmatch = \"POST /v1/**\"\nkey = \"required\"\n\
         [[route]]\nmatch = \"POST /API/Orders\"\nkey = \"required\"\n",
    );
    for path in
        ["/v1/charges", "/V1/charges", "/%561/Charges", "/x/..;/V1/c", "/api/orders", "/API/ORDERS"]
    {
        let answer = ask(&gateway, &format!("POST {path}"), None, "");
        assert_eq!(answer.summary(), "400 idempotency_key_missing", "{path}");
    }
    assert_eq!(upstream.count(), 0);
    // What is off by name is off in its other spellings too, and so is what no route is about.
    for path in ["/v1/hooks", "/V1/Hooks", "/other", "/Other"] {
        assert_eq!(ask(&gateway, &format!("POST {path}"), None, "").status, 200, "{path}");
    }
    assert_eq!(outcome(&ask(&gateway, "POST /V1/charges", Some(KEY), "")), "executed");
    let opposite = "[[route]]\nmatch = \"POST /hooks\"\nkey = \"off\"\n";
    let gateway = Gateway::with(upstream.address, opposite);
    let answer = ask(&gateway, "POST /HOOKS", None, "");
    assert_eq!(answer.summary(), "400 idempotency_key_missing", "another path may be meant");
    assert_eq!(ask(&gateway, "POST /hooks", None, "").status, 200);
}

/// A gateway with a header of every kind by which something is decided.
fn deciding(upstream: &Upstream) -> Gateway {
    Gateway::with(
        upstream.address,
        "[scope]\nfrom = \"header:X-Account\"\n[[route]]\nmatch = \"POST /v1/**\"\n\
         fingerprint_headers = [\"X-Version\"]\nmax_request_age = \"1h\"\n\
         max_request_age_header = \"X-Sent\"\n[[route]]\nmatch = \"POST /off\"\nkey = \"off\"\n",
    )
}

fn sent_now() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    format!("X-Account: acme\r\nX-Sent: {}\r\n", now.as_secs())
}

#[test]
fn connection_does_not_take_away_what_decides() {
    let upstream = Upstream::start(|_, _| ok("done"));
    let gateway = deciding(&upstream);
    for name in [
        "Idempotency-Key",
        "authorization",
        "X-Account",
        "X-VERSION",
        "x-sent",
        "Content-Length",
        "Host",
        "Onceward-Fence",
        "x-http-method-override",
        "close, keep-alive ,\tx-account",
    ] {
        for line in ["POST /v1/charges", "POST /off", "GET /v1/charges"] {
            let more = format!("{}Connection: {name}\r\n", sent_now());
            let answer = ask(&gateway, line, Some(KEY), &more);
            assert_eq!(answer.summary(), "400 idempotency_request_ambiguous", "{line} {name}");
        }
    }
    assert_eq!(upstream.count(), 0);
    let more = format!("{}Connection: x-hop\r\nX-Hop: 1\r\n", sent_now());
    assert_eq!(outcome(&ask(&gateway, "POST /v1/charges", Some(KEY), &more)), "executed");
    assert_eq!(upstream.seen()[0].header("x-hop"), None);
    assert_eq!(upstream.seen()[0].header("x-account"), Some("acme"));
}

#[test]
fn a_header_that_looks_like_one_that_decides_does_not_reach_upstream() {
    let upstream = Upstream::start(|_, _| ok("done"));
    let gateway = deciding(&upstream);
    let alike = "X_Account: evil\r\nX_Version: 9\r\nIdempotency_Key: other\r\n\
                 Onceward_Fence: 1\r\nX.Account: evil\r\nX_Mine: 1\r\n";
    ask(&gateway, "POST /off", None, alike);
    ask(&gateway, "POST /v1/charges", Some(KEY), &format!("{}{alike}", sent_now()));
    assert_eq!(upstream.count(), 2);
    for seen in upstream.seen() {
        let names = seen.headers.iter().map(|(name, _)| name.as_str());
        let names: Vec<&str> = names.filter(|name| name.contains(['_', '.'])).collect();
        assert_eq!(names, ["x_mine"], "{}", seen.line);
    }
}

#[test]
fn an_override_of_the_method_is_a_part_of_what_is_asked() {
    let upstream = Upstream::start(|_, _| ok("done"));
    let gateway = Gateway::before(upstream.address);
    for (number, name) in
        ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"].iter().enumerate()
    {
        let key = format!("{KEY}{number}");
        let delete = format!("{name}: DELETE\r\n");
        let line = "POST /charges";
        assert_eq!(outcome(&ask(&gateway, line, Some(&key), "")), "executed");
        let other = ask(&gateway, line, Some(&key), &delete);
        let mismatch = "422 idempotency_key_reused_with_different_payload";
        assert_eq!(other.summary(), mismatch, "{name}");
        assert_eq!(outcome(&ask(&gateway, line, Some(&key), "")), "replayed");
        let key = format!("{key}-delete");
        assert_eq!(outcome(&ask(&gateway, line, Some(&key), &delete)), "executed");
        assert_eq!(outcome(&ask(&gateway, line, Some(&key), &delete)), "replayed");
    }
    assert_eq!(upstream.seen()[1].header("x-http-method-override"), Some("DELETE"));
}

#[test]
fn a_method_that_is_protected_does_not_hide_behind_one_that_is_not() {
    let upstream = Upstream::start(|_, _| ok("done"));
    let off = "[[route]]\nmatch = \"POST /off\"\nkey = \"off\"\n";
    let gateway = Gateway::with(upstream.address, off);
    for line in ["GET /charges", "OPTIONS /charges", "PUT /charges", "DELETE /charges"] {
        for hidden in
            ["X-HTTP-Method-Override: POST", "x-http-method: patch", "X-Method-Override: a, Post"]
        {
            let answer = ask(&gateway, line, Some(KEY), &format!("{hidden}\r\n"));
            assert_eq!(answer.status, 400, "{line} {hidden}");
        }
    }
    assert_eq!(upstream.count(), 0);
    // What is not protected either may ask for it.
    for (line, hidden) in [("GET /charges", "GET"), ("GET /off", "POST"), ("PUT /x", "DELETE")] {
        let answer = ask(&gateway, line, None, &format!("X-HTTP-Method-Override: {hidden}\r\n"));
        assert_eq!(answer.status, 200, "{line} {hidden}");
    }
    assert_eq!(upstream.count(), 3);
}
