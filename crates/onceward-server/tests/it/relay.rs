//! Messages that a service stages in its own transaction, delivered by the gateway.

use std::{thread, time::Duration};

use onceward_testbed::{Database, Postgres};

use crate::{
    messages::{Home, done, homes, letter},
    support::{
        ALICE, Act, Gate, Gateway, Seen, Upstream, eventually, get, ok, post, response,
        until_not_ready,
    },
};

/// A service that stages one message with each request, as the attempt that it was handed.
fn shop(database: &Database<'static>) -> Upstream {
    let url = database.url();
    Upstream::start(move |_, seen| {
        stage(&url, seen);
        ok("ordered")
    })
}

fn stage(url: &str, seen: &Seen) {
    let header = |name: &str| seen.header(name).expect(name).to_owned();
    let stage = format!(
        "SELECT onceward.stage('{}', '{}', {}, 'receipt', 'mail', NULL, 'application/json', '{{}}')",
        header("onceward-operation"),
        header("onceward-attempt-id"),
        header("onceward-fence")
    );
    let psql = std::process::Command::new("psql").args(["-qAtc", &stage, url]).output();
    let psql = psql.expect("psql");
    assert!(psql.status.success(), "{}", String::from_utf8_lossy(&psql.stderr));
}

fn settings(database: &Database<'_>, mail: &Upstream) -> String {
    format!(
        "[store]\nurl = \"{}\"\n{ALICE}[[sink]]\nname = \"mail\"\nurl = \"http://{}/send\"\n\
         idempotent = true\nheaders = {{ authorization = \"Bearer 1\" }}\nprovider_id = \"/id\"\n",
        database.url(),
        mail.address
    )
}

fn delivered(database: &Database<'_>) -> String {
    database.psql("SELECT state, attempts, provider_id FROM onceward.outbox")
}

#[test]
fn a_staged_message_is_delivered_once_with_its_own_key() {
    let database = Postgres::shared().create_database();
    let mail = Upstream::start(|_, _| Act::Send(response(201, "", "{\"id\":\"m_1\"}")));
    let upstream = shop(&database);
    let gateway = Gateway::with(upstream.address, &settings(&database, &mail));
    for _ in 0..2 {
        let reply = post(gateway.address, "order-0000000000000001", "{}", &[]);
        assert_eq!((reply.status, reply.text()), (200, "ordered"));
    }
    eventually("the delivery", || (delivered(&database) == "done|1|m_1").then_some(()));
    let seen = mail.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].header("authorization"), Some("Bearer 1"));
    let derived = database.psql("SELECT derived_key FROM onceward.outbox");
    assert_eq!(seen[0].header("idempotency-key"), Some(&*derived));
    assert_eq!((&*seen[0].line, &*seen[0].body), ("POST /send HTTP/1.1", &b"{}"[..]));
}

#[test]
fn a_process_that_only_serves_leaves_messages_to_the_one_that_only_works() {
    let database = Postgres::shared().create_database();
    let mail = Upstream::start(|_, _| Act::Send(response(201, "", "{\"id\":\"m_1\"}")));
    let upstream = shop(&database);
    let settings = settings(&database, &mail);
    let serving = Gateway::with_flags(upstream.address, &settings, &["--no-workers"]);
    assert_eq!(post(serving.address, "order-0000000000000001", "{}", &[]).status, 200);
    assert_eq!((delivered(&database).as_str(), mail.seen().len()), ("ready|0|", 0));
    let _working = Gateway::with_flags(upstream.address, &settings, &["--only", "worker"]);
    eventually("the delivery", || (delivered(&database) == "done|1|m_1").then_some(()));
    assert_eq!(mail.seen().len(), 1);
}

#[test]
fn a_receiver_that_knows_no_keys_gets_nothing_twice() {
    let database = Postgres::shared().create_database();
    // It may have acted, and nobody can say.
    let mail = Upstream::start(|_, _| Act::Send(response(500, "", "oops")));
    let upstream = shop(&database);
    let settings = settings(&database, &mail).replace("idempotent = true", "idempotent = false");
    let gateway = Gateway::with(upstream.address, &settings);
    assert_eq!(post(gateway.address, "order-0000000000000001", "{}", &[]).status, 200);
    eventually("the dead letter", || delivered(&database).starts_with("dead|1|").then_some(()));
    assert_eq!(mail.seen().len(), 1);
}

/// A sink for the letters of services with the library.
fn ledger(receiver: &Upstream, idempotent: bool) -> String {
    format!(
        "[[sink]]\nname = \"ledger\"\nurl = \"http://{}/send\"\nidempotent = {idempotent}\n",
        receiver.address
    )
}

/// The keys under which a receiver was told something.
fn keys(receiver: &Upstream) -> Vec<String> {
    let key = |seen: &Seen| seen.header("idempotency-key").expect("a key").to_owned();
    let mut keys: Vec<String> = receiver.seen().iter().map(key).collect();
    keys.sort();
    keys
}

