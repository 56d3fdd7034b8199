//! What is special about the store in a file: what it refuses to open, what survives, and what
//! concurrent calls share.

use std::{fs, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use onceward::{
    Effects, Key, MemoryStore, Scope, SqliteOptions, SqliteStore, Store,
    fingerprint::Fingerprint,
    record::{AttemptId, Lease, RecordId, State},
    reply::{Reply, ReplyBody},
    store::{Ask, Mode, OpenError, Reservation, StoreErrorKind, Write, Written, site::Site as _},
};
use sqlx::{Connection as _, SqliteConnection};
use tempfile::TempDir;

pub(crate) fn ask(key: &str) -> Ask {
    Ask {
        id: RecordId {
            scope: Scope::new("acme").expect("scope"),
            key: Key::new(key).expect("key"),
        },
        fingerprint: Fingerprint::from_stored(1, [7; 32]),
        attempt: AttemptId::random(),
        mode: Mode::Execute,
        lease: Duration::from_secs(60),
        max_execution: Duration::from_secs(300),
        retention: Duration::from_secs(86_400),
        tombstone: Duration::from_secs(86_400),
        expired_runs_again: false,
        effects: Effects::External,
        route: "default".into(),
        method: "POST".into(),
        path: "/charges".into(),
        request: None,
        queued_for: Duration::from_secs(86_400),
    }
}

pub(crate) fn reply(body: &[u8]) -> Reply {
    Reply {
        status: http::StatusCode::CREATED,
        headers: Vec::new(),
        body: ReplyBody::Stored(Bytes::copy_from_slice(body)),
        schema_version: None,
    }
}

pub(crate) async fn granted(store: &dyn Store, ask: &Ask) -> Lease {
    match store.reserve(ask.clone()).await.expect("an answer") {
        Reservation::Granted { lease, .. } => lease,
        other => panic!("not granted: {other:?}"),
    }
}

pub(crate) async fn open(path: &Path) -> Result<SqliteStore, OpenError> {
    SqliteStore::open(SqliteOptions::new(path)).await
}

pub(crate) async fn raw(path: &Path) -> SqliteConnection {
    let url = format!("sqlite://{}", path.display());
    SqliteConnection::connect(&url).await.expect("a connection")
}

pub(crate) async fn run_sql(path: &Path, sql: &'static str) {
    let mut connection = raw(path).await;
    sqlx::raw_sql(sql).execute(&mut connection).await.expect(sql);
    connection.close().await.expect("closed");
}

pub(crate) fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

#[tokio::test]
async fn a_completed_record_survives_the_process() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let store = open(&path).await.expect("a new store");
    let ask = ask("order-1");
    let lease = granted(&store, &ask).await;
    let completed = store.write(&lease, Write::Complete(reply(b"paid"))).await.expect("answer");
    assert_eq!(completed, Written::Applied);
    // Not closed: dropped as a process that dies would.
    drop(store);
    let store = open(&path).await.expect("the same store");
    let record = store.load(&ask.id).await.expect("answer").expect("a record");
    assert_eq!(record.state, State::Completed);
    assert_eq!(record.reply, Some(reply(b"paid")));
}

#[tokio::test]
async fn closing_finishes_what_stands_in_line_and_refuses_the_rest() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let store = Arc::new(open(&path).await.expect("a store"));
    let early = ask("order-1");
    let waiting = tokio::spawn({
        let (store, early) = (Arc::clone(&store), early.clone());
        async move { store.reserve(early).await }
    });
    tokio::task::yield_now().await;
    store.close().await;
    let early = waiting.await.expect("no panic");
    let late = store.reserve(ask("order-2")).await.expect_err("closed");
    assert_eq!(late.kind(), StoreErrorKind::Unavailable);
    if let Err(error) = early {
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "never lost once it stood in line");
    }
    assert!(!directory.path().join("store.db-wal").exists(), "a clean close leaves one file");
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused_and_left_alone() {
    let directory = directory();
    let path = directory.path().join("store.db");
    fs::write(&path, "these are my notes").expect("written");
    let error = open(&path).await.expect_err("refused");
    assert!(matches!(error, OpenError::NotADatabase(_)), "{error}");
    assert_eq!(fs::read(&path).expect("read"), b"these are my notes");
}

