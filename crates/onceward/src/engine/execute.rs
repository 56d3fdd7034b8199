//! Running the handler, and making of its end what the record and the client are told.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures_util::FutureExt as _;
use http::StatusCode;
use tokio::time::{Instant, timeout};
use tracing::{error, warn};

use super::{
    Answer, Call, Engine, Handler,
    begin::timed_out,
    classify::{self, Outcome},
    hold::Stopped,
};
use crate::{
    machine::Refusal,
    observe,
    operation::{Context, Operation, Recalled, Taken},
    policy::Policy,
    record::{Effects, Lease, Record, State},
    rejection::Rejection,
    reply::{self, Reply, ReplyBody},
    store::{Ask, Reservation, StoreError, StoreErrorKind, Write, Written, mark},
};

/// Whether an attempt still holds its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// As far as is known.
    Still,
    /// Somebody else decided about it.
    Lost,
}

impl Engine {
    /// What an operation needs of its engine.
    pub(super) fn context(&self, policy: &Arc<Policy>, ask: Option<Ask>) -> Context {
        Context {
            store: Arc::clone(&self.store),
            clock: Arc::clone(&self.clock),
            policy: Arc::clone(policy),
            store_deadline: self.store_deadline,
            ask,
        }
    }

    /// How far earlier attempts have come. `None` if the store does not say.
    async fn recall(&self, lease: &Lease, policy: &Policy) -> Option<Recalled> {
        if policy.effects != Effects::Phased || lease.attempt_number <= 1 {
            return Some(Recalled::default());
        }
        let recall = async {
            let saved = self.store.steps(&lease.id, lease.generation).await?;
            if saved.iter().any(|step| mark::is_sealed(&step.result)) {
                let why = "the result of a step is sealed, and this process has no key ring";
                return Err(StoreError::new(StoreErrorKind::Corrupt, "any", why));
            }
            let record = self.store.load(&lease.id).await?;
            let progress = record.map(|record| record.progress).unwrap_or_default();
            let is_saved = |point: &str| saved.iter().any(|step| *step.name == *point);
            // A store that has lost steps and not their record: they would be made again.
            if progress.recovery_point.is_some_and(|point| !is_saved(&point)) {
                let why = "the last step of an operation is not there";
                return Err(StoreError::new(StoreErrorKind::Corrupt, "any", why));
            }
            Ok(Recalled { saved, open_effect: progress.open_effect })
        };
        match timeout(self.store_deadline, recall).await.unwrap_or_else(|_| Err(timed_out())) {
            Ok(recalled) => Some(recalled),
            Err(error) => {
                self.store_failed("steps", &error, &policy.name);
                None
            }
        }
    }
}

impl<R: Send + 'static> Call<'_, R> {
    pub(super) async fn execute<H>(&mut self, lease: Lease, deadline: Instant, handler: H)
    where
        H: Handler<Rest = R>,
    {
        let engine = self.engine;
        let policy = &self.admitted.policy;
        let never_begun = |why, rejection| Outcome::never_begun(why, rejection);
        let Some(recalled) = engine.recall(&lease, policy).await else {
            let why = never_begun("steps_not_read", Rejection::store_unavailable());
            return self.finish(&lease, why).await;
        };
        let operation = Operation::new(&lease, deadline, recalled, engine.context(policy, None));
        // The reserve may have taken longer than the lease it granted.
        if !operation.may_act() {
            let why = never_begun("lease_over_before_dispatch", Rejection::store_unavailable());
            return self.finish(&lease, why).await;
        }
        if engine.drain.is_over() {
            let why = never_begun("process_stopped", Rejection::draining());
            return self.finish(&lease, why).await;
        }
        let begun = engine.clock.monotonic();
        let given = operation.clone();
        // In a box, so that it can be dropped before we write: it may hold a transaction open that
        // our write would wait for.
        let mut handler =
            Box::pin(AssertUnwindSafe(async move { handler.run(given).await }).catch_unwind());
        let ended = tokio::select! {
            biased;
            ended = &mut handler => Ok(ended),
            stopped = engine.hold(&lease, policy, &operation) => Err(stopped),
        };
        engine.operation_took(policy, begun);
        match ended {
            Ok(ended) => {
                drop(handler);
                let outcome = classify::classify(ended, policy, &operation.account());
                self.finish(&lease, outcome).await;
            }
            // A handler that has sent nothing has nothing to wait for either.
            Err(stopped) if stopped == Stopped::Drained || operation.account().unsent => {
                drop(handler);
                let outcome = classify::stopped(stopped, policy, &operation.account());
                self.finish(&lease, outcome).await;
            }
            Err(stopped) => {
                // The handler goes on, also while the client is told. If it answers after all, its
                // reply is still the truth.
                let late = async {
                    tokio::select! {
                        biased;
                        late = &mut handler => {
                            Some(classify::classify(late, policy, &operation.account()))
                        }
                        () = engine.drain.over() => None,
                    }
                };
                let told = async {
                    let told = self.unknown(&lease, StatusCode::GATEWAY_TIMEOUT, stopped.code());
                    if told.await == Held::Lost {
                        operation.lose_lease();
                    }
                };
                if let ((), Some(late)) = Box::pin(async { tokio::join!(told, late) }).await {
                    Box::pin(self.finish_late(&lease, late)).await;
                }
            }
        }
    }

