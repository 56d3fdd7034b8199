//! Steps of a phased operation: which are made, and what they make of every other arrow.

use super::*;
use crate::{
    record::OpenEffect,
    store::{Advance, Advanced},
};

fn save(name: &str) -> Advance {
    Advance::Save { name: name.into(), result: "result".into() }
}

fn intend(name: &str, idempotent: bool) -> Advance {
    Advance::Intend { name: name.into(), idempotent }
}

fn withdraw(name: &str) -> Advance {
    Advance::Withdraw { name: name.into() }
}

fn phased() -> Ask {
    Ask { effects: Effects::Phased, ..ask() }
}

/// A phased record in progress that came so far: `book` is saved in all but the first.
fn come_to(progress: &str) -> Record {
    let open = |name: &str, idempotent| Some(OpenEffect { name: name.into(), idempotent });
    let open_effect = match progress {
        "nothing" | "saved" => None,
        "idempotent" => open("charge", true),
        "open" => open("charge", false),
        _ => panic!("no such progress: {progress}"),
    };
    let recovery_point = (progress != "nothing").then(|| "book".into());
    let record = record_of(&phased(), State::InProgress);
    Record { progress: Progress { recovery_point, open_effect }, ..record }
}

const ALL: [&str; 4] = ["nothing", "saved", "idempotent", "open"];

fn made(record: &Record, what: Advance) -> Step<Advanced> {
    let saved = what.name() == "book" && record.progress.recovery_point.is_some();
    advance(Some(record), &lease(record), &what, saved)
}

/// What a step makes of each progress: the recovery point and the open effect, or the answer if it
/// changes nothing.
fn outcome(progress: &str, what: Advance) -> String {
    let record = come_to(progress);
    let step = made(&record, what);
    assert_eq!(step.audit, None);
    match (step.change, step.answer) {
        (Change::Keep, Advanced::AlreadyMine) => "mine".into(),
        (Change::Keep, Advanced::Refused(_)) => "refused".into(),
        (Change::Put(after), Advanced::Applied) => {
            let untouched = Record { progress: record.progress.clone(), ..(*after).clone() };
            assert_eq!(untouched, record, "a step moves the progress and nothing else");
            let Progress { recovery_point, open_effect } = after.progress;
            let open = open_effect.map(|effect| effect.name);
            format!(
                "{}/{}",
                recovery_point.as_deref().unwrap_or("-"),
                open.as_deref().unwrap_or("-")
            )
        }
        other => panic!("unexpected {other:?}"),
    }
}

#[test]
fn every_step_at_every_progress() {
    let table = [
        //                          nothing      saved          idempotent     open
        (save("book"), ["book/-", "mine", "mine", "mine"]),
        (save("charge"), ["charge/-", "charge/-", "charge/-", "charge/-"]),
        (save("mail"), ["mail/-", "mail/-", "refused", "refused"]),
        (intend("book", true), ["-/book", "refused", "refused", "refused"]),
        (intend("charge", true), ["-/charge", "book/charge", "mine", "mine"]),
        (intend("charge", false), ["-/charge", "book/charge", "mine", "mine"]),
        (intend("mail", false), ["-/mail", "book/mail", "refused", "refused"]),
        (withdraw("book"), ["mine", "refused", "refused", "refused"]),
        (withdraw("charge"), ["mine", "mine", "book/-", "book/-"]),
        (withdraw("mail"), ["mine", "mine", "mine", "mine"]),
    ];
    for (what, expected) in table {
        for (progress, expected) in ALL.into_iter().zip(expected) {
            assert_eq!(outcome(progress, what.clone()), expected, "{what:?} at {progress}");
        }
    }
}

#[test]
fn an_intent_remembers_whether_it_may_be_called_again() {
    for idempotent in [true, false] {
        let record = put(made(&come_to("nothing"), intend("charge", idempotent)));
        let open = OpenEffect { name: "charge".into(), idempotent };
        assert_eq!(record.progress.open_effect, Some(open));
        assert_eq!(record.progress.must_not_go_on(), !idempotent);
        assert!(!record.progress.is_none());
        // It is what was said first that counts.
        let again = made(&record, intend("charge", !idempotent));
        assert_eq!(again, Step::keep(Advanced::AlreadyMine));
    }
}

#[test]
fn a_step_saved_earlier_than_the_last_one_is_known_too() {
    let record = put(made(&come_to("saved"), save("charge")));
    assert_eq!(record.progress.recovery_point.as_deref(), Some("charge"));
    assert_eq!(made(&record, save("book")), Step::keep(Advanced::AlreadyMine));
}

