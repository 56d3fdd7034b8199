//! Workers on a table with an item that cannot be read, or by a clock that is off.

use std::{sync::Arc, sync::atomic::Ordering::SeqCst, time::Duration};

use aws_sdk_dynamodb::{
    primitives::Blob,
    types::{
        AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType,
        ScalarAttributeType,
    },
};
use onceward::{
    CachedStore, DynamoStore, Effects, Store as _,
    clock::{Clock as _, ManualClock, SystemClock},
    record::ProviderId,
    store::{Ask, DynamoOpenError, Noted, Reaped, StoreErrorKind, Which, Write},
    testing::samples::{ask, claim, queued, reply, retry},
};
use onceward_testbed::{DynamoDb, Redis};

use crate::dynamodb_home::{Between, client_at, grant, items, new_table, options_at, store_at};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A store on a clock of its own, and where its table is.
async fn timed() -> (DynamoStore, ManualClock, String) {
    let (clock, table) = (ManualClock::new(SystemClock.now()), new_table());
    let options = options_at(&DynamoDb::shared().endpoint(), &table);
    let store = DynamoStore::open(options.clock(Arc::new(clock.clone()))).await.expect("a store");
    (store, clock, table)
}

/// Damages every item of this record whose sort key begins so.
async fn damage(table: &str, key: &str, sort: &str, attribute: &str, with: AttributeValue) {
    let client = client_at(&DynamoDb::shared().endpoint());
    let mut damaged = 0;
    for item in items(&client, table).await {
        let text = |name: &str| item[name].as_s().expect("text").clone();
        if text("pk").ends_with(key) && text("sk").starts_with(sort) {
            let update = client
                .update_item()
                .table_name(table)
                .key("pk", item["pk"].clone())
                .key("sk", item["sk"].clone())
                .update_expression("SET #a = :a")
                .expression_attribute_names("#a", attribute)
                .expression_attribute_values(":a", with.clone());
            update.send().await.expect("changed");
            damaged += 1;
        }
    }
    assert!(damaged > 0, "there is none");
}

#[tokio::test]
async fn a_damaged_request_does_not_stand_in_the_way_of_the_others() {
    let (store, clock, table) = timed().await;
    for number in 0..4 {
        let accepted = Ask { queued_for: DAY, ..queued(&format!("order-{number}")) };
        let _ = store.reserve(accepted).await.expect("an answer");
        clock.advance(Duration::from_millis(1));
    }
    for key in ["order-0", "order-1"] {
        let nonsense = AttributeValue::B(Blob::new("nonsense"));
        damage(&table, key, "request#", "contents", nonsense).await;
    }
    for limit in [1, 2, 10] {
        let waiting = store.resumable(Which::All, limit).await.expect("an answer");
        let keys: Vec<_> = waiting.iter().map(|one| one.record.id.key.as_str()).collect();
        let expected = ["order-2", "order-3"];
        assert_eq!(keys, expected[..expected.len().min(limit as usize)], "at most {limit}");
        assert!(waiting.iter().all(|one| one.request.is_some()));
    }
}

#[tokio::test]
async fn a_damaged_note_does_not_keep_records_from_being_reaped() {
    let (store, clock, table) = timed().await;
    for key in ["damaged-0001", "sound-0001"] {
        let lease = grant(&store, &ask(key)).await;
        let id = ProviderId::new("bank", key).expect("an id");
        assert_eq!(store.note_provider_id(&lease, id).await.expect("an answer"), Noted::Applied);
        let _ = store.write(&lease, Write::Complete(reply("done"))).await.expect("an answer");
    }
    damage(&table, "damaged-0001", "note#", "life", AttributeValue::S("long".to_owned())).await;
    clock.advance(ask("any").retention);
    assert_eq!(store.reap(10).await.expect("an answer"), Reaped { expired: 2, purged: 0 });
    clock.advance(ask("any").tombstone + DAY);
    assert_eq!(store.reap(10).await.expect("an answer"), Reaped { expired: 0, purged: 2 });
    let gone = ProviderId::new("bank", "sound-0001").expect("an id");
    assert_eq!(store.by_provider_id(&gone).await.expect("an answer"), None);
}

