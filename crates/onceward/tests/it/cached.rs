//! A cache in front of a durable store: it saves work, and decides nothing.

use std::{sync::Arc, time::Duration};

use onceward::{
    CachedStore, KeyRing, MemoryStore, Policy, RingKey, Scope, SealedStore, SqliteOptions,
    SqliteStore, Store,
    clock::{Clock as _, ManualClock, SystemClock},
    record::State,
    store::{Ask, Reservation, Resolution, Resolve, Resolved, StoreErrorKind, Write},
    testing::{
        Fresh,
        samples::{another_request, ask, reply, retry},
    },
};
use onceward_testbed::{CutProxy, Redis};
use tempfile::TempDir;

use crate::{
    service::{ACME, EVIL, Service, charge, says},
    stores::postgres_store,
};

/// What is behind the cache.
#[derive(Clone, Copy)]
enum Behind {
    Memory,
    File,
    Postgres,
}

impl Behind {
    async fn open(self, clock: ManualClock) -> (Arc<dyn Store>, Option<TempDir>) {
        match self {
            Behind::Memory => (Arc::new(MemoryStore::with_clock(Arc::new(clock))), None),
            Behind::File => {
                let folder = tempfile::tempdir().expect("a folder");
                let options = SqliteOptions::new(folder.path().join("store.db"));
                let store = SqliteStore::open(options.clock(Arc::new(clock))).await;
                (Arc::new(store.expect("a store")), Some(folder))
            }
            Behind::Postgres => (Arc::new(postgres_store(clock).await), None),
        }
    }
}

/// Two nodes in front of one durable store, with one cache.
struct World {
    durable: Arc<dyn Store>,
    one: CachedStore,
    other: CachedStore,
    clock: ManualClock,
    _folder: Option<TempDir>,
}

impl World {
    async fn new(behind: Behind) -> World {
        World::at(behind, &Redis::shared().url()).await
    }

    async fn at(behind: Behind, url: &str) -> World {
        let clock = ManualClock::new(SystemClock.now());
        let (durable, _folder) = behind.open(clock.clone()).await;
        let node = async || cached(Arc::clone(&durable), url, clock.clone()).await;
        World { one: node().await, other: node().await, durable, clock, _folder }
    }

    /// Completes a request, and replays it once.
    async fn complete(&self, asked: &Ask) {
        let Reservation::Granted { lease, .. } =
            self.one.reserve(asked.clone()).await.expect("an answer")
        else {
            panic!("it is free");
        };
        let write = Write::Complete(reply("done"));
        let _ = self.one.write(&lease, write).await.expect("an answer");
        assert!(is_replay(&self.one, asked).await);
    }

    async fn void(&self, asked: &Ask) -> Result<Resolved, onceward::store::StoreError> {
        let record = self.durable.load(&asked.id).await.expect("an answer").expect("a record");
        let resolve = Resolve {
            id: record.id,
            generation: record.generation,
            fence: record.fence,
            resolution: Resolution::Void,
            reason: "anna: wrong amount".into(),
        };
        self.one.resolve(resolve).await
    }
}

async fn is_replay(store: &CachedStore, asked: &Ask) -> bool {
    match store.reserve(retry(asked)).await.expect("an answer") {
        Reservation::Granted { .. } => false,
        found if found.completed().is_some_and(|it| it.reply == reply("done")) => true,
        other => panic!("{other:?}"),
    }
}

/// The one entry of this cache, by its name.
fn entry(redis: &Redis) -> String {
    let keys = redis.cli(&["KEYS", "*e:*"]);
    assert_eq!(keys.lines().count(), 1, "{keys}");
    keys
}

async fn own_redis() -> Redis {
    tokio::task::spawn_blocking(Redis::start_forgetful).await.expect("a server")
}

async fn cached(inner: Arc<dyn Store>, url: &str, clock: ManualClock) -> CachedStore {
    let cached = CachedStore::new(inner, url).await.expect("a store");
    // A busy machine must not look like a cache that is down.
    cached.patience(Duration::from_secs(5)).clock(Arc::new(clock))
}

async fn fresh(behind: Behind, clock: ManualClock) -> Fresh {
    let (inner, folder) = behind.open(clock.clone()).await;
    let fresh = Fresh::from(cached(inner, &Redis::shared().url(), clock).await);
    match folder {
        Some(folder) => fresh.keeping(folder),
        None => fresh,
    }
}

onceward::store_suite!(cached_memory, |clock| async { fresh(Behind::Memory, clock).await });
onceward::store_suite!(cached_file, |clock| async { fresh(Behind::File, clock).await });
onceward::store_suite!(cached_postgres, |clock| async { fresh(Behind::Postgres, clock).await });

