//! Going on with phased operations that nobody comes back for.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderName, Request, Response, header, request};
use tokio::time::timeout;
use tracing::{Instrument as _, field, info_span, warn};

use super::{Admitted, Call, Captured, Engine, Execution, Handler, Limits, Line, begin::timed_out};
use crate::{
    operation::Operation,
    policy::Policy,
    record::{Effects, Record, StoredRequest},
    reply,
    store::{Ask, Resumable, StoreError},
};

/// What came of looking for operations to go on with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resumed {
    /// Those that were gone on with, or found to be at work elsewhere by now.
    pub taken: u32,
    /// Those that cannot be: their request was not kept, or no phased route takes it any more.
    pub left: u32,
}

impl Engine {
    /// Goes on with at most `limit` phased operations that were cut off and whose lease is over, each
    /// as a new attempt and without a client. Comes back when they have ended.
    ///
    /// `resume` does what the handler does: it is given the request that the operation began with,
    /// without credentials, and its [`Operation`].
    ///
    /// # Errors
    /// When the store does not say which there are.
    ///
    /// # Cancel safety
    /// May be dropped: what is at work is cut off, as in a crash, and gone on with after its lease.
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
        // A process that is about to stop takes no new work.
        if !self.drain.is_open() {
            return Ok(Resumed::default());
        }
        let resumable = timeout(self.store_deadline, self.store.resumable(limit)).await;
        let resumable = resumable.unwrap_or_else(|_| Err(timed_out()))?;
        let mut resumed = Resumed::default();
        let mut at_work = Vec::new();
        for Resumable { record, request } in resumable {
            // Sealed, that is all that can be read of it.
            let request = request.filter(|request| !request.is_sealed()).map(restored);
            let policy = request.as_ref().and_then(|request| {
                let policy = self.routes.policy_for(request.method(), request.uri().path())?;
                (policy.effects == Effects::Phased).then_some(policy)
            });
            let (Some(request), Some(policy)) = (request, policy) else {
                warn!(route = &*record.route, "a phased operation cannot be gone on with");
                resumed.left += 1;
                continue;
            };
            resumed.taken += 1;
            at_work.push(self.resume(record, policy, handler(request, policy)));
        }
        join_all(at_work).await;
        Ok(resumed)
    }

    async fn resume<H: Handler>(&self, record: Box<Record>, policy: &Arc<Policy>, handler: H) {
        let span = info_span!(
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
            policy: Arc::clone(policy),
            wait: None,
            unless_known: None,
        };
        let ask = Ask {
            method: record.method.clone(),
            path: record.path.clone(),
            // What was asked then: this is no other request, whatever the recipe says today.
            ..self.ask_again(&admitted, record.fingerprint)
        };
        // It was created long ago, and no caller asks for it now.
        let (limits, line) = (&Limits::OFF, Line::new("resumed", self));
        let (engine, admitted, ask, answer) = (self, &admitted, &ask, None);
        let call = Call { engine, admitted, ask, limits, answer, line };
        call.lead(handler).instrument(span).await;
        drop(running);
    }
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

/// What is kept of the request of a phased operation: all that the handler may need, and no
/// credentials. Those of then may be withdrawn by now, and are nobody else's business.
pub(super) fn stored(parts: &request::Parts, body: &Bytes) -> StoredRequest {
    let named = reply::named_by_connection(&parts.headers);
    let is_kept = |name: &HeaderName| !NOT_KEPT.contains(name) && !named.contains(name);
    let kept = parts.headers.iter().filter(|(name, _)| is_kept(name));
    StoredRequest {
        method: parts.method.clone(),
        uri: parts.uri.clone(),
        headers: kept.map(|(name, value)| (name.clone(), value.clone())).collect(),
        body: body.clone(),
    }
}

static NOT_KEPT: [HeaderName; 12] = [
    header::AUTHORIZATION,
    header::COOKIE,
    header::PROXY_AUTHORIZATION,
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
