//! What an execution means: completed, not executed, or unknown.

use std::any::Any;

use http::{Response, StatusCode, response::Parts};

use super::{Answer, Captured, Execution};
use crate::{
    policy::{Meaning, Policy},
    rejection::{Code, Rejection},
    reply::{self, ONCEWARD_EXECUTED, Reply, ReplyBody},
};

pub(super) enum Outcome<R> {
    /// There is a reply, for good.
    Completed { answer: Answer<R>, reply: Reply },
    /// Known not to have acted. With the handler's own answer, or ours.
    NotExecuted { answer: Result<Answer<R>, Rejection>, why: &'static str },
    /// May have acted.
    Unknown { status: StatusCode, why: &'static str },
}

type Panic = Box<dyn Any + Send>;

pub(super) fn classify<R>(ended: Result<Execution<R>, Panic>, policy: &Policy) -> Outcome<R> {
    match ended {
        // A handler that panicked may have acted before it did.
        Err(_panic) => {
            Outcome::Unknown { status: StatusCode::BAD_GATEWAY, why: "handler_panicked" }
        }
        Ok(Execution::NoFullAnswer { status, why }) => Outcome::Unknown { status, why },
        Ok(Execution::NeverSent { why }) => {
            let rejection = Rejection::new(
                Code::UpstreamUnreachable,
                "The service did not take the connection, so that nothing was executed. Retry with \
                 the same key.",
            );
            Outcome::NotExecuted {
                answer: Err(rejection.with_retry_after(std::time::Duration::from_secs(1))),
                why,
            }
        }
        Ok(Execution::Answered(parts, body)) => answered(parts, body, policy),
    }
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

fn answered<R>(mut parts: Parts, body: Captured<R>, policy: &Policy) -> Outcome<R> {
    let meaning = meaning(&parts, policy);
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
