//! Bringing the schema to the version of this release, and who may use one of another version.

use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};

use super::{
    PgOptions,
    open::{self, PgConnectError, in_schema},
};
use crate::store::site::{
    By, Migration, Schema, Standing, Step, breaking, checksum_name, checksums, since,
};

/// Migrations in order. The schema's table `migrations` says how many of them it has, and its table `meta`
/// which text each had: one that was released is never edited, but another one added.
pub(super) const MIGRATIONS: &[Migration] = &[
    Migration {
        name: "records",
        about: "tables and functions of records, leases, replies, steps, the SQL contract, the outbox \
                and lists",
        sql: concat!(
            include_str!("../../../migrations/postgres/0001_records.sql"),
            include_str!("../../../migrations/postgres/0002_functions.sql"),
            include_str!("../../../migrations/postgres/0003_contract.sql"),
            include_str!("../../../migrations/postgres/0004_outbox.sql"),
            include_str!("../../../migrations/postgres/0005_listing.sql"),
        ),
        breaks: false,
    },
    Migration {
        name: "scope_keys",
        about: "the data keys of scopes, for sealed replies",
        sql: include_str!("../../../migrations/postgres/0006_scope_keys.sql"),
        breaks: false,
    },
    Migration {
        name: "canary",
        about: "beats of processes, and what was found to be lost",
        sql: include_str!("../../../migrations/postgres/0007_canary.sql"),
        breaks: false,
    },
    Migration {
        name: "provider_ids",
        about: "what providers call operations",
        sql: include_str!("../../../migrations/postgres/0008_provider_ids.sql"),
        breaks: false,
    },
];

/// What is there before the first of them.
pub(super) const BEGINNING: &str = "\
    CREATE TABLE onceward.migrations (\
        version integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now()); \
    CREATE TABLE onceward.meta (name text PRIMARY KEY, value text NOT NULL); \
    INSERT INTO onceward.meta VALUES ('name', gen_random_uuid()::text);";

/// Sees to it that the schema can be used by this version.
pub(super) async fn at_start(
    connection: &mut PgConnection,
    options: &PgOptions,
) -> Result<(), PgConnectError> {
    bring_up(connection, options, MIGRATIONS, By::Start).await.map(|_| ())
}

/// Which schema is there.
pub(super) async fn schema(options: &PgOptions) -> Result<Schema, PgConnectError> {
    open::readable(options)?;
    let mut connection = open::connect(options).await?;
    let schema = schema_of(&mut connection, &options.schema, MIGRATIONS).await?;
    // Nothing was begun on it.
    let _ = connection.close().await;
    Ok(schema)
}

/// Applies what is pending.
pub(super) async fn by_hand(options: &PgOptions) -> Result<Vec<Step>, PgConnectError> {
    open::readable(options)?;
    let mut connection = open::connect(options).await?;
    let applied = bring_up(&mut connection, options, MIGRATIONS, By::Hand).await;
    // With the connection ends whatever was begun on it.
    let _ = connection.close().await;
    applied
}

/// All in one transaction, under a lock that ends with it: processes that start together do it one
/// after the other, and a crash leaves the schema as it was.
async fn bring_up(
    connection: &mut PgConnection,
    options: &PgOptions,
    migrations: &'static [Migration],
    by: By,
) -> Result<Vec<Step>, PgConnectError> {
    let schema = &*options.schema;
    let have = schema_of(connection, schema, migrations).await?;
    if is_done(schema, &have, migrations, by)? {
        return Ok(Vec::new());
    }
    if by == By::Start && !options.migrate {
        let (found, known) = (have.found, have.known);
        return Err(PgConnectError::NotMigrated { schema: schema.into(), found, known });
    }
    // Whoever waited for the lock must see what was done under it.
    sqlx::raw_sql("BEGIN ISOLATION LEVEL READ COMMITTED").execute(&mut *connection).await?;
    let lock = sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))");
    lock.bind(format!("onceward migration of {schema}")).execute(&mut *connection).await?;
    let have = schema_of(connection, schema, migrations).await?;
    if is_done(schema, &have, migrations, by)? {
        sqlx::raw_sql("COMMIT").execute(connection).await?;
        return Ok(Vec::new());
    }
    if have.found == 0 {
        begin(connection, schema).await?;
    }
    for step in &have.pending {
        let migration = in_schema(step.migration.sql, schema);
        sqlx::raw_sql(AssertSqlSafe(migration)).execute(&mut *connection).await?;
        let note = in_schema("INSERT INTO onceward.migrations (version) VALUES ($1)", schema);
        let version = i32::try_from(step.version).unwrap_or(i32::MAX);
        sqlx::query(AssertSqlSafe(note)).bind(version).execute(&mut *connection).await?;
        let name = checksum_name(step.version);
        remember(connection, schema, name, step.migration.checksum()).await?;
    }
    let since = since(migrations).to_string();
    remember(connection, schema, "compatible_since".into(), since).await?;
    sqlx::raw_sql("COMMIT").execute(connection).await?;
    Ok(have.pending)
}

