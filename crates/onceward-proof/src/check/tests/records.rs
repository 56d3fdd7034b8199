//! I3, I4, I6 and I9: how records move.

use super::*;

/// One move from a record that was left so.
fn step(from: Stand, to: Stand, cause: Cause) -> Tale {
    Tale::new().moved(Some(from), Some(to), cause)
}

fn from_progress(to: &str, cause: Cause) -> Tale {
    step(stand("in_progress", 5), stand(to, 5), cause)
}

fn in_vain(stand: Stand) -> Stand {
    Stand { effects: "none".into(), ..stand }
}

#[test]
fn a_grant_has_a_larger_fence() {
    let tale = |fence| {
        let released = Tale::new().granted(5).moved(
            Some(stand("in_progress", 5)),
            Some(stand("failed_retryable", 5)),
            write("release", 5),
        );
        let next = Stand { attempt: "next".into(), ..stand("in_progress", fence) };
        let cause = Cause::Reserve { attempt: "next".into(), now: 20 };
        released.moved(Some(stand("failed_retryable", 5)), Some(next), cause)
    };
    tale(4).violates("I3");
    tale(5).violates("I3");
    tale(6).passes();
}

#[test]
fn a_fence_is_not_used_again_after_a_purge() {
    let tale = |fence| {
        let gone = Tale::new().granted(5).completed(5);
        let gone = gone.moved(Some(stand("completed", 5)), None, Cause::Reap { now: 2000 });
        gone.granted(fence)
    };
    tale(5).violates("I3");
    tale(6).passes();
}

#[test]
fn only_the_holder_writes() {
    from_progress("completed", write("complete", 4)).violates("I3");
    from_progress("in_progress", write("renew", 6)).violates("I3");
    from_progress("completed", write("complete", 5)).passes();
    from_progress("in_progress", write("renew", 5)).passes();
    Tale::new().moved(None, Some(stand("completed", 5)), write("complete", 5)).violates("I3");
}

#[test]
fn a_completed_record_is_not_written_again() {
    step(stand("completed", 5), stand("unknown", 5), write("mark_unknown", 5)).violates("I3");
    step(stand("in_progress", 5), stand("unknown", 5), write("mark_unknown", 5)).passes();
}

#[test]
fn a_write_does_not_change_hands() {
    let other = Stand { attempt: "other".into(), ..stand("completed", 5) };
    step(stand("in_progress", 5), other, write("complete", 5)).violates("I3");
    let asked = Cause::Reserve { attempt: "other".into(), now: 10 };
    Tale::new().moved(None, Some(stand("in_progress", 5)), asked).violates("I3");
}

#[test]
fn an_unknown_record_never_runs() {
    step(stand("unknown", 5), stand("in_progress", 6), reserve(6, 5000)).violates("I4");
    step(stand("unknown", 5), stand("failed_retryable", 5), write("release", 5)).violates("I4");
    let late = step(stand("unknown", 5), stand("completed", 5), write("complete", 5));
    late.passes();
    step(stand("unknown", 5), stand("completed", 5), write("complete", 4)).violates("I3");
}

#[test]
fn not_executed_needs_proof() {
    let tale =
        |proof| step(stand("unknown", 5), stand("failed_retryable", 5), resolve("release", proof));
    tale(None).violates("I4");
    tale(Some("two_probes")).passes();
    step(stand("unknown", 5), stand("completed", 6), resolve("complete", None)).passes();
}

/// Said not to have acted, on this ground.
fn released(on: &str) -> Tale {
    step(stand("unknown", 5), stand("failed_retryable", 5), resolve("release", Some(on)))
}

#[test]
fn what_was_said_not_to_have_acted_completes_while_nobody_has_taken_it() {
    let completes = |tale: Tale, fence| {
        let (from, to) = (stand("failed_retryable", 5), stand("completed", 5));
        tale.moved(Some(from), Some(to), write("complete", fence))
    };
    for on in ["authoritative", "two_probes"] {
        completes(released(on), 5).passes();
        completes(released(on), 4).violates("I3");
    }
    // Whoever gave it back itself does not take that back.
    completes(from_progress("failed_retryable", write("release", 5)), 5).violates("I4");
    let taken = released("authoritative").moved(
        Some(stand("failed_retryable", 5)),
        Some(stand("in_progress", 6)),
        reserve(6, 200),
    );
    let late = taken.moved(
        Some(stand("in_progress", 6)),
        Some(stand("completed", 6)),
        write("complete", 5),
    );
    late.violates("I3");
}

