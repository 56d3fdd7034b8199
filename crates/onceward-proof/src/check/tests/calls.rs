//! I1, I7, I9 and R5: calls and their effects.

use super::*;

#[test]
fn a_key_acts_once() {
    Tale::new().asked(1).ran(1).ran(2).violates("I1");
    Tale::new().asked(1).ran(1).passes();
    // Another tenant's key is another key.
    let tale = Tale::new().asked(1).asked_by(2, "zeta", "pay", PAY).ran(1);
    tale.called_by(2, "zeta", PAY).acted(2).replied(2, 201).passes();
}

#[test]
fn an_effect_without_an_answer_counts() {
    Tale::new().asked(1).called(1).acted(1).broke_off(1).ran(2).violates("I1");
    Tale::new().asked(1).called(1).broke_off(1).ran(2).passes();
    // It may still be answered with leave to run again, until the end of the world.
    Tale::new().asked(1).called(1).acted(1).ran(2).passes();
    Tale::new().asked(1).called(1).acted(1).ran(2).replied(1, 503).passes();
    Tale::new().asked(1).called(1).acted(1).ran(2).replied(1, 500).violates("I1");
    Tale::new().asked(1).called(1).acted(1).ran(2).then(What::End).violates("I1");
}

#[test]
fn an_effect_that_is_declared_rerunnable_does_not_count() {
    let first = |status, executed: Option<&str>| {
        let answer = UpstreamAnswer { executed: executed.map(Into::into), ..upstream(1, status) };
        let tale = Tale::new().asked(1).called(1).acted(1);
        tale.then(What::Replied { call: 1, answer: Some(answer) }).ran(2)
    };
    first(503, None).passes();
    first(500, None).violates("I1");
    first(500, Some("no")).passes();
    first(503, Some("maybe")).violates("I1");
}

#[test]
fn a_route_that_does_not_act_runs_as_often_as_it_likes() {
    let tale = |route| Tale::new().asked_by(1, "acme", route, PAY).ran(1).ran(2);
    tale("look").passes();
    tale("pay").violates("I1");
}

#[test]
fn a_new_generation_acts_again() {
    let tale = |next: u32, now| {
        let used =
            Stand { generation: next, fence: 6, attempt: "a6".into(), ..stand("in_progress", 5) };
        let mut tale =
            Tale::new().asked(1).granted(5).called_under(1, 5, 9).acted(1).replied(1, 201);
        tale = tale.completed(5).moved(Some(stand("completed", 5)), Some(used), reserve(6, now));
        tale = tale.called_under(2, 6, 9);
        let Some(Event { what: What::Called { holder: Some(holder), .. }, .. }) = tale.0.last_mut()
        else {
            panic!("a call");
        };
        holder.generation = next;
        tale.acted(2).replied(2, 201)
    };
    tale(2, 1000).passes();
    // Past its tombstone a key is new.
    tale(1, 2000).passes();
    tale(1, 1999).violates("I11");
}

#[test]
fn a_success_stands_for_an_effect() {
    let tale = |status| {
        let answer = Answer { status, ..reply(1, "executed") };
        Tale::new().asked(1).called(1).replied(1, status).answered(1, answer)
    };
    tale(201).violates("I1");
    tale(404).passes();
}

#[test]
fn who_is_told_that_nothing_was_executed_is_told_the_truth() {
    let tale = |status| {
        let answer = Answer { status, ..reply(1, "not_executed") };
        Tale::new().asked(1).called(1).acted(1).replied(1, status).answered(1, answer)
    };
    tale(500).violates("I1");
    tale(503).passes();
}

#[test]
fn no_call_without_a_grant() {
    Tale::new().asked(1).called_under(1, 5, 9).violates("I7");
    Tale::new().asked(1).granted(6).called_under(1, 5, 9).violates("I7");
    Tale::new().asked(1).granted(5).called_under(1, 5, 9).passes();
}

#[test]
fn an_attempt_says_how_many_came_before_it() {
    let tale = |said| {
        let released = stand("failed_retryable", 5);
        let mut tale = Tale::new().asked(1).granted(5).moved(
            Some(stand("in_progress", 5)),
            Some(released.clone()),
            write("release", 5),
        );
        tale = tale.moved(Some(released), Some(stand("in_progress", 6)), reserve(6, 20));
        let asks = PAY.into();
        let attempt = "a6".into();
        let holder =
            Holder { attempt, fence: 6, generation: 1, attempt_number: said, lease_left: 9 };
        tale.then(What::Called { call: 1, subject: subject("acme"), asks, holder: Some(holder) })
    };
    tale(1).violates("I7");
    tale(2).passes();
    tale(3).violates("I7");
}

#[test]
fn no_effect_without_a_call() {
    Tale::new().asked(1).acted(1).violates("I7");
    Tale::new().asked(1).called(1).acted(1).passes();
}

#[test]
fn no_call_after_the_lease() {
    Tale::new().asked(1).granted(5).called_under(1, 5, 0).violates("R5");
    Tale::new().asked(1).granted(5).called_under(1, 5, -3).violates("R5");
    Tale::new().asked(1).granted(5).called_under(1, 5, 1).passes();
}

#[test]
fn upstream_is_asked_for_what_a_client_asked() {
    Tale::new().asked(1).called_by(1, "acme", OTHER).violates("I9");
    Tale::new().asked(1).called_by(1, "acme", PAY).passes();
    // By a request of the same key.
    Tale::new()
        .asked(1)
        .asked_by(2, "zeta", "pay", OTHER)
        .called_by(1, "acme", OTHER)
        .violates("I9");
}
