//! Reading and writing records on a connection that is in a transaction: the writer's, or one of the
//! user's own.

use std::{collections::HashMap, mem::take};

use futures_util::TryStreamExt as _;
use sqlx::{
    Either, Executor as _, Row as _, Sqlite, SqliteConnection,
    query::Query,
    sqlite::{SqliteArguments, SqliteRow},
};

use super::{
    beside::write_beside,
    error::{Moment, STORE},
    row::{
        COMPLETED_COLUMN_COUNT, RECORD_COLUMN_COUNT, RESERVED_COLUMN_COUNT, bind_audit,
        bind_completed, bind_record, bind_reserved, buried, read_record,
    },
    sql::{
        BEGIN_AND_DATA_VERSION, BEGIN_AND_LOAD, BURY, LOAD, PUTS, REMEMBER, REMOVE, ROWS_MAX,
        most_writes, rows,
    },
    writer::{Failure, before},
};
use crate::{
    record::{AuditRecord, Inquiry, Record, RecordId, State},
    store::{StoreError, StoreErrorKind, beside::Gathered, step::PendingStep},
};

pub(super) type Select<'q> = Query<'q, Sqlite, SqliteArguments>;

/// A record, or one that cannot be read.
pub(super) type Read = Result<Record, ()>;

/// What a transaction writes.
#[derive(Default)]
pub(super) struct Changes<'a> {
    /// Written whole.
    pub(super) puts: &'a [&'a Record],
    /// Those that were absent, at their first attempt; and those in progress that become completed:
    /// see [`Writes`]. Written shorter by [`Changes::write_and_commit`], and whole by [`Changes::write`].
    pub(super) reserved: &'a [&'a Record],
    pub(super) completed: &'a [&'a Record],
    /// Those that become tombstones: nothing else of them changes.
    pub(super) buried: &'a [&'a Record],
    pub(super) removed: &'a [&'a RecordId],
    pub(super) audits: &'a [AuditRecord],
    pub(super) beside: Gathered,
}

impl<'a> Changes<'a> {
    /// Which records they are about.
    pub(super) fn ids(&self) -> impl Iterator<Item = &'a RecordId> {
        self.written().map(|record| &record.id).chain(self.removed.iter().copied())
    }

    pub(super) fn written(&self) -> impl Iterator<Item = &'a Record> {
        [self.puts, self.reserved, self.completed, self.buried].into_iter().flatten().copied()
    }

    /// Writes them in the transaction that the connection is in, and commits it. Most batches are one
    /// message: each is a way to another thread and back, while the file waits.
    pub(super) async fn write_and_commit(
        mut self,
        connection: &mut SqliteConnection,
    ) -> Result<(), Failure> {
        let (reserved, completed) = (take(&mut self.reserved), take(&mut self.completed));
        self.write(connection).await.map_err(before)?;
        let most = most_writes(reserved.len(), completed.len());
        let query = reserved
            .iter()
            .fold(sqlx::query(most.sql.as_str()), |query, it| bind_reserved(query, it));
        let query = without_rows(query, most.reserved - reserved.len(), RESERVED_COLUMN_COUNT);
        let query = completed.iter().fold(query, |query, it| bind_completed(query, it));
        let mut query =
            without_rows(query, most.completed - completed.len(), COMPLETED_COLUMN_COUNT);
        if most.completed > 0 {
            query = query.bind(completed.len() as i64);
        }
        let mut done = 0;
        let mut results = connection.fetch_many(query);
        loop {
            match results.try_next().await {
                Ok(Some(Either::Left(_))) => done += 1,
                Ok(Some(Either::Right(_))) => {}
                Ok(None) => return Ok(()),
                Err(error) => {
                    // COMMIT is the last of them.
                    let is_before =
                        error.as_database_error().is_some() && done + 1 < most.statements;
                    let moment = if is_before { Moment::Before } else { Moment::Commit };
                    return Err(Failure { error, moment });
                }
            }
        }
    }

    /// Writes them in the transaction that the connection is in.
    pub(super) async fn write(self, connection: &mut SqliteConnection) -> sqlx::Result<()> {
        let whole = [self.puts, self.reserved, self.completed].concat();
        for some in whole.chunks(ROWS_MAX) {
            let query =
                some.iter().fold(sqlx::query(rows(&PUTS, some.len())), |q, it| bind_record(q, it));
            query.execute(&mut *connection).await?;
        }
        if !self.buried.is_empty() {
            let buried: serde_json::Value = self.buried.iter().map(|it| buried(it)).collect();
            sqlx::query(BURY).bind(buried.to_string()).execute(&mut *connection).await?;
        }
        if !self.removed.is_empty() {
            let removed = names(self.removed.iter().copied());
            sqlx::query(REMOVE).bind(removed).execute(&mut *connection).await?;
        }
        // After these records: the triggers of those that came to rest have done their part. Those that
        // are written with the commit have nothing beside them, or lose it by becoming completed.
        write_beside(self.beside, &mut *connection).await?;
        for audit in self.audits {
            bind_audit(sqlx::query(REMEMBER), audit).execute(&mut *connection).await?;
        }
        Ok(())
    }
}

