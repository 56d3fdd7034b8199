//! Requests that wait, and who looks for them.

use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use super::*;
use crate::{
    store::{Reservation, Write},
    testing::{
        Fault, FaultyStore, StoreCall,
        samples::{ask, reply},
    },
};

#[tokio::test(start_paused = true)]
async fn a_wake_between_listening_and_waiting_is_not_missed() {
    let (waiters, store) = (Waiters::default(), MemoryStore::new());
    let at_work = store.reserve(ask("a")).await;
    assert!(matches!(at_work, Ok(Reservation::Granted { .. })));
    let waiter = waiters.enter(&ask("a").id, seconds(10)).expect("a place");
    let begun = Instant::now();
    let woken = waiter.listen();
    waiters.wake(&ask("b").id);
    waiters.wake(&ask("a").id);
    assert!(waiter.wait(woken, &waiters, &store).await);
    assert_eq!(begun.elapsed(), Duration::ZERO);
    // Without a wake it gives up in the end, after a last look.
    assert!(waiter.wait(waiter.listen(), &waiters, &store).await);
    assert_eq!(begun.elapsed(), seconds(10));
    assert!(!waiter.wait(waiter.listen(), &waiters, &store).await);
}

#[tokio::test(start_paused = true)]
async fn what_ended_elsewhere_wakes_all_who_wait_by_one_look_for_all() {
    let (waiters, looks) = (Waiters::default(), Arc::new(AtomicU32::new(0)));
    let counted = Arc::clone(&looks);
    let store = FaultyStore::new(Arc::new(MemoryStore::new()), move |call, _| {
        counted.fetch_add(u32::from(call == StoreCall::Load), Ordering::Relaxed);
        Fault::None
    });
    let mut leases = Vec::new();
    for key in ["a", "b", "c"] {
        match store.reserve(ask(key)).await {
            Ok(Reservation::Granted { lease, .. }) => leases.push(lease),
            other => panic!("expected a grant, found {other:?}"),
        }
    }
    let begun = Instant::now();
    let wait = async |key: &str| {
        let waiter = waiters.enter(&ask(key).id, seconds(10)).expect("a place");
        waiter.wait(waiter.listen(), &waiters, &store).await;
        begun.elapsed()
    };
    // Somebody whom this process cannot hear.
    let elsewhere = async {
        sleep(seconds(1)).await;
        for lease in leases.get(..2).expect("three leases") {
            let _ = store.write(lease, Write::Complete(reply("done"))).await;
        }
    };
    let many = join_all((0..100).map(|_| wait("b")));
    let (a, b, c, ()) = tokio::join!(wait("a"), many, wait("c"), elsewhere);
    assert_eq!(a, Duration::from_millis(1_000));
    assert!(b.iter().all(|waited| *waited == a), "{b:?}");
    assert_eq!(c, seconds(10), "its attempt is at work all the time");
    assert_eq!(looks.load(Ordering::Relaxed), 39, "one look every 250 ms, for all of them");
}
