//! The schema of the PostgreSQL store is the last safety net: what it holds, what it refuses, and what
//! it costs.

use std::{sync::Arc, time::Duration};

use onceward::{
    PgOptions, PgStore, Store as _,
    record::State,
    store::{PgConnectError, Reaped, Reservation, StoreErrorKind, Write, Written},
    testing::samples::{RETENTION, TOMBSTONE, ask, reply, retry},
};
use onceward_testbed::Postgres;
use sqlx::PgConnection;
use tokio::task::JoinSet;

use crate::postgres_home::{Home, attempt, insist, lines, new_schema, one, refusal, run, whole};

#[tokio::test]
async fn a_record_has_a_column_for_each_of_its_facts() {
    let home = Home::new().await;
    let mut look = home.connection().await;
    let columns = "SELECT table_name || '.' || column_name || ' ' || data_type || \
                   CASE is_nullable WHEN 'NO' THEN ' not null' ELSE '' END \
                   FROM information_schema.columns WHERE table_schema = current_schema()";
    let columns = lines(&mut look, columns).await;
    for column in [
        "records.scope text not null",
        "records.key text not null",
        "records.route text not null",
        "records.method text not null",
        "records.path text not null",
        "records.fingerprint bytea not null",
        "records.recipe integer not null",
        "records.state text not null",
        "records.generation integer not null",
        "records.attempt uuid not null",
        "records.fence bigint not null",
        "records.created_at bigint not null",
        "records.started_at bigint not null",
        "records.lease_until bigint not null",
        "records.finished_at bigint",
        "records.expires_at bigint not null",
        "records.last_error text",
        "records.reconcile_after bigint",
        "records.recovery_point text",
        "records.open_effect text",
        "records.reply_status smallint",
        "records.reply_headers bytea",
        "records.reply_schema text",
        "records.reply_body bytea",
        "replies.headers bytea not null",
        "replies.body bytea",
        "replies.schema_version text",
        "audit_records.reason text not null",
        "scope_keys.wrapped bytea",
        "outbox.payload bytea not null",
    ] {
        assert!(columns.iter().any(|there| there == column), "no {column} in {columns:?}");
    }
}

#[tokio::test]
async fn the_schema_takes_the_six_states_and_no_other() {
    let home = Home::new().await;
    let mut look = home.connection().await;
    home.occupy(&ask("order-1")).await;
    for state in State::ALL {
        let (status, due) = match state {
            State::Completed => ("200", "NULL"),
            State::Unknown => ("NULL", "1"),
            _ => ("NULL", "NULL"),
        };
        let name = state.name();
        run(
            &mut look,
            &format!(
                "UPDATE records SET state = '{name}', reply_status = {status}, \
                 reconcile_after = {due}"
            ),
        )
        .await;
    }
    for bad in ["done", "", "Completed", "failed"] {
        let update = format!("UPDATE records SET state = '{bad}', reply_status = NULL");
        assert_eq!(refusal(&mut look, &update).await, "23514", "{bad}");
    }
}

#[tokio::test]
async fn a_column_that_is_missing_or_makes_no_sense_is_refused() {
    let home = Home::new().await;
    let mut look = home.connection().await;
    home.occupy(&ask("order-1")).await;
    for (code, change) in [
        ("23502", "state = NULL"),
        ("23502", "fingerprint = NULL"),
        ("23502", "expires_at = NULL"),
        ("23514", "fingerprint = 'short'"),
        ("23514", "scope = ''"),
        ("23514", "key = repeat('x', 256)"),
        ("23514", "generation = 0"),
        ("23514", "fence = 0"),
        ("23514", "effects = 'some'"),
        ("", "state = 'completed', reply_status = 200"),
        ("", "state = 'unknown', reply_status = NULL, reconcile_after = 1"),
        ("", "open_effect = 'charge', open_effect_idempotent = true"),
    ] {
        let update = format!("UPDATE records SET {change}");
        assert_eq!(refusal(&mut look, &update).await, code, "{change}");
    }
}

