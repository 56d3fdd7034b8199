//! The tower layer: bodies in, a task of its own, bodies out. No decisions.
//!
//! Servers that lead requests to an [`Engine`] themselves, as the gateway does, find the layer's
//! handling of bodies here too: [`Body`], [`collect`], [`Consent`] and
//! [`early`].

use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version,
    header::{CONTENT_LENGTH, EXPECT},
    request::Parts,
    response,
};
use http_body_util::BodyExt as _;
use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};
use tower_layer::Layer;
use tower_service::Service;
use tracing::Instrument as _;

use crate::{
    engine::{Admitted, Captured, Engine, Execution, Handler, STATUS_PATH, Settings},
    operation::Operation,
    policy::{Policy, Routes},
    rejection::Rejection,
    reply::ONCEWARD_ATTEMPT,
    scope::ScopeRule,
    store::Store,
};

mod body;
pub use body::Body;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Makes the services behind it safe to retry.
///
/// ```
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use axum::{Router, routing::post};
/// use onceward::{Idempotency, MemoryStore, Policy};
///
/// let store = Arc::new(MemoryStore::new());
/// let app: Router = Router::new()
///     .route("/charges", post(|| async { "charged" }))
///     .layer(Idempotency::new(store, Policy::required()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Idempotency {
    engine: Arc<Engine>,
}

impl Idempotency {
    /// A layer with one policy, or with [`Routes`], on a store. The caller is told by the
    /// `Authorization` credential.
    pub fn new(store: Arc<dyn Store>, routes: impl Into<Routes>) -> Self {
        Self::with_settings(store, routes, Settings::default())
    }

    /// The same where the caller is told in another way.
    pub fn scoped(store: Arc<dyn Store>, routes: impl Into<Routes>, scope: ScopeRule) -> Self {
        Self::with_settings(store, routes, Settings { scope, ..Settings::default() })
    }

    /// The same with all settings.
    pub fn with_settings(
        store: Arc<dyn Store>,
        routes: impl Into<Routes>,
        settings: Settings,
    ) -> Self {
        Idempotency { engine: Arc::new(Engine::new(store, routes.into(), settings)) }
    }

    /// The engine behind the layer, to drain it at shutdown and to compare its identity with the
    /// store's at start.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }
}

impl From<Arc<Engine>> for Idempotency {
    fn from(engine: Arc<Engine>) -> Self {
        Idempotency { engine }
    }
}

impl<S> Layer<S> for Idempotency {
    type Service = Idempotent<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Idempotent { engine: Arc::clone(&self.engine), inner }
    }
}

/// A service behind [`Idempotency`].
#[derive(Clone, Debug)]
pub struct Idempotent<S> {
    engine: Arc<Engine>,
    inner: S,
}

impl<S, B, C> Service<Request<B>> for Idempotent<S>
where
    S: Service<Request<Body<B>>, Response = Response<C>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError> + Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
    C: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    C::Error: Into<BoxError>,
{
    type Response = Response<Body<C>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        if parts.method == Method::GET && parts.uri.path().starts_with(STATUS_PATH) {
            let engine = Arc::clone(&self.engine);
            return Box::pin(async move { Ok(engine.status(&parts).await.map(Body::full)) });
        }
        let policy = self.engine.policy_for(&parts).map(Arc::clone);
        if policy.is_some() {
            // Ours to say. A client that says it would make the handler believe in a rerun.
            parts.headers.remove(&ONCEWARD_ATTEMPT);
        }
        let admitted = policy.map(|policy| (self.engine.admit(&parts, &policy), policy));
        match admitted {
            // Not ours, or without a key where none is needed: no buffering, no task.
            None | Some((Ok(None), _)) => {
                let request = Request::from_parts(parts, Body::streaming(body));
                let response = self.inner.call(request);
                Box::pin(async move { Ok(response.await?.map(Body::streaming)) })
            }
            Some((Ok(Some(admitted)), policy)) => {
                // Take the service that is ready and leave a clone, so that readiness is used.
                let clone = self.inner.clone();
                let ready = std::mem::replace(&mut self.inner, clone);
                let engine = Arc::clone(&self.engine);
                let answer = protected(engine, policy, admitted, parts, body, ready);
                Box::pin(async move { Ok(answer.await) })
            }
            Some((Err(rejection), policy)) => {
                let response = self.engine.reject(rejection, &policy).map(Body::full);
                let consent = Consent::of(&parts);
                Box::pin(async move { Ok(early(parts.version, body, consent, response).await) })
            }
        }
    }
}

