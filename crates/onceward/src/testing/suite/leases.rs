//! Leases that run out: by declared effects, on reserve and by the sweeper.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    clock::Timestamp,
    machine::LEASE_RAN_OUT,
    record::{AuditEvent, Effects, RecordId, State},
    store::{Ask, Found, Reservation, Write, Written},
    testing::{
        Harness,
        samples::{LEASE, ask, reply, retry},
    },
};

async fn vanished(on: &Harness, effects: Effects) -> Ask {
    let ask = Ask { effects, ..ask(effects.name()) };
    on.occupy(&ask).await;
    on.clock.advance(LEASE);
    ask
}

/// A lease that ends now is over; a microsecond earlier it is not.
pub async fn a_lease_that_ends_exactly_now_is_over(on: Harness) {
    let ask = ask("key");
    let lease = on.grant(&ask).await;
    on.clock.set(Timestamp::from_micros(lease.until.as_micros() - 1));
    assert_eq!(on.occupied(&retry(&ask)).await.state, State::InProgress);
    assert_eq!(on.sweep(10).await, []);
    on.clock.set(lease.until);
    assert_eq!(on.sweep(10).await.len(), 1);
    assert_eq!(on.occupied(&retry(&ask)).await.state, State::Unknown);
}

/// The same on reserve, without a sweeper.
pub async fn a_reserve_finds_a_lease_that_ends_exactly_now_over(on: Harness) {
    let ask = ask("key");
    let lease = on.grant(&ask).await;
    on.clock.set(lease.until);
    let Reservation::Occupied { record, lease_ran_out } = on.reserve(&retry(&ask)).await else {
        panic!("expected a record in the way")
    };
    assert_eq!((record.state, lease_ran_out), (State::Unknown, true));
    assert_eq!(on.record(&ask.id).await, *record, "the reserve has moved it on");
    // The next one finds it so.
    let Reservation::Occupied { lease_ran_out, .. } = on.reserve(&retry(&ask)).await else {
        panic!("expected a record in the way")
    };
    assert!(!lease_ran_out);
}

/// External and undeclared effects: nobody knows, so nobody runs it again.
pub async fn a_vanished_attempt_that_may_have_acted_is_unknown_to_the_next(on: Harness) {
    for effects in [Effects::External, Effects::Undeclared] {
        let ask = vanished(&on, effects).await;
        let record = on.occupied(&retry(&ask)).await;
        assert_eq!(record.state, State::Unknown, "{effects:?}");
        assert_eq!(record.last_error.as_deref(), Some(LEASE_RAN_OUT));
        assert_eq!(record.reconcile_after, Some(on.now()));
        let audit = on.audit(&ask.id).await;
        assert_eq!(audit.len(), 1);
        assert_eq!((audit[0].event, &*audit[0].reason), (AuditEvent::LeaseExpired, "unknown"));
    }
}

/// No effects, or only such as were rolled back: the same request runs again.
pub async fn a_vanished_attempt_that_cannot_have_acted_is_replaced(on: Harness) {
    for effects in [Effects::None, Effects::Local] {
        let ask = vanished(&on, effects).await;
        let Reservation::Granted { lease, found } = on.reserve(&retry(&ask)).await else {
            panic!("expected a grant for {effects:?}")
        };
        assert_eq!((found, lease.attempt_number), (Found::LeaseOver, 2), "{effects:?}");
        assert_eq!(on.audit(&ask.id).await[0].event, AuditEvent::LeaseExpired);
    }
}

/// Phases are resumed by the next attempt of the same request, and not swept away.
pub async fn a_vanished_phased_attempt_is_resumed_by_the_next(on: Harness) {
    let ask = vanished(&on, Effects::Phased).await;
    assert_eq!(on.sweep(10).await, []);
    let Reservation::Granted { lease, found } = on.reserve(&retry(&ask)).await else {
        panic!("expected a grant")
    };
    assert_eq!((found, lease.generation, lease.attempt_number), (Found::LeaseOver, 1, 2));
}

