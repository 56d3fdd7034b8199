//! Two small scripts, called in pipelines. In a Cluster each connection has one master, and keys that
//! are there.

use anyhow::{Context as _, ensure};
use futures_util::future::BoxFuture;
use redis::{Value, aio::MultiplexedConnection};

use super::{BODY, FINGERPRINT};
use crate::stores::drive::Work;

const RESERVE: &str = "local found = redis.call('HMGET', KEYS[1], 's', 'a', 'h', 'p') \
    if found[1] then return found end \
    redis.call('HSET', KEYS[1], 's', 'in_progress', 'a', ARGV[1], 'h', ARGV[2]) return 1";

const COMPLETE: &str = "local is = redis.call('HMGET', KEYS[1], 's', 'a') \
    if is[1] ~= 'in_progress' or is[2] ~= ARGV[1] then return 0 end \
    redis.call('HSET', KEYS[1], 's', 'completed', 'y', '201', 'p', ARGV[2]) return 1";

pub(super) async fn workers(url: &str, links: usize) -> anyhow::Result<Vec<Box<dyn Work>>> {
    let masters = match url.strip_prefix("redis+cluster://") {
        Some(nodes) => masters(nodes.split(',').next().unwrap_or_default()).await?,
        None => vec![(url.to_owned(), String::new())],
    };
    let mut workers: Vec<Box<dyn Work>> = Vec::new();
    for (url, prefix) in masters.iter().cycle().take(links) {
        let mut connection = connect(url).await?;
        let mut load = redis::pipe();
        load.cmd("SCRIPT").arg("LOAD").arg(RESERVE).cmd("SCRIPT").arg("LOAD").arg(COMPLETE);
        let (reserve, complete) = load.query_async(&mut connection).await?;
        workers.push(Box::new(Link { connection, prefix: prefix.clone(), reserve, complete }));
    }
    Ok(workers)
}

async fn connect(url: &str) -> anyhow::Result<MultiplexedConnection> {
    Ok(redis::Client::open(url)?.get_multiplexed_async_connection().await?)
}

/// First slot, last slot, and the master with its address, port and more.
type Range = (u16, u16, (String, u16, Value, Value));

/// The masters of a Cluster, each with a tag that leads to it.
async fn masters(node: &str) -> anyhow::Result<Vec<(String, String)>> {
    let mut connection = connect(&format!("redis://{node}")).await?;
    let slots: Vec<Value> = redis::cmd("CLUSTER").arg("SLOTS").query_async(&mut connection).await?;
    let mut masters = Vec::new();
    for range in slots {
        // After the master come its replicas.
        let Value::Array(mut parts) = range else { anyhow::bail!("CLUSTER SLOTS") };
        parts.truncate(3);
        let (first, last, (host, port, ..)): Range = redis::from_redis_value(Value::Array(parts))?;
        let mut tag = None;
        for number in 0..10_000 {
            let name = format!("{{{number}}}");
            let slot: u16 = redis::cmd("CLUSTER")
                .arg("KEYSLOT")
                .arg(&name)
                .query_async(&mut connection)
                .await?;
            if (first..=last).contains(&slot) {
                tag = Some(name);
                break;
            }
        }
        masters.push((format!("redis://{host}:{port}"), tag.context("a tag of a range")?));
    }
    Ok(masters)
}

struct Link {
    connection: MultiplexedConnection,
    prefix: String,
    reserve: String,
    complete: String,
}

impl Link {
    async fn call(
        &mut self,
        script: &str,
        keys: &[String],
        arguments: [&[u8]; 2],
    ) -> anyhow::Result<Vec<Value>> {
        let mut calls = redis::pipe();
        for key in keys {
            calls.cmd("EVALSHA").arg(script).arg(1).arg(key).arg(&arguments);
        }
        Ok(calls.query_async(&mut self.connection).await?)
    }
}

impl Work for Link {
    fn first<'a>(&'a mut self, keys: &'a [String]) -> BoxFuture<'a, anyhow::Result<()>> {
        Box::pin(async move {
            let attempt: [u8; 16] = rand::random();
            let (reserve, complete) = (self.reserve.clone(), self.complete.clone());
            let taken = self.call(&reserve, keys, [&attempt, FINGERPRINT]).await?;
            let completed = self.call(&complete, keys, [&attempt, BODY]).await?;
            let is_done = |answer: &Value| *answer == Value::Int(1);
            ensure!(taken.iter().chain(&completed).all(is_done), "a key was taken, or lost");
            Ok(())
        })
    }

    fn replay<'a>(&'a mut self, keys: &'a [String]) -> BoxFuture<'a, anyhow::Result<()>> {
        Box::pin(async move {
            let reserve = self.reserve.clone();
            for found in self.call(&reserve, keys, [&[0; 16], FINGERPRINT]).await? {
                let (.., body): (Value, Value, Value, Vec<u8>) = redis::from_redis_value(found)?;
                ensure!(body == BODY, "another reply");
            }
            Ok(())
        })
    }

    fn prefix(&self) -> &str {
        &self.prefix
    }
}
