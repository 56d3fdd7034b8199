//! The PostgreSQL server: checked for its durability, with a new database for each measurement.

use anyhow::{Context as _, ensure};
use onceward_testbed::Postgres;
use serde::Serialize;
use tokio_postgres::{Client, NoTls};

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
}

impl Server {
    /// The one of this URL, which is without a database's name; or a new one, which ends with this.
    pub(crate) async fn at_or_new(url: Option<&str>) -> anyhow::Result<Self> {
        let started = url.is_none().then(Postgres::start);
        let new = started.as_ref().map(|server| server.url(""));
        let url = url.or(new.as_deref()).unwrap_or_default().trim_end_matches('/').to_owned();
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