/// Each of these cases with each durable store behind the cache, as a test of its own.
macro_rules! behind_each {
    (@ $module:ident, $behind:ident, $($case:ident),+) => {
        mod $module {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(super::Behind::$behind).await;
            })+
        }
    };
    ($($case:ident),+ $(,)?) => {
        behind_each!(@ behind_memory, Memory, $($case),+);
        behind_each!(@ behind_file, File, $($case),+);
        behind_each!(@ behind_postgres, Postgres, $($case),+);
    };
}

behind_each!(
    a_replay_does_not_ask_the_durable_store,
    a_hit_is_compared_in_full,
    what_runs_is_never_in_the_cache,
    a_cache_that_is_down_or_comes_back_changes_no_answer,
    a_cache_that_was_never_there_changes_no_answer,
    the_key_of_the_cache_is_not_erased_as_that_of_a_client,
    a_flushed_cache_is_filled_again,
    a_poisoned_entry_is_ignored,
    an_entry_ends_before_its_record_does,
    an_entry_has_a_time_to_live_of_a_minute_at_most,
    a_void_is_seen_by_the_next_request_of_every_node,
    a_reply_that_was_read_before_a_void_does_not_come_back_after_it,
    a_void_that_the_cache_cannot_be_told_of_is_refused_and_nothing_has_happened,
);

async fn a_replay_does_not_ask_the_durable_store(behind: Behind) {
    let world = World::new(behind).await;
    let asked = ask("replayed-0001");
    world.complete(&asked).await;
    assert_eq!((world.one.hits(), world.other.hits()), (0, 0));
    assert!(is_replay(&world.one, &asked).await);
    assert!(is_replay(&world.other, &asked).await);
    assert_eq!((world.one.hits(), world.other.hits()), (1, 1));
}

async fn a_hit_is_compared_in_full(behind: Behind) {
    let world = World::new(behind).await;
    let asked = ask("compared-0001");
    world.complete(&asked).await;
    let other = another_request(&asked);
    let found = world.other.reserve(other.clone()).await.expect("an answer");
    let found = found.completed().expect("it is taken").fingerprint;
    assert_eq!((world.other.hits(), found), (1, asked.fingerprint));
    assert_ne!(found, other.fingerprint, "which the engine refuses");
}

async fn what_runs_is_never_in_the_cache(behind: Behind) {
    let world = World::new(behind).await;
    let asked = ask("running-0001");
    let _lease = world.one.reserve(asked.clone()).await.expect("an answer");
    for _ in 0..2 {
        let occupied = world.other.reserve(retry(&asked)).await.expect("an answer");
        assert!(matches!(occupied, Reservation::Occupied { .. }));
    }
    assert_eq!(world.other.hits(), 0);
}

async fn a_cache_that_is_down_or_comes_back_changes_no_answer(behind: Behind) {
    let mut redis = own_redis().await;
    let world = World::at(behind, &redis.url()).await;
    let asked = ask("down-0001");
    world.complete(&asked).await;
    redis.kill_9();
    assert!(is_replay(&world.one, &asked).await);
    assert!(is_replay(&world.one, &asked).await);
    assert!(!is_replay(&world.one, &ask("down-0002")).await, "a new key is granted");
    assert_eq!(world.one.hits(), 0);
    redis.start_again();
    // After a pause it is asked again, and filled again.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert!(is_replay(&world.one, &asked).await);
    assert!(is_replay(&world.one, &asked).await);
    assert_eq!(world.one.hits(), 1);
}

async fn a_cache_that_was_never_there_changes_no_answer(behind: Behind) {
    let world = World::at(behind, "redis://127.0.0.1:1").await;
    let asked = ask("never-there-0001");
    world.complete(&asked).await;
    assert!(is_replay(&world.other, &asked).await);
}

#[tokio::test]
async fn a_slow_cache_is_not_waited_for() {
    let proxy = CutProxy::start(Redis::shared().address());
    let world = World::at(Behind::Memory, &format!("redis://{}", proxy.address())).await;
    let asked = ask("slow-0001");
    world.complete(&asked).await;
    proxy.delay(Duration::from_secs(2));
    let hurried = world.one.patience(Duration::from_millis(25));
    let begun = std::time::Instant::now();
    for _ in 0..20 {
        assert!(is_replay(&hurried, &asked).await);
    }
    assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
}

/// A connection takes several answers to be made, and a request waits for one.
#[tokio::test]
async fn a_cache_to_which_it_is_far_comes_back_after_its_connection_broke() {
    let proxy = CutProxy::start(Redis::shared().address());
    let world = World::at(Behind::Memory, &format!("redis://{}", proxy.address())).await;
    let asked = ask("far-0001");
    world.complete(&asked).await;
    proxy.delay(Duration::from_millis(200));
    proxy.cut();
    let hurried = world.one.patience(Duration::from_millis(600));
    for _ in 0..10 {
        assert!(is_replay(&hurried, &asked).await);
        if hurried.hits() > 0 {
            return;
        }
        // For so long nobody asks.
        tokio::time::sleep(Duration::from_millis(1100)).await;
    }
    panic!("it was never reached again");
}

