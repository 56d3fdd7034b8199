//! The statements, for tables with one prefix.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, MySql, mysql::MySqlArguments};

use super::row::plain_columns;

pub(super) type Query<'q> = sqlx::query::Query<'q, MySql, MySqlArguments>;

/// The columns of a record but those that hold its reply, in the order of `read_listed`.
macro_rules! listed_columns {
    () => {
        concat!("scope, `key`, ", plain_columns!())
    };
}
pub(super) use listed_columns;

/// The columns of a record, in the order of `bind_record` and `read_record`.
macro_rules! record_columns {
    () => {
        concat!(
            listed_columns!(),
            ", reply_headers, reply_schema, reply_encoding, reply_length, reply_body, reply_digest"
        )
    };
}

/// The columns of an audit record without its evidence.
macro_rules! audit_columns {
    () => {
        "`at`, scope, `key`, generation, event, attempt, fence, reason, reply_status"
    };
}

/// What time it is for records, in a transaction of anybody: whatever the time zone is there.
pub(super) const NOW: &str =
    "CAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6)) AS SIGNED)";

pub(super) const LISTED: &str = concat!("SELECT ", listed_columns!());
pub(super) const LISTED_AUDIT: &str = concat!("SELECT ", audit_columns!());

/// Few sizes, so that few statements are prepared. Large ones first.
pub(super) const SIZES: [usize; 4] = [64, 16, 4, 1];

/// A statement for each of [`SIZES`].
pub(super) type BySize = [Arc<str>; SIZES.len()];

/// Which of the sizes has room for as many.
pub(super) fn with_room_for(count: usize) -> usize {
    SIZES.iter().rposition(|size| *size >= count).unwrap_or(0)
}

#[derive(Debug)]
pub(super) struct Statements {
    pub(super) prefix: Arc<str>,
    before: &'static str,
    pub(super) now: Arc<str>,
    pub(super) name: Arc<str>,
    pub(super) there: Arc<str>,
    pub(super) load: BySize,
    pub(super) lock: BySize,
    pub(super) lock_row: Arc<str>,
    pub(super) insert: BySize,
    pub(super) take: Arc<str>,
    pub(super) update: BySize,
    pub(super) bury: BySize,
    pub(super) remove: BySize,
    pub(super) remember: Arc<str>,
    pub(super) forget_steps: Arc<str>,
    pub(super) forget_request: Arc<str>,
    pub(super) forget_provider_ids: BySize,
    pub(super) saved: Arc<str>,
    pub(super) save_step: Arc<str>,
    pub(super) keep_request: Arc<str>,
    pub(super) steps: Arc<str>,
    pub(super) pending: Arc<str>,
    pub(super) phased: Arc<str>,
    pub(super) due_leases: Arc<str>,
    pub(super) due_retention: Arc<str>,
    pub(super) at_work: BySize,
    pub(super) audit: Arc<str>,
    pub(super) purgeable_audit: Arc<str>,
    pub(super) purge_audit: BySize,
}

impl Statements {
    /// For connections of ours.
    pub(super) fn of(prefix: &str) -> Self {
        Self::after("", prefix)
    }

    /// For transactions of the user's. Where it is set, MariaDB (from 11.6.2 on, unless told otherwise)
    /// ends a transaction that locks a row which was changed since it first read anything; and a
    /// record is changed whenever its lease is renewed. What we lock is as it was committed last.
    pub(super) fn within(prefix: &str, has_snapshots: bool) -> Self {
        let before = "SET STATEMENT innodb_snapshot_isolation = 0 FOR ";
        Self::after(if has_snapshots { before } else { "" }, prefix)
    }

