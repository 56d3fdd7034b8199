//! Opening the file: a store of ours, whole, of a known version, writable; or a clear error. Never a
//! silent fresh start in the place of something else.

use std::{
    fs::{self, File},
    io,
    path::{self, Path, PathBuf},
    time::Duration,
};

use sqlx::{
    ConnectOptions as _, Connection as _, Row as _, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};

use super::{
    SqliteOptions, error,
    migrate::{self, MIGRATIONS},
};
use crate::store::site::{By, Schema};

/// Marks the file as ours, in SQLite's own header: "Onwd".
pub(super) const APPLICATION_ID: u32 = 0x4f6e_7764;

/// The same in files from before the first release, whose tables have names without a prefix: "Once".
const APPLICATION_ID_BEFORE: u32 = 0x4f6e_6365;

/// How long to wait for another process that writes, while the file is opened.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The same for a transaction. Less than half of the time that callers have by default: whoever
/// comes while others wait, waits after them, and still learns in time that nothing was done.
const BUSY_TIMEOUT_OPENED: &str = "PRAGMA busy_timeout = 2000";

/// How many bytes of disk the log keeps once it was written back, however large it was: 16 MiB.
const LOG_KEPT_MAX: &str = "16777216";

/// At how many pages the log is written back in a commit, should nobody have done so before: 8 MiB.
const LOG_PAGES_MAX: &str = "2048";

/// How much of the file a connection keeps in memory at most, in KiB.
const CACHE: &str = "-32768";

/// Larger files are checked when they are used, so that starting does not take minutes.
const CHECKED_BYTES_MAX: u64 = 256 << 20;

/// Why a file cannot be opened as a store. The file is left as it is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file is there and is not an SQLite database.
    #[error("{0} is not an SQLite file; nothing was changed")]
    NotADatabase(PathBuf),
    /// The file is an SQLite database of some other program.
    #[error("{0} is the SQLite file of another program; nothing was changed")]
    Foreign(PathBuf),
    /// Made before the first release, when our tables had other names.
    #[error(
        "{0} was made by a version from before the first release, whose tables have other names; \
         nothing was changed; start with a new file"
    )]
    BeforeRelease(PathBuf),
    /// The file is there and empty: it may have been cut off.
    #[error("{0} is empty; if it never held records, remove it and start again")]
    Empty(PathBuf),
    /// A write-ahead log without its database: the database was moved or removed.
    #[error("{0} is missing while its write-ahead log is there; restore the file or remove both")]
    LogWithoutFile(PathBuf),
    /// Written by a newer version, and not for this one.
    #[error(
        "{path} has schema version {found}, which does not let in those who know no more than {known}; \
         use a newer onceward"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The version it has.
        found: u32,
        /// The newest version that is known here.
        known: u32,
    },
    /// A migration would shut out older processes that may be at work.
    #[error(
        "the migration `{migration}` of {path} shuts out older processes: stop them, and run `onceward \
         migrate up`"
    )]
    Breaking {
        /// The file.
        path: PathBuf,
        /// The migration.
        migration: &'static str,
    },
    /// Another build has made the file: a migration had the same number there, and another text.
    #[error(
        "the migration `{migration}` of {path} was applied in another text than this version has for it, \
         perhaps before the first release; nothing was changed; use the onceward that made the file, or a \
         new file"
    )]
    Changed {
        /// The file.
        path: PathBuf,
        /// The first such migration.
        migration: &'static str,
    },
    /// The file is damaged.
    #[error("{path} is damaged ({what}); restore it from a backup")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        what: String,
    },
    /// The file cannot be written.
    #[error("{0} is read-only; a store must be able to write")]
    ReadOnly(PathBuf),
    /// No room to write.
    #[error("{0} cannot grow: the disk or its size limit is full")]
    Full(PathBuf),
    /// The operating system said no.
    #[error("{path} cannot be opened")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// SQLite said no.
    #[error("{path} cannot be used")]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// What SQLite said.
        source: sqlx::Error,
    },
}

pub(super) async fn open(options: &mut SqliteOptions) -> Result<SqliteConnection, OpenError> {
    // Absolute, so that no name means anything else to SQLite (":memory:"), and so that the file
    // stays the same one when the process goes to another directory.
    options.path =
        path::absolute(&options.path).map_err(|source| io_error(&options.path, source))?;
    if !exists(&options.path)? {
        create(options).await?;
    }
    reopen(options).await
}

/// Opens a file that must be there.
pub(super) async fn reopen(options: &SqliteOptions) -> Result<SqliteConnection, OpenError> {
    let path = &options.path;
    inspect(path).await?;
    let mut connection = connect(options, path, false).await.map_err(|e| failed(path, e))?;
    migrate::bring_up(&mut connection, path, MIGRATIONS, By::Start).await?;
    check(&mut connection, path).await?;
    execute(&mut connection, BUSY_TIMEOUT_OPENED).await.map_err(|e| failed(path, e))?;
    Ok(connection)
}

