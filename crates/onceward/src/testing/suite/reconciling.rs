//! How unknown outcomes are asked about, and what becomes of the answers.

use std::time::Duration;

use crate::{
    clock::Timestamp,
    machine::{SETTLE, probe_pause},
    record::{AuditEvent, Effects, Inquiry, Lease, RecordId, State},
    reply::Reply,
    store::{Ask, Proof, Resolution, Resolved, Write, Written, list::Query},
    testing::{
        Harness,
        samples::{LEASE, MAX_EXECUTION, ask, reply, retry},
    },
};

async fn unknown(on: &Harness, key: &str) -> (Ask, Lease) {
    let ask = ask(key);
    let lease = on.grant(&ask).await;
    assert_eq!(on.write(&lease, Write::MarkUnknown("reset".into())).await, Written::Applied);
    (ask, lease)
}

/// Begins the next probe, which must be due.
async fn begin(on: &Harness, id: &RecordId) -> Inquiry {
    let probes = on.record(id).await.inquiry.probes;
    on.resolved(id, Resolution::Ask { probes }).await;
    on.record(id).await.inquiry
}

/// What the probe that was begun last says that found nothing.
async fn absent(on: &Harness, id: &RecordId) -> Resolution {
    absent_at(on.record(id).await.inquiry.asked_at.expect("it was asked about"))
}

/// What a probe that was begun then says that found nothing, of somebody who has waited long enough.
fn absent_at(asked_at: Timestamp) -> Resolution {
    Resolution::Absent { asked_at, apart: Duration::MAX }
}

/// Nobody has asked since the probe that was begun last.
async fn dead_letter(on: &Harness, id: &RecordId) -> Resolution {
    Resolution::DeadLetter { asked_at: on.record(id).await.inquiry.asked_at }
}

fn declined() -> Reply {
    Reply { status: http::StatusCode::PAYMENT_REQUIRED, ..reply("no") }
}

async fn events(on: &Harness, id: &RecordId) -> Vec<AuditEvent> {
    on.audit(id).await.into_iter().map(|audit| audit.event).collect()
}

/// When nothing can be on its way any more.
async fn quiet_since(on: &Harness, id: &RecordId) -> Timestamp {
    on.record(id).await.lease_until.plus(MAX_EXECUTION).plus(SETTLE)
}

/// The ticket of an unknown outcome is there from the first moment on.
pub async fn an_unknown_record_is_due_at_once_and_whoever_waits_longest_comes_first(on: Harness) {
    assert_eq!(on.due_unknown(10).await, []);
    on.occupy(&ask("at work")).await;
    let mut asks = Vec::new();
    for key in ["first", "second", "third"] {
        asks.push(unknown(&on, key).await.0);
        on.clock.advance(Duration::from_secs(1));
    }
    let keys = |due: Vec<crate::record::Record>| -> Vec<String> {
        due.into_iter().map(|record| record.id.key.as_str().to_owned()).collect()
    };
    let expected: Vec<_> = asks.iter().map(|ask| ask.id.key.as_str().to_owned()).collect();
    assert_eq!(keys(on.due_unknown(10).await), expected);
    assert_eq!(keys(on.due_unknown(2).await), expected[..2]);
    assert_eq!(on.due_unknown(0).await, []);
}

/// Two nodes saw the same record. One of them asks.
pub async fn only_one_of_two_that_ask_at_once_may(on: Harness) {
    let (ask, _) = unknown(&on, "key").await;
    on.resolved(&ask.id, Resolution::Ask { probes: 0 }).await;
    let second = on.resolve(&ask.id, Resolution::Ask { probes: 0 }).await;
    assert!(matches!(second, Resolved::Refused(_)), "{second:?}");
    // Nor may one that has seen the first, as long as it may still be asking.
    let third = on.resolve(&ask.id, Resolution::Ask { probes: 1 }).await;
    assert!(matches!(third, Resolved::Refused(_)), "{third:?}");
    let record = on.record(&ask.id).await;
    let now = on.now();
    let expected = Inquiry { probes: 1, asked_at: Some(now), absent_at: None };
    assert_eq!((record.state, record.inquiry), (State::Unknown, expected));
    assert_eq!(record.reconcile_after, Some(now.plus(probe_pause(1))));
    assert_eq!(events(&on, &ask.id).await, [], "a question changes nothing that is to be audited");
}

