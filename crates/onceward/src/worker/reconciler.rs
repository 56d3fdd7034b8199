//! The reconciler: asks what became of unknown outcomes, and gives up to people when nobody can say.
//!
//! ```text
//! due --ask (one node at a time, with a pause that doubles)--> the probe
//!     completed      the record is completed with that reply
//!     not executed   at once from an authoritative source, else at the second probe that counts
//!     still unknown  asked again later; after the limit a dead letter
//! ```

use std::{fmt, future::Future, panic::AssertUnwindSafe, pin::Pin, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, error, info, warn};

use crate::{
    clock::{Clock, SystemClock, Timestamp},
    observe,
    record::{AttemptId, Fence, Record, RecordId},
    reply::Reply,
    store::{Proof, Resolution, Resolve, Resolved, Store, StoreError, StoreErrorKind, StoreFuture},
};

mod absences;
mod places;
#[cfg(test)]
mod tests;

use absences::Absences;
use places::Places;

/// What [`Probe::ask`] returns.
pub type ProbeFuture<'a> = Pin<Box<dyn Future<Output = Finding> + Send + 'a>>;

/// Finds out what became of an operation whose outcome is unknown: by asking whoever would have acted.
///
/// It must only look. It may be asked about one operation again and again, and by many processes.
///
/// # Cancel safety
/// A probe that takes too long is dropped, and then counts as [`Finding::StillUnknown`].
pub trait Probe: fmt::Debug + Send + Sync + 'static {
    /// Asks once. What cannot be had is [`Finding::StillUnknown`], never [`Finding::NotExecuted`].
    fn ask<'a>(&'a self, unknown: &'a Unknown) -> ProbeFuture<'a>;

    /// Whether it can ask about operations of this route at all. Those of others are left alone: they
    /// stay unknown and due, for another process or for a person.
    fn knows(&self, route: &str) -> bool {
        let _ = route;
        true
    }
}

/// An operation that may have acted, for a [`Probe`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// Its scope and key, as they are stored.
    pub id: RecordId,
    /// What upstream was told as `Onceward-Operation`.
    pub operation: String,
    /// Which use of the key.
    pub generation: u32,
    /// The attempt that may have acted.
    pub attempt: AttemptId,
    /// Its fence.
    pub fence: Fence,
    /// Which attempt of this generation it is: 1 for the first.
    pub attempt_number: u32,
    /// The name of the policy.
    pub route: Arc<str>,
    /// The request's method.
    pub method: Arc<str>,
    /// The request's path without its query.
    pub path: Arc<str>,
    /// The effect of a phased operation that may have acted.
    pub open_effect: Option<Box<str>>,
    /// When the key was first seen.
    pub created_at: Timestamp,
    /// When the attempt began.
    pub started_at: Timestamp,
    /// Why it is unknown, as a stable code.
    pub why: Option<Box<str>>,
    /// Which probe this is: 1 for the first.
    pub probe: u32,
}

impl Unknown {
    fn of(record: &Record) -> Self {
        Unknown {
            id: record.id.clone(),
            operation: record.id.handle(),
            generation: record.generation,
            attempt: record.attempt,
            fence: record.fence,
            attempt_number: record.attempts,
            route: Arc::clone(&record.route),
            method: Arc::clone(&record.method),
            path: Arc::clone(&record.path),
            open_effect: record.progress.open_effect.as_ref().map(|effect| effect.name.clone()),
            created_at: record.created_at,
            started_at: record.started_at,
            why: record.last_error.clone(),
            probe: record.inquiry.probes,
        }
    }
}

/// What a probe found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// It acted, and this is what its client is to be told.
    Completed(Reply),
    /// It did not act, as far as the source knows now.
    NotExecuted {
        /// The source cannot be wrong about it, and nothing that is still on its way can make it so.
        /// Otherwise a second probe has to say the same, late enough and apart enough.
        authoritative: bool,
    },
    /// Nobody can say, or nobody answered.
    StillUnknown,
}

/// Resolves unknown outcomes by asking a [`Probe`]. Any number of reconcilers may work on one store.
///
/// Each question has its own place, so that one that hangs does not keep the others waiting. No route
/// has more than a quarter of the places, so that a source that is down does not delay the others.
///
/// "Not executed" that is not authoritative is believed of two probes that this process made itself, far
/// enough apart by its own monotonic clock as well: that of the store may leap. A process that has just
/// begun has to wait for it, and so has each of several that take turns, once. A clone and the one that
/// it was made of know the same.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use onceward::{Probe, Reconciler, Store};
/// # async fn reconcile(store: Arc<dyn Store>, bank: impl Probe) {
/// let reconciler = Reconciler::new(store, bank);
/// let done = reconciler.run_once(100).await;
/// println!("{} completed", done.completed);
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Reconciler {
    store: Arc<dyn Store>,
    probe: Arc<dyn Probe>,
    probes_max: u32,
    at_once: u32,
    patience: Duration,
    every: Duration,
    clock: Arc<dyn Clock>,
    absences: Arc<Absences>,
}

