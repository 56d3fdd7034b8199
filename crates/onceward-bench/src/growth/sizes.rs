//! Stores with few and with many records, and one that is empty in each round.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};
use futures_util::future::BoxFuture;
use onceward::{
    Effects, Store,
    store::{Ask, Reservation},
};

use super::{Figure, Options, key, micros_each, repeat};
use crate::{
    file::{DAY, ask, complete, request_kept},
    postgres::fill,
    stores::{Kind, Place, Site, open},
};

/// Replays choose from so many keys, from all over the store: more than any store remembers.
const KEYS: u64 = 100_000;

/// So many are made at once, to fill a store.
const FILLING: usize = 256;

/// What a worker takes at once.
const BATCH: u32 = 256;

/// A place with records.
struct Filled {
    size: u64,
    place: Place,
    keys: Arc<[String]>,
}

pub(super) async fn run(options: &Options, site: &Site) -> anyhow::Result<Vec<Figure>> {
    let mut filled = Vec::new();
    for size in options.sizes.iter().copied() {
        filled.push(Filled::new(site, size).await?);
    }
    let figure = |what| Figure::new("sizes", site.kind, what, "us each");
    let mut figures = ["reserve and complete", "replay", "sweep", "reap"].map(figure);
    for round in 0..options.rounds {
        for filled in &mut filled {
            if filled.size == 0 {
                // Requests have filled it in the round before.
                *filled = Filled::new(site, 0).await?;
            }
            let costs = filled.costs(options, round).await?;
            for (figure, cost) in figures.iter_mut().zip(costs) {
                figure.add(&label(filled.size), cost);
            }
        }
        // Everybody is first, and last, in some round. Rows are found by their labels.
        filled.rotate_left(1);
    }
    for figure in &mut figures {
        figure
            .rows
            .sort_by_key(|row| options.sizes.iter().position(|size| row.label == label(*size)));
        // By the empty one, and by the smallest that is not.
        figure.bases = 1 + usize::from(options.sizes.first() == Some(&0));
    }
    for filled in filled {
        site.remove(&name(filled.size)).await?;
    }
    Ok(figures.into())
}

fn label(size: u64) -> String {
    match size {
        0 => "empty".to_owned(),
        size => format!("{size} records"),
    }
}

fn name(size: u64) -> String {
    format!("onceward_bench_{size}")
}

impl Filled {
    async fn new(site: &Site, size: u64) -> anyhow::Result<Self> {
        let place = site.place(&name(size)).await?;
        let store = open(&place.url).await?;
        let keys = match site.kind {
            _ if size == 0 => Vec::new(),
            Kind::Postgres => {
                // One that is real, and copies of it.
                request_kept(&*store, DAY, 30 * DAY).await?;
                fill(&place.url, size, KEYS).await?
            }
            _ => filled(&store, size).await?,
        };
        site.settle(&place).await?;
        Ok(Filled { size, place, keys: keys.into() })
    }

    /// Of a request, a replay, a lease that is swept, and a record that is reaped.
    async fn costs(&self, options: &Options, round: u32) -> anyhow::Result<[f64; 4]> {
        let times = options.requests;
        let new: Arc<[String]> = (0..times).map(|_| key()).collect();
        let store = open(&self.place.url).await?;
        // Connections, statements and pages that everybody has sooner or later.
        repeat(times / 10, options.connections, making(&store, DAY)).await?;
        let (_, first) = {
            let (store, keys) = (Arc::clone(&store), Arc::clone(&new));
            let first = move |number: u64| {
                let (store, keys) = (Arc::clone(&store), Arc::clone(&keys));
                async move { complete(&*store, &keys[number as usize]).await }
            };
            repeat(times, options.connections, first).await?
        };
        let sweep = sweep(options, &store).await?;
        let reap = reap(options, &store).await?;
        drop(store);
        let each = |all| micros_each(all, times);
        Ok([each(first), self.replay(options, round, new).await?, each(sweep), each(reap)])
    }