/// A question that is never answered keeps nobody from asking again.
pub async fn who_asks_and_dies_is_followed_by_another_after_the_pause(on: Harness) {
    let (ask, _) = unknown(&on, "key").await;
    begin(&on, &ask.id).await;
    on.clock.advance(probe_pause(1) - Duration::from_micros(1));
    assert_eq!(on.due_unknown(10).await, []);
    on.clock.advance(Duration::from_micros(1));
    assert_eq!(on.due_unknown(10).await.len(), 1);
    assert_eq!(begin(&on, &ask.id).await.probes, 2);
}

/// Nobody is asked all the time.
pub async fn the_pause_doubles_up_to_an_hour(on: Harness) {
    let (ask, _) = unknown(&on, "key").await;
    for seconds in [30, 60, 120, 240, 480, 960, 1920, 3600, 3600] {
        begin(&on, &ask.id).await;
        let due = on.record(&ask.id).await.reconcile_after.expect("it is unknown");
        assert_eq!(due, on.now().plus(Duration::from_secs(seconds)));
        on.clock.set(due);
    }
}

/// Rule 6: one probe that finds nothing is never enough, however late it comes.
pub async fn one_probe_that_finds_nothing_never_releases(on: Harness) {
    let (ask, _) = unknown(&on, "key").await;
    let quiet = quiet_since(&on, &ask.id).await;
    begin(&on, &ask.id).await;
    let early = on.resolve(&ask.id, absent(&on, &ask.id).await).await;
    assert_eq!(early, Resolved::TooEarly { not_before: quiet });
    assert_eq!(on.record(&ask.id).await.reconcile_after, Some(quiet), "it comes again then");
    assert_eq!(on.record(&ask.id).await.inquiry.absent_at, None, "it does not count");

    on.clock.set(quiet.plus(SETTLE * 10));
    begin(&on, &ask.id).await;
    for _ in 0..3 {
        // The same answer told again is still one probe.
        let first = on.resolve(&ask.id, absent(&on, &ask.id).await).await;
        assert_eq!(first, Resolved::TooEarly { not_before: on.now().plus(SETTLE) });
    }
    assert_eq!(on.record(&ask.id).await.state, State::Unknown);
    assert_eq!(on.occupied(&retry(&ask)).await.state, State::Unknown);
}

/// Rule 6: two probes, both after nothing can be on its way, and one settle apart.
pub async fn two_probes_that_find_nothing_release_when_late_and_apart_enough(on: Harness) {
    let (ask, _) = unknown(&on, "key").await;
    on.clock.set(quiet_since(&on, &ask.id).await);
    begin(&on, &ask.id).await;
    let first = on.resolve(&ask.id, absent(&on, &ask.id).await).await;
    let not_before = on.now().plus(SETTLE);
    assert_eq!(first, Resolved::TooEarly { not_before });
    on.clock.set(not_before);
    begin(&on, &ask.id).await;
    // It takes long to be answered: when it was asked counts.
    on.clock.advance(Duration::from_secs(9));
    on.resolved(&ask.id, absent(&on, &ask.id).await).await;
    let record = on.record(&ask.id).await;
    assert_eq!((record.state, record.inquiry), (State::FailedRetryable, Inquiry::default()));
    assert_eq!(events(&on, &ask.id).await, [AuditEvent::Released]);
    assert_eq!(on.grant(&retry(&ask)).await.attempt_number, 2);
}