#[test]
fn only_the_attempt_at_work_makes_steps() {
    let all = [save("mail"), intend("mail", true), withdraw("charge"), save("book")];
    for state in State::ALL.into_iter().filter(|state| *state != State::InProgress) {
        let record = record_of(&phased(), state);
        for what in &all {
            let step = advance(Some(&record), &lease(&record), what, false);
            let expected = Advanced::Superseded(Some(Box::new(record.clone())));
            assert_eq!(step, Step::keep(expected), "{state:?} {what:?}");
        }
    }
    let record = come_to("saved");
    let old_fence = Fence::from_stored(record.fence.number() - 1);
    for what in &all {
        for wrong in
            [Lease { attempt: B, ..lease(&record) }, Lease { fence: old_fence, ..lease(&record) }]
        {
            let step = advance(Some(&record), &wrong, what, false);
            assert_eq!(step, Step::keep(Advanced::Superseded(Some(Box::new(record.clone())))));
        }
        let gone = advance(None, &lease(&record), what, false);
        assert_eq!(gone, Step::keep(Advanced::Superseded(None)));
    }
}

#[test]
fn a_release_with_steps_made_is_never_a_failure() {
    let release =
        |record: &Record| write(Some(record), &lease(record), Write::Release("why".into()), at(20));
    let nothing = put(release(&come_to("nothing")));
    assert_eq!(nothing.state, State::FailedRetryable);
    for progress in ["saved", "idempotent"] {
        let record = come_to(progress);
        let step = release(&record);
        assert_eq!((&step.answer, &step.audit), (&Written::Applied, &None));
        let suspended = put(step);
        let why = Some("why".into());
        assert_eq!(suspended, Record { lease_until: at(20), last_error: why, ..record.clone() });
        // The answer was lost, and the call is made again.
        assert_eq!(release(&suspended), Step::keep(Written::AlreadyMine(None)));
        let (again, lease, found) = granted(reserve(Some(&suspended), &retry(), at(20)));
        assert_eq!((found, lease.attempt_number), (Found::LeaseOver, 2));
        assert_eq!(again.progress, record.progress);
    }
    let record = come_to("open");
    let stuck = put(release(&record));
    let expected = Record {
        state: State::Unknown,
        last_error: Some(EFFECT_WITHOUT_RESULT.into()),
        reconcile_after: Some(at(20)),
        ..record
    };
    assert_eq!(stuck, expected);
    assert_eq!(release(&stuck), Step::keep(Written::AlreadyMine(None)));
}

#[test]
fn an_attempt_that_suspended_may_still_say_what_it_knows() {
    let record = come_to("saved");
    let suspended =
        put(write(Some(&record), &lease(&record), Write::Release("why".into()), at(20)));
    for what in [Write::Complete(reply("late")), Write::MarkUnknown("reset".into())] {
        let step = write(Some(&suspended), &lease(&record), what, at(30));
        assert_eq!(step.answer, Written::Applied);
    }
    let (next, ..) = granted(reserve(Some(&suspended), &retry(), at(20)));
    let late = write(Some(&next), &lease(&record), Write::Release("why".into()), at(30));
    assert_eq!(late.answer, Written::Superseded(Some(Box::new(next.clone()))));
}

#[test]
fn a_lease_that_is_over_is_gone_on_with_unless_an_effect_must_not_be_called_again() {
    for progress in ALL {
        let record = come_to(progress);
        let stuck = progress == "open";
        assert!(!is_resumable(&record, at(LEASE - 1)));
        assert_eq!(is_resumable(&record, at(LEASE)), !stuck, "{progress}");
        let swept = sweep(&record, at(LEASE));
        let step = reserve(Some(&record), &Ask { attempt: B, ..phased() }, at(LEASE));
        if !stuck {
            assert_eq!(swept, Step::keep(None));
            let (again, ..) = granted(step);
            assert_eq!(again.progress, record.progress, "{progress}");
            continue;
        }
        let expected = Record {
            state: State::Unknown,
            last_error: Some(LEASE_RAN_OUT.into()),
            reconcile_after: Some(at(LEASE)),
            ..record
        };
        assert_eq!(swept.audit.as_ref().map(|audit| audit.event), Some(AuditEvent::LeaseExpired));
        assert_eq!(put(swept), expected);
        assert_eq!(put(step), expected);
    }
}