/// Which file it is that has this name now, where the system can tell. `None` if there is none.
pub(super) fn file_at(path: &Path) -> Option<(u64, u64)> {
    let metadata = fs::metadata(path).ok()?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        Some((metadata.dev(), metadata.ino()))
    }
    #[cfg(not(unix))]
    {
        drop(metadata);
        Some((0, 0))
    }
}

pub(super) fn exists(path: &Path) -> Result<bool, OpenError> {
    let there = path.try_exists().map_err(|source| io_error(path, source))?;
    let log = beside(path, "-wal");
    if !there && log.try_exists().map_err(|source| io_error(path, source))? {
        return Err(OpenError::LogWithoutFile(path.into()));
    }
    Ok(there)
}

/// Makes the file under another name and moves it into its place when it is complete, so that a
/// crash, or a second process that does the same, never leaves a half-made store.
///
/// Whether it was this one that made it.
pub(super) async fn create(options: &SqliteOptions) -> Result<bool, OpenError> {
    let path = &options.path;
    let draft = beside(path, &format!(".new-{:016x}", rand::random::<u64>()));
    let made = draw_up(options, &draft).await;
    let moved = made.and_then(|()| {
        let linked = match fs::hard_link(&draft, path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        };
        let synced = linked.and_then(|ours| {
            File::open(parent(path))?.sync_all()?;
            Ok(ours)
        });
        synced.map_err(|source| io_error(path, source))
    });
    for leftover in ["", "-wal", "-shm"] {
        // Whatever is left under the temporary name is of no use to anybody.
        let _ = fs::remove_file(beside(&draft, leftover));
    }
    moved
}

async fn draw_up(options: &SqliteOptions, draft: &Path) -> Result<(), OpenError> {
    let path = &options.path;
    let mut connection = connect(options, draft, true).await.map_err(|e| failed(path, e))?;
    migrate::bring_up(&mut connection, path, MIGRATIONS, By::Start).await?;
    // Closing writes the log back too, but does not say when it cannot.
    execute(&mut connection, "PRAGMA wal_checkpoint(TRUNCATE)")
        .await
        .map_err(|e| failed(path, e))?;
    connection.close().await.map_err(|e| failed(path, e))?;
    for_its_owner_only(draft).map_err(|source| io_error(path, source))?;
    File::open(draft).and_then(|file| file.sync_all()).map_err(|source| io_error(path, source))
}

/// Looks at the file without the right to change it.
///
/// Through SQLite and not by reading it: POSIX takes all locks of a process on a file away when any
/// descriptor of it is closed, also those of another connection to the same file. Another program
/// would then take itself for the only one, and remove the log that the connection writes to.
pub(super) async fn inspect(path: &Path) -> Result<(), OpenError> {
    let metadata = fs::metadata(path).map_err(|source| io_error(path, source))?;
    if metadata.len() == 0 {
        return Err(OpenError::Empty(path.into()));
    }
    let made_by = header(path).await.map_err(|error| failed(path, error))?;
    migrate::usable(path, &made_by.ours(path)?)?;
    if metadata.permissions().readonly() {
        return Err(OpenError::ReadOnly(path.into()));
    }
    Ok(())
}

async fn header(path: &Path) -> Result<MadeBy, sqlx::Error> {
    let mut connection = reading(path).connect().await?;
    let made_by = made_by(&mut connection).await?;
    connection.close().await?;
    Ok(made_by)
}

/// How a file is opened that is not to be changed.
pub(super) fn reading(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .read_only(true)
        .busy_timeout(BUSY_TIMEOUT)
        .disable_statement_logging()
}

/// Whose file it is.
pub(super) enum MadeBy {
    Us(Schema),
    UsBeforeRelease,
    Another,
}

impl MadeBy {
    /// The schema of a file of ours.
    pub(super) fn ours(self, path: &Path) -> Result<Schema, OpenError> {
        match self {
            MadeBy::Us(schema) => Ok(schema),
            MadeBy::UsBeforeRelease => Err(OpenError::BeforeRelease(path.into())),
            MadeBy::Another => Err(OpenError::Foreign(path.into())),
        }
    }
}

pub(super) async fn made_by(connection: &mut SqliteConnection) -> Result<MadeBy, sqlx::Error> {
    let id: u32 = sqlx::query_scalar("PRAGMA application_id").fetch_one(&mut *connection).await?;
    Ok(match id {
        APPLICATION_ID => MadeBy::Us(migrate::schema_of(connection, MIGRATIONS).await?),
        APPLICATION_ID_BEFORE => MadeBy::UsBeforeRelease,
        _ => MadeBy::Another,
    })
}