/// Rule 6: the clock of a store may leap, so that two probes that are far apart by it were begun a moment
/// apart. Whoever asks knows, and is not believed before as much time has passed by its own clock.
pub async fn two_probes_that_are_apart_by_the_stores_clock_alone_release_nothing(on: Harness) {
    let (ask, _) = unknown(&on, "key").await;
    let needed = MAX_EXECUTION + SETTLE * 2;
    on.clock.set(quiet_since(&on, &ask.id).await);
    for (apart, missing) in [
        (Duration::ZERO, needed),
        (Duration::from_secs(1), needed - Duration::from_secs(1)),
        (needed - Duration::from_micros(1), Duration::from_micros(1)),
    ] {
        let asked_at = begin(&on, &ask.id).await.asked_at.expect("it was asked about");
        let told = on.resolve(&ask.id, Resolution::Absent { asked_at, apart }).await;
        let not_before = on.now().plus(missing);
        assert_eq!(told, Resolved::TooEarly { not_before });
        assert_eq!(on.record(&ask.id).await.reconcile_after, Some(not_before));
        assert_eq!(on.occupied(&retry(&ask)).await.state, State::Unknown);
        on.clock.set(not_before.plus(SETTLE * 10));
    }
    let asked_at = begin(&on, &ask.id).await.asked_at.expect("it was asked about");
    on.resolved(&ask.id, Resolution::Absent { asked_at, apart: needed }).await;
    assert_eq!(on.record(&ask.id).await.state, State::FailedRetryable);
}

/// An answer that comes after the next question was begun may be about another time.
pub async fn a_probe_that_was_overtaken_decides_nothing(on: Harness) {
    let (ask, _) = unknown(&on, "key").await;
    on.clock.set(quiet_since(&on, &ask.id).await);
    let before = on.resolve(&ask.id, absent_at(on.now())).await;
    assert!(matches!(before, Resolved::Refused(_)), "nobody has asked: {before:?}");
    begin(&on, &ask.id).await;
    let (overtaken, given_up) = (absent(&on, &ask.id).await, dead_letter(&on, &ask.id).await);
    on.clock.advance(probe_pause(1));
    begin(&on, &ask.id).await;
    for resolution in [overtaken, given_up] {
        let refused = on.resolve(&ask.id, resolution).await;
        assert!(matches!(refused, Resolved::Refused(_)), "{refused:?}");
    }
    assert_eq!(on.record(&ask.id).await.inquiry.absent_at, None);
}

/// After the limit nobody asks any more. The record stays, and so does the right of its owner.
pub async fn what_was_given_up_is_a_dead_letter_and_not_due(on: Harness) {
    let (ask, lease) = unknown(&on, "key").await;
    on.resolved(&ask.id, dead_letter(&on, &ask.id).await).await;
    let record = on.record(&ask.id).await;
    assert!(record.is_dead_letter(), "{record:?}");
    on.clock.advance(Duration::from_secs(10 * 365 * 86_400));
    assert_eq!(on.due_unknown(10).await, []);
    let _another = unknown(&on, "another").await;
    let query = Query { dead_letters: true, limit: 10, ..Query::default() };
    let listed = on.store.list_records(query.clone()).await.expect("a list");
    assert_eq!(listed, on.model().list(&query, on.now()));
    assert_eq!(listed.records.len(), 1, "{listed:?}");
    let again = on.resolve(&ask.id, dead_letter(&on, &ask.id).await).await;
    assert!(matches!(again, Resolved::Refused(_)), "{again:?}");
    assert_eq!(events(&on, &ask.id).await, [AuditEvent::DeadLettered]);
    assert_eq!(on.occupied(&retry(&ask)).await.state, State::Unknown);
    assert_eq!(on.write(&lease, Write::Complete(reply("late"))).await, Written::Applied);
    assert!(!on.record(&ask.id).await.is_dead_letter());
}

/// A person hands it back, as often as they like.
pub async fn a_redriven_dead_letter_is_due_as_if_new_and_every_time_is_remembered(on: Harness) {
    let (ask, _) = unknown(&on, "key").await;
    begin(&on, &ask.id).await;
    for _ in 0..2 {
        on.clock.advance(Duration::from_secs(1));
        on.resolved(&ask.id, dead_letter(&on, &ask.id).await).await;
        on.clock.advance(Duration::from_secs(1));
        on.resolved(&ask.id, Resolution::Redrive).await;
        let record = on.record(&ask.id).await;
        assert_eq!((record.reconcile_after, record.inquiry), (Some(on.now()), Inquiry::default()));
        assert_eq!(on.due_unknown(10).await.len(), 1);
    }
    let (dead, redriven) = (AuditEvent::DeadLettered, AuditEvent::Redriven);
    assert_eq!(events(&on, &ask.id).await, [dead, redriven, dead, redriven]);
}