#[test]
fn a_declaration_that_changed_makes_no_failure_of_steps() {
    for effects in [Effects::None, Effects::Local] {
        for progress in ALL {
            let record = Record { effects, ..come_to(progress) };
            let after = match sweep(&record, at(LEASE)).change {
                Change::Put(moved) => moved.state,
                _ => State::InProgress,
            };
            let expected = match progress {
                "nothing" => State::FailedRetryable,
                "open" => State::Unknown,
                _ => State::InProgress,
            };
            assert_eq!(after, expected, "{effects:?} {progress}");
        }
    }
}

#[test]
fn an_attempt_after_steps_is_one_that_a_worker_finds_unless_it_may_act_outside_of_them() {
    for effects in Effects::ALL {
        for progress in ["nothing", "saved", "idempotent"] {
            let before = come_to(progress);
            let (after, ..) =
                granted(reserve(Some(&before), &Ask { effects, ..retry() }, at(LEASE)));
            let expected = match effects {
                Effects::Local | Effects::None if progress != "nothing" => Effects::Phased,
                declared => declared,
            };
            assert_eq!(after.effects, expected, "{effects:?} {progress}");
        }
    }
}

#[test]
fn only_pending_work_and_phased_work_whose_lease_is_over_wait_for_a_worker() {
    for effects in Effects::ALL {
        for state in State::ALL {
            let record = record_of(&Ask { effects, ..ask() }, state);
            let pending = state == State::Pending;
            let cut_off = effects == Effects::Phased && state == State::InProgress;
            assert_eq!(
                is_resumable(&record, at(LEASE)),
                pending || cut_off,
                "{effects:?} {state:?}"
            );
            assert_eq!(is_resumable(&record, at(20)), pending, "{effects:?} {state:?}");
        }
    }
}

#[test]
fn an_operation_that_is_found_not_to_have_acted_goes_on() {
    for progress in ["saved", "idempotent", "open"] {
        for effects in [Effects::Phased, Effects::External] {
            let record = Record { effects, ..come_to(progress) };
            let unknown = put(write(
                Some(&record),
                &lease(&record),
                Write::MarkUnknown("reset".into()),
                at(9),
            ));
            let release = Resolve {
                id: unknown.id.clone(),
                generation: 1,
                fence: unknown.fence,
                resolution: Resolution::Release(Proof::Authoritative),
                reason: "ticket 7".into(),
            };
            let step = resolve(Some(&unknown), release.clone(), at(20));
            let audit = step.audit.clone().expect("every resolution is audited");
            assert_eq!((audit.event, audit.fence), (AuditEvent::Released, unknown.fence));
            let resolved = put(step);
            let expected = Record {
                effects: Effects::Phased,
                lease_until: at(20),
                last_error: Some("resolved_not_executed".into()),
                fence: resolved.fence,
                progress: Progress { open_effect: None, ..record.progress.clone() },
                ..record.clone()
            };
            assert_eq!(resolved, expected);
            assert!(resolved.fence > unknown.fence, "the attempt has lost its right");
            assert!(is_resumable(&resolved, at(20)));
            let (again, ..) = granted(reserve(Some(&resolved), &retry(), at(20)));
            assert_eq!(again.progress, expected.progress);
            // Once is enough.
            let twice = resolve(Some(&resolved), release, at(21));
            assert_eq!(twice, Step::keep(Resolved::Refused(Box::new(resolved))));
        }
    }
}

#[test]
fn a_new_generation_has_come_nowhere() {
    let record = come_to("open");
    let done = put(write(Some(&record), &lease(&record), Write::Complete(reply("done")), at(20)));
    let again = Ask { expired_runs_again: true, attempt: B, ..phased() };
    let (next, lease, _) = granted(reserve(Some(&done), &again, at(20 + RETENTION)));
    assert_eq!((lease.generation, next.progress), (2, Progress::default()));
}

#[test]
fn a_request_is_kept_by_whoever_takes_the_record() {
    let keeps =
        |found: Option<&Record>, ask: Ask| keeps_request(&reserve(found, &ask, at(20)).answer);
    assert!(keeps(None, ask()));
    assert!(keeps(None, Ask { mode: Mode::Accept, ..ask() }));
    assert!(!keeps(None, Ask { mode: Mode::LookupOnly, ..ask() }));
    let taken = record_in(State::InProgress);
    assert!(!keeps(Some(&taken), ask()), "it was kept when the record was taken");
    assert!(!keeps(Some(&taken), retry()));
}
