//! What becomes of a phased operation whose attempt ended or vanished, and who goes on with it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method};

use super::cancelling::{Expected, drop_at_every_await};
use crate::{
    machine::{EFFECT_WITHOUT_RESULT, LEASE_RAN_OUT},
    record::{AuditEvent, Effects, Lease, RecordId, State, StoredRequest},
    store::{
        Advance, Advanced, Ask, Found, Mode, Proof, Reservation, Resolution, Which, Write, Written,
    },
    testing::{
        Harness,
        samples::{
            LEASE, RETENTION, another_request, ask, claim, intend, phased, reply, request, retry,
            save, withdraw,
        },
    },
};

fn release() -> Write {
    Write::Release("handler_failed".into())
}

/// The keys of what can be resumed now.
async fn resumable(on: &Harness) -> Vec<String> {
    let all = on.resumable(100).await;
    all.iter().map(|one| one.record.id.key.as_str().to_owned()).collect()
}

/// Steps were made, so that nothing has failed: the operation waits for whoever goes on with it.
pub async fn releasing_with_steps_made_suspends(on: Harness) {
    let ask = phased("key");
    let lease = on.grant(&ask).await;
    on.stepped(&lease, save("charge", "42")).await;
    let mut expected = on.record(&ask.id).await;
    on.clock.advance(Duration::from_secs(5));
    assert_eq!(on.write(&lease, release()).await, Written::Applied);
    expected.lease_until = on.now();
    expected.last_error = Some("handler_failed".into());
    assert_eq!(on.record(&ask.id).await, expected);
    assert_eq!(on.sweep(10).await, []);
    assert_eq!(on.occupied(&another_request(&ask)).await, expected, "another request waits");
    let Reservation::Granted { lease, found } = on.reserve(&retry(&ask)).await else {
        panic!("expected a grant")
    };
    assert_eq!((found, lease.generation, lease.attempt_number), (Found::LeaseOver, 1, 2));
    assert_eq!(on.steps(&ask.id, 1).await.len(), 1);
}

/// Suspending again is acknowledged again.
pub async fn suspending_twice_is_applied_once(on: Harness) {
    let lease = on.grant(&phased("key")).await;
    on.stepped(&lease, save("charge", "42")).await;
    assert_eq!(on.write(&lease, release()).await, Written::Applied);
    let before = on.record(&lease.id).await;
    on.clock.advance(Duration::from_secs(5));
    assert_eq!(on.write(&lease, release()).await, Written::AlreadyMine(None));
    assert_eq!(on.record(&lease.id).await, before);
}

/// An effect that may be called again is no reason to stop.
pub async fn releasing_with_an_idempotent_effect_open_suspends(on: Harness) {
    let ask = phased("key");
    let lease = on.grant(&ask).await;
    on.stepped(&lease, intend("charge", true)).await;
    assert_eq!(on.write(&lease, release()).await, Written::Applied);
    let record = on.record(&ask.id).await;
    assert_eq!((record.state, record.lease_until), (State::InProgress, on.now()));
    let next = on.grant(&retry(&ask)).await;
    // It is still open, and it is the next attempt's to call and to close.
    assert_eq!(on.advance(&next, intend("charge", true)).await, Advanced::AlreadyMine);
    on.stepped(&next, save("charge", "42")).await;
}

/// Nobody knows whether it acted, so nobody calls it again.
pub async fn releasing_with_an_effect_open_that_is_not_idempotent_is_unknown(on: Harness) {
    let ask = phased("key");
    let lease = on.grant(&ask).await;
    on.stepped(&lease, save("book", "7")).await;
    on.stepped(&lease, intend("charge", false)).await;
    assert_eq!(on.write(&lease, release()).await, Written::Applied);
    let record = on.record(&ask.id).await;
    assert_eq!((record.state, record.reconcile_after), (State::Unknown, Some(on.now())));
    assert_eq!(record.last_error.as_deref(), Some(EFFECT_WITHOUT_RESULT));
    on.clock.advance(LEASE);
    assert_eq!(on.write(&lease, release()).await, Written::AlreadyMine(None));
    assert_eq!(on.occupied(&retry(&ask)).await, record);
    assert_eq!(resumable(&on).await, [""; 0]);
    assert_eq!(on.steps(&ask.id, 1).await.len(), 1, "what was made is kept");
}