/// What a reconciler did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// Outcomes that were found to be completed.
    pub completed: u32,
    /// Outcomes that were found not to have been executed.
    pub released: u32,
    /// Those that are asked about again later.
    pub still_unknown: u32,
    /// Those that became dead letters.
    pub dead: u32,
    /// Those that somebody else asks about, or that were resolved meanwhile.
    pub left: u32,
    /// Store calls that failed. What they were about is asked about again.
    pub failed: u32,
}

/// As it is called in metrics.
const NAME: &str = "reconciler";

/// Between two looks, should every question end at once without having been asked.
const PAUSE_LEAST: Duration = Duration::from_millis(20);

/// How long the store may take to answer. It may be silent for ever.
const STORE_MAX: Duration = Duration::from_secs(10);

/// How one question ended.
enum End {
    Completed,
    Released,
    StillUnknown,
    Dead,
    Left,
}

impl Reconciler {
    /// A reconciler that asks this probe: up to 24 times about each outcome, 16 at once, 15 s each.
    pub fn new(store: Arc<dyn Store>, probe: impl Probe) -> Self {
        Reconciler {
            store,
            probe: Arc::new(probe),
            probes_max: 24,
            at_once: 16,
            patience: Duration::from_secs(15),
            every: Duration::from_secs(5),
            clock: Arc::new(SystemClock),
            absences: Arc::default(),
        }
    }

    /// The same that gives up after so many probes, at least one.
    #[must_use]
    pub fn probes_max(mut self, probes: u32) -> Self {
        self.probes_max = probes.max(1);
        self
    }

    /// The same that asks so many questions at once, at least one.
    #[must_use]
    pub fn at_once(mut self, questions: u32) -> Self {
        self.at_once = questions.max(1);
        self
    }

    /// The same that waits this long for an answer.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The same that looks this often for what is due.
    #[must_use]
    pub fn every(mut self, every: Duration) -> Self {
        self.every = every;
        self
    }

