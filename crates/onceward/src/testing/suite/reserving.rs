//! Who gets a key, and who does not.

use crate::{
    clock::Timestamp,
    record::{Effects, State},
    store::{Ask, Found, Mode, Reservation, Write, Written},
    testing::{
        Harness,
        samples::{LEASE, another_request, ask, fingerprint, id, reply, retry},
    },
};

/// A new key is granted to the first who asks.
pub async fn a_free_key_is_granted(on: Harness) {
    let ask = ask("key");
    let Reservation::Granted { lease, found } = on.reserve(&ask).await else {
        panic!("expected a grant")
    };
    assert_eq!(found, Found::Absent);
    assert_eq!((lease.generation, lease.attempt_number), (1, 1));
    assert_eq!(lease.until, on.now().plus(LEASE));
    assert_eq!(on.record(&ask.id).await.state, State::InProgress);
}

/// While an attempt is at work, a retry gets its record instead of a lease.
pub async fn a_running_record_is_occupied(on: Harness) {
    let ask = ask("key");
    let lease = on.grant(&ask).await;
    let record = on.occupied(&retry(&ask)).await;
    assert_eq!(
        (record.state, record.attempt, record.fence),
        (State::InProgress, ask.attempt, lease.fence)
    );
}

/// A retry of what is done gets the stored reply in the same call.
pub async fn a_completed_record_returns_its_reply(on: Harness) {
    let ask = ask("key");
    let lease = on.grant(&ask).await;
    assert_eq!(on.write(&lease, Write::Complete(reply("done"))).await, Written::Applied);
    let record = on.occupied(&retry(&ask)).await;
    assert_eq!((record.state, record.reply), (State::Completed, Some(reply("done"))));
}

/// A retry of what is known not to have acted runs, as the second attempt.
pub async fn a_released_record_is_granted_to_the_same_request(on: Harness) {
    let ask = ask("key");
    let first = on.grant(&ask).await;
    assert_eq!(on.write(&first, Write::Release("not_sent".into())).await, Written::Applied);
    let second = on.grant(&retry(&ask)).await;
    assert_eq!((second.generation, second.attempt_number), (1, 2));
    assert!(second.fence > first.fence);
}

/// A reserve that was delayed on its way takes nothing when it arrives after its attempt ended.
pub async fn a_repeated_reserve_of_an_attempt_that_was_released_is_refused(on: Harness) {
    let ask = ask("key");
    let lease = on.grant(&ask).await;
    assert_eq!(on.write(&lease, Write::Release("not_sent".into())).await, Written::Applied);
    assert_eq!(on.occupied(&ask).await.state, State::FailedRetryable);
    let _ = on.grant(&retry(&ask)).await;
}

/// What may have acted is never granted again by itself.
pub async fn an_unknown_record_is_not_granted_however_long_one_waits(on: Harness) {
    let ask = ask("key");
    let lease = on.grant(&ask).await;
    assert_eq!(on.write(&lease, Write::MarkUnknown("reset".into())).await, Written::Applied);
    for days in [0, 1, 31, 4_000] {
        on.clock.advance(LEASE * 24 * 60 * days);
        assert_eq!(on.occupied(&retry(&ask)).await.state, State::Unknown);
    }
}

/// Another request with the same key is refused whatever the record's state, and changes nothing.
pub async fn another_request_never_gets_the_key_in_any_state(on: Harness) {
    let states: [(&str, Option<Write>); 4] = [
        ("running", None),
        ("completed", Some(Write::Complete(reply("done")))),
        ("retryable", Some(Write::Release("not_sent".into()))),
        ("unknown", Some(Write::MarkUnknown("reset".into()))),
    ];
    for (key, write) in states {
        let ask = ask(key);
        let lease = on.grant(&ask).await;
        if let Some(write) = write {
            assert_eq!(on.write(&lease, write).await, Written::Applied);
        }
        let before = on.record(&ask.id).await;
        assert_eq!(on.occupied(&another_request(&ask)).await, before, "{key}");
        assert_eq!(on.record(&ask.id).await, before, "{key}");
        assert_eq!(on.audit(&ask.id).await, [], "{key}");
    }
}

