//! Bytes that mean two things. Whatever a client sends, upstream sees only requests that the gateway
//! has judged, each in a form that can be read in one way.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpStream},
    thread,
    time::Duration,
};

use crate::support::{Connection, Gate, Gateway, Upstream, ok, post, send};

mod corpus; // ways to lie about lengths
mod strict; // an upstream that believes nothing

use corpus::{HIDDEN, framings};
use strict::Strict;

/// Silence that is taken for the end. What is still to come would only be found less often.
const SILENCE: Duration = Duration::from_millis(150);

/// Sends bytes and reads what comes back until the end, or until it is silent.
fn exchange(to: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(to).expect("connected");
    stream.set_read_timeout(Some(SILENCE)).expect("set");
    // The gateway may close while we write.
    let _ = stream.write_all(bytes);
    let (mut said, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(read @ 1..) = stream.read(&mut buffer) {
        said.extend(&buffer[..read]);
    }
    let _ = stream.shutdown(Shutdown::Both);
    String::from_utf8_lossy(&said).into_owned()
}

/// A way in which the gateway answers, as the first lines of a request.
struct Way {
    name: &'static str,
    head: &'static str,
    /// The first status for a body that can be read.
    status: &'static str,
}

const WAYS: [Way; 9] = [
    Way { name: "no key", head: "POST /charges HTTP/1.1\r\n", status: "400" },
    Way {
        name: "a malformed key",
        head: "POST /charges HTTP/1.1\r\nIdempotency-Key: short\r\n",
        status: "400",
    },
    Way {
        name: "no scope",
        head: "POST /charges HTTP/1.1\r\nIdempotency-Key: fresh-0000000000001\r\nNo-Scope: 1\r\n",
        status: "401",
    },
    Way {
        name: "a body that is too large",
        head: "POST /charges HTTP/1.1\r\nIdempotency-Key: large-0000000000001\r\n\
               Content-Type: x/large\r\n",
        status: "413",
    },
    Way {
        name: "a replay",
        head: "POST /charges HTTP/1.1\r\nIdempotency-Key: replay-000000000001\r\n",
        status: "200",
    },
    Way {
        name: "a conflict",
        head: "POST /charges HTTP/1.1\r\nIdempotency-Key: held-00000000000001\r\n",
        status: "409",
    },
    Way {
        name: "a mismatch",
        head: "POST /charges HTTP/1.1\r\nIdempotency-Key: other-0000000000001\r\n",
        status: "422",
    },
    Way { name: "a streamed body", head: "PUT /file HTTP/1.1\r\n", status: "200" },
    Way { name: "a method without a body", head: "GET /file HTTP/1.1\r\n", status: "200" },
];

const ACCOUNT: &str = "X-Account: acme\r\n";

fn request(way: &Way, headers: &str, body: &str) -> String {
    let account = if way.head.contains("No-Scope") { "" } else { ACCOUNT };
    format!("{}Host: x\r\n{account}{headers}\r\n{body}", way.head)
}

/// A gateway and the records that the ways need.
fn prepared(upstream: &Strict, gate: &Gate) -> (Gateway, Gateway) {
    let settings = "[scope]\nfrom = \"header:X-Account\"\n[limits]\nhead_timeout = \"5s\"\n";
    let gateway = Gateway::with(upstream.address(), settings);
    let small = format!("{settings}[defaults]\nrequest_bytes_max = 10\n");
    let small = Gateway::with(upstream.address(), &small);
    let to = gateway.address;
    let plain = |key: &str, body: &str| {
        format!(
            "POST /charges HTTP/1.1\r\nHost: x\r\n{ACCOUNT}Idempotency-Key: {key}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    for (key, body) in [("replay-000000000001", HIDDEN), ("other-0000000000001", "other")] {
        assert_eq!(send(to, &plain(key, body)).expect("answer").status, 200);
    }
    let held = plain("held-00000000000001", HIDDEN);
    thread::spawn(move || send(to, &held));
    gate.reached_by(1);
    (gateway, small)
}

#[test]
fn no_way_of_saying_how_long_a_body_is_brings_an_unjudged_request_to_upstream() {
    let gate = Gate::default();
    let upstream = Strict::start(gate.clone());
    let (gateway, small) = prepared(&upstream, &gate);
    let before = upstream.requests().len();
    let (corpus, large) = (framings(), small.address);
    thread::scope(|scope| {
        for way in &WAYS {
            let to = if way.status == "413" { large } else { gateway.address };
            let corpus = &corpus;
            scope.spawn(move || {
                for (name, headers, body) in corpus {
                    let said = exchange(to, request(way, headers, body).as_bytes());
                    if name == "a plain length" {
                        let first = said.split(' ').nth(1);
                        assert_eq!(first, Some(way.status), "{}: {said}", way.name);
                    }
                    // An answer to what is hidden would be its refusal.
                    let answers: Vec<&str> =
                        said.lines().filter(|line| line.starts_with("HTTP/1.1 ")).collect();
                    assert!(answers.len() <= 2, "{}, {name}: {answers:?}", way.name);
                    if let Some(second) = answers.get(1) {
                        assert!(second.starts_with("HTTP/1.1 4"), "{}, {name}: {second}", way.name);
                    }
                }
            });
        }
    });
    println!("{} ways, {} framings", WAYS.len(), corpus.len());
    assert_eq!(upstream.findings(), Vec::<String>::new());
    let seen = upstream.requests().split_off(before);
    let smuggled: Vec<_> = seen.iter().filter(|(line, _)| line.contains("smuggled")).collect();
    assert!(smuggled.is_empty(), "{smuggled:?}");
    // A body that is small after all runs, once. Nothing else that is protected got through.
    let protected: Vec<&str> =
        seen.iter().filter(|(line, _)| line.starts_with("POST")).map(|(_, key)| &**key).collect();
    assert_eq!(protected, ["large-0000000000001"]);
    assert!(seen.len() > WAYS.len(), "most streamed bodies can be read: {}", seen.len());
    gate.open();
    for gateway in [gateway, small] {
        let alive = exchange(gateway.address, b"GET /alive HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(alive.starts_with("HTTP/1.1 200"), "{alive}");
    }
}

#[test]
fn a_request_that_runs_reaches_upstream_in_one_clear_form() {
    let upstream = Strict::start(Gate::default());
    let gateway = Gateway::before(upstream.address());
    let mut executed = 0;
    for (number, (name, headers, body)) in framings().into_iter().enumerate() {
        let request = format!(
            "POST /charges HTTP/1.1\r\nHost: x\r\nIdempotency-Key: run-{number:016}\r\n{headers}\
             \r\n{body}"
        );
        let said = exchange(gateway.address, request.as_bytes());
        let ran = said.starts_with("HTTP/1.1 200");
        executed += usize::from(ran);
        assert_eq!(upstream.requests().len(), executed, "{name}: {said}");
    }
    assert_eq!(upstream.findings(), Vec::<String>::new());
    assert!(executed >= 5, "some of them are as they should be: {executed}");
    assert!(upstream.requests().iter().all(|(line, _)| line == "POST /charges HTTP/1.1"));
}

#[test]
fn heads_that_are_not_clear_are_refused_and_upstream_sees_none_of_them() {
    let upstream = Strict::start(Gate::default());
    let gateway = Gateway::before(upstream.address());
    for head in [
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        "GET / HTTP/1.1\r\n Host: a\r\n\r\n",
        "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /\tHTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1 x\r\nHost: a\r\n\r\n",
        "GET / HTTP/2.0\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.2\r\nHost: a\r\n\r\n",
        "GET /\r\n\r\n",
        "G<T / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX-\0: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n",
        "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ] {
        let said = exchange(gateway.address, head.as_bytes());
        let refused =
            said.is_empty() || said.starts_with("HTTP/1.1 4") || said.starts_with("HTTP/1.0 4");
        assert!(refused, "{head:?}: {said}");
    }
    assert_eq!(upstream.requests(), []);
    let clear = exchange(gateway.address, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(clear.starts_with("HTTP/1.1 200"), "{clear}");
    assert_eq!((upstream.requests().len(), upstream.findings()), (1, Vec::new()));
}

#[test]
fn an_absolute_address_decides_about_the_host_and_not_about_the_upstream() {
    let upstream = Upstream::start(|_, _| ok("done"));
    let gateway = Gateway::before(upstream.address);
    let get = "GET http://shop.example/a?b HTTP/1.1\r\nHost: other.example\r\n\r\n";
    assert_eq!(send(gateway.address, get).expect("answer").status, 200);
    let seen = &upstream.seen()[0];
    assert_eq!(seen.line, "GET /a?b HTTP/1.1");
    assert_eq!(seen.header("host"), Some("shop.example"));
}

#[test]
fn requests_on_one_connection_are_judged_one_after_the_other() {
    let upstream = Upstream::start(|number, _| ok(&format!("run {number}")));
    let gateway = Gateway::before(upstream.address);
    let key = "order-0000000000000001";
    let protected = crate::support::request(gateway.address, key, "{}", &[]);
    let refused = "POST /charges HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}";
    let get = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut connection = Connection::open(gateway.address).expect("connected");
    let all = [protected.as_str(), refused, &protected, get].concat();
    connection.write(all.as_bytes()).expect("written");
    let answers: Vec<_> = (0..4).map(|_| connection.read_answer().expect("answer")).collect();
    assert_eq!((answers[0].text(), answers[0].is_replay()), ("run 0", false));
    assert_eq!(answers[1].summary(), "400 idempotency_key_missing");
    assert_eq!((answers[2].text(), answers[2].is_replay()), ("run 0", true));
    assert_eq!(answers[3].text(), "run 1");
}

#[test]
fn a_body_that_breaks_off_is_never_executed() {
    let upstream = Upstream::start(|_, _| ok("done"));
    let gateway = Gateway::before(upstream.address);
    let key = "order-0000000000000001";
    for framing in
        ["Content-Length: 100\r\n\r\nhalf", "Transfer-Encoding: chunked\r\n\r\n8\r\nhalf"]
    {
        let head = "POST /charges HTTP/1.1\r\nHost: x\r\n";
        let mut stream = TcpStream::connect(gateway.address).expect("connected");
        let request = format!("{head}Idempotency-Key: {key}\r\n{framing}");
        stream.write_all(request.as_bytes()).expect("written");
        stream.shutdown(Shutdown::Write).expect("half closed");
        let mut said = String::new();
        let _ = stream.read_to_string(&mut said);
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 400"), "{said}");
    }
    assert_eq!(upstream.count(), 0);
    let whole = post(gateway.address, key, "{}", &[]);
    assert_eq!((whole.status, whole.is_replay()), (200, false));
}
