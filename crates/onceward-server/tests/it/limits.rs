//! What clients may take up: time, headers, connections, memory.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use crate::support::{
    Act, Connection, Gate, Gateway, LONGEST, Upstream, eventually,
    frames::{self, Frames, GOAWAY, HEADERS, RST_STREAM},
    get, ok, post, request, response, send,
};

const KEY: &str = "order-0000000000000001";
const GET: &str = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";

/// Writes bytes and reads until the gateway closes the connection.
fn until_closed(to: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(to).expect("connected");
    stream.set_read_timeout(Some(LONGEST)).expect("set");
    // It may be closed before all is written.
    let _ = stream.write_all(bytes);
    let mut said = Vec::new();
    if let Err(error) = stream.read_to_end(&mut said) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "it was not closed");
    }
    String::from_utf8_lossy(&said).into_owned()
}

#[test]
fn a_client_that_sends_its_head_too_slowly_is_cut_off() {
    let upstream = Upstream::start(|_, _| ok("done"));
    let gateway = Gateway::with(upstream.address, "[limits]\nhead_timeout = \"500ms\"\n");
    let begun = Instant::now();
    for half in ["", "G", "PRI * HTTP/2.0\r\n", "GET / HTTP/1.1\r\nHost: x\r\nX-A: "] {
        assert!(!until_closed(gateway.address, half.as_bytes()).contains("200"), "{half}");
    }
    assert!(begun.elapsed() < LONGEST);
    // A byte now and then does not help.
    let mut dripping = TcpStream::connect(gateway.address).expect("connected");
    dripping.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n").expect("written");
    eventually("the end of patience", || {
        thread::sleep(Duration::from_millis(50));
        (dripping.write_all(b"X-A: 1\r\n").is_err()).then_some(())
    });
    assert_eq!(upstream.count(), 0);
    assert_eq!(send(gateway.address, GET).expect("answer").status, 200);
}

#[test]
fn an_address_that_makes_up_credentials_asks_for_states_no_more_than_others() {
    let upstream = Upstream::start(|_, _| ok("done"));
    let gateway = Gateway::with(upstream.address, "[scope]\nfrom = \"authorization\"\n");
    let mut connection = Connection::open(gateway.address).expect("connected");
    let mut ask = |from: &str, caller: usize| {
        let asked = format!(
            "GET /.onceward/operations/{KEY} HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: {from}\r\n\
             Authorization: Bearer made-up-{caller}\r\n\r\n"
        );
        connection.write(asked.as_bytes()).expect("written");
        connection.read_answer().expect("an answer").status
    };
    let refused = (0..1000).find(|caller| ask("203.0.113.7", *caller) == 429);
    assert!(refused.is_some_and(|after| after >= 200), "{refused:?}");
    assert_eq!(ask("203.0.113.8", 0), 404);
    assert_eq!(upstream.count(), 0);
}

#[test]
fn a_body_that_comes_too_slowly_is_answered_with_408_and_not_executed() {
    let upstream = Upstream::start(|_, _| ok("done"));
    let limits = "[limits]\nbody_timeout = \"500ms\"\nstall_timeout = \"500ms\"\n";
    let gateway = Gateway::with(upstream.address, limits);
    for head in
        [format!("POST / HTTP/1.1\r\nIdempotency-Key: {KEY}\r\n"), "PUT / HTTP/1.1\r\n".into()]
    {
        let request = format!("{head}Host: x\r\nContent-Length: 10\r\n\r\nhalf");
        let said = until_closed(gateway.address, request.as_bytes());
        assert!(said.starts_with("HTTP/1.1 408"), "{head}: {said}");
    }
    assert_eq!(upstream.count(), 0);
    assert_eq!(post(gateway.address, KEY, "{}", &[]).text(), "done");
}

#[test]
fn heads_that_are_too_large_are_431_and_reach_nobody() {
    let upstream = Upstream::start(|_, _| ok("done"));
    let gateway = Gateway::before(upstream.address);
    let many = |count: usize| {
        let lines: String = (0..count).map(|number| format!("X-{number}: 1\r\n")).collect();
        format!("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{lines}\r\n")
    };
    for head in [
        many(10_000),
        many(120),
        format!("GET / HTTP/1.1\r\nHost: x\r\nX-Long: {}\r\n\r\n", "a".repeat(100_000)),
        format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(70_000)),
    ] {
        let said = until_closed(gateway.address, head.as_bytes());
        let refused = said.is_empty() || said.starts_with("HTTP/1.1 431") || said.contains(" 414 ");
        assert!(refused, "{said}");
    }
    assert_eq!(upstream.count(), 0);
    assert!(until_closed(gateway.address, many(80).as_bytes()).starts_with("HTTP/1.1 200"));
    println!("memory after 10,000 headers: {} KiB", gateway.memory_peak());
}

