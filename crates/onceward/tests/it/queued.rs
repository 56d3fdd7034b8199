//! Requests that are accepted now and executed later: once, or until it is known that they were not.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{body::Body, response::IntoResponse as _};
use http::StatusCode;
use onceward::{
    Effects, Limits, Policy, Queued, Rate, Resumer, Routes, Settings, Store as _,
    engine::Resumed,
    policy::BadPolicy,
    record::State,
    store::{Proof, Resolution, Resolve},
    testing::{Fault, StoreCall},
};
use tokio::sync::Notify;

use crate::service::{ACME, Answer, EVIL, FOR_EVER, Faults, Run, Service, keyed, pass, says};

const KEY: &str = "order-0000000000000001";
const LEASE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);
/// Longer than all pauses between repeated calls and attempts here, much shorter than a lease.
const A_WHILE: Duration = Duration::from_secs(8);

fn queued() -> Policy {
    Policy::required().queued(Queued::default()).expect("allowed")
}

fn with_effects(effects: Effects) -> Policy {
    queued().effects(effects).expect("allowed")
}

async fn charged(run: Run) -> String {
    format!("charged {}", run.number)
}

fn resumer(service: &Service) -> Resumer<axum::Router> {
    Resumer::new(Arc::clone(&service.engine), service.inner.clone())
}

async fn work(service: &Service) -> Resumed {
    resumer(service).run_once(10).await.expect("the store answers")
}

fn taken(taken: u32) -> Resumed {
    Resumed { taken, ..Resumed::default() }
}

async fn state(service: &Service) -> State {
    service.record(KEY).await.expect("a record").state
}

async fn status(service: &Service, location: &str, credential: &str) -> Answer {
    let request = http::Request::get(location).header("authorization", credential);
    service.send(request.body(Body::empty()).expect("a request")).await
}

#[tokio::test(start_paused = true)]
async fn a_request_is_accepted_executed_once_and_its_reply_replayed() {
    let service = Service::new(queued(), charged);
    let accepted = service.charge(KEY).await;
    assert_eq!(accepted.says(), says(202, "accepted"));
    assert_eq!(accepted.json(), serde_json::json!({ "state": "pending", "retry": "same_key" }));
    assert_eq!((accepted.header("retry-after"), service.runs()), ("1", 0));
    let location = accepted.header("location");
    let told = status(&service, location, ACME).await;
    assert_eq!((told.status, &told.json()["state"]), (200, &"pending".into()));
    assert_eq!(status(&service, location, EVIL).await.status, 404);
    // The same again, and nothing else is accepted.
    assert_eq!(service.charge(KEY).await, accepted);
    assert_eq!((work(&service).await, service.runs()), (taken(1), 1));
    let reply = service.charge(KEY).await;
    assert_eq!((reply.says(), reply.text()), (says(200, "replayed"), "charged 1"));
    assert_eq!(service.charge(KEY).await, reply);
    assert_eq!((work(&service).await, service.runs()), (taken(0), 1));
    let told = status(&service, location, ACME).await.json();
    assert_eq!((&told["state"], &told["outcome"]), (&"completed".into(), &"executed".into()));
}

#[tokio::test(start_paused = true)]
async fn another_request_with_the_key_is_refused_in_every_state() {
    let service = Service::new(queued(), |_| async { StatusCode::TOO_MANY_REQUESTS });
    let other = || keyed(KEY).body(Body::from("{\"amount\":200}")).expect("a request");
    let mismatch = says(422, "key_reused_with_different_payload");
    service.charge(KEY).await;
    assert_eq!(service.send(other()).await.says(), mismatch);
    work(&service).await;
    assert_eq!(state(&service).await, State::Pending);
    assert_eq!(service.send(other()).await.says(), mismatch);
    service.clock.advance(DAY);
    assert_eq!(work(&service).await, Resumed { given_up: 1, ..Resumed::default() });
    assert_eq!(service.send(other()).await.says(), mismatch);
}

