//! Many operations in flight, whose leases are renewed, and requests beside them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use onceward::{
    Store,
    record::Lease,
    store::{Reservation, Write, Written},
};
use tokio::sync::Mutex;

use super::{Figure, Options, empty, key, repeat};
use crate::{
    file::{DAY, ask, request_kept},
    load::percentile_us,
    stores::Site,
};

/// A lease of a minute is renewed every third of it.
const LEASE: Duration = Duration::from_secs(60);
const EVERY: Duration = Duration::from_secs(20);

pub(super) async fn run(options: &Options, site: &Site) -> anyhow::Result<Vec<Figure>> {
    let what = format!(
        "{} leases renewed once, of the {EVERY:?} in which they must be",
        options.operations
    );
    let mut all = Figure::new("renewals", site.kind, what, "%");
    let mut p99 = Figure::new("renewals", site.kind, "requests, p99", "us");
    let mut rate = Figure::new("renewals", site.kind, "requests", "per s");
    for _ in 0..options.rounds {
        let (_place, store) = empty(site).await?;
        let leases = Arc::new(begin(&store, options.operations).await?);
        let renewing = Renewing { store: Arc::clone(&store), leases };
        let begun = Instant::now();
        renewing.all(options).await?;
        all.add("renewed", begun.elapsed().as_secs_f64() / EVERY.as_secs_f64() * 100.0);
        for beside in [false, true] {
            let label = if beside { "beside renewals" } else { "without renewals" };
            let paced = beside.then(|| tokio::spawn(renewing.clone().at_pace()));
            let (latencies, seconds) = requests(options, &store).await?;
            if let Some(paced) = paced {
                anyhow::ensure!(!paced.is_finished(), "the renewals have failed");
                paced.abort();
            }
            p99.add(label, percentile_us(&latencies, 0.99));
            rate.add(label, latencies.len() as f64 / seconds);
        }
    }
    Ok(vec![all, p99, rate])
}

async fn begin(store: &Arc<dyn Store>, operations: u64) -> anyhow::Result<Vec<Lease>> {
    let leases = Arc::new(Mutex::new(Vec::new()));
    let (store, taken) = (Arc::clone(store), Arc::clone(&leases));
    let begin = move |_| {
        let (store, taken) = (Arc::clone(&store), Arc::clone(&taken));
        async move {
            match store.reserve(ask(&key(), DAY, 30 * DAY)?).await? {
                Reservation::Granted { lease, .. } => taken.lock().await.push(lease),
                other => anyhow::bail!("a random key was taken: {other:?}"),
            }
            Ok(())
        }
    };
    repeat(operations, 256, begin).await?;
    Ok(std::mem::take(&mut *leases.lock().await))
}

#[derive(Clone)]
struct Renewing {
    store: Arc<dyn Store>,
    leases: Arc<Vec<Lease>>,
}

impl Renewing {
    async fn one(&self, number: u64) -> anyhow::Result<()> {
        let lease = &self.leases[number as usize % self.leases.len()];
        match self.store.write(lease, Write::Renew(LEASE)).await? {
            Written::Applied => Ok(()),
            other => anyhow::bail!("not renewed: {other:?}"),
        }
    }

    async fn all(&self, options: &Options) -> anyhow::Result<()> {
        let renewing = self.clone();
        let renew = move |number| {
            let renewing = renewing.clone();
            async move { renewing.one(number).await }
        };
        repeat(self.leases.len() as u64, options.connections, renew).await?;
        Ok(())
    }

    /// As many each second as it takes for all of them in time, until it is broken off.
    async fn at_pace(self) -> anyhow::Result<()> {
        let mut ticks = tokio::time::interval(EVERY.div_f64(self.leases.len().max(1) as f64));
        let number = AtomicU64::new(0);
        loop {
            ticks.tick().await;
            self.one(number.fetch_add(1, Ordering::Relaxed)).await?;
        }
    }
}

/// Requests for a time. How long each took, and all of them.
async fn requests(options: &Options, store: &Arc<dyn Store>) -> anyhow::Result<(Vec<u64>, f64)> {
    let until = Instant::now() + Duration::from_secs_f64(options.seconds);
    let mut latencies = Vec::new();
    let mut seconds = 0.0;
    while Instant::now() < until {
        let store = Arc::clone(store);
        let request = move |_| {
            let store = Arc::clone(&store);
            async move { request_kept(&*store, DAY, 30 * DAY).await }
        };
        let (some, took) = repeat(options.requests, options.connections, request).await?;
        latencies.extend(some);
        seconds += took.as_secs_f64();
    }
    latencies.sort_unstable();
    Ok((latencies, seconds))
}
