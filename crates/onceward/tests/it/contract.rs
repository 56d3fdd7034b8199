//! The SQL contract, as a service in any language uses it: plain SQL in a transaction of its own.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use axum::{Router, response::IntoResponse};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::{Response, StatusCode};
use onceward::{
    Effects, Idempotency, Message, Operation, OutboxStore as _, PgOptions, PgStore, Policy, Reply,
    Store, machine,
    outbox::{MessageState, Staged},
    record::{AuditEvent, Lease, RecordId, State},
    reply::ReplyBody,
    store::{Ask, Reservation, Resolution, Resolve, Resolved, Write, Written},
    testing::samples::{ask, claim, id, phased, queued, retry},
};
use onceward_testbed::{Database, Postgres};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgConnection, PgPool};
use tower::ServiceExt as _;

use crate::{
    service::{Answer, charge, says},
    shop::taken_for_lost,
};

const KEY: &str = "order-0000000000000001";

/// A shop with its orders and our records in one database.
#[derive(Clone)]
struct Shop {
    store: Arc<PgStore>,
    pool: PgPool,
    runs: Arc<AtomicU32>,
    _database: Arc<Database<'static>>,
}

impl Shop {
    async fn open() -> Shop {
        let database = Postgres::shared().create_database();
        let store = PgStore::connect(PgOptions::new(database.url())).await.expect("a store");
        let pool = PgPool::connect(&database.url()).await.expect("a pool");
        let make = sqlx::query("CREATE TABLE orders (name text NOT NULL)");
        make.execute(&pool).await.expect("made");
        let store = Arc::new(store);
        Shop { store, pool, runs: Arc::default(), _database: Arc::new(database) }
    }

    async fn orders(&self) -> i64 {
        let count = sqlx::query_scalar("SELECT count(*) FROM orders");
        count.fetch_one(&self.pool).await.expect("a number")
    }

    async fn granted(&self, ask: Ask) -> Lease {
        match self.store.reserve(ask).await.expect("an answer") {
            Reservation::Granted { lease, .. } => lease,
            other => panic!("expected a grant, found {other:?}"),
        }
    }

    async fn state(&self, id: &RecordId) -> State {
        self.store.load(id).await.expect("an answer").expect("a record").state
    }

    /// The shop behind the layer.
    fn serve<F, R>(
        &self,
        policy: Policy,
        handler: impl Fn(Shop, Handed) -> F + Clone + Send + Sync + 'static,
    ) -> Router
    where
        F: Future<Output = R> + Send + 'static,
        R: IntoResponse,
    {
        let shop = self.clone();
        let handler = move |operation: Operation| {
            shop.runs.fetch_add(1, Ordering::SeqCst);
            handler(shop.clone(), Handed::from(&operation))
        };
        let layer = Idempotency::new(Arc::clone(&self.store) as Arc<dyn Store>, policy);
        Router::new().fallback(handler).layer(layer)
    }
}

async fn send(app: &Router, key: &str) -> Answer {
    Answer::read(app.clone().oneshot(charge(key)).await.expect("infallible")).await
}

/// What a service is handed with its request, and all that it knows.
#[derive(Clone)]
struct Handed {
    operation: String,
    attempt: Option<String>,
    fence: Option<i64>,
}

impl From<&Operation> for Handed {
    fn from(operation: &Operation) -> Self {
        Handed {
            operation: operation.handle(),
            attempt: Some(operation.attempt().to_string()),
            fence: Some(operation.fence().number()),
        }
    }
}

impl From<&Lease> for Handed {
    fn from(lease: &Lease) -> Self {
        let parts = [lease.id.scope.as_str(), lease.id.key.as_str()];
        let [scope, key] = parts.map(|part| URL_SAFE_NO_PAD.encode(part));
        Handed {
            operation: format!("v1.{scope}.{key}"),
            attempt: Some(lease.attempt.to_string()),
            fence: Some(lease.fence.number()),
        }
    }
}

/// The error code of a refusal, or what was answered.
type Said<T> = Result<T, String>;

fn said<T>(answer: Result<T, sqlx::Error>) -> Said<T> {
    answer.map_err(|error| {
        let code = error.as_database_error().and_then(|error| error.code());
        code.unwrap_or_else(|| panic!("not a database error: {error:?}")).into_owned()
    })
}

