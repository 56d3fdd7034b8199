//! What happens to one request, from the header to the reply.
//!
//! This file holds the order of the steps. The rules are in `machine`, the database is behind
//! `Store`, HTTP bodies and tasks are handled in `tower` and in the gateway.
//!
//! ```text
//! admit    scope, then key                                    401, 400
//!          (the caller buffers the body to the policy's cap    413)
//! run      to its end, whoever waits for it:
//!            fingerprint, breaker, limits                     503, 429
//!            reserve (only a look for who has no quota left), decide
//!            Accepted: answer; a worker claims it later and executes it in the same way
//!            Execute: dispatch, renewing the lease; classify; complete, release or mark unknown
//!                     (or, where the handler completed in its own transaction, ask what is true)
//!            Replay, Refuse: answer
//! ```

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use bytes::Bytes;
use http::{Response, StatusCode, request, response};
use tokio::sync::{Notify, oneshot};
use tracing::{Instrument as _, debug_span, field};

use crate::{
    canary::Canary,
    clock::{Clock, SystemClock, Timestamp},
    key::{Key, KeyRules, LookupKey},
    machine::{Decision, Refusal},
    observe,
    operation::{Operation, sealed_id},
    policy::{Policy, Presence, Routes},
    record::{RecordId, State},
    rejection::Rejection,
    scope::ScopeRule,
    store::{Ask, Identity, Mode, Regression, Store},
};

mod answer;
mod begin;
mod breaker;
mod bucket;
mod classify;
mod drain;
mod durations;
mod execute;
mod hold;
mod quota;
mod resume;
mod settle;
mod single;
mod status;
mod superseded;
#[cfg(any(feature = "worker", feature = "testing"))]
mod tend;
mod tenants;
mod wait;

use answer::{Line, outcome_of};
use begin::{Begun, Take, Terms};
use breaker::Breaker;
pub use breaker::BreakerState;
use drain::Drain;
use durations::Durations;
pub use durations::Took;
use quota::{Exceeded, Quota};
pub use quota::{Limits, Rate};
#[cfg(feature = "tower")]
pub(crate) use resume::Ready;
pub use resume::Resumed;
pub use tenants::ScopeTraffic;
use tenants::Tenants;
use wait::Waiters;

#[cfg(test)]
mod tests;

/// Leads requests through the protocol. One per service, shared by all requests.
#[derive(Debug)]
pub struct Engine {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    scope: ScopeRule,
    key_rules: KeyRules,
    lookup_key: Option<LookupKey>,
    routes: Routes,
    problem_base: Option<Box<str>>,
    store_deadline: Duration,
    waiters: Arc<Waiters>,
    drain: Drain,
    /// Of questions about the state of operations.
    questions: bucket::Buckets,
    limits: Limits,
    quota: Arc<Quota>,
    breaker: Arc<Breaker>,
    canary: Option<Arc<Canary>>,
    /// Told of work that was accepted for later.
    accepted: Arc<Notify>,
    durations: Arc<Durations>,
    tenants: Arc<Tenants>,
    /// Those that were started.
    #[cfg(any(feature = "worker", feature = "tower", feature = "testing"))]
    workers: Arc<std::sync::Mutex<std::collections::HashSet<&'static str>>>,
    identity_is_same: AtomicBool,
    /// Held by the one who asks the store.
    identity_asked: tokio::sync::Mutex<()>,
}

/// What an engine needs beside a store and routes. All of it has a default.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Who is asking: the `Authorization` credential, hashed, unless said otherwise.
    pub scope: ScopeRule,
    /// How keys may be written.
    pub key_rules: KeyRules,
    /// With it, stores see no key but its HMAC. Part of the identity: under another one every key
    /// looks new.
    pub lookup_key: Option<LookupKey>,
    /// Where error codes are described: the code is appended. URNs without one.
    pub problem_base: Option<Box<str>>,
    /// How long a store call is repeated before the caller is told.
    pub store_deadline: Duration,
    /// What each scope may ask for. Nothing is limited unless said otherwise.
    pub limits: Limits,
    /// Watches whether the store still has what it acknowledged. Without one, nobody does.
    pub canary: Option<Arc<Canary>>,
    /// Where the time comes from.
    pub clock: Arc<dyn Clock>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            scope: ScopeRule::authorization(),
            key_rules: KeyRules::default(),
            lookup_key: None,
            problem_base: None,
            store_deadline: Duration::from_secs(5),
            limits: Limits::OFF,
            canary: None,
            clock: Arc::new(SystemClock),
        }
    }
}

