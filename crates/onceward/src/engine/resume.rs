//! Going on without a client: phased operations that nobody comes back for, and work that was accepted
//! for later.

use std::{collections::HashSet, sync::Arc};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderName, Request, Response, header, request};
use tokio::time::timeout;
use tracing::{Instrument as _, debug_span, field, warn};

use super::{
    Admitted, Call, Captured, Engine, Execution, Handler, Limits, Line,
    begin::{Take, timed_out},
};
use crate::{
    observe,
    operation::Operation,
    policy::Policy,
    profile::Profile,
    record::{AttemptId, Effects, Record, RecordId, State, StoredRequest},
    rejection::Rejection,
    reply::{self, Reply, ReplyBody},
    store::{
        Ask, Claim, Mode, Reservation, Resolution, Resolve, Resolved, Resumable, StoreError, Which,
        Write, Written,
    },
};

/// What came of looking for operations to go on with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resumed {
    /// Those that were gone on with, or found to be at work elsewhere by now.
    pub taken: u32,
    /// Those that cannot be: their request was not kept, no route takes it any more, or their time is
    /// over and the store did not take the word for it.
    pub left: u32,
    /// Those that were accepted and could not be executed in time: their client is told so.
    pub given_up: u32,
}

/// An operation that a worker can go on with.
#[derive(Debug)]
pub(crate) struct Ready {
    record: Box<Record>,
    policy: Arc<Policy>,
    request: Request<Bytes>,
}

#[cfg(feature = "tower")]
impl Ready {
    pub(crate) fn id(&self) -> &crate::record::RecordId {
        &self.record.id
    }

    /// Longer than an attempt at it can last.
    pub(crate) fn patience(&self) -> std::time::Duration {
        self.policy.max_execution.saturating_add(self.policy.lease)
    }

    /// How long it is left alone here after an attempt that did not end it. Its client may go on with it
    /// at once, so that no pause stands in its record; one of pending work does.
    pub(crate) fn pause(&self) -> Option<std::time::Duration> {
        let cut_off = self.record.state == State::InProgress;
        cut_off.then(|| crate::machine::backoff(self.record.attempts))
    }
}

impl Engine {
    /// Goes on with at most `limit` operations, each as a new attempt and without a client: phased ones
    /// that were cut off and whose lease is over, and those that were accepted for later and are due.
    /// Comes back when they have ended.
    ///
    /// `resume` does what the handler does: it is given the request that the operation began with,
    /// without credentials, and its [`Operation`].
    ///
    /// # Errors
    /// When the store does not say which there are.
    ///
    /// # Cancel safety
    /// May be dropped: what is at work is cut off, as in a crash, and judged after its lease.
    pub async fn resume_once<F, A>(&self, limit: u32, resume: F) -> Result<Resumed, StoreError>
    where
        F: Fn(Request<Bytes>, Operation) -> A + Clone + Send + 'static,
        A: Future<Output = Response<Bytes>> + Send,
    {
        self.resume_each(limit, |request, _| Resume { request, resume: resume.clone() }).await
    }

    pub(crate) async fn resume_each<H: Handler>(
        &self,
        limit: u32,
        handler: impl Fn(Request<Bytes>, &Policy) -> H,
    ) -> Result<Resumed, StoreError> {
        let (ready, mut resumed) = self.ready(limit, Which::All, &mut HashSet::new()).await?;
        resumed.taken = u32::try_from(ready.len()).unwrap_or(u32::MAX);
        join_all(ready.into_iter().map(|ready| self.go_on(ready, &handler))).await;
        Ok(resumed)
    }

