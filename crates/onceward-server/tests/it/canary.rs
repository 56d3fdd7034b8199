//! A store that was put back to an older copy of itself, under the real binary.

use std::{fs, process::Output};

use serde_json::Value;

use crate::support::{
    ALICE, Gateway, TOKEN, Upstream, admin, binary, document, get, ok, post, refusal,
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
        let (url, canary) = (self.path("onceward.db"), self.path("canary"));
        let toml = format!("[store]\nurl = \"file:{url}\"\ncanary_file = \"{canary}\"\n{ALICE}");
        Gateway::with(self.upstream.address, &toml)
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
fn a_store_that_was_put_back_runs_nothing_twice_until_an_operator_says_so() {
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
    assert!(gateway.log().contains("the store has lost data that it had acknowledged"));
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