/// The next unknown outcome of the same key begins at its beginning.
pub async fn what_was_asked_is_forgotten_when_the_outcome_is_known(on: Harness) {
    let (ask, _) = unknown(&on, "key").await;
    on.clock.set(quiet_since(&on, &ask.id).await);
    begin(&on, &ask.id).await;
    let _ = on.resolve(&ask.id, absent(&on, &ask.id).await).await;
    on.resolved(&ask.id, Resolution::Release(Proof::Authoritative)).await;
    assert_eq!(on.record(&ask.id).await.inquiry, Inquiry::default());
    let lease = on.grant(&retry(&ask)).await;
    assert_eq!(on.write(&lease, Write::MarkUnknown("reset".into())).await, Written::Applied);
    assert_eq!(on.record(&ask.id).await.inquiry, Inquiry::default());

    let (swept, _) = unknown(&on, "another").await;
    begin(&on, &swept.id).await;
    on.resolved(&swept.id, Resolution::Complete(reply("found"))).await;
    assert_eq!(on.record(&swept.id).await.inquiry, Inquiry::default());
}

/// The attempt itself knows best, also while somebody asks; and then nothing else is believed.
pub async fn a_late_owner_completes_what_is_being_asked_about(on: Harness) {
    let (ask, lease) = unknown(&on, "key").await;
    on.clock.set(quiet_since(&on, &ask.id).await);
    begin(&on, &ask.id).await;
    assert_eq!(on.write(&lease, Write::Complete(reply("late"))).await, Written::Applied);
    let asked_at = on.now();
    for resolution in [
        absent_at(asked_at),
        Resolution::DeadLetter { asked_at: Some(asked_at) },
        Resolution::Complete(reply("found")),
        Resolution::Executed { attempt: lease.attempt, reply: reply("found") },
    ] {
        let refused = on.resolve(&ask.id, resolution).await;
        assert!(matches!(refused, Resolved::Refused(_)), "{refused:?}");
    }
    assert_eq!(on.record(&ask.id).await.reply, Some(reply("late")));
    // The same status in other words is the same result.
    assert_eq!(events(&on, &ask.id).await, [AuditEvent::LateCompletion]);
}

/// Two results for one generation: one stands, the other is kept beside it, and somebody must look.
pub async fn two_different_results_are_an_incident_and_both_are_kept(on: Harness) {
    // What a source says against what is stored.
    let (ask, _) = unknown(&on, "told").await;
    on.resolved(&ask.id, Resolution::Complete(reply("found"))).await;
    let gone = || Reply { status: http::StatusCode::GONE, ..reply("no") };
    // What is told again is the same incident, and anything else another one.
    for told in [declined(), declined(), gone(), declined()] {
        on.clock.advance(Duration::from_secs(1));
        let refused = on.resolve(&ask.id, Resolution::Complete(told)).await;
        assert!(matches!(refused, Resolved::Refused(_)), "{refused:?}");
    }
    assert_eq!(on.record(&ask.id).await.reply, Some(reply("found")));
    let audit = on.audit(&ask.id).await;
    let kept: Vec<_> = audit.iter().map(|it| (it.event, it.reply.clone())).collect();
    let expected = [
        (AuditEvent::ResolvedCompleted, Some(reply("found"))),
        (AuditEvent::Incident, Some(declined())),
        (AuditEvent::Incident, Some(gone())),
    ];
    assert_eq!(kept, expected);

    // What the attempt itself says against it.
    let (ask, lease) = unknown(&on, "said").await;
    on.resolved(&ask.id, Resolution::Complete(reply("found"))).await;
    // Its answer may be lost, and it comes again.
    for _ in 0..2 {
        on.clock.advance(Duration::from_secs(1));
        let late = on.write(&lease, Write::Complete(declined())).await;
        assert!(matches!(late, Written::Superseded(Some(_))), "{late:?}");
    }
    let expected = [AuditEvent::ResolvedCompleted, AuditEvent::Incident];
    assert_eq!(events(&on, &ask.id).await, expected);

    // Two attempts of what must act once, and both came to a result.
    let (ask, first) = unknown(&on, "both").await;
    on.resolved(&ask.id, Resolution::Release(Proof::Authoritative)).await;
    let second = on.grant(&retry(&ask)).await;
    assert_eq!(on.write(&second, Write::Complete(reply("two"))).await, Written::Applied);
    let late = on.write(&first, Write::Complete(reply("one"))).await;
    assert!(matches!(late, Written::Superseded(Some(_))), "{late:?}");
    assert_eq!(on.record(&ask.id).await.reply, Some(reply("two")));
    let kept = on.audit(&ask.id).await.pop().expect("evidence");
    assert_eq!((kept.event, kept.attempt), (AuditEvent::Incident, first.attempt));
    assert_eq!(kept.reply, Some(reply("one")));

    // What may run again may come to a result twice.
    let ask = Ask { effects: Effects::None, ..self::ask("harmless") };
    let first = on.grant(&ask).await;
    on.clock.advance(LEASE);
    let second = on.grant(&retry(&ask)).await;
    assert_eq!(on.write(&second, Write::Complete(reply("two"))).await, Written::Applied);
    let late = on.write(&first, Write::Complete(reply("one"))).await;
    assert!(matches!(late, Written::Superseded(Some(_))), "{late:?}");
    let kept = on.audit(&ask.id).await.pop().expect("evidence");
    assert_eq!(kept.event, AuditEvent::SupersededResult);
}

