//! The statements of the writer.

use std::sync::LazyLock;

use super::{
    row::{listed_columns, plain_columns, record_columns, rest_columns},
    writer::BATCH_MAX,
};

/// Loads what is asked for in one trip. CROSS JOIN keeps the order: one index lookup for each name.
pub(super) const LOAD: &str = concat!(
    "SELECT ",
    record_columns!(),
    ", position FROM (\
     SELECT key AS position, value ->> 0 AS asked_scope, value ->> 1 AS asked_key \
     FROM json_each(?)) CROSS JOIN onceward_records ON scope = asked_scope AND key = asked_key"
);

/// Begins, and finds leases that ran out; phased work is resumed by whoever reserves it next, if it may go on.
pub(super) const DUE_LEASES: &str = concat!(
    "BEGIN IMMEDIATE; SELECT ",
    record_columns!(),
    " FROM onceward_records WHERE state = 'in_progress' AND lease_until <= ? \
     AND (effects <> 'phased' OR effect_idempotent = 0) \
     ORDER BY lease_until LIMIT ? OFFSET ?"
);

/// Unknown outcomes that are due to be asked about, but for those of the routes in a JSON array.
pub(super) const DUE_UNKNOWN: &str = concat!(
    "SELECT ",
    record_columns!(),
    " FROM onceward_records WHERE state = 'unknown' AND reconcile_after <= ? \
     AND route NOT IN (SELECT value FROM json_each(?)) ORDER BY reconcile_after LIMIT ? OFFSET ?"
);

/// Begins, and finds retention that is over, and tombstones whose time is over: one index each. Nobody needs the replies,
/// and they may be large.
pub(super) const DUE_RETENTION: &str = concat!(
    "BEGIN IMMEDIATE; SELECT ",
    listed_columns!(),
    " FROM onceward_records WHERE record_id IN (\
     SELECT record_id FROM onceward_records \
     WHERE state IN ('completed', 'failed_retryable') AND expires_at <= ? \
     UNION ALL SELECT record_id FROM onceward_records WHERE state = 'expired' AND purge_at <= ? \
     LIMIT ? OFFSET ?)"
);

/// Tombstones in place of records: of a reply only its status is left. One statement for all, since
/// each is a way to another thread and back.
pub(super) const BURY: &str = "UPDATE onceward_records SET state = value ->> 2, void = value ->> 3, \
    reply_status = value ->> 4, reply_headers = unhex(value ->> 5), reply_schema = NULL, \
    reply_encoding = value ->> 6, reply_length = NULL, reply_body = NULL, \
    reply_digest = unhex(value ->> 7) \
    FROM json_each(?) WHERE scope = value ->> 0 AND onceward_records.key = value ->> 1";

pub(super) const REMOVE: &str = "DELETE FROM onceward_records WHERE record_id IN (\
    SELECT record_id FROM json_each(?) CROSS JOIN onceward_records \
    ON scope = value ->> 0 AND onceward_records.key = value ->> 1)";

pub(super) const AUDIT: &str = "SELECT at, scope, key, generation, event, attempt, fence, reason, \
    reply_status, reply_headers, reply_schema, reply_encoding, reply_length, reply_body, reply_digest \
    FROM onceward_audit_records WHERE scope = ? AND key = ? ORDER BY audit_id";

/// What is about a generation that is still there stays.
pub(super) const PURGE_AUDIT: &str = "DELETE FROM onceward_audit_records WHERE audit_id IN \
    (SELECT audit_id FROM onceward_audit_records WHERE at <= ? AND NOT EXISTS (SELECT 1 FROM onceward_records \
    WHERE onceward_records.scope = onceward_audit_records.scope AND onceward_records.key = onceward_audit_records.key \
    AND onceward_records.generation = onceward_audit_records.generation) ORDER BY at LIMIT ?)";

/// The same thing told twice is one audit record.
pub(super) const REMEMBER: &str = "INSERT INTO onceward_audit_records (at, scope, key, generation, event, \
    attempt, fence, reason, reply_status, reply_headers, reply_schema, reply_encoding, \
    reply_length, reply_body, reply_digest, told) \
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING";

macro_rules! row {
    () => {
        "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, \
         ?, ?, ?, ?, ?, ?, ?, ?)"
    };
}

/// What SQLite calls the state of the file. Another number means that another connection committed.
pub(super) const DATA_VERSION: &str = "PRAGMA data_version";
pub(super) const BEGIN_AND_DATA_VERSION: &str = "BEGIN IMMEDIATE; PRAGMA data_version";
pub(super) static BEGIN_AND_LOAD: LazyLock<String> =
    LazyLock::new(|| format!("{BEGIN_AND_DATA_VERSION}; {LOAD}"));

/// So many rows are written by one statement at most.
pub(super) const ROWS_MAX: usize = 64;

/// One statement for each number of rows that is a power of two: each is a way to another thread and
/// back, and each is prepared once. Rows that are not given are NULL, and nothing is done for them.
pub(super) type Sized = LazyLock<Vec<String>>;

