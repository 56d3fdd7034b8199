//! Who may write, who may not, and what repeating does.

use super::*;

#[test]
fn another_request_is_refused_first_in_every_state_and_changes_nothing() {
    for state in State::ALL {
        for mode in [Mode::Execute, Mode::Accept, Mode::LookupOnly] {
            for (now, record) in [(at(20), record_in(state)), (at(LEASE), record_in(state))] {
                let stranger = Ask { mode, ..another_request() };
                let seen = occupied(reserve(Some(&record), &stranger, now));
                assert_eq!(seen, record, "{state:?} {mode:?}");
            }
        }
    }
}

#[test]
fn another_request_does_not_take_over_an_attempt_that_vanished() {
    for effects in Effects::ALL {
        let vanished = record_of(&Ask { effects, ..ask() }, State::InProgress);
        let seen = occupied(reserve(Some(&vanished), &another_request(), at(LEASE + 1)));
        assert_eq!(seen, vanished, "{effects:?}");
    }
}

#[test]
fn the_attempt_of_another_fingerprint_is_another_request() {
    // A client cannot get at a record by guessing: same attempt, other fingerprint.
    let record = record_in(State::InProgress);
    let forged = Ask { attempt: A, ..another_request() };
    assert_eq!(occupied(reserve(Some(&record), &forged, at(20))), record);
}

#[test]
fn a_recipe_of_another_version_is_another_fingerprint() {
    let record = record_in(State::Completed);
    let newer = Ask { fingerprint: Fingerprint::from_stored(2, [1; 32]), ..retry() };
    assert_eq!(occupied(reserve(Some(&record), &newer, at(20))), record);
    let decision = decide(reserve(Some(&record), &newer, at(20)).answer, &newer, at(20));
    assert_eq!(decision, Decision::Refuse(Refusal::Mismatch));
}

#[test]
fn a_reserve_repeated_by_its_attempt_is_granted_again_and_its_lease_reaches_from_now() {
    let first = record_in(State::InProgress);
    for (now, until) in [(at(20), at(20 + LEASE)), (at(LEASE + 5), at(LEASE + 5 + LEASE))] {
        let (record, again, found) = granted(reserve(Some(&first), &ask(), now));
        assert_eq!(found, Found::Mine);
        assert_eq!((again.fence, again.attempt_number), (first.fence, 1));
        assert_eq!(again.until, until);
        assert_eq!(record, Record { lease_until: until, ..first.clone() });
    }
    // Another attempt of the same request is not granted.
    assert_eq!(occupied(reserve(Some(&first), &retry(), at(20))), first);
}

#[test]
fn a_repeated_reserve_never_shortens_the_lease() {
    let first = record_in(State::InProgress);
    let shorter = Ask { lease: Duration::from_secs(1), ..ask() };
    let (record, ..) = granted(reserve(Some(&first), &shorter, at(20)));
    assert_eq!(record.lease_until, at(LEASE));
}

#[test]
fn accepting_repeated_by_its_attempt_is_accepted_again() {
    let pending = record_in(State::Pending);
    let again = Ask { mode: Mode::Accept, ..ask() };
    let step = reserve(Some(&pending), &again, at(20));
    assert_eq!(step, Step::keep(Reservation::Accepted { found: Found::Mine }));
    let another = Ask { mode: Mode::Accept, ..retry() };
    assert_eq!(occupied(reserve(Some(&pending), &another, at(20))), pending);
}

#[test]
fn a_repeated_write_changes_nothing_and_answers_with_what_is_stored() {
    let cases = [
        (State::Completed, Write::Complete(reply("done")), Some(reply("done"))),
        (State::Completed, Write::Complete(reply("other bytes")), Some(reply("done"))),
        // Its handler may have completed it in a transaction of its own.
        (State::Completed, Write::Renew(Duration::from_secs(1)), Some(reply("done"))),
        (State::Completed, Write::Release("not_sent".into()), Some(reply("done"))),
        (State::Completed, Write::MarkUnknown("timeout".into()), Some(reply("done"))),
        (State::FailedRetryable, Write::Release("not_sent".into()), None),
        (State::Unknown, Write::MarkUnknown("timeout".into()), None),
    ];
    for (state, what, stored) in cases {
        let record = record_in(state);
        let step = write(Some(&record), &lease(&record), what, at(20));
        assert_eq!(step, Step::keep(Written::AlreadyMine(stored)), "{state:?}");
    }
}

