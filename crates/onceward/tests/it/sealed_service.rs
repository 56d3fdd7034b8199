//! Services on a sealed store: what clients get, and what is in the file.

use std::sync::Arc;

use http::StatusCode;
use onceward::{
    Effects, KeyRing, LookupKey, MemoryStore, Operation, PgOptions, PgStore, Policy, Reply,
    RingKey, SealedStore, Settings, Store, record::State,
};
use onceward_testbed::Postgres;
use sqlx::Sqlite;

use crate::{
    service::{Service, charge, keyed, says},
    shop::{Database as _, Shop, failed},
};

const KEY: &str = "order-0000000000000001";
const SECRET: &str = "a reply that nobody else may read";

fn seal(inner: Arc<dyn Store>) -> Arc<SealedStore> {
    let ring = KeyRing::new([RingKey::new("2026", [1; 32])]).expect("a ring");
    Arc::new(SealedStore::new(inner, ring))
}

/// Everything in the file and its log.
fn bytes_of(shop: &Shop) -> Vec<u8> {
    let log = shop.path().with_extension("db-wal");
    [std::fs::read(shop.path()).expect("a file"), std::fs::read(log).unwrap_or_default()].concat()
}

fn holds(bytes: &[u8], part: impl AsRef<[u8]>) -> bool {
    let part = part.as_ref();
    bytes.windows(part.len()).any(|window| window == part)
}

#[tokio::test]
async fn a_retry_gets_the_same_bytes_and_a_process_without_keys_replays_nothing() {
    let memory = Arc::new(MemoryStore::new());
    let on = |store: Arc<dyn Store>| {
        Service::on(move |_| store, Policy::required(), |_| async { (StatusCode::CREATED, SECRET) })
    };
    let service = on(seal(Arc::clone(&memory) as _));
    let first = service.charge(KEY).await;
    let retry = service.charge(KEY).await;
    assert_eq!((retry.says(), &retry.body), (says(201, "replayed"), &first.body));
    let without = on(memory);
    let refused = without.charge(KEY).await;
    assert_eq!((refused.says(), without.runs()), (says(503, "store_unavailable"), 0));
    assert_eq!(without.charge("order-0000000000000002").await.says(), says(201, "executed"));
}

#[tokio::test]
async fn a_retry_after_the_scope_was_erased_is_told_and_never_run() {
    let store = seal(Arc::new(MemoryStore::new()));
    let given = Arc::clone(&store);
    let service = Service::on(move |_| given, Policy::required(), |_| async { SECRET });
    assert_eq!(service.charge(KEY).await.says(), says(200, "executed"));
    let scope = onceward::Scope::of_credential(crate::service::ACME.as_bytes());
    store.drop_scope_keys(&scope, "asked for").await.expect("dropped");
    let retry = service.charge(KEY).await;
    assert_eq!(retry.says(), says(410, "reply_not_stored"));
    assert_eq!((&retry.json()["original_status"], service.runs()), (&200.into(), 1));
    assert_eq!(service.charge("order-0000000000000002").await.says(), says(200, "executed"));
    assert_eq!(service.charge("order-0000000000000002").await.says(), says(200, "replayed"));
}

fn local() -> Policy {
    Policy::required().effects(Effects::Local).expect("allowed")
}

async fn order_tea(shop: Shop, operation: Operation) -> Result<Reply, (StatusCode, String)> {
    let ordered = operation.transaction(&shop.pool, async |tx| {
        Sqlite::order(tx, "tea").await?;
        Ok::<_, sqlx::Error>(Reply::new(StatusCode::CREATED, SECRET))
    });
    ordered.await.map_err(failed)
}

#[tokio::test]
async fn a_reply_in_the_handlers_transaction_is_sealed() {
    for (policy, is_sealed) in [(local(), true), (local().single(), true), (local(), false)] {
        let shop = Shop::<Sqlite>::open().await;
        let store: Arc<dyn Store> = match is_sealed {
            true => seal(Arc::clone(&shop.store) as _),
            false => Arc::clone(&shop.store) as _,
        };
        let served = shop.serve_on(store, policy, order_tea);
        let first = served.charge(KEY).await;
        assert_eq!((first.says(), first.text()), (says(201, "executed"), SECRET));
        let retry = served.charge(KEY).await;
        assert_eq!((retry.says(), retry.text()), (says(201, "replayed"), SECRET));
        assert_eq!((shop.orders().await.len(), shop.runs()), (1, 1));
        assert_eq!(holds(&bytes_of(&shop), "nobody else"), !is_sealed);
    }
}