async fn remember(
    connection: &mut PgConnection,
    schema: &str,
    name: String,
    value: String,
) -> Result<(), sqlx::Error> {
    let sql = in_schema(
        "INSERT INTO onceward.meta (name, value) VALUES ($1, $2) \
         ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        schema,
    );
    sqlx::query(AssertSqlSafe(sql)).bind(name).bind(value).execute(connection).await.map(|_| ())
}

/// Whether nothing has to be done, if anything may be done here at all.
fn is_done(
    schema: &str,
    have: &Schema,
    migrations: &'static [Migration],
    by: By,
) -> Result<bool, PgConnectError> {
    let schema = || schema.to_owned();
    match have.standing() {
        Standing::Current | Standing::Ahead => Ok(true),
        Standing::Incompatible => {
            Err(PgConnectError::Newer { schema: schema(), found: have.found, known: have.known })
        }
        Standing::Changed => {
            let migration = have.changed.map_or("", |step| step.migration.name);
            Err(PgConnectError::Changed { schema: schema(), migration })
        }
        Standing::Absent | Standing::Behind => match breaking(have.found, migrations) {
            Some(migration) if by == By::Start => {
                Err(PgConnectError::Breaking { schema: schema(), migration: migration.name })
            }
            _ => Ok(false),
        },
    }
}

async fn begin(connection: &mut PgConnection, schema: &str) -> Result<(), sqlx::Error> {
    // An owner of the schema need not be one who may make schemas.
    let make = format!(
        "DO $$ BEGIN IF NOT EXISTS (\
         SELECT FROM pg_catalog.pg_namespace WHERE nspname = '{schema}') THEN \
         CREATE SCHEMA \"{schema}\"; END IF; END $$; {}",
        in_schema(BEGINNING, schema)
    );
    sqlx::raw_sql(AssertSqlSafe(make)).execute(connection).await.map(|_| ())
}

/// What the schema says of itself. Asked without a prepared statement, so that any pool lets it pass.
pub(super) async fn schema_of(
    connection: &mut PgConnection,
    schema: &str,
    migrations: &'static [Migration],
) -> Result<Schema, sqlx::Error> {
    // From the catalogue itself: a session remembers for a while that a name was not there.
    let there = format!(
        "SELECT count(*)::text FROM pg_catalog.pg_class c \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = '{schema}' AND c.relname = 'migrations'"
    );
    let there = sqlx::raw_sql(AssertSqlSafe(there)).fetch_one(&mut *connection).await?;
    if there.try_get::<String, _>(0)? == "0" {
        return Ok(Schema::new(0, None, migrations));
    }
    let said = in_schema(
        "SELECT (SELECT coalesce(max(version), 0)::text FROM onceward.migrations), \
         (SELECT value FROM onceward.meta WHERE name = 'compatible_since')",
        schema,
    );
    let said = sqlx::raw_sql(AssertSqlSafe(said)).fetch_one(&mut *connection).await?;
    let found: String = said.try_get(0)?;
    let since: Option<String> = said.try_get(1)?;
    let since = since.and_then(|since| since.parse().ok());
    let remembered =
        in_schema("SELECT name, value FROM onceward.meta WHERE name LIKE 'migration %'", schema);
    let remembered = sqlx::raw_sql(AssertSqlSafe(remembered)).fetch_all(connection).await?;
    let remembered = remembered.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
    let kept = checksums(remembered.collect::<Result<Vec<_>, sqlx::Error>>()?);
    Ok(Schema::new(found.parse().unwrap_or(0), since, migrations).compared(&kept, migrations))
}

#[cfg(test)]
mod tests {
    use onceward_testbed::Postgres;

    use super::*;
    use crate::{
        store::{PgStore, Reservation, Store as _, Write, Written},
        testing::samples::{ask, reply},
    };

