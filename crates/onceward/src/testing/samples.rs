//! Ready-made requests and replies for tests of stores.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};

use crate::{
    fingerprint::Fingerprint,
    key::Key,
    record::{AttemptId, Effects, RecordId},
    reply::{Reply, ReplyBody},
    scope::Scope,
    store::{Ask, Mode},
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
    }
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