#[test]
fn one_connection_more_than_the_limit_is_closed_and_the_others_work() {
    let upstream = Upstream::start(|_, _| ok("done"));
    let gateway = Gateway::with(upstream.address, "[limits]\nconnections = 2\n");
    let ask = |connection: &mut Connection| {
        connection.write(GET.as_bytes())?;
        connection.read_answer()
    };
    let open = || Connection::open(gateway.address).expect("connected");
    let (mut first, mut second) = (open(), open());
    for connection in [&mut first, &mut second] {
        assert_eq!(ask(connection).expect("answer").status, 200);
    }
    assert!(ask(&mut open()).is_err());
    assert_eq!(ask(&mut first).expect("answer").status, 200);
    drop(second);
    eventually("a free place", || ask(&mut open()).ok());
}

#[test]
fn bodies_take_no_more_memory_together_than_the_limit() {
    let gate = Gate::default();
    let at_gate = gate.clone();
    let upstream = Upstream::start(move |_, _| {
        Act::SendLater(Vec::new(), at_gate.clone(), response(200, "", "done"))
    });
    let gateway = Gateway::with(upstream.address, "[limits]\nbuffered_bytes = 20000\n");
    let to = gateway.address;
    let body = "x".repeat(11_000);
    let first = {
        let body = body.clone();
        thread::spawn(move || post(to, KEY, &body, &[]))
    };
    gate.reached_by(1);
    let refused = post(to, "order-0000000000000002", &body, &[]);
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    let small = thread::spawn(move || post(to, "order-0000000000000003", "{}", &[]));
    gate.reached_by(2);
    gate.open();
    assert_eq!(first.join().expect("no panic").text(), "done");
    assert_eq!(small.join().expect("no panic").text(), "done");
    let retry = post(to, "order-0000000000000002", &body, &[]);
    assert_eq!((retry.status, retry.is_replay()), (200, false), "nothing was stored for it");
}

/// A gateway with room for one reply of [`LARGE`] bytes, and a little more.
fn with_room_for_one_reply(upstream: &Upstream) -> Gateway {
    Gateway::with(
        upstream.address,
        &format!(
            "[limits]\nbuffered_bytes = {}\n[defaults]\nreply_bytes_max = {}\nmax_execution = \
             \"4s\"\n",
            LARGE + (1 << 20),
            2 * LARGE
        ),
    )
}

/// More than the buffers of both sockets hold.
const LARGE: usize = 24 << 20;

#[test]
fn replies_take_no_more_memory_together_than_the_limit_and_none_runs_twice_for_it() {
    let large = "y".repeat(LARGE);
    let expected = large.clone();
    let upstream = Upstream::start(move |_, seen| match &seen.body[..] {
        b"\"chunked\"" => {
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            Act::Send(format!("{head}{LARGE:x}\r\n{large}\r\n0\r\n\r\n").into())
        }
        _ => Act::Send(response(200, "", &large)),
    });
    let gateway = with_room_for_one_reply(&upstream);
    let to = gateway.address;
    assert_eq!(post(to, "order-stored-0000001", "{}", &[]).body.len(), LARGE);
    // It is sent, and its client does not read it.
    let mut lazy = Connection::open(to).expect("connected");
    lazy.write(request(to, KEY, "{}", &[]).as_bytes()).expect("written");
    assert_eq!(lazy.read_head().expect("head").status, 200);
    for (key, body) in [("order-2-000000000001", "{}"), ("order-3-000000000001", "\"chunked\"")] {
        let executed = post(to, key, body, &[]);
        assert_eq!((executed.status, executed.header("onceward-outcome")), (200, Some("executed")));
        assert!(executed.text() == expected, "all of it, as it came");
        let retry = post(to, key, body, &[]);
        assert_eq!(retry.summary(), "410 idempotency_reply_not_stored");
    }
    let replay = post(to, "order-stored-0000001", "{}", &[]);
    assert_eq!((replay.status, replay.header("retry-after")), (503, Some("1")));
    assert_eq!(upstream.count(), 4);
    drop(lazy);
    eventually("room again", || {
        let replay = post(to, "order-stored-0000001", "{}", &[]);
        (replay.is_replay() && replay.text() == expected).then_some(())
    });
    assert!(post(to, KEY, "{}", &[]).is_replay());
    assert_eq!(upstream.count(), 4);
}

