//! A relay whose store fails, loses answers, or takes very long; and what is counted.

use metrics_exporter_prometheus::PrometheusBuilder;

use super::*;
use crate::{
    outbox::{
        Backlog, Claimed, DeadLetter, ListedMessage, MessageId, MessageQuery, Settlement, Staged,
        StoredMessage,
    },
    record::{AttemptId, Fence, Lease},
    store::{StoreError, StoreErrorKind, StoreFuture},
};

/// How a call goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// Nothing happens.
    Unavailable,
    /// It happens, and the answer is lost.
    AnswerLost,
    /// It happens, and the process sleeps before it gets the answer.
    Slow(Duration),
    /// It happens, and there is never an answer.
    Silent,
}

/// The next so many claims and settlements go wrong.
#[derive(Debug)]
pub(super) struct Failing {
    inner: Arc<dyn OutboxStore>,
    claims: Mutex<Vec<Wrong>>,
    settlements: Mutex<Vec<Wrong>>,
}

impl Failing {
    pub(super) fn new(on: &OutboxHarness, claims: &[Wrong], settlements: &[Wrong]) -> Arc<Self> {
        Arc::new(Failing {
            inner: Arc::clone(&on.outbox),
            claims: Mutex::new(claims.to_vec()),
            settlements: Mutex::new(settlements.to_vec()),
        })
    }

    pub(super) fn relay(self: &Arc<Self>, sink: &Scripted) -> Relay {
        Relay::new(Arc::clone(self) as _).sink(SINK, sink.clone()).delivery_timeout(TIMEOUT)
    }
}

async fn wrongly<T>(wrong: Option<Wrong>, call: StoreFuture<'_, T>) -> Result<T, StoreError> {
    let failed = |kind| Err(StoreError::new(kind, "failing", "on purpose"));
    match wrong {
        None => call.await,
        Some(Wrong::Unavailable) => failed(StoreErrorKind::Unavailable),
        Some(Wrong::AnswerLost) => {
            call.await?;
            failed(StoreErrorKind::Ambiguous)
        }
        Some(Wrong::Slow(time)) => {
            let answer = call.await;
            sleep(time).await;
            answer
        }
        Some(Wrong::Silent) => {
            call.await?;
            std::future::pending().await
        }
    }
}

impl OutboxStore for Failing {
    fn stage<'a>(&'a self, lease: &'a Lease, message: Message) -> StoreFuture<'a, Staged> {
        self.inner.stage(lease, message)
    }

