//! What is logged, and what is not. A binary of its own, because what is logged is decided once for
//! a whole process.

use std::{
    io::Write,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{body::Body, response::IntoResponse as _};
use http::StatusCode;
use onceward::{
    Effects, Policy, Store as _,
    store::Reservation,
    testing::{Fault, StoreCall, samples},
    worker::{Surveyor, Sweeper},
};
use tracing_subscriber::{
    filter::LevelFilter,
    fmt::{MakeWriter, format::FmtSpan},
};

#[path = "it/service.rs"]
#[allow(dead_code, reason = "shared with the other binary, which uses all of it")]
mod service;

use service::{EVIL, Faults, Run, Service, keyed};

const KEY: &str = "order-raw-key-in-plain-text";
const SECRET_BODY: &str = r#"{"card":"4242-secret-number"}"#;
const SECRET_REPLY: &str = "a reply that nobody else may read";

/// Everything that was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("not poisoned").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Log;

    fn make_writer(&self) -> Log {
        self.clone()
    }
}

/// A story in which everything is logged that can be.
async fn eventful_story() {
    let faults = Faults::default();
    let service = Service::on(
        |memory| faults.on(memory),
        Policy::required().effects(Effects::External).expect("allowed").expired_runs_again(true),
        |run: Run| async move {
            match run.parts.uri.path() {
                "/lost" => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
                "/panic" => panic!("a panic without secrets"),
                _ => SECRET_REPLY.into_response(),
            }
        },
    );
    let secret = |path: &str, key: &str| {
        let request = keyed(key).uri(path).header("x-token", EVIL);
        request.body(Body::from(SECRET_BODY)).expect("a request")
    };
    for path in ["/charges", "/charges", "/mismatch"] {
        service.send(secret(path, KEY)).await;
    }
    for path in ["/lost", "/panic"] {
        service.send(secret(path, &format!("{KEY}{path}"))).await;
        service.send(secret(path, &format!("{KEY}{path}"))).await;
    }
    for call in [StoreCall::Reserve, StoreCall::Complete] {
        faults.fail(call, Fault::LostAfter, 2);
        service.send(secret("/charges", &format!("{KEY}-{call:?}"))).await;
    }
    service.clock.advance(Duration::from_secs(25 * 3600));
    service.send(secret("/charges", KEY)).await;
    service.send(secret("/charges", "?")).await;
    let vanished = samples::ask(&format!("{KEY}-vanished"));
    let _: Reservation = service.memory.reserve(vanished).await.expect("memory answers");
    service.clock.advance(samples::LEASE);
    // A streak of failures, and the end of it.
    faults.fail(StoreCall::Sweep, Fault::Refused, 3);
    let sweeper = Sweeper::new(Arc::clone(&service.engine));
    let a_minute = tokio::time::sleep(Duration::from_secs(60));
    sweeper.run(Duration::from_secs(30), a_minute).await;
    service.engine.drain(Duration::ZERO).await;
    service.send(secret("/charges", &format!("{KEY}-late"))).await;
}

/// Handlers that take longer than their lease is good for.
async fn slow_story() {
    let short = Policy::required().lease(Duration::from_secs(1)).expect("allowed");
    let service = Service::new(short, |_| async {
        tokio::time::sleep(Duration::from_millis(400)).await;
        SECRET_REPLY
    });
    for number in 0..100 {
        service.send(keyed(&format!("{KEY}-{number}")).body(Body::empty()).expect("one")).await;
    }
    let surveyor = Surveyor::new(Arc::clone(&service.engine));
    for _ in 0..3 {
        surveyor.run_once().await.expect("memory answers");
    }
}

#[tokio::test(start_paused = true)]
async fn no_key_body_or_credential_is_logged_at_any_level() {
    let log = Log::default();
    tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_span_events(FmtSpan::FULL)
        .with_ansi(false)
        .with_writer(log.clone())
        .init();
    eventful_story().await;
    slow_story().await;
    let logged = String::from_utf8(log.0.lock().expect("not poisoned").clone()).expect("text");
    for told in [
        "onceward.request",
        "key.digest",
        "outcome=\"executed\"",
        "outcome=\"replayed\"",
        "outcome=\"mismatch\"",
        "the outcome of an attempt is unknown",
        "a store call failed",
        "an expired key runs again",
        "a lease ran out",
        "a worker is at work again worker=\"sweeper\" failures=3",
    ] {
        assert!(logged.contains(told), "{told} is not told:\n{logged}");
    }
    assert_eq!(logged.matches("a worker failed").count(), 1, "once for a streak:\n{logged}");
    let warned = "a lease is under three times what the slowest handlers take route=\"default\" \
                  lease_seconds=1.0 p99_seconds=";
    assert_eq!(logged.matches(warned).count(), 1, "once for a route:\n{logged}");
    for secret in [KEY, "acme-secret", "evil-secret", "4242-secret", "nobody else may read"] {
        assert!(!logged.contains(secret), "{secret} was logged");
    }
}
