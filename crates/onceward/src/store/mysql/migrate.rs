//! Bringing the tables to the version of this release, and who may use those of another version.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection, Row as _};

use super::{
    MySqlConnectError, MySqlOptions,
    open::{self, is_good_server},
    sql::with_prefix,
};
use crate::store::site::{
    By, Migration, Schema, Standing, Step, breaking, checksum_name, checksums, since,
};

/// Migrations in order. The table `migrations` says how many of them were made, and the table `meta`
/// which text each had. Each may be made again: DDL commits by itself, so that a crash may leave a part
/// of one.
pub(super) const MIGRATIONS: &[Migration] = &[Migration {
    name: "records and outbox",
    about: "makes the tables of records and of the outbox, and their indexes",
    sql: concat!(
        include_str!("../../../migrations/mysql/0001_records.sql"),
        include_str!("../../../migrations/mysql/0002_outbox.sql"),
    ),
    breaks: false,
}];

/// What is there before the first of them.
const BEGINNING: &str = "\
    CREATE TABLE IF NOT EXISTS onceward_meta (name VARBINARY(64) NOT NULL PRIMARY KEY, \
    value VARBINARY(255) NOT NULL) ENGINE = InnoDB; \
    CREATE TABLE IF NOT EXISTS onceward_migrations (version BIGINT NOT NULL PRIMARY KEY, \
    applied_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP) ENGINE = InnoDB; \
    INSERT IGNORE INTO onceward_meta (name, value) VALUES ('name', UUID())";

/// Under which name the tables remember who may use them.
const SINCE: &str = "compatible_since";

/// What the statements of a migration end with.
const END: &str = "\n;\n";

/// How long a migration of another process is waited for.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Sees to it that the tables can be used by this version.
pub(super) async fn at_start(
    connection: &mut MySqlConnection,
    options: &MySqlOptions,
) -> Result<(), MySqlConnectError> {
    bring_up(connection, options, MIGRATIONS, By::Start).await.map(|_| ())
}

/// Applies what is pending.
pub(super) async fn by_hand(options: &MySqlOptions) -> Result<Vec<Step>, MySqlConnectError> {
    open::readable(options)?;
    let mut connection = open::connect(options).await?;
    let applied = async {
        is_good_server(&mut connection).await?;
        bring_up(&mut connection, options, MIGRATIONS, By::Hand).await
    };
    let applied = applied.await;
    // With the connection ends the lock, and whatever was begun on it.
    let _ = connection.close().await;
    applied
}

/// What the tables say of themselves.
pub(super) async fn schema_of(
    connection: &mut MySqlConnection,
    prefix: &str,
    migrations: &'static [Migration],
) -> Result<Schema, sqlx::Error> {
    let there = sqlx::query_scalar(
        "SELECT COUNT(*) FROM information_schema.tables \
         WHERE table_schema = DATABASE() AND table_name = ?",
    );
    let there = there.bind(format!("{prefix}migrations"));
    let there: i64 = there.fetch_one(&mut *connection).await?;
    if there == 0 {
        return Ok(Schema::new(0, None, migrations));
    }
    let version = with_prefix("SELECT COALESCE(MAX(version), 0) FROM onceward_migrations", prefix);
    let version: i64 =
        sqlx::query_scalar(AssertSqlSafe(version)).fetch_one(&mut *connection).await?;
    let found = u32::try_from(version).unwrap_or(0);
    let remembered = with_prefix(
        "SELECT name, value FROM onceward_meta \
         WHERE name = 'compatible_since' OR name LIKE 'migration %'",
        prefix,
    );
    let remembered = sqlx::query(AssertSqlSafe(remembered)).fetch_all(connection).await?;
    let remembered = remembered.iter().map(|row| {
        let [name, value]: [Vec<u8>; 2] = [row.try_get_unchecked(0)?, row.try_get_unchecked(1)?];
        Ok([name, value].map(|text| String::from_utf8_lossy(&text).into_owned()).into())
    });
    let remembered: Vec<(String, String)> = remembered.collect::<Result<_, sqlx::Error>>()?;
    let since = remembered.iter().find(|(name, _)| name == SINCE);
    let since = since.and_then(|(_, version)| version.parse().ok());
    Ok(Schema::new(found, since, migrations).compared(&checksums(remembered), migrations))
}

/// Whether nothing has to be done, if anything may be done here at all.
fn is_done(
    prefix: &str,
    have: &Schema,
    migrations: &'static [Migration],
    by: By,
) -> Result<bool, MySqlConnectError> {
    let prefix = prefix.to_owned();
    match have.standing() {
        Standing::Current | Standing::Ahead => Ok(true),
        Standing::Absent | Standing::Behind => match breaking(have.found, migrations) {
            Some(migration) if by == By::Start => {
                Err(MySqlConnectError::Breaking { prefix, migration: migration.name })
            }
            _ => Ok(false),
        },
        Standing::Changed => {
            let migration = have.changed.map_or("", |step| step.migration.name);
            Err(MySqlConnectError::Changed { prefix, migration })
        }
        Standing::Incompatible => {
            Err(MySqlConnectError::Newer { prefix, found: have.found, known: have.known })
        }
    }
}

