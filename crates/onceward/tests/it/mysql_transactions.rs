//! In transactions of the user's own on MariaDB, at both levels of isolation that users have.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::response::IntoResponse;
use http::StatusCode;
use onceward::{
    Idempotency, Message, Operation, OutboxStore as _, Policy, Reply, Store,
    outbox::MessageState,
    phase::{Effect, EffectError},
    record::{Effects, State},
};
use onceward_testbed::MariaDb;
use sqlx::{MySqlPool, mysql::MySqlPoolOptions};
use tokio::{sync::Notify, task::JoinSet};
use tower::ServiceExt as _;

use crate::{
    mysql_home::{Home, one, run},
    service::{Answer, charge, says},
    shop::failed,
};

const LEVELS: [&str; 2] = ["REPEATABLE READ", "READ COMMITTED"];

/// A shop with its orders beside our records.
#[derive(Clone)]
struct Shop {
    home: Arc<Home>,
    pool: MySqlPool,
    runs: Arc<AtomicU32>,
}

impl Shop {
    /// Whose transactions are at this level.
    async fn open(level: &'static str) -> Shop {
        Shop::at(Home::new().await, level).await
    }

    async fn at(home: Home, level: &'static str) -> Shop {
        let mut connection = home.connection().await;
        run(&mut connection, "CREATE TABLE orders (name VARCHAR(100) NOT NULL)").await;
        let pool = MySqlPoolOptions::new().max_connections(16).after_connect(move |it, _| {
            let set = format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}");
            Box::pin(async move {
                run(it, &set).await;
                Ok(())
            })
        });
        let pool = pool.connect(&home.url).await.expect("a pool");
        Shop { home: Arc::new(home), pool, runs: Arc::default() }
    }

    async fn charge<F, R>(
        &self,
        policy: Policy,
        key: &str,
        handler: impl Fn(Shop, Operation) -> F + Clone + Send + Sync + 'static,
    ) -> Answer
    where
        F: Future<Output = R> + Send + 'static,
        R: IntoResponse,
    {
        let shop = self.clone();
        let handler = move |operation: Operation| {
            shop.runs.fetch_add(1, SeqCst);
            handler(shop.clone(), operation)
        };
        let store = Arc::clone(&self.home.store) as Arc<dyn Store>;
        let app = axum::Router::new().fallback(handler).layer(Idempotency::new(store, policy));
        Answer::read(app.oneshot(charge(key)).await.expect("infallible")).await
    }

    async fn orders(&self) -> i64 {
        one(&mut self.home.connection().await, "SELECT COUNT(*) FROM orders").await
    }
}

fn local() -> Policy {
    Policy::required().effects(Effects::Local).expect("allowed")
}

fn phased() -> Policy {
    Policy::required().effects(Effects::Phased).expect("allowed")
}

fn ordered() -> Reply {
    Reply::new(StatusCode::CREATED, "ordered")
}

const ORDER: &str = "INSERT INTO orders VALUES ('tea')";

async fn order(shop: Shop, operation: Operation) -> Result<Reply, (StatusCode, String)> {
    let done = operation.transaction(&shop.pool, async |tx| {
        // From here on a transaction at REPEATABLE READ sees what was there before.
        sqlx::query("SELECT COUNT(*) FROM orders").execute(&mut *tx).await?;
        sqlx::query(ORDER).execute(&mut *tx).await?;
        Ok::<_, sqlx::Error>(ordered())
    });
    done.await.map_err(failed)
}

#[tokio::test]
async fn the_reply_commits_with_the_rows_or_neither_does() {
    for level in LEVELS {
        let shop = Shop::open(level).await;
        let first = shop.charge(local(), "order-0000000001", order).await;
        assert_eq!((first.says(), first.text()), (says(201, "executed"), "ordered"), "{level}");
        let retry = shop.charge(local(), "order-0000000001", order).await;
        assert_eq!((retry.says(), retry.text()), (says(201, "replayed"), "ordered"), "{level}");
        assert_eq!((shop.orders().await, shop.runs.load(SeqCst)), (1, 1), "{level}");

        let rolled_back = |shop: Shop, operation: Operation| async move {
            let mut tx = shop.pool.begin().await.expect("begun");
            sqlx::query(ORDER).execute(&mut *tx).await.expect("inserted");
            operation.complete_in(&mut *tx, ordered()).await.expect("written");
            tx.rollback().await.expect("rolled back");
            ordered()
        };
        let failed = shop.charge(local(), "order-0000000002", rolled_back).await;
        assert_ne!(failed.status, 201, "{level}: {failed:?}");
        assert_eq!(shop.orders().await, 1, "{level}");
        let again = shop.charge(local(), "order-0000000002", order).await;
        assert_eq!((again.says(), shop.orders().await), (says(201, "executed"), 2), "{level}");
    }
}

