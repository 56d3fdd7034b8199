//! A handler that completes in its own transaction: its rows and its reply, or neither.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use axum::response::{IntoResponse as _, Response};
use futures_util::future::BoxFuture;
use http::StatusCode;
use onceward::{
    Effects, MemoryStore, Operation, Policy, Reply, TransactionError,
    phase::Misuse,
    record::State,
    testing::{Fault, FaultyStore, StoreCall},
};
use sqlx::{Connection as _, Sqlite};
use tokio::sync::Notify;

use crate::{
    service::says,
    shop::{Database, Shop, WAITS_MAX, dropped_at, failed, on_each_database},
};

on_each_database!(
    the_reply_commits_with_the_rows_and_a_retry_gets_it,
    a_transaction_of_the_handlers_own_takes_the_reply_with_it,
    what_is_rolled_back_leaves_neither_rows_nor_reply,
    a_panic_after_the_commit_changes_nothing,
    a_local_handler_that_succeeds_without_a_reply_is_unknown_and_its_errors_are_not,
    an_attempt_that_lost_its_record_cannot_commit,
    a_transaction_of_an_attempt_that_was_released_rolls_back_and_a_retry_runs_once,
    an_attempt_whose_lease_is_over_by_its_own_clock_begins_nothing,
    completing_where_it_cannot_be_is_an_error,
    a_process_that_stops_rolls_back_what_is_open_and_a_retry_runs,
    a_store_that_cannot_be_asked_after_the_handler_is_told_as_unknown_and_a_retry_replays,
    a_reply_over_the_cap_is_passed_on_and_not_kept,
    a_transaction_that_is_dropped_at_any_of_its_waits_leaves_none_open;
    // A commit is refused by a constraint that is looked at when it comes.
    not_on_mariadb: a_commit_that_is_refused_is_no_completion,
);

const KEY: &str = "order-0000000000000001";

fn local() -> Policy {
    Policy::required().effects(Effects::Local).expect("allowed")
}

fn created(body: &'static str) -> Reply {
    Reply::new(StatusCode::CREATED, body)
}

/// Orders tea in one transaction with the reply.
async fn order_tea<D: Database>(
    shop: Shop<D>,
    operation: Operation,
) -> Result<Reply, (StatusCode, String)> {
    let ordered = operation.transaction(&shop.pool, async |tx| {
        D::order(tx, "tea").await?;
        Ok::<_, sqlx::Error>(created("ordered"))
    });
    ordered.await.map_err(failed)
}

async fn the_reply_commits_with_the_rows_and_a_retry_gets_it<D: Database>() {
    let shop = Shop::<D>::open().await;
    let served = shop.serve(local(), order_tea);
    let first = served.charge(KEY).await;
    assert_eq!((first.says(), first.text()), (says(201, "executed"), "ordered"));
    assert!(!first.headers.contains_key("idempotent-replayed"));
    assert!(first.headers.contains_key("idempotency-expires"));
    let retry = served.charge(KEY).await;
    assert_eq!((retry.says(), retry.text()), (says(201, "replayed"), "ordered"));
    assert_eq!((shop.orders().await, shop.runs()), (vec!["tea".to_owned()], 1));
}

async fn a_transaction_of_the_handlers_own_takes_the_reply_with_it<D: Database>() {
    let shop = Shop::<D>::open().await;
    let served = shop.serve(local(), |shop: Shop<D>, operation: Operation| async move {
        let mut tx = shop.pool.begin().await.map_err(failed)?;
        D::order(&mut tx, "tea").await.map_err(failed)?;
        operation.complete_in(&mut *tx, created("ordered")).await.map_err(failed)?;
        tx.commit().await.map_err(failed)?;
        // What was stored is what was promised, whatever is said now.
        Ok::<_, (StatusCode, String)>((StatusCode::IM_A_TEAPOT, "something else"))
    });
    let first = served.charge(KEY).await;
    assert_eq!((first.says(), first.text()), (says(201, "executed"), "ordered"));
    assert_eq!(served.charge(KEY).await.text(), "ordered");
    assert_eq!((shop.orders().await.len(), shop.runs()), (1, 1));
}

/// How an attempt ends.
type End<D> = fn(Shop<D>, Operation) -> BoxFuture<'static, Response>;