    /// What can be gone on with now; what cannot is counted, and logged unless it is among those of the
    /// last look. What has waited for too long is given up.
    pub(crate) async fn ready(
        &self,
        limit: u32,
        which: Which,
        told: &mut HashSet<RecordId>,
    ) -> Result<(Vec<Ready>, Resumed), StoreError> {
        let mut resumed = Resumed::default();
        // A process that is about to stop takes no new work.
        if !self.drain.is_open() {
            return Ok((Vec::new(), resumed));
        }
        let resumable = timeout(self.store_deadline, self.store.resumable(which, limit)).await;
        let resumable = resumable.unwrap_or_else(|_| Err(timed_out()))?;
        let now = self.clock.now();
        let (lost, resumable): (Vec<_>, Vec<_>) =
            resumable.into_iter().partition(|one| self.is_from_before_a_loss(&one.record));
        resumed.left += u32::try_from(lost.len()).unwrap_or(u32::MAX);
        let is_overdue = |record: &Record| {
            record.state == State::Pending && record.queued_until.is_some_and(|end| end <= now)
        };
        let (overdue, mut in_time): (Vec<_>, Vec<_>) =
            resumable.into_iter().partition(|one| is_overdue(&one.record));
        let ends = join_all(overdue.iter().map(|one| self.give_up(&one.record))).await;
        for (one, end) in overdue.into_iter().zip(ends) {
            match end {
                GivenUp::Yes => resumed.given_up += 1,
                // By the clock that decides, it may still be begun: ours is ahead.
                GivenUp::TooEarly => in_time.push(one),
                GivenUp::No => resumed.left += 1,
            }
        }
        let (mut ready, mut put_off) = (Vec::new(), Vec::new());
        let told_before = std::mem::take(told);
        for Resumable { record, request } in in_time {
            // Sealed, that is all that can be read of it.
            let request = request.filter(|request| !request.is_sealed()).map(restored);
            let policy = request.as_ref().and_then(|request| self.policy_of(&record, request));
            let (Some(request), Some(policy)) = (request, policy) else {
                if !told_before.contains(&record.id) {
                    warn!(
                        route = &*record.route,
                        key.digest = record.id.key.digest(),
                        state = record.state.name(),
                        "an operation cannot be gone on with: it has no request, or no route"
                    );
                }
                told.insert(record.id.clone());
                resumed.left += 1;
                if record.state == State::Pending {
                    put_off.push(self.put_off(record));
                }
                continue;
            };
            ready.push(Ready { record, policy, request });
        }
        join_all(put_off).await;
        Ok((ready, resumed))
    }

    /// Whether the store has lost data since this record was made: it may be further than it looks.
    pub(super) fn is_from_before_a_loss(&self, record: &Record) -> bool {
        let regression = self.canary.as_ref().and_then(|canary| canary.regression());
        regression.is_some_and(|regression| record.created_at <= regression.found)
    }

    /// The rules under which an operation goes on. Those of the route under which it was accepted, which
    /// may have been found by more than its path; if that is gone, those of the route that takes it now.
    fn policy_of(&self, record: &Record, request: &Request<Bytes>) -> Option<Arc<Policy>> {
        let by_path = || self.routes.policy_for(request.method(), request.uri().path());
        let policy = match record.state {
            State::Pending => {
                let named = self.routes.policies().find(|policy| policy.name == record.route);
                named.or_else(by_path).filter(|policy| !policy.single)
            }
            _ => by_path().filter(|policy| policy.effects == Effects::Phased),
        };
        policy.map(Arc::clone)
    }

    /// Goes on with one operation, to its end. `false` if it is where it was: requests are refused now,
    /// or the store did not answer.
    ///
    /// # Cancel safety
    /// May be dropped, as in a crash: the operation is judged after its lease.
    pub(crate) async fn go_on<H: Handler>(
        &self,
        ready: Ready,
        handler: &impl Fn(Request<Bytes>, &Policy) -> H,
    ) -> bool {
        let Ready { record, policy, request } = ready;
        let handler = handler(request, &policy);
        let span = debug_span!(
            "onceward.resume",
            route = &*policy.name,
            key.digest = record.id.key.digest(),
            attempt = field::Empty,
            generation = field::Empty,
            outcome = field::Empty,
        );
        let running = self.drain.enter();
        let admitted = Admitted {
            id: record.id.clone(),
            key: record.id.key.clone(),
            policy,
            wait: None,
            unless_known: None,
            created_at: Some(record.created_at),
        };
        let ask = Ask {
            method: record.method.clone(),
            path: record.path.clone(),
            // What was asked then: this is no other request, whatever the recipe says today.
            ..self.ask_again(&admitted, record.fingerprint)
        };
        // Whatever it has become since, it is another one's.
        let take = Take::Claim(record.fence);
        // It was created long ago, and no caller asks for it now.
        let (limits, line) = (&Limits::OFF, Line::new("resumed", self));
        let (engine, admitted, ask, answer) = (self, &admitted, &ask, None);
        let call = Call { engine, admitted, ask, take, limits, answer, line };
        let moved = match ask.mode {
            Mode::Execute => call.lead(handler).instrument(span).await,
            _ => false,
        };
        drop(running);
        moved
    }

    /// Lets pending work that cannot be begun now be due later, so that it is not in the way of others.
    async fn put_off(&self, record: Box<Record>) {
        let claim = Claim {
            id: record.id.clone(),
            attempt: AttemptId::random(),
            lease: self.store_deadline,
            max_execution: record.max_execution,
            // Nothing will be done under it, whatever becomes of this process.
            effects: Effects::None,
            fence: Some(record.fence),
        };
        let put_off = async {
            if let Reservation::Granted { lease, .. } = self.store.claim(claim).await? {
                let why = Write::Release("cannot_be_begun".into());
                let _: Written = self.store.write(&lease, why).await?;
            }
            Ok(())
        };
        let put_off = timeout(self.store_deadline, put_off).await;
        if let Err(error) = put_off.unwrap_or_else(|_| Err(timed_out())) {
            self.store_failed("put_off", &error, &record.route);
        }
    }