fn refused<T>(code: &str) -> Said<T> {
    Err(code.to_owned())
}

impl Handed {
    async fn complete(
        &self,
        tx: &mut PgConnection,
        status: impl Into<Option<i32>>,
        headers: Value,
        body: &[u8],
    ) -> Said<()> {
        let complete = "SELECT onceward.complete($1, $2::uuid, $3, $4, $5::jsonb, $6)";
        let complete = sqlx::query(complete)
            .bind(self.operation.clone())
            .bind(self.attempt.clone())
            .bind(self.fence)
            .bind(status.into())
            .bind(headers.to_string())
            .bind(body.to_vec());
        said(complete.execute(tx).await.map(drop))
    }

    async fn advance(&self, tx: &mut PgConnection, name: &str, result: Value) -> Said<bool> {
        let advance = "SELECT onceward.advance($1, $2::uuid, $3, $4, $5::jsonb)";
        let advance = sqlx::query_scalar(advance)
            .bind(self.operation.clone())
            .bind(self.attempt.clone())
            .bind(self.fence)
            .bind(name.to_owned())
            .bind(result.to_string());
        said(advance.fetch_one(tx).await)
    }

    async fn saved(&self, tx: &mut PgConnection, name: &str) -> Said<Option<Value>> {
        let saved = "SELECT onceward.saved($1, $2::uuid, $3, $4)::text";
        let saved = sqlx::query_scalar(saved)
            .bind(self.operation.clone())
            .bind(self.attempt.clone())
            .bind(self.fence)
            .bind(name.to_owned());
        let saved: Option<String> = said(saved.fetch_one(tx).await)?;
        Ok(saved.map(|saved| saved.parse().expect("JSON")))
    }

    async fn fail(&self, tx: &mut PgConnection, reason: &str) -> Said<()> {
        let fail = sqlx::query("SELECT onceward.fail($1, $2::uuid, $3, $4)")
            .bind(self.operation.clone())
            .bind(self.attempt.clone())
            .bind(self.fence)
            .bind(reason.to_owned());
        said(fail.execute(tx).await.map(drop))
    }

    async fn stage(&self, tx: &mut PgConnection, message: &Message) -> Said<bool> {
        let stage = "SELECT onceward.stage($1, $2::uuid, $3, $4, $5, $6, $7, $8)";
        let stage = sqlx::query_scalar(stage)
            .bind(self.operation.clone())
            .bind(self.attempt.clone())
            .bind(self.fence)
            .bind(message.name.to_string())
            .bind(message.sink.to_string())
            .bind(message.aggregate.as_deref().map(str::to_owned))
            .bind(message.content_type.to_string())
            .bind(message.payload.to_vec());
        said(stage.fetch_one(tx).await)
    }
}

async fn order(tx: &mut PgConnection) {
    let insert = sqlx::query("INSERT INTO orders (name) VALUES ('tea')");
    insert.execute(tx).await.expect("inserted");
}

/// In a transaction of its own, which commits.
async fn alone<T>(shop: &Shop, work: impl AsyncFnOnce(&mut PgConnection) -> T) -> T {
    let mut tx = shop.pool.begin().await.expect("begun");
    let answer = work(&mut tx).await;
    tx.commit().await.expect("an answer");
    answer
}

#[tokio::test]
async fn a_reply_commits_with_the_rows_and_is_sent_as_it_was_stored() {
    let shop = Shop::open().await;
    let body: Vec<u8> = (0..=255).collect();
    let stored = Bytes::from(body.clone());
    let app = shop.serve(Policy::required(), move |shop: Shop, handed: Handed| {
        let body = body.clone();
        async move {
            let headers = json!([
                ["Content-Type", "application/x-tea"],
                ["Link", "<a>"],
                ["X-Number", 7],
                ["Link", " <b>\t"],
                ["Set-Cookie", "session=1"],
                ["X-Name", "caf\u{e9}"]
            ]);
            alone(&shop, async |tx| {
                order(tx).await;
                handed.complete(tx, 201, headers, &body).await.expect("completed");
            })
            .await;
            // What is committed is true, whatever is said afterwards.
            (StatusCode::INTERNAL_SERVER_ERROR, "out of tea")
        }
    });
    let first = send(&app, KEY).await;
    let second = send(&app, KEY).await;
    assert_eq!((first.says(), second.says()), (says(201, "executed"), says(201, "replayed")));
    for answer in [first, second] {
        assert_eq!(answer.body, stored);
        assert_eq!(answer.header("content-type"), "application/x-tea");
        assert_eq!((answer.all("link"), answer.header("x-number")), (vec!["<a>", "<b>"], "7"));
        assert_eq!(answer.headers["x-name"].as_bytes(), "caf\u{e9}".as_bytes());
        assert!(!answer.headers.contains_key("set-cookie"));
    }
    assert_eq!((shop.orders().await, shop.runs.load(Ordering::SeqCst)), (1, 1));
}

