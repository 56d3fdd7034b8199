//! What happens to one request, from the header to the reply.
//!
//! This file holds the order of the steps. The rules are in `machine`, the database is behind
//! `Store`, HTTP bodies and tasks are handled in `tower` and in the gateway.
//!
//! ```text
//! admit    scope, then key                                    401, 400
//!          (the caller buffers the body to the policy's cap    413)
//! run      in a task of its own, that nobody cancels:
//!            fingerprint, reserve, decide
//!            Execute: dispatch, renewing the lease; classify; complete, release or mark unknown
//!            Replay, Refuse: answer
//! ```

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{Response, StatusCode, request, response};
use tokio::{sync::oneshot, time::Instant};
use tracing::{Instrument as _, field, info_span, warn};

use crate::{
    clock::{Clock, SystemClock},
    key::KeyRules,
    machine::{Decision, Refusal},
    observe,
    operation::{Operation, sealed_id},
    policy::{Policy, Presence, Routes},
    record::{Lease, Record, RecordId, State},
    rejection::Rejection,
    reply::{self, Reply, ReplyBody},
    scope::ScopeRule,
    store::{Ask, Identity, Store, Write, Written},
};

mod answer;
mod begin;
mod classify;
mod drain;
mod hold;
mod settle;
mod status;
mod superseded;
mod wait;

use begin::Begun;
use classify::Outcome;
use drain::Drain;
use hold::Stopped;
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
    routes: Routes,
    problem_base: Option<Box<str>>,
    store_deadline: Duration,
    waiters: Waiters,
    drain: Drain,
    identity_is_same: AtomicBool,
}

/// What an engine needs beside a store and routes. All of it has a default.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Who is asking: the `Authorization` credential, hashed, unless said otherwise.
    pub scope: ScopeRule,
    /// How keys may be written.
    pub key_rules: KeyRules,
    /// Where error codes are described: the code is appended. URNs without one.
    pub problem_base: Option<Box<str>>,
    /// How long a store call is repeated before the caller is told.
    pub store_deadline: Duration,
    /// Where the time comes from.
    pub clock: Arc<dyn Clock>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            scope: ScopeRule::authorization(),
            key_rules: KeyRules::default(),
            problem_base: None,
            store_deadline: Duration::from_secs(5),
            clock: Arc::new(SystemClock),
        }
    }
}

/// A request that may be run: it has a scope and a key.
#[derive(Clone, Debug)]
pub struct Admitted {
    id: RecordId,
    policy: Arc<Policy>,
    wait: Option<Duration>,
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
            problem_base: settings.problem_base,
            store_deadline: settings.store_deadline,
            waiters: Waiters::default(),
            drain: Drain::default(),
            identity_is_same: AtomicBool::new(false),
        }
    }

    /// The settings that make a key what it is. Compared with those of the store before the first
    /// request is run: while they differ, every request is answered 503.
    pub fn identity(&self) -> Identity {
        let key_ids = self.routes.policies().filter_map(|policy| policy.recipe.key_id());
        Identity::new(self.scope.name(), "onceward-key/1", key_ids)
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
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
            id: RecordId { scope, key },
            policy: Arc::clone(policy),
            wait: wait::asked_for(&parts.headers, policy),
        }))
    }

    /// Runs an admitted request to its end. To be spawned: the answer comes through the channel,
    /// and the task may go on after it.
    ///
    /// # Cancel safety
    /// Must not be dropped: an attempt that was begun would stay in progress until its lease ends,
    /// and its outcome would then be unknown.
    pub async fn run<H: Handler>(
        self: Arc<Self>,
        admitted: Admitted,
        parts: Arc<request::Parts>,
        body: Bytes,
        handler: H,
        answer: oneshot::Sender<Answer<H::Rest>>,
    ) {
        let span = info_span!(
            "onceward.request",
            route = &*admitted.policy.name,
            key.digest = admitted.id.key.digest(),
            attempt = field::Empty,
            generation = field::Empty,
            outcome = field::Empty,
        );
        let running = self.drain.enter();
        let ask = self.ask(&admitted, &parts, &body);
        drop(body);
        let call = Call { engine: &self, admitted: &admitted, ask: &ask, answer: Some(answer) };
        call.lead(handler).instrument(span).await;
        drop(running);
    }

    /// The response for a rejection.
    pub fn reject(&self, rejection: Rejection, policy: &Policy) -> Response<Bytes> {
        rejection.into_response(self.problem_base.as_deref(), policy.profile)
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

/// Whether an attempt still holds its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// As far as is known.
    Still,
    /// Somebody else decided about it.
    Lost,
}

