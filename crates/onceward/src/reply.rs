//! The reply: a stored answer, and the HTTP responses made of it.

use std::cell::RefCell;

use bytes::{Bytes, BytesMut};
use http::{
    HeaderMap, HeaderName, HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE},
    response::Parts,
};

use crate::clock::Timestamp;

/// Marks a replay.
pub static IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// When the stored reply will be gone, as an HTTP date.
pub static IDEMPOTENCY_EXPIRES: HeaderName = HeaderName::from_static("idempotency-expires");
/// Which use of the key this is, when it is not the first.
pub static IDEMPOTENCY_GENERATION: HeaderName = HeaderName::from_static("idempotency-generation");
/// What Onceward did with the request.
pub static ONCEWARD_OUTCOME: HeaderName = HeaderName::from_static("onceward-outcome");
/// The schema version of the reply, as the route declared it.
pub static ONCEWARD_SCHEMA_VERSION: HeaderName = HeaderName::from_static("onceward-schema-version");
/// A handler's own word on whether it acted: `no` or `maybe`.
pub static ONCEWARD_EXECUTED: HeaderName = HeaderName::from_static("onceward-executed");
/// A handler's own word on what its provider calls the operation: see
/// [`ProviderId`](crate::record::ProviderId).
pub static ONCEWARD_PROVIDER_ID: HeaderName = HeaderName::from_static("onceward-provider-id");
/// Which attempt of this generation a handler sees, from the second on.
pub static ONCEWARD_ATTEMPT: HeaderName = HeaderName::from_static("onceward-attempt");

/// What an upstream hands on to the SQL functions, so that it may complete its own operation.
pub static ONCEWARD_OPERATION: HeaderName = HeaderName::from_static("onceward-operation");
/// The random id of the attempt that an upstream sees.
pub static ONCEWARD_ATTEMPT_ID: HeaderName = HeaderName::from_static("onceward-attempt-id");
/// The fence of the attempt that an upstream sees.
pub static ONCEWARD_FENCE: HeaderName = HeaderName::from_static("onceward-fence");

/// A stored answer. Sent again, it is the same bytes every time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// The headers that are kept, in order, repeated ones too.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The body, if it was small enough to keep.
    pub body: ReplyBody,
    /// The version of the reply's schema, as the route declared it.
    pub schema_version: Option<Box<str>>,
}

/// The body of a stored answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyBody {
    /// All of it.
    Stored(Bytes),
    /// It was over the cap. The record says that the work is done, and a retry is told so.
    NotStored,
}

impl Reply {
    /// Keeps of a response what may be sent again.
    pub fn capture(parts: &Parts, body: ReplyBody, schema_version: Option<&str>) -> Reply {
        let named = named_by_connection(&parts.headers);
        let kept = parts.headers.iter().filter(|(name, _)| is_kept(name) && !named.contains(*name));
        Reply {
            status: parts.status,
            headers: kept.map(|(name, value)| (name.clone(), value.clone())).collect(),
            body,
            schema_version: schema_version.map(Into::into),
        }
    }

    /// What is left of a reply when its record expires: its status.
    #[must_use]
    pub fn status_only(self) -> Reply {
        Reply {
            status: self.status,
            headers: Vec::new(),
            body: ReplyBody::NotStored,
            schema_version: None,
        }
    }

    /// The same without its body, if that is longer than this.
    #[must_use]
    pub(crate) fn within(mut self, cap: usize) -> Reply {
        if self.body_bytes().len() > cap {
            self.body = ReplyBody::NotStored;
        }
        self
    }

    /// The same in memory of its own. As it comes from a connection, a reply is a part of that one's
    /// buffers, and would keep all of them.
    #[must_use]
    pub(crate) fn compact(mut self) -> Reply {
        let stored = self.body_bytes();
        let length = self.headers.iter().map(|(_, value)| value.len()).sum::<usize>();
        let mut buffer = BytesMut::with_capacity(length + stored.len());
        for (_, value) in &mut self.headers {
            buffer.extend_from_slice(value.as_bytes());
            let is_sensitive = value.is_sensitive();
            if let Ok(copy) = HeaderValue::from_maybe_shared(buffer.split().freeze()) {
                *value = copy;
                value.set_sensitive(is_sensitive);
            }
        }
        if let ReplyBody::Stored(body) = &mut self.body {
            buffer.extend_from_slice(&stored);
            *body = buffer.freeze();
        }
        self
    }

