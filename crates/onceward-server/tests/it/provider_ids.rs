//! Provider ids through the real binary on real stores: told by upstream, noted while its answer is still
//! on its way, and found by the provider's own messages and exports.

use std::{
    sync::{Arc, Mutex},
    thread,
};

use serde_json::Value;

use crate::{
    reconciling::{command, now, signature, tell},
    support::{
        Act, Gate, Gateway, Home, Upstream, admin, binary, document, eventually, post, request,
        response, send,
    },
};

const KEY: &str = "order-0000000000000001";
const OTHER: &str = "order-0000000000000002";
const SECRET: &str = "secret-of-the-bank-0123";

const WEBHOOK: &str = r#"
[[webhook]]
name = "bank"
secret = "secret-of-the-bank-0123"
provider_id = "/data/id"
provider = "bank"
routes = ["default"]
outcome = "/status"
completed = ["succeeded"]
reply_status = 201
reply_body = "/data"
"#;

/// A bank that says at once what it calls a charge, and may take its time for the rest.
struct Bank {
    upstream: Upstream,
    gate: Gate,
    /// The id that it gives, and whether it holds up the rest of its answer.
    next: Arc<Mutex<(String, bool)>>,
}

impl Bank {
    fn start() -> Bank {
        let (gate, next) = (Gate::default(), Arc::<Mutex<(String, bool)>>::default());
        let (at_gate, given) = (gate.clone(), Arc::clone(&next));
        let upstream = Upstream::start(move |_, seen| {
            assert_eq!(seen.header("onceward-provider-id"), None, "nobody tells upstream");
            let (id, held) = given.lock().expect("not poisoned").clone();
            let headers =
                format!("Content-Type: application/json\r\nOnceward-Provider-Id: {id}\r\n");
            let whole = response(201, &headers, "{\"charged\":true}");
            if !held {
                return Act::Send(whole);
            }
            let (head, rest) = whole.split_at(whole.len() - 4);
            Act::SendLater(head.to_vec(), at_gate.clone(), rest.to_vec())
        });
        Bank { upstream, gate, next }
    }

    fn gives(&self, id: &str, held: bool) {
        *self.next.lock().expect("not poisoned") = (id.to_owned(), held);
    }
}

fn gateway(home: &Home, bank: &Bank, toml: &str) -> Gateway {
    let defaults = "[defaults]\neffects = \"external\"\nlease = \"1s\"\n";
    home.gateway(&bank.upstream, &format!("{defaults}{toml}"))
}

/// The record that the bank calls so.
fn found(gateway: &Gateway, id: &str) -> Option<Value> {
    let path = format!("/api/v1/keys?provider_id={}", id.replace(' ', "%20"));
    let listed = document(&admin(gateway, "GET", &path, None));
    let records = listed["records"].as_array().expect("records").clone();
    assert!(records.len() < 2, "{records:?}");
    records.into_iter().next()
}

