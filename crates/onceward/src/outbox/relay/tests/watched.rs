//! A relay whose store has lost data: what is ready may have been delivered.

use super::{
    failing::{Failing, Wrong},
    *,
};
use crate::{
    Canary,
    store::{Beat, NodeId, Store},
};

fn canary(on: &OutboxHarness) -> Arc<Canary> {
    let canary = Canary::new(Arc::clone(&on.store) as Arc<dyn Store>);
    Arc::new(canary.clock(Arc::new(on.clock.clone())))
}

/// Another node finds a loss.
async fn lose(on: &OutboxHarness) {
    let lost = Beat { node: NodeId::from_bytes([9; 16]), acked: 41 };
    assert!(on.store.beat(lost).await.expect("a beat").regression.is_some());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_delivered_while_the_store_is_known_to_have_lost_data() {
    for idempotent in [true, false] {
        let on = outbox();
        on.staged([message("a")]).await;
        lose(&on).await;
        let (sink, canary) = (Scripted::new(idempotent, []), canary(&on));
        let relay = relay(&on, &sink).canary(Arc::clone(&canary));
        // Nobody has beaten here: the relay itself asks.
        for _ in 0..2 {
            assert_eq!(relay.run_once(10).await, Relayed::default());
        }
        // Nothing was claimed either: it would look as if a delivery had been begun.
        assert_eq!(on.counts().await, [1, 0, 0, 0]);
        on.store.acknowledge_regression("compared").await.expect("an answer");
        canary.beat().await.expect("a beat");
        assert_eq!(relay.run_once(10).await, relayed(1, 0, 0));
        let begun = sink.seen.begun.lock().expect("not poisoned").clone();
        assert_eq!((begun.len(), begun[0].1), (1, 1), "the first try");
    }
}

#[tokio::test(start_paused = true)]
async fn messages_are_delivered_again_when_the_time_limit_is_over() {
    let on = outbox();
    on.staged([message("a")]).await;
    lose(&on).await;
    let sink = Scripted::new(true, []);
    let relay = relay(&on, &sink).canary(canary(&on));
    on.clock.advance(Canary::LIMIT - Duration::from_micros(1));
    assert_eq!(relay.run_once(10).await, Relayed::default());
    on.clock.advance(Duration::from_micros(1));
    assert_eq!(relay.run_once(10).await, relayed(1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_lost_nothing_is_asked_once_and_delivered_from() {
    let on = outbox();
    on.staged([message("a"), message("b")]).await;
    let (sink, canary) = (Scripted::new(false, []), canary(&on));
    let relay = relay(&on, &sink).canary(Arc::clone(&canary)).concurrency(1);
    assert_eq!(relay.run_once(10).await, relayed(2, 0, 0));
    assert_eq!(canary.regression(), None);
}

#[tokio::test(start_paused = true)]
async fn what_was_claimed_while_the_loss_was_found_is_put_back_undelivered() {
    let on = outbox();
    on.staged([message("a")]).await;
    let (sink, canary) = (Scripted::new(false, []), canary(&on));
    let second = Duration::from_secs(1);
    let store = Failing::new(&on, &[Wrong::Slow(second)], &[]);
    let relay = store.relay(&sink).canary(Arc::clone(&canary));
    let found = async {
        sleep(second / 2).await;
        lose(&on).await;
        canary.beat().await.expect("a beat");
    };
    let (said, ()) = tokio::join!(relay.run_once(1), found);
    assert_eq!((said, sink.seen.names()), (relayed(0, 1, 0), Vec::new()));
    let why = reason(&on, MessageState::Ready).await;
    assert!(why.starts_with("the store may have lost data"), "{why}");
    on.store.acknowledge_regression("compared").await.expect("an answer");
    canary.beat().await.expect("a beat");
    on.clock.advance(second);
    // It is not taken for one that may have acted.
    assert_eq!(relay.run_once(1).await, relayed(1, 0, 0));
}
