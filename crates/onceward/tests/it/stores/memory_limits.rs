//! A memory store that is full: new keys are refused, everybody else is served, nobody is evicted.

use std::sync::Arc;

use onceward::{
    MemoryStore, Store,
    clock::ManualClock,
    record::{Lease, State},
    store::{Ask, Mode, Reservation, StoreErrorKind, Write, Written},
    testing::samples::{LEASE, RETENTION, TOMBSTONE, ask, reply, retry},
};

const CAPACITY: usize = 3;

/// A full store with a completed, a released and a running record, and the lease of the last.
async fn full() -> (MemoryStore, ManualClock, Lease) {
    let clock = ManualClock::default();
    let store = MemoryStore::with_clock(Arc::new(clock.clone())).with_capacity(CAPACITY);
    let completed = grant(&store, &ask("completed")).await;
    write(&store, &completed, Write::Complete(reply("done"))).await;
    let released = grant(&store, &ask("released")).await;
    write(&store, &released, Write::Release("not_sent".into())).await;
    let running = grant(&store, &ask("running")).await;
    (store, clock, running)
}

async fn grant(store: &MemoryStore, ask: &Ask) -> Lease {
    match store.reserve(ask.clone()).await.expect("reserve answers") {
        Reservation::Granted { lease, .. } => lease,
        other => panic!("expected a grant, found {other:?}"),
    }
}

async fn write(store: &MemoryStore, lease: &Lease, write: Write) {
    let written = store.write(lease, write).await.expect("write answers");
    assert_eq!(written, Written::Applied);
}

async fn refuses_new_keys(store: &MemoryStore, key: &str) {
    let error = store.reserve(ask(key)).await.expect_err("a full store takes no new key");
    // Nothing happened, so that the client is told to come back, and nothing was executed.
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert_eq!(error.to_string(), "memory store: full: it holds 3 records already");
    assert_eq!(store.load(&ask(key).id).await.expect("load answers"), None);
}

#[tokio::test]
async fn a_full_store_refuses_new_keys_and_says_that_nothing_happened() {
    let (store, ..) = full().await;
    for number in 0..10 {
        refuses_new_keys(&store, &format!("new-{number}")).await;
    }
    let later = Ask { mode: Mode::Accept, ..ask("new") };
    store.reserve(later).await.expect_err("nor does it accept one for later");
}

#[tokio::test]
async fn a_full_store_still_says_that_a_new_key_is_free_to_those_who_only_look() {
    let (store, ..) = full().await;
    let look = Ask { mode: Mode::LookupOnly, ..ask("new") };
    assert_eq!(store.reserve(look).await.expect("an answer"), Reservation::Free);
}

#[tokio::test]
async fn a_full_store_replays_what_it_has() {
    let (store, ..) = full().await;
    let answer = store.reserve(retry(&ask("completed"))).await.expect("reserve answers");
    let Reservation::Occupied { record, .. } = answer else { panic!("expected a record") };
    assert_eq!(record.reply, Some(reply("done")));
}

#[tokio::test]
async fn a_full_store_lets_known_keys_run_renew_and_complete() {
    let (store, _clock, running) = full().await;
    write(&store, &running, Write::Renew(LEASE)).await;
    write(&store, &running, Write::Complete(reply("ran"))).await;
    let again = grant(&store, &retry(&ask("released"))).await;
    write(&store, &again, Write::Complete(reply("ran again"))).await;
    refuses_new_keys(&store, "new").await;
}

#[tokio::test]
async fn a_full_store_never_evicts() {
    let (store, clock, _running) = full().await;
    // Not even what is past its retention: that is the reaper's work.
    clock.advance(RETENTION);
    for number in 0..100 {
        refuses_new_keys(&store, &format!("new-{number}")).await;
    }
    for (key, state) in [
        ("completed", State::Expired),
        ("released", State::Expired),
        ("running", State::InProgress),
    ] {
        let record = store.load(&ask(key).id).await.expect("load answers").expect("a record");
        assert_eq!(record.state, state);
    }
}

#[tokio::test]
async fn what_the_reaper_purged_makes_room_for_as_many_new_keys() {
    let (store, clock, _running) = full().await;
    clock.advance(RETENTION + TOMBSTONE);
    refuses_new_keys(&store, "new-0").await;
    assert_eq!(store.reap(10).await.expect("reap answers").purged, 2);
    for key in ["new-1", "new-2"] {
        assert_eq!(grant(&store, &ask(key)).await.attempt_number, 1);
    }
    refuses_new_keys(&store, "new-3").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_burst_of_new_keys_fills_a_store_and_no_more() {
    let store = Arc::new(MemoryStore::new().with_capacity(50));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..200 {
        let store = Arc::clone(&store);
        tasks.spawn(async move { store.reserve(ask(&format!("key-{number}"))).await.is_ok() });
    }
    let granted = tasks.join_all().await.into_iter().filter(|granted| *granted).count();
    assert_eq!(granted, 50);
}
