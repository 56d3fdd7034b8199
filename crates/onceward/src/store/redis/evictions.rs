//! Whether a server throws records away when it is full. Nobody is told of a key that is evicted, so that
//! the server's own count of them is compared with the one that was written down with the last beat.

use std::collections::BTreeMap;

use tracing::warn;

use super::{RedisStore, error::unreadable, link::field, value::bytes};
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

    /// Whether something may be gone since this was written down. What another server process had evicted
    /// before it came is not known: anything may have been a record.
    pub(super) fn may_have_lost(&self, before: &str) -> Result<bool, StoreError> {
        if self.policy != NO_EVICTION && self.policy != "-" {
            return Ok(true);
        }
        if before.is_empty() {
            return Ok(false);
        }
        let (run, count) = before.split_once(' ').ok_or_else(unreadable)?;
        let count: u64 = count.parse().map_err(|_| unreadable())?;
        Ok(self.count > if run == self.run { count } else { 0 })
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
        let mut all = BTreeMap::new();
        for bucket in self.buckets() {
            let server = self.client.server(bucket);
            if all.contains_key(&server.address) {
                continue;
            }
            let tells = server.open().await.map_or(true, |open| open.evicted.is_some());
            let told = match tells {
                true => {
                    let info = bytes(self.client.command(bucket, &redis::cmd("INFO")).await?)?;
                    Evictions::read(&String::from_utf8_lossy(&info))
                }
                false => None,
            };
            all.insert(server.address.clone(), told);
        }
        Ok(all)
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

    #[test]
    fn more_evictions_of_a_server_process_than_were_written_down_are_a_loss() {
        let before = told("noeviction", "a", 5).text();
        let lost = |now: Evictions| now.may_have_lost(&before).expect("readable");
        assert!(lost(told("noeviction", "a", 6)));
        assert!(!lost(told("noeviction", "a", 5)));
        assert!(!lost(told("noeviction", "a", 0)), "its statistics were reset");
    }

    #[test]
    fn another_server_process_must_not_have_evicted_anything() {
        let before = told("noeviction", "a", 5).text();
        let lost = |now: Evictions| now.may_have_lost(&before).expect("readable");
        assert!(lost(told("noeviction", "b", 1)));
        assert!(!lost(told("noeviction", "b", 0)));
    }

    #[test]
    fn what_a_server_evicted_before_there_was_a_store_was_no_record() {
        let lost = |now: Evictions| now.may_have_lost("").expect("readable");
        assert!(!lost(told("noeviction", "a", 5)));
        assert!(lost(told("allkeys-lru", "a", 0)), "it may evict the first one");
    }

    #[test]
    fn a_server_that_does_not_tell_is_not_asked() {
        assert_eq!(Evictions::read("# Server\r\nredis_version:7.0.15\r\n"), None);
    }
}
