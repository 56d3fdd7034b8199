//! The tools find what they are made to find.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use super::{
    Fault, FaultyStore, GatedStore, Harness, Point, Seed, StoreCall, random, run,
    samples::{ask, reply},
    suite,
};
use crate::{
    clock::{ManualClock, Timestamp},
    record::{
        AuditRecord, Fence, Lease, ProviderId, ProviderNote, Record, RecordId, SavedStep, State,
    },
    scope::Scope,
    store::{
        Advance, Advanced, Ask, Beat, Claim, Identity, IdentityCheck, MemoryStore, Noted, Pulse,
        Reaped, Regression, Reservation, Resolve, Resolved, Resumable, ScopeKey, Store,
        StoreErrorKind, StoreFuture, Swept, Which, Write, Written,
        list::{AuditPage, AuditQuery, Page, Query, Stats},
    },
};

/// How a store is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// A write counts whatever its fence: the newest owner's is put in.
    IgnoresTheFence,
    /// Whatever is asked, it is what was asked before.
    IgnoresTheFingerprint,
    /// Replies come back without their headers.
    ForgetsHeaders,
    /// A step is made whatever its fence.
    StepsIgnoreTheFence,
    /// Steps come back without their results.
    ForgetsResults,
    /// Requests are not kept.
    ForgetsRequests,
    /// A page begins again with the record at which the one before ended.
    ShowsTheLastAgain,
    /// Records past their retention are listed as what they were.
    ListsTheStoredState,
    /// Provider ids are acknowledged and not kept.
    ForgetsProviderIds,
    /// Whoever claims a provider id is told that it is theirs.
    SharesProviderIds,
}

#[derive(Debug)]
struct Broken {
    inner: MemoryStore,
    bug: Bug,
}

impl Broken {
    fn new(clock: ManualClock, bug: Bug) -> Self {
        Broken { inner: MemoryStore::with_clock(Arc::new(clock)), bug }
    }
}

