//! What only the outbox in MySQL and MariaDB has: many round trips, each of which takes its time.

use std::time::Duration;

use onceward::{
    Message, OutboxStore as _,
    outbox::{Claimed, Settlement, Staged},
    record::AttemptId,
    store::Write,
    testing::samples::{ask, reply},
};
use onceward_testbed::MariaDb;
use sqlx::{MySqlConnection, Row as _};

use crate::mysql_home::{Home, run};

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
        self.store.claim(limit, &[SINK], LEASE, attempt).await.expect("claim answers")
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
}

/// Statements that the server was sent so far, by anybody.
async fn statements(connection: &mut MySqlConnection) -> u64 {
    let asked = sqlx::raw_sql("SHOW GLOBAL STATUS LIKE 'Questions'");
    let count: String = asked.fetch_one(connection).await.expect("a count").get(1);
    count.parse().expect("a number")
}

/// 2,000 more like the one that is there.
async fn stage_many(connection: &mut MySqlConnection) {
    run(
        connection,
        "INSERT INTO onceward_outbox (scope, `key`, generation, record_created_at, name, \
         derived_key, sink, aggregate, content_type, payload, state, held, attempts, ambiguous, \
         next_at, fence, created_at) SELECT scope, `key`, generation, record_created_at, \
         CONCAT('number-', seq), CONCAT(derived_key, seq), sink, aggregate, content_type, payload, \
         state, held, attempts, ambiguous, next_at, fence, created_at \
         FROM onceward_outbox, seq_1_to_2000 ORDER BY seq",
    )
    .await;
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
