//! Steps of a phased operation that a Redis server has lost are not made again.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use http::StatusCode;
use onceward::{
    Effect, EffectError, Effects, Policy, RedisStore, Store as _,
    store::{Advance, Advanced, StoreErrorKind},
    testing::samples::phased,
};
use onceward_testbed::Redis;

use crate::{
    redis_home::{grant, store_at},
    service::{Service, says},
};

const KEY: &str = "order-0000000000000001";

async fn start() -> Redis {
    tokio::task::spawn_blocking(Redis::start).await.expect("a server")
}

/// Pays, and has no goods at the first time.
fn shop(store: &Arc<RedisStore>, paid: &Arc<AtomicU32>) -> Service {
    let (store, paid) = (Arc::clone(store), Arc::clone(paid));
    let policy = Policy::required().effects(Effects::Phased).expect("allowed");
    Service::on(
        |_| store,
        policy,
        move |run| {
            let paid = Arc::clone(&paid);
            async move {
                let pay = async |_| {
                    paid.fetch_add(1, Ordering::SeqCst);
                    Ok::<_, EffectError<&str>>(7)
                };
                let operation = run.operation();
                operation.effect(Effect::idempotent("pay"), pay).await.expect("paid");
                match run.number {
                    1 => (StatusCode::SERVICE_UNAVAILABLE, "no tea"),
                    _ => (StatusCode::CREATED, "tea"),
                }
            }
        },
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_whose_steps_are_gone_is_not_gone_on_with() {
    let redis = start().await;
    let store = Arc::new(store_at(redis.url()).await);
    let paid = Arc::default();
    let shop = shop(&store, &paid);
    assert_eq!(shop.charge(KEY).await.status, 503);
    let beside = redis.cli(&["KEYS", "{home_*}b:*"]);
    assert_eq!(redis.cli(&["DEL", &beside]), "1", "{beside}");
    assert_eq!(shop.charge(KEY).await.says(), says(503, "store_unavailable"));
    assert_eq!((shop.runs(), paid.load(Ordering::SeqCst)), (1, 1));
}

/// The twin.
#[tokio::test(flavor = "multi_thread")]
async fn an_operation_whose_steps_are_there_is_gone_on_with_behind_them() {
    let redis = start().await;
    let store = Arc::new(store_at(redis.url()).await);
    let paid = Arc::default();
    let shop = shop(&store, &paid);
    assert_eq!(shop.charge(KEY).await.status, 503);
    assert_eq!(shop.charge(KEY).await.says(), says(201, "executed"));
    assert_eq!((shop.runs(), paid.load(Ordering::SeqCst)), (2, 1));
}

/// Else the list would look whole again, and the next attempt would make the step that is missing.
#[tokio::test(flavor = "multi_thread")]
async fn no_step_is_saved_behind_one_that_is_gone() {
    let redis = start().await;
    let store = store_at(redis.url()).await;
    let save = |name: &str| Advance::Save { name: name.into(), result: "1".into() };
    let lease = grant(&store, &phased("gone-steps-0001")).await;
    for name in ["order", "book"] {
        let saved = store.advance(&lease, save(name)).await.expect("an answer");
        assert_eq!(saved, Advanced::Applied, "{name}");
    }
    let beside = redis.cli(&["KEYS", "{home_*}b:*"]);
    assert_eq!(redis.cli(&["DEL", &beside]), "1", "{beside}");
    let intend = Advance::Intend { name: "pay".into(), idempotent: true };
    for advance in [save("ship"), intend] {
        let refused = store.advance(&lease, advance).await.expect_err("steps are gone");
        assert_eq!(refused.kind(), StoreErrorKind::Corrupt);
    }
}
