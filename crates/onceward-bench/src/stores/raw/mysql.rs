//! Statements of many rows over sqlx, each committed by itself.

use anyhow::ensure;
use futures_util::future::BoxFuture;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, MySqlConnection, Row as _};

use super::{BODY, FINGERPRINT, SCOPE, STATUS};
use crate::stores::drive::Work;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS idempotency_keys (scope VARBINARY(32) NOT NULL, \
    `key` VARBINARY(255) NOT NULL, fingerprint BINARY(32) NOT NULL, status SMALLINT, body BLOB, \
    PRIMARY KEY (scope, `key`))";

pub(super) async fn workers(
    url: &str,
    links: usize,
    each: usize,
) -> anyhow::Result<Vec<Box<dyn Work>>> {
    let rows = |row: &str| vec![row; each].join(", ");
    let mut workers: Vec<Box<dyn Work>> = Vec::new();
    for _ in 0..links {
        let mut connection = MySqlConnection::connect(url).await?;
        connection.execute(TABLE).await?;
        workers.push(Box::new(Link {
            connection,
            reserve: format!(
                "INSERT IGNORE INTO idempotency_keys (scope, `key`, fingerprint) VALUES {}",
                rows("(?, ?, ?)")
            ),
            complete: format!(
                "INSERT INTO idempotency_keys (scope, `key`, fingerprint, status, body) VALUES {} \
                 ON DUPLICATE KEY UPDATE status = VALUES(status), body = VALUES(body)",
                rows("(?, ?, ?, ?, ?)")
            ),
            look_up: format!(
                "SELECT fingerprint, status, body FROM idempotency_keys \
                 WHERE scope = ? AND `key` IN ({})",
                rows("?")
            ),
        }));
    }
    Ok(workers)
}

struct Link {
    connection: MySqlConnection,
    reserve: String,
    complete: String,
    look_up: String,
}

impl Work for Link {
    fn first<'a>(&'a mut self, keys: &'a [String]) -> BoxFuture<'a, anyhow::Result<()>> {
        Box::pin(async move {
            let mut reserve = sqlx::query(AssertSqlSafe(self.reserve.clone()));
            for key in keys {
                reserve = reserve.bind(SCOPE).bind(key.as_bytes()).bind(FINGERPRINT);
            }
            let taken = reserve.execute(&mut self.connection).await?.rows_affected();
            let mut complete = sqlx::query(AssertSqlSafe(self.complete.clone()));
            for key in keys {
                complete = complete.bind(SCOPE).bind(key.as_bytes()).bind(FINGERPRINT);
                complete = complete.bind(STATUS).bind(BODY);
            }
            // A row that is changed counts twice.
            let completed = complete.execute(&mut self.connection).await?.rows_affected() / 2;
            let all = keys.len() as u64;
            ensure!((taken, completed) == (all, all), "{taken} and {completed} of {all} rows");
            Ok(())
        })
    }

    fn replay<'a>(&'a mut self, keys: &'a [String]) -> BoxFuture<'a, anyhow::Result<()>> {
        Box::pin(async move {
            let mut look_up = sqlx::query(AssertSqlSafe(self.look_up.clone())).bind(SCOPE);
            for key in keys {
                look_up = look_up.bind(key.as_bytes());
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
