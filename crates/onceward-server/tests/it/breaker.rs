//! A store that is down, and comes back.

use std::{
    thread,
    time::{Duration, Instant},
};

use onceward_testbed::Postgres;

use crate::support::{Gateway, Upstream, eventually, get, ok, post};

const DOWN: &str = "503 idempotency_store_unavailable";

/// So many requests at once, each under a key of its own: what they got, and how long it took.
fn at_once(gateway: &Gateway, round: u32, count: u32) -> Vec<(String, Duration)> {
    let to = gateway.address;
    let ask = |number: u32| {
        thread::spawn(move || {
            let begun = Instant::now();
            let answer = post(to, &format!("order-{round:08}{number:08}"), "{}", &[]);
            (answer.summary(), begun.elapsed())
        })
    };
    let asked: Vec<_> = (0..count).map(ask).collect();
    asked.into_iter().map(|asked| asked.join().expect("answered")).collect()
}

#[test]
fn while_the_store_is_down_requests_are_refused_at_once_and_soon_after_it_is_back_they_run() {
    let mut postgres = Postgres::start();
    let upstream = Upstream::start(|_, _| ok("done"));
    let store = format!("[store]\nurl = \"{}\"\n", postgres.url("postgres"));
    let gateway = Gateway::with(upstream.address, &store);
    assert_eq!(at_once(&gateway, 0, 1)[0].0, "200 -");
    let ready = get(gateway.admin, "/readyz");
    assert_eq!((ready.status, ready.text()), (200, "ready\n"));

    postgres.kill_9();
    let first = at_once(&gateway, 1, 4);
    assert!(first.iter().all(|(said, _)| said == DOWN), "{first:?}");
    let ready = eventually("the breaker", || {
        let ready = get(gateway.admin, "/readyz");
        ready.text().contains("breaker").then_some(ready)
    });
    assert_eq!(ready.status, 503);
    assert_eq!(get(gateway.admin, "/livez").status, 200);
    let refused = at_once(&gateway, 2, 20);
    assert!(refused.iter().all(|(said, _)| said == DOWN), "{refused:?}");
    // One of them may be the one that finds out whether the store is back.
    let slow = refused.iter().filter(|(_, took)| *took > Duration::from_secs(1)).count();
    assert!(slow <= 1, "{refused:?}");
    assert_eq!(upstream.count(), 1);

    postgres.start_again();
    let back = Instant::now();
    // Nobody asks: whoever looks at readiness sends no requests yet.
    eventually("readiness", || (get(gateway.admin, "/readyz").status == 200).then_some(()));
    assert!(back.elapsed() < Duration::from_secs(10), "{:?}", back.elapsed());
    assert_eq!(at_once(&gateway, 3, 1)[0].0, "200 -");
    assert_eq!(upstream.count(), 2);
}
