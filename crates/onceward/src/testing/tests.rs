//! The tools find what they are made to find.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use super::{
    Harness, Seed, random, run,
    samples::{ask, reply},
    suite,
};
use crate::{
    clock::ManualClock,
    record::{AuditRecord, Fence, Lease, Record, RecordId},
    store::{
        Ask, Claim, Identity, IdentityCheck, MemoryStore, Reaped, Reservation, Resolve, Resolved,
        Store, StoreFuture, Swept, Write, Written,
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

    fn resolve(&self, resolve: Resolve) -> StoreFuture<'_, Resolved> {
        self.inner.resolve(resolve)
    }

    fn load<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Option<Record>> {
        self.inner.load(id)
    }

    fn audit<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Vec<AuditRecord>> {
        self.inner.audit(id)
    }

    fn sweep(&self, limit: u32) -> StoreFuture<'_, Vec<Swept>> {
        self.inner.sweep(limit)
    }

    fn reap(&self, limit: u32) -> StoreFuture<'_, Reaped> {
        self.inner.reap(limit)
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
fn the_suite_fails_on_a_store_that_ignores_the_fence() {
    complaint(Bug::IgnoresTheFence, suite::writing::a_superseded_lease_cannot_complete);
    complaint(Bug::IgnoresTheFence, suite::agreeing::random_operations_agree_with_the_model);
    let sound = |clock| async move { Broken::new(clock, Bug::None) };
    run(sound, suite::writing::a_superseded_lease_cannot_complete);
}

/// A case that is written and not listed would be run on no store.
#[test]
fn every_case_of_the_suite_is_listed_once() {
    let list = include_str!("suite.rs");
    let modules = [
        ("reserving", include_str!("suite/reserving.rs")),
        ("writing", include_str!("suite/writing.rs")),
        ("leases", include_str!("suite/leases.rs")),
        ("expiring", include_str!("suite/expiring.rs")),
        ("resolving", include_str!("suite/resolving.rs")),
        ("pending", include_str!("suite/pending.rs")),
        ("keeping", include_str!("suite/keeping.rs")),
        ("racing", include_str!("suite/racing.rs")),
        ("interleaving", include_str!("suite/interleaving.rs")),
        ("cancelling", include_str!("suite/cancelling.rs")),
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
