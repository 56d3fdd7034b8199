//! Rehearsals of handlers in steps: cut off at every edge of every step, or failing there, and gone
//! on with. For tests of services.

use std::{
    fmt,
    future::{Future, pending},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use tokio::sync::{Notify, oneshot};

use crate::{
    clock::ManualClock,
    engine::{Captured, Engine, Execution, Handler, Settings},
    operation::Operation,
    phase::Failure,
    policy::Policy,
    record::Effects,
    reply::{IDEMPOTENT_REPLAYED, ONCEWARD_OUTCOME},
    scope::ScopeRule,
    store::{Store, StoreError, StoreErrorKind},
};

/// Where a step can be cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Edge {
    /// The intent of an effect is committed, and nothing was called.
    Intended,
    /// An effect was called, and its result is not saved.
    Called,
    /// The result of a phase, or the reply, is written and not committed.
    Written,
    /// The result of a step, or the reply, is committed.
    Saved,
}

/// What happens at an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Disturbance {
    /// The process is gone: nothing that comes after the edge happens.
    Cut,
    /// The step fails there, and the handler is told.
    Fail,
}

/// What a handler does and what comes of it, made anew for each trial.
pub trait Stage: Send + Sync + 'static {
    /// The store of the service.
    fn store(&self) -> Arc<dyn Store>;

    /// The handler.
    fn handle(
        &self,
        request: Request<Bytes>,
        operation: Operation,
    ) -> impl Future<Output = Response<Bytes>> + Send;

    /// All that was done to the world, in words: rows, and what others did for each key. The same in
    /// every trial, if each step is done once.
    fn done(&self) -> impl Future<Output = String> + Send;
}

/// Rehearses a handler: runs it undisturbed, then once for each edge of each of its steps and each
/// disturbance, and goes on each time as a client that retries does.
#[derive(Clone, Debug)]
pub struct Rehearsal {
    policy: Policy,
    request: Request<Bytes>,
}

/// One run of a rehearsal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trial {
    /// The name of the step; `reply` for the transaction that completes.
    pub step: String,
    /// Where it was disturbed.
    pub edge: Edge,
    /// How.
    pub disturbance: Disturbance,
    /// How it ended.
    pub ended: Ended,
}

/// How a trial ended, if it did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With the reply of the undisturbed run, and the same done.
    Alike,
    /// Unknown: an effect that is not idempotent may have acted.
    Unknown,
}

/// How often a client retries before the handler is said never to come to an end.
const RETRIES_MAX: usize = 5;

impl Rehearsal {
    /// A rehearsal of a `phased` handler with this request. The key is added to it.
    ///
    /// # Panics
    /// Never: the policy is allowed.
    pub fn new(request: Request<Bytes>) -> Self {
        let policy = Policy::required().effects(Effects::Phased).expect("not a single policy");
        Rehearsal { policy, request }
    }

    /// The same under another policy.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Plays all trials, each on a stage of its own, whose store should use the clock it is given.
    ///
    /// # Panics
    /// When the handler makes no step or does not come to its end, or when a trial ends otherwise than
    /// the undisturbed run. One that hangs has its end at `max_execution`.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn play<S: Stage>(&self, stage: impl AsyncFn(ManualClock) -> S) -> Vec<Trial> {
        let undisturbed = Arc::new(Plan::default());
        let (expected, edges) = {
            let played = self.trial(&stage, &undisturbed).await;
            assert!(played.1 != "unknown", "undisturbed, the outcome is unknown: {played:?}");
            (played, undisturbed.seen())
        };
        assert!(!edges.is_empty(), "the handler makes no step: there is nothing to disturb");
        let mut trials = Vec::new();
        for (number, (edge, step)) in edges.iter().enumerate() {
            for disturbance in [Disturbance::Cut, Disturbance::Fail] {
                let plan = Arc::new(Plan { at: Some((number, disturbance)), ..Plan::default() });
                let played = self.trial(&stage, &plan).await;
                let ended = match played.1 == "unknown" {
                    true => Ended::Unknown,
                    false => {
                        let about = format!("{disturbance:?} at {edge:?} of the step `{step}`");
                        assert_eq!(played, expected, "another end after: {about}");
                        Ended::Alike
                    }
                };
                trials.push(Trial { step: step.clone(), edge: *edge, disturbance, ended });
            }
        }
        trials
    }

    /// The reply in the end, what kind it was, and what was done.
    async fn trial<S: Stage>(
        &self,
        stage: &impl AsyncFn(ManualClock) -> S,
        plan: &Arc<Plan>,
    ) -> ((StatusCode, Bytes), &'static str, String) {
        let clock = ManualClock::default();
        let stage = Arc::new(stage(clock.clone()).await);
        let settings = Settings { scope: ScopeRule::anonymous(), ..Settings::default() };
        let settings = Settings { clock: Arc::new(clock.clone()), ..settings };
        let routes = self.policy.clone().into();
        let engine = Arc::new(Engine::new(stage.store(), routes, settings));
        for _ in 0..RETRIES_MAX {
            let (sender, mut answer) = oneshot::channel();
            let running = tokio::spawn(PLAN.scope(Arc::clone(plan), {
                let (engine, stage, request) = (engine.clone(), stage.clone(), self.keyed());
                async move { run(engine, stage, request, sender).await }
            }));
            let answered = tokio::select! {
                answered = &mut answer => answered.ok(),
                () = plan.cut.notified() => None,
            };
            // As a crash does it; then everybody waits until the lease is over.
            running.abort();
            let _ = running.await;
            clock.advance(self.policy.lease + Duration::from_secs(1));
            if let Some(response) = answered
                && let Some(kind) = end(&response)
            {
                let (parts, body) = response.into_parts();
                let Captured::Whole(body) = body;
                let reply = match kind {
                    "unknown" if !may_be_unknown(&*stage.store()).await => panic!(
                        "the outcome is unknown, and no effect that is not idempotent is open: {:?}",
                        plan.seen()
                    ),
                    "unknown" => (StatusCode::CONFLICT, Bytes::new()),
                    _ => (parts.status, body),
                };
                return (reply, kind, stage.done().await);
            }
        }
        panic!("the handler did not come to an end: {:?}", plan.seen());
    }

    fn keyed(&self) -> Request<Bytes> {
        let mut request = self.request.clone();
        let key = http::HeaderValue::from_static("rehearsal-0000000000000001");
        request.headers_mut().insert("idempotency-key", key);
        request
    }
}

