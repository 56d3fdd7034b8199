//! Replies of many bytes.

use std::sync::Arc;

use bytes::Bytes;
use onceward::{
    reply::{Reply, ReplyBody},
    store::{Reservation, Write, Written},
};

use super::{Figure, Options, empty, key, micros_each, repeat};
use crate::{
    file::{DAY, ask},
    stores::Site,
};

/// About so many bytes are written in each measurement.
const BYTES: usize = 64 << 20;

pub(super) async fn run(options: &Options, site: &Site) -> anyhow::Result<Vec<Figure>> {
    let mut first = Figure::new("bodies", site.kind, "reserve and complete", "us each");
    let mut replay = Figure::new("bodies", site.kind, "replay", "us each");
    for _ in 0..options.rounds {
        for size in options.bodies.iter().copied() {
            let times = options.requests.min((BYTES / size.max(1)) as u64).max(1);
            let [one, other] = measure(options, site, size, times).await?;
            first.add(&format!("{size} bytes"), one);
            replay.add(&format!("{size} bytes"), other);
        }
    }
    Ok(vec![first, replay])
}

async fn measure(
    options: &Options,
    site: &Site,
    size: usize,
    times: u64,
) -> anyhow::Result<[f64; 2]> {
    let (_place, store) = empty(site).await?;
    // Bytes that cannot be pressed together.
    let body: Vec<u8> = (0..size).map(|_| rand::random()).collect();
    let body = Bytes::from(body);
    let keys: Arc<[String]> = (0..times).map(|_| key()).collect();
    let (of_first, keys_of_first) = (Arc::clone(&store), Arc::clone(&keys));
    let first = move |number: u64| {
        let (store, key) = (Arc::clone(&of_first), keys_of_first[number as usize].clone());
        let body = ReplyBody::Stored(body.clone());
        async move {
            let reserved = store.reserve(ask(&key, DAY, 30 * DAY)?).await?;
            let Reservation::Granted { lease, .. } = reserved else {
                anyhow::bail!("a random key was taken");
            };
            let status = http::StatusCode::CREATED;
            let reply = Reply { status, headers: Vec::new(), body, schema_version: None };
            match store.write(&lease, Write::Complete(reply)).await? {
                Written::Applied => Ok(()),
                other => anyhow::bail!("not applied: {other:?}"),
            }
        }
    };
    let replay = move |number: u64| {
        let (store, key) = (Arc::clone(&store), keys[number as usize].clone());
        async move {
            let found = store.reserve(ask(&key, DAY, 30 * DAY)?).await?;
            anyhow::ensure!(found.completed().is_some(), "a key is not completed: {found:?}");
            Ok(())
        }
    };
    let (_, first) = repeat(times, options.connections, first).await?;
    let (_, replay) = repeat(times, options.connections, replay).await?;
    Ok([micros_each(first, times), micros_each(replay, times)])
}
