//! Unknown outcomes through the real binary on real stores: the gateway is killed, the bank is asked, and
//! its ledger is the truth.

use std::{
    sync::{Arc, Mutex},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::Value;
use sha2::Sha256;

use crate::support::{
    Act, Answer, Gate, Gateway, Home, TOKEN, Upstream, admin, binary, document, eventually, post,
    request, response, send,
};

pub(crate) const KEY: &str = "order-0000000000000001";

/// One before this bank, with short leases.
pub(crate) fn start(home: &Home, bank: &Bank, probe: &str) -> Gateway {
    start_with(home, bank, probe, &[])
}

/// The same with more flags.
pub(crate) fn start_with(home: &Home, bank: &Bank, probe: &str, flags: &[&str]) -> Gateway {
    let defaults = "[defaults]\neffects = \"external\"\nlease = \"1s\"\n";
    let probe = probe.replace("BANK", &bank.upstream.address.to_string());
    let toml = home.settings(&format!("{defaults}{probe}"));
    Gateway::with_flags(bank.upstream.address, &toml, flags)
}

/// The bank can be asked, and cannot be wrong about what it has not done.
pub(crate) const PROBE: &str = r#"
[defaults.probe]
url = "http://BANK/charges?key={key}"
headers = { authorization = "Bearer of-the-gateway" }
allow_private = true
completed = { status = [200], pointer = "/status", equals = "succeeded", reply_status = "/reply/status", reply_body = "/reply/body" }
not_executed = { status = [404], authoritative = true }
"#;

/// A bank with a ledger. Its first charge is held up, before or after it is written down.
pub(crate) struct Bank {
    pub(crate) upstream: Upstream,
    ledger: Arc<Mutex<Vec<String>>>,
    pub(crate) gate: Gate,
    /// Where those wait who ask what it has charged.
    desk: Gate,
    next: Arc<Mutex<Option<Held>>>,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Held {
    BeforeTheCharge,
    AfterTheCharge,
}

impl Bank {
    pub(crate) fn that_holds(held: Held) -> Bank {
        let bank = Bank::whose_desk_is_closed(held);
        bank.desk.open();
        bank
    }

    fn whose_desk_is_closed(held: Held) -> Bank {
        let (ledger, gate) = (Arc::new(Mutex::new(Vec::new())), Gate::default());
        let (book, at_gate) = (Arc::clone(&ledger), gate.clone());
        let desk = Gate::default();
        let at_desk = desk.clone();
        let next = Arc::new(Mutex::new(Some(held)));
        let to_hold = Arc::clone(&next);
        let upstream = Upstream::start(move |_, seen| {
            let mut book = book.lock().expect("not poisoned");
            let key = |text: Option<&str>| text.unwrap_or_default().trim_matches('"').to_owned();
            if let Some(query) = seen.line.strip_prefix("GET /charges?key=") {
                assert_eq!(seen.header("authorization"), Some("Bearer of-the-gateway"));
                let asked = query.split([' ', '&']).next().unwrap_or_default();
                let there = book.iter().any(|charged| charged == asked);
                let found =
                    r#"{"status": "succeeded", "reply": {"status": 201, "body": {"id": "ch_1"}}}"#;
                let json = "Content-Type: application/json\r\n";
                let told = match there {
                    true => response(200, json, found),
                    false => response(404, json, "{}"),
                };
                return Act::SendLater(Vec::new(), at_desk.clone(), told);
            }
            let charged = response(201, "Content-Type: application/json\r\n", r#"{"id":"ch_1"}"#);
            let held = to_hold.lock().expect("not poisoned").take();
            if held == Some(Held::BeforeTheCharge) {
                return Act::SendLater(Vec::new(), at_gate.clone(), response(503, "", ""));
            }
            book.push(key(seen.header("idempotency-key")));
            match held {
                Some(_) => Act::SendLater(Vec::new(), at_gate.clone(), charged),
                None => Act::Send(charged),
            }
        });
        Bank { upstream, ledger, gate, desk, next }
    }

    pub(crate) fn hold_the_next_answer(&self) {
        *self.next.lock().expect("not poisoned") = Some(Held::AfterTheCharge);
    }

    /// What it was asked about what it has charged.
    pub(crate) fn questions(&self) -> Vec<String> {
        let seen = self.upstream.seen().into_iter().map(|seen| seen.line);
        seen.filter(|line| line.starts_with("GET ")).collect()
    }

    pub(crate) fn charges(&self) -> Vec<String> {
        self.ledger.lock().expect("not poisoned").clone()
    }
}

/// Sends a request and kills the gateway -9 while the bank is at it.
fn killed_while_the_bank_is_at_it(gateway: Gateway, bank: &Bank) {
    killed_while_the_bank_answers(gateway, bank, 1);
}

/// The same at the answer of this number that the bank holds up.
fn killed_while_the_bank_answers(gateway: Gateway, bank: &Bank, number: usize) {
    let address = gateway.address;
    let client = thread::spawn(move || send(address, &request(address, KEY, "{}", &[])));
    bank.gate.reached_by(number);
    gateway.signal("KILL");
    drop(gateway);
    assert!(client.join().expect("it ends").is_err(), "the client was not answered");
}

/// All that a client is told that retries until it has a reply.
fn told_until_replied(gateway: &Gateway) -> Vec<String> {
    let mut told: Vec<String> = Vec::new();
    eventually("a reply", || {
        let answer = post(gateway.address, KEY, "{}", &[]);
        if told.last() != Some(&answer.summary()) {
            told.push(answer.summary());
        }
        (answer.status == 201).then_some(())
    });
    told
}

pub(crate) fn record(gateway: &Gateway) -> Value {
    let listed = document(&admin(gateway, "GET", "/api/v1/keys", None))["records"][0].clone();
    let id = listed["id"].as_str().expect("an id").to_owned();
    document(&admin(gateway, "GET", &format!("/api/v1/keys/{id}"), None))
}

#[test]
fn a_charge_whose_gateway_was_killed_is_found_by_the_probe_and_made_once() {
    for home in Home::durable() {
        let bank = Bank::that_holds(Held::AfterTheCharge);
        killed_while_the_bank_is_at_it(start(&home, &bank, PROBE), &bank);
        assert_eq!(bank.charges(), [KEY]);
        let next = start(&home, &bank, PROBE);
        let told = told_until_replied(&next);
        assert!(told.contains(&"409 idempotency_outcome_unknown".to_owned()), "{told:?}");
        let reply = post(next.address, KEY, "{}", &[]);
        assert_eq!(
            (reply.status, reply.text(), reply.is_replay()),
            (201, r#"{"id": "ch_1"}"#, true)
        );
        assert_eq!(reply.header("content-type"), Some("application/json"));
        assert_eq!(bank.charges(), [KEY], "one charge in the ledger");
        let shown = record(&next).to_string();
        assert!(shown.contains("resolved_completed") && shown.contains("reconciler: "), "{shown}");
        bank.gate.open();
    }
}

#[test]
fn a_charge_that_was_never_made_is_released_by_the_probe_and_the_retry_makes_it_once() {
    for home in Home::durable() {
        let bank = Bank::that_holds(Held::BeforeTheCharge);
        killed_while_the_bank_is_at_it(start(&home, &bank, PROBE), &bank);
        assert_eq!(bank.charges(), [""; 0]);
        let next = start(&home, &bank, PROBE);
        let told = told_until_replied(&next);
        assert!(told.contains(&"409 idempotency_outcome_unknown".to_owned()), "{told:?}");
        assert_eq!(bank.charges(), [KEY], "the retry made it");
        assert!(post(next.address, KEY, "{}", &[]).is_replay());
        assert_eq!(bank.charges(), [KEY]);
        let shown = record(&next).to_string();
        assert!(shown.contains("\"released\""), "{shown}");
        bank.gate.open();
    }
}

#[test]
fn one_probe_that_may_be_wrong_never_releases() {
    let home = Home::file();
    let bank = Bank::that_holds(Held::BeforeTheCharge);
    let probe = PROBE.replace(", authoritative = true", "");
    killed_while_the_bank_is_at_it(start(&home, &bank, &probe), &bank);
    let next = start(&home, &bank, &probe);
    eventually("the first probe", || {
        post(next.address, KEY, "{}", &[]);
        (!bank.questions().is_empty()).then_some(())
    });
    thread::sleep(Duration::from_millis(500));
    let answer = post(next.address, KEY, "{}", &[]);
    assert_eq!(answer.summary(), "409 idempotency_outcome_unknown");
    assert_eq!(bank.charges(), [""; 0]);
    bank.gate.open();
}

#[test]
fn a_question_that_is_open_when_the_gateway_stops_is_waited_for_and_what_comes_of_it_is_kept() {
    let home = Home::file();
    let bank = Bank::whose_desk_is_closed(Held::AfterTheCharge);
    killed_while_the_bank_is_at_it(start(&home, &bank, PROBE), &bank);
    let mut stopped = start(&home, &bank, PROBE);
    eventually("an unknown outcome", || {
        let answer = post(stopped.address, KEY, "{}", &[]);
        (answer.summary() == "409 idempotency_outcome_unknown").then_some(())
    });
    bank.desk.reached_by(1);
    stopped.signal("TERM");
    stopped.log_with("stopping: finishing what runs");
    bank.desk.open();
    assert!(stopped.exit_status().success());
    // Nobody asks any more, and nobody has to.
    let next = start(&home, &bank, "");
    let reply = post(next.address, KEY, "{}", &[]);
    assert_eq!((reply.status, reply.text(), reply.is_replay()), (201, r#"{"id": "ch_1"}"#, true));
    assert_eq!(bank.charges(), [KEY]);
    bank.gate.open();
}

#[test]
fn without_a_probe_an_unknown_outcome_waits_for_a_person() {
    let home = Home::file();
    let bank = Bank::that_holds(Held::AfterTheCharge);
    killed_while_the_bank_is_at_it(start(&home, &bank, ""), &bank);
    let next = start(&home, &bank, "");
    eventually("the end of the lease", || {
        let answer = post(next.address, KEY, "{}", &[]);
        (answer.summary() == "409 idempotency_outcome_unknown").then_some(())
    });
    thread::sleep(Duration::from_millis(1_500));
    let answer = post(next.address, KEY, "{}", &[]);
    assert_eq!(answer.summary(), "409 idempotency_outcome_unknown");
    let shown = record(&next)["record"].clone();
    assert_eq!((&shown["probes"], &shown["dead_letter"]), (&0.into(), &false.into()), "{shown}");
    assert_eq!(bank.charges(), [KEY]);
    bank.gate.open();
}

/// The record is unknown, under this configuration.
pub(crate) fn unknown(home: &Home, bank: &Bank, toml: &str) -> Gateway {
    killed_while_the_bank_is_at_it(start(home, bank, ""), bank);
    let gateway = start(home, bank, toml);
    eventually("an unknown outcome", || {
        let answer = post(gateway.address, KEY, "{}", &[]);
        (answer.summary() == "409 idempotency_outcome_unknown").then_some(())
    });
    gateway
}

pub(crate) fn command(gateway: &Gateway, args: &[&str]) -> String {
    let ran = binary()
        .args(args)
        .env("ONCEWARD_ADMIN", format!("http://{}", gateway.admin))
        .env("ONCEWARD_ADMIN_TOKEN", TOKEN)
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned();
    assert!(ran.status.success(), "{args:?}: {text}");
    text
}

#[test]
fn an_operator_has_an_unknown_outcome_asked_about_at_once() {
    let home = Home::file();
    let bank = Bank::that_holds(Held::AfterTheCharge);
    // It was asked about in vain, and is not due for half a minute.
    let in_vain = unknown(&home, &bank, &PROBE.replace("\"succeeded\"", "\"something else\""));
    eventually("a probe", || (record(&in_vain)["record"]["probes"] == 1).then_some(()));
    drop(in_vain);
    let gateway = start(&home, &bank, PROBE);
    let listed = command(&gateway, &["unknown", "list", "-o", "json"]);
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    let id = listed["records"][0]["id"].as_str().expect("one record").to_owned();
    assert_eq!(command(&gateway, &["dlq", "list"]).lines().count(), 1, "no dead letter");
    // A filter of the dead letters is about dead letters only.
    let plan = |group, command| {
        let filter = ["--filter", "route=default", "--reason", "the bank is back", "-o", "json"];
        let planned = self::command(&gateway, &[&[group, command], &filter[..]].concat());
        serde_json::from_str::<Value>(&planned).expect("JSON")["count"].clone()
    };
    assert_eq!((plan("dlq", "redrive"), plan("unknown", "reconcile")), (0.into(), 1.into()));
    command(&gateway, &["unknown", "reconcile", &id, "--reason", "the bank is back"]);
    let reply = eventually("the reply", || {
        let answer = post(gateway.address, KEY, "{}", &[]);
        (answer.status == 201).then_some(answer)
    });
    assert_eq!((reply.text(), reply.is_replay()), (r#"{"id": "ch_1"}"#, true));
    let shown = record(&gateway).to_string();
    assert!(shown.contains("alice: the bank is back"), "{shown}");
    assert_eq!(bank.charges(), [KEY]);
    bank.gate.open();
}

pub(crate) const SECRET: &str = "secret-of-the-bank-0123";

const WEBHOOK: &str = r#"
[[webhook]]
name = "bank"
secret = "secret-of-the-bank-0123"
operation = "/operation"
attempt = "/attempt"
routes = ["default"]
outcome = "/status"
completed = ["succeeded", "declined"]
not_executed = ["canceled"]
reply_status = "/reply/status"
reply_body = "/reply/body"
"#;

pub(crate) fn signature(secret: &str, at: u64, body: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("any length");
    mac.update(format!("{at}.{body}").as_bytes());
    let digits = mac.finalize().into_bytes();
    let hex: String = digits.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("t={at},v1={hex}")
}

pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

pub(crate) fn tell(gateway: &Gateway, name: &str, body: &str, signature: &str) -> Answer {
    let request = format!(
        "POST /.onceward/webhooks/{name} HTTP/1.1\r\nHost: x\r\nOnceward-Signature: {signature}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    send(gateway.address, &request).expect("an answer")
}

/// What a message names: the operation and the attempt, as upstream was told them.
fn named(bank: &Bank, attempt: usize) -> (String, String) {
    let seen = bank.upstream.seen();
    let mut charges = seen.iter().filter(|seen| seen.line.starts_with("POST "));
    let seen = charges.nth(attempt - 1).expect("it was sent");
    let header = |name| seen.header(name).expect("upstream was told").to_owned();
    (header("onceward-operation"), header("onceward-attempt-id"))
}

fn message((operation, attempt): &(String, String), status: &str, reply: &str) -> String {
    format!(
        r#"{{"operation":"{operation}","attempt":"{attempt}","status":"{status}","reply":{reply}}}"#
    )
}

fn signed(gateway: &Gateway, body: &str) -> u16 {
    tell(gateway, "bank", body, &signature(SECRET, now(), body)).status
}

fn events(gateway: &Gateway) -> String {
    record(gateway)["timeline"].to_string()
}

/// Members in the provider's order, and digits as it wrote them.
const CHARGED: &str = r#"{"status":201,"body":{"z": "ch_1", "amount": 10.10}}"#;

#[test]
fn a_signed_message_resolves_and_old_forged_and_unknown_ones_do_not() {
    for home in Home::durable() {
        let bank = Bank::that_holds(Held::AfterTheCharge);
        let gateway = unknown(&home, &bank, WEBHOOK);
        let names = named(&bank, 1);
        let good = message(&names, "succeeded", CHARGED);
        let told = |body: &str, signature: &str| tell(&gateway, "bank", body, signature).status;
        // Forged, old, from the future, for other bytes, not signed at all.
        assert_eq!(told(&good, &signature("another-secret-012345", now(), &good)), 401);
        assert_eq!(told(&good, &signature(SECRET, now() - 301, &good)), 401);
        assert_eq!(told(&good, &signature(SECRET, now() + 310, &good)), 401);
        assert_eq!(told(&good, &signature(SECRET, now(), "{}")), 401);
        for bad in ["", "t=1", "v1=00", "t=x,v1=00"] {
            assert_eq!(told(&good, bad), 401, "{bad}");
        }
        let other = ("v1.YQ.YWFhYWFhYWFhYWFhYWFhYQ".to_owned(), names.1.clone());
        assert_eq!(signed(&gateway, &message(&other, "succeeded", CHARGED)), 404);
        assert_eq!(signed(&gateway, &message(&names, "processing", CHARGED)), 200);
        assert_eq!(tell(&gateway, "other", &good, &signature(SECRET, now(), &good)).status, 404);
        // Executed, but not what the client is to be told; or by nobody knows whom.
        assert_eq!(signed(&gateway, &message(&names, "succeeded", r#"{"status":201}"#)), 422);
        let nobody = (names.0.clone(), "attempt".to_owned());
        assert_eq!(signed(&gateway, &message(&nobody, "succeeded", CHARGED)), 422);
        let still = post(gateway.address, KEY, "{}", &[]);
        assert_eq!(still.summary(), "409 idempotency_outcome_unknown");

        assert_eq!(signed(&gateway, &good), 200);
        let reply = post(gateway.address, KEY, "{}", &[]);
        assert_eq!((reply.status, reply.text()), (201, r#"{"z": "ch_1", "amount": 10.10}"#));
        // The same again is harmless, also in other words; something else is an incident, and what
        // stands stands.
        assert_eq!(signed(&gateway, &good), 200);
        assert_eq!(signed(&gateway, &good.replace("201", "200")), 200);
        assert!(!events(&gateway).contains("incident"), "{}", events(&gateway));
        assert_eq!(signed(&gateway, &message(&names, "canceled", "{}")), 200);
        assert_eq!(events(&gateway).matches("\"incident\"").count(), 1, "{}", events(&gateway));
        assert_eq!(signed(&gateway, &good.replace("201", "402")), 200);
        assert_eq!(events(&gateway).matches("\"incident\"").count(), 2, "{}", events(&gateway));
        assert_eq!(post(gateway.address, KEY, "{}", &[]).status, 201);
        assert_eq!(bank.charges(), [KEY]);
        bank.gate.open();
    }
}

#[test]
fn a_message_about_an_earlier_attempt_releases_no_later_one() {
    for home in Home::durable() {
        let bank = Bank::that_holds(Held::BeforeTheCharge);
        let gateway = unknown(&home, &bank, WEBHOOK);
        let first = named(&bank, 1);
        let canceled = message(&first, "canceled", "{}");
        assert_eq!(signed(&gateway, &canceled), 200);
        // The second attempt charges, and its gateway dies before it hears of it.
        bank.hold_the_next_answer();
        killed_while_the_bank_answers(gateway, &bank, 2);
        assert_eq!(bank.charges(), [KEY]);
        let gateway = start(&home, &bank, WEBHOOK);
        eventually("an unknown outcome", || {
            let answer = post(gateway.address, KEY, "{}", &[]);
            (answer.summary() == "409 idempotency_outcome_unknown").then_some(())
        });
        // The old message comes again.
        assert_eq!(signed(&gateway, &canceled), 200);
        let answer = post(gateway.address, KEY, "{}", &[]);
        assert_eq!(answer.summary(), "409 idempotency_outcome_unknown");
        assert_eq!(bank.charges(), [KEY], "nothing ran twice");
        // Nor does a success of the first complete the second; both are to be looked at.
        assert_eq!(signed(&gateway, &message(&first, "succeeded", CHARGED)), 200);
        assert!(events(&gateway).contains("\"incident\""), "{}", events(&gateway));
        let answer = post(gateway.address, KEY, "{}", &[]);
        assert_eq!(answer.summary(), "409 idempotency_outcome_unknown");
        assert_eq!(signed(&gateway, &message(&named(&bank, 2), "succeeded", CHARGED)), 200);
        assert_eq!(post(gateway.address, KEY, "{}", &[]).status, 201);
        bank.gate.open();
    }
}

#[test]
fn what_is_said_to_have_executed_after_a_release_is_not_run_again() {
    for home in Home::durable() {
        let bank = Bank::that_holds(Held::AfterTheCharge);
        let gateway = unknown(&home, &bank, WEBHOOK);
        let names = named(&bank, 1);
        assert_eq!(signed(&gateway, &message(&names, "canceled", "{}")), 200);
        assert_eq!(signed(&gateway, &message(&names, "succeeded", CHARGED)), 200);
        let reply = post(gateway.address, KEY, "{}", &[]);
        assert_eq!((reply.status, reply.is_replay()), (201, true));
        assert_eq!(bank.charges(), [KEY], "nothing ran twice");
        assert!(events(&gateway).contains("\"incident\""), "{}", events(&gateway));
        let metrics = admin(&gateway, "GET", "/metrics", None).text().to_owned();
        assert!(metrics.contains("onceward_incident_total{route=\"default\"} 1"), "{metrics}");
        bank.gate.open();
    }
}

#[test]
fn a_message_about_an_earlier_use_of_the_key_says_nothing_about_this_one() {
    for home in Home::durable() {
        let bank = Bank::that_holds(Held::AfterTheCharge);
        *bank.next.lock().expect("not poisoned") = None;
        let gateway = start(&home, &bank, WEBHOOK);
        assert_eq!(post(gateway.address, KEY, "{}", &[]).status, 201);
        let id = record(&gateway)["record"]["id"].as_str().expect("an id").to_owned();
        command(&gateway, &["keys", "void", &id, "--reason", "charge it once more"]);
        // The second use charges, and its gateway dies before it hears of it.
        bank.hold_the_next_answer();
        killed_while_the_bank_is_at_it(gateway, &bank);
        let (first, second) = (named(&bank, 1), named(&bank, 2));
        assert_eq!(first.0, second.0, "one operation, used twice");
        let without = WEBHOOK.replace("attempt = \"/attempt\"\n", "");
        let without = without.replace("not_executed = [\"canceled\"]\n", "");
        let without = without.replace("name = \"bank\"", "name = \"other\"");
        let gateway = start(&home, &bank, &format!("{WEBHOOK}{without}"));
        let is_unknown = || {
            let answer = post(gateway.address, KEY, "{}", &[]);
            (answer.summary() == "409 idempotency_outcome_unknown").then_some(())
        };
        eventually("an unknown outcome", is_unknown);
        assert_eq!(record(&gateway)["record"]["generation"], 2);
        for status in ["canceled", "succeeded"] {
            assert_eq!(signed(&gateway, &message(&first, status, CHARGED)), 200, "{status}");
            assert_eq!(is_unknown(), Some(()), "{status}");
        }
        // Nor does one that names no attempt.
        let good = message(&second, "succeeded", CHARGED);
        assert_eq!(tell(&gateway, "other", &good, &signature(SECRET, now(), &good)).status, 422);
        assert_eq!(is_unknown(), Some(()));
        assert_eq!(signed(&gateway, &good), 200);
        let reply = post(gateway.address, KEY, "{}", &[]);
        assert_eq!((reply.status, reply.text()), (201, r#"{"z": "ch_1", "amount": 10.10}"#));
        assert_eq!(bank.charges(), [KEY, KEY], "once for each use");
        let metrics = admin(&gateway, "GET", "/metrics", None).text().to_owned();
        let resolved = "api_idempotency_reconcile_resolved_total{route=\"default\"} 1";
        assert!(metrics.contains(resolved), "{metrics}");
        bank.gate.open();
    }
}

#[test]
fn a_webhook_tells_about_its_own_routes_only() {
    let home = Home::file();
    let bank = Bank::that_holds(Held::AfterTheCharge);
    let other = WEBHOOK.replace("routes = [\"default\"]", "routes = [\"POST /other\"]");
    let toml = format!("[[route]]\nmatch = \"POST /other\"\n{other}");
    let gateway = unknown(&home, &bank, &toml);
    assert_eq!(signed(&gateway, &message(&named(&bank, 1), "succeeded", CHARGED)), 404);
    let still = post(gateway.address, KEY, "{}", &[]);
    assert_eq!(still.summary(), "409 idempotency_outcome_unknown");
    bank.gate.open();
}

#[test]
fn messages_that_are_refused_early_are_drained_and_too_large_ones_refused() {
    let home = Home::file();
    let bank = Bank::that_holds(Held::AfterTheCharge);
    bank.gate.open();
    let gateway = start(&home, &bank, WEBHOOK);
    let large = "x".repeat((1 << 20) + 1);
    for (name, status) in [("bank", 413), ("other", 404)] {
        let answer = tell(&gateway, name, &large, "t=1,v1=00");
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("connection"), None, "the body was drained");
    }
}

#[test]
fn messages_take_room_like_all_bodies() {
    let home = Home::file();
    let bank = Bank::that_holds(Held::AfterTheCharge);
    bank.gate.open();
    let gateway = start(&home, &bank, &format!("{WEBHOOK}[limits]\nbuffered_bytes = 65536\n"));
    // One that takes all the room, and does not come. It is refused if another one has some of it.
    let slow = || {
        let mut slow = std::net::TcpStream::connect(gateway.address).expect("a connection");
        let head = "POST /.onceward/webhooks/bank HTTP/1.1\r\nHost: x\r\n\
                    Content-Length: 65000\r\n\r\n";
        std::io::Write::write_all(&mut slow, head.as_bytes()).expect("sent");
        slow
    };
    let status = || tell(&gateway, "bank", "{}", "t=1,v1=00").status;
    let slow = eventually("no room", || {
        let slow = slow();
        (status() == 503).then_some(slow)
    });
    drop(slow);
    eventually("room", || (status() == 401).then_some(()));
}

#[test]
fn without_webhooks_their_path_is_like_any_other() {
    let bank = Bank::that_holds(Held::AfterTheCharge);
    bank.gate.open();
    let gateway = start(&Home::file(), &bank, "");
    let passed = send(gateway.address, "GET /.onceward/webhooks/bank HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(passed.expect("an answer").status, 201, "upstream answered");
}
