//! Rejections: our own answers instead of executing, as RFC 9457 problem documents.
//!
//! A rejection is an answer, not an error. Each says what happened, whether a retry is safe, and
//! under which key.

use std::time::Duration;

use bytes::Bytes;
use http::{
    HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, LINK, LOCATION, RETRY_AFTER, WWW_AUTHENTICATE},
};
use serde_json::{Map, Value, json};

use crate::{key::InvalidKey, machine::Refusal, profile::Profile, reply, scope::NoScope};

/// The code of a rejection: member `code` of its document, and the name of its page in the docs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// A key is required and none was sent.
    KeyMissing,
    /// What was sent is not one well-formed key.
    KeyInvalid,
    /// The request is older than its route allows, or does not say how old it is.
    RequestTooOld,
    /// The request says one thing to us and another to the service.
    RequestAmbiguous,
    /// The credential changes between attempts.
    ScopeUnstable,
    /// The request does not say who is asking.
    ScopeMissing,
    /// An attempt is at work under this key.
    KeyInProgress,
    /// The work may have been done; nobody knows yet.
    OutcomeUnknown,
    /// The key's retention is over.
    KeyExpired,
    /// The work is done, and its reply was too large to keep, or ended in trailers.
    ReplyNotStored,
    /// The request body is over the cap.
    BodyTooLarge,
    /// The key was used for another request.
    Mismatch,
    /// Too many requests of this caller.
    RateLimited,
    /// The upstream could not be reached; nothing was sent.
    UpstreamUnreachable,
    /// The store cannot be used; nothing was executed.
    StoreUnavailable,
    /// The store has lost data, and this key may be among it.
    StoreRegressed,
    /// Accepted work was never executed, and is given up. Stored as its reply.
    NotExecuted,
}

/// Under which key a client may try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Repeat the same request with the same key.
    SameKey,
    /// Use a new key, for what is a new request.
    NewKey,
    /// Not as it is: the request has to be changed first, or there is nothing left to get.
    Never,
}

impl Retry {
    /// The value of the member `retry`.
    pub const fn name(self) -> &'static str {
        match self {
            Retry::SameKey => "same_key",
            Retry::NewKey => "new_key",
            Retry::Never => "never",
        }
    }
}

impl Code {
    /// All codes that this crate answers with.
    pub const ALL: [Code; 17] = [
        Code::KeyMissing,
        Code::KeyInvalid,
        Code::RequestTooOld,
        Code::RequestAmbiguous,
        Code::ScopeUnstable,
        Code::ScopeMissing,
        Code::KeyInProgress,
        Code::OutcomeUnknown,
        Code::KeyExpired,
        Code::ReplyNotStored,
        Code::BodyTooLarge,
        Code::Mismatch,
        Code::RateLimited,
        Code::UpstreamUnreachable,
        Code::StoreUnavailable,
        Code::StoreRegressed,
        Code::NotExecuted,
    ];

