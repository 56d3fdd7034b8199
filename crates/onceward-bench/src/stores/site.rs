//! Where stores are measured: a server of their kind if they need one, and an empty place each time.

use std::{
    io::ErrorKind,
    path::Path,
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::Context as _;
use clap::ValueEnum;
use onceward::{SqliteOptions, SqliteStore};
use onceward_testbed::{DynamoDb, MariaDb, Redis, RedisCluster};
use serde::Serialize;
use sqlx::{ConnectOptions as _, Connection as _, Executor as _, sqlite::SqliteConnectOptions};
use tempfile::TempDir;

use super::open;
use crate::postgres::{Server, Settings, Wanted};

/// A kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    Memory,
    File,
    Postgres,
    Mariadb,
    Redis,
    RedisCluster,
    Dynamodb,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Memory => "memory",
            Kind::File => "file",
            Kind::Postgres => "postgres",
            Kind::Mariadb => "mariadb",
            Kind::Redis => "redis",
            Kind::RedisCluster => "redis-cluster",
            Kind::Dynamodb => "dynamodb",
        }
    }

    /// On how many connections the raw limit is tried; the batches are as large as that many requests
    /// under way allow.
    pub(super) fn ways_to_batch(self, in_flight: usize) -> Vec<usize> {
        let mut ways = match self {
            // One writer.
            Kind::File => vec![1],
            // A thread for each core.
            Kind::Memory => vec![2],
            Kind::Postgres | Kind::Mariadb | Kind::Redis => vec![1, 2, 4],
            // The same number for each of three masters.
            Kind::RedisCluster => vec![3, 6],
            // It has no batches with conditions.
            Kind::Dynamodb => vec![in_flight],
        };
        ways.retain(|links| *links <= in_flight);
        if ways.is_empty() {
            ways.push(in_flight.max(1));
        }
        ways
    }
}

/// A server if the kind needs one, with the durability that it has by default or, of Redis, can have.
pub(crate) struct Site {
    pub(crate) kind: Kind,
    server: Running,
    settings: Option<Settings>,
}

enum Running {
    None,
    Postgres(Box<Server>),
    MariaDb(MariaDb),
    Redis(Redis),
    Cluster(RedisCluster),
    DynamoDb(DynamoDb),
}

/// An empty place.
pub(crate) struct Place {
    pub(crate) url: String,
    directory: Option<TempDir>,
}

const DATABASE: &str = "onceward_bench";
const FILE: &str = "bench.db";

impl Site {
    pub(crate) async fn start(kind: Kind, postgres: &Wanted) -> anyhow::Result<Site> {
        let server = match kind {
            Kind::Memory | Kind::File => Running::None,
            Kind::Postgres => Running::Postgres(Box::new(Server::at_or_new(postgres).await?)),
            Kind::Mariadb => Running::MariaDb(MariaDb::start()),
            Kind::Redis => Running::Redis(Redis::start()),
            Kind::RedisCluster => Running::Cluster(RedisCluster::start()),
            Kind::Dynamodb => Running::DynamoDb(DynamoDb::start()),
        };
        let settings = match &server {
            Running::Postgres(server) => Some(server.settings().await?),
            _ => None,
        };
        Ok(Site { kind, server, settings })
    }

    pub(crate) fn settings(&self) -> Option<Settings> {
        self.settings.clone()
    }

