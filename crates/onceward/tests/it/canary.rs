//! A store that has lost what it acknowledged: found out, and nothing runs that may be among it.

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use http::Response;
use onceward::{
    Canary, MemoryStore, Policy, Queued, Settings, SqliteOptions, SqliteStore, Store,
    clock::{Clock as _, ManualClock, Timestamp},
    store::{Beat, NodeId, Regression},
    testing::{Fault, StoreCall},
    worker::Beater,
};
use tempfile::TempDir;

use crate::service::{Answer, FOR_EVER, Faults, Service, says};

const EARLY: &str = "order-0000000000000001";
const LATE: &str = "order-0000000000000002";
const NEW: &str = "order-0000000000000003";

const SECOND: Duration = Duration::from_secs(1);

/// A file store, a copy of it, and what is remembered outside of it.
struct Home {
    directory: TempDir,
    clock: ManualClock,
}

/// A process on it.
struct Process {
    service: Service,
    store: Arc<SqliteStore>,
    beater: Beater,
    canary: Arc<Canary>,
}

impl Home {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        Home { directory, clock: ManualClock::default() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    async fn start(&self) -> Process {
        let clock = Arc::new(self.clock.clone());
        let options = SqliteOptions::new(self.path("store.db")).clock(clock.clone());
        let store = Arc::new(SqliteStore::open(options).await.expect("a store"));
        let canary = Canary::new(Arc::clone(&store) as Arc<dyn Store>).clock(clock);
        let canary = Arc::new(canary.remembering(self.path("canary")).expect("a file, or none"));
        let settings = Settings { canary: Some(Arc::clone(&canary)), ..Settings::default() };
        let (given, work) = (Arc::clone(&store), |_| async { "charged" });
        let service = Service::with_settings(|_| given, Policy::required(), settings, work);
        let beater = Beater::new(Arc::clone(&service.engine));
        Process { service, store, beater, canary }
    }

    /// Two keys, the second of which is in no backup: what is left of it is put back.
    async fn go_back(&self) {
        let process = self.start().await;
        assert_eq!(process.charge(EARLY).await.says(), says(200, "executed"));
        process.stop().await;
        fs::copy(self.path("store.db"), self.path("backup")).expect("a copy");
        self.clock.advance(SECOND);
        let process = self.start().await;
        assert_eq!(process.charge(LATE).await.says(), says(200, "executed"));
        process.stop().await;
        fs::copy(self.path("backup"), self.path("store.db")).expect("put back");
        self.clock.advance(SECOND);
    }
}

impl Process {
    async fn charge(&self, key: &str) -> Answer {
        self.service.charge(key).await
    }

    async fn beat(&self) {
        self.beater.run_once().await.expect("a beat");
    }