    fn claim<'a>(
        &'a self,
        limit: u32,
        sinks: &'a [&'a str],
        lease: Duration,
        attempt: AttemptId,
    ) -> StoreFuture<'a, Vec<Claimed>> {
        let wrong = self.claims.lock().expect("not poisoned").pop();
        Box::pin(wrongly(wrong, self.inner.claim(limit, sinks, lease, attempt)))
    }

    fn settle<'a>(
        &'a self,
        id: MessageId,
        attempt: AttemptId,
        fence: Fence,
        settlement: Settlement,
    ) -> StoreFuture<'a, bool> {
        let wrong = self.settlements.lock().expect("not poisoned").pop();
        Box::pin(wrongly(wrong, self.inner.settle(id, attempt, fence, settlement)))
    }

    fn list(
        &self,
        state: MessageState,
        after: Option<MessageId>,
        limit: u32,
    ) -> StoreFuture<'_, Vec<StoredMessage>> {
        self.inner.list(state, after, limit)
    }

    fn list_messages(&self, query: MessageQuery) -> StoreFuture<'_, Vec<ListedMessage>> {
        self.inner.list_messages(query)
    }

    fn load_message(&self, id: MessageId) -> StoreFuture<'_, Option<ListedMessage>> {
        self.inner.load_message(id)
    }

    fn redrive<'a>(
        &'a self,
        letters: &'a [DeadLetter],
        reason: &'a str,
    ) -> StoreFuture<'a, Vec<MessageId>> {
        self.inner.redrive(letters, reason)
    }

    fn discard<'a>(
        &'a self,
        letters: &'a [DeadLetter],
        reason: &'a str,
    ) -> StoreFuture<'a, Vec<MessageId>> {
        self.inner.discard(letters, reason)
    }

    fn purge_done(&self, older_than: Duration, limit: u32) -> StoreFuture<'_, Vec<MessageId>> {
        self.inner.purge_done(older_than, limit)
    }

    fn backlog(&self) -> StoreFuture<'_, Backlog> {
        self.inner.backlog()
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_answer_was_lost_is_repeated_and_nothing_looks_begun() {
    let on = outbox();
    on.staged(["a", "b"].map(message)).await;
    let failing = Failing::new(&on, &[Wrong::AnswerLost, Wrong::Unavailable], &[]);
    // To a sink that knows no keys: what looked begun would be a dead letter.
    let sink = Scripted::new(false, []);
    assert_eq!(failing.relay(&sink).run_once(10).await, relayed(2, 0, 0));
    assert_eq!(sink.seen.names(), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_settlement_that_fails_is_repeated_and_nothing_is_delivered_again() {
    for wrong in [Wrong::AnswerLost, Wrong::Unavailable] {
        let on = outbox();
        on.staged([message("a")]).await;
        let failing = Failing::new(&on, &[], &[wrong; 5]);
        let sink = Scripted::new(false, []);
        assert_eq!(failing.relay(&sink).run_once(10).await, relayed(1, 0, 0), "{wrong:?}");
        assert_eq!(sink.seen.names(), ["a"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_is_told_and_nothing_is_delivered() {
    let on = outbox();
    on.staged([message("a")]).await;
    let failing = Failing::new(&on, &[Wrong::Unavailable; 1000], &[]);
    let sink = Scripted::new(false, []);
    let begun = Instant::now();
    let failed = Relayed { store_failures: 1, ..Relayed::default() };
    assert_eq!(failing.relay(&sink).run_once(10).await, failed);
    assert!(begun.elapsed() <= Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!((on.counts().await, sink.seen.names().len()), ([1, 0, 0, 0], 0));
    // A running relay goes on when the store is back.
    failing.claims.lock().expect("not poisoned").truncate(60);
    let (stop, stopped) = oneshot::channel::<()>();
    let relay = failing.relay(&sink);
    let running = tokio::spawn(async move { relay.run(async { drop(stopped.await) }).await });
    sleep(Duration::from_secs(60)).await;
    stop.send(()).expect("it runs");
    assert_eq!(running.await.expect("no panic").delivered, 1);
}

#[tokio::test(start_paused = true)]
async fn what_came_of_a_delivery_that_cannot_be_written_is_ambiguous_to_the_next() {
    for (idempotent, expected) in [(true, relayed(1, 0, 0)), (false, relayed(0, 0, 1))] {
        let on = outbox();
        on.staged([message("a")]).await;
        let failing = Failing::new(&on, &[], &[Wrong::Unavailable; 10_000]);
        let sink = Scripted::new(idempotent, []);
        let begun = Instant::now();
        let lost = Relayed { store_failures: 1, ..Relayed::default() };
        assert_eq!(failing.relay(&sink).run_once(1).await, lost);
        assert!(begun.elapsed() <= TIMEOUT * 3, "no longer than its lease");
        on.clock.advance(TIMEOUT * 3);
        assert_eq!(relay(&on, &sink).run_once(10).await, expected);
        assert_eq!(sink.seen.names().len(), 1 + expected.delivered as usize);
    }
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_slept_after_its_claim_does_not_act_on_it() {
    let on = outbox();
    on.staged([message("a")]).await;
    let sink = Scripted::new(false, []);
    // There would be no time left for the delivery.
    let failing = Failing::new(&on, &[Wrong::Slow(TIMEOUT * 2)], &[]);
    assert_eq!(failing.relay(&sink).run_once(1).await, relayed(0, 1, 0));
    assert_eq!(sink.seen.names().len(), 0);
    // There is just enough.
    let nearly = TIMEOUT * 2 - Duration::from_millis(1);
    let failing = Failing::new(&on, &[Wrong::Slow(nearly)], &[]);
    assert_eq!(failing.relay(&sink).run_once(1).await, relayed(1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_silent_is_not_waited_for_for_ever() {
    // What was settled without an answer is settled.
    for (claims, settlements, later) in
        [(&[Wrong::Silent][..], &[][..], 1), (&[], &[Wrong::Silent], 0)]
    {
        let on = outbox();
        on.staged([message("a")]).await;
        let failing = Failing::new(&on, claims, settlements);
        let sink = Scripted::new(true, []);
        let begun = Instant::now();
        let lost = Relayed { store_failures: 1, ..Relayed::default() };
        assert_eq!(failing.relay(&sink).run_once(1).await, lost);
        assert!(begun.elapsed() <= TIMEOUT * 3, "no longer than its lease");
        on.clock.advance(TIMEOUT * 3);
        assert_eq!(failing.relay(&sink).run_once(1).await, relayed(later, 0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_delivery_that_ends_after_somebody_else_claimed_its_message_writes_nothing() {
    let on = outbox();
    on.staged([message("a")]).await;
    let signal = Arc::new(Notify::new());
    let sink = Scripted::new(true, [("a", Does::WaitsFor(Arc::clone(&signal)))]);
    let slow = relay(&on, &sink);
    let running = tokio::spawn(async move { slow.run_once(1).await });
    while sink.seen.names().is_empty() {
        tokio::task::yield_now().await;
    }
    on.clock.advance(TIMEOUT * 3);
    let other = Scripted::new(true, []);
    assert_eq!(relay(&on, &other).run_once(1).await, relayed(1, 0, 0));
    signal.notify_one();
    let superseded = Relayed { superseded: 1, ..Relayed::default() };
    assert_eq!(running.await.expect("no panic"), superseded);
}

#[test]
fn what_a_relay_does_is_counted_for_each_sink() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().start_paused(true).build().expect("a runtime");
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let on = outbox();
            let says = |delivered| Does::Says(delivered);
            let sink = Scripted::new(
                true,
                [
                    ("no", says(Delivered::Refused("no".to_owned()))),
                    ("maybe", says(Delivered::Ambiguous("maybe".to_owned()))),
                ],
            );
            on.staged(["yes", "no", "maybe", "also"].map(message)).await;
            let failing = Failing::new(&on, &[Wrong::Unavailable], &[]);
            failing.relay(&sink).run_once(10).await;
        });
    });
    let rendered = handle.render();
    for (name, expected) in [
        ("delivered", 2),
        ("retried", 1),
        ("dead", 1),
        ("ambiguous", 1),
        ("superseded", 0),
        ("store_error", 1),
    ] {
        let line = format!("\nonceward_outbox_{name}_total{{sink=\"{SINK}\"}} {expected}\n");
        assert!(rendered.contains(&line), "{line}{rendered}");
    }
}

#[test]
fn a_relay_that_runs_tells_when_it_looked_and_how_often_that_failed() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().start_paused(true).build().expect("a runtime");
    // The value of a series of the relay. What is not there is told by nobody.
    let told = |name: &str| -> Option<f64> {
        let series = format!("onceward_worker_{name}{{worker=\"relay\"}} ");
        let rendered = handle.render();
        let value = rendered.lines().find_map(|line| line.strip_prefix(&series))?;
        Some(value.parse().expect("a number"))
    };
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let on = outbox();
            let sink = Scripted::new(true, []);
            let failing = Failing::new(&on, &[Wrong::Unavailable; 1000], &[]);
            failing.relay(&sink).run_once(1).await;
            assert_eq!(told("period_seconds"), None, "one look is no worker");
            let relay = failing.relay(&sink);
            let running = tokio::spawn(async move { relay.run(pending()).await });
            while told("failed_in_a_row") < Some(2.0) {
                sleep(Duration::from_millis(100)).await;
            }
            let never = (told("last_run_timestamp_seconds"), told("period_seconds"));
            assert_eq!((never, told("error_total")), ((Some(0.0), Some(1.0)), Some(2.0)));
            failing.claims.lock().expect("not poisoned").clear();
            while told("last_run_timestamp_seconds") == Some(0.0) {
                sleep(Duration::from_millis(100)).await;
            }
            assert_eq!((told("failed_in_a_row"), told("error_total")), (Some(0.0), Some(2.0)));
            running.abort();
        });
    });
}

#[test]
fn a_relay_without_sinks_is_not_one_that_stands_still() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    metrics::with_local_recorder(&recorder, || {
        let relay = Relay::new(outbox().outbox);
        assert_eq!(runtime.block_on(relay.run(pending())), Relayed::default());
    });
    assert!(!handle.render().contains("worker"), "{}", handle.render());
}
