//! Sweeper, reaper and surveyor: on every store, under faults, and side by side.

use std::{future::pending, sync::Arc, time::Duration};

use http::StatusCode;
use metrics_exporter_prometheus::PrometheusBuilder;
use onceward::{
    Effects, Engine, MemoryStore, PgOptions, PgStore, Policy, Queued, Routes, Settings,
    SqliteOptions, SqliteStore, Store,
    clock::{ManualClock, Timestamp},
    outbox::{Message, Settlement},
    record::State,
    store::{Ask, Mode, Reservation, Resolution, Resolve, Resolved, Write, Written},
    testing::{
        Fault, Point, StoreCall,
        outbox::{MemoryOutbox, OutboxHarness},
        samples::{LEASE, RETENTION, TOMBSTONE, ask, reply, retry},
    },
    worker::{Reap, Reaper, Surveyor, Sweep, Sweeper},
};
use onceward_testbed::Postgres;
use tokio::sync::Notify;

use crate::service::{Faults, Run, Service, pass, says};

const KEY: &str = "order-0000000000000001";
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// An engine on one of the stores, whose time is ours.
struct Home {
    name: &'static str,
    engine: Arc<Engine>,
    store: Arc<dyn Store>,
    clock: ManualClock,
    _folder: tempfile::TempDir,
}

impl Home {
    /// One on each store.
    async fn each() -> Vec<Home> {
        let mut homes = Vec::new();
        for name in ["memory", "file", "postgres"] {
            let folder = tempfile::tempdir().expect("a folder");
            let clock = ManualClock::new(Timestamp::from_micros(1_000_000_000_000_000));
            let time = Arc::new(clock.clone());
            let store: Arc<dyn Store> = match name {
                "memory" => Arc::new(MemoryStore::with_clock(time.clone())),
                "file" => {
                    let options = SqliteOptions::new(folder.path().join("x.db"));
                    let opened = SqliteStore::open(options.clock(time.clone())).await;
                    Arc::new(opened.expect("a store"))
                }
                _ => {
                    let schema = format!("workers_{:016x}", rand::random::<u64>());
                    let options = PgOptions::new(Postgres::shared().url("postgres"));
                    let options = options.schema(schema).clock(time.clone());
                    Arc::new(PgStore::connect(options).await.expect("a store"))
                }
            };
            let settings = Settings { clock: time, ..Settings::default() };
            let routes = Routes::from(Policy::required());
            let engine = Arc::new(Engine::new(Arc::clone(&store), routes, settings));
            homes.push(Home { name, engine, store, clock, _folder: folder });
        }
        homes
    }

    async fn reserve(&self, ask: &Ask) -> Reservation {
        self.store.reserve(ask.clone()).await.expect("reserve answers")
    }

    /// Reserved by an attempt that is not heard of again.
    async fn vanish(&self, key: &str, effects: Effects) {
        let granted = self.reserve(&Ask { effects, ..ask(key) }).await;
        assert!(matches!(granted, Reservation::Granted { .. }), "{}: {granted:?}", self.name);
    }

    async fn complete(&self, key: &str) {
        let Reservation::Granted { lease, .. } = self.reserve(&ask(key)).await else {
            panic!("{}: {key} is not free", self.name);
        };
        let written = self.store.write(&lease, Write::Complete(reply("done"))).await;
        assert_eq!(written.expect("write answers"), Written::Applied);
    }

    async fn state(&self, key: &str) -> Option<State> {
        self.store.load(&ask(key).id).await.expect("load answers").map(|record| record.state)
    }

    async fn sweep(&self) -> Sweep {
        Sweeper::new(Arc::clone(&self.engine)).run_once().await.expect("the store answers")
    }

    async fn reap(&self) -> Reap {
        Reaper::new(Arc::clone(&self.engine)).run_once().await.expect("the store answers")
    }
}