    /// The same whose own time is that of another clock: for tests.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    fn at_once_per_route(&self) -> usize {
        (self.at_once / 4).max(2) as usize
    }

    /// Asks about at most `limit` outcomes that are due, and waits for the answers. To be called on one
    /// reconciler again and again: another one does not know what this one has heard.
    ///
    /// # Cancel safety
    /// May be dropped: what was being asked about is due again after its pause.
    pub async fn run_once(&self, limit: u32) -> Reconciled {
        let mut done = Reconciled::default();
        let mut places = Places::default();
        let mut due = match places.list(self, limit).await {
            Ok(due) => due,
            Err(error) => {
                warn!(%error, "unknown outcomes could not be looked for");
                return Reconciled { failed: 1, ..done };
            }
        };
        loop {
            due = due.into_iter().filter_map(|record| places.begin(self, record)).collect();
            let Some(ended) = places.next().await else { break };
            done.add(ended);
        }
        done.tell();
        done
    }

    /// Asks about what is due, until `stop`. What is being asked about then comes to its end: that takes
    /// as long as a probe may take, and two calls of the store.
    ///
    /// # Cancel safety
    /// May be dropped: what was being asked about is due again after its pause.
    pub async fn run(&self, stop: impl Future<Output = ()> + Send) {
        let (mut places, mut done) = (Places::default(), Reconciled::default());
        observe::worker_begins(NAME, self.every);
        tokio::select! {
            biased;
            () = stop => {}
            () = self.ask_for_ever(&mut places, &mut done) => {}
        }
        while let Some(ended) = places.next().await {
            done.add(ended);
        }
        done.tell();
    }

    /// # Cancel safety
    /// May be dropped: what was begun is in its place, and what has ended is counted.
    async fn ask_for_ever(&self, places: &mut Places, done: &mut Reconciled) {
        let mut failures = 0_u32;
        loop {
            let next_look = Instant::now() + self.every;
            let not_before = Instant::now() + PAUSE_LEAST;
            // A panic must not be the end of all looks: nobody would start it again, or notice.
            let look = AssertUnwindSafe(places.fill(self)).catch_unwind();
            match look.await.unwrap_or_else(|_| Err(StoreError::panicked())) {
                Ok(()) => {
                    failures = 0;
                    observe::worker_was_there(NAME, SystemClock.now());
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    observe::worker_failed(NAME, failures);
                    warn!(%error, "unknown outcomes could not be looked for");
                }
            }
            loop {
                // There may be more than there were places.
                let look_again = places.may_leave_some(self);
                tokio::select! {
                    biased;
                    Some(ended) = places.next() => {
                        done.add(ended);
                        if look_again {
                            break;
                        }
                    }
                    () = sleep_until(next_look), if !places.is_full(self) => break,
                }
            }
            std::mem::take(done).tell();
            sleep_until(not_before).await;
        }
    }

    async fn reconcile(&self, record: Record) -> Result<End, StoreError> {
        let probes = record.inquiry.probes;
        if probes >= self.probes_max {
            return self.give_up(&record).await;
        }
        let Resolved::Applied(asked) =
            self.resolve(&record, Resolution::Ask { probes }, "").await?
        else {
            return Ok(End::Left);
        };
        let Some(asked_at) = asked.inquiry.asked_at else { return Ok(End::Left) };
        let begun = self.clock.monotonic();
        let (resolution, reason) = match self.ask(&asked).await {
            Finding::Completed(reply) => (
                Resolution::Executed { attempt: asked.attempt, reply },
                "reconciler: the probe found it completed",
            ),
            Finding::NotExecuted { authoritative: true } => (
                Resolution::Release(Proof::Authoritative),
                "reconciler: an authoritative probe found nothing executed",
            ),
            Finding::NotExecuted { authoritative: false } => {
                let apart = self.absences.note(&asked, begun);
                let reason = "reconciler: two probes found nothing executed";
                (Resolution::Absent { asked_at, apart }, reason)
            }
            Finding::StillUnknown if asked.inquiry.probes >= self.probes_max => {
                return self.give_up(&asked).await;
            }
            Finding::StillUnknown => return Ok(End::StillUnknown),
        };
        let completes = matches!(resolution, Resolution::Executed { .. });
        match self.resolve(&asked, resolution, reason).await? {
            Resolved::Applied(_) => {
                self.absences.forget(&asked);
                info!(route = &*asked.route, reason, "an unknown outcome was resolved");
                Ok(if completes { End::Completed } else { End::Released })
            }
            Resolved::TooEarly { .. } if asked.inquiry.probes >= self.probes_max => {
                self.give_up(&asked).await
            }
            Resolved::TooEarly { .. } => Ok(End::StillUnknown),
            Resolved::Absent | Resolved::Refused(_) => {
                self.absences.forget(&asked);
                Ok(End::Left)
            }
        }
    }

    /// A probe that hangs or panics has found nothing.
    async fn ask(&self, record: &Record) -> Finding {
        let unknown = Unknown::of(record);
        let asked = AssertUnwindSafe(self.probe.ask(&unknown)).catch_unwind();
        match timeout(self.patience, asked).await {
            Ok(Ok(finding)) => finding,
            Ok(Err(_)) => {
                error!(route = &*record.route, "a probe panicked");
                Finding::StillUnknown
            }
            Err(_) => {
                debug!(route = &*record.route, "a probe took too long");
                Finding::StillUnknown
            }
        }
    }

    async fn give_up(&self, record: &Record) -> Result<End, StoreError> {
        let reason = format!("reconciler: nothing was learned from {} probes", self.probes_max);
        let dead_letter = Resolution::DeadLetter { asked_at: record.inquiry.asked_at };
        match self.resolve(record, dead_letter, &reason).await? {
            Resolved::Applied(_) => {
                observe::count(observe::RECONCILE_FAILED, &record.route);
                warn!(route = &*record.route, "an unknown outcome became a dead letter");
                Ok(End::Dead)
            }
            _ => Ok(End::Left),
        }
    }

    async fn resolve(
        &self,
        record: &Record,
        resolution: Resolution,
        reason: &str,
    ) -> Result<Resolved, StoreError> {
        let resolve = Resolve {
            id: record.id.clone(),
            generation: record.generation,
            fence: record.fence,
            resolution,
            reason: reason.into(),
        };
        let resolved = in_time(self.store.resolve(resolve.clone())).await?;
        if observe::resolved(&resolve, &resolved) {
            error!(route = &*record.route, "two words about one operation; both are kept");
        }
        Ok(resolved)
    }
}

/// What the store answers, if it does so in time. What was asked may still be done.
async fn in_time<T>(call: StoreFuture<'_, T>) -> Result<T, StoreError> {
    let late = || StoreError::new(StoreErrorKind::Ambiguous, "any", "no answer in time");
    timeout(STORE_MAX, call).await.unwrap_or_else(|_| Err(late()))
}

impl Reconciled {
    fn add(&mut self, ended: Option<Result<End, StoreError>>) {
        let count = match ended {
            Some(Ok(End::Completed)) => &mut self.completed,
            Some(Ok(End::Released)) => &mut self.released,
            Some(Ok(End::StillUnknown)) => &mut self.still_unknown,
            Some(Ok(End::Dead)) => &mut self.dead,
            Some(Ok(End::Left)) => &mut self.left,
            Some(Err(error)) => {
                warn!(%error, "an unknown outcome could not be resolved");
                &mut self.failed
            }
            None => &mut self.failed,
        };
        *count += 1;
    }

    fn tell(&self) {
        let Reconciled { completed, released, still_unknown, dead, failed, .. } = *self;
        if completed + released + still_unknown + dead + failed > 0 {
            info!(completed, released, still_unknown, dead, failed, "unknown outcomes asked about");
        }
    }
}
