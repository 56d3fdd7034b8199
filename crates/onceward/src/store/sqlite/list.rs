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
            AuditPage, AuditQuery, COUNTED_MAX, Count, KeyFilter, Order, Page, Query, Sort, Span,
            Stats, shown,
        },
    },
};

/// No question takes longer than this.
const READ_TIME_MAX: Duration = Duration::from_secs(5);

/// How many operations SQLite does between two looks at the clock.
const LOOK_EVERY: i32 = 10_000;

/// How many ids are drawn for a sample. The same number is in `SAMPLE`.
const DRAWN: u32 = 20_000;

const LISTED: &str = concat!("SELECT ", listed_columns!(), " FROM records WHERE ");

const LISTED_AUDIT: &str = "SELECT at, scope, key, generation, event, attempt, fence, reason, \
    reply_status FROM audit_records WHERE true";

/// The state as `load` would tell it, at the time that follows.
const SHOWN_STATE: &str = "CASE WHEN state IN ('completed', 'failed_retryable') AND expires_at <= ";

/// Whether `load` would find it, at the time that follows.
const IS_THERE: &str =
    "NOT (state IN ('completed', 'failed_retryable', 'expired') AND purge_at <= ";

type Sql = QueryBuilder<Sqlite>;

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
        let rows = audit_sql(&query).build().fetch_all(&mut connection).await;
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
            return Err(closed(StoreErrorKind::Unavailable));
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
        let mut sql = page_sql(query, now);
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

fn page_sql(query: &Query, now: Timestamp) -> Sql {
    let mut sql = Sql::new(LISTED);
    sql.push(IS_THERE).push_bind(now.as_micros()).push(")");
    push_states(&mut sql, &query.states, now);
    if let Some(scope) = &query.scope {
        sql.push(" AND scope = ").push_bind(scope.as_str().to_owned());
    }
    match &query.key {
        None => {}
        Some(KeyFilter::Exact(key)) => {
            sql.push(" AND key = ").push_bind(key.as_str().to_owned());
        }
        Some(KeyFilter::Prefix(prefix)) => {
            // The first condition is for the index.
            let length = i64::try_from(prefix.chars().count()).unwrap_or(i64::MAX);
            sql.push(" AND key >= ").push_bind(prefix.to_string());
            sql.push(" AND substr(key, 1, ").push_bind(length);
            sql.push(") = ").push_bind(prefix.to_string());
        }
    }
    if let Some(route) = &query.route {
        sql.push(" AND route = ").push_bind(route.to_string());
    }
    if let Some(effects) = query.effects {
        sql.push(" AND effects = ").push_bind(effects.name());
    }
    if query.overdue {
        sql.push(" AND state = 'pending' AND queued_until <= ").push_bind(now.as_micros());
    }
    if query.dead_letters {
        sql.push(" AND state = 'unknown' AND reconcile_after = ");
        sql.push_bind(Timestamp::NEVER.as_micros());
    }
    push_span(&mut sql, "created_at", query.created);
    push_span(&mut sql, "finished_at", query.finished);
    if let Some(age) = query.older_than {
        let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
        sql.push(" AND created_at <= ").push_bind(now.as_micros().saturating_sub(age));
    }
    push_order(&mut sql, query);
    sql
}

fn push_order(sql: &mut Sql, query: &Query) {
    let by = match query.sort {
        _ if query.overdue => "queued_until",
        Sort::CreatedAt => "created_at",
        Sort::ExpiresAt => "expires_at",
    };
    let (than, order) = match query.order {
        Order::Ascending => (">", "ASC"),
        Order::Descending => ("<", "DESC"),
    };
    if let Some(after) = &query.after {
        let at = after.at.as_micros();
        // What is open is little, and has an index of its own, which is better than that of all times.
        let plus = if is_open(&query.states) && !query.overdue { "+" } else { "" };
        // The first condition is for the index.
        sql.push(format!(" AND {plus}{by} {than}= ")).push_bind(at);
        sql.push(format!(" AND ({plus}{by}, scope, key) {than} (")).push_bind(at);
        sql.push(", ").push_bind(after.id.scope.as_str().to_owned());
        sql.push(", ").push_bind(after.id.key.as_str().to_owned()).push(")");
    }
    sql.push(format!(" ORDER BY {by} {order}, scope {order}, key {order}"));
}

/// Whether one state is asked for, and time does not change it.
fn is_open(states: &[State]) -> bool {
    matches!(states, [state] if !state.is_terminal())
}