#[tokio::test]
async fn vanished_attempts_are_moved_on_by_their_effects_and_nobody_else_is_touched() {
    for home in Home::each().await {
        for effects in [Effects::External, Effects::Undeclared, Effects::None, Effects::Phased] {
            home.vanish(effects.name(), effects).await;
        }
        home.complete("completed").await;
        assert_eq!(home.sweep().await, Sweep::default(), "{}", home.name);
        home.clock.advance(LEASE - SECOND);
        home.vanish("lives", Effects::External).await;
        home.clock.advance(SECOND);
        let swept = Sweep { unknown: 2, retryable: 1, ..Sweep::default() };
        assert_eq!(home.sweep().await, swept, "{}", home.name);
        for (key, state) in [
            ("external", State::Unknown),
            ("undeclared", State::Unknown),
            ("none", State::FailedRetryable),
            ("phased", State::InProgress),
            ("lives", State::InProgress),
            ("completed", State::Completed),
        ] {
            assert_eq!(home.state(key).await, Some(state), "{}: {key}", home.name);
        }
        assert_eq!(home.sweep().await, Sweep::default(), "{}", home.name);
    }
}

#[tokio::test]
async fn many_sweepers_move_each_record_once() {
    for home in Home::each().await {
        for number in 0..250 {
            home.vanish(&format!("key-{number}"), Effects::External).await;
        }
        home.clock.advance(LEASE);
        let runs = futures_util::future::join_all((0..4).map(|_| home.sweep())).await;
        let unknown: u32 = runs.iter().map(|sweep| sweep.unknown).sum();
        assert_eq!(unknown, 250, "{}: {runs:?}", home.name);
        let audit = home.store.audit(&ask("key-7").id).await.expect("audit answers");
        assert_eq!(audit.len(), 1, "{}", home.name);
    }
}

#[tokio::test]
async fn an_owner_that_renews_is_not_swept_and_one_that_was_swept_can_still_tell_its_reply() {
    for home in Home::each().await {
        let Reservation::Granted { lease, .. } = home.reserve(&ask("key")).await else {
            panic!("{}: it was free", home.name);
        };
        home.clock.advance(LEASE);
        // Late, but before the sweeper.
        let renewed = home.store.write(&lease, Write::Renew(LEASE)).await;
        assert_eq!(renewed.expect("write answers"), Written::Applied);
        assert_eq!(home.sweep().await, Sweep::default(), "{}", home.name);
        home.clock.advance(LEASE);
        assert_eq!(home.sweep().await.unknown, 1, "{}", home.name);
        let renewed = home.store.write(&lease, Write::Renew(LEASE)).await;
        assert!(matches!(renewed, Ok(Written::Superseded(_))), "{}: {renewed:?}", home.name);
        let completed = home.store.write(&lease, Write::Complete(reply("late"))).await;
        assert_eq!(completed.expect("write answers"), Written::Applied, "{}", home.name);
        assert_eq!(home.state("key").await, Some(State::Completed));
    }
}

#[tokio::test]
async fn retention_leaves_a_tombstone_then_nothing_and_what_is_open_stays() {
    for home in Home::each().await {
        home.complete("completed").await;
        home.vanish("unknown", Effects::External).await;
        let accepted = Ask { mode: Mode::Accept, queued_for: DAY * 9999, ..ask("pending") };
        let _: Reservation = home.reserve(&accepted).await;
        home.clock.advance(LEASE);
        home.sweep().await;
        home.clock.advance(RETENTION - LEASE - SECOND);
        assert_eq!(home.reap().await, Reap::default(), "{}", home.name);
        home.clock.advance(SECOND);
        assert_eq!(home.reap().await, Reap { expired: 1, ..Reap::default() }, "{}", home.name);
        let found = home.reserve(&retry(&ask("completed"))).await;
        let Reservation::Occupied { record, .. } = found else { panic!("{found:?}") };
        assert_eq!(
            (record.state, record.reply),
            (State::Expired, Some(reply("done").status_only()))
        );
        home.clock.advance(TOMBSTONE);
        assert_eq!(home.reap().await, Reap { purged: 1, ..Reap::default() }, "{}", home.name);
        assert_eq!(home.state("completed").await, None);
        home.clock.advance(Reaper::AUDIT_RETENTION);
        // What happened to it is kept as long as it is open.
        assert_eq!(home.reap().await, Reap::default(), "{}", home.name);
        assert_eq!(home.state("unknown").await, Some(State::Unknown), "{}", home.name);
        assert_eq!(home.state("pending").await, Some(State::Pending), "{}", home.name);
    }
}

