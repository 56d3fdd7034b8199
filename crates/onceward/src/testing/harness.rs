//! What a case of the suite works with: a fresh store, its clock, and the model beside it.

use std::{
    any::Any,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{Model, random};
use crate::{
    clock::{Clock as _, ManualClock, Timestamp},
    record::{AuditRecord, Lease, Record, RecordId, SavedStep},
    store::{
        Advance, Advanced, Ask, Claim, Reaped, Reservation, Resolution, Resolve, Resolved,
        Resumable, Store, Swept, Which, Write, Written,
        list::{AuditPage, AuditQuery, Page, Query, Stats},
    },
};

/// No case waits for time to pass, so that one which takes this long hangs; for each hundred of the
/// sequences that random runs are asked for.
const CASE_TIME_MAX: Duration = Duration::from_secs(600);

/// An empty store that nobody else uses, as a factory makes it for each case.
///
/// ```
/// use std::sync::Arc;
/// use onceward::{MemoryStore, clock::ManualClock, testing::Fresh};
///
/// async fn store_in_a_directory_of_its_own(clock: ManualClock) -> Fresh {
///     let directory = tempfile::tempdir().expect("a directory");
///     // A store on disk would be opened in it.
///     let store = MemoryStore::with_clock(Arc::new(clock));
///     Fresh::new(Arc::new(store)).keeping(directory)
/// }
///
/// onceward::store_suite!(on_disk, store_in_a_directory_of_its_own);
/// ```
pub struct Fresh {
    store: Arc<dyn Store>,
    keep: Box<dyn Any>,
}

impl Fresh {
    /// The store.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Fresh { store, keep: Box::new(()) }
    }

    /// Keeps something until the case is over: a temporary directory, a database to drop.
    #[must_use]
    pub fn keeping(self, keep: impl Any) -> Self {
        Fresh { keep: Box::new((self.keep, keep)), ..self }
    }
}

impl std::fmt::Debug for Fresh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fresh({:?})", self.store)
    }
}

impl<S: Store> From<S> for Fresh {
    fn from(store: S) -> Self {
        Fresh::new(Arc::new(store))
    }
}

impl From<Arc<dyn Store>> for Fresh {
    fn from(store: Arc<dyn Store>) -> Self {
        Fresh::new(store)
    }
}

type Factory = Arc<dyn Fn(ManualClock) -> Pin<Box<dyn Future<Output = Fresh>>>>;

/// A fresh store with its clock and its model.
///
/// The methods named after those of [`Store`] ask the store and the model the same thing and
/// compare: the answer, and the record with its audit records afterwards. A case adds what it is
/// about. They panic when the store fails or differs.
///
/// # Cancel safety
/// A call that is dropped may have happened on the store and not on the model: the case is then
/// worth nothing. To drop calls to a store, drop those of the store itself.
#[expect(missing_debug_implementations, reason = "nobody prints a harness")]
pub struct Harness {
    /// The store, to be called without the model.
    pub store: Arc<dyn Store>,
    /// The clock that the store reads.
    pub clock: ManualClock,
    model: Mutex<Model>,
    factory: Factory,
    // Dropped last: the store may live in it.
    _keep: Box<dyn Any>,
}

/// Runs one case on a fresh store, in a runtime of its own.
///
/// # Panics
/// When the case does, or when it hangs.
pub fn run<F, Made, Case, Ran>(factory: F, case: Case)
where
    F: Fn(ManualClock) -> Made + 'static,
    Made: Future<Output: Into<Fresh>> + 'static,
    Case: FnOnce(Harness) -> Ran,
    Ran: Future<Output = ()>,
{
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(4).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let case = async { case(Harness::start(factory).await).await };
        let hundreds = u32::try_from(random::sequences() / 100).unwrap_or(u32::MAX).max(1);
        let patience = CASE_TIME_MAX.saturating_mul(hundreds);
        tokio::time::timeout(patience, case).await.expect("the case hangs");
    });
}

impl Harness {
    /// A harness on a fresh store.
    pub async fn start<F, Made>(factory: F) -> Self
    where
        F: Fn(ManualClock) -> Made + 'static,
        Made: Future<Output: Into<Fresh>> + 'static,
    {
        let factory: Factory = Arc::new(move |clock| {
            let made = factory(clock);
            Box::pin(async { made.await.into() })
        });
        Self::make(factory).await
    }