/// The one for so many rows.
pub(super) fn rows(of: &'static Sized, count: usize) -> &'static str {
    let power = count.next_power_of_two().trailing_zeros() as usize;
    &of[power.min(of.len() - 1)]
}

fn sized(before: &str, row: &str, after: &str) -> Vec<String> {
    let sizes = (0..=ROWS_MAX.trailing_zeros()).map(|power| 1 << power);
    sizes.map(|size| [before, &vec![row; size].join(", "), after].concat()).collect()
}

/// Writes records whole. Everything but the address may change.
pub(super) static PUTS: Sized = LazyLock::new(|| {
    let columns = record_columns!();
    let set = rest_columns!().split(", ").map(|it| format!("{it} = excluded.{it}"));
    let set = set.collect::<Vec<_>>().join(", ");
    sized(
        &format!("INSERT INTO onceward_records ({columns}) SELECT * FROM (VALUES "),
        row!(),
        &format!(") WHERE column1 IS NOT NULL ON CONFLICT (scope, key) DO UPDATE SET {set}"),
    )
});

/// Inserts records that were absent and are at their first attempt: what all of those have in common is
/// not bound. In the order of `bind_reserved`.
const RESERVES: [&str; 3] = [
    "INSERT INTO onceward_records (scope, key, recipe, fingerprint, generation, state, attempt, \
     fence, attempts, effects, route, method, path, created_at, started_at, lease_until, \
     max_execution, expires_at, retention, purge_at, void) \
     SELECT column1, column2, column3, column4, 1, 'in_progress', column5, column6, 1, column7, \
     column8, column9, column10, column11, column11, column12, column13, column14, column15, \
     column16, 0 FROM (VALUES ",
    "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    ") WHERE column1 IS NOT NULL",
];

/// Completes records that are in progress. Each is looked up by its key, and by nothing else: the
/// planner must not come to read the table for it.
const COMPLETES: [&str; 3] = [
    "UPDATE onceward_records SET state = 'completed', \
         finished_at = column5, expires_at = column6, purge_at = column7, \
         reply_status = column8, reply_headers = column9, reply_schema = column10, \
         reply_encoding = column11, reply_length = column12, reply_body = column13, \
         reply_digest = column14 FROM (VALUES ",
    "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    ") WHERE record_id = (SELECT it.record_id FROM onceward_records AS it \
         WHERE it.scope = column1 AND it.key = column2) \
         AND fence = column3 AND attempt = column4 AND +state = 'in_progress'",
];

/// Whether the statement before has changed as many rows as it was to change; fails if not, by the only
/// number that has no opposite.
const ALL_CHANGED: &str = "SELECT CASE WHEN changes() <> ? THEN abs(-9223372036854775807 - 1) END";

/// How many rows the statements of [`most_writes`] have room for: a batch has no more steps.
const SIZES: [usize; 7] = [0, 1, 4, 16, 32, 64, BATCH_MAX];

/// What most batches write, as one message: so many records that are reserved, and so many that are
/// completed. With the number of its statements.
pub(super) fn most_writes(reserved: usize, completed: usize) -> &'static MostWrites {
    static ALL: LazyLock<Vec<MostWrites>> = LazyLock::new(|| {
        let sizes = SIZES.iter().flat_map(|reserved| SIZES.map(|completed| (*reserved, completed)));
        sizes.map(|(reserved, completed)| MostWrites::new(reserved, completed)).collect()
    });
    let place =
        |rows: usize| SIZES.iter().position(|size| *size >= rows).unwrap_or(SIZES.len() - 1);
    &ALL[place(reserved) * SIZES.len() + place(completed)]
}

/// A transaction's last statements, COMMIT among them. Rows that are not given are NULL, and nothing is
/// done for them.
pub(super) struct MostWrites {
    pub(super) sql: String,
    /// Of how many statements.
    pub(super) statements: usize,
    /// Its rows.
    pub(super) reserved: usize,
    pub(super) completed: usize,
}

impl MostWrites {
    fn new(reserved: usize, completed: usize) -> Self {
        let mut statements = Vec::new();
        let of = |parts: [&str; 3], rows| {
            [parts[0], &vec![parts[1]; rows].join(", "), parts[2]].concat()
        };
        if reserved > 0 {
            statements.push(of(RESERVES, reserved));
        }
        if completed > 0 {
            statements.push(of(COMPLETES, completed));
            statements.push(ALL_CHANGED.to_owned());
        }
        statements.push("COMMIT".to_owned());
        MostWrites { sql: statements.join("; "), statements: statements.len(), reserved, completed }
    }
}

/// A record that nobody has.
pub(super) const INSERT_IF_ABSENT: &str = concat!(
    "INSERT INTO onceward_records (",
    record_columns!(),
    ") VALUES ",
    row!(),
    " ON CONFLICT (scope, key) DO NOTHING"
);

