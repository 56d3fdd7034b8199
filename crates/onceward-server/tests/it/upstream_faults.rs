//! Upstreams that fail in every way. The question each time: is it known that nothing was done, and
//! how often did upstream see the request?

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use crate::support::{
    Act, Gate, Gateway, Home, Upstream, eventually, nowhere, ok, on_each_store, post, response,
    send,
    tls::{self, Authority},
};

const KEY: &str = "order-0000000000000001";
const UNKNOWN: &str = "409 idempotency_outcome_unknown";

on_each_store!(
    an_upstream_that_refuses_connections_has_not_acted_and_a_retry_runs,
    an_error_of_the_service_itself_is_passed_on_and_a_retry_runs,
    an_error_of_a_service_with_external_effects_is_unknown,
    an_answer_that_may_hide_an_execution_is_unknown_and_never_sent_again,
    a_connection_that_is_reset_after_bytes_were_written_is_unknown,
    a_connection_that_is_reset_in_the_middle_of_an_answer_is_unknown,
    an_upstream_that_is_too_slow_is_unknown_until_its_answer_comes_after_all,
    upstream_may_say_itself_whether_it_acted,
);

fn an_upstream_that_refuses_connections_has_not_acted_and_a_retry_runs(home: &Home) {
    let address = nowhere();
    let gateway = Gateway::with(address, &home.settings(""));
    let refused = post(gateway.address, KEY, "{}", &[]);
    assert_eq!(refused.summary(), "502 idempotency_upstream_unreachable");
    assert!(refused.header("retry-after").is_some());
    assert!(refused.text().contains("\"retry\":\"same_key\""), "{}", refused.text());

    let listener = TcpListener::bind(address).expect("the same port");
    let upstream = Upstream::on(listener, |_, _| ok("done"));
    let retry = post(gateway.address, KEY, "{}", &[]);
    assert_eq!((retry.status, retry.text()), (200, "done"));
    assert!(!retry.is_replay());
    assert_eq!(upstream.seen()[0].header("onceward-attempt"), Some("2"));
    assert!(post(gateway.address, KEY, "{}", &[]).is_replay());
    assert_eq!(upstream.count(), 1);
}

fn an_error_of_the_service_itself_is_passed_on_and_a_retry_runs(home: &Home) {
    let upstream = Upstream::start(|number, _| match number {
        0 => Act::Send(response(500, "", "broken")),
        1 => Act::Send(response(503, "", "busy")),
        _ => ok("done"),
    });
    let gateway = home.gateway(&upstream, "");
    let answers = [0; 4].map(|_| post(gateway.address, KEY, "{}", &[]));
    assert_eq!(answers.each_ref().map(|answer| answer.status), [500, 503, 200, 200]);
    assert_eq!(answers[0].text(), "broken");
    assert_eq!(answers[0].header("onceward-outcome"), Some("not_executed"));
    assert!(answers[3].is_replay());
    let attempts: Vec<_> = upstream
        .seen()
        .iter()
        .map(|seen| seen.header("onceward-attempt").map(str::to_owned))
        .collect();
    assert_eq!(attempts, [None, Some("2".to_owned()), Some("3".to_owned())]);
}

fn an_error_of_a_service_with_external_effects_is_unknown(home: &Home) {
    let upstream = Upstream::start(|_, _| Act::Send(response(500, "", "broken")));
    let gateway = home.gateway(&upstream, "[defaults]\neffects = \"external\"");
    let first = post(gateway.address, KEY, "{}", &[]);
    assert_eq!(first.summary(), "502 idempotency_outcome_unknown");
    assert_eq!(post(gateway.address, KEY, "{}", &[]).summary(), UNKNOWN);
    assert_eq!(upstream.count(), 1);
}

fn an_answer_that_may_hide_an_execution_is_unknown_and_never_sent_again(home: &Home) {
    let head = "HTTP/1.1 200 OK\r\n";
    let faults = [
        ("502", response(502, "", ""), "502"),
        ("504", response(504, "", ""), "504"),
        ("no answer", Vec::new(), "502"),
        ("half a head", format!("{head}Conte").into(), "502"),
        ("a lying length", format!("{head}Content-Length: 100\r\n\r\nshort").into(), "502"),
        (
            "a truncated chunked body",
            format!("{head}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n").into(),
            "502",
        ),
        ("not HTTP", b"SSH-2.0-OpenSSH\r\n".to_vec(), "502"),
        (
            "two lengths that differ",
            format!("{head}Content-Length: 2\r\nContent-Length: 5\r\n\r\nhello").into(),
            "502",
        ),
        (
            "a chunk of no size",
            format!("{head}Transfer-Encoding: chunked\r\n\r\nxyz\r\nhello\r\n").into(),
            "502",
        ),
    ];
    for (number, (name, bytes, status)) in faults.into_iter().enumerate() {
        let (key, other) = (format!("order-{number:016}"), format!("other-{number:016}"));
        let closed = Gate::default();
        let at_close = closed.clone();
        let upstream =
            Upstream::start(move |_, _| Act::SendAndClose(bytes.clone(), at_close.clone()));
        let gateway = home.gateway(&upstream, "");
        let first = post(gateway.address, &key, "{}", &[]);
        assert_eq!(first.summary(), format!("{status} idempotency_outcome_unknown"), "{name}");
        assert_eq!(first.header("onceward-outcome"), Some("unknown"), "{name}");
        let retry = post(gateway.address, &key, "{}", &[]);
        assert_eq!(retry.summary(), UNKNOWN, "{name}");
        assert!(retry.header("retry-after").is_some(), "{name}");
        assert_eq!(upstream.count(), 1, "{name}");
        // A connection that is about to close could swallow the next request.
        closed.pass();
        // The other twin: under a key of its own, the same request goes out.
        post(gateway.address, &other, "{}", &[]);
        assert_eq!(upstream.count(), 2, "{name}");
    }
}

