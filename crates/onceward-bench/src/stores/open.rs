//! A store by its URL, with its defaults.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use onceward::{
    DynamoOptions, DynamoStore, MemoryStore, MySqlOptions, MySqlStore, PgOptions, PgStore,
    RedisOptions, RedisStore, SqliteOptions, SqliteStore, Store,
};

/// More than a measurement makes: a full store would refuse.
const MEMORY_RECORDS_MAX: usize = 8_000_000;

pub(crate) async fn open(url: &str) -> anyhow::Result<Arc<dyn Store>> {
    let (scheme, rest) = url.split_once(':').context("a URL of a store")?;
    Ok(match scheme {
        "memory" => Arc::new(MemoryStore::new().with_capacity(MEMORY_RECORDS_MAX)),
        "file" => Arc::new(SqliteStore::open(SqliteOptions::new(rest)).await?),
        "postgres" => Arc::new(PgStore::connect(PgOptions::new(url)).await?),
        "mysql" => Arc::new(MySqlStore::connect(MySqlOptions::new(url)).await?),
        "redis" | "redis+cluster" => {
            Arc::new(RedisStore::connect(RedisOptions::best_effort(url)).await?)
        }
        "dynamodb" => {
            let (table, endpoint) = table_and_endpoint(url)?;
            let options = DynamoOptions::new(table).endpoint(endpoint).region("local");
            Arc::new(DynamoStore::open(options).await?)
        }
        other => bail!("no store has URLs that begin with {other}"),
    })
}

/// Of `dynamodb://TABLE?endpoint=URL&region=local`.
pub(super) fn table_and_endpoint(url: &str) -> anyhow::Result<(&str, &str)> {
    let rest = url.strip_prefix("dynamodb://").and_then(|rest| rest.split_once("?endpoint="));
    let (table, endpoint) = rest.context("a table and its endpoint")?;
    Ok((table, endpoint.split_once('&').map_or(endpoint, |(endpoint, _)| endpoint)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_its_endpoint_in_its_url() {
        let url = "dynamodb://records?endpoint=http://127.0.0.1:8000&region=local";
        let read = table_and_endpoint(url).expect("well formed");
        assert_eq!(read, ("records", "http://127.0.0.1:8000"));
        assert!(table_and_endpoint("dynamodb://records").is_err());
    }

    #[tokio::test]
    async fn what_is_no_url_of_a_store_is_refused() {
        assert!(open("ftp://somewhere").await.is_err());
        assert!(open("memory").await.is_err());
    }
}
