//! Work that was accepted for later, and is begun until it is done.

use super::*;

const QUEUED_FOR: u64 = 86_400;
const C: AttemptId = AttemptId::from_bytes([0xc; 16]);

fn later() -> Ask {
    Ask { mode: Mode::Accept, ..ask() }
}

fn later_again() -> Ask {
    Ask { mode: Mode::Accept, attempt: C, ..ask() }
}

fn pending() -> Record {
    record_in(State::Pending)
}

/// Claimed by attempt B at second 5.
fn claimed(effects: Effects) -> Record {
    granted(claim(Some(&pending()), &Claim { effects, ..wanted() }, at(5))).0
}

/// Released by attempt B at second 7, so that it is due a second later.
fn released() -> Record {
    let before = claimed(Effects::External);
    put(write(Some(&before), &lease(&before), Write::Release("refused".into()), at(7)))
}

#[test]
fn accepted_work_is_queued_from_then_on_and_due_at_once() {
    let record = put(reserve(None, &later(), at(3)));
    assert_eq!((record.state, record.queued_until), (State::Pending, Some(at(3 + QUEUED_FOR))));
    assert!(record.is_queued() && is_resumable(&record, at(3)));
    // What is executed at once is not queued, and neither is the next generation of what was.
    assert!(!record_in(State::InProgress).is_queued());
    let expired = Record { state: State::Expired, expires_at: at(10), ..record };
    let again = Ask { expired_runs_again: true, ..retry() };
    assert_eq!(put(reserve(Some(&expired), &again, at(20))).queued_until, None);
}

#[test]
fn what_was_released_can_be_accepted_for_later_and_is_queued_then() {
    let retryable = record_in(State::FailedRetryable);
    let record = put(reserve(Some(&retryable), &later_again(), at(30)));
    assert_eq!((record.state, record.attempts), (State::Pending, 1));
    assert_eq!((record.queued_until, record.lease_until), (Some(at(30 + QUEUED_FOR)), at(30)));
    assert_eq!(record.finished_at, None);
}

#[test]
fn a_claim_runs_under_the_rules_of_its_own_time() {
    let rules = Claim { effects: Effects::None, max_execution: Duration::from_secs(7), ..wanted() };
    let (record, ..) = granted(claim(Some(&pending()), &rules, at(5)));
    assert_eq!(record.effects, Effects::None);
    assert_eq!(record.max_execution, Duration::from_secs(7));
    assert_eq!(record.queued_until, pending().queued_until);
}

#[test]
fn queued_work_that_was_not_executed_is_pending_again_and_due_later() {
    let record = released();
    assert_eq!((record.state, record.attempts), (State::Pending, 1));
    assert_eq!(record.last_error.as_deref(), Some("refused"));
    assert_eq!((record.lease_until, record.finished_at), (at(8), None));
    assert_eq!(record.queued_until, Some(at(QUEUED_FOR)));
    // Released twice, it is released once.
    let again = write(Some(&record), &lease(&record), Write::Release("refused".into()), at(9));
    assert_eq!(again, Step::keep(Written::AlreadyMine(None)));
}

#[test]
fn pending_work_is_not_begun_before_it_is_due() {
    let record = released();
    let next = Claim { attempt: A, ..wanted() };
    assert_eq!(occupied(claim(Some(&record), &next, at(7))), record);
    assert!(!is_resumable(&record, at(7)));
    assert!(is_resumable(&record, at(8)));
    let (record, lease, found) = granted(claim(Some(&record), &next, at(8)));
    assert_eq!((record.state, lease.attempt_number), (State::InProgress, 2));
    assert_eq!(found, Found::Pending);
}

#[test]
fn a_claim_that_was_delayed_until_after_its_own_end_takes_nothing() {
    let record = released();
    assert_eq!(occupied(claim(Some(&record), &wanted(), at(100))), record);
    // Of whoever accepted it, no attempt was made yet.
    let (record, ..) = granted(claim(Some(&pending()), &Claim { attempt: A, ..wanted() }, at(1)));
    assert_eq!(record.attempt, A);
}

#[test]
fn nobody_writes_to_pending_work_by_a_lease_of_before() {
    let record = released();
    for what in [
        Write::Renew(Duration::from_secs(60)),
        Write::Complete(reply("late")),
        Write::MarkUnknown("reset".into()),
    ] {
        let step = write(Some(&record), &lease(&record), what.clone(), at(9));
        assert_eq!(step.change, Change::Keep, "{what:?}");
        assert!(matches!(step.answer, Written::Superseded(Some(_))), "{what:?}");
        let evidence = matches!(what, Write::Complete(_));
        assert_eq!(step.audit.is_some(), evidence, "{what:?}");
    }
    // Neither does whoever accepted it.
    let record = pending();
    let step = write(Some(&record), &lease(&record), Write::Complete(reply("early")), at(9));
    assert!(matches!(step.answer, Written::Superseded(Some(_))), "{:?}", step.answer);
}