type Answer = Response<Captured<std::convert::Infallible>>;

/// Whether a client has no reason to retry.
fn end(response: &Answer) -> Option<&'static str> {
    let outcome = response.headers().get(&ONCEWARD_OUTCOME)?.to_str().ok()?;
    match outcome {
        "executed" => Some("done"),
        _ if response.headers().contains_key(&IDEMPOTENT_REPLAYED) => Some("done"),
        "unknown" => Some("unknown"),
        _ => None,
    }
}

/// Whether an effect that must not be called again may have acted. Of any other unknown outcome, such as
/// that of a handler which does not end, the handler is the cause.
async fn may_be_unknown(store: &dyn Store) -> bool {
    let due = store.due_unknown(1, Vec::new()).await.expect("the store answers");
    due.iter().any(|record| record.progress.must_not_go_on())
}

async fn run<S: Stage>(
    engine: Arc<Engine>,
    stage: Arc<S>,
    request: Request<Bytes>,
    answer: oneshot::Sender<Answer>,
) {
    let (parts, body) = request.clone().into_parts();
    let policy = engine.policy_for(&parts).cloned().expect("the policy is for this method");
    let admitted = engine.admit(&parts, &policy).expect("anybody may").expect("it has a key");
    let handler = Played { stage, request };
    let asked = engine.ask(admitted, &parts, &body);
    engine.run(asked, handler, answer).await;
}

struct Played<S> {
    stage: Arc<S>,
    request: Request<Bytes>,
}

impl<S: Stage> Handler for Played<S> {
    type Rest = std::convert::Infallible;

    async fn run(self, operation: Operation) -> Execution<Self::Rest> {
        let (parts, body) = self.stage.handle(self.request, operation).await.into_parts();
        Execution::Answered(parts, Captured::Whole(body))
    }
}

tokio::task_local! {
    static PLAN: Arc<Plan>;
}

/// Which edge is disturbed, and which were reached.
#[derive(Default)]
struct Plan {
    at: Option<(usize, Disturbance)>,
    seen: Mutex<Vec<(Edge, String)>>,
    cut: Notify,
}

impl Plan {
    fn seen(&self) -> Vec<(Edge, String)> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan").field("at", &self.at).field("seen", &self.seen()).finish()
    }
}

/// An operation came to an edge of a step.
pub(crate) async fn reach(edge: Edge, step: &str) -> Result<(), Failure> {
    let Ok(plan) = PLAN.try_with(Arc::clone) else { return Ok(()) };
    let number = {
        let mut seen = plan.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.push((edge, step.to_owned()));
        seen.len() - 1
    };
    match plan.at {
        Some((at, Disturbance::Cut)) if at == number => {
            plan.cut.notify_one();
            pending().await
        }
        Some((at, Disturbance::Fail)) if at == number => {
            let error = StoreError::new(StoreErrorKind::Unavailable, "rehearsal", "disturbed");
            Err(Failure::Store(error))
        }
        _ => Ok(()),
    }
}
