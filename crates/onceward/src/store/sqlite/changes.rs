//! Reading and writing records on a connection that is in a transaction: the writer's, or one of the
//! user's own.

use std::collections::HashMap;

use sqlx::{
    Row as _, Sqlite, SqliteConnection,
    query::Query,
    sqlite::{SqliteArguments, SqliteRow},
};

use super::{
    beside::write_beside,
    error::STORE,
    row::{RECORD_COLUMN_COUNT, bind_audit, bind_completed, bind_record, buried, read_record},
    sql::{BURY, COMPLETES, LOAD, PUTS, REMEMBER, REMOVE, ROWS_MAX, rows},
};
use crate::{
    record::{AuditRecord, Record, RecordId, State},
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
    /// Those in progress that become completed: see [`Writes`].
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
        [self.puts, self.completed, self.buried].into_iter().flatten().copied()
    }

    /// Writes them in the transaction that the connection is in.
    pub(super) async fn write(self, connection: &mut SqliteConnection) -> sqlx::Result<()> {
        for some in self.puts.chunks(ROWS_MAX) {
            let query =
                some.iter().fold(sqlx::query(rows(&PUTS, some.len())), |q, it| bind_record(q, it));
            query.execute(&mut *connection).await?;
        }
        for some in self.completed.chunks(ROWS_MAX) {
            let query = some
                .iter()
                .fold(sqlx::query(rows(&COMPLETES, some.len())), |q, it| bind_completed(q, it));
            let done = query.execute(&mut *connection).await?.rows_affected();
            if done != some.len() as u64 {
                return Err(sqlx::Error::Protocol("a record is not as it was read".into()));
            }
        }
        if !self.buried.is_empty() {
            let buried: serde_json::Value = self.buried.iter().map(|it| buried(it)).collect();
            sqlx::query(BURY).bind(buried.to_string()).execute(&mut *connection).await?;
        }
        if !self.removed.is_empty() {
            let removed = names(self.removed.iter().copied());
            sqlx::query(REMOVE).bind(removed).execute(&mut *connection).await?;
        }
        // After the records: the triggers of those that came to rest have done their part.
        write_beside(self.beside, &mut *connection).await?;
        for audit in self.audits {
            bind_audit(sqlx::query(REMEMBER), audit).execute(&mut *connection).await?;
        }
        Ok(())
    }
}

/// By which statement records are written: most become completed, which changes little of them, and
/// leaves most indexes as they are.
#[derive(Default)]
pub(super) struct Writes<'a> {
    pub(super) puts: Vec<&'a Record>,
    pub(super) completed: Vec<&'a Record>,
}

impl<'a> Writes<'a> {
    pub(super) fn add(&mut self, before: Option<&Record>, record: &'a Record) {
        match before.is_some_and(|before| only_completes(before, record)) {
            true => self.completed.push(record),
            false => self.puts.push(record),
        }
    }
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
