//! What an execution means.

use super::*;
use crate::{
    engine::classify::{Outcome, classify},
    operation::Account,
};

/// One word per outcome.
fn meaning(execution: Execution<()>) -> String {
    match classify(Ok(execution), &Policy::required(), &Account::default()) {
        Outcome::Completed { reply, .. } => match reply.body {
            ReplyBody::Stored(body) => format!("completed with {} bytes", body.len()),
            ReplyBody::NotStored => "completed without body".to_owned(),
        },
        Outcome::NotExecuted { answer: Ok(_), why, .. } => format!("not executed: {why}"),
        Outcome::NotExecuted { answer: Err(rejection), why, .. } => {
            format!("{}: {why}", rejection.code().name())
        }
        Outcome::InTransaction { .. } => "the store knows".to_owned(),
        Outcome::Unknown { status, why } => format!("unknown {}: {why}", status.as_u16()),
    }
}

fn answered(status: u16, words: &[&'static str], body: Captured<()>) -> Execution<()> {
    let (mut parts, ()) = Response::new(()).into_parts();
    parts.status = StatusCode::from_u16(status).expect("a status");
    for word in words {
        parts.headers.append(&ONCEWARD_EXECUTED, HeaderValue::from_static(word));
    }
    Execution::Answered(parts, body)
}

fn small() -> Captured<()> {
    Captured::Whole(Bytes::from_static(b"four"))
}

#[test]
fn an_answer_is_kept_whole_or_without_its_body() {
    assert_eq!(meaning(answered(200, &[], small())), "completed with 4 bytes");
    assert_eq!(meaning(answered(200, &[], Captured::TooLarge(()))), "completed without body");
}

#[test]
fn nothing_sent_is_not_executed_and_no_full_answer_is_unknown() {
    let never_sent = Execution::NeverSent { why: "connect_refused" };
    assert_eq!(meaning(never_sent), "idempotency_upstream_unreachable: connect_refused");
    for status in [StatusCode::BAD_GATEWAY, StatusCode::GATEWAY_TIMEOUT] {
        let lost = Execution::NoFullAnswer { status, why: "reset" };
        assert_eq!(meaning(lost), format!("unknown {}: reset", status.as_u16()));
    }
    let panicked: Result<Execution<()>, _> = Err(Box::new("oh") as Box<dyn std::any::Any + Send>);
    let panicked = classify(panicked, &Policy::required(), &Account::default());
    assert!(matches!(panicked, Outcome::Unknown { why: "handler_panicked", .. }));
}

#[test]
fn two_words_on_whether_it_acted_are_no_leave_to_run_again() {
    assert_eq!(meaning(answered(500, &["no"], small())), "not executed: handler_did_not_act");
    assert_eq!(meaning(answered(500, &["no", "maybe"], small())), "unknown 502: handler_failed");
    assert_eq!(meaning(answered(500, &["no", "no"], small())), "unknown 502: handler_failed");
}

#[test]
fn a_change_of_protocol_is_not_an_answer() {
    assert_eq!(meaning(answered(101, &[], small())), "unknown 502: handler_failed");
}