    /// The code as clients see it.
    pub const fn name(self) -> &'static str {
        match self {
            Code::KeyMissing => "idempotency_key_missing",
            Code::KeyInvalid => "idempotency_key_invalid",
            Code::RequestTooOld => "idempotency_request_too_old",
            Code::RequestAmbiguous => "idempotency_request_ambiguous",
            Code::ScopeUnstable => "idempotency_scope_unstable",
            Code::ScopeMissing => "idempotency_scope_missing",
            Code::KeyInProgress => "idempotency_key_in_progress",
            Code::OutcomeUnknown => "idempotency_outcome_unknown",
            Code::KeyExpired => "idempotency_key_expired",
            Code::ReplyNotStored => "idempotency_reply_not_stored",
            Code::BodyTooLarge => "idempotency_body_too_large",
            Code::Mismatch => "idempotency_key_reused_with_different_payload",
            Code::RateLimited => "idempotency_rate_limited",
            Code::UpstreamUnreachable => "idempotency_upstream_unreachable",
            Code::StoreUnavailable => "idempotency_store_unavailable",
            Code::StoreRegressed => "idempotency_store_regressed",
            Code::NotExecuted => "idempotency_not_executed",
        }
    }

    /// The usual status. A profile or a first caller may get another one.
    pub const fn status(self) -> StatusCode {
        match self {
            Code::KeyMissing
            | Code::KeyInvalid
            | Code::RequestTooOld
            | Code::RequestAmbiguous
            | Code::ScopeUnstable => StatusCode::BAD_REQUEST,
            Code::ScopeMissing => StatusCode::UNAUTHORIZED,
            Code::KeyInProgress | Code::OutcomeUnknown => StatusCode::CONFLICT,
            Code::KeyExpired | Code::ReplyNotStored => StatusCode::GONE,
            Code::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Code::Mismatch => StatusCode::UNPROCESSABLE_ENTITY,
            Code::RateLimited => StatusCode::TOO_MANY_REQUESTS,
            Code::UpstreamUnreachable => StatusCode::BAD_GATEWAY,
            Code::StoreUnavailable | Code::StoreRegressed => StatusCode::SERVICE_UNAVAILABLE,
            Code::NotExecuted => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// A sentence that is the same for every occurrence.
    pub const fn title(self) -> &'static str {
        match self {
            Code::KeyMissing => "An Idempotency-Key is required",
            Code::KeyInvalid => "The Idempotency-Key cannot be used",
            Code::RequestTooOld => "The request is too old",
            Code::RequestAmbiguous => "The request can be read in two ways",
            Code::ScopeUnstable => "The credential cannot tell retries of one caller",
            Code::ScopeMissing => "The caller is not known",
            Code::KeyInProgress => "A request with this Idempotency-Key is being executed",
            Code::OutcomeUnknown => "The outcome of this request is not known",
            Code::KeyExpired => "The Idempotency-Key has expired",
            Code::ReplyNotStored => "The request was executed and its reply was not kept",
            Code::BodyTooLarge => "The request body is too large",
            Code::Mismatch => "The Idempotency-Key was used for another request",
            Code::RateLimited => "Too many requests",
            Code::UpstreamUnreachable => "The service could not be reached",
            Code::StoreUnavailable => "The idempotency store is not available",
            Code::StoreRegressed => "The idempotency store has lost data",
            Code::NotExecuted => "The accepted request was not executed",
        }
    }

    /// Whether and how to try again.
    pub const fn retry(self) -> Retry {
        match self {
            Code::KeyInProgress
            | Code::OutcomeUnknown
            | Code::RateLimited
            | Code::UpstreamUnreachable
            | Code::StoreUnavailable
            | Code::StoreRegressed => Retry::SameKey,
            Code::Mismatch | Code::NotExecuted => Retry::NewKey,
            Code::KeyMissing
            | Code::KeyInvalid
            | Code::RequestTooOld
            | Code::RequestAmbiguous
            | Code::ScopeUnstable
            | Code::ScopeMissing
            | Code::KeyExpired
            | Code::ReplyNotStored
            | Code::BodyTooLarge => Retry::Never,
        }
    }

    /// The value of `Onceward-Outcome`.
    pub const fn outcome(self) -> &'static str {
        match self {
            Code::KeyInProgress => "conflict",
            Code::Mismatch => "mismatch",
            Code::OutcomeUnknown => "unknown",
            Code::KeyExpired => "expired",
            Code::ReplyNotStored => "reply_not_stored",
            Code::RateLimited => "rate_limited",
            Code::UpstreamUnreachable | Code::NotExecuted => "not_executed",
            Code::StoreUnavailable | Code::StoreRegressed => "unavailable",
            Code::KeyMissing
            | Code::KeyInvalid
            | Code::RequestTooOld
            | Code::RequestAmbiguous
            | Code::ScopeUnstable
            | Code::ScopeMissing
            | Code::BodyTooLarge => "refused",
        }
    }
}

/// Our own answer instead of executing. Also found in the extensions of the response, so that outer
/// layers can see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Rejection {
    code: Code,
    status: StatusCode,
    detail: String,
    retry_after: Option<Duration>,
    location: Option<String>,
    members: Map<String, Value>,
}

