//! Whether a server, or each master of a Cluster, can be relied on: a look that writes nothing.

use std::{
    collections::BTreeMap,
    time::{Instant, SystemTime},
};

use redis::FromRedisValue as _;

use super::{
    RedisStore,
    address::Layout,
    client::Client,
    evictions::NO_EVICTION,
    link::{Link, field},
    migrate::{MIGRATIONS, schema},
    open::servers,
    open::{MAJOR_VERSION_MIN, RedisConnectError, RedisOptions, reach, read_url},
    value::bytes,
};
use crate::store::site::{ASKED, Asked, By, Finding, Schema, Site, SiteFuture, Step, skew};

mod permissions; // of the user that it connects as

impl Site for RedisOptions {
    fn examine(&self) -> SiteFuture<'_, Vec<Finding>> {
        Box::pin(async {
            let client = self.reached().await?;
            let mut findings = Vec::new();
            for server in servers(&client) {
                findings.extend(look_at(&server, &client).await);
            }
            findings.push(match schema(&client).await {
                Ok(schema) => Finding::schema(&schema),
                Err(error) => Finding::failed("schema", error.to_string()),
            });
            Ok(findings)
        })
    }

    fn schema(&self) -> SiteFuture<'_, Schema> {
        Box::pin(async { Ok(schema(&self.reached().await?).await?) })
    }

    fn migrate(&self) -> SiteFuture<'_, Vec<Step>> {
        Box::pin(async {
            let (_, applied) = RedisStore::connect_by(self.clone(), MIGRATIONS, By::Hand).await?;
            Ok(applied)
        })
    }
}

impl RedisOptions {
    async fn reached(&self) -> Result<Client, RedisConnectError> {
        let (infos, cluster) = read_url(&self.url)?;
        let layout = Layout { prefix: self.prefix.clone(), buckets: self.buckets };
        Ok(reach(&infos, cluster, layout, self.clock.clone()).await?.0)
    }
}

/// One server: its settings, as far as it tells them.
async fn look_at(server: &Link, client: &Client) -> Vec<Finding> {
    let key = client.layout.key(0, "layout", b"");
    let permissions = permissions::permissions(server, &key, client.cluster).await;
    let info = server.command(&redis::cmd("INFO")).await.ok().and_then(|info| bytes(info).ok());
    let Some(info) = info else {
        let settings = Finding::failed("settings", of(server, "it does not tell them"));
        return vec![permissions, settings];
    };
    let info = String::from_utf8_lossy(&info).into_owned();
    vec![
        version(server, &info),
        role(server, &info),
        eviction(server, &info),
        persistence(server, &info).await,
        replication(server, &info),
        clock(server).await,
        permissions,
    ]
}

/// What was found, with the server of which it is true.
fn of(server: &Link, found: &str) -> String {
    format!("{found} ({})", server.address)
}

fn version(server: &Link, info: &str) -> Finding {
    const NAME: &str = "server version";
    let Some(version) = field(info, "redis_version") else {
        return Finding::failed(NAME, of(server, "it does not say"));
    };
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    match major {
        Some(major) if major >= MAJOR_VERSION_MIN => Finding::ok(NAME, of(server, version)),
        _ => Finding::broken(NAME, of(server, version), "use Redis 7.0 or later, or Valkey"),
    }
}

fn role(server: &Link, info: &str) -> Finding {
    const NAME: &str = "primary";
    match field(info, "role") {
        Some("master") => Finding::ok(NAME, of(server, "it takes writes")),
        Some(_) => Finding::broken(NAME, of(server, "it is a replica"), "use its master"),
        None => Finding::failed(NAME, of(server, "it does not say")),
    }
}

fn eviction(server: &Link, info: &str) -> Finding {
    const NAME: &str = "eviction";
    match field(info, "maxmemory_policy") {
        Some(NO_EVICTION) => match field(info, "evicted_keys") {
            None | Some("0") => Finding::ok(NAME, of(server, NO_EVICTION)),
            Some(count) => Finding::note(
                NAME,
                of(server, &format!("{NO_EVICTION}, but since it started it has evicted {count}")),
                "find out who set another maxmemory-policy, and whether records were among them",
            ),
        },
        Some(policy) => {
            let advice = "set maxmemory-policy to noeviction: a record that is evicted lets its \
                          request run again";
            Finding::broken(NAME, of(server, policy), advice)
        }
        None => Finding::failed(NAME, of(server, "it does not say")),
    }
}

/// What a crash of the process or of its machine takes with it.
async fn persistence(server: &Link, info: &str) -> Finding {
    const NAME: &str = "append-only file";
    if field(info, "aof_enabled") != Some("1") {
        let advice = "set appendonly yes and appendfsync always";
        return Finding::volatile(NAME, of(server, "off: a restart loses records"), advice);
    }
    let mut get = redis::cmd("CONFIG");
    get.arg("GET").arg("appendfsync");
    let settings = server.command(&get).await.ok();
    let settings = settings.and_then(|it| BTreeMap::<String, String>::from_redis_value(it).ok());
    match settings.as_ref().and_then(|it| it.get("appendfsync")).map(String::as_str) {
        Some("always") => Finding::ok(NAME, of(server, "each write is synced")),
        Some(policy) => {
            let found = format!("appendfsync is {policy}: a crash loses what was not synced");
            Finding::volatile(NAME, of(server, &found), "set appendfsync always")
        }
        None => Finding::failed(NAME, of(server, "it does not tell appendfsync")),
    }
}

fn replication(server: &Link, info: &str) -> Finding {
    const NAME: &str = "replicas";
    match field(info, "connected_slaves") {
        None | Some("0") => Finding::ok(NAME, of(server, "none")),
        Some(count) => Finding::volatile(
            NAME,
            of(server, &format!("{count}, which copy it asynchronously")),
            "a failover loses what was not copied: declare best-effort, and watch the canary",
        ),
    }
}

async fn clock(server: &Link) -> Finding {
    let mut asked = Vec::with_capacity(ASKED);
    for _ in 0..ASKED {
        let (at, began) = (SystemTime::now(), Instant::now());
        let Some(answer) = time(server).await else { break };
        asked.push(Asked { at, took: began.elapsed(), answer });
    }
    skew(&asked)
}

async fn time(server: &Link) -> Option<i64> {
    let answer = server.command(&redis::cmd("TIME")).await.ok()?;
    let (seconds, micros) = <(i64, i64)>::from_redis_value(answer).ok()?;
    Some(seconds.saturating_mul(1_000_000).saturating_add(micros))
}
