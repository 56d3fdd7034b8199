//! What a relay does when sinks and stores misbehave, in time that stands still until it is waited
//! for.

use std::{
    collections::BTreeMap,
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, sleep},
};

use super::{Relay, Relayed};
use crate::{
    MemoryStore,
    clock::ManualClock,
    outbox::{Backoff, Delivered, Delivery, Message, MessageState, OutboxStore, Sink, SinkFuture},
    testing::outbox::{MemoryOutbox, OutboxHarness, SINK, message},
};

mod failing;
mod watched;

const TIMEOUT: Duration = Duration::from_secs(20);

fn outbox() -> OutboxHarness {
    let clock = ManualClock::default();
    let store = Arc::new(MemoryStore::with_clock(Arc::new(clock.clone())));
    let outbox = MemoryOutbox::new(store.clone(), Arc::new(clock.clone()));
    OutboxHarness { store, outbox: Arc::new(outbox), clock }
}

/// What a scripted sink does with a message of some name.
#[derive(Clone, Debug)]
enum Does {
    Says(Delivered),
    Panics,
    /// Panics before there is a future.
    PanicsAtOnce,
    Hangs,
    Takes(Duration),
    WaitsFor(Arc<Notify>),
}

#[derive(Debug, Default)]
struct Seen {
    /// Each delivery that was begun: its message, which try, and when.
    begun: Mutex<Vec<(String, u32, Instant)>>,
    now: AtomicU32,
    most: AtomicU32,
}

impl Seen {
    fn names(&self) -> Vec<String> {
        self.begun.lock().expect("not poisoned").iter().map(|(name, ..)| name.clone()).collect()
    }
}

#[derive(Clone, Debug)]
struct Scripted {
    idempotent: bool,
    script: BTreeMap<String, Does>,
    seen: Arc<Seen>,
}

impl Scripted {
    fn new(idempotent: bool, script: impl IntoIterator<Item = (&'static str, Does)>) -> Self {
        let script = script.into_iter().map(|(name, does)| (name.to_owned(), does)).collect();
        Scripted { idempotent, script, seen: Arc::default() }
    }
}

impl Sink for Scripted {
    fn is_idempotent(&self) -> bool {
        self.idempotent
    }

    fn deliver(&self, delivery: Delivery) -> SinkFuture<'_> {
        let name = delivery.message.name.to_string();
        let seen = &self.seen;
        let begun = (name.clone(), delivery.attempt_number, Instant::now());
        seen.begun.lock().expect("not poisoned").push(begun);
        let does = self.script.get(&name).cloned();
        if matches!(does, Some(Does::PanicsAtOnce)) {
            panic!("on purpose, at once");
        }
        Box::pin(async move {
            let now = seen.now.fetch_add(1, Ordering::SeqCst) + 1;
            seen.most.fetch_max(now, Ordering::SeqCst);
            let delivered = match does {
                Some(Does::Says(delivered)) => delivered,
                Some(Does::Panics | Does::PanicsAtOnce) => panic!("on purpose"),
                Some(Does::Hangs) => pending().await,
                Some(Does::Takes(time)) => {
                    sleep(time).await;
                    Delivered::Done { provider_id: None }
                }
                Some(Does::WaitsFor(signal)) => {
                    signal.notified().await;
                    Delivered::Done { provider_id: None }
                }
                None => Delivered::Done { provider_id: None },
            };
            seen.now.fetch_sub(1, Ordering::SeqCst);
            delivered
        })
    }
}

fn relay(on: &OutboxHarness, sink: &Scripted) -> Relay {
    Relay::new(Arc::clone(&on.outbox)).sink(SINK, sink.clone()).delivery_timeout(TIMEOUT)
}

async fn reason(on: &OutboxHarness, state: MessageState) -> String {
    let listed = on.outbox.list(state, None, 10).await.expect("list answers");
    assert_eq!(listed.len(), 1, "{listed:?}");
    listed[0].last_error.as_deref().unwrap_or_default().to_owned()
}