    fn after(before: &'static str, prefix: &str) -> Self {
        let named = |sql: &str| Arc::from(format!("{before}{}", with_prefix(sql, prefix)));
        let sized = |sql: &dyn Fn(usize) -> String| SIZES.map(|size| named(&sql(size)));
        let row = format!("(?, {})", places(COLUMNS));
        let is_one = "(scope = ? AND `key` = ?)";
        // One row at least, which tells the time: the records are joined to it. The index is named,
        // since a scan would look at rows that others have locked.
        let load = |size: usize, lock: &str| {
            format!(
                "SELECT {}, record_id, {NOW} FROM (SELECT 1) AS one \
                 LEFT JOIN onceward_records FORCE INDEX (record_key) ON {}{lock}",
                record_columns!(),
                vec![is_one; size].join(" OR "),
            )
        };
        let rows = |size: usize| {
            let rows = vec![row.as_str(); size].join(", ");
            format!("INSERT INTO onceward_records (record_id, {}) VALUES {rows}", record_columns!())
        };
        let changed = REST.split(", ").map(|name| format!("{name} = VALUES({name})"));
        let changed = changed.collect::<Vec<_>>().join(", ");
        let each = REST.split(", ").map(|name| format!("{name} = ?"));
        let each = each.collect::<Vec<_>>().join(", ");
        Statements {
            prefix: prefix.into(),
            before,
            now: named(&format!("SELECT {NOW}")),
            name: named("SELECT value FROM onceward_meta WHERE name = 'name'"),
            there: named("SELECT record_id FROM onceward_records WHERE scope = ? AND `key` = ?"),
            load: sized(&|size| load(size, "")),
            lock: sized(&|size| load(size, " FOR UPDATE NOWAIT")),
            lock_row: named(&format!(
                "SELECT {}, record_id, {NOW} FROM (SELECT 1) AS one \
                 LEFT JOIN onceward_records ON record_id = ? FOR UPDATE NOWAIT",
                record_columns!()
            )),
            insert: sized(&rows),
            // Waits for others that are making the same record, and has its row locked afterwards.
            take: named(&format!("{} ON DUPLICATE KEY UPDATE scope = VALUES(scope)", rows(1))),
            // The rows are there, and locked; the number of each finds it, and nothing else can.
            update: sized(&|size| match size {
                1 => format!("UPDATE onceward_records SET {each} WHERE record_id = ?"),
                _ => format!("{} ON DUPLICATE KEY UPDATE {changed}", rows(size)),
            }),
            bury: sized(&|size| {
                format!(
                    "UPDATE onceward_records SET state = ?, void = ?, reply_status = ?, \
                     reply_headers = ?, reply_schema = ?, reply_encoding = ?, reply_length = ?, \
                     reply_body = ?, reply_digest = ? WHERE record_id IN ({})",
                    places(size)
                )
            }),
            remove: sized(&|size| {
                format!("DELETE FROM onceward_records WHERE record_id IN ({})", places(size))
            }),
            // The same thing told twice is one audit record.
            remember: named(&format!(
                "INSERT INTO onceward_audit_records (`at`, scope, `key`, generation, event, \
                 attempt, fence, reason, reply_status, reply_headers, reply_schema, \
                 reply_encoding, reply_length, reply_body, reply_digest, told, apart) \
                 VALUES ({}, COALESCE(?, ''), ?) ON DUPLICATE KEY UPDATE audit_id = audit_id",
                places(15)
            )),
            forget_steps: named("DELETE FROM onceward_steps WHERE scope = ? AND `key` = ?"),
            forget_request: named("DELETE FROM onceward_requests WHERE scope = ? AND `key` = ?"),
            forget_provider_ids: sized(&|size| {
                let these = vec![is_one; size].join(" OR ");
                format!("DELETE FROM onceward_provider_ids WHERE {these}")
            }),
            saved: named(
                "SELECT generation FROM onceward_steps \
                 WHERE scope = ? AND `key` = ? AND generation = ? AND name = ?",
            ),
            save_step: named(
                "INSERT INTO onceward_steps (scope, `key`, generation, name, result) \
                 VALUES (?, ?, ?, ?, ?)",
            ),
            // The first request of a generation is kept.
            keep_request: named(
                "INSERT INTO onceward_requests (scope, `key`, request) VALUES (?, ?, ?) \
                 ON DUPLICATE KEY UPDATE request_id = request_id",
            ),
            steps: named(
                "SELECT name, result FROM onceward_steps \
                 WHERE scope = ? AND `key` = ? AND generation = ? ORDER BY step_id",
            ),
            pending: named(&resumable("r.state = 'pending'")),
            phased: named(&resumable(
                "r.state = 'in_progress' AND r.effects = 'phased' \
                 AND (r.effect_idempotent IS NULL OR r.effect_idempotent <> 0) \
                 AND (? OR r.queued_until IS NOT NULL)",
            )),
            // What has made a step goes on, unless an effect is open that must not be called again.
            due_leases: named(&format!(
                "SELECT {}, record_id FROM onceward_records FORCE INDEX (record_due) \
                 WHERE state = 'in_progress' AND due_at <= ? AND (effect_idempotent = 0 \
                 OR effects <> 'phased' AND NOT (effects IN ('local', 'none') \
                 AND (recovery_point IS NOT NULL OR open_effect IS NOT NULL))) \
                 ORDER BY due_at LIMIT ? OFFSET ? FOR UPDATE SKIP LOCKED",
                record_columns!()
            )),
            // Nobody needs the replies, and they may be large.
            due_retention: named(&format!(
                "SELECT {}, record_id FROM onceward_records FORCE INDEX (record_due) \
                 WHERE state = ? AND due_at <= ? \
                 ORDER BY due_at LIMIT ? OFFSET ? FOR UPDATE SKIP LOCKED",
                listed_columns!()
            )),
            at_work: sized(&|size| {
                format!(
                    "SELECT scope, `key` FROM onceward_records FORCE INDEX (record_key) \
                     WHERE (state = 'pending' OR state = 'in_progress' AND lease_until > ?) \
                     AND ({})",
                    vec![is_one; size].join(" OR ")
                )
            }),
            audit: named(&format!(
                "{LISTED_AUDIT}, reply_headers, reply_schema, reply_encoding, reply_length, \
                 reply_body, reply_digest FROM onceward_audit_records \
                 WHERE scope = ? AND `key` = ? ORDER BY audit_id"
            )),
            // What is about a generation that is still there stays.
            purgeable_audit: named(
                "SELECT a.audit_id FROM onceward_audit_records a FORCE INDEX (audit_at) \
                 WHERE a.`at` <= ? AND NOT EXISTS (SELECT 1 FROM onceward_records r \
                 WHERE r.scope = a.scope AND r.`key` = a.`key` AND r.generation = a.generation) \
                 ORDER BY a.`at` LIMIT ?",
            ),
            purge_audit: sized(&|size| {
                format!("DELETE FROM onceward_audit_records WHERE audit_id IN ({})", places(size))
            }),
        }
    }

