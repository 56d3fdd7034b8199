//! Two PostgreSQL servers, the second one behind the first: what a failover loses is not run again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use onceward::{Canary, PgOptions, PgStore, Policy, Settings, Store};
use onceward_testbed::{CutProxy, Postgres};

use crate::service::{Service, says};

const KEPT: &str = "order-0000000000000001";
const LOST: &str = "order-0000000000000002";
const NEW: &str = "order-0000000000000003";

/// A primary, a standby that follows it, and the address by which clients know whichever serves.
struct Pair {
    primary: Postgres,
    standby: Postgres,
    shipping: CutProxy,
    front: CutProxy,
}

impl Pair {
    async fn start() -> Pair {
        let started = tokio::task::spawn_blocking(|| {
            let primary = Postgres::start();
            let shipping = CutProxy::start(primary.address());
            let standby = primary.standby(shipping.address());
            let front = CutProxy::start(primary.address());
            Pair { primary, standby, shipping, front }
        });
        started.await.expect("two servers")
    }

    /// A process of its own, as far as the store knows.
    async fn node(&self) -> (Service, Arc<Canary>, Arc<PgStore>) {
        let url = self.primary.url_through(self.front.address(), "postgres");
        let store = Arc::new(PgStore::connect(PgOptions::new(url)).await.expect("a store"));
        let canary = Arc::new(Canary::new(Arc::clone(&store) as Arc<dyn Store>));
        let settings = Settings {
            canary: Some(Arc::clone(&canary)),
            store_deadline: Duration::from_secs(20),
            ..Settings::default()
        };
        let given = Arc::clone(&store);
        let work = |_| async { "charged" };
        let service = Service::with_settings(|_| given, Policy::required(), settings, work);
        (service, canary, store)
    }

    /// All that was committed is there too.
    async fn ship(&self) {
        tokio::task::block_in_place(|| self.primary.wait_for(&self.standby));
    }

    /// What is committed from now on is acknowledged, and never gets to the standby.
    fn stop_shipping(&self) {
        self.shipping.lead_to(None);
        self.shipping.cut();
    }

    /// The primary is gone, and clients are led to the standby.
    async fn fail_over(&mut self) {
        tokio::task::block_in_place(|| {
            self.primary.kill_9();
            self.standby.promote();
        });
        self.front.lead_to(Some(self.standby.address()));
        self.front.cut();
    }
}

