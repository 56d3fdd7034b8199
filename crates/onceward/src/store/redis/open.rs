//! Connecting: what is asked of a server before records are kept in it.

use std::{collections::BTreeMap, fmt, sync::Arc};

use redis::{ConnectionInfo, IntoConnectionInfo as _};
use tracing::warn;

use super::{
    RedisStore,
    address::Layout,
    client::Client,
    error::{Remedy, remedy, store_error},
    evictions::NO_EVICTION,
    link::{Failed, Link, field},
    migrate::MIGRATIONS,
    script::EVICTED,
    value::bytes,
};
use crate::{
    clock::Clock,
    store::{
        StoreError,
        site::{By, Migration, Step},
    },
};

/// The first server that has all that the scripts need.
pub(super) const MAJOR_VERSION_MIN: u32 = 7;

/// How to connect to a Redis or Valkey server, or to a Cluster of them.
#[derive(Clone)]
pub struct RedisOptions {
    pub(super) url: String,
    pub(super) prefix: Box<str>,
    pub(super) buckets: u16,
    pub(super) clock: Option<Arc<dyn Clock>>,
}

impl RedisOptions {
    /// The server or Cluster of this URL: `redis://`, `rediss://` (TLS), `redis+cluster://` and
    /// `rediss+cluster://`, the last two with as many hosts as one likes, divided by commas.
    ///
    /// *Best effort* is what such a store promises: what it has acknowledged can be lost by a
    /// failover, by a crash of a server that does not sync each write, and by whoever empties it. A
    /// [`Canary`](crate::canary::Canary) finds that out, and keys are refused from then on. Work that
    /// must not be done twice belongs into a store that does not forget.
    pub fn best_effort(url: impl Into<String>) -> Self {
        RedisOptions { url: url.into(), prefix: "onceward".into(), buckets: 128, clock: None }
    }

    /// What all keys begin with, in braces; `onceward` unless said otherwise. Letters, digits, `-`,
    /// `_` and `.` only.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<Box<str>>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Over how many buckets the records of a *new* store are spread: 128 unless said otherwise. One
    /// that is not new keeps its own number. A Cluster cannot use more masters than there are buckets.
    #[must_use]
    pub fn buckets(mut self, buckets: u16) -> Self {
        self.buckets = buckets.clamp(1, 4096);
        self
    }

    /// Another clock than the server's: for tests.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }
}

impl fmt::Debug for RedisOptions {
    /// Without the URL, which may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions")
            .field("prefix", &self.prefix)
            .field("buckets", &self.buckets)
            .finish_non_exhaustive()
    }
}

/// Why a server is not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedisConnectError {
    /// The URL, or the prefix, is none.
    #[error("the settings of the Redis store: {0}")]
    Settings(String),
    /// It cannot be reached, or does not let us in.
    #[error("the Redis server cannot be used")]
    Unreachable(#[source] StoreError),
    /// It is older than 7.0.
    #[error("the Redis server is version {0}; 7.0 or later is needed")]
    TooOld(String),
    /// It would throw records away when it is full.
    #[error(
        "the Redis server may evict records (maxmemory-policy is {0}); set it to noeviction: a record \
         that is evicted lets its request run again"
    )]
    Evicts(String),
    /// Only its master takes writes.
    #[error("the Redis server is a replica; its master is needed")]
    Replica,
    /// The URL says one thing and the server another.
    #[error("{0}")]
    Kind(&'static str),
    /// What it says of its records is nothing of ours.
    #[error("the records in the Redis server have the layout {found:?}, which is none of ours")]
    Layout {
        /// As it is stored.
        found: String,
    },
    /// Its records are of a version that does not let this one in.
    #[error(
        "the records in the Redis server have version {found}, and this version knows {known}; use a \
         newer onceward"
    )]
    Newer {
        /// The version that they have.
        found: u32,
        /// The newest version that is known here.
        known: u32,
    },
    /// What is pending shuts out processes that may be at work.
    #[error(
        "the migration `{migration}` of the records in the Redis server shuts out older processes: stop \
         them, and run `onceward migrate up`"
    )]
    Breaking {
        /// The migration.
        migration: &'static str,
    },
}

