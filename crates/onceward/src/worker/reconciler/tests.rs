//! The reconciler on a memory store, with a clock of its own and probes that say what they are told.

use std::{
    future::pending,
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use http::StatusCode;
use tokio::sync::Notify;

use super::*;
use crate::{
    clock::ManualClock,
    machine::SETTLE,
    record::{AuditEvent, Lease, State},
    reply::ReplyBody,
    store::{Ask, MemoryStore, Reservation, Write, Written},
    testing::{
        Fault, FaultyStore, StoreCall,
        samples::{MAX_EXECUTION, ask, retry},
    },
};

struct World {
    store: Arc<MemoryStore>,
    clock: ManualClock,
    own: OwnClock,
}

/// The time of a process, which passes when it is told to.
#[derive(Clone, Debug)]
struct OwnClock(Arc<Mutex<Instant>>);

impl OwnClock {
    fn advance(&self, by: Duration) {
        *self.0.lock().expect("not poisoned") += by;
    }
}

impl Clock for OwnClock {
    fn now(&self) -> Timestamp {
        unreachable!("a reconciler has no wall clock");
    }

    fn monotonic(&self) -> Instant {
        *self.0.lock().expect("not poisoned")
    }
}

impl World {
    fn new() -> Self {
        let clock = ManualClock::default();
        clock.set(Timestamp::from_micros(1_000_000_000_000_000));
        let store = Arc::new(MemoryStore::with_clock(Arc::new(clock.clone())));
        World { store, clock, own: OwnClock(Arc::new(Mutex::new(Instant::now()))) }
    }

    async fn unknown(&self, key: &str) -> Lease {
        self.unknown_of(ask(key)).await
    }

    async fn unknown_of(&self, ask: Ask) -> Lease {
        let reserved = self.store.reserve(ask).await.expect("reserve answers");
        let Reservation::Granted { lease, .. } = reserved else { panic!("{reserved:?}") };
        let written = self.store.write(&lease, Write::MarkUnknown("reset".into())).await;
        assert_eq!(written.expect("write answers"), Written::Applied);
        lease
    }

    async fn record(&self, key: &str) -> Record {
        self.store.load(&ask(key).id).await.expect("load answers").expect("it is there")
    }

    fn reconciler(&self, probe: impl Probe) -> Reconciler {
        Reconciler::new(self.store.clone(), probe).clock(Arc::new(self.own.clone()))
    }

    /// Until the record is due again.
    async fn wait_until_due(&self, key: &str) {
        let due = self.record(key).await.reconcile_after.expect("it is unknown");
        self.own.advance(due.since(self.clock.now()));
        self.leap_until_due(key).await;
    }

    /// The same by the store's clock alone.
    async fn leap_until_due(&self, key: &str) {
        let due = self.record(key).await.reconcile_after.expect("it is unknown");
        self.clock.set(due.max(self.clock.now()));
    }
}

fn reply(status: u16, body: &'static str) -> Reply {
    Reply {
        status: StatusCode::from_u16(status).expect("a status"),
        headers: Vec::new(),
        body: ReplyBody::Stored(body.into()),
        schema_version: None,
    }
}

/// Says this, and counts how often it was asked.
#[derive(Clone, Debug)]
struct Says(Finding, Arc<AtomicU32>);

impl Says {
    fn new(finding: Finding) -> Self {
        Says(finding, Arc::default())
    }

    fn asked(&self) -> u32 {
        self.1.load(Ordering::SeqCst)
    }
}

impl Probe for Says {
    fn ask<'a>(&'a self, _: &'a Unknown) -> ProbeFuture<'a> {
        self.1.fetch_add(1, Ordering::SeqCst);
        Box::pin(async { self.0.clone() })
    }
}

#[tokio::test]
async fn what_the_probe_found_completed_is_completed_with_that_reply() {
    let world = World::new();
    let _lease = world.unknown("key").await;
    let probe = Says::new(Finding::Completed(reply(201, "charged")));
    let done = world.reconciler(probe.clone()).run_once(10).await;
    assert_eq!(done, Reconciled { completed: 1, ..Reconciled::default() });
    let record = world.record("key").await;
    assert_eq!((record.state, record.reply), (State::Completed, Some(reply(201, "charged"))));
    let audit = world.store.audit(&ask("key").id).await.expect("audit answers");
    let [resolved] = &audit[..] else { panic!("{audit:?}") };
    assert_eq!(resolved.event, AuditEvent::ResolvedCompleted);
    assert!(resolved.reason.starts_with("reconciler: "), "{}", resolved.reason);
    assert_eq!(world.reconciler(probe.clone()).run_once(10).await, Reconciled::default());
    assert_eq!(probe.asked(), 1);
}

#[tokio::test]
async fn one_probe_that_finds_nothing_releases_nothing_and_two_that_count_do() {
    let world = World::new();
    let lease = world.unknown("key").await;
    let probe = Says::new(Finding::NotExecuted { authoritative: false });
    let reconciler = world.reconciler(probe.clone());
    // At once, when nothing can be known; then after everything has settled; then once more.
    let quiet = lease.until.plus(MAX_EXECUTION).plus(SETTLE);
    for expected in [quiet, quiet.plus(SETTLE)] {
        let done = reconciler.run_once(10).await;
        assert_eq!(done, Reconciled { still_unknown: 1, ..Reconciled::default() });
        let record = world.record("key").await;
        assert_eq!((record.state, record.reconcile_after), (State::Unknown, Some(expected)));
        world.wait_until_due("key").await;
    }
    let done = reconciler.run_once(10).await;
    assert_eq!(done, Reconciled { released: 1, ..Reconciled::default() });
    assert_eq!(world.record("key").await.state, State::FailedRetryable);
    assert_eq!(probe.asked(), 3);
}

const ABSENT: Finding = Finding::NotExecuted { authoritative: false };

/// How far apart two probes of one process have to be by its own clock.
const APART: Duration = MAX_EXECUTION.saturating_add(SETTLE.saturating_mul(2));

#[tokio::test]
async fn probes_that_only_a_leap_of_the_stores_clock_sets_apart_release_nothing() {
    let world = World::new();
    let _lease = world.unknown("key").await;
    let probe = Says::new(ABSENT);
    let reconciler = world.reconciler(probe.clone());
    for probes in 1..=9 {
        let done = reconciler.run_once(10).await;
        assert_eq!(done, Reconciled { still_unknown: 1, ..Reconciled::default() }, "{probes}");
        world.leap_until_due("key").await;
        world.own.advance(APART / 10);
    }
    assert_eq!((world.record("key").await.state, probe.asked()), (State::Unknown, 9));
    world.own.advance(APART / 10);
    let done = reconciler.run_once(10).await;
    assert_eq!(done, Reconciled { released: 1, ..Reconciled::default() });
    assert_eq!(world.record("key").await.state, State::FailedRetryable);
}

#[tokio::test]
async fn a_process_that_has_just_begun_takes_nobodys_word_for_the_first_probe() {
    let world = World::new();
    let _lease = world.unknown("key").await;
    let first = world.reconciler(Says::new(ABSENT));
    for _ in 0..2 {
        assert_eq!(first.run_once(10).await.still_unknown, 1);
        world.wait_until_due("key").await;
    }
    // It would be its third, and is the first of the next process.
    let second = world.reconciler(Says::new(ABSENT));
    assert_eq!(second.run_once(10).await.still_unknown, 1);
    let due = world.record("key").await.reconcile_after;
    assert_eq!(due, Some(world.clock.now().plus(APART)));
    world.wait_until_due("key").await;
    assert_eq!(second.run_once(10).await.released, 1);
}

#[tokio::test]
async fn processes_that_take_turns_come_to_a_decision_and_the_first_may_make_it() {
    let world = World::new();
    let _lease = world.unknown("key").await;
    let processes: Vec<_> = (0..5).map(|_| world.reconciler(Says::new(ABSENT))).collect();
    for process in &processes {
        assert_eq!(process.run_once(10).await.still_unknown, 1);
        world.wait_until_due("key").await;
    }
    // A clone is no other process.
    assert_eq!(processes[0].clone().run_once(10).await.released, 1);
}

#[tokio::test]
async fn two_attempts_under_one_key_are_not_taken_for_one() {
    let world = World::new();
    let _lease = world.unknown("key").await;
    let absent = world.reconciler(Says::new(ABSENT));
    assert_eq!(absent.run_once(10).await.still_unknown, 1);
    world.own.advance(APART * 2);
    world.clock.advance(APART * 2);
    // The bank cancels it, a retry runs, and of that one nothing is known either.
    let sure = Says::new(Finding::NotExecuted { authoritative: true });
    assert_eq!(world.reconciler(sure).run_once(10).await.released, 1);
    let _lease = world.unknown_of(retry(&ask("key"))).await;
    for _ in 0..3 {
        world.leap_until_due("key").await;
        assert_eq!(absent.run_once(10).await.still_unknown, 1);
    }
    world.wait_until_due("key").await;
    assert_eq!(absent.run_once(10).await.released, 1);
}

#[tokio::test]
async fn an_authoritative_probe_releases_at_once_and_the_retry_runs() {
    let world = World::new();
    let _lease = world.unknown("key").await;
    let probe = Says::new(Finding::NotExecuted { authoritative: true });
    let done = world.reconciler(probe).run_once(10).await;
    assert_eq!(done, Reconciled { released: 1, ..Reconciled::default() });
    let again = world.store.reserve(retry(&ask("key"))).await.expect("reserve answers");
    assert!(matches!(again, Reservation::Granted { .. }), "{again:?}");
}

#[tokio::test]
async fn after_the_limit_it_is_a_dead_letter_and_nobody_is_asked_any_more() {
    let world = World::new();
    let _lease = world.unknown("key").await;
    let probe = Says::new(Finding::StillUnknown);
    let reconciler = world.reconciler(probe.clone()).probes_max(3);
    for _ in 0..2 {
        let done = reconciler.run_once(10).await;
        assert_eq!(done, Reconciled { still_unknown: 1, ..Reconciled::default() });
        assert_eq!(reconciler.run_once(10).await, Reconciled::default(), "not before its pause");
        world.wait_until_due("key").await;
    }
    let done = reconciler.run_once(10).await;
    assert_eq!(done, Reconciled { dead: 1, ..Reconciled::default() });
    assert!(world.record("key").await.is_dead_letter());
    world.clock.advance(Duration::from_secs(365 * 86_400));
    assert_eq!(reconciler.run_once(10).await, Reconciled::default());
    assert_eq!(probe.asked(), 3);
}

/// Panics about one key, never answers about another, and knows the rest.
#[derive(Debug)]
struct Unreliable;

impl Probe for Unreliable {
    fn ask<'a>(&'a self, unknown: &'a Unknown) -> ProbeFuture<'a> {
        Box::pin(async move {
            match unknown.id.key.as_str() {
                "panics" => panic!("as it should"),
                "hangs" => std::future::pending().await,
                _ => Finding::Completed(reply(201, "charged")),
            }
        })
    }
}

#[tokio::test(start_paused = true)]
async fn probes_that_hang_or_panic_keep_nobody_else_waiting() {
    let world = World::new();
    for key in ["hangs", "panics", "fine", "fine too"] {
        let _lease = world.unknown(key).await;
        world.clock.advance(Duration::from_secs(1));
    }
    let reconciler = world.reconciler(Unreliable).at_once(2).patience(Duration::from_secs(3_600));
    let patient = reconciler.clone().patience(Duration::from_secs(1));
    let running = tokio::spawn(async move { reconciler.run(pending()).await });
    // One place is taken by the one that hangs; the others go through the second one.
    while world.record("fine too").await.state != State::Completed {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(world.record("fine").await.state, State::Completed);
    assert_eq!(world.record("panics").await.state, State::Unknown);
    assert_eq!(world.record("hangs").await.state, State::Unknown);
    running.abort();
    // And one that takes too long is given up: it is asked about again later.
    world.wait_until_due("hangs").await;
    let done = patient.run_once(10).await;
    assert_eq!((done.still_unknown, world.record("hangs").await.inquiry.probes), (2, 2));
}

/// Waits for a word before it answers, and says when it was asked.
#[derive(Debug)]
struct Gated {
    asked: Arc<Notify>,
    answer: Arc<Notify>,
    finding: Mutex<Finding>,
}

impl Probe for Gated {
    fn ask<'a>(&'a self, _: &'a Unknown) -> ProbeFuture<'a> {
        Box::pin(async {
            self.asked.notify_one();
            self.answer.notified().await;
            self.finding.lock().expect("not poisoned").clone()
        })
    }
}

fn gated(finding: Finding) -> (Gated, Arc<Notify>, Arc<Notify>) {
    let (asked, answer) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let finding = Mutex::new(finding);
    (Gated { asked: asked.clone(), answer: answer.clone(), finding }, asked, answer)
}

#[tokio::test]
async fn an_owner_that_comes_while_it_is_asked_about_wins_and_nothing_is_released() {
    for finding in [
        Finding::NotExecuted { authoritative: true },
        Finding::NotExecuted { authoritative: false },
        Finding::Completed(reply(402, "declined")),
    ] {
        let world = World::new();
        let lease = world.unknown("key").await;
        let contradicts = finding != Finding::NotExecuted { authoritative: false };
        let (probe, asked, answer) = gated(finding);
        let reconciler = world.reconciler(probe);
        let running = tokio::spawn(async move { reconciler.run_once(10).await });
        asked.notified().await;
        let late = world.store.write(&lease, Write::Complete(reply(201, "mine"))).await;
        assert_eq!(late.expect("write answers"), Written::Applied);
        answer.notify_one();
        let done = running.await.expect("it ends");
        assert_eq!(done, Reconciled { left: 1, ..Reconciled::default() });
        assert_eq!(world.record("key").await.reply, Some(reply(201, "mine")));
        let audit = world.store.audit(&ask("key").id).await.expect("audit answers");
        let incidents = audit.iter().filter(|it| it.event == AuditEvent::Incident).count();
        assert_eq!(incidents, usize::from(contradicts), "{audit:?}");
    }
}

#[tokio::test]
async fn two_reconcilers_ask_about_one_outcome_once() {
    let world = World::new();
    let _lease = world.unknown("key").await;
    let (probe, asked, answer) = gated(Finding::Completed(reply(201, "charged")));
    let first = world.reconciler(probe);
    let running = tokio::spawn(async move { first.run_once(10).await });
    asked.notified().await;
    let other = Says::new(Finding::NotExecuted { authoritative: true });
    let second = world.reconciler(other.clone());
    assert_eq!(second.run_once(10).await, Reconciled::default());
    // Nor if it had listed the record before.
    let mut listed = world.record("key").await;
    listed.inquiry.probes = 0;
    assert!(matches!(second.reconcile(listed).await, Ok(End::Left)));
    assert_eq!(other.asked(), 0);
    answer.notify_one();
    assert_eq!(running.await.expect("it ends").completed, 1);
}

#[tokio::test]
async fn a_reconciler_that_died_while_it_asked_is_followed_by_another() {
    let world = World::new();
    let _lease = world.unknown("key").await;
    let (probe, asked, _answer) = gated(Finding::StillUnknown);
    let first = world.reconciler(probe);
    let running = tokio::spawn(async move { first.run_once(10).await });
    asked.notified().await;
    running.abort();
    let second = world.reconciler(Says::new(Finding::Completed(reply(201, "charged"))));
    assert_eq!(second.run_once(10).await, Reconciled::default(), "it may still be asking");
    world.wait_until_due("key").await;
    assert_eq!(second.run_once(10).await.completed, 1);
}

#[tokio::test]
async fn what_the_probe_found_completed_stands_against_a_release_and_no_retry_runs() {
    let world = World::new();
    let lease = world.unknown("key").await;
    let (probe, asked, answer) = gated(Finding::Completed(reply(201, "charged")));
    let reconciler = world.reconciler(probe);
    let running = tokio::spawn(async move { reconciler.run_once(10).await });
    asked.notified().await;
    // An operator is sure that nothing happened.
    let release = Resolve {
        id: lease.id.clone(),
        generation: lease.generation,
        fence: lease.fence,
        resolution: Resolution::Release(Proof::Authoritative),
        reason: "alice: it was not".into(),
    };
    let released = world.store.resolve(release).await.expect("resolve answers");
    assert!(matches!(released, Resolved::Applied(_)), "{released:?}");
    answer.notify_one();
    assert_eq!(running.await.expect("it ends").completed, 1);
    let record = world.record("key").await;
    assert_eq!((record.state, record.reply), (State::Completed, Some(reply(201, "charged"))));
    let again = world.store.reserve(retry(&ask("key"))).await.expect("reserve answers");
    assert!(matches!(again, Reservation::Occupied { .. }), "{again:?}");
    let audit = world.store.audit(&ask("key").id).await.expect("audit answers");
    let events: Vec<_> = audit.iter().map(|it| it.event).collect();
    assert_eq!(events, [AuditEvent::Released, AuditEvent::Incident]);
}

fn of_route(route: &str, key: &str) -> Ask {
    Ask { route: route.into(), ..ask(key) }
}

/// Knows one route only.
#[derive(Debug)]
struct Knows(&'static str, Says);

impl Probe for Knows {
    fn ask<'a>(&'a self, unknown: &'a Unknown) -> ProbeFuture<'a> {
        self.1.ask(unknown)
    }

    fn knows(&self, route: &str) -> bool {
        route == self.0
    }
}

#[tokio::test]
async fn what_the_probe_does_not_know_is_left_as_it_is_and_in_nobodys_way() {
    let world = World::new();
    for number in 0..40 {
        let _lease = world.unknown_of(of_route("POST /other", &format!("other-{number}"))).await;
        world.clock.advance(Duration::from_secs(1));
    }
    let seen = world.record("other-0").await;
    let _lease = world.unknown_of(of_route("POST /mine", "mine")).await;
    let says = Says::new(Finding::Completed(reply(201, "charged")));
    let reconciler = world.reconciler(Knows("POST /mine", says.clone())).probes_max(1);
    let done = reconciler.run_once(1).await;
    assert_eq!(done, Reconciled { completed: 1, ..Reconciled::default() });
    assert_eq!(reconciler.run_once(10).await, Reconciled::default());
    assert_eq!(says.asked(), 1);
    // Neither asked about nor given up: whoever knows it finds it due.
    assert_eq!(world.record("other-0").await, seen);
    let other = world.reconciler(says);
    assert_eq!(other.run_once(40).await.completed, 40);
}

/// Never answers about one route, and knows the rest.
#[derive(Debug)]
struct HangsOn(&'static str, Arc<AtomicU32>);

impl Probe for HangsOn {
    fn ask<'a>(&'a self, unknown: &'a Unknown) -> ProbeFuture<'a> {
        Box::pin(async move {
            if *unknown.route == *self.0 {
                self.1.fetch_add(1, Ordering::SeqCst);
                std::future::pending::<()>().await;
            }
            Finding::Completed(reply(201, "charged"))
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_that_is_down_does_not_delay_the_others() {
    let world = World::new();
    for number in 0..100 {
        let _lease = world.unknown_of(of_route("POST /down", &format!("down-{number}"))).await;
        world.clock.advance(Duration::from_secs(1));
    }
    let _lease = world.unknown_of(of_route("POST /up", "up")).await;
    let asked = Arc::new(AtomicU32::new(0));
    let hour = Duration::from_secs(3_600);
    let reconciler = world.reconciler(HangsOn("POST /down", Arc::clone(&asked))).patience(hour);
    let reconciler = reconciler.every(Duration::from_secs(5));
    let running = tokio::spawn(async move { reconciler.run(pending()).await });
    let begun = Instant::now();
    while world.record("up").await.state != State::Completed {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(asked.load(Ordering::SeqCst), 4, "a quarter of the places");
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn what_is_being_asked_when_it_is_told_to_stop_comes_to_its_end_and_nothing_else_is_begun() {
    let world = World::new();
    let _lease = world.unknown("asked").await;
    let (probe, asked, answer) = gated(Finding::Completed(reply(201, "charged")));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let reconciler = world.reconciler(probe);
    let running = tokio::spawn(async move { reconciler.run(async { drop(stopped.await) }).await });
    asked.notified().await;
    drop(stop);
    let _lease = world.unknown("too late").await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(!running.is_finished(), "it waits for the answer");
    assert_eq!(world.record("asked").await.state, State::Unknown);
    answer.notify_one();
    running.await.expect("it ends");
    assert_eq!(world.record("asked").await.reply, Some(reply(201, "charged")));
    assert_eq!(world.record("too late").await.inquiry.probes, 0);
}

#[tokio::test(start_paused = true)]
async fn one_that_has_nothing_to_ask_stops_at_once() {
    let world = World::new();
    let reconciler = world.reconciler(Says::new(ABSENT)).every(Duration::from_secs(3_600));
    let begun = Instant::now();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(async move { reconciler.run(async { drop(stopped.await) }).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!running.is_finished());
    drop(stop);
    running.await.expect("it ends");
    assert_eq!(begun.elapsed().as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_is_not_waited_for_for_ever() {
    for silent in [StoreCall::DueUnknown, StoreCall::Resolve] {
        let world = World::new();
        let _lease = world.unknown("key").await;
        let calls = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&calls);
        let store = FaultyStore::new(world.store.clone(), move |call, _| {
            let is_first = call == silent && counted.fetch_add(1, Ordering::SeqCst) == 0;
            if is_first { Fault::HangsBefore } else { Fault::None }
        });
        let found = Says::new(Finding::Completed(reply(201, "charged")));
        let reconciler = Reconciler::new(Arc::new(store), found);
        tokio::spawn(async move { reconciler.run(pending()).await });
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(calls.load(Ordering::SeqCst) > 1, "{silent:?}");
        assert_eq!(world.record("key").await.state, State::Completed, "{silent:?}");
    }
}