fn message(id: &str, status: &str) -> String {
    format!(r#"{{"data":{{"id":"{id}", "amount": 10.10}},"status":"{status}"}}"#)
}

fn signed(gateway: &Gateway, body: &str) -> u16 {
    tell(gateway, "bank", body, &signature(SECRET, now(), body)).status
}

/// The gateway is killed -9 when upstream has told its provider's id and not yet all of its answer.
fn killed_after_the_id_was_noted(home: &Home, bank: &Bank) {
    let gateway = gateway(home, bank, "");
    let address = gateway.address;
    bank.gives("bank ch_1", true);
    let client = thread::spawn(move || send(address, &request(address, KEY, "{}", &[])));
    bank.gate.reached_by(1);
    let record = eventually("the provider id", || found(&gateway, "bank ch_1"));
    assert_eq!((&record["key"], &record["state"]), (&KEY.into(), &"in_progress".into()));
    gateway.signal("KILL");
    drop(gateway);
    assert!(client.join().expect("it ends").is_err(), "the client was not answered");
}

#[test]
fn a_message_with_the_provider_id_resolves_what_a_killed_gateway_left() {
    for home in Home::durable() {
        let bank = Bank::start();
        killed_after_the_id_was_noted(&home, &bank);
        let next = gateway(&home, &bank, WEBHOOK);
        let good = message("ch_1", "succeeded");
        eventually("an unknown outcome", || {
            let answer = post(next.address, KEY, "{}", &[]);
            (answer.summary() == "409 idempotency_outcome_unknown").then_some(())
        });
        // Forged, of no operation, without an id, and about what is still going on.
        let forged = signature("another-secret-012345", now(), &good);
        assert_eq!(tell(&next, "bank", &good, &forged).status, 401);
        for (bad, status) in [
            (message("ch_2", "succeeded"), 404),
            (message("CH_1", "succeeded"), 404),
            (message("", "succeeded"), 404),
            (message("bank ch_1", "succeeded"), 404),
            (r#"{"status":"succeeded"}"#.to_owned(), 404),
            (message("ch_1", "processing"), 200),
        ] {
            assert_eq!(signed(&next, &bad), status, "{bad}");
        }
        let still = post(next.address, KEY, "{}", &[]);
        assert_eq!(still.summary(), "409 idempotency_outcome_unknown");

        assert_eq!(signed(&next, &good), 200);
        let reply = post(next.address, KEY, "{}", &[]);
        assert_eq!((reply.status, reply.is_replay()), (201, true));
        assert_eq!(reply.text(), r#"{"id":"ch_1", "amount": 10.10}"#);
        assert_eq!(bank.upstream.count(), 1, "nothing ran twice");
        assert_eq!(signed(&next, &good), 200, "the same again is harmless");

        let shown = command(&next, &["keys", "list", "--provider-id", "bank ch_1", "-o", "json"]);
        let shown: Value = serde_json::from_str(&shown).expect("JSON");
        let id = shown["records"][0]["id"].as_str().expect("a record").to_owned();
        let text = command(&next, &["keys", "show", &id]);
        assert!(text.contains("provider id: bank ch_1"), "{text}");
        assert!(text.contains("resolved_completed"), "{text}");
        assert!(!text.contains("incident"), "{text}");
        assert_eq!(found(&next, "ch_1"), None, "of another provider");
        bank.gate.open();
    }
}

#[test]
fn a_message_about_an_attempt_that_is_alive_comes_again_later() {
    let (home, bank) = (Home::file(), Bank::start());
    let gateway = gateway(&home, &bank, WEBHOOK);
    let address = gateway.address;
    bank.gives("bank ch_1", true);
    let client = thread::spawn(move || post(address, KEY, "{}", &[]));
    eventually("the provider id", || found(&gateway, "bank ch_1"));
    assert_eq!(signed(&gateway, &message("ch_1", "succeeded")), 409);
    bank.gate.open();
    let answer = client.join().expect("an answer");
    assert_eq!((answer.status, answer.text()), (201, "{\"charged\":true}"), "upstream's own");
    assert_eq!(answer.header("onceward-provider-id"), None);
    assert_eq!(signed(&gateway, &message("ch_1", "succeeded")), 200);
    let replay = post(address, KEY, "{}", &[]);
    assert_eq!((replay.text(), replay.is_replay()), ("{\"charged\":true}", true));
    assert_eq!(replay.header("onceward-provider-id"), None);
}

#[test]
fn a_webhook_finds_operations_of_its_own_routes_only() {
    let (home, bank) = (Home::file(), Bank::start());
    killed_after_the_id_was_noted(&home, &bank);
    let other = WEBHOOK.replace("routes = [\"default\"]", "routes = [\"POST /other\"]");
    let next = gateway(&home, &bank, &format!("[[route]]\nmatch = \"POST /other\"\n{other}"));
    eventually("an unknown outcome", || {
        let answer = post(next.address, KEY, "{}", &[]);
        (answer.summary() == "409 idempotency_outcome_unknown").then_some(())
    });
    assert_eq!(signed(&next, &message("ch_1", "succeeded")), 404);
    let still = post(next.address, KEY, "{}", &[]);
    assert_eq!(still.summary(), "409 idempotency_outcome_unknown");
    bank.gate.open();
}

#[test]
fn two_operations_with_one_provider_id_are_an_incident_and_the_first_keeps_it() {
    for home in Home::durable() {
        let bank = Bank::start();
        let gateway = gateway(&home, &bank, WEBHOOK);
        bank.gives("bank ch_1", false);
        for key in [KEY, OTHER] {
            let sent = ["Onceward-Provider-Id: ch_of_the_client"];
            let answer = post(gateway.address, key, "{}", &sent);
            assert_eq!((answer.status, answer.header("onceward-provider-id")), (201, None));
        }
        assert_eq!(found(&gateway, "bank ch_1").expect("one")["key"], KEY);
        assert_eq!(found(&gateway, "ch_of_the_client"), None);
        let audit = command(&gateway, &["audit", "--event", "incident", "-o", "json"]);
        let audit: Value = serde_json::from_str(&audit).expect("JSON");
        let records = audit["records"].as_array().expect("records");
        assert_eq!(records.len(), 1, "{audit}");
        assert_eq!(records[0]["key"], OTHER);
        let reason = records[0]["reason"].as_str().expect("a reason");
        assert!(reason.contains("bank ch_1"), "{reason}");
        let metrics = admin(&gateway, "GET", "/metrics", None).text().to_owned();
        assert!(metrics.contains("onceward_incident_total{route=\"default\"} 1"), "{metrics}");
    }
}

#[test]
fn the_ledger_check_compares_noted_ids_where_the_export_has_nothing_else() {
    for home in Home::durable() {
        let bank = Bank::start();
        killed_after_the_id_was_noted(&home, &bank);
        bank.gives("bank ch_2", false);
        let gateway = gateway(&home, &bank, "");
        assert_eq!(post(gateway.address, OTHER, "{}", &[]).status, 201);
        eventually("an unknown outcome", || {
            let answer = post(gateway.address, KEY, "{}", &[]);
            (answer.summary() == "409 idempotency_outcome_unknown").then_some(())
        });
        let folder = tempfile::tempdir().expect("a folder");
        let export = folder.path().join("charges.csv");
        let check = |rows: &str, provider: &str| {
            std::fs::write(&export, format!("id\n{rows}")).expect("written");
            let mut ledger = binary();
            ledger.args(["ledger", "check", "--store", &home.url, "--provider", provider]);
            let ran = ledger.args(["-o", "json", "--export"]).arg(&export).output();
            let ran = ran.expect("it runs");
            let text = String::from_utf8_lossy(&ran.stdout).into_owned();
            let kinds = text.lines().filter_map(|line| {
                let line: Value = serde_json::from_str(line).expect("JSON");
                Some(line["finding"].as_str()?.to_owned())
            });
            (ran.status.code().expect("it ended"), kinds.collect::<Vec<_>>())
        };
        let told = |kinds: &[&str]| kinds.iter().map(|kind| (*kind).to_owned()).collect::<Vec<_>>();
        // Charged there, and unknown here: found by nothing but the id.
        assert_eq!(check("ch_1\nch_2\n", "bank"), (3, told(&["unsettled"])));
        assert_eq!(check("ch_2\n", "bank"), (0, told(&["open"])));
        assert_eq!(check("ch_3\n", "bank").1.iter().filter(|it| *it != "open").count(), 2);
        assert_eq!(check("ch_1\nch_2\n", "dhl").0, 3, "another provider's are not ours");
        bank.gate.open();
    }
}
