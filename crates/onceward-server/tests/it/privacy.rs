//! What is in the store: sealed replies, hashed keys, erased tenants.

use std::{net::SocketAddr, process::Output};

use serde_json::{Value, json};

use crate::support::{
    Answer, Gateway, Home, TOKEN, Upstream, admin, binary, document, ok, on_each_durable_store,
    on_each_store, post, refusal, send,
};

const KEY: &str = "marked-key-0000000001";
const OTHER: &str = "marked-key-0000000002";
const REPLY: &str = "{\"card\":\"marked-reply\"}";
const ACME: &str = "X-Account: acme";
const EVIL: &str = "X-Account: evil";
const SCOPE: &str = "[scope]\nfrom = \"header:X-Account\"\n";

/// A secret made of one letter, 32 times.
fn secret(letter: char) -> &'static str {
    match letter {
        'a' => "YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE=",
        'b' => "YmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmI=",
        _ => panic!("no such secret"),
    }
}

/// `[privacy]` with the keys of these letters.
fn sealing(letters: &str) -> String {
    let key = |letter| format!("{{ id = \"{letter}\", secret = \"{}\" }}", secret(letter));
    let keys: Vec<String> = letters.chars().map(key).collect();
    format!("[privacy]\nkeys = [{}]\n", keys.join(", "))
}

on_each_store!(
    what_is_sealed_and_hashed_is_replayed_and_other_callers_do_not_meet_it,
    one_tenant_is_erased_and_the_other_still_replays,
);

on_each_durable_store!(
    a_sealed_reply_is_not_in_the_store_and_a_plain_one_is,
    keys_of_the_ring_are_rotated_and_an_old_one_is_missed_when_it_is_gone,
    a_hashed_key_is_nowhere_in_the_store_and_upstream_and_operators_still_know_it,
    a_start_without_the_secret_or_with_another_one_is_refused,
);

struct World<'h> {
    upstream: Upstream,
    home: &'h Home,
}

impl World<'_> {
    fn new(home: &Home) -> World<'_> {
        World { upstream: Upstream::start(|_, _| ok(REPLY)), home }
    }

    /// A gateway on the store of this world.
    fn gateway(&self, toml: &str) -> Gateway {
        self.home.gateway(&self.upstream, &format!("{SCOPE}{toml}"))
    }
}

fn charge(to: SocketAddr, key: &str, account: &str) -> Answer {
    post(to, key, "{}", &[account])
}

fn operate(gateway: &Gateway, line: &[&str]) -> Output {
    let mut command = binary();
    command.args(line).env("ONCEWARD_ADMIN", format!("http://{}", gateway.admin));
    command.env("ONCEWARD_ADMIN_TOKEN", TOKEN).output().expect("it ends")
}

fn said(gateway: &Gateway, line: &[&str]) -> String {
    let output = operate(gateway, line);
    let complained = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{line:?}: {complained}");
    String::from_utf8(output.stdout).expect("text")
}

fn a_sealed_reply_is_not_in_the_store_and_a_plain_one_is(home: &Home) {
    let world = World::new(home);
    for (toml, key, is_there) in [(sealing("a"), KEY, false), (String::new(), OTHER, true)] {
        let gateway = world.gateway(&toml);
        let first = charge(gateway.address, key, ACME);
        assert_eq!((first.status, first.text()), (200, REPLY));
        let retry = charge(gateway.address, key, ACME);
        assert!(retry.is_replay());
        assert_eq!(retry.body, first.body);
        assert_eq!(retry.header("content-type"), Some("application/json"));
        assert_eq!(retry.header("onceward-sealed"), None);
        assert_eq!(home.holds("marked-reply"), is_there);
        assert!(home.holds(key), "keys are hashed only where that is asked for");
        let shown = document(&admin(&gateway, "GET", "/api/v1/keys?scope=acme", None));
        assert_eq!(shown["records"][0]["state"], "completed");
    }
}

fn what_is_sealed_and_hashed_is_replayed_and_other_callers_do_not_meet_it(home: &Home) {
    let world = World::new(home);
    let gateway =
        world.gateway(&format!("{}hash_keys = \"a secret of some length\"\n", sealing("a")));
    for account in [ACME, EVIL] {
        assert!(!charge(gateway.address, KEY, account).is_replay(), "{account}");
        let retry = charge(gateway.address, KEY, account);
        assert_eq!((retry.text(), retry.is_replay()), (REPLY, true), "{account}");
    }
    let other = post(gateway.address, KEY, "[]", &[ACME]);
    assert_eq!(other.summary(), "422 idempotency_key_reused_with_different_payload");
    let asked = format!("GET /.onceward/operations/{KEY} HTTP/1.1\r\nHost: x\r\n{ACME}\r\n\r\n");
    let state = send(gateway.address, &asked).expect("an answer");
    assert!(state.text().contains("\"completed\""), "{}", state.text());
    assert_eq!(world.upstream.count(), 2);
}

