//! Reserve, work and reply in one commit.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{body::Body, response::IntoResponse as _};
use http::StatusCode;
use onceward::{
    Idempotency, Limits, Operation, Policy, Reply, Settings, TransactionError, phase::Misuse,
    record::State,
};
use sqlx::Sqlite;
use tokio::sync::Notify;

use crate::{
    service::{keyed, says},
    shop::{Database, Shop, failed, on_each_database},
};

on_each_database!(
    one_commit_holds_the_record_the_rows_and_the_reply,
    of_two_at_once_one_runs_and_the_other_gets_its_reply,
    of_two_different_requests_at_once_one_runs_and_the_other_is_refused,
    a_duplicate_waits_for_the_first_ones_transaction_and_gets_its_reply,
    a_duplicate_that_waits_too_long_gets_409,
    what_is_rolled_back_leaves_nothing_behind,
    a_handler_may_roll_back_and_try_again,
    a_transaction_of_the_handlers_own_reserves_and_completes,
    nothing_is_reserved_in_another_database_that_has_records_too,
    a_reserve_that_is_committed_without_a_reply_is_not_left_in_progress,
    without_a_transaction_a_success_is_unknown_and_errors_are_what_the_policy_says,
    past_max_execution_the_transaction_is_rolled_back_and_a_retry_runs,
    a_panic_and_a_stop_leave_nothing_behind,
    an_expired_key_is_refused_or_runs_again_as_its_policy_says,
    what_is_rolled_back_in_a_new_generation_is_not_answered_by_the_one_before,
    a_handler_that_has_not_reserved_yet_takes_its_place_among_the_active,
);

const KEY: &str = "order-0000000000000001";

fn single() -> Policy {
    Policy::required().single()
}

async fn order_tea<D: Database>(
    shop: Shop<D>,
    operation: Operation,
) -> Result<Reply, (StatusCode, String)> {
    let ordered = operation.transaction(&shop.pool, async |tx| {
        D::order(tx, "tea").await?;
        Ok::<_, sqlx::Error>(Reply::new(StatusCode::CREATED, "ordered"))
    });
    ordered.await.map_err(failed)
}

async fn one_commit_holds_the_record_the_rows_and_the_reply<D: Database>() {
    let shop = Shop::<D>::open().await;
    let served = shop.serve(single(), |shop: Shop<D>, operation: Operation| async move {
        // Nothing is reserved before the transaction is.
        assert_eq!(shop.record(KEY).await, None);
        order_tea(shop, operation).await
    });
    let first = served.charge(KEY).await;
    assert_eq!((first.says(), first.text()), (says(201, "executed"), "ordered"));
    let retry = served.charge(KEY).await;
    assert_eq!((retry.says(), retry.text()), (says(201, "replayed"), "ordered"));
    assert_eq!((shop.orders().await.len(), shop.runs()), (1, 1));
}

#[tokio::test]
async fn the_store_itself_writes_nothing() {
    let shop = Shop::<Sqlite>::open().await;
    let served = shop.serve(single(), order_tea);
    let before = shop.store.commits_and_writes();
    assert_eq!(served.charge(KEY).await.says(), says(201, "executed"));
    assert_eq!(shop.store.commits_and_writes(), before);
}

