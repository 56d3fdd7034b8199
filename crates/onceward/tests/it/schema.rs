//! The schema of the file store is the last safety net: what it holds, and what it refuses.

use std::{collections::HashMap, path::Path};

use onceward::{SqliteOptions, SqliteStore, Store as _, record::State, testing::samples::ask};
use sqlx::{Connection as _, SqliteConnection};
use tempfile::TempDir;

/// A store with one record in it, closed, and a connection to its file.
async fn file() -> (TempDir, SqliteConnection) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store.db");
    let store = SqliteStore::open(SqliteOptions::new(&path)).await.expect("a store");
    let _granted = store.reserve(ask("order-1")).await.expect("an answer");
    store.close().await;
    let connection = connect(&path).await;
    (directory, connection)
}

async fn connect(path: &Path) -> SqliteConnection {
    let url = format!("sqlite://{}", path.display());
    SqliteConnection::connect(&url).await.expect("a connection")
}

/// How a statement was refused; empty when it was not.
async fn refusal(file: &mut SqliteConnection, sql: &'static str) -> String {
    let done = sqlx::raw_sql(sql).execute(file).await;
    done.err().map(|error| error.to_string()).unwrap_or_default()
}

#[tokio::test]
async fn a_record_has_a_column_for_each_of_its_facts() {
    let (_directory, mut file) = file().await;
    let columns: Vec<(String, String, bool)> =
        sqlx::query_as("SELECT name, type, \"notnull\" FROM pragma_table_info('onceward_records')")
            .fetch_all(&mut file)
            .await
            .expect("the columns");
    let columns: HashMap<_, _> =
        columns.into_iter().map(|(name, kind, never_null)| (name, (kind, never_null))).collect();
    for (name, kind, never_null) in [
        ("scope", "TEXT", true),
        ("key", "TEXT", true),
        ("fingerprint", "BLOB", true),
        ("recipe", "INTEGER", true),
        ("state", "TEXT", true),
        ("route", "TEXT", true),
        ("method", "TEXT", true),
        ("path", "TEXT", true),
        ("created_at", "INTEGER", true),
        ("started_at", "INTEGER", true),
        ("lease_until", "INTEGER", true),
        ("finished_at", "INTEGER", false),
        ("expires_at", "INTEGER", true),
        ("last_error", "TEXT", false),
        ("reconcile_after", "INTEGER", false),
        ("reply_status", "INTEGER", false),
        ("reply_headers", "BLOB", false),
        ("reply_body", "BLOB", false),
        ("reply_schema", "TEXT", false),
        ("recovery_point", "TEXT", false),
        ("open_effect", "TEXT", false),
        ("effect_idempotent", "INTEGER", false),
    ] {
        assert_eq!(columns.get(name), Some(&(kind.to_owned(), never_null)), "{name}");
    }
}

#[tokio::test]
async fn the_schema_takes_the_six_states_and_no_other() {
    let (_directory, mut file) = file().await;
    for state in State::ALL {
        // A completed record has a status, and no other has one.
        let (status, encoding) = match state {
            State::Completed => (Some(200), Some("identity")),
            _ => (None, None),
        };
        let update = "UPDATE onceward_records SET state = ?, reply_status = ?, reply_encoding = ?";
        let update = sqlx::query(update).bind(state.name()).bind(status).bind(encoding);
        let changed = update.execute(&mut file).await.expect("taken").rows_affected();
        assert_eq!(changed, 1, "{state:?}");
    }
    for (sql, part) in [
        ("UPDATE onceward_records SET state = 'done'", "CHECK"),
        ("UPDATE onceward_records SET state = 'completed'", "CHECK"),
        (
            "UPDATE onceward_records SET state = 'unknown', reply_status = 200, reply_encoding = 'identity'",
            "CHECK",
        ),
        ("UPDATE onceward_records SET state = NULL", "NOT NULL"),
    ] {
        let refused = refusal(&mut file, sql).await;
        assert!(refused.contains(part), "{sql}: {refused}");
    }
}

