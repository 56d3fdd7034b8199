//! What operators ask for.

use std::sync::Arc;

use sqlx::{MySql, QueryBuilder, Row as _};
use tracing::warn;

use super::{
    error::unreadable,
    row::{plain_columns, read_listed, read_listed_audit},
    session::{Session, Statement},
    sql::{LISTED, LISTED_AUDIT, listed_columns, with_prefix},
};
use crate::{
    clock::Timestamp,
    record::State,
    store::list::{
        self, AuditPage, AuditQuery, COUNTED_MAX, Count, Page, Query, Stats, shown,
        sql::{Sql, audit_page, push_is_there, push_shown_state},
    },
};

impl Sql for QueryBuilder<MySql> {
    const OVERDUE: &'static str = "overdue_at";

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

/// Unknown outcomes that are due, but for those of these routes; the longest due first.
pub(super) fn due_unknown(
    prefix: &str,
    now: Timestamp,
    except: &[Arc<str>],
) -> QueryBuilder<MySql> {
    let columns = concat!(
        "SELECT ",
        listed_columns!(),
        ", reply_headers, reply_schema, reply_encoding, reply_length, reply_body, reply_digest \
         FROM onceward_records FORCE INDEX (record_due) WHERE state = 'unknown' AND due_at <= "
    );
    let mut sql = QueryBuilder::new(with_prefix(columns, prefix));
    sql.integer(now.as_micros());
    for route in except {
        sql.push(" AND route <> ").push_bind(route.to_string());
    }
    sql.push(" ORDER BY due_at");
    sql
}

pub(super) struct List(pub(super) Query);

impl Statement for List {
    type Answer = Page;
    const READS: bool = true;

    /// A record that cannot be read is left out: it must not be the end of a list, nor keep a worker
    /// from those behind it.
    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<Page> {
        let query = &self.0;
        let now = session.now().await?;
        let from = format!("{LISTED} FROM onceward_records WHERE ");
        let most = query.page_size() as usize + 1;
        let mut records = Vec::new();
        let mut seen = 0;
        loop {
            let page = most - records.len();
            let mut sql = QueryBuilder::new(with_prefix(&from, &session.statements.prefix));
            list::sql::page(&mut sql, query, now);
            sql.push(" LIMIT ").push_bind(page as i64).push(" OFFSET ").push_bind(seen);
            let rows = sql.build().persistent(false).fetch_all(&mut *session.connection).await?;
            seen += rows.len() as i64;
            for row in &rows {
                match read_listed(row) {
                    Ok(record) => records.push(record),
                    Err(error) => warn!(%error, "a record cannot be read, and is not listed"),
                }
            }
            if rows.len() < page || records.len() >= most {
                let shown = records.iter().filter_map(|record| shown(record, now));
                return Ok(query.cut(shown.collect()));
            }
        }
    }
}

pub(super) struct ListAudit(pub(super) AuditQuery);

impl Statement for ListAudit {
    type Answer = AuditPage;
    const READS: bool = true;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<AuditPage> {
        let from = format!("{LISTED_AUDIT} FROM onceward_audit_records WHERE true");
        let mut sql = QueryBuilder::new(with_prefix(&from, &session.statements.prefix));
        audit_page(&mut sql, &self.0);
        let rows = sql.build().persistent(false).fetch_all(&mut *session.connection).await?;
        let records: Result<Vec<_>, _> = rows.iter().map(read_listed_audit).collect();
        Ok(self.0.cut(records.map_err(unreadable)?))
    }
}

/// How many of the last rows are looked at where there are many.
const SAMPLE: u64 = 20_000;

/// Few records are counted; of many a sample is taken, by ranges of their numbers that are drawn by lot.
/// What is open has an index, and is counted up to a bound.
pub(super) struct CountStates;

impl Statement for CountStates {
    type Answer = Stats;
    const READS: bool = true;