    /// A statement of somebody who has few.
    pub(super) fn named(&self, sql: &str) -> Query<'static> {
        let sql = with_prefix(sql, &self.prefix);
        sqlx::query(AssertSqlSafe(format!("{}{sql}", self.before)))
    }
}

/// The columns of a record.
const COLUMNS: usize = super::row::RECORD_COLUMN_COUNT;

/// All columns but the address, in the order of `bind_rest`.
const REST: &str = concat!(
    plain_columns!(),
    ", reply_headers, reply_schema, reply_encoding, reply_length, reply_body, reply_digest"
);

/// Operations that wait for a worker, with what they began with.
fn resumable(which: &str) -> String {
    let columns = record_columns!().split(", ").map(|name| format!("r.{name}"));
    format!(
        "SELECT {}, q.request FROM onceward_records r FORCE INDEX (record_due) \
         LEFT JOIN onceward_requests q ON q.scope = r.scope AND q.`key` = r.`key` \
         WHERE r.due_at <= ? AND {which} ORDER BY r.due_at LIMIT ? OFFSET ?",
        columns.collect::<Vec<_>>().join(", ")
    )
}

/// `?, ?, ?` for three.
pub(super) fn places(count: usize) -> String {
    vec!["?"; count].join(", ")
}

/// The same SQL for tables with this prefix.
pub(super) fn with_prefix(sql: &str, prefix: &str) -> String {
    sql.replace("onceward_", prefix)
}

pub(super) fn query(statement: &Arc<str>) -> Query<'static> {
    sqlx::query(AssertSqlSafe(Arc::clone(statement)))
}

#[cfg(test)]
mod plans; // by which index each statement goes
