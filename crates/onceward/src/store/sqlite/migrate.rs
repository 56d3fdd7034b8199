//! Bringing the file to the version of this release, and who may use one of another version.

use std::path::{self, Path, PathBuf};

use sqlx::{AssertSqlSafe, Connection as _, SqliteConnection};

use super::{
    SqliteOptions,
    open::{self, APPLICATION_ID, OpenError, execute, failed},
};
use crate::store::site::{
    By, Migration, Schema, Standing, Step, breaking, checksum_name, checksums, since,
};

macro_rules! migration {
    ($name:literal, $file:literal, $about:literal) => {
        Migration {
            name: $name,
            about: $about,
            sql: include_str!(concat!("../../../migrations/sqlite/", $file, ".sql")),
            breaks: false,
        }
    };
}

/// Migrations in order. The file's `user_version` says how many of them it has, and its table of names and
/// values which text each had: one that was released is never edited, but another one added.
pub(super) const MIGRATIONS: &[Migration] = &[
    migration!("records", "0001_records", "records, steps, requests and audit records"),
    migration!("outbox", "0002_outbox", "messages of the outbox"),
    migration!("listing", "0003_listing", "indexes for lists, the latest first"),
    migration!("scope_keys", "0004_scope_keys", "the data keys of scopes, for sealed replies"),
    migration!("queued", "0005_queued", "work that was accepted for later"),
    migration!("reconciling", "0006_reconciling", "what was done to learn unknown outcomes"),
    migration!("canary", "0007_canary", "beats of processes, and what was found to be lost"),
    migration!("overdue", "0008_overdue", "an index of accepted work by its time limit"),
    migration!("incidents", "0009_incidents", "an incident that is told twice is one"),
    migration!("provider_ids", "0010_provider_ids", "what providers call operations"),
];

/// Which schema the file has. Nothing is made, and nothing is written.
pub(super) async fn schema(options: &SqliteOptions) -> Result<Schema, OpenError> {
    let path = absolute(options)?;
    if !open::exists(&path)? {
        return Ok(Schema::new(0, None, MIGRATIONS));
    }
    let mut connection = super::examine::connect(&path).await.map_err(|e| failed(&path, e))?;
    let made_by = open::made_by(&mut connection).await.map_err(|e| failed(&path, e))?;
    connection.close().await.map_err(|e| failed(&path, e))?;
    made_by.ours(&path)
}

/// Applies what is pending, or makes the file.
pub(super) async fn by_hand(options: &SqliteOptions) -> Result<Vec<Step>, OpenError> {
    let options = SqliteOptions { path: absolute(options)?, ..options.clone() };
    let path = &options.path;
    if !open::exists(path)? {
        // Somebody else may make it at the same time.
        let made = open::create(&options).await?;
        let all = Schema::new(0, None, MIGRATIONS).pending;
        return Ok(if made { all } else { Vec::new() });
    }
    open::inspect(path).await?;
    let mut connection = open::connect(&options, path, false).await.map_err(|e| failed(path, e))?;
    let applied = bring_up(&mut connection, path, MIGRATIONS, By::Hand).await;
    connection.close().await.map_err(|e| failed(path, e))?;
    applied
}

/// Brings the schema up to date, under the file's write lock.
pub(super) async fn bring_up(
    connection: &mut SqliteConnection,
    path: &Path,
    migrations: &'static [Migration],
    by: By,
) -> Result<Vec<Step>, OpenError> {
    let failed = |error| failed(path, error);
    execute(connection, "BEGIN IMMEDIATE").await.map_err(failed)?;
    let have = schema_of(connection, migrations).await.map_err(failed)?;
    usable(path, &have)?;
    if let (By::Start, Some(migration)) = (by, breaking(have.found, migrations)) {
        return Err(OpenError::Breaking { path: path.into(), migration: migration.name });
    }
    for step in &have.pending {
        execute(connection, step.migration.sql).await.map_err(failed)?;
        let (name, text) = (checksum_name(step.version), step.migration.checksum());
        remember(connection, name, text).await.map_err(failed)?;
    }
    if have.found == 0 {
        let id = AssertSqlSafe(format!("PRAGMA application_id = {APPLICATION_ID}"));
        sqlx::query(id).execute(&mut *connection).await.map_err(failed)?;
    }
    if !have.pending.is_empty() {
        let reached = AssertSqlSafe(format!("PRAGMA user_version = {}", have.known));
        sqlx::query(reached).execute(&mut *connection).await.map_err(failed)?;
        let since = since(migrations).to_string();
        remember(connection, "compatible_since".into(), since).await.map_err(failed)?;
    }
    // A write of its own, so that a file that cannot be written is found out now.
    let opened = "INSERT INTO onceward_meta (name, value) VALUES ('opened', '1') \
                  ON CONFLICT (name) DO UPDATE SET value = value + 1";
    execute(connection, opened).await.map_err(failed)?;
    execute(connection, "COMMIT").await.map_err(failed)?;
    Ok(have.pending)
}

async fn remember(
    connection: &mut SqliteConnection,
    name: String,
    value: String,
) -> Result<(), sqlx::Error> {
    let sql = "INSERT INTO onceward_meta (name, value) VALUES (?, ?) \
               ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    sqlx::query(sql).bind(name).bind(value).execute(connection).await.map(|_| ())
}

