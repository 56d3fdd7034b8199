//! Upstreams that speak HTTP/2 and fail. What they say about a stream decides what is known of it.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::{
    support::{
        Gateway, Upstream, eventually,
        frames::{CANCEL, Frames, INTERNAL_ERROR, NO_ERROR, REFUSED_STREAM},
        post,
    },
    upstream_faults::TOO_LONG,
};

const KEY: &str = "order-0000000000000001";
const HTTP2: &str = "[upstream]\nhttp2 = true\n";

/// The first request meets the fault, all others are answered.
fn failing_once(
    fault: impl Fn(&mut Frames, u32) + Send + Sync + 'static,
) -> (Upstream, Arc<AtomicUsize>) {
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    let upstream = Upstream::of_connections(move |_, stream| {
        let Ok(mut frames) = Frames::serve(stream) else { return };
        while let Ok(stream) = frames.read_request() {
            match counted.fetch_add(1, Ordering::SeqCst) {
                0 => fault(&mut frames, stream),
                _ => frames.answer(stream).expect("written"),
            }
        }
    });
    (upstream, requests)
}

#[test]
fn a_stream_that_upstream_refused_was_not_executed_and_a_retry_runs() {
    let (upstream, requests) = failing_once(|frames, stream| {
        frames.reset(stream, REFUSED_STREAM).expect("written");
    });
    never_executed(&upstream, &requests);
}

fn never_executed(upstream: &Upstream, requests: &AtomicUsize) {
    let gateway = Gateway::with(upstream.address, HTTP2);
    let first = post(gateway.address, KEY, "{}", &[]);
    assert_eq!(first.summary(), "502 idempotency_upstream_unreachable");
    // It was written, so that nobody but the client may send it again.
    assert_eq!(requests.load(Ordering::SeqCst), 1);
    let retry = post(gateway.address, KEY, "{}", &[]);
    assert_eq!((retry.status, retry.is_replay()), (200, false));
    assert!(post(gateway.address, KEY, "{}", &[]).is_replay());
    assert_eq!(requests.load(Ordering::SeqCst), 2);
}

#[test]
fn every_other_end_of_a_stream_is_unknown_and_never_sent_again() {
    type Fault = fn(&mut Frames, u32);
    let faults: [(&str, Fault); 7] = [
        ("an end that says it was not taken, which may be about others", |frames, _| {
            frames.go_away(0, NO_ERROR).expect("written");
        }),
        ("an internal error", |frames, stream| {
            frames.reset(stream, INTERNAL_ERROR).expect("written");
        }),
        ("a cancellation", |frames, stream| frames.reset(stream, CANCEL).expect("written")),
        ("a reset without an error", |frames, stream| {
            frames.reset(stream, NO_ERROR).expect("written");
        }),
        ("an end after it was taken", |frames, stream| {
            frames.go_away(stream, INTERNAL_ERROR).expect("written");
            frames.close();
        }),
        ("a connection that closes", |frames, _| frames.close()),
        ("a refusal after the head of an answer", |frames, stream| {
            frames.begin_answer(stream).expect("written");
            frames.reset(stream, REFUSED_STREAM).expect("written");
        }),
    ];
    for (name, fault) in faults {
        let (upstream, requests) = failing_once(fault);
        let gateway = Gateway::with(upstream.address, HTTP2);
        let first = post(gateway.address, KEY, "{}", &[]);
        assert_eq!(first.summary(), "502 idempotency_outcome_unknown", "{name}");
        let retry = post(gateway.address, KEY, "{}", &[]);
        assert_eq!(retry.summary(), "409 idempotency_outcome_unknown", "{name}");
        assert_eq!(requests.load(Ordering::SeqCst), 1, "{name}");
        // The other twin: under a key of its own, the same request goes out.
        let other = post(gateway.address, "order-0000000000000002", "{}", &[]);
        assert_eq!(other.status, 200, "{name}");
    }
}

#[test]
fn requests_share_a_connection_and_a_closed_one_is_replaced() {
    let connections = Arc::new(AtomicUsize::new(0));
    let closed = Arc::new(AtomicUsize::new(0));
    let (opened, ended) = (Arc::clone(&connections), Arc::clone(&closed));
    let upstream = Upstream::of_connections(move |_, stream| {
        opened.fetch_add(1, Ordering::SeqCst);
        let Ok(mut frames) = Frames::serve(stream) else { return };
        for _ in 0..3 {
            let Ok(stream) = frames.read_request() else { return };
            frames.answer(stream).expect("written");
        }
        frames.go_away(5, NO_ERROR).expect("written");
        frames.close();
        ended.fetch_add(1, Ordering::SeqCst);
    });
    let gateway = Gateway::with(upstream.address, HTTP2);
    for number in 0..9 {
        let answer = post(gateway.address, &format!("order-000000000000000{number}"), "{}", &[]);
        assert_eq!(answer.status, 200);
        if number % 3 == 2 {
            eventually("the end of a connection", || {
                (closed.load(Ordering::SeqCst) == number / 3 + 1).then_some(())
            });
        }
    }
    assert_eq!(connections.load(Ordering::SeqCst), 3);
}

#[test]
fn a_shared_connection_that_was_idle_for_two_seconds_is_not_used_again() {
    let connections = Arc::new(AtomicUsize::new(0));
    let opened = Arc::clone(&connections);
    let upstream = Upstream::of_connections(move |_, stream| {
        opened.fetch_add(1, Ordering::SeqCst);
        let Ok(mut frames) = Frames::serve(stream) else { return };
        while let Ok(stream) = frames.read_request() {
            frames.answer(stream).expect("written");
        }
    });
    let gateway = Gateway::with(upstream.address, HTTP2);
    let mut opened_by_then = Vec::new();
    for number in 0..4 {
        let answer = post(gateway.address, &format!("order-000000000000000{number}"), "{}", &[]);
        assert_eq!(answer.status, 200);
        opened_by_then.push(connections.load(Ordering::SeqCst));
        if number == 1 {
            std::thread::sleep(TOO_LONG);
        }
    }
    assert_eq!(opened_by_then, [1, 1, 2, 2]);
}
