//! Stores with few and with many records.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};
use onceward::{
    Effects, Store,
    store::{Ask, Reservation, Written},
};

use super::{Figure, Options, key, micros_each, repeat};
use crate::{
    file::{DAY, ask, completes, request_kept},
    postgres::fill,
    stores::{Kind, Place, Site, open},
};

/// Replays choose from so many keys, from all over the store.
const KEYS: u64 = 10_000;

/// So many are made at once, to fill a store.
const FILLING: usize = 256;

/// What a worker takes at once.
const BATCH: u32 = 256;

/// A store with records.
struct Filled {
    label: String,
    _place: Place,
    store: Arc<dyn Store>,
    keys: Arc<[String]>,
}

pub(super) async fn run(options: &Options, site: &Site) -> anyhow::Result<Vec<Figure>> {
    let mut filled = Vec::new();
    for size in options.sizes.iter().copied() {
        filled.push(Filled::new(site, size).await?);
    }
    let figure = |what| Figure::new("sizes", site.kind, what, "us each");
    let mut figures = ["reserve and complete", "replay", "sweep", "reap"].map(figure);
    for _ in 0..options.rounds {
        for filled in &filled {
            let costs = filled.costs(options).await?;
            for (figure, cost) in figures.iter_mut().zip(costs) {
                figure.add(&filled.label, cost);
            }
        }
        // Everybody is first, and last, in some round. Rows are found by their labels.
        filled.rotate_left(1);
    }
    for figure in &mut figures {
        figure
            .rows
            .sort_by_key(|row| options.sizes.iter().position(|size| row.label == label(*size)));
    }
    Ok(figures.into())
}

fn label(size: u64) -> String {
    format!("{size} records")
}

impl Filled {
    async fn new(site: &Site, size: u64) -> anyhow::Result<Self> {
        let place = site.place(&format!("onceward_bench_{size}")).await?;
        let store = open(&place.url).await?;
        let keys = match site.kind {
            Kind::Postgres => {
                // One that is real, and copies of it.
                request_kept(&*store, DAY, 30 * DAY).await?;
                fill(&place.url, size, KEYS).await?
            }
            _ => complete(&store, size).await?,
        };
        site.settle(&place).await?;
        Ok(Filled { label: label(size), _place: place, store, keys: keys.into() })
    }

    /// Of a request, a replay, a lease that is swept, and a record that is reaped.
    async fn costs(&self, options: &Options) -> anyhow::Result<[f64; 4]> {
        let times = options.requests;
        let store = Arc::clone(&self.store);
        let first = move |_| {
            let store = Arc::clone(&store);
            async move { request_kept(&*store, DAY, 30 * DAY).await }
        };
        let (_, first) = repeat(times, options.connections, first).await?;
        let (store, keys) = (Arc::clone(&self.store), Arc::clone(&self.keys));
        let replay = move |number: u64| {
            let (store, keys) = (Arc::clone(&store), Arc::clone(&keys));
            async move {
                // Far apart from each other.
                let key = &keys[(number as usize).wrapping_mul(7919) % keys.len()];
                let found = store.reserve(ask(key, DAY, 30 * DAY)?).await?;
                anyhow::ensure!(found.completed().is_some(), "a key is not completed: {found:?}");
                Ok(())
            }
        };
        let (_, replay) = repeat(times, options.connections, replay).await?;
        let sweep = self.sweep(options).await?;
        let reap = self.reap(options).await?;
        let each = |all| micros_each(all, times);
        Ok([each(first), each(replay), each(sweep), each(reap)])
    }

    /// Leases that run out at once, and how long it takes to find them all.
    async fn sweep(&self, options: &Options) -> anyhow::Result<Duration> {
        let store = Arc::clone(&self.store);
        let begin = move |_| {
            let store = Arc::clone(&store);
            async move {
                let lease = Duration::from_millis(1);
                let ask = Ask { lease, effects: Effects::None, ..ask(&key(), DAY, 30 * DAY)? };
                match store.reserve(ask).await? {
                    Reservation::Granted { .. } => Ok(()),
                    other => anyhow::bail!("a random key was taken: {other:?}"),
                }
            }
        };
        repeat(options.requests, options.connections, begin).await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
        let begun = std::time::Instant::now();
        let mut swept = 0;
        loop {
            let some = self.store.sweep(BATCH).await?.len() as u64;
            swept += some;
            if some == 0 {
                ensure!(swept == options.requests, "{swept} of {} swept", options.requests);
                return Ok(begun.elapsed());
            }
        }
    }

    /// Records whose retention is over at once, and how long it takes to remove them all.
    async fn reap(&self, options: &Options) -> anyhow::Result<Duration> {
        let store = Arc::clone(&self.store);
        let make = move |_| {
            let store = Arc::clone(&store);
            async move { request_kept(&*store, Duration::ZERO, Duration::ZERO).await }
        };
        repeat(options.requests, options.connections, make).await?;
        let begun = std::time::Instant::now();
        let mut purged = 0;
        loop {
            let some = self.store.reap(BATCH).await?;
            purged += u64::from(some.purged);
            if some.purged + some.expired == 0 {
                ensure!(purged == options.requests, "{purged} of {} reaped", options.requests);
                return Ok(begun.elapsed());
            }
        }
    }
}

/// Through the store itself. Returns some of the keys, from all over it.
async fn complete(store: &Arc<dyn Store>, size: u64) -> anyhow::Result<Vec<String>> {
    let step = (size / KEYS).max(1);
    let (sender, mut kept) = tokio::sync::mpsc::unbounded_channel();
    let store = Arc::clone(store);
    let make = move |number: u64| {
        let (store, sender) = (Arc::clone(&store), sender.clone());
        async move {
            let key = key();
            let Reservation::Granted { lease, .. } =
                store.reserve(ask(&key, DAY, 30 * DAY)?).await?
            else {
                anyhow::bail!("a random key was taken");
            };
            let written = store.write(&lease, completes()).await?;
            ensure!(written == Written::Applied, "not applied: {written:?}");
            if number.is_multiple_of(step) {
                sender.send(key).context("somebody collects them")?;
            }
            if number.is_multiple_of(1_000_000) && number > 0 {
                eprintln!("{number} of {size} records");
            }
            Ok(())
        }
    };
    repeat(size, FILLING, make).await?;
    let mut keys = Vec::new();
    while let Some(key) = kept.recv().await {
        keys.push(key);
    }
    Ok(keys)
}
