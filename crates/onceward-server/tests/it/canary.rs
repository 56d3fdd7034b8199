//! A store that was put back to an older copy of itself, under the real binary.

use std::{fs, process::Output};

use onceward_testbed::Postgres;
use serde_json::Value;

use crate::support::{
    ALICE, Gateway, TOKEN, Upstream, admin, binary, document, eventually, get, ok, post, refusal,
};

const EARLY: &str = "order-0000000000000001";
const LATE: &str = "order-0000000000000002";

struct World {
    upstream: Upstream,
    folder: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        let upstream = Upstream::start(|_, _| ok("charged"));
        World { upstream, folder: tempfile::tempdir().expect("a folder") }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn gateway(&self) -> Gateway {
        Gateway::with(self.upstream.address, &self.settings("onceward.db", "canary"))
    }

    fn settings(&self, store: &str, canary: &str) -> String {
        let (url, canary) = (self.path(store), self.path(canary));
        format!("[store]\nurl = \"file:{url}\"\ncanary_file = \"{canary}\"\n{ALICE}")
    }

    /// One request to a gateway that then ends in good order.
    fn charge(&self, key: &str) {
        let mut gateway = self.gateway();
        assert_eq!(post(gateway.address, key, "{}", &[]).status, 200);
        gateway.signal("TERM");
        assert!(gateway.exit_status().success());
    }

    fn copy(&self, from: &str, to: &str) {
        fs::copy(self.path(from), self.path(to)).expect("a copy");
    }
}

fn store(gateway: &Gateway, line: &[&str]) -> (Option<i32>, String) {
    let mut command = binary();
    command.arg("store").args(line).env("ONCEWARD_ADMIN", format!("http://{}", gateway.admin));
    let ended: Output = command.env("ONCEWARD_ADMIN_TOKEN", TOKEN).output().expect("it ends");
    let said = [ended.stdout, ended.stderr].concat();
    (ended.status.code(), String::from_utf8(said).expect("text"))
}

fn metric(gateway: &Gateway, line: &str) -> bool {
    get(gateway.admin, "/metrics").text().lines().any(|there| there == line)
}

#[test]
pub(crate) fn a_store_that_was_put_back_runs_nothing_twice_until_an_operator_says_so() {
    let world = World::new();
    world.charge(EARLY);
    world.copy("onceward.db", "backup");
    world.charge(LATE);
    world.copy("backup", "onceward.db");
    let gateway = world.gateway();
    let refused = post(gateway.address, LATE, "{}", &[]);
    assert_eq!(refusal(&refused), (503, "idempotency_store_regressed".to_owned()));
    assert!(refused.header("retry-after").is_some());
    assert!(post(gateway.address, EARLY, "{}", &[]).is_replay());
    assert_eq!(world.upstream.count(), 2);
    assert!(metric(&gateway, "onceward_store_regressed 1"));
    assert!(metric(&gateway, "onceward_store_regressions_total 1"));
    let ready = get(gateway.admin, "/readyz");
    assert_eq!((ready.status, ready.text().contains("lost data")), (200, true));
    gateway.log_with("the store has lost data that it had acknowledged");
    let (code, said) = store(&gateway, &["status"]);
    assert_eq!((code, said.contains("are refused until")), (Some(2), true), "{said}");
    let told = document(&admin(&gateway, "GET", "/api/v1/regression", None));
    assert_eq!(told["regressed"], Value::Bool(true));
    let (code, said) = store(&gateway, &["acknowledge", "--reason", "ticket 10"]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(post(gateway.address, LATE, "{}", &[]).status, 200);
    assert_eq!(world.upstream.count(), 3);
    assert!(metric(&gateway, "onceward_store_regressed 0"));
    let (code, said) = store(&gateway, &["acknowledge", "--reason", "again"]);
    assert_eq!((code, said.contains("has not lost data")), (Some(1), true), "{said}");
    let audit = document(&admin(&gateway, "GET", "/api/v1/audit?scope=*", None)).to_string();
    assert!(audit.contains("store_regressed") && audit.contains("ticket 10"), "{audit}");
}

#[test]
fn a_store_that_lost_nothing_serves_after_a_restart() {
    let world = World::new();
    world.charge(EARLY);
    let gateway = world.gateway();
    assert!(post(gateway.address, EARLY, "{}", &[]).is_replay());
    assert_eq!(post(gateway.address, LATE, "{}", &[]).status, 200);
    assert!(metric(&gateway, "onceward_store_regressed 0"));
    let (code, said) = store(&gateway, &["status", "-o", "json"]);
    assert_eq!((code, said.contains("\"regressed\": false")), (Some(0), true), "{said}");
    assert_eq!(get(gateway.admin, "/readyz").text(), "ready\n");
}

#[test]
fn a_second_process_on_one_canary_file_does_not_start() {
    let world = World::new();
    let mut first = world.gateway();
    let start = |store: &str, canary: &str| {
        let config = world.path("second.toml");
        let settings = world.settings(store, canary);
        let head = "config_version = 1\n[gateway]\nupstream = \"http://127.0.0.1:9\"\n\
                    [scope]\nfrom = \"anonymous\"\n";
        fs::write(&config, format!("{head}{settings}")).expect("written");
        let mut command = binary();
        let ports = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        command.args(["serve", "--config", &config]).args(ports);
        command
    };
    // Whatever store it is for: a node is one process.
    let refused = start("other.db", "canary").output().expect("it ends");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("store.canary_file") && said.contains("another process"), "{said}");
    let _own = Gateway::start(&mut start("onceward.db", "another"));
    // The lock is gone with its process, however that ended.
    first.signal("KILL");
    assert!(!first.exit_status().success());
    let _next = Gateway::start(&mut start("onceward.db", "canary"));
}

