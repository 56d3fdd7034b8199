//! Ways in which the gateway answers, most of them before a body was read.

use std::net::SocketAddr;

use onceward::{Key, Scope, record::RecordId};

use super::{
    corpus::{HIDDEN, framings_of},
    world::{SECRET, ask_too_often},
};
use crate::{
    reconciling::{now, signature},
    support::{Gateway, send},
};

/// A way in which the gateway answers, as the first lines of a request.
pub(super) struct Way {
    pub(super) name: &'static str,
    head: &'static str,
    /// The first status for a body that can be read.
    pub(super) status: u16,
    pub(super) at: At,
}

/// Where a way leads along.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    /// A gateway with routes of every kind.
    Usual,
    /// One whose callers have no quota left.
    Limited,
    /// One that has no room for bodies left.
    Full,
    /// One whose store is known to be down.
    Down,
    /// One whose records are older than their retention.
    Old,
    /// One whose store was put back to an older copy of itself.
    Regressed,
    /// One whose callers are known by their credential.
    Credentials,
    /// One whose callers have asked too often.
    Busy,
    /// One that is asked about operations more often than anybody may.
    Asked,
    /// One with little room for replies left.
    Crowded,
    /// One whose upstream takes no connection.
    Unreachable,
}

macro_rules! way {
    ($name:literal, $at:ident, $status:literal, $($line:literal),+) => {
        Way { name: $name, head: concat!($($line, "\r\n"),+), status: $status, at: At::$at }
    };
}

pub(super) const WAYS: [Way; 41] = [
    way!("no key", Usual, 400, "POST /charges HTTP/1.1"),
    way!("a malformed key", Usual, 400, "POST /charges HTTP/1.1", "Idempotency-Key: short"),
    way!(
        "two keys",
        Usual,
        400,
        "POST /charges HTTP/1.1",
        "Idempotency-Key: one-00000000000001",
        "Idempotency-Key: two-00000000000001"
    ),
    way!(
        "a key that is taken away",
        Usual,
        400,
        "POST /charges HTTP/1.1",
        "Idempotency-Key: fresh-0000000000001",
        "Connection: Idempotency-Key"
    ),
    way!("a hidden method", Usual, 400, "PUT /charges HTTP/1.1", "X-HTTP-Method-Override: POST"),
    way!(
        "a key that is too old",
        Usual,
        400,
        "POST /young HTTP/1.1",
        "Idempotency-Key: fresh-0000000000001"
    ),
    way!(
        "no scope",
        Usual,
        401,
        "POST /charges HTTP/1.1",
        "Idempotency-Key: fresh-0000000000001",
        "No-Scope: 1"
    ),
    way!(
        "a body that is too large",
        Usual,
        413,
        "POST /small HTTP/1.1",
        "Idempotency-Key: small-0000000000001"
    ),
    way!("a replay", Usual, 200, "POST /charges HTTP/1.1", "Idempotency-Key: replay-000000000001"),
    way!(
        "a conflict",
        Usual,
        409,
        "POST /charges HTTP/1.1",
        "Idempotency-Key: held-00000000000001"
    ),
    way!(
        "a mismatch",
        Usual,
        422,
        "POST /charges HTTP/1.1",
        "Idempotency-Key: other-0000000000001"
    ),
    way!(
        "a reply that was not stored",
        Usual,
        410,
        "POST /forgets HTTP/1.1",
        "Idempotency-Key: forgets-0000000001"
    ),
    way!(
        "a duplicate that is accepted",
        Usual,
        202,
        "POST /accepts HTTP/1.1",
        "Idempotency-Key: held-accepts-000001"
    ),
    way!(
        "work that is queued",
        Usual,
        202,
        "POST /queues HTTP/1.1",
        "Idempotency-Key: held-queued-0000001"
    ),
    way!("a shadow", Usual, 200, "POST /shadow HTTP/1.1", "Idempotency-Key: shadow-000000000001"),
    way!("a shadow without a key", Usual, 200, "POST /shadow HTTP/1.1"),
    way!("a state", Usual, 200, "GET /.onceward/operations/replay-000000000001 HTTP/1.1"),
    way!("a state that nobody has", Usual, 404, "GET /.onceward/operations/nobody HTTP/1.1"),
    way!("a message that is not signed", Usual, 401, "POST /.onceward/webhooks/bank HTTP/1.1"),
    way!("a message for nobody", Usual, 404, "POST /.onceward/webhooks/nobody HTTP/1.1"),
    way!(
        "another protocol",
        Usual,
        501,
        "GET /chat HTTP/1.1",
        "Connection: upgrade",
        "Upgrade: websocket"
    ),
    way!("a streamed body", Usual, 200, "PUT /file HTTP/1.1"),
    way!(
        "a quota that is used up",
        Limited,
        429,
        "POST /charges HTTP/1.1",
        "Idempotency-Key: fresh-0000000000001"
    ),
    way!(
        "an expired key",
        Old,
        410,
        "POST /charges HTTP/1.1",
        "Idempotency-Key: expired-00000000001"
    ),
    way!(
        "an unknown outcome",
        Usual,
        409,
        "POST /dies HTTP/1.1",
        "Idempotency-Key: held-unknown-000001"
    ),
    way!(
        "a store that has lost something",
        Regressed,
        503,
        "POST /charges HTTP/1.1",
        "Idempotency-Key: fresh-0000000000001"
    ),
    way!(
        "a credential that will not last",
        Credentials,
        400,
        "POST /charges HTTP/1.1",
        "Idempotency-Key: fresh-0000000000001",
        "Authorization: Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"
    ),
    way!(
        "lookups that are used up",
        Busy,
        429,
        "POST /charges HTTP/1.1",
        "Idempotency-Key: replay-000000000001"
    ),
    way!(
        "questions that are used up",
        Busy,
        429,
        "GET /.onceward/operations/replay-000000000001 HTTP/1.1"
    ),
    way!("no room", Full, 503, "POST /charges HTTP/1.1", "Idempotency-Key: fresh-0000000000001"),
    way!(
        "a store that is down",
        Down,
        503,
        "POST /charges HTTP/1.1",
        "Idempotency-Key: fresh-0000000000001"
    ),
    way!("a tunnel", Usual, 405, "CONNECT x:443 HTTP/1.1"),
    way!("a message in another way", Usual, 405, "PUT /.onceward/webhooks/bank HTTP/1.1"),
    way!("a message that is too large", Usual, 413, "POST /.onceward/webhooks/bank HTTP/1.1"),
    way!(
        "a message that is signed and cannot be read",
        Usual,
        400,
        "POST /.onceward/webhooks/bank HTTP/1.1",
        "Signed: 1"
    ),
    way!(
        "a message that is taken",
        Usual,
        200,
        "POST /.onceward/webhooks/bank HTTP/1.1",
        "Signed: 1"
    ),
    way!(
        "questions of an address that are used up",
        Asked,
        429,
        "GET /.onceward/operations/nobody HTTP/1.1",
        "X-Forwarded-For: 192.0.2.7"
    ),
    way!(
        "a replay for which there is no room",
        Crowded,
        503,
        "POST /charges HTTP/1.1",
        "Idempotency-Key: large-0000000000001"
    ),
    way!(
        "an upstream that takes no connection",
        Unreachable,
        502,
        "POST /charges HTTP/1.1",
        "Idempotency-Key: fresh-0000000000001"
    ),
    way!("the same, unprotected", Unreachable, 502, "PUT /file HTTP/1.1"),
    way!(
        "accepted work that was given up",
        Unreachable,
        504,
        "POST /queues HTTP/1.1",
        "Idempotency-Key: given-up-000000001"
    ),
];

