//! Histories that make no sense, and what must be over at their end.

use super::*;

#[test]
fn a_history_begins_with_its_world() {
    Tale(Vec::new()).asked(1).violates("FORM");
    Tale::new().asked(1).passes();
    Tale::new().then(What::World { routes: Vec::new(), durable: true }).violates("FORM");
}

#[test]
fn numbers_are_used_once_and_ends_have_beginnings() {
    Tale::new().asked(1).asked(1).violates("FORM");
    Tale::new().asked_by(1, "acme", "nowhere", PAY).violates("FORM");
    Tale::new().asked(1).called(1).called(1).violates("FORM");
    Tale::new().asked(1).called(1).acted(1).acted(1).violates("FORM");
    Tale::new().asked(1).called(1).broke_off(1).acted(1).violates("FORM");
    Tale::new().broke_off(1).violates("FORM");
    Tale::new().asked(1).called(1).broke_off(1).broke_off(1).violates("FORM");
    Tale::new().then(What::GaveUp { request: 1 }).violates("FORM");
    let gave_up = Tale::new().asked(1).then(What::GaveUp { request: 1 });
    gave_up.answered(1, refusal(409, "conflict")).violates("FORM");
    Tale::new().then(What::End).then(What::Calm).violates("FORM");
}

#[test]
fn two_calls_with_one_body_cannot_be_told_apart() {
    let same = UpstreamAnswer { body: "answer 1".into(), ..upstream(2, 503) };
    let tale = Tale::new().asked(1).called(1).replied(1, 503).called(2);
    tale.then(What::Replied { call: 2, answer: Some(same) }).violates("FORM");
    Tale::new().asked(1).called(1).replied(1, 503).called(2).replied(2, 503).passes();
}

#[test]
fn a_move_begins_where_the_last_one_ended() {
    let tale = |from: Stand| {
        let to = stand("completed", 5);
        Tale::new().granted(5).moved(Some(from), Some(to), write("complete", 5))
    };
    tale(stand("unknown", 5)).violates("FORM");
    tale(stand("in_progress", 5)).passes();
}

#[test]
fn after_the_faults_every_request_is_answered() {
    let ends = |tale: Tale| tale.then(What::Calm).then(What::End);
    ends(Tale::new().asked(1)).violates("I8");
    ends(Tale::new().asked(1).answered(1, refusal(409, "unknown"))).passes();
    ends(Tale::new().asked(1).then(What::GaveUp { request: 1 })).passes();
    // While something is broken, nothing has to end.
    Tale::new().asked(1).then(What::End).passes();
}

#[test]
fn after_the_faults_no_record_is_in_progress() {
    let ends = |tale: Tale| tale.then(What::Calm).then(What::End);
    ends(Tale::new().granted(5)).violates("I8");
    ends(Tale::new().granted(5).completed(5)).passes();
    Tale::new().granted(5).then(What::End).passes();
}
