//! What the layer and the gateway have in common: reading bodies to a cap, answering early, and
//! running a request to its end.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{
    HeaderMap, HeaderValue, Response, StatusCode, Version,
    header::{CONNECTION, EXPECT},
    request::Parts,
};
use http_body_util::BodyExt as _;
use tokio::{
    sync::oneshot,
    time::{Instant, timeout, timeout_at},
};
use tracing::{Instrument as _, warn};

use super::{Body, detached::Detached};
use crate::{
    clock,
    engine::{Asked, Captured, Engine, Handler},
    observe,
    operation::Operation,
    policy::Policy,
    record::ProviderId,
    rejection::Rejection,
};

/// Reads the body of an admitted request to its policy's cap, or answers it: 413 when it is over,
/// 408 when it does not come within `at_most`, 400 when it breaks off.
///
/// # Errors
/// With the answer for a request that cannot run.
///
/// # Cancel safety
/// What was read is lost when the future is dropped; nothing was reserved yet.
pub async fn take_body<B, C>(
    engine: &Engine,
    policy: &Policy,
    parts: &Parts,
    body: B,
    at_most: Option<Duration>,
) -> Result<Bytes, Response<Body<C>>>
where
    B: http_body::Body<Data = Bytes> + Unpin,
{
    let cap = policy.request_cap();
    let too_large = || engine.reject(Rejection::body_too_large(cap), policy).map(Body::full);
    if usize::try_from(body.size_hint().lower()).map_or(true, |declared| declared > cap) {
        return Err(Box::pin(early(parts.version, body, Consent::of(parts), too_large())).await);
    }
    let collected = match at_most {
        Some(at_most) => clock::until(Instant::now() + at_most, collect(body, cap)).await,
        None => Some(collect(body, cap).await),
    };
    match collected {
        // Trailers are not read: nothing that decides may come after the body.
        Some(Collected::Whole(body, _)) => Ok(body),
        // Reading it was consent, so that the client is sending now.
        Some(Collected::TooLarge(_, rest)) => {
            Err(Box::pin(early(parts.version, rest, Consent::Given, too_large())).await)
        }
        // The request never arrived as a whole. Most likely nobody is left to read an answer.
        Some(Collected::Broken) => Err(closing(policy, StatusCode::BAD_REQUEST)),
        None => Err(closing(policy, StatusCode::REQUEST_TIMEOUT)),
    }
}

/// Runs a request to its end, and comes back with its answer as soon as there is one.
///
/// # Cancel safety
/// May be dropped, as it is when a client hangs up: the request runs on in a task of its own, its reply
/// is stored, and a retry finds it. So does what is left to do after the answer. A handler must not
/// count on what is bound to the task that it began in.
pub async fn run_detached<H, C>(
    engine: &Arc<Engine>,
    policy: &Policy,
    asked: Asked,
    handler: H,
) -> Response<Body<C>>
where
    H: Handler<Rest = Body<C>>,
    C: Send + 'static,
{
    let (sender, answer) = oneshot::channel();
    let run = Box::pin(Arc::clone(engine).run(asked, handler, sender));
    match Detached::new(run, answer).await {
        Some(answer) => answer.map(|captured| match captured {
            Captured::Whole(body) => Body::full(body),
            Captured::TooLarge(rest) => rest,
        }),
        // It ended without an answer: a store panicked.
        // The handler may have been called.
        None => {
            let unknown = Rejection::first_unknown(StatusCode::BAD_GATEWAY, "process_stopped");
            engine.reject(unknown, policy).map(Body::full)
        }
    }
}

/// How long the end of an answer waits for what its head said to be noted.
const NOTE_TIME_MAX: Duration = Duration::from_secs(1);

