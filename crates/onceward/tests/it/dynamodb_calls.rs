//! What the DynamoDB store asks of its service: one call for what every request needs, and the same again
//! where a transaction met another one or was throttled.

use std::sync::atomic::Ordering::SeqCst;

use onceward::{
    Store as _,
    record::{AttemptId, Lease},
    store::{Advanced, Reservation, StoreErrorKind, Write, Written},
    testing::samples::{LEASE, ask, phased, reply, retry, save},
};
use onceward_testbed::{CutProxy, DynamoDb};

use crate::{
    dynamodb_bugs::NO_OLD_ITEM,
    dynamodb_home::{Between, grant, new_table, store_at},
    postgres_home::copy,
};

/// Each condition that does not hold is answered with what is there: nobody has to read it.
#[tokio::test]
async fn what_is_in_the_way_comes_back_with_the_failure_in_the_same_call() {
    let between = Between::start(DynamoDb::shared().address(), "unused").await;
    let store = store_at(&between.endpoint(), &new_table()).await;
    let asked = ask("in-the-way-0001");
    let mut before = between.calls.load(SeqCst);
    let mut cost = |what: &str| {
        let after = between.calls.load(SeqCst);
        assert_eq!(after - before, 1, "{what}");
        before = after;
    };
    let lease = grant(&store, &asked).await;
    cost("a reserve that is granted");
    let busy = store.reserve(retry(&asked)).await.expect("reserve answers");
    assert!(matches!(busy, Reservation::Occupied { .. }), "{busy:?}");
    cost("a reserve that finds work in progress");
    let stranger = Lease { attempt: AttemptId::random(), ..copy(&lease) };
    let refused = store.write(&stranger, Write::Renew(2 * LEASE)).await.expect("write answers");
    assert!(matches!(refused, Written::Superseded(Some(_))), "{refused:?}");
    cost("a renewal that is refused");
    let completed = store.write(&lease, Write::Complete(reply("done"))).await;
    assert_eq!(completed.expect("write answers"), Written::Applied);
    cost("a complete");
    let again = store.write(&lease, Write::Complete(reply("done"))).await;
    assert_eq!(again.expect("write answers"), Written::AlreadyMine(Some(reply("done"))));
    cost("a complete that was done before");
    let replay = store.reserve(retry(&asked)).await.expect("reserve answers");
    assert!(replay.completed().is_some(), "{replay:?}");
    cost("a replay");
}

#[tokio::test]
async fn what_does_not_come_back_with_the_failure_is_read_by_another_call() {
    let proxy = CutProxy::start(DynamoDb::shared().address());
    let (from, to) = NO_OLD_ITEM;
    let between = Between::start(proxy.address(), "unused").await;
    let store = store_at(&between.endpoint(), &new_table()).await;
    proxy.replace(from.as_bytes(), to.as_bytes());
    let asked = ask("in-the-way-0002");
    let _lease = grant(&store, &asked).await;
    let before = between.calls.load(SeqCst);
    let busy = store.reserve(retry(&asked)).await.expect("reserve answers");
    assert!(matches!(busy, Reservation::Occupied { .. }), "{busy:?}");
    assert_eq!(between.calls.load(SeqCst) - before, 2);
}

/// Reasons that are over soon. `None` is told of items that were not the reason.
const PASSING: [&[&str]; 3] = [
    &["TransactionConflict", "None"],
    &["None", "ThrottlingError"],
    &["ProvisionedThroughputExceeded", "TransactionConflict"],
];

#[tokio::test]
async fn a_step_whose_transaction_is_throttled_or_meets_another_is_saved_when_that_is_over() {
    let between = Between::start(DynamoDb::shared().address(), "unused").await;
    let store = store_at(&between.endpoint(), &new_table()).await;
    let lease = grant(&store, &phased("stepped-0001")).await;
    for (number, reasons) in PASSING.into_iter().enumerate() {
        between.cancel(3, reasons);
        let before = between.calls.load(SeqCst);
        let step = save(&format!("step-{number}"), "42");
        let advanced = store.advance(&lease, step).await.expect("advance answers");
        assert_eq!(advanced, Advanced::Applied, "{reasons:?}");
        assert_eq!(between.calls.load(SeqCst) - before, 5, "a look, and four transactions");
    }
    let saved = store.steps(&lease.id, 1).await.expect("steps answers");
    assert_eq!(saved.len(), PASSING.len(), "each once");
}

#[tokio::test]
async fn a_step_whose_transaction_is_throttled_for_too_long_is_told_as_back_pressure() {
    let between = Between::start(DynamoDb::shared().address(), "unused").await;
    let store = store_at(&between.endpoint(), &new_table()).await;
    let lease = grant(&store, &phased("stepped-0002")).await;
    between.cancel(u32::MAX, &["None", "ThrottlingError"]);
    let error = store.advance(&lease, save("charge", "42")).await.expect_err("throttled");
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "nothing happened: {error}");
    // A reason that stays is not tried again.
    between.cancel(u32::MAX, &["ValidationError"]);
    let before = between.calls.load(SeqCst);
    let error = store.advance(&lease, save("charge", "42")).await.expect_err("refused");
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert_eq!(between.calls.load(SeqCst) - before, 2, "a look, and one transaction");
    between.cancel(0, &[]);
    assert!(store.steps(&lease.id, 1).await.expect("steps answers").is_empty());
    let advanced = store.advance(&lease, save("charge", "42")).await.expect("advance answers");
    assert_eq!(advanced, Advanced::Applied);
}
