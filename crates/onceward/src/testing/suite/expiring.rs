//! Retention, tombstones, generations and the reaper.

use std::time::Duration;

use crate::{
    clock::Timestamp,
    record::{Effects, Record, State},
    store::{Ask, Found, Reaped, Reservation, Write, Written},
    testing::{
        Harness,
        samples::{LEASE, RETENTION, TOMBSTONE, another_request, ask, reply, retry},
    },
};

async fn completed(on: &Harness, ask: &Ask) -> Record {
    let lease = on.grant(ask).await;
    assert_eq!(on.write(&lease, Write::Complete(reply("done"))).await, Written::Applied);
    on.record(&ask.id).await
}

/// Retention that ends now is over; a microsecond earlier the reply is still there.
pub async fn retention_that_ends_exactly_now_is_over(on: Harness) {
    let ask = ask("key");
    let record = completed(&on, &ask).await;
    on.clock.set(Timestamp::from_micros(record.expires_at.as_micros() - 1));
    assert_eq!(on.reap(10).await, Reaped::default());
    assert_eq!(on.occupied(&retry(&ask)).await.reply, Some(reply("done")));
    on.clock.set(record.expires_at);
    let seen = on.occupied(&retry(&ask)).await;
    assert_eq!((seen.state, seen.reply), (State::Expired, Some(reply("done").status_only())));
    assert_eq!(on.reap(10).await, Reaped { expired: 1, purged: 0 });
}

/// No reader sees a reply past its retention, reaped or not.
pub async fn a_reply_past_retention_is_not_shown_before_it_is_reaped(on: Harness) {
    let ask = ask("key");
    completed(&on, &ask).await;
    on.clock.advance(RETENTION);
    let seen = on.record(&ask.id).await;
    assert_eq!((seen.state, seen.reply), (State::Expired, Some(reply("done").status_only())));
}

/// An expired key is refused while its tombstone lives, if the policy says so.
pub async fn an_expired_key_is_refused_while_its_tombstone_lives(on: Harness) {
    let ask = ask("key");
    completed(&on, &ask).await;
    on.clock.advance(RETENTION + TOMBSTONE - Duration::from_secs(1));
    assert_eq!(on.occupied(&retry(&ask)).await.state, State::Expired);
    on.clock.advance(Duration::from_secs(1));
    let lease = on.grant(&retry(&ask)).await;
    assert_eq!(lease.generation, 1, "without a tombstone, the key is new");
}

/// A reserve that was on its way for longer than a retention comes from an attempt that is over: it
/// does not take the key for nobody.
pub async fn a_repeated_reserve_of_an_attempt_that_completed_takes_no_expired_key(on: Harness) {
    for (key, tombstone, generation) in [("kept", TOMBSTONE, 2), ("gone", Duration::ZERO, 1)] {
        let ask = Ask { expired_runs_again: true, tombstone, ..ask(key) };
        completed(&on, &ask).await;
        on.clock.advance(RETENTION);
        assert_eq!(on.occupied(&ask).await.state, State::Expired, "{key}");
        assert_eq!(on.grant(&retry(&ask)).await.generation, generation, "{key}");
    }
}

/// The same, with a reaper that did its work at each step.
pub async fn a_key_is_expired_then_purged_then_new(on: Harness) {
    let ask = ask("key");
    let before = completed(&on, &ask).await;
    on.clock.advance(RETENTION);
    assert_eq!(on.reap(10).await, Reaped { expired: 1, purged: 0 });
    assert_eq!(on.occupied(&retry(&ask)).await.state, State::Expired);
    // Another request is still told that the key is not its own.
    assert_eq!(on.occupied(&another_request(&ask)).await.fingerprint, before.fingerprint);
    assert_eq!(on.reap(10).await, Reaped::default(), "once is enough");
    on.clock.advance(TOMBSTONE);
    assert_eq!(on.load(&ask.id).await, None);
    assert_eq!(on.reap(10).await, Reaped { expired: 0, purged: 1 });
    let Reservation::Granted { lease, found } = on.reserve(&another_request(&ask)).await else {
        panic!("expected a grant")
    };
    assert_eq!((found, lease.generation), (Found::Absent, 1));
    assert!(lease.fence > before.fence, "the fence grows across the purge");
}