/// A request that may be run: it has a scope and a key.
#[derive(Clone, Debug)]
pub struct Admitted {
    id: RecordId,
    /// What the client sent.
    key: Key,
    policy: Arc<Policy>,
    wait: Option<Duration>,
    /// What is answered where the key is free, instead of running.
    unless_known: Option<Rejection>,
    /// When the record was made that a worker goes on with.
    created_at: Option<Timestamp>,
}

impl Admitted {
    /// The same, for a request that must not run any more: what is known of its key is answered as
    /// always, and a key that is free is refused with this.
    #[must_use]
    pub fn only_if_known(self, otherwise: Rejection) -> Self {
        Admitted { unless_known: Some(otherwise), ..self }
    }

    /// Whether this is known to be younger than what the store has lost.
    fn is_younger(&self, canary: &Canary, lost: Regression) -> bool {
        match self.created_at {
            Some(created_at) => lost.found < created_at,
            None => canary.is_younger(&self.key, lost),
        }
    }

    /// Whose request it is, and under which key, as stores know it.
    pub fn id(&self) -> &RecordId {
        &self.id
    }

    /// The key that the client sent. With [`Settings::lookup_key`] no store knows it.
    pub fn client_key(&self) -> &Key {
        &self.key
    }
}

/// A request that may be run, and what it asks for.
///
/// Cannot be cloned: two runs of one attempt would both be granted.
#[derive(Debug)]
pub struct Asked {
    admitted: Admitted,
    ask: Ask,
}

impl Asked {
    /// The same, where the head of a request that is kept for later is not kept as it came but as this
    /// says. What is asked is told by the one that came.
    #[must_use]
    pub fn keeping(mut self, head: &request::Parts, body: &Bytes) -> Self {
        if self.ask.request.is_some() {
            let request = resume::stored(head, body, &self.admitted.policy);
            self.ask.request = Some(Arc::new(request));
        }
        self
    }
}

/// The work behind a key.
pub trait Handler: Send + 'static {
    /// What remains of an answer that is too large to be kept, to be passed on as it comes.
    type Rest: Send + 'static;

    /// Does the work. Called at most once, and only while the attempt holds its lease.
    fn run(self, operation: Operation) -> impl Future<Output = Execution<Self::Rest>> + Send;
}

/// How the work ended.
#[derive(Debug)]
pub enum Execution<R> {
    /// With an answer.
    Answered(response::Parts, Captured<R>),
    /// Before anything was sent: it is known that nothing was done.
    NeverSent {
        /// Why, as a stable code.
        why: &'static str,
    },
    /// Without a full answer: it may have been done.
    NoFullAnswer {
        /// What the first caller is told: 502, or 504 for a timeout.
        status: StatusCode,
        /// Why, as a stable code.
        why: &'static str,
    },
}

/// The body of an answer.
#[derive(Debug)]
pub enum Captured<R> {
    /// All of it.
    Whole(Bytes),
    /// It is over the cap of its policy or ends in trailers, and cannot be kept.
    TooLarge(R),
}

/// The response to a request.
pub type Answer<R> = Response<Captured<R>>;

impl Engine {
    /// An engine on a store.
    pub fn new(store: Arc<dyn Store>, routes: Routes, settings: Settings) -> Self {
        observe::register(routes.policies().map(|policy| &*policy.name));
        Engine {
            store,
            routes,
            clock: settings.clock,
            scope: settings.scope,
            key_rules: settings.key_rules,
            lookup_key: settings.lookup_key,
            problem_base: settings.problem_base,
            store_deadline: settings.store_deadline,
            waiters: Arc::default(),
            drain: Drain::default(),
            questions: bucket::Buckets::default(),
            limits: settings.limits,
            quota: Arc::default(),
            breaker: Arc::default(),
            canary: settings.canary,
            accepted: Arc::default(),
            durations: Arc::default(),
            tenants: Arc::default(),
            #[cfg(any(feature = "worker", feature = "tower", feature = "testing"))]
            workers: Arc::default(),
            identity_is_same: AtomicBool::new(false),
            identity_asked: tokio::sync::Mutex::default(),
        }
    }

    /// The same engine under other routes and settings, for a service that is set up anew while it
    /// runs. Both know of each other's requests: who waits for an attempt of the one is woken by the
    /// other, draining either drains both, and what a scope has used of its quota is used in both.
    #[must_use]
    pub fn under(&self, routes: Routes, settings: Settings) -> Engine {
        Engine {
            waiters: Arc::clone(&self.waiters),
            drain: self.drain.clone(),
            quota: Arc::clone(&self.quota),
            breaker: Arc::clone(&self.breaker),
            accepted: Arc::clone(&self.accepted),
            durations: Arc::clone(&self.durations),
            tenants: Arc::clone(&self.tenants),
            #[cfg(any(feature = "worker", feature = "tower", feature = "testing"))]
            workers: Arc::clone(&self.workers),
            ..Engine::new(Arc::clone(&self.store), routes, settings)
        }
    }

