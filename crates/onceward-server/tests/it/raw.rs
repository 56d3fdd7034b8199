//! Bytes that mean two things. Whatever a client sends, upstream sees only requests that the gateway
//! has judged, each in a form that can be read in one way.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpStream},
    thread,
    time::Duration,
};

use http::StatusCode;
use onceward::rejection::Code;

use crate::support::{Connection, Gate, Gateway, Upstream, ok, post, send, until_not_ready};

mod corpus; // ways to lie about lengths
mod http2; // the same in frames
mod strict; // an upstream that believes nothing
mod ways; // ways in which the gateway answers
mod world; // the gateways that answer so

use corpus::{HIDDEN, framings};
use strict::Strict;
use ways::{WAYS, Way};
use world::World;

/// Silence that is taken for the end. What is still to come would only be found less often.
const SILENCE: Duration = Duration::from_millis(150);

/// What a body of `post` is said to be.
const TYPE: &str = "Content-Type: application/json\r\n";

/// Silence that is taken for no answer at all.
const PATIENCE: Duration = Duration::from_secs(2);

/// Sends bytes and reads what comes back until the end, or until it is silent.
fn exchange(to: SocketAddr, bytes: &[u8]) -> String {
    exchange_on(&mut TcpStream::connect(to).expect("connected"), bytes)
}

