//! A failover that lost little is noticed, though what comes after it is counted too.

use std::sync::Arc;

use onceward::{
    Canary, Policy, RedisStore, Settings, Store as _,
    store::{Write, Written},
    testing::samples::{ask, reply},
};
use onceward_testbed::{CutProxy, Redis};
use tokio::{sync::Semaphore, task::block_in_place};

use crate::{
    redis_home::{grant, insist, node, store_at},
    service::{Service, says},
};

const EARLY: &str = "order-0000000000000001";
const LATE: &str = "order-0000000000000002";

/// Only a beat says how long beats are kept; nothing else does.
const IN_A_BEAT: &[u8] = b"5184000000000";

/// A server, its replica, and the way to the one that is master.
struct Pair {
    master: Redis,
    replica: Redis,
    shipping: CutProxy,
    front: CutProxy,
}

impl Pair {
    async fn start() -> Self {
        let master = tokio::task::spawn_blocking(Redis::start).await.expect("a server");
        let shipping = CutProxy::start(master.address());
        let replica = block_in_place(|| master.replica_through(shipping.address()));
        let front = CutProxy::start(master.address());
        Pair { master, replica, shipping, front }
    }

    async fn store(&self) -> Arc<RedisStore> {
        Arc::new(store_at(self.master.url_through(self.front.address())).await)
    }

    /// What is written from now on is not replicated.
    fn stop_shipping(&self) {
        block_in_place(|| self.master.wait_for(&self.replica));
        self.shipping.lead_to(None);
        self.shipping.cut();
    }

    /// New connections go to the replica; the others stay.
    fn promote(&self) {
        assert_eq!(block_in_place(|| self.replica.cli(&["REPLICAOF", "NO", "ONE"])), "OK");
        self.front.lead_to(Some(self.replica.address()));
    }

    fn fail_over(&mut self) {
        block_in_place(|| self.master.kill_9());
        self.promote();
        self.front.cut();
    }
}

/// A handler that is at work until it is let go.
fn slow_node(store: &Arc<RedisStore>) -> (Service, Arc<Semaphore>, Arc<Semaphore>) {
    let (begun, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (tell, wait) = (Arc::clone(&begun), Arc::clone(&go));
    let work = move |_| {
        let (tell, wait) = (Arc::clone(&tell), Arc::clone(&wait));
        async move {
            tell.add_permits(1);
            wait.acquire().await.expect("open").forget();
            "charged"
        }
    };
    let canary = Arc::new(Canary::new(Arc::clone(store) as Arc<dyn onceward::Store>));
    let settings = Settings { canary: Some(canary), ..Settings::default() };
    let given = Arc::clone(store);
    (Service::with_settings(|_| given, Policy::required(), settings, work), begun, go)
}

/// The retry makes the same number of writes again.
#[tokio::test(flavor = "multi_thread")]
async fn work_whose_reserve_alone_was_lost_does_not_run_a_second_time() {
    let mut pair = Pair::start().await;
    let store = pair.store().await;
    let (service, begun, go) = slow_node(&store);
    go.add_permits(1);
    assert_eq!(service.charge(EARLY).await.says(), says(200, "executed"));
    pair.stop_shipping();
    let first = service.spawn_charge(LATE);
    begun.acquire_many(2).await.expect("open").forget();
    pair.fail_over();
    // One more than there should be, so that a second run comes to its end.
    go.add_permits(2);
    let second = service.charge(LATE).await;
    assert_eq!(service.runs(), 2, "{second:?}");
    assert_eq!(second.says(), says(503, "store_regressed"));
    assert_ne!(first.await.expect("an answer").says(), says(200, "executed"));
}

/// More is written after the failover, to other records, than was lost in it.
#[tokio::test(flavor = "multi_thread")]
async fn completions_after_a_failover_do_not_make_up_for_what_it_lost() {
    let mut pair = Pair::start().await;
    let store = pair.store().await;
    let (service, canary) = node(&store);
    assert_eq!(service.charge(EARLY).await.says(), says(200, "executed"));
    let mut running = Vec::new();
    for number in 0..10 {
        running.push(grant(&store, &ask(&format!("running-{number:04}"))).await);
    }
    pair.stop_shipping();
    for number in 0..3 {
        let _ = grant(&store, &ask(&format!("gone-{number:04}"))).await;
    }
    pair.fail_over();
    for lease in &running {
        let written = insist(|| store.write(lease, Write::Complete(reply("done")))).await;
        assert_eq!(written, Written::Applied);
    }
    assert!(insist(|| canary.beat()).await.is_some(), "it is reported");
    assert_eq!(service.charge(LATE).await.says(), says(503, "store_regressed"));
    assert_eq!(service.runs(), 1);
}

/// The same without a loss.
#[tokio::test(flavor = "multi_thread")]
async fn completions_after_a_failover_that_lost_nothing_are_no_loss() {
    let mut pair = Pair::start().await;
    let store = pair.store().await;
    let (service, canary) = node(&store);
    assert_eq!(service.charge(EARLY).await.says(), says(200, "executed"));
    let running = grant(&store, &ask("running-0001")).await;
    pair.stop_shipping();
    pair.fail_over();
    let written = insist(|| store.write(&running, Write::Complete(reply("done")))).await;
    assert_eq!(written, Written::Applied);
    assert_eq!(insist(|| canary.beat()).await, None);
    assert_eq!(service.charge(LATE).await.says(), says(200, "executed"));
}

/// One server was asked, and the beat arrives at the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_failover_in_the_middle_of_a_beat_hides_no_loss() {
    let pair = Pair::start().await;
    let store = pair.store().await;
    let (service, canary) = node(&store);
    assert_eq!(service.charge(EARLY).await.says(), says(200, "executed"));
    assert_eq!(canary.beat().await.expect("a beat"), None);
    pair.stop_shipping();
    pair.promote();
    let _ = grant(&store, &ask("gone-0001")).await;
    pair.front.cut_before(IN_A_BEAT);
    let found = insist(|| canary.beat()).await;
    assert_eq!(pair.front.sprung(), 1, "the beat was cut");
    assert!(found.is_some(), "it is reported");
    assert_eq!(service.charge(LATE).await.says(), says(503, "store_regressed"));
    assert_eq!(service.runs(), 1);
}

/// The attempt learns of its grant by asking again, and then it is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_whose_first_answer_was_lost_is_missed_as_any_other() {
    let mut pair = Pair::start().await;
    let store = pair.store().await;
    let (service, canary) = node(&store);
    assert_eq!(service.charge(EARLY).await.says(), says(200, "executed"));
    assert_eq!(canary.beat().await.expect("a beat"), None);
    pair.stop_shipping();
    pair.front.cut_after(b"gone-0001", b"");
    let _ = grant(&store, &ask("gone-0001")).await;
    assert_eq!(pair.front.sprung(), 1, "the first answer was lost");
    pair.fail_over();
    assert_eq!(service.charge(LATE).await.says(), says(503, "store_regressed"));
    assert_eq!(service.runs(), 1);
}