    /// The settings that make a key what it is. Compared with those of the store before the first
    /// request is run: while they differ, every request is answered 503.
    pub fn identity(&self) -> Identity {
        let key_ids = self.routes.policies().filter_map(|policy| policy.recipe.key_id());
        match &self.lookup_key {
            None => Identity::new(self.scope.identity(), "onceward-key/1", key_ids),
            Some(lookup) => {
                let hashed = format!("onceward-key/1 hmac {}", lookup.id());
                Identity::new(self.scope.identity(), &hashed, key_ids)
            }
        }
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// What watches the store, if anything does.
    pub fn canary(&self) -> Option<&Arc<Canary>> {
        self.canary.as_ref()
    }

    /// Whether requests are let through to the store, as far as it is known to answer.
    pub fn breaker_state(&self) -> BreakerState {
        self.breaker.shows()
    }

    /// The policy of a request; without one it is to be left alone.
    pub fn policy_for(&self, parts: &request::Parts) -> Option<&Arc<Policy>> {
        self.routes.policy_for(&parts.method, parts.uri.path())
    }

    /// Finds out who asks, and under which key. `Ok(None)` means that the request has no key and
    /// needs none: it is to be left alone.
    ///
    /// # Errors
    /// With the answer for a request that must not run.
    pub fn admit(
        &self,
        parts: &request::Parts,
        policy: &Arc<Policy>,
    ) -> Result<Option<Admitted>, Rejection> {
        let key = self.key_rules.read(&parts.headers);
        if policy.presence == Presence::Optional && key == Ok(None) {
            return Ok(None);
        }
        let scope = self.scope.read(parts).map_err(Rejection::no_scope)?;
        let key = key.map_err(Rejection::key_invalid)?.ok_or_else(Rejection::key_missing)?;
        Ok(Some(Admitted {
            id: RecordId { scope, key: self.stored_key(&key) },
            key,
            policy: Arc::clone(policy),
            wait: wait::asked_for(&parts.headers, policy),
            unless_known: None,
            created_at: None,
        }))
    }

    /// The key of a client, as stores know it.
    fn stored_key(&self, key: &Key) -> Key {
        self.lookup_key.as_ref().map_or_else(|| key.clone(), |lookup| lookup.stored(key))
    }

    /// Runs an admitted request to its end. The answer comes through the channel, and there may be more
    /// to do after it. To be spawned, or to be polled by somebody who spawns what is left.
    ///
    /// # Cancel safety
    /// Must not be dropped: an attempt that was begun would stay in progress until its lease ends,
    /// and its outcome would then be unknown.
    pub async fn run<H: Handler>(
        self: Arc<Self>,
        asked: Asked,
        handler: H,
        answer: oneshot::Sender<Answer<H::Rest>>,
    ) {
        let Asked { admitted, mut ask } = asked;
        let span = debug_span!(
            "onceward.request",
            route = &*admitted.policy.name,
            key.digest = admitted.id.key.digest(),
            attempt = field::Empty,
            generation = field::Empty,
            outcome = field::Empty,
        );
        let running = self.drain.enter();
        // Not before it is known to be running: whoever drains would not wait for it.
        ask.mode = match self.mode(&admitted) {
            Mode::Execute if admitted.policy.queued.is_some() => Mode::Accept,
            mode => mode,
        };
        let (limits, line) = (&self.limits, Line::new(Line::DECISION, &self));
        let answer = Some(answer);
        let take = Take::Reserve;
        let (engine, admitted, ask) = (&*self, &admitted, &ask);
        let call = Call { engine, admitted, ask, take, limits, answer, line };
        call.lead(handler).instrument(span).await;
        drop(running);
    }

    /// The response for a request that was rejected before it was run. Logged as a decision.
    pub fn reject(&self, rejection: Rejection, policy: &Policy) -> Response<Bytes> {
        let response = self.rejected(rejection, policy);
        observe::refused(&policy.name, response.status(), outcome_of(response.headers()));
        response
    }

    fn rejected(&self, rejection: Rejection, policy: &Policy) -> Response<Bytes> {
        rejection.into_response(self.problem_base.as_deref(), policy.profile)
    }

    /// The time by the process's own clock.
    #[cfg(any(feature = "worker", feature = "tower", feature = "testing"))]
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Whether the worker of this name was not started before in this process.
    #[cfg(any(feature = "worker", feature = "tower", feature = "testing"))]
    pub(crate) fn starts(&self, worker: &'static str) -> bool {
        self.workers.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(worker)
    }

    /// Stops taking new work, waits for what runs at most `at_most`, then marks unknown what is
    /// still running. Replays go on. Returns when no task is left, or when the store did not answer
    /// in time.
    ///
    /// # Cancel safety
    /// May be dropped; the engine then stays closed for new work.
    pub async fn drain(&self, at_most: Duration) {
        self.drain.close(at_most, self.store_deadline).await;
    }
}

/// One request on its way.
struct Call<'a, R> {
    engine: &'a Engine,
    admitted: &'a Admitted,
    ask: &'a Ask,
    take: Take,
    limits: &'a Limits,
    answer: Option<oneshot::Sender<Answer<R>>>,
    line: Line,
}

