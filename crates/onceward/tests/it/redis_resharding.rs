//! A slot of a Cluster on its way to another node, while its keys are partly here and partly there. A
//! script that ran then would stop at the first key that is elsewhere.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
};

use onceward::{
    RedisOptions, RedisStore, Store as _,
    record::State,
    store::{Reservation, Resolution, Resolve, Resolved, StoreErrorKind, Write, Written},
    testing::samples::{ask, reply, retry},
};
use onceward_testbed::RedisCluster;
use tokio::task::{JoinSet, block_in_place};

use crate::redis_home::{grant, insist, load, node};

async fn cluster() -> RedisCluster {
    tokio::task::spawn_blocking(RedisCluster::start).await.expect("a Cluster")
}

/// A store of few buckets, and what its keys begin with.
async fn store(cluster: &RedisCluster, buckets: u16) -> (Arc<RedisStore>, String) {
    let prefix = format!("moved_{:016x}", rand::random::<u64>());
    let options = RedisOptions::best_effort(cluster.url()).prefix(&*prefix).buckets(buckets);
    (Arc::new(RedisStore::connect(options).await.expect("a store")), prefix)
}

/// Which keys of a bucket are there already, by their names without its tag.
type Moved = fn(&str) -> bool;

/// Every way in which the keys of one record can be divided, as far as scripts are concerned.
const MOVED: [(&str, Moved); 5] = [
    ("nothing", |_| false),
    ("the record", |key| key.starts_with("r:")),
    ("the indexes", |key| key.len() == 1),
    ("all but the record", |key| !key.starts_with("r:")),
    ("all but what is counted", |key| !key.starts_with("writers")),
];

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_changed_by_halves_while_a_slot_is_on_its_way() {
    let cluster = cluster().await;
    for (what, moved) in MOVED {
        let (store, prefix) = store(&cluster, 1).await;
        let (done, running) = (ask("done-0001"), ask("running-0001"));
        let ended = grant(&store, &done).await;
        let _ = store.write(&ended, Write::Complete(reply("before"))).await.expect("an answer");
        let lease = grant(&store, &running).await;
        let tag = format!("{{{prefix}:0}}");
        let (slot, from) = block_in_place(|| cluster.place_of(&tag));
        let to = block_in_place(|| cluster.masters());
        let to = to.into_iter().find(|node| *node != from).expect("another master");
        block_in_place(|| {
            cluster.begin_move(slot, from, to);
            cluster.move_keys(slot, from, to, |key| moved(key.strip_prefix(&tag).expect("a tag")));
        });
        let void = Resolve {
            id: done.id.clone(),
            generation: 1,
            fence: ended.fence,
            resolution: Resolution::Void,
            reason: "ticket 7".into(),
        };
        let voided = store.resolve(void.clone()).await;
        let completed = store.write(&lease, Write::Complete(reply("done"))).await;
        let granted = store.reserve(ask("new-0001")).await;
        for error in [voided.as_ref().err(), completed.as_ref().err(), granted.as_ref().err()] {
            let kind = error.map(onceward::store::StoreError::kind);
            assert!(matches!(kind, None | Some(StoreErrorKind::Unavailable)), "{what}: {error:?}");
        }
        block_in_place(|| cluster.end_move(slot, from, to));
        // What was not done was not done by halves, and can be done now.
        if voided.is_err() {
            let record = insist(|| store.load(&done.id)).await;
            let record = record.unwrap_or_else(|| panic!("{what} moved: the record is gone"));
            assert_eq!(record.state, State::Completed, "{what}");
            let again = insist(|| store.reserve(retry(&done))).await;
            assert!(matches!(again, Reservation::Occupied { .. }), "{what}: {again:?}");
            let resolved = insist(|| store.resolve(void.clone())).await;
            assert!(matches!(resolved, Resolved::Applied(_)), "{what}: {resolved:?}");
        }
        if completed.is_err() {
            assert_eq!(load(&store, &running).await.state, State::InProgress, "{what}");
            let stats = store.stats().await.expect("an answer");
            let counted = stats.of(State::InProgress).records + u64::from(granted.is_err());
            assert_eq!(counted, 2, "{what}: the indexes tell of it: {stats:?}");
            let written = insist(|| store.write(&lease, Write::Complete(reply("done")))).await;
            assert_eq!(written, Written::Applied, "{what}");
        }
        if granted.is_err() {
            let _lease = grant(&store, &ask("new-0001")).await;
        }
    }
}

/// Two ask for each key at the same time, and complete it.
async fn ask_twice(store: Arc<RedisStore>, worker: usize, stop: Arc<AtomicBool>) -> Vec<String> {
    let mut keys = Vec::new();
    for number in 0.. {
        if stop.load(SeqCst) {
            break;
        }
        let key = format!("moving-{worker:02}-{number:08}");
        let asked = ask(&key);
        let other = retry(&asked);
        let granted = AtomicU32::new(0);
        let one = async |ask: onceward::store::Ask| {
            if let Reservation::Granted { lease, .. } = insist(|| store.reserve(ask.clone())).await
            {
                granted.fetch_add(1, SeqCst);
                let written = insist(|| store.write(&lease, Write::Complete(reply("done")))).await;
                assert!(matches!(written, Written::Applied | Written::AlreadyMine(Some(_))));
            }
        };
        tokio::join!(one(asked.clone()), one(other));
        assert_eq!(granted.load(SeqCst), 1, "{key}");
        keys.push(key);
    }
    keys
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_that_are_moved_under_load_lose_nothing_and_grant_nothing_twice() {
    const BUCKETS: u16 = 4;
    let cluster = cluster().await;
    let (store, prefix) = store(&cluster, BUCKETS).await;
    let (service, canary) = node(&store);
    let epoch = store.epoch();
    let stop = Arc::new(AtomicBool::new(false));
    let loads: JoinSet<_> =
        (0..8).map(|worker| ask_twice(Arc::clone(&store), worker, Arc::clone(&stop))).collect();
    block_in_place(|| {
        for bucket in (0..BUCKETS).cycle().take(8) {
            let (slot, from) = cluster.place_of(&format!("{{{prefix}:{bucket}}}"));
            let to = cluster.masters().into_iter().find(|node| *node != from);
            let to = to.expect("another master");
            cluster.begin_move(slot, from, to);
            cluster.move_keys(slot, from, to, |_| rand::random());
            cluster.end_move(slot, from, to);
        }
    });
    stop.store(true, SeqCst);
    let keys = loads.join_all().await.concat();
    assert!(keys.len() > 50, "{} keys", keys.len());
    assert!(store.epoch() > epoch, "the server of some buckets is another one");
    for key in &keys {
        let id = ask(key).id;
        let record = insist(|| store.load(&id)).await.expect("a record");
        assert_eq!((record.state, record.attempts), (State::Completed, 1), "{key}");
    }
    let stats = store.stats().await.expect("an answer");
    let counts = [State::Completed, State::InProgress].map(|state| stats.of(state).records);
    assert_eq!(counts, [keys.len() as u64, 0], "the indexes too");
    // Nothing was lost, and nobody says so.
    assert_eq!(insist(|| canary.beat()).await, None);
    assert_eq!(service.charge("order-0000000000000001").await.status, 200);
}
