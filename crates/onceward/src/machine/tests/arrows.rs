//! One test per arrow of the diagram: what the record is afterwards.

use super::*;

#[test]
fn a_free_key_is_granted_as_the_first_attempt_of_the_first_generation() {
    let (record, lease, found) = granted(reserve(None, &ask(), at(0)));
    assert_eq!(found, Found::Absent);
    assert_eq!(
        lease,
        Lease {
            id: ask().id,
            attempt: A,
            fence: Fence::from_stored(at(0).as_micros()),
            generation: 1,
            attempt_number: 1,
            until: at(LEASE),
        }
    );
    let expected = Record {
        id: ask().id,
        fingerprint: fingerprint(1),
        generation: 1,
        state: State::InProgress,
        attempt: A,
        fence: lease.fence,
        attempts: 1,
        effects: Effects::External,
        route: "pay".into(),
        method: "POST".into(),
        path: "/payments".into(),
        created_at: at(0),
        started_at: at(0),
        lease_until: at(LEASE),
        max_execution: Duration::from_secs(MAX_EXECUTION),
        finished_at: None,
        expires_at: at(RETENTION),
        retention: Duration::from_secs(RETENTION),
        tombstone: Duration::from_secs(TOMBSTONE),
        reply: None,
        last_error: None,
        reconcile_after: None,
        inquiry: Inquiry::default(),
        void: false,
        progress: Progress::default(),
        queued_until: None,
    };
    assert_eq!(record, expected);
}

#[test]
fn accepted_work_waits_and_nobody_has_attempted_it() {
    let step = reserve(None, &Ask { mode: Mode::Accept, ..ask() }, at(0));
    assert_eq!(step.answer, Reservation::Accepted { found: Found::Absent });
    let record = put(step);
    assert_eq!((record.state, record.attempts), (State::Pending, 0));
    assert!(!record.lease_is_live(at(0)), "nobody holds a lease on pending work");
}

#[test]
fn pending_work_is_claimed_once_and_by_its_own_attempt() {
    let pending = record_in(State::Pending);
    let wanted = wanted();
    let (record, lease, found) = granted(claim(Some(&pending), &wanted, at(5)));
    assert_eq!(found, Found::Pending);
    assert_eq!((record.state, record.attempt, record.attempts), (State::InProgress, B, 1));
    assert_eq!((record.created_at, record.started_at), (at(0), at(5)));
    assert!(lease.fence > pending.fence);
    assert_eq!(lease.until, at(5 + LEASE));

    // The same claim again has the same lease; another claim finds it taken.
    let (_, again, found) = granted(claim(Some(&record), &wanted, at(6)));
    assert_eq!((again.fence, found), (lease.fence, Found::Mine));
    let late = Claim { attempt: A, ..wanted };
    assert_eq!(occupied(claim(Some(&record), &late, at(6))), record);
}

#[test]
fn nothing_is_claimed_where_nothing_waits() {
    let wanted = wanted();
    assert_eq!(claim(None, &wanted, at(0)), Step::keep(Reservation::Free));
    let completed = record_in(State::Completed);
    assert_eq!(occupied(claim(Some(&completed), &wanted, at(20))), completed);
    // A claim sees a record as it stands now, too: no reply past its retention.
    let seen = occupied(claim(Some(&completed), &wanted, at(RESTED + RETENTION)));
    let status = completed.reply.clone().map(Reply::status_only);
    assert_eq!((seen.state, seen.reply), (State::Expired, status));
    let purged = claim(Some(&completed), &wanted, at(RESTED + RETENTION + TOMBSTONE));
    assert_eq!(purged, Step::keep(Reservation::Free));
}

#[test]
fn completing_stores_the_reply_and_starts_retention() {
    let before = record_in(State::InProgress);
    let step = write(Some(&before), &lease(&before), Write::Complete(reply("done")), at(7));
    assert_eq!((&step.answer, &step.audit), (&Written::Applied, &None));
    let expected = Record {
        state: State::Completed,
        reply: Some(reply("done")),
        finished_at: Some(at(7)),
        expires_at: at(7 + RETENTION),
        ..before
    };
    assert_eq!(put(step), expected);
}

#[test]
fn an_error_reply_completes_like_any_other() {
    let before = record_in(State::InProgress);
    let declined = Reply { status: http::StatusCode::PAYMENT_REQUIRED, ..reply("declined") };
    let step = write(Some(&before), &lease(&before), Write::Complete(declined.clone()), at(7));
    let record = put(step);
    assert_eq!((record.state, record.reply), (State::Completed, Some(declined)));
}

#[test]
fn releasing_makes_it_retryable_and_says_why() {
    let before = record_in(State::InProgress);
    let step = write(Some(&before), &lease(&before), Write::Release("not_sent".into()), at(7));
    assert_eq!((&step.answer, &step.audit), (&Written::Applied, &None));
    let expected = Record {
        state: State::FailedRetryable,
        last_error: Some("not_sent".into()),
        finished_at: Some(at(7)),
        expires_at: at(7 + RETENTION),
        ..before
    };
    assert_eq!(put(step), expected);
}

