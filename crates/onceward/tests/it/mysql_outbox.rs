//! What only the outbox in MySQL and MariaDB has: many round trips, each of which takes its time.

use std::time::Duration;

use onceward::{
    Message, OutboxStore, Store as _,
    outbox::{Claimed, DeadLetter, Settlement, Staged},
    record::AttemptId,
    store::{Write, list::AuditQuery},
    testing::samples::{ask, reply},
};
use onceward_testbed::{CutProxy, MariaDb};
use sqlx::{MySqlConnection, Row as _};

use crate::mysql_home::{Home, numbers, one, run};

const SINK: &str = "ledger";
const LEASE: Duration = Duration::from_secs(60);

fn message(name: &str) -> Message {
    Message::new(name, SINK, name.to_owned())
}

impl Home {
    /// Stages these by an operation that is then over.
    async fn staged(&self, key: &str, messages: impl IntoIterator<Item = Message>) {
        let lease = self.grant(&ask(key)).await;
        for message in messages {
            let staged = self.store.stage(&lease, message).await.expect("stage answers");
            assert_eq!(staged, Staged::Applied);
        }
        self.write(&lease, Write::Complete(reply("done"))).await;
    }

    async fn claim(&self, limit: u32, attempt: AttemptId) -> Vec<Claimed> {
        OutboxStore::claim(&*self.store, limit, &[SINK], LEASE, attempt)
            .await
            .expect("claim answers")
    }

    /// Claims, and says that all of it was delivered.
    async fn deliver(&self) -> Vec<String> {
        let attempt = AttemptId::random();
        let mut names = Vec::new();
        for claimed in self.claim(100, attempt).await {
            let done = Settlement::Done { provider_id: None };
            let settled = self.store.settle(claimed.message_id, attempt, claimed.fence, done).await;
            assert!(settled.expect("settle answers"));
            names.push(claimed.message.name.to_string());
        }
        names
    }

    /// Stages a message and gives it up.
    async fn dead_letter(&self, key: &str) -> DeadLetter {
        self.staged(key, [message(key).aggregate(key)]).await;
        self.give_up().await
    }

    async fn give_up(&self) -> DeadLetter {
        let attempt = AttemptId::random();
        let claimed = self.claim(1, attempt).await.pop().expect("a message");
        let (message_id, fence) = (claimed.message_id, claimed.fence);
        let dead = Settlement::Dead { why: "never".into() };
        let settled = self.store.settle(message_id, attempt, fence, dead).await;
        assert!(settled.expect("settle answers"));
        DeadLetter { message_id, fence }
    }
}

/// Statements that the server was sent so far, by anybody.
async fn statements(connection: &mut MySqlConnection) -> u64 {
    let asked = sqlx::raw_sql("SHOW GLOBAL STATUS LIKE 'Questions'");
    let count: String = asked.fetch_one(connection).await.expect("a count").get(1);
    count.parse().expect("a number")
}

/// 2,000 more like the one that is there.
async fn stage_many(connection: &mut MySqlConnection) {
    let numbers = numbers(2_000);
    let many = format!(
        "INSERT INTO onceward_outbox (scope, `key`, generation, record_created_at, name, \
         derived_key, sink, aggregate, content_type, payload, state, held, attempts, ambiguous, \
         next_at, fence, created_at) SELECT scope, `key`, generation, record_created_at, \
         CONCAT('number-', number), CONCAT(derived_key, number), sink, aggregate, content_type, \
         payload, state, held, attempts, ambiguous, next_at, fence, created_at \
         FROM onceward_outbox, {numbers} ORDER BY number"
    );
    run(connection, &many).await;
}

