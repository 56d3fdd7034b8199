//! One key that many send at once, who wait for its reply.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::ensure;
use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode},
    routing::post,
};
use onceward::{Idempotency, InFlight, Policy};
use tower::ServiceExt as _;

use super::{Figure, Options, empty, key, repeat};
use crate::{load::percentile_us, stores::Site};

/// How long the work takes that they wait for.
const WORK: Duration = Duration::from_millis(500);

pub(super) async fn run(options: &Options, site: &Site) -> anyhow::Result<Vec<Figure>> {
    let what = format!("{} at one key whose work takes {WORK:?}", options.waiters);
    let mut figure = Figure::new("waiters", site.kind, what, "ms until answered");
    for _ in 0..options.rounds {
        let (_place, store) = empty(site).await?;
        let ran = Arc::new(AtomicU32::new(0));
        let policy = Policy::required().in_flight(InFlight::Wait(Duration::from_secs(60)));
        let works = Arc::clone(&ran);
        let work = move || async move {
            works.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(WORK).await;
            (StatusCode::CREATED, "paid")
        };
        let service =
            Router::new().route("/payments", post(work)).layer(Idempotency::new(store, policy));
        let key = key();
        let send = move |_| {
            let (service, key) = (service.clone(), key.clone());
            async move {
                let request = Request::post("/payments")
                    .header("authorization", "Bearer sk_bench_4242")
                    .header("idempotency-key", key)
                    .body(Body::empty())?;
                let status = service.oneshot(request).await?.status();
                ensure!(status == StatusCode::CREATED, "status {status}");
                Ok(())
            }
        };
        let begun = Instant::now();
        let (latencies, _) = repeat(options.waiters, options.waiters as usize, send).await?;
        ensure!(ran.load(Ordering::Relaxed) == 1, "the work was done more than once");
        figure.add("half of them", percentile_us(&latencies, 0.5) / 1e3);
        figure.add("99 of 100", percentile_us(&latencies, 0.99) / 1e3);
        figure.add("all", begun.elapsed().as_secs_f64() * 1e3);
    }
    Ok(vec![figure])
}
