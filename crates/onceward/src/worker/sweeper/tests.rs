//! A run of the sweeper is bounded also in what it gives up.

use super::*;
use crate::{
    clock::{ManualClock, Timestamp},
    engine::Settings,
    policy::{Policy, Routes},
    store::{Ask, MemoryStore, Mode, Reservation, Store as _},
    testing::samples::ask,
};

const DAY: Duration = Duration::from_secs(86_400);

#[tokio::test(start_paused = true)]
async fn one_run_gives_up_so_much_and_says_that_there_is_more() {
    let clock = ManualClock::new(Timestamp::from_micros(1_000_000_000_000_000));
    let store = Arc::new(MemoryStore::with_clock(Arc::new(clock.clone())));
    for number in 0..250 {
        let accept = Ask { mode: Mode::Accept, queued_for: DAY, ..ask(&format!("key-{number}")) };
        let accepted = store.reserve(accept).await.expect("reserve answers");
        assert!(matches!(accepted, Reservation::Accepted { .. }), "{accepted:?}");
    }
    clock.advance(DAY);
    let settings = Settings { clock: Arc::new(clock), ..Settings::default() };
    let engine = Engine::new(store, Routes::from(Policy::required()), settings);
    let sweeper = Sweeper { batches_max: 2, ..Sweeper::new(Arc::new(engine)) };
    for (given_up, more) in [(200, true), (50, false), (0, false)] {
        let swept = sweeper.run_once().await.expect("the store answers");
        assert_eq!(swept, Sweep { given_up, more, ..Sweep::default() });
    }
}