#[test]
fn the_reply_of_what_was_released_is_kept_and_not_only_noted() {
    let noted = |tale: Tale, fence: i64| {
        let (note, attempt) = ("superseded_result".into(), format!("a{fence}"));
        let told = String::new();
        tale.then(What::Noted { subject: subject("acme"), note, attempt, fence, told })
    };
    noted(released("authoritative"), 5).violates("I1");
    noted(released("authoritative"), 4).passes();
    noted(from_progress("failed_retryable", write("release", 5)), 5).passes();
    let taken = released("authoritative").moved(
        Some(stand("failed_retryable", 5)),
        Some(stand("in_progress", 6)),
        reserve(6, 200),
    );
    noted(taken, 5).passes();
}

#[test]
fn nobody_takes_a_live_lease() {
    for (to, now) in [("unknown", 99), ("failed_retryable", 100)] {
        from_progress(to, Cause::Sweep { now }).violates("I4");
    }
    from_progress("unknown", Cause::Sweep { now: 100 }).passes();
    from_progress("unknown", reserve(6, 99)).violates("I4");
    from_progress("unknown", reserve(6, 100)).passes();
}

#[test]
fn what_may_have_acted_does_not_run_again_after_its_lease() {
    let again = |from: Stand, now| step(from, in_vain(stand("in_progress", 6)), reserve(6, now));
    again(stand("in_progress", 5), 100).violates("I4");
    again(in_vain(stand("in_progress", 5)), 99).violates("I4");
    again(in_vain(stand("in_progress", 5)), 100).passes();
    let swept = step(
        in_vain(stand("in_progress", 5)),
        in_vain(stand("failed_retryable", 5)),
        Cause::Sweep { now: 100 },
    );
    swept.passes();
}

#[test]
fn a_repeated_reserve_keeps_its_grant() {
    from_progress("in_progress", reserve(5, 10)).passes();
    step(stand("in_progress", 5), stand("in_progress", 6), reserve(6, 10)).violates("I4");
}

#[test]
fn a_reply_is_kept_for_its_retention() {
    let next = || Stand { generation: 2, ..stand("in_progress", 6) };
    for now in [999, 1000] {
        let tales = [
            ("I6", step(stand("completed", 5), next(), reserve(6, now))),
            ("I11", step(stand("completed", 5), stand("expired", 5), Cause::Reap { now })),
        ];
        for (invariant, tale) in tales {
            if now < 1000 { tale.violates(invariant) } else { tale.passes() }
        }
    }
    let gone = |now| Tale::new().moved(Some(stand("completed", 5)), None, Cause::Reap { now });
    gone(1999).violates("I11");
    gone(2000).passes();
    step(stand("completed", 5), stand("expired", 5), resolve("void", None)).passes();
    let unknown_goes =
        Tale::new().moved(Some(stand("unknown", 5)), None, Cause::Reap { now: 5000 });
    unknown_goes.violates("I11");
}

#[test]
fn who_resolves_has_looked_at_this_attempt_and_not_at_a_live_one() {
    let resolved = |fence, now| {
        let (resolution, proof) = ("release".into(), Some("two_probes".into()));
        from_progress("failed_retryable", Cause::Resolve { resolution, proof, fence, now })
    };
    resolved(5, 100).passes();
    resolved(4, 100).violates("I3");
    resolved(5, 99).violates("I4");
}

#[test]
fn what_never_acted_expires_too() {
    let tale = |now| step(stand("failed_retryable", 5), stand("expired", 5), Cause::Reap { now });
    tale(999).violates("I11");
    tale(1000).passes();
}

#[test]
fn a_durable_store_loses_nothing() {
    let lost = |durable| {
        let tale = Tale::in_world(durable).granted(5).completed(5);
        tale.moved(Some(stand("completed", 5)), None, Cause::Lost)
    };
    lost(true).violates("I6");
    lost(false).passes();
}