/// A database that can be put back to what it was, under whoever uses it.
struct Restorable<'a> {
    server: &'static Postgres,
    name: &'a str,
}

impl Restorable<'_> {
    fn psql(&self, sql: &str) {
        self.server.psql("postgres", &sql.replace("DB", self.name));
    }

    /// Nobody is connected, and nobody can be.
    fn close(&self) {
        self.psql("ALTER DATABASE DB ALLOW_CONNECTIONS false");
        self.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'DB'");
    }

    fn back_up(&self) {
        self.close();
        self.psql("CREATE DATABASE DB_backup TEMPLATE DB");
        self.psql("ALTER DATABASE DB ALLOW_CONNECTIONS true");
    }

    fn restore(&self) {
        self.close();
        self.psql("DROP DATABASE DB WITH (FORCE)");
        self.psql("ALTER DATABASE DB_backup RENAME TO DB");
    }
}

#[test]
fn a_database_that_was_restored_under_a_running_gateway_runs_nothing_twice() {
    let world = World::new();
    let server = Postgres::shared();
    let database = server.create_database();
    let backup = Restorable { server, name: database.name() };
    let (url, canary) = (database.url(), world.path("canary"));
    let toml = format!("[store]\nurl = \"{url}\"\ncanary_file = \"{canary}\"\n{ALICE}");
    let gateway = Gateway::with(world.upstream.address, &toml);
    let charge = |key: &str| post(gateway.address, key, "{}", &[]);
    assert_eq!(charge(EARLY).status, 200);
    backup.back_up();
    assert_eq!(charge(LATE).status, 200);
    assert_eq!(store(&gateway, &["status"]).0, Some(0), "nothing is lost yet");
    backup.restore();
    assert_eq!(refusal(&charge(LATE)), (503, "idempotency_store_regressed".to_owned()));
    assert!(charge(EARLY).is_replay());
    assert_eq!(world.upstream.count(), 2, "nothing ran twice");
    let (code, said) = store(&gateway, &["status"]);
    assert_eq!((code, said.contains("are refused until")), (Some(2), true), "{said}");
    // A day later nobody has looked into it.
    database.psql("UPDATE onceward.regressions SET found = found - 25 * 3600000000");
    let (code, said) = store(&gateway, &["status"]);
    assert_eq!((code, said.contains("nobody has acknowledged")), (Some(0), true), "{said}");
    assert!(said.contains("was over at") && !said.contains("has all"), "{said}");
    database.psql("UPDATE onceward.regressions SET found = found + 25 * 3600000000");
    assert_eq!(store(&gateway, &["status"]).0, Some(2));
    let (code, said) = store(&gateway, &["acknowledge", "--reason", "compared with the bank"]);
    assert_eq!((code, said.contains("Acknowledged")), (Some(0), true), "{said}");
    let ran = eventually("the key is free again", || {
        let answer = charge(LATE);
        (answer.status == 200).then_some(answer)
    });
    assert!(!ran.is_replay());
    assert_eq!(world.upstream.count(), 3, "an operator said so");
    let (code, said) = store(&gateway, &["status"]);
    assert_eq!((code, said.contains("has all")), (Some(0), true), "{said}");
}
