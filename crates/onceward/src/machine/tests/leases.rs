//! What a lease that ran out means, by declared effects.

use super::*;

fn vanished(effects: Effects) -> Record {
    record_of(&Ask { effects, ..ask() }, State::InProgress)
}

fn lease_expired(record: &Record, to: &str, now: Timestamp) -> Option<AuditRecord> {
    Some(AuditRecord {
        at: now,
        id: record.id.clone(),
        generation: record.generation,
        event: AuditEvent::LeaseExpired,
        attempt: record.attempt,
        fence: record.fence,
        reason: to.into(),
        reply: None,
    })
}

#[test]
fn what_may_have_acted_becomes_unknown_and_is_not_run_again() {
    for effects in [Effects::External, Effects::Undeclared] {
        let record = vanished(effects);
        let expected = Record {
            state: State::Unknown,
            last_error: Some(LEASE_RAN_OUT.into()),
            reconcile_after: Some(at(LEASE)),
            ..record.clone()
        };
        let step = reserve(Some(&record), &Ask { effects, ..retry() }, at(LEASE));
        assert_eq!(step.audit, lease_expired(&record, "unknown", at(LEASE)));
        let seen = Box::new(expected.clone());
        assert_eq!(step.answer, Reservation::Occupied { record: seen, lease_ran_out: true });
        assert_eq!(put(step), expected);

        let step = sweep(&record, at(LEASE));
        assert_eq!(step.audit, lease_expired(&record, "unknown", at(LEASE)));
        let swept = Swept { id: ask().id, state: State::Unknown, attempt: A, route: ask().route };
        assert_eq!(step.answer, Some(swept));
        assert_eq!(put(step), expected);
    }
}

#[test]
fn the_declaration_of_the_vanished_attempt_counts_and_not_that_of_the_retry() {
    let external = vanished(Effects::External);
    let step = reserve(Some(&external), &Ask { effects: Effects::None, ..retry() }, at(LEASE));
    assert_eq!(put(step).state, State::Unknown);
    let harmless = vanished(Effects::None);
    let step = reserve(Some(&harmless), &Ask { effects: Effects::External, ..retry() }, at(LEASE));
    assert_eq!(granted(step).2, Found::LeaseOver);
}

#[test]
fn what_cannot_have_acted_runs_again_at_once() {
    for effects in [Effects::None, Effects::Local] {
        let record = vanished(effects);
        let step = reserve(Some(&record), &Ask { effects, ..retry() }, at(LEASE));
        assert_eq!(step.audit, lease_expired(&record, "failed_retryable", at(LEASE)));
        let (again, lease, found) = granted(step);
        assert_eq!(found, Found::LeaseOver);
        assert_eq!((lease.generation, lease.attempt_number), (1, 2));
        assert!(lease.fence > record.fence);
        assert_eq!((again.state, again.finished_at), (State::InProgress, None));

        let step = sweep(&record, at(LEASE));
        assert_eq!(step.audit, lease_expired(&record, "failed_retryable", at(LEASE)));
        let swept = put(step);
        assert_eq!(swept.state, State::FailedRetryable);
        assert_eq!(swept.last_error.as_deref(), Some(LEASE_RAN_OUT));
        assert_eq!(swept.expires_at, at(LEASE + RETENTION));
    }
}

#[test]
fn what_runs_in_phases_waits_to_be_resumed_by_the_same_request() {
    let record = vanished(Effects::Phased);
    assert_eq!(sweep(&record, at(LEASE)), Step::keep(None));
    assert_eq!(occupied(reserve(Some(&record), &another_request(), at(LEASE))), record);
    let step = reserve(Some(&record), &Ask { effects: Effects::Phased, ..retry() }, at(LEASE));
    let (resumed, lease, found) = granted(step);
    assert_eq!((resumed.state, found), (State::InProgress, Found::LeaseOver));
    assert_eq!((lease.generation, lease.attempt_number), (1, 2));
    assert!(lease.fence > record.fence);
    // Whoever was there before cannot write any more.
    let late = write(Some(&resumed), &super::lease(&record), Write::Complete(reply("a")), at(61));
    assert_eq!(late.change, Change::Keep);
}

#[test]
fn a_lease_ends_exactly_then() {
    for effects in Effects::ALL {
        let record = vanished(effects);
        let just_before = Timestamp::from_micros(at(LEASE).as_micros() - 1);
        assert!(record.lease_is_live(just_before));
        assert_eq!(sweep(&record, just_before), Step::keep(None));
        assert_eq!(occupied(reserve(Some(&record), &retry(), just_before)), record);
        assert!(!record.lease_is_live(at(LEASE)));
        assert_ne!(reserve(Some(&record), &retry(), at(LEASE)).change, Change::Keep);
        let swept = sweep(&record, at(LEASE)).answer.is_some();
        assert_eq!(swept, effects != Effects::Phased);
    }
}

#[test]
fn renewing_moves_the_end_of_the_lease_and_nothing_else() {
    let record = record_in(State::InProgress);
    let renew = |by: u64, now: Timestamp| {
        put(write(Some(&record), &lease(&record), Write::Renew(Duration::from_secs(by)), now))
    };
    assert_eq!(renew(60, at(20)), Record { lease_until: at(80), ..record.clone() });
    // A shorter renewal does not take back what the owner was promised.
    assert_eq!(renew(5, at(20)), record);
    // State and fence decide, not lease time: nobody replaced this owner.
    assert_eq!(renew(60, at(600)), Record { lease_until: at(660), ..record.clone() });
}

#[test]
fn an_owner_that_comes_late_but_was_not_replaced_completes() {
    let record = record_in(State::InProgress);
    let step = write(Some(&record), &lease(&record), Write::Complete(reply("late")), at(9_999));
    assert_eq!((&step.answer, &step.audit), (&Written::Applied, &None));
    assert_eq!(put(step).reply, Some(reply("late")));
}

#[test]
fn an_owner_whose_lease_was_swept_as_harmless_cannot_complete() {
    let swept = put(sweep(&vanished(Effects::None), at(LEASE)));
    let step = write(Some(&swept), &lease(&swept), Write::Complete(reply("late")), at(LEASE + 1));
    assert_eq!(step.change, Change::Keep);
    assert_eq!(step.audit.expect("evidence").reply, Some(reply("late")));
}