    /// Completes accepted work that was never executed with the word that it was not, in one step:
    /// whoever claims it first, or is at it, is not disturbed.
    pub(super) async fn give_up(&self, record: &Record) -> GivenUp {
        let profile = self.routes.policies().find(|policy| policy.name == record.route);
        let profile = profile.map_or(Profile::Ietf, |policy| policy.profile);
        let rejection = Rejection::not_executed();
        let (parts, body) =
            rejection.into_response(self.problem_base.as_deref(), profile).into_parts();
        let resolve = Resolve {
            id: record.id.clone(),
            generation: record.generation,
            fence: record.fence,
            resolution: Resolution::GiveUp(Reply::capture(&parts, ReplyBody::Stored(body), None)),
            reason: "it could not be executed in the time for which it may be queued".into(),
        };
        let resolved = timeout(self.store_deadline, self.store.resolve(resolve)).await;
        match resolved.unwrap_or_else(|_| Err(timed_out())) {
            Ok(Resolved::Applied(_)) => {
                warn!(
                    route = &*record.route,
                    key.digest = record.id.key.digest(),
                    attempts = record.attempts,
                    last_error = record.last_error.as_deref(),
                    "accepted work was given up: it could not be executed in time"
                );
                observe::given_up(&record.route);
                self.waiters.wake(&record.id);
                GivenUp::Yes
            }
            Ok(Resolved::TooEarly { .. }) => GivenUp::TooEarly,
            Ok(_) => GivenUp::No,
            Err(error) => {
                self.store_failed("resolve", &error, &record.route);
                GivenUp::No
            }
        }
    }

    /// Comes back when this process has accepted something since it was last waited for.
    #[cfg(feature = "tower")]
    ///
    /// # Cancel safety
    /// May be dropped: nothing is missed by the next call.
    pub(crate) async fn accepted(&self) {
        self.accepted.notified().await;
    }
}

/// Whether accepted work was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GivenUp {
    Yes,
    /// By the store's clock its time is not over.
    TooEarly,
    /// Somebody else has it, or the store did not answer.
    No,
}

/// The handler of an operation without a client.
struct Resume<F> {
    request: Request<Bytes>,
    resume: F,
}

impl<F, A> Handler for Resume<F>
where
    F: Fn(Request<Bytes>, Operation) -> A + Send + 'static,
    A: Future<Output = Response<Bytes>> + Send,
{
    type Rest = std::convert::Infallible;

    async fn run(self, operation: Operation) -> Execution<Self::Rest> {
        let (parts, body) = (self.resume)(self.request, operation).await.into_parts();
        Execution::Answered(parts, Captured::Whole(body))
    }
}

/// What is kept of a request. Of a queued one the headers that are listed; else all that the handler may
/// need, and no credentials: those of then may be withdrawn by now, and are nobody else's business.
pub(super) fn stored(parts: &request::Parts, body: &Bytes, policy: &Policy) -> StoredRequest {
    let named = reply::named_by_connection(&parts.headers);
    let is_kept = |name: &HeaderName| match &policy.queued {
        // Said anew at each attempt, or not for clients to say.
        _ if name.as_str().starts_with("onceward-") => false,
        Some(queued) => queued.keeps(name) && !HOP_BY_HOP.contains(name) && !named.contains(name),
        None => {
            let credential = CREDENTIALS.contains(name);
            !credential && !HOP_BY_HOP.contains(name) && !named.contains(name)
        }
    };
    let kept = parts.headers.iter().filter(|(name, _)| is_kept(name));
    StoredRequest {
        method: parts.method.clone(),
        uri: parts.uri.clone(),
        headers: kept.map(|(name, value)| (name.clone(), value.clone())).collect(),
        body: body.clone(),
    }
}

static CREDENTIALS: [HeaderName; 3] =
    [header::AUTHORIZATION, header::COOKIE, header::PROXY_AUTHORIZATION];

static HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
    header::CONTENT_LENGTH,
];

fn restored(stored: StoredRequest) -> Request<Bytes> {
    let mut request = Request::new(stored.body);
    *request.method_mut() = stored.method;
    *request.uri_mut() = stored.uri;
    for (name, value) in stored.headers {
        request.headers_mut().append(name, value);
    }
    request
}