#[test]
fn the_messages_of_a_file_are_delivered_by_the_gateway_on_it() {
    let home = Home::file();
    let receiver = Upstream::start(|_, _| Act::Send(response(201, "", "{}")));
    let _gateway = home.gateway_before(&receiver, &ledger(&receiver, false));
    let service = home.service();
    service.stage(["a", "b", "c"].map(letter));
    eventually("three deliveries", || (service.counts() == [0, 0, 3, 0]).then_some(()));
    let bodies: Vec<String> = receiver.seen().iter().map(|it| text(&it.body)).collect();
    assert_eq!(bodies.len(), 3);
    assert!(bodies.iter().all(|body| body.starts_with("payload of ")), "{bodies:?}");
    let mut distinct = keys(&receiver);
    distinct.dedup();
    assert_eq!(distinct.len(), 3, "each has a key of its own");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

#[test]
fn messages_that_may_have_acted_are_delivered_again_only_when_an_operator_says_so() {
    for home in homes() {
        // Nobody can say whether the first three acted.
        let receiver = Upstream::start(|number, _| {
            Act::Send(response(if number < 3 { 500 } else { 201 }, "", "{}"))
        });
        let gateway = home.gateway_before(&receiver, &ledger(&receiver, false));
        let service = home.service();
        service.stage(["a", "b", "c"].map(letter));
        eventually("dead letters", || (service.counts() == [0, 0, 0, 3]).then_some(()));
        let first = keys(&receiver);
        let listed = done(&gateway, &["dlq", "list", "-o", "json"]);
        assert_eq!(listed.matches("may have acted").count(), 3, "{listed}");
        let redrive = ["dlq", "redrive", "--messages", "--filter", "sink=ledger"];
        let plan = done(&gateway, &[&redrive[..], &["--reason", "they have none"]].concat());
        assert!(plan.contains("would redrive 3 messages"), "{plan}");
        assert_eq!((receiver.count(), service.counts()), (3, [0, 0, 0, 3]), "only planned");
        let apply = plan.split("--apply ").nth(1).expect("what to type").trim();
        let applied = done(&gateway, &["dlq", "redrive", "--apply", apply]);
        assert!(applied.contains("3 messages were changed"), "{applied}");
        eventually("three deliveries", || (service.counts() == [0, 0, 3, 0]).then_some(()));
        let both = keys(&receiver);
        assert_eq!(both.len(), 6, "each of them once more");
        assert!(first.iter().all(|key| both.iter().filter(|it| *it == key).count() == 2));
        let audit = done(&gateway, &["audit"]);
        assert_eq!(audit.matches("message_redriven").count(), 3, "{audit}");
        assert!(audit.contains("alice: they have none"), "{audit}");
    }
}

#[test]
fn a_delivery_that_runs_is_finished_before_the_end_and_is_not_made_again() {
    for home in homes() {
        let gate = Gate::default();
        let at_gate = gate.clone();
        let receiver = Upstream::start(move |_, _| {
            Act::SendLater(Vec::new(), at_gate.clone(), response(201, "", "{}"))
        });
        let mut gateway = home.gateway_before(&receiver, &ledger(&receiver, false));
        let service = home.service();
        service.stage([letter("a")]);
        gate.reached_by(1);
        gateway.signal("TERM");
        until_not_ready(&gateway);
        // What comes now is for the next process.
        service.stage([letter("b")]);
        assert_eq!(service.counts(), [1, 1, 0, 0]);
        gate.open();
        assert_eq!(gateway.exit_status().code(), Some(0));
        assert_eq!((service.counts(), receiver.count()), ([1, 0, 1, 0], 1));
        let _next = home.gateway_before(&receiver, &ledger(&receiver, false));
        eventually("the other one", || (service.counts() == [0, 0, 2, 0]).then_some(()));
        let bodies: Vec<String> = receiver.seen().iter().map(|it| text(&it.body)).collect();
        assert_eq!(bodies, ["payload of a", "payload of b"], "each once");
    }
}

#[test]
fn messages_wait_while_the_store_is_known_to_have_lost_data() {
    let home = Home::file();
    let receiver = Upstream::start(|_, _| Act::Send(response(201, "", "{}")));
    let gateway = home.gateway_before(&receiver, &ledger(&receiver, true));
    let service = home.service();
    service.find_a_loss();
    let regressed = |line: &str| {
        let metrics = get(gateway.admin, "/metrics");
        metrics.text().lines().any(|there| there == line).then_some(())
    };
    eventually("the gateway is told", || regressed("onceward_store_regressed 1"));
    service.stage([letter("a")]);
    // A relay looks every second.
    thread::sleep(Duration::from_millis(1_200));
    assert_eq!((service.counts(), receiver.count()), ([1, 0, 0, 0], 0));
    done(&gateway, &["store", "acknowledge", "--reason", "compared with the receiver"]);
    eventually("the delivery", || (service.counts() == [0, 0, 1, 0]).then_some(()));
    assert_eq!(receiver.count(), 1);
}