/// A question from before a redrive is not credited to the one after it.
pub async fn what_was_asked_before_a_redrive_counts_for_nothing_after_it(on: Harness) {
    let (ask, _) = unknown(&on, "key").await;
    on.clock.set(quiet_since(&on, &ask.id).await);
    begin(&on, &ask.id).await;
    let (old, given_up) = (absent(&on, &ask.id).await, dead_letter(&on, &ask.id).await);
    on.resolved(&ask.id, Resolution::Redrive).await;
    on.clock.advance(SETTLE);
    begin(&on, &ask.id).await;
    let expected = on.record(&ask.id).await;
    for resolution in [old, given_up] {
        let refused = on.resolve(&ask.id, resolution).await;
        assert!(matches!(refused, Resolved::Refused(_)), "{refused:?}");
    }
    assert_eq!(on.record(&ask.id).await, expected);
    let first = on.resolve(&ask.id, absent(&on, &ask.id).await).await;
    assert_eq!(first, Resolved::TooEarly { not_before: on.now().plus(SETTLE) });
}

/// Those that somebody cannot ask about do not stand in the way of those that they can.
pub async fn what_is_due_can_be_listed_without_some_routes(on: Harness) {
    for (key, route) in [("one", "POST /a"), ("two", "POST /b"), ("three", "POST /a")] {
        let ask = Ask { route: route.into(), ..ask(key) };
        let lease = on.grant(&ask).await;
        assert_eq!(on.write(&lease, Write::MarkUnknown("reset".into())).await, Written::Applied);
        on.clock.advance(Duration::from_secs(1));
    }
    let listed = async |limit, except: &[&str]| -> Vec<String> {
        let except = except.iter().map(|route| (*route).into()).collect();
        let due = on.store.due_unknown(limit, except).await.expect("due_unknown answers");
        due.into_iter().map(|record| record.route.to_string()).collect()
    };
    assert_eq!(listed(9, &[]).await, ["POST /a", "POST /b", "POST /a"]);
    assert_eq!(listed(1, &["POST /a"]).await, ["POST /b"]);
    assert_eq!(listed(9, &["POST /b", "POST /c"]).await, ["POST /a", "POST /a"]);
    assert_eq!(listed(9, &["POST /a", "POST /b"]).await, [""; 0]);
}

