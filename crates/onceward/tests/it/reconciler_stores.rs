//! The reconciler on the stores that keep rows, with injected time: what it decides, and who comes first
//! when the attempt itself, another reconciler or an operator comes while the probe is asked.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use onceward::{
    Finding, PgOptions, Probe, Reconciler, SqliteOptions, SqliteStore, Store, Unknown,
    clock::{Clock, ManualClock, SystemClock, Timestamp},
    machine::SETTLE,
    record::{AuditEvent, Lease, Record, State},
    store::{Proof, Reservation, Resolution, Resolve, Resolved, Write, Written},
    testing::samples::{MAX_EXECUTION, ask, reply, retry},
    worker::{ProbeFuture, Reconciled},
};
use onceward_testbed::Postgres;
use tokio::{sync::Semaphore, time::Instant};

use crate::{file_store::directory, postgres_home::Home};

const KEY: &str = "key";

/// A store with a clock of its own.
struct World {
    store: Arc<dyn Store>,
    clock: ManualClock,
    own: OwnClock,
    _file: Option<tempfile::TempDir>,
}

/// The time of a process, which passes when it is told to: microseconds since it began.
#[derive(Clone, Debug)]
struct OwnClock(Instant, Arc<AtomicU64>);

impl OwnClock {
    fn new() -> Self {
        OwnClock(Instant::now(), Arc::default())
    }

    fn advance(&self, by: Duration) {
        self.1.fetch_add(u64::try_from(by.as_micros()).expect("not so long"), Ordering::SeqCst);
    }
}

impl Clock for OwnClock {
    fn now(&self) -> Timestamp {
        SystemClock.now()
    }

    fn monotonic(&self) -> Instant {
        self.0 + Duration::from_micros(self.1.load(Ordering::SeqCst))
    }
}

fn clock() -> ManualClock {
    ManualClock::new(Timestamp::from_micros(1_000_000_000_000_000))
}

async fn file() -> World {
    let (directory, clock) = (directory(), clock());
    let options = SqliteOptions::new(directory.path().join("store.db"));
    let store = SqliteStore::open(options.clock(Arc::new(clock.clone()))).await.expect("a store");
    World { store: Arc::new(store), clock, own: OwnClock::new(), _file: Some(directory) }
}

async fn postgres() -> World {
    let clock = clock();
    let injected = Arc::new(clock.clone());
    let options = move |options: PgOptions| options.clock(injected);
    let home = Home::at(Postgres::shared().url("postgres"), options).await;
    World { store: home.store, clock, own: OwnClock::new(), _file: None }
}

impl World {
    async fn unknown(&self, key: &str) -> Lease {
        let reserved = self.store.reserve(ask(key)).await.expect("an answer");
        let Reservation::Granted { lease, .. } = reserved else { panic!("{reserved:?}") };
        assert_eq!(self.write(&lease, Write::MarkUnknown("reset".into())).await, Written::Applied);
        lease
    }

    async fn write(&self, lease: &Lease, write: Write) -> Written {
        self.store.write(lease, write).await.expect("an answer")
    }

    async fn record(&self, key: &str) -> Record {
        self.store.load(&ask(key).id).await.expect("an answer").expect("it is there")
    }

    async fn events(&self) -> Vec<AuditEvent> {
        let audit = self.store.audit(&ask(KEY).id).await.expect("an answer");
        audit.iter().map(|record| record.event).collect()
    }

    fn reconciler(&self, probe: impl Probe) -> Reconciler {
        Reconciler::new(Arc::clone(&self.store), probe).clock(Arc::new(self.own.clone()))
    }

    async fn wait_until_due(&self) {
        let due = self.record(KEY).await.reconcile_after.expect("it is unknown");
        self.own.advance(due.since(self.clock.now()));
        self.clock.set(due.max(self.clock.now()));
    }

    async fn retry_runs(&self) -> bool {
        let again = self.store.reserve(retry(&ask(KEY))).await.expect("an answer");
        matches!(again, Reservation::Granted { .. })
    }
}

/// Finds this, when it may, and counts how often it was asked.
#[derive(Clone, Debug)]
struct Bank {
    finding: Finding,
    asked: Arc<AtomicU32>,
    is_asked: Arc<Semaphore>,
    may_answer: Arc<Semaphore>,
}

impl Bank {
    fn says(finding: Finding) -> Self {
        let bank = Bank::that_waits(finding);
        bank.may_answer.add_permits(1000);
        bank
    }

    fn that_waits(finding: Finding) -> Self {
        let (asked, closed) = (Arc::default(), || Arc::new(Semaphore::new(0)));
        Bank { finding, asked, is_asked: closed(), may_answer: closed() }
    }

    fn asked(&self) -> u32 {
        self.asked.load(Ordering::SeqCst)
    }