/// One request on its way.
struct Call<'a, R> {
    engine: &'a Engine,
    admitted: &'a Admitted,
    ask: &'a Ask,
    answer: Option<oneshot::Sender<Answer<R>>>,
}

impl<R: Send + 'static> Call<'_, R> {
    async fn lead<H>(mut self, handler: H)
    where
        H: Handler<Rest = R>,
    {
        match self.engine.begin(self.ask, self.admitted.wait).await {
            Begun::Decided(Decision::Execute(lease), deadline) => {
                self.execute(lease, deadline, handler).await;
            }
            Begun::Decided(Decision::Replay { reply, expires_at, generation }, _) => {
                self.send(reply.replay(expires_at, generation));
            }
            Begun::Decided(Decision::Refuse(refusal), _) => self.refuse(&refusal),
            // An engine reserves to execute or to look, so that nothing is accepted for later.
            Begun::Decided(Decision::Accepted, _) => self.reject(Rejection::store_unavailable()),
            Begun::StoreFailed { may_be_granted } => {
                self.reject(Rejection::store_unavailable());
                // It will not run, and an outage must not fill the memory with request bodies.
                drop(handler);
                if may_be_granted {
                    self.engine.withdraw(self.ask).await;
                }
            }
        }
    }

    async fn execute<H>(&mut self, lease: Lease, deadline: Instant, handler: H)
    where
        H: Handler<Rest = R>,
    {
        let engine = self.engine;
        let policy = &self.admitted.policy;
        let operation = Operation::new(&lease, deadline, Arc::clone(&engine.clock));
        // The reserve may have taken longer than the lease it granted.
        if !operation.may_act() {
            let why = Rejection::store_unavailable();
            return self.not_executed(&lease, "lease_over_before_dispatch", Err(why)).await;
        }
        if engine.drain.is_over() {
            let why = Rejection::draining();
            return self.not_executed(&lease, "process_stopped", Err(why)).await;
        }
        let begun = engine.clock.monotonic();
        let given = operation.clone();
        let handler = AssertUnwindSafe(async move { handler.run(given).await }).catch_unwind();
        tokio::pin!(handler);
        let ended = tokio::select! {
            biased;
            ended = &mut handler => Ok(ended),
            stopped = engine.hold(&lease, policy, &operation) => Err(stopped),
        };
        observe::operation_took(&policy.name, engine.clock.monotonic() - begun);
        match ended {
            Ok(ended) => self.finish(&lease, classify::classify(ended, policy)).await,
            // The handler is dropped with this task, so that it need not be told.
            Err(stopped @ Stopped::Drained) => {
                self.unknown(&lease, StatusCode::GATEWAY_TIMEOUT, stopped.code()).await;
            }
            Err(stopped @ Stopped::MaxExecution) => {
                // The handler goes on, also while the client is told. If it answers after all, its
                // reply is still the truth.
                let late = async {
                    tokio::select! {
                        biased;
                        late = &mut handler => Some(classify::classify(late, policy)),
                        () = engine.drain.over() => None,
                    }
                };
                let told = async {
                    let told = self.unknown(&lease, StatusCode::GATEWAY_TIMEOUT, stopped.code());
                    if told.await == Held::Lost {
                        operation.lose_lease();
                    }
                };
                if let ((), Some(late)) = tokio::join!(told, late) {
                    self.finish_late(&lease, late).await;
                }
            }
        }
    }

    async fn finish(&mut self, lease: &Lease, outcome: Outcome<R>) {
        match outcome {
            Outcome::Completed { answer, reply } => self.complete(lease, answer, reply).await,
            Outcome::NotExecuted { answer, why } => self.not_executed(lease, why, answer).await,
            Outcome::Unknown { status, why } => {
                self.unknown(lease, status, why).await;
            }
        }
    }

