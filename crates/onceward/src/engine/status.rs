//! What a client may ask about its own operation.

use std::net::IpAddr;

use bytes::Bytes;
use http::{
    HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, LOCATION, RETRY_AFTER},
    request,
};
use serde_json::json;
use tokio::time::timeout;

use super::{Engine, Exceeded, STATUS_PATH, begin::timed_out, operation_id};
use crate::store::IdentityCheck;
use crate::{
    key::Key,
    machine, observe,
    operation::sealed_id,
    profile::Profile,
    record::{Record, RecordId, State},
    rejection::{Code, Rejection},
    reply,
};

/// Where the state of a record can be asked for.
pub(super) fn location(id: &RecordId) -> String {
    format!("{STATUS_PATH}{}", operation_id(id))
}

impl Engine {
    /// Answers `GET /.onceward/operations/{key}` for the caller's own scope, where the key is the
    /// client's own, percent-encoded, or the opaque id that it was told. What is absent or foreign
    /// is 404 alike, after the same look into the store.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn status(&self, parts: &request::Parts) -> Response<Bytes> {
        self.status_for(parts, None).await
    }

    /// The same for a caller at an address. Nobody asks more by telling other credentials than his.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn status_for(
        &self,
        parts: &request::Parts,
        from: Option<IpAddr>,
    ) -> Response<Bytes> {
        let scope = match self.scope.read(parts) {
            Ok(scope) => scope,
            Err(why) => {
                let rejection = Rejection::no_scope(why);
                return rejection.into_response(self.problem_base.as_deref(), Profile::Ietf);
            }
        };
        if let Err(after) = self.questions.take(&scope, from, self.clock.monotonic()) {
            let detail = "The state of operations was asked for too often. Ask again later.";
            let rejection = Rejection::new(Code::RateLimited, detail).with_retry_after(after);
            return rejection.into_response(self.problem_base.as_deref(), Profile::Ietf);
        }
        let looked = self.quota.look(&self.limits, &scope, self.clock.monotonic());
        if let Err(Exceeded { limit, retry_after }) = looked {
            observe::rate_limited("status", limit);
            let rejection = Rejection::rate_limited(limit, retry_after);
            return rejection.into_response(self.problem_base.as_deref(), Profile::Ietf);
        }
        let id = parts.uri.path().strip_prefix(STATUS_PATH).unwrap_or_default();
        // An id of somebody else does not open. It is then looked for as a key, which nobody has.
        let asked = || plain_key(id).map(|key| self.stored_key(&key));
        let Some(key) = sealed_id::open(&scope, id).or_else(asked) else {
            return not_found();
        };
        // Under other settings the key would be another one's, and what was done would look undone.
        if self.check_identity("status", self.store_deadline).await != Some(IdentityCheck::Same) {
            let rejection = Rejection::store_unavailable();
            return rejection.into_response(self.problem_base.as_deref(), Profile::Ietf);
        }
        let id = RecordId { scope, key };
        let loaded = timeout(self.store_deadline, self.store.load(&id)).await;
        match loaded.unwrap_or_else(|_| Err(timed_out())) {
            Ok(Some(record)) => {
                let expires = record.expires_at.to_system_time();
                let expires = record.state.is_terminal().then(|| httpdate::fmt_http_date(expires));
                let document = json!({
                    "state": record.state.name(),
                    "outcome": outcome(&record),
                    "generation": record.generation,
                    "status": record.reply.as_ref().map(|reply| reply.status.as_u16()),
                    "expires": expires,
                    "retry": advice(record.state),
                });
                respond(StatusCode::OK, &document)
            }
            Ok(None) => not_found(),
            Err(error) => {
                self.store_failed("load", &error, "status");
                let rejection = Rejection::store_unavailable();
                rejection.into_response(self.problem_base.as_deref(), Profile::Ietf)
            }
        }
    }
}

/// The 202 for work that is accepted: of this request, or of an earlier one with the same key.
pub(super) fn accepted(id: &RecordId, state: State) -> Response<Bytes> {
    let document = json!({ "state": state.name(), "retry": "same_key" });
    let mut response = respond(StatusCode::ACCEPTED, &document);
    let headers = response.headers_mut();
    headers.insert(RETRY_AFTER, HeaderValue::from(1));
    if let Ok(location) = HeaderValue::from_str(&location(id)) {
        headers.insert(LOCATION, location);
    }
    reply::describe(headers, "accepted", None, 1);
    response
}

/// Whether the work was done, as far as it is known.
fn outcome(record: &Record) -> Option<&'static str> {
    let given_up = record.last_error.as_deref() == Some(machine::GIVEN_UP);
    match record.state {
        State::Pending | State::InProgress => None,
        State::Completed | State::Expired if given_up => Some("not_executed"),
        State::Completed => Some("executed"),
        State::Expired if record.reply.is_some() => Some("executed"),
        State::FailedRetryable | State::Expired => Some("not_executed"),
        State::Unknown => Some("unknown"),
    }
}

/// The key that a client has put into an address itself.
fn plain_key(text: &str) -> Option<Key> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let (byte, after) = match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                let digit = |byte: &u8| char::from(*byte).to_digit(16);
                let byte = digit(high)? * 16 + digit(low)?;
                (u8::try_from(byte).ok()?, after)
            }
            (b'%', _) => return None,
            (byte, after) => (*byte, after),
        };
        bytes.push(byte);
        rest = after;
    }
    Key::new(String::from_utf8(bytes).ok()?).ok()
}

/// What to do about an operation in this state: nothing is gained by asking under a new key before
/// it is at rest.
fn advice(state: State) -> &'static str {
    match state {
        State::Expired => "never",
        _ => "same_key",
    }
}

fn not_found() -> Response<Bytes> {
    respond(StatusCode::NOT_FOUND, &json!({ "state": null }))
}

fn respond(status: StatusCode, document: &serde_json::Value) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(document.to_string()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
