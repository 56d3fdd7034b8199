//! Leases: handlers that take long, processes that pause, clients that hang up.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use onceward::{
    Effects, Policy, Settings, Store as _,
    record::{AuditEvent, State},
    testing::{Fault, FaultyStore, Point, StoreCall},
};
use tokio::sync::Notify;

use crate::service::{BODY, FOR_EVER, Faults, Run, Service, TestClock, charge, keyed, pass, says};

const KEY: &str = "order-0000000000000001";
const LEASE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

async fn charged(run: Run) -> String {
    format!("charged {}", run.number)
}

#[tokio::test(start_paused = true)]
async fn a_handler_of_several_leases_keeps_its_lease_and_nobody_else_runs() {
    let service = Service::new(Policy::required(), |run| async move {
        pass(LEASE * 4).await;
        charged(run).await
    });
    let first = service.spawn_charge(KEY);
    for _ in 0..23 {
        pass(seconds(10)).await;
        assert_eq!(service.charge(KEY).await.says(), says(409, "key_in_progress"));
    }
    assert_eq!(first.await.expect("answered").says(), says(200, "executed"));
    assert_eq!(service.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn past_max_execution_the_caller_gets_504_and_the_late_reply_is_what_a_retry_gets() {
    let policy = Policy::required().max_execution(seconds(30)).expect("long enough");
    let service = Service::new(policy, |run| async move {
        pass(seconds(45)).await;
        charged(run).await
    });
    let first = service.charge(KEY).await;
    assert_eq!(first.says(), says(504, "outcome_unknown"));
    assert!(first.header("location").starts_with("/.onceward/operations/"));
    assert_eq!(service.charge(KEY).await.says(), says(409, "outcome_unknown"));
    pass(seconds(16)).await;
    let retry = service.charge(KEY).await;
    assert_eq!((retry.says(), retry.text()), (says(200, "replayed"), "charged 1"));
    assert_eq!(service.runs(), 1);
    assert_eq!(service.audit(KEY).await[0].event, AuditEvent::LateCompletion);
}

#[tokio::test(start_paused = true)]
async fn within_max_execution_the_caller_gets_the_reply() {
    let policy = Policy::required().max_execution(seconds(30)).expect("long enough");
    let service = Service::new(policy, |run| async move {
        pass(seconds(29)).await;
        charged(run).await
    });
    assert_eq!(service.charge(KEY).await.says(), says(200, "executed"));
}

#[tokio::test(start_paused = true)]
async fn a_handler_past_max_execution_works_on_while_the_store_does_not_take_the_mark() {
    let faults = Faults::default();
    faults.fail(StoreCall::MarkUnknown, Fault::HangsBefore, FOR_EVER);
    let policy = Policy::required().max_execution(seconds(30)).expect("long enough");
    let worked = Arc::new(AtomicBool::new(false));
    let done = Arc::clone(&worked);
    let service = Service::on(
        |memory| faults.on(memory),
        policy,
        move |run| {
            let done = Arc::clone(&done);
            async move {
                pass(seconds(31)).await;
                done.store(true, Ordering::SeqCst);
                charged(run).await
            }
        },
    );
    let first = service.spawn_charge(KEY);
    pass(seconds(32)).await;
    assert!(worked.load(Ordering::SeqCst), "the handler was not held up by the store");
    assert_eq!(first.await.expect("answered").says(), says(504, "outcome_unknown"));
    faults.heal();
    pass(seconds(10)).await;
    assert_eq!(service.charge(KEY).await.says(), says(200, "replayed"));
}

/// A process that is stopped between the answer of its reserve and what follows.
async fn paused_before_dispatch(by: Duration) -> (Service, (u16, String)) {
    let (gated, gate) = Service::gated(Policy::required(), Settings::default(), charged);
    let first = gated.spawn_charge(KEY);
    gate.expect(StoreCall::Reserve, Point::Before).await.pass();
    let answering = gate.expect(StoreCall::Reserve, Point::After).await;
    gated.clock.pause_process(by);
    answering.pass();
    drop(gate);
    let says = first.await.expect("answered").says();
    (gated, says)
}

#[tokio::test(start_paused = true)]
async fn a_process_paused_for_longer_than_its_lease_before_it_acts_does_not_act() {
    let (service, first) = paused_before_dispatch(LEASE).await;
    assert_eq!(first, says(503, "store_unavailable"));
    assert_eq!(service.runs(), 0);
    // Nothing was dispatched, which is known, so that a retry runs it.
    assert_eq!(service.record(KEY).await.expect("a record").state, State::FailedRetryable);
    assert_eq!(service.charge(KEY).await.says(), says(200, "executed"));
}

#[tokio::test(start_paused = true)]
async fn a_process_paused_for_less_than_its_lease_before_it_acts_acts() {
    let (service, first) = paused_before_dispatch(LEASE - seconds(1)).await;
    assert_eq!(first, says(200, "executed"));
    assert_eq!(service.runs(), 1);
}

/// An attempt that was paused before it did anything, and was taken for lost meanwhile, says so.
#[tokio::test(start_paused = true)]
async fn an_attempt_taken_for_lost_before_it_was_dispatched_is_given_back() {
    let (service, gate) = Service::gated(Policy::required(), Settings::default(), charged);
    let first = service.spawn_charge(KEY);
    gate.expect(StoreCall::Reserve, Point::Before).await.pass();
    let answering = gate.expect(StoreCall::Reserve, Point::After).await;
    service.clock.pause_process(LEASE);
    let second = service.spawn_charge(KEY);
    gate.expect(StoreCall::Reserve, Point::Before).await.pass();
    gate.expect(StoreCall::Reserve, Point::After).await.pass();
    assert_eq!(second.await.expect("an answer").says(), says(409, "outcome_unknown"));
    assert_eq!(service.record(KEY).await.expect("a record").state, State::Unknown);
    answering.pass();
    drop(gate);
    assert_eq!(first.await.expect("an answer").says(), says(503, "store_unavailable"));
    assert_eq!(service.runs(), 0);
    let events: Vec<_> = service.audit(KEY).await.into_iter().map(|audit| audit.event).collect();
    assert_eq!(events, [AuditEvent::LeaseExpired, AuditEvent::Released]);
    assert_eq!(service.charge(KEY).await.says(), says(200, "executed"));
    assert_eq!(service.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_slow_reserve_leaves_less_time_until_the_first_renewal() {
    let settings = Settings { store_deadline: seconds(100), ..Settings::default() };
    let (gated, gate) = Service::gated(Policy::required(), settings, |run| async move {
        pass(LEASE * 2).await;
        charged(run).await
    });
    let begun = tokio::time::Instant::now();
    let first = gated.spawn_charge(KEY);
    gate.expect(StoreCall::Reserve, Point::Before).await.pass();
    let answering = gate.expect(StoreCall::Reserve, Point::After).await;
    pass(seconds(35)).await;
    answering.pass();
    let renewing = gate.expect(StoreCall::Renew, Point::Before).await;
    assert_eq!(begun.elapsed(), seconds(35), "more than a third of the lease was used up");
    renewing.pass();
    drop(gate);
    assert_eq!(first.await.expect("answered").says(), says(200, "executed"));
}

/// A service whose first run takes two leases while no renewal succeeds.
fn first_outlives_its_lease(policy: Policy) -> Service {
    let faults = Faults::default();
    faults.fail(StoreCall::Renew, Fault::Refused, FOR_EVER);
    Service::on(
        |memory| faults.on(memory),
        policy,
        |run| async move {
            if run.number == 1 {
                pass(LEASE * 2).await;
            }
            charged(run).await
        },
    )
}

#[tokio::test(start_paused = true)]
async fn a_superseded_result_is_kept_as_evidence_and_the_client_gets_what_the_record_says() {
    // Work without effects may run again once its lease is over: the only way to be superseded.
    let policy = Policy::required().effects(Effects::None).expect("allowed");
    let service = first_outlives_its_lease(policy);
    let first = service.spawn_charge(KEY);
    pass(LEASE + seconds(1)).await;
    let second = service.charge(KEY).await;
    assert_eq!((second.says(), second.text()), (says(200, "executed"), "charged 2"));
    let first = first.await.expect("answered");
    assert_eq!((first.says(), first.text()), (says(200, "replayed"), "charged 2"));
    let audit = service.audit(KEY).await;
    let evidence: Vec<_> =
        audit.iter().filter(|audit| audit.event == AuditEvent::SupersededResult).collect();
    assert_eq!(evidence.len(), 1);
    let kept = evidence[0].reply.as_ref().expect("the result is kept");
    assert_eq!(kept.body_bytes().as_ref(), b"charged 1");
}

/// The key expired and was used again while an attempt of the first use was at work. Without a
/// tombstone it is in generation 1 again.
#[tokio::test(start_paused = true)]
async fn a_superseded_client_never_gets_the_reply_of_a_later_use_of_its_key() {
    let other = "{\"amount\":2}";
    let none = Duration::ZERO;
    for (tombstone, body) in [(DAY, other), (none, other), (DAY, BODY), (none, BODY)] {
        let policy = Policy::required().effects(Effects::None).expect("allowed");
        let policy = policy.expired_runs_again(true).tombstone(tombstone);
        let policy = policy.max_execution(seconds(3600)).expect("allowed");
        let service = first_outlives_its_lease(policy);
        let first = service.spawn_charge(KEY);
        pass(LEASE + seconds(1)).await;
        assert_eq!(service.charge(KEY).await.says(), says(200, "executed"));
        service.clock.advance(DAY + seconds(1));
        let again = keyed(KEY).body(axum::body::Body::from(body)).expect("a request");
        let again = service.send(again).await;
        assert_eq!((again.says(), again.text()), (says(200, "executed"), "charged 3"));
        let first = first.await.expect("answered");
        assert_eq!(first.says(), says(409, "outcome_unknown"), "{tombstone:?} {body}");
        assert!(!first.text().contains("charged"), "{}", first.text());
    }
}

/// Nothing stands behind the tombstone of what never acted: it is no reason to tell a client never
/// to come back.
#[tokio::test(start_paused = true)]
async fn a_superseded_client_of_a_void_tombstone_may_come_back() {
    let policy = Policy::required().effects(Effects::None).expect("allowed");
    let service = first_outlives_its_lease(policy.max_execution(seconds(3600)).expect("allowed"));
    let first = service.spawn_charge(KEY);
    pass(LEASE + seconds(1)).await;
    assert_eq!(service.memory.sweep(10).await.expect("memory answers").len(), 1);
    service.clock.advance(DAY + seconds(1));
    assert_eq!(service.memory.reap(10).await.expect("memory answers").expired, 1);
    let first = first.await.expect("answered");
    assert_eq!(first.says(), says(409, "outcome_unknown"), "{}", first.text());
    assert_eq!(first.json()["retry"], "same_key");
    assert_eq!(service.charge(KEY).await.says(), says(200, "executed"));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_learns_that_it_was_replaced_may_not_act_any_more() {
    let policy = Policy::required().effects(Effects::None).expect("allowed");
    let faults = Faults::default();
    let may_act = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&may_act);
    let service = Service::on(
        |memory| faults.on(memory),
        policy,
        move |run| {
            let seen = Arc::clone(&seen);
            async move {
                for _ in 0..10 {
                    pass(seconds(15)).await;
                    if run.number == 1 && run.operation().may_act() {
                        seen.fetch_add(1, Ordering::SeqCst);
                    }
                }
                charged(run).await
            }
        },
    );
    let first = service.spawn_charge(KEY);
    pass(seconds(1)).await;
    // The store's clock runs ahead of the owner's, so that somebody else takes over at once.
    service.clock.advance(LEASE);
    let second = service.spawn_charge(KEY);
    pass(seconds(35)).await;
    let before = may_act.load(Ordering::SeqCst);
    assert_eq!(before, 1, "at 15 s, before the renewal at 20 s tells it");
    first.await.expect("answered");
    second.await.expect("answered");
    assert_eq!((may_act.load(Ordering::SeqCst), service.runs()), (before, 2));
}

/// The same for one that took too long: no renewal comes any more that could tell it.
#[tokio::test(start_paused = true)]
async fn an_attempt_past_its_max_execution_that_was_replaced_may_not_act_any_more() {
    for replaced in [true, false] {
        let policy = Policy::required().effects(Effects::None).expect("allowed");
        let policy = policy.max_execution(seconds(5)).expect("allowed");
        let may_act = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&may_act);
        let service = Service::new(policy, move |run| {
            let seen = Arc::clone(&seen);
            async move {
                for _ in 0..2 {
                    if run.number == 1 {
                        pass(seconds(4)).await;
                        seen.lock().expect("lock").push(run.operation().may_act());
                    }
                }
                charged(run).await
            }
        });
        let first = service.spawn_charge(KEY);
        pass(seconds(1)).await;
        if replaced {
            service.clock.advance(LEASE);
            assert_eq!(service.charge(KEY).await.says(), says(200, "executed"));
        }
        first.await.expect("answered");
        pass(seconds(10)).await;
        // At 4 s and at 8 s, well within its lease.
        assert_eq!(*may_act.lock().expect("lock"), [true, !replaced], "replaced: {replaced}");
    }
}

/// The moments of a first request at which its client may be gone.
const MOMENTS: [(StoreCall, Point); 4] = [
    (StoreCall::Reserve, Point::Before),
    (StoreCall::Reserve, Point::After),
    (StoreCall::Complete, Point::Before),
    (StoreCall::Complete, Point::After),
];

#[tokio::test(start_paused = true)]
async fn a_client_that_hangs_up_at_any_store_call_cancels_nothing_and_its_retry_replays() {
    for gone_at in MOMENTS {
        let (service, gate) = Service::gated(Policy::required(), Settings::default(), charged);
        let client = service.spawn_charge(KEY);
        for moment in MOMENTS {
            let paused = gate.expect(moment.0, moment.1).await;
            if moment == gone_at {
                client.abort();
                pass(Duration::from_millis(1)).await;
                assert!(client.is_finished());
            }
            paused.pass();
        }
        drop(gate);
        pass(Duration::from_millis(1)).await;
        let retry = service.charge(KEY).await;
        let told = (retry.says(), retry.text());
        assert_eq!(told, (says(200, "replayed"), "charged 1"), "{gone_at:?}");
        assert_eq!(service.runs(), 1, "{gone_at:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_hangs_up_while_the_handler_works_cancels_nothing() {
    let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (has_begun, may_go) = (Arc::clone(&begun), Arc::clone(&go));
    let service = Service::new(Policy::required(), move |run| {
        let (begun, go) = (Arc::clone(&has_begun), Arc::clone(&may_go));
        async move {
            begun.notify_one();
            go.notified().await;
            charged(run).await
        }
    });
    let client = service.spawn_charge(KEY);
    begun.notified().await;
    client.abort();
    assert!(client.await.expect_err("aborted").is_cancelled());
    assert_eq!(service.charge(KEY).await.says(), says(409, "key_in_progress"));
    go.notify_one();
    pass(Duration::from_millis(1)).await;
    assert_eq!(service.charge(KEY).await.says(), says(200, "replayed"));
    assert_eq!(service.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_hangs_up_before_its_body_arrived_leaves_no_record() {
    let service = Service::new(Policy::required(), charged);
    let (parts, _) = charge(KEY).into_parts();
    let never = futures_util::stream::pending::<Result<bytes::Bytes, std::io::Error>>();
    let request = http::Request::from_parts(parts, axum::body::Body::from_stream(never));
    let client = service.spawn(request);
    pass(seconds(1)).await;
    client.abort();
    pass(seconds(1)).await;
    assert_eq!(service.record(KEY).await, None);
    assert_eq!(service.charge(KEY).await.says(), says(200, "executed"));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_panics_is_not_told_as_nothing_was_executed() {
    let service = Service::on(
        |memory| {
            Arc::new(FaultyStore::new(memory, |call, _| match call {
                StoreCall::Complete => panic!("the store of this test panics"),
                _ => Fault::None,
            }))
        },
        Policy::required(),
        charged,
    );
    assert_eq!(service.charge(KEY).await.says(), says(502, "outcome_unknown"));
    assert_eq!(service.charge(KEY).await.says(), says(409, "key_in_progress"));
    pass(LEASE).await;
    assert_eq!(service.charge(KEY).await.says(), says(409, "outcome_unknown"));
    assert_eq!(service.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_clock_of_these_tests_follows_the_time_of_tokio() {
    use onceward::clock::Clock as _;
    let clock = TestClock::new();
    let (now, monotonic) = (clock.now(), clock.monotonic());
    pass(seconds(7)).await;
    clock.pause_process(seconds(3));
    assert_eq!((clock.now().since(now), clock.monotonic() - monotonic), (seconds(10), seconds(10)));
}