#[tokio::test]
async fn a_reply_that_is_rolled_back_never_was_and_a_retry_runs() {
    let shop = Shop::open().await;
    let app = shop.serve(Policy::required(), |shop: Shop, handed: Handed| async move {
        let first = shop.runs.load(Ordering::SeqCst) == 1;
        let mut tx = shop.pool.begin().await.expect("begun");
        order(&mut tx).await;
        handed.complete(&mut tx, 201, json!({}), b"ordered").await.expect("completed");
        match first {
            true => tx.rollback().await.expect("rolled back"),
            false => tx.commit().await.expect("committed"),
        }
        StatusCode::INTERNAL_SERVER_ERROR
    });
    assert_eq!(send(&app, KEY).await.says(), says(500, "not_executed"));
    assert_eq!(shop.orders().await, 0);
    assert_eq!(send(&app, KEY).await.says(), says(201, "executed"));
    assert_eq!(send(&app, KEY).await.says(), says(201, "replayed"));
    assert_eq!((shop.orders().await, shop.runs.load(Ordering::SeqCst)), (1, 2));
}

#[tokio::test]
async fn whoever_has_lost_the_record_is_told_and_its_transaction_rolls_back() {
    let shop = Shop::open().await;
    let first = shop.granted(ask("order-1")).await;
    let released = shop.store.write(&first, Write::Release("not_sent".into())).await;
    assert_eq!(released.expect("an answer"), Written::Applied);
    let second = shop.granted(retry(&ask("order-1"))).await;
    let (old, new) = (Handed::from(&first), Handed::from(&second));
    let stranger = Handed { operation: "v1.dGVuYW50.b3JkZXItMg".into(), ..new.clone() };
    let of_none = Handed { fence: None, ..new.clone() };
    let by_none = Handed { attempt: None, ..new.clone() };
    let nobody = Handed { attempt: None, fence: None, ..stranger.clone() };
    let receipt = Message::new("receipt", "mail", "x");
    for lost in [&old, &stranger, &of_none, &by_none, &nobody] {
        for call in 0..5 {
            let mut tx = shop.pool.begin().await.expect("begun");
            order(&mut tx).await;
            let answer = match call {
                0 => lost.complete(&mut tx, 200, json!({}), b"").await,
                1 => lost.advance(&mut tx, "a", json!(1)).await.map(drop),
                2 => lost.saved(&mut tx, "a").await.map(drop),
                3 => lost.fail(&mut tx, "no").await,
                _ => lost.stage(&mut tx, &receipt).await.map(drop),
            };
            assert_eq!(answer, refused("OW001"), "{call}");
            // Even who does not listen commits nothing.
            tx.commit().await.expect("an answer");
        }
    }
    assert_eq!(shop.orders().await, 0);
    assert_eq!(shop.state(&second.id).await, State::InProgress);
    let completed = alone(&shop, async |tx| {
        order(tx).await;
        new.complete(tx, 200, json!({}), b"").await
    });
    assert_eq!(completed.await, Ok(()));
    assert_eq!((shop.orders().await, shop.state(&second.id).await), (1, State::Completed));
}

#[tokio::test]
async fn completing_twice_is_once_and_the_first_reply_stays() {
    let shop = Shop::open().await;
    let lease = shop.granted(ask("order-1")).await;
    let handed = Handed::from(&lease);
    for body in ["first", "second"] {
        let completed = alone(&shop, async |tx| {
            handed.complete(tx, 201, json!({"etag": "1"}), body.as_bytes()).await
        });
        assert_eq!(completed.await, Ok(()));
    }
    let expected = Reply::new(StatusCode::CREATED, "first")
        .with_header(http::header::ETAG, "1".parse().expect("a value"));
    let record = shop.store.load(&lease.id).await.expect("an answer").expect("a record");
    assert_eq!(record.reply, Some(expected.clone()));
    let written = shop.store.write(&lease, Write::Complete(Reply::new(StatusCode::OK, "third")));
    assert_eq!(written.await.expect("an answer"), Written::AlreadyMine(Some(expected)));
}

