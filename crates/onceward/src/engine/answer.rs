//! Answering: at most once per request, and only here.

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use tokio::time::Instant;
use tracing::error;

use super::{Answer, Call, Captured, Engine, Exceeded, status};
use crate::{
    clock::Timestamp,
    machine::Refusal,
    observe,
    policy::InFlight,
    record::Lease,
    rejection::Rejection,
    reply::{self, Reply},
};

impl<R> Call<'_, R> {
    pub(super) fn refuse(&mut self, refusal: &Refusal) {
        let policy = &self.admitted.policy;
        self.engine.count_refusal(refusal, policy);
        let says_accepted = policy.in_flight == InFlight::Accepted || policy.queued.is_some();
        if let (Refusal::InProgress { state, .. }, true) = (refusal, says_accepted) {
            return self.send(status::accepted(&self.admitted.id, *state));
        }
        let mut rejection = Rejection::refused(refusal, policy.profile);
        if matches!(refusal, Refusal::InProgress { .. } | Refusal::OutcomeUnknown) {
            rejection = rejection.with_location(status::location(&self.admitted.id));
        }
        self.reject(rejection);
    }

    pub(super) fn replay(&mut self, reply: Reply, expires_at: Timestamp, generation: u32) {
        if reply.is_sealed() {
            return self.reject_sealed();
        }
        self.line.generation = Some(generation);
        self.send(reply.replay(expires_at, generation));
    }

    /// This process has no keys, and an earlier one had: the reply is there, and cannot be read.
    pub(super) fn reject_sealed(&mut self) {
        error!(
            route = &*self.admitted.policy.name,
            key.digest = self.admitted.id.key.digest(),
            "a stored reply is sealed, and this process has no key ring: nothing is replayed"
        );
        self.reject(Rejection::store_unavailable());
    }

    pub(super) fn limit(&mut self, exceeded: Exceeded) {
        let Exceeded { limit, retry_after } = exceeded;
        observe::rate_limited(&self.admitted.policy.name, limit);
        self.reject(Rejection::rate_limited(limit, retry_after));
    }

    pub(super) fn reject_unknown(&mut self, status: StatusCode, why: &str) {
        let location = status::location(&self.admitted.id);
        self.reject(Rejection::first_unknown(status, why).with_location(location));
    }

    pub(super) fn reject(&mut self, rejection: Rejection) {
        let response = self.engine.rejected(rejection, &self.admitted.policy);
        self.send(response);
    }

    pub(super) fn send(&mut self, response: Response<Bytes>) {
        self.send_captured(response.map(Captured::Whole));
    }

    pub(super) fn send_captured(&mut self, answer: Answer<R>) {
        let outcome = outcome_of(answer.headers());
        tracing::Span::current().record("outcome", outcome);
        self.tell(answer.status(), outcome);
        if let Some(sender) = self.answer.take() {
            // The client may have hung up. What was done is stored, and its retry will find it.
            let _ = sender.send(answer);
        }
    }

    /// One line for each decision. What comes after it, such as a late reply, is no other decision.
    fn tell(&mut self, status: StatusCode, outcome: &str) {
        let Line { what, begun, attempt, generation, .. } = self.line;
        if std::mem::replace(&mut self.line.told, true) {
            return;
        }
        let now = self.engine.clock.monotonic();
        // What a worker goes on with nobody asks for now.
        if what == Line::DECISION {
            let granted = attempt.is_some();
            self.engine.tenants.note(&self.admitted.id.scope, granted, outcome, now);
        }
        let duration = now.saturating_duration_since(begun);
        observe::decided(&observe::Decided {
            what,
            route: &self.admitted.policy.name,
            key: &self.admitted.id.key,
            status,
            outcome,
            duration,
            attempt,
            generation,
        });
    }
}

/// What is logged of a request when it is answered.
pub(super) struct Line {
    what: &'static str,
    begun: Instant,
    attempt: Option<u32>,
    generation: Option<u32>,
    told: bool,
}

impl Line {
    /// What is said of a request that somebody waits for.
    pub(super) const DECISION: &str = "decision";

    pub(super) fn new(what: &'static str, engine: &Engine) -> Self {
        let begun = engine.clock.monotonic();
        Line { what, begun, attempt: None, generation: None, told: false }
    }

    pub(super) fn granted(&mut self, lease: &Lease) {
        (self.attempt, self.generation) = (Some(lease.attempt_number), Some(lease.generation));
    }
}

/// What Onceward did with the request, as the answer says it.
pub(super) fn outcome_of(headers: &HeaderMap) -> &str {
    let outcome = headers.get(&reply::ONCEWARD_OUTCOME);
    outcome.and_then(|outcome| outcome.to_str().ok()).unwrap_or("none")
}