fn exchange_on(stream: &mut TcpStream, bytes: &[u8]) -> String {
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    // The gateway may close while we write.
    let _ = stream.write_all(bytes);
    let (mut said, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(read @ 1..) = stream.read(&mut buffer) {
        said.extend(&buffer[..read]);
        stream.set_read_timeout(Some(SILENCE)).expect("set");
    }
    let _ = stream.shutdown(Shutdown::Both);
    String::from_utf8_lossy(&said).into_owned()
}

/// The first status, however long it takes.
fn first_status(to: SocketAddr, bytes: &[u8]) -> u16 {
    let mut connection = Connection::open(to).expect("connected");
    connection.write(bytes).expect("written");
    connection.read_head().expect("an answer").status
}

#[test]
fn no_way_of_saying_how_long_a_body_is_brings_an_unjudged_request_to_upstream() {
    let gate = Gate::default();
    let upstream = Strict::start(gate.clone());
    let world = World::start(&upstream, &gate);
    let before = upstream.requests().len();
    let told: Vec<String> = thread::scope(|scope| {
        let trials = WAYS.iter().map(|way| {
            let to = world.address(way);
            scope.spawn(move || tried(way, to))
        });
        let trials: Vec<_> = trials.collect();
        trials.into_iter().map(|trial| trial.join().expect("no panic")).collect()
    });
    println!("{} ways, {} framings", WAYS.len(), framings().len());
    ways_are_all(&told);
    assert_eq!(upstream.findings(), Vec::<String>::new());
    let seen = upstream.requests().split_off(before);
    let smuggled: Vec<_> = seen.iter().filter(|(line, _)| line.contains("smuggled")).collect();
    assert!(smuggled.is_empty(), "{smuggled:?}");
    // Nothing that is protected got through, but a body that is small after all, once.
    let is_protected = |line: &str| line.starts_with("POST") && !line.contains("/shadow");
    let protected: Vec<&str> =
        seen.iter().filter(|(line, _)| is_protected(line)).map(|(_, key)| &**key).collect();
    assert_eq!(protected, ["small-0000000000001"]);
    for streamed in ["PUT /file", "POST /shadow"] {
        let passed = seen.iter().filter(|(line, _)| line.starts_with(streamed)).count();
        assert!(passed > 5, "most bodies can be read: {passed} of {streamed}");
    }
    gate.open();
    for (gateway, status) in world.gateways() {
        let alive = exchange(gateway.address, b"GET /alive HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(alive.starts_with(&format!("HTTP/1.1 {status}")), "{alive}");
    }
}

/// Says all that can be said about a body on one way. Status and code of what the first is answered.
fn tried(way: &Way, to: SocketAddr) -> String {
    let mut told = None;
    for (name, headers, body) in way.framings() {
        let request = way.request(&headers, &body);
        if name == "a plain length" {
            told = way.answers(to, &request);
            assert!(told.is_some(), "{}: not {}", way.name, way.status);
        }
        let said = exchange(to, request.as_bytes());
        // An answer to what is hidden would be its refusal.
        let answers: Vec<&str> =
            said.lines().filter(|line| line.starts_with("HTTP/1.1 ")).collect();
        assert!(answers.len() <= 2, "{}, {name}: {answers:?}", way.name);
        if let Some(second) = answers.get(1) {
            assert!(second.starts_with("HTTP/1.1 4"), "{}, {name}: {second}", way.name);
        }
    }
    told.expect("a plain length")
}

/// What the gateway answers itself and no way leads to, and why that is.
const NO_WAY: [(&str, &str); 3] = [
    ("REQUEST_TIMEOUT", "of a body that does not end, after which the connection is closed"),
    ("CONFLICT", "like a message that is taken: the whole body was read and signed"),
    ("UNPROCESSABLE_ENTITY", "the same"),
];

/// Every code that the gateway answers with was among these answers, and every status that it answers
/// with and has no words for.
fn ways_are_all(told: &[String]) {
    for code in Code::ALL {
        let is_told = told.iter().any(|told| told.ends_with(code.name()));
        assert!(is_told, "no way leads to {}: {told:?}", code.name());
    }
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/src/gateway");
    let mut texts = vec![fs::read_to_string(format!("{sources}.rs")).expect("a source")];
    for entry in fs::read_dir(sources).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_file() {
            texts.push(fs::read_to_string(path).expect("a source"));
        }
    }
    let answers = regex_lite::Regex::new(r"(?:bare|closing|later|Ok)\(StatusCode::([A-Z_]+)\)");
    let answers = answers.expect("a pattern");
    let found = texts.iter().flat_map(|text| answers.captures_iter(text));
    let names: BTreeSet<&str> = found.map(|found| found.get(1).expect("a name").as_str()).collect();
    assert!(names.len() > 8, "{names:?}");
    for name in names {
        let is_name = |status: &StatusCode| {
            let reason = status.canonical_reason().unwrap_or_default();
            reason.to_ascii_uppercase().replace(' ', "_") == name
        };
        let mut all = (100..600).filter_map(|number| StatusCode::from_u16(number).ok());
        let status = all.find(is_name).expect(name).as_u16();
        let is_told = told.contains(&format!("{status} -"));
        let has_reason = NO_WAY.iter().any(|(without, _)| *without == name);
        assert!(is_told != has_reason, "{name}: told {is_told}, named {has_reason}; {told:?}");
    }
}

/// While it drains a gateway takes no connection any more, but reads what comes on those that are open.
#[test]
fn no_way_of_saying_how_long_a_body_is_brings_an_unjudged_request_through_a_gateway_that_drains() {
    let gate = Gate::default();
    let upstream = Strict::start(gate.clone());
    let mut gateway = Gateway::before(upstream.address());
    let to = gateway.address;
    let done = "order-of-before-000001";
    assert_eq!(post(to, done, HIDDEN, &[]).status, 200);
    let held = thread::spawn(move || post(to, "held-while-it-drains", "{}", &[]));
    gate.reached_by(1);
    let head =
        |key: &str| format!("POST /charges HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {key}\r\n");
    let open = |(name, headers, body): (String, String, String), key: &str| {
        let mut stream = TcpStream::connect(to).expect("connected");
        stream.write_all(head(key).as_bytes()).expect("written");
        (name, stream, format!("{headers}\r\n{body}"))
    };
    let mut all: Vec<_> =
        framings().into_iter().map(|framing| open(framing, "fresh-0000000000001")).collect();
    let replayed = ("a replay".to_owned(), format!("Content-Length: {}\r\n", HIDDEN.len()));
    all.push(open((replayed.0, format!("{}{TYPE}", replayed.1), HIDDEN.to_owned()), done));
    // It takes connections one after the other.
    assert_eq!(post(to, done, HIDDEN, &[]).status, 200);
    gateway.signal("TERM");
    until_not_ready(&gateway);
    thread::scope(|scope| {
        for (name, mut stream, rest) in all {
            scope.spawn(move || {
                let said = exchange_on(&mut stream, rest.as_bytes());
                let expected = match &*name {
                    "a plain length" => "HTTP/1.1 503",
                    "a replay" => "HTTP/1.1 200",
                    _ => "",
                };
                assert!(said.starts_with(expected), "{name}: {said}");
                assert!(name == "a replay" || !said.contains("HTTP/1.1 2"), "{name}: {said}");
            });
        }
    });
    assert_eq!(upstream.findings(), Vec::<String>::new());
    let keys: Vec<String> = upstream.requests().into_iter().map(|(_, key)| key).collect();
    assert_eq!(keys, [done, "held-while-it-drains"]);
    gate.open();
    assert_eq!(held.join().expect("no panic").status, 200);
    assert_eq!(gateway.exit_status().code(), Some(0));
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