#[tokio::test]
async fn a_late_completion_of_what_was_called_unknown_counts_and_is_remembered() {
    let shop = Shop::open().await;
    let lease = shop.granted(ask("order-1")).await;
    let marked = shop.store.write(&lease, Write::MarkUnknown("reset".into())).await;
    assert_eq!(marked.expect("an answer"), Written::Applied);
    let handed = Handed::from(&lease);
    let failed = alone(&shop, async |tx| handed.fail(tx, "no").await).await;
    assert_eq!(failed, refused("OW001"), "it may have acted, and somebody was told so");
    let completed = alone(&shop, async |tx| handed.complete(tx, 200, json!({}), b"late").await);
    assert_eq!(completed.await, Ok(()));
    assert_eq!(shop.state(&lease.id).await, State::Completed);
    let audit = shop.store.audit(&lease.id).await.expect("an answer");
    assert_eq!(audit.last().expect("remembered").event, AuditEvent::LateCompletion);
}

#[tokio::test]
async fn a_completion_after_the_release_counts_where_more_than_the_transaction_may_have_acted() {
    let shop = Shop::open().await;
    for effects in [Effects::External, Effects::Undeclared, Effects::Local, Effects::None] {
        let ask = Ask { effects, ..ask(effects.name()) };
        let lease = shop.granted(ask.clone()).await;
        let record = shop.store.load(&ask.id).await.expect("an answer").expect("a record");
        taken_for_lost(&*shop.store, &record, true).await;
        let handed = Handed::from(&lease);
        let failed = alone(&shop, async |tx| handed.fail(tx, "no").await).await;
        assert_eq!(failed, Ok(()), "it says the same");
        assert_eq!(shop.state(&ask.id).await, State::FailedRetryable);
        let before = shop.orders().await;
        let completed = alone(&shop, async |tx| {
            order(tx).await;
            handed.complete(tx, 201, json!({"etag": "1"}), b"late").await
        });
        let completed = completed.await;
        let audit = shop.store.audit(&ask.id).await.expect("an answer");
        let events: Vec<_> = audit.iter().map(|it| it.event).collect();
        if matches!(effects, Effects::Local | Effects::None) {
            assert_eq!(completed, refused("OW001"), "{effects:?}");
            assert_eq!(shop.orders().await, before, "rolled back");
            assert_eq!(events, [AuditEvent::Released]);
            assert_eq!(shop.granted(retry(&ask)).await.attempt_number, 2);
            continue;
        }
        assert_eq!(completed, Ok(()), "{effects:?}");
        assert_eq!(shop.orders().await, before + 1);
        assert_eq!(events, [AuditEvent::Released, AuditEvent::Incident]);
        let record = shop.store.load(&ask.id).await.expect("an answer").expect("a record");
        assert_eq!(record.last_error.as_deref(), Some(machine::EXECUTED_AFTER_ALL));
        assert_eq!(audit.last().expect("an incident").reply, record.reply);
        let expected = Reply::new(StatusCode::CREATED, "late")
            .with_header(http::header::ETAG, "1".parse().expect("a value"));
        assert_eq!((record.state, record.reply), (State::Completed, Some(expected.clone())));
        let again = shop.store.write(&lease, Write::Complete(expected.clone())).await;
        assert_eq!(again.expect("an answer"), Written::AlreadyMine(Some(expected)));
    }
}