#[test]
fn a_write_that_contradicts_an_earlier_one_is_refused() {
    let contradictions = [
        (State::FailedRetryable, Write::MarkUnknown("timeout".into())),
        (State::FailedRetryable, Write::Renew(Duration::from_secs(1))),
        (State::Unknown, Write::Release("not_sent".into())),
        (State::Unknown, Write::Renew(Duration::from_secs(1))),
        (State::Expired, Write::Renew(Duration::from_secs(1))),
    ];
    for (state, what) in contradictions {
        let record = record_in(state);
        let step = write(Some(&record), &lease(&record), what, at(20));
        assert_eq!(step, Step::keep(Written::Superseded(Some(Box::new(record)))), "{state:?}");
    }
}

#[test]
fn a_superseded_result_is_kept_as_evidence_and_not_applied() {
    let first = record_in(State::FailedRetryable);
    let old = lease(&first);
    let (second, new, _) = granted(reserve(Some(&first), &retry(), at(20)));
    let step = write(Some(&second), &old, Write::Complete(reply("too late")), at(21));
    assert_eq!(step.change, Change::Keep);
    assert_eq!(step.answer, Written::Superseded(Some(Box::new(second.clone()))));
    let evidence = step.audit.expect("an audit record");
    let expected = AuditRecord {
        at: at(21),
        id: ask().id,
        generation: 1,
        event: AuditEvent::SupersededResult,
        attempt: A,
        fence: old.fence,
        reason: "".into(),
        reply: Some(reply("too late")),
    };
    assert_eq!(evidence, expected);
    // The one that holds the lease now is not hindered.
    let step = write(Some(&second), &new, Write::Complete(reply("in time")), at(22));
    assert_eq!(put(step).reply, Some(reply("in time")));
}

fn denied(effects: Effects, state: State) -> Record {
    let last_error = Some("resolved_not_executed".into());
    let attempts = 1;
    Record { last_error, attempts, ..record_of(&Ask { effects, ..ask() }, state) }
}

#[test]
fn a_completion_after_a_release_by_others_counts_and_is_an_incident() {
    for effects in Effects::ALL {
        for state in [State::FailedRetryable, State::Pending] {
            let released = denied(effects, state);
            let complete = Write::Complete(reply("after all"));
            let step = write(Some(&released), &lease(&released), complete.clone(), at(20));
            assert_eq!(step.answer, Written::AppliedAfterRelease);
            let incident = step.audit.as_ref().expect("an audit record");
            assert_eq!((incident.event, incident.attempt), (AuditEvent::Incident, A));
            assert_eq!(incident.reply, Some(reply("after all")));
            let completed = put(step);
            let expected = Record {
                state: State::Completed,
                reply: Some(reply("after all")),
                last_error: Some(EXECUTED_AFTER_ALL.into()),
                finished_at: Some(at(20)),
                expires_at: at(20 + RETENTION),
                ..released.clone()
            };
            assert_eq!(completed, expected, "{effects:?} {state:?}");
            let again = write(Some(&completed), &lease(&completed), complete, at(21));
            let mine = Written::AlreadyMine(Some(reply("after all")));
            assert_eq!(again, Step::keep(mine));
        }
    }
}

#[test]
fn a_completion_after_a_release_needs_attempt_and_fence_and_somebody_elses_word() {
    let released = denied(Effects::External, State::FailedRetryable);
    let own = record_in(State::FailedRetryable);
    let old_fence = Fence::from_stored(released.fence.number() - 1);
    for (record, lease) in [
        (&released, Lease { attempt: B, ..lease(&released) }),
        (&released, Lease { fence: old_fence, ..lease(&released) }),
        (&own, lease(&own)),
    ] {
        let step = write(Some(record), &lease, Write::Complete(reply("late")), at(20));
        assert_eq!(step.change, Change::Keep);
        assert_eq!(step.answer, Written::Superseded(Some(Box::new(record.clone()))));
        assert_eq!(step.audit.map(|it| it.event), Some(AuditEvent::SupersededResult));
    }
}

