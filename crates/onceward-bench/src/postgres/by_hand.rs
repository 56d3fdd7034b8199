//! What teams write by hand: a row for the key, the work, the reply into the row.
//!
//! It is meant to be good code of its kind, for it is what we compare with: statements are
//! prepared once for each connection, a key is looked up only if it was taken, the row's update
//! stays on its page, and there is no index but the primary key. It does less than Onceward does:
//! no lease, so that a crash blocks the key for ever; no expiry; no answer when nobody knows.

use axum::{
    body::Bytes,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use sha2::{Digest as _, Sha256};

pub(crate) mod sqlx;
pub(crate) mod tokio_postgres;

/// Half of each page is left to the replies, which come with the update.
pub(crate) const TABLE: &str = "CREATE TABLE IF NOT EXISTS idempotency_keys (
    scope bytea NOT NULL,
    key text COLLATE \"C\" NOT NULL,
    fingerprint bytea NOT NULL,
    state text NOT NULL DEFAULT 'in_progress',
    status int2,
    body bytea,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (scope, key)
) WITH (fillfactor = 50)";

const RESERVE: &str = "INSERT INTO idempotency_keys (scope, key, fingerprint) \
    VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";

const COMPLETE: &str = "UPDATE idempotency_keys SET state = 'completed', status = $3, body = $4 \
    WHERE scope = $1 AND key = $2 AND state = 'in_progress'";

const LOOK_UP: &str =
    "SELECT fingerprint, status, body FROM idempotency_keys WHERE scope = $1 AND key = $2";

/// What is asked, by whom, under which key.
struct Asked {
    scope: [u8; 32],
    key: String,
    fingerprint: [u8; 32],
}

impl Asked {
    fn read(headers: &HeaderMap, body: &Bytes) -> Result<Self, StatusCode> {
        let credential = headers.get(header::AUTHORIZATION).ok_or(StatusCode::UNAUTHORIZED)?;
        let key = headers.get("idempotency-key").ok_or(StatusCode::BAD_REQUEST)?;
        Ok(Asked {
            scope: Sha256::digest(credential.as_bytes()).into(),
            key: key.to_str().map_err(|_| StatusCode::BAD_REQUEST)?.to_owned(),
            fingerprint: Sha256::digest(body).into(),
        })
    }
}

/// The row that was in the way.
struct Found {
    fingerprint: Vec<u8>,
    status: Option<i16>,
    body: Option<Vec<u8>>,
}

impl Found {
    fn answer(self, asked: &Asked) -> Response {
        if self.fingerprint != asked.fingerprint {
            return StatusCode::UNPROCESSABLE_ENTITY.into_response();
        }
        let (Some(status), Some(body)) = (self.status, self.body) else {
            return StatusCode::CONFLICT.into_response();
        };
        let status = u16::try_from(status).ok().and_then(|code| StatusCode::from_u16(code).ok());
        answer(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), body)
    }
}

/// A reply, the first time and every other time.
pub(crate) fn answer(status: StatusCode, body: Vec<u8>) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}