#[tokio::test]
async fn the_database_of_another_program_is_refused_and_left_alone() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let mut other = SqliteConnection::connect(&format!("sqlite://{}?mode=rwc", path.display()))
        .await
        .expect("a database");
    sqlx::raw_sql("CREATE TABLE notes (text)").execute(&mut other).await.expect("a table");
    other.close().await.expect("closed");
    let before = fs::read(&path).expect("read");
    let error = open(&path).await.expect_err("refused");
    assert!(matches!(error, OpenError::Foreign(_)), "{error}");
    assert_eq!(fs::read(&path).expect("read"), before);
}

#[tokio::test]
async fn a_file_from_before_the_first_release_is_refused_and_says_why() {
    let directory = directory();
    let path = directory.path().join("store.db");
    open(&path).await.expect("a store").close().await;
    run_sql(&path, "PRAGMA application_id = 1332634469").await;
    let before = fs::read(&path).expect("read");
    let error = open(&path).await.expect_err("refused");
    assert!(matches!(error, OpenError::BeforeRelease(_)), "{error}");
    let examined = SqliteOptions::new(&path).schema().await.expect_err("refused").to_string();
    assert!(examined.contains("before the first release"), "{examined}");
    assert_eq!(fs::read(&path).expect("read"), before);
}

#[tokio::test]
async fn all_that_we_make_in_a_file_has_our_prefix_so_that_users_can_name_theirs_as_they_like() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let store = open(&path).await.expect("a store");
    let mut users = raw(&path).await;
    let names: Vec<String> = sqlx::query_scalar("SELECT name FROM sqlite_schema")
        .fetch_all(&mut users)
        .await
        .expect("the schema");
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        let ours = name.starts_with("onceward_") || name.starts_with("sqlite_");
        assert!(ours, "{name} may be a name of the user's");
    }
    sqlx::raw_sql("CREATE TABLE records (text); CREATE TABLE meta (text); CREATE TABLE outbox (x)")
        .execute(&mut users)
        .await
        .expect("made");
    let _ = granted(&store, &ask("order-1")).await;
}

#[tokio::test]
async fn an_empty_file_is_refused_since_it_may_have_been_cut_off() {
    let directory = directory();
    let path = directory.path().join("store.db");
    fs::write(&path, "").expect("written");
    assert!(matches!(open(&path).await, Err(OpenError::Empty(_))));
    fs::remove_file(&path).expect("removed");
    assert!(open(&path).await.is_ok(), "without a file a new store is made");
}

#[tokio::test]
async fn a_log_without_its_file_is_refused() {
    let directory = directory();
    let path = directory.path().join("store.db");
    fs::write(directory.path().join("store.db-wal"), "x").expect("written");
    assert!(matches!(open(&path).await, Err(OpenError::LogWithoutFile(_))));
}

#[tokio::test]
async fn a_file_of_a_newer_version_is_refused() {
    let directory = directory();
    let path = directory.path().join("store.db");
    open(&path).await.expect("a store").close().await;
    run_sql(&path, "PRAGMA user_version = 99").await;
    run_sql(&path, "DELETE FROM onceward_meta WHERE name = 'compatible_since'").await;
    let error = open(&path).await.expect_err("refused");
    let OpenError::Newer { found: 99, known, .. } = error else { panic!("{error}") };
    let known = sqlx::AssertSqlSafe(format!("PRAGMA user_version = {known}"));
    sqlx::raw_sql(known).execute(&mut raw(&path).await).await.expect("set");
    assert!(open(&path).await.is_ok());
}

#[tokio::test]
async fn a_file_of_a_newer_version_that_lets_this_one_in_is_used_and_keeps_its_version() {
    let directory = directory();
    let path = directory.path().join("store.db");
    open(&path).await.expect("a store").close().await;
    run_sql(&path, "PRAGMA user_version = 99").await;
    let says = async |since: &'static str| {
        let sql =
            format!("UPDATE onceward_meta SET value = '{since}' WHERE name = 'compatible_since'");
        let sql = sqlx::AssertSqlSafe(sql);
        let changed = sqlx::query(sql).execute(&mut raw(&path).await).await.expect("changed");
        assert_eq!(changed.rows_affected(), 1, "the mark is there from the start");
    };
    says("11").await;
    assert!(matches!(open(&path).await, Err(OpenError::Newer { found: 99, .. })));
    says("10").await;
    let store = open(&path).await.expect("let in");
    let _ = granted(&store, &ask("order-1")).await;
    store.close().await;
    let version: u32 = sqlx::query_scalar("PRAGMA user_version")
        .fetch_one(&mut raw(&path).await)
        .await
        .expect("a version");
    assert_eq!(version, 99, "nothing was taken back");
}

