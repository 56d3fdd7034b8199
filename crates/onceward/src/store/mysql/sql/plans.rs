//! How the server goes about each statement, on tables of which nobody has gathered anything.

use onceward_testbed::MariaDb;
use sqlx::{AssertSqlSafe, MySqlConnection, Row as _, mysql::MySqlRow};

use super::*;
use crate::store::{
    MySqlOptions, MySqlStore,
    mysql::{list, open},
};

/// All of one tenant: whoever looks for its records by the scope alone reads them all.
const ROWS: u64 = 20_000;

/// More than any of these statements has to look at, and far less than there is.
const LOOKED_AT_MAX: u64 = 600;

async fn run(connection: &mut MySqlConnection, sql: String) {
    let ran = sqlx::raw_sql(AssertSqlSafe(sql.clone())).execute(connection).await;
    ran.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

async fn filled(url: &str) -> MySqlConnection {
    let options = MySqlOptions::new(url);
    MySqlStore::connect(options.clone()).await.expect("a store");
    let mut connection = open::connect(&options).await.expect("a connection");
    let all = format!("FROM seq_1_to_{ROWS}");
    for (table, columns, values) in [
        (
            "records",
            "recipe, fingerprint, generation, state, attempt, fence, attempts, effects, route, method, \
             path, created_at, started_at, lease_until, max_execution, expires_at, retention, purge_at, \
             void, probes, reply_status, reply_headers, reply_schema, reply_encoding, reply_length, \
             reply_body, reply_digest",
            "1, REPEAT('x', 32), 1, 'completed', REPEAT('x', 16), seq, 1, 'none', '', 'POST', '/', seq, \
             seq, seq, 1, 9000000000000000 + seq, 1, 9100000000000000 + seq, 0, 0, 200, '', '', \
             'identity', 0, '', REPEAT('x', 8)",
        ),
        (
            "audit_records",
            "`at`, generation, event, attempt, fence, reason, told, apart",
            "seq, 1, 'released', REPEAT('x', 16), seq, '', '', 0",
        ),
        ("steps", "generation, name, result", "1, 'book', ''"),
        ("requests", "request", "''"),
        (
            "provider_ids",
            "provider, provider_id, generation, attempt, fence, `at`",
            "'bank', seq, 1, REPEAT('x', 16), seq, seq",
        ),
    ] {
        let sql = format!(
            "INSERT INTO onceward_{table} (scope, `key`, {columns}) \
             SELECT 'tenant', CONCAT('key-', seq), {values} {all}"
        );
        run(&mut connection, sql).await;
    }
    connection
}

/// With values in their places: of records that are there, and of times at which nothing is due.
fn with_values(sql: &str) -> String {
    let mut number = 0;
    let mut rest = sql.replace("scope = ?", "scope = 'tenant'");
    rest = rest.replace("LIMIT ? OFFSET ?", "LIMIT 100 OFFSET 0").replace("LIMIT ?", "LIMIT 100");
    let mut filled = String::new();
    while let Some((before, after)) = rest.split_once('?') {
        number += 1;
        let value = if before.ends_with("`key` = ") {
            format!("'key-{number}'")
        } else if before.ends_with("state = ") {
            "'expired'".to_owned()
        } else {
            format!("'{number}'")
        };
        filled = format!("{filled}{before}{value}");
        rest = after.to_owned();
    }
    filled + &rest
}

/// What is wrong with how the server would do it.
async fn trouble(connection: &mut MySqlConnection, sql: &str) -> Vec<String> {
    let explain = format!("EXPLAIN {}", with_values(sql));
    let plan = sqlx::raw_sql(AssertSqlSafe(explain.clone())).fetch_all(connection).await;
    let plan = plan.unwrap_or_else(|error| panic!("{explain}: {error}"));
    let text = |row: &MySqlRow, name: &str| -> String {
        let bytes: Option<Vec<u8>> = row.try_get_unchecked(name).expect(name);
        String::from_utf8(bytes.unwrap_or_default()).expect("text")
    };
    let looks = plan.iter().filter_map(|row| {
        let (table, how) = (text(row, "table"), text(row, "type"));
        let rows: u64 = text(row, "rows").parse().unwrap_or(0);
        // Of a table that is no table of ours, or of none.
        let ours = !table.is_empty() && !table.starts_with('<');
        let bad = matches!(&*how, "ALL" | "index") || rows > LOOKED_AT_MAX;
        (ours && bad).then(|| format!("{table}: {how}, {rows} rows, for {explain}"))
    });
    looks.collect()
}

#[tokio::test]
async fn every_statement_of_batches_and_workers_goes_by_an_index_however_many_records_there_are() {
    let server = MariaDb::shared();
    let mut connection = filled(&server.url(&server.create_database())).await;
    let statements = Statements::of("onceward_");
    let sized = [
        &statements.load,
        &statements.lock,
        &statements.bury,
        &statements.remove,
        &statements.at_work,
        &statements.forget_provider_ids,
        &statements.purge_audit,
    ];
    let [.., update] = &statements.update;
    let single = [
        &statements.there,
        &statements.lock_row,
        update,
        &statements.forget_steps,
        &statements.forget_request,
        &statements.saved,
        &statements.steps,
        &statements.pending,
        &statements.phased,
        &statements.due_leases,
        &statements.due_retention,
        &statements.audit,
        &statements.purgeable_audit,
    ];
    let due = list::due_unknown("onceward_", crate::clock::Timestamp::from_micros(1), &[]);
    let due = format!("{} LIMIT 100 OFFSET 0", due.sql().as_str());
    let mut found = Vec::new();
    for sql in sized.into_iter().flatten().chain(single).map(|sql| &**sql).chain([&*due]) {
        found.extend(trouble(&mut connection, sql).await);
    }
    assert_eq!(found, Vec::<String>::new());

    // The twin: one that does not.
    let scan = "SELECT record_id FROM onceward_records WHERE path = ?";
    assert_eq!(trouble(&mut connection, scan).await.len(), 1);
    let all_of_a_tenant = "SELECT recipe FROM onceward_records WHERE scope = ?";
    assert_eq!(trouble(&mut connection, all_of_a_tenant).await.len(), 1);
}