async fn what_is_rolled_back_leaves_neither_rows_nor_reply<D: Database>() {
    let work_fails: End<D> = |shop, operation| {
        Box::pin(async move {
            let failing = operation.transaction(&shop.pool, async |tx| {
                D::order(tx, "tea").await.expect("ordered");
                Err("out of tea")
            });
            failed(failing.await.expect_err("the work failed")).into_response()
        })
    };
    let never_committed: End<D> = |shop, operation| {
        Box::pin(async move {
            let mut tx = shop.pool.begin().await.expect("begun");
            D::order(&mut tx, "tea").await.expect("ordered");
            operation.complete_in(&mut *tx, created("ordered")).await.expect("written");
            drop(tx);
            "all is well".into_response()
        })
    };
    let declined: End<D> = |shop, operation| {
        Box::pin(async move {
            let mut tx = shop.pool.begin().await.expect("begun");
            operation.complete_in(&mut *tx, created("ordered")).await.expect("written");
            tx.rollback().await.expect("rolled back");
            StatusCode::PAYMENT_REQUIRED.into_response()
        })
    };
    let panics: End<D> = |shop, operation| {
        Box::pin(async move {
            let mut tx = shop.pool.begin().await.expect("begun");
            D::order(&mut tx, "tea").await.expect("ordered");
            operation.complete_in(&mut *tx, created("ordered")).await.expect("written");
            panic!("in the middle of it");
        })
    };
    let panics_early: End<D> = |_, _| Box::pin(async { panic!("before anything") });
    for (case, end, told) in [
        ("the work fails", work_fails, says(500, "not_executed")),
        ("never committed", never_committed, says(503, "store_unavailable")),
        ("declined", declined, says(402, "not_executed")),
        ("panics", panics, says(503, "store_unavailable")),
        ("panics early", panics_early, says(503, "store_unavailable")),
    ] {
        let shop = Shop::<D>::open().await;
        let served = shop.serve(local(), move |shop: Shop<D>, operation| async move {
            match shop.runs() {
                1 => end(shop, operation).await,
                _ => order_tea(shop, operation).await.into_response(),
            }
        });
        assert_eq!(served.charge(KEY).await.says(), told, "{case}");
        assert_eq!(shop.orders().await, [""; 0], "{case}");
        let record = shop.record(KEY).await.expect("a record");
        assert_eq!((record.state, record.reply), (State::FailedRetryable, None), "{case}");
        assert_eq!(served.charge(KEY).await.says(), says(201, "executed"), "{case}");
        assert_eq!(shop.orders().await, ["tea"], "{case}");
    }
}

async fn a_panic_after_the_commit_changes_nothing<D: Database>() {
    let shop = Shop::<D>::open().await;
    let served = shop.serve(local(), |shop: Shop<D>, operation| async move {
        order_tea(shop, operation).await.expect("ordered");
        if true {
            panic!("too late");
        }
    });
    assert_eq!(served.charge(KEY).await.says(), says(201, "executed"));
    assert_eq!(served.charge(KEY).await.says(), says(201, "replayed"));
    assert_eq!(shop.orders().await, ["tea"]);
}

async fn a_commit_that_is_refused_is_no_completion<D: Database>() {
    let shop = Shop::<D>::open().await;
    let mut connection = shop.pool.acquire().await.expect("acquired");
    for table in [
        "CREATE TABLE goods (name TEXT PRIMARY KEY)",
        "CREATE TABLE lines (name TEXT REFERENCES goods (name) DEFERRABLE INITIALLY DEFERRED)",
    ] {
        D::run(&mut connection, table).await.expect("made");
    }
    drop(connection);
    let served = shop.serve(local(), |shop: Shop<D>, operation: Operation| async move {
        if shop.runs() > 1 {
            return order_tea(shop, operation).await;
        }
        let refused = operation.transaction(&shop.pool, async |tx| {
            D::order(tx, "tea").await?;
            D::run(tx, "INSERT INTO lines VALUES ('no such thing')").await?;
            Ok::<_, sqlx::Error>(created("ordered"))
        });
        let refused = refused.await.expect_err("the commit is refused");
        assert!(matches!(refused, TransactionError::Store(_)), "{refused:?}");
        Err(failed(refused))
    });
    assert_eq!(served.charge(KEY).await.says(), says(500, "not_executed"));
    assert_eq!(shop.orders().await, [""; 0]);
    assert_eq!(served.charge(KEY).await.says(), says(201, "executed"));
}

async fn a_local_handler_that_succeeds_without_a_reply_is_unknown_and_its_errors_are_not<
    D: Database,