#[test]
fn a_retryable_record_runs_again_under_the_rules_of_the_new_request() {
    let failed = record_in(State::FailedRetryable);
    let changed_rules = Ask {
        effects: Effects::None,
        route: "pay-v2".into(),
        retention: Duration::from_secs(7_200),
        ..retry()
    };
    let (record, lease, found) = granted(reserve(Some(&failed), &changed_rules, at(20)));
    assert_eq!(found, Found::Retryable);
    assert_eq!((lease.generation, lease.attempt_number), (1, 2));
    assert!(lease.fence > failed.fence);
    assert_eq!((record.effects, &*record.route), (Effects::None, "pay-v2"));
    assert_eq!(record.retention, Duration::from_secs(7_200));
    assert_eq!((record.created_at, record.started_at), (at(0), at(20)));
    assert_eq!(record.finished_at, None);
}

#[test]
fn marking_unknown_asks_for_a_reconciler_and_ends_nothing() {
    let before = record_in(State::InProgress);
    let step = write(Some(&before), &lease(&before), Write::MarkUnknown("reset".into()), at(7));
    assert_eq!((&step.answer, &step.audit), (&Written::Applied, &None));
    let expected = Record {
        state: State::Unknown,
        last_error: Some("reset".into()),
        reconcile_after: Some(at(7)),
        ..before
    };
    assert_eq!(put(step), expected);
}

#[test]
fn the_attempt_that_was_marked_unknown_may_complete_late_and_it_is_audited() {
    let unknown = record_in(State::Unknown);
    let step = write(Some(&unknown), &lease(&unknown), Write::Complete(reply("late")), at(500));
    assert_eq!(step.answer, Written::Applied);
    let remembered = step.audit.clone().expect("an audit record");
    assert_eq!(remembered.event, AuditEvent::LateCompletion);
    assert_eq!((remembered.attempt, remembered.reply), (A, Some(reply("late"))));
    let record = put(step);
    assert_eq!((record.state, record.reply), (State::Completed, Some(reply("late"))));
    assert_eq!((record.last_error, record.reconcile_after), (None, None));
    assert_eq!(record.expires_at, at(500 + RETENTION));
}

#[test]
fn a_late_release_of_an_unknown_attempt_is_not_believed() {
    let unknown = record_in(State::Unknown);
    let writes = [Write::Release("not_sent".into()), Write::Renew(Duration::from_secs(1))];
    for what in writes {
        let step = write(Some(&unknown), &lease(&unknown), what, at(20));
        assert_eq!(step.change, Change::Keep);
        assert_eq!(step.answer, Written::Superseded(Some(Box::new(unknown.clone()))));
    }
}

#[test]
fn retention_leaves_a_tombstone_with_a_status_and_without_a_body() {
    let completed = record_in(State::Completed);
    let Change::Put(tombstone) = reap(&completed, at(RESTED + RETENTION)) else {
        panic!("expected a tombstone")
    };
    let status = completed.reply.clone().map(Reply::status_only);
    assert!(status.is_some());
    assert_eq!(*tombstone, Record { state: State::Expired, reply: status, ..completed });
}

#[test]
fn a_tombstone_goes_when_its_time_is_over_and_not_before() {
    let tombstone = record_in(State::Expired);
    let end = RESTED + RETENTION + TOMBSTONE;
    assert_eq!(reap(&tombstone, at(end - 1)), Change::Keep);
    assert_eq!(reap(&tombstone, at(end)), Change::Remove);
}

#[test]
fn without_a_tombstone_retention_leaves_nothing() {
    let hard_delete = Ask { tombstone: Duration::ZERO, ..ask() };
    let completed = record_of(&hard_delete, State::Completed);
    assert_eq!(reap(&completed, at(RESTED + RETENTION)), Change::Remove);
    assert_eq!(load(Some(&completed), at(RESTED + RETENTION)), None);
    let (_, lease, found) = granted(reserve(Some(&completed), &retry(), at(RESTED + RETENTION)));
    assert_eq!((lease.generation, found), (1, Found::Absent));
}

#[test]
fn an_expired_key_runs_again_as_the_next_generation_where_the_policy_says_so() {
    for state in [State::Completed, State::Expired] {
        let expired = record_in(state);
        let now = at(RESTED + RETENTION);
        assert_eq!(occupied(reserve(Some(&expired), &retry(), now)).state, State::Expired);
        // Another request may have the key too: the old one is over.
        let runs_again = Ask { expired_runs_again: true, ..another_request() };
        let (record, lease, found) = granted(reserve(Some(&expired), &runs_again, now));
        assert_eq!((lease.generation, lease.attempt_number, found), (2, 1, Found::Expired));
        assert_eq!((record.fingerprint, record.created_at), (fingerprint(2), now));
        assert_eq!((record.finished_at, record.void), (None, false));
    }
}

#[test]
fn what_never_acted_and_expired_is_free_whatever_the_policy() {
    let failed = record_in(State::FailedRetryable);
    let now = at(RESTED + RETENTION);
    assert!(load(Some(&failed), now).expect("a tombstone").void);
    let (_, lease, found) = granted(reserve(Some(&failed), &another_request(), now));
    assert_eq!((lease.generation, found), (2, Found::Expired));
    // One second earlier it still belongs to the request that failed.
    let earlier = at(RESTED + RETENTION - 1);
    assert_eq!(occupied(reserve(Some(&failed), &another_request(), earlier)), failed);
}

#[test]
fn a_purged_key_is_new_again() {
    let tombstone = record_in(State::Expired);
    let now = at(RESTED + RETENTION + TOMBSTONE);
    assert_eq!(load(Some(&tombstone), now), None);
    let (_, lease, found) = granted(reserve(Some(&tombstone), &another_request(), now));
    assert_eq!((lease.generation, found), (1, Found::Absent));
    assert!(lease.fence > tombstone.fence);
}
