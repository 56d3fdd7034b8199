//! A Redis server that begins to evict, when it is told to or by a failover, runs nothing twice.

use std::{sync::Arc, time::Duration};

use onceward::{
    Canary, RedisOptions, RedisStore, Store,
    clock::{ManualClock, Timestamp},
    store::list::AuditQuery,
};
use onceward_testbed::{CutProxy, Redis, RedisCluster};
use tokio::task::{block_in_place, spawn_blocking};

use crate::{
    redis_bugs::{CHANGE, RESERVE, put_in},
    redis_home::{node, node_with, options, store_at},
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
    key_of_ours(redis, "r:*")
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
    press_out_all(redis, &[key]);
}

/// The server evicts these keys and no other.
fn press_out_all(redis: &Redis, keys: &[&str]) {
    let before = evicted(redis);
    for key in keys {
        assert_eq!(redis.cli(&["EXPIRE", key, "100000"]), "1", "{key}");
    }
    set(redis, "maxmemory-policy", "volatile-ttl");
    // Less than any server takes.
    set(redis, "maxmemory", "1");
    // A write for which there is no room makes some.
    redis.cli(&["SET", "else", "x"]);
    set(redis, "maxmemory", "0");
    set(redis, "maxmemory-policy", "noeviction");
    assert_eq!(redis.cli(&[&["EXISTS", "else"], keys].concat()), "0");
    assert_eq!(evicted(redis), before + keys.len() as u64);
}

/// The one key that ends so.
fn key_of_ours(redis: &Redis, end: &str) -> String {
    let key = redis.cli(&["KEYS", &format!("{{home_*}}{end}")]);
    assert_eq!(key.lines().count(), 1, "{key}");
    key
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

/// What tells of the evictions before it was evicted too, but for one index.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_starts_later_finds_it_though_the_beats_are_evicted_too() {
    for without in [&["beats", "writers"][..], &["beats", "writers", "layout"]] {
        let redis = start().await;
        let options: RedisOptions = options(redis.url());
        let connect =
            async || Arc::new(RedisStore::connect(options.clone()).await.expect("a store"));
        let (service, canary) = node(&connect().await);
        assert_eq!(service.charge(EARLY).await.says(), says(200, "executed"));
        drop((service, canary));
        block_in_place(|| {
            let mut keys = vec![record(&redis)];
            keys.extend(without.iter().map(|end| key_of_ours(&redis, end)));
            press_out_all(&redis, &keys.iter().map(String::as_str).collect::<Vec<_>>());
        });
        let (service, canary) = node(&connect().await);
        assert_eq!(service.charge(EARLY).await.says(), says(503, "store_regressed"), "{without:?}");
        assert_eq!(service.runs(), 0, "{without:?}");
        assert!(canary.regression().is_some(), "it is reported");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_evicted_before_it_was_a_store_is_no_loss() {
    let redis = start().await;
    block_in_place(|| {
        assert_eq!(redis.cli(&["SET", "old", "x"]), "OK");
        press_out_alone(&redis, "old");
    });
    let options: RedisOptions = options(redis.url());
    let connect = async || Arc::new(RedisStore::connect(options.clone()).await.expect("a store"));
    let store = connect().await;
    let (_, other) = node(&connect().await);
    assert_eq!(other.beat().await.expect("a beat"), None, "whoever beats first");
    let (service, canary) = node(&store);
    assert_eq!(service.charge(EARLY).await.says(), says(200, "executed"));
    assert_eq!(service.charge(EARLY).await.says(), says(200, "replayed"));
    assert_eq!(canary.beat().await.expect("a beat"), None);
}

/// The number is then under the one that was written down, though more was evicted.
#[tokio::test(flavor = "multi_thread")]
async fn an_eviction_after_the_statistics_of_the_server_were_reset_is_noticed() {
    let redis = start().await;
    block_in_place(|| {
        assert_eq!(redis.cli(&["MSET", "old", "x", "older", "x"]), "OK");
        press_out_all(&redis, &["old", "older"]);
    });
    let store = Arc::new(store_at(redis.url()).await);
    let (service, canary) = node(&store);
    assert_eq!(service.charge(EARLY).await.says(), says(200, "executed"));
    block_in_place(|| {
        assert_eq!(redis.cli(&["CONFIG", "RESETSTAT"]), "OK");
        press_out_alone(&redis, &record(&redis));
    });
    assert_eq!(service.charge(EARLY).await.says(), says(503, "store_regressed"));
    assert_eq!(service.runs(), 1);
    // A reset alone loses nothing.
    let _ = store.acknowledge_regression("compared with the bank").await.expect("an answer");
    assert_eq!(canary.beat().await.expect("a beat"), None);
    assert_eq!(redis.cli(&["CONFIG", "RESETSTAT"]), "OK");
    assert_eq!(service.charge(LATE).await.says(), says(200, "executed"));
}

/// A server that was busy for a moment has not said that it does not tell.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_over_which_nothing_was_heard_of_evictions_is_not_used() {
    let redis = start().await;
    let front = CutProxy::start(redis.address());
    let store = Arc::new(store_at(redis.url_through(front.address())).await);
    let (service, canary) = node(&store);
    assert_eq!(service.charge(EARLY).await.says(), says(200, "executed"));
    front.answer(b"INFO\r\n$6\r\nserver", b"-BUSY it runs a script\r\n");
    front.cut();
    assert_eq!(canary.beat().await.expect("a beat"), None);
    assert_eq!(front.sprung(), 1);
    block_in_place(|| press_out_alone(&redis, &record(&redis)));
    assert_eq!(service.charge(EARLY).await.says(), says(503, "store_regressed"));
    assert_eq!(service.runs(), 1);
}

/// The twin.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_let_us_ask_what_it_evicts_is_used() {
    let redis = start().await;
    assert_eq!(redis.cli(&["ACL", "SETUSER", "default", "-info"]), "OK");
    let store = Arc::new(store_at(redis.url()).await);
    let (service, canary) = node(&store);
    assert_eq!(service.charge(EARLY).await.says(), says(200, "executed"));
    assert_eq!(canary.beat().await.expect("a beat"), None);
    assert_eq!(service.charge(EARLY).await.says(), says(200, "replayed"));
}