#[tokio::test]
async fn the_result_of_a_phase_is_sealed_and_found_by_the_next_attempt() {
    let shop = Shop::<Sqlite>::open().await;
    let policy = Policy::required().effects(Effects::Phased).expect("allowed");
    let store = seal(Arc::clone(&shop.store) as _);
    let served = shop.serve_on(store, policy, |shop: Shop, operation: Operation| async move {
        let booked: String = operation
            .phase(&shop.pool, "book", async |tx| {
                Sqlite::order(tx, "tea").await?;
                Ok::<_, sqlx::Error>(SECRET.to_owned())
            })
            .await
            .map_err(failed)?;
        if shop.runs() == 1 {
            return Err((StatusCode::INTERNAL_SERVER_ERROR, "cut off".to_owned()));
        }
        Ok((StatusCode::CREATED, booked))
    });
    assert_eq!(served.charge(KEY).await.status, 500);
    assert_eq!(shop.record(KEY).await.expect("a record").state, State::InProgress);
    let bytes = bytes_of(&shop);
    assert!(!holds(&bytes, "nobody else") && !holds(&bytes, r#"{"amount":100}"#));
    let second = served.charge(KEY).await;
    assert_eq!((second.says(), second.text()), (says(201, "executed"), SECRET));
    assert_eq!((shop.orders().await.len(), shop.runs()), (1, 2));
}

#[tokio::test]
async fn a_reply_in_a_transaction_on_postgresql_is_sealed() {
    let database = Postgres::shared().create_database();
    let store = PgStore::connect(PgOptions::new(database.url())).await.expect("a store");
    let store = seal(Arc::new(store));
    let pool = sqlx::PgPool::connect(&database.url()).await.expect("a pool");
    let service = Service::on(
        move |_| store,
        local(),
        move |run| {
            let pool = pool.clone();
            async move {
                let work = async |_: &mut sqlx::PgConnection| {
                    Ok::<_, sqlx::Error>(Reply::new(StatusCode::CREATED, SECRET))
                };
                run.operation().transaction(&pool, work).await.map_err(failed)
            }
        },
    );
    let first = service.charge(KEY).await;
    assert_eq!((first.says(), first.text()), (says(201, "executed"), SECRET));
    assert_eq!(service.charge(KEY).await.text(), SECRET);
    let kept = database.psql("SELECT encode(reply_body, 'escape') FROM onceward.records");
    assert!(kept.contains("onceward-sealed/1") && !kept.contains("nobody else"), "{kept}");
}

#[tokio::test]
async fn a_dropped_data_key_is_not_in_the_file_any_more() {
    let shop = Shop::<Sqlite>::open().await;
    let store = seal(Arc::clone(&shop.store) as _);
    let served = shop.serve_on(Arc::clone(&store) as _, local(), order_tea);
    served.charge(KEY).await;
    let scope = onceward::Scope::of_credential(crate::service::ACME.as_bytes());
    let keys = store.scope_keys(&scope, None).await.expect("data keys");
    let wrapped = keys[0].wrapped.clone().expect("it stands");
    assert!(holds(&bytes_of(&shop), &wrapped));
    assert_eq!(store.drop_scope_keys(&scope, "asked for").await.expect("dropped"), 1);
    assert!(!holds(&bytes_of(&shop), &wrapped));
    assert!(holds(&bytes_of(&shop), keys[0].id), "that it was there is not forgotten");
}

fn hashing() -> Settings {
    let lookup_key = Some(LookupKey::new(&[7; 32]).expect("a secret"));
    Settings { lookup_key, ..Settings::default() }
}

#[tokio::test]
async fn a_hashed_key_is_found_by_its_client_and_by_the_address_it_was_told() {
    let gate = Arc::new(tokio::sync::Notify::new());
    let held = Arc::clone(&gate);
    let service = Service::with_settings(
        |memory| memory,
        Policy::required(),
        hashing(),
        move |_| {
            let held = Arc::clone(&held);
            async move {
                held.notified().await;
                SECRET
            }
        },
    );
    let first = service.spawn_charge(KEY);
    while service.runs() == 0 {
        tokio::task::yield_now().await;
    }
    let in_flight = service.charge(KEY).await;
    assert_eq!(in_flight.says(), says(409, "key_in_progress"));
    assert!(service.record(KEY).await.is_none(), "no store knows the key itself");
    let ask = async |path: &str| {
        let parts = keyed(KEY).method("GET").uri(path).body(()).expect("a request").into_parts().0;
        let answer = service.engine.status(&parts).await;
        serde_json::from_slice::<serde_json::Value>(answer.body()).expect("JSON")["state"].clone()
    };
    assert_eq!(ask(in_flight.header("location")).await, "in_progress");
    assert_eq!(ask(&format!("/.onceward/operations/{KEY}")).await, "in_progress");
    assert_eq!(ask("/.onceward/operations/order-0000000000000002").await, serde_json::Value::Null);
    gate.notify_one();
    assert_eq!(first.await.expect("answered").says(), says(200, "executed"));
    assert_eq!(service.charge(KEY).await.says(), says(200, "replayed"));
}

#[tokio::test]
async fn another_lookup_key_or_none_finds_the_store_of_another_identity() {
    let memory = Arc::new(MemoryStore::new());
    let on = |settings| {
        let memory = Arc::clone(&memory);
        Service::with_settings(move |_| memory, Policy::required(), settings, |_| async { SECRET })
    };
    assert_eq!(on(hashing()).charge(KEY).await.says(), says(200, "executed"));
    assert_eq!(on(hashing()).send(charge(KEY)).await.says(), says(200, "replayed"));
    let other = Some(LookupKey::new(&[8; 32]).expect("a secret"));
    for settings in [Settings::default(), Settings { lookup_key: other, ..Settings::default() }] {
        let service = on(settings);
        assert_eq!(service.charge(KEY).await.says(), says(503, "store_unavailable"));
        assert_eq!(service.runs(), 0);
    }
}
