//! Relays on an outbox, with a ledger as their sink.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use super::{OutboxHarness, SINK, message};
use crate::{
    clock::Clock as _,
    outbox::{Backoff, Delivered, Delivery, MessageState, Relay, Relayed, Sink, SinkFuture},
};

/// Remembers every delivery, and answers as it is told.
#[derive(Clone, Debug)]
struct Ledger {
    idempotent: bool,
    fails: bool,
    deliveries: Arc<Mutex<Vec<Delivery>>>,
}

impl Ledger {
    fn new(idempotent: bool) -> Self {
        Ledger { idempotent, fails: false, deliveries: Arc::default() }
    }

    fn names(&self) -> Vec<String> {
        let deliveries = self.deliveries.lock().unwrap_or_else(PoisonError::into_inner);
        deliveries.iter().map(|delivery| delivery.message.name.to_string()).collect()
    }

    fn keys(&self) -> BTreeMap<Box<str>, u32> {
        let mut keys = BTreeMap::new();
        for delivery in &*self.deliveries.lock().unwrap_or_else(PoisonError::into_inner) {
            *keys.entry(delivery.key.clone()).or_default() += 1;
        }
        keys
    }
}

impl Sink for Ledger {
    fn is_idempotent(&self) -> bool {
        self.idempotent
    }

    fn deliver(&self, delivery: Delivery) -> SinkFuture<'_> {
        Box::pin(async move {
            let provider_id = Some(format!("entry of {}", delivery.message.name));
            self.deliveries.lock().unwrap_or_else(PoisonError::into_inner).push(delivery);
            // Others may go first.
            tokio::task::yield_now().await;
            match self.fails {
                true => Delivered::NotDelivered("closed".to_owned()),
                false => Delivered::Done { provider_id },
            }
        })
    }
}

impl OutboxHarness {
    fn relay(&self, ledger: &Ledger) -> Relay {
        Relay::new(Arc::clone(&self.outbox)).sink(SINK, ledger.clone())
    }
}

/// All of it, one after the other.
pub async fn a_relay_delivers_an_aggregate_in_order_in_one_run(on: OutboxHarness) {
    let names: Vec<String> = (0..20).map(|number| format!("m-{number}")).collect();
    on.staged(names.iter().map(|name| message(name).aggregate("order-1"))).await;
    let ledger = Ledger::new(true);
    let relayed = on.relay(&ledger).run_once(100).await;
    assert_eq!(relayed, Relayed { delivered: 20, ..Relayed::default() });
    assert_eq!(ledger.names(), names);
    let listed = on.outbox.list(MessageState::Done, None, 1).await.expect("list answers");
    assert_eq!(listed[0].provider_id.as_deref(), Some("entry of m-0"));
}

/// Whoever comes second finds nothing.
pub async fn two_relays_at_once_deliver_each_message_once(on: OutboxHarness) {
    let messages = (0..100).map(|number| {
        let message = message(&format!("m-{number:02}"));
        if number % 2 == 0 { message.aggregate(format!("order-{}", number % 6)) } else { message }
    });
    on.staged(messages).await;
    let ledger = Ledger::new(false);
    let (one, two) = (on.relay(&ledger).concurrency(4), on.relay(&ledger).concurrency(4));
    let (one, two) = tokio::join!(
        tokio::spawn(async move { one.run_once(1000).await }),
        tokio::spawn(async move { two.run_once(1000).await })
    );
    let (one, two) = (one.expect("no panic"), two.expect("no panic"));
    assert_eq!((one.store_failures, two.store_failures), (0, 0));
    // A relay ends its run when it finds nothing to claim, so that it may end before the other.
    let rest = on.relay(&ledger).run_once(1000).await;
    assert_eq!(one.delivered + two.delivered + rest.delivered, 100);
    let keys = ledger.keys();
    assert_eq!((keys.len(), keys.values().max()), (100, Some(&1)));
    for order in [0, 2, 4] {
        let of_order = |name: &String| name[2..].parse::<u32>().is_ok_and(|n| n % 6 == order);
        let delivered: Vec<String> = ledger.names().into_iter().filter(of_order).collect();
        assert!(delivered.is_sorted(), "order-{order}: {delivered:?}");
    }
}

/// Waits grow, attempts are counted, and there is an end.
pub async fn retries_back_off_and_end_as_a_dead_letter(on: OutboxHarness) {
    on.staged([message("a")]).await;
    let ledger = Ledger { fails: true, ..Ledger::new(false) };
    let backoff = Backoff::default();
    for attempt in 1..=12 {
        let relayed = on.relay(&ledger).seed(attempt).run_once(10).await;
        assert_eq!(
            (relayed.retried, relayed.dead),
            (u32::from(attempt < 12), (attempt / 12) as u32)
        );
        if attempt == 12 {
            break;
        }
        let listed = on.outbox.list(MessageState::Ready, None, 1).await.expect("list answers");
        let wait = listed[0].next_at.since(on.clock.now());
        assert!(wait <= backoff.ceiling(attempt as u32), "{attempt}: {wait:?}");
        assert_eq!(u64::from(listed[0].attempts), attempt);
        on.clock.advance(wait);
    }
    let listed = on.outbox.list(MessageState::Dead, None, 1).await.expect("list answers");
    let why = listed[0].last_error.as_deref();
    assert_eq!(why, Some("given up after 12 attempts: closed"));
    assert_eq!(on.relay(&ledger).run_once(10).await, Relayed::default());
    assert_eq!(ledger.names().len(), 12);
}

/// The receiver tells by the key that it is the same.
pub async fn a_vanished_delivery_is_repeated_with_the_same_key_where_the_sink_knows_keys(
    on: OutboxHarness,
) {
    on.staged([message("a")]).await;
    let (_, claimed) = on.claim_one().await;
    on.clock.advance(super::LEASE);
    let ledger = Ledger::new(true);
    assert_eq!(on.relay(&ledger).run_once(10).await.delivered, 1);
    assert_eq!(ledger.keys(), BTreeMap::from([(claimed.derived_key, 1)]));
}

/// It may have acted, and a second one would act twice.
pub async fn a_vanished_delivery_is_a_dead_letter_where_the_sink_knows_no_keys(on: OutboxHarness) {
    on.staged([message("a"), message("b")]).await;
    on.claim_one().await;
    on.clock.advance(super::LEASE);
    let ledger = Ledger::new(false);
    let relayed = on.relay(&ledger).run_once(10).await;
    assert_eq!((relayed.delivered, relayed.dead), (1, 1));
    assert_eq!(ledger.names(), ["b"]);
    let dead = on.ids(MessageState::Dead).await;
    // A person found out that it did not act.
    on.redrive(&dead, "ticket 7").await;
    assert_eq!(on.relay(&ledger).run_once(10).await.delivered, 1);
    assert_eq!(ledger.names(), ["b", "a"]);
}