impl Store for Broken {
    fn reserve(&self, mut ask: Ask) -> StoreFuture<'_, Reservation> {
        Box::pin(async move {
            if self.bug == Bug::IgnoresTheFingerprint
                && let Some(record) = self.inner.load(&ask.id).await?
            {
                ask.fingerprint = record.fingerprint;
            }
            if self.bug == Bug::ForgetsRequests {
                ask.request = None;
            }
            self.inner.reserve(ask).await
        })
    }

    fn claim(&self, claim: Claim) -> StoreFuture<'_, Reservation> {
        self.inner.claim(claim)
    }

    fn write<'a>(&'a self, lease: &'a Lease, mut write: Write) -> StoreFuture<'a, Written> {
        Box::pin(async move {
            if self.bug == Bug::ForgetsHeaders
                && let Write::Complete(reply) = &mut write
            {
                reply.headers.clear();
            }
            let record = self.inner.load(&lease.id).await?;
            let Some(record) = record.filter(|_| self.bug == Bug::IgnoresTheFence) else {
                return self.inner.write(lease, write).await;
            };
            let id = lease.id.clone();
            let forged = Lease { id, attempt: record.attempt, fence: record.fence, ..*lease };
            self.inner.write(&forged, write).await
        })
    }

    fn advance<'a>(&'a self, lease: &'a Lease, advance: Advance) -> StoreFuture<'a, Advanced> {
        Box::pin(async move {
            let record = self.inner.load(&lease.id).await?;
            let Some(record) = record.filter(|_| self.bug == Bug::StepsIgnoreTheFence) else {
                return self.inner.advance(lease, advance).await;
            };
            let id = lease.id.clone();
            let forged = Lease { id, attempt: record.attempt, fence: record.fence, ..*lease };
            self.inner.advance(&forged, advance).await
        })
    }

    fn steps<'a>(&'a self, id: &'a RecordId, generation: u32) -> StoreFuture<'a, Vec<SavedStep>> {
        Box::pin(async move {
            let mut steps = self.inner.steps(id, generation).await?;
            if self.bug == Bug::ForgetsResults {
                steps.iter_mut().for_each(|step| step.result.clear());
            }
            Ok(steps)
        })
    }

    fn resumable(&self, which: Which, limit: u32) -> StoreFuture<'_, Vec<Resumable>> {
        self.inner.resumable(which, limit)
    }

    fn due_unknown(&self, limit: u32, except: Vec<Arc<str>>) -> StoreFuture<'_, Vec<Record>> {
        self.inner.due_unknown(limit, except)
    }

    fn note_provider_id<'a>(&'a self, lease: &'a Lease, id: ProviderId) -> StoreFuture<'a, Noted> {
        Box::pin(async move {
            if self.bug == Bug::ForgetsProviderIds {
                return Ok(Noted::Applied);
            }
            let noted = self.inner.note_provider_id(lease, id).await?;
            let shared = self.bug == Bug::SharesProviderIds && noted == Noted::Taken;
            Ok(if shared { Noted::Applied } else { noted })
        })
    }

    fn by_provider_id<'a>(&'a self, id: &'a ProviderId) -> StoreFuture<'a, Option<ProviderNote>> {
        self.inner.by_provider_id(id)
    }

    fn provider_ids(&self, of: Vec<RecordId>) -> StoreFuture<'_, Vec<ProviderNote>> {
        self.inner.provider_ids(of)
    }

    fn resolve(&self, resolve: Resolve) -> StoreFuture<'_, Resolved> {
        self.inner.resolve(resolve)
    }

    fn load<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Option<Record>> {
        self.inner.load(id)
    }

    fn audit<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Vec<AuditRecord>> {
        self.inner.audit(id)
    }

    fn list_records(&self, mut query: Query) -> StoreFuture<'_, Page> {
        Box::pin(async move {
            if let Some(after) = query.after.as_mut().filter(|_| self.bug == Bug::ShowsTheLastAgain)
            {
                after.at = Timestamp::from_micros(after.at.as_micros() + 1);
            }
            if self.bug == Bug::ListsTheStoredState && query.states == [State::Expired] {
                query.states = vec![State::Completed];
            }
            self.inner.list_records(query).await
        })
    }

    fn audit_log(&self, query: AuditQuery) -> StoreFuture<'_, AuditPage> {
        self.inner.audit_log(query)
    }

    fn stats(&self) -> StoreFuture<'_, Stats> {
        self.inner.stats()
    }

    fn sweep(&self, limit: u32) -> StoreFuture<'_, Vec<Swept>> {
        self.inner.sweep(limit)
    }

    fn reap(&self, limit: u32) -> StoreFuture<'_, Reaped> {
        self.inner.reap(limit)
    }

    fn purge_audit(&self, older_than: Duration, limit: u32) -> StoreFuture<'_, u32> {
        self.inner.purge_audit(older_than, limit)
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        self.inner.ping()
    }

    fn check_identity<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, IdentityCheck> {
        self.inner.check_identity(identity)
    }

    fn accept_identity<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, ()> {
        self.inner.accept_identity(identity)
    }

    fn scope_keys<'a>(
        &'a self,
        scope: &'a Scope,
        proposed: Option<ScopeKey>,
    ) -> StoreFuture<'a, Vec<ScopeKey>> {
        self.inner.scope_keys(scope, proposed)
    }

    fn drop_scope_keys<'a>(&'a self, scope: &'a Scope, reason: &'a str) -> StoreFuture<'a, u32> {
        self.inner.drop_scope_keys(scope, reason)
    }

    fn beat(&self, beat: Beat) -> StoreFuture<'_, Pulse> {
        self.inner.beat(beat)
    }

    fn acknowledge_regression<'a>(
        &'a self,
        reason: &'a str,
    ) -> StoreFuture<'a, Option<Regression>> {
        self.inner.acknowledge_regression(reason)
    }
}

