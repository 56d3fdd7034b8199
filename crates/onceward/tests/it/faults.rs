//! For each store call of a request's life and each way in which it can fail: what the first client
//! gets, what its retry gets, and how often the handler ran.

use std::time::Duration;

use axum::response::IntoResponse as _;
use http::StatusCode;
use onceward::{
    Effects, Policy, Store as _,
    record::State,
    testing::{Fault, StoreCall},
};

use crate::service::{FOR_EVER, Faults, Run, Service, pass, says};

const KEY: &str = "order-0000000000000001";

/// Faults after which the same call, repeated within the store's deadline, is answered.
const PASSING: [Fault; 3] = [Fault::Refused, Fault::LostBefore, Fault::LostAfter];
const HANGING: [Fault; 2] = [Fault::HangsBefore, Fault::HangsAfter];

/// Longer than all pauses between repeated calls, much shorter than a lease.
const A_WHILE: Duration = Duration::from_secs(8);
const LEASE: Duration = Duration::from_secs(60);

async fn charged(run: Run) -> String {
    format!("charged {}", run.number)
}

fn service(faults: &Faults) -> Service {
    Service::on(|memory| faults.on(memory), Policy::required(), charged)
}

/// A handler that says it did nothing the first time.
fn service_that_is_busy_once(faults: &Faults) -> Service {
    Service::on(
        |memory| faults.on(memory),
        Policy::required(),
        |run| async move {
            match run.number {
                1 => StatusCode::TOO_MANY_REQUESTS.into_response(),
                _ => charged(run).await.into_response(),
            }
        },
    )
}

fn service_that_panics(faults: &Faults) -> Service {
    Service::on(
        |memory| faults.on(memory),
        Policy::required(),
        |_| async {
            if true {
                panic!("the handler of this test panics")
            }
        },
    )
}

async fn state(service: &Service) -> Option<State> {
    service.record(KEY).await.map(|record| record.state)
}

