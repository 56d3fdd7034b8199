//! SQLite with a commit for each batch, and plain bytes with a sync for each.

use std::{
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail, ensure};
use futures_util::future::BoxFuture;
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Executor as _, Row as _, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};

use super::{BODY, FINGERPRINT, SCOPE, STATUS};
use crate::stores::drive::Work;

fn path(url: &str) -> anyhow::Result<&Path> {
    url.strip_prefix("file:").map(Path::new).context("a file")
}

/// The primary key is the row's number: rows are appended, and only the index is random.
const TABLE: &str = "CREATE TABLE idempotency_keys (id INTEGER PRIMARY KEY, scope BLOB NOT NULL, \
    key TEXT NOT NULL, fingerprint BLOB NOT NULL, status INTEGER, body BLOB, UNIQUE (scope, key))";

pub(super) async fn sqlite(url: &str, each: usize) -> anyhow::Result<Vec<Box<dyn Work>>> {
    let mut connection = SqliteConnectOptions::new()
        .filename(path(url)?)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .disable_statement_logging()
        .connect()
        .await?;
    connection.execute(TABLE).await?;
    let rows = |row: &str| vec![row; each].join(", ");
    // Whole transactions in one string, since each statement is a way to another thread and back.
    let reserve = format!(
        "BEGIN IMMEDIATE; INSERT INTO idempotency_keys (scope, key, fingerprint) VALUES {} \
         ON CONFLICT DO NOTHING; COMMIT; SELECT changes()",
        rows("(?, ?, ?)")
    );
    let complete = format!(
        "BEGIN IMMEDIATE; UPDATE idempotency_keys SET status = v.column3, body = v.column4 \
         FROM (VALUES {}) AS v WHERE scope = v.column1 AND key = v.column2 AND status IS NULL; COMMIT; SELECT changes()",
        rows("(?, ?, ?, ?)")
    );
    let look_up = format!(
        "SELECT fingerprint, status, body FROM (VALUES {}) AS v \
         CROSS JOIN idempotency_keys ON scope = v.column1 AND key = v.column2",
        rows("(?, ?)")
    );
    Ok(vec![Box::new(Sqlite { connection, reserve, complete, look_up })])
}

struct Sqlite {
    connection: SqliteConnection,
    reserve: String,
    complete: String,
    look_up: String,
}

impl Work for Sqlite {
    fn first<'a>(&'a mut self, keys: &'a [String]) -> BoxFuture<'a, anyhow::Result<()>> {
        Box::pin(async move {
            let mut reserve = sqlx::query(AssertSqlSafe(self.reserve.clone()));
            for key in keys {
                reserve = reserve.bind(SCOPE).bind(key).bind(FINGERPRINT);
            }
            let taken: i64 = reserve.fetch_one(&mut self.connection).await?.try_get(0)?;
            let mut complete = sqlx::query(AssertSqlSafe(self.complete.clone()));
            for key in keys {
                complete = complete.bind(SCOPE).bind(key).bind(STATUS).bind(BODY);
            }
            let completed: i64 = complete.fetch_one(&mut self.connection).await?.try_get(0)?;
            let all = keys.len() as i64;
            ensure!((taken, completed) == (all, all), "{taken} and {completed} of {all} rows");
            Ok(())
        })
    }

    fn replay<'a>(&'a mut self, keys: &'a [String]) -> BoxFuture<'a, anyhow::Result<()>> {
        Box::pin(async move {
            let mut look_up = sqlx::query(AssertSqlSafe(self.look_up.clone()));
            for key in keys {
                look_up = look_up.bind(SCOPE).bind(key);
            }
            let rows = look_up.fetch_all(&mut self.connection).await?;
            ensure!(rows.len() == keys.len(), "{} of {} rows", rows.len(), keys.len());
            for row in rows {
                ensure!(row.try_get::<&[u8], _>("body")? == BODY, "another reply");
            }
            Ok(())
        })
    }
}

/// A file beside the place of the store.
pub(super) fn append(url: &str) -> anyhow::Result<Vec<Box<dyn Work>>> {
    let path: PathBuf = path(url)?.with_extension("log");
    Ok(vec![Box::new(Append { file: File::create(path)?, bytes: Vec::new() })])
}

struct Append {
    file: File,
    bytes: Vec<u8>,
}

impl Append {
    fn sync(&mut self) -> anyhow::Result<()> {
        self.file.write_all(&self.bytes)?;
        self.bytes.clear();
        Ok(self.file.sync_data()?)
    }
}

impl Work for Append {
    fn first<'a>(&'a mut self, keys: &'a [String]) -> BoxFuture<'a, anyhow::Result<()>> {
        Box::pin(async move {
            for key in keys {
                self.bytes.extend_from_slice(&[SCOPE, key.as_bytes(), FINGERPRINT].concat());
            }
            self.sync()?;
            for key in keys {
                self.bytes.extend_from_slice(&[SCOPE, key.as_bytes(), BODY].concat());
            }
            self.sync()
        })
    }

    fn replay<'a>(&'a mut self, _: &'a [String]) -> BoxFuture<'a, anyhow::Result<()>> {
        Box::pin(async { bail!("what is appended is not found again by its key") })
    }
}