    /// Another one on another fresh store of the same kind.
    pub async fn another(&self) -> Self {
        Self::make(Arc::clone(&self.factory)).await
    }

    async fn make(factory: Factory) -> Self {
        let clock = ManualClock::default();
        let Fresh { store, keep } = factory(clock.clone()).await;
        Harness { store, clock, model: Mutex::default(), factory, _keep: keep }
    }

    /// What the clock shows.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The model, to be asked or told what the store was asked directly.
    pub fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves.
    pub async fn reserve(&self, ask: &Ask) -> Reservation {
        let answer = self.store.reserve(ask.clone()).await.expect("reserve answers");
        let expected = as_told(&answer, self.model().reserve(ask, self.now()));
        assert_eq!(answer, expected, "reserve answers as the model does");
        self.agree(&ask.id).await;
        answer
    }

    /// Claims.
    pub async fn claim(&self, claim: &Claim) -> Reservation {
        let answer = self.store.claim(claim.clone()).await.expect("claim answers");
        let expected = self.model().claim(claim, self.now());
        assert_eq!(answer, expected, "claim answers as the model does");
        self.agree(&claim.id).await;
        answer
    }

    /// Writes.
    pub async fn write(&self, lease: &Lease, write: Write) -> Written {
        let answer = self.store.write(lease, write.clone()).await.expect("write answers");
        let expected = self.model().write(lease, write, self.now());
        assert_eq!(answer, expected, "write answers as the model does");
        self.agree(&lease.id).await;
        answer
    }

    /// Advances.
    pub async fn advance(&self, lease: &Lease, advance: Advance) -> Advanced {
        let answer = self.store.advance(lease, advance.clone()).await.expect("advance answers");
        let expected = self.model().advance(lease, advance);
        assert_eq!(answer, expected, "advance answers as the model does");
        self.agree(&lease.id).await;
        answer
    }

    /// Makes a step that must be allowed.
    pub async fn stepped(&self, lease: &Lease, advance: Advance) {
        assert_eq!(self.advance(lease, advance).await, Advanced::Applied);
    }

    /// The saved steps of one generation.
    pub async fn steps(&self, id: &RecordId, generation: u32) -> Vec<SavedStep> {
        let held = self.store.steps(id, generation).await.expect("steps answers");
        assert_eq!(held, self.model().steps(id, generation), "store and model hold the same steps");
        held
    }

    /// What waits to be gone on with.
    pub async fn resumable(&self, limit: u32) -> Vec<Resumable> {
        self.resumable_of(Which::All, limit).await
    }

    /// What of it waits to be gone on with.
    pub async fn resumable_of(&self, which: Which, limit: u32) -> Vec<Resumable> {
        let held = self.store.resumable(which, limit).await.expect("resumable answers");
        if let Err(expected) = self.model().agrees_on_resumable(&held, which, limit, self.now()) {
            panic!("store and model differ on what waits: {held:?}, expected {expected}");
        }
        held
    }

    /// What is due to be asked about.
    pub async fn due_unknown(&self, limit: u32) -> Vec<Record> {
        let held = self.store.due_unknown(limit, Vec::new()).await.expect("due_unknown answers");
        if let Err(expected) = self.model().agrees_on_due_unknown(&held, limit, self.now()) {
            panic!("store and model differ on what is due: {held:?}, expected {expected}");
        }
        held
    }

    /// Resolves the record as it stands now.
    pub async fn resolve(&self, id: &RecordId, resolution: Resolution) -> Resolved {
        let record = self.record(id).await;
        let (generation, fence) = (record.generation, record.fence);
        let reason = "ticket 7".into();
        self.resolve_as(Resolve { id: id.clone(), generation, fence, resolution, reason }).await
    }

    /// Resolves the record as it stands now, which must be allowed.
    pub async fn resolved(&self, id: &RecordId, resolution: Resolution) {
        let resolved = self.resolve(id, resolution).await;
        assert!(matches!(resolved, Resolved::Applied(_)), "expected it applied: {resolved:?}");
    }

