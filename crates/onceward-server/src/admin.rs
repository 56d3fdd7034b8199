//! The admin listener: is it alive, is it ready, its metrics, and the admin API.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, StatusCode, header::CONTENT_TYPE, request::Parts,
};
use hyper::body::Incoming;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use onceward::{
    Engine,
    engine::{BreakerState, ScopeTraffic},
    observe,
};
use tokio::time::{interval, timeout};

use crate::listener::{Answer, Peer};

mod access; // tokens, and pages of other sites
pub(crate) mod api; // /api/v1
pub(crate) mod time; // RFC 3339

pub(crate) use access::Access;
pub(crate) use api::Api;
use api::{ApiBody, whole};

/// How long a store may take to say that it is there.
const PING_TIME_MAX: Duration = Duration::from_secs(2);

/// Handlers take from milliseconds to a minute; leases are sized by the upper buckets.
const SECONDS: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

const SCOPE_REQUESTS: &str = "onceward_scope_requests";
const SCOPE_DUPLICATES: &str = "onceward_scope_duplicates";

/// So many scopes are told apart in the metrics.
const SCOPES_MAX: usize = 20;

/// Collects metrics for the whole process. Call once.
pub(crate) fn install_metrics() -> Result<PrometheusHandle> {
    let metrics = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Full(observe::OPERATION_DURATION.to_owned()), &SECONDS)?
        .install_recorder()
        .context("metrics cannot be collected")?;
    let upkeep = metrics.clone();
    // Samples pile up between two scrapes, and nobody may ever scrape.
    tokio::spawn(async move {
        let mut every = interval(Duration::from_secs(5));
        loop {
            every.tick().await;
            upkeep.run_upkeep();
        }
    });
    Ok(metrics)
}

/// What the admin listener answers with.
#[derive(Clone)]
pub(crate) struct Admin {
    engine: Arc<Engine>,
    metrics: PrometheusHandle,
    draining: Arc<AtomicBool>,
    api: Api,
}

impl Admin {
    pub(crate) fn new(engine: Arc<Engine>, metrics: PrometheusHandle, api: Api) -> Self {
        Admin { engine, metrics, draining: Arc::default(), api }
    }

    /// From now on this process is not ready: it is about to stop.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    async fn ready(&self) -> Response<ApiBody> {
        if self.draining.load(Ordering::Relaxed) {
            return text(StatusCode::SERVICE_UNAVAILABLE, "draining\n");
        }
        if self.engine.breaker_state() != BreakerState::Closed {
            let why = "the breaker is open: the store did not answer requests\n";
            return text(StatusCode::SERVICE_UNAVAILABLE, why);
        }
        match timeout(PING_TIME_MAX, self.engine.store().ping()).await {
            // Replays go on, and so do keys that are younger than the loss.
            Ok(Ok(())) if self.engine.canary().is_some_and(|it| it.regression().is_some()) => {
                text(StatusCode::OK, "ready, but the store has lost data: most keys are refused\n")
            }
            Ok(Ok(())) => text(StatusCode::OK, "ready\n"),
            Ok(Err(_)) | Err(_) => {
                text(StatusCode::SERVICE_UNAVAILABLE, "the store does not answer\n")
            }
        }
    }

    /// Numbers tell what a service does: from other machines they need a token.
    fn metrics(&self, peer: &Peer, parts: &Parts) -> Response<ApiBody> {
        if !peer.ip().is_loopback()
            && let Err(problem) = self.api.admits(parts)
        {
            return problem.into_response().map(whole);
        }
        let mut metrics = self.metrics.render();
        metrics.push_str(&scopes(&self.engine.scope_traffic(SCOPES_MAX)));
        text(StatusCode::OK, metrics)
    }
}

/// Which scopes sent duplicates. Written here and not collected with the rest, which would never forget
/// a scope again.
fn scopes(traffic: &[ScopeTraffic]) -> String {
    let mut text = String::new();
    for (name, what, number) in [
        (SCOPE_REQUESTS, "requests with a key", (|one| one.requests) as fn(&ScopeTraffic) -> u64),
        (SCOPE_DUPLICATES, "requests whose key was known", |one| one.duplicates),
    ] {
        let help =
            format!("{what}, in the last full minute, of the scopes with the most duplicates");
        text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} gauge\n"));
        for one in traffic {
            let scope = one.scope.as_deref().unwrap_or("other");
            text.push_str(&format!("{name}{{scope=\"{scope}\"}} {}\n", number(one)));
        }
        text.push('\n');
    }
    text
}

impl Answer for Admin {
    type Body = ApiBody;

    async fn answer(&self, peer: &Arc<Peer>, request: Request<Incoming>) -> Response<ApiBody> {
        if Api::has(request.uri().path()) {
            return self.api.answer(request).await;
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "");
        }
        let (parts, _) = request.into_parts();
        if let Err(problem) = self.api.admits_probe(&parts) {
            return problem.into_response().map(whole);
        }
        match parts.uri.path() {
            "/livez" => text(StatusCode::OK, "alive\n"),
            "/readyz" => self.ready().await,
            "/metrics" => self.metrics(peer, &parts),
            _ => text(StatusCode::NOT_FOUND, "there are /livez, /readyz, /metrics and /api/v1\n"),
        }
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<ApiBody> {
    let mut response = Response::new(whole(body.into()));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_written_as_gauges_each_with_its_digest_and_the_rest_as_others() {
        let one = |scope: Option<&str>, requests, duplicates| ScopeTraffic {
            scope: scope.map(str::to_owned),
            requests,
            duplicates,
        };
        let told = scopes(&[one(Some("q1w2e3r4"), 7, 5), one(None, 3, 0)]);
        let lines: Vec<&str> = told.lines().filter(|line| !line.starts_with("# HELP")).collect();
        let expected = [
            "# TYPE onceward_scope_requests gauge",
            "onceward_scope_requests{scope=\"q1w2e3r4\"} 7",
            "onceward_scope_requests{scope=\"other\"} 3",
            "",
            "# TYPE onceward_scope_duplicates gauge",
            "onceward_scope_duplicates{scope=\"q1w2e3r4\"} 5",
            "onceward_scope_duplicates{scope=\"other\"} 0",
            "",
        ];
        assert_eq!(lines, expected);
    }
}
