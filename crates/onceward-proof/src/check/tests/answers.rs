//! I2, I5, I8, I9 and R7: what clients get.

use super::*;

fn executed(answer: Answer) -> Tale {
    Tale::new().asked(1).ran(1).answered(1, answer)
}

fn replayed(answer: Answer) -> Tale {
    executed(reply(1, "executed")).asked(2).answered(2, answer)
}

fn with(mut answer: Answer, name: &str, value: &str) -> Answer {
    answer.headers.push((name.into(), value.into()));
    answer
}

fn without(mut answer: Answer, name: &str) -> Answer {
    answer.headers.retain(|(known, _)| known != name);
    answer
}

#[test]
fn a_reply_is_what_upstream_answered() {
    executed(reply(1, "executed")).passes();
    executed(Answer { status: 200, ..reply(1, "executed") }).violates("I2");
    executed(Answer { body: "answer".into(), ..reply(1, "executed") }).violates("I2");
    executed(without(reply(1, "executed"), "etag")).violates("I2");
    executed(with(reply(1, "executed"), "link", "<c>")).violates("I2");
    executed(with(reply(1, "executed"), "x-not-kept", "1")).passes();
}

#[test]
fn a_replay_is_the_reply() {
    replayed(reply(1, "replayed")).passes();
    replayed(Answer { status: 200, ..reply(1, "replayed") }).violates("I2");
    replayed(without(reply(1, "replayed"), "link")).violates("I2");
    let mut turned = reply(1, "replayed");
    turned.headers.swap(1, 2);
    replayed(turned).violates("I2");
}

#[test]
fn all_replies_of_a_key_are_from_one_call() {
    let tale = |second| {
        let tale = Tale::new().asked(1).asked(2).ran(1).called(2).replied(2, 404);
        let other = Answer { status: 404, ..reply(2, "replayed") };
        let answer = if second == 2 { other } else { reply(1, "replayed") };
        tale.answered(1, reply(1, "executed")).answered(2, answer)
    };
    assert_eq!(tale(2).wrongs()[0], "I2");
    tale(1).passes();
}

#[test]
fn a_replay_says_so_and_a_first_reply_does_not() {
    replayed(without(reply(1, "replayed"), "idempotent-replayed")).violates("I2");
    executed(with(reply(1, "executed"), "idempotent-replayed", "true")).violates("I2");
}

#[test]
fn what_belongs_to_one_caller_is_not_replayed() {
    for name in ["set-cookie", "www-authenticate"] {
        replayed(with(reply(1, "replayed"), name, "x")).violates("I2");
        executed(with(reply(1, "executed"), name, "x")).passes();
    }
}

#[test]
fn a_reply_says_of_which_generation_it_is() {
    let tale = |answer| {
        let tale = Tale::new().asked(1).granted(5).called_under(1, 5, 9).acted(1).replied(1, 201);
        tale.completed(5).answered(1, answer)
    };
    tale(with(reply(1, "executed"), "idempotency-generation", "2")).violates("I11");
    tale(reply(1, "executed")).passes();
}

#[test]
fn what_a_reconciler_found_is_a_reply_too() {
    let tale = |resolution: Cause| {
        let (unknown, done) = (stand("unknown", 5), stand("completed", 5));
        let mut tale = Tale::new().asked(1).asked(2).granted(5).called_under(1, 5, 9).acted(1);
        tale = tale.broke_off(1).moved(
            Some(stand("in_progress", 5)),
            Some(unknown.clone()),
            write("mark_unknown", 5),
        );
        let found = Answer { body: "found".into(), ..reply(1, "replayed") };
        tale.moved(Some(unknown), Some(done), resolution).answered(1, found)
    };
    let same = Answer { body: "found".into(), ..reply(1, "replayed") };
    let other = Answer { body: "found otherwise".into(), ..reply(1, "replayed") };
    tale(resolve("complete", None)).answered(2, same).passes();
    tale(resolve("complete", None)).answered(2, other).violates("I2");
    tale(write("complete", 5)).violates("I2");
}

#[test]
fn what_is_passed_on_is_upstreams_or_ours() {
    let tale = |answer| Tale::new().asked(1).called(1).replied(1, 503).answered(1, answer);
    tale(Answer { status: 503, ..reply(1, "not_executed") }).passes();
    tale(Answer { status: 503, ..reply(9, "not_executed") }).violates("I2");
    tale(refusal(502, "not_executed")).passes();
}

#[test]
fn nothing_of_one_tenant_reaches_another() {
    let tale = |answer| Tale::new().asked(1).asked_by(2, "zeta", "pay", PAY).answered(2, answer);
    tale(refusal(503, "unavailable")).passes();
    tale(Answer { body: "for acme".into(), ..refusal(503, "unavailable") }).violates("I5");
    tale(with(refusal(503, "unavailable"), "location", "/acme/1")).violates("I5");
    tale(with(refusal(503, "unavailable"), "location", "/zeta/1")).passes();
}

