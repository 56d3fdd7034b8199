//! Work that was accepted for later: begun until it is done, or given up.

use std::time::Duration;

use crate::{
    machine::backoff,
    record::{AuditEvent, Effects, Lease, RecordId, State, StoredRequest},
    store::{Ask, Found, Mode, Proof, Reservation, Resolution, Which, Write, Written},
    testing::{
        Harness,
        samples::{
            self, LEASE, RETENTION, ask, claim, phased, queued, reply, request, retry, save,
        },
    },
};

async fn accepted(on: &Harness, ask: Ask) -> Ask {
    assert_eq!(on.reserve(&ask).await, Reservation::Accepted { found: Found::Absent });
    ask
}

async fn claimed(on: &Harness, ask: &Ask) -> Lease {
    match on.claim(&claim(ask)).await {
        Reservation::Granted { lease, found: Found::Pending } => lease,
        other => panic!("expected a grant, found {other:?}"),
    }
}

/// The keys of those that wait, and the requests that are kept for them.
async fn waiting(on: &Harness) -> Vec<(String, Option<StoredRequest>)> {
    let waiting = on.resumable(100).await.into_iter();
    waiting.map(|one| (one.record.id.key.as_str().to_owned(), one.request)).collect()
}

async fn nobody_waits(on: &Harness) {
    assert_eq!(waiting(on).await, []);
}

async fn request_of(on: &Harness, id: &RecordId) -> Option<StoredRequest> {
    let mut all = on.resumable(100).await.into_iter();
    all.find(|one| one.record.id == *id).expect("it waits").request
}

/// Accepted work says until when it may wait.
pub async fn accepted_work_knows_how_long_it_may_wait(on: Harness) {
    let queued_for = Duration::from_micros(1_234_567);
    let ask = accepted(&on, Ask { queued_for, ..queued("key") }).await;
    let record = on.record(&ask.id).await;
    assert_eq!(record.queued_until, Some(on.now().plus(queued_for)));
    let listed = on.list(crate::store::list::Query::default()).await;
    assert_eq!(listed.records.first().and_then(|it| it.queued_until), record.queued_until);
    // It still does when it is begun and when it is done.
    let lease = claimed(&on, &ask).await;
    assert_eq!(on.record(&ask.id).await.queued_until, record.queued_until);
    assert_eq!(on.write(&lease, Write::Complete(reply("done"))).await, Written::Applied);
    assert_eq!(on.record(&ask.id).await.queued_until, record.queued_until);
    // What is executed at once does not.
    let inline = samples::ask("inline");
    on.occupy(&inline).await;
    assert_eq!(on.record(&inline.id).await.queued_until, None);
}

/// Pending work waits for a worker, with its request; whoever claims it takes it from the list.
pub async fn pending_work_waits_for_a_worker_with_its_request(on: Harness) {
    let ask = accepted(&on, queued("key")).await;
    assert_eq!(waiting(&on).await, [("key".to_owned(), Some(request("{}")))]);
    let lease = claimed(&on, &ask).await;
    nobody_waits(&on).await;
    assert_eq!(on.write(&lease, Write::Complete(reply("done"))).await, Written::Applied);
    on.clock.advance(LEASE * 2);
    nobody_waits(&on).await;
}

/// The one that has waited longest comes first, whatever it is.
pub async fn pending_work_stands_in_line_before_phased_work(on: Harness) {
    on.occupy(&phased("second")).await;
    on.clock.advance(LEASE);
    on.clock.advance(Duration::from_secs(1));
    accepted(&on, queued("third")).await;
    let first = accepted(&on, queued("first")).await;
    let lease = claimed(&on, &first).await;
    assert_eq!(on.write(&lease, Write::Release("refused".into())).await, Written::Applied);
    let keys: Vec<String> = waiting(&on).await.into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["third", "second"]);
    on.clock.advance(backoff(1) + Duration::from_secs(1));
    accepted(&on, queued("last")).await;
    let two = on.resumable(2).await;
    let keys: Vec<&str> = two.iter().map(|one| one.record.id.key.as_str()).collect();
    assert_eq!(keys, ["third", "first"]);
    assert_eq!(waiting(&on).await.len(), 4);
}