/// Two requests under one key whose handlers run at once: both looked before either had reserved.
async fn two_at_once<D: Database>(second_body: &'static str) -> (Shop<D>, [(u16, String); 2]) {
    let shop = Shop::<D>::open().await;
    let (first_in, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let served = shop.serve(single(), {
        let (first_in, go_on) = (first_in.clone(), go_on.clone());
        move |shop: Shop<D>, operation: Operation| {
            let (first_in, go_on) = (first_in.clone(), go_on.clone());
            async move {
                if shop.runs() == 1 {
                    first_in.notify_one();
                    go_on.notified().await;
                }
                order_tea(shop, operation).await
            }
        }
    });
    let request = |body: &'static str| keyed(KEY).body(Body::from(body)).expect("a request");
    let first = tokio::spawn({
        let (served, request) = (served.clone(), request("tea"));
        async move { served.send(request).await }
    });
    first_in.notified().await;
    let second = served.send(request(second_body)).await;
    go_on.notify_one();
    let first = first.await.expect("answered");
    (shop, [first.says(), second.says()])
}

async fn of_two_at_once_one_runs_and_the_other_gets_its_reply<D: Database>() {
    let (shop, answers) = two_at_once::<D>("tea").await;
    assert_eq!(answers, [says(201, "replayed"), says(201, "executed")]);
    assert_eq!((shop.orders().await, shop.runs()), (vec!["tea".to_owned()], 2));
}

async fn of_two_different_requests_at_once_one_runs_and_the_other_is_refused<D: Database>() {
    let (shop, answers) = two_at_once::<D>("coffee").await;
    let mismatch = says(422, "key_reused_with_different_payload");
    assert_eq!(answers, [mismatch, says(201, "executed")]);
    assert_eq!((shop.orders().await, shop.runs()), (vec!["tea".to_owned()], 2));
}

async fn a_duplicate_waits_for_the_first_ones_transaction_and_gets_its_reply<D: Database>() {
    let shop = Shop::<D>::open().await;
    let (inside, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let served = shop.serve(single(), {
        let (inside, go_on) = (inside.clone(), go_on.clone());
        move |shop: Shop<D>, operation: Operation| {
            let (inside, go_on) = (inside.clone(), go_on.clone());
            async move {
                let first = shop.runs() == 1;
                let ordered = operation.transaction(&shop.pool, async |tx| {
                    D::order(tx, "tea").await?;
                    if first {
                        inside.notify_one();
                        go_on.notified().await;
                    }
                    Ok::<_, sqlx::Error>(Reply::new(StatusCode::CREATED, "ordered"))
                });
                ordered.await.map_err(failed)
            }
        }
    });
    let first = served.spawn_charge(KEY);
    inside.notified().await;
    let second = served.spawn_charge(KEY);
    // The second one is let in, and waits where the first one's lock is.
    while shop.runs() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    go_on.notify_one();
    assert_eq!(first.await.expect("answered").says(), says(201, "executed"));
    assert_eq!(second.await.expect("answered").says(), says(201, "replayed"));
    assert_eq!(shop.orders().await, ["tea"]);
}

async fn a_duplicate_that_waits_too_long_gets_409<D: Database>() {
    let shop = Shop::<D>::open_impatient().await;
    let (inside, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let served = shop.serve(single(), {
        let (inside, go_on) = (inside.clone(), go_on.clone());
        move |shop: Shop<D>, operation: Operation| {
            let (inside, go_on) = (inside.clone(), go_on.clone());
            async move {
                let ordered = operation.transaction(&shop.pool, async |tx| {
                    D::order(tx, "tea").await?;
                    inside.notify_one();
                    go_on.notified().await;
                    Ok::<_, sqlx::Error>(Reply::new(StatusCode::CREATED, "ordered"))
                });
                ordered.await.map_err(failed)
            }
        }
    });
    let first = served.spawn_charge(KEY);
    inside.notified().await;
    let second = served.charge(KEY).await;
    assert_eq!(second.says(), says(409, "key_in_progress"));
    assert_eq!(second.header("retry-after"), "1");
    go_on.notify_one();
    assert_eq!(first.await.expect("answered").says(), says(201, "executed"));
    assert_eq!(served.charge(KEY).await.says(), says(201, "replayed"));
}

async fn what_is_rolled_back_leaves_nothing_behind<D: Database>() {
    let shop = Shop::<D>::open().await;
    let served = shop.serve(single(), |shop: Shop<D>, operation: Operation| async move {
        let first = shop.runs() == 1;
        let ordered = operation.transaction(&shop.pool, async |tx| {
            D::order(tx, "tea").await.expect("ordered");
            match first {
                true => Err("out of tea"),
                false => Ok(Reply::new(StatusCode::CREATED, "ordered")),
            }
        });
        ordered.await.map_err(failed)
    });
    assert_eq!(served.charge(KEY).await.says(), says(500, "not_executed"));
    assert_eq!((shop.orders().await.len(), shop.record(KEY).await), (0, None));
    assert_eq!(served.charge(KEY).await.says(), says(201, "executed"));
    assert_eq!(shop.orders().await, ["tea"]);
}

async fn a_handler_may_roll_back_and_try_again<D: Database>() {
    let shop = Shop::<D>::open().await;
    let served = shop.serve(single(), |shop: Shop<D>, operation: Operation| async move {
        let failing = operation.transaction(&shop.pool, async |tx| {
            D::order(tx, "tea").await.expect("ordered");
            Err("out of tea")
        });
        let Err(TransactionError::Work("out of tea")) = failing.await else { panic!("it failed") };
        order_tea(shop, operation).await
    });
    assert_eq!(served.charge(KEY).await.says(), says(201, "executed"));
    assert_eq!(shop.orders().await, ["tea"]);
}

async fn a_transaction_of_the_handlers_own_reserves_and_completes<D: Database>() {
    for commits in [true, false] {
        let shop = Shop::<D>::open().await;
        let served = shop.serve(single(), move |shop: Shop<D>, operation: Operation| async move {
            let mut tx = shop.begin().await;
            operation.reserve_in(&mut *tx).await.map_err(failed)?;
            D::order(&mut tx, "tea").await.map_err(failed)?;
            let reply = Reply::new(StatusCode::CREATED, "ordered");
            operation.complete_in(&mut *tx, reply).await.map_err(failed)?;
            if commits {
                tx.commit().await.map_err(failed)?;
            } else {
                drop(tx);
            }
            Ok::<_, (StatusCode, String)>("ordered, perhaps")
        });
        let (first, orders) = match commits {
            true => (says(201, "executed"), 1),
            false => (says(503, "store_unavailable"), 0),
        };
        assert_eq!(served.charge(KEY).await.says(), first);
        assert_eq!(shop.orders().await.len(), orders);
        assert_eq!(shop.record(KEY).await.is_some(), commits);
    }
}

/// There the key would be free.
async fn nothing_is_reserved_in_another_database_that_has_records_too<D: Database>() {
    let shop = Shop::<D>::open().await;
    let elsewhere = shop.elsewhere();
    let _store = D::store(&elsewhere, Arc::new(shop.clock.clone())).await;
    let pool = D::pool(&elsewhere).await;
    let served = shop.serve(single(), move |shop: Shop<D>, operation: Operation| {
        let pool = pool.clone();
        async move {
            let mut tx = D::begin_to_write(&pool).await.expect("begun");
            let refused = operation.reserve_in(&mut *tx).await;
            assert!(
                matches!(refused, Err(TransactionError::Misuse(Misuse::OtherDatabase))),
                "{refused:?}"
            );
            drop(tx);
            order_tea(shop, operation).await
        }
    });
    assert_eq!(served.charge(KEY).await.says(), says(201, "executed"));
    assert_eq!(shop.orders().await, ["tea"]);
}

async fn a_reserve_that_is_committed_without_a_reply_is_not_left_in_progress<D: Database>() {
    for (status, told, state) in [
        (500, says(500, "not_executed"), State::FailedRetryable),
        (200, says(502, "outcome_unknown"), State::Unknown),
    ] {
        let shop = Shop::<D>::open().await;
        let served = shop.serve(single(), move |shop: Shop<D>, operation: Operation| async move {
            let mut tx = shop.begin().await;
            operation.reserve_in(&mut *tx).await.expect("reserved");
            tx.commit().await.expect("committed");
            StatusCode::from_u16(status).expect("a status")
        });
        assert_eq!(served.charge(KEY).await.says(), told);
        assert_eq!(shop.record(KEY).await.expect("a record").state, state);
    }
}

async fn without_a_transaction_a_success_is_unknown_and_errors_are_what_the_policy_says<
    D: Database,
>() {
    for (status, first, again, runs) in [
        (200, says(502, "outcome_unknown"), says(409, "outcome_unknown"), 1),
        (404, says(404, "executed"), says(404, "replayed"), 1),
        (429, says(429, "not_executed"), says(429, "not_executed"), 2),
        (500, says(500, "not_executed"), says(500, "not_executed"), 2),
    ] {
        let shop = Shop::<D>::open().await;
        let served = shop.serve(single(), move |_, _| async move {
            StatusCode::from_u16(status).expect("a status")
        });
        assert_eq!(served.charge(KEY).await.says(), first, "{status}");
        assert_eq!((served.charge(KEY).await.says(), shop.runs()), (again, runs), "{status}");
    }
}

async fn past_max_execution_the_transaction_is_rolled_back_and_a_retry_runs<D: Database>() {
    let shop = Shop::<D>::open().await;
    let policy = single().max_execution(Duration::from_secs(1)).expect("allowed");
    let served = shop.serve(policy, |shop: Shop<D>, operation: Operation| async move {
        let first = shop.runs() == 1;
        let ordered = operation.transaction(&shop.pool, async |tx| {
            D::order(tx, "tea").await?;
            if first {
                std::future::pending::<()>().await;
            }
            Ok::<_, sqlx::Error>(Reply::new(StatusCode::CREATED, "ordered"))
        });
        ordered.await.map_err(failed)
    });
    assert_eq!(served.charge(KEY).await.says(), says(503, "store_unavailable"));
    assert_eq!((shop.orders().await.len(), shop.record(KEY).await), (0, None));
    assert_eq!(served.charge(KEY).await.says(), says(201, "executed"));
}

async fn a_panic_and_a_stop_leave_nothing_behind<D: Database>() {
    for how in ["panic", "stop"] {
        let shop = Shop::<D>::open().await;
        let inside = Arc::new(Notify::new());
        let served = shop.serve(single(), {
            let inside = inside.clone();
            move |shop: Shop<D>, operation: Operation| {
                let inside = inside.clone();
                async move {
                    let stuck = operation.transaction(&shop.pool, async |tx| {
                        D::order(tx, "tea").await?;
                        inside.notify_one();
                        match how {
                            "panic" => panic!("in the middle of it"),
                            _ => std::future::pending::<Result<Reply, sqlx::Error>>().await,
                        }
                    });
                    stuck.await.map_err(failed).into_response()
                }
            }
        });
        let first = served.spawn_charge(KEY);
        inside.notified().await;
        served.engine.drain(Duration::ZERO).await;
        assert_eq!(first.await.expect("answered").says(), says(503, "store_unavailable"), "{how}");
        assert_eq!((shop.orders().await.len(), shop.record(KEY).await), (0, None), "{how}");
        let next = shop.serve(single(), order_tea);
        assert_eq!(next.charge(KEY).await.says(), says(201, "executed"), "{how}");
    }
}

async fn an_expired_key_is_refused_or_runs_again_as_its_policy_says<D: Database>() {
    for (runs_again, told) in [(false, says(410, "key_expired")), (true, says(201, "executed"))] {
        let shop = Shop::<D>::open().await;
        let generations = Arc::new(Mutex::new(Vec::new()));
        let served = shop.serve(single().expired_runs_again(runs_again), {
            let generations = generations.clone();
            move |shop: Shop<D>, operation: Operation| {
                let generations = generations.clone();
                async move {
                    let ordered = order_tea(shop, operation.clone()).await;
                    generations.lock().expect("not poisoned").push(operation.generation());
                    ordered
                }
            }
        });
        served.charge(KEY).await;
        shop.clock.advance(Duration::from_secs(25 * 3600));
        assert_eq!(served.charge(KEY).await.says(), told);
        let expected: &[u32] = if runs_again { &[1, 2] } else { &[1] };
        assert_eq!(*generations.lock().expect("not poisoned"), expected);
    }
}

async fn what_is_rolled_back_in_a_new_generation_is_not_answered_by_the_one_before<D: Database>() {
    let shop = Shop::<D>::open().await;
    let policy = single().expired_runs_again(true);
    let served = shop.serve(policy, |shop: Shop<D>, operation: Operation| async move {
        if shop.runs() != 2 {
            return order_tea(shop, operation).await;
        }
        let mut tx = shop.begin().await;
        operation.reserve_in(&mut *tx).await.map_err(failed)?;
        let reply = Reply::new(StatusCode::CREATED, "ordered again");
        operation.complete_in(&mut *tx, reply.clone()).await.map_err(failed)?;
        drop(tx);
        Ok(reply)
    });
    assert_eq!(served.charge(KEY).await.says(), says(201, "executed"));
    shop.clock.advance(Duration::from_secs(25 * 3600));
    assert_eq!(served.charge(KEY).await.says(), says(503, "store_unavailable"));
    assert_eq!(shop.orders().await, ["tea"]);
    assert_eq!(served.charge(KEY).await.says(), says(201, "executed"));
    assert_eq!(shop.orders().await, ["tea", "tea"]);
}

async fn a_handler_that_has_not_reserved_yet_takes_its_place_among_the_active<D: Database>() {
    let shop = Shop::<D>::open().await;
    let (inside, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let mut served = shop.serve(single(), {
        let (inside, go_on) = (inside.clone(), go_on.clone());
        move |shop: Shop<D>, operation: Operation| {
            let (inside, go_on) = (inside.clone(), go_on.clone());
            async move {
                if shop.runs() == 1 {
                    inside.notify_one();
                    go_on.notified().await;
                }
                order_tea(shop, operation).await
            }
        }
    });
    let settings =
        Settings { limits: Limits { active: Some(1), ..Limits::OFF }, ..Settings::default() };
    let limited = served.engine.under(single().into(), settings);
    served.app = served.inner.clone().layer(Idempotency::from(Arc::new(limited)));
    let first = tokio::spawn({
        let served = served.clone();
        async move { served.charge(KEY).await }
    });
    inside.notified().await;
    let other = "order-0000000000000002";
    assert_eq!(served.charge(other).await.says(), says(429, "rate_limited"));
    go_on.notify_one();
    assert_eq!(first.await.expect("answered").says(), says(201, "executed"));
    // The place is given back by the task that answered, a moment later.
    let again = async {
        loop {
            let answer = served.charge(other).await;
            if answer.status != 429 {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    };
    let again = tokio::time::timeout(Duration::from_secs(20), again).await.expect("a free place");
    assert_eq!(again.says(), says(201, "executed"));
    assert_eq!((shop.orders().await.len(), shop.runs()), (2, 2));
}