    pub(super) async fn finish(&mut self, lease: &Lease, outcome: Outcome<R>) {
        match outcome {
            Outcome::Completed { answer, reply } => self.complete(lease, answer, reply).await,
            // In boxes: what waits for all of them is as large as the largest.
            Outcome::InTransaction { answer } => Box::pin(self.in_transaction(lease, answer)).await,
            Outcome::NotExecuted { .. } => Box::pin(self.not_executed(lease, outcome)).await,
            Outcome::Unknown { status, why } => {
                Box::pin(self.unknown(lease, status, why)).await;
            }
        }
    }

    async fn complete(&mut self, lease: &Lease, answer: Answer<R>, reply: Reply) {
        let write = Write::Complete(reply.within(self.engine.store.reply_cap()));
        let written = self.engine.persist(lease, &write, self.admitted).await;
        self.count_incident(lease, &write, written.as_ref());
        match written {
            Some(Written::Superseded(record)) => Box::pin(self.superseded(lease, record)).await,
            Some(Written::AlreadyMine(Some(stored))) if !write.is_completion_with(&stored) => {
                // The handler completed it by itself: those bytes are the reply.
                self.send_stored(lease, stored, Some(answer));
            }
            // Now, or by an earlier write of ours whose answer was lost.
            Some(Written::Applied | Written::AppliedAfterRelease | Written::AlreadyMine(_)) => {
                self.send_executed(lease, answer);
            }
            None => {
                self.reject_unknown(StatusCode::CONFLICT, "completion_not_acknowledged");
                let persisted = self.engine.persist_until_drain(lease, &write, self.admitted);
                let written = Box::pin(persisted).await;
                self.count_incident(lease, &write, written.as_ref());
            }
        }
    }

    /// The handler wrote its reply in a transaction of its own. Whether that was committed is asked
    /// for by a write that waits for it, and that is right if it was not.
    pub(super) async fn in_transaction(
        &mut self,
        lease: &Lease,
        answer: Result<Answer<R>, Rejection>,
    ) {
        self.line.granted(lease);
        let write = Write::Release("transaction_rolled_back".into());
        match self.engine.persist(lease, &write, self.admitted).await {
            Some(Written::AlreadyMine(Some(stored))) => {
                self.send_stored(lease, stored, answer.ok());
            }
            // Of a `single` route the reserve is rolled back too: what is there was there before, or
            // is another's. An earlier generation says nothing about this one.
            Some(Written::Superseded(found)) if self.admitted.policy.single => match found {
                Some(record) if record.generation >= lease.generation => {
                    let found = Reservation::Occupied { record, lease_ran_out: false };
                    self.taken(Taken::By(found));
                }
                _ => self.send_rolled_back(lease, answer),
            },
            Some(Written::Superseded(record)) => self.superseded(lease, record).await,
            Some(Written::Applied | Written::AppliedAfterRelease | Written::AlreadyMine(None)) => {
                self.send_rolled_back(lease, answer);
            }
            None => {
                self.reject_unknown(StatusCode::CONFLICT, "completion_not_acknowledged");
                self.engine.persist_until_drain(lease, &write, self.admitted).await;
            }
        }
    }