#[test]
fn a_sealed_reply_is_not_in_the_table_and_moved_by_sql_it_is_refused() {
    let home = Home::postgres();
    let database = home.database().expect("one of its own");
    let world = World::new(&home);
    let gateway = world.gateway(&sealing("a"));
    for (key, account) in [(KEY, ACME), (OTHER, ACME), (KEY, EVIL)] {
        assert_eq!(charge(gateway.address, key, account).text(), REPLY);
        assert!(charge(gateway.address, key, account).is_replay());
    }
    let dump = database.psql(
        "SELECT encode(reply_headers, 'escape'), encode(reply_body, 'escape') FROM onceward.records \
         UNION ALL SELECT path, last_error FROM onceward.records",
    );
    assert!(dump.contains("onceward-sealed/1") && !dump.contains("marked-reply"), "{dump}");
    // All replies move on by one record.
    database.psql(
        "UPDATE onceward.records r SET reply_body = o.reply_body, reply_headers = o.reply_headers \
         FROM onceward.records o WHERE o.record_id = coalesce(\
             (SELECT min(n.record_id) FROM onceward.records n WHERE n.record_id > r.record_id), \
             (SELECT min(n.record_id) FROM onceward.records n))",
    );
    for (key, account) in [(KEY, ACME), (OTHER, ACME), (KEY, EVIL)] {
        let refused = charge(gateway.address, key, account);
        assert_eq!(refused.summary(), "503 idempotency_store_unavailable");
    }
    gateway.log_with("moved here");
    assert_eq!(world.upstream.count(), 3, "and nothing is run again");
    let fresh = charge(gateway.address, "marked-key-0000000003", ACME);
    assert_eq!(fresh.text(), REPLY, "other keys go on");
}

fn keys_of_the_ring_are_rotated_and_an_old_one_is_missed_when_it_is_gone(home: &Home) {
    let world = World::new(home);
    let plain = "marked-key-0000000000";
    charge(world.gateway("").address, plain, ACME);
    charge(world.gateway(&sealing("a")).address, KEY, ACME);
    let gateway = world.gateway(&sealing("ba"));
    assert!(charge(gateway.address, KEY, ACME).is_replay());
    assert!(charge(gateway.address, plain, ACME).is_replay(), "stored before sealing");
    charge(gateway.address, OTHER, ACME);
    drop(gateway);
    let gateway = world.gateway(&sealing("b"));
    let missed = charge(gateway.address, KEY, ACME);
    assert_eq!(missed.summary(), "503 idempotency_store_unavailable");
    gateway.log_with("ring key `a` is not in the key ring");
    assert!(charge(gateway.address, OTHER, ACME).is_replay());
    drop(gateway);
    // Without any key, sealed replies are not sent as they are.
    let gateway = world.gateway("");
    let missed = charge(gateway.address, OTHER, ACME);
    assert_eq!(missed.summary(), "503 idempotency_store_unavailable");
    assert_eq!(world.upstream.count(), 3);
}

fn one_tenant_is_erased_and_the_other_still_replays(home: &Home) {
    let world = World::new(home);
    let gateway = world.gateway(&sealing("a"));
    for account in [ACME, EVIL] {
        charge(gateway.address, KEY, account);
    }
    let erase = ["privacy", "erase", "--scope", "acme", "--reason", "ticket 9"];
    let planned = said(&gateway, &erase);
    assert!(planned.contains("nothing was changed yet"), "{planned}");
    assert!(charge(gateway.address, KEY, ACME).is_replay());
    let erased = said(&gateway, &[&erase[..], &["--apply"]].concat());
    assert!(erased.contains("were dropped"), "{erased}");
    let told = charge(gateway.address, KEY, ACME);
    assert_eq!(told.summary(), "410 idempotency_reply_not_stored");
    let told: Value = serde_json::from_str(told.text()).expect("JSON");
    assert_eq!(told["original_status"], 200);
    assert!(charge(gateway.address, KEY, EVIL).is_replay());
    assert_eq!(world.upstream.count(), 2);
    charge(gateway.address, OTHER, ACME);
    assert!(charge(gateway.address, OTHER, ACME).is_replay(), "the tenant goes on");
    let audit = document(&admin(&gateway, "GET", "/api/v1/audit?event=erased", None));
    let [remembered] = &audit["records"].as_array().expect("records")[..] else {
        panic!("{audit}");
    };
    assert_eq!((&remembered["scope"], &remembered["key"]), (&json!("acme"), &json!("*")));
    assert_eq!(remembered["reason"], "alice: ticket 9");
    // Whoever looked at other data keys than those there are now erases nothing.
    let stale = json!({ "scope": "evil", "reason": "ticket 9", "hash": "00" });
    let stale = admin(&gateway, "POST", "/api/v1/erasures", Some(&stale));
    assert_eq!(refusal(&stale), (409, "plan_changed".to_owned()));
    assert!(charge(gateway.address, KEY, EVIL).is_replay());
}

