//! How SQLite holds the columns of records.

use std::sync::Arc;

use sqlx::{
    Decode, Row as _, Sqlite, Type,
    query::Query,
    sqlite::{SqliteArguments, SqliteRow},
};
use tracing::warn;

use super::super::headers::encode_headers;
pub(super) use super::super::row::*;
use crate::{clock::Timestamp, record::Record};

#[cfg(feature = "testing")]
pub(crate) mod fuzz;

/// What workers look at. A row that cannot be read is left out, and told of: it must not stand in the way
/// of the others.
pub(super) fn readable<T>(
    rows: &[SqliteRow],
    read: impl Fn(&SqliteRow) -> Result<T, BadRow>,
) -> Vec<T> {
    let told = |row| {
        read(row)
            .inspect_err(|error| warn!(%error, "a record that is due for a worker cannot be read"))
    };
    rows.iter().filter_map(|row| told(row).ok()).collect()
}

/// The columns of a record but those that hold its reply, in the order of [`read_listed`].
macro_rules! listed_columns {
    () => {
        concat!("scope, key, ", plain_columns!())
    };
}
pub(super) use listed_columns;

/// The columns of a record, in the order of [`bind_record`] and [`read_record`].
macro_rules! record_columns {
    () => {
        concat!("scope, key, ", rest_columns!())
    };
}
pub(super) use record_columns;

/// All columns but the address.
macro_rules! rest_columns {
    () => {
        concat!(
            plain_columns!(),
            ", reply_headers, reply_schema, reply_encoding, reply_length, reply_body, reply_digest"
        )
    };
}
pub(super) use rest_columns;

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

pub(super) const RESERVED_COLUMN_COUNT: usize = 16;

/// A record at its first attempt: what it does not have in common with all others.
pub(super) fn bind_reserved<'q>(values: Bound<'q>, record: &Record) -> Bound<'q> {
    bind_id(values, &record.id)
        .integer(i64::from(record.fingerprint.recipe()))
        .bytes(record.fingerprint.digest())
        .bytes(record.attempt.as_bytes())
        .integer(record.fence.number())
        .bind(record.effects.name())
        .bind(Arc::clone(&record.route))
        .bind(Arc::clone(&record.method))
        .bind(Arc::clone(&record.path))
        .integer(record.created_at.as_micros())
        .integer(record.lease_until.as_micros())
        .integer(micros(record.max_execution))
        .integer(record.expires_at.as_micros())
        .integer(micros(record.retention))
        .integer(record.purge_at().as_micros())
}

type Bound<'q> = Query<'q, Sqlite, SqliteArguments>;

pub(super) const COMPLETED_COLUMN_COUNT: usize = 14;

/// The address of a record in progress, and what changes of it when it is completed.
pub(super) fn bind_completed<V: Values>(values: V, record: &Record) -> V {
    let values = bind_id(values, &record.id)
        .integer(record.fence.number())
        .bytes(record.attempt.as_bytes())
        .integer(record.finished_at.map(Timestamp::as_micros))
        .integer(record.expires_at.as_micros())
        .integer(record.purge_at().as_micros());
    bind_reply(values, record.reply.as_ref())
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
