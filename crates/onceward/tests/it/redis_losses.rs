//! What a Redis server loses is noticed, and nothing runs a second time for it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use onceward::{
    RedisStore, Store as _,
    record::State,
    store::{Reservation, Write, Written},
    testing::samples::{ask, reply, retry},
};
use onceward_testbed::{CutProxy, Redis, RedisCluster};
use tokio::task::{JoinSet, block_in_place};

use crate::{
    redis_home::{insist, node, options, store_at},
    service::says,
};

const EARLY: &str = "order-0000000000000001";
const LATE: &str = "order-0000000000000002";

async fn start(how: fn() -> Redis) -> Redis {
    tokio::task::spawn_blocking(how).await.expect("a server")
}

/// No connection breaks, and no beat falls into it.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_was_emptied_runs_nothing_twice_until_an_operator_says_so() {
    let redis = start(Redis::start).await;
    let store = Arc::new(store_at(redis.url()).await);
    let (service, canary) = node(&store);
    assert_eq!(service.charge(EARLY).await.says(), says(200, "executed"));
    assert_eq!(service.charge(EARLY).await.says(), says(200, "replayed"));
    assert_eq!(redis.cli(&["FLUSHALL"]), "OK");
    assert_eq!(service.charge(EARLY).await.says(), says(503, "store_regressed"));
    assert_eq!(service.runs(), 1);
    assert!(canary.regression().is_some(), "it is reported");
    // Somebody who was not there when it happened is told.
    let (other, _) = node(&store);
    assert_eq!(other.charge(LATE).await.says(), says(503, "store_regressed"));
    let known = store.acknowledge_regression("compared with the bank").await.expect("an answer");
    assert!(known.is_some());
    canary.beat().await.expect("a beat");
    assert_eq!(service.charge(LATE).await.says(), says(200, "executed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_without_persistence_is_noticed() {
    let mut redis = start(Redis::start_forgetful).await;
    let store = Arc::new(store_at(redis.url()).await);
    let (service, canary) = node(&store);
    assert_eq!(service.charge(EARLY).await.says(), says(200, "executed"));
    block_in_place(|| {
        redis.kill_9();
        redis.start_again();
    });
    assert_eq!(service.charge(EARLY).await.says(), says(503, "store_regressed"));
    assert_eq!(service.runs(), 1);
    assert!(canary.regression().is_some(), "it is reported");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_that_lost_nothing_is_not_noticed() {
    let mut redis = start(Redis::start).await;
    let store = Arc::new(store_at(redis.url()).await);
    let (service, canary) = node(&store);
    assert_eq!(service.charge(EARLY).await.says(), says(200, "executed"));
    block_in_place(|| {
        redis.kill_9();
        redis.start_again();
    });
    assert_eq!(service.charge(EARLY).await.says(), says(200, "replayed"));
    assert_eq!(service.charge(LATE).await.says(), says(200, "executed"));
    assert_eq!(canary.regression(), None);
}

/// The beat before is there, and the write after it is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_failover_that_lost_a_write_is_noticed_by_the_write_alone() {
    let mut master = start(Redis::start).await;
    let shipping = CutProxy::start(master.address());
    let replica = block_in_place(|| master.replica_through(shipping.address()));
    let front = CutProxy::start(master.address());
    let store = Arc::new(store_at(master.url_through(front.address())).await);
    let (service, canary) = node(&store);
    assert_eq!(service.charge(EARLY).await.says(), says(200, "executed"));
    canary.beat().await.expect("a beat");
    block_in_place(|| master.wait_for(&replica));
    shipping.lead_to(None);
    shipping.cut();
    assert_eq!(service.charge(LATE).await.says(), says(200, "executed"));
    block_in_place(|| {
        master.kill_9();
        assert_eq!(replica.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    });
    front.lead_to(Some(replica.address()));
    front.cut();
    assert_eq!(service.charge(LATE).await.says(), says(503, "store_regressed"));
    assert_eq!(service.charge(EARLY).await.says(), says(200, "replayed"), "that was not lost");
    assert_eq!(service.runs(), 2);
}

/// The same, and nothing is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_failover_that_lost_nothing_is_not_noticed() {
    let mut master = start(Redis::start).await;
    let replica = block_in_place(|| master.replica_through(master.address()));
    let front = CutProxy::start(master.address());
    let store = Arc::new(store_at(master.url_through(front.address())).await);
    let (service, canary) = node(&store);
    assert_eq!(service.charge(EARLY).await.says(), says(200, "executed"));
    block_in_place(|| {
        master.wait_for(&replica);
        master.kill_9();
        assert_eq!(replica.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    });
    front.lead_to(Some(replica.address()));
    front.cut();
    assert_eq!(service.charge(EARLY).await.says(), says(200, "replayed"));
    assert_eq!(service.charge(LATE).await.says(), says(200, "executed"));
    assert_eq!(canary.regression(), None);
}

/// A replica has no right to answer, and does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_become_a_replica_decides_nothing() {
    let redis = start(Redis::start).await;
    let store = store_at(redis.url()).await;
    let lease = crate::redis_home::grant(&store, &ask("demoted-0001")).await;
    block_in_place(|| redis.cli(&["REPLICAOF", "127.0.0.1", "1"]));
    let refused = store.reserve(ask("demoted-0002")).await.expect_err("a replica");
    assert!(format!("{refused:?}").contains("replica"), "{refused:?}");
    store.load(&lease.id).await.expect_err("a replica may be behind");
    block_in_place(|| redis.cli(&["REPLICAOF", "NO", "ONE"]));
    let written = store.write(&lease, Write::Complete(reply("done"))).await.expect("an answer");
    assert_eq!(written, Written::Applied);
}

/// Work that was begun comes to its end though there is no room for more.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_memory_takes_no_new_keys_and_ends_what_runs() {
    let redis = start(Redis::start).await;
    let store = store_at(redis.url()).await;
    let (running, done) = (ask("running-0001"), ask("done-0001"));
    let lease = crate::redis_home::grant(&store, &running).await;
    let ended = crate::redis_home::grant(&store, &done).await;
    let _ = store.write(&ended, Write::Complete(reply("before"))).await.expect("an answer");
    block_in_place(|| redis.cli(&["CONFIG", "SET", "maxmemory", "1mb"]));
    let refused = store.reserve(ask("too-many-0001")).await.expect_err("it is full");
    assert!(format!("{refused}").contains("memory"), "{refused:?}");
    let written = store.write(&lease, Write::Complete(reply("done"))).await.expect("an answer");
    assert_eq!(written, Written::Applied);
    for (ask, body) in [(&running, "done"), (&done, "before")] {
        match store.reserve(retry(ask)).await.expect("a replay needs no memory") {
            Reservation::Occupied { record, .. } => assert_eq!(record.reply, Some(reply(body))),
            other => panic!("{other:?}"),
        }
    }
}

