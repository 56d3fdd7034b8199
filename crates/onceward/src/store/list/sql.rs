//! The same lists in the SQL of every store that keeps records in the columns of `store/row`.

use super::{AuditQuery, KeyFilter, Order, Query, Sort, Span};
use crate::{clock::Timestamp, record::State};

/// A statement that is being written, for one database or another.
pub(in super::super) trait Sql {
    /// The column by which work is found that was not begun in its time.
    const OVERDUE: &'static str;

    fn push(&mut self, sql: &str) -> &mut Self;
    fn integer(&mut self, value: i64) -> &mut Self;
    fn word(&mut self, value: &str) -> &mut Self;
    fn bytes(&mut self, value: &[u8]) -> &mut Self;
}

/// The state as `load` would tell it.
pub(in super::super) fn push_shown_state<S: Sql>(sql: &mut S, now: Timestamp) {
    sql.push("CASE WHEN state IN ('completed', 'failed_retryable') AND expires_at <= ");
    sql.integer(now.as_micros()).push(" THEN 'expired' ELSE state END");
}

/// Whether `load` would find it.
pub(in super::super) fn push_is_there<S: Sql>(sql: &mut S, now: Timestamp) {
    sql.push("NOT (state IN ('completed', 'failed_retryable', 'expired') AND purge_at <= ");
    sql.integer(now.as_micros()).push(")");
}

/// The conditions of a page, behind WHERE, and its order.
pub(in super::super) fn page<S: Sql>(sql: &mut S, query: &Query, now: Timestamp) {
    push_is_there(sql, now);
    push_states(sql, &query.states, now);
    if let Some(scope) = &query.scope {
        sql.push(" AND scope = ").word(scope.as_str());
    }
    match &query.key {
        None => {}
        Some(KeyFilter::Exact(key)) => {
            sql.push(" AND `key` = ").word(key.as_str());
        }
        Some(KeyFilter::Prefix(prefix)) => {
            // The first condition is for the index.
            // As many characters as bytes: a key has one byte for each, and no other prefix finds any.
            let length = i64::try_from(prefix.len()).unwrap_or(i64::MAX);
            sql.push(" AND `key` >= ").word(prefix);
            sql.push(" AND SUBSTR(`key`, 1, ").integer(length);
            sql.push(") = ").word(prefix);
        }
    }
    if let Some(route) = &query.route {
        sql.push(" AND route = ").word(route);
    }
    if let Some(effects) = query.effects {
        sql.push(" AND effects = ").word(effects.name());
    }
    if query.overdue {
        sql.push(&format!(" AND state = 'pending' AND {} <= ", S::OVERDUE))
            .integer(now.as_micros());
    }
    if query.dead_letters {
        sql.push(" AND state = 'unknown' AND reconcile_after = ");
        sql.integer(Timestamp::NEVER.as_micros());
    }
    push_span(sql, "created_at", query.created);
    push_span(sql, "finished_at", query.finished);
    if let Some(age) = query.older_than {
        let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
        sql.push(" AND created_at <= ").integer(now.as_micros().saturating_sub(age));
    }
    push_order(sql, query);
}

fn push_order<S: Sql>(sql: &mut S, query: &Query) {
    let by = match query.sort {
        _ if query.overdue => S::OVERDUE,
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
        sql.push(&format!(" AND {plus}{by} {than}= ")).integer(at);
        sql.push(&format!(" AND ({plus}{by}, scope, `key`) {than} (")).integer(at);
        sql.push(", ").word(after.id.scope.as_str());
        sql.push(", ").word(after.id.key.as_str()).push(")");
    }
    sql.push(&format!(" ORDER BY {by} {order}, scope {order}, `key` {order}"));
}

/// Whether one state is asked for, and time does not change it.
fn is_open(states: &[State]) -> bool {
    matches!(states, [state] if !state.is_terminal())
}

/// A state that time does not change is found by its index, whose condition is a word.
fn push_states<S: Sql>(sql: &mut S, states: &[State], now: Timestamp) {
    if states.is_empty() {
        return;
    }
    let names: Vec<String> = states.iter().map(|state| format!("'{}'", state.name())).collect();
    if is_open(states) {
        sql.push(&format!(" AND state = {}", names.join("")));
        return;
    }
    sql.push(" AND ");
    push_shown_state(sql, now);
    sql.push(&format!(" IN ({})", names.join(", ")));
}

fn push_span<S: Sql>(sql: &mut S, column: &str, span: Span) {
    if let Some(from) = span.from {
        sql.push(&format!(" AND {column} >= ")).integer(from.as_micros());
    }
    if let Some(before) = span.before {
        sql.push(&format!(" AND {column} < ")).integer(before.as_micros());
    }
}

/// The conditions of a page of audit records, behind `WHERE true`, and its order.
pub(in super::super) fn audit_page<S: Sql>(sql: &mut S, query: &AuditQuery) {
    if let Some(event) = query.event {
        sql.push(" AND event = ").word(event.name());
    }
    if let Some(scope) = &query.scope {
        sql.push(" AND scope = ").word(scope.as_str());
    }
    push_span(sql, "`at`", query.at);
    if let Some(after) = &query.after {
        sql.push(" AND `at` <= ").integer(after.at.as_micros());
        sql.push(" AND (`at`, scope, `key`, generation, event, attempt, fence) < (");
        sql.integer(after.at.as_micros());
        sql.push(", ").word(after.id.scope.as_str());
        sql.push(", ").word(after.id.key.as_str());
        sql.push(", ").integer(i64::from(after.generation));
        sql.push(", ").word(after.event);
        sql.push(", ").bytes(after.attempt.as_bytes());
        sql.push(", ").integer(after.fence.number()).push(")");
    }
    sql.push(
        " ORDER BY `at` DESC, scope DESC, `key` DESC, generation DESC, event DESC, attempt DESC, \
         fence DESC LIMIT ",
    );
    sql.integer(i64::from(query.page_size()) + 1);
}