    /// The processes of the benchmark.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let mut processes = vec![std::process::id()];
        match &self.server {
            Running::None => {}
            Running::Postgres(server) => processes.extend(server.processes()),
            Running::MariaDb(server) => processes.extend(server.pid()),
            Running::Redis(server) => processes.extend(server.pid()),
            Running::Cluster(cluster) => {
                processes.extend(cluster.nodes().iter().filter_map(Redis::pid));
            }
            Running::DynamoDb(server) => processes.extend(server.pid()),
        }
        processes
    }

    pub(crate) async fn new_place(&self) -> anyhow::Result<Place> {
        self.place(DATABASE).await
    }

    /// The same under a name, where several are needed at a time.
    pub(crate) async fn place(&self, name: &str) -> anyhow::Result<Place> {
        let mut directory = None;
        let url = match &self.server {
            Running::None if self.kind == Kind::Memory => "memory:".to_owned(),
            Running::None => {
                let folder = directory.insert(tempfile::tempdir()?);
                format!("file:{}", folder.path().join(FILE).display())
            }
            Running::Postgres(server) => server.new_database(name).await?,
            Running::MariaDb(server) => {
                let anew = format!("DROP DATABASE IF EXISTS {name}; CREATE DATABASE {name}");
                server.sql("mysql", &anew);
                server.url(name)
            }
            Running::Redis(server) => {
                empty(server);
                server.url()
            }
            Running::Cluster(cluster) => {
                cluster.masters().into_iter().for_each(|node| empty(&cluster.nodes()[node]));
                cluster.url()
            }
            Running::DynamoDb(server) => {
                static NUMBER: AtomicU32 = AtomicU32::new(1);
                server.url(&format!("bench_{}", NUMBER.fetch_add(1, Ordering::Relaxed)))
            }
        };
        Ok(Place { url, directory })
    }

    /// Leaves no work of the past to the measurement that comes.
    pub(crate) async fn settle(&self, place: &Place) -> anyhow::Result<()> {
        match &self.server {
            Running::Postgres(server) => server.settle(&place.url).await,
            _ => Ok(()),
        }
    }

    /// A server that was there before must be left as it was.
    pub(crate) async fn leave(self) -> anyhow::Result<()> {
        self.remove(DATABASE).await
    }

    /// The same with a place that had a name.
    pub(crate) async fn remove(&self, name: &str) -> anyhow::Result<()> {
        match &self.server {
            Running::Postgres(server) => server.drop_database(name).await,
            _ => Ok(()),
        }
    }

    /// What is there before a store of ours has its first record: its schema is none, and would count for
    /// much where few are made.
    pub(crate) async fn bytes_prepared(&self, place: &Place) -> anyhow::Result<Option<u64>> {
        match &place.directory {
            // Whoever is still closing it would keep the log from going into the file.
            Some(folder) => {
                let file = SqliteOptions::new(folder.path().join(FILE));
                SqliteStore::open(file).await?.close().await;
            }
            None => drop(open(&place.url).await?),
        }
        self.bytes(place).await
    }

    /// What it takes on the disk, or of Redis in memory. What is in this process's own memory is not
    /// counted.
    pub(crate) async fn bytes(&self, place: &Place) -> anyhow::Result<Option<u64>> {
        Ok(Some(match &self.server {
            Running::None => match &place.directory {
                Some(folder) => {
                    checkpoint(&folder.path().join(FILE)).await?;
                    bytes_in(folder.path())?
                }
                None => return Ok(None),
            },
            Running::Postgres(server) => server.bytes(&place.url).await?,
            Running::MariaDb(server) => {
                let size = format!(
                    "SELECT COALESCE(SUM(FILE_SIZE), 0) FROM \
                     information_schema.INNODB_SYS_TABLESPACES WHERE NAME LIKE '{DATABASE}/%'"
                );
                server.sql("mysql", &size).trim().parse()?
            }
            Running::Redis(server) => used_memory(server)?,
            Running::Cluster(cluster) => {
                let masters = cluster.masters();
                let sizes = masters.into_iter().map(|node| used_memory(&cluster.nodes()[node]));
                sizes.sum::<anyhow::Result<u64>>()?
            }
            Running::DynamoDb(server) => bytes_in(server.dir())?,
        }))
    }
}

/// What is still in the log goes into the file, as it does sooner or later.
async fn checkpoint(file: &Path) -> anyhow::Result<()> {
    if file.exists() {
        let mut connection = SqliteConnectOptions::new().filename(file).connect().await?;
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").await?;
        connection.close().await?;
    }
    Ok(())
}

fn empty(server: &Redis) {
    server.cli(&["FLUSHALL"]);
    // Or the log of the measurement before would be rewritten in the middle of the next one.
    server.cli(&["BGREWRITEAOF"]);
}

fn used_memory(server: &Redis) -> anyhow::Result<u64> {
    let info = server.cli(&["INFO", "memory"]);
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    Ok(line.context("INFO memory")?.trim().parse()?)
}

/// Of all files in a folder and below it. One that goes while we look counts for nothing.
pub(crate) fn bytes_in(folder: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder).context("a folder of a store")? {
        let entry = entry?;
        bytes += match entry.metadata() {
            Ok(of) if of.is_dir() => bytes_in(&entry.path())?,
            Ok(of) => of.len(),
            Err(error) if error.kind() == ErrorKind::NotFound => 0,
            Err(error) => return Err(error.into()),
        };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn bytes_in_a_folder_are_those_of_all_files_below_it() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(bytes_in(folder.path()).expect("counted"), 0);
        fs::create_dir_all(folder.path().join("a/b")).expect("made");
        fs::write(folder.path().join("one"), "12345").expect("written");
        fs::write(folder.path().join("a/b/two"), "123").expect("written");
        assert_eq!(bytes_in(folder.path()).expect("counted"), 8);
        assert!(bytes_in(&folder.path().join("nowhere")).is_err());
    }

    #[tokio::test]
    async fn records_on_a_file_take_bytes_beside_those_of_its_schema() {
        let site = Site::start(Kind::File, &Wanted::default()).await.expect("no server");
        let place = site.new_place().await.expect("a place");
        assert_eq!(site.bytes(&place).await.expect("counted"), Some(0));
        let empty = site.bytes_prepared(&place).await.expect("counted");
        assert!(empty > Some(0), "its schema");
        let file = place.url.strip_prefix("file:").expect("a file");
        let store = SqliteStore::open(SqliteOptions::new(file)).await.expect("opened");
        // More than there is room for in the pages of an empty file.
        for number in 0..100 {
            let key = format!("key-{number:032}");
            crate::file::complete(&store, &key).await.expect("completed");
        }
        store.close().await;
        assert!(site.bytes(&place).await.expect("counted") > empty);
    }

    #[tokio::test]
    async fn what_is_in_memory_is_not_counted() {
        let site = Site::start(Kind::Memory, &Wanted::default()).await.expect("no server");
        let place = site.new_place().await.expect("a place");
        assert_eq!(site.bytes_prepared(&place).await.expect("nothing"), None);
        assert_eq!(site.bytes(&place).await.expect("nothing"), None);
    }
}
