//! I1, I3, I4 and I8 where workers come; STEP, AUDIT.

use super::*;

fn queued(state: &str, fence: i64) -> Stand {
    let open = Open { queued_until: Some(500), reconcile_after: Some(0), ..Open::default() };
    Stand { open, ..stand(state, fence) }
}

fn step(from: Stand, to: Stand, cause: Cause) -> Tale {
    Tale::new().moved(Some(from), Some(to), cause)
}

fn claim(fence: i64, looked_at: i64, now: i64) -> Cause {
    Cause::Claim { attempt: format!("a{fence}"), fence: looked_at, now }
}

#[test]
fn a_worker_claims_what_it_looked_at_when_it_is_due() {
    let claimed = |looked_at, now| {
        step(queued("pending", 5), queued("in_progress", 6), claim(6, looked_at, now))
    };
    claimed(5, 100).passes();
    claimed(4, 100).violates("I3");
    claimed(5, 99).violates("I4");
    step(stand("in_progress", 5), stand("in_progress", 6), claim(6, 5, 100)).violates("I4");
}

#[test]
fn accepted_work_waits_to_be_begun_again_and_no_other_does() {
    let released = |from: fn(&str, i64) -> Stand, to| {
        step(from("in_progress", 5), from(to, 5), write("release", 5))
    };
    released(queued, "pending").passes();
    released(stand, "failed_retryable").passes();
    released(queued, "failed_retryable").violates("I4");
    released(stand, "pending").violates("I4");
}

#[test]
fn accepted_work_is_given_up_only_after_its_time() {
    let given_up = |now| {
        let (resolution, proof) = ("give_up".into(), None);
        let cause = Cause::Resolve { resolution, proof, fence: 5, now };
        step(queued("pending", 5), queued("completed", 6), cause)
    };
    given_up(500).passes();
    given_up(499).violates("I4");
}

#[test]
fn what_has_acted_is_not_given_back() {
    let released = |status| {
        let tale = Tale::new().asked(1).granted(5).called_under(1, 5, 9).acted(1);
        let tale = tale.replied(1, status);
        let (from, to) = (stand("in_progress", 5), stand("failed_retryable", 5));
        tale.moved(Some(from), Some(to), write("release", 5))
    };
    released(201).violates("I1");
    // Declared to be harmless.
    released(503).passes();
}

#[test]
fn whatever_is_unknown_is_known_to_whoever_finds_out() {
    let to = |reconcile_after| {
        let open = Open { reconcile_after, ..Open::default() };
        let to = Stand { open, ..stand("unknown", 5) };
        step(stand("in_progress", 5), to, Cause::Sweep { now: 100 })
    };
    to(Some(100)).passes();
    to(None).violates("I8");
}

#[test]
fn nobody_is_at_work_for_longer_than_an_attempt_lasts() {
    // Events are a microsecond apart: granted at 1, at rest at 2.
    let rested = |within| Tale::new().granted(5).then(What::Rested { within });
    rested(2).passes();
    rested(1).violates("I8");
    Tale::new().granted(5).completed(5).then(What::Rested { within: 0 }).passes();
}

#[test]
fn a_step_that_is_saved_is_not_made_again_and_has_one_key() {
    let made = |tale: Tale, call, key: &str| {
        let tale = tale.called_under(call, 5, 9);
        tale.then(What::Step { call, name: "debit".into(), key: key.into() })
    };
    let saved = |tale: Tale| {
        let open = Open { recovery_point: Some("debit".into()), ..Open::default() };
        let to = Stand { open, ..stand("in_progress", 5) };
        tale.moved(Some(stand("in_progress", 5)), Some(to), write("save", 5))
    };
    let once = || made(Tale::new().asked(1).granted(5), 1, "k");
    made(once(), 2, "k").passes();
    made(once(), 2, "other").violates("STEP");
    saved(once()).passes();
    made(saved(once()), 2, "k").violates("STEP");
    let other = once().called_under(2, 5, 9);
    other.then(What::Step { call: 2, name: "credit".into(), key: "k".into() }).violates("STEP");
}

#[test]
fn what_happens_to_a_record_is_noted_once() {
    let noted = |tale: Tale, fence| {
        let (note, attempt, told) = ("lease_expired".into(), "a5".into(), String::new());
        tale.then(What::Noted { subject: subject("acme"), note, attempt, fence, told })
    };
    noted(noted(Tale::new(), 5), 6).passes();
    noted(noted(Tale::new(), 5), 5).violates("AUDIT");
}

#[test]
fn an_incident_is_noted_once_for_each_thing_that_is_told() {
    let noted = |tale: Tale, told: &str| {
        let (note, attempt, told) = ("incident".into(), "a5".into(), told.into());
        tale.then(What::Noted { subject: subject("acme"), note, attempt, fence: 5, told })
    };
    noted(noted(Tale::new(), "201"), "402").passes();
    noted(noted(Tale::new(), "201"), "201").violates("AUDIT");
}
