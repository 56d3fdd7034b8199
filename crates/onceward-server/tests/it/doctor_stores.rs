//! MariaDB and Redis, as `onceward doctor` and `onceward migrate` see them.

use std::{collections::BTreeMap, net::TcpListener};

use onceward_testbed::{MariaDb, Redis, RedisCluster};
use serde_json::Value;

use crate::support::{binary, eventually};

/// The exit code, and for each name the worst verdict.
pub(crate) fn doctor(store: &str, class: &str) -> (Option<i32>, BTreeMap<String, String>) {
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

/// It is not there, is planned, made once, and then the one that is known.
pub(crate) fn is_made_once(store: &str) {
    let tell = |what: &str, list: &str| -> Value {
        let args = ["migrate", what, "-o", "json", "--store", store];
        let output = binary().args(args).output().expect("the binary runs");
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert!(told[list].is_array(), "{told}");
        told[list].clone()
    };
    assert_eq!(status(store), (Some(3), "absent".into()));
    let planned = tell("plan", "pending");
    assert_eq!(planned.as_array().map(Vec::len), Some(1), "{planned}");
    for text in ["name", "about"] {
        assert!(planned[0][text].as_str().is_some_and(|text| !text.is_empty()), "{planned}");
    }
    assert_eq!(status(store), (Some(3), "absent".into()), "a plan changes nothing");
    assert_eq!(tell("up", "applied"), planned);
    for _ in 0..2 {
        assert_eq!(status(store), (Some(0), "current".into()));
        assert_eq!(tell("plan", "pending"), Value::Array(Vec::new()));
        assert_eq!(tell("up", "applied"), Value::Array(Vec::new()));
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
    for name in [
        "server version",
        "primary",
        "one primary",
        "max_allowed_packet",
        "clock skew",
        "schema",
        "engine",
    ] {
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

/// The package of MariaDB brings the library of the cluster with it.
#[test]
fn a_galera_cluster_is_noticed_and_no_tables_are_made_in_it() {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port");
    let mariadb = MariaDb::start_with(&[
        "--binlog-format=ROW",
        "--wsrep-on=ON",
        "--wsrep-provider=/usr/lib/galera/libgalera_smm.so",
        "--wsrep-cluster-address=gcomm://",
        "--wsrep-node-address=127.0.0.1",
        &format!("--wsrep-provider-options=gmcast.listen_addr=tcp://{port}"),
    ]);
    // It takes connections before it takes statements that change anything.
    eventually("a cluster of one", || {
        mariadb.sql("mysql", "SHOW STATUS LIKE 'wsrep_ready'").contains("ON").then_some(())
    });
    let store = mariadb.url(&mariadb.create_database());
    assert_eq!(on(&store, "one primary"), (Some(2), "unsafe".to_owned()));
    let args = ["migrate", "up", "--store", &store];
    let output = binary().args(args).output().expect("the binary runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains("Galera"), "{stderr}");
    assert_eq!(status(&store).1, "absent");
}

/// The verdict on one thing, and the exit code.
pub(crate) fn on(store: &str, name: &str) -> (Option<i32>, String) {
    let (code, told) = doctor(store, "durable");
    (code, told.get(name).unwrap_or_else(|| panic!("no {name} in {told:?}")).clone())
}

#[test]
fn a_user_of_mariadb_who_may_not_do_all_that_the_store_does_is_told_what_is_missing() {
    let mariadb = MariaDb::shared();
    let name = mariadb.create_database();
    let user = format!("app_{name}");
    let owner = mariadb.url(&name);
    let store = owner.replace("root@", &format!("{user}:pw@"));
    mariadb.sql("mysql", &format!("CREATE USER {user} IDENTIFIED BY 'pw'"));
    let grant = |rights: &str| mariadb.sql(&name, &format!("GRANT {rights} ON {name}.* TO {user}"));
    grant("SELECT");
    let (safe, unsafe_) = ((Some(0), "ok".to_owned()), (Some(2), "unsafe".to_owned()));
    assert_eq!(on(&store, "permissions"), unsafe_, "no table can be made");
    grant("CREATE");
    assert_eq!(on(&store, "permissions"), safe);
    is_made_once(&owner);
    grant("INSERT, UPDATE");
    assert_eq!(on(&store, "permissions"), unsafe_, "nothing can be deleted");
    let args = ["doctor", "--store", &store];
    let output = binary().args(args).output().expect("the binary runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("DELETE on onceward_steps") && !said.contains("UPDATE on"), "{said}");
    grant("DELETE");
    assert_eq!(on(&store, "permissions"), safe);
    mariadb.sql(&name, &format!("REVOKE UPDATE ON {name}.* FROM {user}"));
    assert_eq!(on(&store, "permissions"), unsafe_, "nothing can be changed");
}

#[test]
fn tables_of_mariadb_that_are_not_as_they_were_made_are_noticed() {
    let mariadb = MariaDb::shared();
    let (safe, unsafe_) = ((Some(0), "ok".to_owned()), (Some(2), "unsafe".to_owned()));
    for (name, change) in [
        ("indexes", "ALTER TABLE onceward_records DROP INDEX record_due"),
        (
            "indexes",
            "ALTER TABLE onceward_records DROP INDEX record_key, ADD INDEX record_key (scope, `key`)",
        ),
        (
            "indexes",
            "ALTER TABLE onceward_records DROP INDEX record_key, ADD UNIQUE record_key (scope)",
        ),
        ("engine", "ALTER TABLE onceward_requests ENGINE = MyISAM"),
        ("permissions", "DROP TABLE onceward_aggregates"),
    ] {
        let database = mariadb.create_database();
        let store = mariadb.url(&database);
        is_made_once(&store);
        assert_eq!(on(&store, name), safe, "{change}");
        mariadb.sql(&database, change);
        assert_eq!(on(&store, name), unsafe_, "{change}");
    }
}

#[test]
fn a_binary_log_of_mariadb_that_would_stop_or_lose_writes_is_noticed() {
    let mariadb = MariaDb::start_with(&["--log-bin", "--sync-binlog=1", "--binlog-format=ROW"]);
    let store = mariadb.url(&mariadb.create_database());
    let (safe, unsafe_) = ((Some(0), "ok".to_owned()), (Some(2), "unsafe".to_owned()));
    for (name, good, bad) in [
        ("binlog_format", "'ROW'", "'STATEMENT'"),
        ("sync_binlog", "1", "0"),
        ("max_allowed_packet", "16777216", "1048576"),
    ] {
        assert_eq!(on(&store, name), safe, "{name}");
        mariadb.sql("mysql", &format!("SET GLOBAL {name} = {bad}"));
        assert_eq!(on(&store, name), unsafe_, "{name}");
        mariadb.sql("mysql", &format!("SET GLOBAL {name} = {good}"));
    }
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
fn a_redis_without_an_append_only_file_is_unsafe_unless_best_effort_is_declared() {
    let redis = Redis::start_forgetful();
    let store = redis.url();
    is_made_once(&store);
    assert_eq!(on(&store, "append-only file"), (Some(2), "unsafe".into()));
    let (code, told) = doctor(&store, "best-effort");
    assert_eq!((code, told["append-only file"].as_str()), (Some(0), "note"));
    for setting in [["appendfsync", "always"], ["appendonly", "yes"]] {
        redis.cli(&[&["CONFIG", "SET"][..], &setting].concat());
    }
    assert_eq!(on(&store, "append-only file"), (Some(0), "ok".into()));
}

#[test]
fn a_redis_whose_layout_does_not_let_this_version_in_is_unsafe() {
    let redis = Redis::start();
    let store = redis.url();
    is_made_once(&store);
    assert_eq!(redis.cli(&["GET", "{onceward:0}layout"]), "1 128 1");
    for (layout, code, verdict) in [
        ("1 128", 0, "ok"),
        ("2 128 1", 0, "note"),
        ("2 128 2", 2, "unsafe"),
        ("2 128", 2, "unsafe"),
        ("nothing of ours", 1, "failed"),
        ("1 128 1", 0, "ok"),
    ] {
        redis.cli(&["SET", "{onceward:0}layout", layout]);
        assert_eq!(on(&store, "schema"), (Some(code), verdict.into()), "{layout}");
    }
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
fn a_user_of_redis_needs_what_the_scripts_run_on_our_keys_and_no_more() {
    const RIGHTS: &str = "+evalsha +script|load +info +config|get +ping +time +exists +get +set +del \
        +incr +hdel +hexists +hget +hgetall +hincrby +hkeys +hlen +hmget +hset +hsetnx +hvals +zadd \
        +zcard +zcount +zrange +zrangebyscore +zrem +zrevrangebyscore";
    let redis = Redis::start();
    is_made_once(&redis.url());
    let store = redis.url().replace("redis://", "redis://teller:secret@");
    let (safe, unsafe_) = ((Some(0), "ok".to_owned()), (Some(2), "unsafe".to_owned()));
    for (keys, more, expected) in [
        ("~{onceward:*", "", &safe),
        ("~{onceward:*", "-zadd", &unsafe_),
        ("~{onceward:*", "-hvals", &unsafe_),
        ("~{other:*", "", &unsafe_),
        ("~*", "+@all", &safe),
    ] {
        let rights: Vec<&str> = RIGHTS.split_whitespace().chain(more.split_whitespace()).collect();
        let set = ["ACL", "SETUSER", "teller", "reset", "on", ">secret", keys];
        assert_eq!(redis.cli(&[&set[..], &rights].concat()).trim(), "OK");
        assert_eq!(&on(&store, "permissions"), expected, "{keys} {more}");
        if expected == &safe {
            // What doctor calls enough is enough to connect.
            let up = binary().args(["migrate", "up", "--store", &store]).output();
            let up = up.expect("the binary runs");
            assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
        }
    }
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