impl Rejection {
    /// A rejection with a text for the client. The text must not hold internals.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Rejection {
            code,
            status: code.status(),
            detail: detail.into(),
            retry_after: None,
            location: None,
            members: Map::new(),
        }
    }

    /// The same under another status.
    #[must_use]
    pub fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// The same with advice when to come back.
    #[must_use]
    pub fn with_retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// The same with the address of the operation's status.
    #[must_use]
    pub fn with_location(mut self, location: impl Into<String>) -> Self {
        self.location = Some(location.into());
        self
    }

    /// The same with one more member in the document.
    #[must_use]
    pub fn with_member(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.members.insert(name.to_owned(), value.into());
        self
    }

    /// The code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The status it will be answered with.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// No key where one is required.
    pub fn key_missing() -> Self {
        Self::new(
            Code::KeyMissing,
            "Send the header Idempotency-Key with a value that is unique to this operation, such \
             as a UUID, and the same value when you retry it. Nothing was executed.",
        )
    }

    /// Not one well-formed key.
    pub fn key_invalid(why: InvalidKey) -> Self {
        Self::new(Code::KeyInvalid, format!("Idempotency-Key: {why}. Nothing was executed."))
    }

    /// No scope, no execution.
    pub fn no_scope(why: NoScope) -> Self {
        match why {
            NoScope::Missing => Self::new(
                Code::ScopeMissing,
                "The request carries no credential that tells who is asking. Nothing was executed.",
            ),
            NoScope::Unstable => Self::new(
                Code::ScopeUnstable,
                "The Authorization credential is a token or signature that changes, so that a retry \
                 would be taken for a new request. The service has to be set up to take the caller \
                 from a verified claim (scope jwt:CLAIM) or from a header. Nothing was executed.",
            ),
        }
    }

    /// The request body is over the cap.
    pub fn body_too_large(cap: usize) -> Self {
        Self::new(
            Code::BodyTooLarge,
            format!("The request body may be at most {cap} bytes. Nothing was executed."),
        )
    }

    /// The store cannot be used.
    pub fn store_unavailable() -> Self {
        Self::new(
            Code::StoreUnavailable,
            "The request cannot be protected now. It was not executed by this answer; retry it with \
             the same key.",
        )
        .with_retry_after(Duration::from_secs(2))
    }

    /// The store is known to be down, and was not asked.
    pub fn store_is_down(retry_after: Duration) -> Self {
        Self::store_unavailable().with_retry_after(retry_after)
    }

    /// The store has lost data that it had acknowledged, and the key may be among it.
    pub fn store_regressed() -> Self {
        Self::new(
            Code::StoreRegressed,
            "Data of this service was lost, and this key may have been used before. The request was \
             not executed by this answer, and will not be while that is in doubt; retry it with the \
             same key.",
        )
        .with_retry_after(Duration::from_secs(60))
    }

    /// A limit of the caller's scope was reached: `creations`, `active` or `lookups`.
    pub fn rate_limited(limit: &str, retry_after: Duration) -> Self {
        let detail = match limit {
            "creations" => "Too many new keys. Keys that were used before are still answered.",
            "active" => "Too many requests at work. Keys that were used before are still answered.",
            _ => "Too many requests with a key.",
        };
        Self::new(
            Code::RateLimited,
            format!("{detail} Nothing was executed; retry later with the same key."),
        )
        .with_retry_after(retry_after)
        .with_member("limit", limit)
    }

    /// This process is about to stop and takes no new work.
    pub fn draining() -> Self {
        Self::new(
            Code::StoreUnavailable,
            "This instance is shutting down. Nothing was executed; retry with the same key.",
        )
        .with_retry_after(Duration::from_secs(1))
    }

    /// The handler's own transaction was rolled back, and it did nothing else.
    pub fn rolled_back() -> Self {
        Self::new(
            Code::StoreUnavailable,
            "What was begun was rolled back, so that nothing was executed. Retry with the same key.",
        )
        .with_retry_after(Duration::from_secs(1))
    }

    /// Some steps are done, and the rest is to be done by the next attempt.
    pub fn suspended() -> Self {
        Self::new(
            Code::KeyInProgress,
            "The request was begun and is not finished. Retry with the same key: it goes on where it \
             stopped, and what is done is not done again.",
        )
        .with_status(StatusCode::SERVICE_UNAVAILABLE)
        .with_retry_after(Duration::from_secs(1))
    }

    /// Accepted work that could not be executed in its time.
    pub fn not_executed() -> Self {
        Self::new(
            Code::NotExecuted,
            "The request was accepted and could not be executed in time. It was not executed, and \
             will not be. Send it again with a new key.",
        )
    }

    /// What the machine refused.
    pub fn refused(refusal: &Refusal, profile: Profile) -> Self {
        match refusal {
            Refusal::Mismatch => Self::new(
                Code::Mismatch,
                "This key belongs to a request with another method, address or content. Send that \
                 request unchanged, or this one with a key of its own. Nothing was executed.",
            )
            .with_status(profile.mismatch_status()),
            Refusal::InProgress { retry_after, .. } => Self::new(
                Code::KeyInProgress,
                "Retry later with the same key to get its reply. It was not executed again.",
            )
            .with_retry_after(*retry_after),
            Refusal::OutcomeUnknown => Self::new(
                Code::OutcomeUnknown,
                "An earlier attempt may have been executed, and it is not known whether it was. It \
                 was not executed again. Retry later with the same key to learn the outcome.",
            )
            .with_retry_after(Duration::from_secs(30)),
            Refusal::Expired { status } => {
                let rejection = Self::new(
                    Code::KeyExpired,
                    "This key was used before, and its reply is no longer kept. It was not executed \
                     again. Find out what became of the first request before you use a new key.",
                );
                match status {
                    Some(status) => rejection.with_member("original_status", status.as_u16()),
                    None => rejection,
                }
            }
            Refusal::ReplyNotStored { status } => Self::new(
                Code::ReplyNotStored,
                "The request was executed once, and its reply could not be kept. It was not \
                 executed again. Look at the resource itself.",
            )
            .with_member("original_status", status.as_u16()),
            Refusal::NotTaken => Self::draining(),
        }
    }

    /// The first caller of an attempt whose outcome is not known.
    pub fn first_unknown(status: StatusCode, why: &str) -> Self {
        Self::new(
            Code::OutcomeUnknown,
            format!(
                "The request was begun and it is not known whether it was executed ({why}). Retry \
                 with the same key: it will not be executed a second time unless it is known that \
                 it was not executed."
            ),
        )
        .with_status(status)
        .with_retry_after(Duration::from_secs(30))
    }

    /// The response, with documents described under `base` (or as URNs without one).
    pub fn into_response(self, base: Option<&str>, profile: Profile) -> Response<Bytes> {
        let problem_type = match base {
            Some(base) => format!("{base}{}", self.code.name()),
            None => format!("urn:onceward:problem:{}", self.code.name()),
        };
        let mut response = Response::new(Bytes::from(self.document(&problem_type, profile)));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        reply::describe(headers, self.code.outcome(), None, 1);
        if self.status == StatusCode::UNAUTHORIZED {
            // RFC 9110 wants a challenge with every 401; which scheme is meant is the service's word.
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(after) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(after)));
        }
        let location = self.location.as_deref().map(HeaderValue::from_str);
        if let Some(Ok(location)) = location {
            headers.insert(LOCATION, location);
        }
        if base.is_some() {
            let link = format!("<{problem_type}>; rel=\"describedby\"; type=\"text/html\"");
            if let Ok(link) = HeaderValue::from_str(&link) {
                headers.insert(LINK, link);
            }
        }
        response.extensions_mut().insert(self);
        response
    }

    fn document(&self, problem_type: &str, profile: Profile) -> String {
        let mut document = json!({
            "type": problem_type,
            "title": self.code.title(),
            "status": self.status.as_u16(),
            "detail": self.detail,
            "code": self.code.name(),
            "retry": self.code.retry().name(),
        });
        if let Some(members) = document.as_object_mut() {
            if let Some(after) = self.retry_after {
                members.insert("retry_after".to_owned(), whole_seconds(after).into());
            }
            members.extend(self.members.clone());
            if profile == Profile::Stripe {
                members.insert("error".to_owned(), self.stripe_error());
            }
        }
        document.to_string()
    }

    /// The same facts where clients of Stripe's interface look for them.
    fn stripe_error(&self) -> Value {
        let code = match self.code {
            Code::KeyInProgress => "idempotency_key_in_use",
            other => other.name(),
        };
        let kind = match self.status.is_server_error() {
            true => "api_error",
            false => "idempotency_error",
        };
        json!({ "type": kind, "code": code, "message": self.detail })
    }
}

/// `Retry-After` has whole seconds; a fraction rounds up, so that nobody comes too early.
fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}
