//! Strangers on one database: nodes that want the same keys at once, and records that others have locked.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use onceward::{
    PgOptions, PgStore, Store as _,
    store::{Reservation, Write, Written},
    testing::samples::{ask, reply, retry},
};
use onceward_testbed::Postgres;
use rand::{SeedableRng as _, rngs::StdRng, seq::SliceRandom as _};
use tokio::{sync::Barrier, task::JoinSet};

use crate::postgres_home::{Home, copy, one, run};

const ROUNDS: usize = 40;
const KEYS: usize = 150;

/// A call that comes to an error after so long has stood behind others for too long.
const PATIENCE: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn of_two_nodes_that_reserve_the_same_new_keys_at_once_each_key_is_granted_to_one() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let database = Postgres::shared().create_database();
    let home = Home::at(database.url(), |options| options).await;
    let other = PgOptions::new(&*home.url).schema(&*home.schema);
    let other = Arc::new(PgStore::connect(other).await.expect("a store"));
    let mut slowest = Duration::ZERO;
    for round in 0..ROUNDS {
        let barrier = Arc::new(Barrier::new(2 * KEYS));
        let mut calls = JoinSet::new();
        for store in [&home.store, &other] {
            // Each node has an order of its own.
            let mut keys: Vec<usize> = (0..KEYS).collect();
            keys.shuffle(&mut random);
            for key in keys {
                let (store, barrier) = (Arc::clone(store), Arc::clone(&barrier));
                calls.spawn(async move {
                    barrier.wait().await;
                    let begun = Instant::now();
                    let answer = store.reserve(ask(&format!("crowd-{round:03}-{key:04}"))).await;
                    (key, answer, begun.elapsed())
                });
            }
        }
        let mut grants = HashMap::<usize, u32>::new();
        for (key, answer, took) in calls.join_all().await {
            match answer.unwrap_or_else(|error| panic!("round {round}, {key}: {error:?}")) {
                Reservation::Granted { .. } => *grants.entry(key).or_default() += 1,
                Reservation::Occupied { .. } => {}
                other => panic!("round {round}, {key}: {other:?}"),
            }
            slowest = slowest.max(took);
        }
        assert_eq!(grants.len(), KEYS, "round {round}");
        assert!(grants.values().all(|times| *times == 1), "round {round}: {grants:?}");
    }
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    let deadlocks: i64 = one(&mut home.connection().await, deadlocks).await;
    println!("the slowest call took {slowest:?}; {deadlocks} deadlocks");
    assert!(slowest < PATIENCE, "a call took {slowest:?}");
}

const LOCKED: usize = 8;

/// Twice as many as the store has connections for those that are looked at one by one.
#[tokio::test(flavor = "multi_thread")]
async fn strangers_go_through_while_many_records_are_locked_by_users_transactions() {
    let home = Home::new().await;
    let mut locked = Vec::new();
    for number in 0..LOCKED {
        locked.push(home.grant(&ask(&format!("locked-{number:04}"))).await);
    }
    let replayed = ask("replayed-0001");
    let lease = home.grant(&replayed).await;
    home.write(&lease, Write::Complete(reply("done"))).await;
    // What has failed before is looked at by itself when it is asked for again.
    let mut failed = Vec::new();
    for number in 0..4 {
        let asked = ask(&format!("failed-{number:04}"));
        let lease = home.grant(&asked).await;
        home.write(&lease, Write::Release("declined".into())).await;
        failed.push(asked);
    }
    let mut users = Vec::new();
    for number in 0..LOCKED {
        let mut user = home.connection().await;
        let lock = format!("SELECT 1 FROM records WHERE key = 'locked-{number:04}' FOR UPDATE");
        run(&mut user, &format!("BEGIN; {lock}")).await;
        users.push(user);
    }
    // Whoever wants to write to these records asks again and again.
    let over = Arc::new(AtomicBool::new(false));
    let mut stuck = JoinSet::new();
    for lease in locked {
        let (store, over) = (Arc::clone(&home.store), Arc::clone(&over));
        stuck.spawn(async move {
            let mut vain = 0;
            while !over.load(SeqCst) {
                let write = Write::MarkUnknown("timed out".into());
                vain += u32::from(store.write(&copy(&lease), write).await.is_err());
            }
            (lease, vain)
        });
    }
    let mut slowest = [Duration::ZERO; 3];
    for (round, failed) in failed.iter().enumerate() {
        // The locked ones are at work by then.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let calls =
            [(0, ask(&format!("stranger-{round:04}"))), (1, retry(&replayed)), (2, retry(failed))];
        for (kind, asked) in calls {
            let begun = Instant::now();
            let answer = home.store.reserve(asked).await.expect("reserve answers");
            let granted = matches!(answer, Reservation::Granted { .. });
            assert_eq!(granted, kind != 1, "{answer:?}");
            slowest[kind] = slowest[kind].max(begun.elapsed());
        }
    }
    println!(
        "slowest: a new key {:?}, a replay {:?}, a takeover {:?}",
        slowest[0], slowest[1], slowest[2]
    );
    over.store(true, SeqCst);
    for mut user in users {
        run(&mut user, "ROLLBACK").await;
    }
    let mut vain = 0;
    for (lease, times) in stuck.join_all().await {
        vain += times;
        let written = home.store.write(&lease, Write::MarkUnknown("timed out".into())).await;
        let written = written.expect("nobody has it locked any more");
        assert!(matches!(written, Written::Applied | Written::AlreadyMine(None)), "{written:?}");
    }
    assert!(vain as usize >= LOCKED, "nobody waited for a lock in vain");
    assert!(slowest[0] < Duration::from_secs(1), "a new key took {:?}", slowest[0]);
    assert!(slowest[1] < Duration::from_secs(1), "a replay took {:?}", slowest[1]);
    assert!(slowest[2] < PATIENCE, "a takeover took {:?}", slowest[2]);
}
