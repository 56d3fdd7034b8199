//! Whether an event can follow what was seen before at all.

use super::{
    Verdict, Violation,
    known::{CallEnd, Known, Request},
};
use crate::history::{CallNo, Event, RequestNo, UpstreamAnswer, What};

/// Whether this event can follow at all.
pub(super) fn check(known: &Known, event: &Event) -> Verdict {
    let wrong = match &event.what {
        What::World { .. } if known.has_begun() => Some("a second world".to_owned()),
        What::World { .. } => None,
        _ if !known.has_begun() => Some("the first event is not the world".to_owned()),
        _ if known.ended => Some("an event after the end".to_owned()),
        What::Asked { request, route, .. } => form_of_request(known, *request, route),
        What::Answered { request, .. } | What::GaveUp { request } => {
            match known.request(*request) {
                None => Some(format!("request {request} ends, which nobody sent")),
                Some(Request { over: true, .. }) => Some(format!("request {request} ends twice")),
                Some(_) => None,
            }
        }
        What::Called { call, .. } => {
            known.call(*call).map(|_| format!("call {call} is made twice"))
        }
        What::Acted { call } => form_of_effect(known, *call),
        What::Replied { call, answer } => form_of_reply(known, *call, answer.as_ref()),
        What::Step { call, .. } => {
            known.call(*call).is_none().then(|| format!("call {call} is a step, which nobody made"))
        }
        What::Staged { message, .. } => {
            known.outbox.has(*message).then(|| format!("message {message} is staged twice"))
        }
        // An effect without a message is not bad form: it is I10.
        What::Delivers { .. }
        | What::Received { .. }
        | What::Settled { .. }
        | What::Noted { .. }
        | What::Rested { .. }
        | What::Relayed
        | What::Moved { .. }
        | What::Left { .. }
        | What::Fault { .. }
        | What::Calm
        | What::End => None,
    };
    match wrong {
        None => Ok(()),
        Some(what) => Err(Violation { invariant: "FORM", subject: None, what }),
    }
}

fn form_of_request(known: &Known, request: RequestNo, route: &str) -> Option<String> {
    if known.request(request).is_some() {
        return Some(format!("request {request} is sent twice"));
    }
    let named = known.route(route).is_some();
    (!named).then(|| format!("request {request} is for route {route}, which the world has not"))
}

fn form_of_effect(known: &Known, call: CallNo) -> Option<String> {
    // An effect without a call is not bad form: it is I7.
    let known = known.call(call)?;
    match known.end {
        _ if known.acted => Some(format!("call {call} acts twice")),
        CallEnd::NotYet => None,
        CallEnd::BrokeOff | CallEnd::Answered(_) => {
            Some(format!("call {call} acts after it is over"))
        }
    }
}

fn form_of_reply(known: &Known, number: CallNo, answer: Option<&UpstreamAnswer>) -> Option<String> {
    let Some(call) = known.call(number) else {
        return Some(format!("call {number} ends, which nobody made"));
    };
    if !matches!(call.end, CallEnd::NotYet) {
        return Some(format!("call {number} ends twice"));
    }
    let (other, ..) = known.call_with(&answer?.body)?;
    Some(format!("calls {other} and {number} have the same body, so that replies cannot be told"))
}
