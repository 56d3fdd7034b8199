//! Beats: whether a store has lost what it had acknowledged.

use std::time::Duration;

use crate::{
    record::AuditEvent,
    store::{Beat, NodeId, Pulse, Regression, SCOPE_WIDE},
    testing::{Harness, samples::id},
};

const SECOND: Duration = Duration::from_secs(1);

async fn beat(on: &Harness, node: u8, acked: u64) -> Pulse {
    let beat = Beat { node: NodeId::from_bytes([node; 16]), acked };
    on.store.beat(beat).await.expect("a beat is answered")
}

fn well(count: u64) -> Pulse {
    Pulse { count, regression: None, absent: 0 }
}

/// Each for itself.
pub async fn the_beats_of_a_node_count_up(on: Harness) {
    assert_eq!(beat(&on, 1, 0).await, well(1));
    assert_eq!(beat(&on, 1, 1).await, well(2));
    assert_eq!(beat(&on, 2, 0).await, well(1));
    assert_eq!(beat(&on, 1, 2).await, well(3));
    assert_eq!(beat(&on, 2, 1).await, well(2));
}

/// From the last beat on that is there.
pub async fn a_count_under_what_was_acknowledged_is_a_loss(on: Harness) {
    beat(&on, 1, 0).await;
    let kept = on.now();
    on.clock.advance(SECOND);
    let pulse = beat(&on, 1, 7).await;
    let regression = Some(Regression { since: Some(kept), found: on.now() });
    assert_eq!(pulse, Pulse { count: 8, regression, absent: 0 });
    let remembered = on.store.audit(&id(SCOPE_WIDE, SCOPE_WIDE)).await.expect("audit records");
    let [found] = &remembered[..] else { panic!("{remembered:?}") };
    assert_eq!((found.event, found.at), (AuditEvent::StoreRegressed, on.now()));
    assert_eq!(found.attempt.as_bytes(), &[1; 16]);
}

/// As in a store that was emptied.
pub async fn a_node_that_is_not_known_any_more_has_lost_everything(on: Harness) {
    beat(&on, 2, 0).await;
    let pulse = beat(&on, 1, 41).await;
    let regression = Some(Regression { since: None, found: on.now() });
    assert_eq!(pulse, Pulse { count: 42, regression, absent: 0 });
}

/// Also to those that come later.
pub async fn a_loss_is_told_to_every_node_and_found_once(on: Harness) {
    beat(&on, 2, 0).await;
    let lost = beat(&on, 1, 41).await.regression;
    assert!(lost.is_some());
    on.clock.advance(SECOND);
    assert_eq!(beat(&on, 1, 42).await, Pulse { count: 43, regression: lost, absent: 0 });
    assert_eq!(beat(&on, 2, 1).await, Pulse { count: 2, regression: lost, absent: 0 });
    assert_eq!(beat(&on, 3, 0).await, Pulse { count: 1, regression: lost, absent: 0 });
    let remembered = on.store.audit(&id(SCOPE_WIDE, SCOPE_WIDE)).await.expect("audit records");
    assert_eq!(remembered.len(), 1, "{remembered:?}");
}

/// And none that is known is forgotten for one that reaches back less.
pub async fn the_earliest_of_two_losses_counts(on: Harness) {
    beat(&on, 1, 0).await;
    let early = on.now();
    on.clock.advance(SECOND);
    beat(&on, 2, 0).await;
    let late = on.now();
    on.clock.advance(SECOND);
    let regression = beat(&on, 2, 9).await.regression;
    assert_eq!(regression, Some(Regression { since: Some(late), found: on.now() }));
    on.clock.advance(SECOND);
    let regression = beat(&on, 1, 9).await.regression;
    assert_eq!(regression, Some(Regression { since: Some(early), found: on.now() }));
    on.clock.advance(SECOND);
    let regression = beat(&on, 2, 20).await.regression.expect("still lost");
    assert_eq!(regression, Regression { since: Some(early), found: on.now() });
    let regression = beat(&on, 3, 1).await.regression;
    assert_eq!(regression, Some(Regression { since: None, found: on.now() }));
}

/// With a reason, which is kept.
pub async fn a_loss_that_was_acknowledged_is_told_no_more(on: Harness) {
    let acknowledge = async |reason| on.store.acknowledge_regression(reason).await.expect("told");
    assert_eq!(acknowledge("nothing there").await, None);
    let lost = beat(&on, 1, 41).await.regression;
    on.clock.advance(SECOND);
    assert_eq!(acknowledge("anna: compared with the bank").await, lost);
    assert_eq!(acknowledge("anna: again").await, None);
    assert_eq!(beat(&on, 1, 42).await, well(43));
    assert_eq!(beat(&on, 2, 0).await, well(1));
    let remembered = on.store.audit(&id(SCOPE_WIDE, SCOPE_WIDE)).await.expect("audit records");
    let [_, said] = &remembered[..] else { panic!("{remembered:?}") };
    assert_eq!(said.event, AuditEvent::RegressionAcknowledged);
    assert_eq!((&*said.reason, said.at), ("anna: compared with the bank", on.now()));
    assert!(beat(&on, 1, 50).await.regression.is_some(), "the next one is found again");
}

/// The node then knows less than the store.
pub async fn a_lost_answer_to_a_beat_is_no_loss(on: Harness) {
    assert_eq!(beat(&on, 1, 0).await, well(1));
    assert_eq!(beat(&on, 1, 0).await, well(2));
    assert_eq!(beat(&on, 1, 1).await, well(3));
}
