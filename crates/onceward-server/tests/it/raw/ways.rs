//! Ways in which the gateway answers, most of them before a body was read.

use std::{net::SocketAddr, path::Path, thread};

use onceward_testbed::CutProxy;
use tempfile::TempDir;

use super::{HIDDEN, first_status, strict::Strict};
use crate::support::{Gate, Gateway, Home, eventually, get, post, send};

/// A way in which the gateway answers, as the first lines of a request.
pub(super) struct Way {
    pub(super) name: &'static str,
    head: &'static str,
    /// The first status for a body that can be read.
    pub(super) status: u16,
    at: At,
}

/// Where a way leads along.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
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
}

macro_rules! way {
    ($name:literal, $at:ident, $status:literal, $($line:literal),+) => {
        Way { name: $name, head: concat!($($line, "\r\n"),+), status: $status, at: At::$at }
    };
}

pub(super) const WAYS: [Way; 31] = [
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
];

const ACCOUNT: &str = "X-Account: acme\r\n";

impl Way {
    pub(super) fn request(&self, headers: &str, body: &str) -> String {
        let account = if self.head.contains("No-Scope") { "" } else { ACCOUNT };
        format!("{}Host: x\r\n{account}{headers}\r\n{body}", self.head)
    }

    /// Whether this is the first status for a body that can be read. Whoever has asked too often may ask
    /// again after a second, and finds a reply.
    pub(super) fn answers(&self, to: SocketAddr, request: &str) -> bool {
        let is_so = || first_status(to, request.as_bytes()) == self.status;
        is_so() || (self.at == At::Busy && (0..20).any(|_| is_so()))
    }

    /// What makes it lead where it leads: the same with another body, if need be.
    fn prepare(&self, gateway: &Gateway, body: &str) -> u16 {
        let request = self.request(&format!("Content-Length: {}\r\n", body.len()), body);
        send(gateway.address, &request).expect("an answer").status
    }
}

/// Gateways before one upstream, with the records that the ways need.
pub(super) struct World {
    usual: Gateway,
    limited: Gateway,
    full: Gateway,
    down: Gateway,
    old: Gateway,
    regressed: Gateway,
    credentials: Gateway,
    busy: Gateway,
    homes: [Home; 2],
    _folder: TempDir,
    proxy: CutProxy,
}

/// What is held is held until all is over.
const SETTINGS: &str = "[scope]\nfrom = \"header:X-Account\"\n\
    [defaults]\nlease = \"5m\"\nmax_execution = \"5m\"\n[limits]\nhead_timeout = \"5s\"\n";

const ROUTES: &str = r#"
[[route]]
match = "POST /young"
max_request_age = "1h"
[[route]]
match = "POST /small"
request_bytes_max = 10
[[route]]
match = "POST /forgets"
reply_bytes_max = 1
[[route]]
match = "POST /accepts"
in_flight = "accepted"
[[route]]
match = "POST /queues"
execution = "queued"
[[route]]
match = "POST /dies"
lease = "1s"
max_execution = "1s"
[[route]]
match = "POST /shadow"
key = "shadow"
[[webhook]]
name = "bank"
secret = "secret-of-the-bank-0123"
operation = "/operation"
attempt = "/attempt"
routes = ["default"]
outcome = "/status"
completed = ["succeeded"]
"#;