#[tokio::test]
async fn a_damaged_file_is_refused() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let store = open(&path).await.expect("a store");
    for number in 0..200 {
        let _ = granted(&store, &ask(&format!("order-{number}"))).await;
    }
    store.close().await;
    let mut bytes = fs::read(&path).expect("read");
    let pages = bytes.len() / 4096;
    assert!(pages > 8, "enough pages to damage");
    bytes[4096 * 4..].iter_mut().for_each(|byte| *byte ^= 0x5a);
    fs::write(&path, &bytes).expect("written");
    let error = open(&path).await.expect_err("refused");
    assert!(matches!(error, OpenError::Damaged { .. }), "{error:?}");
}

#[tokio::test]
async fn a_file_cut_short_is_refused() {
    let directory = directory();
    let path = directory.path().join("store.db");
    open(&path).await.expect("a store").close().await;
    let length = fs::metadata(&path).expect("there").len();
    fs::File::options()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_len(length / 2))
        .expect("cut");
    let error = open(&path).await.expect_err("refused");
    assert!(matches!(error, OpenError::Damaged { .. }), "{error:?}");
}

#[tokio::test]
async fn a_read_only_file_is_refused() {
    let directory = directory();
    let path = directory.path().join("store.db");
    open(&path).await.expect("a store").close().await;
    let mut permissions = fs::metadata(&path).expect("there").permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&path, permissions).expect("set");
    assert!(matches!(open(&path).await, Err(OpenError::ReadOnly(_))));
}

#[tokio::test]
async fn a_directory_that_is_not_there_is_a_clear_error() {
    let directory = directory();
    let path = directory.path().join("missing").join("store.db");
    let error = open(&path).await.expect_err("refused");
    assert!(error.to_string().contains("missing/store.db"), "{error}");
    assert!(!path.exists());
}

#[tokio::test]
async fn a_full_file_refuses_new_keys_and_keeps_what_it_acknowledged() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let small = SqliteOptions::new(&path).bytes_max(256 * 1024);
    let store = SqliteStore::open(small.clone()).await.expect("a store");
    let noise: Vec<u8> = (0..20_000).map(|_| rand::random()).collect();
    let mut acknowledged = Vec::new();
    let error = loop {
        let ask = ask(&format!("order-{}", acknowledged.len()));
        let lease = match store.reserve(ask.clone()).await {
            Ok(Reservation::Granted { lease, .. }) => lease,
            Ok(other) => panic!("not granted: {other:?}"),
            Err(error) => break error,
        };
        match store.write(&lease, Write::Complete(reply(&noise))).await {
            Ok(written) => assert_eq!(written, Written::Applied),
            Err(error) => break error,
        }
        acknowledged.push(ask);
    };
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("full"), "{error}");
    assert!(acknowledged.len() > 3, "some were acknowledged");
    store.close().await;
    let store = SqliteStore::open(SqliteOptions::new(&path)).await.expect("with more room");
    for ask in &acknowledged {
        let record = store.load(&ask.id).await.expect("answer").expect("a record");
        assert_eq!(record.reply, Some(reply(&noise)));
    }
    let _ = granted(&store, &ask("after-the-flood")).await;
}

#[tokio::test]
async fn a_damaged_record_is_an_error_and_does_not_fail_its_neighbours() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let store = Arc::new(open(&path).await.expect("a store"));
    let (bad, good) = (ask("order-bad"), ask("order-good"));
    for ask in [&bad, &good] {
        let lease = granted(&*store, ask).await;
        let written = store.write(&lease, Write::Complete(reply(b"paid"))).await;
        assert_eq!(written.expect("answer"), Written::Applied);
    }
    let damage = "UPDATE onceward_records SET reply_length = 5 WHERE key = 'order-bad'";
    run_sql(&path, damage).await;
    let together = tokio::join!(store.load(&bad.id), store.load(&good.id));
    assert_eq!(together.0.expect_err("damaged").kind(), StoreErrorKind::Corrupt);
    assert!(together.1.expect("answer").is_some());
    let again = Ask { attempt: AttemptId::random(), ..bad };
    let error = store.reserve(again).await.expect_err("never taken for a free key");
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
}