/// What the vanished attempt declared counts, not what the retry declares.
pub async fn the_effects_of_the_vanished_attempt_decide(on: Harness) {
    let ask = vanished(&on, Effects::External).await;
    let harmless = Ask { effects: Effects::None, ..retry(&ask) };
    assert_eq!(on.occupied(&harmless).await.state, State::Unknown);
}

/// The sweeper moves each record on by its effects, with an audit record.
pub async fn sweep_moves_records_on_by_their_effects(on: Harness) {
    for effects in Effects::ALL {
        on.occupy(&Ask { effects, ..ask(effects.name()) }).await;
    }
    on.clock.advance(LEASE);
    assert_eq!(on.sweep(100).await.len(), 4);
    let expected = [
        (Effects::Undeclared, State::Unknown),
        (Effects::External, State::Unknown),
        (Effects::Phased, State::InProgress),
        (Effects::Local, State::FailedRetryable),
        (Effects::None, State::FailedRetryable),
    ];
    for (effects, state) in expected {
        let id = ask(effects.name()).id;
        assert_eq!(on.record(&id).await.state, state, "{effects:?}");
        let events: Vec<_> = on.audit(&id).await.iter().map(|audit| audit.event).collect();
        let moved = state != State::InProgress;
        let expected = if moved { vec![AuditEvent::LeaseExpired] } else { vec![] };
        assert_eq!(events, expected, "{effects:?}");
    }
    assert_eq!(on.sweep(100).await, [], "once is enough");
}

/// A sweep stops at its limit, and the next one goes on where it stopped.
pub async fn sweep_stops_at_its_limit_and_goes_on_next_time(on: Harness) {
    for number in 0..7 {
        on.occupy(&ask(&format!("key-{number}"))).await;
    }
    on.clock.advance(LEASE);
    assert_eq!(on.sweep(0).await, []);
    let mut swept: BTreeSet<RecordId> = BTreeSet::new();
    for expected in [3, 3, 1, 0] {
        let some = on.sweep(3).await;
        assert_eq!(some.len(), expected);
        swept.extend(some.into_iter().map(|one| one.id));
    }
    assert_eq!(swept.len(), 7, "each record is swept once");
}

/// Sweeping leaves the living alone, and everything that is not in progress.
pub async fn sweep_skips_live_leases_and_records_at_rest(on: Harness) {
    let live = ask("live");
    let renewed = ask("renewed");
    let completed = ask("completed");
    let lease = on.grant(&completed).await;
    assert_eq!(on.write(&lease, Write::Complete(reply("done"))).await, Written::Applied);
    let lease = on.grant(&renewed).await;
    on.clock.advance(LEASE / 2);
    on.occupy(&live).await;
    assert_eq!(on.write(&lease, Write::Renew(LEASE)).await, Written::Applied);
    on.clock.advance(LEASE / 2);
    assert_eq!(on.sweep(100).await, []);
    assert_eq!(on.record(&live.id).await.state, State::InProgress);
    assert_eq!(on.record(&renewed.id).await.state, State::InProgress);
    assert_eq!(on.record(&completed.id).await.state, State::Completed);
}

/// Clocks step back; a lease does not end by that, and the fence does not shrink.
pub async fn a_clock_that_steps_back_ends_no_lease_and_shrinks_no_fence(on: Harness) {
    let ask = ask("key");
    let start = on.now();
    on.clock.advance(Duration::from_secs(3_600));
    let first = on.grant(&ask).await;
    on.clock.set(start);
    assert_eq!(on.sweep(10).await, []);
    assert_eq!(on.occupied(&retry(&ask)).await.state, State::InProgress);
    assert_eq!(on.write(&first, Write::Release("not_sent".into())).await, Written::Applied);
    let second = on.grant(&retry(&ask)).await;
    assert!(second.fence > first.fence);
    assert!(second.fence.number() > on.now().as_micros());
}