    /// Of keys from all over the place, or of these if it was empty. The store is one that was opened for
    /// that: it remembers none of them, and none is asked for twice.
    async fn replay(
        &self,
        options: &Options,
        round: u32,
        new: Arc<[String]>,
    ) -> anyhow::Result<f64> {
        let store = open(&self.place.url).await?;
        let keys = if self.keys.is_empty() { new } else { Arc::clone(&self.keys) };
        let times = options.requests.min(keys.len() as u64);
        let from = u64::from(round) * times;
        let replay = move |number: u64| {
            let (store, keys) = (Arc::clone(&store), Arc::clone(&keys));
            async move {
                let key = &keys[spread(from + number, keys.len())];
                let found = store.reserve(ask(key, DAY, 30 * DAY)?).await?;
                ensure!(found.completed().is_some(), "a key is not completed: {found:?}");
                Ok(())
            }
        };
        let (_, took) = repeat(times, options.connections, replay).await?;
        Ok(micros_each(took, times))
    }
}

/// Which of so many keys comes next: far apart from each other, and none twice before all were asked for.
fn spread(number: u64, keys: usize) -> usize {
    const FAR: usize = 7919;
    let step = if keys.is_multiple_of(FAR) { 1 } else { FAR };
    (number as usize).wrapping_mul(step) % keys
}

/// Makes a record whose retention is so long, and its tombstone's thirty times that.
fn making(
    store: &Arc<dyn Store>,
    retention: Duration,
) -> impl Fn(u64) -> BoxFuture<'static, anyhow::Result<()>> + Clone + Send + 'static {
    let store = Arc::clone(store);
    move |_| {
        let store = Arc::clone(&store);
        Box::pin(async move { request_kept(&*store, retention, 30 * retention).await })
    }
}

/// Leases that run out at once, and how long it takes to find them all.
async fn sweep(options: &Options, store: &Arc<dyn Store>) -> anyhow::Result<Duration> {
    let beginning = Arc::clone(store);
    let begin = move |_| {
        let store = Arc::clone(&beginning);
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
        let some = store.sweep(BATCH).await?.len() as u64;
        swept += some;
        if some == 0 {
            ensure!(swept == options.requests, "{swept} of {} swept", options.requests);
            return Ok(begun.elapsed());
        }
    }
}

/// Records whose retention is over at once, and how long it takes to remove them all.
async fn reap(options: &Options, store: &Arc<dyn Store>) -> anyhow::Result<Duration> {
    repeat(options.requests, options.connections, making(store, Duration::ZERO)).await?;
    let begun = std::time::Instant::now();
    let mut purged = 0;
    loop {
        let some = store.reap(BATCH).await?;
        purged += u64::from(some.purged);
        if some.purged + some.expired == 0 {
            ensure!(purged == options.requests, "{purged} of {} reaped", options.requests);
            return Ok(begun.elapsed());
        }
    }
}

/// Through the store itself. Returns some of the keys, from all over it.
async fn filled(store: &Arc<dyn Store>, size: u64) -> anyhow::Result<Vec<String>> {
    let step = (size / KEYS).max(1);
    let (sender, mut kept) = tokio::sync::mpsc::unbounded_channel();
    let store = Arc::clone(store);
    let make = move |number: u64| {
        let (store, sender) = (Arc::clone(&store), sender.clone());
        async move {
            let key = key();
            complete(&*store, &key).await?;
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_key_is_asked_for_twice_before_all_were() {
        for keys in [1, 50, 5000, 2 * 7919, 100_000] {
            let asked: BTreeSet<_> = (0..keys as u64).map(|number| spread(number, keys)).collect();
            assert_eq!(asked.len(), keys);
            assert_eq!(spread(keys as u64, keys), spread(0, keys), "then from the beginning");
        }
    }
}