impl From<StoreError> for RedisConnectError {
    fn from(error: StoreError) -> Self {
        RedisConnectError::Unreachable(error)
    }
}

impl RedisStore {
    /// Connects, and looks whether the server can be used.
    ///
    /// # Errors
    /// See [`RedisConnectError`].
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn connect(options: RedisOptions) -> Result<Self, RedisConnectError> {
        Self::connect_by(options, MIGRATIONS, By::Start).await.map(|(store, _)| store)
    }

    /// The same with these migrations, and which of them were made.
    pub(super) async fn connect_by(
        options: RedisOptions,
        migrations: &'static [Migration],
        by: By,
    ) -> Result<(Self, Vec<Step>), RedisConnectError> {
        let is_good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if options.prefix.is_empty() || !options.prefix.bytes().all(is_good) {
            let bad = "a prefix is letters, digits, '-', '_' and '.'";
            return Err(RedisConnectError::Settings(bad.to_owned()));
        }
        let (infos, cluster) = read_url(&options.url)?;
        let layout = Layout { prefix: options.prefix, buckets: options.buckets };
        let (client, seed) = reach(&infos, cluster, layout.clone(), options.clock.clone()).await?;
        for server in servers(&client) {
            check(&server, cluster).await?;
        }
        let store = RedisStore { client };
        let (buckets, applied) = store.bring_up(migrations, by).await?;
        let store = match buckets == layout.buckets {
            true => store,
            false => {
                let layout = Layout { buckets, ..layout };
                let client = Client::new(seed, cluster, layout, options.clock).map_err(bad_url)?;
                if cluster {
                    client.route_by(&client.server(0)).await?;
                }
                RedisStore { client }
            }
        };
        store.ask_scripts_for_evictions().await?;
        Ok((store, applied))
    }

    /// Each server: some let us ask, and not our scripts.
    async fn ask_scripts_for_evictions(&self) -> Result<(), StoreError> {
        for bucket in self.bucket_of_each_server() {
            let told = self.client.run(bucket, EVICTED, &[], &[]).await?;
            if bytes(told)?.is_empty() {
                warn!(
                    "the Redis server does not tell scripts what it evicts: a key that is evicted may \
                     run again before the next beat"
                );
            }
        }
        Ok(())
    }
}

/// By the first of these hosts that answers.
pub(super) async fn reach(
    infos: &[ConnectionInfo],
    cluster: bool,
    layout: Layout,
    clock: Option<Arc<dyn Clock>>,
) -> Result<(Client, ConnectionInfo), RedisConnectError> {
    let mut last = None;
    for info in infos {
        let client = Client::new(info.clone(), cluster, layout.clone(), clock.clone());
        let client = client.map_err(bad_url)?;
        let seed = client.server(0);
        let reached = match cluster {
            true => client.route_by(&seed).await,
            false => client.command(0, &redis::cmd("PING")).await.map(drop),
        };
        match reached {
            Ok(()) => return Ok((client, info.clone())),
            Err(error) => last = Some(error),
        }
    }
    let none = || RedisConnectError::Settings("the URL names no host".to_owned());
    Err(last.map_or_else(none, RedisConnectError::Unreachable))
}

/// Each server once.
pub(super) fn servers(client: &Client) -> Vec<Arc<Link>> {
    let all = (0..client.layout.buckets).map(|bucket| client.server(bucket));
    let each: BTreeMap<String, Arc<Link>> = all.map(|it| (it.address.clone(), it)).collect();
    each.into_values().collect()
}

