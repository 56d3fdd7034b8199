//! What holds for the encoding of records, whatever is written and whatever is damaged.

use std::{cell::RefCell, time::Duration};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use sqlx::{Connection as _, SqliteConnection, TypeInfo as _, ValueRef as _};
use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::{
    clock::Timestamp,
    fingerprint::Fingerprint,
    key::Key,
    record::{AttemptId, Effects, Fence, Inquiry, OpenEffect, Progress, RecordId, State},
    reply::{Reply, ReplyBody},
    scope::Scope,
};

/// The first column of the reply; all from here on are covered by its digest.
const REPLY_FROM: usize = RECORD_COLUMN_COUNT - 7;

/// See [`crate::testing::fuzz::record`].
pub(crate) fn fuzz_record(data: &[u8]) {
    thread_local! {
        static SQLITE: RefCell<Sqlite3> = RefCell::new(Sqlite3::open());
    }
    SQLITE.with_borrow_mut(|sqlite| check(sqlite, &mut Source(data)));
}

fn check(sqlite: &mut Sqlite3, source: &mut Source<'_>) {
    let record = source.record();
    let written = sqlite.written(&record);
    let read = read_record(&written).expect("what was written can be read");
    assert_eq!(read, record);
    let mut columns: Vec<Column> =
        (0..RECORD_COLUMN_COUNT).map(|at| column(&written, at)).collect();
    let mut first_damaged = RECORD_COLUMN_COUNT;
    while !source.0.is_empty() {
        let at = usize::from(source.byte()) % RECORD_COLUMN_COUNT;
        source.damage(&mut columns[at]);
        first_damaged = first_damaged.min(at);
    }
    let Ok(read) = read_record(&sqlite.row(&columns)) else { return };
    if first_damaged >= REPLY_FROM {
        assert_eq!(read, record, "a damaged reply is an error and never another one");
    }
    let again = sqlite.written(&read);
    for (at, damaged) in columns.iter().enumerate().take(REPLY_FROM) {
        let kept = column(&again, at);
        assert!(kept.holds_the_same_as(damaged), "{damaged:?} was read as {kept:?}");
    }
    assert_eq!(read_record(&again).expect("what was read can be written"), read);
}

/// SQLite, to make rows with. Nothing is stored.
struct Sqlite3 {
    runtime: Runtime,
    connection: SqliteConnection,
}

impl Sqlite3 {
    fn open() -> Self {
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        let connection = runtime.block_on(SqliteConnection::connect("sqlite::memory:"));
        Sqlite3 { runtime, connection: connection.expect("SQLite in memory") }
    }

    fn written(&mut self, record: &Record) -> SqliteRow {
        let places = vec!["?"; RECORD_COLUMN_COUNT].join(",");
        let query = sqlx::query(sqlx::AssertSqlSafe(format!("SELECT {places}")));
        self.one(bind_record(query, record))
    }

    fn row(&mut self, columns: &[Column]) -> SqliteRow {
        // Only a cast makes text that is not UTF-8.
        let place = |column: &Column| match column {
            Column::Text(_) => "CAST(? AS TEXT)",
            _ => "?",
        };
        let places = columns.iter().map(place).collect::<Vec<_>>().join(",");
        let query = sqlx::query(sqlx::AssertSqlSafe(format!("SELECT {places}"))).persistent(false);
        let query = columns.iter().fold(query, |query, column| match column {
            Column::Null => query.bind(None::<i64>),
            Column::Integer(number) => query.bind(*number),
            Column::Real(number) => query.bind(*number),
            Column::Text(bytes) | Column::Blob(bytes) => query.bind(bytes.clone()),
        });
        self.one(query)
    }

    fn one(&mut self, query: Query<'_, Sqlite, SqliteArguments>) -> SqliteRow {
        self.runtime.block_on(query.fetch_one(&mut self.connection)).expect("one row")
    }
}

/// What SQLite can hold in a column.
#[derive(Clone, Debug)]
enum Column {
    Null,
    Integer(i64),
    Real(f64),
    Text(Vec<u8>),
    Blob(Vec<u8>),
}

impl Column {
    fn holds_the_same_as(&self, other: &Column) -> bool {
        use Column::{Blob, Integer, Null, Text};
        match (self, other) {
            (Null, Null) => true,
            (Integer(one), Integer(other)) => one == other,
            (Text(one) | Blob(one), Text(other) | Blob(other)) => one == other,
            _ => false,
        }
    }
}

fn column(row: &SqliteRow, at: usize) -> Column {
    let raw = row.try_get_raw(at).expect("a column");
    let kind = raw.type_info().name().to_owned();
    match kind.as_str() {
        _ if raw.is_null() => Column::Null,
        "INTEGER" => Column::Integer(row.get(at)),
        "TEXT" => Column::Text(row.get::<String, _>(at).into_bytes()),
        "BLOB" => Column::Blob(row.get(at)),
        _ => panic!("a record has no column of type {kind}"),
    }
}

