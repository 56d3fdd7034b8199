//! Bringing the tables to the version of this release, and refusing those of another build.

use std::time::Duration;

use sqlx::{AssertSqlSafe, MySqlConnection, Row as _};

use super::{MySqlConnectError, MySqlOptions, sql::with_prefix};
use crate::store::site::{Migration, Schema, Standing, checksum_name, checksums};

/// Migrations in order. The table `migrations` says how many of them were made, and the table `meta`
/// which text each had. Each may be made again: DDL commits by itself, so that a crash may leave a part
/// of one.
pub(super) static MIGRATIONS: [Migration; 1] = [Migration {
    name: "records and outbox",
    about: "makes the tables of records and of the outbox, and their indexes",
    sql: concat!(
        include_str!("../../../migrations/mysql/0001_records.sql"),
        include_str!("../../../migrations/mysql/0002_outbox.sql"),
    ),
    breaks: true,
}];

/// What is there before the first of them.
const BEGINNING: &str = "\
    CREATE TABLE IF NOT EXISTS onceward_meta (name VARBINARY(64) NOT NULL PRIMARY KEY, \
    value VARBINARY(255) NOT NULL) ENGINE = InnoDB; \
    CREATE TABLE IF NOT EXISTS onceward_migrations (version BIGINT NOT NULL PRIMARY KEY, \
    applied_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP) ENGINE = InnoDB; \
    INSERT IGNORE INTO onceward_meta (name, value) VALUES ('name', UUID())";

/// What the statements of a migration end with.
const END: &str = "\n;\n";

/// How long a migration of another process is waited for.
const TIME_MAX: Duration = Duration::from_secs(60);

/// What the tables say of themselves.
pub(super) async fn schema_of(
    connection: &mut MySqlConnection,
    prefix: &str,
) -> Result<Schema, sqlx::Error> {
    let there = sqlx::query_scalar(
        "SELECT COUNT(*) FROM information_schema.tables \
         WHERE table_schema = DATABASE() AND table_name = ?",
    );
    let there = there.bind(format!("{prefix}migrations"));
    let there: i64 = there.fetch_one(&mut *connection).await?;
    if there == 0 {
        return Ok(Schema::new(0, None, &MIGRATIONS));
    }
    let version = with_prefix("SELECT COALESCE(MAX(version), 0) FROM onceward_migrations", prefix);
    let version: i64 =
        sqlx::query_scalar(AssertSqlSafe(version)).fetch_one(&mut *connection).await?;
    let found = u32::try_from(version).unwrap_or(0);
    let remembered =
        with_prefix("SELECT name, value FROM onceward_meta WHERE name LIKE 'migration %'", prefix);
    let remembered = sqlx::query(AssertSqlSafe(remembered)).fetch_all(connection).await?;
    let remembered = remembered.iter().map(|row| {
        let [name, value]: [Vec<u8>; 2] = [row.try_get_unchecked(0)?, row.try_get_unchecked(1)?];
        Ok([name, value].map(|text| String::from_utf8_lossy(&text).into_owned()).into())
    });
    let kept = checksums(remembered.collect::<Result<Vec<_>, sqlx::Error>>()?);
    let since = (found as usize <= MIGRATIONS.len()).then_some(1);
    Ok(Schema::new(found, since, &MIGRATIONS).compared(&kept, &MIGRATIONS))
}

/// Whether nothing has to be done, if anything may be done here at all.
fn is_done(prefix: &str, have: &Schema) -> Result<bool, MySqlConnectError> {
    let prefix = prefix.to_owned();
    match have.standing() {
        Standing::Current => Ok(true),
        Standing::Absent | Standing::Behind => Ok(false),
        Standing::Changed => {
            let migration = have.changed.map_or("", |step| step.migration.name);
            Err(MySqlConnectError::Changed { prefix, migration })
        }
        Standing::Ahead | Standing::Incompatible => {
            Err(MySqlConnectError::Newer { prefix, found: have.found, known: have.known })
        }
    }
}

/// Under a lock of the server that ends with the connection: processes that start together do it one
/// after the other.
pub(super) async fn bring_up(
    connection: &mut MySqlConnection,
    options: &MySqlOptions,
) -> Result<(), MySqlConnectError> {
    let prefix = &*options.prefix;
    let have = schema_of(connection, prefix).await?;
    if is_done(prefix, &have)? {
        return Ok(());
    }
    if !options.migrate {
        let (found, known) = (have.found, have.known);
        return Err(MySqlConnectError::NotMigrated { prefix: prefix.into(), found, known });
    }
    // A name of at most 64 characters. MySQL has no MD5 any more since 9.6.
    let lock = sqlx::query_scalar(
        "SELECT GET_LOCK(CONCAT('onceward ', LEFT(SHA2(CONCAT(DATABASE(), ?), 256), 40)), ?)",
    );
    let lock = lock.bind(prefix.to_owned()).bind(TIME_MAX.as_secs());
    let locked: Option<i64> = lock.fetch_one(&mut *connection).await?;
    if locked != Some(1) {
        return Err(MySqlConnectError::Busy);
    }
    let first = with_prefix(BEGINNING, prefix);
    sqlx::raw_sql(AssertSqlSafe(first)).execute(&mut *connection).await?;
    // Whoever waited for the lock must see what was done under it.
    let have = schema_of(connection, prefix).await?;
    if is_done(prefix, &have)? {
        return Ok(());
    }
    for step in &have.pending {
        let statements = step.migration.sql.split(END);
        for statement in statements.filter(|statement| !statement.trim().is_empty()) {
            let statement = with_prefix(statement, prefix);
            sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *connection).await?;
        }
        let text = with_prefix(
            "INSERT INTO onceward_meta (name, value) VALUES (?, ?) \
             ON DUPLICATE KEY UPDATE value = VALUES(value)",
            prefix,
        );
        let text = sqlx::query(AssertSqlSafe(text)).bind(checksum_name(step.version));
        text.bind(step.migration.checksum()).execute(&mut *connection).await?;
        // Last: who finds it finds all that the migration makes.
        let note = with_prefix("INSERT INTO onceward_migrations (version) VALUES (?)", prefix);
        let note = sqlx::query(AssertSqlSafe(note)).bind(i64::from(step.version));
        note.execute(&mut *connection).await?;
    }
    Ok(())
}
