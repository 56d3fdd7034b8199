//! What the admin API answers when it does not do what was asked.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use onceward::{clock::Timestamp, store::StoreError};
use serde::{Deserialize, Serialize};
use tracing::warn;
use utoipa::ToSchema;

use super::super::time::rfc3339;

/// A refusal, as `application/problem+json`.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    document: Box<ProblemDocument>,
    allow: Option<String>,
}

/// What is wrong, by RFC 9457.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct ProblemDocument {
    /// A name of this kind of problem.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// The same in a few words.
    pub(crate) title: String,
    /// The status of the answer.
    pub(crate) status: u16,
    /// The stable name of this kind of problem.
    pub(crate) code: String,
    /// What is wrong here, and what to do about it.
    pub(crate) detail: String,
    /// The state of the record that is in the way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) state: Option<String>,
    /// From when on the same would be accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) not_before: Option<String>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &str, detail: impl Into<String>) -> Problem {
        let document = ProblemDocument {
            kind: format!("urn:onceward:problem:{code}"),
            title: title(code),
            status: status.as_u16(),
            code: code.to_owned(),
            detail: detail.into(),
            state: None,
            not_before: None,
        };
        Problem { status, document: Box::new(document), allow: None }
    }

    pub(crate) fn invalid(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "invalid_request", detail)
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, "not_found", detail)
    }

    pub(crate) fn conflict(code: &str, detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::CONFLICT, code, detail)
    }

    pub(crate) fn method_not_allowed(allow: String) -> Problem {
        let detail = format!("Here these methods are known: {allow}.");
        let problem = Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail);
        Problem { allow: Some(allow), ..problem }
    }

    pub(crate) fn with_state(mut self, state: &str) -> Problem {
        self.document.state = Some(state.to_owned());
        self
    }

    pub(crate) fn not_before(mut self, at: Timestamp) -> Problem {
        self.document.not_before = Some(rfc3339(at));
        self
    }

    pub(crate) fn code(&self) -> &str {
        &self.document.code
    }

    pub(crate) fn detail(&self) -> &str {
        &self.document.detail
    }

    pub(crate) fn into_response(self) -> Response<Bytes> {
        let body = serde_json::to_vec(&self.document).unwrap_or_default();
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        let kind = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, kind);
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(allow) = self.allow.and_then(|allow| HeaderValue::from_str(&allow).ok()) {
            headers.insert(header::ALLOW, allow);
        }
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(1));
        }
        response
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Problem {
        warn!(%error, "an admin call failed");
        let detail = "The store did not answer. A change that was asked for may have been made: \
                      look at the record before repeating it.";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", detail)
    }
}

fn title(code: &str) -> String {
    let mut title = code.replace('_', " ");
    if let Some(first) = title.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    title
}
