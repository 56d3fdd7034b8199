//! Whether a database can be relied on: a look from outside, without a store in it.
//!
//! Everything is asked without prepared statements and as text, so that it passes any pool, and in
//! statements that only read.

use std::{
    io,
    time::{Instant, SystemTime},
};

use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _, postgres::PgConnectOptions};
use tokio::time::timeout;

use super::{PgConnectError, PgOptions, link::CALL_TIME_MAX, migrate, open};
use crate::store::site::{ASKED, Asked, Finding, Schema, Site, SiteFuture, Standing, Step, skew};

mod durable; // what a crash takes with it
mod inside; // our schema: objects, rights, rows
mod objects; // what the migrations make
mod pool; // who stands between us and the server
mod server; // version, role, limits

impl Site for PgOptions {
    fn examine(&self) -> SiteFuture<'_, Vec<Finding>> {
        Box::pin(async { Ok(examine(self).await?) })
    }

    fn schema(&self) -> SiteFuture<'_, Schema> {
        Box::pin(async { Ok(migrate::schema(self).await?) })
    }

    fn migrate(&self) -> SiteFuture<'_, Vec<Step>> {
        Box::pin(async { Ok(migrate::by_hand(self).await?) })
    }
}

async fn examine(options: &PgOptions) -> Result<Vec<Finding>, PgConnectError> {
    let address = open::readable(options)?;
    let connection = open::connect(options).await?;
    let mut look = Look { connection, options, address };
    let mut findings = Vec::new();
    let mut told = |name, looked: Looked| match looked {
        Ok(found) => findings.extend(found),
        Err(error) => findings.push(Finding::failed(name, error.to_string())),
    };
    told("server version", look.version().await);
    told("primary", look.primary().await);
    told("pool", look.pool().await);
    told("transport", look.transport().await);
    told("durability", look.durability().await);
    told("synchronous standbys", look.standbys().await);
    told("isolation", look.isolation().await);
    told("clock skew", look.clock().await);
    told("connections", look.connections().await);
    told("autovacuum", look.autovacuum().await);
    let schema = migrate::schema_of(&mut look.connection, &options.schema, migrate::MIGRATIONS);
    let schema = schema.await;
    let standing = schema.as_ref().map(Schema::standing).ok();
    told("schema", schema.map(|schema| vec![Finding::schema(&schema)]));
    told("permissions", look.permissions(standing).await);
    if standing.is_some_and(|standing| standing != Standing::Absent) {
        // What a newer version has made is not known here.
        if standing == Some(Standing::Current) {
            told("tables, indexes and functions", look.objects().await);
        }
        told("dead rows", look.dead_rows().await);
        told("identity", look.identity().await);
        told("canary", look.canary().await);
    }
    // Nothing was begun on it.
    let _ = look.connection.close().await;
    Ok(findings)
}

/// What one look found.
type Looked = Result<Vec<Finding>, sqlx::Error>;

/// A row as text.
type Texts = Vec<Option<String>>;

struct Look<'a> {
    connection: PgConnection,
    options: &'a PgOptions,
    address: PgConnectOptions,
}

impl Look<'_> {
    /// The rows of a statement, all of whose columns are text.
    async fn rows(&mut self, sql: impl Into<String>) -> Result<Vec<Texts>, sqlx::Error> {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql.into()));
        let rows = timeout(CALL_TIME_MAX, sql.fetch_all(&mut self.connection)).await;
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no answer in time");
        let rows = rows.map_err(late)??;
        rows.iter().map(|row| (0..row.len()).map(|column| row.try_get(column)).collect()).collect()
    }

    /// The first row of a statement.
    async fn row(&mut self, sql: impl Into<String>) -> Result<Texts, sqlx::Error> {
        self.rows(sql).await?.into_iter().next().ok_or(sqlx::Error::RowNotFound)
    }

    /// One value.
    async fn one(&mut self, sql: impl Into<String>) -> Result<String, sqlx::Error> {
        Ok(self.row(sql).await?.into_iter().next().flatten().unwrap_or_default())
    }

    /// What a setting is here, for this role in this database.
    async fn setting(&mut self, name: &str) -> Result<String, sqlx::Error> {
        self.one(format!("SELECT current_setting('{name}', true)")).await
    }

    /// The same statement in our schema.
    fn ours(&self, sql: &str) -> String {
        open::in_schema(sql, &self.options.schema)
    }

    async fn clock(&mut self) -> Looked {
        let mut asked = Vec::new();
        for _ in 0..ASKED {
            let (at, begun) = (SystemTime::now(), Instant::now());
            let answer = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint::text";
            let answer = self.one(answer).await?;
            let took = begun.elapsed();
            asked.extend(answer.parse().ok().map(|answer| Asked { at, took, answer }));
        }
        Ok(vec![skew(&asked)])
    }
}
