//! The Redis servers of tests: they start, survive a crash, and leave nothing behind.

use onceward_testbed::{Redis, RedisCluster};

#[test]
fn what_was_acknowledged_survives_a_kill() {
    let mut redis = Redis::start();
    redis.cli(&["SET", "a", "1"]);
    redis.kill_9();
    redis.start_again();
    assert_eq!(redis.cli(&["GET", "a"]), "1");
}

#[test]
fn a_forgetful_server_forgets() {
    let mut redis = Redis::start_forgetful();
    redis.cli(&["SET", "a", "1"]);
    redis.kill_9();
    redis.start_again();
    assert_eq!(redis.cli(&["GET", "a"]), "");
}

#[test]
fn a_cluster_has_three_masters_and_goes_on_without_one() {
    let mut cluster = RedisCluster::start();
    let masters = cluster.masters();
    assert_eq!(masters.len(), 3, "{masters:?}");
    cluster.kill_9(masters[0]);
    cluster.wait_until_whole();
}
