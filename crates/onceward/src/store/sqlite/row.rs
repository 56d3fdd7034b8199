//! How SQLite holds the columns of records.

use sqlx::{
    Decode, Row as _, Sqlite, Type,
    query::Query,
    sqlite::{SqliteArguments, SqliteRow},
};

pub(super) use super::super::row::*;
use super::super::headers::encode_headers;
use crate::record::Record;

#[cfg(feature = "testing")]
pub(crate) mod fuzz;

impl Values for Query<'_, Sqlite, SqliteArguments> {
    fn integer(self, value: impl Into<Option<i64>>) -> Self {
        self.bind(value.into())
    }

    fn text(self, value: Option<String>) -> Self {
        self.bind(value)
    }

    fn blob(self, value: Option<Vec<u8>>) -> Self {
        self.bind(value)
    }
}

impl Fields for SqliteRow {
    fn integer(&self, column: usize) -> Option<Option<i64>> {
        get(self, column)
    }

    fn text(&self, column: usize) -> Option<Option<&str>> {
        get(self, column)
    }

    fn blob(&self, column: usize) -> Option<Option<&[u8]>> {
        get(self, column)
    }
}

/// A NULL is told from a value here: SQLite itself would give it as 0 or as nothing, without a word.
fn get<'r, T>(row: &'r SqliteRow, column: usize) -> Option<Option<T>>
where
    T: Decode<'r, Sqlite> + Type<Sqlite>,
{
    row.try_get(column).ok()
}

/// The address of a record, and what the reaper changes of it.
pub(super) fn buried(record: &Record) -> serde_json::Value {
    let reply = record.reply.as_ref();
    serde_json::json!([
        record.id.scope.as_str(),
        record.id.key.as_str(),
        record.state.name(),
        i64::from(record.void),
        reply.map(|reply| reply.status.as_u16()),
        reply.map(|reply| hex(&encode_headers(&reply.headers))),
        reply.map(|_| "not_stored"),
        reply.map(|reply| hex(&digest(reply))),
    ])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