const HASHING: &str = "[privacy]\nhash_keys = \"a secret of some length\"\n";

fn a_hashed_key_is_nowhere_in_the_store_and_upstream_and_operators_still_know_it(home: &Home) {
    let world = World::new(home);
    let gateway = world.gateway(HASHING);
    charge(gateway.address, KEY, ACME);
    assert!(charge(gateway.address, KEY, ACME).is_replay());
    assert_eq!(world.upstream.seen()[0].header("idempotency-key"), Some(KEY));
    assert!(home.holds("hmac-sha256:") && !home.holds(KEY));
    let listed = document(&admin(&gateway, "GET", "/api/v1/keys", None));
    let stored = listed["records"][0]["key"].as_str().expect("a key").to_owned();
    assert!(stored.starts_with("hmac-sha256:"), "{stored}");
    // By the client's own key, and as it was listed.
    for key in [KEY, &stored] {
        let shown = said(&gateway, &["keys", "show", "--scope", "acme", "--key", key]);
        assert!(shown.contains("completed"), "{shown}");
        let path = format!("/api/v1/keys?key={}", key.replace(':', "%3A"));
        let listed = document(&admin(&gateway, "GET", &path, None));
        assert_eq!(listed["records"].as_array().map(Vec::len), Some(1), "{key}");
    }
    let none = operate(&gateway, &["keys", "show", "--scope", "acme", "--key", "marked-key-0002"]);
    assert!(!none.status.success());
    // A client cannot name a stored key: it is one more key.
    assert!(!charge(gateway.address, &stored, ACME).is_replay());
}

fn a_start_without_the_secret_or_with_another_one_is_refused(home: &Home) {
    let world = World::new(home);
    charge(world.gateway(HASHING).address, KEY, ACME);
    let other = "[privacy]\nhash_keys = \"another secret of some length\"\n";
    for toml in ["", other] {
        let refused = start(&world, toml);
        assert!(refused.contains("privacy.hash_keys"), "{refused}");
    }
    assert!(charge(world.gateway(HASHING).address, KEY, ACME).is_replay());
}

/// What a start that fails complains about.
fn start(world: &World<'_>, toml: &str) -> String {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let upstream = world.upstream.address;
    let settings = world.home.settings(&format!("{SCOPE}{toml}"));
    let toml =
        format!("config_version = 1\n[gateway]\nupstream = \"http://{upstream}\"\n{settings}");
    std::fs::write(file.path(), toml).expect("written");
    let mut command = binary();
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config"]);
    let output = command.arg(file.path()).output().expect("it ends");
    assert_eq!(output.status.code(), Some(2));
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn bad_secrets_are_refused_and_never_shown() {
    let home = Home::file();
    let world = World::new(&home);
    for (toml, word) in [
        ("[privacy]\nkeys = [{ id = \"a\", secret = \"marked-secret\" }]\n", "new-key"),
        ("[privacy]\nhash_keys = \"marked-secret\"\n", "16 bytes"),
        (&sealing("aa"), "two keys of the ring have the id `a`"),
    ] {
        let refused = start(&world, toml);
        assert!(refused.contains(word) && !refused.contains("marked-secret"), "{refused}");
    }
    let file = tempfile::NamedTempFile::new().expect("a file");
    let toml = format!(
        "config_version = 1\n[gateway]\nupstream = \"http://127.0.0.1:9\"\n{}hash_keys = \"a \
         secret of some length\"\n",
        sealing("ab")
    );
    std::fs::write(file.path(), toml).expect("written");
    for output in ["table", "json"] {
        let mut command = binary();
        let shown = command.args(["config", "show", "-o", output]).arg(file.path()).output();
        let shown = String::from_utf8(shown.expect("it ends").stdout).expect("text");
        assert!(shown.contains("hash_keys") && shown.contains("***"), "{shown}");
        for hidden in [secret('a'), secret('b'), "some length"] {
            assert!(!shown.contains(hidden), "{shown}");
        }
    }
    let key = binary().args(["privacy", "new-key"]).output().expect("it ends").stdout;
    assert_eq!(key.len(), 45, "32 bytes in base64, and a line break");
}
