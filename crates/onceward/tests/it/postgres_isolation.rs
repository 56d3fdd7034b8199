//! In transactions of the user's own on PostgreSQL, at each level of isolation. Above READ COMMITTED the
//! server refuses what has changed since the transaction began to look: it rolls back, and a retry runs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use http::StatusCode;
use onceward::{
    Message, Operation, OutboxStore as _, Policy, Reply, Store as _, TransactionError,
    outbox::MessageState,
    record::{Effects, Lease, Record, State},
    store::{Write, Written},
};
use sqlx::{AssertSqlSafe, PgConnection, PgPool, Postgres};
use tokio::{
    sync::{Barrier, Notify},
    task::JoinSet,
};

use crate::{
    service::says,
    shop::{Database as _, Shop, failed},
};

type PgShop = Shop<Postgres>;

const KEY: &str = "order-0000000000000001";
const ABOVE: [&str; 2] = ["REPEATABLE READ", "SERIALIZABLE"];
const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

/// A shop whose transactions are at this level.
async fn shop_at(level: &str) -> PgShop {
    let shop = PgShop::open().await;
    let set = format!("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}");
    let mut all = Vec::new();
    // All that the pool will ever have.
    for _ in 0..shop.pool.options().get_max_connections() {
        let mut connection = shop.pool.acquire().await.expect("acquired");
        sqlx::raw_sql(AssertSqlSafe(set.clone())).execute(&mut *connection).await.expect("set");
        all.push(connection);
    }
    shop
}

fn local() -> Policy {
    Policy::required().effects(Effects::Local).expect("allowed")
}

fn phased() -> Policy {
    Policy::required().effects(Effects::Phased).expect("allowed")
}

fn single() -> Policy {
    Policy::required().single()
}

fn ordered() -> Reply {
    Reply::new(StatusCode::CREATED, "ordered")
}

fn receipt() -> Message {
    Message::new("receipt", "mail", "thank you")
}

/// From here on a transaction above READ COMMITTED sees what was there before.
async fn look(tx: &mut PgConnection) -> sqlx::Result<i64> {
    sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(tx).await
}

async fn order(tx: &mut PgConnection) -> sqlx::Result<()> {
    look(tx).await?;
    Postgres::order(tx, "tea").await
}

async fn order_tea(shop: PgShop, operation: Operation) -> Result<Reply, (StatusCode, String)> {
    let done = operation.transaction(&shop.pool, async |tx| {
        order(tx).await?;
        Ok::<_, sqlx::Error>(ordered())
    });
    done.await.map_err(failed)
}

/// What the engine does while a handler takes its time.
async fn renew(shop: &PgShop) {
    let record = shop.record(KEY).await.expect("a record");
    let Record { id, attempt, fence, generation, attempts, lease_until, .. } = record;
    let lease =
        Lease { id, attempt, fence, generation, attempt_number: attempts, until: lease_until };
    let renewed = shop.store.write(&lease, Write::Renew(Duration::from_secs(60))).await;
    assert_eq!(renewed.expect("an answer"), Written::Applied);
}

#[tokio::test]
async fn the_reply_commits_with_the_rows_at_each_level() {
    for level in LEVELS {
        for policy in [local(), single()] {
            let shop = shop_at(level).await;
            let served = shop.serve(policy, order_tea);
            assert_eq!(served.charge(KEY).await.says(), says(201, "executed"), "{level}");
            let retry = served.charge(KEY).await;
            assert_eq!((retry.says(), retry.text()), (says(201, "replayed"), "ordered"), "{level}");
            assert_eq!((shop.orders().await.len(), shop.runs()), (1, 1), "{level}");
        }
    }
}

/// What is written into the transaction, beside its rows.
#[derive(Clone, Copy, Debug)]
enum What {
    Reserve,
    Reply,
    Phase,
    Message,
}

/// Above READ COMMITTED the record has changed since the transaction began to look.
async fn renewed_meanwhile(level: &str, what: What) {
    let shop = shop_at(level).await;
    let handler = move |shop: PgShop, operation: Operation| async move {
        let is_first = shop.runs() == 1;
        let work = async |tx: &mut PgConnection| {
            order(tx).await.map_err(failed)?;
            if is_first {
                renew(&shop).await;
            }
            if let What::Message = what {
                operation.stage(tx, receipt()).await.map_err(failed)?;
            }
            Ok::<_, (StatusCode, String)>(())
        };
        if let What::Phase = what {
            operation.phase(&shop.pool, "book", work).await.map_err(failed)?;
            let done = operation.transaction(&shop.pool, async |_| Ok::<_, sqlx::Error>(ordered()));
            return done.await.map_err(failed);
        }
        let done = operation.transaction(&shop.pool, async |tx| {
            work(tx).await?;
            Ok::<_, (StatusCode, String)>(ordered())
        });
        done.await.map_err(failed)
    };
    let policy = if let What::Phase = what { phased() } else { local() };
    let served = shop.serve(policy, handler);
    let about = format!("{what:?} at {level}");
    let first = served.charge(KEY).await;
    if level != "READ COMMITTED" {
        assert_eq!(first.says(), says(500, "not_executed"), "{about}: {}", first.text());
        assert!(first.text().contains("could not serialize access"), "{about}: {}", first.text());
        assert_eq!(shop.orders().await, [""; 0], "{about}: rolled back");
        let record = shop.record(KEY).await.expect("a record");
        assert_eq!((record.state, record.reply), (State::FailedRetryable, None), "{about}");
        let retry = served.charge(KEY).await;
        assert_eq!(retry.says(), says(201, "executed"), "{about}: {}", retry.text());
    } else {
        assert_eq!(first.says(), says(201, "executed"), "{about}: {}", first.text());
    }
    assert_eq!(served.charge(KEY).await.says(), says(201, "replayed"), "{about}");
    assert_eq!(shop.orders().await, ["tea"], "{about}");
    let staged = shop.store.list(MessageState::Ready, None, 10).await.expect("an answer");
    assert_eq!(staged.len(), usize::from(matches!(what, What::Message)), "{about}");
}