#[test]
fn a_shadow_route_without_room_passes_its_requests_and_does_not_look() {
    let upstream = Upstream::start(|_, _| ok("done"));
    let shadow = "[limits]\nbuffered_bytes = 20000\n[defaults]\nkey = \"shadow\"\n";
    let gateway = Gateway::with(upstream.address, shadow);
    let to = gateway.address;
    let counted = || {
        let metrics = get(gateway.admin, "/metrics").text().to_owned();
        let name = "onceward_shadow_total{route=\"default\",would=\"execute\"} ";
        let count = metrics.lines().find_map(|line| line.strip_prefix(name));
        count.and_then(|count| count.parse::<u32>().ok()).expect("counted")
    };
    let mut slow = Connection::open(to).expect("connected");
    let whole = request(to, KEY, &"x".repeat(15_000), &["Expect: 100-continue"]);
    let (head, body) = whole.split_at(whole.len() - 15_000);
    slow.write(head.as_bytes()).expect("written");
    // It has its room when its body is wanted.
    assert_eq!(slow.read_head().expect("consent").status, 100);
    slow.write(&body.as_bytes()[1..]).expect("written");
    assert_eq!(post(to, "order-0000000000000002", &"x".repeat(9_000), &[]).status, 200);
    assert_eq!((counted(), upstream.count()), (0, 1));
    slow.write(b"x").expect("written");
    assert_eq!(slow.read_answer().expect("answer").status, 200);
    assert_eq!(counted(), 1, "with room it looks");
}

#[test]
fn the_rest_of_a_reply_that_is_too_large_has_to_keep_moving() {
    let gate = Gate::default();
    let at_gate = gate.clone();
    let upstream = Upstream::start(move |_, _| {
        let whole = response(200, "", &"y".repeat(4000));
        Act::SendLater(whole[..3000].to_vec(), at_gate.clone(), whole[3000..].to_vec())
    });
    let limits = "[limits]\nstall_timeout = \"500ms\"\n[defaults]\nreply_bytes_max = 1000\n";
    let gateway = Gateway::with(upstream.address, limits);
    let said = until_closed(gateway.address, request(gateway.address, KEY, "{}", &[]).as_bytes());
    assert!(said.starts_with("HTTP/1.1 200") && said.ends_with('y'), "its beginning came");
    let retry = post(gateway.address, KEY, "{}", &[]);
    assert_eq!(retry.summary(), "410 idempotency_reply_not_stored");
    assert_eq!(upstream.count(), 1);
    gate.open();
}

#[test]
fn memory_stays_bounded_under_many_large_and_broken_bodies() {
    let upstream = Upstream::start(|_, _| ok("done"));
    let gateway = Gateway::with(upstream.address, "[limits]\nbuffered_bytes = 8388608\n");
    let before = gateway.memory_peak();
    let (to, part) = (gateway.address, "x".repeat(1 << 19));
    // Each has sent half of what it promised, and stays.
    let halves: Vec<TcpStream> = (0..100)
        .map(|number| {
            let mut stream = TcpStream::connect(to).expect("connected");
            let head = request(to, &format!("order-{number:016}"), "", &[]);
            let head = head.replace("Content-Length: 0", "Content-Length: 1048576");
            let _ = stream.write_all(head.as_bytes());
            let _ = stream.write_all(part.as_bytes());
            stream
        })
        .collect();
    // Bodies far over the cap, one after the other.
    let large = "y".repeat(4 << 20);
    for number in 0..20 {
        let said = until_closed(
            to,
            request(to, &format!("large-{number:016}"), &large, &["Connection: close"]).as_bytes(),
        );
        assert!(said.starts_with("HTTP/1.1 413") || said.starts_with("HTTP/1.1 503"), "{said}");
    }
    let after = gateway.memory_peak();
    println!("VmHWM before {before} KiB, after {after} KiB");
    assert!(after < before + (64 << 10), "before {before} KiB, after {after} KiB");
    drop(halves);
    eventually("room again", || {
        (post(to, KEY, &"z".repeat(1 << 19), &[]).status == 200).then_some(())
    });
}

