//! What operators ask for. On a connection of its own that only reads: however long a list takes,
//! requests do not wait for it.

use std::time::{Duration, Instant};

use sqlx::{
    ConnectOptions as _, Connection as _, QueryBuilder, Row as _, Sqlite, SqliteConnection,
    sqlite::SqliteConnectOptions,
};
use tracing::warn;

use super::{
    SqliteStore, closed,
    error::{Moment, STORE, store_error},
    open,
    row::{listed_columns, plain_columns, read_listed, read_listed_audit},
};
use crate::{
    clock::Timestamp,
    record::{Record, State},
    store::{
        StoreError, StoreErrorKind,
        list::{
            self, AuditPage, AuditQuery, COUNTED_MAX, Count, Page, Query, Stats, shown,
            sql::{Sql, audit_page, push_is_there, push_shown_state},
        },
    },
};

/// No question takes longer than this.
const READ_TIME_MAX: Duration = Duration::from_secs(5);

/// How many operations SQLite does between two looks at the clock.
const LOOK_EVERY: i32 = 10_000;

/// How many ids are drawn for a sample. The same number is in `SAMPLE`.
const DRAWN: u32 = 20_000;

const LISTED: &str = concat!("SELECT ", listed_columns!(), " FROM onceward_records WHERE ");

const LISTED_AUDIT: &str = "SELECT at, scope, key, generation, event, attempt, fence, reason, \
    reply_status FROM onceward_audit_records WHERE true";

impl Sql for QueryBuilder<Sqlite> {
    const OVERDUE: &'static str = "queued_until";

    fn push(&mut self, sql: &str) -> &mut Self {
        QueryBuilder::push(self, sql)
    }

    fn integer(&mut self, value: i64) -> &mut Self {
        self.push_bind(value)
    }

    fn word(&mut self, value: &str) -> &mut Self {
        self.push_bind(value.to_owned())
    }

    fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.push_bind(value.to_vec())
    }
}

impl SqliteStore {
    pub(super) async fn list_page(&self, query: Query) -> Result<Page, StoreError> {
        let mut connection = self.reader().await?;
        let now = self.database.now();
        let records = readable(&mut connection, &query, now).await;
        close(connection).await;
        let records = records.map_err(failed)?;
        Ok(query.cut(records.iter().filter_map(|record| shown(record, now)).collect()))
    }

    pub(super) async fn audit_page(&self, query: AuditQuery) -> Result<AuditPage, StoreError> {
        let mut connection = self.reader().await?;
        let mut sql = QueryBuilder::new(LISTED_AUDIT);
        audit_page(&mut sql, &query);
        let rows = sql.build().fetch_all(&mut connection).await;
        close(connection).await;
        let rows = rows.map_err(failed)?;
        let records: Result<Vec<_>, _> = rows.iter().map(read_listed_audit).collect();
        Ok(query.cut(records.map_err(|error| damaged(&error))?))
    }

    pub(super) async fn count_states(&self) -> Result<Stats, StoreError> {
        let mut connection = self.reader().await?;
        let stats = stats(&mut connection, self.database.now()).await;
        close(connection).await;
        stats.map_err(failed)
    }

    /// A connection that only reads, and gives up in time.
    async fn reader(&self) -> Result<SqliteConnection, StoreError> {
        if self.work.is_closed() {
            return Err(closed());
        }
        if open::file_at(&self.path) != self.database.file {
            let moved = "the file was removed or replaced since it was opened";
            return Err(StoreError::new(StoreErrorKind::Unavailable, STORE, moved));
        }
        let connect = SqliteConnectOptions::new()
            .filename(&self.path)
            .read_only(true)
            .busy_timeout(READ_TIME_MAX)
            .disable_statement_logging();
        let mut connection = connect.connect().await.map_err(failed)?;
        let give_up = Instant::now() + READ_TIME_MAX;
        let mut handle = connection.lock_handle().await.map_err(failed)?;
        handle.set_progress_handler(LOOK_EVERY, move || Instant::now() < give_up);
        drop(handle);
        Ok(connection)
    }
}

/// The records of a page, and one more if there is one. A record that cannot be read is left out: it
/// must not be the end of a list, nor keep a worker from those behind it.
async fn readable(
    connection: &mut SqliteConnection,
    query: &Query,
    now: Timestamp,
) -> sqlx::Result<Vec<Record>> {
    let most = query.page_size() as usize + 1;
    let mut records = Vec::new();
    let mut seen = 0;
    loop {
        let page = most - records.len();
        let mut sql = QueryBuilder::new(LISTED);
        list::sql::page(&mut sql, query, now);
        sql.push(" LIMIT ").push_bind(page as i64).push(" OFFSET ").push_bind(seen as i64);
        let rows = sql.build().fetch_all(&mut *connection).await?;
        seen += rows.len();
        for row in &rows {
            match read_listed(row) {
                Ok(record) => records.push(record),
                Err(error) => warn!(%error, "a record cannot be read, and is not listed"),
            }
        }
        if rows.len() < page || records.len() >= most {
            return Ok(records);
        }
    }
}

