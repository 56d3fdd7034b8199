//! What only the outbox in PostgreSQL has: transactions that are open while others claim and settle.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use onceward::{
    Message, OutboxStore, PgOptions, PgStore, Store as _,
    outbox::{Claimed, DeadLetter, MessageId, MessageState, Settlement, Staged},
    record::{AttemptId, Fence, Lease},
    store::{Reservation, StoreErrorKind, Write, Written},
    testing::samples::{ask, reply},
};
use onceward_testbed::{Database, Postgres};
use sqlx::{Connection as _, PgConnection, PgPool, Row as _, postgres::PgPoolOptions};

const SINK: &str = "ledger";
const LEASE: Duration = Duration::from_secs(60);

/// A database with an outbox in it, and a connection beside it.
struct Outbox {
    store: Arc<PgStore>,
    beside: PgConnection,
    database: Database<'static>,
}

async fn outbox() -> Outbox {
    let database = Postgres::shared().create_database();
    let store = PgStore::connect(PgOptions::new(database.url())).await.expect("a store");
    let beside = PgConnection::connect(&database.url()).await.expect("a connection");
    Outbox { store: Arc::new(store), beside, database }
}

fn message(name: &str) -> Message {
    Message::new(name, SINK, name.to_owned())
}

fn done() -> Settlement {
    Settlement::Done { provider_id: None }
}

fn dead() -> Settlement {
    Settlement::Dead { why: "never".into() }
}

async fn begun(store: &PgStore, key: &str) -> Lease {
    match store.reserve(ask(key)).await.expect("an answer") {
        Reservation::Granted { lease, .. } => lease,
        other => panic!("expected a grant, found {other:?}"),
    }
}

/// What a service calls the operation in SQL.
fn handle(lease: &Lease) -> String {
    let [scope, key] = [lease.id.scope.as_str(), lease.id.key.as_str()];
    let [scope, key] = [scope, key].map(|part| URL_SAFE_NO_PAD.encode(part));
    format!("v1.{scope}.{key}")
}

impl Outbox {
    /// Stages these by an operation that is then over.
    async fn staged(&self, messages: impl IntoIterator<Item = Message>) {
        let lease = begun(&self.store, &format!("order-{:016x}", rand::random::<u64>())).await;
        for message in messages {
            let staged = self.store.stage(&lease, message).await.expect("an answer");
            assert_eq!(staged, Staged::Applied);
        }
        let completed = self.store.write(&lease, Write::Complete(reply("done"))).await;
        assert_eq!(completed.expect("an answer"), Written::Applied);
    }

    async fn claim_as(&self, attempt: AttemptId) -> Vec<Claimed> {
        OutboxStore::claim(&*self.store, 10, &[SINK], LEASE, attempt).await.expect("an answer")
    }

    async fn claim(&self) -> Vec<Claimed> {
        self.claim_as(AttemptId::random()).await
    }

    async fn settle(&self, attempt: AttemptId, claimed: &Claimed, how: Settlement) -> bool {
        let settled = self.store.settle(claimed.message_id, attempt, claimed.fence, how);
        settled.await.expect("an answer")
    }

    /// One statement on the connection beside.
    async fn sql(&mut self, sql: &'static str) -> String {
        let row = sqlx::query(sql).fetch_optional(&mut self.beside).await.expect(sql);
        let text = row.and_then(|row| row.try_get::<Option<String>, _>(0).unwrap_or_default());
        text.unwrap_or_default()
    }

    /// What this connection has read of the outbox, row by row and by index, not long ago.
    async fn read(&mut self) -> (i64, i64) {
        let read = "SELECT seq_tup_read, idx_tup_fetch FROM pg_stat_xact_user_tables \
                    WHERE relname = 'outbox'";
        sqlx::query_as(read).fetch_one(&mut self.beside).await.expect("statistics")
    }

