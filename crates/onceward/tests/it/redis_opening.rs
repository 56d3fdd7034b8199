//! Which Redis servers are taken, and which are not.

use onceward::{
    RedisOptions, RedisStore, Store as _,
    record::State,
    store::{RedisConnectError, StoreErrorKind, Write},
    testing::samples::{ask, reply},
};
use onceward_testbed::{Redis, RedisCluster};

use crate::redis_home::{grant, load, options};

async fn refusal(url: String) -> RedisConnectError {
    RedisStore::connect(options(url)).await.expect_err("it is refused")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_evicts_is_refused() {
    let start = || Redis::start_with(&["--maxmemory-policy", "allkeys-lru"]);
    let redis = tokio::task::spawn_blocking(start).await.expect("a server");
    let refused = refusal(redis.url()).await;
    assert!(matches!(&refused, RedisConnectError::Evicts(policy) if policy == "allkeys-lru"));
    assert!(refused.to_string().contains("noeviction"), "{refused}");
    redis.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    RedisStore::connect(options(redis.url())).await.expect("it is taken");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_refused() {
    let master = tokio::task::spawn_blocking(Redis::start).await.expect("a server");
    let replica = tokio::task::block_in_place(|| master.replica_through(master.address()));
    let refused = refusal(replica.url()).await;
    assert!(matches!(refused, RedisConnectError::Replica), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_a_cluster_is_not_taken_for_a_server_of_its_own_nor_the_reverse() {
    let cluster = tokio::task::spawn_blocking(RedisCluster::shared).await.expect("a Cluster");
    let refused = refusal(cluster.nodes()[0].url()).await;
    assert!(
        matches!(refused, RedisConnectError::Kind(_) | RedisConnectError::Replica),
        "{refused}"
    );
    let single = Redis::shared().url().replace("redis://", "redis+cluster://");
    refusal(single).await;
}

#[tokio::test]
async fn a_server_that_is_not_there_is_said_to_be_unreachable() {
    let refused = refusal("redis://127.0.0.1:1".to_owned()).await;
    assert!(matches!(refused, RedisConnectError::Unreachable(_)), "{refused}");
    let refused = refusal("http://127.0.0.1:1".to_owned()).await;
    assert!(matches!(refused, RedisConnectError::Settings(_)), "{refused}");
}

/// All processes find a record in the same place.
#[tokio::test]
async fn a_store_keeps_its_number_of_buckets() {
    let url = Redis::shared().url();
    let prefix = format!("home_{:016x}", rand::random::<u64>());
    let options =
        |buckets| RedisOptions::best_effort(url.clone()).prefix(prefix.clone()).buckets(buckets);
    let first = RedisStore::connect(options(7)).await.expect("a store");
    let asked = ask("same-place-0001");
    let lease = grant(&first, &asked).await;
    let second = RedisStore::connect(options(64)).await.expect("a store");
    let _ = second.write(&lease, Write::Complete(reply("done"))).await.expect("an answer");
    assert_eq!(load(&first, &asked).await.state, State::Completed);
}

#[tokio::test]
async fn a_layout_of_a_version_that_does_not_let_this_one_in_is_refused() {
    let redis = Redis::shared();
    let prefix = format!("home_{:016x}", rand::random::<u64>());
    let options = RedisOptions::best_effort(redis.url()).prefix(prefix.clone());
    for layout in ["2 128", "2 128 2"] {
        redis.cli(&["SET", &format!("{{{prefix}:0}}layout"), layout]);
        let refused = RedisStore::connect(options.clone()).await.expect_err("it is refused");
        assert!(matches!(refused, RedisConnectError::Newer { found: 2, known: 1 }), "{refused}");
    }
    redis.cli(&["SET", &format!("{{{prefix}:0}}layout"), "2 128 1"]);
    RedisStore::connect(options).await.expect("it is let in");
}

#[tokio::test]
async fn no_key_of_the_store_has_a_time_to_live() {
    let prefix = format!("home_{:016x}", rand::random::<u64>());
    let redis = Redis::shared();
    let options = RedisOptions::best_effort(redis.url()).prefix(prefix.clone());
    let store = RedisStore::connect(options).await.expect("a store");
    let lease = grant(&store, &ask("lives-0001")).await;
    let _ = store.write(&lease, Write::Complete(reply("done"))).await.expect("an answer");
    let _lease = grant(&store, &ask("lives-0002")).await;
    let keys = redis.cli(&["KEYS", &format!("{{{prefix}:*")]);
    assert!(keys.lines().count() > 8, "{keys}");
    for key in keys.lines() {
        assert_eq!(redis.cli(&["TTL", key]), "-1", "{key}");
    }
}

#[tokio::test]
async fn a_damaged_record_is_an_error_and_not_an_absent_one() {
    let prefix = format!("home_{:016x}", rand::random::<u64>());
    let redis = Redis::shared();
    let options = RedisOptions::best_effort(redis.url()).prefix(prefix.clone());
    let store = RedisStore::connect(options).await.expect("a store");
    let asked = ask("damaged-0001");
    let lease = grant(&store, &asked).await;
    let _ = store.write(&lease, Write::Complete(reply("done"))).await.expect("an answer");
    let keys = redis.cli(&["KEYS", &format!("{{{prefix}:*}}r:*")]);
    for (field, value) in [("p", "x"), ("s", "finished"), ("r", ""), ("a", "1")] {
        let before = redis.cli(&["HGET", &keys, "s"]);
        assert_eq!(redis.cli(&["HSET", &keys, field, value]), "0");
        let error = store.load(&asked.id).await.expect_err("it cannot be read");
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{field}");
        if field == "s" {
            redis.cli(&["HSET", &keys, "s", &before]);
        }
    }
    let error = store.reserve(ask("damaged-0001")).await.expect_err("it cannot be read");
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    // Others are not held up by it.
    store.sweep(100).await.expect("a sweep");
    store.reap(100).await.expect("a reap");
}