#[tokio::test]
async fn accepted_work_that_is_completed_after_its_release_waits_for_nobody_any_more() {
    let shop = Shop::open().await;
    let ask = queued("late");
    let _: Reservation = shop.store.reserve(ask.clone()).await.expect("an answer");
    let claimed = Store::claim(&*shop.store, claim(&ask)).await.expect("an answer");
    let Reservation::Granted { lease, .. } = claimed else { panic!("{claimed:?}") };
    let record = shop.store.load(&ask.id).await.expect("an answer").expect("a record");
    taken_for_lost(&*shop.store, &record, true).await;
    assert_eq!(shop.state(&ask.id).await, State::Pending);
    let far = i64::MAX;
    let overdue = r#"{"overdue": true, "descending": false, "limit": 9, "skipped": 0}"#;
    let waiting = async || {
        let count = format!(
            "SELECT (SELECT count(*) FROM onceward.resumable({far}, false, 9, 0)), \
                    (SELECT count(*) FROM onceward.list({far}, '{overdue}'))"
        );
        let count = sqlx::query_as::<_, (i64, i64)>(AssertSqlSafe(count));
        count.fetch_one(&shop.pool).await.expect("two numbers")
    };
    assert_eq!(waiting().await, (1, 1));
    let handed = Handed::from(&lease);
    let completed = alone(&shop, async |tx| handed.complete(tx, 200, json!({}), b"late").await);
    assert_eq!(completed.await, Ok(()));
    assert_eq!(shop.state(&ask.id).await, State::Completed);
    assert_eq!(waiting().await, (0, 0));
}

/// The same through the library, whose routes are `local` then.
#[tokio::test]
async fn a_transaction_of_an_attempt_that_was_released_rolls_back_and_a_retry_runs_once() {
    let shop = Shop::open().await;
    let runs = Arc::new(AtomicU32::new(0));
    let policy = Policy::required().effects(Effects::Local).expect("allowed");
    let layer = Idempotency::new(Arc::clone(&shop.store) as Arc<dyn Store>, policy);
    let (its, counted) = (shop.clone(), Arc::clone(&runs));
    let handler = move |operation: Operation| {
        let (shop, runs) = (its.clone(), Arc::clone(&counted));
        async move {
            if runs.fetch_add(1, Ordering::SeqCst) == 0 {
                let id = operation.id().clone();
                let record = shop.store.load(&id).await.expect("an answer").expect("a record");
                taken_for_lost(&*shop.store, &record, true).await;
            }
            let ordered = operation.transaction(&shop.pool, async |tx| {
                order(tx).await;
                Ok::<_, sqlx::Error>(Reply::new(StatusCode::CREATED, "ordered"))
            });
            ordered.await.map_err(|error| (StatusCode::CONFLICT, error.to_string()))
        }
    };
    let app = Router::new().fallback(handler).layer(layer);
    let first = send(&app, KEY).await;
    assert_eq!(first.says(), says(409, "not_executed"));
    assert_eq!((shop.orders().await, runs.load(Ordering::SeqCst)), (0, 1));
    assert_eq!(send(&app, KEY).await.says(), says(201, "executed"));
    assert_eq!(send(&app, KEY).await.says(), says(201, "replayed"));
    assert_eq!((shop.orders().await, runs.load(Ordering::SeqCst)), (1, 2));
}

#[tokio::test]
async fn a_step_is_made_once_and_the_next_attempt_finds_its_result() {
    let shop = Shop::open().await;
    let lease = shop.granted(phased("order-1")).await;
    let first = Handed::from(&lease);
    let mut tx = shop.pool.begin().await.expect("begun");
    assert_eq!(first.advance(&mut tx, "book", json!({"seat": 1})).await, Ok(true));
    tx.rollback().await.expect("rolled back");
    let result = json!({"seat": 12, "row": [1.5, null]});
    alone(&shop, async |tx| {
        assert_eq!(first.saved(tx, "book").await, Ok(None), "it was rolled back");
        order(tx).await;
        assert_eq!(first.advance(tx, "book", result.clone()).await, Ok(true));
        assert_eq!(first.advance(tx, "book", json!("other")).await, Ok(false));
    })
    .await;
    let record = shop.store.load(&lease.id).await.expect("an answer").expect("a record");
    assert_eq!(record.progress.recovery_point.as_deref(), Some("book"));
    assert_eq!(alone(&shop, async |tx| first.fail(tx, "later").await).await, Ok(()));
    assert_eq!(shop.state(&lease.id).await, State::InProgress, "it has acted, and is gone on with");
    let second = Handed::from(&shop.granted(retry(&phased("order-1"))).await);
    alone(&shop, async |tx| {
        assert_eq!(first.advance(tx, "pay", json!(1)).await, refused("OW001"));
    })
    .await;
    alone(&shop, async |tx| {
        assert_eq!(second.saved(tx, "book").await, Ok(Some(result)));
        assert_eq!(second.advance(tx, "book", json!("other")).await, Ok(false));
        assert_eq!(second.saved(tx, "pay").await, Ok(None));
        assert_eq!(second.advance(tx, "pay", Value::Null).await, Ok(true));
        assert_eq!(second.saved(tx, "pay").await, Ok(Some(Value::Null)));
        assert_eq!(second.complete(tx, 200, json!({}), b"ok").await, Ok(()));
    })
    .await;
    let over = alone(&shop, async |tx| second.saved(tx, "book").await).await;
    assert_eq!(over, refused("OW001"), "a step of what is over does not look as if it were free");
}

