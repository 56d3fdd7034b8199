//! Unknown outcomes: who may ask, what an answer is worth, and when nobody asks any more.

use super::*;
use crate::record::Inquiry;

fn about(record: &Record, resolution: Resolution) -> Resolve {
    Resolve {
        id: record.id.clone(),
        generation: record.generation,
        fence: record.fence,
        resolution,
        reason: "reconciler".into(),
    }
}

fn unknown() -> Record {
    Record { reconcile_after: Some(at(RESTED)), ..record_in(State::Unknown) }
}

/// When nothing can be on its way any more.
const QUIET: u64 = LEASE + MAX_EXECUTION + SETTLE.as_secs();

fn asked(record: &Record, now: u64) -> Record {
    let probes = record.inquiry.probes;
    let step = resolve(Some(record), about(record, Resolution::Ask { probes }), at(now));
    assert_eq!(step.audit, None, "a question is not audited");
    let asked = put(step);
    assert_eq!(asked.inquiry.probes, probes + 1);
    asked
}

fn absent(record: &Record, now: u64) -> Step<Resolved> {
    absent_apart(record, Duration::MAX, now)
}

/// The same by somebody who began its first probe so long ago, by its own clock.
fn absent_apart(record: &Record, apart: Duration, now: u64) -> Step<Resolved> {
    let asked_at = record.inquiry.asked_at.unwrap_or(at(now));
    resolve(Some(record), about(record, Resolution::Absent { asked_at, apart }), at(now))
}

#[test]
fn a_question_counts_itself_and_says_when_the_next_one_may_come() {
    let record = unknown();
    let once = asked(&record, 100);
    let expected = Record {
        reconcile_after: Some(at(130)),
        inquiry: Inquiry { probes: 1, asked_at: Some(at(100)), absent_at: None },
        ..record.clone()
    };
    assert_eq!(once, expected);
    for (probes, now) in [(0, 200), (2, 200), (1, 129)] {
        let step = resolve(Some(&once), about(&once, Resolution::Ask { probes }), at(now));
        assert_eq!(step, Step::keep(Resolved::Refused(Box::new(once.clone()))), "{probes} {now}");
    }
    assert_eq!(asked(&once, 130).reconcile_after, Some(at(190)));
}

#[test]
fn the_pause_doubles_from_half_a_minute_to_an_hour() {
    let pauses = [0, 1, 2, 3, 7, 8, 9, u32::MAX].map(|probes| probe_pause(probes).as_secs());
    assert_eq!(pauses, [30, 30, 60, 120, 1920, 3600, 3600, 3600]);
}

#[test]
fn two_probes_count_only_when_late_and_apart_enough() {
    let settle = SETTLE.as_secs();
    // Too early does not count as the first.
    let early = asked(&unknown(), QUIET - 1);
    let step = absent(&early, QUIET + 5);
    assert_eq!(step.answer, Resolved::TooEarly { not_before: at(QUIET) });
    let noted = put(step);
    assert_eq!((noted.inquiry.absent_at, noted.reconcile_after), (None, Some(at(QUIET))));
    // The first that counts.
    let first = put(absent(&asked(&noted, QUIET), QUIET + 1));
    assert_eq!(first.inquiry.absent_at, Some(at(QUIET)));
    assert_eq!(first.reconcile_after, Some(at(QUIET + settle)));
    // A second one that was begun too soon after it, however late it is answered.
    let soon = Record { reconcile_after: Some(at(QUIET)), ..first.clone() };
    let soon = absent(&asked(&soon, QUIET + settle - 1), QUIET + settle * 9);
    assert_eq!(soon.answer, Resolved::TooEarly { not_before: at(QUIET + settle) });
    // And one that was not.
    let step = absent(&asked(&first, QUIET + settle), QUIET + settle + 3);
    assert_eq!(step.audit.as_ref().map(|audit| audit.event), Some(AuditEvent::Released));
    let released = put(step);
    assert_eq!((released.state, released.inquiry), (State::FailedRetryable, Inquiry::default()));
}