    async fn not_executed(&mut self, lease: &Lease, outcome: Outcome<R>) {
        let Outcome::NotExecuted { answer, why, begun, word } = outcome else { return };
        let write = Write::Release(why.into());
        match self.engine.persist(lease, &write, self.admitted).await {
            Some(Written::Superseded(Some(record)))
                if !begun && is_ours_and_unknown(&record, lease) =>
            {
                // Taken for lost before anything was sent, which we know better.
                match (self.give_back(lease).await, answer) {
                    (true, Err(rejection)) => self.reject(rejection),
                    _ => self.superseded(lease, Some(record)).await,
                }
            }
            Some(Written::Superseded(record)) => self.superseded(lease, record).await,
            Some(Written::AlreadyMine(Some(stored))) => {
                self.send_stored(lease, stored, answer.ok());
            }
            Some(_) => match answer {
                Ok(mut answer) => {
                    reply::describe(answer.headers_mut(), word, None, lease.generation);
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

    pub(super) async fn unknown(
        &mut self,
        lease: &Lease,
        status: StatusCode,
        why: &'static str,
    ) -> Held {
        let write = Write::MarkUnknown(why.into());
        let written = self.engine.persist(lease, &write, self.admitted).await;
        match written {
            Some(Written::Superseded(record)) => {
                self.superseded(lease, record).await;
                return Held::Lost;
            }
            Some(Written::AlreadyMine(Some(stored))) => {
                // Known after all: it was completed in a transaction of the handler's.
                self.send_stored(lease, stored, None);
                return Held::Still;
            }
            Some(Written::Applied | Written::AppliedAfterRelease | Written::AlreadyMine(None))
            | None => {}
        }
        let (route, key) = (&*self.admitted.policy.name, &lease.id.key);
        if why == classify::LOCAL_WITHOUT_COMPLETE_IN {
            error!(
                route,
                "the handler of a route declared `local` succeeded without `complete_in`: what it did \
                 is not known, and its key is blocked until somebody decides"
            );
        }
        warn!(route, key.digest = key.digest(), why, "the outcome of an attempt is unknown");
        observe::count(observe::RECONCILE_SCHEDULED, route);
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
            let write = Write::Complete(reply.within(self.engine.store.reply_cap()));
            let written = self.engine.persist_until_drain(lease, &write, self.admitted).await;
            self.count_incident(lease, &write, written.as_ref());
        }
    }

    async fn give_back(&self, lease: &Lease) -> bool {
        let route = &self.admitted.policy.name;
        self.engine.give_back(&lease.id, lease.generation, lease.fence, route).await
    }

    fn send_executed(&mut self, lease: &Lease, mut answer: Answer<R>) {
        let policy = &self.admitted.policy;
        let expires_at = self.engine.clock.now().plus(policy.retention);
        let headers = answer.headers_mut();
        reply::describe(headers, "executed", Some(expires_at), lease.generation);
        reply::describe_schema(headers, policy.schema_version.as_deref());
        self.send_captured(answer);
    }

    /// Sends what the store has. A body that it does not have may be in the handler's own answer.
    fn send_stored(&mut self, lease: &Lease, stored: Reply, own: Option<Answer<R>>) {
        if stored.is_sealed() {
            return self.reject_sealed();
        }
        if let ReplyBody::Stored(_) = stored.body {
            let expires_at = self.engine.clock.now().plus(self.admitted.policy.retention);
            return self.send(stored.executed(expires_at, lease.generation));
        }
        match own {
            Some(own) if own.status() == stored.status => self.send_executed(lease, own),
            _ => self.refuse(&Refusal::ReplyNotStored { status: stored.status }),
        }
    }

    /// Nothing was done. The handler may have said why; that it succeeded is not true.
    fn send_rolled_back(&mut self, lease: &Lease, answer: Result<Answer<R>, Rejection>) {
        match answer {
            Ok(mut answer) if answer.status().as_u16() >= 400 => {
                reply::describe(answer.headers_mut(), "not_executed", None, lease.generation);
                self.send_captured(answer);
            }
            Ok(_) => self.reject(Rejection::rolled_back()),
            Err(rejection) => self.reject(rejection),
        }
    }
}

fn is_ours_and_unknown(record: &Record, lease: &Lease) -> bool {
    let ours = record.attempt == lease.attempt && record.fence == lease.fence;
    ours && record.state == State::Unknown
}