async fn random_run(bug: Bug) -> Result<(), random::Disagreement> {
    let seed = Seed::from_environment();
    println!("ONCEWARD_SEED={seed} for {bug:?}");
    let on = Harness::start(move |clock| async move { Broken::new(clock, bug) }).await;
    random::run(&on, seed, 200, 60).await
}

#[tokio::test]
async fn a_store_without_a_bug_agrees_with_the_model() {
    random_run(Bug::None).await.expect("no difference");
}

#[tokio::test]
async fn a_store_that_ignores_the_fence_is_found_and_the_script_is_short() {
    let found = random_run(Bug::IgnoresTheFence).await.expect_err("the bug is found");
    let script = found.to_string();
    // Somebody has the record, and somebody else writes to it.
    assert!(found.len() <= 3, "{script}");
    assert!(script.contains("ONCEWARD_SEED="), "{script}");
    assert!(script.contains("   1. reserve tenant-"), "{script}");
    assert!(script.contains("write   tenant-"), "{script}");
    assert!(script.contains("      store: ") && script.contains("      model: "), "{script}");
}

#[tokio::test]
async fn a_store_that_ignores_the_fingerprint_is_found_and_the_script_is_short() {
    let found = random_run(Bug::IgnoresTheFingerprint).await.expect_err("the bug is found");
    assert!(found.len() <= 5, "{found}");
}

#[tokio::test]
async fn a_store_that_forgets_headers_is_found_and_the_script_is_short() {
    let found = random_run(Bug::ForgetsHeaders).await.expect_err("the bug is found");
    assert!(found.len() <= 3, "{found}");
}

#[tokio::test]
async fn a_store_that_is_wrong_about_steps_is_found_and_the_script_is_short() {
    for (bug, most) in
        [(Bug::StepsIgnoreTheFence, 4), (Bug::ForgetsResults, 4), (Bug::ForgetsRequests, 4)]
    {
        let found = random_run(bug).await.expect_err("the bug is found");
        assert!(found.len() <= most, "{bug:?}: {found}");
    }
}

#[tokio::test]
async fn the_same_seed_finds_the_same_script() {
    let on = Harness::start(|clock| async move { Broken::new(clock, Bug::IgnoresTheFence) }).await;
    let seed: Seed = "42".parse().expect("a number");
    let mut scripts = Vec::new();
    for _ in 0..2 {
        let found = random::run(&on, seed, 200, 60).await.expect_err("the bug is found");
        scripts.push(found.to_string());
    }
    assert_eq!(scripts[0], scripts[1]);
    let other: Seed = "4711".parse().expect("a number");
    let found = random::run(&on, other, 200, 60).await.expect_err("the bug is found");
    assert_ne!(found.to_string(), scripts[0]);
}

/// What a case says that fails on a broken store.
fn complaint<Ran: Future<Output = ()>>(bug: Bug, case: impl FnOnce(Harness) -> Ran) -> String {
    let factory = move |clock| async move { Broken::new(clock, bug) };
    let panic = catch_unwind(AssertUnwindSafe(|| run(factory, case))).expect_err("the case fails");
    panic.downcast_ref::<String>().expect("a message").clone()
}

#[test]
fn the_harness_notices_a_write_that_should_have_been_refused() {
    let said = complaint(Bug::IgnoresTheFence, async |on: Harness| {
        let lease = on.grant(&ask("key")).await;
        let forged = Lease { fence: Fence::from_stored(1), ..lease };
        let _: Written = on.write(&forged, Write::Complete(reply("stolen"))).await;
    });
    assert!(said.contains("write answers as the model does"), "{said}");
}

#[test]
fn the_harness_notices_a_reply_that_lost_its_headers() {
    let said = complaint(Bug::ForgetsHeaders, async |on: Harness| {
        let lease = on.grant(&ask("key")).await;
        let _: Written = on.write(&lease, Write::Complete(reply("done"))).await;
    });
    assert!(said.contains("store and model hold the same record"), "{said}");
}