/// Where no step was made nothing acted, as ever; also when an effect was withdrawn.
pub async fn releasing_without_steps_made_is_retryable(on: Harness) {
    for key in ["untouched", "withdrawn"] {
        let ask = phased(key);
        let lease = on.grant(&ask).await;
        if key == "withdrawn" {
            on.stepped(&lease, intend("charge", false)).await;
            on.stepped(&lease, withdraw("charge")).await;
        }
        assert_eq!(on.write(&lease, release()).await, Written::Applied);
        assert_eq!(on.record(&ask.id).await.state, State::FailedRetryable, "{key}");
        assert_eq!(on.grant(&retry(&ask)).await.attempt_number, 2);
    }
}

/// Found by the next reserve, and audited.
pub async fn a_vanished_attempt_with_an_effect_open_that_is_not_idempotent_is_unknown(on: Harness) {
    let ask = phased("key");
    let lease = on.grant(&ask).await;
    on.stepped(&lease, intend("charge", false)).await;
    on.clock.set(lease.until);
    let Reservation::Occupied { record, lease_ran_out } = on.reserve(&retry(&ask)).await else {
        panic!("expected a record in the way")
    };
    assert_eq!((record.state, lease_ran_out), (State::Unknown, true));
    assert_eq!(record.last_error.as_deref(), Some(LEASE_RAN_OUT));
    assert!(record.progress.open_effect.is_some(), "it can be seen why");
    let audit = on.audit(&ask.id).await;
    assert_eq!((audit[0].event, &*audit[0].reason), (AuditEvent::LeaseExpired, "unknown"));
}

/// Effects that may be called again, and those that are done, do not stand in the way.
pub async fn a_vanished_attempt_with_no_such_effect_open_is_resumed(on: Harness) {
    for (key, advances) in [
        ("nothing", vec![]),
        ("idempotent", vec![intend("charge", true)]),
        ("done", vec![intend("charge", false), save("charge", "42")]),
        ("withdrawn", vec![intend("charge", false), withdraw("charge")]),
    ] {
        let ask = phased(key);
        let lease = on.grant(&ask).await;
        for advance in advances {
            on.stepped(&lease, advance).await;
        }
        let progress = on.record(&ask.id).await.progress;
        on.clock.advance(LEASE);
        let Reservation::Granted { lease, found } = on.reserve(&retry(&ask)).await else {
            panic!("expected a grant of {key}")
        };
        assert_eq!((found, lease.generation, lease.attempt_number), (Found::LeaseOver, 1, 2));
        assert_eq!(on.record(&ask.id).await.progress, progress, "{key}: it goes on from there");
    }
}

/// The sweeper moves on what must not be called again, and leaves what waits to be resumed.
pub async fn sweep_moves_only_phased_work_that_cannot_go_on(on: Harness) {
    for (key, advance) in [
        ("saved", Some(save("charge", "42"))),
        ("idempotent", Some(intend("charge", true))),
        ("stuck", Some(intend("charge", false))),
        ("nothing", None),
    ] {
        let lease = on.grant(&phased(key)).await;
        if let Some(advance) = advance {
            on.stepped(&lease, advance).await;
        }
    }
    assert_eq!(on.sweep(10).await, []);
    on.clock.advance(LEASE);
    let swept = on.sweep(10).await;
    assert_eq!(swept.len(), 1);
    assert_eq!((&swept[0].id, swept[0].state), (&phased("stuck").id, State::Unknown));
    assert_eq!(on.sweep(10).await, []);
    for key in ["saved", "idempotent", "nothing"] {
        assert_eq!(on.record(&phased(key).id).await.state, State::InProgress, "{key}");
    }
}