#[test]
fn memory_stays_bounded_in_a_storm_and_comes_back_after_it() {
    let upstream = Upstream::start(|_, _| ok("done"));
    let limits = "[limits]\nbuffered_bytes = 8388608\nconnections = 1000\n";
    let gateway = Gateway::with(upstream.address, limits);
    let to = gateway.address;
    assert_eq!(send(to, GET).expect("answer").status, 200);
    let before = gateway.memory_now();
    let open = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(to).expect("connected");
        stream.set_nonblocking(true).expect("set");
        // Whatever the gateway takes of it.
        let _ = stream.write_all(bytes);
        stream
    };
    let start = "GET / HTTP/1.1\r\nHost: x\r\n";
    let chunked = "POST /charges HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n";
    let lines: String = (0..10_000).map(|number| format!("X-{number}: 1\r\n")).collect();
    let storm = [
        // Heads that never end, each as large as one may be.
        (300, format!("{start}X-A: {}", "a".repeat(60_000))),
        (100, format!("{start}{lines}")),
        // Sizes of chunks, extensions and trailers that never end.
        (50, format!("{chunked}Idempotency-Key: {KEY}\r\n\r\n1;{}", "e".repeat(500_000))),
        (50, format!("{chunked}Idempotency-Key: {KEY}\r\n\r\n0\r\nX: {}", "t".repeat(500_000))),
        // Far more requests than anybody reads the answers of.
        (50, format!("{start}\r\n").repeat(5_000)),
        (50, request(to, KEY, "{}", &[]).repeat(2_000)),
    ];
    let mut all: Vec<TcpStream> = Vec::new();
    for (count, bytes) in &storm {
        all.extend((0..*count).map(|_| open(bytes.as_bytes())));
    }
    // It still works, and what it takes is read while all of them are there.
    assert_eq!(post(to, "order-0000000000000002", "{}", &[]).status, 200);
    let during = gateway.memory_now();
    drop(all);
    eventually("room for all again", || {
        let places: Vec<_> = (0..900).map(|_| Connection::open(to).ok()).collect();
        let mut last = places.into_iter().next_back()??;
        last.write(GET.as_bytes()).ok()?;
        last.read_answer().ok().filter(|answer| answer.status == 200)
    });
    let (after, peak) = (gateway.memory_now(), gateway.memory_peak());
    println!("KiB before {before}, during {during}, after {after}, at most {peak}");
    // 600 connections with a head of 64 KiB each are 37.5 MiB.
    assert!(peak < before + (96 << 10), "before {before} KiB, at most {peak} KiB");
    assert!(after < before + (64 << 10), "before {before} KiB, after {after} KiB");
}

#[test]
fn a_client_that_resets_streams_as_fast_as_it_can_is_sent_away() {
    let upstream = Upstream::start(|_, _| ok("done"));
    let gateway = Gateway::before(upstream.address);
    let get = frames::get("http", "x");
    let stream = TcpStream::connect(gateway.address).expect("connected");
    stream.set_read_timeout(Some(LONGEST)).expect("set");
    let mut reader = Frames::reading(stream.try_clone().expect("duplicate"));
    let mut client = Frames::open(stream).expect("written");
    let flood = thread::spawn(move || {
        let mut number: u32 = 1;
        // In bursts, so that they arrive together.
        while number < 2_000_000 {
            let mut burst = Vec::new();
            for _ in 0..500 {
                burst.extend(frames::frame(HEADERS, 5, number, &get));
                burst.extend(frames::frame(RST_STREAM, 0, number, &8_u32.to_be_bytes()));
                number += 2;
            }
            if client.write_raw(&burst).is_err() {
                break;
            }
        }
        number
    });
    let sent_away = std::iter::from_fn(|| reader.read().ok()).any(|frame| frame.kind == GOAWAY);
    drop(reader);
    let streams = flood.join().expect("no panic") / 2;
    println!("sent away: {sent_away}, after {streams} streams, {} KiB", gateway.memory_peak());
    assert!(sent_away, "after {streams} streams");
    assert!(streams < 1_000_000);
    assert_eq!(send(gateway.address, GET).expect("answer").status, 200);
}

#[test]
fn a_head_that_never_ends_is_not_collected_in_http_2() {
    const CONTINUATION: u8 = 9;
    let upstream = Upstream::start(|_, _| ok("done"));
    let gateway = Gateway::before(upstream.address);
    let stream = TcpStream::connect(gateway.address).expect("connected");
    let mut client = Frames::open(stream).expect("written");
    client.write(HEADERS, 1, 1, &frames::get("http", "x")).expect("written");
    // A literal header that is not indexed, of 100 bytes, again and again.
    let header = [&[0, 1, b'x', 100][..], &[b'a'; 100]].concat().repeat(100);
    let mut sent = 0;
    while sent < (64 << 20) && client.write(CONTINUATION, 0, 1, &header).is_ok() {
        sent += header.len();
    }
    println!("cut off after {} KiB, {} KiB in memory", sent >> 10, gateway.memory_peak());
    assert!(sent < (64 << 20));
    assert_eq!(upstream.count(), 0);
    assert_eq!(send(gateway.address, GET).expect("answer").status, 200);
}

#[test]
fn an_answer_that_its_client_does_not_take_is_given_up() {
    let large = "y".repeat(8 << 20);
    let upstream = Upstream::start(move |_, _| Act::Send(response(200, "", &large)));
    let limits = "[limits]\nstall_timeout = \"500ms\"\nconnections = 1\n";
    let gateway = Gateway::with(upstream.address, limits);
    let mut lazy = Connection::open(gateway.address).expect("connected");
    lazy.write(GET.as_bytes()).expect("written");
    // Its place is free again, though it is still there and has read nothing.
    eventually("a free place", || {
        let mut other = Connection::open(gateway.address).ok()?;
        other.write(GET.as_bytes()).ok()?;
        other.read_head().ok().filter(|head| head.status == 200)
    });
    drop(lazy);
}
