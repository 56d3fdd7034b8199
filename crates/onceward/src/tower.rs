//! The tower layer: bodies in, work that nobody cancels, bodies out. No decisions.
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
};

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, StatusCode, header::CONTENT_LENGTH, request::Parts,
    response,
};
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    engine::{Admitted, Captured, Engine, Execution, Handler, STATUS_PATH, Settings},
    operation::Operation,
    policy::{Policy, Routes},
    reply::ONCEWARD_ATTEMPT,
    scope::ScopeRule,
    store::Store,
};

mod body; // the body type of what passes
mod detached; // work that goes on though nobody waits for it
mod protect; // reading bodies to a cap, and the task in which a request runs
mod resume; // going on without a client
mod work; // the worker that does so

pub use body::{Body, Watch, holding};
pub use protect::{Collected, Consent, collect, early, note_beside, run_detached, take_body};
pub use resume::{KeptBody, Resumer};
pub use work::{Task, work, work_in};

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
    let body = match take_body(&engine, &policy, &parts, body, None).await {
        Ok(body) => body,
        Err(answered) => return answered,
    };
    let asked = engine.ask(admitted, &parts, &body);
    let reply_cap = policy.reply_cap();
    let parts = Box::new(parts);
    let handler = Call { service, parts, body, reply_cap, streamed: PhantomData::<fn(B)> };
    run_detached(&engine, &policy, asked, handler).await
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

/// The inner service, as the engine's handler.
struct Call<S, B> {
    service: S,
    /// In a box: all that waits for this holds it.
    parts: Box<Parts>,
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
        let mut request = Request::from_parts(*self.parts, Body::full(self.body));
        let attempt = operation.attempt_number();
        if attempt > 1 {
            request.headers_mut().insert(&ONCEWARD_ATTEMPT, HeaderValue::from(attempt));
        }
        request.extensions_mut().insert(operation.clone());
        let Ok(response) = self.service.call(request).await else {
            return Execution::NoFullAnswer {
                status: StatusCode::BAD_GATEWAY,
                why: "handler_gave_no_answer",
            };
        };
        let (mut parts, body) = response.into_parts();
        let declared = declared_length(&parts);
        let body = collect(body, self.reply_cap);
        match note_beside(&operation, &mut parts.headers, body).await {
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
