//! Messages that a service stages in its own transaction, delivered by the gateway.

use onceward_testbed::{Database, Postgres};

use crate::support::{ALICE, Act, Gateway, Seen, Upstream, eventually, ok, post, response};

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