#[tokio::test]
async fn an_attempt_that_says_it_failed_is_followed_by_another() {
    let shop = Shop::open().await;
    let external = Policy::required().effects(Effects::External).expect("allowed");
    let app = shop.serve(external, |shop: Shop, handed: Handed| async move {
        if shop.runs.load(Ordering::SeqCst) > 1 {
            return StatusCode::CREATED;
        }
        for _ in 0..2 {
            let failed = alone(&shop, async |tx| handed.fail(tx, "sold out").await).await;
            assert_eq!(failed, Ok(()), "once or twice");
        }
        StatusCode::SERVICE_UNAVAILABLE
    });
    let first = send(&app, KEY).await;
    assert!(first.status >= 400, "{first:?}");
    assert_eq!(send(&app, KEY).await.says(), says(201, "executed"));
    // The twin: without a word the same status may have acted.
    let silent = Policy::required().effects(Effects::External).expect("allowed");
    let app = shop.serve(silent, |_, _| async { StatusCode::SERVICE_UNAVAILABLE });
    let other = "order-0000000000000002";
    assert_eq!(send(&app, other).await.says(), says(502, "outcome_unknown"));
    assert_eq!(send(&app, other).await.says(), says(409, "outcome_unknown"));
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let shop = Shop::open().await;
    let lease = shop.granted(ask("order-1")).await;
    let handed = Handed::from(&lease);
    for status in [None, Some(0), Some(100), Some(199), Some(600), Some(-1)] {
        let answer = alone(&shop, async |tx| handed.complete(tx, status, json!({}), b"").await);
        assert_eq!(answer.await, refused("OW002"), "{status:?}");
    }
    let long = "x".repeat(256);
    for headers in [
        json!("etag: 1"),
        json!(7),
        json!({"a b": "1"}),
        json!({"": "1"}),
        json!({long.as_str(): "1"}),
        json!({"etag": "1\r\nx: y"}),
        json!({"etag": "1\n"}),
        json!({"etag": "\u{7f}"}),
        json!({"etag": null}),
        json!({"etag": ["1"]}),
        json!([["etag"]]),
        json!([["etag", "1", "2"]]),
        json!(["etag"]),
        json!([{"etag": "1"}]),
        json!({"caf\u{e9}": "1"}),
    ] {
        let told = headers.to_string();
        let answer = alone(&shop, async |tx| handed.complete(tx, 200, headers, b"").await);
        assert_eq!(answer.await, refused("OW002"), "{told}");
    }
    for operation in
        ["", "v1", "v1.dGVuYW50", "v2.dGVuYW50.b3JkZXItMQ", "v1.d.b3JkZXItMQ", "v1._w._w"]
    {
        let bad = Handed { operation: operation.into(), ..handed.clone() };
        let answer = alone(&shop, async |tx| bad.complete(tx, 200, json!({}), b"").await).await;
        assert_eq!(answer, refused("OW002"), "{operation}");
    }
    for name in ["", &long] {
        let answer = alone(&shop, async |tx| handed.advance(tx, name, json!(1)).await).await;
        assert_eq!(answer, refused("OW002"), "{name}");
    }
    assert_eq!(shop.state(&lease.id).await, State::InProgress);
    let good = json!({"etag": "", "x-\u{21}": "tab\there"});
    let answer = alone(&shop, async |tx| handed.complete(tx, 599, good, b"").await).await;
    assert_eq!(answer, Ok(()));
    let record = shop.store.load(&lease.id).await.expect("an answer").expect("a record");
    assert_eq!(record.reply.expect("a reply").headers.len(), 2);
}