#[tokio::test]
async fn a_claim_passes_over_thousands_of_one_aggregate_by_few_statements() {
    let server = MariaDb::start();
    let home = Home::at(server.url(&server.create_database()), |options| options).await;
    let mut beside = home.connection().await;
    home.staged("many-of-one-0001", [message("number-0").aggregate("account")]).await;
    stage_many(&mut beside).await;
    home.staged("many-of-one-0002", [message("strangers")]).await;

    let before = statements(&mut beside).await;
    let mut delivered = Vec::new();
    while !delivered.iter().any(|name| name == "strangers") {
        delivered.extend(home.deliver().await);
    }
    let sent = statements(&mut beside).await - before;
    assert!(sent < 200, "{sent} statements for 2,000 messages");
    while delivered.len() < 50 {
        delivered.extend(home.deliver().await);
    }
    delivered.retain(|name| name != "strangers");
    let in_order: Vec<String> = (0..49).map(|number| format!("number-{number}")).collect();
    assert_eq!(delivered, in_order);
}

#[tokio::test]
async fn what_is_behind_a_message_under_way_hides_nothing_that_is_due() {
    let server = MariaDb::start();
    let home = Home::at(server.url(&server.create_database()), |options| options).await;
    let mut beside = home.connection().await;
    home.staged("behind-one-0001", [message("number-0").aggregate("account")]).await;
    stage_many(&mut beside).await;
    home.staged("behind-one-0002", [message("strangers")]).await;
    assert_eq!(home.claim(1, AttemptId::random()).await.len(), 1);
    run(&mut beside, "UPDATE onceward_outbox SET held = 0").await;
    let before = statements(&mut beside).await;
    assert_eq!(home.deliver().await, ["strangers"]);
    let sent = statements(&mut beside).await - before;
    assert!(sent < 200, "{sent} statements for 2,000 messages");
}

#[tokio::test]
async fn a_decision_whose_answer_was_lost_is_said_to_be_applied() {
    let server = MariaDb::shared();
    let proxy = CutProxy::start(server.address());
    let url = server.url_through(proxy.address(), &server.create_database());
    let home = Home::at(url, |options| options).await;
    let letter = home.dead_letter("decided-0000001").await;
    proxy.cut_after(b"\x03COMMIT", b"");
    let redriven = home.store.redrive(&[letter], "ticket 7").await.expect("redrive answers");
    assert_eq!((redriven, proxy.sprung()), (vec![letter.message_id], 1));
    let again = home.store.redrive(&[letter], "ticket 7").await.expect("redrive answers");
    assert_eq!(again, [], "it was decided before");

    let letter = home.give_up().await;
    proxy.cut_after(b"\x03COMMIT", b"");
    let discarded = home.store.discard(&[letter], "ticket 8").await.expect("discard answers");
    assert_eq!((discarded, proxy.sprung()), (vec![letter.message_id], 2));
    let again = home.store.discard(&[letter], "ticket 8").await.expect("discard answers");
    assert_eq!(again, [], "it was decided before");
    let mut look = home.connection().await;
    let told = "SELECT COUNT(*) FROM onceward_audit_records";
    assert_eq!(one::<i64>(&mut look, told).await, 2);
    let aggregates = "SELECT COUNT(*) FROM onceward_aggregates";
    assert_eq!(one::<i64>(&mut look, aggregates).await, 0, "it has no messages any more");
}

#[tokio::test]
async fn a_dead_letter_that_cannot_be_read_can_be_discarded_and_that_can_be_read() {
    let home = Home::new().await;
    let letter = home.dead_letter("damaged-0000001").await;
    let mut beside = home.connection().await;
    run(&mut beside, "UPDATE onceward_outbox SET name = X'FF', `key` = X'FF', attempts = -1").await;
    let discarded = home.store.discard(&[letter], "ticket 9").await.expect("discard answers");
    assert_eq!(discarded, [letter.message_id]);
    let log = home
        .store
        .audit_log(AuditQuery { limit: 10, ..AuditQuery::default() })
        .await
        .expect("it can be read");
    assert!(log.records.iter().any(|told| told.reason.starts_with("ticket 9")), "{log:?}");
}