/// Whoever goes on with accepted work only is told of nothing else, however long it has waited.
pub async fn a_worker_for_accepted_work_is_told_of_nothing_else(on: Harness) {
    on.occupy(&phased("phased")).await;
    on.clock.advance(LEASE);
    accepted(&on, queued("pending")).await;
    let resumed = accepted(&on, Ask { effects: Effects::Phased, ..queued("begun") }).await;
    let claim = crate::store::Claim { effects: Effects::Phased, ..claim(&resumed) };
    let granted = on.claim(&claim).await;
    assert!(matches!(granted, Reservation::Granted { .. }), "{granted:?}");
    on.clock.advance(LEASE);
    let keys = async |which, limit| -> Vec<String> {
        let told = on.resumable_of(which, limit).await.into_iter();
        told.map(|one| one.record.id.key.as_str().to_owned()).collect()
    };
    assert_eq!(keys(Which::Accepted, 10).await, ["pending", "begun"]);
    assert_eq!(keys(Which::All, 10).await, ["pending", "phased", "begun"]);
    assert_eq!(keys(Which::Accepted, 1).await, ["pending"]);
}

/// Accepted work whose time is over is found whatever may wait for longer, first what is over longest.
pub async fn overdue_work_is_listed_by_the_end_of_its_time(on: Harness) {
    for (key, seconds) in [("long", 90), ("second", 20), ("first", 10), ("third", 30)] {
        accepted(&on, Ask { queued_for: Duration::from_secs(seconds), ..queued(key) }).await;
    }
    let begun = accepted(&on, Ask { queued_for: Duration::from_secs(5), ..queued("begun") }).await;
    let _lease = claimed(&on, &begun).await;
    let order = crate::store::list::Order::Ascending;
    let query = crate::store::list::Query { overdue: true, order, limit: 2, ..Default::default() };
    assert_eq!(on.list(query.clone()).await.records, []);
    on.clock.advance(Duration::from_secs(30));
    let page = on.list(query.clone()).await;
    let keys = |page: &crate::store::list::Page| -> Vec<String> {
        page.records.iter().map(|record| record.id.key.as_str().to_owned()).collect()
    };
    assert_eq!(keys(&page), ["first", "second"]);
    let rest = on.list(crate::store::list::Query { after: page.next, ..query }).await;
    assert_eq!((keys(&rest), rest.next), (vec!["third".to_owned()], None));
}

/// Else what has just become unknown would look as old as its queue was long.
pub async fn the_age_of_an_attempt_is_without_the_time_in_the_queue(on: Harness) {
    let ask = accepted(&on, queued("key")).await;
    let accepted_at = on.now();
    on.clock.advance(Duration::from_secs(3600));
    assert_eq!(on.stats().await.oldest_pending, Some(accepted_at));
    let lease = claimed(&on, &ask).await;
    let begun_at = on.now();
    on.clock.advance(Duration::from_secs(1));
    assert_eq!(on.stats().await.oldest_in_progress, Some(begun_at));
    assert_eq!(on.write(&lease, Write::MarkUnknown("reset".into())).await, Written::Applied);
    assert_eq!(on.stats().await.oldest_unknown, Some(begun_at));
}