#[tokio::test]
async fn the_headers_that_are_kept_are_those_that_the_library_keeps() {
    let shop = Shop::open().await;
    let lease = shop.granted(ask("order-1")).await;
    let names = [
        "date",
        "age",
        "content-length",
        "server-timing",
        "traceparent",
        "tracestate",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "alt-svc",
        "set-cookie",
        "set-cookie2",
        "www-authenticate",
        "proxy-authenticate",
        "authentication-info",
        "proxy-authentication-info",
        "clear-site-data",
        "idempotent-replayed",
        "idempotency-expires",
        "idempotency-generation",
        "onceward-outcome",
        "onceward-schema-version",
        "onceward-executed",
        "onceward-provider-id",
        "access-control-allow-origin",
        "access-control-x",
        "content-type",
        "etag",
        "location",
        "link",
        "cache-control",
        "vary",
        "retry-after",
        "onceward-attempt",
        "x-own",
    ];
    let mut response = Response::builder().status(200).header("connection", "close");
    for name in names {
        response = response.header(name, "1");
    }
    let (parts, ()) = response.body(()).expect("a response").into_parts();
    let expected = Reply::capture(&parts, ReplyBody::Stored(Bytes::new()), None);
    let pairs =
        ["connection"].iter().chain(&names).map(|name| [name.to_ascii_uppercase(), "1".into()]);
    let pairs: Vec<[String; 2]> = pairs.collect();
    let handed = Handed::from(&lease);
    let answer = alone(&shop, async |tx| handed.complete(tx, 200, json!(pairs), b"").await).await;
    assert_eq!(answer, Ok(()));
    let record = shop.store.load(&lease.id).await.expect("an answer").expect("a record");
    let kept = |reply: Reply| reply.headers.into_iter().map(|(name, _)| name.to_string());
    let mut kept_there: Vec<_> = kept(record.reply.expect("a reply")).collect();
    let mut kept_here: Vec<_> = kept(expected).collect();
    kept_there.sort_unstable();
    kept_here.sort_unstable();
    assert_eq!(kept_there, kept_here);
    assert!(kept_here.len() > 5, "{kept_here:?}");
}

#[tokio::test]
async fn a_provider_id_commits_with_its_transaction_and_is_that_of_one_operation() {
    let shop = Shop::open().await;
    let (first, second) = (shop.granted(ask("order-1")).await, shop.granted(ask("order-2")).await);
    let note = async |lease: &Lease, call: &str, tx: &mut PgConnection| {
        let handed = Handed::from(lease);
        let sql = format!("SELECT onceward.provider_id($1, $2::uuid, $3, {call})");
        let noted = sqlx::query_scalar::<_, bool>(sqlx::AssertSqlSafe(sql));
        let noted = noted.bind(handed.operation).bind(handed.attempt).bind(handed.fence);
        said(noted.fetch_one(tx).await)
    };
    let whose = async |text: &str| {
        let id = text.parse().expect("a provider id");
        let note = shop.store.by_provider_id(&id).await.expect("an answer");
        note.map(|note| (note.record, note.attempt))
    };
    let mut tx = shop.pool.begin().await.expect("begun");
    assert_eq!(note(&first, "'ch_1'", &mut tx).await, Ok(true));
    tx.rollback().await.expect("rolled back");
    assert_eq!(whose("ch_1").await, None);
    let mut tx = shop.pool.begin().await.expect("begun");
    assert_eq!(note(&first, "'ch_1'", &mut tx).await, Ok(true));
    assert_eq!(note(&first, "'ch_1'", &mut tx).await, Ok(true), "once more");
    assert_eq!(note(&first, "'17', 'dhl'", &mut tx).await, Ok(true));
    tx.commit().await.expect("committed");
    assert_eq!(whose("ch_1").await, Some((first.id.clone(), first.attempt)));
    assert_eq!(whose("dhl 17").await, Some((first.id.clone(), first.attempt)));
    let mut alone = shop.pool.acquire().await.expect("a connection");
    assert_eq!(note(&second, "'ch_1'", &mut alone).await, Ok(false));
    assert_eq!(whose("ch_1").await, Some((first.id.clone(), first.attempt)));
    let audit = shop.store.audit(&second.id).await.expect("an answer");
    assert_eq!(audit.iter().map(|it| it.event).collect::<Vec<_>>(), [AuditEvent::Incident]);
    for bad in ["''", "'ch 1'", "NULL", "'ch_1', 'a b'", "'ch_1', NULL", "repeat('x', 256)"] {
        assert_eq!(note(&first, bad, &mut alone).await, refused("OW002"), "{bad}");
    }
    let lost = Lease { attempt: second.attempt, id: first.id.clone(), ..first };
    assert_eq!(note(&lost, "'ch_2'", &mut alone).await, refused("OW001"));
    assert_eq!(whose("ch_2").await, None);
}