#[tokio::test]
async fn a_renewal_that_commits_meanwhile_rolls_the_transaction_back_and_a_retry_runs() {
    for level in LEVELS {
        for what in [What::Reply, What::Phase, What::Message] {
            renewed_meanwhile(level, what).await;
        }
    }
}

#[tokio::test]
async fn who_has_lost_the_record_cannot_commit_whatever_the_transaction_saw_before() {
    for level in LEVELS {
        let shop = shop_at(level).await;
        let served = shop.serve(local(), move |shop: PgShop, operation: Operation| async move {
            let mut tx = shop.pool.begin().await.map_err(failed)?;
            order(&mut tx).await.map_err(failed)?;
            let mut other = shop.pool.acquire().await.map_err(failed)?;
            Postgres::run(&mut other, Postgres::NEXT_FENCE).await.map_err(failed)?;
            let lost = operation.complete_in(&mut *tx, ordered()).await;
            let lost = lost.expect_err("the record is another attempt's");
            let expected = if level == "READ COMMITTED" { "LeaseLost" } else { "serialize" };
            assert!(format!("{lost:?}").contains(expected), "{level}: {lost:?}");
            match level {
                "READ COMMITTED" => tx.rollback().await.map_err(failed)?,
                // Whoever does not look, and commits, commits nothing.
                _ => tx.commit().await.map_err(failed)?,
            }
            Err::<(), _>(failed(lost))
        });
        let answer = served.charge(KEY).await;
        assert_ne!(answer.status, 201, "{level}: {answer:?}");
        assert_eq!(shop.orders().await, [""; 0], "{level}");
    }
}