impl World {
    pub(super) fn start(upstream: &Strict, gate: &Gate) -> World {
        let with = |more: &str| Gateway::with(upstream.address(), &format!("{SETTINGS}{more}"));
        let (home, aging) = (Home::postgres(), Home::file());
        let (proxy, url) = home.through_a_proxy();
        let folder = tempfile::tempdir().expect("a folder");
        let world = World {
            usual: with(ROUTES),
            limited: with("[quota]\nactive = 1\n"),
            // With a body as large as those of the corpus, and what each request takes besides.
            full: with("buffered_bytes = 6000\n"),
            down: with(&format!("[store]\nurl = \"{url}\"\n")),
            old: with(&aging.settings("")),
            regressed: put_back(folder.path(), &with),
            credentials: Gateway::with(upstream.address(), "[scope]\nfrom = \"authorization\"\n"),
            busy: with("[quota]\nlookups_per_second = 1\n"),
            homes: [home, aging],
            _folder: folder,
            proxy,
        };
        for way in &WAYS {
            match way.name {
                "a replay" | "a reply that was not stored" => {
                    assert_eq!(way.prepare(&world.usual, HIDDEN), 200);
                }
                "a mismatch" => assert_eq!(way.prepare(&world.usual, "other"), 200),
                "work that is queued" => assert_eq!(way.prepare(&world.usual, HIDDEN), 202),
                "an unknown outcome" => assert_eq!(way.prepare(&world.usual, HIDDEN), 504),
                "lookups that are used up" => assert_eq!(way.prepare(&world.busy, HIDDEN), 200),
                "an expired key" => {
                    assert_eq!(way.prepare(&world.old, HIDDEN), 200);
                    world.homes[1].age(2);
                }
                _ => {}
            }
        }
        let held = ["a conflict", "a duplicate that is accepted"];
        let held = WAYS.iter().filter(|way| held.contains(&way.name));
        let held = held.map(|way| (way, world.usual.address, HIDDEN.to_owned()));
        // They take what the others then lack.
        let taking = [At::Limited, At::Full].map(|at| {
            let way = WAYS.iter().find(|way| way.at == at).expect("a way");
            (way, world.address(way), "x".repeat(1_000))
        });
        for (way, to, body) in held.chain(taking) {
            let headers = format!("Content-Length: {}\r\n", body.len());
            let request = way.request(&headers, &body).replace("fresh-", "held-");
            thread::spawn(move || send(to, &request));
        }
        gate.reached_by(6);
        world.take_the_store_away();
        world
    }

    /// Until the breaker knows it: when some requests have waited in vain.
    fn take_the_store_away(&self) {
        self.proxy.lead_to(None);
        self.proxy.cut();
        let down = WAYS.iter().find(|way| way.at == At::Down).expect("a way");
        let request = down.request("Content-Length: 0\r\n", "");
        let to = self.down.address;
        eventually("a breaker that is open", || {
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| assert_eq!(first_status(to, request.as_bytes()), 503));
                }
            });
            get(self.down.admin, "/readyz").text().contains("breaker").then_some(())
        });
    }

    pub(super) fn address(&self, way: &Way) -> SocketAddr {
        match way.at {
            At::Usual => self.usual.address,
            At::Limited => self.limited.address,
            At::Full => self.full.address,
            At::Down => self.down.address,
            At::Old => self.old.address,
            At::Regressed => self.regressed.address,
            At::Credentials => self.credentials.address,
            At::Busy => self.busy.address,
        }
    }

    pub(super) fn gateways(&self) -> [&Gateway; 8] {
        let World { usual, limited, full, down, old, regressed, credentials, busy, .. } = self;
        [usual, limited, full, down, old, regressed, credentials, busy]
    }
}

/// A gateway that finds its file as it was before the last reply.
fn put_back(folder: &Path, with: &impl Fn(&str) -> Gateway) -> Gateway {
    let [file, copy, canary] = ["x.db", "copy.db", "canary"].map(|name| folder.join(name));
    let settings = format!(
        "[store]\nurl = \"file:{}\"\ncanary_file = \"{}\"\n",
        file.display(),
        canary.display()
    );
    let charge = |key: &str| {
        let mut gateway = with(&settings);
        let account = ACCOUNT.trim_end();
        assert_eq!(post(gateway.address, key, "{}", &[account]).status, 200);
        gateway.signal("TERM");
        assert!(gateway.exit_status().success());
    };
    charge("early-00000000000001");
    std::fs::copy(&file, &copy).expect("a copy");
    charge("late-000000000000001");
    std::fs::copy(&copy, &file).expect("a copy");
    with(&settings)
}