/// Where the policy says so, an expired key runs again and says which time it is.
pub async fn an_expired_key_runs_again_as_the_next_generation_where_allowed(on: Harness) {
    let ask = Ask { expired_runs_again: true, ..ask("key") };
    completed(&on, &ask).await;
    for generation in 2..5 {
        on.clock.advance(RETENTION);
        // With and without a reaper in between.
        if generation % 2 == 0 {
            on.reap(10).await;
        }
        let Reservation::Granted { lease, found } = on.reserve(&another_request(&ask)).await else {
            panic!("expected a grant")
        };
        assert_eq!(
            (found, lease.generation, lease.attempt_number),
            (Found::Expired, generation, 1)
        );
        assert_eq!(on.write(&lease, Write::Complete(reply("again"))).await, Written::Applied);
    }
}

/// An expired key is not run again before its time, whatever the policy.
pub async fn a_completed_key_does_not_run_again_before_its_retention_is_over(on: Harness) {
    let ask = Ask { expired_runs_again: true, ..ask("key") };
    completed(&on, &ask).await;
    on.clock.advance(RETENTION - Duration::from_secs(1));
    assert_eq!(on.occupied(&retry(&ask)).await.reply, Some(reply("done")));
}

/// What never acted leaves nothing to protect: its expired key is free for any request.
pub async fn what_never_acted_and_expired_is_free_for_any_request(on: Harness) {
    let ask = ask("key");
    let lease = on.grant(&ask).await;
    assert_eq!(on.write(&lease, Write::Release("not_sent".into())).await, Written::Applied);
    on.clock.advance(RETENTION - Duration::from_secs(1));
    assert_eq!(on.occupied(&another_request(&ask)).await.state, State::FailedRetryable);
    on.clock.advance(Duration::from_secs(1));
    assert_eq!(on.reap(10).await, Reaped { expired: 1, purged: 0 });
    assert_eq!(on.grant(&another_request(&ask)).await.generation, 2);
}

/// Without a tombstone, retention leaves nothing.
pub async fn without_a_tombstone_the_key_is_new_at_once(on: Harness) {
    let ask = Ask { tombstone: Duration::ZERO, ..ask("key") };
    completed(&on, &ask).await;
    on.clock.advance(RETENTION);
    assert_eq!(on.load(&ask.id).await, None);
    assert_eq!(on.reap(10).await, Reaped { expired: 0, purged: 1 });
    assert_eq!(on.grant(&another_request(&ask)).await.generation, 1);
}

/// The reaper touches only what is at rest.
pub async fn reap_never_touches_a_record_that_is_not_terminal(on: Harness) {
    let accepted = Ask { mode: crate::store::Mode::Accept, ..ask("pending") };
    let answer = on.reserve(&accepted).await;
    assert!(matches!(answer, Reservation::Accepted { .. }), "{answer:?}");
    on.occupy(&ask("running")).await;
    let lease = on.grant(&ask("unknown")).await;
    assert_eq!(on.write(&lease, Write::MarkUnknown("reset".into())).await, Written::Applied);
    completed(&on, &ask("completed")).await;
    on.clock.advance((RETENTION + TOMBSTONE) * 10);
    assert_eq!(on.reap(100).await, Reaped { expired: 0, purged: 1 });
    for (key, state) in
        [("pending", State::Pending), ("running", State::InProgress), ("unknown", State::Unknown)]
    {
        assert_eq!(on.record(&ask(key).id).await.state, state);
    }
}

/// A reap stops at its limit, and the next one goes on.
pub async fn reap_stops_at_its_limit_and_goes_on_next_time(on: Harness) {
    for number in 0..5 {
        completed(&on, &ask(&format!("key-{number}"))).await;
    }
    on.occupy(&ask("running")).await;
    on.clock.advance(RETENTION);
    let reap = async |limit| on.store.reap(limit).await.expect("reap answers");
    assert_eq!(reap(0).await, Reaped::default());
    for expected in [2, 2, 1, 0] {
        assert_eq!(reap(2).await, Reaped { expired: expected, purged: 0 });
    }
    on.clock.advance(TOMBSTONE);
    for expected in [3, 2, 0] {
        assert_eq!(reap(3).await, Reaped { expired: 0, purged: expected });
    }
    assert_eq!(on.record(&ask("running").id).await.state, State::InProgress);
}

