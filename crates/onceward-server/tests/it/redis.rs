//! The binary on Redis: as a store that must be declared best-effort, and as a cache in front of another.

use std::os::unix::fs::PermissionsExt as _;

use onceward_testbed::{Postgres, Redis, RedisCluster};

use crate::support::{
    ALICE, Gateway, TOKEN, Upstream, binary, eventually, get, ok, post, refusal, tls::Authority,
};

const FIRST: &str = "order-0000000000000001";
const SECOND: &str = "order-0000000000000002";

fn settings(url: &str, more: &str) -> String {
    format!("[store]\nurl = \"{url}\"\n{more}{ALICE}")
}

/// What the binary says that does not start.
fn refused(toml: &str) -> String {
    let config = tempfile::NamedTempFile::new().expect("a file");
    let toml = format!(
        "config_version = 1\n[gateway]\nupstream = \"http://127.0.0.1:9\"\n\
         [scope]\nfrom = \"anonymous\"\n{toml}"
    );
    std::fs::write(config.path(), toml).expect("written");
    let ended = binary().args(["serve", "--config"]).arg(config.path()).output().expect("it ends");
    assert!(!ended.status.success());
    String::from_utf8(ended.stderr).expect("text")
}

#[test]
fn requests_are_replayed_from_redis_after_a_restart_of_the_gateway() {
    let redis = Redis::start();
    let upstream = Upstream::start(|_, _| ok("charged"));
    let toml = settings(&redis.url(), "durability = \"best-effort\"\n");
    for _ in 0..2 {
        let mut gateway = Gateway::with(upstream.address, &toml);
        let charged = post(gateway.address, FIRST, "{}", &[]);
        assert_eq!((charged.status, charged.text()), (200, "charged"));
        assert_eq!(get(gateway.admin, "/readyz").status, 200);
        gateway.signal("TERM");
        assert!(gateway.exit_status().success());
    }
    assert_eq!(upstream.count(), 1);
}

#[test]
fn two_gateways_share_a_cluster() {
    let url = RedisCluster::shared().url();
    let upstream = Upstream::start(|_, _| ok("charged"));
    let toml = settings(&url, "durability = \"best-effort\"\n");
    let (one, other) =
        (Gateway::with(upstream.address, &toml), Gateway::with(upstream.address, &toml));
    assert_eq!(post(one.address, FIRST, "{}", &[]).status, 200);
    assert!(post(other.address, FIRST, "{}", &[]).is_replay());
    assert_eq!(upstream.count(), 1);
}

#[test]
fn an_emptied_redis_runs_nothing_twice() {
    let redis = Redis::start();
    let upstream = Upstream::start(|_, _| ok("charged"));
    let toml = settings(&redis.url(), "durability = \"best-effort\"\n");
    let gateway = Gateway::with(upstream.address, &toml);
    assert_eq!(post(gateway.address, FIRST, "{}", &[]).status, 200);
    redis.cli(&["FLUSHALL"]);
    for key in [FIRST, SECOND] {
        let answer = refusal(&post(gateway.address, key, "{}", &[]));
        assert_eq!(answer, (503, "idempotency_store_regressed".to_owned()));
    }
    assert_eq!(upstream.count(), 1);
    let mut command = binary();
    command.args(["store", "acknowledge", "--reason", "emptied on purpose"]);
    command.env("ONCEWARD_ADMIN", format!("http://{}", gateway.admin));
    let ended = command.env("ONCEWARD_ADMIN_TOKEN", TOKEN).output().expect("it ends");
    assert!(ended.status.success(), "{ended:?}");
    let runs = || (post(gateway.address, SECOND, "{}", &[]).status == 200).then_some(());
    eventually("a key runs again", runs);
}

#[test]
fn without_best_effort_only_routes_without_effects_outside_are_taken() {
    let url = Redis::shared().url();
    for effects in ["", "[defaults]\neffects = \"external\"\n"] {
        let said = refused(&format!("[store]\nurl = \"{url}\"\n{effects}"));
        assert!(said.contains("durability = \"best-effort\""), "{said}");
    }
    let said = refused(&format!("[store]\nurl = \"{url}\"\ndurability = \"best\"\n"));
    assert!(said.contains("use one of durable, best-effort"), "{said}");
    let upstream = Upstream::start(|_, _| ok("counted"));
    let none = settings(&url, "[defaults]\neffects = \"none\"\n");
    let gateway = Gateway::with(upstream.address, &none);
    assert_eq!(post(gateway.address, SECOND, "{}", &[]).status, 200);
}

#[test]
fn what_redis_cannot_do_is_refused_with_what_to_do() {
    let url = "redis://:secret@127.0.0.1:1";
    let best_effort = format!("[store]\nurl = \"{url}\"\ndurability = \"best-effort\"\n");
    for (more, part) in [
        ("[defaults]\neffects = \"local\"\n", "postgres:// store only"),
        ("cache = \"redis://127.0.0.1:2\"\n", "store.cache is for a store that is slower"),
        ("cache = \"file:x\"\n", "store.cache is not redis://"),
        ("", "the Redis store"),
    ] {
        let said = refused(&format!("{best_effort}{more}"));
        assert!(said.contains(part), "{said}");
        assert!(!said.contains("secret"), "{said}");
    }
}