/// A vanished attempt's key is not taken by another request, even where the same one would get it.
pub async fn another_request_does_not_take_over_a_vanished_attempt(on: Harness) {
    for effects in Effects::ALL {
        let ask = Ask { effects, ..ask(effects.name()) };
        let lease = on.grant(&ask).await;
        on.clock.advance(LEASE);
        let record = on.occupied(&another_request(&ask)).await;
        assert_eq!((record.state, record.fence), (State::InProgress, lease.fence), "{effects:?}");
    }
}

/// The version of the recipe is part of the fingerprint.
pub async fn the_same_digest_by_another_recipe_is_another_request(on: Harness) {
    let ask = ask("key");
    on.occupy(&ask).await;
    let digest = *ask.fingerprint.digest();
    let newer = crate::fingerprint::Fingerprint::from_stored(2, digest);
    let record = on.occupied(&Ask { fingerprint: newer, ..retry(&ask) }).await;
    assert_eq!(record.fingerprint.recipe(), 1);
}

/// A reserve that is repeated after a lost answer is granted again, not refused by itself.
pub async fn a_repeated_reserve_of_one_attempt_is_granted_again(on: Harness) {
    let ask = ask("key");
    let first = on.grant(&ask).await;
    on.clock.advance(LEASE / 2);
    let Reservation::Granted { lease, found } = on.reserve(&ask).await else {
        panic!("expected the same grant again")
    };
    assert_eq!(found, Found::Mine);
    assert_eq!((lease.fence, lease.attempt_number), (first.fence, 1));
    // The owner counts from the call that was answered.
    assert_eq!(lease.until, on.now().plus(LEASE));
    assert_eq!(on.record(&ask.id).await.attempts, 1);
}

/// Repeating a reserve past its lease keeps the key, as long as nobody else was there.
pub async fn a_repeated_reserve_past_its_lease_is_granted_if_nobody_came(on: Harness) {
    let ask = ask("key");
    let first = on.grant(&ask).await;
    on.clock.advance(LEASE * 2);
    let again = on.grant(&ask).await;
    assert_eq!((again.fence, again.until), (first.fence, on.now().plus(LEASE)));
}

/// A repeated reserve does not bring an attempt back that lost its key.
pub async fn a_repeated_reserve_of_a_replaced_attempt_is_refused(on: Harness) {
    let ask = Ask { effects: Effects::None, ..ask("key") };
    on.occupy(&ask).await;
    on.clock.advance(LEASE);
    let second = on.grant(&retry(&ask)).await;
    assert_eq!(on.occupied(&ask).await.fence, second.fence);
}

/// The same key in two scopes is two keys.
pub async fn scopes_do_not_meet(on: Harness) {
    let mine = ask("key");
    let theirs = Ask { id: id("tenant-2", "key"), fingerprint: fingerprint(9), ..retry(&mine) };
    let lease = on.grant(&mine).await;
    assert_eq!(on.load(&theirs.id).await, None);
    on.occupy(&theirs).await;
    assert_eq!(on.write(&lease, Write::Complete(reply("mine"))).await, Written::Applied);
    assert_eq!(on.record(&theirs.id).await.reply, None);
    assert_eq!(on.occupied(&retry(&theirs)).await.state, State::InProgress);
}

/// Scope and key are two fields, not one text that can be cut in two ways.
pub async fn the_border_between_scope_and_key_cannot_be_moved(on: Harness) {
    for (scope, key) in [("ab", "c"), ("a", "bc"), ("a:b", "c"), ("a", "b:c"), ("a/b", "c")] {
        let ask = Ask { id: id(scope, key), ..ask("unused") };
        let Reservation::Granted { found, .. } = on.reserve(&ask).await else {
            panic!("{scope} {key} met another record")
        };
        assert_eq!(found, Found::Absent, "{scope} {key}");
    }
}

