//! What a request is answered, for everything a store may have found.

use super::*;

fn in_the_way(record: Record) -> Reservation {
    Reservation::Occupied { record: Box::new(record), lease_ran_out: false }
}

fn refusal(record: Record, now: Timestamp) -> Refusal {
    match decide(in_the_way(record), &retry(), now) {
        Decision::Refuse(refusal) => refusal,
        other => panic!("expected a refusal, found {other:?}"),
    }
}

#[test]
fn what_is_granted_is_executed() {
    let step = reserve(None, &ask(), at(0));
    let Reservation::Granted { lease, .. } = &step.answer else { panic!("expected a grant") };
    let expected = Lease { id: lease.id.clone(), ..*lease };
    assert_eq!(decide(step.answer, &ask(), at(0)), Decision::Execute(expected));
}

#[test]
fn what_is_accepted_is_accepted() {
    for found in [Found::Absent, Found::Mine] {
        let decision = decide(Reservation::Accepted { found }, &ask(), at(0));
        assert_eq!(decision, Decision::Accepted);
    }
}

#[test]
fn what_is_free_to_a_look_is_not_taken() {
    let decision = decide(Reservation::Free, &ask(), at(0));
    assert_eq!(decision, Decision::Refuse(Refusal::NotTaken));
}

#[test]
fn a_decision_is_an_answer_with_a_name_and_not_an_error() {
    // Without a wildcard: whoever adds an answer has to say what it means.
    let word = |decision: Decision| match decision {
        Decision::Execute(_) => "execute",
        Decision::Accepted => "accepted",
        Decision::Replay { .. } => "replay",
        Decision::Refuse(refusal) => match refusal {
            Refusal::Mismatch => "mismatch",
            Refusal::InProgress { .. } => "in progress",
            Refusal::OutcomeUnknown => "unknown",
            Refusal::Expired { .. } => "expired",
            Refusal::ReplyNotStored { .. } => "not stored",
            Refusal::NotTaken => "not taken",
        },
    };
    let found = |state| reserve(Some(&record_in(state)), &retry(), at(20)).answer;
    for (state, expected) in [
        (State::Pending, "in progress"),
        (State::InProgress, "in progress"),
        (State::Completed, "replay"),
        (State::FailedRetryable, "execute"),
        (State::Unknown, "unknown"),
        (State::Expired, "expired"),
    ] {
        assert_eq!(word(decide(found(state), &retry(), at(20))), expected, "{state:?}");
    }
    assert_eq!(word(decide(found(State::Completed), &another_request(), at(20))), "mismatch");
}

#[test]
fn another_request_is_a_mismatch_in_every_state() {
    for state in State::ALL {
        let decision = decide(in_the_way(record_in(state)), &another_request(), at(20));
        assert_eq!(decision, Decision::Refuse(Refusal::Mismatch), "{state:?}");
    }
    // With the request that it belongs to, no state is.
    for state in State::ALL {
        let decision = decide(in_the_way(record_in(state)), &retry(), at(20));
        assert_ne!(decision, Decision::Refuse(Refusal::Mismatch), "{state:?}");
    }
}

#[test]
fn a_completed_record_is_replayed_with_its_end_and_generation() {
    let record = Record { generation: 3, ..record_in(State::Completed) };
    let expected = Decision::Replay {
        reply: reply("done"),
        expires_at: at(RESTED + RETENTION),
        generation: 3,
    };
    assert_eq!(decide(in_the_way(record), &retry(), at(20)), expected);
}

#[test]
fn a_reply_that_was_too_large_is_not_replayed_and_says_its_status() {
    let stored = Reply { body: ReplyBody::NotStored, ..reply("") };
    let record = Record { reply: Some(stored), ..record_in(State::Completed) };
    let status = http::StatusCode::CREATED;
    assert_eq!(refusal(record, at(20)), Refusal::ReplyNotStored { status });
}

#[test]
fn an_empty_reply_is_a_reply() {
    let record = Record { reply: Some(reply("")), ..record_in(State::Completed) };
    let decision = decide(in_the_way(record), &retry(), at(20));
    assert!(matches!(decision, Decision::Replay { .. }), "{decision:?}");
}

#[test]
fn an_expired_key_is_refused_as_expired_and_an_unknown_one_as_unknown() {
    assert_eq!(
        refusal(record_in(State::Expired), at(20)),
        Refusal::Expired { status: Some(http::StatusCode::CREATED) }
    );
    assert_eq!(refusal(record_in(State::Unknown), at(20)), Refusal::OutcomeUnknown);
}

#[test]
fn an_attempt_at_work_says_when_to_come_back_within_bounds() {
    let advice = |seconds_left: u64| {
        let record = record_in(State::InProgress);
        match refusal(record, at(LEASE - seconds_left)) {
            Refusal::InProgress { retry_after, .. } => retry_after.as_secs(),
            other => panic!("expected work in progress, found {other:?}"),
        }
    };
    assert_eq!([advice(60), advice(3), advice(0)], [5, 3, 1]);
    let pending = refusal(record_in(State::Pending), at(20));
    let (state, retry_after) = (State::Pending, Duration::from_secs(1));
    assert_eq!(pending, Refusal::InProgress { state, retry_after });
}

#[test]
fn a_completed_record_that_lost_its_reply_never_runs_again() {
    let damaged = Record { reply: None, ..record_in(State::Completed) };
    assert!(matches!(refusal(damaged, at(20)), Refusal::InProgress { .. }));
}