/// "It did execute" that comes after "it did not": nothing runs again, and somebody must look.
pub async fn what_executed_after_it_was_released_is_completed_and_an_incident(on: Harness) {
    let told =
        |lease: &Lease| Resolution::Executed { attempt: lease.attempt, reply: reply("told") };
    for by_operator in [false, true] {
        let (ask, lease) = unknown(&on, &format!("key-{by_operator}")).await;
        on.resolved(&ask.id, Resolution::Release(Proof::Authoritative)).await;
        let resolution = match by_operator {
            true => Resolution::Complete(reply("told")),
            false => told(&lease),
        };
        on.resolved(&ask.id, resolution).await;
        let record = on.record(&ask.id).await;
        assert_eq!((record.state, record.reply), (State::Completed, Some(reply("told"))));
        assert_eq!(on.occupied(&retry(&ask)).await.state, State::Completed, "no retry runs");
        let expected = [AuditEvent::Released, AuditEvent::Incident];
        assert_eq!(events(&on, &ask.id).await, expected);
    }
    // Somebody runs it again already: the record is theirs, and the reply is kept as evidence.
    let (ask, first) = unknown(&on, "again").await;
    on.resolved(&ask.id, Resolution::Release(Proof::Authoritative)).await;
    let second = on.grant(&retry(&ask)).await;
    let seen = on.record(&ask.id).await;
    let refused = on.resolve(&ask.id, told(&first)).await;
    assert!(matches!(refused, Resolved::Refused(_)), "{refused:?}");
    assert_eq!(on.record(&ask.id).await, seen);
    let kept = on.audit(&ask.id).await.pop().expect("evidence");
    assert_eq!((kept.event, kept.attempt), (AuditEvent::Incident, first.attempt));
    assert_eq!(kept.reply, Some(reply("told")));
    // It did not act after all: then the first one's reply is the only one.
    assert_eq!(on.write(&second, Write::Release("not_sent".into())).await, Written::Applied);
    on.clock.advance(Duration::from_secs(1));
    on.resolved(&ask.id, told(&first)).await;
    let record = on.record(&ask.id).await;
    assert_eq!((record.attempt, record.reply), (first.attempt, Some(reply("told"))));
}

/// What is told of an attempt is never taken for a word about another one.
pub async fn what_one_attempt_did_does_not_complete_another(on: Harness) {
    let (ask, first) = unknown(&on, "key").await;
    on.resolved(&ask.id, Resolution::Release(Proof::Authoritative)).await;
    let second = on.grant(&retry(&ask)).await;
    assert_eq!(on.write(&second, Write::MarkUnknown("reset".into())).await, Written::Applied);
    let told = Resolution::Executed { attempt: first.attempt, reply: reply("told") };
    let refused = on.resolve(&ask.id, told).await;
    assert!(matches!(refused, Resolved::Refused(_)), "{refused:?}");
    assert_eq!(on.record(&ask.id).await.state, State::Unknown);
    assert_eq!(events(&on, &ask.id).await, [AuditEvent::Released, AuditEvent::Incident]);
    let told = Resolution::Executed { attempt: second.attempt, reply: reply("second") };
    on.resolved(&ask.id, told).await;
    assert_eq!(on.record(&ask.id).await.reply, Some(reply("second")));
}

/// "It did not execute" against a success that is stored.
pub async fn what_is_said_not_to_have_executed_is_an_incident_if_a_success_is_stored(on: Harness) {
    for (key, stored, expected) in [("paid", reply("done"), true), ("declined", declined(), false)]
    {
        let (ask, lease) = unknown(&on, key).await;
        assert_eq!(on.write(&lease, Write::Complete(stored.clone())).await, Written::Applied);
        let refused = on.resolve(&ask.id, Resolution::Release(Proof::Authoritative)).await;
        assert!(matches!(refused, Resolved::Refused(_)), "{refused:?}");
        assert_eq!(on.record(&ask.id).await.reply, Some(stored));
        let incident = events(&on, &ask.id).await.contains(&AuditEvent::Incident);
        assert_eq!(incident, expected, "{key}");
    }
}

/// Every other state has nothing to ask.
pub async fn only_unknown_records_are_asked_about_given_up_or_redriven(on: Harness) {
    let writes =
        [Some(Write::Complete(reply("done"))), Some(Write::Release("not_sent".into())), None];
    for (number, write) in writes.into_iter().enumerate() {
        let ask = ask(&format!("key-{number}"));
        let lease = on.grant(&ask).await;
        if let Some(write) = write {
            assert_eq!(on.write(&lease, write).await, Written::Applied);
        }
        for resolution in [
            Resolution::Ask { probes: 0 },
            absent_at(on.now()),
            Resolution::DeadLetter { asked_at: None },
            Resolution::Redrive,
        ] {
            let refused = on.resolve(&ask.id, resolution).await;
            assert!(matches!(refused, Resolved::Refused(_)), "{refused:?}");
        }
    }
}
