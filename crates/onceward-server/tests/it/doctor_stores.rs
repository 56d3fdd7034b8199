//! The other stores, as `onceward doctor` and `onceward migrate` see them.

use std::collections::BTreeMap;

use onceward_testbed::{DynamoDb, MariaDb, Redis, RedisCluster};
use serde_json::Value;

use crate::support::binary;

/// The exit code, and for each name the worst verdict.
fn doctor(store: &str, class: &str) -> (Option<i32>, BTreeMap<String, String>) {
    let args = ["doctor", "-o", "json", "--store", store, "--class", class];
    let output = binary().args(args).output().expect("the binary runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{stderr}"));
    let mut verdicts: BTreeMap<String, String> = BTreeMap::new();
    for finding in told["findings"].as_array().expect("a list") {
        let text = |name: &str| finding[name].as_str().expect("text").to_owned();
        assert_eq!(text("verdict") != "ok", !text("advice").is_empty(), "{finding}");
        let worst = verdicts.entry(text("name")).or_insert_with(|| text("verdict"));
        if text("verdict") == "unsafe" {
            *worst = text("verdict");
        }
    }
    (output.status.code(), verdicts)
}

/// The exit code, and the standing of the schema.
fn status(store: &str) -> (Option<i32>, String) {
    let args = ["migrate", "status", "-o", "json", "--store", store];
    let output = binary().args(args).output().expect("the binary runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{stderr}"));
    (output.status.code(), told["standing"].as_str().expect("text").to_owned())
}

/// It is not there, is made once, and is then the one that is known.
fn is_made_once(store: &str) {
    assert_eq!(status(store), (Some(3), "absent".into()));
    for applied in [1, 0] {
        let args = ["migrate", "up", "-o", "json", "--store", store];
        let output = binary().args(args).output().expect("the binary runs");
        let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(told["applied"].as_array().expect("a list").len(), applied, "{told}");
        assert_eq!(status(store), (Some(0), "current".into()));
    }
}

#[test]
fn a_mariadb_that_syncs_its_commits_can_be_relied_on_and_another_cannot() {
    let mariadb = MariaDb::start();
    let store = mariadb.url(&mariadb.create_database());
    let (code, before) = doctor(&store, "durable");
    assert_eq!((code, before["schema"].as_str()), (Some(0), "note"), "{before:?}");
    is_made_once(&store);
    let (code, told) = doctor(&store, "durable");
    assert_eq!(code, Some(0), "{told:?}");
    for name in
        ["server version", "primary", "max_allowed_packet", "clock skew", "schema", "engine"]
    {
        assert_eq!(told[name], "ok", "{name}");
    }
    assert_eq!(told["innodb_flush_log_at_trx_commit"], "ok");
    mariadb.sql("mysql", "SET GLOBAL innodb_flush_log_at_trx_commit = 2");
    let (code, told) = doctor(&store, "durable");
    assert_eq!((code, told["innodb_flush_log_at_trx_commit"].as_str()), (Some(2), "unsafe"));
    let (code, told) = doctor(&store, "best-effort");
    assert_eq!((code, told["innodb_flush_log_at_trx_commit"].as_str()), (Some(0), "note"));
    mariadb.sql("mysql", "SET GLOBAL read_only = 1");
    let (code, told) = doctor(&store, "best-effort");
    assert_eq!((code, told["primary"].as_str()), (Some(2), "unsafe"));
}

#[test]
fn a_redis_that_syncs_each_write_is_durable_and_one_that_evicts_is_never_safe() {
    let redis = Redis::start();
    let store = redis.url();
    is_made_once(&store);
    let (code, told) = doctor(&store, "durable");
    assert_eq!(code, Some(0), "{told:?}");
    for name in
        ["server version", "primary", "eviction", "append-only file", "clock skew", "schema"]
    {
        assert_eq!(told[name], "ok", "{name}");
    }
    redis.cli(&["CONFIG", "SET", "appendfsync", "everysec"]);
    let (code, told) = doctor(&store, "durable");
    assert_eq!((code, told["append-only file"].as_str()), (Some(2), "unsafe"));
    let (code, told) = doctor(&store, "best-effort");
    assert_eq!((code, told["append-only file"].as_str()), (Some(0), "note"));
    redis.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let (code, told) = doctor(&store, "best-effort");
    assert_eq!((code, told["eviction"].as_str()), (Some(2), "unsafe"));
}

#[test]
fn a_cluster_is_asked_server_by_server_and_its_replicas_make_it_best_effort() {
    let cluster = RedisCluster::shared();
    let (code, told) = doctor(&cluster.url(), "durable");
    assert_eq!((code, told["replicas"].as_str()), (Some(2), "unsafe"), "{told:?}");
    let (code, told) = doctor(&cluster.url(), "best-effort");
    assert_eq!((code, told["primary"].as_str()), (Some(0), "ok"), "{told:?}");
}

#[test]
fn a_table_of_dynamodb_is_created_by_hand_and_examined_without_being_made() {
    let store = DynamoDb::shared().url("examined");
    let (code, told) = doctor(&store, "durable");
    assert_eq!((code, told["schema"].as_str()), (Some(0), "note"), "{told:?}");
    is_made_once(&store);
    let (code, told) = doctor(&store, "durable");
    assert_eq!(code, Some(0), "{told:?}");
    for name in ["table", "indexes", "clock skew", "schema"] {
        assert_eq!(told[name], "ok", "{name}");
    }
    assert_eq!(told["deletion protection"], "note");
}

#[test]
fn a_server_that_is_not_there_cannot_be_examined_and_its_password_is_not_told() {
    for store in ["mysql://u:secret@127.0.0.1:9/x", "redis://:secret@127.0.0.1:9"] {
        for command in [&["doctor"][..], &["migrate", "status"]] {
            let output = binary().args(command).args(["--store", store]).output().expect("it runs");
            assert_eq!(output.status.code(), Some(1), "{store}");
            let told = [output.stdout, output.stderr].concat();
            assert!(!String::from_utf8_lossy(&told).contains("secret"), "{store}");
        }
    }
}
