//! A handler that completes in its own `TransactWriteItems`: its items and its reply, or neither.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use aws_sdk_dynamodb::{
    Client,
    types::{
        AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, Put,
        ScalarAttributeType, TransactWriteItem,
    },
};
use axum::{Router, extract::State as Shared};
use http::StatusCode;
use onceward::{
    DynamoStore, Effects, Idempotency, ItemsError, KeyRing, Operation, Policy, Reply, RingKey,
    SealedStore, Settings, Store, store::StoreErrorKind,
};
use onceward_testbed::{CutProxy, DynamoDb};
use tower::ServiceExt as _;

use crate::{
    dynamodb_home::{Between, client_at, items, new_table, store_at},
    service::{Answer, charge, says},
};

const KEY: &str = "order-0000000000000001";

/// A service with a table of its own beside that of the store.
#[derive(Clone)]
struct Orders {
    client: Client,
    table: String,
    runs: Arc<AtomicU32>,
    /// What the handler is to do besides, and what came of its transaction.
    stolen: bool,
    only_if: Option<&'static str>,
    store: Arc<DynamoStore>,
    failed: Arc<Mutex<Option<ItemsError>>>,
}

impl Orders {
    async fn open(endpoint: &str) -> Orders {
        let store = store_at(&DynamoDb::shared().endpoint(), &new_table()).await;
        let (client, table) = (client_at(endpoint), new_table());
        let id = AttributeDefinition::builder()
            .attribute_name("id")
            .attribute_type(ScalarAttributeType::S)
            .build();
        let key = KeySchemaElement::builder().attribute_name("id").key_type(KeyType::Hash).build();
        let made = client_at(&DynamoDb::shared().endpoint())
            .create_table()
            .table_name(&table)
            .attribute_definitions(id.expect("a name"))
            .key_schema(key.expect("a name"))
            .billing_mode(BillingMode::PayPerRequest)
            .send();
        made.await.expect("a table");
        let store = Arc::new(store);
        Orders {
            client,
            table,
            runs: Arc::default(),
            stolen: false,
            only_if: None,
            store,
            failed: Arc::default(),
        }
    }

    fn serve_on(&self, store: Arc<dyn Store>) -> Router {
        let local = Policy::required().effects(Effects::Local).expect("allowed");
        let layer = Idempotency::new(store, local);
        Router::new().fallback(order).with_state(self.clone()).layer(layer)
    }

    fn serve(&self) -> Router {
        self.serve_on(Arc::clone(&self.store) as _)
    }

    /// Whose store has no more time than this.
    fn serve_for(&self, store_deadline: Duration) -> Router {
        let local = Policy::required().effects(Effects::Local).expect("allowed");
        let settings = Settings { store_deadline, ..Settings::default() };
        let layer = Idempotency::with_settings(Arc::clone(&self.store) as _, local, settings);
        Router::new().fallback(order).with_state(self.clone()).layer(layer)
    }

    /// How many orders were written.
    async fn written(&self) -> usize {
        let client = client_at(&DynamoDb::shared().endpoint());
        let all = client.scan().table_name(&self.table).consistent_read(true).send();
        all.await.expect("a scan").items().len()
    }

    fn put(&self) -> TransactWriteItem {
        let number = self.runs.load(SeqCst);
        let put = Put::builder()
            .table_name(&self.table)
            .item("id", AttributeValue::S(format!("order-{number}")))
            .set_condition_expression(self.only_if.map(str::to_owned))
            .build();
        TransactWriteItem::builder().put(put.expect("a table and an item")).build()
    }
}

async fn order(Shared(orders): Shared<Orders>, operation: Operation) -> Result<Reply, StatusCode> {
    orders.runs.fetch_add(1, SeqCst);
    if orders.stolen {
        steal(&orders, &operation).await;
    }
    let reply = Reply::new(StatusCode::CREATED, "ordered");
    let ordered = operation.transact(&orders.client, vec![orders.put()], reply).await;
    ordered.map_err(|error| {
        *orders.failed.lock().expect("not poisoned") = Some(error);
        StatusCode::INTERNAL_SERVER_ERROR
    })
}

/// An operator decides about the record while the handler runs.
async fn steal(orders: &Orders, operation: &Operation) {
    use onceward::{
        record::Lease,
        store::{Write, Written},
    };
    let record = orders.store.load(operation.id()).await.expect("load answers").expect("a record");
    let lease = Lease {
        id: record.id,
        attempt: record.attempt,
        fence: record.fence,
        generation: record.generation,
        attempt_number: 1,
        until: record.lease_until,
    };
    let written = orders.store.write(&lease, Write::MarkUnknown("test".into())).await;
    assert_eq!(written.expect("write answers"), Written::Applied);
}

async fn send(app: &Router) -> Answer {
    Answer::read(app.clone().oneshot(charge(KEY)).await.expect("infallible")).await
}