#[test]
fn two_probes_are_apart_by_the_clock_of_whoever_asks_too() {
    let settle = SETTLE.as_secs();
    let seconds = Duration::from_secs;
    // An attempt that was at work at the first probe may take so long, and then it has to settle.
    let needed = MAX_EXECUTION + 2 * settle;
    // The store's clock has leapt: nobody but whoever asks knows how little has passed.
    let early = asked(&unknown(), QUIET - 1);
    let noted = put(absent_apart(&early, Duration::ZERO, QUIET));
    assert_eq!(noted.reconcile_after, Some(at(QUIET - 1 + needed - settle)));
    let due = Record { reconcile_after: Some(at(QUIET)), ..noted };
    let first = put(absent_apart(&asked(&due, QUIET), seconds(1), QUIET));
    assert_eq!(first.inquiry.absent_at, Some(at(QUIET)), "the store knows of it");
    assert_eq!(first.reconcile_after, Some(at(QUIET + needed - 1)));
    for apart in [0, 1, settle, needed - 1] {
        let second = asked(&first, QUIET + needed);
        let step = absent_apart(&second, seconds(apart), QUIET + needed);
        let not_before = at(QUIET + needed + needed - apart);
        assert_eq!(step.answer, Resolved::TooEarly { not_before }, "{apart}");
        let again = put(step);
        assert_eq!((again.state, again.reconcile_after), (State::Unknown, Some(not_before)));
    }
    let step = absent_apart(&asked(&first, QUIET + needed), seconds(needed), QUIET + needed);
    assert_eq!(put(step).state, State::FailedRetryable);
    // And by the store's clock, should that of whoever asks be the one that is wrong.
    let soon = Record { reconcile_after: Some(at(QUIET)), ..first };
    let step = absent_apart(&asked(&soon, QUIET + settle - 1), Duration::MAX, QUIET * 9);
    assert_eq!(step.answer, Resolved::TooEarly { not_before: at(QUIET + settle) });
}

#[test]
fn a_question_that_was_overtaken_or_never_asked_proves_nothing() {
    let never = unknown();
    assert!(matches!(absent(&never, QUIET * 9).answer, Resolved::Refused(_)));
    let twice = asked(&asked(&never, QUIET), QUIET + 100);
    let told = |asked_at| Resolution::Absent { asked_at: at(asked_at), apart: Duration::MAX };
    let late = about(&twice, told(QUIET));
    assert!(matches!(resolve(Some(&twice), late, at(QUIET * 9)).answer, Resolved::Refused(_)));
    let fenced = Resolve { fence: Fence::from_stored(1), ..about(&twice, told(QUIET + 100)) };
    assert!(matches!(resolve(Some(&twice), fenced, at(QUIET * 9)).answer, Resolved::Refused(_)));
}

#[test]
fn a_dead_letter_is_never_due_until_it_is_redriven() {
    let record = asked(&unknown(), 100);
    let given_up = |asked_at| about(&record, Resolution::DeadLetter { asked_at });
    for other in [None, Some(at(99))] {
        let step = resolve(Some(&record), given_up(other), at(200));
        assert_eq!(step, Step::keep(Resolved::Refused(Box::new(record.clone()))));
    }
    let step = resolve(Some(&record), given_up(Some(at(100))), at(200));
    assert_eq!(step.audit.as_ref().map(|audit| audit.event), Some(AuditEvent::DeadLettered));
    let dead = put(step);
    assert!(dead.is_dead_letter() && !is_due_for_probe(&dead, at(u64::from(u32::MAX))));
    let step = resolve(Some(&dead), about(&dead, Resolution::Redrive), at(300));
    assert_eq!(step.audit.as_ref().map(|audit| audit.event), Some(AuditEvent::Redriven));
    let back = put(step);
    assert_eq!((back.reconcile_after, back.inquiry), (Some(at(300)), Inquiry::default()));
    assert!(is_due_for_probe(&back, at(300)) && !is_due_for_probe(&back, at(299)));
}