/// What was not executed is pending again, with its request, and not due before a pause.
pub async fn queued_work_that_is_released_is_begun_again_after_a_pause(on: Harness) {
    let ask = accepted(&on, queued("key")).await;
    for attempt in 1..=8 {
        let lease = claimed(&on, &ask).await;
        assert_eq!(lease.attempt_number, attempt);
        let release = Write::Release("refused".into());
        assert_eq!(on.write(&lease, release.clone()).await, Written::Applied);
        assert_eq!(on.write(&lease, release).await, Written::AlreadyMine(None));
        let record = on.record(&ask.id).await;
        assert_eq!((record.state, record.attempts), (State::Pending, attempt));
        assert_eq!(record.last_error.as_deref(), Some("refused"));
        assert_eq!(record.lease_until, on.now().plus(backoff(attempt)));
        nobody_waits(&on).await;
        let early = on.claim(&claim(&ask)).await;
        assert!(matches!(early, Reservation::Occupied { .. }), "{early:?}");
        on.clock.advance(backoff(attempt));
        assert_eq!(request_of(&on, &ask.id).await, Some(request("{}")));
    }
}

/// What the attempt might have done decides about one that vanished.
pub async fn a_vanished_attempt_at_queued_work_is_moved_on_by_its_effects(on: Harness) {
    for effects in Effects::ALL {
        let ask = accepted(&on, Ask { effects, ..queued(effects.name()) }).await;
        let _: Lease = claimed(&on, &ask).await;
    }
    on.clock.advance(LEASE);
    on.sweep(10).await;
    for effects in Effects::ALL {
        let expected = match effects {
            Effects::Undeclared | Effects::External => State::Unknown,
            Effects::Phased => State::InProgress,
            Effects::Local | Effects::None => State::Pending,
        };
        let id = queued(effects.name()).id;
        assert_eq!(on.record(&id).await.state, expected, "{effects:?}");
    }
    on.clock.advance(backoff(1));
    let mut keys: Vec<String> = waiting(&on).await.into_iter().map(|(key, _)| key).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["local", "none", "phased"]);
    for effects in ["local", "none"] {
        let ask = queued(effects);
        assert_eq!(request_of(&on, &ask.id).await, Some(request("{}")));
        assert_eq!(claimed(&on, &ask).await.attempt_number, 2);
    }
}

/// A retry that finds the vanished attempt moves the work on as the sweeper does.
pub async fn a_retry_finds_queued_work_whose_attempt_vanished_pending_again(on: Harness) {
    let ask = accepted(&on, Ask { effects: Effects::None, ..queued("key") }).await;
    let _: Lease = claimed(&on, &ask).await;
    on.clock.advance(LEASE);
    let again = on.reserve(&retry(&ask)).await;
    let Reservation::Occupied { record, lease_ran_out: true } = again else {
        panic!("expected it to be moved on, found {again:?}")
    };
    assert_eq!(record.state, State::Pending);
    on.clock.advance(backoff(1));
    assert_eq!(request_of(&on, &ask.id).await, Some(request("{}")));
}

/// The effects of the attempt that runs count, not those of the time when it was accepted.
pub async fn a_claim_declares_the_effects_of_its_attempt(on: Harness) {
    let ask = accepted(&on, Ask { effects: Effects::None, ..queued("key") }).await;
    let external = Ask { effects: Effects::External, ..ask.clone() };
    let _: Lease = claimed(&on, &external).await;
    on.clock.advance(LEASE);
    assert_eq!(on.sweep(10).await.len(), 1);
    assert_eq!(on.record(&ask.id).await.state, State::Unknown);
    nobody_waits(&on).await;
}

/// An unknown outcome of queued work is never begun again by itself; found not to have acted, it is.
pub async fn unknown_queued_work_is_begun_again_only_when_it_is_released(on: Harness) {
    let ask = accepted(&on, queued("key")).await;
    let lease = claimed(&on, &ask).await;
    assert_eq!(on.write(&lease, Write::MarkUnknown("reset".into())).await, Written::Applied);
    on.clock.advance(RETENTION * 10);
    nobody_waits(&on).await;
    on.resolved(&ask.id, Resolution::Release(Proof::Authoritative)).await;
    assert_eq!(on.record(&ask.id).await.state, State::Pending);
    on.clock.advance(backoff(1));
    assert_eq!(request_of(&on, &ask.id).await, Some(request("{}")));
    assert_eq!(claimed(&on, &ask).await.attempt_number, 2);
}

