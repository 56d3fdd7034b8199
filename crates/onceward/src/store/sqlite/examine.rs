//! Whether a file can be relied on: a look from outside, without a store in it.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::Path,
};

use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection};

use super::{
    SqliteOptions,
    migrate::{self, MIGRATIONS},
    open::{self, OpenError, failed, io_error},
};
use crate::{
    clock::{Clock as _, SystemClock, Timestamp},
    store::site::{Finding, Schema, Site, SiteFuture, Standing, Step},
};

mod place; // the file system, its room, who may write there

impl Site for SqliteOptions {
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

const INTEGRITY: &str = "integrity";

/// A connection that leaves nothing behind.
///
/// One that merely may not write would leave a log beside the file. Where there is a log, somebody is
/// at work or has crashed, and it is read too. Where there is none, nobody has the file open, and it
/// is read as it is.
pub(super) async fn connect(path: &Path) -> Result<SqliteConnection, sqlx::Error> {
    open::reading(path).immutable(!has_log(path)).connect().await
}

fn has_log(path: &Path) -> bool {
    open::beside(path, "-wal").exists()
}

async fn examine(options: &SqliteOptions) -> Result<Vec<Finding>, OpenError> {
    let path = migrate::absolute(options)?;
    let there = match open::exists(&path) {
        Err(OpenError::LogWithoutFile(_)) => {
            return Ok(vec![Finding::broken(
                "file",
                "missing, while its write-ahead log is there",
                "restore the file, or remove both",
            )]);
        }
        there => there?,
    };
    let metadata = if there { Some(fs::metadata(&path)) } else { None };
    let metadata = metadata.transpose().map_err(|source| io_error(&path, source))?;
    if metadata.as_ref().is_some_and(|metadata| metadata.len() == 0) {
        return Ok(vec![Finding::broken(
            "file",
            "empty: it may have been cut off",
            "if it never held records, remove it and start again",
        )]);
    }
    let mut findings = vec![match &metadata {
        Some(metadata) => Finding::ok("file", format!("{} MiB", metadata.len() >> 20)),
        None => Finding::note("file", "not there yet", "the first start makes it"),
    }];
    findings.extend(place::examine(&path, metadata.as_ref()));
    if there {
        inside(&path, &mut findings).await?;
    } else {
        findings.push(Finding::schema(&Schema::new(0, None, MIGRATIONS)));
    }
    Ok(findings)
}

/// What SQLite says of the file.
async fn inside(path: &Path, findings: &mut Vec<Finding>) -> Result<(), OpenError> {
    let mut connection = connect(path).await.map_err(|error| failed(path, error))?;
    let made_by = match open::made_by(&mut connection).await {
        Err(error) if super::error::is_damage(&error) && !super::error::is_no_database(&error) => {
            findings.push(damaged(error.to_string()));
            return Ok(());
        }
        made_by => made_by.map_err(|error| failed(path, error))?,
    };
    let schema = made_by.ours(path)?;
    let mut told = |name, looked: Result<Finding, sqlx::Error>| {
        findings.push(looked.unwrap_or_else(|error| Finding::failed(name, error.to_string())));
    };
    told("journal_mode", journal_mode(&mut connection, path).await);
    told("synchronous", Ok(Finding::ok("synchronous", "FULL, set whenever the file is opened")));
    told(INTEGRITY, integrity(&mut connection).await);
    let standing = schema.standing();
    told("schema", Ok(Finding::schema(&schema)));
    if standing == Standing::Current {
        told("tables and indexes", objects(&mut connection).await);
    }
    if standing != Standing::Behind {
        told("canary", canary(&mut connection).await);
    }
    told("identity", identity(&mut connection).await);
    connection.close().await.map_err(|error| failed(path, error))
}

async fn journal_mode(
    connection: &mut SqliteConnection,
    path: &Path,
) -> Result<Finding, sqlx::Error> {
    const NAME: &str = "journal_mode";
    let mode = if has_log(path) {
        sqlx::query_scalar("PRAGMA journal_mode").fetch_one(connection).await?
    } else {
        // A connection that takes the file for unchangeable does not say.
        let version = format_version(path).map_err(sqlx::Error::Io)?;
        (if version == 2 { "wal" } else { "delete" }).to_owned()
    };
    Ok(if mode == "wal" {
        Finding::ok(NAME, mode)
    } else {
        Finding::note(NAME, mode, "somebody else has changed it; the next start makes it wal again")
    })
}

/// How the file is to be written, by its header.
fn format_version(path: &Path) -> io::Result<u8> {
    let mut header = [0; 19];
    File::open(path)?.read_exact(&mut header)?;
    Ok(header[18])
}

async fn integrity(connection: &mut SqliteConnection) -> Result<Finding, sqlx::Error> {
    let verdict = sqlx::query_scalar("PRAGMA integrity_check(1)").fetch_one(connection).await;
    let verdict = match verdict {
        Err(error) if super::error::is_damage(&error) => error.to_string(),
        verdict => verdict?,
    };
    Ok(if verdict == "ok" { Finding::ok(INTEGRITY, verdict) } else { damaged(verdict) })
}

fn damaged(how: String) -> Finding {
    Finding::broken(INTEGRITY, how, "restore the file from a backup")
}

/// Compares the schema with the one that the migrations make, by making it in memory.
async fn objects(connection: &mut SqliteConnection) -> Result<Finding, sqlx::Error> {
    const NAME: &str = "tables and indexes";
    const ALL: &str = "SELECT type || ' ' || name, sql FROM sqlite_schema WHERE sql IS NOT NULL";
    type Object = (String, String);
    let mut model = SqliteConnection::connect("sqlite::memory:").await?;
    for migration in MIGRATIONS {
        open::execute(&mut model, migration.sql).await?;
    }
    let expected: Vec<Object> = sqlx::query_as(ALL).fetch_all(&mut model).await?;
    model.close().await?;
    let there: Vec<Object> = sqlx::query_as(ALL).fetch_all(connection).await?;
    let missing: Vec<&str> = expected
        .iter()
        .filter(|object| !there.contains(object))
        .map(|(name, _)| name.as_str())
        .collect();
    Ok(if missing.is_empty() {
        Finding::ok(NAME, format!("all {} that the migrations make", expected.len()))
    } else {
        Finding::broken(
            NAME,
            format!("missing or changed: {}", missing.join(", ")),
            "restore them from the migrations: without them keys may run twice, or lists are read as a \
             whole",
        )
    })
}

async fn identity(connection: &mut SqliteConnection) -> Result<Finding, sqlx::Error> {
    let identity = sqlx::query_scalar("SELECT value FROM onceward_meta WHERE name = 'identity'");
    let identity: Option<String> = identity.fetch_optional(connection).await?;
    Ok(Finding::identity(identity.as_deref()))
}

async fn canary(connection: &mut SqliteConnection) -> Result<Finding, sqlx::Error> {
    let found = sqlx::query_scalar("SELECT found FROM onceward_regressions");
    let found: Option<i64> = found.fetch_optional(&mut *connection).await?;
    let alive = sqlx::query_scalar("SELECT count(*) FROM onceward_beats WHERE at > ?");
    let alive = alive.bind(SystemClock.now().as_micros() - 10_000_000);
    let alive: i64 = alive.fetch_one(connection).await?;
    let found = found.map(Timestamp::from_micros);
    Ok(Finding::canary(found, u64::try_from(alive).unwrap_or(0)))
}
