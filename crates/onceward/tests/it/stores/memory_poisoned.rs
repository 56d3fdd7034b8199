//! A panic while a lock of the memory store is held.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures_util::FutureExt as _;
use onceward::{
    MemoryStore, Store as _,
    clock::{Clock, SystemClock, Timestamp},
    record::State,
    store::Reservation,
    testing::samples::ask,
};
use tokio::time::Instant;

/// Panics when asked to, inside of whoever reads it.
#[derive(Debug, Default)]
struct Fragile(AtomicBool);

impl Clock for Fragile {
    fn now(&self) -> Timestamp {
        assert!(!self.0.load(Ordering::SeqCst), "the clock of this test panics");
        SystemClock.now()
    }

    fn monotonic(&self) -> Instant {
        SystemClock.monotonic()
    }
}

#[test]
fn a_panic_within_a_step_harms_no_step_after_it() {
    let clock = Arc::new(Fragile::default());
    let store = MemoryStore::with_clock(Arc::clone(&clock) as Arc<dyn Clock>);
    let (first, second) = (ask("key"), ask("key"));
    let reserve = |of: &onceward::store::Ask| store.reserve(of.clone()).now_or_never();
    assert!(matches!(reserve(&first), Some(Ok(Reservation::Granted { .. }))));
    clock.0.store(true, Ordering::SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| reserve(&second))).is_err());
    clock.0.store(false, Ordering::SeqCst);
    // The record is as it was, and the key is neither lost nor given away.
    let Some(Ok(Reservation::Occupied { record, .. })) = reserve(&second) else {
        panic!("the first attempt has the key")
    };
    assert_eq!((record.state, record.attempt), (State::InProgress, first.attempt));
}