#[tokio::test(start_paused = true)]
async fn what_was_not_executed_is_tried_again_after_a_pause_until_it_is() {
    let attempts: Arc<Mutex<Vec<Option<String>>>> = Arc::default();
    let noted = Arc::clone(&attempts);
    let service = Service::new(queued(), move |run: Run| {
        let attempt = run.header("onceward-attempt").map(str::to_owned);
        noted.lock().expect("not poisoned").push(attempt);
        async move {
            match run.number {
                1 => StatusCode::TOO_MANY_REQUESTS.into_response(),
                2 => {
                    let not_done = [("onceward-executed", "no")];
                    (StatusCode::INTERNAL_SERVER_ERROR, not_done).into_response()
                }
                _ => charged(run).await.into_response(),
            }
        }
    });
    service.charge(KEY).await;
    for runs in 1..=2 {
        assert_eq!((work(&service).await, service.runs()), (taken(1), runs));
        assert_eq!(state(&service).await, State::Pending);
        assert_eq!(work(&service).await, taken(0), "it is not due yet");
        assert_eq!(service.charge(KEY).await.says(), says(202, "accepted"));
        pass(Duration::from_secs(u64::from(runs))).await;
    }
    assert_eq!((work(&service).await, service.runs()), (taken(1), 3));
    assert_eq!(service.charge(KEY).await.text(), "charged 3");
    let attempts = attempts.lock().expect("not poisoned");
    assert_eq!(*attempts, [None, Some("2".to_owned()), Some("3".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn what_may_have_been_executed_is_not_tried_again_until_somebody_knows() {
    let service = Service::new(with_effects(Effects::External), |run: Run| async move {
        match run.number {
            1 => StatusCode::BAD_GATEWAY.into_response(),
            _ => charged(run).await.into_response(),
        }
    });
    service.charge(KEY).await;
    work(&service).await;
    assert_eq!(service.charge(KEY).await.says(), says(409, "outcome_unknown"));
    service.clock.advance(DAY / 2);
    assert_eq!((work(&service).await, service.runs()), (taken(0), 1));
    let record = service.record(KEY).await.expect("a record");
    let resolve = Resolve {
        id: record.id,
        generation: record.generation,
        fence: record.fence,
        resolution: Resolution::Release(Proof::Authoritative),
        reason: "the ledger has no such charge".into(),
    };
    let _ = service.memory.resolve(resolve).await.expect("memory answers");
    assert_eq!(service.charge(KEY).await.says(), says(202, "accepted"));
    pass(Duration::from_secs(1)).await;
    assert_eq!((work(&service).await, service.runs()), (taken(1), 2));
    assert_eq!(service.charge(KEY).await.text(), "charged 2");
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_executed_in_its_time_is_given_up_for_good() {
    let service = Service::new(queued(), |_| async { StatusCode::TOO_MANY_REQUESTS });
    let location = service.charge(KEY).await.header("location").to_owned();
    service.clock.advance(DAY - Duration::from_secs(1));
    assert_eq!((work(&service).await, service.runs()), (taken(1), 1));
    pass(Duration::from_secs(1)).await;
    let given_up = Resumed { given_up: 1, ..Resumed::default() };
    assert_eq!((work(&service).await, service.runs()), (given_up, 1));
    let told = service.charge(KEY).await;
    assert_eq!(told.says(), says(504, "not_executed"));
    assert_eq!((told.outcome(), &told.json()["retry"]), ("replayed", &"new_key".into()));
    assert_eq!(service.charge(KEY).await, told);
    let told = status(&service, &location, ACME).await.json();
    assert_eq!((&told["state"], &told["outcome"]), (&"completed".into(), &"not_executed".into()));
    assert_eq!((work(&service).await, service.runs()), (taken(0), 1));
}

#[tokio::test(start_paused = true)]
async fn what_has_no_route_any_more_waits_for_one_until_its_time_is_over() {
    let routes = |path: &str| Routes::only().route(path, queued()).expect("a pattern");
    let service = Service::new(routes("POST /charges"), charged);
    service.charge(KEY).await;
    let other = service.engine.under(
        routes("POST /refunds"),
        Settings { clock: Arc::new(service.clock.clone()), ..Settings::default() },
    );
    let elsewhere = Resumer::new(Arc::new(other), service.inner.clone());
    let left = elsewhere.run_once(10).await.expect("the store answers");
    assert_eq!(left, Resumed { left: 1, ..Resumed::default() });
    service.clock.advance(DAY);
    let given_up = elsewhere.run_once(10).await.expect("the store answers");
    assert_eq!(given_up, Resumed { given_up: 1, ..Resumed::default() });
    assert_eq!((service.charge(KEY).await.says(), service.runs()), (says(504, "not_executed"), 0));
}

#[tokio::test(start_paused = true)]
async fn only_listed_headers_are_kept_and_no_credential_by_itself() {
    let seen: Arc<Mutex<Vec<http::HeaderMap>>> = Arc::default();
    let kept = Queued::default()
        .headers(["x-listed", "authorization"].map(|it| it.parse().expect("a name")));
    for (policy, listed) in [(queued(), false), (queued().queued(kept).expect("allowed"), true)] {
        let noted = Arc::clone(&seen);
        let service = Service::new(policy, move |run: Run| {
            noted.lock().expect("not poisoned").push(run.parts.headers);
            async { "done" }
        });
        let request = keyed(KEY).header("cookie", "session=1").header("x-listed", "1");
        let request = request.header("connection", "user-agent").header("user-agent", "hop");
        service.send(request.body(Body::from("{}")).expect("a request")).await;
        assert_eq!(work(&service).await, taken(1));
        let headers = seen.lock().expect("not poisoned").pop().expect("one run");
        for (name, there) in [
            ("idempotency-key", true),
            ("content-type", !listed),
            ("authorization", listed),
            ("x-listed", listed),
            ("cookie", false),
            ("connection", false),
            ("user-agent", false),
        ] {
            assert_eq!(headers.contains_key(name), there, "{name}, listed: {listed}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_accept_whose_answer_is_lost_is_executed_once() {
    for fault in [Fault::Refused, Fault::LostBefore, Fault::LostAfter] {
        let faults = Faults::default();
        let service = Service::on(|memory| faults.on(memory), queued(), charged);
        faults.fail(StoreCall::Reserve, fault, 2);
        assert_eq!(service.charge(KEY).await.says(), says(202, "accepted"), "{fault:?}");
        assert_eq!((work(&service).await, service.runs()), (taken(1), 1), "{fault:?}");
        assert_eq!(service.charge(KEY).await.text(), "charged 1", "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_accept_that_nobody_can_vouch_for_is_answered_503_and_executed_at_most_once() {
    for fault in [Fault::LostBefore, Fault::LostAfter, Fault::HangsBefore, Fault::HangsAfter] {
        let faults = Faults::default();
        let service = Service::on(|memory| faults.on(memory), queued(), charged);
        faults.fail(StoreCall::Reserve, fault, FOR_EVER);
        assert_eq!(service.charge(KEY).await.says(), says(503, "store_unavailable"), "{fault:?}");
        faults.heal();
        pass(A_WHILE).await;
        let stored = matches!(fault, Fault::LostAfter | Fault::HangsAfter);
        assert_eq!(work(&service).await, taken(u32::from(stored)), "{fault:?}");
        service.charge(KEY).await;
        work(&service).await;
        assert_eq!(service.runs(), 1, "{fault:?}");
        assert_eq!(service.charge(KEY).await.text(), "charged 1", "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_answer_is_lost_leads_to_one_execution() {
    for fault in [Fault::Refused, Fault::LostBefore, Fault::LostAfter] {
        let faults = Faults::default();
        let service = Service::on(|memory| faults.on(memory), queued(), charged);
        service.charge(KEY).await;
        faults.fail(StoreCall::Claim, fault, 2);
        assert_eq!((work(&service).await, service.runs()), (taken(1), 1), "{fault:?}");
        assert_eq!(service.charge(KEY).await.text(), "charged 1", "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_nobody_can_vouch_for_is_given_back_and_nothing_ran_under_it() {
    for fault in [Fault::LostAfter, Fault::HangsAfter] {
        let faults = Faults::default();
        let policy = with_effects(Effects::External);
        let service = Service::on(|memory| faults.on(memory), policy, charged);
        service.charge(KEY).await;
        faults.fail(StoreCall::Claim, fault, FOR_EVER);
        let worker = resumer(&service);
        let working = tokio::spawn(async move { worker.run_once(10).await });
        pass(A_WHILE).await;
        assert_eq!((state(&service).await, service.runs()), (State::InProgress, 0), "{fault:?}");
        faults.heal();
        working.await.expect("no panic").expect("the store answers");
        assert_eq!((state(&service).await, service.runs()), (State::Pending, 0), "{fault:?}");
        pass(A_WHILE).await;
        assert_eq!((work(&service).await, service.runs()), (taken(1), 1), "{fault:?}");
        assert_eq!(service.charge(KEY).await.text(), "charged 1", "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_vanished_is_judged_by_the_effects_of_its_route() {
    for (effects, expected) in [
        (Effects::External, State::Unknown),
        (Effects::Undeclared, State::Unknown),
        (Effects::None, State::Completed),
    ] {
        let service = Service::new(with_effects(effects), |run: Run| async move {
            if run.number == 1 {
                std::future::pending::<()>().await;
            }
            charged(run).await
        });
        service.charge(KEY).await;
        // Dropped in the middle, as in a crash.
        let inner = service.inner.clone();
        let resume = move |request: http::Request<bytes::Bytes>, _| {
            let inner = inner.clone();
            async move {
                let request = request.map(Body::from);
                let _ = tower::ServiceExt::oneshot(inner, request).await;
                http::Response::new(bytes::Bytes::new())
            }
        };
        let crashed = service.engine.resume_once(10, resume);
        assert!(tokio::time::timeout(Duration::from_secs(1), crashed).await.is_err());
        assert_eq!((state(&service).await, service.runs()), (State::InProgress, 1));
        service.clock.advance(LEASE);
        service.memory.sweep(10).await.expect("memory answers");
        pass(Duration::from_secs(1)).await;
        work(&service).await;
        assert_eq!(state(&service).await, expected, "{effects:?}");
        let runs = if expected == State::Unknown { 1 } else { 2 };
        assert_eq!(service.runs(), runs, "{effects:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn two_workers_execute_what_was_accepted_once() {
    let service = Service::new(queued(), charged);
    for number in 0..20 {
        service.charge(&format!("order-{number:016}")).await;
    }
    let (one, two) = (resumer(&service), resumer(&service));
    let _ = tokio::join!(one.run_once(20), two.run_once(20));
    assert_eq!(service.runs(), 20);
    assert_eq!(work(&service).await, taken(0));
}

#[tokio::test(start_paused = true)]
async fn a_worker_begins_at_once_and_one_that_takes_long_is_in_nobodys_way() {
    let done = Arc::new(Notify::new());
    let told = Arc::clone(&done);
    let service = Service::new(queued(), move |run: Run| {
        let told = Arc::clone(&told);
        async move {
            if run.number == 1 {
                std::future::pending::<()>().await;
            }
            told.notify_one();
            "done"
        }
    });
    let worker = resumer(&service);
    // It would not look again by itself before the test is over.
    let working = tokio::spawn(async move { worker.run(DAY, 2).await });
    for number in 0..10 {
        service.charge(&format!("order-{number:016}")).await;
        if number > 0 {
            let soon = tokio::time::timeout(Duration::from_secs(1), done.notified());
            soon.await.expect("it is done at once");
        } else {
            while service.runs() == 0 {
                pass(Duration::from_millis(1)).await;
            }
        }
    }
    assert_eq!(service.runs(), 10);
    working.abort();
}

#[tokio::test(start_paused = true)]
async fn a_worker_has_no_more_at_work_than_it_may() {
    let service = Service::new(queued(), |_| std::future::pending::<String>());
    for number in 0..10 {
        service.charge(&format!("order-{number:016}")).await;
    }
    let worker = resumer(&service);
    let working = tokio::spawn(async move { worker.run(Duration::from_secs(1), 3).await });
    pass(Duration::from_secs(10)).await;
    assert_eq!(service.runs(), 3);
    working.abort();
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_never_ends_gives_its_place_to_others_once_its_attempt_is_over() {
    let policy = queued().max_execution(Duration::from_secs(5)).expect("allowed");
    let policy = policy.lease(Duration::from_secs(5)).expect("allowed");
    let service = Service::new(policy, |run: Run| async move {
        if run.number == 1 {
            std::future::pending::<()>().await;
        }
        "done"
    });
    for number in 0..2 {
        service.charge(&format!("order-{number:016}")).await;
    }
    let worker = resumer(&service);
    let working = tokio::spawn(async move { worker.run(Duration::from_secs(1), 1).await });
    pass(Duration::from_secs(8)).await;
    assert_eq!(service.runs(), 1, "there is one place");
    pass(Duration::from_secs(4)).await;
    assert_eq!(service.runs(), 2);
    working.abort();
}

#[tokio::test(start_paused = true)]
async fn a_process_that_drains_accepts_and_begins_nothing_and_still_tells_what_it_knows() {
    let service = Service::new(queued(), charged);
    service.charge(KEY).await;
    service.engine.drain(Duration::ZERO).await;
    assert_eq!(service.charge(KEY).await.says(), says(202, "accepted"));
    let refused = service.charge("order-0000000000000002").await;
    assert_eq!(refused.says(), says(503, "store_unavailable"));
    assert_eq!((work(&service).await, service.runs()), (taken(0), 0));
}

#[tokio::test(start_paused = true)]
async fn a_caller_without_quota_has_nothing_accepted_and_is_told_of_what_was() {
    let limits = Limits { creations: Some(Rate::per_second(1).burst(1)), ..Limits::OFF };
    let settings = Settings { limits, ..Settings::default() };
    let service = Service::with_settings(|memory| memory, queued(), settings, charged);
    assert_eq!(service.charge(KEY).await.says(), says(202, "accepted"));
    let second = service.charge("order-0000000000000002").await;
    assert_eq!(second.says(), says(429, "rate_limited"));
    assert_eq!(service.charge(KEY).await.says(), says(202, "accepted"));
    assert_eq!((work(&service).await, service.runs()), (taken(1), 1));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let single = Policy::required().single().queued(Queued::default());
    assert_eq!(single.expect_err("refused"), BadPolicy::SingleIsInline);
    for (time, allowed) in [(0, false), (1, true), (30 * 86_400, true), (30 * 86_400 + 1, false)] {
        assert_eq!(Queued::within(Duration::from_secs(time)).is_ok(), allowed, "{time}");
    }
}