/// Rows of so many columns that are not given.
fn without_rows(query: Select<'_>, rows: usize, columns: usize) -> Select<'_> {
    (0..rows * columns).fold(query, |query, _| query.bind(None::<i64>))
}

/// By which statement records are written: most are new, of which little is to be told, or become
/// completed, which changes little of them, and leaves most indexes as they are.
#[derive(Default)]
pub(super) struct Writes<'a> {
    pub(super) puts: Vec<&'a Record>,
    pub(super) reserved: Vec<&'a Record>,
    pub(super) completed: Vec<&'a Record>,
}

impl<'a> Writes<'a> {
    pub(super) fn add(&mut self, before: Option<&Record>, record: &'a Record) {
        match before {
            None if is_at_its_first_attempt(record) => self.reserved.push(record),
            Some(before) if only_completes(before, record) => self.completed.push(record),
            _ => self.puts.push(record),
        }
    }
}

/// Whether it is in all that [`bind_reserved`] does not bind as a first reserve makes it.
fn is_at_its_first_attempt(record: &Record) -> bool {
    let Record {
        // Bound.
        id: _,
        fingerprint: _,
        attempt: _,
        fence: _,
        effects: _,
        route: _,
        method: _,
        path: _,
        lease_until: _,
        max_execution: _,
        expires_at: _,
        retention: _,
        tombstone: _,
        // What it has in common with the others.
        created_at,
        started_at,
        generation: 1,
        state: State::InProgress,
        attempts: 1,
        finished_at: None,
        reply: None,
        last_error: None,
        reconcile_after: None,
        inquiry,
        void: false,
        progress,
        queued_until: None,
    } = record
    else {
        return false;
    };
    created_at == started_at && progress.is_none() && *inquiry == Inquiry::default()
}

/// Whether nothing else of it changes than what is written when it is completed.
fn only_completes(before: &Record, after: &Record) -> bool {
    let &Record { state, finished_at, expires_at, .. } = after;
    let completed = || {
        let reply = after.reply.clone();
        Record { state, finished_at, expires_at, reply, ..before.clone() }
    };
    before.state == State::InProgress && state == State::Completed && *after == completed()
}

/// A key that many ask for is read once, with its reply.
pub(super) fn ids_of(steps: &[Box<dyn PendingStep>]) -> Vec<RecordId> {
    let mut ids: Vec<RecordId> = steps.iter().map(|step| step.id().clone()).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Begins a transaction, and reads the state of the file and these records.
pub(super) fn begin_and_load(ids: &[RecordId]) -> Select<'static> {
    match ids.is_empty() {
        true => sqlx::query(BEGIN_AND_DATA_VERSION),
        false => sqlx::query(BEGIN_AND_LOAD.as_str()).bind(names(ids.iter())),
    }
}

/// The query for these records.
pub(super) fn load(ids: &[RecordId]) -> Select<'static> {
    sqlx::query(LOAD).bind(names(ids.iter()))
}

