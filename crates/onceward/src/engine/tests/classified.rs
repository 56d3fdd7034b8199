//! What an execution means.

use super::*;
use crate::{
    engine::classify::{Outcome, classify},
    operation::Account,
    record::{Effects, OpenEffect},
};

/// One word per outcome.
fn meaning(execution: Execution<()>) -> String {
    told(classify(Ok(execution), &Policy::required(), &Account::default()))
}

fn told(outcome: Outcome<()>) -> String {
    match outcome {
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

/// What a handler's end means on a route of these effects, given what it did with its operation.
fn meaning_with(effects: Effects, account: &Account, ended: Ended) -> String {
    let policy = Policy::required().effects(effects).expect("allowed");
    let ended = match ended {
        Ended::Status(status) => Ok(answered(status, &[], small())),
        Ended::NoAnswer => {
            Ok(Execution::NoFullAnswer { status: StatusCode::BAD_GATEWAY, why: "reset" })
        }
        Ended::Panic => Err(Box::new("oh") as Box<dyn std::any::Any + Send>),
    };
    told(classify(ended, &policy, account))
}

#[derive(Clone, Copy)]
enum Ended {
    Status(u16),
    NoAnswer,
    Panic,
}

#[test]
fn whoever_completed_in_a_transaction_is_not_asked() {
    let mut account = Account::default();
    account.completed = true;
    for effects in [Effects::Local, Effects::Phased] {
        for ended in [Ended::Status(200), Ended::Status(500), Ended::NoAnswer, Ended::Panic] {
            assert_eq!(meaning_with(effects, &account, ended), "the store knows");
        }
    }
}

#[test]
fn an_open_effect_is_stronger_than_any_answer() {
    for (idempotent, expected) in [
        (true, "idempotency_key_in_progress: effect_is_open"),
        (false, "unknown 502: effect_without_result"),
    ] {
        let open_effect = Some(OpenEffect { name: "pay".into(), idempotent });
        let mut account = Account::default();
        (account.open_effect, account.has_progress) = (open_effect, true);
        for ended in [Ended::Status(200), Ended::Status(404), Ended::NoAnswer, Ended::Panic] {
            assert_eq!(meaning_with(Effects::Phased, &account, ended), expected);
        }
    }
}

#[test]
fn without_an_answer_the_declared_effects_say_what_was_done() {
    let fresh = Account::default();
    let mut begun = Account::default();
    begun.has_progress = true;
    for (effects, account, expected) in [
        (Effects::External, &fresh, "unknown 502: reset"),
        (Effects::None, &fresh, "unknown 502: reset"),
        (Effects::Local, &fresh, "idempotency_store_unavailable: reset"),
        (Effects::Phased, &fresh, "idempotency_store_unavailable: reset"),
        (Effects::Phased, &begun, "idempotency_key_in_progress: reset"),
    ] {
        assert_eq!(meaning_with(effects, account, Ended::NoAnswer), expected, "{effects:?}");
    }
}

#[test]
fn a_local_success_needs_a_transaction_and_an_error_does_not() {
    let fresh = Account::default();
    let local = |status| meaning_with(Effects::Local, &fresh, Ended::Status(status));
    for status in [200, 204, 302] {
        assert_eq!(local(status), "unknown 502: local_without_complete_in");
    }
    assert_eq!(local(404), "completed with 4 bytes");
    assert_eq!(local(500), "not executed: handler_did_not_act");
}
