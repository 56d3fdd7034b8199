//! A Redis store of its own for each test.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use onceward::{
    Canary, Policy, RedisOptions, RedisStore, Settings, Store,
    record::{Lease, Record},
    store::{Ask, Reservation},
};

use crate::service::Service;

/// How long anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Under a prefix of its own.
pub(crate) async fn store_at(url: String) -> RedisStore {
    RedisStore::connect(options(url)).await.expect("a store")
}

pub(crate) fn options(url: String) -> RedisOptions {
    let prefix = format!("home_{:016x}", rand::random::<u64>());
    RedisOptions::best_effort(url).prefix(prefix).buckets(16)
}

/// A service on a store, as a process of its own.
pub(crate) fn node(store: &Arc<RedisStore>) -> (Service, Arc<Canary>) {
    node_with(store, Canary::new(Arc::clone(store) as Arc<dyn Store>))
}

/// The same with this canary.
pub(crate) fn node_with(store: &Arc<RedisStore>, canary: Canary) -> (Service, Arc<Canary>) {
    let canary = Arc::new(canary);
    let settings = Settings {
        canary: Some(Arc::clone(&canary)),
        store_deadline: Duration::from_secs(20),
        ..Settings::default()
    };
    let given = Arc::clone(store);
    let work = |_| async { "charged" };
    (Service::with_settings(|_| given, Policy::required(), settings, work), canary)
}

/// Reserves what must be free.
pub(crate) async fn grant(store: &RedisStore, ask: &Ask) -> Lease {
    match store.reserve(ask.clone()).await.expect("reserve answers") {
        Reservation::Granted { lease, .. } => lease,
        other => panic!("expected a grant, found {other:?}"),
    }
}

pub(crate) async fn load(store: &RedisStore, ask: &Ask) -> Record {
    store.load(&ask.id).await.expect("load answers").expect("a record")
}

/// Calls until the store answers.
pub(crate) async fn insist<A, F>(mut call: impl FnMut() -> F) -> A
where
    F: Future<Output = Result<A, onceward::store::StoreError>>,
{
    let begun = Instant::now();
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(error) => assert!(begun.elapsed() < PATIENCE, "{error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