/// Only a beat can find it then, a second late.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_let_scripts_ask_what_it_evicts_takes_new_keys() {
    let redis = start().await;
    let proxy = CutProxy::start(redis.address());
    block_in_place(|| {
        for script in [RESERVE, CHANGE] {
            put_in(&redis, &proxy, (script, "'INFO'", "'INFX'"));
        }
    });
    let store = Arc::new(store_at(redis.url_through(proxy.address())).await);
    let (service, canary) = node(&store);
    assert_eq!(service.charge(EARLY).await.says(), says(200, "executed"));
    assert_eq!(canary.beat().await.expect("a beat"), None);
    block_in_place(|| press_out_alone(&redis, &record(&redis)));
    assert!(canary.beat().await.expect("a beat").is_some(), "it is reported");
    assert_eq!(service.charge(EARLY).await.says(), says(503, "store_regressed"));
}

/// A UUID of version 7 that was made then.
fn made_at(at: Timestamp) -> String {
    let millis = format!("{:012x}", at.as_micros() / 1000);
    format!("{}-{}-7000-8000-000000000001", &millis[..8], &millis[8..])
}

/// Its client's clock is ahead, so that it runs though the store has lost data; and then it is lost too.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_ran_after_a_loss_and_is_evicted_in_the_same_minute_does_not_run_again() {
    let redis = start().await;
    let clock = ManualClock::default();
    let options = options(redis.url()).clock(Arc::new(clock.clone()));
    let store = Arc::new(RedisStore::connect(options).await.expect("a store"));
    let canary = Canary::new(Arc::clone(&store) as Arc<dyn Store>).clock(Arc::new(clock.clone()));
    let (service, canary) = node_with(&store, canary);
    assert_eq!(service.charge(EARLY).await.says(), says(200, "executed"));
    block_in_place(|| press_out_alone(&redis, &record(&redis)));
    assert_eq!(service.charge(EARLY).await.says(), says(503, "store_regressed"));
    let first = canary.regression().expect("it is reported");
    clock.advance(Duration::from_secs(20));
    let young = made_at(first.found.plus(Duration::from_secs(305)));
    assert_eq!(service.charge(&young).await.says(), says(200, "executed"));
    assert_eq!(service.charge(&young).await.says(), says(200, "replayed"));
    block_in_place(|| press_out_alone(&redis, &key_of_ours(&redis, &format!("r:*{young}"))));
    assert_eq!(service.charge(&young).await.says(), says(503, "store_regressed"));
    assert_eq!(service.runs(), 2);
    let again = canary.regression().expect("it is reported");
    assert_eq!(again.found, first.found.plus(Duration::from_secs(20)));
    let audits = store.audit_log(AuditQuery::default()).await.expect("audits").records;
    assert_eq!(audits.len(), 1, "it is the same trouble: {audits:?}");
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
