//! The admin listener: is it alive, is it ready, and its metrics.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::Full;
use hyper::body::Incoming;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use onceward::{Store, observe};
use tokio::time::{interval, timeout};

use crate::listener::Answer;

/// How long a store may take to say that it is there.
const PING_TIME_MAX: Duration = Duration::from_secs(2);

/// Handlers take from milliseconds to a minute; leases are sized by the upper buckets.
const SECONDS: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

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
    store: Arc<dyn Store>,
    metrics: PrometheusHandle,
    draining: Arc<AtomicBool>,
}

impl Admin {
    pub(crate) fn new(store: Arc<dyn Store>, metrics: PrometheusHandle) -> Self {
        Admin { store, metrics, draining: Arc::default() }
    }

    /// From now on this process is not ready: it is about to stop.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    async fn ready(&self) -> Response<Full<Bytes>> {
        if self.draining.load(Ordering::Relaxed) {
            return text(StatusCode::SERVICE_UNAVAILABLE, "draining\n");
        }
        match timeout(PING_TIME_MAX, self.store.ping()).await {
            Ok(Ok(())) => text(StatusCode::OK, "ready\n"),
            Ok(Err(_)) | Err(_) => {
                text(StatusCode::SERVICE_UNAVAILABLE, "the store does not answer\n")
            }
        }
    }
}

impl Answer for Admin {
    type Body = Full<Bytes>;

    async fn answer(self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "");
        }
        match request.uri().path() {
            "/livez" => text(StatusCode::OK, "alive\n"),
            "/readyz" => self.ready().await,
            "/metrics" => text(StatusCode::OK, self.metrics.render()),
            _ => text(StatusCode::NOT_FOUND, "there are /livez, /readyz and /metrics\n"),
        }
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}
