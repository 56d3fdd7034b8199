//! The answer to the COMMIT of a user's transaction is lost, or the COMMIT itself: what is true is found
//! out, and told.

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use onceward::{
    Effects, Operation, Policy, Reply, StepError, TransactionError,
    record::State,
    testing::{Fault, FaultyStore, StoreCall},
};
use onceward_testbed::CutProxy;

use crate::{
    service::says,
    shop::{Networked, Shop, failed, on_database},
};

macro_rules! on_each_server {
    ($($case:ident),+ $(,)?) => {
        on_database!(on_postgres, sqlx::Postgres, $($case,)+);
        on_database!(on_mariadb, sqlx::MySql, $($case,)+);
    };
}

on_each_server!(
    a_transaction_whose_commit_is_not_answered_is_known_to_have_committed,
    a_transaction_whose_commit_never_arrived_is_known_not_to_have_committed,
    a_phase_whose_commit_is_not_answered_is_not_made_again,
    a_phase_whose_commit_never_arrived_is_made_by_the_next_attempt,
    a_commit_about_which_nobody_can_be_asked_is_told_as_unknown_until_somebody_can,
);

const KEY: &str = "order-0000000000000001";

/// A shop whose own connections lead through a proxy; those of the store do not.
async fn behind_a_proxy<D: Networked>() -> (Shop<D>, CutProxy) {
    let proxy = CutProxy::start(D::address());
    let shop = Shop::<D>::open().await;
    (shop.behind(proxy.address()).await, proxy)
}

fn local() -> Policy {
    Policy::required().effects(Effects::Local).expect("allowed")
}

fn phased() -> Policy {
    Policy::required().effects(Effects::Phased).expect("allowed")
}

type Failed = (StatusCode, String);

async fn order_tea<D: Networked>(shop: Shop<D>, operation: Operation) -> Result<Reply, Failed> {
    let ordered = operation.transaction(&shop.pool, async |tx| {
        D::order(tx, "tea").await?;
        Ok::<_, sqlx::Error>(Reply::new(StatusCode::CREATED, "ordered"))
    });
    ordered.await.map_err(failed)
}

async fn a_transaction_whose_commit_is_not_answered_is_known_to_have_committed<D: Networked>() {
    for policy in [local(), Policy::required().single()] {
        let (shop, proxy) = behind_a_proxy::<D>().await;
        let served = shop.serve(policy, order_tea);
        proxy.cut_after(D::COMMIT, D::ANSWERED);
        let first = served.charge(KEY).await;
        assert_eq!((first.says(), first.text()), (says(201, "executed"), "ordered"));
        assert_eq!(proxy.sprung(), 1);
        assert_eq!(served.charge(KEY).await.says(), says(201, "replayed"));
        assert_eq!((shop.orders().await.len(), shop.runs()), (1, 1));
    }
}

async fn a_transaction_whose_commit_never_arrived_is_known_not_to_have_committed<D: Networked>() {
    for policy in [local(), Policy::required().single()] {
        let (shop, proxy) = behind_a_proxy::<D>().await;
        let served = shop.serve(policy, order_tea);
        proxy.cut_before(D::COMMIT);
        assert_eq!(served.charge(KEY).await.says(), says(500, "not_executed"));
        assert_eq!((proxy.sprung(), shop.orders().await.len()), (1, 0));
        assert_eq!(served.charge(KEY).await.says(), says(201, "executed"));
        assert_eq!((shop.orders().await.len(), shop.runs()), (1, 2));
    }
}

async fn order_in_a_phase<D: Networked>(
    shop: Shop<D>,
    operation: Operation,
) -> Result<(StatusCode, String), Failed> {
    let ordered = operation.phase(&shop.pool, "order", async |tx| {
        D::order(tx, "tea").await?;
        Ok::<u32, sqlx::Error>(7)
    });
    match ordered.await {
        Ok(number) => Ok((StatusCode::CREATED, format!("order {number}"))),
        Err(StepError::Store(error)) => Err((StatusCode::SERVICE_UNAVAILABLE, error.to_string())),
        Err(other) => panic!("{other:?}"),
    }
}

async fn a_phase_whose_commit_is_not_answered_is_not_made_again<D: Networked>() {
    let (shop, proxy) = behind_a_proxy::<D>().await;
    let served = shop.serve(phased(), order_in_a_phase);
    proxy.cut_after(D::COMMIT, D::ANSWERED);
    let first = served.charge(KEY).await;
    assert_eq!((first.says(), first.text()), (says(201, "executed"), "order 7"));
    assert_eq!((proxy.sprung(), shop.orders().await.len(), shop.runs()), (1, 1, 1));
}

async fn a_phase_whose_commit_never_arrived_is_made_by_the_next_attempt<D: Networked>() {
    let (shop, proxy) = behind_a_proxy::<D>().await;
    let served = shop.serve(phased(), order_in_a_phase);
    proxy.cut_before(D::COMMIT);
    assert_eq!(served.charge(KEY).await.says(), says(503, "not_executed"));
    assert_eq!((proxy.sprung(), shop.orders().await.len()), (1, 0));
    assert_eq!(served.charge(KEY).await.says(), says(201, "executed"));
    assert_eq!((shop.orders().await.len(), shop.runs()), (1, 2));
}

/// Nobody says that it failed, and nobody says that it did not.
async fn a_commit_about_which_nobody_can_be_asked_is_told_as_unknown_until_somebody_can<
    D: Networked,
>() {
    for was_committed in [true, false] {
        let (shop, proxy) = behind_a_proxy::<D>().await;
        let silent = FaultyStore::new(shop.store.clone(), |call, _| match call {
            StoreCall::Renew | StoreCall::Release => Fault::Corrupt,
            _ => Fault::None,
        });
        let handler = |shop: Shop<D>, operation: Operation| async move {
            let ordered = operation.transaction(&shop.pool, async |tx| {
                D::order(tx, "tea").await?;
                Ok::<_, sqlx::Error>(Reply::new(StatusCode::CREATED, "ordered"))
            });
            let lost = ordered.await.expect_err("nobody knows");
            assert!(matches!(lost, TransactionError::NotAcknowledged(_)), "{lost:?}");
            Err::<(), _>(failed(lost))
        };
        let cut_off = shop.serve_on(Arc::new(silent), local(), handler);
        match was_committed {
            true => proxy.cut_after(D::COMMIT, D::ANSWERED),
            false => proxy.cut_before(D::COMMIT),
        }
        assert_eq!(cut_off.charge(KEY).await.says(), says(409, "outcome_unknown"));
        assert_eq!(proxy.sprung(), 1);
        let record = shop.record(KEY).await.expect("a record");
        let state = if was_committed { State::Completed } else { State::InProgress };
        assert_eq!(record.state, state);
        // Another process, once the lease is over.
        shop.clock.pause_process(Duration::from_secs(61));
        let next = shop.serve(local(), order_tea);
        let word = if was_committed { "replayed" } else { "executed" };
        assert_eq!(next.charge(KEY).await.says(), says(201, word), "{was_committed}");
        assert_eq!(shop.orders().await, ["tea"]);
    }
}