    /// The stored body; empty when it was not kept.
    pub fn body_bytes(&self) -> Bytes {
        match &self.body {
            ReplyBody::Stored(body) => body.clone(),
            ReplyBody::NotStored => Bytes::new(),
        }
    }

    /// A reply to be stored: a status and a body.
    pub fn new(status: StatusCode, body: impl Into<Bytes>) -> Reply {
        let body = ReplyBody::Stored(body.into());
        Reply { status, headers: Vec::new(), body, schema_version: None }
    }

    /// The same with a document as its body.
    ///
    /// # Errors
    /// When the value cannot be written as JSON.
    pub fn json(
        status: StatusCode,
        value: &impl serde::Serialize,
    ) -> Result<Reply, serde_json::Error> {
        let reply = Reply::new(status, serde_json::to_vec(value)?);
        Ok(reply.with_header(CONTENT_TYPE, HeaderValue::from_static("application/json")))
    }

    /// The same with one more header.
    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Reply {
        self.headers.push((name, value));
        self
    }

    /// The response for a retry.
    pub fn replay(mut self, expires_at: Timestamp, generation: u32) -> Response<Bytes> {
        let schema_version = self.schema_version.take();
        let mut response: Response<Bytes> = self.into();
        let headers = response.headers_mut();
        headers.insert(&IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        describe(headers, "replayed", Some(expires_at), generation);
        describe_schema(headers, schema_version.as_deref());
        response
    }

    /// The response for the first caller, of a reply that the handler stored by itself.
    pub(crate) fn executed(mut self, expires_at: Timestamp, generation: u32) -> Response<Bytes> {
        let schema_version = self.schema_version.take();
        let mut response: Response<Bytes> = self.into();
        let headers = response.headers_mut();
        describe(headers, "executed", Some(expires_at), generation);
        describe_schema(headers, schema_version.as_deref());
        response
    }
}

impl From<Reply> for Response<Bytes> {
    fn from(reply: Reply) -> Self {
        let mut response = Response::new(reply.body_bytes());
        *response.status_mut() = reply.status;
        let headers = response.headers_mut();
        headers.reserve(reply.headers.len() + 5);
        for (name, value) in reply.headers {
            headers.append(name, value);
        }
        response
    }
}

#[cfg(feature = "axum")]
impl axum_core::response::IntoResponse for Reply {
    fn into_response(self) -> axum_core::response::Response {
        Response::<Bytes>::from(self).map(Into::into)
    }
}

/// Says on a keyed answer what Onceward did, and until when the reply can be had again.
pub fn describe(
    headers: &mut HeaderMap,
    outcome: &'static str,
    expires_at: Option<Timestamp>,
    generation: u32,
) {
    headers.insert(&ONCEWARD_OUTCOME, HeaderValue::from_static(outcome));
    if let Some(date) = expires_at.and_then(http_date) {
        headers.insert(&IDEMPOTENCY_EXPIRES, date);
    }
    if generation > 1 {
        headers.insert(&IDEMPOTENCY_GENERATION, HeaderValue::from(generation));
    }
}

/// A time as an HTTP date. Most requests of a second get the same one, and a thread writes it once.
fn http_date(time: Timestamp) -> Option<HeaderValue> {
    thread_local! {
        static LAST: RefCell<Option<(i64, HeaderValue)>> = const { RefCell::new(None) };
    }
    let second = time.as_micros().div_euclid(1_000_000);
    let last = LAST.with_borrow(|last| last.clone());
    if let Some((_, date)) = last.filter(|(of, _)| *of == second) {
        return Some(date);
    }
    let date = HeaderValue::try_from(httpdate::fmt_http_date(time.to_system_time())).ok()?;
    LAST.set(Some((second, date.clone())));
    Some(date)
}

/// Names the schema version on a keyed answer.
pub fn describe_schema(headers: &mut HeaderMap, schema_version: Option<&str>) {
    if let Some(Ok(version)) = schema_version.map(HeaderValue::from_str) {
        headers.insert(&ONCEWARD_SCHEMA_VERSION, version);
    }
}

/// Headers with which we speak to clients: from a handler they would be taken for our word.
const OURS: [&str; 8] = [
    "idempotent-replayed",
    "idempotency-expires",
    "idempotency-generation",
    "onceward-outcome",
    "onceward-schema-version",
    "onceward-executed",
    "onceward-provider-id",
    "onceward-sealed",
];

/// Takes our own headers out of a handler's answer; they are said anew on each.
pub(crate) fn remove_ours(headers: &mut HeaderMap) {
    let ours = headers.keys().filter(|name| OURS.contains(&name.as_str()));
    for name in ours.cloned().collect::<Vec<_>>() {
        headers.remove(name);
    }
}

/// Headers that belong to one message, one connection or one browser, and must not be sent again.
const NOT_KEPT: [&str; 21] = [
    // One message: made anew for each.
    "date",
    "age",
    "content-length",
    "server-timing",
    "traceparent",
    "tracestate",
    // One connection (RFC 9110, 7.6.1).
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "alt-svc",
    // One caller's credentials.
    "set-cookie",
    "set-cookie2",
    "www-authenticate",
    "proxy-authenticate",
    "authentication-info",
    "proxy-authentication-info",
    "clear-site-data",
];

fn is_kept(name: &HeaderName) -> bool {
    // CORS answers are about the origin that asked, which may be another one next time.
    let name = name.as_str();
    !NOT_KEPT.contains(&name) && !OURS.contains(&name) && !name.starts_with("access-control-")
}

pub(crate) fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn captured(headers: &[(&'static str, &'static str)]) -> Reply {
        let mut response = Response::builder().status(201);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        let (parts, body) = response.body(Bytes::from_static(b"{}")).expect("valid").into_parts();
        Reply::capture(&parts, ReplyBody::Stored(body), Some("v2"))
    }

