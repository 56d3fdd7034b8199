//! What a reconciler or an operator may decide.

use super::*;

fn about(record: &Record, resolution: Resolution) -> Resolve {
    Resolve {
        id: record.id.clone(),
        generation: record.generation,
        fence: record.fence,
        resolution,
        reason: "ticket 7".into(),
    }
}

fn two_probes(first: u64, second: u64) -> Resolution {
    Resolution::Release(Proof::TwoProbes { first: at(first), second: at(second) })
}

fn applied(step: Step<Resolved>) -> (Record, AuditRecord) {
    let remembered = step.audit.clone().expect("every resolution is audited");
    assert_eq!(&*remembered.reason, "ticket 7");
    let Resolved::Applied(answered) = &step.answer else {
        panic!("expected it to be applied, found {:?}", step.answer)
    };
    let answered = (**answered).clone();
    let record = put(step);
    assert_eq!(record, answered);
    (record, remembered)
}

#[test]
fn an_unknown_outcome_is_found_to_be_completed() {
    let unknown = record_in(State::Unknown);
    let found = about(&unknown, Resolution::Complete(reply("found")));
    let (record, remembered) = applied(resolve(Some(&unknown), found, at(100)));
    let expected = Record {
        state: State::Completed,
        reply: Some(reply("found")),
        last_error: None,
        reconcile_after: None,
        finished_at: Some(at(100)),
        expires_at: at(100 + RETENTION),
        fence: record.fence,
        ..unknown.clone()
    };
    assert_eq!(record, expected);
    assert!(record.fence > unknown.fence, "a later word of the attempt is evidence, not a repeat");
    assert_eq!(remembered.event, AuditEvent::ResolvedCompleted);
    assert_eq!((remembered.attempt, remembered.reply), (A, Some(reply("found"))));
}

#[test]
fn an_unknown_outcome_is_released_by_an_authoritative_source_at_any_time() {
    let unknown = record_in(State::Unknown);
    let known = about(&unknown, Resolution::Release(Proof::Authoritative));
    let (record, remembered) = applied(resolve(Some(&unknown), known, at(RESTED)));
    assert_eq!(record.state, State::FailedRetryable);
    assert_eq!(record.last_error.as_deref(), Some("resolved_not_executed"));
    assert_eq!((record.reconcile_after, record.expires_at), (None, at(RESTED + RETENTION)));
    assert_eq!(remembered.event, AuditEvent::Released);
    // And then the same request runs again, and the old attempt cannot write any more.
    let (again, ..) = granted(reserve(Some(&record), &retry(), at(20)));
    let late = write(Some(&again), &lease(&unknown), Write::Complete(reply("late")), at(21));
    assert_eq!(late.change, Change::Keep);
    assert_eq!(late.audit.expect("evidence").event, AuditEvent::SupersededResult);
}

#[test]
fn an_attempt_that_goes_on_after_its_time_is_waited_for_by_every_source() {
    let why = Some(MAX_EXECUTION_EXCEEDED.into());
    let unknown = Record { last_error: why, ..record_in(State::Unknown) };
    let release = |now: u64| {
        let known = about(&unknown, Resolution::Release(Proof::Authoritative));
        resolve(Some(&unknown), known, at(now))
    };
    let over = LEASE + MAX_EXECUTION;
    let too_early = Step::keep(Resolved::TooEarly { not_before: at(over) });
    assert_eq!(release(over - 1), too_early);
    let (record, _) = applied(release(over));
    assert_eq!(record.state, State::FailedRetryable);
}

#[test]
fn probes_count_only_after_lease_and_execution_and_settling_and_one_settle_apart() {
    let unknown = record_in(State::Unknown);
    let quiet = LEASE + MAX_EXECUTION + 60;
    let attempt = |first: u64, second: u64, now: u64| {
        resolve(Some(&unknown), about(&unknown, two_probes(first, second)), at(now))
    };
    let too_early = |step: Step<Resolved>| match step {
        Step { change: Change::Keep, audit: None, answer: Resolved::TooEarly { not_before } } => {
            not_before
        }
        other => panic!("expected it to be too early, found {other:?}"),
    };
    // The first probe came while a request could still have been on its way.
    assert_eq!(too_early(attempt(quiet - 1, quiet + 60, quiet + 60)), at(quiet + 60));
    // The second probe came too soon after the first.
    assert_eq!(too_early(attempt(quiet, quiet + 59, quiet + 59)), at(quiet + 60));
    assert_eq!(too_early(attempt(quiet + 30, quiet + 60, quiet + 60)), at(quiet + 90));
    // The probes are in the wrong order, or the second has not been made yet.
    assert_eq!(too_early(attempt(quiet + 60, quiet, quiet + 60)), at(quiet + 120));
    assert_eq!(too_early(attempt(quiet, quiet + 60, quiet + 59)), at(quiet + 60));
    let (record, _) = applied(attempt(quiet, quiet + 60, quiet + 60));
    assert_eq!(record.state, State::FailedRetryable);
}

