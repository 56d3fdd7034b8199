//! What the Redis store asks of its server: one script for what every request needs, and what time it is.

use std::time::Duration;

use onceward::{
    Store as _,
    clock::{Clock as _, SystemClock, Timestamp},
    store::{Reservation, Resolution, Resolve, Resolved, Write, Written},
    testing::samples::{LEASE, RETENTION, ask, reply, retry},
};
use onceward_testbed::{CutProxy, Redis};
use tokio::task::block_in_place;

use crate::{
    redis_bugs::{RESERVE, WRITE, put_in},
    redis_home::{grant, load, store_at},
};

/// How often the server was asked to run a script.
fn scripts(redis: &Redis) -> u64 {
    let told = redis.cli(&["INFO", "commandstats"]);
    let calls = |name: &str| {
        let line = told.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":calls="));
        let count = line.and_then(|line| line.split(',').next()?.parse::<u64>().ok());
        count.unwrap_or_default()
    };
    ["cmdstat_evalsha", "cmdstat_eval", "cmdstat_fcall"].map(calls).iter().sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_every_request_needs_is_one_script_each() {
    let redis = tokio::task::spawn_blocking(Redis::start_forgetful).await.expect("a server");
    let store = store_at(redis.url()).await;
    let mut before = scripts(&redis);
    let mut cost = |what: &str, calls: u64| {
        let after = scripts(&redis);
        assert_eq!(after - before, calls, "{what}");
        before = after;
    };
    let asked = ask("counted-0001");
    let lease = grant(&store, &asked).await;
    cost("a reserve that is granted", 1);
    let busy = store.reserve(retry(&asked)).await.expect("reserve answers");
    assert!(matches!(busy, Reservation::Occupied { .. }), "{busy:?}");
    cost("a reserve that finds work in progress", 1);
    let renewed = store.write(&lease, Write::Renew(2 * LEASE)).await.expect("write answers");
    assert_eq!(renewed, Written::Applied);
    cost("a renewal", 1);
    let completed = store.write(&lease, Write::Complete(reply("done"))).await;
    assert_eq!(completed.expect("write answers"), Written::Applied);
    cost("a complete", 1);
    let replay = store.reserve(retry(&asked)).await.expect("reserve answers");
    assert!(replay.completed().is_some(), "{replay:?}");
    cost("a replay", 1);
    // Its twin: what hardly anybody needs is decided here, between a look and a change.
    let resolve = Resolve {
        id: lease.id.clone(),
        generation: lease.generation,
        fence: lease.fence,
        resolution: Resolution::Void,
        reason: "ticket 7".into(),
    };
    let resolved = store.resolve(resolve).await.expect("resolve answers");
    assert!(matches!(resolved, Resolved::Applied(_)), "{resolved:?}");
    cost("a void", 2);
}

/// How a script learns what time it is.
const BY_THE_SERVER: &str = "return tonumber(t[1]) * 1000000 + tonumber(t[2])";

/// The same on a server whose clock is a day ahead.
const A_DAY_AHEAD: &str = "return (tonumber(t[1]) + 86400) * 1000000 + tonumber(t[2])";

/// Within a minute of this distance from now.
fn assert_is_near(at: Timestamp, distance: Duration, what: &str) {
    let off = at.as_micros() - SystemClock.now().plus(distance).as_micros();
    assert!(off.abs() < 60_000_000, "{what}: {off} microseconds off");
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_and_retention_end_by_the_clock_of_the_server_and_not_by_ours() {
    let day = Duration::from_secs(24 * 60 * 60);
    for (ahead, time) in [(Duration::ZERO, BY_THE_SERVER), (day, A_DAY_AHEAD)] {
        let redis = tokio::task::spawn_blocking(Redis::shared).await.expect("a server");
        let proxy = CutProxy::start(redis.address());
        for script in [RESERVE, WRITE] {
            block_in_place(|| put_in(redis, &proxy, (script, BY_THE_SERVER, time)));
        }
        let store = store_at(redis.url_through(proxy.address())).await;
        let asked = ask("clocks-0001");
        let lease = grant(&store, &asked).await;
        let granted = load(&store, &asked).await;
        assert_is_near(granted.lease_until, ahead + LEASE, "the lease");
        assert_is_near(granted.created_at, ahead, "the record");
        let renewed = store.write(&lease, Write::Renew(5 * LEASE)).await.expect("write answers");
        assert_eq!(renewed, Written::Applied);
        let renewed = load(&store, &asked).await;
        assert_is_near(renewed.lease_until, ahead + 5 * LEASE, "the renewed lease");
        let completed = store.write(&lease, Write::Complete(reply("done"))).await;
        assert_eq!(completed.expect("write answers"), Written::Applied);
        let completed = load(&store, &asked).await;
        assert_is_near(completed.expires_at, ahead + RETENTION, "the retention");
    }
}