    #[test]
    fn repeated_headers_are_kept_in_order() {
        let reply = captured(&[("link", "<a>"), ("etag", "x"), ("link", "<b>"), ("link", "<a>")]);
        let response = reply.replay(Timestamp::from_micros(0), 1);
        let links: Vec<_> = response.headers().get_all("link").iter().collect();
        assert_eq!(links, ["<a>", "<b>", "<a>"]);
        assert_eq!(response.headers()["etag"], "x");
    }

    #[test]
    fn a_compact_reply_is_the_same_and_keeps_no_buffer_alive() {
        let buffer = BytesMut::from(&b"text/plain{}and much more that came with it"[..]).freeze();
        let value = HeaderValue::from_maybe_shared(buffer.slice(..10)).expect("valid");
        let reply = Reply::new(StatusCode::CREATED, buffer.slice(10..12))
            .with_header(CONTENT_TYPE, value)
            .with_header(CONTENT_TYPE, HeaderValue::from_static(""));
        let compact = reply.clone().compact();
        assert_eq!(compact, reply);
        assert!(!buffer.is_unique());
        drop(reply);
        assert!(buffer.is_unique(), "nothing of it is in the compact one");
        assert_eq!(compact.clone().status_only().compact(), compact.status_only());
    }

    #[test]
    fn what_belongs_to_one_caller_or_connection_is_not_kept() {
        let reply = captured(&[
            ("set-cookie", "session=1"),
            ("date", "Thu, 01 Jan 1970 00:00:00 GMT"),
            ("access-control-allow-origin", "https://a.example"),
            ("www-authenticate", "Basic"),
            ("transfer-encoding", "chunked"),
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("content-length", "2"),
            ("x-kept", "1"),
        ]);
        let names: Vec<_> = reply.headers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["x-kept"]);
    }

    #[test]
    fn a_date_is_that_of_its_own_second() {
        let date = |micros| http_date(Timestamp::from_micros(micros)).expect("a date");
        let at = 1_000_000_000_000_000;
        assert_eq!(date(at), "Sun, 09 Sep 2001 01:46:40 GMT");
        assert_eq!(date(at + 999_999), "Sun, 09 Sep 2001 01:46:40 GMT");
        assert_eq!(date(at + 1_000_000), "Sun, 09 Sep 2001 01:46:41 GMT");
        assert_eq!(date(at), "Sun, 09 Sep 2001 01:46:40 GMT");
        assert_eq!(date(-1), "Thu, 01 Jan 1970 00:00:00 GMT");
    }

    #[test]
    fn a_replay_says_that_it_is_one() {
        let response = captured(&[("cache-control", "max-age=60")])
            .replay(Timestamp::from_micros(1_000_000_000_000_000), 3);
        let header = |name: &str| response.headers()[name].to_str().expect("text");
        assert_eq!(header("idempotent-replayed"), "true");
        assert_eq!(header("cache-control"), "no-store");
        assert_eq!(header("onceward-outcome"), "replayed");
        assert_eq!(header("idempotency-expires"), "Sun, 09 Sep 2001 01:46:40 GMT");
        assert_eq!(header("idempotency-generation"), "3");
        assert_eq!(header("onceward-schema-version"), "v2");
        assert_eq!(response.status(), 201);
        assert_eq!(response.body().as_ref(), b"{}");
    }
}
