//! What one caller may ask for.

use std::thread;

use crate::support::{
    Act, Answer, Gate, Gateway, Home, Upstream, eventually, get, ok, on_each_store, post, response,
    send,
};

const KEY: &str = "order-0000000000000001";
const OTHER: &str = "order-0000000000000002";

on_each_store!(
    a_new_key_over_the_quota_is_429_and_replays_go_on,
    records_in_progress_are_limited_per_caller,
    lookups_over_the_quota_are_429_replays_and_questions_too_and_others_go_on,
);

fn metrics(gateway: &Gateway) -> String {
    get(gateway.admin, "/metrics").text().to_owned()
}

fn a_new_key_over_the_quota_is_429_and_replays_go_on(home: &Home) {
    let upstream = Upstream::start(|number, _| ok(&format!("run {number}")));
    let gateway = home.gateway(&upstream, "[quota]\ncreations_per_second = 1\nburst = 2\n");
    assert_eq!(post(gateway.address, KEY, "{}", &[]).text(), "run 0");
    // On a slow machine some of it comes back meanwhile.
    let mut number = 0;
    let limited = eventually("the end of the quota", || {
        number += 1;
        let answer = post(gateway.address, &format!("order-of-many-{number:06}"), "{}", &[]);
        (answer.status == 429).then_some(answer)
    });
    assert_eq!(limited.summary(), "429 idempotency_rate_limited");
    assert_eq!(limited.header("retry-after"), Some("1"));
    let ran = upstream.count();
    assert!(post(gateway.address, KEY, "{}", &[]).is_replay());
    assert_eq!(upstream.count(), ran);
    let counted = metrics(&gateway);
    let mut lines = counted.lines().filter(|line| line.contains("onceward_rate_limited_total{"));
    let creations = lines.find(|line| line.contains("\"creations\"")).expect(&counted);
    assert!(creations.ends_with(" 1") && creations.contains("\"default\""), "{creations}");
    eventually("what comes back", || {
        (post(gateway.address, OTHER, "{}", &[]).status == 200).then_some(())
    });
}

fn records_in_progress_are_limited_per_caller(home: &Home) {
    let gate = Gate::default();
    let at_gate = gate.clone();
    let upstream = Upstream::start(move |number, _| match number {
        0 => Act::SendLater(Vec::new(), at_gate.clone(), response(200, "", "done")),
        _ => ok("done at once"),
    });
    let gateway = home.gateway(&upstream, "[quota]\nactive = 1\n");
    let to = gateway.address;
    let first = thread::spawn(move || post(to, KEY, "{}", &[]));
    gate.reached_by(1);
    assert_eq!(post(to, OTHER, "{}", &[]).summary(), "429 idempotency_rate_limited");
    assert_eq!(post(to, KEY, "{}", &[]).summary(), "409 idempotency_key_in_progress");
    gate.open();
    assert_eq!(first.join().expect("no panic").text(), "done");
    eventually("a free place", || {
        (post(to, OTHER, "{}", &[]).text() == "done at once").then_some(())
    });
}

fn lookups_over_the_quota_are_429_replays_and_questions_too_and_others_go_on(home: &Home) {
    let upstream = Upstream::start(|number, _| ok(&format!("run {number}")));
    let settings = "[scope]\nfrom = \"header:X-Account\"\n[quota]\nlookups_per_second = 2\n";
    let gateway = home.gateway(&upstream, settings);
    let to = gateway.address;
    let charge = |account: &str| post(to, KEY, "{}", &[&format!("X-Account: {account}")]);
    let question =
        format!("GET /.onceward/operations/{KEY} HTTP/1.1\r\nHost: x\r\nX-Account: acme\r\n\r\n");
    let ask = || send(to, &question).expect("an answer");
    assert_eq!(charge("acme").text(), "run 0");
    // On a slow machine some of it comes back meanwhile.
    let replay = || charge("acme");
    for look in [&replay as &dyn Fn() -> Answer, &ask] {
        let limited = eventually("the end of the quota", || {
            let answer = look();
            if answer.status == 429 {
                return Some(answer);
            }
            assert_eq!(answer.status, 200);
            None
        });
        assert_eq!(limited.summary(), "429 idempotency_rate_limited");
        assert_eq!(limited.header("retry-after"), Some("1"));
    }
    assert_eq!(charge("evil").text(), "run 1", "it is the quota of one caller");
    eventually("what comes back", || charge("acme").is_replay().then_some(()));
    eventually("what comes back for questions", || (ask().status == 200).then_some(()));
    assert_eq!(upstream.count(), 2);
}

#[test]
fn the_breaker_is_seen_to_be_closed_from_the_start() {
    let upstream = Upstream::start(|_, _| ok("done"));
    let gateway = Gateway::before(upstream.address);
    let metrics = metrics(&gateway);
    for line in ["onceward_breaker_open 0", "onceward_breaker_opened_total 0"] {
        assert!(metrics.lines().any(|given| given == line), "{line} in\n{metrics}");
    }
}