fn names<'a>(ids: impl Iterator<Item = &'a RecordId>) -> String {
    let names: Vec<[&str; 2]> = ids.map(|id| [id.scope.as_str(), id.key.as_str()]).collect();
    serde_json::to_string(&names).unwrap_or_default()
}

/// What [`load`] found. A record that cannot be read is not taken for none.
pub(super) fn loaded(ids: &[RecordId], rows: &[SqliteRow]) -> HashMap<RecordId, Read> {
    let mut found = HashMap::with_capacity(rows.len());
    for row in rows {
        let index: Option<i64> = row.try_get(RECORD_COLUMN_COUNT).ok();
        let index = index.and_then(|index| usize::try_from(index).ok());
        if let Some(id) = index.and_then(|index| ids.get(index)) {
            let record = read_record(row).ok().filter(|record| record.id == *id);
            found.insert(id.clone(), record.ok_or(()));
        }
    }
    found
}

pub(super) fn damaged_record() -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, STORE, "a record is damaged")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SqliteOptions, key::Key, machine::tests::record_in, store::sqlite::open};

    async fn begun(connection: &mut SqliteConnection, changes: Changes<'_>) -> Result<(), Moment> {
        sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut *connection).await.expect("begun");
        let written = changes.write_and_commit(connection).await;
        if written.is_err() {
            sqlx::raw_sql("ROLLBACK").execute(connection).await.expect("rolled back");
        }
        written.map_err(|failure| failure.moment)
    }

    async fn stored(connection: &mut SqliteConnection, record: &Record) -> Option<Record> {
        let ids = [record.id.clone()];
        let rows = load(&ids).fetch_all(connection).await.expect("rows");
        loaded(&ids, &rows).remove(&record.id).map(|read| read.expect("readable"))
    }

    #[tokio::test]
    async fn a_completion_that_finds_no_row_takes_its_batch_back_before_the_commit() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut options = SqliteOptions::new(directory.path().join("store.db"));
        let mut file = open::open(&mut options).await.expect("a file");
        let [open, done] = [State::InProgress, State::Completed].map(record_in);
        let other = |of: &Record, key: &str| {
            let mut record = of.clone();
            record.id.key = Key::new(key).expect("a key");
            record
        };
        let (new, absent) = (other(&open, "new"), other(&done, "absent"));
        let mut writes = Writes::default();
        writes.add(None, &open);
        writes.add(None, &new);
        writes.add(Some(&open), &done);
        assert_eq!((writes.reserved.len(), writes.completed.len(), writes.puts.len()), (2, 1, 0));

        let reserved = [&open];
        let first = Changes { reserved: &reserved, ..Changes::default() };
        assert_eq!(begun(&mut file, first).await, Ok(()));
        assert_eq!(stored(&mut file, &open).await.as_ref(), Some(&open));

        let (reserved, completed) = ([&new], [&done, &absent]);
        let wrong = Changes { reserved: &reserved, completed: &completed, ..Changes::default() };
        assert_eq!(begun(&mut file, wrong).await, Err(Moment::Before));
        assert_eq!(stored(&mut file, &open).await.as_ref(), Some(&open), "as it was");
        assert_eq!(stored(&mut file, &new).await, None);

        let right = Changes { reserved: &reserved, completed: &[&done], ..Changes::default() };
        assert_eq!(begun(&mut file, right).await, Ok(()));
        assert_eq!(stored(&mut file, &open).await, Some(done));
        assert_eq!(stored(&mut file, &new).await.as_ref(), Some(&new));
    }
    #[tokio::test]
    async fn new_and_completed_records_are_written_in_the_transaction_of_somebody_else_too() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut options = SqliteOptions::new(directory.path().join("store.db"));
        let mut file = open::open(&mut options).await.expect("a file");
        let [open, done] = [State::InProgress, State::Completed].map(record_in);
        let new = Changes { reserved: &[&open], ..Changes::default() };
        new.write(&mut file).await.expect("written");
        assert_eq!(stored(&mut file, &open).await.as_ref(), Some(&open));
        let completed = Changes { completed: &[&done], ..Changes::default() };
        completed.write(&mut file).await.expect("written");
        assert_eq!(stored(&mut file, &done).await, Some(done));
    }
}
