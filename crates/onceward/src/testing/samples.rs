//! Ready-made requests and replies for tests of stores.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, StatusCode, Uri};

use crate::{
    fingerprint::Fingerprint,
    key::Key,
    record::{AttemptId, Effects, RecordId, StoredRequest},
    reply::{Reply, ReplyBody},
    scope::Scope,
    store::{Advance, Ask, Claim, Mode},
};

/// The lease of [`ask`].
pub const LEASE: Duration = Duration::from_secs(60);
/// How long an attempt of [`ask`] may go on renewing.
pub const MAX_EXECUTION: Duration = Duration::from_secs(300);
/// The retention of [`ask`].
pub const RETENTION: Duration = Duration::from_secs(24 * 3_600);
/// How long the tombstone of [`ask`] is kept.
pub const TOMBSTONE: Duration = Duration::from_secs(30 * 24 * 3_600);

/// The address of a key in a scope.
///
/// # Panics
/// When it is not a well-formed scope or key.
pub fn id(scope: &str, key: &str) -> RecordId {
    RecordId {
        scope: Scope::new(scope).expect("a well-formed scope"),
        key: Key::new(key).expect("a well-formed key"),
    }
}

/// The fingerprint of the request with this number: equal for equal numbers.
pub fn fingerprint(number: u8) -> Fingerprint {
    Fingerprint::from_stored(1, [number; 32])
}

/// A request to execute, by a new attempt, with effects on somebody else. Tests change what they
/// are about.
///
/// # Panics
/// When it is not a well-formed key.
pub fn ask(key: &str) -> Ask {
    Ask {
        id: id("tenant", key),
        fingerprint: fingerprint(1),
        attempt: AttemptId::random(),
        mode: Mode::Execute,
        lease: LEASE,
        max_execution: MAX_EXECUTION,
        retention: RETENTION,
        tombstone: TOMBSTONE,
        expired_runs_again: false,
        effects: Effects::External,
        route: "payments".into(),
        method: "POST".into(),
        path: "/payments".into(),
        request: None,
        queued_for: Duration::from_secs(86_400),
    }
}

/// A request to execute in phases and effects, with the request that is kept for it.
///
/// # Panics
/// When it is not a well-formed key.
pub fn phased(key: &str) -> Ask {
    Ask { effects: Effects::Phased, request: Some(Arc::new(request("{}"))), ..ask(key) }
}

/// A request that is accepted for later, with the request that is kept for it.
///
/// # Panics
/// When it is not a well-formed key.
pub fn queued(key: &str) -> Ask {
    Ask { mode: Mode::Accept, request: Some(Arc::new(request("{}"))), ..ask(key) }
}

/// A claim of what this asked for, by a new attempt.
pub fn claim(ask: &Ask) -> Claim {
    Claim {
        id: ask.id.clone(),
        attempt: AttemptId::random(),
        lease: ask.lease,
        max_execution: ask.max_execution,
        effects: ask.effects,
        fence: None,
    }
}

/// A request with this body and a few headers, as it is kept.
pub fn request(body: impl Into<Bytes>) -> StoredRequest {
    StoredRequest {
        method: Method::POST,
        uri: Uri::from_static("/payments?currency=EUR"),
        headers: vec![
            (HeaderName::from_static("x-tag"), HeaderValue::from_static("one")),
            (HeaderName::from_static("content-type"), HeaderValue::from_static("text/plain")),
            (HeaderName::from_static("x-tag"), HeaderValue::from_static("two")),
        ],
        body: body.into(),
    }
}

/// A step with its result.
pub fn save(name: &str, result: &str) -> Advance {
    Advance::Save { name: name.into(), result: result.to_owned().into() }
}

/// An effect that is about to be called.
pub fn intend(name: &str, idempotent: bool) -> Advance {
    Advance::Intend { name: name.into(), idempotent }
}

/// An effect that is known not to have acted.
pub fn withdraw(name: &str) -> Advance {
    Advance::Withdraw { name: name.into() }
}

/// The same request by another attempt: what a retry is to a store.
pub fn retry(ask: &Ask) -> Ask {
    Ask { attempt: AttemptId::random(), ..ask.clone() }
}

/// Another request with the same key.
pub fn another_request(ask: &Ask) -> Ask {
    Ask { fingerprint: fingerprint(2), ..retry(ask) }
}

/// A reply with this body and a few headers.
pub fn reply(body: impl Into<Bytes>) -> Reply {
    Reply {
        status: StatusCode::CREATED,
        headers: vec![
            (HeaderName::from_static("content-type"), HeaderValue::from_static("text/plain")),
            (HeaderName::from_static("x-request"), HeaderValue::from_static("1")),
        ],
        body: ReplyBody::Stored(body.into()),
        schema_version: Some("v1".into()),
    }
}