#[tokio::test]
async fn an_element_that_cannot_be_written_does_not_fail_its_neighbours() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let store = open(&path).await.expect("a store");
    let poison = "CREATE TRIGGER poison BEFORE INSERT ON onceward_records WHEN NEW.key = 'poison' \
                  BEGIN SELECT RAISE(ABORT, 'poison'); END";
    run_sql(&path, poison).await;
    let keys: Vec<String> = (0..20).map(|number| format!("order-{number}")).collect();
    let mut calls: Vec<_> = keys.iter().map(|key| store.reserve(ask(key))).collect();
    calls.insert(10, store.reserve(ask("poison")));
    let mut answers = futures_util::future::join_all(calls).await;
    let poisoned = answers.remove(10).expect_err("refused");
    assert_eq!(poisoned.kind(), StoreErrorKind::Unavailable);
    for (key, answer) in keys.iter().zip(answers) {
        match answer.expect("answer") {
            Reservation::Granted { lease, .. } => assert_eq!(lease.id.key.as_str(), key),
            other => panic!("not granted: {other:?}"),
        }
    }
}

#[tokio::test]
async fn concurrent_calls_share_commits_and_a_single_one_goes_at_once() {
    let directory = directory();
    let store = open(&directory.path().join("store.db")).await.expect("a store");
    let _ = granted(&store, &ask("alone")).await;
    assert_eq!(store.commits_and_writes(), (1, 1));
    let calls = (0..64).map(|number| store.reserve(ask(&format!("order-{number}"))));
    let answers = futures_util::future::join_all(calls).await;
    assert!(answers.iter().all(|answer| matches!(answer, Ok(Reservation::Granted { .. }))));
    let (commits, writes) = store.commits_and_writes();
    assert_eq!(writes, 65);
    assert!(commits <= 4, "64 writes at once took {} commits", commits - 1);
}

#[tokio::test]
async fn a_replay_writes_nothing() {
    let directory = directory();
    let store = open(&directory.path().join("store.db")).await.expect("a store");
    let first = ask("order-1");
    let lease = granted(&store, &first).await;
    let written = store.write(&lease, Write::Complete(reply(b"paid"))).await.expect("answer");
    assert_eq!(written, Written::Applied);
    let before = store.commits_and_writes();
    let retry = Ask { attempt: AttemptId::random(), ..first };
    assert!(matches!(store.reserve(retry).await, Ok(Reservation::Occupied { .. })));
    assert_eq!(store.commits_and_writes(), before);
}