#[tokio::test(start_paused = true)]
async fn without_a_fault_the_handler_runs_once_and_a_retry_replays() {
    let service = service(&Faults::default());
    assert_eq!(service.charge(KEY).await.says(), says(200, "executed"));
    let retry = service.charge(KEY).await;
    assert_eq!((retry.says(), retry.text()), (says(200, "replayed"), "charged 1"));
    assert_eq!(service.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_reserve_that_fails_for_a_moment_is_repeated_by_the_same_attempt_and_runs_once() {
    for fault in PASSING {
        let faults = Faults::default();
        let service = service(&faults);
        faults.fail(StoreCall::Reserve, fault, 3);
        assert_eq!(service.charge(KEY).await.says(), says(200, "executed"), "{fault:?}");
        assert_eq!(service.charge(KEY).await.says(), says(200, "replayed"), "{fault:?}");
        assert_eq!(service.runs(), 1, "{fault:?}");
        assert_eq!(service.record(KEY).await.expect("a record").attempts, 1, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reserve_that_is_not_answered_in_time_is_503_and_runs_nothing_and_a_retry_runs_it() {
    for fault in PASSING.into_iter().chain(HANGING) {
        let faults = Faults::default();
        let service = service(&faults);
        faults.fail(StoreCall::Reserve, fault, FOR_EVER);
        let begun = tokio::time::Instant::now();
        let first = service.charge(KEY).await;
        assert_eq!(first.says(), says(503, "store_unavailable"), "{fault:?}");
        assert!(!first.header("retry-after").is_empty(), "{fault:?}");
        assert!(begun.elapsed() <= Duration::from_millis(5_001), "{fault:?} {:?}", begun.elapsed());
        assert_eq!(service.runs(), 0, "{fault:?}");

        faults.heal();
        pass(A_WHILE).await;
        // What was granted without our knowing was released; what was refused left no trace.
        let expected = (fault != Fault::Refused).then_some(State::FailedRetryable);
        assert_eq!(state(&service).await, expected, "{fault:?}");
        assert_eq!(service.charge(KEY).await.says(), says(200, "executed"), "{fault:?}");
        assert_eq!(service.charge(KEY).await.says(), says(200, "replayed"), "{fault:?}");
        assert_eq!(service.runs(), 1, "{fault:?}");
    }
}

/// The sweeper came while the answer to a reserve was lost: nothing was dispatched under it, which
/// only the attempt itself knows.
#[tokio::test(start_paused = true)]
async fn an_unanswered_reserve_that_was_swept_meanwhile_is_given_back() {
    let faults = Faults::default();
    let service = service(&faults);
    faults.fail(StoreCall::Reserve, Fault::LostAfter, FOR_EVER);
    assert_eq!(service.charge(KEY).await.says(), says(503, "store_unavailable"));
    service.clock.advance(Duration::from_secs(3600));
    let swept = onceward::Store::sweep(&*service.memory, 10).await.expect("memory answers");
    assert_eq!(swept.len(), 1);
    assert_eq!(state(&service).await, Some(State::Unknown));
    faults.heal();
    pass(A_WHILE).await;
    assert_eq!(state(&service).await, Some(State::FailedRetryable));
    assert_eq!(service.charge(KEY).await.says(), says(200, "executed"));
    assert_eq!(service.runs(), 1);
}

/// A reserve was granted without our knowing, and its lease was over before it was repeated: what
/// is in the way is our own attempt, which has done nothing.
#[tokio::test(start_paused = true)]
async fn a_repeated_reserve_that_finds_its_own_lease_over_is_503_and_gives_it_back() {
    for (effects, swept) in
        [(Effects::External, State::Unknown), (Effects::None, State::FailedRetryable)]
    {
        let policy = Policy::required().effects(effects).expect("allowed");
        let faults = Faults::default();
        let service = Service::on(|memory| faults.on(memory), policy, charged);
        faults.fail(StoreCall::Reserve, Fault::LostAfter, 1);
        let first = service.spawn_charge(KEY);
        pass(Duration::from_millis(5)).await;
        assert_eq!(state(&service).await, Some(State::InProgress));
        service.clock.advance(Duration::from_secs(3600));
        service.memory.sweep(10).await.expect("memory answers");
        assert_eq!(state(&service).await, Some(swept));
        let first = first.await.expect("answered");
        assert_eq!(first.says(), says(503, "store_unavailable"), "{effects:?}");
        pass(A_WHILE).await;
        assert_eq!(state(&service).await, Some(State::FailedRetryable), "{effects:?}");
        assert_eq!(service.charge(KEY).await.says(), says(200, "executed"), "{effects:?}");
        assert_eq!(service.runs(), 1, "{effects:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reserve_whose_record_cannot_be_read_is_503_at_once_and_never_taken_for_a_new_key() {
    let faults = Faults::default();
    let service = service(&faults);
    faults.fail(StoreCall::Reserve, Fault::Corrupt, FOR_EVER);
    let begun = tokio::time::Instant::now();
    assert_eq!(service.charge(KEY).await.says(), says(503, "store_unavailable"));
    assert_eq!(begun.elapsed(), Duration::ZERO);
    pass(A_WHILE).await;
    assert_eq!((service.runs(), state(&service).await), (0, None));
    faults.heal();
    assert_eq!(service.charge(KEY).await.says(), says(200, "executed"));
}

#[tokio::test(start_paused = true)]
async fn a_complete_that_fails_for_a_moment_is_repeated_and_the_client_gets_its_reply() {
    for fault in PASSING {
        let faults = Faults::default();
        let service = service(&faults);
        faults.fail(StoreCall::Complete, fault, 3);
        let first = service.charge(KEY).await;
        assert_eq!((first.says(), first.text()), (says(200, "executed"), "charged 1"), "{fault:?}");
        assert_eq!(first.header("idempotent-replayed"), "", "{fault:?}");
        let retry = service.charge(KEY).await;
        assert_eq!((retry.says(), retry.text()), (says(200, "replayed"), "charged 1"), "{fault:?}");
        assert_eq!(service.runs(), 1, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_large_reply_whose_completion_was_acknowledged_late_is_still_sent_whole() {
    let faults = Faults::default();
    let service = Service::on(
        |memory| faults.on(memory),
        Policy::required().reply_bytes_max(10),
        |_| async { "x".repeat(11) },
    );
    faults.fail(StoreCall::Complete, Fault::LostAfter, 1);
    let first = service.charge(KEY).await;
    assert_eq!((first.says(), first.body.len()), (says(200, "executed"), 11));
    assert_eq!(service.charge(KEY).await.says(), says(410, "reply_not_stored"));
}

#[tokio::test(start_paused = true)]
async fn a_complete_that_is_not_acknowledged_in_time_is_409_unknown_and_is_written_later() {
    for fault in PASSING.into_iter().chain(HANGING) {
        let faults = Faults::default();
        let service = service(&faults);
        faults.fail(StoreCall::Complete, fault, FOR_EVER);
        let begun = tokio::time::Instant::now();
        let first = service.charge(KEY).await;
        assert_eq!(first.says(), says(409, "outcome_unknown"), "{fault:?}");
        assert!(begun.elapsed() <= Duration::from_millis(5_001), "{fault:?} {:?}", begun.elapsed());
        let took_effect = matches!(fault, Fault::LostAfter | Fault::HangsAfter);
        let meanwhile =
            if took_effect { says(200, "replayed") } else { says(409, "key_in_progress") };
        assert_eq!(service.charge(KEY).await.says(), meanwhile, "{fault:?}");

        faults.heal();
        pass(A_WHILE).await;
        let retry = service.charge(KEY).await;
        assert_eq!((retry.says(), retry.text()), (says(200, "replayed"), "charged 1"), "{fault:?}");
        assert_eq!(service.runs(), 1, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_completion_into_a_record_that_cannot_be_read_stays_unknown_and_never_runs_again() {
    let faults = Faults::default();
    let service = service(&faults);
    faults.fail(StoreCall::Complete, Fault::Corrupt, FOR_EVER);
    assert_eq!(service.charge(KEY).await.says(), says(409, "outcome_unknown"));
    assert_eq!(service.charge(KEY).await.says(), says(409, "key_in_progress"));
    pass(LEASE).await;
    assert_eq!(service.charge(KEY).await.says(), says(409, "outcome_unknown"));
    assert_eq!(service.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_fails_for_a_moment_is_repeated_and_a_retry_runs() {
    for fault in PASSING {
        let faults = Faults::default();
        let service = service_that_is_busy_once(&faults);
        faults.fail(StoreCall::Release, fault, 3);
        assert_eq!(service.charge(KEY).await.says(), says(429, "not_executed"), "{fault:?}");
        assert_eq!(service.charge(KEY).await.says(), says(200, "executed"), "{fault:?}");
        assert_eq!(service.runs(), 2, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_not_acknowledged_in_time_is_503_and_is_written_later() {
    for fault in PASSING.into_iter().chain(HANGING) {
        let faults = Faults::default();
        let service = service_that_is_busy_once(&faults);
        faults.fail(StoreCall::Release, fault, FOR_EVER);
        assert_eq!(service.charge(KEY).await.says(), says(503, "store_unavailable"), "{fault:?}");
        let took_effect = matches!(fault, Fault::LostAfter | Fault::HangsAfter);
        let expected = if took_effect { State::FailedRetryable } else { State::InProgress };
        assert_eq!(state(&service).await, Some(expected), "{fault:?}");

        faults.heal();
        pass(A_WHILE).await;
        let retry = service.charge(KEY).await;
        assert_eq!((retry.says(), retry.text()), (says(200, "executed"), "charged 2"), "{fault:?}");
        assert_eq!(service.runs(), 2, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_into_a_record_that_cannot_be_read_ends_as_unknown() {
    let faults = Faults::default();
    let service = service_that_is_busy_once(&faults);
    faults.fail(StoreCall::Release, Fault::Corrupt, FOR_EVER);
    assert_eq!(service.charge(KEY).await.says(), says(503, "store_unavailable"));
    assert_eq!(service.charge(KEY).await.says(), says(409, "key_in_progress"));
    pass(LEASE).await;
    assert_eq!(service.charge(KEY).await.says(), says(409, "outcome_unknown"));
    assert_eq!(service.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_told_as_unknown_however_the_mark_fails_and_never_runs_again() {
    let all = PASSING.into_iter().chain(HANGING).chain([Fault::None, Fault::Corrupt]);
    for (fault, times) in all.flat_map(|fault| [(fault, 1), (fault, FOR_EVER)]) {
        let faults = Faults::default();
        let service = service_that_panics(&faults);
        faults.fail(StoreCall::MarkUnknown, fault, times);
        let case = format!("{fault:?} {times} times");
        let first = service.charge(KEY).await;
        assert_eq!(first.says(), says(502, "outcome_unknown"), "{case}");
        faults.heal();
        pass(A_WHILE).await;
        // A mark that cannot be written is made up for by the end of the lease.
        let given_up = fault == Fault::Corrupt && times == FOR_EVER;
        let meanwhile = if given_up { "key_in_progress" } else { "outcome_unknown" };
        assert_eq!(service.charge(KEY).await.says(), says(409, meanwhile), "{case}");
        pass(LEASE).await;
        assert_eq!(service.charge(KEY).await.says(), says(409, "outcome_unknown"), "{case}");
        assert_eq!(service.runs(), 1, "{case}");
    }
}

/// A handler of two and a half leases, which says whether it held its lease to the end.
fn slow_service(faults: &Faults) -> Service {
    Service::on(
        |memory| faults.on(memory),
        Policy::required(),
        |run| async move {
            pass(LEASE * 5 / 2).await;
            format!("held: {}", run.operation().may_act())
        },
    )
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_for_a_moment_does_not_lose_the_lease() {
    let all = PASSING.into_iter().chain(HANGING).chain([Fault::Corrupt, Fault::None]);
    for fault in all {
        let faults = Faults::default();
        let service = slow_service(&faults);
        faults.fail(StoreCall::Renew, fault, 1);
        let first = service.spawn_charge(KEY);
        for _ in 0..14 {
            pass(Duration::from_secs(10)).await;
            let meanwhile = service.charge(KEY).await;
            assert_eq!(meanwhile.says(), says(409, "key_in_progress"), "{fault:?}");
        }
        let first = first.await.expect("answered");
        assert_eq!(
            (first.says(), first.text()),
            (says(200, "executed"), "held: true"),
            "{fault:?}"
        );
        assert_eq!(service.charge(KEY).await.says(), says(200, "replayed"), "{fault:?}");
        assert_eq!((service.runs(), service.audit(KEY).await.len()), (1, 0), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_outlives_its_lease_because_renewals_fail_is_not_run_again() {
    for fault in [Fault::Refused, Fault::LostBefore, Fault::HangsBefore, Fault::Corrupt] {
        let faults = Faults::default();
        let service = slow_service(&faults);
        faults.fail(StoreCall::Renew, fault, FOR_EVER);
        let first = service.spawn_charge(KEY);
        pass(LEASE + Duration::from_secs(1)).await;
        assert_eq!(service.charge(KEY).await.says(), says(409, "outcome_unknown"), "{fault:?}");
        // The attempt that is called unknown answers after all, and nobody replaced it.
        let first = first.await.expect("answered");
        let told = (first.says(), first.text());
        assert_eq!(told, (says(200, "executed"), "held: false"), "{fault:?}");
        assert_eq!(service.charge(KEY).await.says(), says(200, "replayed"), "{fault:?}");
        assert_eq!(service.runs(), 1, "{fault:?}");
        let events: Vec<_> =
            service.audit(KEY).await.iter().map(|audit| audit.event.name()).collect();
        assert_eq!(events, ["lease_expired", "late_completion"], "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_whose_answer_is_always_lost_holds_the_lease_in_the_store() {
    for fault in [Fault::LostAfter, Fault::HangsAfter] {
        let faults = Faults::default();
        let service = slow_service(&faults);
        faults.fail(StoreCall::Renew, fault, FOR_EVER);
        let first = service.spawn_charge(KEY);
        pass(LEASE * 2).await;
        assert_eq!(service.charge(KEY).await.says(), says(409, "key_in_progress"), "{fault:?}");
        // The owner itself cannot know that, and does not act on it.
        let first = first.await.expect("answered");
        let told = (first.says(), first.text());
        assert_eq!(told, (says(200, "executed"), "held: false"), "{fault:?}");
        assert_eq!((service.runs(), service.audit(KEY).await.len()), (1, 0), "{fault:?}");
    }
}
