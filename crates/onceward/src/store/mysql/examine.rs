//! Whether a database can be relied on: a look that only reads.

use std::time::{Instant, SystemTime};

use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection};

use super::{
    MySqlConnectError, MySqlOptions, migrate,
    open::{self, PACKET_MIN},
};
use crate::store::site::{ASKED, Asked, Finding, Schema, Site, SiteFuture, Standing, Step, skew};

mod inside; // our tables

impl Site for MySqlOptions {
    fn examine(&self) -> SiteFuture<'_, Vec<Finding>> {
        Box::pin(async { Ok(examine(self).await?) })
    }

    fn schema(&self) -> SiteFuture<'_, Schema> {
        Box::pin(async {
            let mut connection = open::connect(self).await?;
            let schema =
                migrate::schema_of(&mut connection, &self.prefix, migrate::MIGRATIONS).await?;
            // Nothing was begun on it.
            let _ = connection.close().await;
            Ok(schema)
        })
    }

    fn migrate(&self) -> SiteFuture<'_, Vec<Step>> {
        Box::pin(async { Ok(migrate::by_hand(self).await?) })
    }
}

async fn examine(options: &MySqlOptions) -> Result<Vec<Finding>, MySqlConnectError> {
    let mut look = open::connect(options).await?;
    let mut findings = vec![
        version(&mut look).await,
        writable(&mut look).await,
        primaries(&mut look).await,
        flushed(&mut look).await,
        binlog(&mut look).await,
        binlog_format(&mut look).await,
        packets(&mut look).await,
        clock(&mut look).await,
    ];
    let schema = migrate::schema_of(&mut look, &options.prefix, migrate::MIGRATIONS).await?;
    findings.push(Finding::schema(&schema));
    let standing = schema.standing();
    findings.push(inside::permissions(&mut look, &options.prefix, standing).await);
    if standing != Standing::Absent {
        findings.push(engine(&mut look, &options.prefix).await);
    }
    // What a newer version has made is not known here.
    if standing == Standing::Current {
        findings.push(inside::indexes(&mut look, &options.prefix).await);
    }
    // Nothing was begun on it.
    let _ = look.close().await;
    Ok(findings)
}

/// A setting of the server, as text.
async fn setting(look: &mut MySqlConnection, name: &str) -> Result<Option<String>, sqlx::Error> {
    let sql = format!("SELECT CAST(@@GLOBAL.{name} AS CHAR)");
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(look).await
}

async fn version(look: &mut MySqlConnection) -> Finding {
    const NAME: &str = "server version";
    match setting(look, "version").await {
        Ok(Some(version)) if open::is_new_enough(&version) => Finding::ok(NAME, version),
        Ok(Some(version)) => {
            Finding::broken(NAME, version, "use MySQL 8.0.16 or MariaDB 10.6 or later")
        }
        _ => Finding::failed(NAME, "it does not say"),
    }
}

async fn writable(look: &mut MySqlConnection) -> Finding {
    const NAME: &str = "primary";
    match setting(look, "read_only").await.ok().flatten().as_deref() {
        Some("0" | "OFF") => Finding::ok(NAME, "it takes writes"),
        Some(_) => Finding::broken(NAME, "it is read-only", "use the primary"),
        None => Finding::failed(NAME, "it does not say"),
    }
}

async fn primaries(look: &mut MySqlConnection) -> Finding {
    const NAME: &str = "one primary";
    match open::many_primaries(look).await {
        Ok(None) => Finding::ok(NAME, "no other server takes writes"),
        Ok(Some(kind)) => {
            let advice = "use a server with one primary: a key may run twice on two of them";
            Finding::broken(NAME, kind, advice)
        }
        Err(error) => Finding::failed(NAME, error.to_string()),
    }
}

async fn flushed(look: &mut MySqlConnection) -> Finding {
    const NAME: &str = "innodb_flush_log_at_trx_commit";
    match setting(look, NAME).await.ok().flatten() {
        Some(value) if value == "1" => Finding::ok(NAME, value),
        Some(value) => {
            let advice = "set innodb_flush_log_at_trx_commit to 1: a crash takes up to a second of \
                          commits with it";
            Finding::volatile(NAME, value, advice)
        }
        None => Finding::failed(NAME, "it does not say"),
    }
}

/// Replicas and restores are made from it.
async fn binlog(look: &mut MySqlConnection) -> Finding {
    const NAME: &str = "sync_binlog";
    match setting(look, "log_bin").await.ok().flatten().as_deref() {
        Some("0" | "OFF") => return Finding::ok(NAME, "there is no binary log"),
        Some(_) => {}
        None => return Finding::failed(NAME, "it does not say"),
    }
    match setting(look, NAME).await.ok().flatten() {
        Some(value) if value == "1" => Finding::ok(NAME, value),
        Some(value) => {
            let advice =
                "set sync_binlog to 1: replicas may lack what was committed before a crash";
            Finding::volatile(NAME, value, advice)
        }
        None => Finding::failed(NAME, "it does not say"),
    }
}

/// InnoDB refuses writes at READ COMMITTED, where our connections are, with statements in the log.
async fn binlog_format(look: &mut MySqlConnection) -> Finding {
    const NAME: &str = "binlog_format";
    let on = setting(look, "log_bin").await.ok().flatten();
    match (on.as_deref(), setting(look, NAME).await.ok().flatten()) {
        (Some("0" | "OFF"), _) => Finding::ok(NAME, "there is no binary log"),
        (_, Some(format)) if format == "STATEMENT" => Finding::broken(
            NAME,
            format,
            "set binlog_format to ROW or MIXED: nothing can be written",
        ),
        (_, Some(format)) => Finding::ok(NAME, format),
        (_, None) => Finding::failed(NAME, "it does not say"),
    }
}

async fn packets(look: &mut MySqlConnection) -> Finding {
    const NAME: &str = "max_allowed_packet";
    let size = setting(look, NAME).await.ok().flatten();
    match size.as_ref().and_then(|size| size.parse::<u64>().ok()) {
        Some(size) if size >= PACKET_MIN => Finding::ok(NAME, size.to_string()),
        Some(size) => Finding::broken(NAME, size.to_string(), "set it to 8388608 or more"),
        None => Finding::failed(NAME, "it does not say"),
    }
}

async fn clock(look: &mut MySqlConnection) -> Finding {
    let mut asked = Vec::with_capacity(ASKED);
    for _ in 0..ASKED {
        let (at, began) = (SystemTime::now(), Instant::now());
        let now = "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)";
        let Ok(answer) = sqlx::query_scalar(now).fetch_one(&mut *look).await else { break };
        asked.push(Asked { at, took: began.elapsed(), answer });
    }
    skew(&asked)
}

async fn engine(look: &mut MySqlConnection, prefix: &str) -> Finding {
    const NAME: &str = "engine";
    let others = sqlx::query_scalar(
        "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() \
         AND LEFT(table_name, CHAR_LENGTH(?)) = ? AND engine <> 'InnoDB'",
    );
    let others = others.bind(prefix.to_owned()).bind(prefix.to_owned());
    match others.fetch_one(look).await {
        Ok(0_i64) => Finding::ok(NAME, "all tables are InnoDB"),
        Ok(count) => {
            let found = format!("{count} tables are not InnoDB");
            Finding::broken(NAME, found, "a table of another engine has no transactions")
        }
        Err(error) => Finding::failed(NAME, error.to_string()),
    }
}