#[tokio::test]
async fn who_has_lost_the_record_cannot_commit_whatever_the_transaction_saw_before() {
    for level in LEVELS {
        let shop = Shop::open(level).await;
        let handler = |shop: Shop, operation: Operation| async move {
            let mut tx = shop.pool.begin().await.expect("begun");
            // The transaction has seen the record as it was.
            sqlx::query("SELECT * FROM onceward_records").execute(&mut *tx).await.expect("seen");
            sqlx::query(ORDER).execute(&mut *tx).await.expect("inserted");
            let mut other = shop.home.connection().await;
            run(&mut other, "UPDATE onceward_records SET fence = fence + 1").await;
            let lost = operation.complete_in(&mut *tx, ordered()).await;
            let lost = lost.expect_err("the record is another attempt's");
            tx.rollback().await.expect("rolled back");
            Err::<(), _>(failed(lost))
        };
        let answer = shop.charge(local(), "order-0000000001", handler).await;
        assert_ne!(answer.status, 201, "{level}: {answer:?}");
        assert_eq!(shop.orders().await, 0, "{level}");
    }
}

#[tokio::test]
async fn outside_of_a_transaction_or_elsewhere_nothing_is_written() {
    let shop = Shop::open(LEVELS[0]).await;
    let elsewhere = Home::new().await;
    let handler = {
        let url = elsewhere.url.clone();
        move |shop: Shop, operation: Operation| {
            let url = url.clone();
            async move {
                let mut plain = shop.pool.acquire().await.expect("a connection");
                let outside = operation.complete_in(&mut *plain, ordered()).await;
                assert!(outside.is_err(), "there is no transaction");
                // A statement that changes tables ends it without a word.
                let mut tx = shop.pool.begin().await.expect("begun");
                let ended = "CREATE TABLE IF NOT EXISTS other (name INTEGER)";
                sqlx::query(ended).execute(&mut *tx).await.expect("made");
                let ended = operation.complete_in(&mut *tx, ordered()).await;
                assert!(ended.is_err(), "there is none any more");
                drop(tx);
                let other = MySqlPool::connect(&url).await.expect("a pool");
                let mut tx = other.begin().await.expect("begun");
                let wrong = operation.complete_in(&mut *tx, ordered()).await;
                assert!(wrong.is_err(), "the records are not there");
                drop(tx);
                order(shop, operation).await
            }
        }
    };
    let answer = shop.charge(local(), "order-0000000001", handler).await;
    assert_eq!((answer.says(), shop.orders().await), (says(201, "executed"), 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_at_once_on_a_single_route_each_key_is_ordered_once() {
    for level in LEVELS {
        let shop = Shop::open(level).await;
        let mut calls = JoinSet::new();
        for number in 0..24 {
            for _ in 0..3 {
                let shop = shop.clone();
                calls.spawn(async move {
                    let key = format!("single-{number:012}");
                    for _ in 0..50 {
                        let policy = Policy::required().single();
                        let answer = shop.charge(policy, &key, order).await;
                        if answer.status == 201 {
                            return;
                        }
                        // In the way of another one: told to come again.
                        assert!(matches!(answer.status, 409 | 503), "{level}: {answer:?}");
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    panic!("{level}: {key} was never answered");
                });
            }
        }
        while let Some(call) = calls.join_next().await {
            call.expect("no panic");
        }
        assert_eq!(shop.orders().await, 24, "{level}");
    }
}

#[tokio::test]
async fn a_duplicate_on_a_single_route_waits_and_gets_the_reply() {
    for level in LEVELS {
        let shop = Shop::open(level).await;
        let (inside, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let slow = {
            let (inside, go_on) = (Arc::clone(&inside), Arc::clone(&go_on));
            move |shop: Shop, operation: Operation| {
                let (inside, go_on) = (Arc::clone(&inside), Arc::clone(&go_on));
                async move {
                    let done = operation.transaction(&shop.pool, async |tx| {
                        sqlx::query(ORDER).execute(&mut *tx).await?;
                        inside.notify_one();
                        go_on.notified().await;
                        Ok::<_, sqlx::Error>(ordered())
                    });
                    done.await.map_err(failed)
                }
            }
        };
        let first = tokio::spawn({
            let shop = shop.clone();
            async move { shop.charge(Policy::required().single(), "waits-0000000001", slow).await }
        });
        inside.notified().await;
        let second = tokio::spawn({
            let shop = shop.clone();
            async move { shop.charge(Policy::required().single(), "waits-0000000001", order).await }
        });
        while shop.runs.load(SeqCst) < 2 {
            tokio::task::yield_now().await;
        }
        go_on.notify_one();
        let answers = (first.await.expect("answered"), second.await.expect("answered"));
        assert_eq!(answers.0.says(), says(201, "executed"), "{level}");
        assert_eq!(answers.1.says(), says(201, "replayed"), "{level}");
        assert_eq!(shop.orders().await, 1, "{level}");
    }
}

#[tokio::test]
async fn phases_effects_and_messages_commit_step_by_step_and_are_not_made_again() {
    for level in LEVELS {
        let shop = Shop::open(level).await;
        let handler = |shop: Shop, operation: Operation| async move {
            let booked = operation.phase(&shop.pool, "book", async |tx| {
                sqlx::query(ORDER).execute(&mut *tx).await?;
                let message = Message::new("receipt", "mail", "thank you").aggregate("order-1");
                operation.stage(&mut *tx, message).await.expect("staged");
                Ok::<_, sqlx::Error>(7)
            });
            let booked: i32 = booked.await.map_err(failed)?;
            let charged = operation.effect(Effect::not_idempotent("charge"), async |_| {
                Ok::<_, EffectError<std::io::Error>>(booked + 1)
            });
            let charged: i32 = charged.await.map_err(failed)?;
            if shop.runs.load(SeqCst) == 1 {
                return Err((StatusCode::SERVICE_UNAVAILABLE, "later".to_owned()));
            }
            let done = operation.transaction(&shop.pool, async |_| {
                Ok::<_, sqlx::Error>(Reply::new(StatusCode::CREATED, charged.to_string()))
            });
            done.await.map_err(failed)
        };
        let first = shop.charge(phased(), "phased-0000000001", handler).await;
        assert_ne!(first.status, 201, "{level}: {first:?}");
        let second = shop.charge(phased(), "phased-0000000001", handler).await;
        assert_eq!((second.says(), second.text()), (says(201, "executed"), "8"), "{level}");
        assert_eq!(shop.orders().await, 1, "{level}");
        let staged = shop.home.store.list(MessageState::Ready, None, 10).await.expect("answers");
        assert_eq!(staged.len(), 1, "{level}");
        let mut look = shop.home.connection().await;
        let beside = "SELECT (SELECT COUNT(*) FROM onceward_steps) + \
                      (SELECT COUNT(*) FROM onceward_requests)";
        assert_eq!(one::<i64>(&mut look, beside).await, 0, "{level}: all gone with the reply");
        let state: Vec<u8> =
            one(&mut look, "SELECT CAST(state AS BINARY) FROM onceward_records").await;
        assert_eq!(state, State::Completed.name().as_bytes(), "{level}");
    }
}

/// An insert of a record that is there would lock the gap before it.
#[tokio::test]
async fn strangers_reserve_while_a_transaction_that_has_staged_and_completed_is_open() {
    for level in LEVELS {
        let shop = Shop::open(level).await;
        let handler = |shop: Shop, operation: Operation| async move {
            let mut tx = shop.pool.begin().await.expect("begun");
            operation.reserve_in(&mut *tx).await.expect("reserved");
            let message = Message::new("receipt", "mail", "thank you");
            operation.stage(&mut *tx, message).await.expect("staged");
            operation.complete_in(&mut *tx, ordered()).await.expect("written");
            for neighbour in ["single-000000000", "single-0000000006"] {
                let policy = Policy::required().single();
                let answer = shop.charge(policy, neighbour, order).await;
                assert_eq!(answer.says(), says(201, "executed"), "{neighbour}: {answer:?}");
            }
            tx.commit().await.expect("committed");
            ordered()
        };
        let policy = Policy::required().single();
        let answer = shop.charge(policy, "single-0000000005", handler).await;
        assert_eq!(answer.says(), says(201, "executed"), "{level}");
        assert_eq!(shop.orders().await, 2, "{level}");
    }
}

#[tokio::test]
async fn what_a_server_took_back_while_a_record_was_locked_is_not_completed_by_what_comes_after() {
    let server = MariaDb::start_with(&["--innodb-rollback-on-timeout=ON"]);
    let home = Home::at(server.url(&server.create_database()), |options| options).await;
    let shop = Shop::at(home, LEVELS[0]).await;
    let handler = |shop: Shop, operation: Operation| async move {
        let mut plain = shop.home.connection().await;
        run(&mut plain, "SET autocommit = 0").await;
        run(&mut plain, ORDER).await;
        let mut other = shop.home.connection().await;
        run(&mut other, "BEGIN; SELECT * FROM onceward_records FOR UPDATE").await;
        let (completed, ()) = tokio::join!(
            operation.complete_in(&mut plain, ordered()),
            run(&mut other, "DO SLEEP(0.3); COMMIT"),
        );
        // Of the order there is nothing left to commit.
        run(&mut plain, "COMMIT").await;
        completed.map(|()| ordered()).map_err(failed)
    };
    let answer = shop.charge(local(), "order-0000000001", handler).await;
    // MySQL takes back what waited in vain, MariaDB also what did not wait at all, as we do.
    let kept = i64::from(server.is_mysql());
    assert_eq!(answer.status == 201, kept == 1, "{answer:?}");
    assert_eq!(shop.orders().await, kept);
    // And its twin: where nothing was taken back, a wait is not in vain.
    let answer = shop.charge(local(), "order-0000000002", order).await;
    assert_eq!((answer.says(), shop.orders().await), (says(201, "executed"), kept + 1));
}

fn receipt() -> Message {
    Message::new("receipt", "mail", "thank you")
}

/// A transaction at REPEATABLE READ sees what was there when it began.
#[tokio::test]
async fn a_message_is_staged_by_what_is_there_and_not_by_what_the_transaction_sees() {
    for level in LEVELS {
        let shop = Shop::open(level).await;
        let handler = |shop: Shop, operation: Operation| async move {
            let mut beside = shop.home.connection().await;
            let see = "SELECT COUNT(*) FROM onceward_outbox";

            // Staged by a transaction that this one does not see: it is there already.
            let mut tx = shop.pool.begin().await.expect("begun");
            assert_eq!(one::<i64>(&mut tx, see).await, 0);
            let mut other = shop.pool.begin().await.expect("begun");
            operation.stage(&mut *other, receipt()).await.expect("staged");
            other.commit().await.expect("committed");
            operation.stage(&mut *tx, receipt()).await.expect("staged before");
            tx.commit().await.expect("committed");
            assert_eq!(one::<i64>(&mut beside, see).await, 1);

            // Of a former use of the key, and not delivered.
            run(&mut beside, "UPDATE onceward_outbox SET record_created_at = 1").await;
            let mut tx = shop.pool.begin().await.expect("begun");
            operation.stage(&mut *tx, receipt()).await.expect_err("it is in the way");
            tx.rollback().await.expect("rolled back");

            // The same, purged since the transaction began.
            let mut tx = shop.pool.begin().await.expect("begun");
            assert_eq!(one::<i64>(&mut tx, see).await, 1);
            run(&mut beside, "DELETE FROM onceward_outbox").await;
            operation.stage(&mut *tx, receipt()).await.expect("nothing is in the way");
            operation.complete_in(&mut *tx, ordered()).await.expect("written");
            tx.commit().await.expect("committed");
            ordered()
        };
        let answer = shop.charge(local(), "staged-0000000001", handler).await;
        assert_eq!(answer.says(), says(201, "executed"), "{level}");
        let staged = shop.home.store.list(MessageState::Ready, None, 10).await.expect("answers");
        assert_eq!(staged.len(), 1, "{level}");
    }
}