async fn close(connection: SqliteConnection) {
    // It only read: nothing can be lost.
    let _ = connection.close().await;
}

fn failed(error: sqlx::Error) -> StoreError {
    const INTERRUPTED: u32 = 9;
    if super::error::extended_code(&error).map(|code| code & 0xff) == Some(INTERRUPTED) {
        let late = "the question takes too long; ask for less";
        return StoreError::new(StoreErrorKind::Unavailable, STORE, late);
    }
    store_error(error, Moment::Before)
}

fn damaged(error: &super::row::BadRow) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, STORE, "a record is damaged")
        .with_source(error.to_string())
}

/// Few records are counted; of many a sample is taken, by ids that are drawn by lot. What is open has
/// an index, and is counted up to a bound.
async fn stats(connection: &mut SqliteConnection, now: Timestamp) -> Result<Stats, sqlx::Error> {
    let bound = i64::from(COUNTED_MAX) + 1;
    let few = "SELECT count(*) <= ? FROM (SELECT 1 FROM onceward_records LIMIT ?)";
    let few = sqlx::query_scalar(few).bind(bound - 1).bind(bound);
    let few: bool = few.fetch_one(&mut *connection).await?;
    let (from, scale) =
        if few { ("onceward_records", 1.0) } else { (SAMPLE, scale(connection).await?) };
    let mut sql = QueryBuilder::<Sqlite>::new("SELECT ");
    push_shown_state(&mut sql, now);
    sql.push(format!(" AS shown, count(*), min({SINCE}) FROM {from} WHERE "));
    push_is_there(&mut sql, now);
    sql.push(" GROUP BY shown");
    let mut stats = Stats::default();
    for state in State::ALL {
        stats.set(state, Count { records: 0, estimated: !few });
    }
    for row in sql.build().fetch_all(&mut *connection).await? {
        let Some(state) = State::from_name(row.try_get(0)?) else { continue };
        let counted: i64 = row.try_get(1)?;
        let records = (counted as f64 * scale).round() as u64;
        stats.set(state, Count { records, estimated: !few });
        let oldest: Option<i64> = row.try_get(2)?;
        stats.note_oldest(state, oldest.filter(|_| few).map(Timestamp::from_micros));
    }
    if !few {
        let open = [
            (State::InProgress, IN_PROGRESS),
            (State::Unknown, UNKNOWN),
            (State::Pending, PENDING),
        ];
        for (state, sql) in open {
            let row = sqlx::query(sql).bind(bound).fetch_one(&mut *connection).await?;
            let (counted, oldest): (i64, Option<i64>) = (row.try_get(0)?, row.try_get(1)?);
            let records = u64::try_from(counted.min(bound - 1)).unwrap_or(0);
            stats.set(state, Count { records, estimated: counted >= bound });
            stats.note_oldest(state, oldest.map(Timestamp::from_micros));
        }
    }
    Ok(stats)
}

/// From when on the age of an open record counts.
const SINCE: &str =
    "CASE WHEN state IN ('in_progress', 'unknown') THEN started_at ELSE created_at END";

const IN_PROGRESS: &str = "SELECT count(*), min(started_at) FROM (\
    SELECT started_at FROM onceward_records WHERE state = 'in_progress' ORDER BY lease_until LIMIT ?)";
const UNKNOWN: &str = "SELECT count(*), min(started_at) FROM (\
    SELECT started_at FROM onceward_records WHERE state = 'unknown' ORDER BY reconcile_after LIMIT ?)";
const PENDING: &str = "SELECT count(*), min(created_at) FROM (\
    SELECT created_at FROM onceward_records WHERE state = 'pending' ORDER BY lease_until LIMIT ?)";

/// Those records whose ids were drawn.
const SAMPLE: &str = "(WITH RECURSIVE \
    lots (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM lots WHERE number < 20000), \
    ids (first, span) AS (SELECT min(record_id), max(record_id) - min(record_id) + 1 FROM onceward_records), \
    drawn (id) AS MATERIALIZED (SELECT first + abs(random() % span) FROM lots, ids) \
    SELECT onceward_records.* FROM drawn CROSS JOIN onceward_records ON record_id = id)";

/// For how many records one of the sample stands.
async fn scale(connection: &mut SqliteConnection) -> Result<f64, sqlx::Error> {
    let span = "SELECT max(record_id) - min(record_id) + 1 FROM onceward_records";
    let span: i64 = sqlx::query_scalar(span).fetch_one(connection).await?;
    Ok(span as f64 / f64::from(DRAWN))
}