    /// Waits until somebody waits for a lock.
    async fn somebody_waits(&mut self) {
        let waiting = "SELECT count(*)::text FROM pg_locks WHERE NOT granted AND database = \
                       (SELECT oid FROM pg_database WHERE datname = current_database())";
        let waited = tokio::time::timeout(Duration::from_secs(20), async {
            while self.sql(waiting).await == "0" {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        waited.await.expect("somebody waits");
    }
}

fn names(claimed: &[Claimed]) -> Vec<&str> {
    claimed.iter().map(|claimed| &*claimed.message.name).collect()
}

#[tokio::test]
async fn what_is_held_behind_a_dead_letter_is_looked_at_once_however_much_it_is() {
    let mut on = outbox().await;
    on.staged(["first"].map(|name| message(name).aggregate("order-1"))).await;
    let attempt = AttemptId::random();
    let first = on.claim_as(attempt).await;
    assert!(on.settle(attempt, &first[0], dead()).await);
    // More than one call looks at, and something behind all of them.
    let many = "INSERT INTO onceward.outbox (scope, key, generation, record_created_at, name, \
                derived_key, sink, aggregate, content_type, payload, state, held, attempts, \
                ambiguous, next_at, fence, created_at) \
                SELECT 'tenant', 'many', 1, 1, 'm', i, 'ledger', 'order-1', 'text/plain', '', \
                'ready', false, 0, false, 1, 0, 1 FROM generate_series(1, 12000) AS i";
    sqlx::query(many).execute(&mut on.beside).await.expect("inserted");
    on.staged([message("free"), message("other").aggregate("order-2")]).await;
    assert_eq!(names(&on.claim().await), ["free", "other"]);
    assert_eq!(on.sql("SELECT count(*)::text FROM onceward.outbox WHERE held").await, "12000");
    on.sql("BEGIN").await;
    let claim = "SELECT count(*)::text FROM onceward.claim_messages(\
                 NULL, 10, '{ledger}', 1000000, gen_random_uuid())";
    let before = on.read().await;
    assert_eq!(on.sql(claim).await, "0");
    let after = on.read().await;
    assert!(after.0 == before.0 && after.1 <= before.1 + 5, "{before:?} {after:?}");
    on.sql("ROLLBACK").await;
    // The twin: without the marks it looks at many.
    on.sql("BEGIN").await;
    on.sql("UPDATE onceward.outbox SET held = false WHERE message_id % 4 = 0").await;
    let (_, before) = on.read().await;
    assert_eq!(on.sql(claim).await, "0");
    assert!(on.read().await.1 - before > 3000);
    on.sql("ROLLBACK").await;
}

#[tokio::test]
async fn every_call_finds_its_messages_by_an_index() {
    let mut on = outbox().await;
    let many = "INSERT INTO onceward.outbox (scope, key, generation, record_created_at, name, \
                derived_key, sink, aggregate, content_type, payload, state, held, attempts, \
                ambiguous, next_at, fence, created_at, done_at, attempt, lease_until) \
                SELECT 'tenant', 'k' || i, 1, 1, 'm', i, 'ledger', 'order-' || i, 'text/plain', '', \
                (ARRAY['ready', 'delivering', 'done', 'dead'])[i % 4 + 1], false, 0, false, \
                9e15, 0, 1, CASE i % 4 WHEN 2 THEN i END, gen_random_uuid(), 9e15 \
                FROM generate_series(1, 4000) AS i";
    sqlx::query(many).execute(&mut on.beside).await.expect("inserted");
    for (call, most) in [
        ("onceward.claim_messages(NULL, 10, '{ledger}', 1, gen_random_uuid())", 0),
        ("onceward.settle_message(NULL, 1, gen_random_uuid(), 1, 'done', '', 0, false, '')", 2),
        ("onceward.redrive(NULL, '{3,7,1}', '{1,1,1}', 'x')", 12),
        ("onceward.discard(NULL, '{3,7,1}', '{1,1,1}', 'x')", 12),
        ("onceward.purge_done(NULL, 0, 5)", 20),
    ] {
        on.sql("BEGIN").await;
        let before = on.read().await;
        let sql = sqlx::AssertSqlSafe(format!("SELECT * FROM {call}"));
        sqlx::query(sql).fetch_all(&mut on.beside).await.expect(call);
        let after = on.read().await;
        let few = after.0 == before.0 && after.1 <= before.1 + most;
        assert!(few, "{call}: {before:?} {after:?}");
        on.sql("ROLLBACK").await;
    }
    on.sql("BEGIN").await;
    let before = on.read().await;
    on.sql("SELECT count(*)::text FROM onceward.outbox WHERE last_error = 'x'").await;
    assert_eq!(on.read().await.0, before.0 + 4000, "the twin without an index");
}

#[tokio::test]
async fn behind_a_claim_that_is_being_made_nothing_of_the_aggregate_is_claimed() {
    let mut on = outbox().await;
    on.staged(["a", "b"].map(|name| message(name).aggregate("order-1"))).await;
    on.staged([message("free")]).await;
    on.sql("BEGIN").await;
    let claim = "SELECT name FROM onceward.claim_messages(\
                 NULL, 1, '{ledger}', 60000000, gen_random_uuid())";
    assert_eq!(on.sql(claim).await, "a");
    assert_eq!(names(&on.claim().await), ["free"]);
    on.sql("COMMIT").await;
    assert_eq!(names(&on.claim().await), [""; 0], "held behind the delivery");
}

#[tokio::test]
async fn a_message_is_let_go_by_a_settlement_that_is_on_its_way_while_others_claim() {
    let mut on = outbox().await;
    on.staged(["a", "b", "c"].map(|name| message(name).aggregate("order-1"))).await;
    on.sql("BEGIN").await;
    let claim = "SELECT name FROM onceward.claim_messages(NULL, 1, '{ledger}', 60000000, \
                 '00000000-0000-0000-0000-000000000001')";
    assert_eq!(on.sql(claim).await, "a");
    on.sql("COMMIT").await;
    on.sql("BEGIN").await;
    let settle = "SELECT onceward.settle_message(NULL, message_id, attempt, fence, 'done', NULL, \
                  0, false, NULL)::text FROM onceward.outbox WHERE name = 'a'";
    assert_eq!(on.sql(settle).await, "true");
    assert_eq!(names(&on.claim().await), [""; 0], "it is not committed");
    on.sql("COMMIT").await;
    for name in ["b", "c"] {
        let attempt = AttemptId::random();
        let claimed = on.claim_as(attempt).await;
        assert_eq!(names(&claimed), [name]);
        assert!(on.settle(attempt, &claimed[0], done()).await);
    }
}

#[tokio::test]
async fn a_message_whose_transaction_outlives_the_delivery_before_it_is_delivered() {
    let mut on = outbox().await;
    on.staged([message("a").aggregate("order-1")]).await;
    let attempt = AttemptId::random();
    let claimed = on.claim_as(attempt).await;
    let lease = begun(&on.store, "order-2").await;
    on.sql("BEGIN").await;
    let stage =
        "SELECT onceward.stage($1, $2::uuid, $3, 'b', 'ledger', 'order-1', 'text/plain', '')";
    let stage = sqlx::query_scalar(stage).bind(handle(&lease)).bind(lease.attempt.to_string());
    let staged: bool =
        stage.bind(lease.fence.number()).fetch_one(&mut on.beside).await.expect("staged");
    assert!(staged);
    let settled = on.settle(attempt, &claimed[0], done());
    let settled = tokio::time::timeout(Duration::from_secs(3), settled).await;
    assert!(settled.expect("nobody waits for the user's transaction"));
    on.sql("COMMIT").await;
    assert_eq!(names(&on.claim().await), ["b"]);
}

#[tokio::test]
async fn a_relay_settles_a_message_that_is_being_staged_again() {
    let mut on = outbox().await;
    let lease = begun(&on.store, "order-1").await;
    assert_eq!(on.store.stage(&lease, message("a")).await.expect("an answer"), Staged::Applied);
    let attempt = AttemptId::random();
    let claimed = on.claim_as(attempt).await;
    on.sql("BEGIN").await;
    let stage = "SELECT onceward.stage($1, $2::uuid, $3, 'a', 'ledger', NULL, 'text/plain', '')";
    let stage = sqlx::query_scalar(stage).bind(handle(&lease)).bind(lease.attempt.to_string());
    let staged: bool =
        stage.bind(lease.fence.number()).fetch_one(&mut on.beside).await.expect("an answer");
    assert!(!staged, "it is there already");
    let settled = on.settle(attempt, &claimed[0], done());
    let settled = tokio::time::timeout(Duration::from_secs(3), settled).await;
    assert!(settled.expect("nobody waits for the user's transaction"));
}

#[tokio::test]
async fn a_repeated_claim_waits_for_the_one_whose_answer_was_lost() {
    let mut on = outbox().await;
    on.staged(["a", "b", "c", "d"].map(message)).await;
    on.sql("BEGIN").await;
    let claim = "SELECT string_agg(name, ' ') FROM onceward.claim_messages(\
                 NULL, 2, '{ledger}', 60000000, '00000000-0000-0000-0000-000000000001')";
    assert_eq!(on.sql(claim).await, "a b");
    let mut attempt = [0; 16];
    attempt[15] = 1;
    let store = Arc::clone(&on.store);
    let repeated = tokio::spawn(async move {
        let attempt = AttemptId::from_bytes(attempt);
        OutboxStore::claim(&*store, 2, &[SINK], LEASE, attempt).await.expect("an answer")
    });
    on.somebody_waits().await;
    assert!(!repeated.is_finished());
    on.sql("COMMIT").await;
    assert_eq!(names(&repeated.await.expect("no panic")), ["a", "b"]);
    assert_eq!(names(&on.claim().await), ["c", "d"], "others go on");
}

#[tokio::test]
async fn whatever_a_sink_says_can_be_written_down() {
    let on = outbox().await;
    on.staged([message("a"), message("b")]).await;
    let attempt = AttemptId::random();
    let claimed = on.claim_as(attempt).await;
    let why = "broken\0pipe \u{1f980}".into();
    assert!(on.settle(attempt, &claimed[0], Settlement::Dead { why }).await);
    let provider_id = Some("p\0-1".into());
    assert!(on.settle(attempt, &claimed[1], Settlement::Done { provider_id }).await);
    let dead = on.store.list(MessageState::Dead, None, 10).await.expect("an answer");
    assert_eq!(dead[0].last_error.as_deref(), Some("broken\u{fffd}pipe \u{1f980}"));
    let done = on.store.list(MessageState::Done, None, 10).await.expect("an answer");
    assert_eq!(done[0].provider_id.as_deref(), Some("p\u{fffd}-1"));
}

#[tokio::test]
async fn a_message_that_cannot_be_read_is_a_dead_letter_and_in_nobodys_way() {
    let mut on = outbox().await;
    on.staged(["a", "b"].map(message)).await;
    on.sql("UPDATE onceward.outbox SET scope = repeat('x', 300) WHERE name = 'a'").await;
    assert_eq!(names(&on.claim().await), ["b"]);
    let error = on.store.list(MessageState::Dead, None, 10).await.expect_err("not absent");
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    let cause = std::error::Error::source(&error).expect("a cause").to_string();
    assert!(cause.contains("message 1"), "{cause}");
    // Nobody can look at it but in the table.
    let fence = on.sql("SELECT fence::text FROM onceward.outbox WHERE message_id = 1").await;
    let fence = Fence::from_stored(fence.parse().expect("a number"));
    let ids = [MessageId::from_stored(1)];
    let letters = [DeadLetter { message_id: ids[0], fence }];
    assert_eq!(on.store.discard(&letters, "ticket 7").await.expect("an answer"), ids);
    assert_eq!(on.store.list(MessageState::Dead, None, 10).await.expect("an answer"), []);
}

#[tokio::test]
async fn a_database_whose_statements_do_not_see_what_others_commit_is_refused() {
    let database = Postgres::shared().create_database();
    let name = database.name();
    let level = |level: &str| {
        let alter = "ALTER DATABASE {} SET default_transaction_isolation = ";
        database.psql(&format!("{}'{level}'", alter.replace("{}", name)));
    };
    level("repeatable read");
    let error = PgStore::connect(PgOptions::new(database.url())).await.expect_err("refused");
    assert!(error.to_string().contains("`repeatable read`"), "{error}");
    level("read committed");
    PgStore::connect(PgOptions::new(database.url())).await.expect("a store");
}

const STAGERS: u64 = 6;
const RELAYS: u64 = 5;
const EACH: u64 = 40;
const AGGREGATES: u64 = 5;

/// What was delivered, for each aggregate in order: the id, and whether it has ended.
type Told = Arc<std::sync::Mutex<BTreeMap<String, Vec<(i64, bool)>>>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_lost_out_of_order_or_held_for_ever_while_many_stage_and_settle_at_once() {
    let seed = rand::random::<u64>();
    eprintln!("seed {seed}");
    let on = outbox().await;
    let pool = PgPoolOptions::new().max_connections(STAGERS as u32);
    let pool = pool.connect(&on.database.url()).await.expect("a pool");
    let stagers = (0..STAGERS).map(|number| {
        tokio::spawn(stage_slowly(Arc::clone(&on.store), pool.clone(), seed ^ number, number))
    });
    let stagers: Vec<_> = stagers.collect();
    let told = Told::default();
    let other = PgStore::connect(PgOptions::new(on.database.url())).await.expect("a store");
    let stores = [Arc::clone(&on.store), Arc::new(other)];
    let mut relays: Vec<_> = (0..RELAYS)
        .map(|number| {
            let store = Arc::clone(&stores[(number % 2) as usize]);
            tokio::spawn(relay(store, Arc::clone(&told), seed ^ (number << 32)))
        })
        .collect();
    let all = async {
        for stager in stagers {
            stager.await.expect("a stager");
        }
        let ended = || {
            let told = told.lock().expect("not poisoned");
            told.values().flatten().filter(|(_, ended)| *ended).count() as u64
        };
        while ended() < STAGERS * EACH {
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(relays.iter().all(|relay| !relay.is_finished()), "a relay failed");
        }
        // The last ones are told of before the store has said so.
        let open = "SELECT count(*) FROM onceward.outbox WHERE state <> 'done'";
        while on.database.psql(open) != "0" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(Duration::from_secs(90), all).await.is_err() {
        let left = "SELECT state, held, count(*) FROM onceward.outbox GROUP BY 1, 2";
        panic!("stuck, seed {seed}:\n{}", on.database.psql(left));
    }
    relays.iter_mut().for_each(|relay| relay.abort());
}

fn random(seed: u64) -> rand::rngs::StdRng {
    <rand::rngs::StdRng as rand::SeedableRng>::seed_from_u64(seed)
}

/// Stages in transactions that stay open for some time.
async fn stage_slowly(store: Arc<PgStore>, pool: PgPool, seed: u64, number: u64) {
    use rand::RngExt as _;
    let mut random = random(seed);
    for count in 0..EACH {
        let lease = begun(&store, &format!("stager-{number:04}-{count:010}")).await;
        let mut tx = pool.begin().await.expect("begun");
        let stage = "SELECT onceward.stage($1, $2::uuid, $3, 'm', 'ledger', $4, 'text/plain', '')";
        let stage = sqlx::query(stage).bind(handle(&lease)).bind(lease.attempt.to_string());
        let stage = stage.bind(lease.fence.number());
        let aggregate = format!("order-{}", random.random_range(0..AGGREGATES));
        stage.bind(aggregate).execute(&mut *tx).await.expect("staged");
        tokio::time::sleep(Duration::from_micros(random.random_range(0..4000))).await;
        tx.commit().await.expect("committed");
        let completed = store.write(&lease, Write::Complete(reply("done"))).await;
        assert_eq!(completed.expect("an answer"), Written::Applied);
    }
}

/// Delivers, gives up, redrives and discards at random, and watches the order.
async fn relay(store: Arc<PgStore>, told: Told, seed: u64) {
    use rand::RngExt as _;
    let mut random = random(seed);
    loop {
        let attempt = AttemptId::random();
        let limit = random.random_range(1..6);
        let claimed =
            OutboxStore::claim(&*store, limit, &[SINK], LEASE, attempt).await.expect("an answer");
        for claimed in claimed {
            let aggregate = claimed.message.aggregate.as_deref().expect("one").to_owned();
            let id = claimed.message_id.number();
            {
                let mut told = told.lock().expect("not poisoned");
                let order = told.entry(aggregate.clone()).or_default();
                let last = order.last().copied();
                assert!(last.is_none_or(|(last, ended)| last == id || (last < id && ended)));
                if last.is_none_or(|(last, _)| last != id) {
                    order.push((id, false));
                }
            }
            tokio::time::sleep(Duration::from_micros(random.random_range(0..2000))).await;
            let how = match random.random_range(0..10) {
                0 => Settlement::Retry { after: Duration::ZERO, ambiguous: false, why: "x".into() },
                1 | 2 => dead(),
                _ => done(),
            };
            // It ends when the store says so, and the next may be claimed at once.
            if how == done() {
                end(&told, &aggregate, id);
            }
            let is_dead = how == dead();
            let settled = store.settle(claimed.message_id, attempt, claimed.fence, how).await;
            assert!(settled.expect("an answer"));
            let ids = [claimed.message_id];
            let letters = [DeadLetter { message_id: claimed.message_id, fence: claimed.fence }];
            if is_dead && random.random_bool(0.5) {
                assert_eq!(store.redrive(&letters, "ticket 7").await.expect("an answer"), ids);
            } else if is_dead {
                end(&told, &aggregate, id);
                // Kept while the operation that staged it is not over.
                while store.discard(&letters, "ticket 7").await.expect("an answer") != ids {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        }
    }
}

fn end(told: &Told, aggregate: &str, id: i64) {
    let mut told = told.lock().expect("not poisoned");
    let order = told.get_mut(aggregate).expect("it was told of");
    let last = order.last_mut().expect("it was told of");
    assert_eq!(last.0, id);
    last.1 = true;
}
