//! The SQL contract with the drivers of other languages: each function in a transaction of the service's
//! own, with the attempt that the gateway handed it.

use std::{
    env,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use onceward_testbed::{Database, Postgres};
use serde_json::{Value, json};

use crate::support::{Answer, Gateway, post, refusal};

const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/contract");

/// The same cases with each driver, as tests of their own.
macro_rules! with_each_driver {
    ($($case:ident),+ $(,)?) => {
        with_each_driver!(in_python, Language::Python, $($case),+);
        with_each_driver!(in_node, Language::Node, $($case),+);
    };
    ($module:ident, $language:expr, $($case:ident),+) => {
        mod $module {
            use super::Language;

            $(#[test]
            fn $case() {
                super::$case(&super::Shop::open($language));
            })+
        }
    };
}

with_each_driver!(
    steps_are_made_once_and_the_reply_commits_with_the_last,
    whoever_has_lost_the_record_is_refused_and_its_rows_roll_back,
    what_makes_no_sense_is_refused_and_its_rows_roll_back,
    an_attempt_that_says_it_failed_is_followed_by_another,
);

/// With which driver.
#[derive(Clone, Copy)]
enum Language {
    /// psycopg 3.
    Python,
    /// pg.
    Node,
}

impl Language {
    fn program(self) -> Command {
        match self {
            Language::Python => {
                let mut python = Command::new("/usr/bin/python3");
                python.arg("service.py");
                python
            }
            Language::Node => {
                let mut node = Command::new("node");
                node.arg("service.js").env("NODE_PATH", packages());
                node
            }
        }
    }
}

/// Where `./test` has put the packages of Node.
fn packages() -> PathBuf {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || Some(PathBuf::from(env::var_os("HOME")?).join(".cache"));
    let packages = cache.or_else(home).expect("a home");
    let packages = packages.join("onceward/node-pg-8.16.3/node_modules");
    assert!(packages.join("pg").is_dir(), "{packages:?} is not there; ./test fetches it");
    packages
}

/// A service that shares its database with the gateway.
struct Shop {
    database: Database<'static>,
    service: Child,
    address: SocketAddr,
}

impl Shop {
    fn open(language: Language) -> Shop {
        let database = Postgres::shared().create_database();
        database.psql("CREATE TABLE orders (name text NOT NULL)");
        let mut command = language.program();
        command.current_dir(PROGRAMS).arg(database.url());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut service = command.spawn().expect("the program of the language");
        let said = BufReader::new(service.stdout.take().expect("piped")).lines().next();
        let said = said.expect("it listens").expect("text");
        let address = said.strip_prefix("listening on ").expect("an address");
        Shop { database, service, address: address.parse().expect("an address") }
    }

    fn gateway(&self, effects: &str) -> Gateway {
        let url = self.database.url();
        let toml = format!("[store]\nurl = \"{url}\"\n[defaults]\neffects = \"{effects}\"\n");
        // Each attempt is one that a test asks for: nobody goes on by himself.
        Gateway::with_flags(self.address, &toml, &["--no-workers"])
    }

    fn orders(&self) -> usize {
        self.database.psql("SELECT count(*) FROM orders").trim().parse().expect("a number")
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        let _ = self.service.kill();
        let _ = self.service.wait();
    }
}

/// Asks for these transactions of its attempts.
fn ask(gateway: &Gateway, key: &str, request: &Value) -> Answer {
    post(gateway.address, &format!("contract-{key:0>16}"), &request.to_string(), &[])
}

fn outcome(answer: &Answer) -> (u16, &str) {
    (answer.status, answer.header("onceward-outcome").unwrap_or_default())
}

/// What the functions said.
fn said(answer: &Answer) -> Value {
    serde_json::from_slice(&answer.body).unwrap_or_else(|_| panic!("said: {}", answer.text()))
}

const DONE: u16 = 201;

/// Each function, with what it makes sense to give it.
fn functions() -> [Value; 5] {
    [
        json!(["complete", DONE, { "Content-Type": "application/json" }]),
        json!(["advance", "book", { "number": 7 }]),
        json!(["saved", "book"]),
        json!(["fail", "later"]),
        json!(["stage", "receipt", "mail", "order-1", "text/plain", "thank you"]),
    ]
}

fn steps_are_made_once_and_the_reply_commits_with_the_last(shop: &Shop) {
    let gateway = shop.gateway("phased");
    let [complete, book, saved, fail, stage] = functions();
    let first = json!([[saved, ["order"], book], [saved, fail]]);
    let second = json!([[saved, ["order"], book], [saved, ["order"], stage, stage, complete]]);
    let request = json!({ "attempts": [first, second] });
    let failed = ask(&gateway, "steps", &request);
    // The gateway knows no steps that a service made by itself: to it, a 503 is just one.
    assert_eq!(outcome(&failed), (503, "not_executed"), "{}", failed.text());
    let result = json!({ "number": 7 });
    let expected = json!([
        ["saved", null],
        ["order", null],
        ["advance", true],
        ["saved", result],
        ["fail", null]
    ]);
    assert_eq!((said(&failed), shop.orders()), (expected, 1));
    // It was booked: that is rolled back, and not made again.
    let done = ask(&gateway, "steps", &request);
    assert_eq!(outcome(&done), (DONE, "executed"), "{}", done.text());
    let expected = json!([
        ["saved", result],
        ["order", null],
        ["advance", false],
        ["saved", result],
        ["order", null],
        ["stage", true],
        ["stage", false]
    ]);
    assert_eq!((said(&done), shop.orders()), (expected, 2));
    assert_eq!(done.header("content-type"), Some("application/json"));
    let replay = ask(&gateway, "steps", &request);
    assert_eq!((outcome(&replay), &replay.body), ((DONE, "replayed"), &done.body));
    let staged = "SELECT name, sink, aggregate, content_type, convert_from(payload, 'UTF8') \
                  FROM onceward.outbox";
    assert_eq!(shop.database.psql(staged).trim(), "receipt|mail|order-1|text/plain|thank you");
    assert_eq!(shop.orders(), 2);
}

fn whoever_has_lost_the_record_is_refused_and_its_rows_roll_back(shop: &Shop) {
    let gateway = shop.gateway("phased");
    for (number, function) in functions().into_iter().enumerate() {
        let attempts = json!([[[["order"], function]], [[["order"], function]]]);
        let lost = json!({ "fence": -1, "attempts": attempts });
        for _ in 0..2 {
            let refused = ask(&gateway, &format!("lost-{number}"), &lost);
            assert_eq!(outcome(&refused), (503, "not_executed"), "{function}: {}", refused.text());
            assert_eq!(
                said(&refused),
                json!([["order", null], ["refused", "OW001"]]),
                "{function}"
            );
        }
        assert_eq!(shop.orders(), number, "{function}");
        // And its twin: with the fence that it was handed it is not refused.
        let held = json!({ "attempts": attempts });
        let done = ask(&gateway, &format!("held-{number}"), &held);
        assert!(!done.text().contains("refused"), "{function}: {}", done.text());
        assert_eq!(shop.orders(), number + 1, "{function}");
    }
}

fn what_makes_no_sense_is_refused_and_its_rows_roll_back(shop: &Shop) {
    let gateway = shop.gateway("local");
    let [complete, ..] = functions();
    for (number, call) in [
        json!(["complete", 99, {}]),
        json!(["complete", DONE, { "a header": "with a space" }]),
        json!(["advance", "", 7]),
        json!(["stage", "receipt", "", "order-1", "text/plain", "thank you"]),
    ]
    .into_iter()
    .enumerate()
    {
        let request = json!({ "attempts": [[[["order"], call]], [[["order"], complete]]] });
        let refused = ask(&gateway, &format!("wrong-{number}"), &request);
        assert_eq!(outcome(&refused), (503, "not_executed"), "{call}: {}", refused.text());
        assert_eq!(said(&refused), json!([["order", null], ["refused", "OW002"]]), "{call}");
        assert_eq!(shop.orders(), number, "{call}");
        let again = ask(&gateway, &format!("wrong-{number}"), &request);
        assert_eq!((outcome(&again), shop.orders()), ((DONE, "executed"), number + 1), "{call}");
    }
    // A COMMIT that does not wait for the disk.
    for (number, level) in ["off", "on"].into_iter().enumerate() {
        let setting = json!(["setting", "synchronous_commit", level]);
        let request = json!({ "attempts": [[[["order"], setting, complete]]] });
        let answer = ask(&gateway, &format!("disk-{number}"), &request);
        let expected = [(503, "not_executed"), (DONE, "executed")][number];
        assert_eq!(outcome(&answer), expected, "{level}: {}", answer.text());
        assert_eq!(answer.text().contains("OW002"), level == "off", "{}", answer.text());
    }
}

fn an_attempt_that_says_it_failed_is_followed_by_another(shop: &Shop) {
    let gateway = shop.gateway("external");
    let [complete, _, _, fail, _] = functions();
    // Where nobody says so, a 503 of an external service is not believed.
    let silent = json!({ "attempts": [[[["order"]]]] });
    let unknown = ask(&gateway, "silent", &silent);
    assert_eq!(outcome(&unknown).1, "unknown", "{}", unknown.text());
    let request = json!({ "attempts": [[[fail]], [[["order"], complete]]] });
    let failed = ask(&gateway, "fails", &request);
    // Whoever has said so has no record any more that the gateway could answer for.
    assert_eq!(refusal(&failed), (409, "idempotency_key_in_progress".into()));
    let done = ask(&gateway, "fails", &request);
    assert_eq!((outcome(&done), shop.orders()), ((DONE, "executed"), 2), "{}", done.text());
}
