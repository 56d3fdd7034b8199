//! Deliberate bugs in the conditions of the DynamoDB store are found by the store suite.

use std::sync::Arc;

use onceward::{
    DynamoOptions, DynamoStore,
    clock::ManualClock,
    testing::{Fresh, suite},
};
use onceward_testbed::{CutProxy, DynamoDb};

use crate::bugs::{found_by, found_in_a_race_by};

/// What is sent, and what arrives.
pub(crate) type Bug = (&'static str, &'static str);

const NO_FENCE: Bug = ("#fence = :v2", "#fence >=:v2");
const ATTEMPT_OR_FENCE: Bug =
    ("AND #attempt = :v1 AND #fence = :v2", "AND(#attempt = :v1 OR #fence = :v2)");
/// Work in progress is anybody's.
const NO_ATTEMPT: Bug = ("#state = :v0 AND #attempt", "#state = :v0  OR #attempt");
const INSERTS_WITHOUT_CHECK: Bug = ("attribute_not_exists(pk)", "attribute_not_exists(qq)");
const NO_STAMP: Bug = ("stamp = :seen", ":seen = :seen");
pub(crate) const NO_OLD_ITEM: Bug = (
    "\"ReturnValuesOnConditionCheckFailure\":\"ALL_OLD\"",
    "\"ReturnValuesOnConditionCheckFailure\":\"NONE\"   ",
);
const SHORTENS: Bug = ("#lease_until <= :v", "#lease_until <> :v");

/// A store with a bug.
async fn broken(clock: ManualClock, bug: Option<Bug>) -> Fresh {
    let proxy = CutProxy::start(DynamoDb::shared().address());
    let table = format!("bugs_{:016x}", rand::random::<u64>());
    let options = DynamoOptions::new(table)
        .endpoint(format!("http://{}", proxy.address()))
        .region("local")
        .shards(2)
        .clock(Arc::new(clock));
    let store = DynamoStore::open(options).await.expect("a store");
    if let Some((from, to)) = bug {
        proxy.replace(from.as_bytes(), to.as_bytes());
    }
    Fresh::from(store).keeping(proxy)
}

#[test]
fn a_condition_without_fence_or_attempt_is_found() {
    for bug in [NO_FENCE, ATTEMPT_OR_FENCE, NO_ATTEMPT] {
        found_by(broken, bug, suite::writing::a_write_needs_its_attempt_and_its_fence);
    }
}

#[test]
fn a_reserve_without_a_condition_is_found() {
    found_by(broken, INSERTS_WITHOUT_CHECK, suite::reserving::a_running_record_is_occupied);
}

#[test]
fn a_change_that_does_not_look_at_the_stamp_of_an_item_is_found() {
    found_in_a_race_by(
        broken,
        NO_STAMP,
        suite::racing::of_100_concurrent_reserves_of_a_free_record_exactly_one_is_granted,
    );
}

#[test]
fn a_condition_that_shortens_a_lease_is_found() {
    found_by(broken, SHORTENS, suite::writing::renewing_never_shortens_a_lease);
}

#[test]
fn without_the_old_item_the_record_is_read_and_the_answers_are_the_same() {
    // An endpoint that does not know how to return it costs a round trip and nothing else.
    onceward::testing::run(
        |clock| broken(clock, Some(NO_OLD_ITEM)),
        suite::reserving::a_running_record_is_occupied,
    );
}