>() {
    for (status, first, again, runs) in [
        (200, says(502, "outcome_unknown"), says(409, "outcome_unknown"), 1),
        (302, says(502, "outcome_unknown"), says(409, "outcome_unknown"), 1),
        (404, says(404, "executed"), says(404, "replayed"), 1),
        (429, says(429, "not_executed"), says(429, "not_executed"), 2),
        (500, says(500, "not_executed"), says(500, "not_executed"), 2),
    ] {
        let shop = Shop::<D>::open().await;
        let served = shop.serve(local(), move |_, _| async move {
            StatusCode::from_u16(status).expect("a status")
        });
        assert_eq!(served.charge(KEY).await.says(), first, "{status}");
        assert_eq!((served.charge(KEY).await.says(), shop.runs()), (again, runs), "{status}");
    }
    let shop = Shop::<D>::open().await;
    let served = shop.serve(local(), |_, _| async { "done, somehow" });
    served.charge(KEY).await;
    let why = shop.record(KEY).await.expect("a record").last_error;
    assert_eq!(why.as_deref(), Some("local_without_complete_in"));
}

async fn an_attempt_that_lost_its_record_cannot_commit<D: Database>() {
    let shop = Shop::<D>::open().await;
    let (working, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let lost = Arc::new(Mutex::new(None));
    let served = shop.serve(local(), {
        let (working, go_on, lost) = (working.clone(), go_on.clone(), lost.clone());
        move |shop: Shop<D>, operation: Operation| {
            let (working, go_on, lost) = (working.clone(), go_on.clone(), lost.clone());
            async move {
                if shop.runs() > 1 {
                    return order_tea(shop, operation).await.into_response();
                }
                // It has been let in by its own clock, and is then paused.
                working.notify_one();
                go_on.notified().await;
                let mut tx = shop.pool.begin().await.expect("begun");
                D::order(&mut tx, "coffee").await.expect("ordered");
                let error = operation.complete_in(&mut *tx, created("coffee")).await;
                let error = error.expect_err("another attempt has completed");
                tx.rollback().await.expect("rolled back");
                *lost.lock().expect("not poisoned") = Some(format!("{error:?}"));
                failed(error).into_response()
            }
        }
    });
    let first = served.spawn_charge(KEY);
    working.notified().await;
    shop.clock.pause_process(Duration::from_secs(61));
    assert_eq!(served.charge(KEY).await.says(), says(201, "executed"));
    go_on.notify_one();
    let first = first.await.expect("answered");
    assert_eq!((first.says(), first.text()), (says(201, "replayed"), "ordered"));
    assert_eq!(lost.lock().expect("not poisoned").as_deref(), Some("LeaseLost"));
    assert_eq!(shop.orders().await, ["tea"]);
}

/// Its transaction is all that it does: rolled back, it is true that it did not act.
async fn a_transaction_of_an_attempt_that_was_released_rolls_back_and_a_retry_runs_once<
    D: Database,
>() {
    for is_released in [true, false] {
        let shop = Shop::<D>::open().await;
        let (working, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let served = shop.serve(local(), {
            let (working, go_on) = (working.clone(), go_on.clone());
            move |shop: Shop<D>, operation: Operation| {
                let (working, go_on) = (working.clone(), go_on.clone());
                async move {
                    if shop.runs() == 1 {
                        working.notify_one();
                        go_on.notified().await;
                    }
                    order_tea(shop, operation).await
                }
            }
        });
        let first = served.spawn_charge(KEY);
        working.notified().await;
        shop.taken_for_lost(KEY, is_released).await;
        go_on.notify_one();
        let first = first.await.expect("answered");
        let told = if is_released { says(500, "not_executed") } else { says(201, "executed") };
        assert_eq!(first.says(), told, "released: {is_released}");
        assert_eq!(shop.orders().await.len(), usize::from(!is_released));
        let word = if is_released { "executed" } else { "replayed" };
        assert_eq!(served.charge(KEY).await.says(), says(201, word));
        assert_eq!(shop.orders().await, ["tea"], "released: {is_released}");
    }
}

async fn an_attempt_whose_lease_is_over_by_its_own_clock_begins_nothing<D: Database>() {
    let shop = Shop::<D>::open().await;
    let served = shop.serve(local(), |shop: Shop<D>, operation: Operation| async move {
        if shop.runs() == 1 {
            shop.clock.pause_process(Duration::from_secs(61));
        }
        order_tea(shop, operation).await
    });
    let first = served.charge(KEY).await;
    assert!(first.text().contains("LeaseOver"), "{}", first.text());
    assert_eq!(shop.orders().await, [""; 0]);
    assert_eq!(served.charge(KEY).await.says(), says(201, "executed"));
}

/// What `complete_in` says where it cannot be.
async fn misused<D: Database>(policy: Policy, on: &'static str) -> Misuse {
    let shop = Shop::<D>::open().await;
    let seen = Arc::new(Mutex::new(None));
    let told = seen.clone();
    let handler = move |shop: Shop<D>, operation: Operation| {
        let told = told.clone();
        async move {
            let completed = match on {
                "elsewhere" => {
                    let place = shop.elsewhere();
                    let mut tx = D::pool(&place).await.begin().await.expect("begun");
                    operation.complete_in(&mut *tx, created("")).await
                }
                "no transaction" => {
                    let mut connection = shop.pool.acquire().await.expect("acquired");
                    operation.complete_in(&mut *connection, created("")).await
                }
                "twice" => {
                    let mut tx = shop.pool.begin().await.expect("begun");
                    let first = operation.complete_in(&mut *tx, created("one")).await;
                    first.expect("written");
                    let same = operation.complete_in(&mut *tx, created("one")).await;
                    same.expect("the same reply is the same");
                    operation.complete_in(&mut *tx, created("two")).await
                }
                "reserving" => {
                    let mut tx = shop.pool.begin().await.expect("begun");
                    operation.reserve_in(&mut *tx).await
                }
                _ => {
                    let mut tx = shop.pool.begin().await.expect("begun");
                    operation.complete_in(&mut *tx, created("")).await
                }
            };
            let Err(TransactionError::Misuse(misuse)) = completed else {
                panic!("{on}: {completed:?}")
            };
            *told.lock().expect("not poisoned") = Some(misuse);
            StatusCode::INTERNAL_SERVER_ERROR
        }
    };
    let served = match on {
        "memory" => shop.serve_on(Arc::new(MemoryStore::new()), policy, handler),
        _ => shop.serve(policy, handler),
    };
    served.charge(KEY).await;
    let misuse = seen.lock().expect("not poisoned").take();
    misuse.expect("the handler was called")
}

async fn completing_where_it_cannot_be_is_an_error<D: Database>() {
    assert_eq!(misused::<D>(Policy::required(), "").await, Misuse::NotDeclared);
    let external = Policy::required().effects(Effects::External).expect("allowed");
    assert_eq!(misused::<D>(external, "").await, Misuse::NotDeclared);
    assert_eq!(misused::<D>(local(), "memory").await, Misuse::NoTransactions);
    assert_eq!(misused::<D>(local(), "elsewhere").await, Misuse::OtherDatabase);
    assert_eq!(misused::<D>(local(), "no transaction").await, Misuse::NotInTransaction);
    assert_eq!(misused::<D>(local(), "twice").await, Misuse::Refused("completed_twice"));
    assert_eq!(misused::<D>(local(), "reserving").await, Misuse::NotSingle);
}

#[tokio::test]
async fn a_transaction_whose_commit_does_not_wait_for_the_disk_is_refused() {
    for (level, is_refused) in [("OFF", true), ("NORMAL", true), ("FULL", false), ("EXTRA", false)]
    {
        let shop = Shop::<Sqlite>::open().await;
        let served = shop.serve(local(), move |shop: Shop, operation: Operation| async move {
            let mut connection = shop.pool.acquire().await.map_err(failed)?;
            let level = sqlx::AssertSqlSafe(format!("PRAGMA synchronous = {level}"));
            sqlx::raw_sql(level).execute(&mut *connection).await.map_err(failed)?;
            let mut tx = connection.begin().await.map_err(failed)?;
            Sqlite::order(&mut tx, "tea").await.map_err(failed)?;
            let completed = operation.complete_in(&mut *tx, created("ordered")).await;
            if let Err(error) = &completed {
                assert!(error.to_string().contains("PRAGMA synchronous = FULL"), "{error}");
            }
            completed.map_err(failed)?;
            tx.commit().await.map_err(failed)
        });
        let first = served.charge(KEY).await;
        assert_eq!(first.text().contains("NotDurable"), is_refused, "{level}: {}", first.text());
        assert_eq!(shop.orders().await.len(), usize::from(!is_refused), "{level}");
    }
}

#[tokio::test]
async fn a_completion_that_is_dropped_leaves_no_transaction_behind_where_there_was_none() {
    let shop = Shop::<Sqlite>::open().await;
    let dropped = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&dropped);
    let served = shop.serve(local(), move |shop: Shop, operation: Operation| {
        let count = Arc::clone(&count);
        async move {
            let mut connection = shop.pool.acquire().await.expect("acquired");
            // Where it waits depends on another thread: it is tried often enough.
            for round in 0..300 {
                let polls = 1 + round % 4;
                let completing = operation.complete_in(&mut *connection, created(""));
                let completed = dropped_at(polls, completing).await;
                let begun = sqlx::raw_sql("BEGIN; ROLLBACK").execute(&mut *connection).await;
                begun.expect("it was in no transaction");
                let Some(completed) = completed else {
                    count.fetch_add(1, Ordering::SeqCst);
                    continue;
                };
                let misused = completed.expect_err("misused").to_string();
                assert_eq!(misused, Misuse::NotInTransaction.to_string());
            }
            StatusCode::INTERNAL_SERVER_ERROR
        }
    });
    assert_eq!(served.charge(KEY).await.status, 500);
    assert!(dropped.load(Ordering::SeqCst) > 0, "it was dropped while it waited");
}

async fn a_process_that_stops_rolls_back_what_is_open_and_a_retry_runs<D: Database>() {
    let shop = Shop::<D>::open().await;
    let working = Arc::new(Notify::new());
    let served = shop.serve(local(), {
        let working = working.clone();
        move |shop: Shop<D>, operation: Operation| {
            let working = working.clone();
            async move {
                let stuck = operation.transaction(&shop.pool, async |tx| {
                    D::order(tx, "tea").await?;
                    working.notify_one();
                    std::future::pending::<Result<Reply, sqlx::Error>>().await
                });
                stuck.await.map_err(failed)
            }
        }
    });
    let first = served.spawn_charge(KEY);
    working.notified().await;
    served.engine.drain(Duration::ZERO).await;
    assert_eq!(first.await.expect("answered").says(), says(503, "store_unavailable"));
    let next = shop.serve(local(), order_tea);
    assert_eq!(next.charge(KEY).await.says(), says(201, "executed"));
    assert_eq!(shop.orders().await, ["tea"]);
}

async fn a_store_that_cannot_be_asked_after_the_handler_is_told_as_unknown_and_a_retry_replays<
    D: Database,
>() {
    let shop = Shop::<D>::open().await;
    let refused = Arc::new(AtomicU32::new(0));
    let store = FaultyStore::new(shop.store.clone(), {
        let refused = refused.clone();
        move |call, _| match call {
            StoreCall::Release if refused.fetch_add(1, Ordering::SeqCst) < 1000 => Fault::Corrupt,
            _ => Fault::None,
        }
    });
    let served = shop.serve_on(Arc::new(store), local(), order_tea);
    assert_eq!(served.charge(KEY).await.says(), says(409, "outcome_unknown"));
    let retry = served.charge(KEY).await;
    assert_eq!((retry.says(), retry.text()), (says(201, "replayed"), "ordered"));
    assert!(refused.load(Ordering::SeqCst) > 0);
}

async fn a_reply_over_the_cap_is_passed_on_and_not_kept<D: Database>() {
    let shop = Shop::<D>::open().await;
    let policy = local().reply_bytes_max(4).schema_version("v3");
    let served = shop.serve(policy, order_tea);
    let first = served.charge(KEY).await;
    assert_eq!((first.says(), first.text()), (says(201, "executed"), "ordered"));
    assert_eq!(first.header("onceward-schema-version"), "v3");
    assert_eq!(served.charge(KEY).await.says(), says(410, "reply_not_stored"));
    assert_eq!(shop.orders().await, ["tea"]);
}

/// What is dropped is rolled back, wherever it waits; unless the commit was on its way. How often it waits
/// is a matter of who is faster.
async fn a_transaction_that_is_dropped_at_any_of_its_waits_leaves_none_open<D: Database>() {
    let shop = Shop::<D>::open().await;
    let dropped = Arc::new(AtomicU32::new(0));
    let served = shop.serve(local(), {
        let dropped = Arc::clone(&dropped);
        move |shop: Shop<D>, operation: Operation| {
            let dropped = Arc::clone(&dropped);
            async move {
                match dropped_at(1 + shop.runs() % WAITS_MAX, order_tea(shop, operation)).await {
                    Some(ordered) => ordered.into_response(),
                    None => {
                        dropped.fetch_add(1, Ordering::SeqCst);
                        StatusCode::INTERNAL_SERVER_ERROR.into_response()
                    }
                }
            }
        }
    });
    let mut executed = 0;
    for number in 0..3 * WAITS_MAX {
        let answer = served.charge(&format!("order-{number:016}")).await;
        assert!([201, 500].contains(&answer.status), "{answer:?}");
        executed += usize::from(answer.status == 201);
        // At once: whoever is given the connection next would end what was left.
        shop.nobody_stays_in_a_transaction().await;
    }
    let dropped = dropped.load(Ordering::SeqCst);
    println!("{dropped} dropped, {executed} executed");
    assert!(dropped > 3 && executed > 3, "{dropped} dropped, {executed} executed");
    assert_eq!(shop.orders().await.len(), executed);
}