#[tokio::test]
async fn reapers_and_retries_at_once_leave_each_key_with_one_answer() {
    for home in Home::each().await {
        for number in 0..100 {
            home.complete(&format!("key-{number}")).await;
        }
        home.clock.advance(RETENTION);
        let home = &home;
        let reaps = futures_util::future::join_all((0..3).map(|_| home.reap()));
        let retries = futures_util::future::join_all((0..100).map(|number| {
            let retry = retry(&ask(&format!("key-{number}")));
            async move { home.reserve(&retry).await }
        }));
        let (reaps, found) = tokio::join!(reaps, retries);
        assert_eq!(reaps.iter().map(|reap| reap.expired).sum::<u32>(), 100, "{}", home.name);
        for found in found {
            let expired = matches!(&found, Reservation::Occupied { record, .. }
                if record.state == State::Expired);
            assert!(expired, "{}: {found:?}", home.name);
        }
    }
}

fn queued() -> Policy {
    Policy::required().queued(Queued::default()).expect("allowed")
}

#[tokio::test(start_paused = true)]
async fn accepted_work_that_nobody_begins_is_given_up_where_nothing_is_dispatched() {
    let service = Service::new(queued(), |_| async { "charged" });
    assert_eq!(service.charge(KEY).await.says(), says(202, "accepted"));
    let sweeper = Sweeper::new(Arc::clone(&service.engine));
    service.clock.advance(DAY - SECOND * 2);
    assert_eq!(sweeper.run_once().await.expect("memory answers"), Sweep::default());
    service.clock.advance(SECOND * 2);
    let given_up = Sweep { given_up: 1, ..Sweep::default() };
    assert_eq!(sweeper.run_once().await.expect("memory answers"), given_up);
    let answer = service.charge(KEY).await;
    assert_eq!((answer.status, service.runs()), (504, 0));
    assert_eq!(answer.json()["code"], "idempotency_not_executed");
    assert_eq!(sweeper.run_once().await.expect("memory answers"), Sweep::default());
}

#[tokio::test(start_paused = true)]
async fn overdue_work_is_found_behind_any_number_that_may_wait_longer() {
    let service = Service::new(queued(), |_| async { "charged" });
    for number in 0..2500 {
        let ask = Ask { mode: Mode::Accept, queued_for: DAY * 9, ..ask(&format!("key-{number}")) };
        let _: Reservation = service.memory.reserve(ask).await.expect("memory answers");
    }
    service.clock.advance(SECOND);
    service.charge(KEY).await;
    service.clock.advance(DAY);
    let sweeper = Sweeper::new(Arc::clone(&service.engine));
    let given_up = Sweep { given_up: 1, ..Sweep::default() };
    assert_eq!(sweeper.run_once().await.expect("memory answers"), given_up);
    assert_eq!(service.record(KEY).await.map(|record| record.state), Some(State::Completed));
}

