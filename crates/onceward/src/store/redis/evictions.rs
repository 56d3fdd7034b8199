//! Whether a server throws records away when it is full. Nobody is told of a key that is evicted, so that
//! the server's own count of them is compared with the one that was written down with the last beat.

use std::collections::BTreeMap;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use redis::Value;
use tracing::warn;

use super::{RedisStore, error::unreadable, link::field, value::bytes, workers::AT_ONCE};
use crate::store::StoreError;

/// What a server process says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Evictions {
    run: String,
    policy: String,
    /// Since it started.
    pub(super) count: u64,
}

/// The only policy under which nothing is evicted.
pub(super) const NO_EVICTION: &str = "noeviction";

impl Evictions {
    /// `None` when the server does not tell.
    pub(super) fn read(info: &str) -> Option<Self> {
        let count = field(info, "evicted_keys")?.parse().ok()?;
        let text = |name| field(info, name).unwrap_or("-").to_owned();
        Some(Evictions { run: text("run_id"), policy: text("maxmemory_policy"), count })
    }

    /// As it is written down with a beat.
    pub(super) fn text(&self) -> String {
        format!("{} {}", self.run, self.count)
    }

    /// Whether the server may evict, as it is set.
    pub(super) fn may_come(&self) -> bool {
        self.policy != NO_EVICTION && self.policy != "-"
    }

    /// Whether something was evicted since this was written down: anything of it may have been a record. A
    /// server process that is another one, or whose number is smaller than it was (its statistics were
    /// reset), began to count at 0, and what it evicted before that is not known.
    pub(super) fn have_come(&self, before: &str) -> Result<bool, StoreError> {
        let (run, count) = before.split_once(' ').ok_or_else(unreadable)?;
        let count: u64 = count.parse().map_err(|_| unreadable())?;
        let goes_on = run == self.run && count <= self.count;
        Ok(self.count > if goes_on { count } else { 0 })
    }

    pub(super) fn tell(&self, bucket: u16) {
        warn!(
            bucket,
            maxmemory_policy = self.policy,
            evicted = self.count,
            "the Redis server evicts keys, or may: set maxmemory-policy to noeviction"
        );
    }
}

impl RedisStore {
    /// Of each server by its address; nothing of one that does not tell.
    pub(super) async fn evictions(
        &self,
    ) -> Result<BTreeMap<String, Option<Evictions>>, StoreError> {
        // As in `Link::connect`: no more than is looked for.
        let mut info = redis::cmd("INFO");
        info.arg("server").arg("memory").arg("stats");
        let mut all = BTreeMap::new();
        for bucket in self.bucket_of_each_server() {
            let server = self.client.server(bucket);
            let tells = server.open().await.map_or(true, |open| open.evicted.is_some());
            let told = match tells {
                true => {
                    let info = bytes(self.client.command(bucket, &info).await?)?;
                    Evictions::read(&String::from_utf8_lossy(&info))
                }
                false => None,
            };
            all.insert(server.address.clone(), told);
        }
        Ok(all)
    }

    /// What the servers of a new store evicted was no record. Where anything is left of a store that there
    /// was, this may have been: then nothing is noted, and beats take everything for one.
    pub(super) async fn note_what_was_evicted_before(&self) -> Result<(), StoreError> {
        let left = |bucket| async move {
            let kinds = ["c", "W", "beats", "writers"];
            let keys = kinds.map(|kind| self.client.layout.key(bucket, kind, b""));
            let left = self.client.command(bucket, redis::cmd("EXISTS").arg(&keys[..])).await?;
            Ok::<_, StoreError>(left != Value::Int(0))
        };
        let all = stream::iter(self.buckets()).map(left).buffer_unordered(AT_ONCE);
        if all.try_any(std::future::ready).await? {
            return Ok(());
        }
        let evictions = &self.evictions().await?;
        let note = |bucket| async move {
            let server = self.client.server(bucket);
            let Some(Some(evictions)) = evictions.get(&server.address) else { return Ok(()) };
            let mut note = redis::cmd("HSETNX");
            note.arg(self.client.writers(bucket)).arg("evicted").arg(evictions.text());
            self.client.command(bucket, &note).await.map(drop)
        };
        let notes = stream::iter(self.buckets_with_beats()).map(note).buffer_unordered(AT_ONCE);
        notes.try_collect().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(policy: &str, run: &str, count: u64) -> Evictions {
        let info = format!(
            "# Server\r\nrun_id:{run}\r\nmaxmemory_policy:{policy}\r\nevicted_keys:{count}\r\n"
        );
        Evictions::read(&info).expect("it tells")
    }

    fn have_come(before: &Evictions, now: &Evictions) -> bool {
        now.have_come(&before.text()).expect("readable")
    }

    #[test]
    fn more_evictions_of_a_server_process_than_were_written_down_are_a_loss() {
        let before = told("noeviction", "a", 5);
        assert!(have_come(&before, &told("noeviction", "a", 6)));
        assert!(!have_come(&before, &told("noeviction", "a", 5)));
    }

    #[test]
    fn a_server_whose_statistics_were_reset_must_not_have_evicted_anything_since() {
        let before = told("noeviction", "a", 5);
        assert!(have_come(&before, &told("noeviction", "a", 3)));
        assert!(!have_come(&before, &told("noeviction", "a", 0)));
    }

    #[test]
    fn another_server_process_must_not_have_evicted_anything() {
        let before = told("noeviction", "a", 5);
        assert!(have_come(&before, &told("noeviction", "b", 1)));
        assert!(!have_come(&before, &told("noeviction", "b", 0)));
    }

    #[test]
    fn only_a_server_that_is_told_not_to_does_not_evict() {
        assert!(!told("noeviction", "a", 5).may_come());
        assert!(told("allkeys-lru", "a", 0).may_come());
    }

    #[test]
    fn a_server_that_does_not_tell_is_not_asked() {
        assert_eq!(Evictions::read("# Server\r\nredis_version:7.0.15\r\n"), None);
    }
}
