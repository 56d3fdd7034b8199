//! Unknown outcomes through the real binary on real stores: told of by scope and key, handed back by
//! operators after they were given up, and asked about where the workers are.

use std::thread;

use http::StatusCode;
use onceward::{
    Reply,
    clock::Timestamp,
    record::{AttemptId, Fence, Lease, RecordId},
    store::{Resolution, Resolve, Resolved, Write, Written},
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::{
    messages::opened,
    reconciling::{
        Bank, Held, KEY, PROBE, SECRET, command, now, record, signature, start, start_with, tell,
        unknown,
    },
    support::{
        Act, Answer, Gate, Gateway, Home, Upstream, admin, document, eventually,
        on_each_durable_store, post, request, response, send,
    },
    workers::{OFTEN, metric},
};

on_each_durable_store!(
    a_message_with_scope_and_key_resolves_that_of_this_scope_only,
    a_message_finds_a_key_that_the_store_does_not_know,
    a_dead_letter_is_asked_about_again_when_an_operator_says_so,
    a_dead_letter_is_handed_back_through_the_api,
    the_worker_asks_and_reaps_and_the_gateway_beside_it_does_not,
    what_a_superseded_attempt_brings_late_is_kept_and_shown,
);

const BY_KEY: &str = r#"
[scope]
from = "header:X-Account"
[[webhook]]
name = "bank"
secret = "secret-of-the-bank-0123"
scope = "/account"
key = "/key"
routes = ["default"]
outcome = "/status"
completed = ["succeeded"]
reply_status = 201
reply_body = "/charge"
"#;

const ACME: &str = "X-Account: acme";
const OTHER: &str = "X-Account: other";

fn charge(gateway: &Gateway, account: &str) -> Answer {
    post(gateway.address, KEY, "{}", &[account])
}

/// What the bank tells of the charge of an account.
fn told(gateway: &Gateway, account: &str, key: &str, charge: &str) -> u16 {
    let charge = json!({ "id": charge });
    let body = json!({ "account": account, "key": key, "status": "succeeded", "charge": charge });
    let body = body.to_string();
    tell(gateway, "bank", &body, &signature(SECRET, now(), &body)).status
}

/// Two accounts have used one key, and a gateway was killed before it heard what came of either.
fn of_two_accounts(home: &Home, bank: &Bank, toml: &str) -> Gateway {
    let gateway = start(home, bank, toml);
    let address = gateway.address;
    let clients = [ACME, OTHER].map(|account| {
        bank.hold_the_next_answer();
        let asked = bank.upstream.count();
        let client = thread::spawn(move || send(address, &request(address, KEY, "{}", &[account])));
        bank.gate.reached_by(asked + 1);
        client
    });
    gateway.signal("KILL");
    drop(gateway);
    for client in clients {
        assert!(client.join().expect("it ends").is_err(), "the client was not answered");
    }
    let gateway = start(home, bank, toml);
    for account in [ACME, OTHER] {
        eventually("an unknown outcome", || is_unknown(&gateway, account).then_some(()));
    }
    gateway
}

fn is_unknown(gateway: &Gateway, account: &str) -> bool {
    charge(gateway, account).summary() == "409 idempotency_outcome_unknown"
}

fn resolves_one_of_two(home: &Home, toml: &str) -> Gateway {
    let bank = Bank::that_holds(Held::AfterTheCharge);
    let gateway = of_two_accounts(home, &bank, toml);
    // Of nobody, of another key, of another scope: none of them is that of acme.
    assert_eq!(told(&gateway, "nobody", KEY, "ch_3"), 404);
    assert_eq!(told(&gateway, "acme", "order-0000000000000002", "ch_3"), 404);
    assert_eq!(told(&gateway, "other", KEY, "ch_2"), 200);
    assert!(is_unknown(&gateway, ACME));
    let other = charge(&gateway, OTHER);
    assert_eq!((other.status, other.text(), other.is_replay()), (201, r#"{"id":"ch_2"}"#, true));
    assert_eq!(told(&gateway, "acme", KEY, "ch_1"), 200);
    let acme = charge(&gateway, ACME);
    assert_eq!((acme.status, acme.text(), acme.is_replay()), (201, r#"{"id":"ch_1"}"#, true));
    assert_eq!(bank.charges(), [KEY, KEY], "one for each account");
    bank.gate.open();
    gateway
}

fn a_message_with_scope_and_key_resolves_that_of_this_scope_only(home: &Home) {
    resolves_one_of_two(home, BY_KEY);
    assert!(home.holds(KEY), "without privacy.hash_keys it is there");
}

fn a_message_finds_a_key_that_the_store_does_not_know(home: &Home) {
    let hashed = format!("{BY_KEY}[privacy]\nhash_keys = \"a secret of some length\"\n");
    resolves_one_of_two(home, &hashed);
    assert!(!home.holds(KEY));
}

/// An unknown outcome on which a reconciler has given up, before a gateway that could ask about it.
fn given_up(home: &Home, bank: &Bank) -> (Gateway, String) {
    let without_a_probe = unknown(home, bank, "");
    let id = record(&without_a_probe)["record"]["id"].as_str().expect("an id").to_owned();
    drop(without_a_probe);
    Runtime::new().expect("a runtime").block_on(async {
        let (store, _) = opened(&home.url).await;
        let id = RecordId::from_handle(&id).expect("a handle");
        let record = store.load(&id).await.expect("the store answers").expect("a record");
        let resolve = Resolve {
            id,
            generation: record.generation,
            fence: record.fence,
            resolution: Resolution::DeadLetter { asked_at: record.inquiry.asked_at },
            reason: "nobody could say".into(),
        };
        let resolved = store.resolve(resolve).await.expect("the store answers");
        assert!(matches!(resolved, Resolved::Applied(_)), "{resolved:?}");
    });
    (start(home, bank, PROBE), id)
}

/// The bank is asked once more, and the client gets what it says.
fn is_asked_about(gateway: &Gateway, bank: &Bank) {
    let reply = eventually("the reply", || {
        let answer = post(gateway.address, KEY, "{}", &[]);
        (answer.status == 201).then_some(answer)
    });
    assert_eq!((reply.text(), reply.is_replay()), (r#"{"id": "ch_1"}"#, true));
    assert_eq!((bank.questions().len(), bank.charges()), (1, vec![KEY.to_owned()]));
    let timeline = record(gateway)["timeline"].to_string();
    for event in ["dead_lettered", "redriven", "alice: the bank is back", "resolved_completed"] {
        assert!(timeline.contains(event), "{event}: {timeline}");
    }
    assert_eq!(command(gateway, &["dlq", "list"]).lines().count(), 1, "no dead letter any more");
    bank.gate.open();
}

fn a_dead_letter_is_asked_about_again_when_an_operator_says_so(home: &Home) {
    let bank = Bank::that_holds(Held::AfterTheCharge);
    let (gateway, id) = given_up(home, &bank);
    let listed = command(&gateway, &["dlq", "list"]);
    assert!(listed.contains(&id) && listed.contains("operation"), "{listed}");
    let json =
        |args: &[&str]| -> Value { serde_json::from_str(&command(&gateway, args)).expect("JSON") };
    let listed = json(&["dlq", "list", "-o", "json"]);
    assert_eq!((&listed["records"][0]["id"], &listed["messages"]), (&json!(id), &json!([])));
    let because = ["--reason", "the bank is back"];
    let filter = ["dlq", "redrive", "--filter", "route=default", "-o", "json"];
    let plan = json(&[&filter[..], &because[..]].concat());
    assert_eq!((&plan["count"], &plan["ids"]), (&json!(1), &json!([id])), "{plan}");
    // A plan changes nothing, and nobody asks about what was given up.
    let shown = &record(&gateway)["record"];
    assert_eq!((&shown["dead_letter"], &shown["probes"]), (&json!(true), &json!(0)), "{shown}");
    assert_eq!(bank.questions(), [""; 0]);
    command(&gateway, &[&["dlq", "redrive", id.as_str()][..], &because[..]].concat());
    is_asked_about(&gateway, &bank);
}

fn a_dead_letter_is_handed_back_through_the_api(home: &Home) {
    let bank = Bank::that_holds(Held::AfterTheCharge);
    let (gateway, id) = given_up(home, &bank);
    let path = format!("/api/v1/keys/{id}/redrive");
    let shown = record(&gateway)["record"].clone();
    let asked = |fence: &Value| {
        let (reason, generation) = ("the bank is back", &shown["generation"]);
        let asked = json!({ "reason": reason, "generation": generation, "fence": fence });
        admin(&gateway, "POST", &path, Some(&asked))
    };
    // Whoever looked at something else changes nothing.
    assert_eq!(asked(&json!(1)).status, 409);
    assert_eq!(record(&gateway)["record"]["dead_letter"], true);
    assert_eq!(bank.questions(), [""; 0]);
    let changed = document(&asked(&shown["fence"]));
    assert_eq!(changed["record"]["dead_letter"], false, "{changed}");
    is_asked_about(&gateway, &bank);
}

fn the_worker_asks_and_reaps_and_the_gateway_beside_it_does_not(home: &Home) {
    let bank = Bank::that_holds(Held::AfterTheCharge);
    drop(unknown(home, &bank, ""));
    // Each says to the bank who it is.
    let probe = |by: &str| PROBE.replace("{key}", &format!("{{key}}&by={by}")) + OFTEN;
    let serving = start_with(home, &bank, &probe("gateway"), &["--no-workers"]);
    let answer = post(serving.address, KEY, "{}", &[]);
    assert_eq!(answer.summary(), "409 idempotency_outcome_unknown");
    let worker = start_with(home, &bank, &probe("worker"), &["--only", "worker"]);
    let reply = eventually("the reply", || {
        let answer = post(serving.address, KEY, "{}", &[]);
        (answer.status == 201).then_some(answer)
    });
    assert_eq!((reply.text(), reply.is_replay()), (r#"{"id": "ch_1"}"#, true));
    let asked = bank.questions();
    assert!(!asked.is_empty() && asked.iter().all(|it| it.contains("by=worker")), "{asked:?}");
    home.age(2);
    eventually("the reaper", || (metric(&worker, "onceward_reaped_total")? == 1.0).then_some(()));
    assert_eq!(metric(&serving, "onceward_reaped_total").unwrap_or_default(), 0.0);
    let late = post(serving.address, KEY, "{}", &[]);
    assert_eq!(late.summary(), "410 idempotency_key_expired");
    assert_eq!(bank.charges(), [KEY]);
    bank.gate.open();
}

fn what_a_superseded_attempt_brings_late_is_kept_and_shown(home: &Home) {
    let gate = Gate::default();
    let at_gate = gate.clone();
    let upstream = Upstream::start(move |number, _| match number {
        0 => Act::SendLater(Vec::new(), at_gate.clone(), response(202, "", "first")),
        _ => Act::Send(response(201, "", "second")),
    });
    // Its work may run again, so that two results contradict nobody.
    let settings = "[defaults]\neffects = \"none\"\nlease = \"1s\"\n";
    let gateway = home.gateway(&upstream, settings);
    let address = gateway.address;
    let client = thread::spawn(move || send(address, &request(address, KEY, "{}", &[])));
    gate.reached_by(1);
    gateway.signal("KILL");
    drop(gateway);
    assert!(client.join().expect("it ends").is_err(), "the client was not answered");
    let gateway = home.gateway(&upstream, settings);
    let reply = eventually("a second attempt", || {
        let answer = post(gateway.address, KEY, "{}", &[]);
        (answer.status == 201).then_some(answer)
    });
    assert_eq!((reply.text(), upstream.count()), ("second", 2));
    assert!(!record(&gateway).to_string().contains("superseded_result"));
    let id = record(&gateway)["record"]["id"].as_str().expect("an id").to_owned();
    // The first one has not died after all, and writes what it has.
    let seen = upstream.seen().swap_remove(0);
    let said = |name: &str| seen.header(name).expect("upstream was told").to_owned();
    let lease = Lease {
        id: RecordId::from_handle(&said("onceward-operation")).expect("a handle"),
        attempt: AttemptId::from_text(&said("onceward-attempt-id")).expect("an attempt"),
        fence: Fence::from_stored(said("onceward-fence").parse().expect("a number")),
        generation: 1,
        attempt_number: 1,
        until: Timestamp::from_micros(0),
    };
    Runtime::new().expect("a runtime").block_on(async {
        let (store, _) = opened(&home.url).await;
        let late = Write::Complete(Reply::new(StatusCode::ACCEPTED, "first"));
        let written = store.write(&lease, late).await.expect("the store answers");
        assert!(matches!(written, Written::Superseded(Some(_))), "{written:?}");
    });
    let timeline = record(&gateway)["timeline"].clone();
    let late = |it: &&Value| it["event"] == "superseded_result";
    let late: Vec<&Value> = timeline.as_array().expect("a list").iter().filter(late).collect();
    assert_eq!((late.len(), &late[0]["reply_status"]), (1, &json!(202)), "{timeline}");
    let shown = command(&gateway, &["keys", "show", &id]);
    let line = shown.lines().find(|line| line.contains("superseded_result"));
    assert!(line.is_some_and(|line| line.contains("202")), "{shown}");
    // What stands stands.
    assert_eq!(post(gateway.address, KEY, "{}", &[]).text(), "second");
    gate.open();
}