/// A state that time does not change is found by its index, whose condition is a word.
fn push_states(sql: &mut Sql, states: &[State], now: Timestamp) {
    if states.is_empty() {
        return;
    }
    let names: Vec<String> = states.iter().map(|state| format!("'{}'", state.name())).collect();
    if is_open(states) {
        sql.push(format!(" AND state = {}", names.join("")));
        return;
    }
    sql.push(" AND ").push(SHOWN_STATE).push_bind(now.as_micros());
    sql.push(format!(" THEN 'expired' ELSE state END IN ({})", names.join(", ")));
}

fn push_span(sql: &mut Sql, column: &str, span: Span) {
    if let Some(from) = span.from {
        sql.push(format!(" AND {column} >= ")).push_bind(from.as_micros());
    }
    if let Some(before) = span.before {
        sql.push(format!(" AND {column} < ")).push_bind(before.as_micros());
    }
}

fn audit_sql(query: &AuditQuery) -> Sql {
    let mut sql = Sql::new(LISTED_AUDIT);
    if let Some(event) = query.event {
        sql.push(" AND event = ").push_bind(event.name());
    }
    if let Some(scope) = &query.scope {
        sql.push(" AND scope = ").push_bind(scope.as_str().to_owned());
    }
    push_span(&mut sql, "at", query.at);
    if let Some(after) = &query.after {
        sql.push(" AND at <= ").push_bind(after.at.as_micros());
        sql.push(" AND (at, scope, key, generation, event, attempt, fence) < (");
        sql.push_bind(after.at.as_micros());
        sql.push(", ").push_bind(after.id.scope.as_str().to_owned());
        sql.push(", ").push_bind(after.id.key.as_str().to_owned());
        sql.push(", ").push_bind(i64::from(after.generation));
        sql.push(", ").push_bind(after.event);
        sql.push(", ").push_bind(after.attempt.as_bytes().to_vec());
        sql.push(", ").push_bind(after.fence.number()).push(")");
    }
    sql.push(
        " ORDER BY at DESC, scope DESC, key DESC, generation DESC, event DESC, attempt DESC, \
         fence DESC LIMIT ",
    );
    sql.push_bind(i64::from(query.page_size()) + 1);
    sql
}

/// Few records are counted; of many a sample is taken, by ids that are drawn by lot. What is open has
/// an index, and is counted up to a bound.
async fn stats(connection: &mut SqliteConnection, now: Timestamp) -> Result<Stats, sqlx::Error> {
    let bound = i64::from(COUNTED_MAX) + 1;
    let few = "SELECT count(*) <= ? FROM (SELECT 1 FROM records LIMIT ?)";
    let few = sqlx::query_scalar(few).bind(bound - 1).bind(bound);
    let few: bool = few.fetch_one(&mut *connection).await?;
    let (from, scale) = if few { ("records", 1.0) } else { (SAMPLE, scale(connection).await?) };
    let mut sql = Sql::new("SELECT ");
    sql.push(SHOWN_STATE)
        .push_bind(now.as_micros())
        .push(" THEN 'expired' ELSE state END AS shown");
    sql.push(format!(", count(*), min({SINCE}) FROM {from} WHERE "));
    sql.push(IS_THERE).push_bind(now.as_micros()).push(") GROUP BY shown");
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
    SELECT started_at FROM records WHERE state = 'in_progress' ORDER BY lease_until LIMIT ?)";
const UNKNOWN: &str = "SELECT count(*), min(started_at) FROM (\
    SELECT started_at FROM records WHERE state = 'unknown' ORDER BY reconcile_after LIMIT ?)";
const PENDING: &str = "SELECT count(*), min(created_at) FROM (\
    SELECT created_at FROM records WHERE state = 'pending' ORDER BY lease_until LIMIT ?)";

/// Those records whose ids were drawn.
const SAMPLE: &str = "(WITH RECURSIVE \
    lots (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM lots WHERE number < 20000), \
    ids (first, span) AS (SELECT min(record_id), max(record_id) - min(record_id) + 1 FROM records), \
    drawn (id) AS MATERIALIZED (SELECT first + abs(random() % span) FROM lots, ids) \
    SELECT records.* FROM drawn CROSS JOIN records ON record_id = id)";

/// For how many records one of the sample stands.
async fn scale(connection: &mut SqliteConnection) -> Result<f64, sqlx::Error> {
    let span = "SELECT max(record_id) - min(record_id) + 1 FROM records";
    let span: i64 = sqlx::query_scalar(span).fetch_one(connection).await?;
    Ok(span as f64 / f64::from(DRAWN))
}