/// The lease and the retention are two clocks.
pub async fn a_long_execution_is_not_ended_by_retention(on: Harness) {
    let ask = Ask { retention: Duration::from_secs(10), ..ask("key") };
    let lease = on.grant(&ask).await;
    on.clock.advance(LEASE / 2);
    assert_eq!(on.reap(10).await, Reaped::default());
    assert_eq!(on.occupied(&retry(&ask)).await.state, State::InProgress);
    let record = {
        assert_eq!(on.write(&lease, Write::Complete(reply("done"))).await, Written::Applied);
        on.record(&ask.id).await
    };
    assert_eq!(record.expires_at, on.now().plus(Duration::from_secs(10)));
}

/// What was remembered of a record outlives it, and goes when its own time is over; no sooner, never
/// before its record, and nothing else with it.
pub async fn audit_records_are_purged_after_a_retention_of_their_own(on: Harness) {
    let kept = RETENTION + TOMBSTONE + LEASE * 10;
    let harmless = |key| Ask { effects: Effects::None, ..ask(key) };
    let audits = async |key| on.store.audit(&ask(key).id).await.expect("audit answers").len();
    let purge = async || on.store.purge_audit(kept, 100).await.expect("purge_audit answers");
    for key in ["first", "second"] {
        on.occupy(&harmless(key)).await;
        on.clock.advance(LEASE);
        assert_eq!(on.sweep(10).await.len(), 1);
    }
    on.clock.advance(RETENTION + TOMBSTONE);
    assert_eq!(on.reap(10).await.purged, 2);
    on.clock.advance(LEASE * 9 - Duration::from_micros(1));
    assert_eq!((purge().await, audits("first").await, audits("second").await), (0, 1, 1));
    on.clock.advance(Duration::from_micros(1));
    assert_eq!((purge().await, audits("first").await, audits("second").await), (1, 0, 1));
    on.clock.advance(LEASE);
    assert_eq!((purge().await, audits("second").await), (1, 0));
    assert_eq!(purge().await, 0);
}

/// Whoever looks at a record that is open for long finds all that happened to it, also of its tombstone;
/// what is about an earlier use of its key goes.
pub async fn audit_records_of_what_is_still_there_are_not_purged(on: Harness) {
    let audits = async |key| on.store.audit(&ask(key).id).await.expect("audit answers").len();
    let purge = async || on.store.purge_audit(Duration::ZERO, 100).await.expect("an answer");
    on.occupy(&ask("unknown")).await;
    let again = Ask { effects: Effects::None, expired_runs_again: true, ..ask("again") };
    on.occupy(&again).await;
    on.clock.advance(LEASE);
    assert_eq!(on.sweep(10).await.len(), 2);
    on.clock.advance(RETENTION);
    assert_eq!((on.reap(10).await.expired, purge().await), (1, 0), "a tombstone is there");
    assert_eq!((audits("unknown").await, audits("again").await), (1, 1));
    assert_eq!(on.grant(&retry(&again)).await.generation, 2);
    assert_eq!((purge().await, audits("again").await), (1, 0), "of the generation before");
    on.clock.advance(RETENTION * 10);
    assert_eq!((purge().await, audits("unknown").await), (0, 1), "nobody knows yet");
}

/// As the reaper, the oldest first.
pub async fn purging_audit_records_stops_at_its_limit_and_goes_on_next_time(on: Harness) {
    for number in 0..5 {
        let key = format!("key-{number}");
        on.occupy(&Ask { effects: Effects::None, tombstone: Duration::ZERO, ..ask(&key) }).await;
    }
    on.clock.advance(LEASE);
    assert_eq!(on.sweep(10).await.len(), 5);
    on.clock.advance(RETENTION);
    assert_eq!(on.reap(10).await.purged, 5);
    let purge = async |limit| on.store.purge_audit(Duration::ZERO, limit).await.expect("an answer");
    assert_eq!(purge(0).await, 0);
    for expected in [2, 2, 1, 0] {
        assert_eq!(purge(2).await, expected);
    }
}
