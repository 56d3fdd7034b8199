//! An order in steps: a row of our own, a payment at somebody else's, the reply with the last row.
//!
//! `cargo run -p onceward --features sqlite --example phased_order` orders twice under one key and
//! shows that it was done once. `cargo test -p onceward --example phased_order` cuts the handler off at
//! every edge of every step and goes on: copy that test for handlers of your own.

use std::sync::{Arc, Mutex};

use axum::{Router, body::Body, extract::State, http::Request, http::StatusCode, routing::post};
use http_body_util::BodyExt as _;
use onceward::{
    Effect, EffectError, Effects, Idempotency, Operation, Policy, Reply, Resumer, SqliteOptions,
    SqliteStore,
};
use sqlx::SqlitePool;
use tower::ServiceExt as _;

/// A payment provider that knows idempotency keys.
#[derive(Clone, Default)]
struct Provider(Arc<Mutex<Vec<String>>>);

impl Provider {
    async fn charge(&self, key: String) -> Result<String, &'static str> {
        let mut charges = self.0.lock().map_err(|_| "the provider is down")?;
        if !charges.contains(&key) {
            charges.push(key);
        }
        Ok(format!("receipt {}", charges.len()))
    }
}

#[derive(Clone)]
struct Shop {
    pool: SqlitePool,
    provider: Provider,
}

type Failed = (StatusCode, String);

fn failed(error: impl std::fmt::Debug) -> Failed {
    (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:?}"))
}

async fn order(State(shop): State<Shop>, operation: Operation) -> Result<Reply, Failed> {
    // One transaction: the row and the fact that this step is done.
    let ordered = operation.phase(&shop.pool, "order", async |tx| {
        let order = sqlx::query("INSERT INTO orders (state) VALUES ('new')").execute(tx).await?;
        Ok::<i64, sqlx::Error>(order.last_insert_rowid())
    });
    let order = ordered.await.map_err(failed)?;

    // Outside any transaction, with a key that is the same for every attempt. An error that `?` passes
    // on means that the charge may have been made.
    let paid = operation.effect(Effect::idempotent("charge"), async |key| {
        Ok::<String, EffectError<&str>>(shop.provider.charge(key).await?)
    });
    let receipt = paid.await.map_err(failed)?;

    // One transaction: the row and the reply.
    let completed = operation.transaction(&shop.pool, async |tx| {
        let paid = sqlx::query("UPDATE orders SET state = 'paid' WHERE id = ?");
        paid.bind(order).execute(tx).await?;
        Ok::<_, sqlx::Error>(Reply::new(StatusCode::CREATED, format!("order {order}, {receipt}\n")))
    });
    completed.await.map_err(failed)
}

/// Our records and the shop's rows are in one file: only then can they commit together.
async fn open(options: SqliteOptions, path: &str) -> (Arc<SqliteStore>, Shop) {
    let store = Arc::new(SqliteStore::open(options).await.expect("the store opens"));
    let pool = SqlitePool::connect(path).await.expect("the file opens");
    let table = "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, state TEXT NOT NULL)";
    sqlx::query(table).execute(&pool).await.expect("the table is made");
    (store, Shop { pool, provider: Provider::default() })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("shop.db").display().to_string();
    let (store, shop) = open(SqliteOptions::new(&path), &path).await;
    let inner = Router::new().route("/orders", post(order)).with_state(shop.clone());
    let layer = Idempotency::new(store, Policy::required().effects(Effects::Phased)?);
    // Goes on with what was cut off and what no client comes back for.
    let resumer = Resumer::new(Arc::clone(layer.engine()), inner.clone());
    tokio::spawn(async move { resumer.run(std::time::Duration::from_secs(10), 16).await });
    let app = inner.layer(layer);
    for _ in 0..2 {
        let request = Request::post("/orders")
            .header("authorization", "Bearer sk_test_123")
            .header("idempotency-key", "7f9c2ba4-e88f-4f0b-8a1e-2c1d7c0f5b11")
            .body(Body::empty())?;
        let response = app.clone().oneshot(request).await?;
        println!("{} {:?}", response.status(), response.headers().get("idempotent-replayed"));
        let body = response.into_body().collect().await?.to_bytes();
        print!("{}", String::from_utf8_lossy(&body));
    }
    let orders: i64 =
        sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(&shop.pool).await?;
    assert_eq!((orders, shop.provider.0.lock().map(|it| it.len()).ok()), (1, Some(1)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use onceward::{
        Store,
        clock::ManualClock,
        testing::{Ended, Rehearsal, Stage},
    };

    use super::*;

    struct Rehearsed {
        store: Arc<SqliteStore>,
        shop: Shop,
        _dir: tempfile::TempDir,
    }

    impl Stage for Rehearsed {
        fn store(&self) -> Arc<dyn Store> {
            Arc::clone(&self.store) as Arc<dyn Store>
        }

        async fn handle(
            &self,
            _request: Request<Bytes>,
            operation: Operation,
        ) -> http::Response<Bytes> {
            match order(State(self.shop.clone()), operation).await {
                Ok(reply) => reply.into(),
                Err((status, why)) => Reply::new(status, why).into(),
            }
        }

        async fn done(&self) -> String {
            let orders = sqlx::query_scalar("SELECT state FROM orders");
            let orders: Vec<String> = orders.fetch_all(&self.shop.pool).await.expect("orders");
            format!("orders {orders:?}, charges {:?}", self.shop.provider.0.lock().expect("kept"))
        }
    }

    async fn stage(clock: ManualClock) -> Rehearsed {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("shop.db").display().to_string();
        let options = SqliteOptions::new(&path).clock(Arc::new(clock));
        let (store, shop) = open(options, &path).await;
        Rehearsed { store, shop, _dir: dir }
    }

    #[tokio::test]
    async fn cut_off_or_failing_anywhere_the_order_is_made_and_paid_once() {
        let request = Request::post("/orders").body(Bytes::new()).expect("a request");
        let trials = Rehearsal::new(request).play(stage).await;
        assert!(trials.iter().all(|trial| trial.ended == Ended::Alike), "{trials:?}");
    }
}