/// Keys and scopes are compared byte for byte.
pub async fn keys_and_scopes_are_case_sensitive_and_never_trimmed(on: Harness) {
    let pairs = [
        ("Tenant", "abc"),
        ("tenant", "abc"),
        ("TENANT", "abc"),
        ("tenant", "Abc"),
        ("tenant", "ABC"),
        ("tenant", "abc "),
        ("tenant", " abc"),
        ("tenant ", "abc"),
    ];
    for (scope, key) in pairs {
        let ask = Ask { id: id(scope, key), ..ask("unused") };
        on.occupy(&ask).await;
        assert_eq!(on.record(&ask.id).await.id, ask.id);
    }
}

/// A look finds a reply and takes nothing.
pub async fn a_look_finds_a_reply_and_takes_nothing(on: Harness) {
    let ask = ask("key");
    let look = Ask { mode: Mode::LookupOnly, ..retry(&ask) };
    assert_eq!(on.reserve(&look).await, Reservation::Free);
    assert_eq!(on.load(&ask.id).await, None);
    let lease = on.grant(&ask).await;
    assert_eq!(on.write(&lease, Write::Complete(reply("done"))).await, Written::Applied);
    assert_eq!(on.occupied(&look).await.reply, Some(reply("done")));
}

/// A look takes neither a retryable key nor one whose lease is over, and moves nothing on.
pub async fn a_look_changes_nothing_even_where_a_reserve_would(on: Harness) {
    for effects in Effects::ALL {
        let ask = Ask { effects, ..ask(effects.name()) };
        on.occupy(&ask).await;
        on.clock.advance(LEASE);
        let before = on.record(&ask.id).await;
        let look = Ask { mode: Mode::LookupOnly, ..retry(&ask) };
        let answer = on.reserve(&look).await;
        let took = matches!(answer, Reservation::Granted { .. } | Reservation::Accepted { .. });
        assert!(!took, "{effects:?}");
        assert_eq!(on.record(&ask.id).await, before, "{effects:?}");
        assert_eq!(on.audit(&ask.id).await, [], "{effects:?}");
    }
}

/// The rules of the request that runs count, not those of one that failed before it.
pub async fn a_second_attempt_runs_under_the_rules_of_its_own_request(on: Harness) {
    let ask = ask("key");
    let lease = on.grant(&ask).await;
    assert_eq!(on.write(&lease, Write::Release("not_sent".into())).await, Written::Applied);
    let changed = Ask {
        effects: Effects::Local,
        route: "payments-v2".into(),
        lease: LEASE * 2,
        max_execution: LEASE * 7,
        retention: LEASE * 100,
        tombstone: LEASE * 200,
        ..retry(&ask)
    };
    let lease = on.grant(&changed).await;
    assert_eq!(lease.until, on.now().plus(LEASE * 2));
    let record = on.record(&ask.id).await;
    assert_eq!((record.effects, &*record.route), (Effects::Local, "payments-v2"));
    assert_eq!((record.max_execution, record.retention), (LEASE * 7, LEASE * 100));
}

/// A store answers when it is well.
pub async fn a_store_that_is_well_answers_a_ping(on: Harness) {
    on.store.ping().await.expect("ping answers");
    on.occupy(&ask("key")).await;
    on.store.ping().await.expect("ping answers");
}

/// Times near the ends of what can be stored do no harm.
pub async fn very_long_durations_are_kept(on: Harness) {
    let century = LEASE * 60 * 24 * 365 * 100;
    let ask = Ask { retention: century, tombstone: century, lease: century, ..ask("key") };
    let lease = on.grant(&ask).await;
    assert_eq!(on.write(&lease, Write::Complete(reply("done"))).await, Written::Applied);
    let record = on.record(&ask.id).await;
    assert_eq!(record.expires_at, on.now().plus(century));
    assert!(record.purge_at() > Timestamp::from_micros(0));
}