#[test]
fn of_one_attempt_success_has_to_agree_and_two_attempts_must_not_both_have_a_result() {
    let completed = record_in(State::Completed);
    let stands = completed.reply.clone().expect("a reply");
    let declined = Reply { status: http::StatusCode::PAYMENT_REQUIRED, ..reply("no") };
    let told = |reply: Reply| {
        let step =
            resolve(Some(&completed), about(&completed, Resolution::Complete(reply)), at(20));
        assert_eq!(step.change, Change::Keep);
        step.audit.map(|audit| audit.event)
    };
    assert_eq!(told(stands.clone()), None);
    assert_eq!(told(reply("in other words")), None);
    assert_eq!(told(Reply { status: http::StatusCode::CREATED, ..reply("201") }), None);
    assert_eq!(told(declined.clone()), Some(AuditEvent::Incident));
    let said = |effects: Effects, reply: Reply| {
        let stored = Record { effects, ..completed.clone() };
        let other = Lease { attempt: B, ..lease(&stored) };
        let step = write(Some(&stored), &other, Write::Complete(reply), at(20));
        assert_eq!(step.change, Change::Keep);
        step.audit.map(|audit| audit.event)
    };
    for effects in [Effects::External, Effects::Undeclared] {
        assert_eq!(said(effects, stands.clone()), Some(AuditEvent::Incident));
    }
    for effects in [Effects::None, Effects::Local, Effects::Phased] {
        assert_eq!(said(effects, reply("other")), Some(AuditEvent::SupersededResult));
        assert_eq!(said(effects, declined.clone()), Some(AuditEvent::Incident));
    }
}

fn executed(record: &Record, attempt: AttemptId, now: u64) -> (Resolve, Step<Resolved>) {
    let decided = about(record, Resolution::Executed { attempt, reply: reply("told") });
    (decided.clone(), resolve(Some(record), decided, at(now)))
}

#[test]
fn what_is_told_of_an_attempt_is_guarded_by_the_attempt_and_not_by_the_fence() {
    let record = unknown();
    let moved = Fence::from_stored(record.fence.number() - 1);
    let (decided, _) = executed(&record, A, 20);
    let step = resolve(Some(&record), Resolve { fence: moved, ..decided.clone() }, at(20));
    assert!(!is_contradiction(&decided, &step.answer));
    assert_eq!(put(step).reply, Some(reply("told")));
    // Another attempt, or another use of the key: kept as evidence, nothing changes.
    for (attempt, generation, event) in [
        (B, record.generation, AuditEvent::Incident),
        (B, record.generation + 1, AuditEvent::SupersededResult),
        (A, record.generation + 1, AuditEvent::SupersededResult),
    ] {
        let decided = Resolve {
            generation,
            ..about(&record, Resolution::Executed { attempt, reply: reply("told") })
        };
        let step = resolve(Some(&record), decided.clone(), at(20));
        assert_eq!(is_contradiction(&decided, &step.answer), event == AuditEvent::Incident);
        assert_eq!(step.change, Change::Keep);
        let kept = step.audit.expect("evidence");
        assert_eq!((kept.event, kept.attempt, kept.generation), (event, attempt, generation));
    }
}

#[test]
fn what_executed_after_all_is_completed_and_counted_once_nobody_is_at_it() {
    let released = Record {
        last_error: Some("resolved_not_executed".into()),
        ..record_in(State::FailedRetryable)
    };
    for attempt in [A, B] {
        let (decided, step) = executed(&released, attempt, 20);
        assert!(is_contradiction(&decided, &step.answer));
        assert_eq!(step.audit.as_ref().map(|audit| audit.event), Some(AuditEvent::Incident));
        let completed = put(step);
        assert_eq!((completed.state, completed.attempt), (State::Completed, attempt));
        assert!(completed.fence > released.fence, "the attempt itself comes too late");
    }
    // Whoever is at it is not disturbed, and its own word is still to come.
    let at_work = record_in(State::InProgress);
    let (decided, step) = executed(&at_work, A, 20);
    assert!(!is_contradiction(&decided, &step.answer));
    assert_eq!(step, Step::keep(Resolved::Refused(Box::new(at_work))));
}