    /// In good order.
    async fn stop(self) {
        self.beat().await;
        self.store.close().await;
    }
}

/// A UUID of version 7 of this time.
fn made_at(time: Timestamp) -> String {
    let millis = format!("{:012x}", time.as_micros() / 1000);
    format!("{}-{}-7cc3-98c4-dc0c0c07398f", &millis[..8], &millis[8..])
}

#[tokio::test]
async fn a_file_that_was_put_back_from_a_backup_runs_nothing_twice() {
    let home = Home::new();
    home.go_back().await;
    let process = home.start().await;
    // Nobody has beaten yet: the grant itself is not believed.
    let refused = process.charge(LATE).await;
    assert_eq!(refused.says(), says(503, "store_regressed"));
    assert_eq!(refused.header("retry-after"), "60");
    assert_eq!(refused.json()["retry"], "same_key");
    assert_eq!(process.charge(EARLY).await.says(), says(200, "replayed"));
    assert_eq!(process.charge(NEW).await.says(), says(503, "store_regressed"));
    assert_eq!(process.charge(LATE).await.says(), says(503, "store_regressed"));
    assert_eq!(process.service.runs(), 0);
    let kept = home.clock.now().as_micros() - 2_000_000;
    let since = Some(Timestamp::from_micros(kept));
    assert_eq!(process.canary.regression(), Some(Regression { since, found: home.clock.now() }));
    process.stop().await;
    // Nor does the next process forget.
    let process = home.start().await;
    assert_eq!(process.charge(LATE).await.says(), says(503, "store_regressed"));
}

#[tokio::test]
async fn without_a_canary_nobody_would_know() {
    let home = Home::new();
    home.go_back().await;
    fs::remove_file(home.path("canary")).expect("there was one");
    let process = home.start().await;
    assert_eq!(process.charge(LATE).await.says(), says(200, "executed"), "a second time");
}

#[tokio::test]
async fn a_store_that_was_emptied_runs_nothing() {
    let home = Home::new();
    let process = home.start().await;
    assert_eq!(process.charge(EARLY).await.says(), says(200, "executed"));
    process.stop().await;
    fs::remove_file(home.path("store.db")).expect("there was one");
    let process = home.start().await;
    process.beat().await;
    assert_eq!(process.charge(EARLY).await.says(), says(503, "store_regressed"));
    let regression = process.canary.regression().expect("found");
    assert_eq!((regression.since, process.service.runs()), (None, 0));
}

#[tokio::test]
async fn a_process_that_starts_again_on_the_same_file_finds_nothing_lost() {
    let home = Home::new();
    for round in 0..3 {
        let process = home.start().await;
        let early = if round == 0 { "executed" } else { "replayed" };
        assert_eq!(process.charge(EARLY).await.says(), says(200, early));
        process.beat().await;
        assert_eq!(process.charge(&format!("{NEW}-{round}")).await.says(), says(200, "executed"));
        assert_eq!(process.canary.regression(), None);
        // The last one is cut off, and its last beat is not in the file.
        process.canary.beat().await.expect("a beat");
        process.store.close().await;
    }
}

#[tokio::test]
async fn keys_run_again_once_somebody_has_acknowledged_the_loss() {
    let home = Home::new();
    home.go_back().await;
    let process = home.start().await;
    process.beat().await;
    assert_eq!(process.charge(NEW).await.says(), says(503, "store_regressed"));
    let known = process.store.acknowledge_regression("anna: compared").await.expect("an answer");
    assert_eq!(known, process.canary.regression());
    process.beat().await;
    assert_eq!(process.charge(NEW).await.says(), says(200, "executed"));
    process.stop().await;
    assert_eq!(home.start().await.charge(NEW).await.says(), says(200, "replayed"));
}

#[tokio::test]
async fn keys_run_again_when_the_time_limit_is_over() {
    let home = Home::new();
    home.go_back().await;
    let process = home.start().await;
    process.beat().await;
    home.clock.advance(Canary::LIMIT - SECOND);
    assert_eq!(process.charge(NEW).await.says(), says(503, "store_regressed"));
    home.clock.advance(SECOND);
    assert_eq!(process.charge(NEW).await.says(), says(200, "executed"));
    process.stop().await;
    let process = home.start().await;
    process.beat().await;
    assert_eq!(process.canary.regression(), None);
    // That nobody has looked into it is still known.
    assert!(process.canary.unacknowledged().is_some());
    process.store.acknowledge_regression("anna: compared").await.expect("an answer");
    process.beat().await;
    assert_eq!(process.canary.unacknowledged(), None);
}

#[tokio::test]
async fn keys_that_were_made_after_the_loss_was_found_run() {
    let home = Home::new();
    home.go_back().await;
    let process = home.start().await;
    process.beat().await;
    let found = home.clock.now();
    home.clock.advance(Duration::from_secs(3600));
    let minutes = |minutes: u64| found.plus(Duration::from_secs(60 * minutes));
    // A client's clock may be ahead by five minutes, and one that is further ahead is not believed.
    for (time, runs) in [
        (found, false),
        (minutes(5), false),
        (minutes(5).plus(SECOND), true),
        (minutes(60), true),
        (minutes(66), false),
    ] {
        let expected = if runs { says(200, "executed") } else { says(503, "store_regressed") };
        assert_eq!(process.charge(&made_at(time)).await.says(), expected, "{time:?}");
    }
}

/// A service on a store whose beats can fail.
fn watched(faults: &Faults) -> (Service, Arc<Canary>) {
    let store = faults.on(Arc::new(MemoryStore::new()));
    let canary = Arc::new(Canary::new(Arc::clone(&store)));
    let settings = Settings { canary: Some(Arc::clone(&canary)), ..Settings::default() };
    let work = |_| async { "charged" };
    (Service::with_settings(|_| store, Policy::required(), settings, work), canary)
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_nobody_vouches_for_is_given_back() {
    let faults = Faults::default();
    let (service, _canary) = watched(&faults);
    faults.fail(StoreCall::Beat, Fault::Refused, FOR_EVER);
    assert_eq!(service.charge(NEW).await.says(), says(503, "store_unavailable"));
    assert_eq!(service.runs(), 0);
    faults.heal();
    assert_eq!(service.charge(NEW).await.says(), says(200, "executed"));
    assert_eq!(service.charge(NEW).await.says(), says(200, "replayed"));
}

#[tokio::test(start_paused = true)]
async fn a_beat_that_is_not_heard_of_takes_back_what_the_last_one_said() {
    for fault in [Fault::Refused, Fault::LostAfter, Fault::HangsAfter] {
        let faults = Faults::default();
        let (service, canary) = watched(&faults);
        assert_eq!(service.charge(EARLY).await.says(), says(200, "executed"));
        faults.fail(StoreCall::Beat, fault, FOR_EVER);
        // At rest no grant needs a beat.
        assert_eq!(service.charge(LATE).await.says(), says(200, "executed"));
        // It fails, or its caller goes.
        let heard_of = tokio::time::timeout(SECOND, canary.beat()).await;
        assert!(!matches!(heard_of, Ok(Ok(_))), "{fault:?}");
        assert_eq!(service.charge(NEW).await.says(), says(503, "store_unavailable"), "{fault:?}");
        assert_eq!(service.runs(), 2);
        faults.heal();
        assert_eq!(service.charge(NEW).await.says(), says(200, "executed"), "{fault:?}");
    }
}

#[tokio::test]
async fn a_second_process_on_the_same_file_of_a_canary_is_refused() {
    let home = Home::new();
    let process = home.start().await;
    let second = Canary::new(Arc::clone(&process.store) as Arc<dyn Store>);
    let refused = second.remembering(home.path("canary")).expect_err("the first one has it");
    assert!(refused.to_string().contains("in use by another process"), "{refused}");
    let third = Canary::new(Arc::clone(&process.store) as Arc<dyn Store>);
    third.remembering(home.path("other")).expect("a file of its own");
}

#[tokio::test(start_paused = true)]
async fn accepted_work_from_before_a_loss_waits_until_it_is_acknowledged() {
    let memory = Arc::new(MemoryStore::new());
    let canary = Arc::new(Canary::new(Arc::clone(&memory) as Arc<dyn Store>));
    let settings = Settings { canary: Some(Arc::clone(&canary)), ..Settings::default() };
    let policy = Policy::required().queued(Queued::default()).expect("allowed");
    let given = Arc::clone(&memory);
    let service = Service::with_settings(|_| given, policy, settings, |_| async { "charged" });
    assert_eq!(service.charge(EARLY).await.status, 202);
    let go_on = async || {
        let resumed = service.engine.resume_once(10, |_, _| async { Response::default() }).await;
        let resumed = resumed.expect("the store says what waits");
        (resumed.taken, resumed.left)
    };
    // Another process finds that it was lost, and this one is told.
    let lost = Beat { node: NodeId::from_bytes([9; 16]), acked: 41 };
    assert!(memory.beat(lost).await.expect("a beat").regression.is_some());
    canary.beat().await.expect("a beat");
    assert_eq!(go_on().await, (0, 1));
    memory.acknowledge_regression("compared").await.expect("an answer");
    canary.beat().await.expect("a beat");
    assert_eq!(go_on().await, (1, 0));
    assert_eq!(service.charge(EARLY).await.says(), says(200, "replayed"));
}