/// What the columns say together is checked by whoever reads them: a check of the table would cost each
/// statement.
#[tokio::test]
async fn a_record_whose_columns_contradict_each_other_is_an_error_and_never_runs() {
    let home = Home::new().await;
    let mut look = home.connection().await;
    let asked = ask("order-1");
    home.occupy(&asked).await;
    for (change, back) in [
        ("state = 'completed'", "state = 'in_progress'"),
        ("open_effect = 'charge'", "open_effect = NULL"),
        ("open_effect_idempotent = true", "open_effect_idempotent = NULL"),
    ] {
        run(&mut look, &format!("UPDATE records SET {change}")).await;
        let error = home.store.reserve(retry(&asked)).await.expect_err(change);
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{change}");
        run(&mut look, &format!("UPDATE records SET {back}")).await;
        let reserved = home.store.reserve(retry(&asked)).await.expect(back);
        assert!(matches!(reserved, Reservation::Occupied { .. }), "{back}: {reserved:?}");
    }
}

#[tokio::test]
async fn a_second_row_for_a_scope_and_key_is_refused() {
    let home = Home::new().await;
    let mut look = home.connection().await;
    home.occupy(&ask("order-1")).await;
    let columns = "recipe, fingerprint, generation, state, attempt, fence, attempts, effects, route, \
                   method, path, created_at, started_at, lease_until, max_execution, expires_at, \
                   retention, tombstone, void, reap_at";
    let again = |key: &str| {
        format!(
            "INSERT INTO records (scope, key, {columns}) SELECT scope, {key}, {columns} FROM records"
        )
    };
    assert_eq!(refusal(&mut look, &again("key")).await, "23505");
    assert_eq!(refusal(&mut look, &again("'order-2'")).await, "");
}

/// Many records, of which few are due.
async fn filled() -> Home {
    let home = Home::new().await;
    let mut look = home.connection().await;
    run(&mut look, &fill(20_000)).await;
    run(&mut look, "ANALYZE records, leases").await;
    home
}

/// Completed records of one scope that are not due, and in each thousand one that is: a lease that
/// ran out, one past retention, an unknown outcome.
fn fill(rows: u32) -> String {
    format!(
        "INSERT INTO records (scope, key, recipe, fingerprint, generation, state, attempt, fence, \
             attempts, effects, route, method, path, created_at, started_at, lease_until, \
             max_execution, expires_at, retention, tombstone, void, reply_status, reconcile_after, \
             reap_at) \
         SELECT 'tenant', 'filled-' || n, 1, decode(repeat('01', 32), 'hex'), 1, \
                CASE n % 1000 WHEN 1 THEN 'in_progress' WHEN 3 THEN 'unknown' ELSE 'completed' END, \
                md5(n::text)::uuid, 7, 1, 'external', 'r', 'POST', '/', n, n, 5, 5, 9000, 5, 5, \
                false, CASE WHEN n % 1000 IN (1, 3) THEN NULL ELSE 200 END, \
                CASE n % 1000 WHEN 3 THEN 1 END, CASE n % 1000 WHEN 2 THEN 5 ELSE 9000 END \
         FROM generate_series(1, {rows}) AS n; \
         INSERT INTO leases (check_at, created_at, phased) \
         SELECT CASE WHEN state = 'in_progress' THEN 5 ELSE 900000 END, created_at, false \
         FROM records; \
         INSERT INTO replies SELECT record_id, '\\x01', NULL, 'body' FROM records \
         WHERE state = 'completed'"
    )
}

/// Plans of the statements inside our functions, as the server's own explainer tells them.
async fn plans_inside(home: &Home, call: &str) -> String {
    let mut look = home.connection().await;
    run(
        &mut look,
        "LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; \
         SET auto_explain.log_nested_statements = on; SET auto_explain.log_level = 'log'; \
         SET log_min_messages = 'log'",
    )
    .await;
    let mark = format!("mark {:016x}", rand::random::<u64>());
    run(&mut look, &format!("BEGIN; DO $$ BEGIN RAISE LOG '{mark}'; END $$; {call}; ROLLBACK"))
        .await;
    let pid: i32 = one(&mut look, "SELECT pg_backend_pid()").await;
    let log = Postgres::shared().log();
    let (_, log) = log.split_once(&mark).expect("the server wrote its log");
    // Lines of others stand between ours; those that go on with one of ours have no prefix.
    let mut ours = false;
    let mut plans = String::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once(" UTC [") {
            ours = rest.starts_with(&format!("{pid}]"));
        }
        if ours {
            plans.push_str(line);
            plans.push('\n');
        }
    }
    plans
}