#[test]
fn probes_count_from_the_end_of_the_last_renewed_lease() {
    let first = record_in(State::InProgress);
    let renewed =
        put(write(Some(&first), &lease(&first), Write::Renew(Duration::from_secs(60)), at(50)));
    let unknown = put(sweep(&renewed, at(110)));
    let quiet = 110 + MAX_EXECUTION + 60;
    let early = resolve(Some(&unknown), about(&unknown, two_probes(quiet - 1, 9_998)), at(9_999));
    assert_eq!(early.answer, Resolved::TooEarly { not_before: at(quiet + 60) });
    let (record, _) =
        applied(resolve(Some(&unknown), about(&unknown, two_probes(quiet, 9_998)), at(9_999)));
    assert_eq!(record.state, State::FailedRetryable);
}

#[test]
fn a_record_that_moved_since_it_was_looked_at_is_not_resolved() {
    let unknown = record_in(State::Unknown);
    for resolution in [
        Resolution::Complete(reply("found")),
        Resolution::Release(Proof::Authoritative),
        Resolution::Void,
    ] {
        let old_fence = Fence::from_stored(unknown.fence.number() - 1);
        let asked = about(&unknown, resolution);
        for stale in [
            Resolve { generation: 2, ..asked.clone() },
            Resolve { fence: old_fence, ..asked.clone() },
        ] {
            let step = resolve(Some(&unknown), stale, at(100));
            assert_eq!(step, Step::keep(Resolved::Refused(Box::new(unknown.clone()))));
        }
    }
}

#[test]
fn nobody_resolves_a_live_lease() {
    let live = record_in(State::InProgress);
    for resolution in [
        Resolution::Complete(reply("found")),
        Resolution::Release(Proof::Authoritative),
        Resolution::Void,
    ] {
        let step = resolve(Some(&live), about(&live, resolution), at(LEASE - 1));
        assert_eq!(step, Step::keep(Resolved::Refused(Box::new(live.clone()))));
    }
}

#[test]
fn a_vanished_attempt_is_resolved_as_what_its_lease_made_of_it() {
    let external = record_in(State::InProgress);
    let found = about(&external, Resolution::Complete(reply("found")));
    assert_eq!(applied(resolve(Some(&external), found, at(LEASE))).0.state, State::Completed);
    // One without effects is retryable, so that there is nothing to resolve.
    let harmless = record_of(&Ask { effects: Effects::None, ..ask() }, State::InProgress);
    let found = about(&harmless, Resolution::Complete(reply("found")));
    let step = resolve(Some(&harmless), found, at(LEASE));
    assert_eq!(step, Step::keep(Resolved::Refused(Box::new(harmless))));
}

#[test]
fn a_withdrawn_reply_frees_the_key_as_the_next_generation_even_where_expired_keys_are_refused() {
    let completed = record_in(State::Completed);
    let void = about(&completed, Resolution::Void);
    let (record, remembered) = applied(resolve(Some(&completed), void, at(100)));
    assert_eq!((record.state, record.void), (State::Expired, true));
    let status = completed.reply.clone().map(Reply::status_only);
    assert_eq!((&record.reply, record.expires_at), (&status, at(100)));
    assert_eq!(remembered.event, AuditEvent::Voided);
    let (again, lease, found) = granted(reserve(Some(&record), &retry(), at(101)));
    assert_eq!((lease.generation, found), (2, Found::Expired));
    assert!(!again.void, "the new generation is not void");
    // While a reply that ran out by itself is refused.
    let expired = record_in(State::Expired);
    assert_eq!(occupied(reserve(Some(&expired), &retry(), at(101))), expired);
}

#[test]
fn there_is_nothing_to_resolve_where_there_is_no_record() {
    let unknown = record_in(State::Unknown);
    let step = resolve(None, about(&unknown, Resolution::Void), at(20));
    assert_eq!(step, Step::keep(Resolved::Absent));
    let completed = record_in(State::Completed);
    let void = about(&completed, Resolution::Void);
    let purged = resolve(Some(&completed), void, at(RESTED + RETENTION + TOMBSTONE));
    assert_eq!(purged, Step::keep(Resolved::Absent));
}
