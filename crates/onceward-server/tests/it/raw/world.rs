//! Gateways of every kind, and what was done before.

use std::{net::SocketAddr, path::Path, thread};

use onceward_testbed::CutProxy;
use tempfile::TempDir;

use super::{
    HIDDEN, first_status,
    strict::Strict,
    ways::{ACCOUNT, At, WAYS, Way},
};
use crate::support::{Connection, Gate, Gateway, Home, eventually, get, nowhere, post, send};

/// What the bank signs with.
pub(super) const SECRET: &str = "secret-of-the-bank-0123";

/// More questions at once than an address may ask, each scope fewer than it may.
pub(super) fn ask_too_often(to: SocketAddr) {
    let question = |number: usize| {
        let scope = number % 10;
        format!(
            "GET /.onceward/operations/nobody HTTP/1.1\r\nHost: x\r\nX-Account: a{scope}\r\n\
             X-Forwarded-For: 192.0.2.7\r\n\r\n"
        )
    };
    let mut connection = Connection::open(to).expect("connected");
    let all: String = (0..250).map(question).collect();
    connection.write(all.as_bytes()).expect("written");
    for _ in 0..250 {
        connection.read_answer().expect("an answer");
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
    asked: Gateway,
    crowded: Gateway,
    unreachable: Gateway,
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

/// Of what is given up soon.
const GIVEN_UP: &str = "[[route]]\nmatch = \"POST /queues\"\nexecution = \"queued\"\n\
    queued_for = \"1s\"\n[workers]\nsweep_every = \"1s\"\n";

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
            asked: with(""),
            // For a large reply or for a request that is held, and not for both.
            crowded: with("buffered_bytes = 20000\n"),
            unreachable: Gateway::with(nowhere(), &format!("{SETTINGS}{GIVEN_UP}")),
            homes: [home, aging],
            _folder: folder,
            proxy,
        };
        world.prepare();
        world.hold(gate);
        world.take_the_store_away();
        world
    }

    /// Records of what was done before.
    fn prepare(&self) {
        for way in &WAYS {
            let done = |gateway: &Gateway| way.prepare(gateway, HIDDEN);
            match way.name {
                "a replay" | "a reply that was not stored" => assert_eq!(done(&self.usual), 200),
                "a mismatch" => assert_eq!(way.prepare(&self.usual, "other"), 200),
                "work that is queued" => assert_eq!(done(&self.usual), 202),
                "an unknown outcome" => assert_eq!(done(&self.usual), 504),
                "lookups that are used up" => assert_eq!(done(&self.busy), 200),
                "a replay for which there is no room" => assert_eq!(done(&self.crowded), 200),
                "accepted work that was given up" => {
                    assert_eq!(done(&self.unreachable), 202);
                    eventually("its end", || (done(&self.unreachable) == 504).then_some(()));
                }
                "an expired key" => {
                    assert_eq!(done(&self.old), 200);
                    self.homes[1].age(2);
                }
                _ => {}
            }
        }
    }

    /// Requests that are at work until the gate opens. Some take what the others then lack.
    fn hold(&self, gate: &Gate) {
        let held = ["a conflict", "a duplicate that is accepted"];
        let held = WAYS.iter().filter(|way| held.contains(&way.name));
        let held = held.map(|way| (way, self.usual.address, HIDDEN.to_owned()));
        let taking = [(At::Limited, 1_000), (At::Full, 1_000), (At::Crowded, 4_000)];
        let taking = taking.map(|(at, bytes)| {
            let way = WAYS.iter().find(|way| way.at == at).expect("a way");
            (way, self.address(way), "x".repeat(bytes))
        });
        for (way, to, body) in held.chain(taking) {
            let headers = format!("Content-Length: {}\r\n", body.len());
            let request = way.request(&headers, &body);
            let request = request.replace("fresh-", "held-").replace("large-", "held-");
            thread::spawn(move || send(to, &request));
        }
        gate.reached_by(7);
        // There is room for what is small.
        let small = post(self.crowded.address, "small-0000000000001", "{}", &[ACCOUNT.trim_end()]);
        assert_eq!(small.status, 200);
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
            At::Asked => self.asked.address,
            At::Crowded => self.crowded.address,
            At::Unreachable => self.unreachable.address,
        }
    }

    /// All of them, each with what it answers to whoever has no key.
    pub(super) fn gateways(&self) -> [(&Gateway, u16); 11] {
        let World { usual, limited, full, down, old, regressed, .. } = self;
        let World { credentials, busy, asked, crowded, unreachable, .. } = self;
        [
            (usual, 200),
            (limited, 200),
            (full, 200),
            (down, 200),
            (old, 200),
            (regressed, 200),
            (credentials, 200),
            (busy, 200),
            (asked, 200),
            (crowded, 200),
            (unreachable, 502),
        ]
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
