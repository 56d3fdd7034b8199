//! What operators ask of a store with more records than it counts one by one.

use onceward::{
    SqliteOptions, SqliteStore, Store,
    record::State,
    store::{
        Reservation, Write,
        list::{Order, Query},
    },
    testing::samples::{ask, reply},
};
use sqlx::{AssertSqlSafe, Connection as _, SqliteConnection};

use crate::postgres_home::{Home, lines, run};

const COPIES: u64 = 150_000;

/// One completed record, to be copied; two unknown ones and one in progress.
async fn begin(store: &dyn Store) {
    for key in ["completed", "unknown-1", "unknown-2", "running"] {
        let granted = store.reserve(ask(key)).await.expect("an answer");
        let Reservation::Granted { lease, .. } = granted else { panic!("{granted:?}") };
        let write = match key {
            "completed" => Write::Complete(reply("done")),
            "running" => continue,
            _ => Write::MarkUnknown("reset".into()),
        };
        let _written = store.write(&lease, write).await.expect("an answer");
    }
}

/// Estimates are near, what is open is exact, and pages are small.
async fn look(store: &dyn Store) {
    let stats = store.stats().await.expect("an answer");
    let completed = stats.of(State::Completed);
    assert!(completed.estimated);
    let off = completed.records.abs_diff(COPIES + 1);
    assert!(off < COPIES / 5, "{} of {COPIES}", completed.records);
    for (state, records) in [(State::Unknown, 2), (State::InProgress, 1)] {
        let count = stats.of(state);
        assert_eq!((count.records, count.estimated), (records, false), "{state:?}");
    }
    assert!(stats.oldest_unknown.is_some() && stats.oldest_in_progress.is_some());
    let unknown = Query { states: vec![State::Unknown], limit: 10, ..Query::default() };
    assert_eq!(store.list_records(unknown).await.expect("an answer").records.len(), 2);
    let query = Query { limit: 10, order: Order::Ascending, ..Query::default() };
    let page = store.list_records(query.clone()).await.expect("an answer");
    let after = page.next.expect("there is more");
    let next = store.list_records(Query { after: Some(after), ..query }).await.expect("an answer");
    assert_eq!(next.records.len(), 10);
    assert!(next.records.iter().all(|record| !page.records.contains(record)));
}

#[tokio::test]
async fn a_large_file_is_counted_by_a_sample_and_listed_by_an_index() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store.db");
    let store = SqliteStore::open(SqliteOptions::new(&path)).await.expect("a store");
    begin(&store).await;
    let url = format!("sqlite://{}", path.display());
    let mut file = SqliteConnection::connect(&url).await.expect("a connection");
    let columns = "SELECT group_concat(name, ', ') FROM pragma_table_info('onceward_records') \
                   WHERE name NOT IN ('record_id', 'key', 'created_at')";
    let columns: String = sqlx::query_scalar(columns).fetch_one(&mut file).await.expect("columns");
    let copy = format!(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {COPIES}) \
         INSERT INTO onceward_records (key, created_at, {columns}) \
         SELECT 'copy-' || i, created_at + i, {columns} FROM n, onceward_records WHERE key = 'completed'"
    );
    sqlx::raw_sql(AssertSqlSafe(copy)).execute(&mut file).await.expect("copied");
    look(&store).await;
    let plan = "EXPLAIN QUERY PLAN SELECT * FROM onceward_records WHERE created_at >= 5 \
                ORDER BY created_at, scope, key LIMIT 10";
    let plan: Vec<(i64, i64, i64, String)> =
        sqlx::query_as(plan).fetch_all(&mut file).await.expect("a plan");
    assert!(plan.iter().any(|step| step.3.contains("onceward_records_created")), "{plan:?}");
}

#[tokio::test]
async fn a_large_table_is_counted_by_a_sample_and_listed_by_an_index() {
    let home = Home::new().await;
    begin(&*home.store).await;
    let mut look_at = home.connection().await;
    let columns = "SELECT column_name::text FROM information_schema.columns \
                   WHERE table_schema = current_schema() AND table_name = 'records' \
                   AND column_name NOT IN ('record_id', 'key', 'created_at') \
                   AND is_generated = 'NEVER'";
    let columns = lines(&mut look_at, columns).await.join(", ");
    let copy = format!(
        "INSERT INTO records (key, created_at, {columns}) \
         SELECT 'copy-' || i, created_at + i, {columns} \
         FROM generate_series(1, {COPIES}) i, records WHERE key = 'completed'"
    );
    run(&mut look_at, &copy).await;
    run(&mut look_at, "ANALYZE records").await;
    look(&*home.store).await;
    let plan = "EXPLAIN SELECT * FROM records WHERE created_at >= 5 \
                ORDER BY created_at, scope, key LIMIT 10";
    let plan = lines(&mut look_at, plan).await.join("\n");
    assert!(plan.contains("records_created"), "{plan}");
}
