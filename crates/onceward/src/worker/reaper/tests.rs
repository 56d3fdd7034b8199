//! A run of the reaper is bounded for each kind of thing.

use super::*;
use crate::{
    clock::{ManualClock, Timestamp},
    engine::Settings,
    outbox::{MessageState, Settlement},
    policy::{Policy, Routes},
    record::Effects,
    store::{Ask, MemoryStore},
    testing::{
        outbox::{MemoryOutbox, OutboxHarness, message},
        samples::{LEASE, RETENTION, TOMBSTONE, ask},
    },
};

/// Ten more than a run of three batches takes.
const MANY: u32 = 3 * BATCH + 10;

/// A reaper that makes three batches in one run, and what it works on.
fn world() -> (Reaper, OutboxHarness) {
    let clock = ManualClock::new(Timestamp::from_micros(1_000_000_000_000_000));
    let store = Arc::new(MemoryStore::with_clock(Arc::new(clock.clone())));
    let outbox = Arc::new(MemoryOutbox::new(Arc::clone(&store), Arc::new(clock.clone())));
    let settings = Settings { clock: Arc::new(clock.clone()), ..Settings::default() };
    let engine = Engine::new(store.clone(), Routes::from(Policy::required()), settings);
    let reaper = Reaper::new(Arc::new(engine)).outbox(outbox.clone(), RETENTION);
    (Reaper { batches_max: 3, ..reaper }, OutboxHarness { store, outbox, clock })
}

async fn run(reaper: &Reaper) -> Reap {
    reaper.run_once().await.expect("the store answers")
}

#[tokio::test(start_paused = true)]
async fn one_run_takes_so_many_records_and_says_that_there_is_more() {
    let (reaper, on) = world();
    for number in 0..MANY {
        let lease = on.begun(&format!("key-{number}")).await;
        on.complete(&lease).await;
    }
    on.clock.advance(RETENTION);
    for (expired, more) in [(150, true), (10, false), (0, false)] {
        assert_eq!(run(&reaper).await, Reap { expired, more, ..Reap::default() });
    }
    on.clock.advance(TOMBSTONE);
    for (purged, more) in [(150, true), (10, false), (0, false)] {
        assert_eq!(run(&reaper).await, Reap { purged, more, ..Reap::default() });
    }
}

#[tokio::test(start_paused = true)]
async fn one_run_takes_so_many_audit_records_and_says_that_there_is_more() {
    let (reaper, on) = world();
    for number in 0..MANY {
        let harmless = Ask { effects: Effects::None, ..ask(&format!("key-{number}")) };
        let _vanished = on.granted(harmless).await;
    }
    on.clock.advance(LEASE);
    let swept = on.store.sweep(2 * MANY).await.expect("sweep answers");
    assert_eq!(swept.len(), MANY as usize);
    on.clock.advance(RETENTION + TOMBSTONE);
    let reaped = on.store.reap(2 * MANY).await.expect("reap answers");
    assert_eq!(reaped, Reaped { expired: 0, purged: MANY });
    assert_eq!(run(&reaper).await, Reap::default(), "what was done to them is still told");
    on.clock.advance(Reaper::AUDIT_RETENTION);
    for (audits, more) in [(150, true), (10, false), (0, false)] {
        assert_eq!(run(&reaper).await, Reap { audits, more, ..Reap::default() });
    }
}

#[tokio::test(start_paused = true)]
async fn one_run_takes_so_many_messages_and_says_that_there_is_more() {
    let (reaper, on) = world();
    on.staged((0..MANY).map(|number| message(&format!("message-{number}")))).await;
    let (attempt, claimed) = on.claim(MANY).await;
    for claimed in &claimed {
        let done = Settlement::Done { provider_id: None };
        assert!(on.settle(attempt, claimed, done).await);
    }
    assert_eq!(on.ids(MessageState::Done).await.len(), MANY as usize);
    on.clock.advance(RETENTION + Duration::from_micros(1));
    // What staged them has come to rest too.
    let records = Reap { expired: 1, ..Reap::default() };
    for (messages, more, records) in
        [(150, true, records), (10, false, Reap::default()), (0, false, Reap::default())]
    {
        assert_eq!(run(&reaper).await, Reap { messages, more, ..records });
    }
}