/// More than a message of the bank may have.
const TOO_LARGE: usize = (1 << 20) + 1;

pub(super) const ACCOUNT: &str = "X-Account: acme\r\n";

impl Way {
    pub(super) fn request(&self, headers: &str, body: &str) -> String {
        let account = if self.head.contains("No-Scope") { "" } else { ACCOUNT };
        let signed = match self.head.contains("Signed") {
            true => {
                format!("Onceward-Signature: {}\r\n", signature(SECRET, now(), &self.message()))
            }
            false => String::new(),
        };
        format!("{}Host: x\r\n{account}{signed}{headers}\r\n{body}", self.head)
    }

    /// The body that can be read.
    fn message(&self) -> String {
        match self.name {
            "a message that is too large" => format!("{}{HIDDEN}", "x".repeat(TOO_LARGE)),
            "a message that is taken" => {
                let scope = Scope::new("acme").expect("a scope");
                let key = Key::new("replay-000000000001").expect("a key");
                let operation = RecordId { scope, key }.handle();
                format!("{{\"operation\":\"{operation}\",\"status\":\"pending\"}}")
            }
            _ => HIDDEN.to_owned(),
        }
    }

    /// All that is said to be its body.
    pub(super) fn framings(&self) -> Vec<(String, String, String)> {
        framings_of(&self.message())
    }

    /// Status and code, if this is the first status for a body that can be read. Whoever has asked too
    /// often may ask again after a while, and finds an answer.
    pub(super) fn answers(&self, to: SocketAddr, request: &str) -> Option<String> {
        let times = if matches!(self.at, At::Busy | At::Asked) { 20 } else { 1 };
        (0..times).find_map(|_| {
            if self.at == At::Asked {
                ask_too_often(to);
            }
            let answer = send(to, request).expect("an answer");
            (answer.status == self.status).then(|| answer.summary())
        })
    }

    /// What makes it lead where it leads: the same with another body, if need be.
    pub(super) fn prepare(&self, gateway: &Gateway, body: &str) -> u16 {
        let request = self.request(&format!("Content-Length: {}\r\n", body.len()), body);
        send(gateway.address, &request).expect("an answer").status
    }
}