/// Erasing it would part the nodes: those that start later have another key.
async fn the_key_of_the_cache_is_not_erased_as_that_of_a_client(behind: Behind) {
    let world = World::new(behind).await;
    let of_cache = Scope::new("onceward-cache").expect("a scope");
    let refused = world.one.drop_scope_keys(&of_cache, "asked for").await.expect_err("refused");
    assert!(refused.to_string().contains("cache"), "{refused}");
    let of_client = Scope::new("acme").expect("a scope");
    assert_eq!(world.one.drop_scope_keys(&of_client, "asked for").await.expect("an answer"), 0);
}

async fn a_flushed_cache_is_filled_again(behind: Behind) {
    let redis = own_redis().await;
    let world = World::at(behind, &redis.url()).await;
    let asked = ask("flushed-0001");
    world.complete(&asked).await;
    redis.cli(&["FLUSHALL"]);
    assert!(is_replay(&world.one, &asked).await);
    assert_eq!(world.one.hits(), 0);
    assert!(is_replay(&world.one, &asked).await);
    assert_eq!(world.one.hits(), 1);
}

/// One of another record, one that was changed, one of another store, and no entry at all.
async fn a_poisoned_entry_is_ignored(behind: Behind) {
    let redis = own_redis().await;
    let world = World::at(behind, &redis.url()).await;
    let (victim, attacker) = (ask("victim-0001"), ask("attacker-0001"));
    world.complete(&victim).await;
    let place = entry(&redis);
    let copy = |from: &str, to: &str| redis.cli(&["COPY", from, to, "REPLACE"]);
    copy(&place, "spare");
    redis.cli(&["DEL", &place]);
    world.complete(&attacker).await;
    let other = entry(&redis);
    copy(&other, &place);
    assert!(is_replay(&world.other, &victim).await, "its own reply");
    assert_eq!(world.other.hits(), 0, "not by an entry of another record");
    for (at, byte) in [("0", "x"), ("40", "x"), ("100", "x"), ("-", "")] {
        copy("spare", &place);
        match at {
            "-" => redis.cli(&["SET", &place, "nonsense"]),
            at => redis.cli(&["SETRANGE", &place, at, byte]),
        };
        assert!(is_replay(&world.other, &victim).await);
        assert_eq!(world.other.hits(), 0, "changed at {at}");
    }
    copy("spare", &place);
    assert!(is_replay(&world.other, &victim).await);
    assert_eq!(world.other.hits(), 1, "the entry itself is good");
    let stranger = World::at(behind, &redis.url()).await;
    let granted = stranger.one.reserve(retry(&victim)).await.expect("an answer");
    assert!(matches!(granted, Reservation::Granted { .. }), "another store's entries are not ours");
}

/// The durable store decides what is expired, with a margin for clocks.
async fn an_entry_ends_before_its_record_does(behind: Behind) {
    let world = World::new(behind).await;
    let asked = ask("ends-0001");
    world.complete(&asked).await;
    assert!(is_replay(&world.one, &asked).await);
    assert_eq!(world.one.hits(), 1);
    world.clock.advance(asked.retention - Duration::from_secs(30));
    assert!(is_replay(&world.one, &asked).await, "it is still there");
    assert_eq!(world.one.hits(), 1, "and the durable store was asked");
    world.clock.advance(Duration::from_secs(30));
    let Reservation::Occupied { record, .. } =
        world.one.reserve(retry(&asked)).await.expect("an answer")
    else {
        panic!("a tombstone is there");
    };
    assert_eq!(record.state, State::Expired);
}

async fn an_entry_has_a_time_to_live_of_a_minute_at_most(behind: Behind) {
    let redis = own_redis().await;
    let world = World::at(behind, &redis.url()).await;
    world.complete(&ask("minute-0001")).await;
    let left: i64 = redis.cli(&["PTTL", &entry(&redis)]).parse().expect("a number");
    assert!((50_000..=60_000).contains(&left), "{left}");
}

async fn a_void_is_seen_by_the_next_request_of_every_node(behind: Behind) {
    let world = World::new(behind).await;
    let asked = ask("void-0001");
    world.complete(&asked).await;
    assert!(is_replay(&world.other, &asked).await);
    let hits = world.other.hits();
    assert!(matches!(world.void(&asked).await, Ok(Resolved::Applied(_))));
    let next = world.other.reserve(retry(&asked)).await.expect("an answer");
    let Reservation::Granted { lease, .. } = next else { panic!("{next:?}") };
    assert_eq!((lease.generation, world.other.hits()), (2, hits));
}