#[tokio::test]
async fn what_another_process_changed_is_not_overwritten_by_what_we_remember() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let (ours, theirs) = (open(&path).await.expect("a store"), open(&path).await.expect("a store"));
    let ask = ask("order-1");
    let lease = granted(&ours, &ask).await;
    let written = theirs.write(&lease, Write::Complete(reply(b"theirs"))).await;
    assert_eq!(written.expect("answer"), Written::Applied);
    let written = ours.write(&lease, Write::Complete(reply(b"ours"))).await.expect("answer");
    assert_eq!(written, Written::AlreadyMine(Some(reply(b"theirs"))));
    // And what another process reserved is not reserved again.
    let retry = Ask { attempt: AttemptId::random(), ..ask };
    assert!(matches!(ours.reserve(retry).await, Ok(Reservation::Occupied { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_stores_on_one_file_grant_each_key_once() {
    let directory = directory();
    let path = directory.path().join("store.db");
    // Both make the file at the same time, as two processes may.
    let (left, right) = tokio::join!(open(&path), open(&path));
    let stores = [Arc::new(left.expect("a store")), Arc::new(right.expect("a store"))];
    for number in 0..50 {
        let calls = stores.iter().map(|store| {
            let (store, ask) = (Arc::clone(store), ask(&format!("order-{number}")));
            tokio::spawn(async move { store.reserve(ask).await.expect("answer") })
        });
        let answers = futures_util::future::join_all(calls).await;
        let granted = answers
            .iter()
            .filter(|answer| matches!(answer, Ok(Reservation::Granted { .. })))
            .count();
        assert_eq!(granted, 1, "order-{number}: {answers:?}");
    }
    assert_eq!(fs::read_dir(directory.path()).expect("listed").count(), 3, "no leftovers");
}

#[tokio::test]
async fn the_schema_has_the_unique_key_the_checks_and_the_partial_indexes() {
    let directory = directory();
    let path = directory.path().join("store.db");
    open(&path).await.expect("a store").close().await;
    let mut connection = raw(&path).await;
    let tables: Vec<(String,)> = sqlx::query_as("SELECT sql FROM sqlite_schema WHERE sql NOT NULL")
        .fetch_all(&mut connection)
        .await
        .expect("the schema");
    let schema: String = tables.into_iter().map(|(sql,)| sql + "\n").collect();
    for part in [
        "UNIQUE (scope, key)",
        "CHECK (state = 'in_progress' OR state = 'completed' OR state = 'expired'",
        "CHECK (length(key) BETWEEN 1 AND 255)",
        "ON onceward_records (lease_until) WHERE state = 'in_progress'",
        "ON onceward_records (expires_at) WHERE state IN ('completed', 'failed_retryable')",
        "ON onceward_records (reconcile_after) WHERE state = 'unknown'",
        "CREATE TABLE onceward_audit_records",
    ] {
        assert!(schema.contains(part), "{part} is missing in\n{schema}");
    }
    let plan = |sql: &'static str| {
        let query = sqlx::query_as::<_, (i64, i64, i64, String)>(sql);
        async { query.fetch_all(&mut raw(&path).await).await.expect("a plan") }
    };
    let lookup = plan(
        "EXPLAIN QUERY PLAN SELECT * FROM (SELECT key AS position, value ->> 0 AS asked_scope, \
         value ->> 1 AS asked_key FROM json_each('[]')) \
         CROSS JOIN onceward_records ON scope = asked_scope AND key = asked_key",
    )
    .await;
    let uses_index = |(_, _, _, detail): &(i64, i64, i64, String)| {
        detail.contains("SEARCH onceward_records USING INDEX")
            && detail.contains("(scope=? AND key=?)")
    };
    assert!(lookup.iter().any(uses_index), "{lookup:?}");
    let sweep = plan(
        "EXPLAIN QUERY PLAN SELECT * FROM onceward_records WHERE state = 'in_progress' \
         AND lease_until <= 1 AND effects <> 'phased' ORDER BY lease_until LIMIT 1",
    )
    .await;
    assert!(sweep.iter().any(|row| row.3.contains("onceward_records_lease")), "{sweep:?}");
}

#[tokio::test]
async fn the_settings_of_the_file_are_durable() {
    let directory = directory();
    let path = directory.path().join("store.db");
    open(&path).await.expect("a store").close().await;
    let mut connection = raw(&path).await;
    let mode: (String,) =
        sqlx::query_as("PRAGMA journal_mode").fetch_one(&mut connection).await.expect("a mode");
    assert_eq!(mode.0, "wal");
    let version: (String,) =
        sqlx::query_as("SELECT sqlite_version()").fetch_one(&mut connection).await.expect("text");
    let numbers: Vec<u32> = version.0.split('.').filter_map(|part| part.parse().ok()).collect();
    assert!(numbers >= vec![3, 51, 3], "SQLite {} can lose commits at a WAL reset", version.0);
}

#[cfg(unix)]
#[tokio::test]
async fn a_new_file_is_for_its_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = directory();
    let path = directory.path().join("store.db");
    let store = open(&path).await.expect("a store");
    let _ = granted(&store, &ask("order-1")).await;
    for file in ["store.db", "store.db-wal"] {
        let mode = fs::metadata(directory.path().join(file)).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
}

#[tokio::test]
async fn memory_forgets_what_a_file_keeps() {
    // The twin of the first test: a store that does not promise durability does not have it.
    let store = MemoryStore::new();
    let ask = ask("order-1");
    let lease = granted(&store, &ask).await;
    let written = store.write(&lease, Write::Complete(reply(b"paid"))).await.expect("answer");
    assert_eq!(written, Written::Applied);
    assert!(MemoryStore::new().load(&ask.id).await.expect("answer").is_none());
}