async fn check(server: &Link, cluster: bool) -> Result<(), RedisConnectError> {
    let answer = server.command(&redis::cmd("INFO")).await;
    let info = match answer {
        Ok(answer) => String::from_utf8_lossy(&bytes(answer)?).into_owned(),
        Err(Failed::Sent(error)) if remedy(&error) == Remedy::Refused => {
            warn!("the Redis server does not tell its settings: see that it never evicts");
            return Ok(());
        }
        Err(Failed::NotSent(error) | Failed::Sent(error)) => return Err(store_error(&error).into()),
    };
    if let Some(version) = field(&info, "redis_version") {
        let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        if major.is_some_and(|major| major < MAJOR_VERSION_MIN) {
            return Err(RedisConnectError::TooOld(version.to_owned()));
        }
    }
    if field(&info, "role") == Some("slave") {
        return Err(RedisConnectError::Replica);
    }
    match (field(&info, "cluster_enabled"), cluster) {
        (Some("1"), false) => {
            let kind = "the Redis server is part of a Cluster: use redis+cluster://";
            return Err(RedisConnectError::Kind(kind));
        }
        (Some("0"), true) => {
            let kind = "the Redis server is not part of a Cluster: use redis://";
            return Err(RedisConnectError::Kind(kind));
        }
        _ => {}
    }
    match field(&info, "maxmemory_policy") {
        Some(NO_EVICTION) => {}
        Some(policy) => return Err(RedisConnectError::Evicts(policy.to_owned())),
        None => warn!("the Redis server does not tell maxmemory-policy: see that it is noeviction"),
    }
    if field(&info, "aof_enabled") == Some("0") {
        warn!("the Redis server keeps no append-only file: a restart loses records");
    }
    Ok(())
}

/// The hosts of a URL, and whether they are of a Cluster.
pub(super) fn read_url(url: &str) -> Result<(Vec<ConnectionInfo>, bool), RedisConnectError> {
    let bad = |why: &str| RedisConnectError::Settings(why.to_owned());
    let (scheme, rest) = url.split_once("://").ok_or_else(|| bad("the URL has no scheme"))?;
    let (scheme, cluster) = match scheme {
        "redis" | "rediss" => (scheme, false),
        "redis+cluster" => ("redis", true),
        "rediss+cluster" => ("rediss", true),
        _ => return Err(bad("the scheme of the URL is none of Redis")),
    };
    let (login, hosts) = match rest.rsplit_once('@') {
        Some((login, hosts)) => (format!("{login}@"), hosts),
        None => (String::new(), rest),
    };
    let end = hosts.find(['/', '?']).unwrap_or(hosts.len());
    let (hosts, path) = hosts.split_at(end);
    let hosts: Vec<&str> = hosts.split(',').collect();
    if hosts.len() > 1 && !cluster {
        return Err(bad("only a Cluster has several hosts"));
    }
    let info = |host: &&str| format!("{scheme}://{login}{host}{path}").into_connection_info();
    let infos: Result<Vec<ConnectionInfo>, _> = hosts.iter().map(info).collect();
    Ok((infos.map_err(bad_url)?, cluster))
}

/// Without the URL, which may hold a password.
fn bad_url(error: redis::RedisError) -> RedisConnectError {
    RedisConnectError::Settings(error.category().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_one_server_or_hosts_of_a_cluster() {
        let read = |url: &str| {
            let (infos, cluster) = read_url(url).expect("a URL");
            let hosts: Vec<String> = infos.iter().map(|info| info.addr().to_string()).collect();
            (hosts.join(" "), cluster)
        };
        assert_eq!(read("redis://:p@a:1/2"), ("a:1".to_owned(), false));
        assert_eq!(read("rediss://a"), ("a:6379".to_owned(), false));
        assert_eq!(read("redis+cluster://u:p@a:1,b:2"), ("a:1 b:2".to_owned(), true));
        for bad in ["redis:a", "http://a", "redis://a,b", "redis://a:port"] {
            assert!(read_url(bad).is_err(), "{bad}");
        }
    }
}
