//! A handler that stages messages in its own transaction: its rows and its messages, or neither.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use http::StatusCode;
use onceward::{
    Effects, MemoryStore, Message, Operation, OutboxStore as _, Policy, Reply, Store,
    TransactionError,
    outbox::{MessageState, StoredMessage},
    phase::Misuse,
};

use crate::{
    service::says,
    shop::{Database, Shop, acme, failed, on_each_database},
};

on_each_database!(
    a_message_commits_with_the_rows_and_the_reply,
    a_message_of_a_transaction_that_is_rolled_back_never_was,
    an_attempt_that_does_its_transaction_again_stages_its_message_once,
    a_phase_stages_its_message_once_however_often_the_operation_is_resumed,
    an_attempt_that_was_replaced_cannot_stage_and_its_rows_roll_back,
    what_cannot_be_staged_is_a_misuse_and_not_a_surprise_later,
    an_operation_that_reserves_in_its_own_transaction_stages_there_too,
);

const KEY: &str = "order-0000000000000001";

fn local() -> Policy {
    Policy::required().effects(Effects::Local).expect("allowed")
}

fn phased() -> Policy {
    Policy::required().effects(Effects::Phased).expect("allowed")
}

fn receipt() -> Message {
    Message::new("receipt", "mail", "your tea").aggregate("customer-7")
}

fn created() -> Reply {
    Reply::new(StatusCode::CREATED, "ordered")
}

async fn staged<D: Database>(shop: &Shop<D>) -> Vec<StoredMessage> {
    shop.store.list(MessageState::Ready, None, 100).await.expect("an answer")
}

type Failed = (StatusCode, String);

async fn a_message_commits_with_the_rows_and_the_reply<D: Database>() {
    let shop = Shop::<D>::open().await;
    let keys = Arc::new(std::sync::Mutex::new(String::new()));
    let told = Arc::clone(&keys);
    let served = shop.serve(local(), move |shop: Shop<D>, operation: Operation| {
        let told = Arc::clone(&told);
        async move {
            *told.lock().expect("not poisoned") = operation.derived_key("receipt");
            let ordered = operation.transaction(&shop.pool, async |tx| {
                D::order(tx, "tea").await.map_err(failed)?;
                operation.stage(tx, receipt()).await.map_err(failed)?;
                Ok::<_, Failed>(created())
            });
            ordered.await.map_err(failed)
        }
    });
    assert_eq!(served.charge(KEY).await.says(), says(201, "executed"));
    assert_eq!(served.charge(KEY).await.says(), says(201, "replayed"));
    let messages = staged(&shop).await;
    assert_eq!((messages.len(), shop.orders().await.len()), (1, 1));
    assert_eq!((&messages[0].message, &messages[0].operation), (&receipt(), &acme(KEY)));
    assert_eq!(*messages[0].derived_key, *keys.lock().expect("not poisoned"));
}

async fn a_message_of_a_transaction_that_is_rolled_back_never_was<D: Database>() {
    let shop = Shop::<D>::open().await;
    let served = shop.serve(local(), |shop: Shop<D>, operation: Operation| async move {
        let first = shop.runs() == 1;
        let ordered = operation.transaction(&shop.pool, async |tx| {
            D::order(tx, "tea").await.map_err(failed)?;
            operation.stage(tx, receipt()).await.map_err(failed)?;
            match first {
                true => Err((StatusCode::INTERNAL_SERVER_ERROR, "out of tea".to_owned())),
                false => Ok(created()),
            }
        });
        ordered.await.map_err(failed)
    });
    assert_eq!(served.charge(KEY).await.says(), says(500, "not_executed"));
    assert_eq!((staged(&shop).await.len(), shop.orders().await.len()), (0, 0));
    assert_eq!(served.charge(KEY).await.says(), says(201, "executed"));
    assert_eq!((staged(&shop).await.len(), shop.orders().await.len()), (1, 1));
}

async fn an_attempt_that_does_its_transaction_again_stages_its_message_once<D: Database>() {
    let shop = Shop::<D>::open().await;
    // Nothing is declared: a 500 runs again, though the first transaction was committed.
    let served = shop.serve(Policy::required(), |shop: Shop<D>, operation: Operation| async move {
        let mut tx = shop.begin().await;
        D::order(&mut tx, "tea").await.map_err(failed)?;
        operation.stage(&mut *tx, receipt()).await.map_err(failed)?;
        tx.commit().await.map_err(failed)?;
        match shop.runs() {
            1 => Err((StatusCode::INTERNAL_SERVER_ERROR, "later".to_owned())),
            _ => Ok::<_, Failed>("ordered"),
        }
    });
    assert_eq!(served.charge(KEY).await.status, 500);
    assert_eq!(served.charge(KEY).await.says(), says(200, "executed"));
    assert_eq!((shop.runs(), shop.orders().await.len()), (2, 2));
    assert_eq!(staged(&shop).await.len(), 1, "one name, one message");
}