#[tokio::test]
async fn a_message_commits_with_its_transaction_and_is_one_however_often_it_is_staged() {
    let shop = Shop::open().await;
    let lease = shop.granted(ask("order-1")).await;
    let handed = Handed::from(&lease);
    let receipt = Message::new("receipt", "mail", vec![0, 255]).content_type("text/plain");
    let receipt = receipt.aggregate("customer-7");
    let mut tx = shop.pool.begin().await.expect("begun");
    assert_eq!(handed.stage(&mut tx, &receipt).await, Ok(true));
    tx.rollback().await.expect("rolled back");
    let ready =
        || async { shop.store.list(MessageState::Ready, None, 10).await.expect("an answer") };
    assert_eq!(ready().await, []);
    alone(&shop, async |tx| {
        assert_eq!(handed.stage(tx, &receipt).await, Ok(true));
        assert_eq!(handed.stage(tx, &receipt).await, Ok(false));
    })
    .await;
    let staged = shop.store.stage(&lease, receipt.clone()).await.expect("an answer");
    assert_eq!(staged, Staged::AlreadyMine, "under the same key as the library's own");
    let messages = ready().await;
    assert_eq!(messages.len(), 1);
    assert_eq!((&messages[0].message, &messages[0].operation), (&receipt, &lease.id));
    for bad in [
        Message::new("", "mail", "x"),
        Message::new("x".repeat(256), "mail", "x"),
        Message::new("a", "", "x"),
        Message::new("a", "mail", "x").aggregate(""),
        Message::new("a", "mail", "x").content_type("a\nb"),
        Message::new("a", "mail", "x").content_type("caf\u{e9}"),
    ] {
        let answer = alone(&shop, async |tx| handed.stage(tx, &bad).await).await;
        assert_eq!(answer, refused("OW002"), "{bad:?}");
    }
    alone(&shop, async |tx| handed.complete(tx, 200, json!({}), b"").await).await.expect("done");
    let late = alone(&shop, async |tx| handed.stage(tx, &receipt).await).await;
    assert_eq!(late, refused("OW001"), "it is over");
    assert_eq!(ready().await.len(), 1);
}

#[tokio::test]
async fn sql_and_the_library_derive_the_same_keys() {
    let shop = Shop::open().await;
    let mut leases = Vec::new();
    for (scope, key) in [("tenant", "order-1"), ("t", "\u{21}~"), ("\u{e9}\u{4e16}", "k")] {
        let ask = Ask { id: id(scope, key), ..ask("order-1") };
        leases.push(shop.granted(ask).await);
    }
    // A second generation.
    let first = shop.granted(ask("order-2")).await;
    let written = shop.store.write(&first, Write::Complete(Reply::new(StatusCode::OK, ""))).await;
    assert_eq!(written.expect("an answer"), Written::Applied);
    let void = Resolve {
        id: first.id.clone(),
        generation: first.generation,
        fence: first.fence,
        resolution: Resolution::Void,
        reason: "a mistake".into(),
    };
    let voided = shop.store.resolve(void).await.expect("an answer");
    assert!(matches!(voided, Resolved::Applied(_)), "{voided:?}");
    leases.push(shop.granted(retry(&ask("order-2"))).await);
    assert_eq!(leases.last().expect("leases").generation, 2);
    for lease in &leases {
        for name in ["receipt", "\u{1f980}", &"x".repeat(255)] {
            let message = Message::new(name, "mail", "");
            let staged = shop.store.stage(lease, message).await.expect("an answer");
            assert_eq!(staged, Staged::Applied);
        }
    }
    let same = "SELECT count(*) FILTER (WHERE derived_key = \
                onceward.derived_key(scope, key, generation, name)), count(*) FROM onceward.outbox";
    let same: (i64, i64) = sqlx::query_as(same).fetch_one(&shop.pool).await.expect("numbers");
    assert_eq!(same, (12, 12));
}
