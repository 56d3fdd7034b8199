//! The PostgreSQL server: checked for its durability, with a new database for each measurement.

use std::fs;

use anyhow::{Context as _, ensure};
use clap::Args;
use onceward_testbed::Postgres;
use serde::Serialize;
use tokio_postgres::{Client, NoTls};

/// Which server, for all contestants of a run.
#[derive(Args, Clone, Default)]
pub(crate) struct Wanted {
    /// A PostgreSQL server to use, without a database's name; otherwise one is started.
    #[arg(long)]
    pub(crate) url: Option<String>,
    /// The memory for its pages that a PostgreSQL gets which is started, such as 512MB; otherwise a quarter
    /// of the machine's.
    #[arg(long, value_name = "SIZE", conflicts_with = "url")]
    shared_buffers: Option<String>,
}

impl Wanted {
    /// What its documentation recommends for a server, and room enough in the log that a checkpoint comes
    /// by the clock, as it does on a server that was set up for its load. Nothing that commits depend on.
    fn settings(&self) -> anyhow::Result<[String; 2]> {
        let shared_buffers = match &self.shared_buffers {
            Some(size) => size.clone(),
            None => format!("{}MB", quarter_of(&fs::read_to_string("/proc/meminfo")?)?),
        };
        Ok([format!("shared_buffers={shared_buffers}"), "max_wal_size=4GB".to_owned()])
    }
}

/// Of the machine's memory, in megabytes.
fn quarter_of(memory: &str) -> anyhow::Result<u64> {
    let total = memory.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kilobytes: u64 = total
        .and_then(|total| total.split_whitespace().next())
        .and_then(|kilobytes| kilobytes.parse().ok())
        .context("/proc/meminfo is not understood")?;
    Ok(kilobytes / 1024 / 4)
}

/// A server, and how to reach its databases.
pub(crate) struct Server {
    url: String,
    admin: Client,
    processes: Vec<u32>,
    _started: Option<Postgres>,
}

/// What the figures depend on.
#[derive(Clone, Serialize)]
pub(crate) struct Settings {
    pub(crate) version: String,
    pub(crate) fsync: String,
    pub(crate) synchronous_commit: String,
    pub(crate) full_page_writes: String,
    pub(crate) shared_buffers: String,
    pub(crate) max_wal_size: String,
}

impl Server {
    /// The one of this URL, which is without a database's name; or a new one, which ends with this.
    pub(crate) async fn at_or_new(wanted: &Wanted) -> anyhow::Result<Self> {
        match &wanted.url {
            Some(url) => Server::at(url, None).await,
            None => Server::new_by(&[], wanted).await,
        }
    }

    /// A new one, run by a program that becomes the server.
    pub(crate) async fn new_by(program: &[String], wanted: &Wanted) -> anyhow::Result<Self> {
        let started = Postgres::start_by(program, &wanted.settings()?);
        Server::at(&started.url(""), Some(started)).await
    }

    async fn at(url: &str, started: Option<Postgres>) -> anyhow::Result<Self> {
        let url = url.trim_end_matches('/').to_owned();
        let mut processes = vec![std::process::id()];
        processes.extend(started.as_ref().and_then(Postgres::pid));
        let admin = connect(&format!("{url}/postgres")).await?;
        Ok(Server { url, admin, processes, _started: started })
    }

    /// The processes of the benchmark, as far as we know them.
    pub(crate) fn processes(&self) -> &[u32] {
        &self.processes
    }

    /// Fails where commits are not durable: such figures would say nothing.
    pub(crate) async fn settings(&self) -> anyhow::Result<Settings> {
        let settings = Settings {
            version: self.setting("server_version").await?,
            fsync: self.setting("fsync").await?,
            synchronous_commit: self.setting("synchronous_commit").await?,
            full_page_writes: self.setting("full_page_writes").await?,
            shared_buffers: self.setting("shared_buffers").await?,
            max_wal_size: self.setting("max_wal_size").await?,
        };
        for (name, value) in [
            ("fsync", &settings.fsync),
            ("synchronous_commit", &settings.synchronous_commit),
            ("full_page_writes", &settings.full_page_writes),
        ] {
            ensure!(value == "on", "this server has {name} = {value}: nothing to compare there");
        }
        Ok(settings)
    }

    async fn setting(&self, name: &str) -> anyhow::Result<String> {
        let row = self.admin.query_one("SELECT current_setting($1)", &[&name]).await?;
        Ok(row.try_get(0)?)
    }

    /// A database in which nothing is. Returns its URL.
    pub(crate) async fn new_database(&self, name: &str) -> anyhow::Result<String> {
        self.drop_database(name).await?;
        self.admin.batch_execute(&format!("CREATE DATABASE {name}")).await?;
        Ok(self.url(name))
    }

    pub(crate) fn url(&self, database: &str) -> String {
        format!("{}/{database}", self.url)
    }

    /// Leaves no work of the past to the measurement that comes.
    pub(crate) async fn settle(&self, url: &str) -> anyhow::Result<()> {
        connect(url).await?.batch_execute("VACUUM (ANALYZE)").await?;
        Ok(self.admin.batch_execute("CHECKPOINT").await?)
    }

    /// What all tables of a database take on the disk, with their indexes.
    pub(crate) async fn bytes(&self, url: &str) -> anyhow::Result<u64> {
        let size = "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint \
            FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
            WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema' AND c.relkind = 'r'";
        let row = connect(url).await?.query_one(size, &[]).await?;
        Ok(u64::try_from(row.try_get::<_, i64>(0)?)?)
    }

    pub(crate) async fn drop_database(&self, name: &str) -> anyhow::Result<()> {
        let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
        Ok(self.admin.batch_execute(&drop).await?)
    }
}

/// A connection of one's own.
pub(crate) async fn connect(url: &str) -> anyhow::Result<Client> {
    let (client, connection) =
        tokio_postgres::connect(url, NoTls).await.with_context(|| format!("no server at {url}"))?;
    tokio::spawn(connection);
    Ok(client)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_new_server_has_the_memory_that_is_wanted_and_commits_as_by_default() {
        let wanted = Wanted { shared_buffers: Some("32MB".to_owned()), ..Wanted::default() };
        let server = Server::at_or_new(&wanted).await.expect("started");
        let settings = server.settings().await.expect("durable");
        assert_eq!((&*settings.shared_buffers, &*settings.max_wal_size), ("32MB", "4GB"));
        let url = server.url("");
        let there = Wanted { url: Some(url.clone()), ..Wanted::default() };
        let there = Server::at_or_new(&there).await.expect("connected").settings().await;
        assert_eq!(
            there.expect("durable").shared_buffers,
            "32MB",
            "one that is there is left alone"
        );
        let hasty = "ALTER DATABASE postgres SET synchronous_commit = off";
        server.admin.batch_execute(hasty).await.expect("set");
        let hasty = Wanted { url: Some(url), ..Wanted::default() };
        let hasty = Server::at_or_new(&hasty).await.expect("connected").settings().await;
        assert!(hasty.is_err(), "commits are not durable");
    }

    #[test]
    fn a_quarter_of_the_memory_is_told_in_megabytes() {
        let memory = "MemTotal:        8048576 kB\nMemFree:          123456 kB\n";
        assert_eq!(quarter_of(memory).expect("understood"), 1964);
        assert!(quarter_of("MemFree: 1 kB").is_err());
    }
}