/// Its open effect did not act after all: the operation goes on from its recovery point.
pub async fn releasing_an_unknown_operation_lets_it_go_on(on: Harness) {
    let ask = phased("key");
    let first = on.grant(&ask).await;
    on.stepped(&first, save("book", "7")).await;
    on.stepped(&first, intend("charge", false)).await;
    assert_eq!(on.write(&first, Write::MarkUnknown("reset".into())).await, Written::Applied);
    on.clock.advance(Duration::from_secs(5));
    on.resolved(&ask.id, Resolution::Release(Proof::Authoritative)).await;
    let record = on.record(&ask.id).await;
    assert_eq!((record.state, record.lease_until), (State::InProgress, on.now()));
    assert_eq!((record.reconcile_after, record.generation), (None, 1));
    assert_eq!(record.progress.open_effect, None, "known not to have acted");
    assert_eq!(record.progress.recovery_point.as_deref(), Some("book"));
    let events: Vec<_> = on.audit(&ask.id).await.iter().map(|audit| audit.event).collect();
    assert_eq!(events, [AuditEvent::Released]);
    assert_eq!(resumable(&on).await, ["key"]);
    // The attempt that was decided about has lost its right, as always.
    let late = on.advance(&first, save("charge", "42")).await;
    assert!(matches!(late, Advanced::Superseded(Some(_))), "{late:?}");
    let late = on.write(&first, Write::Renew(LEASE)).await;
    assert!(matches!(late, Written::Superseded(Some(_))), "{late:?}");
    let next = on.grant(&retry(&ask)).await;
    assert_eq!((next.generation, next.attempt_number), (1, 2));
    on.stepped(&next, intend("charge", false)).await;
}

/// It found the lease over and moved the record on, and that is all it did.
pub async fn the_request_of_one_that_was_refused_is_not_kept(on: Harness) {
    let external = ask("key");
    let first = on.grant(&external).await;
    on.stepped(&first, intend("charge", true)).await;
    on.clock.advance(LEASE);
    let refused = Ask { request: Some(Arc::new(request("refused"))), ..retry(&external) };
    assert_eq!(on.occupied(&refused).await.state, State::Unknown);
    on.resolved(&external.id, Resolution::Release(Proof::Authoritative)).await;
    let waiting = on.resumable(10).await;
    assert_eq!(waiting.len(), 1);
    assert_eq!(waiting[0].request, None);
}

/// Also when its policy said something else at the end: it must not be unknown again at once.
pub async fn releasing_an_operation_whose_policy_changed_lets_it_go_on(on: Harness) {
    let ask = phased("key");
    let first = on.grant(&ask).await;
    on.stepped(&first, save("book", "7")).await;
    on.clock.advance(LEASE);
    on.occupy(&Ask { effects: Effects::External, ..retry(&ask) }).await;
    on.clock.advance(LEASE);
    assert_eq!(on.sweep(10).await.len(), 1);
    on.resolved(&ask.id, Resolution::Release(Proof::Authoritative)).await;
    assert_eq!(on.grant(&retry(&ask)).await.attempt_number, 3);
}

/// The outcome was found: the record is completed, and its steps go.
pub async fn completing_an_unknown_operation_ends_it(on: Harness) {
    let ask = phased("key");
    let lease = on.grant(&ask).await;
    on.stepped(&lease, save("book", "7")).await;
    on.stepped(&lease, intend("charge", false)).await;
    on.clock.advance(LEASE);
    assert_eq!(on.sweep(10).await.len(), 1);
    assert_eq!(on.steps(&ask.id, 1).await.len(), 1);
    on.resolved(&ask.id, Resolution::Complete(reply("found"))).await;
    assert_eq!(on.steps(&ask.id, 1).await, []);
    assert_eq!(on.occupied(&retry(&ask)).await.reply, Some(reply("found")));
}