pub(super) async fn connect(
    options: &SqliteOptions,
    path: &Path,
    create: bool,
) -> Result<SqliteConnection, sqlx::Error> {
    let connect = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(create)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .pragma("journal_size_limit", LOG_KEPT_MAX)
        .pragma("wal_autocheckpoint", LOG_PAGES_MAX)
        .pragma("cache_size", CACHE)
        // What a statement would have to undo is else written to a file of its own.
        .pragma("temp_store", "MEMORY")
        .busy_timeout(BUSY_TIMEOUT)
        .foreign_keys(true)
        // Those of a batch are prepared once for each size.
        .statement_cache_capacity(200)
        .disable_statement_logging();
    let mut connection = connect.connect().await?;
    if let Some(bytes_max) = options.bytes_max {
        let page_size: i64 =
            sqlx::query_scalar("PRAGMA page_size").fetch_one(&mut connection).await?;
        let pages = bytes_max / u64::try_from(page_size).unwrap_or(4096).max(1);
        let limit = sqlx::AssertSqlSafe(format!("PRAGMA max_page_count = {pages}"));
        sqlx::query(limit).fetch_all(&mut connection).await?;
    }
    Ok(connection)
}

async fn check(connection: &mut SqliteConnection, path: &Path) -> Result<(), OpenError> {
    let size = fs::metadata(path).map_err(|source| io_error(path, source))?.len();
    if size > CHECKED_BYTES_MAX {
        return Ok(());
    }
    // Not the quick check, which does not compare rows with their indexes: a key that is lost from
    // its index would be taken for a new one.
    let verdict = sqlx::query("PRAGMA integrity_check(1)").fetch_one(connection).await;
    let verdict: String = verdict.and_then(|row| row.try_get(0)).map_err(|e| failed(path, e))?;
    if verdict == "ok" {
        Ok(())
    } else {
        Err(OpenError::Damaged { path: path.into(), what: verdict })
    }
}

pub(super) async fn execute(
    connection: &mut SqliteConnection,
    sql: &'static str,
) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(sql).execute(connection).await.map(|_| ())
}

pub(super) fn failed(path: &Path, source: sqlx::Error) -> OpenError {
    const READ_ONLY: u32 = 8;
    let path = path.to_owned();
    match error::extended_code(&source).map(|code| code & 0xff) {
        Some(READ_ONLY) => OpenError::ReadOnly(path),
        _ if error::is_no_database(&source) => OpenError::NotADatabase(path),
        _ if error::is_full(&source) => OpenError::Full(path),
        _ if error::is_damage(&source) => OpenError::Damaged { path, what: source.to_string() },
        _ => OpenError::Sqlite { path, source },
    }
}

/// Replies are nobody else's business. SQLite gives the log the same permissions.
fn for_its_owner_only(file: &Path) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(file, fs::Permissions::from_mode(0o600))?;
    }
    #[cfg(not(unix))]
    let _ = file;
    Ok(())
}

pub(super) fn io_error(path: &Path, source: io::Error) -> OpenError {
    OpenError::Io { path: path.to_owned(), source }
}

pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

pub(super) fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::site::checksum_name;

    #[tokio::test]
    async fn a_file_from_before_keeps_its_audit_records_and_takes_what_can_happen_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("store.db");
        let mut options = SqliteOptions::new(&path);
        let mut old = connect(&options, &path, true).await.expect("a file");
        let told = |at: u32, event: &str| {
            let insert = format!(
                "INSERT INTO onceward_audit_records (at, scope, key, generation, event, attempt, fence, reason) \
                 VALUES ({at}, 'tenant', 'key', 1, '{event}', zeroblob(16), 7, '')"
            );
            sqlx::AssertSqlSafe(insert)
        };
        let version = format!(
            "PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 5; \
             INSERT INTO onceward_meta (name, value) VALUES ('opened', '1')"
        );
        for (version, migration) in (1..).zip(&MIGRATIONS[..5]) {
            execute(&mut old, migration.sql).await.expect("migrated");
            let text = sqlx::query("INSERT INTO onceward_meta (name, value) VALUES (?, ?)");
            let text = text.bind(checksum_name(version)).bind(migration.checksum());
            text.execute(&mut old).await.expect("remembered");
        }
        sqlx::raw_sql(sqlx::AssertSqlSafe(version)).execute(&mut old).await.expect("set");
        sqlx::raw_sql(told(1, "released")).execute(&mut old).await.expect("written");
        old.close().await.expect("closed");

        let mut now = open(&mut options).await.expect("migrated");
        for (at, event, is_new) in [
            (2, "released", false),
            (2, "redriven", true),
            (2, "redriven", false),
            (3, "redriven", true),
            // Told twice, without a word, it is one.
            (4, "incident", true),
            (5, "incident", false),
        ] {
            let written = sqlx::raw_sql(told(at, event)).execute(&mut now).await;
            assert_eq!(written.is_ok(), is_new, "{event} at {at}");
        }
        let kept: i64 = sqlx::query_scalar("SELECT count(*) FROM onceward_audit_records")
            .fetch_one(&mut now)
            .await
            .expect("a count");
        assert_eq!(kept, 4);
    }
}