impl<R: Send + 'static> Call<'_, R> {
    /// `false` if the record was not reached: requests are refused now, or the store did not answer.
    async fn lead<H>(mut self, handler: H) -> bool
    where
        H: Handler<Rest = R>,
    {
        let engine = self.engine;
        let now = engine.clock.monotonic();
        let passage = match engine.breaker.enter(now) {
            Ok(passage) => passage,
            Err(retry_after) => {
                self.reject(Rejection::store_is_down(retry_after));
                return false;
            }
        };
        if let Err(exceeded) = engine.quota.look(self.limits, &self.ask.id.scope, now) {
            self.limit(exceeded);
            return false;
        }
        let terms = Terms {
            wait: self.admitted.wait,
            limits: self.limits,
            patience: passage.patience(engine.store_deadline),
            take: self.take,
        };
        // A `single` route reserves in the handler's own transaction: here it only looks.
        let single = self.admitted.policy.single && self.ask.mode == Mode::Execute;
        let begun = match single {
            true => {
                let look = Ask { mode: Mode::LookupOnly, ..self.ask.clone() };
                engine.begin(self.admitted, &look, terms).await
            }
            false => engine.begin(self.admitted, self.ask, terms).await,
        };
        match begun {
            Begun::StoreFailed { is_down: true, .. } => passage.failed(engine.clock.monotonic()),
            _ => drop(passage),
        }
        let reached = !matches!(begun, Begun::StoreFailed { .. });
        // What is large is boxed: the task is moved as a whole, for replays too.
        match begun {
            Begun::Decided(Decision::Execute(lease), deadline, place) => {
                self.line.granted(&lease);
                Box::pin(self.execute(lease, deadline, handler)).await;
                drop(place);
            }
            Begun::Decided(Decision::Refuse(Refusal::NotTaken), ..) if single => {
                let now = engine.clock.monotonic();
                match engine.quota.place(self.limits, &self.ask.id.scope, now) {
                    Ok(place) => Box::pin(self.execute_single(handler, place)).await,
                    Err(exceeded) => self.limit(exceeded),
                }
            }
            Begun::Decided(Decision::Replay { reply, expires_at, generation }, ..) => {
                self.replay(reply, expires_at, generation);
            }
            // Somebody else was faster. Nobody asked, and nothing was decided.
            Begun::Decided(Decision::Refuse(Refusal::NotTaken), ..)
                if matches!(self.take, Take::Claim(_)) => {}
            Begun::Decided(Decision::Refuse(refusal), ..) => match &self.admitted.unless_known {
                Some(otherwise) if refusal == Refusal::NotTaken => self.reject(otherwise.clone()),
                None if refusal == Refusal::NotTaken && engine.drain.is_open() => {
                    self.reject(Rejection::store_regressed());
                }
                _ => self.refuse(&refusal),
            },
            Begun::Limited(exceeded) => self.limit(exceeded),
            // The store has acknowledged it. Whoever is there first begins it.
            Begun::Decided(Decision::Accepted, ..) => {
                engine.accepted.notify_one();
                self.send(status::accepted(&self.admitted.id, State::Pending));
            }
            Begun::Regressed => {
                self.reject(Rejection::store_regressed());
                drop(handler);
                Box::pin(engine.withdraw(self.ask, self.take)).await;
            }
            Begun::StoreFailed { may_be_granted, .. } => {
                self.reject(Rejection::store_unavailable());
                // It will not run, and an outage must not fill the memory with request bodies.
                drop(handler);
                if may_be_granted && !single {
                    Box::pin(engine.withdraw(self.ask, self.take)).await;
                }
            }
        }
        reached
    }
}

/// The path under which clients ask for the state of an operation.
pub const STATUS_PATH: &str = "/.onceward/operations/";

pub(crate) fn operation_id(id: &RecordId) -> String {
    sealed_id::seal(&id.scope, &id.key)
}
