//! Whose a provider id is.

use super::*;
use crate::{
    record::{ProviderId, ProviderNote},
    store::Noted,
};

fn named(text: &str) -> ProviderId {
    text.parse().expect("a provider id")
}

fn noted(found: &Record, holder: Option<&ProviderNote>, lease: &Lease, at: Timestamp) -> NoteStep {
    note(Some(found), holder, lease, named("ch_1"), at)
}

/// As the attempt of the record noted it.
fn note_of(record: &Record) -> ProviderNote {
    noted(record, None, &lease(record), at(1)).put.expect("it is noted")
}

#[test]
fn a_provider_id_is_noted_in_every_state_and_the_record_does_not_matter() {
    for state in State::ALL {
        let record = record_in(state);
        let step = noted(&record, None, &lease(&record), at(1));
        let expected = ProviderNote {
            id: named("ch_1"),
            record: record.id.clone(),
            generation: 1,
            attempt: A,
            fence: record.fence,
            at: at(1),
        };
        let expected = NoteStep { put: Some(expected), audit: None, answer: Noted::Applied };
        assert_eq!(step, expected, "{state:?}");
    }
}

#[test]
fn the_same_attempt_again_changes_nothing() {
    let record = record_in(State::InProgress);
    let held = note_of(&record);
    let step = noted(&record, Some(&held), &lease(&record), at(2));
    assert_eq!(step, NoteStep { put: None, audit: None, answer: Noted::AlreadyMine });
}

#[test]
fn a_later_attempt_of_the_same_operation_takes_it_over_and_an_earlier_one_does_not() {
    let first = record_in(State::FailedRetryable);
    let held = note_of(&first);
    let (second, later, _) = granted(reserve(Some(&first), &retry(), at(20)));
    let moved = noted(&second, Some(&held), &later, at(21));
    let expected = ProviderNote { attempt: B, fence: later.fence, ..held };
    assert_eq!((moved.answer, moved.put.as_ref()), (Noted::Applied, Some(&expected)));
    let step = noted(&second, Some(&expected), &lease(&first), at(22));
    assert_eq!(step, NoteStep { put: None, audit: None, answer: Noted::AlreadyMine });
}

#[test]
fn what_another_operation_has_stays_there_and_is_an_incident() {
    let record = record_in(State::Unknown);
    let mine = lease(&record);
    let other_key =
        RecordId { key: Key::new("another key of 16").expect("a key"), ..record.id.clone() };
    let other_scope =
        RecordId { scope: Scope::new("other").expect("a scope"), ..record.id.clone() };
    let held = note_of(&record);
    for held in [
        ProviderNote { record: other_key, ..held.clone() },
        ProviderNote { record: other_scope, ..held.clone() },
        ProviderNote { generation: 2, ..held },
    ] {
        let step = noted(&record, Some(&held), &mine, at(5));
        assert_eq!((step.answer, &step.put), (Noted::Taken, &None));
        let incident = step.audit.expect("an audit record");
        assert_eq!((incident.event, incident.at), (AuditEvent::Incident, at(5)));
        assert_eq!((incident.attempt, incident.fence), (mine.attempt, mine.fence));
        assert!(incident.reason.contains("ch_1"), "{}", incident.reason);
    }
}

#[test]
fn a_use_of_the_key_that_is_over_notes_nothing() {
    let again = Ask { expired_runs_again: true, ..ask() };
    let first = record_of(&again, State::Expired);
    let old = lease(&first);
    let later = at(RESTED + RETENTION);
    let (second, new, _) =
        granted(reserve(Some(&first), &Ask { attempt: B, ..again.clone() }, later));
    let absent = NoteStep { put: None, audit: None, answer: Noted::Absent };
    assert_eq!(noted(&second, None, &old, later), absent);
    assert_eq!(noted(&second, None, &new, later).answer, Noted::Applied);
    assert!(!is_made_anew(&first, &second), "the generation before keeps what it has");
    // Past its tombstone the key is new, and its first generation another one.
    let gone = at(RESTED + RETENTION + TOMBSTONE);
    let (anew, new, _) = granted(reserve(Some(&first), &retry(), gone));
    assert_eq!(anew.generation, 1);
    assert_eq!(noted(&anew, None, &old, gone), absent);
    assert_eq!(noted(&anew, None, &new, gone).answer, Noted::Applied);
    assert!(is_made_anew(&first, &anew));
    assert_eq!(note(None, None, &old, named("ch_1"), gone), absent);
}