/// Nothing was asked before that could have told.
#[tokio::test]
async fn a_clock_decides_nothing_by_the_very_answer_that_shows_it_to_be_off() {
    let between = Between::start(DynamoDb::shared().address(), "unused").await;
    let clock = ManualClock::new(SystemClock.now());
    let options = options_at(&between.endpoint(), &new_table()).clock(Arc::new(clock.clone()));
    let store = DynamoStore::open(options).await.expect("a store");
    let running = Ask { effects: Effects::None, ..ask("running-0001") };
    let accepted = Ask { queued_for: DAY, ..queued("accepted-0001") };
    let _lease = grant(&store, &running).await;
    let _ = store.reserve(accepted.clone()).await.expect("an answer");
    clock.advance(running.lease);
    let unknown_skew = async || {
        between.ahead.store(0, SeqCst);
        store.ping().await.expect("a ping answers");
        between.ahead.store(-60, SeqCst);
    };
    unknown_skew().await;
    let refused = store.reserve(retry(&running)).await.expect_err("refused");
    assert_eq!(refused.kind(), StoreErrorKind::Unavailable);
    unknown_skew().await;
    store.claim(claim(&accepted)).await.expect_err("refused");
    unknown_skew().await;
    store.sweep(10).await.expect_err("refused");
    between.ahead.store(0, SeqCst);
    store.ping().await.expect("a ping answers");
    assert_eq!(store.sweep(10).await.expect("an answer").len(), 1, "by a clock that is right");
}

#[tokio::test]
async fn a_table_without_its_indexes_is_refused() {
    let endpoint = DynamoDb::shared().endpoint();
    let (client, table) = (client_at(&endpoint), new_table());
    let create = client.create_table().table_name(&table).billing_mode(BillingMode::PayPerRequest);
    let create = [("pk", KeyType::Hash), ("sk", KeyType::Range)].into_iter().fold(
        create,
        |create, (name, kind)| {
            let text = AttributeDefinition::builder()
                .attribute_name(name)
                .attribute_type(ScalarAttributeType::S)
                .build();
            let part = KeySchemaElement::builder().attribute_name(name).key_type(kind).build();
            create
                .attribute_definitions(text.expect("a name and a type"))
                .key_schema(part.expect("a name and a type"))
        },
    );
    create.send().await.expect("a table");
    // Also by whoever comes when its version is written down.
    for _ in 0..2 {
        let refused = DynamoStore::open(options_at(&endpoint, &table)).await;
        assert!(
            matches!(&refused, Err(DynamoOpenError::NoIndex { index: "by_due", .. })),
            "{refused:?}"
        );
    }
}

#[tokio::test]
async fn what_is_asked_for_twice_is_told_of() {
    let store = store_at(&DynamoDb::shared().endpoint(), &new_table()).await;
    let (running, done) = (ask("running-0001"), ask("done-0001"));
    let _lease = grant(&store, &running).await;
    let lease = grant(&store, &done).await;
    let _ = store.write(&lease, Write::Complete(reply("done"))).await.expect("an answer");
    let ids = vec![running.id.clone(), done.id.clone(), running.id.clone(), done.id.clone()];
    let settled = store.settled(ids).await.expect("an answer");
    assert_eq!(settled, [done.id.clone(), done.id]);
}

#[tokio::test]
async fn a_cache_keeps_no_larger_replies_than_its_store() {
    let store = Arc::new(store_at(&DynamoDb::shared().endpoint(), &new_table()).await);
    let cap = store.reply_cap();
    let cached = CachedStore::new(store, &Redis::shared().url()).await.expect("a store");
    assert_eq!(cached.reply_cap(), cap);
}