#[test]
fn what_was_lost_may_run_again_but_not_for_somebody_else() {
    let tale = |request| {
        let mut tale = Tale::in_world(false).asked(1).asked_by(2, "acme", "pay", OTHER);
        for call in [1, 2] {
            tale = tale.granted(5).called_under(call, 5, 9).acted(call).replied(call, 201);
            tale = tale.completed(5);
            tale = tale.moved(Some(stand("completed", 5)), None, Cause::Lost);
        }
        tale.answered(request, reply(2, "executed"))
    };
    tale(1).passes();
    tale(2).violates("I9");
    let mut judge = Judge::new();
    for event in &tale(1).0 {
        judge.observe(event).expect("fine");
    }
    assert_eq!(judge.exempted(), 1);
}

#[test]
fn only_the_same_request_changes_a_record_in_place() {
    let tale = |fingerprint: &str, generation, now| {
        let to = Stand { fingerprint: fingerprint.into(), generation, ..stand("in_progress", 6) };
        step(stand("failed_retryable", 5), to, reserve(6, now))
    };
    tale("other", 1, 10).violates("I9");
    tale("f", 1, 10).passes();
    // Past its retention the key is free for anything, as another generation.
    tale("other", 2, 1000).passes();
    tale("f", 2, 10).violates("I3");
    tale("other", 4, 1000).violates("I11");
}

#[test]
fn an_expired_key_runs_again_only_where_its_route_says_so() {
    let tale = |route, now| {
        let asked = Tale::new().asked_by(1, "acme", route, PAY).granted(5).completed(5);
        let next = Stand { generation: if now < 2000 { 2 } else { 1 }, ..stand("in_progress", 6) };
        asked.moved(Some(stand("completed", 5)), Some(next), reserve(6, now))
    };
    tale("look", 1500).violates("I6");
    tale("pay", 1500).passes();
    // With its tombstone gone the key is new.
    tale("look", 2000).passes();
}

#[test]
fn a_key_behind_which_nothing_stands_runs_again() {
    let next = Stand { generation: 2, ..stand("in_progress", 6) };
    let again =
        |tale: Tale| tale.moved(Some(stand("expired", 5)), Some(next.clone()), reserve(6, 1500));
    let asked = || Tale::new().asked_by(1, "acme", "look", PAY).granted(5);
    let (left, gone) = (|| Some(stand("completed", 5)), || Some(stand("expired", 5)));
    again(asked().completed(5).moved(left(), gone(), resolve("void", None))).passes();
    again(asked().completed(5).moved(left(), gone(), Cause::Reap { now: 1000 })).violates("I6");
    let released = asked().moved(
        Some(stand("in_progress", 5)),
        Some(stand("failed_retryable", 5)),
        write("release", 5),
    );
    let reaped = released.moved(
        Some(stand("failed_retryable", 5)),
        Some(stand("expired", 5)),
        Cause::Reap { now: 1000 },
    );
    again(reaped).passes();
}

#[test]
fn a_tombstone_keeps_nothing_of_a_reply_but_how_it_ended() {
    let with = |state, reply: &str| Stand { reply: Some(reply.into()), ..stand(state, 5) };
    let reap = || Cause::Reap { now: 1000 };
    step(with("completed", "201 paid"), with("expired", "201 paid"), reap()).violates("I4");
    step(with("completed", "201 paid"), with("expired", "201"), reap()).passes();
}

#[test]
fn a_key_that_was_given_back_is_new_once_its_tombstone_is_gone() {
    let tale = |now| {
        let released = stand("failed_retryable", 5);
        let next = Stand { fingerprint: "other".into(), ..stand("in_progress", 6) };
        let done = Stand { state: "completed".into(), ..next.clone() };
        Tale::new()
            .asked_by(1, "acme", "pay", OTHER)
            .granted(5)
            .moved(Some(stand("in_progress", 5)), Some(released.clone()), write("release", 5))
            .answered(1, refusal(503, "unavailable"))
            .asked(2)
            .moved(Some(released), Some(next.clone()), reserve(6, now))
            .called_under(1, 6, 9)
            .acted(1)
            .replied(1, 201)
            .moved(Some(next), Some(done), write("complete", 6))
            .answered(2, reply(1, "executed"))
    };
    tale(2000).passes();
    assert_eq!(tale(900).wrongs()[0], "I9");
}