#[tokio::test(start_paused = true)]
async fn one_run_is_bounded_and_says_that_there_is_more() {
    let service = Service::new(Policy::required(), |_| async { "charged" });
    for number in 0..10_050 {
        let _: Reservation =
            service.memory.reserve(ask(&format!("key-{number}"))).await.expect("memory answers");
    }
    service.clock.advance(LEASE);
    let sweeper = Sweeper::new(Arc::clone(&service.engine));
    let first = sweeper.run_once().await.expect("memory answers");
    assert_eq!((first.unknown, first.more), (10_000, true));
    let second = sweeper.run_once().await.expect("memory answers");
    assert_eq!((second.unknown, second.more), (50, false));
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_fails_tries_again_later_and_later_and_works_again() {
    let faults = Faults::default();
    let policy = Policy::required().effects(Effects::External).expect("allowed");
    let service = Service::on(|memory| faults.on(memory), policy, |_| async { "charged" });
    let _: Reservation = service.memory.reserve(ask("key")).await.expect("memory answers");
    service.clock.advance(LEASE);
    faults.fail(StoreCall::Sweep, Fault::Refused, 4);
    let sweeper = Sweeper::new(Arc::clone(&service.engine));
    let running = tokio::spawn(async move { sweeper.run(SECOND * 30, pending()).await });
    // At most 3 s to the first run, then 1, 2, 4 and 8 s, each with a tenth more.
    let state = async || {
        service.memory.load(&ask("key").id).await.expect("memory answers").map(|it| it.state)
    };
    pass(Duration::from_millis(1 + 900 * 15)).await;
    assert_eq!(state().await, Some(State::InProgress));
    pass(SECOND * 7).await;
    assert_eq!(state().await, Some(State::Unknown));
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_worker_ends_when_it_is_stopped_and_when_the_engine_drains() {
    let service = Service::new(Policy::required(), |_| async { "charged" });
    let stop = Arc::new(Notify::new());
    for drain in [false, true] {
        let sweeper = Sweeper::new(Arc::clone(&service.engine));
        let reaper = Reaper::new(Arc::clone(&service.engine));
        let told = [Arc::clone(&stop), Arc::clone(&stop)];
        let running = tokio::spawn(async move {
            let [one, two] = told;
            tokio::join!(
                sweeper.run(SECOND, async move { one.notified().await }),
                reaper.run(SECOND, async move { two.notified().await })
            );
        });
        pass(SECOND * 5).await;
        assert!(!running.is_finished());
        match drain {
            true => service.engine.drain(Duration::ZERO).await,
            false => stop.notify_waiters(),
        }
        tokio::time::timeout(SECOND, running).await.expect("it ends").expect("no panic");
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_was_begun_ends_after_its_batch_when_the_engine_drains() {
    let policy = Policy::required();
    let (service, gate) = Service::gated(policy, Settings::default(), |_| async { "charged" });
    for number in 0..300 {
        let _: Reservation =
            service.memory.reserve(ask(&format!("key-{number}"))).await.expect("memory answers");
    }
    service.clock.advance(LEASE);
    let sweeper = Sweeper::new(Arc::clone(&service.engine));
    let running = tokio::spawn(async move { sweeper.run_once().await.expect("memory answers") });
    gate.expect(StoreCall::Sweep, Point::Before).await.pass();
    let answering = gate.expect(StoreCall::Sweep, Point::After).await;
    service.engine.drain(Duration::ZERO).await;
    answering.pass();
    let swept = running.await.expect("no panic");
    assert_eq!(swept, Sweep { unknown: 100, ..Sweep::default() });
}

#[test]
fn the_surveyor_tells_what_is_open_and_how_old_it_is() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().start_paused(true).build().expect("a runtime");
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let policy = Policy::required().lease(SECOND * 60).expect("allowed");
            let service = Service::new(policy, |run: Run| async move {
                pass(SECOND * 25).await;
                if run.number == 1 { StatusCode::CREATED } else { StatusCode::OK }
            });
            for number in 0..120 {
                service.charge(&format!("order-{number:016}")).await;
            }
            let memory = &service.memory;
            let _: Reservation = memory.reserve(ask("key")).await.expect("memory answers");
            service.clock.advance(LEASE);
            let engine = || Arc::clone(&service.engine);
            Sweeper::new(engine()).run_once().await.expect("memory answers");
            service.clock.advance(SECOND * 40);
            let accept = Ask { mode: Mode::Accept, ..ask("pending") };
            let _: Reservation = memory.reserve(accept).await.expect("memory answers");
            service.clock.advance(SECOND * 5);
            let surveyor = Surveyor::new(engine());
            surveyor.run_once().await.expect("memory answers");
            assert!(service.engine.operation_times()[0].lease_is_short());
        });
    });
    let rendered = handle.render();
    for line in [
        "onceward_records{state=\"completed\"} 120",
        "onceward_records{state=\"unknown\"} 1",
        "onceward_records{state=\"pending\"} 1",
        "onceward_records{state=\"expired\"} 0",
        "onceward_unknown_oldest_seconds 105",
        "onceward_pending_oldest_seconds 5",
        "onceward_in_progress_oldest_seconds 0",
        "onceward_swept_total{state=\"unknown\"} 1",
        "onceward_lease_too_short{route=\"default\"} 1",
    ] {
        assert!(rendered.contains(&format!("\n{line}")), "{line}:\n{rendered}");
    }
}