    /// Resolves.
    pub async fn resolve_as(&self, resolve: Resolve) -> Resolved {
        let id = resolve.id.clone();
        let answer = self.store.resolve(resolve.clone()).await.expect("resolve answers");
        let expected = self.model().resolve(resolve, self.now());
        assert_eq!(answer, expected, "resolve answers as the model does");
        self.agree(&id).await;
        answer
    }

    /// Sweeps.
    pub async fn sweep(&self, limit: u32) -> Vec<Swept> {
        let swept = self.store.sweep(limit).await.expect("sweep answers");
        let agreed = self.model().sweep_as(&swept, limit, self.now());
        agreed.expect("sweep moves what the model would");
        for one in &swept {
            self.agree(&one.id).await;
        }
        swept
    }

    /// Reaps.
    pub async fn reap(&self, limit: u32) -> Reaped {
        let reaped = self.store.reap(limit).await.expect("reap answers");
        let due = self.model().due_to_reap(self.now());
        if due.expired + due.purged <= limit {
            assert_eq!(reaped, due, "reap takes all that is due");
            self.model().reap(self.now());
        } else {
            assert_eq!(reaped.expired + reaped.purged, limit, "reap stops at its limit");
        }
        reaped
    }

    /// Loads.
    pub async fn load(&self, id: &RecordId) -> Option<Record> {
        self.agree(id).await;
        self.model().load(id, self.now())
    }

    /// Loads a record that must be there.
    pub async fn record(&self, id: &RecordId) -> Record {
        self.load(id).await.expect("a record")
    }

    /// The audit records of one scope and key.
    pub async fn audit(&self, id: &RecordId) -> Vec<AuditRecord> {
        self.agree(id).await;
        self.store.audit(id).await.expect("audit answers")
    }

    /// Lists.
    pub async fn list(&self, query: Query) -> Page {
        let page = self.store.list_records(query.clone()).await.expect("list_records answers");
        assert_eq!(
            page,
            self.model().list(&query, self.now()),
            "list_records answers as the model does"
        );
        page
    }

    /// Lists what was remembered.
    pub async fn audit_log(&self, query: AuditQuery) -> AuditPage {
        let page = self.store.audit_log(query.clone()).await.expect("audit_log answers");
        assert_eq!(page, self.model().audit_log(&query), "audit_log answers as the model does");
        page
    }

    /// Counts.
    pub async fn stats(&self) -> Stats {
        let stats = self.store.stats().await.expect("stats answers");
        assert_eq!(stats, self.model().stats(self.now()), "stats answers as the model does");
        stats
    }

    /// Reserves what must be free.
    pub async fn grant(&self, ask: &Ask) -> Lease {
        match self.reserve(ask).await {
            Reservation::Granted { lease, .. } => lease,
            other => panic!("expected a grant, found {other:?}"),
        }
    }

    /// Reserves what must be free, for an attempt that is not heard of again.
    pub async fn occupy(&self, ask: &Ask) {
        let _lease = self.grant(ask).await;
    }

    /// Reserves what must not be free, and returns what is in the way.
    pub async fn occupied(&self, ask: &Ask) -> Record {
        match self.reserve(ask).await {
            Reservation::Occupied { record, .. } => *record,
            Reservation::Completed(_) => self.record(&ask.id).await,
            other => panic!("expected a record in the way, found {other:?}"),
        }
    }

    /// Whether store and model hold the same for one scope and key.
    async fn agree(&self, id: &RecordId) {
        let held = self.store.load(id).await.expect("load answers");
        assert_eq!(held, self.model().load(id, self.now()), "store and model hold the same record");
        let held = self.store.audit(id).await.expect("audit answers");
        if let Err(expected) = self.model().agrees_on_audit(id, &held) {
            panic!("store and model remember different things: {held:?}, expected {expected}");
        }
        let generation = self.model().load(id, self.now()).map_or(1, |record| record.generation);
        self.steps(id, generation).await;
    }
}

/// What the model answers to a reserve, in short where the store answers in short.
pub(super) fn as_told(told: &Reservation, expected: Reservation) -> Reservation {
    match (told, expected.completed()) {
        (Reservation::Completed(_), Some(completed)) => Reservation::Completed(Box::new(completed)),
        _ => expected,
    }
}