#[test]
fn a_transaction_after_a_release_is_refused_where_it_is_all_that_would_act() {
    for effects in Effects::ALL {
        let released = denied(effects, State::FailedRetryable);
        let step = complete_in(Some(&released), &lease(&released), reply("late"), at(20));
        let outside = matches!(effects, Effects::External | Effects::Undeclared);
        if outside {
            assert_eq!(step.answer, Written::AppliedAfterRelease, "{effects:?}");
            assert_eq!(put(step).state, State::Completed);
        } else {
            assert_eq!(step.answer, Written::Superseded(Some(Box::new(released))), "{effects:?}");
            assert_eq!(step.change, Change::Keep);
        }
        // Whoever still has the record, or comes late to what is unknown, completes it so too.
        for state in [State::InProgress, State::Unknown] {
            let held = record_of(&Ask { effects, ..ask() }, state);
            let step = complete_in(Some(&held), &lease(&held), reply("in time"), at(20));
            assert_eq!(step.answer, Written::Applied, "{effects:?} {state:?}");
            assert_eq!(put(step).reply, Some(reply("in time")));
        }
    }
}

#[test]
fn the_attempt_alone_or_the_fence_alone_is_not_enough() {
    let record = record_in(State::InProgress);
    let old_fence = Fence::from_stored(record.fence.number() - 1);
    for wrong in
        [Lease { attempt: B, ..lease(&record) }, Lease { fence: old_fence, ..lease(&record) }]
    {
        for what in [
            Write::Renew(Duration::from_secs(600)),
            Write::Complete(reply("stolen")),
            Write::Release("not_sent".into()),
            Write::MarkUnknown("timeout".into()),
        ] {
            let step = write(Some(&record), &wrong, what, at(20));
            assert_eq!(step.change, Change::Keep);
            assert_eq!(step.answer, Written::Superseded(Some(Box::new(record.clone()))));
        }
    }
}

#[test]
fn a_write_to_nothing_is_superseded_by_nothing() {
    let gone = lease(&record_in(State::InProgress));
    let step = write(None, &gone, Write::Complete(reply("done")), at(20));
    assert_eq!(step, Step::keep(Written::Superseded(None)));
}

#[test]
fn a_look_never_changes_or_grants_anything() {
    for state in State::ALL {
        for seconds in [20, LEASE, RESTED + RETENTION, RESTED + RETENTION + TOMBSTONE] {
            for effects in Effects::ALL {
                for expired_runs_again in [false, true] {
                    let record = record_of(&Ask { effects, ..ask() }, state);
                    // The owner itself does not renew by looking.
                    for attempt in [A, B] {
                        let look =
                            Ask { mode: Mode::LookupOnly, attempt, expired_runs_again, ..ask() };
                        let step = reserve(Some(&record), &look, at(seconds));
                        assert_eq!(step.change, Change::Keep, "{state:?} {seconds} {effects:?}");
                        assert_eq!(step.audit, None, "{state:?} {seconds} {effects:?}");
                        let took = matches!(
                            step.answer,
                            Reservation::Granted { .. } | Reservation::Accepted { .. }
                        );
                        assert!(!took, "{state:?} {seconds} {effects:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_look_finds_replies_and_says_what_is_free() {
    let look = Ask { mode: Mode::LookupOnly, ..retry() };
    let completed = record_in(State::Completed);
    assert_eq!(occupied(reserve(Some(&completed), &look, at(20))), completed);
    let failed = record_in(State::FailedRetryable);
    assert_eq!(reserve(Some(&failed), &look, at(20)).answer, Reservation::Free);
    assert_eq!(reserve(None, &look, at(20)).answer, Reservation::Free);
}