#[tokio::test]
async fn items_and_reply_are_written_together_and_a_retry_gets_the_reply() {
    let orders = Orders::open(&DynamoDb::shared().endpoint()).await;
    let app = orders.serve();
    let first = send(&app).await;
    assert_eq!((first.says(), first.text()), (says(201, "executed"), "ordered"));
    let again = send(&app).await;
    assert_eq!((again.says(), again.text()), (says(201, "replayed"), "ordered"));
    assert_eq!((orders.written().await, orders.runs.load(SeqCst)), (1, 1));
}

#[tokio::test]
async fn a_condition_of_the_users_that_fails_leaves_neither_items_nor_reply() {
    let failing = Orders {
        only_if: Some("attribute_exists(id)"),
        ..Orders::open(&DynamoDb::shared().endpoint()).await
    };
    let refused = send(&failing.serve()).await;
    assert_eq!(refused.says(), says(500, "not_executed"));
    let why = failing.failed.lock().expect("not poisoned").take();
    assert!(matches!(why, Some(ItemsError::Refused(_))), "{why:?}");
    assert_eq!(failing.written().await, 0);
    // The same key runs again, and this time it works.
    let working = Orders { only_if: None, ..failing };
    assert_eq!(send(&working.serve()).await.says(), says(201, "executed"));
    assert_eq!((working.written().await, working.runs.load(SeqCst)), (1, 2));
}

#[tokio::test]
async fn an_attempt_that_lost_its_record_writes_no_items() {
    let orders = Orders { stolen: true, ..Orders::open(&DynamoDb::shared().endpoint()).await };
    let refused = send(&orders.serve()).await;
    assert_ne!(refused.status, 201, "{refused:?}");
    let why = orders.failed.lock().expect("not poisoned").take();
    assert!(matches!(why, Some(ItemsError::LeaseLost)), "{why:?}");
    assert_eq!(orders.written().await, 0);
}

#[tokio::test]
async fn a_transaction_whose_answer_is_lost_is_committed_once() {
    let proxy = CutProxy::start(DynamoDb::shared().address());
    let orders = Orders::open(&format!("http://{}", proxy.address())).await;
    proxy.cut_after(b"ClientRequestToken", b"");
    let first = send(&orders.serve()).await;
    assert_eq!((first.says(), proxy.sprung()), (says(201, "executed"), 1));
    assert_eq!((orders.written().await, orders.runs.load(SeqCst)), (1, 1));
}

#[tokio::test]
async fn a_transaction_that_is_throttled_or_meets_another_is_committed_when_that_is_over() {
    let between = Between::start(DynamoDb::shared().address(), "unused").await;
    for reasons in [&["None", "ThrottlingError"], &["TransactionConflict", "None"]] {
        let orders = Orders::open(&between.endpoint()).await;
        let app = orders.serve();
        let before = between.calls.load(SeqCst);
        between.cancel(3, reasons);
        assert_eq!(send(&app).await.says(), says(201, "executed"), "{reasons:?}");
        assert_eq!(between.calls.load(SeqCst) - before, 4, "three were cancelled: {reasons:?}");
        assert_eq!(send(&app).await.says(), says(201, "replayed"), "{reasons:?}");
        assert_eq!((orders.written().await, orders.runs.load(SeqCst)), (1, 1), "{reasons:?}");
    }
}

#[tokio::test]
async fn a_transaction_that_is_throttled_for_too_long_is_told_as_back_pressure() {
    let between = Between::start(DynamoDb::shared().address(), "unused").await;
    let orders = Orders::open(&between.endpoint()).await;
    between.cancel(u32::MAX, &["None", "ThrottlingError"]);
    let app = orders.serve_for(Duration::from_millis(300));
    assert_eq!(send(&app).await.says(), says(500, "not_executed"));
    let why = orders.failed.lock().expect("not poisoned").take();
    let Some(ItemsError::Store(error)) = why else { panic!("{why:?}") };
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "nothing was written");
    assert_eq!(orders.written().await, 0);
    // The same key runs again when there is room.
    between.cancel(0, &[]);
    assert_eq!(send(&app).await.says(), says(201, "executed"));
    assert_eq!((orders.written().await, orders.runs.load(SeqCst)), (1, 2));
}

#[tokio::test]
async fn a_sealed_reply_is_written_with_the_items_too() {
    let orders = Orders::open(&DynamoDb::shared().endpoint()).await;
    let ring = KeyRing::new([RingKey::new("2026", [1; 32])]).expect("a ring");
    let sealed = SealedStore::new(Arc::clone(&orders.store) as _, ring);
    let app = orders.serve_on(Arc::new(sealed));
    assert_eq!(send(&app).await.text(), "ordered");
    let again = send(&app).await;
    assert_eq!((again.says(), again.text()), (says(201, "replayed"), "ordered"));
    let client = client_at(&DynamoDb::shared().endpoint());
    let stored = items(&client, orders.store.table()).await;
    let bodies = stored.iter().filter_map(|item| item.get("reply_body")?.as_b().ok());
    let mut bodies = bodies.map(|body| String::from_utf8_lossy(body.as_ref()).into_owned());
    assert!(bodies.all(|body| !body.contains("ordered")), "what is stored is sealed");
    assert_eq!(orders.written().await, 1);
}
