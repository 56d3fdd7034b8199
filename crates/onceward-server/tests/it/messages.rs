//! Messages of the outbox at the hands of operators: staged by the library, given up by a relay, and
//! decided about through the real binary on the same store.

use std::{process::Output, sync::Arc};

use onceward::{
    Message, OutboxStore, PgOptions, PgStore, SqliteOptions, SqliteStore, Store,
    clock::ManualClock,
    outbox::{MessageId, Settlement, Staged},
    record::Lease,
    store::{Beat, NodeId},
    testing::outbox::OutboxHarness,
};
use onceward_testbed::{Database, Postgres};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::support::{ALICE, Gateway, TOKEN, Upstream, admin, binary, document, ok, raw, refusal};

/// A store that a gateway and a service share.
pub(crate) struct Home {
    pub(crate) url: String,
    _folder: TempDir,
    _database: Option<Database<'static>>,
}

impl Home {
    pub(crate) fn file() -> Home {
        let folder = tempfile::tempdir().expect("temporary folder");
        let url = format!("file:{}", folder.path().join("x.db").display());
        Home { url, _folder: folder, _database: None }
    }

    pub(crate) fn postgres() -> Home {
        let database = Postgres::shared().create_database();
        let folder = tempfile::tempdir().expect("temporary folder");
        Home { url: database.url(), _folder: folder, _database: Some(database) }
    }

    /// A service with the library.
    pub(crate) fn service(&self) -> Service {
        let runtime = Runtime::new().expect("a runtime");
        let (store, outbox) = runtime.block_on(opened(&self.url));
        // Both stores have clocks of their own.
        Service { on: OutboxHarness { store, outbox, clock: ManualClock::default() }, runtime }
    }

    fn gateway(&self) -> (Upstream, Gateway) {
        let upstream = Upstream::start(|_, _| ok("done"));
        let gateway = self.gateway_before(&upstream, "");
        (upstream, gateway)
    }

    /// One before this upstream, with more settings.
    pub(crate) fn gateway_before(&self, upstream: &Upstream, toml: &str) -> Gateway {
        let toml = format!("[store]\nurl = \"{}\"\n{ALICE}{toml}", self.url);
        Gateway::with(upstream.address, &toml)
    }
}

/// The store of a gateway, as a service with the library opens it.
pub(crate) async fn opened(url: &str) -> (Arc<dyn Store>, Arc<dyn OutboxStore>) {
    if let Some(path) = url.strip_prefix("file:") {
        let store = SqliteStore::open(SqliteOptions::new(path)).await.expect("a store");
        let store = Arc::new(store);
        (store.clone() as _, store as _)
    } else {
        let store = PgStore::connect(PgOptions::new(url)).await.expect("a store");
        let store = Arc::new(store);
        (store.clone() as _, store as _)
    }
}

pub(crate) struct Service {
    on: OutboxHarness,
    runtime: Runtime,
}

/// A message for the sink of the suite.
pub(crate) fn letter(name: &str) -> Message {
    Message::new(name, "ledger", format!("payload of {name}"))
}

impl Service {
    /// Stages these for whoever delivers them.
    pub(crate) fn stage(&self, messages: impl IntoIterator<Item = Message>) {
        self.runtime.block_on(self.on.staged(messages));
    }

    /// How many messages are ready, in delivery, done and dead.
    pub(crate) fn counts(&self) -> [usize; 4] {
        self.runtime.block_on(self.on.counts())
    }

    /// Finds that the store has lost what was acknowledged to this process.
    pub(crate) fn find_a_loss(&self) {
        let beat = Beat { node: NodeId::random(), acked: 41 };
        let pulse = self.runtime.block_on(self.on.store.beat(beat)).expect("a beat");
        assert!(pulse.regression.is_some());
    }

    /// Stages these, claims what can be claimed, and gives that up.
    pub(crate) fn letters(&self, messages: impl IntoIterator<Item = Message>) -> Vec<MessageId> {
        let staged = self.runtime.block_on(self.on.staged(messages));
        self.give_up();
        staged
    }