#[test]
fn the_pauses_double_from_a_second_to_a_minute() {
    let pauses: Vec<u64> = (0..10).map(|attempts| backoff(attempts).as_secs()).collect();
    assert_eq!(pauses, [1, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
    assert_eq!(backoff(u32::MAX).as_secs(), 60);
}

#[test]
fn a_vanished_attempt_at_queued_work_is_judged_by_its_effects() {
    for effects in Effects::ALL {
        let record = claimed(effects);
        let over = at(5 + LEASE);
        let expected = match effects {
            Effects::Undeclared | Effects::External => State::Unknown,
            Effects::Phased => State::InProgress,
            Effects::Local | Effects::None => State::Pending,
        };
        let swept = sweep(&record, over);
        let moved = match swept.change {
            Change::Put(moved) => *moved,
            _ => record.clone(),
        };
        assert_eq!(moved.state, expected, "{effects:?}");
        assert_eq!(swept.answer.map(|swept| swept.state), {
            (expected != State::InProgress).then_some(expected)
        });
        // A retry moves it on in the same way, and takes nothing: it was promised already.
        let step = reserve(Some(&record), &later_again(), over);
        let Reservation::Occupied { record: seen, lease_ran_out } = step.answer else {
            panic!("{effects:?}: expected a record in the way, found {:?}", step.answer)
        };
        assert_eq!((&*seen, lease_ran_out), (&moved, expected != State::InProgress), "{effects:?}");
        if expected == State::Pending {
            assert_eq!(moved.lease_until, over.plus(backoff(1)));
            assert_eq!(moved.last_error.as_deref(), Some(LEASE_RAN_OUT));
            assert_eq!((moved.finished_at, moved.queued_until), (None, record.queued_until));
        }
    }
}

#[test]
fn steps_that_were_made_decide_about_queued_work_too() {
    let record = Record {
        progress: Progress { recovery_point: Some("book".into()), open_effect: None },
        ..claimed(Effects::Phased)
    };
    let suspended =
        put(write(Some(&record), &lease(&record), Write::Release("refused".into()), at(9)));
    assert_eq!((suspended.state, suspended.lease_until), (State::InProgress, at(9)));
    assert!(is_resumable(&suspended, at(9)));
    // It was begun: there is nothing to accept, and a worker goes on with it.
    assert_eq!(occupied(reserve(Some(&suspended), &later_again(), at(9))), suspended);
    let (resumed, ..) = granted(reserve(Some(&suspended), &retry(), at(9)));
    assert_eq!(resumed.queued_until, record.queued_until);
}

#[test]
fn what_may_have_been_executed_is_never_begun_again_by_itself() {
    let before = claimed(Effects::None);
    let unknown =
        put(write(Some(&before), &lease(&before), Write::MarkUnknown("reset".into()), at(9)));
    assert_eq!(unknown.state, State::Unknown);
    assert!(!is_resumable(&unknown, at(1_000_000)));
    let next = Claim { attempt: A, ..wanted() };
    assert_eq!(occupied(claim(Some(&unknown), &next, at(1_000_000))), unknown);
    assert_eq!(occupied(reserve(Some(&unknown), &later_again(), at(1_000_000))), unknown);
}

fn decided(record: &Record, resolution: Resolution) -> Resolve {
    Resolve {
        id: record.id.clone(),
        generation: record.generation,
        fence: record.fence,
        resolution,
        reason: "ticket 7".into(),
    }
}

#[test]
fn queued_work_that_is_found_not_to_have_acted_is_begun_again() {
    let before = claimed(Effects::External);
    let unknown =
        put(write(Some(&before), &lease(&before), Write::MarkUnknown("reset".into()), at(9)));
    let release = decided(&unknown, Resolution::Release(Proof::Authoritative));
    let step = resolve(Some(&unknown), release, at(100));
    assert_eq!(step.audit.as_ref().map(|audit| audit.event), Some(AuditEvent::Released));
    let record = put(step);
    assert_eq!((record.state, record.reconcile_after), (State::Pending, None));
    assert_eq!(record.lease_until, at(100).plus(backoff(1)));
    // The attempt itself may still come: in time, until another one has begun.
    let late = |record: &Record| {
        write(Some(record), &lease(&before), Write::Complete(reply("late")), at(200)).answer
    };
    assert_eq!(late(&record), Written::AppliedAfterRelease);
    let next = Claim { attempt: C, ..wanted() };
    let (begun, ..) = granted(claim(Some(&record), &next, at(200)));
    assert!(matches!(late(&begun), Written::Superseded(Some(_))), "{:?}", late(&begun));
}

#[test]
fn pending_work_is_given_up_with_a_reply_and_nobody_can_begin_it_then() {
    for before in [pending(), released()] {
        let give_up = decided(&before, Resolution::Complete(reply("too late")));
        let step = resolve(Some(&before), give_up.clone(), at(100));
        let audit = step.audit.clone().expect("it is audited");
        assert_eq!((audit.event, audit.reply), (AuditEvent::GivenUp, Some(reply("too late"))));
        let record = put(step);
        assert_eq!((record.state, &record.reply), (State::Completed, &Some(reply("too late"))));
        assert_eq!(record.expires_at, at(100 + RETENTION));
        assert_eq!(record.last_error.as_deref(), Some(GIVEN_UP));
        assert!(record.fence > before.fence);
        let next = Claim { attempt: C, ..wanted() };
        assert_eq!(occupied(claim(Some(&record), &next, at(100))), record);
        // Whoever claimed it first has it.
        let (begun, ..) = granted(claim(Some(&before), &next, at(100)));
        let refused = resolve(Some(&begun), give_up, at(100));
        assert_eq!(refused, Step::keep(Resolved::Refused(Box::new(begun))));
    }
}

#[test]
fn a_retry_of_accepted_work_is_told_that_it_is_on_its_way_and_another_request_is_refused() {
    for record in [pending(), released(), claimed(Effects::External)] {
        let state = record.state;
        let ask = later_again();
        let decision = decide(reserve(Some(&record), &ask, at(7)).answer, &ask, at(7));
        assert!(matches!(decision, Decision::Refuse(Refusal::InProgress { .. })), "{state:?}");
        let ask = Ask { mode: Mode::Accept, attempt: C, ..another_request() };
        let decision = decide(reserve(Some(&record), &ask, at(7)).answer, &ask, at(7));
        assert_eq!(decision, Decision::Refuse(Refusal::Mismatch), "{state:?}");
    }
}

#[test]
fn a_claim_takes_only_the_record_that_was_looked_at() {
    let looked_at = pending();
    let moved = Record { fence: Fence::next(Some(looked_at.fence), at(4)), ..pending() };
    let wanted = Claim { fence: Some(looked_at.fence), ..wanted() };
    assert!(matches!(claim(Some(&looked_at), &wanted, at(5)).answer, Reservation::Granted { .. }));
    let late = claim(Some(&moved), &wanted, at(5));
    assert_eq!(late.change, Change::Keep);
    assert!(matches!(late.answer, Reservation::Occupied { .. }));
}

#[test]
fn a_phased_operation_that_was_cut_off_is_claimed_as_it_was_looked_at_and_no_other() {
    let cut_off = record_of(&Ask { effects: Effects::Phased, ..ask() }, State::InProgress);
    let over = cut_off.lease_until;
    let wanted = Claim { fence: Some(cut_off.fence), effects: Effects::Phased, ..wanted() };
    let step = claim(Some(&cut_off), &wanted, over);
    assert_eq!(step.audit.as_ref().map(|audit| audit.event), Some(AuditEvent::LeaseExpired));
    let (next, _, found) = granted(step);
    assert_eq!((found, next.attempt, next.attempts), (Found::LeaseOver, wanted.attempt, 2));
    assert!(next.fence > cut_off.fence);
    let alive = claim(Some(&cut_off), &wanted, at(1));
    assert!(matches!(alive.answer, Reservation::Occupied { .. }));
    // Completed, withdrawn and begun anew meanwhile: another request, which nobody looked at.
    let moved = Record { fence: Fence::next(Some(cut_off.fence), at(1)), ..cut_off.clone() };
    assert!(matches!(claim(Some(&moved), &wanted, over).answer, Reservation::Occupied { .. }));
    let external = Record { effects: Effects::External, ..cut_off };
    assert!(matches!(claim(Some(&external), &wanted, over).answer, Reservation::Occupied { .. }));
}

#[test]
fn work_is_given_up_by_the_clock_of_the_store_and_not_before_its_time() {
    let record = pending();
    let end = record.queued_until.expect("queued");
    let give_up = || Resolve {
        id: record.id.clone(),
        generation: record.generation,
        fence: record.fence,
        resolution: Resolution::GiveUp(reply("too late")),
        reason: "test".into(),
    };
    let early = resolve(Some(&record), give_up(), at(QUEUED_FOR - 1));
    assert_eq!(
        (early.change, early.answer),
        (Change::Keep, Resolved::TooEarly { not_before: end })
    );
    let given_up = put(resolve(Some(&record), give_up(), end));
    assert_eq!((given_up.state, given_up.reply), (State::Completed, Some(reply("too late"))));
    // What was begun may have acted.
    let begun = claimed(Effects::External);
    let late = Resolve { fence: begun.fence, ..give_up() };
    assert!(matches!(resolve(Some(&begun), late, at(6)).answer, Resolved::Refused(_)));
}