/// All that wait, and nothing else.
pub async fn resumable_tells_of_what_waits_and_of_nothing_else(on: Harness) {
    for (key, advance) in [
        ("nothing", None),
        ("saved", Some(save("charge", "42"))),
        ("idempotent", Some(intend("charge", true))),
        ("stuck", Some(intend("charge", false))),
    ] {
        let lease = on.grant(&phased(key)).await;
        if let Some(advance) = advance {
            on.stepped(&lease, advance).await;
        }
    }
    for effects in Effects::ALL.into_iter().filter(|effects| *effects != Effects::Phased) {
        on.occupy(&Ask { effects, ..ask(effects.name()) }).await;
    }
    for (key, end) in [
        ("completed", Write::Complete(reply("done"))),
        ("unknown", Write::MarkUnknown("reset".into())),
        ("released", release()),
    ] {
        let lease = on.grant(&phased(key)).await;
        assert_eq!(on.write(&lease, end).await, Written::Applied);
    }
    assert_eq!(resumable(&on).await, [""; 0], "all leases are live");
    on.clock.advance(Duration::from_secs(1));
    on.occupy(&phased("live")).await;
    on.clock.advance(LEASE - Duration::from_secs(1));
    let mut keys = resumable(&on).await;
    keys.sort_unstable();
    assert_eq!(keys, ["idempotent", "nothing", "saved"]);
    // Whoever goes on with one takes it from the list.
    on.occupy(&retry(&phased("saved"))).await;
    let mut keys = resumable(&on).await;
    keys.sort_unstable();
    assert_eq!(keys, ["idempotent", "nothing"]);
}

/// The oldest first, as many as are asked for.
pub async fn resumable_tells_of_the_oldest_first_and_stops_at_its_limit(on: Harness) {
    let keys = ["c", "a", "e", "b", "d"];
    for key in keys {
        on.occupy(&phased(key)).await;
        on.clock.advance(Duration::from_secs(1));
    }
    on.clock.advance(LEASE);
    assert_eq!(resumable(&on).await, keys);
    assert_eq!(on.resumable(0).await, []);
    let two = on.resumable(2).await;
    assert_eq!(two.iter().map(|one| one.record.id.key.as_str()).collect::<Vec<_>>(), ["c", "a"]);
    assert_eq!(resumable(&on).await, keys, "to look takes nothing");
}

/// The request that is kept with the record.
async fn kept(on: &Harness, id: &RecordId) -> Option<StoredRequest> {
    let all = on.resumable(100).await;
    let mut one = all.into_iter().filter(|one| one.record.id == *id);
    one.next().expect("it can be resumed").request
}

/// Every byte, every header, in order.
pub async fn the_request_is_kept_byte_for_byte(on: Harness) {
    let header = |name: &'static str, value: &[u8]| {
        (HeaderName::from_static(name), HeaderValue::from_bytes(value).expect("a value"))
    };
    let every_byte: Vec<u8> = (0..=u8::MAX).collect();
    let requests = [
        StoredRequest {
            method: Method::POST,
            uri: "/payments/a%2Fb?x=1&x=2&empty=&%20".parse().expect("a target"),
            headers: vec![
                header("x-tag", b"one"),
                header("content-type", b"application/json"),
                header("x-tag", b"two"),
                header("x-tag", b"one"),
                header("x-empty", b""),
                header("x-latin", b"caf\xe9"),
            ],
            body: every_byte.into(),
        },
        StoredRequest {
            method: Method::from_bytes(b"PURGE").expect("a method"),
            uri: "https://api.example:8443/a?b".parse().expect("a target"),
            headers: vec![],
            body: Bytes::new(),
        },
        StoredRequest { body: vec![b'a'; 1 << 20].into(), ..request("large") },
    ];
    for (number, request) in requests.into_iter().enumerate() {
        let request = Arc::new(request);
        let ask = Ask { request: Some(Arc::clone(&request)), ..phased(&number.to_string()) };
        on.occupy(&ask).await;
        on.clock.advance(LEASE);
        assert_eq!(kept(&on, &ask.id).await.as_ref(), Some(&*request));
    }
    let without = Ask { request: None, ..phased("without") };
    on.occupy(&without).await;
    on.clock.advance(LEASE);
    assert_eq!(kept(&on, &without.id).await, None);
}

