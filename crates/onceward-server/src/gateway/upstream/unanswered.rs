//! Requests that were not answered, and what that proves.

use std::error::Error as _;

use http::{HeaderValue, Request, Uri, header::HOST};
use hyper::client::conn::TrySendError;

use super::{Failure, Outgoing, uploading::Uploading};

/// A request that was not answered.
pub(super) enum Unanswered {
    /// Not begun, and here again as it was.
    HandedBack(Box<Request<Outgoing>>),
    Failed(Failure),
}

impl Unanswered {
    /// Says what it was, to the address that was asked for, and whether its own body broke off and was
    /// too slow.
    pub(super) fn of(
        mut error: TrySendError<Request<Uploading>>,
        asked: Uri,
        broke_off: Option<bool>,
    ) -> Self {
        match error.take_message() {
            Some(request) => {
                let (mut parts, body) = Uploading::unsent(request).into_parts();
                if !parts.headers.contains_key(HOST)
                    && let Some(host) = parts.uri.authority()
                    && let Ok(host) = HeaderValue::from_str(host.as_str())
                {
                    parts.headers.insert(HOST, host);
                }
                parts.uri = asked;
                Unanswered::HandedBack(Box::new(Request::from_parts(parts, body)))
            }
            None => Unanswered::Failed(proof(error.error(), broke_off)),
        }
    }
}

impl From<Failure> for Unanswered {
    fn from(failure: Failure) -> Self {
        Unanswered::Failed(failure)
    }
}

impl From<Unanswered> for Failure {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Failed(failure) => failure,
            Unanswered::HandedBack(_) => {
                Failure::NeverSent { why: "upstream_closed_before_dispatch" }
            }
        }
    }
}

/// What is known of a request that was begun.
fn proof(error: &hyper::Error, broke_off: Option<bool>) -> Failure {
    // hyper blames on its user what it cannot explain, such as a connection that ended while a request
    // waited on it. Whether the body broke off is known better by whoever read it.
    if let Some(too_slow) = broke_off {
        return Failure::ClientBrokeOff { too_slow };
    }
    let source = error.source().and_then(|source| source.downcast_ref::<h2::Error>());
    match source {
        // RFC 9113, 8.7: a stream that was refused was not processed.
        Some(reset)
            if reset.is_reset()
                && reset.is_remote()
                && reset.reason() == Some(h2::Reason::REFUSED_STREAM) =>
        {
            Failure::NeverSent { why: "upstream_refused_the_stream" }
        }
        // A GOAWAY proves nothing: it may reach us between the writing of our stream and its
        // answer, and the error does not say which streams upstream took.
        _ => Failure::no_answer("upstream_gave_no_answer"),
    }
}