    async fn until_asked(&self) {
        self.is_asked.acquire().await.expect("it is open").forget();
    }
}

impl Probe for Bank {
    fn ask<'a>(&'a self, _: &'a Unknown) -> ProbeFuture<'a> {
        Box::pin(async {
            self.asked.fetch_add(1, Ordering::SeqCst);
            self.is_asked.add_permits(1);
            self.may_answer.acquire().await.expect("it is open").forget();
            self.finding.clone()
        })
    }
}

const ABSENT: Finding = Finding::NotExecuted { authoritative: false };
const SURELY_ABSENT: Finding = Finding::NotExecuted { authoritative: true };

fn charged() -> Finding {
    Finding::Completed(reply("charged"))
}

async fn what_was_found_is_the_reply_of_the_next_retry(world: World) {
    let _lease = world.unknown(KEY).await;
    let done = world.reconciler(Bank::says(charged())).run_once(10).await;
    assert_eq!(done, Reconciled { completed: 1, ..Reconciled::default() });
    let record = world.record(KEY).await;
    assert_eq!((record.state, record.reply), (State::Completed, Some(reply("charged"))));
    assert_eq!(world.events().await, [AuditEvent::ResolvedCompleted]);
    assert!(!world.retry_runs().await);
}

async fn one_look_that_finds_nothing_releases_nothing_and_two_that_count_do(world: World) {
    let lease = world.unknown(KEY).await;
    let bank = Bank::says(ABSENT);
    let reconciler = world.reconciler(bank.clone());
    let quiet = lease.until.plus(MAX_EXECUTION).plus(SETTLE);
    for expected in [quiet, quiet.plus(SETTLE)] {
        let done = reconciler.run_once(10).await;
        assert_eq!(done, Reconciled { still_unknown: 1, ..Reconciled::default() });
        let record = world.record(KEY).await;
        assert_eq!((record.state, record.reconcile_after), (State::Unknown, Some(expected)));
        assert!(!world.retry_runs().await);
        world.wait_until_due().await;
    }
    let done = reconciler.run_once(10).await;
    assert_eq!(done, Reconciled { released: 1, ..Reconciled::default() });
    assert_eq!(bank.asked(), 3);
    assert!(world.retry_runs().await);
}

/// The clock of the server is set forward by a day, again and again.
async fn looks_that_only_the_stores_clock_sets_apart_release_nothing(world: World) {
    let _lease = world.unknown(KEY).await;
    let reconciler = world.reconciler(Bank::says(ABSENT));
    for _ in 0..5 {
        assert_eq!(reconciler.run_once(10).await.still_unknown, 1);
        world.clock.advance(Duration::from_secs(86_400));
        assert!(!world.retry_runs().await);
    }
    world.own.advance(MAX_EXECUTION + SETTLE * 2);
    assert_eq!(reconciler.run_once(10).await.released, 1);
    assert!(world.retry_runs().await);
}

async fn after_the_limit_it_is_a_dead_letter_and_nobody_is_asked_any_more(world: World) {
    let _lease = world.unknown(KEY).await;
    let bank = Bank::says(Finding::StillUnknown);
    let reconciler = world.reconciler(bank.clone()).probes_max(2);
    assert_eq!(reconciler.run_once(10).await.still_unknown, 1);
    assert_eq!(reconciler.run_once(10).await, Reconciled::default(), "not before its pause");
    world.wait_until_due().await;
    assert_eq!(reconciler.run_once(10).await.dead, 1);
    assert!(world.record(KEY).await.is_dead_letter());
    world.clock.advance(Duration::from_secs(365 * 86_400));
    assert_eq!(reconciler.run_once(10).await, Reconciled::default());
    assert_eq!(bank.asked(), 2);
}

async fn an_owner_that_comes_while_the_probe_is_asked_wins(world: World) {
    let lease = world.unknown(KEY).await;
    let bank = Bank::that_waits(SURELY_ABSENT);
    let reconciler = world.reconciler(bank.clone());
    let running = tokio::spawn(async move { reconciler.run_once(10).await });
    bank.until_asked().await;
    assert_eq!(world.write(&lease, Write::Complete(reply("mine"))).await, Written::Applied);
    bank.may_answer.add_permits(1);
    let done = running.await.expect("it ends");
    assert_eq!(done, Reconciled { left: 1, ..Reconciled::default() });
    assert_eq!(world.record(KEY).await.reply, Some(reply("mine")));
    let incidents = world.events().await.into_iter().filter(|it| *it == AuditEvent::Incident);
    assert_eq!(incidents.count(), 1, "what the probe said is kept");
    assert!(!world.retry_runs().await);
}

