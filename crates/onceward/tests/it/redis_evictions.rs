//! A Redis server that begins to evict, when it is told to or by a failover, runs nothing twice.

use std::sync::Arc;

use onceward::{RedisOptions, RedisStore, Store as _, store::list::AuditQuery};
use onceward_testbed::{CutProxy, Redis, RedisCluster};
use tokio::task::{block_in_place, spawn_blocking};

use crate::{
    redis_home::{node, options, store_at},
    service::says,
};

const EARLY: &str = "order-0000000000000001";
const LATE: &str = "order-0000000000000002";

async fn start() -> Redis {
    spawn_blocking(Redis::start).await.expect("a server")
}

fn set(redis: &Redis, name: &str, value: &str) {
    assert_eq!(redis.cli(&["CONFIG", "SET", name, value]), "OK");
}

fn evicted(redis: &Redis) -> u64 {
    let info = redis.cli(&["INFO", "stats"]);
    let count = info.lines().find_map(|line| line.strip_prefix("evicted_keys:"));
    count.and_then(|count| count.trim().parse().ok()).expect("a number")
}

/// The one record that there is.
pub(crate) fn record(redis: &Redis) -> String {
    let key = redis.cli(&["KEYS", "{home_*}r:*"]);
    assert_eq!(key.lines().count(), 1, "{key}");
    key
}

/// Somebody else's data takes so much room that the server evicts this key.
fn press_out(redis: &Redis, key: &str) {
    set(redis, "maxmemory", "4mb");
    let fill =
        "for i = 1, 50 do redis.call('SET', 'else:' .. ARGV[1] .. i, string.rep('x', 2000)) end";
    for number in 0..1000 {
        redis.cli(&["EVAL", fill, "0", &number.to_string()]);
        if redis.cli(&["EXISTS", key]) == "0" {
            return;
        }
    }
    panic!("{key} is still there, and {} others were evicted", evicted(redis));
}