/// Its worker was alive after all, and no other one has begun: its reply stands, and nobody begins.
pub async fn a_result_after_the_release_completes_queued_work(on: Harness) {
    let ask = accepted(&on, queued("key")).await;
    let lease = claimed(&on, &ask).await;
    assert_eq!(on.write(&lease, Write::MarkUnknown("reset".into())).await, Written::Applied);
    on.resolved(&ask.id, Resolution::Release(Proof::Authoritative)).await;
    let late = on.write(&lease, Write::Complete(reply("late"))).await;
    assert_eq!(late, Written::AppliedAfterRelease);
    on.clock.advance(backoff(1));
    nobody_waits(&on).await;
    assert_eq!(on.occupied(&retry(&ask)).await.reply, Some(reply("late")));
    let audit = on.audit(&ask.id).await;
    let expected = [AuditEvent::Released, AuditEvent::Incident];
    assert_eq!(audit.iter().map(|it| it.event).collect::<Vec<_>>(), expected);
}

/// Giving up is one step: the reply is there, the request is gone, and nobody can begin.
pub async fn pending_work_that_is_given_up_is_completed_and_never_begun(on: Harness) {
    let ask = accepted(&on, queued("key")).await;
    on.resolved(&ask.id, Resolution::Complete(reply("too late"))).await;
    nobody_waits(&on).await;
    let beginner = on.claim(&claim(&ask)).await;
    assert!(matches!(beginner, Reservation::Occupied { .. }), "{beginner:?}");
    assert_eq!(on.occupied(&retry(&ask)).await.reply, Some(reply("too late")));
    let audit = on.audit(&ask.id).await;
    assert_eq!(audit.iter().map(|it| it.event).collect::<Vec<_>>(), [AuditEvent::GivenUp]);
}

/// Steps that were made decide, as for all phased work.
pub async fn queued_work_with_steps_made_goes_on_at_its_recovery_point(on: Harness) {
    let ask = accepted(&on, Ask { mode: Mode::Accept, ..phased("key") }).await;
    let lease = claimed(&on, &ask).await;
    on.stepped(&lease, save("book", "7")).await;
    assert_eq!(on.write(&lease, Write::Release("refused".into())).await, Written::Applied);
    assert_eq!(on.record(&ask.id).await.state, State::InProgress);
    assert_eq!(request_of(&on, &ask.id).await, Some(request("{}")));
    // There is nothing to accept any more.
    let again = on.reserve(&retry(&ask)).await;
    assert!(matches!(again, Reservation::Occupied { lease_ran_out: false, .. }), "{again:?}");
    let resumed = on.grant(&Ask { mode: Mode::Execute, ..retry(&ask) }).await;
    assert_eq!(resumed.attempt_number, 2);
    assert_eq!(on.steps(&ask.id, 1).await.len(), 1);
}

/// The request goes with the change that completes the record, and is not that of a later use.
pub async fn the_request_of_queued_work_goes_when_it_is_done(on: Harness) {
    let ask = accepted(&on, queued("key")).await;
    let lease = claimed(&on, &ask).await;
    assert_eq!(on.write(&lease, Write::Complete(reply("done"))).await, Written::Applied);
    on.clock.advance(RETENTION);
    // The next generation keeps none.
    let next = Ask { request: None, expired_runs_again: true, ..retry(&ask) };
    assert_eq!(on.reserve(&next).await, Reservation::Accepted { found: Found::Expired });
    assert_eq!(request_of(&on, &ask.id).await, None);
}

/// What was executed at once and released is not begun by anybody but its client.
pub async fn released_work_that_was_not_accepted_is_not_begun_by_a_worker(on: Harness) {
    let lease = on.grant(&ask("key")).await;
    assert_eq!(on.write(&lease, Write::Release("refused".into())).await, Written::Applied);
    on.clock.advance(LEASE * 2);
    nobody_waits(&on).await;
    assert_eq!(on.record(&ask("key").id).await.state, State::FailedRetryable);
}