#[test]
fn no_reply_is_from_the_call_of_another_key() {
    let tale = |request| {
        let tale = Tale::new().asked(1).asked_by(2, "zeta", "pay", PAY).ran(1);
        tale.answered(request, reply(1, "executed"))
    };
    tale(2).violates("I5");
    tale(1).passes();
}

#[test]
fn who_is_to_come_back_is_told_when() {
    let asked = || Tale::new().asked(2).asked(1);
    let told = |status, outcome| asked().answered(1, refusal(status, outcome));
    let not_told =
        |status, outcome| asked().answered(1, without(refusal(status, outcome), "retry-after"));
    for (status, outcome) in [(409, "conflict"), (409, "unknown"), (503, "unavailable")] {
        told(status, outcome).passes();
        not_told(status, outcome).violates("I8");
    }
    not_told(429, "rate_limited").passes();
    // What upstream says is its own business.
    let conflict = Answer { status: 409, ..reply(1, "executed") };
    Tale::new().asked(1).called(1).replied(1, 409).answered(1, conflict).passes();
}

#[test]
fn a_reply_is_for_what_was_asked() {
    let tale = |request| {
        let tale = Tale::new().asked(1).asked_by(2, "acme", "pay", OTHER).ran(1);
        tale.answered(request, reply(1, "executed"))
    };
    tale(2).violates("I9");
    tale(1).passes();
}

#[test]
fn a_mismatch_needs_something_to_differ_from() {
    Tale::new().asked(1).asked(2).answered(2, refusal(422, "mismatch")).violates("I9");
    let tale = Tale::new().asked(1).asked_by(2, "acme", "pay", OTHER);
    tale.answered(2, refusal(422, "mismatch")).passes();
}

#[test]
fn no_reply_before_the_record_is_completed() {
    let begun = || Tale::new().asked(1).granted(5).called_under(1, 5, 9).acted(1).replied(1, 201);
    begun().answered(1, reply(1, "executed")).violates("R7");
    begun().completed(5).answered(1, reply(1, "executed")).passes();
}

#[test]
fn who_is_told_expired_is_told_of_a_reply_that_was_there() {
    let expired = |tale: Tale| tale.asked(2).answered(2, refusal(410, "expired"));
    let gone = |cause| {
        let ran = Tale::new().asked(1).granted(5).called_under(1, 5, 9).acted(1).replied(1, 201);
        let kept = ran.completed(5).answered(1, reply(1, "executed"));
        kept.moved(Some(stand("completed", 5)), Some(stand("expired", 5)), cause)
    };
    expired(gone(Cause::Reap { now: 1000 })).passes();
    expired(gone(resolve("void", None))).violates("I8");
    // Where moves are not told, it may have been there.
    expired(executed(reply(1, "executed"))).passes();
}

#[test]
fn what_upstream_is_not_sure_of_is_no_reply() {
    let called = |word: Option<&str>| {
        let answer = UpstreamAnswer { executed: word.map(Into::into), ..upstream(1, 201) };
        let tale = Tale::new().asked(1).granted(5).called_under(1, 5, 9).acted(1);
        tale.then(What::Replied { call: 1, answer: Some(answer) })
    };
    let stored = |word| called(word).completed(5).answered(1, reply(1, "executed"));
    stored(None).passes();
    stored(Some("maybe")).violates("I4");
    // Until somebody finds out.
    let resolved = called(Some("maybe"))
        .moved(Some(stand("in_progress", 5)), Some(stand("unknown", 5)), write("mark_unknown", 5))
        .moved(Some(stand("unknown", 5)), Some(stand("completed", 5)), resolve("complete", None));
    resolved.answered(1, reply(1, "replayed")).passes();
}

#[test]
fn who_gave_the_record_back_unheard_may_get_the_reply_of_the_next() {
    let tale = |gives_back: bool| {
        let (first, next) = (stand("in_progress", 5), stand("in_progress", 6));
        let mut tale =
            Tale::new().asked(1).granted(5).asked(2).answered(2, refusal(409, "conflict"));
        if gives_back {
            let released = stand("failed_retryable", 5);
            tale = tale.moved(Some(first), Some(released.clone()), write("release", 5)).asked(3);
            tale = tale.moved(Some(released), Some(next), reserve(6, 20)).called_under(1, 6, 9);
            let Some(Event { what: What::Called { holder: Some(holder), .. }, .. }) =
                tale.0.last_mut()
            else {
                panic!("a call");
            };
            holder.attempt_number = 2;
            tale = tale.acted(1).replied(1, 201).completed(6);
        } else {
            tale = tale.asked(3).called_under(1, 5, 9).acted(1).replied(1, 201).completed(5);
        }
        tale.answered(3, reply(1, "executed")).answered(1, reply(1, "replayed"))
    };
    tale(true).passes();
    assert_eq!(tale(false).wrongs(), ["LIN"]);
}