/// Whether this version may use a file of this schema.
pub(super) fn usable(path: &Path, schema: &Schema) -> Result<(), OpenError> {
    match schema.standing() {
        Standing::Incompatible => {
            let (found, known) = (schema.found, schema.known);
            Err(OpenError::Newer { path: path.into(), found, known })
        }
        Standing::Changed => {
            let migration = schema.changed.map_or("", |step| step.migration.name);
            Err(OpenError::Changed { path: path.into(), migration })
        }
        _ => Ok(()),
    }
}

/// What the file says of itself.
pub(super) async fn schema_of(
    connection: &mut SqliteConnection,
    migrations: &'static [Migration],
) -> Result<Schema, sqlx::Error> {
    let found: u32 = sqlx::query_scalar("PRAGMA user_version").fetch_one(&mut *connection).await?;
    // Only a file that is newer is asked who may use it: others may not have the table yet.
    let since = if found as usize > migrations.len() {
        let since = "SELECT value FROM onceward_meta WHERE name = 'compatible_since'";
        sqlx::query_scalar::<_, String>(since).fetch_optional(&mut *connection).await?
    } else {
        None
    };
    let schema = Schema::new(found, since.and_then(|since| since.parse().ok()), migrations);
    if found == 0 {
        return Ok(schema);
    }
    let remembered = "SELECT name, value FROM onceward_meta WHERE name LIKE 'migration %'";
    let kept = checksums(sqlx::query_as(remembered).fetch_all(connection).await?);
    Ok(schema.compared(&kept, migrations))
}

pub(super) fn absolute(options: &SqliteOptions) -> Result<PathBuf, OpenError> {
    path::absolute(&options.path).map_err(|source| open::io_error(&options.path, source))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn adds(name: &'static str, sql: &'static str, breaks: bool) -> Migration {
        Migration { name, about: "", sql, breaks }
    }

    async fn migrate(
        options: &SqliteOptions,
        more: &[Migration],
        by: By,
    ) -> Result<usize, OpenError> {
        let migrations = [MIGRATIONS, more].concat().leak();
        let path = &options.path;
        let mut connection = open::connect(options, path, false).await.expect("a connection");
        bring_up(&mut connection, path, migrations, by).await.map(|applied| applied.len())
    }

    #[tokio::test]
    async fn a_file_that_another_build_made_under_the_same_numbers_is_refused_and_left_as_it_is() {
        let directory = tempfile::tempdir().expect("a directory");
        let options = SqliteOptions::new(directory.path().join("store.db"));
        by_hand(&options).await.expect("made");
        let column = adds("adds", "ALTER TABLE onceward_records ADD COLUMN colour TEXT", false);
        let edited = adds("adds", "ALTER TABLE onceward_records ADD COLUMN size TEXT", false);
        assert_eq!(migrate(&options, &[column], By::Start).await.expect("added"), 1);
        assert_eq!(migrate(&options, &[column], By::Start).await.expect("the same"), 0);
        for theirs in [&[edited][..], &[edited, column]] {
            for by in [By::Start, By::Hand] {
                let refused = migrate(&options, theirs, by).await;
                assert!(matches!(refused, Err(OpenError::Changed { migration: "adds", .. })));
            }
        }
        open::open(&mut options.clone()).await.expect("it is as it was");

        // One from before checksums were kept.
        let path = &options.path;
        let mut connection = open::connect(&options, path, false).await.expect("a connection");
        let forget = "DELETE FROM onceward_meta WHERE name = 'migration 2'";
        execute(&mut connection, forget).await.expect("forgotten");
        connection.close().await.expect("closed");
        let refused = open::open(&mut options.clone()).await;
        assert!(matches!(refused, Err(OpenError::Changed { migration: "outbox", .. })));
        let refused = by_hand(&options).await;
        assert!(matches!(refused, Err(OpenError::Changed { migration: "outbox", .. })));
        assert_eq!(schema(&options).await.expect("read").standing(), Standing::Changed);
    }

    #[tokio::test]
    async fn an_older_process_opens_what_a_newer_one_added_to_until_a_migration_breaks() {
        let directory = tempfile::tempdir().expect("a directory");
        let options = SqliteOptions::new(directory.path().join("store.db"));
        assert_eq!(by_hand(&options).await.expect("made").len(), MIGRATIONS.len());
        assert!(by_hand(&options).await.expect("there").is_empty());
        let column = adds("adds", "ALTER TABLE onceward_records ADD COLUMN colour TEXT", false);
        assert_eq!(migrate(&options, &[column], By::Start).await.expect("added"), 1);
        let standing = async || schema(&options).await.expect("read").standing();
        assert_eq!(standing().await, Standing::Ahead);
        open::open(&mut options.clone()).await.expect("an old one opens it");
        let breaks = adds("breaks", "ALTER TABLE onceward_requests RENAME TO asked", true);
        let refused = migrate(&options, &[column, breaks], By::Start).await;
        assert!(matches!(refused, Err(OpenError::Breaking { migration: "breaks", .. })));
        assert_eq!(standing().await, Standing::Ahead, "it is as it was");
        assert_eq!(migrate(&options, &[column, breaks], By::Hand).await.expect("asked for"), 1);
        assert_eq!(standing().await, Standing::Incompatible);
        let refused = open::open(&mut options.clone()).await;
        assert!(matches!(refused, Err(OpenError::Newer { found: 12, known: 10, .. })));
    }
}
