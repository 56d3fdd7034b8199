//! Deliberate bugs in the scripts of the Redis store are found by the store suite.

use std::sync::Arc;

use onceward::{
    RedisOptions, RedisStore,
    clock::ManualClock,
    testing::{Fresh, suite},
};
use onceward_testbed::{CutProxy, Redis};
use tokio::task::block_in_place;

use crate::{
    bugs::{found_by, found_in_a_race_by},
    redis_evictions::{press_out_alone, record},
    redis_home::{node, options, store_at},
    service::says,
};

const KEY: &str = "order-0000000000000001";

macro_rules! script {
    ($flags:literal, $($file:literal),+) => {
        concat!(
            $flags,
            include_str!("../../src/store/redis/lua/common.lua"),
            $(include_str!(concat!("../../src/store/redis/lua/", $file))),+
        )
    };
}

pub(crate) const RESERVE: &str = script!("#!lua\n", "evicted.lua", "reserve.lua");
pub(crate) const WRITE: &str = script!("#!lua flags=allow-oom\n", "write.lua");
pub(crate) const CHANGE: &str = script!("#!lua flags=allow-oom\n", "evicted.lua", "change.lua");

const PULSE: &str = script!("#!lua flags=allow-oom\n", "pulse.lua");

/// In this script, this text by that.
pub(crate) type Bug = (&'static str, &'static str, &'static str);

const NO_FENCE: Bug = (WRITE, " or is[3] ~= ARGV[8]", "");
const NO_ATTEMPT: Bug = (WRITE, " or is[2] ~= ARGV[7]", "");
const NO_STATE: Bug = (WRITE, "is[1] ~= 'in_progress' or ", "");
const RELEASES_WHAT_HAS_STEPS: Bug = (WRITE, "(is[6] == 'r' and what == 'release')", "false");
const SHORTENS: Bug = (WRITE, "math.max(tonumber(is[4]), ", "math.max(0, ");
const FORGETS_RETENTION: Bug = (WRITE, "text(now + tonumber(is[5]))", "text(now)");
const INSERTS_WITHOUT_CHECK: Bug = (RESERVE, "if #found > 0 then", "if false then");
/// A lease that is over makes the record vanish, as a time to live would.
const LEASE_AS_TIME_TO_LIVE: Bug = (
    RESERVE,
    "local found = redis.call('HGETALL', KEYS[1])",
    "local lease = redis.call('HGET', KEYS[1], 'l')\n\
     if lease and tonumber(lease) <= now then redis.call('DEL', KEYS[1]) end\n\
     local found = redis.call('HGETALL', KEYS[1])",
);
const LEASE_NOT_IN_THE_INDEX: Bug = (RESERVE, "if ARGV[8] ~= '' then", "if false then");
const NO_STAMP: Bug = (CHANGE, "if stamp ~= ARGV[6] and not is_done then", "if false then");

const NO_LOOK_FOR_EVICTIONS: Bug = (RESERVE, "if has_evicted(ARGV[3]) then", "if false then");
const EVICTIONS_FORGOTTEN: Bug = (
    PULSE,
    "redis.call('HGET', KEYS[2], 'evicted') or '- 0'",
    "string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') .. ' 1'",
);

/// What comes to the server through this proxy has this bug.
pub(crate) fn put_in(redis: &Redis, proxy: &CutProxy, (script, from, to): Bug) {
    assert!(script.contains(from), "no {from:?} in {script}");
    let digest = |script: &str| redis.cli(&["SCRIPT", "LOAD", script]);
    let (right, wrong) = (digest(script), digest(&script.replace(from, to)));
    proxy.replace(right.as_bytes(), wrong.as_bytes());
}

/// A store with a bug. Scripts are called by their digest: it is another one that arrives.
async fn broken(clock: ManualClock, bug: Option<Bug>) -> Fresh {
    let redis = Redis::shared();
    let proxy = CutProxy::start(redis.address());
    if let Some(bug) = bug {
        put_in(redis, &proxy, bug);
    }
    let prefix = format!("bugs_{:016x}", rand::random::<u64>());
    let options = RedisOptions::best_effort(redis.url_through(proxy.address()));
    let options = options.prefix(prefix).buckets(3).clock(Arc::new(clock));
    Fresh::from(RedisStore::connect(options).await.expect("a store")).keeping(proxy)
}

#[test]
fn a_script_that_does_not_look_at_fence_or_attempt_is_found() {
    for bug in [NO_FENCE, NO_ATTEMPT] {
        found_by(broken, bug, suite::writing::a_write_needs_its_attempt_and_its_fence);
    }
}

#[test]
fn a_script_that_does_not_look_at_the_state_is_found() {
    found_by(broken, NO_STATE, suite::writing::a_late_release_by_the_unknown_attempt_is_refused);
}

#[test]
fn a_script_that_calls_work_with_steps_failed_is_found() {
    found_by(broken, RELEASES_WHAT_HAS_STEPS, suite::resuming::releasing_with_steps_made_suspends);
}

#[test]
fn a_script_that_shortens_a_lease_is_found() {
    found_by(broken, SHORTENS, suite::writing::renewing_never_shortens_a_lease);
}

#[test]
fn a_script_that_forgets_retention_is_found() {
    found_by(broken, FORGETS_RETENTION, suite::writing::completing_starts_retention);
}

#[test]
fn a_lease_that_the_sweeper_does_not_hear_of_is_found() {
    found_by(
        broken,
        LEASE_NOT_IN_THE_INDEX,
        suite::leases::sweep_moves_records_on_by_their_effects,
    );
}

#[test]
fn a_reserve_that_does_not_look_first_is_found() {
    found_by(broken, INSERTS_WITHOUT_CHECK, suite::reserving::a_running_record_is_occupied);
}

#[test]
fn a_lease_that_takes_the_record_with_it_is_found() {
    found_by(
        broken,
        LEASE_AS_TIME_TO_LIVE,
        suite::leases::a_vanished_attempt_that_may_have_acted_is_unknown_to_the_next,
    );
}

#[test]
fn a_change_that_does_not_look_at_the_stamp_is_found() {
    found_in_a_race_by(
        broken,
        NO_STAMP,
        suite::racing::of_100_concurrent_reserves_of_a_free_record_exactly_one_is_granted,
    );
}

/// Until the next beat, and that is a second too late.
#[tokio::test(flavor = "multi_thread")]
async fn a_reserve_that_does_not_ask_what_was_evicted_runs_it_again() {
    let redis = tokio::task::spawn_blocking(Redis::start).await.expect("a server");
    let proxy = CutProxy::start(redis.address());
    block_in_place(|| put_in(&redis, &proxy, NO_LOOK_FOR_EVICTIONS));
    let store = Arc::new(store_at(redis.url_through(proxy.address())).await);
    let (service, canary) = node(&store);
    assert_eq!(service.charge(KEY).await.says(), says(200, "executed"));
    block_in_place(|| press_out_alone(&redis, &record(&redis)));
    assert_eq!(service.charge(KEY).await.says(), says(200, "executed"));
    assert_eq!(service.runs(), 2);
    assert!(canary.beat().await.expect("a beat").is_some(), "too late");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_beat_that_forgets_what_was_evicted_before_lets_a_later_process_run_it_again() {
    let redis = tokio::task::spawn_blocking(Redis::start).await.expect("a server");
    let proxy = CutProxy::start(redis.address());
    block_in_place(|| put_in(&redis, &proxy, EVICTIONS_FORGOTTEN));
    let options = options(redis.url_through(proxy.address()));
    let connect = async || Arc::new(RedisStore::connect(options.clone()).await.expect("a store"));
    let (service, canary) = node(&connect().await);
    assert_eq!(service.charge(KEY).await.says(), says(200, "executed"));
    drop((service, canary));
    block_in_place(|| press_out_alone(&redis, &record(&redis)));
    let (service, _canary) = node(&connect().await);
    assert_eq!(service.charge(KEY).await.says(), says(200, "executed"));
}
