//! A `single` route: reserve, work and reply in one transaction, which is the handler's.
//!
//! Nothing is written before the handler runs, so that two of them may run at once. The database
//! makes one of them wait for the other; it then finds what the first one committed, rolls back, and
//! its client gets that.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures_util::FutureExt as _;
use http::StatusCode;
use tokio::time::{Instant, sleep_until};

use super::{
    Call, Handler, Limits,
    begin::{Begun, Terms},
    classify::{self, Outcome},
    hold::Stopped,
    quota::Place,
};
use crate::{
    machine::{self, Decision, Refusal},
    operation::{Operation, Taken},
    record::State,
    rejection::Rejection,
    reply,
    store::Write,
};

impl<R: Send + 'static> Call<'_, R> {
    pub(super) async fn execute_single<H>(&mut self, handler: H, mut place: Option<Place>)
    where
        H: Handler<Rest = R>,
    {
        let engine = self.engine;
        let policy = &self.admitted.policy;
        if engine.drain.is_over() {
            return self.reject(Rejection::draining());
        }
        let begun = engine.clock.monotonic();
        let context = engine.context(policy, Some(self.ask.clone()));
        let operation = Operation::unreserved(self.ask, begun + policy.max_execution, context);
        let given = operation.clone();
        let mut handler =
            Box::pin(AssertUnwindSafe(async move { handler.run(given).await }).catch_unwind());
        let end = Instant::now() + policy.max_execution;
        let ended = tokio::select! {
            biased;
            ended = &mut handler => Ok(ended),
            () = sleep_until(end) => Err(Stopped::MaxExecution),
            () = engine.drain.over() => Err(Stopped::Drained),
        };
        // What it has not committed by now is rolled back.
        drop(handler);
        engine.operation_took(policy, begun);
        let taken = operation.account().taken.take();
        if let Some(taken) = taken {
            return self.taken(taken);
        }
        if let Some(place) = &mut place {
            place.granted(true);
        }
        let outcome = match ended {
            Ok(ended) => classify::classify(ended, policy, &operation.account()),
            Err(stopped) => classify::stopped(stopped, policy, &operation.account()),
        };
        self.finish_single(&operation, outcome).await;
    }

    async fn finish_single(&mut self, operation: &Operation, outcome: Outcome<R>) {
        match (outcome, operation.lease()) {
            (Outcome::InTransaction { answer }, Some(lease)) => {
                self.in_transaction(&lease, answer).await;
            }
            (Outcome::NotExecuted { answer, word, why, .. }, lease) => {
                if let Some(lease) = lease {
                    // The handler may have committed its reserve without a reply.
                    let write = Write::Release(why.into());
                    let _ = self.engine.persist(&lease, &write, self.admitted).await;
                }
                match answer {
                    Ok(mut answer) => {
                        reply::describe(answer.headers_mut(), word, None, 1);
                        self.send_captured(answer);
                    }
                    Err(rejection) => self.reject(rejection),
                }
            }
            (outcome, _) => self.finish_unreserved(outcome).await,
        }
    }

    /// The handler ended without a transaction, with an answer that is to be kept, or with one that
    /// says that it acted all the same. Both need a record.
    async fn finish_unreserved(&mut self, outcome: Outcome<R>) {
        // The work is done: neither quota nor breaker is in the way of its record.
        let patience = self.engine.store_deadline;
        let terms = Terms { wait: None, limits: &Limits::OFF, patience, take: self.take };
        match self.engine.begin(self.admitted, self.ask, terms).await {
            Begun::Decided(Decision::Execute(lease), ..) => self.finish(&lease, outcome).await,
            Begun::Decided(decision, ..) => self.decided(decision),
            Begun::Limited(exceeded) => self.limit(exceeded),
            Begun::Regressed => {
                match outcome {
                    Outcome::Unknown { status, why } => self.reject_unknown(status, why),
                    _ => self.reject(Rejection::store_regressed()),
                }
                self.engine.withdraw(self.ask, self.take).await;
            }
            Begun::StoreFailed { may_be_granted, .. } => {
                match outcome {
                    Outcome::Unknown { status, why } => self.reject_unknown(status, why),
                    _ => self.reject(Rejection::store_unavailable()),
                }
                if may_be_granted {
                    self.engine.withdraw(self.ask, self.take).await;
                }
            }
        }
    }

    /// Another request has the key: its client and this one are answered alike.
    pub(super) fn taken(&mut self, taken: Taken) {
        match taken {
            Taken::By(found) => {
                self.engine.count_reservation(&found, self.ask);
                let decision = machine::decide(found, self.ask, self.engine.clock.now());
                self.decided(decision);
            }
            Taken::Locked => {
                let (state, retry_after) = (State::InProgress, Duration::from_secs(1));
                self.refuse(&Refusal::InProgress { state, retry_after });
            }
        }
    }

    fn decided(&mut self, decision: Decision) {
        match decision {
            Decision::Replay { reply, expires_at, generation } => {
                self.replay(reply, expires_at, generation);
            }
            Decision::Refuse(refusal) => self.refuse(&refusal),
            Decision::Execute(_) | Decision::Accepted => {
                self.reject_unknown(StatusCode::CONFLICT, "not_decided");
            }
        }
    }
}