    async fn run(&self, session: &mut Session<'_>) -> sqlx::Result<Stats> {
        let now = session.now().await?;
        let bound = i64::from(COUNTED_MAX) + 1;
        let span = "SELECT COUNT(*), CAST(COALESCE((SELECT MAX(record_id) - MIN(record_id) + 1 \
            FROM onceward_records), 0) AS SIGNED), \
            CAST(COALESCE((SELECT MIN(record_id) FROM onceward_records), 0) AS SIGNED) \
            FROM (SELECT 1 FROM onceward_records LIMIT ?) AS some";
        let span = session.statements.named(span).bind(bound);
        let span = span.fetch_one(&mut *session.connection).await?;
        let (counted, span, first): (i64, i64, i64) =
            (span.try_get(0)?, span.try_get(1)?, span.try_get(2)?);
        let few = counted < bound;
        let mut stats = Stats::default();
        for state in State::ALL {
            stats.set(state, Count { records: 0, estimated: !few });
        }
        let mut scale = 1.0;
        let mut sample = String::from("onceward_records");
        if !few {
            scale = span as f64 / SAMPLE as f64;
            sample = drawn(first, span);
        }
        let mut sql = QueryBuilder::<MySql>::new("SELECT ");
        push_shown_state(&mut sql, now);
        sql.push(format!(" AS shown, COUNT(*), MIN({SINCE}) FROM "));
        sql.push(with_prefix(&sample, &session.statements.prefix)).push(" WHERE ");
        push_is_there(&mut sql, now);
        sql.push(" GROUP BY shown");
        let rows = sql.build().persistent(false).fetch_all(&mut *session.connection).await?;
        for row in rows {
            let state: Vec<u8> = row.try_get_unchecked(0)?;
            let state = State::from_name(&String::from_utf8_lossy(&state));
            let Some(state) = state else { continue };
            let counted: i64 = row.try_get(1)?;
            let records = (counted as f64 * scale).round() as u64;
            stats.set(state, Count { records, estimated: !few });
            let oldest: Option<i64> = row.try_get(2)?;
            stats.note_oldest(state, oldest.filter(|_| few).map(Timestamp::from_micros));
        }
        if !few {
            count_open(session, &mut stats, bound).await?;
        }
        Ok(stats)
    }
}

/// What has an index of its own.
async fn count_open(session: &mut Session<'_>, stats: &mut Stats, bound: i64) -> sqlx::Result<()> {
    for state in [State::InProgress, State::Unknown, State::Pending] {
        let open = format!(
            "SELECT COUNT(*), MIN(since) FROM (SELECT {SINCE} AS since FROM onceward_records \
             FORCE INDEX (record_due) WHERE state = ? ORDER BY due_at LIMIT ?) AS open"
        );
        let open = session.statements.named(&open).bind(state.name()).bind(bound);
        let row = open.fetch_one(&mut *session.connection).await?;
        let (counted, oldest): (i64, Option<i64>) = (row.try_get(0)?, row.try_get(1)?);
        let records = u64::try_from(counted.min(bound - 1)).unwrap_or(0);
        stats.set(state, Count { records, estimated: counted >= bound });
        stats.note_oldest(state, oldest.map(Timestamp::from_micros));
    }
    Ok(())
}

/// Rows of ranges that are drawn by lot, as many numbers as a sample has.
fn drawn(first: i64, span: i64) -> String {
    const RANGES: i64 = 100;
    let length = SAMPLE as i64 / RANGES;
    let part = |_| {
        let from = first + rand::random_range(0..(span - length).max(1));
        let to = from + length - 1;
        format!("SELECT * FROM onceward_records WHERE record_id BETWEEN {from} AND {to}")
    };
    let parts: Vec<String> = (0..RANGES).map(part).collect();
    format!("({}) AS sample", parts.join(" UNION ALL "))
}

/// From when on the age of an open record counts.
const SINCE: &str =
    "CASE WHEN state IN ('in_progress', 'unknown') THEN started_at ELSE created_at END";