#[test]
fn the_suite_fails_on_a_store_that_is_wrong_about_steps() {
    use suite::{resuming, stepping};
    complaint(Bug::StepsIgnoreTheFence, stepping::a_superseded_attempt_cannot_advance);
    // A race, which goes well now and then.
    let fails = || {
        let factory = |clock| async move { Broken::new(clock, Bug::StepsIgnoreTheFence) };
        let case = stepping::of_two_attempts_only_one_makes_steps_at_a_time;
        catch_unwind(AssertUnwindSafe(|| run(factory, case))).is_err()
    };
    assert!((0..50).any(|_| fails()), "fifty races went well");
    complaint(Bug::ForgetsResults, stepping::a_burst_of_steps_is_told_apart);
    complaint(Bug::ForgetsRequests, resuming::the_request_is_kept_byte_for_byte);
    let sound = |clock| async move { Broken::new(clock, Bug::None) };
    run(sound, stepping::a_superseded_attempt_cannot_advance);
    run(sound, stepping::of_two_attempts_only_one_makes_steps_at_a_time);
    run(sound, stepping::a_burst_of_steps_is_told_apart);
    run(sound, resuming::the_request_is_kept_byte_for_byte);
}

#[test]
fn the_suite_fails_on_a_store_that_is_wrong_about_lists() {
    use suite::listing;
    complaint(Bug::ShowsTheLastAgain, listing::pages_of_a_list_hold_each_record_once);
    complaint(Bug::ListsTheStoredState, listing::a_list_tells_states_as_they_would_be_loaded);
    let sound = |clock| async move { Broken::new(clock, Bug::None) };
    run(sound, listing::pages_of_a_list_hold_each_record_once);
    run(sound, listing::a_list_tells_states_as_they_would_be_loaded);
}

#[test]
fn the_suite_fails_on_a_store_that_is_wrong_about_provider_ids() {
    use suite::noting;
    complaint(Bug::ForgetsProviderIds, noting::an_operation_is_found_by_its_provider_id);
    let taken = noting::a_provider_id_of_another_operation_is_refused_and_an_incident;
    complaint(Bug::SharesProviderIds, taken);
    let sound = |clock| async move { Broken::new(clock, Bug::None) };
    run(sound, noting::an_operation_is_found_by_its_provider_id);
    run(sound, taken);
}

#[test]
fn the_suite_fails_on_a_store_that_ignores_the_fence() {
    complaint(Bug::IgnoresTheFence, suite::writing::a_superseded_lease_cannot_complete);
    complaint(Bug::IgnoresTheFence, suite::agreeing::random_operations_agree_with_the_model);
    let sound = |clock| async move { Broken::new(clock, Bug::None) };
    run(sound, suite::writing::a_superseded_lease_cannot_complete);
}

/// A store whose first call fails so, the answer of a reserve, and whether it took effect.
async fn reserve_with(fault: Fault) -> (Option<Result<Reservation, StoreErrorKind>>, bool) {
    let inner: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let plan = move |call, number| match (call, number) {
        (StoreCall::Reserve, 0) => fault,
        _ => Fault::None,
    };
    let store = FaultyStore::new(Arc::clone(&inner), plan);
    let mut reserve = store.reserve(ask("key"));
    // The memory store never waits, so that a call which is pending now is pending for ever.
    let first_poll = poll_fn(|context| Poll::Ready(reserve.as_mut().poll(context)));
    let answer = match first_poll.await {
        Poll::Ready(answer) => Some(answer.map_err(|error| error.kind())),
        Poll::Pending => None,
    };
    let took_effect = inner.load(&ask("key").id).await.expect("load answers").is_some();
    let second = store.reserve(ask("another")).await.expect("only the first call fails");
    assert!(matches!(second, Reservation::Granted { .. }), "{second:?}");
    (answer, took_effect)
}