    async fn complete(&mut self, lease: &Lease, mut answer: Answer<R>, reply: Reply) {
        let write = Write::Complete(reply);
        let retention = self.admitted.policy.retention;
        match self.engine.persist(lease, &write, self.admitted).await {
            Some(Written::Superseded(record)) => self.superseded(lease, record).await,
            Some(Written::AlreadyMine(Some(stored))) if !write.is_completion_with(&stored) => {
                // The handler completed it by itself: those bytes are the reply.
                if stored.body == ReplyBody::NotStored {
                    return self.refuse(&Refusal::ReplyNotStored { status: stored.status });
                }
                let expires_at = self.engine.clock.now().plus(retention);
                self.send(stored.replay(expires_at, lease.generation));
            }
            // Now, or by an earlier write of ours whose answer was lost.
            Some(Written::Applied | Written::AlreadyMine(_)) => {
                let expires_at = self.engine.clock.now().plus(retention);
                let headers = answer.headers_mut();
                reply::describe(headers, "executed", Some(expires_at), lease.generation);
                let schema_version = self.admitted.policy.schema_version.as_deref();
                reply::describe_schema(headers, schema_version);
                self.send_captured(answer);
            }
            None => {
                self.reject_unknown(StatusCode::CONFLICT, "completion_not_acknowledged");
                self.engine.persist_until_drain(lease, &write, self.admitted).await;
            }
        }
    }

    async fn not_executed(
        &mut self,
        lease: &Lease,
        why: &'static str,
        answer: Result<Answer<R>, Rejection>,
    ) {
        let write = Write::Release(why.into());
        match self.engine.persist(lease, &write, self.admitted).await {
            Some(Written::Superseded(Some(record)))
                if answer.is_err() && is_ours_and_unknown(&record, lease) =>
            {
                // Taken for lost before anything was sent, which we know better.
                match (self.engine.give_back(&record).await, answer) {
                    (true, Err(rejection)) => self.reject(rejection),
                    _ => self.superseded(lease, Some(record)).await,
                }
            }
            Some(Written::Superseded(record)) => self.superseded(lease, record).await,
            Some(_) => match answer {
                Ok(mut answer) => {
                    reply::describe(answer.headers_mut(), "not_executed", None, lease.generation);
                    self.send_captured(answer);
                }
                Err(rejection) => self.reject(rejection),
            },
            None => {
                self.reject(Rejection::store_unavailable());
                self.engine.persist_until_drain(lease, &write, self.admitted).await;
            }
        }
    }

    async fn unknown(&mut self, lease: &Lease, status: StatusCode, why: &'static str) -> Held {
        warn!(why, "the outcome of an attempt is unknown");
        let write = Write::MarkUnknown(why.into());
        let written = self.engine.persist(lease, &write, self.admitted).await;
        if let Some(Written::Superseded(record)) = written {
            self.superseded(lease, record).await;
            return Held::Lost;
        }
        observe::count(observe::RECONCILE_SCHEDULED, &self.admitted.policy.name);
        self.reject_unknown(status, why);
        if written.is_none() {
            let later = self.engine.persist_until_drain(lease, &write, self.admitted).await;
            if matches!(later, Some(Written::Superseded(_))) {
                return Held::Lost;
            }
        }
        Held::Still
    }

    /// The client was told that the outcome is unknown; now there is one.
    async fn finish_late(&self, lease: &Lease, outcome: Outcome<R>) {
        if let Outcome::Completed { reply, .. } = outcome {
            let write = Write::Complete(reply);
            self.engine.persist_until_drain(lease, &write, self.admitted).await;
        }
    }
}

/// The path under which clients ask for the state of an operation.
pub const STATUS_PATH: &str = "/.onceward/operations/";

pub(crate) fn operation_id(id: &RecordId) -> String {
    sealed_id::seal(&id.scope, &id.key)
}

fn is_ours_and_unknown(record: &Record, lease: &Lease) -> bool {
    let ours = record.attempt == lease.attempt && record.fence == lease.fence;
    ours && record.state == State::Unknown
}