/// It reads first, as handlers at these levels do, and is then overtaken.
#[tokio::test]
async fn a_duplicate_on_a_single_route_that_does_not_see_the_first_one_comes_again_and_gets_its_reply()
 {
    for level in LEVELS {
        let shop = shop_at(level).await;
        let (looked, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let served = shop.serve(single(), {
            let (looked, go_on) = (looked.clone(), go_on.clone());
            move |shop: PgShop, operation: Operation| {
                let (looked, go_on) = (looked.clone(), go_on.clone());
                async move {
                    if shop.runs() > 1 {
                        return order_tea(shop, operation).await;
                    }
                    let mut tx = shop.pool.begin().await.map_err(failed)?;
                    look(&mut tx).await.map_err(failed)?;
                    looked.notify_one();
                    go_on.notified().await;
                    operation.reserve_in(&mut *tx).await.map_err(failed)?;
                    order(&mut tx).await.map_err(failed)?;
                    operation.complete_in(&mut *tx, ordered()).await.map_err(failed)?;
                    tx.commit().await.map_err(failed)?;
                    Ok(ordered())
                }
            }
        });
        let overtaken = served.spawn_charge(KEY);
        looked.notified().await;
        assert_eq!(served.charge(KEY).await.says(), says(201, "executed"), "{level}");
        go_on.notify_one();
        let overtaken = overtaken.await.expect("answered");
        let told = match level {
            "READ COMMITTED" => says(201, "replayed"),
            _ => says(409, "key_in_progress"),
        };
        assert_eq!(overtaken.says(), told, "{level}");
        assert_eq!(served.charge(KEY).await.says(), says(201, "replayed"), "{level}");
        assert_eq!(shop.orders().await, ["tea"], "{level}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_at_once_each_key_is_ordered_once_at_each_level() {
    for (level, policy) in ABOVE.into_iter().flat_map(|level| [(level, local()), (level, single())])
    {
        let shop = shop_at(level).await;
        let served = shop.serve(policy, order_tea);
        let mut calls = JoinSet::new();
        for number in 0..36 {
            let served = served.clone();
            calls.spawn(async move {
                let key = format!("order-{:016}", number % 12);
                for _ in 0..200 {
                    let answer = served.charge(&key).await;
                    if answer.status == 201 {
                        return;
                    }
                    // In the way of another one, or rolled back: told to come again.
                    assert!(matches!(answer.status, 409 | 500 | 503), "{level}: {answer:?}");
                    tokio::time::sleep(Duration::from_millis(rand::random_range(1..20))).await;
                }
                panic!("{level}: {key} was never answered");
            });
        }
        while let Some(call) = calls.join_next().await {
            call.expect("no panic");
        }
        assert_eq!(shop.orders().await.len(), 12, "{level}");
    }
}

/// Each has read what the other writes: at SERIALIZABLE one of them cannot commit.
#[tokio::test]
async fn a_commit_that_cannot_be_serialized_is_no_completion_and_a_retry_runs() {
    for policy in [local(), single()] {
        let shop = shop_at("SERIALIZABLE").await;
        let both = Arc::new(Barrier::new(2));
        let refused = Arc::new(AtomicU32::new(0));
        let served = shop.serve(policy, {
            let (both, refused) = (both.clone(), refused.clone());
            move |shop: PgShop, operation: Operation| {
                let (both, refused) = (both.clone(), refused.clone());
                async move {
                    let meets = shop.runs() <= 2;
                    let done = operation.transaction(&shop.pool, async |tx| {
                        look(tx).await?;
                        if meets {
                            both.wait().await;
                        }
                        Postgres::order(tx, "tea").await?;
                        if meets {
                            both.wait().await;
                        }
                        Ok::<_, sqlx::Error>(ordered())
                    });
                    done.await.map_err(|error| {
                        refused.fetch_add(1, SeqCst);
                        assert!(
                            !matches!(error, TransactionError::NotAcknowledged(_)),
                            "it is known: {error:?}"
                        );
                        failed(error)
                    })
                }
            }
        });
        let keys = ["order-0000000000000001", "order-0000000000000002"];
        let (one, other) = tokio::join!(served.charge(keys[0]), served.charge(keys[1]));
        let mut told = [one.status, other.status];
        told.sort_unstable();
        assert_eq!((told[0], refused.load(SeqCst)), (201, 1), "{one:?} {other:?}");
        assert_ne!(told[1], 201, "{one:?} {other:?}");
        assert_eq!(shop.orders().await.len(), 1);
        for key in keys {
            assert_eq!(served.charge(key).await.status, 201);
        }
        assert_eq!(shop.orders().await.len(), 2);
    }
}

/// A server that acknowledges commits before they are on the disk, to this transaction only.
#[tokio::test]
async fn a_transaction_whose_commit_does_not_wait_for_the_disk_is_refused() {
    for (level, is_refused) in [("off", true), ("local", false), ("on", false)] {
        for what in [What::Reserve, What::Reply, What::Phase, What::Message] {
            let shop = PgShop::open().await;
            let policy = match what {
                What::Reserve => single(),
                What::Phase => phased(),
                What::Reply | What::Message => local(),
            };
            let handler = move |shop: PgShop, operation: Operation| async move {
                let mut tx = shop.pool.begin().await.map_err(failed)?;
                let set = AssertSqlSafe(format!("SET LOCAL synchronous_commit = {level}"));
                sqlx::raw_sql(set).execute(&mut *tx).await.map_err(failed)?;
                let done = match what {
                    What::Reserve => operation.reserve_in(&mut *tx).await.map_err(failed),
                    What::Reply => operation.complete_in(&mut *tx, ordered()).await.map_err(failed),
                    What::Message => operation.stage(&mut *tx, receipt()).await.map_err(failed),
                    What::Phase => saved_at(&shop.pool, &operation, level).await,
                };
                // A handler that is careless, too.
                tx.commit().await.map_err(failed)?;
                done
            };
            let about = format!("{what:?} where it is {level}");
            let answer = shop.serve(policy, handler).charge(KEY).await;
            let is_so = answer.text().contains("NotDurable");
            assert_eq!(is_so, is_refused, "{about}: {}", answer.text());
            let record = shop.record(KEY).await;
            let staged = shop.store.list(MessageState::Ready, None, 10).await.expect("an answer");
            let steps = match &record {
                Some(record) => shop.store.steps(&record.id, 1).await.expect("an answer").len(),
                None => 0,
            };
            let is_written = match what {
                What::Reserve => record.is_some(),
                What::Reply => record.is_some_and(|record| record.state == State::Completed),
                What::Message => !staged.is_empty(),
                What::Phase => steps > 0,
            };
            assert_eq!(is_written, !is_refused, "{about}: {}", answer.text());
        }
    }
}

/// A phase begins its transaction itself.
async fn saved_at(
    pool: &PgPool,
    operation: &Operation,
    level: &'static str,
) -> Result<(), (StatusCode, String)> {
    let phase = operation.phase(pool, "book", async |tx| {
        let set = AssertSqlSafe(format!("SET LOCAL synchronous_commit = {level}"));
        sqlx::raw_sql(set).execute(&mut *tx).await?;
        Ok::<_, sqlx::Error>(7)
    });
    phase.await.map(drop).map_err(failed)?;
    // So that its steps can be looked at.
    Err((StatusCode::SERVICE_UNAVAILABLE, "later".to_owned()))
}