async fn an_owner_that_comes_after_the_probe_has_spoken_changes_no_reply(world: World) {
    let lease = world.unknown(KEY).await;
    assert_eq!(world.reconciler(Bank::says(charged())).run_once(10).await.completed, 1);
    let late = world.write(&lease, Write::Complete(reply("mine"))).await;
    assert_ne!(late, Written::Applied);
    assert_eq!(world.record(KEY).await.reply, Some(reply("charged")));
}

async fn an_owner_that_comes_after_a_release_keeps_the_retry_from_running(world: World) {
    let lease = world.unknown(KEY).await;
    assert_eq!(world.reconciler(Bank::says(SURELY_ABSENT)).run_once(10).await.released, 1);
    let late = world.write(&lease, Write::Complete(reply("mine"))).await;
    assert_eq!(late, Written::AppliedAfterRelease);
    assert!(!world.retry_runs().await);
    assert!(world.events().await.contains(&AuditEvent::Incident));
}

async fn an_owner_that_comes_after_a_retry_has_taken_the_record_is_superseded(world: World) {
    let lease = world.unknown(KEY).await;
    assert_eq!(world.reconciler(Bank::says(SURELY_ABSENT)).run_once(10).await.released, 1);
    assert!(world.retry_runs().await);
    let late = world.write(&lease, Write::Complete(reply("mine"))).await;
    assert!(matches!(late, Written::Superseded(_)), "{late:?}");
    assert_eq!(world.record(KEY).await.state, State::InProgress);
}

async fn two_reconcilers_ask_about_one_outcome_once(world: World) {
    let _lease = world.unknown(KEY).await;
    let bank = Bank::that_waits(charged());
    let first = world.reconciler(bank.clone());
    let running = tokio::spawn(async move { first.run_once(10).await });
    bank.until_asked().await;
    let other = Bank::says(SURELY_ABSENT);
    assert_eq!(world.reconciler(other.clone()).run_once(10).await, Reconciled::default());
    assert_eq!(other.asked(), 0);
    bank.may_answer.add_permits(1);
    assert_eq!(running.await.expect("it ends").completed, 1);
}

/// Whoever asks about it is only known by the pause that he took.
async fn a_reconciler_that_died_while_it_asked_is_followed_by_another(world: World) {
    let _lease = world.unknown(KEY).await;
    let bank = Bank::that_waits(charged());
    let first = world.reconciler(bank.clone());
    let running = tokio::spawn(async move { first.run_once(10).await });
    bank.until_asked().await;
    running.abort();
    let second = world.reconciler(Bank::says(charged()));
    assert_eq!(second.run_once(10).await, Reconciled::default(), "it may still be asking");
    world.wait_until_due().await;
    assert_eq!(second.run_once(10).await.completed, 1);
}

async fn what_was_found_stands_against_a_release_while_it_was_asked(world: World) {
    let lease = world.unknown(KEY).await;
    let bank = Bank::that_waits(charged());
    let reconciler = world.reconciler(bank.clone());
    let running = tokio::spawn(async move { reconciler.run_once(10).await });
    bank.until_asked().await;
    let release = Resolve {
        id: lease.id.clone(),
        generation: lease.generation,
        fence: lease.fence,
        resolution: Resolution::Release(Proof::Authoritative),
        reason: "alice: it was not".into(),
    };
    let released = world.store.resolve(release).await.expect("an answer");
    assert!(matches!(released, Resolved::Applied(_)), "{released:?}");
    bank.may_answer.add_permits(1);
    assert_eq!(running.await.expect("it ends").completed, 1);
    assert_eq!(world.record(KEY).await.reply, Some(reply("charged")));
    assert_eq!(world.events().await, [AuditEvent::Released, AuditEvent::Incident]);
    assert!(!world.retry_runs().await);
}

macro_rules! on_each_store {
    ($($case:ident),* $(,)?) => {
        mod on_file {
            $(
                #[tokio::test]
                async fn $case() {
                    super::$case(super::file().await).await;
                }
            )*
        }
        mod on_postgres {
            $(
                #[tokio::test]
                async fn $case() {
                    super::$case(super::postgres().await).await;
                }
            )*
        }
    };
}

on_each_store! {
    what_was_found_is_the_reply_of_the_next_retry,
    one_look_that_finds_nothing_releases_nothing_and_two_that_count_do,
    looks_that_only_the_stores_clock_sets_apart_release_nothing,
    after_the_limit_it_is_a_dead_letter_and_nobody_is_asked_any_more,
    an_owner_that_comes_while_the_probe_is_asked_wins,
    an_owner_that_comes_after_the_probe_has_spoken_changes_no_reply,
    an_owner_that_comes_after_a_release_keeps_the_retry_from_running,
    an_owner_that_comes_after_a_retry_has_taken_the_record_is_superseded,
    two_reconcilers_ask_about_one_outcome_once,
    a_reconciler_that_died_while_it_asked_is_followed_by_another,
    what_was_found_stands_against_a_release_while_it_was_asked,
}
