//! The gateway: requests through the engine to upstream and back. No decisions about keys.
//!
//! ```text
//! unprotected   headers changed, bodies streamed both ways
//! protected     admitted, body buffered, then a task of its own: reserve, forward, store, answer
//! ```

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, request::Parts};
use hyper::body::Incoming;
use onceward::{
    Engine, Policy, Rejection,
    engine::{Admitted, STATUS_PATH},
    rejection::Code,
    tower::{Body, Consent, early, run_detached, take_body},
};
use tracing::warn;

use crate::{
    listener::{Answer, Peer},
    traffic::Traffic,
};

mod forward; // the engine's handler: one request to upstream
mod headers; // what is stripped and what is added
mod upstream; // the client, and what its errors prove

use forward::Forward;
pub(crate) use headers::Rewrite;
pub(crate) use upstream::{Failure, Upstream};

/// A client has this long to send the body of a protected request.
const BODY_TIME_MAX: Duration = Duration::from_secs(30);

/// One gateway in front of one upstream.
#[derive(Clone)]
pub(crate) struct Gateway(Arc<Inner>);

struct Inner {
    engine: Arc<Engine>,
    upstream: Arc<Upstream>,
    rewrite: Rewrite,
    traffic: Traffic,
    /// How long an answer is waited for in all. Past `max_execution` the outcome is unknown, but an
    /// answer that comes late is still the truth and is stored.
    patience: Duration,
}

type GatewayBody = Body<Incoming>;

impl Gateway {
    pub(crate) fn new(
        engine: Arc<Engine>,
        upstream: Upstream,
        rewrite: Rewrite,
        traffic: Traffic,
        max_execution: Duration,
    ) -> Self {
        let patience = max_execution.saturating_mul(2);
        Gateway(Arc::new(Inner {
            engine,
            upstream: Arc::new(upstream),
            rewrite,
            traffic,
            patience,
        }))
    }

    async fn route(self, request: Request<Incoming>) -> Response<GatewayBody> {
        let (parts, body) = request.into_parts();
        if parts.method == Method::CONNECT {
            return bare(StatusCode::METHOD_NOT_ALLOWED);
        }
        let engine = &self.0.engine;
        if parts.method == Method::GET && parts.uri.path().starts_with(STATUS_PATH) {
            return engine.status(&parts).await.map(Body::full);
        }
        let Some(policy) = engine.policy_for(&parts).cloned() else {
            return self.pass_on(parts, body).await;
        };
        match engine.admit(&parts, &policy) {
            Ok(Some(admitted)) => self.protect(admitted, policy, parts, body).await,
            Ok(None) => self.pass_on(parts, body).await,
            Err(rejection) => {
                let response = engine.reject(rejection, &policy).map(Body::full);
                early(parts.version, body, Consent::of(&parts), response).await
            }
        }
    }

    /// A request that is not ours: streamed both ways.
    async fn pass_on(self, parts: Parts, body: Incoming) -> Response<GatewayBody> {
        self.0.traffic.note(&parts.method, parts.uri.path());
        let peer = parts.extensions.get::<Peer>().copied();
        let parts = self.0.rewrite.request(&parts, peer);
        match self.0.upstream.send_streaming(parts, body).await {
            Ok(response) => self.0.rewrite.response(response).map(Body::streaming),
            Err(Failure::NeverSent { why }) => {
                warn!(why, "upstream could not be reached");
                let detail = "The service did not take the connection. Nothing was executed.";
                let rejection = Rejection::new(Code::UpstreamUnreachable, detail);
                let response = rejection.into_response(None, onceward::Profile::Ietf);
                response.map(Body::full)
            }
            Err(Failure::NoFullAnswer { why }) => {
                warn!(why, "upstream gave no answer to an unprotected request");
                bare(StatusCode::BAD_GATEWAY)
            }
        }
    }

    async fn protect(
        self,
        admitted: Admitted,
        policy: Arc<Policy>,
        parts: Parts,
        body: Incoming,
    ) -> Response<GatewayBody> {
        let engine = &self.0.engine;
        let taken = take_body(engine, &policy, &parts, body, Some(BODY_TIME_MAX)).await;
        let body = match taken {
            Ok(body) => body,
            Err(answered) => return answered,
        };
        let peer = parts.extensions.get::<Peer>().copied();
        let forward = Forward {
            upstream: Arc::clone(&self.0.upstream),
            rewrite: self.0.rewrite.clone(),
            parts: self.0.rewrite.request(&parts, peer),
            body: body.clone(),
            reply_cap: policy.reply_cap(),
            patience: self.0.patience,
        };
        run_detached(engine, &policy, admitted, Arc::new(parts), body, forward).await
    }
}

impl Answer for Gateway {
    type Body = GatewayBody;

    async fn answer(self, request: Request<Incoming>) -> Response<GatewayBody> {
        self.route(request).await
    }
}

/// An answer without words, for requests that are not ours to explain.
fn bare(status: StatusCode) -> Response<GatewayBody> {
    let mut response = Response::new(Body::full(Bytes::new()));
    *response.status_mut() = status;
    response
}
