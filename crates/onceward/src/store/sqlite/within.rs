//! In a transaction of the user's own, on a connection of the user's own to the same file: the same
//! rules and the same rows as the writer's.

use std::path::Path;

use sqlx::{Pool, Row as _, Sqlite, SqliteConnection, Transaction, pool::PoolConnection};

use super::{
    SqliteDatabase,
    beside::load_beside,
    changes::{Changes, damaged_record, load, loaded},
    error::{self, Moment},
    open,
    outbox::stage_in,
};
use crate::{
    clock::Timestamp,
    machine::{self, Change, Step},
    outbox::{Message, Staged},
    phase::Misuse,
    record::{Lease, Record, RecordId},
    reply::Reply,
    store::{
        Advance, Advanced, Ask, Database, Reservation, Written,
        beside::{self, Beside, Gathered},
    },
    transaction::{
        begun::in_a_task,
        sealed::{Begin, Connection, NotWritten},
    },
};

impl From<sqlx::Error> for NotWritten {
    fn from(error: sqlx::Error) -> Self {
        match error::is_busy(&error) {
            true => NotWritten::Locked,
            false => NotWritten::Store(error::store_error(error, Moment::Before)),
        }
    }
}

impl Begin for Sqlite {
    /// With the write lock from the start: whoever reads first and then writes may find that the
    /// file has changed in between, and cannot wait for it.
    async fn begin<'p>(
        pool: &Pool<Sqlite>,
        _: &'p mut Option<PoolConnection<Sqlite>>,
    ) -> Result<Transaction<'p, Sqlite>, sqlx::Error> {
        let pool = pool.clone();
        in_a_task(async move { pool.begin_with("BEGIN IMMEDIATE").await }).await
    }

    fn is_locked(error: &sqlx::Error) -> bool {
        error::is_busy(error)
    }
}

impl Connection for SqliteConnection {
    async fn reserve_in(
        &mut self,
        database: &Database,
        ask: &Ask,
    ) -> Result<Reservation, NotWritten> {
        step(self, database, &ask.id, None, |found, _, now| beside::reserve(found, ask, now)).await
    }

    async fn complete(
        &mut self,
        database: &Database,
        lease: &Lease,
        reply: Reply,
    ) -> Result<Written, NotWritten> {
        step(self, database, &lease.id, None, |found, _, now| {
            (machine::complete_in(found, lease, reply, now), None)
        })
        .await
    }

    async fn advance(
        &mut self,
        database: &Database,
        lease: &Lease,
        advance: Advance,
    ) -> Result<Advanced, NotWritten> {
        let name = Some(advance.name());
        step(self, database, &lease.id, name, |found, saved, _| {
            beside::advance(found, lease, &advance, saved)
        })
        .await
    }

    async fn stage(
        &mut self,
        database: &Database,
        lease: &Lease,
        message: &Message,
    ) -> Result<Staged, NotWritten> {
        let database = same(self, database).await?;
        Ok(stage_in(self, &lease.into(), message, database.now()).await?)
    }
}

/// One step on one record.
async fn step<A>(
    connection: &mut SqliteConnection,
    database: &Database,
    id: &RecordId,
    step_name: Option<&str>,
    decide: impl FnOnce(Option<&Record>, bool, Timestamp) -> (Step<A>, Option<Beside>),
) -> Result<A, NotWritten> {
    let database = same(connection, database).await?;
    let ids = [id.clone()];
    let rows = load(&ids).fetch_all(&mut *connection).await?;
    let found = match loaded(&ids, &rows).remove(id) {
        None => None,
        Some(Ok(record)) => Some(record),
        Some(Err(())) => return Err(NotWritten::Store(damaged_record())),
    };
    let mut gathered = match step_name {
        Some(name) => load_beside(connection, &[(id.clone(), name.into())]).await?,
        None => Gathered::default(),
    };
    let saved = gathered.is_saved(found.as_ref(), step_name);
    let (step, kept) = decide(found.as_ref(), saved, database.now());
    let audits: Vec<_> = step.audit.into_iter().collect();
    let mut changes = Changes { audits: &audits, ..Changes::default() };
    let put;
    let puts;
    let removed = [id];
    match step.change {
        Change::Keep => {}
        Change::Put(record) => {
            gathered.follow(&record);
            if let Some(kept) = kept {
                gathered.keep(&record, kept);
            }
            put = record;
            puts = [&*put];
            changes.puts = &puts;
        }
        Change::Remove => changes.removed = &removed,
    }
    changes.beside = gathered;
    changes.write(connection).await?;
    Ok(step.answer)
}

/// The database of the records, if the connection is in a transaction on it that will be on the disk
/// when it is committed.
async fn same<'a>(
    connection: &mut SqliteConnection,
    database: &'a Database,
) -> Result<&'a SqliteDatabase, NotWritten> {
    let misuse = |misuse| Err(NotWritten::Misuse(misuse));
    #[allow(irrefutable_let_patterns, reason = "SQLite may be the only database in this build")]
    let Database::Sqlite(database) = database else { return misuse(Misuse::OtherDatabase) };
    let row = sqlx::query(FILE_AND_DURABILITY).fetch_one(&mut *connection).await?;
    let path: Option<String> = row.try_get(0)?;
    let file = path.and_then(|path| open::file_at(Path::new(&path)));
    if file.is_none() || file != database.file {
        return misuse(Misuse::OtherDatabase);
    }
    let (journal_mode, synchronous): (&str, i64) = (row.try_get(1)?, row.try_get(2)?);
    // Neither can be changed as long as the transaction is open.
    if journal_mode != "wal" || synchronous < FULL {
        return misuse(Misuse::NotDurable);
    }
    match is_in_transaction(connection, synchronous).await? {
        true => Ok(database),
        false => misuse(Misuse::NotInTransaction),
    }
}

const FILE_AND_DURABILITY: &str = "SELECT file, \
    (SELECT journal_mode FROM pragma_journal_mode), (SELECT synchronous FROM pragma_synchronous) \
    FROM pragma_database_list WHERE name = 'main'";

/// A commit is synced, as SQLite numbers it.
const FULL: i64 = 2;

/// Asks SQLite itself: a transaction may have been begun by a plain statement, and may have been
/// rolled back by an error that the handler did not see.
///
/// # Cancel safety
/// May be dropped: it sets what is set already, and SQLite refuses to do so within a transaction. A
/// BEGIN that is refused would tell the same, and could be left behind where there was none.
async fn is_in_transaction(
    connection: &mut SqliteConnection,
    synchronous: i64,
) -> Result<bool, sqlx::Error> {
    let set = match synchronous {
        FULL => "PRAGMA synchronous = FULL",
        _ => "PRAGMA synchronous = EXTRA",
    };
    // Not prepared once for all: it is refused while it is prepared.
    match sqlx::raw_sql(set).execute(connection).await {
        Ok(_) => Ok(false),
        Err(refused) if error::is_refusal(&refused) => Ok(true),
        Err(other) => Err(other),
    }
}