/// One of many workers that reserve and complete until they are told to stop, and remember what was
/// acknowledged. A key that was acknowledged as completed and is granted again is an effect twice.
async fn load(store: Arc<RedisStore>, worker: usize, stop: Arc<AtomicBool>) -> Vec<String> {
    let mut completed = Vec::new();
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("load-{worker:03}-{number:08}");
        let asked = ask(&key);
        let Ok(Reservation::Granted { lease, .. }) = store.reserve(asked).await else { continue };
        let done = insist_on_end(&store, &lease).await;
        if done {
            completed.push(key);
        }
    }
    completed
}

/// Whether the completion was acknowledged before the time for it was over.
async fn insist_on_end(store: &RedisStore, lease: &onceward::record::Lease) -> bool {
    for _ in 0..200 {
        match store.write(lease, Write::Complete(reply("done"))).await {
            Ok(written) => return matches!(written, Written::Applied | Written::AlreadyMine(_)),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    false
}

fn workers(store: &Arc<RedisStore>, stop: &Arc<AtomicBool>) -> JoinSet<Vec<String>> {
    (0..16).map(|worker| load(Arc::clone(store), worker, Arc::clone(stop))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_was_acknowledged_is_lost_by_a_kill_under_load() {
    let mut redis = start(Redis::start).await;
    let store = Arc::new(store_at(redis.url()).await);
    let stop = Arc::new(AtomicBool::new(false));
    let loads = workers(&store, &stop);
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        block_in_place(|| {
            redis.kill_9();
            redis.start_again();
        });
    }
    stop.store(true, Ordering::Relaxed);
    let completed = loads.join_all().await.concat();
    assert!(completed.len() > 50, "{} were completed", completed.len());
    for key in &completed {
        let id = ask(key).id;
        let record = insist(|| store.load(&id)).await;
        let state = record.map(|record| record.state);
        assert_eq!(state, Some(State::Completed), "{key}");
    }
}

/// A Cluster replicates asynchronously, so that the write may be gone. Then that is said, and no new
/// key runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_master_of_a_cluster_that_is_killed_under_load_loses_nothing_silently() {
    let mut cluster = tokio::task::spawn_blocking(RedisCluster::start).await.expect("a Cluster");
    let store = Arc::new(RedisStore::connect(options(cluster.url())).await.expect("a store"));
    let (service, canary) = node(&store);
    assert_eq!(service.charge(EARLY).await.says(), says(200, "executed"));
    let stop = Arc::new(AtomicBool::new(false));
    let loads = workers(&store, &stop);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let epoch = store.epoch();
    block_in_place(|| {
        let masters = cluster.masters();
        cluster.kill_9(masters[0]);
        cluster.wait_until_whole();
    });
    stop.store(true, Ordering::Relaxed);
    let completed = loads.join_all().await.concat();
    assert!(completed.len() > 50, "{} were completed", completed.len());
    assert!(store.epoch() > epoch, "the server of some buckets is another one");
    let mut lost = Vec::new();
    for key in &completed {
        let id = ask(key).id;
        let record = insist(|| store.load(&id)).await;
        if record.is_none_or(|record| record.state != State::Completed) {
            lost.push(key);
        }
    }
    let regression = insist(|| canary.beat()).await;
    assert_eq!(regression.is_some(), !lost.is_empty(), "lost: {lost:?}");
    let said = service.charge(LATE).await.says();
    match lost.is_empty() {
        true => assert_eq!(said, says(200, "executed")),
        false => assert_eq!(said, says(503, "store_regressed")),
    }
}

/// Each master loses for itself.
#[tokio::test(flavor = "multi_thread")]
async fn the_loss_of_any_one_master_of_a_cluster_is_noticed() {
    let cluster = tokio::task::spawn_blocking(RedisCluster::start).await.expect("a Cluster");
    for master in cluster.masters() {
        let store = Arc::new(RedisStore::connect(options(cluster.url())).await.expect("a store"));
        let (service, canary) = node(&store);
        assert_eq!(service.charge(EARLY).await.says(), says(200, "executed"));
        assert_eq!(canary.beat().await.expect("a beat"), None);
        block_in_place(|| cluster.nodes()[master].cli(&["FLUSHALL"]));
        let regression = canary.beat().await.expect("a beat");
        assert!(regression.is_some(), "master {master} was emptied");
        assert_eq!(service.charge(LATE).await.says(), says(503, "store_regressed"));
    }
}