/// The server evicts this key and no other.
pub(crate) fn press_out_alone(redis: &Redis, key: &str) {
    let before = redis.cli(&["DBSIZE"]);
    assert_eq!(redis.cli(&["EXPIRE", key, "100000"]), "1");
    set(redis, "maxmemory-policy", "volatile-ttl");
    set(redis, "maxmemory", "1mb");
    // A write for which there is no room makes some.
    redis.cli(&["SET", "else", "x"]);
    set(redis, "maxmemory", "0");
    set(redis, "maxmemory-policy", "noeviction");
    assert_eq!(
        (redis.cli(&["EXISTS", key]), redis.cli(&["EXISTS", "else"])),
        ("0".into(), "0".into())
    );
    assert_eq!(evicted(redis), 1, "of {before} keys");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_told_to_evict_and_runs_full_runs_nothing_twice() {
    let redis = start().await;
    let store = Arc::new(store_at(redis.url()).await);
    let (service, canary) = node(&store);
    assert_eq!(service.charge(EARLY).await.says(), says(200, "executed"));
    block_in_place(|| {
        set(&redis, "maxmemory-policy", "allkeys-lru");
        press_out(&redis, &record(&redis));
    });
    assert_eq!(service.charge(EARLY).await.says(), says(503, "store_regressed"));
    assert_eq!(service.runs(), 1);
    assert!(canary.regression().is_some(), "it is reported");
}

/// Nothing that counts is gone, and by then nothing is evicted any more: only the server's own number
/// tells.
#[tokio::test(flavor = "multi_thread")]
async fn a_single_record_that_was_evicted_between_two_beats_is_noticed_before_it_runs_again() {
    let redis = start().await;
    let store = Arc::new(store_at(redis.url()).await);
    let (service, canary) = node(&store);
    assert_eq!(service.charge(EARLY).await.says(), says(200, "executed"));
    assert_eq!(canary.beat().await.expect("a beat"), None);
    block_in_place(|| press_out_alone(&redis, &record(&redis)));
    assert_eq!(service.charge(EARLY).await.says(), says(503, "store_regressed"));
    assert_eq!(service.runs(), 1);
    let regression = canary.regression().expect("it is reported");
    assert_eq!(regression.since, None, "it may have been of any age");
    // An operator has looked, and the server is as it should be.
    let _ = store.acknowledge_regression("compared with the bank").await.expect("an answer");
    assert_eq!(canary.beat().await.expect("a beat"), None);
    assert_eq!(service.charge(LATE).await.says(), says(200, "executed"));
}

/// The twin.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_that_evicts_nothing_refuses_new_keys_and_has_lost_nothing() {
    let redis = start().await;
    let options = options(redis.url());
    let store = Arc::new(RedisStore::connect(options.clone()).await.expect("a store"));
    let (service, canary) = node(&store);
    assert_eq!(service.charge(EARLY).await.says(), says(200, "executed"));
    block_in_place(|| set(&redis, "maxmemory", "1mb"));
    assert_eq!(service.charge(LATE).await.says(), says(503, "store_unavailable"));
    assert_eq!(service.charge(EARLY).await.says(), says(200, "replayed"));
    assert_eq!(canary.beat().await.expect("a beat"), None);
    let later = Arc::new(RedisStore::connect(options).await.expect("a store"));
    assert_eq!(node(&later).0.charge(EARLY).await.says(), says(200, "replayed"));
    block_in_place(|| set(&redis, "maxmemory", "0"));
    assert_eq!(service.charge(LATE).await.says(), says(200, "executed"));
    assert_eq!((service.runs(), canary.regression()), (2, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_may_evict_takes_no_new_keys_until_it_may_not_and_somebody_says_so() {
    let redis = start().await;
    let store = Arc::new(store_at(redis.url()).await);
    let (service, canary) = node(&store);
    assert_eq!(service.charge(EARLY).await.says(), says(200, "executed"));
    block_in_place(|| set(&redis, "maxmemory-policy", "allkeys-lru"));
    for _ in 0..3 {
        assert!(canary.beat().await.expect("a beat").is_some(), "it is reported");
    }
    let audits = store.audit_log(AuditQuery::default()).await.expect("audits").records;
    assert_eq!(audits.len(), 1, "and not with each beat: {audits:?}");
    assert_eq!(service.charge(LATE).await.says(), says(503, "store_regressed"));
    assert_eq!(service.charge(EARLY).await.says(), says(200, "replayed"));
    let acknowledged = async || store.acknowledge_regression("looked").await.expect("an answer");
    assert!(acknowledged().await.is_some());
    assert!(canary.beat().await.expect("a beat").is_some(), "it still may");
    block_in_place(|| set(&redis, "maxmemory-policy", "noeviction"));
    assert!(acknowledged().await.is_some());
    assert_eq!(canary.beat().await.expect("a beat"), None);
    assert_eq!(service.charge(LATE).await.says(), says(200, "executed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_to_a_server_that_may_evict_is_noticed_by_the_next_new_key() {
    let mut master = start().await;
    let replica = block_in_place(|| master.replica_through(master.address()));
    let front = CutProxy::start(master.address());
    let store = Arc::new(store_at(master.url_through(front.address())).await);
    let (service, canary) = node(&store);
    assert_eq!(service.charge(EARLY).await.says(), says(200, "executed"));
    block_in_place(|| {
        master.wait_for(&replica);
        set(&replica, "maxmemory-policy", "allkeys-lru");
        master.kill_9();
        assert_eq!(replica.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    });
    front.lead_to(Some(replica.address()));
    front.cut();
    assert_eq!(service.charge(LATE).await.says(), says(503, "store_regressed"));
    assert_eq!(service.charge(EARLY).await.says(), says(200, "replayed"));
    assert_eq!(service.runs(), 1);
    assert!(canary.regression().is_some(), "it is reported");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_starts_later_finds_what_was_evicted_while_nobody_was_there() {
    let redis = start().await;
    let options: RedisOptions = options(redis.url());
    let connect = async || Arc::new(RedisStore::connect(options.clone()).await.expect("a store"));
    let (service, canary) = node(&connect().await);
    assert_eq!(service.charge(EARLY).await.says(), says(200, "executed"));
    drop((service, canary));
    block_in_place(|| press_out_alone(&redis, &record(&redis)));
    let (service, canary) = node(&connect().await);
    assert_eq!(service.charge(EARLY).await.says(), says(503, "store_regressed"));
    assert_eq!(service.runs(), 0);
    assert!(canary.regression().is_some(), "it is reported");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_evicted_before_it_was_a_store_is_no_loss() {
    let redis = start().await;
    block_in_place(|| {
        assert_eq!(redis.cli(&["SET", "old", "x"]), "OK");
        press_out_alone(&redis, "old");
    });
    let store = Arc::new(store_at(redis.url()).await);
    let (service, canary) = node(&store);
    assert_eq!(service.charge(EARLY).await.says(), says(200, "executed"));
    assert_eq!(service.charge(EARLY).await.says(), says(200, "replayed"));
    assert_eq!(canary.beat().await.expect("a beat"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_master_of_a_cluster_is_asked_whether_it_evicts() {
    let cluster = spawn_blocking(RedisCluster::start).await.expect("a Cluster");
    let store = Arc::new(RedisStore::connect(options(cluster.url())).await.expect("a store"));
    let (service, canary) = node(&store);
    assert_eq!(service.charge(EARLY).await.says(), says(200, "executed"));
    for master in cluster.masters() {
        let master = &cluster.nodes()[master];
        assert_eq!(canary.beat().await.expect("a beat"), None);
        block_in_place(|| set(master, "maxmemory-policy", "allkeys-lru"));
        assert!(canary.beat().await.expect("a beat").is_some(), "it is reported");
        assert_eq!(service.charge(LATE).await.says(), says(503, "store_regressed"));
        block_in_place(|| set(master, "maxmemory-policy", "noeviction"));
        let _ = store.acknowledge_regression("looked").await.expect("an answer");
    }
}