fn relayed(delivered: u32, retried: u32, dead: u32) -> Relayed {
    Relayed { delivered, retried, dead, ..Relayed::default() }
}

#[tokio::test(start_paused = true)]
async fn each_answer_of_a_sink_has_its_consequence() {
    let why = || "why".to_owned();
    let later = Delivered::Later { after: Duration::from_secs(300), why: why() };
    for (idempotent, says, expected) in [
        (true, Delivered::Done { provider_id: Some(why()) }, relayed(1, 0, 0)),
        (false, Delivered::Done { provider_id: None }, relayed(1, 0, 0)),
        (true, Delivered::NotDelivered(why()), relayed(0, 1, 0)),
        (false, Delivered::NotDelivered(why()), relayed(0, 1, 0)),
        (true, later.clone(), relayed(0, 1, 0)),
        (false, later, relayed(0, 1, 0)),
        (true, Delivered::Refused(why()), relayed(0, 0, 1)),
        (false, Delivered::Refused(why()), relayed(0, 0, 1)),
        (true, Delivered::Ambiguous(why()), relayed(0, 1, 0)),
        (false, Delivered::Ambiguous(why()), relayed(0, 0, 1)),
    ] {
        let on = outbox();
        on.staged([message("a")]).await;
        let sink = Scripted::new(idempotent, [("a", Does::Says(says.clone()))]);
        let said = relay(&on, &sink).run_once(10).await;
        assert_eq!(said, expected, "{says:?}, idempotent {idempotent}");
        let ready = on.outbox.list(MessageState::Ready, None, 1).await.expect("list answers");
        let unsure = matches!(says, Delivered::Ambiguous(_));
        assert!(ready.iter().all(|stored| stored.ambiguous == unsure), "{says:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_asks_for_time_gets_it() {
    let on = outbox();
    on.staged([message("a")]).await;
    let after = Duration::from_secs(300);
    let later = Delivered::Later { after, why: "busy".to_owned() };
    let sink = Scripted::new(true, [("a", Does::Says(later))]);
    assert_eq!(relay(&on, &sink).run_once(10).await, relayed(0, 1, 0));
    on.clock.advance(after - Duration::from_micros(1));
    assert_eq!(relay(&on, &sink).run_once(10).await, relayed(0, 0, 0));
    on.clock.advance(Duration::from_micros(1));
    assert_eq!(relay(&on, &sink).run_once(10).await, relayed(0, 1, 0));
    assert_eq!(reason(&on, MessageState::Ready).await, "busy");
}

#[tokio::test(start_paused = true)]
async fn jitter_is_between_none_and_the_ceiling_and_follows_the_seed() {
    let mut waits = Vec::new();
    for seed in [1, 1, 2] {
        let on = outbox();
        on.staged((0..50).map(|number| message(&format!("m-{number}")))).await;
        let no = Does::Says(Delivered::NotDelivered("no".to_owned()));
        let script: Vec<_> = (0..50).map(|number| (format!("m-{number}"), no.clone())).collect();
        let sink = Scripted { script: script.into_iter().collect(), ..Scripted::new(true, []) };
        let first = Duration::from_secs(8);
        let backoff = Backoff { first, max: first };
        // One at a time, so that the order of the random numbers is that of the messages.
        let relay = relay(&on, &sink).backoff(backoff).seed(seed).concurrency(1);
        assert_eq!(relay.run_once(50).await.retried, 50);
        let ready = on.outbox.list(MessageState::Ready, None, 50).await.expect("list answers");
        let wait = ready.iter().map(|stored| stored.next_at.since(stored.created_at));
        let wait: Vec<Duration> = wait.collect();
        assert!(wait.iter().all(|wait| *wait <= first));
        assert!(wait.iter().min() < Some(&(first / 4)), "{wait:?}");
        assert!(wait.iter().max() > Some(&(first / 4 * 3)), "{wait:?}");
        waits.push(wait);
    }
    assert_eq!(waits[0], waits[1]);
    assert_ne!(waits[0], waits[2]);
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_panics_stops_nobody() {
    for (idempotent, expected) in [(true, relayed(2, 2, 0)), (false, relayed(2, 0, 2))] {
        let on = outbox();
        on.staged(["a", "bad", "worse", "b"].map(message)).await;
        let script = [("bad", Does::Panics), ("worse", Does::PanicsAtOnce)];
        let sink = Scripted::new(idempotent, script);
        assert_eq!(relay(&on, &sink).concurrency(1).run_once(10).await, expected);
        assert_eq!(sink.seen.names(), ["a", "bad", "worse", "b"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_hangs_does_not_hold_up_another() {
    let on = outbox();
    let mail = (0..5).map(|number| Message::new(format!("mail-{number}"), "mail", "x"));
    on.staged(mail.chain((0..50).map(|number| message(&format!("m-{number}"))))).await;
    let hangs: Vec<_> = (0..5).map(|number| (format!("mail-{number}"), Does::Hangs)).collect();
    let mail = Scripted { script: hangs.into_iter().collect(), ..Scripted::new(true, []) };
    let ledger = Scripted::new(true, []);
    let begun = Instant::now();
    let relay = relay(&on, &ledger).sink("mail", mail.clone()).concurrency(2);
    assert_eq!(relay.run_once(4).await, relayed(4, 4, 0));
    assert_eq!(begun.elapsed(), TIMEOUT * 2, "two at a time, each until its time was over");
    let ledger = ledger.seen.begun.lock().expect("not poisoned").clone();
    assert!(ledger.iter().all(|(_, _, at)| *at == begun), "nobody waited for the other sink");
}

#[tokio::test(start_paused = true)]
async fn a_message_that_hangs_takes_one_place_and_the_others_go_on() {
    let on = outbox();
    on.staged((0..20).map(|number| message(&format!("m-{number:02}")))).await;
    let sink = Scripted::new(true, [("m-00", Does::Hangs)]);
    let begun = Instant::now();
    assert_eq!(relay(&on, &sink).concurrency(2).run_once(100).await, relayed(19, 1, 0));
    assert_eq!(begun.elapsed(), TIMEOUT);
    let seen = sink.seen.begun.lock().expect("not poisoned").clone();
    assert!(seen.iter().all(|(_, _, at)| *at == begun), "through the other place");
    assert_eq!(reason(&on, MessageState::Ready).await, "the delivery took too long");
}

#[tokio::test(start_paused = true)]
async fn a_message_that_always_fails_waits_and_lets_others_pass() {
    let on = outbox();
    on.staged(["bad", "a", "b"].map(message)).await;
    let no = Does::Says(Delivered::NotDelivered("no".to_owned()));
    let sink = Scripted::new(true, [("bad", no)]);
    let relay = relay(&on, &sink).attempts_max(3).concurrency(1);
    assert_eq!(relay.run_once(10).await, relayed(2, 1, 0));
    for expected in [relayed(0, 1, 0), relayed(0, 0, 1), relayed(0, 0, 0)] {
        on.clock.advance(Duration::from_secs(600));
        assert_eq!(relay.run_once(10).await, expected);
    }
    let why = reason(&on, MessageState::Dead).await;
    assert_eq!(why, "given up after 3 attempts: no");
}

#[tokio::test(start_paused = true)]
async fn a_message_whose_deliveries_never_end_is_given_up_without_another() {
    let on = outbox();
    on.staged([message("a")]).await;
    for _ in 0..3 {
        // A relay that dies of it.
        on.claim_one().await;
        on.clock.advance(TIMEOUT * 100);
    }
    let sink = Scripted::new(true, []);
    assert_eq!(relay(&on, &sink).attempts_max(3).run_once(10).await, relayed(0, 0, 1));
    assert_eq!(sink.seen.names(), Vec::<String>::new());
    assert_eq!(reason(&on, MessageState::Dead).await, "no delivery of 3 ended");
}

#[tokio::test(start_paused = true)]
async fn no_more_than_the_allowed_number_is_delivered_at_a_time() {
    let on = outbox();
    on.staged((0..20).map(|number| message(&format!("m-{number}")))).await;
    let second = Does::Takes(Duration::from_secs(1));
    let script: Vec<_> = (0..20).map(|number| (format!("m-{number}"), second.clone())).collect();
    let sink = Scripted { script: script.into_iter().collect(), ..Scripted::new(true, []) };
    let begun = Instant::now();
    assert_eq!(relay(&on, &sink).concurrency(4).run_once(100).await, relayed(20, 0, 0));
    assert_eq!(sink.seen.most.load(Ordering::SeqCst), 4, "all places are used, and no more");
    assert_eq!(begun.elapsed(), Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_is_stopped_finishes_what_it_delivers_and_begins_nothing() {
    let on = outbox();
    on.staged(["a", "b", "c"].map(message)).await;
    let signal = Arc::new(Notify::new());
    let sink = Scripted::new(false, [("a", Does::WaitsFor(Arc::clone(&signal)))]);
    let relay = relay(&on, &sink).concurrency(1);
    let (stop, stopped) = oneshot::channel();
    let running =
        tokio::spawn(
            async move { relay.run(async { drop::<Result<(), _>>(stopped.await) }).await },
        );
    while sink.seen.names().is_empty() {
        tokio::task::yield_now().await;
    }
    stop.send(()).expect("it runs");
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert!(!running.is_finished(), "it waits for the delivery");
    signal.notify_one();
    assert_eq!(running.await.expect("no panic"), relayed(1, 0, 0));
    assert_eq!((on.counts().await, sink.seen.names()), ([2, 0, 1, 0], vec!["a".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_running_relay_finds_what_is_staged_later_also_while_another_delivery_hangs() {
    let on = outbox();
    on.staged([message("slow")]).await;
    let slow = Does::Takes(Duration::from_secs(10));
    let sink = Scripted::new(true, [("slow", slow)]);
    let relay = relay(&on, &sink).poll(Duration::from_secs(1));
    let (stop, stopped) = oneshot::channel::<()>();
    let begun = Instant::now();
    let running = tokio::spawn(async move { relay.run(async { drop(stopped.await) }).await });
    sleep(Duration::from_millis(2500)).await;
    on.staged([message("new")]).await;
    sleep(Duration::from_secs(20)).await;
    on.staged([message("newer")]).await;
    sleep(Duration::from_secs(2)).await;
    stop.send(()).expect("it runs");
    assert_eq!(running.await.expect("no panic"), relayed(3, 0, 0));
    let seen = sink.seen.begun.lock().expect("not poisoned").clone();
    let at: Vec<u64> = seen.iter().map(|(_, _, at)| (*at - begun).as_secs()).collect();
    assert_eq!(at[..2], [0, 3], "the new one does not wait for the slow one");
    assert!((22..=23).contains(&at[2]), "{at:?}");
}

#[tokio::test(start_paused = true)]
async fn messages_for_sinks_that_the_relay_has_not_are_left_alone() {
    let on = outbox();
    on.staged([Message::new("a", "elsewhere", "x"), message("b")]).await;
    let sink = Scripted::new(true, []);
    assert_eq!(relay(&on, &sink).run_once(10).await, relayed(1, 0, 0));
    assert_eq!(on.counts().await, [1, 0, 1, 0]);
    let nothing = Relay::new(Arc::clone(&on.outbox)).run_once(10).await;
    assert_eq!(nothing, Relayed::default());
}

#[tokio::test(start_paused = true)]
async fn a_run_begins_no_more_than_its_limit() {
    let on = outbox();
    on.staged((0..20).map(|number| message(&format!("m-{number}")))).await;
    let sink = Scripted::new(true, []);
    let relay = relay(&on, &sink).concurrency(4);
    assert_eq!(relay.run_once(0).await, relayed(0, 0, 0));
    assert_eq!(relay.run_once(7).await, relayed(7, 0, 0));
    assert_eq!(relay.run_once(100).await, relayed(13, 0, 0));
}