#[tokio::test]
async fn each_worker_finds_what_is_due_by_an_index() {
    let home = filled().await;
    let schema = &home.schema;
    for (call, index) in [
        (format!("SELECT count(*) FROM {schema}.sweep(8, 10)"), "leases_pkey"),
        (format!("SELECT * FROM {schema}.reap(8, 10)"), "records_reap"),
        (format!("SELECT * FROM {schema}.due_unknown(8, 10, 0, '{{}}')"), "records_reconcile"),
    ] {
        let plans = plans_inside(&home, &call).await;
        assert!(plans.contains(&format!("using {index} on")), "{call}:\n{plans}");
        assert!(!plans.contains("Seq Scan on"), "{call}:\n{plans}");
    }
}

/// What one sort of worker looks for is a small part of the records, and its index holds no more.
#[tokio::test]
async fn indexes_of_what_is_rarely_there_are_partial_and_the_reapers_is_not() {
    let home = Home::new().await;
    let mut look = home.connection().await;
    let partial = "SELECT indexname || ': ' || split_part(indexdef, ' WHERE ', 2) FROM pg_indexes \
                   WHERE schemaname = current_schema() AND indexdef LIKE '% WHERE %' \
                   ORDER BY indexname COLLATE \"C\"";
    assert_eq!(
        lines(&mut look, partial).await,
        [
            "leases_phased: phased",
            "outbox_aggregate: (state <> 'done'::text)",
            "outbox_claim: (state = 'delivering'::text)",
            "outbox_delivering: (state = 'delivering'::text)",
            "outbox_done: (state = 'done'::text)",
            "outbox_open: (state <> 'done'::text)",
            "outbox_ready: ((state = 'ready'::text) AND (NOT held))",
            "records_due: (due_at IS NOT NULL)",
            "records_give_up: (give_up_at IS NOT NULL)",
            "records_reconcile: (reconcile_after IS NOT NULL)",
            "scope_keys_standing: (wrapped IS NOT NULL)",
        ]
    );
    // A condition on the state would have each completion write into all indexes.
    let whole = "SELECT indexname || ' ' || split_part(indexdef, ' USING ', 2) FROM pg_indexes \
                 WHERE schemaname = current_schema() \
                 AND indexname IN ('records_reap', 'leases_pkey') ORDER BY 1";
    let expected = ["leases_pkey btree (check_at, lease_id)", "records_reap btree (reap_at)"];
    assert_eq!(lines(&mut look, whole).await, expected);
}

#[tokio::test]
async fn a_batch_finds_each_record_by_scope_and_key() {
    let home = filled().await;
    let (schema, keys) = (&home.schema, "ARRAY['filled-10', 'filled-11', 'absent']");
    let scopes = "ARRAY['tenant', 'tenant', 'tenant']";
    let call = format!("SELECT * FROM {schema}.load(8, {scopes}, {keys})");
    let plans = plans_inside(&home, &call).await;
    assert!(plans.contains("using records_scope_key_key on"), "{plans}");
    assert!(!plans.contains("Seq Scan on"), "{plans}");
}

