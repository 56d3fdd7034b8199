//! What an execution means: completed, not executed, or unknown.

use std::{any::Any, time::Duration};

use http::{Response, StatusCode, response::Parts};

use super::{Answer, Captured, Execution, hold::Stopped};
use crate::{
    machine,
    operation::Account,
    policy::{Meaning, Policy},
    record::{Effects, OpenEffect},
    rejection::{Code, Rejection},
    reply::{self, ONCEWARD_EXECUTED, Reply, ReplyBody},
};

pub(super) enum Outcome<R> {
    /// There is a reply, for good.
    Completed { answer: Answer<R>, reply: Reply },
    /// The handler wrote its reply in a transaction of its own: only the store knows whether that was
    /// committed. With the handler's own answer, or ours.
    InTransaction { answer: Result<Answer<R>, Rejection> },
    /// Known not to have acted, but for the steps that are saved. With the handler's own answer, or
    /// ours.
    NotExecuted {
        answer: Result<Answer<R>, Rejection>,
        why: &'static str,
        /// Whether the handler was called, or something was sent.
        begun: bool,
        /// What the client is told that it was.
        word: &'static str,
    },
    /// May have acted.
    Unknown { status: StatusCode, why: &'static str },
}

impl<R> Outcome<R> {
    /// Nothing was sent to anybody.
    pub(super) fn never_begun(why: &'static str, rejection: Rejection) -> Self {
        Outcome::NotExecuted { answer: Err(rejection), why, begun: false, word: NOT_EXECUTED }
    }
}

/// A handler that was declared to commit everything with its reply succeeded without a reply.
pub(super) const LOCAL_WITHOUT_COMPLETE_IN: &str = "local_without_complete_in";

const NOT_EXECUTED: &str = "not_executed";
/// Steps are saved: the next attempt goes on after them.
const SUSPENDED: &str = "suspended";

type Panic = Box<dyn Any + Send>;

/// What the end of a handler means, given what it did with its operation.
pub(super) fn classify<R>(
    ended: Result<Execution<R>, Panic>,
    policy: &Policy,
    account: &Account,
) -> Outcome<R> {
    if account.completed {
        return in_transaction(ended);
    }
    if let Some(open) = &account.open_effect {
        return with_open_effect(open, account);
    }
    if account.cut_short {
        return unfinished("lease_lost", account);
    }
    match ended {
        // A handler that panicked may have acted before it did.
        Err(_panic) => broken_off(StatusCode::BAD_GATEWAY, "handler_panicked", policy, account),
        Ok(Execution::NoFullAnswer { status, why }) => broken_off(status, why, policy, account),
        Ok(Execution::NeverSent { why }) => Outcome::never_begun(why, unreachable()),
        Ok(Execution::Answered(parts, body)) => answered(parts, body, policy, account),
    }
}

fn unreachable() -> Rejection {
    let detail = "The service did not take the connection, so that nothing was executed. Retry with \
                  the same key.";
    Rejection::new(Code::UpstreamUnreachable, detail).with_retry_after(Duration::from_secs(1))
}

/// What it means that a handler was stopped, and dropped.
pub(super) fn stopped<R>(stopped: Stopped, policy: &Policy, account: &Account) -> Outcome<R> {
    if account.completed {
        return Outcome::InTransaction { answer: Err(Rejection::draining()) };
    }
    if let Some(open) = &account.open_effect {
        return with_open_effect(open, account);
    }
    if account.unsent {
        let rejection = match stopped {
            Stopped::MaxExecution => unreachable(),
            Stopped::Drained => Rejection::draining(),
        };
        return Outcome::never_begun(stopped.code(), rejection);
    }
    broken_off(StatusCode::GATEWAY_TIMEOUT, stopped.code(), policy, account)
}

fn in_transaction<R>(ended: Result<Execution<R>, Panic>) -> Outcome<R> {
    let answer = match ended {
        Ok(Execution::Answered(mut parts, body)) => {
            reply::remove_ours(&mut parts.headers);
            Ok(Response::from_parts(parts, body))
        }
        _ => Err(Rejection::rolled_back()),
    };
    Outcome::InTransaction { answer }
}

/// An effect may have acted and has no result: whatever the handler says, the operation has not come
/// to its end.
fn with_open_effect<R>(open: &OpenEffect, account: &Account) -> Outcome<R> {
    if open.idempotent {
        return unfinished("effect_is_open", account);
    }
    Outcome::Unknown { status: StatusCode::BAD_GATEWAY, why: machine::EFFECT_WITHOUT_RESULT }
}

/// The handler ended without an answer. What it did outside of its declared effects is nothing: its
/// open transaction is rolled back, and its steps are saved.
fn broken_off<R>(
    status: StatusCode,
    why: &'static str,
    policy: &Policy,
    account: &Account,
) -> Outcome<R> {
    match policy.effects {
        Effects::Phased | Effects::Local => unfinished(why, account),
        Effects::Undeclared | Effects::External | Effects::None => Outcome::Unknown { status, why },
    }
}

fn unfinished<R>(why: &'static str, account: &Account) -> Outcome<R> {
    let rejection = match account.has_progress {
        true => Rejection::suspended(),
        false => Rejection::rolled_back(),
    };
    Outcome::NotExecuted { answer: Err(rejection), why, begun: true, word: word(account) }
}

fn word(account: &Account) -> &'static str {
    if account.has_progress { SUSPENDED } else { NOT_EXECUTED }
}

/// By the handler's own word, else by its status. A word that is not understood is not taken for
/// leave to run again.
fn meaning(parts: &Parts, policy: &Policy) -> Meaning {
    let by_status = policy.meaning_of(parts.status);
    let mut words = parts.headers.get_all(&ONCEWARD_EXECUTED).iter();
    let word = match (words.next(), words.next()) {
        (None, _) => return by_status,
        (Some(word), None) => word.as_bytes().trim_ascii().to_ascii_lowercase(),
        (Some(_), Some(_)) => Vec::new(),
    };
    match (&*word, by_status) {
        (b"no", _) => Meaning::NotExecuted,
        (b"maybe", _) | (_, Meaning::NotExecuted) => Meaning::Unknown,
        _ => by_status,
    }
}

fn answered<R>(
    mut parts: Parts,
    body: Captured<R>,
    policy: &Policy,
    account: &Account,
) -> Outcome<R> {
    let meaning = meaning(&parts, policy);
    if policy.effects == Effects::Local && parts.status.as_u16() < 400 {
        let status = StatusCode::BAD_GATEWAY;
        return Outcome::Unknown { status, why: LOCAL_WITHOUT_COMPLETE_IN };
    }
    reply::remove_ours(&mut parts.headers);
    match meaning {
        Meaning::Final => {
            let kept = match &body {
                Captured::Whole(body) => ReplyBody::Stored(body.clone()),
                Captured::TooLarge(_) => ReplyBody::NotStored,
            };
            let reply = Reply::capture(&parts, kept, policy.schema_version.as_deref());
            Outcome::Completed { answer: Response::from_parts(parts, body), reply }
        }
        Meaning::NotExecuted => Outcome::NotExecuted {
            answer: Ok(Response::from_parts(parts, body)),
            why: "handler_did_not_act",
            begun: true,
            word: word(account),
        },
        Meaning::Unknown => {
            let status = match parts.status {
                StatusCode::GATEWAY_TIMEOUT => StatusCode::GATEWAY_TIMEOUT,
                _ => StatusCode::BAD_GATEWAY,
            };
            Outcome::Unknown { status, why: "handler_failed" }
        }
    }
}