    fn give_up(&self) {
        self.runtime.block_on(async {
            let (attempt, claimed) = self.on.claim(100).await;
            assert!(!claimed.is_empty(), "something is due");
            for claimed in &claimed {
                let dead = Settlement::Dead { why: "410 Gone".into() };
                assert!(self.on.settle(attempt, claimed, dead).await);
            }
        });
    }

    /// A dead letter of an operation that goes on.
    fn letter_of_an_open_operation(&self) -> (Lease, MessageId) {
        let staged = self.runtime.block_on(async {
            let lease = self.on.begun("order-0000000000000001").await;
            assert_eq!(self.on.stage(&lease, letter("receipt")).await, Staged::Applied);
            let ids = self.on.ids(onceward::outbox::MessageState::Ready).await;
            (lease, ids[0])
        });
        self.give_up();
        staged
    }
}

fn operate(gateway: &Gateway, token: &str, line: &[&str]) -> Output {
    let mut command = binary();
    command.args(line).env("ONCEWARD_ADMIN", format!("http://{}", gateway.admin));
    command.env("ONCEWARD_ADMIN_TOKEN", token).output().expect("it ends")
}

pub(crate) fn done(gateway: &Gateway, line: &[&str]) -> String {
    let ended = operate(gateway, TOKEN, line);
    let complained = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(0), "{line:?}: {complained}");
    String::from_utf8(ended.stdout).expect("text")
}

fn refused(gateway: &Gateway, line: &[&str]) -> String {
    let ended = operate(gateway, TOKEN, line);
    assert_eq!(
        ended.status.code(),
        Some(1),
        "{line:?}: {}",
        String::from_utf8_lossy(&ended.stdout)
    );
    String::from_utf8(ended.stderr).expect("text")
}

pub(crate) fn homes() -> [Home; 2] {
    [Home::file(), Home::postgres()]
}

#[test]
fn an_operator_works_through_dead_letters_of_the_outbox() {
    for home in homes() {
        let (_upstream, gateway) = home.gateway();
        let service = home.service();
        let messages = [
            letter("receipt").aggregate("order-1"),
            letter("mail"),
            letter("ship").aggregate("order-1"),
        ];
        let ids = service.letters(messages);
        let [receipt, mail, ship] = [ids[0], ids[1], ids[2]].map(|id| id.to_string());
        let listed = done(&gateway, &["outbox", "list"]);
        assert_eq!(listed.lines().count(), 4, "{listed}");
        let dead = done(&gateway, &["outbox", "list", "--state", "dead", "-o", "json"]);
        let dead: Value = serde_json::from_str(&dead).expect("JSON");
        let names = dead["messages"].as_array().expect("messages").iter().map(|it| &it["name"]);
        assert_eq!(names.collect::<Vec<_>>(), ["receipt", "mail"], "the third waits behind one");
        assert_eq!(dead["messages"][0]["payload_bytes"], "payload of receipt".len());
        let shown = done(&gateway, &["outbox", "show", &receipt]);
        assert!(shown.contains("410 Gone") && shown.contains("redrive it"), "{shown}");
        assert!(!shown.contains("payload of") && !dead.to_string().contains("payload of"));
        let letters = done(&gateway, &["dlq", "list"]);
        assert_eq!(letters.matches("message  ").count(), 2, "{letters}");

        let redriven = done(&gateway, &["dlq", "redrive", &receipt, "--reason", "ticket 7"]);
        assert!(redriven.contains("ready"), "{redriven}");
        let again = refused(&gateway, &["dlq", "redrive", &receipt, "--reason", "ticket 7"]);
        assert!(again.contains("not_dead_letter") && again.contains("nothing to do"), "{again}");
        let discarded = done(&gateway, &["dlq", "discard", &mail, "--reason", "ticket 8"]);
        assert!(discarded.contains("was discarded"), "{discarded}");
        assert!(refused(&gateway, &["outbox", "show", &mail]).contains("not_found"));
        let audit = done(&gateway, &["audit"]);
        let lines: Vec<&str> = audit.lines().skip(1).collect();
        let line = |event: &str, why: String| {
            lines.iter().any(|line| line.contains(event) && line.contains(&why))
        };
        assert_eq!(lines.len(), 2, "a refusal is not audited: {audit}");
        let why = format!("alice: ticket 7 (message {receipt}, receipt)");
        assert!(line("message_redriven", why), "{audit}");
        assert!(line("message_discarded", format!("alice: ticket 8 (message {mail}, mail)")));
        // What waited behind the dead letter goes on when that is gone.
        service.give_up();
        assert!(done(&gateway, &["outbox", "list", "--state", "ready"]).contains("ship"));
        done(&gateway, &["dlq", "discard", &receipt, "--reason", "ticket 9"]);
        service.give_up();
        assert!(done(&gateway, &["dlq", "list"]).contains(&format!("  {ship}\n")));
    }
}