/// Notes what the head of an answer says in `Onceward-Provider-Id`, and takes it out, while `body` reads
/// the rest: if the answer never ends, the id is in the store. A store that is slow to take it holds the
/// reply up by a second at most.
///
/// # Cancel safety
/// May be dropped; the id is noted all the same.
pub async fn note_beside<T>(
    operation: &Operation,
    headers: &mut HeaderMap,
    body: impl Future<Output = T>,
) -> T {
    let ids = ProviderId::take_from(headers);
    if ids.is_empty() {
        return body.await;
    }
    let operation = operation.clone();
    let noted = async move {
        for id in ids {
            if let Err(error) = operation.note_provider_id(id).await {
                warn!(%error, "a provider id was not noted");
            }
        }
    };
    let noted = timeout(NOTE_TIME_MAX, tokio::spawn(noted.in_current_span()));
    tokio::join!(noted, body).1
}

/// Whether a client sends its body without more ado.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consent {
    /// It does.
    Given,
    /// It waits for our consent (`Expect: 100-continue`), which reading the body would give. Its
    /// body has not been sent, and will not be.
    Awaited,
}

impl Consent {
    /// What the head of a request says.
    pub fn of(parts: &Parts) -> Self {
        match parts.headers.contains_key(EXPECT) {
            true => Consent::Awaited,
            false => Consent::Given,
        }
    }
}

/// Answers before the body was read: what is left of it is drained within bounds, so that the
/// client can read the answer and the connection is not left in the middle of a body.
///
/// # Cancel safety
/// May be dropped; the body is then not drained, and the connection has to be closed.
pub async fn early<B, C>(
    version: Version,
    body: B,
    consent: Consent,
    mut response: Response<Body<C>>,
) -> Response<Body<C>>
where
    B: http_body::Body<Data = Bytes> + Unpin,
{
    let drained = consent == Consent::Given && drain(body).await;
    if !drained && version < Version::HTTP_2 {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(CONNECTION, close);
    }
    response
}

const DRAIN_BYTES_MAX: usize = 8 << 20;
const DRAIN_TIME_MAX: Duration = Duration::from_secs(5);

/// Reads a body to its end and forgets it; `false` when it is too long or too slow.
async fn drain<B: http_body::Body<Data = Bytes> + Unpin>(mut body: B) -> bool {
    let give_up = Instant::now() + DRAIN_TIME_MAX;
    let mut seen = 0;
    while !body.is_end_stream() {
        match timeout_at(give_up, body.frame()).await {
            Ok(Some(Ok(frame))) => seen += frame.data_ref().map_or(0, Bytes::len),
            Ok(None) => return true,
            Ok(Some(Err(_))) | Err(_) => return false,
        }
        if seen > DRAIN_BYTES_MAX {
            return false;
        }
    }
    true
}

/// A body, read to a cap.
#[derive(Debug)]
pub enum Collected<B> {
    /// All of it, and its trailers.
    Whole(Bytes, Option<HeaderMap>),
    /// What was read, over the cap, and what is left.
    TooLarge(Bytes, B),
    /// It ended in an error.
    Broken,
}

/// Reads a body into memory, as far as the cap.
///
/// # Cancel safety
/// What was read is lost when the future is dropped.
pub async fn collect<B: http_body::Body<Data = Bytes> + Unpin>(
    mut body: B,
    cap: usize,
) -> Collected<B> {
    let mut first = None;
    let mut whole = BytesMut::new();
    let mut trailers = None;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return Collected::Broken };
        let data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => {
                trailers = frame.into_trailers().ok().or(trailers);
                continue;
            }
        };
        let seen = first.as_ref().map_or(whole.len(), Bytes::len);
        let too_large = seen + data.len() > cap;
        // One frame is the common case, and is not copied.
        if first.is_none() && whole.is_empty() {
            first = Some(data);
        } else {
            if let Some(first) = first.take() {
                whole.extend_from_slice(&first);
            }
            whole.extend_from_slice(&data);
        }
        if too_large {
            return Collected::TooLarge(first.unwrap_or_else(|| whole.freeze()), body);
        }
    }
    Collected::Whole(first.unwrap_or_else(|| whole.freeze()), trailers)
}

/// An answer without words, on a connection that is in the middle of a body.
fn closing<C>(policy: &Policy, status: StatusCode) -> Response<Body<C>> {
    observe::refused(&policy.name, status, "refused");
    let mut response = Response::new(Body::full(Bytes::new()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}