    /// The migrations of a later release.
    fn later(more: &[Migration]) -> &'static [Migration] {
        [MIGRATIONS, more].concat().leak()
    }

    async fn migrate(
        options: &PgOptions,
        migrations: &'static [Migration],
        by: By,
    ) -> Result<usize, PgConnectError> {
        let mut connection = open::connect(options).await?;
        bring_up(&mut connection, options, migrations, by).await.map(|applied| applied.len())
    }

    /// A request from its reserve to its reply.
    async fn works(store: &PgStore, key: &str) {
        let Ok(Reservation::Granted { lease, .. }) = store.reserve(ask(key)).await else {
            panic!("not granted")
        };
        let written = store.write(&lease, Write::Complete(reply("done"))).await;
        assert!(matches!(written, Ok(Written::Applied)), "{written:?}");
    }

    const ADDS: Migration = Migration {
        name: "adds",
        about: "a table, and another body of a function",
        sql: "CREATE TABLE onceward.colours (colour text PRIMARY KEY); \
              CREATE OR REPLACE FUNCTION onceward.plus(at bigint, duration bigint) RETURNS bigint \
              LANGUAGE sql IMMUTABLE AS $$ SELECT at + duration $$;",
        breaks: false,
    };

    const BREAKS: Migration = Migration {
        name: "breaks",
        about: "a function has another name",
        sql: "ALTER FUNCTION onceward.reserve RENAME TO reserve_2; \
              ALTER FUNCTION onceward.reserve_one RENAME TO reserve_one_2; \
              ALTER FUNCTION onceward.change RENAME TO change_2;",
        breaks: true,
    };

    #[tokio::test]
    async fn a_schema_that_another_build_made_under_the_same_numbers_is_refused_and_left_as_it_is()
    {
        const EDITED: Migration =
            Migration { sql: "CREATE TABLE onceward.colours (name text PRIMARY KEY);", ..ADDS };
        let database = Postgres::shared().create_database();
        let options = PgOptions::new(database.url());
        let mine = later(&[ADDS]);
        assert_eq!(migrate(&options, mine, By::Start).await.expect("made"), mine.len());
        assert_eq!(migrate(&options, mine, By::Start).await.expect("the same"), 0);
        for theirs in [later(&[EDITED]), later(&[EDITED, BREAKS])] {
            for by in [By::Start, By::Hand] {
                let refused = migrate(&options, theirs, by).await.expect_err("another text");
                assert!(matches!(refused, PgConnectError::Changed { migration: "adds", .. }));
            }
        }
        let store = PgStore::connect(options.clone()).await.expect("it is as it was");
        works(&store, "after").await;

        // One from before checksums were kept.
        database.psql("DELETE FROM onceward.meta WHERE name = 'migration 2'");
        let refused = PgStore::connect(options).await.expect_err("nobody knows its text");
        assert!(matches!(refused, PgConnectError::Changed { migration: "scope_keys", .. }));
    }

    #[tokio::test]
    async fn old_and_new_processes_work_side_by_side_until_a_migration_breaks() {
        let database = Postgres::shared().create_database();
        let options = PgOptions::new(database.url());
        let old = PgStore::connect(options.clone()).await.expect("a store");
        works(&old, "before").await;

        let next = later(&[ADDS]);
        assert_eq!(migrate(&options, next, By::Start).await.expect("added"), 1);
        assert_eq!(migrate(&options, next, By::Start).await.expect("there"), 0, "once");
        works(&old, "running").await;
        let started = PgStore::connect(options.clone()).await.expect("an old one starts");
        works(&started, "started").await;

        let after = later(&[ADDS, BREAKS]);
        let refused =
            migrate(&options, after, By::Start).await.expect_err("old ones may be at work");
        assert!(matches!(refused, PgConnectError::Breaking { migration: "breaks", .. }));
        works(&old, "still").await;
        assert_eq!(migrate(&options, after, By::Hand).await.expect("asked for"), 1);
        assert!(old.reserve(ask("late")).await.is_err(), "it fails, and does nothing else");
        let refused = PgStore::connect(options.clone()).await.expect_err("shut out");
        assert!(matches!(refused, PgConnectError::Newer { found: 6, known: 4, .. }), "{refused}");
        let fresh = PgOptions::new(database.url()).schema("fresh");
        let made = migrate(&fresh, after, By::Start).await.expect("nobody is at work there");
        assert_eq!(made, after.len());
    }
}
