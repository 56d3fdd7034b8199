//! What the planner makes of our calls on a table about which it knows nothing: as few pages as on any
//! other.

use onceward::{
    Store as _,
    record::Effects,
    store::{Ask, Mode, Reservation},
    testing::samples::ask,
};
use sqlx::PgConnection;

use crate::{
    postgres_batches::reserve_all,
    postgres_home::{Home, lines, run},
};

/// Tables that nobody analyses who is not told to, with nothing in them.
async fn left_alone() -> Home {
    let home = Home::new().await;
    let mut look = home.connection().await;
    for table in ["records", "leases", "replies"] {
        run(&mut look, &format!("ALTER TABLE {table} SET (autovacuum_enabled = false)")).await;
    }
    home
}

/// Makes this many records of one scope.
async fn fill(home: &Home, rows: u32) {
    run(
        &mut home.connection().await,
        &format!(
            "INSERT INTO records (scope, key, recipe, fingerprint, generation, state, attempt, \
                 fence, attempts, effects, route, method, path, created_at, started_at, \
                 lease_until, max_execution, expires_at, retention, tombstone, void, reap_at) \
             SELECT 'tenant', 'filled-' || n, 1, decode(repeat('01', 32), 'hex'), 1, 'in_progress', \
                    md5(n::text)::uuid, 7, 1, 'external', 'r', 'POST', '/', n, n, 9000, 5, 9000, 5, \
                    5, false, 9000 FROM generate_series(1, {rows}) AS n; \
             INSERT INTO leases (check_at, created_at, phased) \
             SELECT lease_until, created_at, false FROM records"
        ),
    )
    .await;
}

/// A table that was never analysed, with this many records of one scope.
pub(crate) async fn never_analysed(rows: u32) -> Home {
    let home = left_alone().await;
    fill(&home, rows).await;
    home
}

/// How many pages the server looked at for a call, on a connection that made its plans now.
pub(crate) async fn pages(home: &Home, call: &str) -> u64 {
    fewest_pages(&mut home.connection().await, |_| call.to_owned()).await
}

/// The same on this connection, of a call that is another one in each round.
async fn fewest_pages(look: &mut PgConnection, call: impl Fn(u32) -> String) -> u64 {
    let mut least = u64::MAX;
    // The first call reads the catalogue too.
    for round in 0..4 {
        least = least.min(looked_at(&explained(look, &call(round)).await));
    }
    least
}

/// What the server says of a call that leaves nothing behind.
async fn explained(look: &mut PgConnection, call: &str) -> Vec<String> {
    run(look, "BEGIN").await;
    let explained = lines(look, &format!("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) {call}")).await;
    run(look, "ROLLBACK").await;
    explained
}

fn looked_at(explained: &[String]) -> u64 {
    let buffers = explained.iter().find_map(|line| line.trim().strip_prefix("Buffers: shared "));
    let buffers = buffers.unwrap_or_else(|| panic!("no buffers in {explained:?}"));
    let counted = ["hit=", "read="].map(|kind| {
        let count = buffers.split(' ').find_map(|part| part.strip_prefix(kind));
        count.map_or(0, |count| count.parse::<u64>().expect("a number"))
    });
    counted.iter().sum()
}

/// An array of 256 of these, for each n of a range.
fn array(from: u32, value: &str) -> String {
    format!("(SELECT array_agg({value}) FROM generate_series({from}, {from} + 255) AS n)")
}

fn reserve_call(schema: &str, from: u32, new_ones: bool) -> String {
    let value = |value: &str| array(from, value);
    format!(
        "SELECT * FROM {schema}.reserve(8, {scope}, {key}, {fingerprint}, {attempt}, {text}, \
         {text}, {text}, true, 1, 5, 5, 5, 5, 'external', NULL, NULL, NULL, {new_ones})",
        scope = value("('tenant')::text"),
        key = value("('filled-' || n)::text"),
        fingerprint = value("decode(repeat('01', 32), 'hex')"),
        attempt = value("gen_random_uuid()"),
        text = value("('x')::text"),
    )
}

fn guarded_call(schema: &str, from: u32, function: &str) -> String {
    let value = |value: &str| array(from, value);
    let rest = match function {
        "renew" => value("5::bigint"),
        _ => [
            value("200::smallint"),
            value("'\\x01'::bytea"),
            value("NULL::text"),
            value("'body'::bytea"),
            function.starts_with("skipping").to_string(),
        ]
        .join(", "),
    };
    let function = function.trim_start_matches("skipping ");
    format!(
        "SELECT * FROM {schema}.{function}(8, {scope}, {key}, {attempt}, {fence}, {rest})",
        scope = value("('tenant')::text"),
        key = value("('filled-' || n)::text"),
        attempt = value("md5(n::text)::uuid"),
        fence = value("7::bigint"),
    )
}

/// So often a session makes a new plan before it may keep one.
const CALLS_BEFORE_A_PLAN_STAYS: u32 = 6;

