//! Maps behind locks, in as many parts as the store in memory has.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::ensure;
use futures_util::future::BoxFuture;

use super::{BODY, FINGERPRINT, STATUS};
use crate::stores::drive::Work;

const PARTS: usize = 64;

struct Maps {
    hasher: RandomState,
    parts: Vec<Mutex<HashMap<String, Row>>>,
}

struct Row {
    fingerprint: [u8; 32],
    reply: Option<(i16, Box<[u8]>)>,
}

impl Maps {
    fn with<T>(&self, key: &str, what: impl FnOnce(&mut HashMap<String, Row>) -> T) -> T {
        let part = &self.parts[self.hasher.hash_one(key) as usize % PARTS];
        what(&mut part.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub(super) fn workers(links: usize) -> Vec<Box<dyn Work>> {
    let parts = (0..PARTS).map(|_| Mutex::default()).collect();
    let maps = Arc::new(Maps { hasher: RandomState::new(), parts });
    (0..links).map(|_| Box::new(Link(Arc::clone(&maps))) as Box<dyn Work>).collect()
}

struct Link(Arc<Maps>);

impl Work for Link {
    fn first<'a>(&'a mut self, keys: &'a [String]) -> BoxFuture<'a, anyhow::Result<()>> {
        Box::pin(async move {
            for key in keys {
                let mut fingerprint = [0; 32];
                fingerprint.copy_from_slice(FINGERPRINT);
                let row = Row { fingerprint, reply: None };
                let taken = self.0.with(key, |map| map.insert(key.clone(), row).is_some());
                ensure!(!taken, "a random key was taken");
                let reply = Some((STATUS, BODY.into()));
                let found = self.0.with(key, |map| map.get_mut(key).map(|row| row.reply = reply));
                ensure!(found.is_some(), "a row has gone");
            }
            // As any other task, which is not alone.
            tokio::task::yield_now().await;
            Ok(())
        })
    }

    fn replay<'a>(&'a mut self, keys: &'a [String]) -> BoxFuture<'a, anyhow::Result<()>> {
        Box::pin(async move {
            for key in keys {
                let reply = self.0.with(key, |map| {
                    let row = map.get(key).filter(|row| row.fingerprint == FINGERPRINT);
                    row.and_then(|row| row.reply.clone())
                });
                ensure!(reply.is_some_and(|(_, body)| *body == *BODY), "another reply");
            }
            tokio::task::yield_now().await;
            Ok(())
        })
    }
}
