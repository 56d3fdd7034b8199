//! The gateway: requests through the engine to upstream and back. No decisions about keys.
//!
//! ```text
//! unprotected   headers changed, bodies streamed both ways
//! protected     admitted, body buffered, then a task of its own: reserve, forward, store, answer
//! ```

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, StatusCode, header::RETRY_AFTER, request::Parts,
};
use hyper::body::Incoming;
use onceward::{
    Engine, Policy,
    engine::{Admitted, STATUS_PATH},
    tower::{Body, Consent, early, run_detached, take_body},
};

use crate::{
    config::{Limits, UpstreamSettings},
    listener::Answer,
};

mod budget; // bytes in memory
mod forward; // the engine's handler: one request to upstream
mod headers; // what is stripped and what is added
mod paced; // bodies that have to keep moving
mod pass; // requests that are not ours
mod upstream; // the client, and what its errors prove

use budget::Budget;
use forward::Forward;
pub(crate) use headers::Rewrite;
use headers::Trailers;
use paced::Paced;
use pass::Pace;
pub(crate) use upstream::{Failure, Upstream};

/// One gateway in front of one upstream.
#[derive(Clone)]
pub(crate) struct Gateway(Arc<Inner>);

struct Inner {
    engine: Arc<Engine>,
    upstream: Arc<Upstream>,
    rewrite: Rewrite,
    /// How long an answer is waited for in all. Past `max_execution` the outcome is unknown, but an
    /// answer that comes late is still the truth and is stored.
    patience: Duration,
    pace: Pace,
    upgrades: bool,
    budget: Budget,
    body_time_max: Duration,
}

type GatewayBody = Body<Paced>;

impl Gateway {
    pub(crate) fn new(
        engine: Arc<Engine>,
        upstream: Upstream,
        rewrite: Rewrite,
        max_execution: Duration,
        to_upstream: &UpstreamSettings,
        limits: &Limits,
    ) -> Self {
        Gateway(Arc::new(Inner {
            engine,
            upstream: Arc::new(upstream),
            rewrite,
            patience: max_execution.saturating_mul(2),
            pace: Pace {
                stall_max: limits.stall_time_max,
                first_byte_max: to_upstream.first_byte_time_max,
                total_max: to_upstream.total_time_max,
            },
            upgrades: to_upstream.upgrades,
            budget: Budget::new(limits.buffered_bytes_max),
            body_time_max: limits.body_time_max,
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
        let Inner { upstream, rewrite, pace, upgrades, .. } = &*self.0;
        let sent = pass::send(upstream, rewrite, *pace, parts, pace.body(body), *upgrades);
        sent.await.unwrap_or_else(pass::not_passed)
    }

    async fn protect(
        self,
        admitted: Admitted,
        policy: Arc<Policy>,
        parts: Parts,
        body: Incoming,
    ) -> Response<GatewayBody> {
        let engine = &self.0.engine;
        let Some(room) = self.0.budget.take(&body, policy.request_cap()) else {
            return early(parts.version, body, Consent::of(&parts), busy()).await;
        };
        let taken = take_body(engine, &policy, &parts, body, Some(self.0.body_time_max)).await;
        let body = match taken {
            Ok(body) => body,
            Err(answered) => return answered,
        };
        let forward = Forward {
            upstream: Arc::clone(&self.0.upstream),
            rewrite: self.0.rewrite.clone(),
            parts: self.0.rewrite.request(&parts, Trailers::Drop),
            body: body.clone(),
            reply_cap: policy.reply_cap(),
            patience: self.0.patience,
            room,
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

/// Too many bytes are in memory. Nothing was reserved.
fn busy() -> Response<GatewayBody> {
    let mut response = bare(StatusCode::SERVICE_UNAVAILABLE);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}