/// What is said to the lost key once a grant that was not believed is given back: a moment after its
/// answer.
async fn given_back(service: &Service) -> (u16, String) {
    loop {
        let said = service.charge(LOST).await.says();
        if said != says(409, "key_in_progress") {
            return said;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_failover_that_lost_commits_no_key_runs_a_second_time() {
    let mut pair = Pair::start().await;
    let (service, canary, store) = pair.node().await;
    assert_eq!(service.charge(KEPT).await.says(), says(200, "executed"));
    canary.beat().await.expect("a beat");
    pair.ship().await;
    pair.stop_shipping();
    // No beat falls into the loss: only what was acknowledged itself can tell.
    assert_eq!(service.charge(LOST).await.says(), says(200, "executed"));
    pair.fail_over().await;
    let refused = service.charge(LOST).await;
    assert_eq!(refused.says(), says(503, "store_regressed"));
    assert_eq!((service.runs(), refused.header("retry-after")), (2, "60"));
    assert!(canary.regression().is_some(), "it is reported");
    assert_eq!(service.charge(KEPT).await.says(), says(200, "replayed"));
    assert_eq!(service.charge(NEW).await.says(), says(503, "store_regressed"));
    assert_eq!(given_back(&service).await, says(503, "store_regressed"));
    assert_eq!(service.runs(), 2);
    // Somebody who was not there when it happened is told.
    let (other, ..) = pair.node().await;
    assert_eq!(other.charge(LOST).await.says(), says(503, "store_regressed"));
    let known = store.acknowledge_regression("compared with the bank").await.expect("an answer");
    assert!(known.is_some());
    canary.beat().await.expect("a beat");
    assert_eq!(service.charge(NEW).await.says(), says(200, "executed"));
    assert_eq!(given_back(&service).await, says(200, "executed"), "an operator said so");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_failover_that_lost_a_completion_the_key_is_not_run_again() {
    let mut pair = Pair::start().await;
    let url = pair.primary.url_through(pair.front.address(), "postgres");
    let store = Arc::new(PgStore::connect(PgOptions::new(url)).await.expect("a store"));
    let canary = Arc::new(Canary::new(Arc::clone(&store) as Arc<dyn Store>));
    let settings = Settings {
        canary: Some(Arc::clone(&canary)),
        store_deadline: Duration::from_secs(20),
        ..Settings::default()
    };
    let given = Arc::clone(&store);
    // The first run says that it did nothing, the second acts: what is left is that nothing was done.
    let runs = AtomicU32::new(0);
    let work = move |_| {
        let first = runs.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            match first {
                true => (http::StatusCode::TOO_MANY_REQUESTS, "later"),
                false => (http::StatusCode::OK, "charged"),
            }
        }
    };
    let service = Service::with_settings(|_| given, Policy::required(), settings, work);
    assert_eq!(service.charge(LOST).await.status, 429);
    pair.ship().await;
    pair.stop_shipping();
    assert_eq!(service.charge(LOST).await.says(), says(200, "executed"));
    pair.fail_over().await;
    assert_eq!(service.charge(LOST).await.says(), says(503, "store_regressed"));
    assert_eq!(service.runs(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_that_only_another_node_knows_of_is_waited_for() {
    let mut pair = Pair::start().await;
    let (here, one, _store) = pair.node().await;
    let (there, other, _store) = pair.node().await;
    one.beat().await.expect("a beat");
    other.beat().await.expect("a beat");
    pair.ship().await;
    pair.stop_shipping();
    assert_eq!(there.charge(LOST).await.says(), says(200, "executed"));
    pair.fail_over().await;
    // Nothing that was acknowledged here is lost.
    let retry = here.spawn_charge(LOST);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!retry.is_finished(), "it waits for the other one");
    other.beat().await.expect("a beat");
    assert_eq!(retry.await.expect("an answer").says(), says(503, "store_regressed"));
    assert_eq!((here.runs(), there.runs()), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_failover_that_lost_nothing_keys_run_once_every_node_was_there() {
    let mut pair = Pair::start().await;
    let (here, one, _store) = pair.node().await;
    let (there, other, _store) = pair.node().await;
    one.beat().await.expect("a beat");
    other.beat().await.expect("a beat");
    assert_eq!(there.charge(KEPT).await.says(), says(200, "executed"));
    pair.ship().await;
    pair.fail_over().await;
    let first = here.spawn_charge(NEW);
    assert_eq!(here.charge(KEPT).await.says(), says(200, "replayed"), "replays do not wait");
    assert_eq!(there.charge(LOST).await.says(), says(200, "executed"));
    assert_eq!(first.await.expect("an answer").says(), says(200, "executed"));
    assert_eq!((one.regression(), other.regression()), (None, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_failover_that_lost_nothing_keys_run_and_nothing_is_reported() {
    let mut pair = Pair::start().await;
    let (service, canary, _store) = pair.node().await;
    assert_eq!(service.charge(KEPT).await.says(), says(200, "executed"));
    canary.beat().await.expect("a beat");
    assert_eq!(service.charge(LOST).await.says(), says(200, "executed"));
    pair.ship().await;
    pair.fail_over().await;
    assert_eq!(service.charge(LOST).await.says(), says(200, "replayed"));
    assert_eq!(service.charge(KEPT).await.says(), says(200, "replayed"));
    assert_eq!(service.charge(NEW).await.says(), says(200, "executed"));
    canary.beat().await.expect("a beat");
    assert_eq!(canary.regression(), None);
    assert_eq!(service.runs(), 3);
}
