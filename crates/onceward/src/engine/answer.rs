//! Answering: at most once per request, and only here.

use bytes::Bytes;
use http::{Response, StatusCode};

use super::{Answer, Call, Captured, Exceeded, status};
use crate::{machine::Refusal, observe, policy::InFlight, rejection::Rejection, reply};

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
        let response = self.engine.reject(rejection, &self.admitted.policy);
        self.send(response);
    }

    pub(super) fn send(&mut self, response: Response<Bytes>) {
        self.send_captured(response.map(Captured::Whole));
    }

    pub(super) fn send_captured(&mut self, answer: Answer<R>) {
        let outcome = answer.headers().get(&reply::ONCEWARD_OUTCOME);
        if let Some(Ok(outcome)) = outcome.map(|outcome| outcome.to_str()) {
            tracing::Span::current().record("outcome", outcome);
        }
        if let Some(sender) = self.answer.take() {
            // The client may have hung up. What was done is stored, and its retry will find it.
            let _ = sender.send(answer);
        }
    }
}