/// An unknown outcome, and one of them that nobody asks about any more.
async fn unknown_and_given_up(store: &MemoryStore) {
    for (key, is_given_up) in [("unknown", false), ("given-up", true)] {
        let Reservation::Granted { lease, .. } =
            store.reserve(ask(key)).await.expect("memory answers")
        else {
            panic!("{key} is not free");
        };
        let unknown = store.write(&lease, Write::MarkUnknown("reset".into())).await;
        assert_eq!(unknown.expect("memory answers"), Written::Applied);
        if is_given_up {
            let resolve = Resolve {
                id: lease.id,
                generation: lease.generation,
                fence: lease.fence,
                resolution: Resolution::DeadLetter { asked_at: None },
                reason: "nobody can say".into(),
            };
            let resolved = store.resolve(resolve).await.expect("memory answers");
            assert!(matches!(resolved, Resolved::Applied(_)), "{resolved:?}");
        }
    }
}

#[test]
fn the_surveyor_tells_what_was_given_up_and_for_how_long_a_message_has_been_due() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().start_paused(true).build().expect("a runtime");
    let is_told = |line: &str| handle.render().contains(&format!("\n{line}\n"));
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let clock = ManualClock::default();
            let store = Arc::new(MemoryStore::with_clock(Arc::new(clock.clone())));
            let outbox = MemoryOutbox::new(Arc::clone(&store), Arc::new(clock.clone()));
            let on = OutboxHarness { store: store.clone(), outbox: Arc::new(outbox), clock };
            let clock = Arc::new(on.clock.clone());
            let settings = Settings { clock, ..Settings::default() };
            let engine = Engine::new(store.clone(), Routes::from(Policy::required()), settings);
            let surveyor = Surveyor::new(Arc::new(engine)).outbox(Arc::clone(&on.outbox));
            surveyor.run_once().await.expect("memory answers");
            let nothing = [
                "onceward_unknown_dead_letters 0",
                "onceward_outbox_dead_letters 0",
                "onceward_outbox_lag_seconds 0",
            ];
            assert!(nothing.into_iter().all(is_told), "{}", handle.render());
            unknown_and_given_up(&store).await;
            on.staged(["a", "b", "c"].map(|name| Message::new(name, "ledger", "payload"))).await;
            let (attempt, claimed) = on.claim(2).await;
            for claimed in &claimed {
                let dead = Settlement::Dead { why: "410 Gone".into() };
                assert!(on.settle(attempt, claimed, dead).await);
            }
            on.clock.advance(SECOND * 301);
            surveyor.run_once().await.expect("memory answers");
        });
    });
    for line in [
        "onceward_records{state=\"unknown\"} 2",
        "onceward_unknown_dead_letters 1",
        "onceward_outbox_dead_letters 2",
        "onceward_outbox_lag_seconds 301",
    ] {
        assert!(is_told(line), "{line}:\n{}", handle.render());
    }
}