#[test]
fn many_dead_letters_are_planned_first_and_what_moved_since_is_left_alone() {
    for home in homes() {
        let (_upstream, gateway) = home.gateway();
        let service = home.service();
        let ids = service.letters(["a", "b", "c"].map(letter));
        let redrive = ["dlq", "redrive", "--messages", "--filter", "sink=ledger"];
        let why = ["--reason", "ticket 7"];
        let elsewhere = ["dlq", "redrive", "--messages", "--filter", "sink=mail"];
        assert!(done(&gateway, &[&elsewhere[..], &why].concat()).contains("redrive 0 messages"));
        let plan = done(&gateway, &[&redrive[..], &why].concat());
        assert!(plan.contains("would redrive 3 messages"), "{plan}");
        let dead = || {
            let list = done(&gateway, &["outbox", "list", "--state", "dead"]);
            list.lines().count() - 1
        };
        assert_eq!(dead(), 3, "nothing was changed yet");
        // One is redriven by somebody else, and given up again.
        done(&gateway, &["dlq", "redrive", &ids[1].to_string(), "--reason", "ticket 8"]);
        service.give_up();
        let apply = plan.split("--apply ").nth(1).expect("what to type").trim();
        let applied = done(&gateway, &["dlq", "redrive", "--apply", apply]);
        assert!(applied.contains("2 messages were changed"), "{applied}");
        assert!(applied.contains("message_changed"), "{applied}");
        assert_eq!(dead(), 1);
        let once = refused(&gateway, &["dlq", "redrive", "--apply", apply]);
        assert!(once.contains("not_found"), "{once}");
        let all = ["dlq", "discard", "--filter", "dead=true", "--apply"];
        let discarded = done(&gateway, &[&all[..], &why].concat());
        assert!(discarded.contains("1 messages were changed"), "{discarded}");
        assert_eq!(dead(), 0);
        let audit = done(&gateway, &["audit"]);
        assert_eq!(audit.matches("message_redriven").count(), 3, "{audit}");
        assert_eq!(audit.matches("message_discarded").count(), 1, "{audit}");
        assert!(audit.contains("(plan p"), "{audit}");
    }
}

#[test]
fn a_message_whose_operation_may_still_run_is_not_discarded() {
    for home in homes() {
        let (_upstream, gateway) = home.gateway();
        let service = home.service();
        let (lease, id) = service.letter_of_an_open_operation();
        let id = id.to_string();
        let kept = refused(&gateway, &["dlq", "discard", &id, "--reason", "ticket 7"]);
        assert!(kept.contains("operation_open") && kept.contains("it is kept"), "{kept}");
        let all = ["dlq", "discard", "--filter", "dead=true", "--apply", "--reason", "x"];
        assert!(done(&gateway, &all).contains("operation_open"));
        assert!(done(&gateway, &["outbox", "show", &id]).contains("dead"));
        assert_eq!(done(&gateway, &["audit"]).lines().count(), 1, "nothing was decided");
        service.runtime.block_on(service.on.complete(&lease));
        done(&gateway, &["dlq", "discard", &id, "--reason", "ticket 7"]);
        assert_eq!(done(&gateway, &["audit"]).lines().count(), 2);
    }
}