/// A generation keeps the request it began with, however often it is asked for again.
pub async fn the_first_request_of_a_generation_is_kept(on: Harness) {
    let with = |ask: &Ask, body: &'static str| Ask {
        request: Some(Arc::new(request(body))),
        ..retry(ask)
    };
    let ask = with(&Ask { expired_runs_again: true, ..phased("key") }, "first");
    on.occupy(&ask).await;
    on.occupied(&with(&ask, "second")).await;
    on.clock.advance(LEASE);
    on.occupied(&Ask { request: with(&ask, "third").request, ..another_request(&ask) }).await;
    let lease = on.grant(&with(&ask, "fourth")).await;
    on.stepped(&lease, save("charge", "42")).await;
    on.clock.advance(LEASE);
    assert_eq!(kept(&on, &ask.id).await, Some(request("first")));
    // A worker goes on with it without one.
    on.occupy(&Ask { request: None, ..retry(&ask) }).await;
    on.clock.advance(LEASE);
    assert_eq!(kept(&on, &ask.id).await, Some(request("first")));
    // It goes with the generation.
    let lease = on.grant(&retry(&ask)).await;
    assert_eq!(on.write(&lease, Write::Complete(reply("done"))).await, Written::Applied);
    on.clock.advance(RETENTION);
    on.occupy(&Ask { request: None, ..retry(&ask) }).await;
    on.clock.advance(LEASE);
    assert_eq!(kept(&on, &ask.id).await, None, "not that of an earlier generation");
    // What did not act, and runs again, has the request with which it runs.
    let lease = on.grant(&with(&ask, "fifth")).await;
    assert_eq!(on.write(&lease, release()).await, Written::Applied);
    on.occupy(&with(&ask, "sixth")).await;
    on.clock.advance(LEASE);
    assert_eq!(kept(&on, &ask.id).await, Some(request("sixth")));
}

/// Work that is accepted for later keeps its request until it is done.
pub async fn accepted_work_keeps_its_request(on: Harness) {
    let kept_request = Some(Arc::new(request("later")));
    let ask = Ask { mode: Mode::Accept, request: kept_request, ..phased("key") };
    let _: Reservation = on.reserve(&ask).await;
    let _: Reservation = on.claim(&claim(&ask)).await;
    on.clock.advance(LEASE);
    assert_eq!(kept(&on, &ask.id).await, Some(request("later")));
}

/// Steps that are made twice, and answers that are never heard.
pub async fn dropping_an_advance_at_any_await_leaves_a_legal_record(on: Harness) {
    for advance in [save("charge", "42"), intend("charge", false), withdraw("book")] {
        drop_at_every_await(
            &on,
            async |on| {
                let lease = on.grant(&phased("key")).await;
                if matches!(advance, Advance::Withdraw { .. }) {
                    on.stepped(&lease, intend("book", false)).await;
                }
                lease
            },
            |on, lease: &Lease| {
                Expected::of(on, &lease.id, |model| {
                    let _: Advanced = model.advance(lease, advance.clone());
                })
            },
            |on, lease| on.store.advance(lease, advance.clone()),
        )
        .await;
    }
}

/// A step that is saved is saved with its result, and only once.
pub async fn dropping_a_save_at_any_await_keeps_step_and_result_together(on: Harness) {
    drop_at_every_await(
        &on,
        async |on| on.grant(&phased("key")).await,
        |on, lease: &Lease| {
            Expected::of(on, &lease.id, |model| {
                let _: Advanced = model.advance(lease, save("charge", "42"));
            })
        },
        |on, lease| {
            let store = Arc::clone(&on.store);
            Box::pin(async move {
                let answer = store.advance(lease, save("charge", "42")).await?;
                let held = store.steps(&lease.id, 1).await?;
                let record = store.load(&lease.id).await?.expect("a record");
                assert_eq!(held.len(), 1, "{answer:?}: saved once");
                assert_eq!(record.progress.recovery_point.as_deref(), Some("charge"));
                Ok(answer)
            })
        },
    )
    .await;
}

/// Reserve with a request.
pub async fn dropping_a_reserve_keeps_record_and_request_together(on: Harness) {
    drop_at_every_await(
        &on,
        // A lease that is over at once, so that the request can be seen.
        async |_| Ask { lease: Duration::ZERO, ..phased("key") },
        |on, ask: &Ask| {
            Expected::of(on, &ask.id, |model| {
                let _: Reservation = model.reserve(ask, on.now());
            })
        },
        |on, ask| {
            let store = Arc::clone(&on.store);
            Box::pin(async move {
                let answer = store.reserve(ask.clone()).await?;
                let resumable = store.resumable(Which::All, 10).await?;
                assert_eq!(resumable.len(), 1);
                assert_eq!(resumable[0].request.as_ref(), ask.request.as_deref());
                Ok(answer)
            })
        },
    )
    .await;
}