#[tokio::test]
async fn the_schema_takes_no_failure_of_what_made_steps_and_no_half_of_an_open_effect() {
    let (_directory, mut file) = file().await;
    for sql in [
        "UPDATE onceward_records SET state = 'failed_retryable', recovery_point = 'book'",
        "UPDATE onceward_records SET state = 'failed_retryable', open_effect = 'mail', effect_idempotent = 1",
        "UPDATE onceward_records SET open_effect = 'mail'",
        "UPDATE onceward_records SET effect_idempotent = 1",
        "UPDATE onceward_records SET open_effect = 'mail', effect_idempotent = 2",
    ] {
        let refused = refusal(&mut file, sql).await;
        assert!(refused.contains("CHECK"), "{sql}: {refused}");
    }
    for sql in [
        "UPDATE onceward_records SET recovery_point = 'book', open_effect = 'mail', effect_idempotent = 0",
        "UPDATE onceward_records SET recovery_point = NULL, open_effect = NULL, effect_idempotent = NULL, \
         state = 'failed_retryable'",
    ] {
        assert_eq!(refusal(&mut file, sql).await, "", "{sql}");
    }
}

#[tokio::test]
async fn a_second_step_of_one_name_is_refused_by_the_database() {
    let (_directory, mut file) = file().await;
    let insert = "INSERT INTO onceward_steps (scope, key, generation, ordinal, name, result) \
                  VALUES ('a', 'b', 1, 1, 'book', x'00')";
    assert_eq!(refusal(&mut file, insert).await, "");
    let refused = refusal(&mut file, insert).await;
    assert!(refused.contains("UNIQUE constraint failed: onceward_steps.scope"), "{refused}");
    let another = "INSERT INTO onceward_steps (scope, key, generation, ordinal, name, result) \
                   VALUES ('a', 'b', 1, 2, 'charge', x'00'), ('a', 'b', 2, 1, 'book', x'00')";
    assert_eq!(refusal(&mut file, another).await, "");
}

#[tokio::test]
async fn a_second_row_for_one_scope_and_key_is_refused_by_the_database() {
    let (_directory, mut file) = file().await;
    let copy = "CREATE TEMP TABLE again AS SELECT * FROM onceward_records; \
                UPDATE again SET record_id = record_id + 1";
    assert_eq!(refusal(&mut file, copy).await, "");
    let insert = "INSERT INTO onceward_records SELECT * FROM again";
    let refused = refusal(&mut file, insert).await;
    assert!(
        refused.contains("UNIQUE constraint failed: onceward_records.scope, onceward_records.key"),
        "{refused}"
    );
    // In another scope, or under another key, the same row is taken.
    for change in [
        "UPDATE again SET scope = 'other'; INSERT INTO onceward_records SELECT * FROM again",
        "UPDATE again SET record_id = 9, key = 'other'; INSERT INTO onceward_records SELECT * FROM again",
    ] {
        assert_eq!(refusal(&mut file, change).await, "", "{change}");
    }
}

#[tokio::test]
async fn what_workers_look_for_is_found_by_a_partial_index() {
    let (_directory, mut file) = file().await;
    for (sql, index) in [
        ("state = 'in_progress' AND lease_until <= 1", "onceward_records_lease"),
        (
            "state IN ('completed', 'failed_retryable') AND expires_at <= 1",
            "onceward_records_expiry",
        ),
        ("state = 'expired' AND purge_at <= 1", "onceward_records_purge"),
        ("state = 'unknown' AND reconcile_after <= 1", "onceward_records_reconcile"),
        ("state = 'pending' AND lease_until <= 1", "onceward_records_pending"),
        (
            "state = 'pending' AND +created_at >= 5 AND (+created_at, scope, key) > (5, 'a', 'b') \
             ORDER BY created_at, scope, key LIMIT 101",
            // Either index of pending work will do.
            "onceward_records_overdue",
        ),
        (
            "state = 'pending' AND queued_until <= 7 AND queued_until >= 5 \
             AND (queued_until, scope, key) > (5, 'a', 'b') \
             ORDER BY queued_until, scope, key LIMIT 101",
            "onceward_records_overdue (queued_until>? AND queued_until<?)",
        ),
    ] {
        let explain =
            format!("EXPLAIN QUERY PLAN SELECT record_id FROM onceward_records WHERE {sql}");
        let plan: Vec<(i64, i64, i64, String)> = sqlx::query_as(sqlx::AssertSqlSafe(explain))
            .fetch_all(&mut file)
            .await
            .expect("a plan");
        assert!(plan.iter().any(|step| step.3.contains(index)), "{index}: {plan:?}");
    }
    let plan: Vec<(i64, i64, i64, String)> = sqlx::query_as(
        "EXPLAIN QUERY PLAN SELECT record_id FROM onceward_records WHERE lease_until <= 1",
    )
    .fetch_all(&mut file)
    .await
    .expect("a plan");
    assert!(plan.iter().all(|step| step.3.contains("SCAN")), "the twin without a state: {plan:?}");
}