#[test]
fn nobody_decides_about_messages_without_a_token_a_reason_and_a_look() {
    let home = Home::file();
    let (_upstream, gateway) = home.gateway();
    let id = home.service().letters([letter("receipt")])[0].to_string();
    let fence = document(&admin(&gateway, "GET", &format!("/api/v1/messages/{id}"), None));
    let fence = &fence["message"]["fence"];
    for verb in ["redrive", "discard"] {
        let path = format!("/api/v1/messages/{id}/{verb}");
        let good = json!({ "reason": "ticket 7", "fence": fence });
        for token in ["", "Authorization: Bearer another-token-0123456789\r\n"] {
            let headers = format!("{token}Content-Type: application/json\r\n");
            let answer = raw(&gateway, "POST", &path, &headers, good.to_string().as_bytes());
            assert_eq!(refusal(&answer), (401, "unauthorized".to_owned()));
        }
        for bad in [
            json!({ "fence": fence }),
            json!({ "reason": "", "fence": fence }),
            json!({ "reason": "two\nlines", "fence": fence }),
            json!({ "reason": "ticket 7" }),
        ] {
            let answer = admin(&gateway, "POST", &path, Some(&bad));
            assert_eq!(refusal(&answer), (400, "invalid_request".to_owned()), "{bad}");
        }
        let moved = json!({ "reason": "ticket 7", "fence": 1 });
        let answer = admin(&gateway, "POST", &path, Some(&moved));
        assert_eq!(refusal(&answer), (409, "message_changed".to_owned()));
    }
    let stranger = operate(&gateway, "another-token-0123456789", &["dlq", "list"]);
    assert_eq!(stranger.status.code(), Some(1));
    let reasonless = operate(&gateway, TOKEN, &["dlq", "discard", &id]);
    let complained = String::from_utf8_lossy(&reasonless.stderr);
    assert!(!reasonless.status.success() && complained.contains("--reason"), "{complained}");
    assert!(done(&gateway, &["outbox", "show", &id]).contains("dead"), "it stands as it was");
    assert_eq!(done(&gateway, &["audit"]).lines().count(), 1);
    done(&gateway, &["dlq", "redrive", &id, "--reason", "ticket 7"]);
}

#[test]
fn an_unknown_outcome_cannot_be_thrown_away_and_a_store_without_an_outbox_says_so() {
    let upstream = Upstream::start(|_, _| ok("done"));
    let gateway = Gateway::with(upstream.address, ALICE);
    let operation = refused(&gateway, &["dlq", "discard", "v1.YQ.Yg", "--reason", "x"]);
    assert!(
        operation.contains("keys resolve") && operation.contains("may ask again"),
        "{operation}"
    );
    let plan = json!({ "filter": { "dead": "true" }, "action": "discard", "reason": "x" });
    let answer = admin(&gateway, "POST", "/api/v1/plans", Some(&plan));
    assert_eq!(refusal(&answer), (400, "invalid_request".to_owned()));
    assert!(answer.text().contains("Resolve or release it"), "{}", answer.text());
    assert!(refused(&gateway, &["outbox", "list"]).contains("no_outbox"));
    let messages = json!({ "messages": { "dead": "true" }, "action": "discard", "reason": "x" });
    let answer = admin(&gateway, "POST", "/api/v1/plans", Some(&messages));
    assert_eq!(refusal(&answer), (404, "no_outbox".to_owned()));
    assert_eq!(done(&gateway, &["dlq", "list"]).lines().count(), 1, "operations only, and none");
}