async fn a_phase_stages_its_message_once_however_often_the_operation_is_resumed<D: Database>() {
    let shop = Shop::<D>::open().await;
    let attempts = Arc::new(AtomicU32::new(0));
    let served = shop.serve(phased(), move |shop: Shop<D>, operation: Operation| {
        let attempts = Arc::clone(&attempts);
        async move {
            let ordered = operation.phase(&shop.pool, "order", async |tx| {
                D::order(tx, "tea").await.map_err(failed)?;
                operation.stage(tx, receipt()).await.map_err(failed)
            });
            ordered.await.map_err(failed)?;
            match attempts.fetch_add(1, Ordering::SeqCst) {
                0 => Err((StatusCode::INTERNAL_SERVER_ERROR, "later".to_owned())),
                _ => Ok::<_, Failed>((StatusCode::CREATED, "ordered")),
            }
        }
    });
    assert_ne!(served.charge(KEY).await.status, 201);
    assert_eq!(staged(&shop).await.len(), 1, "committed with its phase");
    assert_eq!(served.charge(KEY).await.says(), says(201, "executed"));
    assert_eq!((staged(&shop).await.len(), shop.orders().await.len()), (1, 1));
}

async fn an_attempt_that_was_replaced_cannot_stage_and_its_rows_roll_back<D: Database>() {
    let shop = Shop::<D>::open().await;
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let served = shop.serve(phased(), move |shop: Shop<D>, operation: Operation| {
        let told = told.clone();
        async move {
            let mut tx = shop.begin().await;
            D::order(&mut tx, "tea").await.map_err(failed)?;
            // Somebody else has got the record since.
            D::run(&mut tx, D::NEXT_FENCE).await.map_err(failed)?;
            let staged = operation.stage(&mut *tx, receipt()).await;
            let lost = matches!(staged, Err(TransactionError::LeaseLost));
            told.send((lost, operation.may_act())).expect("heard");
            staged.map_err(failed)
        }
    });
    served.charge(KEY).await;
    assert_eq!(heard.recv().await, Some((true, false)), "it is told, and does nothing more");
    assert_eq!((staged(&shop).await.len(), shop.orders().await.len()), (0, 0));
}

async fn what_cannot_be_staged_is_a_misuse_and_not_a_surprise_later<D: Database>() {
    let shop = Shop::<D>::open().await;
    let elsewhere = shop.elsewhere();
    let elsewhere_pool = D::pool(&elsewhere).await;
    let served = shop.serve(local(), move |shop: Shop<D>, operation: Operation| {
        let elsewhere = elsewhere_pool.clone();
        async move {
            let misuse = |error: TransactionError| match error {
                TransactionError::Misuse(misuse) => misuse,
                other => panic!("no misuse: {other:?}"),
            };
            let mut other = elsewhere.begin().await.map_err(failed)?;
            let refused = operation.stage(&mut *other, receipt()).await.expect_err("refused");
            assert_eq!(misuse(refused), Misuse::OtherDatabase);
            let mut alone = shop.pool.acquire().await.map_err(failed)?;
            let refused = operation.stage(&mut *alone, receipt()).await.expect_err("refused");
            assert_eq!(misuse(refused), Misuse::NotInTransaction);
            let mut tx = shop.begin().await;
            let nameless = Message::new("", "mail", "x");
            let refused = operation.stage(&mut *tx, nameless).await.expect_err("refused");
            assert!(matches!(misuse(refused), Misuse::NotStaged(_)));
            operation.stage(&mut *tx, receipt()).await.expect("staged");
            operation.complete_in(&mut *tx, created()).await.map_err(failed)?;
            let late = Message::new("late", "mail", "x");
            let refused = operation.stage(&mut *tx, late).await.expect_err("refused");
            assert!(matches!(misuse(refused), Misuse::NotStaged(_)), "after the reply");
            tx.commit().await.map_err(failed)?;
            Ok::<_, Failed>(created())
        }
    });
    let first = served.charge(KEY).await;
    assert_eq!(first.says(), says(201, "executed"), "{}", first.text());
    assert_eq!(staged(&shop).await.len(), 1);
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let served = shop.serve_on(memory, Policy::required(), |shop: Shop<D>, operation| async move {
        let mut tx = shop.pool.begin().await.expect("begun");
        let refused = operation.stage(&mut *tx, receipt()).await.expect_err("refused");
        let none: TransactionError = TransactionError::Misuse(Misuse::NoTransactions);
        assert_eq!(format!("{refused:?}"), format!("{none:?}"));
        "fine"
    });
    assert_eq!(served.charge(KEY).await.text(), "fine");
}

async fn an_operation_that_reserves_in_its_own_transaction_stages_there_too<D: Database>() {
    let shop = Shop::<D>::open().await;
    let served = shop.serve(local().single(), |shop: Shop<D>, operation: Operation| async move {
        let mut tx = shop.begin().await;
        // First of all: it reserves.
        operation.stage(&mut *tx, receipt()).await.map_err(failed)?;
        D::order(&mut tx, "tea").await.map_err(failed)?;
        operation.complete_in(&mut *tx, created()).await.map_err(failed)?;
        tx.commit().await.map_err(failed)?;
        Ok::<_, Failed>(created())
    });
    let first = served.charge(KEY).await;
    assert_eq!(first.says(), says(201, "executed"), "{}", first.text());
    assert_eq!(served.charge(KEY).await.says(), says(201, "replayed"));
    assert_eq!((staged(&shop).await.len(), shop.orders().await.len()), (1, 1));
}