async fn protected<S, B, C>(
    engine: Arc<Engine>,
    policy: Arc<Policy>,
    admitted: Admitted,
    parts: Parts,
    body: B,
    service: S,
) -> Response<Body<C>>
where
    S: Service<Request<Body<B>>, Response = Response<C>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError> + Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
    C: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    C::Error: Into<BoxError>,
{
    let request_cap = policy.request_cap();
    let too_large = || {
        let rejection = Rejection::body_too_large(request_cap);
        engine.reject(rejection, &policy).map(Body::full)
    };
    if usize::try_from(body.size_hint().lower()).map_or(true, |declared| declared > request_cap) {
        return early(parts.version, body, Consent::of(&parts), too_large()).await;
    }
    let body = match collect(body, request_cap).await {
        // Trailers are not read: nothing that decides may come after the body.
        Collected::Whole(body, _) => body,
        // Reading it was consent, so that the client is sending now.
        Collected::TooLarge(_, rest) => {
            return early(parts.version, rest, Consent::Given, too_large()).await;
        }
        // The request never arrived as a whole. Nobody is left to read an answer.
        Collected::Broken => return bad_request(),
    };
    let parts = Arc::new(parts);
    let handler = Call {
        service,
        parts: Arc::clone(&parts),
        body: body.clone(),
        reply_cap: policy.reply_cap(),
        streamed: PhantomData::<fn(B)>,
    };
    let (sender, answer) = oneshot::channel();
    // In a task of its own: if the client hangs up, our future is dropped; the handler must still
    // finish and its reply must still be stored, or the retry would find an open question.
    let run = Arc::clone(&engine).run(admitted, parts, body, handler, sender);
    tokio::spawn(run.in_current_span());
    match answer.await {
        Ok(answer) => answer.map(|captured| match captured {
            Captured::Whole(body) => Body::full(body),
            Captured::TooLarge(rest) => rest,
        }),
        // The task ended without an answer: the runtime is being shut down, or a store or a
        // scope panicked. The handler may have been called.
        Err(_) => {
            let unknown = Rejection::first_unknown(StatusCode::BAD_GATEWAY, "process_stopped");
            engine.reject(unknown, &policy).map(Body::full)
        }
    }
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
        response.headers_mut().insert(http::header::CONNECTION, close);
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

/// The length that an answer says it has. One that cannot be read is none that any body has.
fn declared_length(parts: &response::Parts) -> Option<usize> {
    // It speaks of the body that there would have been.
    if parts.status == StatusCode::NOT_MODIFIED {
        return None;
    }
    let lengths = parts.headers.get_all(CONTENT_LENGTH).iter();
    let lengths: Vec<_> = lengths.map(|len| len.to_str().ok()?.parse().ok()).collect();
    let (first, others) = lengths.split_first()?;
    let agree = others.iter().all(|other| other == first);
    Some(first.filter(|_| agree).unwrap_or(usize::MAX))
}

fn bad_request<C>() -> Response<Body<C>> {
    let mut response = Response::new(Body::full(Bytes::new()));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response
}

/// The inner service, as the engine's handler.
struct Call<S, B> {
    service: S,
    parts: Arc<Parts>,
    body: Bytes,
    reply_cap: usize,
    streamed: PhantomData<fn(B)>,
}

impl<S, B, C> Handler for Call<S, B>
where
    S: Service<Request<Body<B>>, Response = Response<C>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError> + Send + 'static,
    B: Send + 'static,
    C: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    C::Error: Into<BoxError>,
{
    type Rest = Body<C>;

    async fn run(mut self, operation: Operation) -> Execution<Body<C>> {
        let mut request = Request::from_parts((*self.parts).clone(), Body::full(self.body));
        let attempt = operation.attempt_number();
        if attempt > 1 {
            request.headers_mut().insert(&ONCEWARD_ATTEMPT, HeaderValue::from(attempt));
        }
        request.extensions_mut().insert(operation);
        let Ok(response) = self.service.call(request).await else {
            return Execution::NoFullAnswer {
                status: StatusCode::BAD_GATEWAY,
                why: "handler_gave_no_answer",
            };
        };
        let (parts, body) = response.into_parts();
        let declared = declared_length(&parts);
        match collect(body, self.reply_cap).await {
            // What was stored would not be what the first caller got.
            Collected::Whole(body, _) if declared.is_some_and(|len| len != body.len()) => {
                Execution::NoFullAnswer {
                    status: StatusCode::BAD_GATEWAY,
                    why: "answer_has_another_length",
                }
            }
            // A reply without its trailers would be another one (gRPC has its status there), and they
            // are not kept.
            Collected::Whole(body, Some(trailers)) => {
                Execution::Answered(parts, Captured::TooLarge(Body::with_trailers(body, trailers)))
            }
            Collected::Whole(body, None) => Execution::Answered(parts, Captured::Whole(body)),
            Collected::TooLarge(begun, rest) => {
                Execution::Answered(parts, Captured::TooLarge(Body::begun(begun, rest)))
            }
            Collected::Broken => Execution::NoFullAnswer {
                status: StatusCode::BAD_GATEWAY,
                why: "answer_was_cut_off",
            },
        }
    }
}