/// On two connections: one that makes its plans now, and one that has made them when there was nothing,
/// and keeps them.
#[tokio::test]
async fn a_batch_on_a_table_that_was_never_analysed_reads_no_more_than_on_one_that_was() {
    const ROWS: u32 = 200_000;
    /// Behind all of them.
    const NOWHERE: u32 = 1_000_000;
    let home = left_alone().await;
    let schema = &home.schema;
    type Call<'a> = Box<dyn Fn(u32) -> String + 'a>;
    let reserve = |from: u32, new_ones: bool| -> Call<'_> {
        Box::new(move |at| reserve_call(schema, from + at, new_ones))
    };
    let guarded = |from: u32, function: &'static str| -> Call<'_> {
        Box::new(move |at| guarded_call(schema, from + at, function))
    };
    let calls = [
        ("a reserve of what is there", reserve(1, false)),
        ("a reserve of what is not", reserve(ROWS + 1, false)),
        ("a reserve of what is there, thought to be new", reserve(20_001, true)),
        ("a reserve of what is not, as expected", reserve(ROWS + 20_001, true)),
        ("replies", guarded(40_001, "complete_all")),
        ("replies of what is not locked", guarded(60_001, "skipping complete_all")),
        ("a renewal", guarded(80_001, "renew")),
    ];
    let mut early = Vec::new();
    for (_, call) in &calls {
        let mut look = home.connection().await;
        for round in 0..CALLS_BEFORE_A_PLAN_STAYS {
            explained(&mut look, &call(NOWHERE + 256 * round)).await;
        }
        early.push(look);
    }
    fill(&home, ROWS).await;
    // Each round has records of its own: other tests decide for how long the old versions stay that a
    // round leaves behind, and reading them is no matter of plans.
    let mut never = Vec::new();
    for ((_, call), early) in calls.iter().zip(&mut early) {
        let kept = fewest_pages(early, |round| call(256 * round)).await;
        let late = &mut home.connection().await;
        never.push([kept, fewest_pages(late, |round| call(256 * (10 + round))).await]);
    }
    run(&mut home.connection().await, "ANALYZE records, leases, replies").await;
    for ((what, call), never) in calls.iter().zip(never) {
        let late = &mut home.connection().await;
        let analysed = fewest_pages(late, |round| call(256 * (20 + round))).await;
        println!("{what}: {never:?} pages, {analysed} analysed");
        for pages in never {
            assert!(pages <= 2 * analysed, "{what}: {never:?} pages, {analysed} analysed");
            assert!(pages < 256 * 60, "{what} of 256 elements reads {never:?} pages");
        }
    }
}

#[tokio::test]
async fn pending_work_that_is_due_is_found_by_its_index_among_many_records() {
    let home = never_analysed(20_000).await;
    let mut look = home.connection().await;
    let pend = "UPDATE records SET state = 'pending', queued_until = 9000, lease_until = record_id, \
                due_at = record_id, give_up_at = 9000 WHERE record_id <= 3000; \
                DELETE FROM leases WHERE created_at <= 3000";
    run(&mut look, pend).await;
    let due = format!("SELECT * FROM {}.resumable(2000, false, 16, 0)", home.schema);
    assert_eq!(lines(&mut look, &format!("SELECT record_id::text FROM ({due}) d")).await.len(), 16);
    let looked_at = pages(&home, &due).await;
    assert!(looked_at < 100, "{looked_at} pages");
    // Without it, all of them would be looked at.
    run(&mut look, "DROP INDEX records_due").await;
    let looked_at = pages(&home, &due).await;
    assert!(looked_at > 500, "{looked_at} pages");
}

#[tokio::test]
async fn work_that_waits_is_found_among_many_leases_of_what_has_completed() {
    let home = never_analysed(20_000).await;
    let mut look = home.connection().await;
    run(&mut look, "UPDATE records SET state = 'completed', reply_status = 200").await;
    let phased = |key: &str| Ask { effects: Effects::Phased, ..ask(key) };
    home.occupy(&phased("alone")).await;
    let together = (0..3).map(|number| phased(&format!("together-{number}"))).collect();
    reserve_all(&home.store, together).await;
    let accepted = Ask { mode: Mode::Accept, ..ask("accepted") };
    let _: Reservation = home.store.reserve(accepted).await.expect("an answer");
    let due = format!("SELECT * FROM {}.resumable({}, false, 16, 0)", home.schema, i64::MAX);
    let found = format!("SELECT key FROM ({due}) d JOIN records USING (record_id) ORDER BY key");
    let all = ["accepted", "alone", "together-0", "together-1", "together-2"];
    assert_eq!(lines(&mut look, &found).await, all);
    let looked_at = pages(&home, &due).await;
    assert!(looked_at < 100, "{looked_at} pages");
}

#[tokio::test]
async fn what_the_reaper_takes_is_found_by_its_index_among_many_records() {
    let home = never_analysed(20_000).await;
    let mut look = home.connection().await;
    let end = "UPDATE records SET state = 'failed_retryable', expires_at = record_id, \
               reap_at = record_id WHERE record_id <= 3000; \
               DELETE FROM leases WHERE created_at <= 3000";
    run(&mut look, end).await;
    let reap = format!("SELECT expired + purged FROM {}.reap(2000, 16)", home.schema);
    let looked_at = pages(&home, &reap).await;
    assert!(looked_at < 500, "{looked_at} pages");
    // Without it, all of them would be looked at.
    run(&mut look, "DROP INDEX records_reap").await;
    let looked_at = pages(&home, &reap).await;
    assert!(looked_at > 600, "{looked_at} pages");
}