fn a_connection_that_is_reset_after_bytes_were_written_is_unknown(home: &Home) {
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    let upstream = Upstream::of_connections(move |_, mut stream| {
        counted.fetch_add(1, Ordering::SeqCst);
        let mut first = [0; 1];
        let _ = stream.read_exact(&mut first);
        // Closing a socket with unread bytes resets the connection.
        drop(stream);
    });
    let gateway = home.gateway(&upstream, "");
    let first = post(gateway.address, KEY, "{\"amount\":1}", &[]);
    assert_eq!(first.summary(), "502 idempotency_outcome_unknown");
    assert_eq!(post(gateway.address, KEY, "{\"amount\":1}", &[]).summary(), UNKNOWN);
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

fn a_connection_that_is_reset_in_the_middle_of_an_answer_is_unknown(home: &Home) {
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    let upstream = Upstream::of_connections(move |_, mut stream| {
        counted.fetch_add(1, Ordering::SeqCst);
        let mut first = [0; 1];
        let _ = stream.read_exact(&mut first);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf");
        drop(stream);
    });
    let gateway = home.gateway(&upstream, "");
    let first = post(gateway.address, KEY, "{\"amount\":1}", &[]);
    assert_eq!(first.summary(), "502 idempotency_outcome_unknown");
    assert_eq!(post(gateway.address, KEY, "{\"amount\":1}", &[]).summary(), UNKNOWN);
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[test]
fn an_answer_that_ends_with_its_connection_is_whole_if_that_was_closed_and_unknown_if_it_was_reset()
{
    for version in ["HTTP/1.1", "HTTP/1.0"] {
        let answer = format!("{version} 200 OK\r\nContent-Type: text/plain\r\n\r\nhello");
        let bytes = answer.clone();
        let closing =
            Upstream::start(move |_, _| Act::SendAndClose(bytes.clone().into(), Gate::default()));
        let gateway = Gateway::before(closing.address);
        let first = post(gateway.address, KEY, "{}", &[]);
        assert_eq!((first.status, first.text()), (200, "hello"), "{version}");
        let replay = post(gateway.address, KEY, "{}", &[]);
        assert_eq!((replay.is_replay(), replay.text()), (true, "hello"), "{version}");
        assert_eq!(closing.count(), 1);

        let resetting = Upstream::of_connections(move |_, mut stream| {
            let _ = stream.read_exact(&mut [0; 1]);
            let _ = stream.write_all(answer.as_bytes());
            // With unread bytes, which makes it a reset.
            drop(stream);
        });
        let gateway = Gateway::before(resetting.address);
        let first = post(gateway.address, KEY, "{\"amount\":1}", &[]);
        assert_eq!(first.summary(), "502 idempotency_outcome_unknown", "{version}");
        assert_eq!(post(gateway.address, KEY, "{\"amount\":1}", &[]).summary(), UNKNOWN);
    }
}

#[test]
fn under_tls_an_answer_that_ends_with_its_connection_is_whole_only_with_a_close_notify() {
    let authority = Authority::new();
    authority.issue("upstream");
    for (notifies, expected, again) in
        [(true, "200 -", "200 -"), (false, "502 idempotency_outcome_unknown", UNKNOWN)]
    {
        let server = authority.server("upstream", &["http/1.1"], false);
        let upstream = Upstream::of_connections(move |_, stream| {
            let Some(mut stream) = tls::accept(&server, stream) else { return };
            let mut asked = Vec::new();
            while !asked.ends_with(b"{}") {
                let mut some = [0; 1024];
                let read = stream.read(&mut some).expect("a request");
                asked.extend_from_slice(&some[..read]);
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nhello").expect("written");
            if notifies {
                stream.conn.send_close_notify();
            }
            stream.flush().expect("written");
            let _ = stream.sock.shutdown(std::net::Shutdown::Write);
        });
        let settings =
            format!("[upstream]\nca_file = \"{}\"\n", authority.path("ca.crt").display());
        let gateway = Gateway::before_url(&format!("https://{}", upstream.address), &settings);
        assert_eq!(post(gateway.address, KEY, "{}", &[]).summary(), expected);
        let retry = post(gateway.address, KEY, "{}", &[]);
        assert_eq!((retry.summary().as_str(), retry.is_replay()), (again, notifies));
    }
}

fn an_upstream_that_is_too_slow_is_unknown_until_its_answer_comes_after_all(home: &Home) {
    let gate = Gate::default();
    let at_gate = gate.clone();
    let upstream = Upstream::start(move |_, _| {
        Act::SendLater(Vec::new(), at_gate.clone(), response(200, "", "late"))
    });
    let gateway = home.gateway(&upstream, "[defaults]\nmax_execution = \"2s\"");
    let begun = Instant::now();
    let first = post(gateway.address, KEY, "{}", &[]);
    assert_eq!(first.summary(), "504 idempotency_outcome_unknown");
    assert!(begun.elapsed() >= Duration::from_secs(2));
    assert_eq!(post(gateway.address, KEY, "{}", &[]).summary(), UNKNOWN);
    gate.open();
    let late = eventually("the late answer", || {
        let retry = post(gateway.address, KEY, "{}", &[]);
        retry.is_replay().then_some(retry)
    });
    assert_eq!((late.status, late.text()), (200, "late"));
    assert_eq!(upstream.count(), 1);
}

#[test]
fn a_kept_alive_connection_is_used_again() {
    let upstream = Upstream::start(|_, _| ok("done"));
    let gateway = Gateway::before(upstream.address);
    for key in ["order-0000000000000001", "order-0000000000000002"] {
        assert_eq!(post(gateway.address, key, "{}", &[]).status, 200);
    }
    let connections: Vec<usize> = upstream.seen().iter().map(|seen| seen.connection).collect();
    assert_eq!(connections, [0, 0]);
}

/// Longer than a connection is kept for the next request, and shorter than upstreams keep theirs. It has
/// to pass: clocks of another process cannot be set.
pub(crate) const TOO_LONG: Duration = Duration::from_millis(2_200);

#[test]
fn a_kept_alive_connection_that_was_idle_for_two_seconds_is_not_used_again() {
    let upstream = Upstream::start(|_, _| ok("done"));
    let gateway = Gateway::before(upstream.address);
    let get = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    for round in 0..2 {
        let key = format!("order-{round:016}");
        assert_eq!(post(gateway.address, &key, "{}", &[]).status, 200);
        assert_eq!(send(gateway.address, get).expect("an answer").status, 200);
        std::thread::sleep(TOO_LONG);
    }
    // Upstream has closed none of them, and would take more on each.
    let connections: Vec<usize> = upstream.seen().iter().map(|seen| seen.connection).collect();
    assert_eq!(connections, [0, 0, 1, 1]);
}

#[test]
fn a_kept_alive_connection_that_upstream_closed_is_replaced_by_a_new_one() {
    let rounds = 20;
    let closed: Vec<Gate> = (0..rounds).map(|_| Gate::default()).collect();
    let gates = closed.clone();
    let upstream = Upstream::start(move |number, _| {
        Act::SendAndClose(response(200, "", "done"), gates[number].clone())
    });
    let gateway = Gateway::before(upstream.address);
    for (round, closed) in closed.iter().enumerate() {
        let answer = post(gateway.address, &format!("order-00000000000000{round:02}"), "{}", &[]);
        assert_eq!((answer.status, answer.text()), (200, "done"), "round {round}");
        // Comes back at once when the connection is closed.
        closed.pass();
    }
    let attempts = upstream.seen();
    assert_eq!(attempts.len(), rounds);
    assert!(attempts.iter().all(|seen| seen.header("onceward-attempt").is_none()));
}

fn upstream_may_say_itself_whether_it_acted(home: &Home) {
    let upstream = Upstream::start(|number, _| match number {
        0 => Act::Send(response(409, "Onceward-Executed: no\r\n", "locked")),
        _ => Act::Send(response(200, "Onceward-Executed: maybe\r\n", "")),
    });
    let gateway = home.gateway(&upstream, "");
    let first = post(gateway.address, KEY, "{}", &[]);
    assert_eq!((first.status, first.text()), (409, "locked"));
    assert_eq!(first.header("onceward-executed"), None);
    let second = post(gateway.address, KEY, "{}", &[]);
    assert_eq!(second.summary(), "502 idempotency_outcome_unknown");
    assert_eq!(post(gateway.address, KEY, "{}", &[]).summary(), UNKNOWN);
    assert_eq!(upstream.count(), 2);
}
