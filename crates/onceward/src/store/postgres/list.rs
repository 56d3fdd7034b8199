//! What operators ask for: lists in pages, and counts. The SQL is in `0005_listing.sql`.

use serde_json::{Value, json};
use sqlx::{Row as _, postgres::PgRow};
use tracing::warn;

use super::{
    PgStore,
    link::{Caller as _, Link, call},
    row::{FoundRow, damaged, read_audit, uuid},
    workers::{fetch, unreadable},
};
use crate::{
    clock::Timestamp,
    key::Key,
    record::{Record, RecordId, State},
    scope::Scope,
    store::{
        StoreError,
        list::{
            AuditPage, AuditQuery, COUNTED_MAX, Count, KeyFilter, Order, Page, Query, Sort, Span,
            Stats, shown,
        },
    },
};

/// So many rows of the list of leases at most are followed by one statement.
const LEASES_MAX: i64 = 10_000;

pub(super) async fn page(store: &PgStore, query: Query) -> Result<Page, StoreError> {
    let part = |query: Query| store.single(move |link| Box::pin(part(link, query)));
    if query.states != [State::InProgress] {
        return Ok(query.cut(part(query.clone()).await?));
    }
    // Most of the leases may be of what has completed. They are gone through in spans of time, each in
    // a statement that others do not wait for long for, until the page is full or the caller has gone.
    let mut found = Vec::new();
    let mut left = to_come(&query);
    loop {
        let down = query.order == Order::Descending;
        let end = store.single(move |link| Box::pin(moment(link, left, down))).await?;
        let (span, rest) = match end {
            None => (left, None),
            Some(end) if down => {
                let end = Some(end);
                (Span { from: end, ..left }, Some(Span { before: end, ..left }))
            }
            Some(end) => {
                let end = Some(Timestamp::from_micros(end.as_micros().saturating_add(1)));
                (Span { before: end, ..left }, Some(Span { from: end, ..left }))
            }
        };
        found.extend(part(Query { created: span, ..query.clone() }).await?);
        let is_full = found.len() > query.page_size() as usize && query.sort == Sort::CreatedAt;
        match rest.filter(|_| !is_full) {
            Some(rest) => left = rest,
            None => return Ok(query.merge(found)),
        }
    }
}

/// When those may have been created that are asked for, and that were not on an earlier page.
fn to_come(query: &Query) -> Span {
    let Span { from, before } = query.created;
    let passed = query.after.as_ref().filter(|_| query.sort == Sort::CreatedAt);
    match (passed.map(|after| after.at), query.order) {
        (None, _) => query.created,
        (Some(at), Order::Ascending) => Span { from: from.max(Some(at)), before },
        (Some(at), Order::Descending) => {
            let end = Timestamp::from_micros(at.as_micros().saturating_add(1));
            Span { from, before: Some(before.map_or(end, |before| before.min(end))) }
        }
    }
}

/// Where a span ends that has as many leases as one statement may follow, if there are more.
async fn moment(link: &mut Link, left: Span, down: bool) -> Result<Option<Timestamp>, StoreError> {
    let micros = |at: Option<Timestamp>, end| at.map_or(end, Timestamp::as_micros);
    let bind = |link: &Link| {
        call(&link.statements().moment)
            .bind(micros(left.from, i64::MIN))
            .bind(micros(left.before, i64::MAX))
            .bind(down)
            .bind(LEASES_MAX)
    };
    let rows = fetch(link, bind).await?;
    let moment: Option<i64> = rows.first().and_then(|row| row.try_get(0).ok()).flatten();
    Ok(moment.map(Timestamp::from_micros))
}

/// What is on a page, and one more if there is more.
async fn part(link: &mut Link, query: Query) -> Result<Vec<Record>, StoreError> {
    let most = query.page_size() as usize + 1;
    let read = |row: &PgRow| {
        let found = FoundRow::by_name(row);
        let record = found.record(&id_of(row)?).map_err(damaged)?;
        Ok::<_, StoreError>(shown(&record, found.now().map_err(damaged)?))
    };
    let mut records = Vec::new();
    let mut seen = 0;
    loop {
        let page = most - records.len();
        let filter = filter(&query, page, seen).to_string();
        let bind =
            |link: &Link| call(&link.statements().list).bind(link.now()).bind(filter.clone());
        let rows = fetch(link, bind).await?;
        seen += rows.len();
        for row in &rows {
            match read(row) {
                Ok(record) => records.extend(record),
                // It must not be the end of a list, nor keep a worker from those behind it.
                Err(error) => warn!(%error, "a record cannot be read, and is not listed"),
            }
        }
        if rows.len() < page || records.len() >= most {
            return Ok(records);
        }
    }
}