#[test]
fn what_an_operator_voids_is_not_replayed_from_the_cache() {
    let database = Postgres::shared().create_database();
    let redis = Redis::start_forgetful();
    let upstream = Upstream::start(|_, _| ok("charged"));
    let cache = format!("cache = \"{}\"\n[defaults]\nexpired = \"execute\"\n", redis.url());
    let toml = settings(&database.url(), &cache);
    // The one that is asked has the entry, and the void is made at the other.
    let (asked, other) =
        (Gateway::with(upstream.address, &toml), Gateway::with(upstream.address, &toml));
    assert_eq!(post(asked.address, FIRST, "{}", &[]).status, 200);
    assert!(post(asked.address, FIRST, "{}", &[]).is_replay());
    assert_eq!(redis.cli(&["DBSIZE"]), "1", "it is in the cache");
    let operate = |line: &[&str]| {
        let mut command = binary();
        command.args(line).env("ONCEWARD_ADMIN", format!("http://{}", other.admin));
        let ended = command.env("ONCEWARD_ADMIN_TOKEN", TOKEN).output().expect("it ends");
        assert!(ended.status.success(), "{ended:?}");
        String::from_utf8(ended.stdout).expect("text")
    };
    let listed = operate(&["keys", "list", "-o", "json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
    let id = listed["records"][0]["id"].as_str().expect("an id");
    operate(&["keys", "void", id, "--reason", "the wrong amount"]);
    let again = post(asked.address, FIRST, "{}", &[]);
    assert_eq!((again.status, again.is_replay()), (200, false), "{}", again.text());
    assert_eq!(again.header("idempotency-generation"), Some("2"));
    assert_eq!(upstream.count(), 2, "an operator said so");
    for gateway in [&asked, &other] {
        assert!(post(gateway.address, FIRST, "{}", &[]).is_replay());
    }
    // With the cache out of reach a void is refused, since it could not be seen by all.
    drop(redis);
    let mut command = binary();
    command.args(["keys", "void", id, "--reason", "again"]);
    command.env("ONCEWARD_ADMIN", format!("http://{}", other.admin));
    let ended = command.env("ONCEWARD_ADMIN_TOKEN", TOKEN).output().expect("it ends");
    assert!(!ended.status.success(), "{ended:?}");
    assert!(post(asked.address, FIRST, "{}", &[]).is_replay(), "from the database");
}

#[test]
fn a_redis_is_reached_over_tls_and_only_with_a_certificate_that_is_trusted() {
    let authority = Authority::new();
    authority.issue("redis");
    let path = |file: &str| authority.path(file).display().to_string();
    // Servers run as another user.
    for file in ["ca.crt", "redis.crt", "redis.key"] {
        let readable = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(path(file), readable).expect("readable");
    }
    let folder = authority.path("ca.crt").parent().expect("a folder").to_owned();
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).expect("readable");
    let (redis, port) =
        Redis::start_with_tls(&path("ca.crt"), &path("redis.crt"), &path("redis.key"));
    let url = format!("rediss://localhost:{port}");
    let upstream = Upstream::start(|_, _| ok("charged"));
    let config = tempfile::NamedTempFile::new().expect("a file");
    let toml = settings(&url, "durability = \"best-effort\"\n");
    let toml = format!(
        "config_version = 1\n[gateway]\nupstream = \"http://{}\"\n\
         [scope]\nfrom = \"anonymous\"\n{toml}",
        upstream.address
    );
    std::fs::write(config.path(), toml).expect("written");
    let serve = |trusted: &str| {
        let mut command = binary();
        let ports = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        command.args(["serve", "--config"]).arg(config.path()).args(ports);
        command.env("SSL_CERT_FILE", trusted);
        command
    };
    let gateway = Gateway::start(&mut serve(&path("ca.crt")));
    assert_eq!(post(gateway.address, FIRST, "{}", &[]).status, 200);
    assert!(post(gateway.address, FIRST, "{}", &[]).is_replay());
    assert_eq!(upstream.count(), 1);
    assert!(redis.cli(&["DBSIZE"]).parse::<u32>().expect("a number") > 0);
    // Somebody else's word is not enough.
    let stranger = Authority::new();
    let stranger = stranger.path("ca.crt").display().to_string();
    let ended = serve(&stranger).output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && said.contains("the Redis server"), "{said}");
}

#[test]
fn a_replay_comes_from_the_cache() {
    let database = Postgres::shared().create_database();
    let redis = Redis::start_forgetful();
    let upstream = Upstream::start(|_, _| ok("charged"));
    let cache = format!("cache = \"{}\"\n", redis.url());
    let gateway = Gateway::with(upstream.address, &settings(&database.url(), &cache));
    assert_eq!(post(gateway.address, FIRST, "{}", &[]).status, 200);
    assert_eq!(redis.cli(&["DBSIZE"]), "0", "who is not retried costs nothing");
    for _ in 0..3 {
        assert!(post(gateway.address, FIRST, "{}", &[]).is_replay());
    }
    assert_eq!(redis.cli(&["DBSIZE"]), "1");
    // What the database does not have any more can only come from the cache.
    database.psql("UPDATE onceward.records SET reply_body = 'x'::bytea");
    let replayed = post(gateway.address, FIRST, "{}", &[]);
    assert_eq!((replayed.is_replay(), replayed.text()), (true, "charged"));
    assert_eq!(upstream.count(), 1);
}