/// Bytes that choices are made by. When they are used up, all that come are zero.
struct Source<'d>(&'d [u8]);

impl<'d> Source<'d> {
    fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    fn bytes(&mut self, most: usize) -> &'d [u8] {
        let (bytes, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    /// So many bytes as the next one says.
    fn some(&mut self) -> &'d [u8] {
        let most = self.byte();
        self.bytes(usize::from(most))
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let bytes = self.bytes(N);
        array[..bytes.len()].copy_from_slice(bytes);
        array
    }

    fn text(&mut self) -> Box<str> {
        String::from_utf8_lossy(self.some()).into()
    }

    fn flag(&mut self) -> bool {
        self.byte() % 2 == 1
    }

    fn time(&mut self) -> Timestamp {
        Timestamp::from_micros(i64::from(i32::from_be_bytes(self.array())))
    }

    fn duration(&mut self) -> Duration {
        Duration::from_micros(u32::from_be_bytes(self.array()).into())
    }

    fn record(&mut self) -> Record {
        let state = State::ALL[usize::from(self.byte()) % State::ALL.len()];
        let has_reply = match state {
            State::Completed => true,
            State::Expired => self.flag(),
            _ => false,
        };
        let scope = Scope::new(self.text()).or_else(|_| Scope::new("tenant"));
        let key = Key::new(self.text()).or_else(|_| Key::new("key"));
        let id = RecordId { scope: scope.expect("a scope"), key: key.expect("a key") };
        Record {
            id,
            fingerprint: Fingerprint::from_stored(self.byte().into(), self.array()),
            generation: u32::from_be_bytes(self.array()),
            state,
            attempt: AttemptId::from_bytes(self.array()),
            fence: Fence::from_stored(i64::from_be_bytes(self.array())),
            attempts: u32::from_be_bytes(self.array()),
            effects: Effects::ALL[usize::from(self.byte()) % Effects::ALL.len()],
            route: self.text().into(),
            method: self.text().into(),
            path: self.text().into(),
            created_at: self.time(),
            started_at: self.time(),
            lease_until: self.time(),
            max_execution: self.duration(),
            finished_at: self.flag().then(|| self.time()),
            expires_at: self.time(),
            retention: self.duration(),
            tombstone: self.duration(),
            reply: has_reply.then(|| self.reply()),
            last_error: self.flag().then(|| self.text()),
            reconcile_after: self.flag().then(|| self.time()),
            inquiry: Inquiry {
                probes: u32::from_be_bytes(self.array()),
                asked_at: self.flag().then(|| self.time()),
                absent_at: self.flag().then(|| self.time()),
            },
            void: self.flag(),
            progress: Progress {
                recovery_point: self.flag().then(|| self.text()),
                open_effect: self
                    .flag()
                    .then(|| OpenEffect { name: self.text(), idempotent: self.flag() }),
            },
            queued_until: self.flag().then(|| self.time()),
        }
    }

    fn reply(&mut self) -> Reply {
        let status = 100 + u16::from_be_bytes(self.array()) % 900;
        let headers = (0..self.byte() % 4).filter_map(|_| {
            let (name, value) = (self.some(), self.some());
            Some((HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value).ok()?))
        });
        Reply {
            status: StatusCode::from_u16(status).expect("three digits"),
            headers: headers.collect(),
            body: match self.byte() % 3 {
                0 => ReplyBody::NotStored,
                1 => ReplyBody::Stored(Bytes::copy_from_slice(self.some())),
                // Long enough to be compressed.
                _ => ReplyBody::Stored(self.some().repeat(100).into()),
            },
            schema_version: self.flag().then(|| self.text()),
        }
    }

    fn damage(&mut self, column: &mut Column) {
        match (self.byte() % 7, &mut *column) {
            (0, _) => *column = Column::Null,
            (1, _) => *column = Column::Integer(i64::from_be_bytes(self.array())),
            (2, _) => *column = Column::Real(f64::from_be_bytes(self.array())),
            (3, _) => *column = Column::Text(self.some().to_vec()),
            (4, _) => *column = Column::Blob(self.some().to_vec()),
            (5, Column::Text(bytes) | Column::Blob(bytes)) => {
                let end = bytes.len() * usize::from(self.byte()) / 256;
                bytes.truncate(end);
            }
            (_, Column::Text(bytes) | Column::Blob(bytes)) if !bytes.is_empty() => {
                let at = usize::from(u16::from_be_bytes(self.array())) % bytes.len();
                bytes[at] ^= self.byte().max(1);
            }
            (_, Column::Integer(number)) => *number ^= 1 << (self.byte() % 64),
            _ => {}
        }
    }
}