/// Under a lock of the server that ends with the connection: processes that start together do it one
/// after the other.
async fn bring_up(
    connection: &mut MySqlConnection,
    options: &MySqlOptions,
    migrations: &'static [Migration],
    by: By,
) -> Result<Vec<Step>, MySqlConnectError> {
    let prefix = &*options.prefix;
    let have = schema_of(connection, prefix, migrations).await?;
    if is_done(prefix, &have, migrations, by)? {
        return Ok(Vec::new());
    }
    if by == By::Start && !options.migrate {
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
    let have = schema_of(connection, prefix, migrations).await?;
    if is_done(prefix, &have, migrations, by)? {
        return Ok(Vec::new());
    }
    for step in &have.pending {
        let statements = step.migration.sql.split(END);
        for statement in statements.filter(|statement| !statement.trim().is_empty()) {
            let statement = with_prefix(statement, prefix);
            sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *connection).await?;
        }
        let since = since(&migrations[..step.version as usize]).to_string();
        remember(connection, prefix, SINCE, &since).await?;
        let checksum = step.migration.checksum();
        remember(connection, prefix, &checksum_name(step.version), &checksum).await?;
        // Last: who finds it finds all that the migration makes, and who may use it.
        let note = with_prefix("INSERT INTO onceward_migrations (version) VALUES (?)", prefix);
        let note = sqlx::query(AssertSqlSafe(note)).bind(i64::from(step.version));
        note.execute(&mut *connection).await?;
    }
    Ok(have.pending)
}

async fn remember(
    connection: &mut MySqlConnection,
    prefix: &str,
    name: &str,
    value: &str,
) -> Result<(), sqlx::Error> {
    let sql = with_prefix(
        "INSERT INTO onceward_meta (name, value) VALUES (?, ?) \
         ON DUPLICATE KEY UPDATE value = VALUES(value)",
        prefix,
    );
    sqlx::query(AssertSqlSafe(sql)).bind(name).bind(value).execute(connection).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use onceward_testbed::MariaDb;

    use super::*;
    use crate::{
        store::{MySqlStore, Reservation, Store as _, Write, Written},
        testing::samples::{ask, reply},
    };

    /// The migrations of a later release.
    fn later(more: &[Migration]) -> &'static [Migration] {
        [MIGRATIONS, more].concat().leak()
    }

    async fn migrate(
        options: &MySqlOptions,
        migrations: &'static [Migration],
        by: By,
    ) -> Result<usize, MySqlConnectError> {
        let mut connection = open::connect(options).await?;
        bring_up(&mut connection, options, migrations, by).await.map(|applied| applied.len())
    }

    /// A request from its reserve to its reply.
    async fn works(store: &MySqlStore, key: &str) {
        let Ok(Reservation::Granted { lease, .. }) = store.reserve(ask(key)).await else {
            panic!("not granted")
        };
        let written = store.write(&lease, Write::Complete(reply("done"))).await;
        assert!(matches!(written, Ok(Written::Applied)), "{written:?}");
    }

    const ADDS: Migration = Migration {
        name: "adds",
        about: "a table, and a column with a default",
        sql: "CREATE TABLE IF NOT EXISTS onceward_colours (colour INT PRIMARY KEY)\n;\n\
              ALTER TABLE onceward_records ADD COLUMN colour INT NOT NULL DEFAULT 7\n;\n",
        breaks: false,
    };

    const BREAKS: Migration = Migration {
        name: "breaks",
        about: "a table has another name",
        sql: "ALTER TABLE onceward_records RENAME TO onceward_records_2\n;\n",
        breaks: true,
    };

    #[tokio::test]
    async fn old_and_new_processes_work_side_by_side_until_a_migration_breaks() {
        let server = MariaDb::shared();
        let options = MySqlOptions::new(server.url(&server.create_database()));
        let old = MySqlStore::connect(options.clone()).await.expect("a store");
        works(&old, "before").await;

        let next = later(&[ADDS]);
        assert_eq!(migrate(&options, next, By::Start).await.expect("added"), 1);
        assert_eq!(migrate(&options, next, By::Start).await.expect("there"), 0, "once");
        works(&old, "running").await;
        let started = MySqlStore::connect(options.clone()).await.expect("an old one starts");
        works(&started, "started").await;

        let after = later(&[ADDS, BREAKS]);
        let refused =
            migrate(&options, after, By::Start).await.expect_err("old ones may be at work");
        assert!(matches!(refused, MySqlConnectError::Breaking { migration: "breaks", .. }));
        works(&old, "still").await;
        assert_eq!(migrate(&options, after, By::Hand).await.expect("asked for"), 1);
        assert!(old.reserve(ask("late")).await.is_err(), "it fails, and does nothing else");
        let refused = MySqlStore::connect(options.clone()).await.expect_err("shut out");
        assert!(
            matches!(refused, MySqlConnectError::Newer { found: 3, known: 1, .. }),
            "{refused}"
        );
        let fresh = options.prefix("fresh_");
        let made = migrate(&fresh, after, By::Start).await.expect("nobody is at work there");
        assert_eq!(made, after.len());
    }
}