#[tokio::test]
async fn each_fault_is_what_it_says() {
    let expected = [
        (Fault::Refused, Some(StoreErrorKind::Unavailable), false),
        (Fault::LostBefore, Some(StoreErrorKind::Ambiguous), false),
        (Fault::LostAfter, Some(StoreErrorKind::Ambiguous), true),
        (Fault::Corrupt, Some(StoreErrorKind::Corrupt), false),
        (Fault::HangsBefore, None, false),
        (Fault::HangsAfter, None, true),
    ];
    assert_eq!(expected.map(|(fault, ..)| fault), Fault::ALL);
    for (fault, error, took_effect) in expected {
        assert_eq!(reserve_with(fault).await, (error.map(Err), took_effect), "{fault:?}");
    }
    let (answer, took_effect) = reserve_with(Fault::None).await;
    assert!(matches!(answer, Some(Ok(Reservation::Granted { .. }))), "{answer:?}");
    assert!(took_effect);
}

#[tokio::test]
async fn a_call_stands_at_the_gate_before_and_after_it_takes_effect() {
    let inner: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let held = async || inner.load(&ask("key").id).await.expect("load answers").is_some();
    let (gated, gate) = GatedStore::new(Arc::clone(&inner));
    let caller = tokio::spawn(async move { gated.reserve(ask("key")).await });
    let before = gate.expect(StoreCall::Reserve, Point::Before).await;
    assert!(!held().await, "it has not taken effect");
    before.pass();
    let after = gate.expect(StoreCall::Reserve, Point::After).await;
    assert!(held().await, "it took effect");
    assert!(!caller.is_finished(), "it has not answered");
    after.pass();
    let answer = caller.await.expect("no panic").expect("reserve answers");
    assert!(matches!(answer, Reservation::Granted { .. }), "{answer:?}");
}

#[tokio::test]
async fn without_a_gatekeeper_every_call_passes() {
    let (gated, gate) = GatedStore::new(Arc::new(MemoryStore::new()));
    drop(gate);
    let answer = gated.reserve(ask("key")).await.expect("reserve answers");
    assert!(matches!(answer, Reservation::Granted { .. }), "{answer:?}");
}

/// A case that is written and not listed would be run on no store.
#[test]
fn every_case_of_the_suite_is_listed_once() {
    let list = include_str!("suite.rs");
    let modules = [
        ("reserving", include_str!("suite/reserving.rs")),
        ("writing", include_str!("suite/writing.rs")),
        ("waiting", include_str!("suite/waiting.rs")),
        ("leases", include_str!("suite/leases.rs")),
        ("expiring", include_str!("suite/expiring.rs")),
        ("reconciling", include_str!("suite/reconciling.rs")),
        ("resolving", include_str!("suite/resolving.rs")),
        ("pending", include_str!("suite/pending.rs")),
        ("queueing", include_str!("suite/queueing.rs")),
        ("stepping", include_str!("suite/stepping.rs")),
        ("resuming", include_str!("suite/resuming.rs")),
        ("keeping", include_str!("suite/keeping.rs")),
        ("racing", include_str!("suite/racing.rs")),
        ("interleaving", include_str!("suite/interleaving.rs")),
        ("cancelling", include_str!("suite/cancelling.rs")),
        ("listing", include_str!("suite/listing.rs")),
        ("noting", include_str!("suite/noting.rs")),
        ("sealing", include_str!("suite/sealing.rs")),
        ("beating", include_str!("suite/beating.rs")),
        ("agreeing", include_str!("suite/agreeing.rs")),
    ];
    let declared = list.lines().filter(|line| line.starts_with("pub mod ")).count();
    assert_eq!(declared, modules.len(), "each module of cases is looked at here");
    let mut cases = 0;
    for (module, text) in modules {
        let names = text.lines().filter_map(|line| line.strip_prefix("pub async fn "));
        for name in names.filter_map(|rest| rest.split('(').next()) {
            let listed = list.lines().filter(|line| line.trim() == name).count();
            assert_eq!(listed, 1, "{module}::{name} is listed once");
            cases += 1;
        }
    }
    assert!(cases >= 60, "{cases} cases");
}