/// Statistics of the records, when all connections of the store have told theirs.
async fn updates(home: &Home) -> (i64, i64) {
    home.store.close().await;
    let mut look = home.connection().await;
    let schema = &home.schema;
    let count = async |look: &mut _, column: &str| -> i64 {
        let sql = format!(
            "SELECT {column} FROM pg_stat_user_tables \
             WHERE schemaname = '{schema}' AND relname = 'records'"
        );
        one(look, &sql).await
    };
    let mut last = -1;
    loop {
        let updates = count(&mut look, "n_tup_upd").await;
        if updates > 0 && updates == last {
            return (updates, count(&mut look, "n_tup_hot_upd").await);
        }
        last = updates;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn complete_many(home: &Home, count: usize, body: usize) {
    let mut tasks = JoinSet::new();
    for number in 0..count {
        let store = Arc::clone(&home.store);
        tasks.spawn(async move {
            let asked = ask(&format!("hot-{number:06}"));
            let reserved = insist(|| store.reserve(asked.clone())).await;
            let Reservation::Granted { lease, .. } = reserved else { panic!("{reserved:?}") };
            let write = Write::Complete(reply(vec![b'x'; body]));
            let written = insist(|| store.write(&lease, write.clone())).await;
            assert_eq!(written, Written::Applied);
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no panic");
    }
}

#[tokio::test]
async fn completing_touches_no_index_whatever_the_size_of_the_reply() {
    for (count, body) in [(5_000, 20), (5_000, 200), (1_000, 300), (300, 100_000)] {
        let home = Home::new().await;
        complete_many(&home, count, body).await;
        let (updates, hot) = updates(&home).await;
        assert_eq!((updates, hot), (count as i64, count as i64), "{body} bytes");
    }
}

/// Where the replies are, by key: in the rows of their records, or beside them.
async fn places(look: &mut PgConnection) -> Vec<String> {
    let places = "SELECT r.key || ':' || CASE WHEN r.reply_headers IS NULL THEN '' ELSE ' row' END \
                  || CASE WHEN p.record_id IS NULL THEN '' ELSE ' beside' END \
                  FROM records r LEFT JOIN replies p ON p.record_id = r.record_id ORDER BY r.key";
    lines(look, places).await
}

#[tokio::test]
async fn a_small_reply_is_in_the_row_of_its_record_and_a_larger_one_beside_it() {
    let home = Home::new().await;
    let mut look = home.connection().await;
    let mut sent = Vec::new();
    for (name, size) in [("large", 300), ("small", 150)] {
        for is_late in [true, false] {
            let asked = ask(&format!("{name}-{}", if is_late { "late" } else { "prompt" }));
            let lease = home.grant(&asked).await;
            if is_late {
                home.write(&lease, Write::MarkUnknown("lost".into())).await;
            }
            let reply = reply(vec![b'x'; size]);
            home.write(&lease, Write::Complete(reply.clone())).await;
            sent.push((asked, reply));
        }
    }
    let expected =
        ["large-late: beside", "large-prompt: beside", "small-late: row", "small-prompt: row"];
    assert_eq!(places(&mut look).await, expected);
    for (asked, reply) in &sent {
        let replayed = home.store.reserve(retry(asked)).await.expect("reserve answers");
        let replayed = replayed.completed().expect("completed").reply;
        assert_eq!(&replayed, reply, "{}", asked.id.key.as_str());
        let loaded = home.store.load(&asked.id).await.expect("load answers").expect("there");
        assert_eq!(loaded.reply.as_ref(), Some(reply), "{}", asked.id.key.as_str());
    }
    let past = RETENTION.as_micros() + 1;
    run(
        &mut look,
        &format!("UPDATE records SET expires_at = expires_at - {past}, reap_at = reap_at - {past}"),
    )
    .await;
    assert_eq!(home.store.reap(10).await.expect("reaped"), Reaped { expired: 4, purged: 0 });
    let tombstones = ["large-late:", "large-prompt:", "small-late:", "small-prompt:"];
    assert_eq!(places(&mut look).await, tombstones, "only the outcome is left");
}

#[tokio::test]
async fn a_table_of_the_users_may_refer_to_records_that_are_reaped() {
    let home = Home::new().await;
    let mut look = home.connection().await;
    let schema = &home.schema;
    run(
        &mut look,
        &format!(
            "CREATE TABLE orders (name text, record_id bigint \
             REFERENCES {schema}.records (record_id) ON DELETE SET NULL)"
        ),
    )
    .await;
    let lease = home.grant(&ask("order-1")).await;
    run(
        &mut look,
        "BEGIN; INSERT INTO orders SELECT 'tea', record_id FROM records WHERE key = 'order-1'",
    )
    .await;
    // The row that was just written holds nobody up.
    let renewing = home.store.write(&lease, Write::Renew(Duration::from_secs(90)));
    let renewed = tokio::time::timeout(Duration::from_millis(900), renewing).await;
    assert_eq!(renewed.expect("at once").expect("write answers"), Written::Applied);
    run(&mut look, "COMMIT").await;
    home.write(&lease, Write::Complete(reply("ordered"))).await;
    let past = (RETENTION + TOMBSTONE).as_micros() + 1;
    run(
        &mut look,
        &format!("UPDATE records SET expires_at = expires_at - {past}, reap_at = reap_at - {past}"),
    )
    .await;
    assert_eq!(home.store.reap(10).await.expect("reaped"), Reaped { expired: 0, purged: 1 });
    assert_eq!(lines(&mut look, "SELECT name FROM orders WHERE record_id IS NULL").await, ["tea"]);
}

#[tokio::test]
async fn two_stores_in_two_schemas_do_not_meet() {
    let (one_home, other) = (Home::new().await, Home::new().await);
    one_home.occupy(&ask("order-1")).await;
    other.occupy(&ask("order-1")).await;
    let id = ask("order-1").id;
    let held = async |home: &Home| home.store.load(&id).await.expect("load answers");
    assert_ne!(held(&one_home).await, held(&other).await);
}

#[tokio::test]
async fn a_name_that_cannot_be_a_schemas_is_refused() {
    for name in ["", "1st", "Upper", "with space", "quo\"te", "dot.ted", &"x".repeat(64)] {
        let url = Postgres::shared().url("postgres");
        let refused = PgStore::connect(PgOptions::new(url).schema(name)).await;
        assert!(matches!(refused, Err(PgConnectError::Schema(_))), "{name}: {refused:?}");
    }
}

#[tokio::test]
async fn processes_that_start_together_migrate_once() {
    let database = Postgres::shared().create_database();
    let mut starting = JoinSet::new();
    for _ in 0..8 {
        let options = PgOptions::new(database.url());
        starting.spawn(async move { PgStore::connect(options).await });
    }
    while let Some(started) = starting.join_next().await {
        started.expect("no panic").unwrap_or_else(|error| panic!("{}", whole(&error)));
    }
    let once = "SELECT count(*) = max(version) FROM onceward.migrations";
    assert_eq!(database.psql(once).trim(), "t");
}

/// No old server is at hand: this one says that it is.
#[tokio::test]
async fn a_server_older_than_13_is_refused() {
    let database = Postgres::shared().create_database();
    database.psql(
        "CREATE SCHEMA old; CREATE FUNCTION old.current_setting(name text) RETURNS text \
         LANGUAGE sql AS $$ SELECT CASE name WHEN 'server_version_num' THEN '120022' \
         ELSE '12.22' END $$",
    );
    let old = format!("{}?options=-csearch_path%3Dold,pg_catalog", database.url());
    let refused = PgStore::connect(PgOptions::new(old)).await;
    let error = refused.expect_err("it is old");
    assert!(matches!(&error, PgConnectError::Old(version) if version == "12.22"), "{error}");
    PgStore::connect(PgOptions::new(database.url())).await.expect("a store");
}

#[tokio::test]
async fn a_database_whose_transactions_are_not_read_committed_is_refused() {
    for isolation in ["repeatable read", "serializable"] {
        let database = Postgres::shared().create_database();
        let name = database.name();
        let set =
            format!("ALTER DATABASE {name} SET default_transaction_isolation = '{isolation}'");
        database.psql(&set);
        let refused = PgStore::connect(PgOptions::new(database.url())).await;
        assert!(matches!(refused, Err(PgConnectError::Isolation(_))), "{refused:?}");
        database.psql(&format!("ALTER DATABASE {name} RESET default_transaction_isolation"));
        PgStore::connect(PgOptions::new(database.url())).await.expect("a store");
    }
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_left_alone() {
    let home = Home::new().await;
    let mut look = home.connection().await;
    run(&mut look, "INSERT INTO migrations (version) VALUES (99)").await;
    run(&mut look, "DELETE FROM meta WHERE name = 'compatible_since'").await;
    let options = PgOptions::new(&*home.url).schema(&*home.schema);
    let refused = PgStore::connect(options.clone()).await.expect_err("newer");
    assert!(matches!(refused, PgConnectError::Newer { found: 99, .. }), "{refused:?}");
    assert!(refused.to_string().contains("use a newer onceward"), "{refused}");
    run(&mut look, "DELETE FROM migrations WHERE version = 99").await;
    PgStore::connect(options).await.expect("the version that is known");
}

#[tokio::test]
async fn a_newer_schema_that_lets_this_version_in_is_used_and_keeps_its_version() {
    let home = Home::new().await;
    let mut look = home.connection().await;
    run(&mut look, "INSERT INTO migrations (version) VALUES (99)").await;
    let options = PgOptions::new(&*home.url).schema(&*home.schema);
    for may_migrate in [true, false] {
        let options = options.clone().migrate(may_migrate);
        run(&mut look, "UPDATE meta SET value = '5' WHERE name = 'compatible_since'").await;
        let refused = PgStore::connect(options.clone()).await.expect_err("newer");
        assert!(matches!(refused, PgConnectError::Newer { found: 99, .. }), "{refused:?}");
        run(&mut look, "UPDATE meta SET value = '4' WHERE name = 'compatible_since'").await;
        let store = PgStore::connect(options).await.expect("let in");
        store.ping().await.expect("it works");
        store.close().await;
    }
    assert_eq!(one::<i32>(&mut look, "SELECT max(version) FROM migrations").await, 99);
}

#[tokio::test]
async fn without_leave_to_migrate_nothing_is_made_and_one_is_told_what_to_do() {
    let (url, schema) = (Postgres::shared().url("postgres"), new_schema());
    let options = PgOptions::new(url).schema(&*schema);
    let refused = PgStore::connect(options.clone().migrate(false)).await.expect_err("not there");
    assert!(matches!(refused, PgConnectError::NotMigrated { found: 0, .. }), "{refused:?}");
    assert!(refused.to_string().contains("run with migrations allowed once"), "{refused}");
    let there = format!("SELECT count(*) FROM pg_namespace WHERE nspname = '{schema}'");
    assert_eq!(Postgres::shared().psql("postgres", &there).trim(), "0");
    PgStore::connect(options.clone()).await.expect("made");
    PgStore::connect(options.migrate(false)).await.expect("it is there now");
}

#[tokio::test]
async fn whoever_owns_the_schema_need_not_be_allowed_to_make_others() {
    let database = Postgres::shared().create_database();
    let role = format!("owner_{:016x}", rand::random::<u64>());
    database.psql(&format!(
        "CREATE ROLE {role} LOGIN; REVOKE CREATE ON DATABASE {} FROM PUBLIC; \
         CREATE SCHEMA onceward AUTHORIZATION {role}",
        database.name()
    ));
    let url = database.url().replace("postgres@", &format!("{role}@"));
    let store = PgStore::connect(PgOptions::new(&*url)).await;
    let store = store.unwrap_or_else(|error| panic!("{}", whole(&error)));
    store.ping().await.expect("it may write");
    let refused = PgStore::connect(PgOptions::new(url).schema("another")).await;
    assert!(whole(&refused.expect_err("not allowed")).contains("permission denied"));
}

#[tokio::test]
async fn the_sql_contract_is_not_fooled_by_what_is_missing() {
    let home = Home::new().await;
    let mut look = home.connection().await;
    let lease = home.grant(&ask("order-1")).await;
    let attempt_id: String = one(&mut look, "SELECT attempt::text FROM records").await;
    // v1.SCOPE.KEY of tenant, order-1 and of tenant, absent
    let (ours, absent) = ("v1.dGVuYW50.b3JkZXItMQ", "v1.dGVuYW50.YWJzZW50");
    let fence = lease.fence.number();
    for (operation, attempt_id, fence) in [
        (ours, format!("'{attempt_id}'"), "NULL".to_owned()),
        (ours, "NULL".into(), fence.to_string()),
        (ours, "NULL".into(), "NULL".into()),
        (absent, "NULL".into(), "NULL".into()),
        (absent, format!("'{attempt_id}'"), fence.to_string()),
    ] {
        for call in ["fail(%, 'declined')", "complete(%, 200, '{}', 'body')", "saved(%, 'step')"] {
            let owner = format!("'{operation}', {attempt_id}, {fence}");
            let call = format!("SELECT {}.{}", home.schema, call.replace('%', &owner));
            assert_eq!(refusal(&mut look, &call).await, "OW001", "{call}");
        }
    }
    let call = format!(
        "SELECT {}.complete('{ours}', '{attempt_id}', {fence}, 200, '{{}}', 'body')",
        home.schema
    );
    attempt(&mut look, &call).await.expect("the owner may");
    assert_eq!(lines(&mut look, "SELECT state FROM records").await, ["completed"]);
}