/// A record that is still what it was. Every change of a record changes one of these columns.
pub(super) const UPDATE_IF_UNCHANGED: &str = concat!(
    "UPDATE onceward_records SET (",
    rest_columns!(),
    ") = (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, \
     ?, ?, ?, ?, ?, ?, ?) WHERE scope = ? AND key = ? \
     AND generation = ? AND state = ? AND fence = ? AND attempt = ? AND lease_until = ? \
     AND last_error IS ? AND recovery_point IS ? AND open_effect IS ? AND effect_idempotent IS ?"
);

/// The requests of those that can be resumed, as columns beside those of the record.
macro_rules! request_columns {
    () => {
        "kept_method, kept_uri, kept_headers, kept_body"
    };
}

/// Pending work that is due, and phased work whose lease is over and that may go on: one index each.
pub(super) const RESUMABLE: &str = concat!(
    "SELECT ",
    record_columns!(),
    ", ",
    request_columns!(),
    " FROM (SELECT record_id AS due_id, lease_until AS due_at, 1 AS line FROM onceward_records \
     WHERE state = 'in_progress' AND lease_until <= ?1 AND effects = 'phased' \
     AND effect_idempotent IS NOT 0 AND (?4 OR queued_until IS NOT NULL) \
     UNION ALL SELECT record_id, lease_until, 0 FROM onceward_records \
     WHERE state = 'pending' AND lease_until <= ?1 ORDER BY 3, 2 LIMIT ?2 OFFSET ?3) \
     CROSS JOIN onceward_records ON record_id = due_id LEFT JOIN (\
     SELECT scope AS kept_scope, key AS kept_key, method AS kept_method, uri AS kept_uri, \
     headers AS kept_headers, body AS kept_body FROM onceward_requests) \
     ON kept_scope = scope AND kept_key = key \
     ORDER BY line, due_at"
);

pub(super) const STEPS: &str = "SELECT name, result FROM onceward_steps \
    WHERE scope = ? AND key = ? AND generation = ? ORDER BY ordinal";

/// Which of the steps that are asked for are saved, and in which generation.
pub(super) const SAVED: &str = "SELECT position, generation FROM (\
    SELECT key AS position, value ->> 0 AS asked_scope, value ->> 1 AS asked_key, \
    value ->> 2 AS asked_name FROM json_each(?)) CROSS JOIN onceward_steps \
    ON scope = asked_scope AND key = asked_key AND name = asked_name";

pub(super) const SAVE_STEP: &str = "INSERT INTO onceward_steps (scope, key, generation, name, result, \
    ordinal) VALUES (?1, ?2, ?3, ?4, ?5, (SELECT coalesce(max(ordinal), 0) + 1 FROM onceward_steps \
    WHERE scope = ?1 AND key = ?2 AND generation = ?3))";

/// What the triggers do when a record comes to rest.
pub(super) const FORGET: [&str; 2] = [
    "DELETE FROM onceward_steps WHERE scope = ? AND key = ?",
    "DELETE FROM onceward_requests WHERE scope = ? AND key = ?",
];

/// The first request of a generation is kept.
pub(super) const KEEP_REQUEST: &str = "INSERT INTO onceward_requests (scope, key, method, uri, headers, \
    body) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (scope, key) DO NOTHING";

#[cfg(test)]
mod tests {
    use sqlx::{AssertSqlSafe, Row as _};

    use super::*;
    use crate::{SqliteOptions, store::sqlite::open};

    /// EXPLAIN of what most batches write, statement by statement, with one of its columns.
    async fn explained(how: &str, column: usize) -> Vec<Vec<String>> {
        let directory = tempfile::tempdir().expect("a directory");
        let mut options = SqliteOptions::new(directory.path().join("store.db"));
        let mut connection = open::open(&mut options).await.expect("a file");
        let most = most_writes(BATCH_MAX, BATCH_MAX);
        let most = most.sql.strip_suffix("; COMMIT").expect("the last statement").split("; ");
        let mut explained = Vec::new();
        for sql in PUTS.iter().map(String::as_str).chain(most) {
            let explain = AssertSqlSafe(format!("{how} {sql}"));
            let steps = sqlx::raw_sql(explain).fetch_all(&mut connection).await.expect("a plan");
            explained.push(steps.iter().map(|step| step.get(column)).collect());
        }
        explained
    }

    #[tokio::test]
    async fn each_record_of_a_batch_is_found_by_its_key_and_not_by_reading_the_table() {
        for plan in explained("EXPLAIN QUERY PLAN", 3).await {
            assert!(!plan.iter().any(|step| step.starts_with("SCAN onceward_records")), "{plan:?}");
        }
    }

    /// As SQLite does for a list in a CHECK, with each row.
    #[tokio::test]
    async fn no_table_is_made_for_each_record_that_is_written() {
        for steps in explained("EXPLAIN", 1).await {
            // For the rows that are given, and for those that are found.
            let made = steps.iter().filter(|step| *step == "OpenEphemeral").count();
            assert!(made <= 2, "{made} in {} steps", steps.len());
        }
    }
}