/// Somebody who has read the old reply before the void, and is slow to put it into the cache.
async fn a_reply_that_was_read_before_a_void_does_not_come_back_after_it(behind: Behind) {
    let redis = own_redis().await;
    let world = World::at(behind, &redis.url()).await;
    let asked = ask("void-0002");
    world.complete(&asked).await;
    let place = entry(&redis);
    redis.cli(&["COPY", &place, "late"]);
    assert!(matches!(world.void(&asked).await, Ok(Resolved::Applied(_))));
    let late = redis.cli(&["COPY", "late", &place]);
    assert_eq!(late, "0", "an entry never takes the place of a barrier");
    let next = world.other.reserve(retry(&asked)).await.expect("an answer");
    assert!(matches!(next, Reservation::Granted { .. }), "{next:?}");
    let barrier: i64 = redis.cli(&["PTTL", &place]).parse().expect("a number");
    assert!(barrier > 60_000, "it outlives every entry that was read before: {barrier}");
}

async fn a_void_that_the_cache_cannot_be_told_of_is_refused_and_nothing_has_happened(
    behind: Behind,
) {
    let mut redis = own_redis().await;
    let world = World::at(behind, &redis.url()).await;
    let asked = ask("void-0003");
    world.complete(&asked).await;
    redis.hold();
    let refused = world.void(&asked).await.expect_err("the cache does not hear");
    assert_eq!(refused.kind(), StoreErrorKind::Unavailable);
    assert!(refused.to_string().contains("nothing was done"), "{refused}");
    redis.go();
    assert!(is_replay(&world.other, &asked).await, "which is still right");
    assert!(matches!(world.void(&asked).await, Ok(Resolved::Applied(_))));
    let next = world.other.reserve(retry(&asked)).await.expect("an answer");
    assert!(matches!(next, Reservation::Granted { .. }), "{next:?}");
}

/// A node whose replies are sealed before they come to the cache.
fn sealed(inner: &Arc<CachedStore>) -> (Arc<SealedStore>, Service) {
    let ring = KeyRing::new([RingKey::new("2026", [1; 32])]).expect("a ring");
    let store = Arc::new(SealedStore::new(Arc::clone(inner) as Arc<dyn Store>, ring));
    let given = Arc::clone(&store);
    let work = |_| async { "a reply that nobody else may read" };
    (store, Service::on(move |_| given, Policy::required(), work))
}

/// What is in the cache outlives the key that opens it.
#[tokio::test]
async fn a_reply_in_the_cache_is_replayed_by_no_node_once_its_scope_was_erased() {
    const KEY: &str = "order-0000000000000001";
    let World { one, other, durable: _durable, _folder, .. } = World::new(Behind::File).await;
    let (one, other) = (Arc::new(one), Arc::new(other));
    let ((erasing, at_one), (_, at_other)) = (sealed(&one), sealed(&other));
    let of = |credential: &'static str| {
        let mut request = charge(KEY);
        let credential = http::HeaderValue::from_static(credential);
        request.headers_mut().insert(http::header::AUTHORIZATION, credential);
        request
    };
    for credential in [ACME, EVIL] {
        assert_eq!(at_one.send(of(credential)).await.says(), says(200, "executed"));
        for node in [&at_one, &at_other] {
            assert_eq!(node.send(of(credential)).await.says(), says(200, "replayed"));
        }
    }
    assert_eq!((one.hits(), other.hits()), (0, 2), "both replies are in the cache");

    let scope = Scope::of_credential(ACME.as_bytes());
    assert_eq!(erasing.drop_scope_keys(&scope, "ticket 9").await.expect("an answer"), 1);
    assert_eq!(at_one.send(of(ACME)).await.says(), says(410, "reply_not_stored"));
    assert_eq!(one.hits(), 1, "the entry was there, and nobody can open it");
    // Other nodes remember keys for half a minute.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(31)).await;
    tokio::time::resume();
    assert_eq!(at_other.send(of(ACME)).await.says(), says(410, "reply_not_stored"));
    let (_, at_new) = sealed(&other);
    assert_eq!(at_new.send(of(ACME)).await.says(), says(410, "reply_not_stored"));
    assert_eq!(other.hits(), 4, "of the entry, again");
    for node in [&at_one, &at_other] {
        assert_eq!(node.send(of(EVIL)).await.says(), says(200, "replayed"), "nobody else's");
    }
    assert_eq!((at_one.runs(), at_other.runs(), at_new.runs()), (2, 0, 0));
}