pub(super) async fn audit_page(
    link: &mut Link,
    query: AuditQuery,
) -> Result<AuditPage, StoreError> {
    let filter = audit_filter(&query).to_string();
    let bind = |link: &Link| call(&link.statements().audit_log).bind(filter.clone());
    let rows = fetch(link, bind).await?;
    let read = |row: &PgRow| read_audit(row, &id_of(row)?).map_err(damaged);
    let records: Result<Vec<_>, StoreError> = rows.iter().map(read).collect();
    Ok(query.cut(records?))
}

pub(super) async fn stats(link: &mut Link) -> Result<Stats, StoreError> {
    let most = i64::from(COUNTED_MAX);
    let bind = |link: &Link| call(&link.statements().stats).bind(link.now()).bind(most);
    let mut stats = Stats::default();
    for row in fetch(link, bind).await? {
        let state = row.try_get(0).ok().and_then(State::from_name).ok_or_else(unreadable)?;
        let records: i64 = row.try_get(1).map_err(|_| unreadable())?;
        let estimated = row.try_get(2).map_err(|_| unreadable())?;
        let oldest: Option<i64> = row.try_get(3).map_err(|_| unreadable())?;
        stats.set(state, Count { records: u64::try_from(records).unwrap_or(0), estimated });
        stats.note_oldest(state, oldest.map(Timestamp::from_micros));
    }
    Ok(stats)
}

fn id_of(row: &PgRow) -> Result<RecordId, StoreError> {
    let text = |name| row.try_get::<&str, _>(name).map_err(|_| unreadable());
    let scope = Scope::new(text("scope")?).map_err(|_| unreadable())?;
    let key = Key::new(text("key")?).map_err(|_| unreadable())?;
    Ok(RecordId { scope, key })
}

/// What the function `list` understands. What is null is not asked for.
fn filter(query: &Query, limit: usize, skipped: usize) -> Value {
    let (key, key_prefix) = match &query.key {
        None => (None, None),
        Some(KeyFilter::Exact(key)) => (Some(key.as_str()), None),
        Some(KeyFilter::Prefix(prefix)) => (None, Some(&**prefix)),
    };
    let micros = |at: Option<Timestamp>| at.map(Timestamp::as_micros);
    // A far too long age must not overflow there.
    let age = query.older_than.map(|age| i64::try_from(age.as_micros()).unwrap_or(i64::MAX));
    json!({
        "scope": query.scope.as_ref().map(Scope::as_str),
        "key": key,
        "key_prefix": key_prefix,
        "states": query.states.iter().map(|state| state.name()).collect::<Vec<_>>(),
        "route": query.route,
        "effects": query.effects.map(|effects| effects.name()),
        "created_from": micros(query.created.from),
        "created_before": micros(query.created.before),
        "finished_from": micros(query.finished.from),
        "finished_before": micros(query.finished.before),
        "older_than": age,
        "reconcile_after": query.dead_letters.then_some(Timestamp::NEVER.as_micros()),
        "sort": match query.sort {
            Sort::CreatedAt => "created_at",
            Sort::ExpiresAt => "expires_at",
        },
        "overdue": query.overdue,
        "descending": query.order == Order::Descending,
        "after_at": query.after.as_ref().map(|after| after.at.as_micros()),
        "after_scope": query.after.as_ref().map(|after| after.id.scope.as_str()),
        "after_key": query.after.as_ref().map(|after| after.id.key.as_str()),
        "limit": limit,
        "skipped": skipped,
    })
}

fn audit_filter(query: &AuditQuery) -> Value {
    let after = query.after.as_ref();
    json!({
        "event": query.event.map(|event| event.name()),
        "scope": query.scope.as_ref().map(Scope::as_str),
        "from": query.at.from.map(Timestamp::as_micros),
        "before": query.at.before.map(Timestamp::as_micros),
        "after_at": after.map(|after| after.at.as_micros()),
        "after_scope": after.map(|after| after.id.scope.as_str()),
        "after_key": after.map(|after| after.id.key.as_str()),
        "after_generation": after.map(|after| after.generation),
        "after_event": after.map(|after| after.event),
        "after_attempt": after.map(|after| uuid(after.attempt).to_string()),
        "after_fence": after.map(|after| after.fence.number()),
        "limit": query.page_size() + 1,
    })
}
