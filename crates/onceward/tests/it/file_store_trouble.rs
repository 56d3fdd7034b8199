//! A full disk, a lock that somebody else holds, a file that is moved away, rows that are damaged.

use std::{
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use onceward::{
    Effects, SqliteOptions, SqliteStore, Store,
    clock::ManualClock,
    record::{AttemptId, State},
    store::{Ask, OpenError, Reservation, StoreErrorKind, Write, Written},
};

use crate::file_store::{ask, directory, granted, open, raw, reply, run_sql};

async fn complete(store: &dyn Store, key: &str, body: &[u8]) {
    let lease = granted(store, &ask(key)).await;
    let written = store.write(&lease, Write::Complete(reply(body))).await;
    assert_eq!(written.expect("an answer"), Written::Applied);
}

fn noise(len: usize) -> Vec<u8> {
    (0..len).map(|_| rand::random()).collect()
}

#[tokio::test]
async fn while_another_process_holds_the_lock_calls_fail_in_time_and_do_nothing() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let store = open(&path).await.expect("a store");
    let lease = granted(&store, &ask("order-1")).await;
    let mut holder = raw(&path).await;
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut holder).await.expect("the lock");
    let begun = Instant::now();
    // One alone, then those that came while it waited, together.
    let alone = store.write(&lease, Write::Complete(reply(b"paid")));
    let together = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        join_all((2..30).map(|number| store.reserve(ask(&format!("order-{number}"))))).await
    };
    let (alone, together) = tokio::join!(alone, together);
    let took = begun.elapsed();
    assert!(took > Duration::from_secs(3), "they waited for their turn: {took:?}");
    // An engine gives its callers an answer within five seconds. What it does not know by then is
    // ambiguous, and this is not.
    assert!(took < Duration::from_secs(5), "and not for too long: {took:?}");
    let errors = together.into_iter().map(|answer| answer.map(drop)).chain([alone.map(drop)]);
    for error in errors {
        let error = error.expect_err("locked out");
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("another process"), "{error}");
    }
    sqlx::raw_sql("ROLLBACK").execute(&mut holder).await.expect("released");
    let written = store.write(&lease, Write::Complete(reply(b"paid"))).await.expect("answer");
    assert_eq!(written, Written::Applied, "it recovers at once");
    for number in 2..30 {
        let there = store.load(&ask(&format!("order-{number}")).id).await.expect("an answer");
        assert!(there.is_none(), "nothing was half done");
    }
}

#[tokio::test]
async fn a_reply_that_does_not_fit_any_more_does_not_fail_its_neighbours() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let options = SqliteOptions::new(&path).bytes_max(512 * 1024);
    let store = SqliteStore::open(options).await.expect("a store");
    let mut leases = Vec::new();
    for number in 0..10 {
        leases.push(granted(&store, &ask(&format!("order-{number}"))).await);
    }
    let large = noise(1 << 20);
    let calls = leases.iter().enumerate().map(|(number, lease)| {
        let body: &[u8] = if number == 5 { &large } else { b"paid" };
        store.write(lease, Write::Complete(reply(body)))
    });
    let answers = join_all(calls).await;
    for (number, answer) in answers.into_iter().enumerate() {
        if number == 5 {
            let error = answer.expect_err("too large");
            assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
            assert!(error.to_string().contains("full"), "{error}");
        } else {
            assert_eq!(answer.expect("an answer"), Written::Applied, "order-{number}");
        }
    }
    let record = store.load(&leases[5].id).await.expect("an answer").expect("a record");
    assert_eq!(record.state, State::InProgress);
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_that_was_removed_or_replaced_is_not_written_to() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let store = open(&path).await.expect("a store");
    let lease = granted(&store, &ask("order-1")).await;
    let aside = directory.path().join("aside.db");
    fs::rename(&path, &aside).expect("moved away");
    // What would be acknowledged now, nobody could find again.
    let alone = store.write(&lease, Write::Complete(reply(b"paid"))).await;
    let error = alone.expect_err("refused");
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    let source = std::error::Error::source(&error).expect("a cause").to_string();
    assert!(source.contains("removed or replaced"), "{source}");
    assert!(store.ping().await.is_err(), "not ready");
    assert!(!path.exists(), "no silent fresh start");
    fs::rename(&aside, &path).expect("moved back");
    let written = store.write(&lease, Write::Complete(reply(b"paid"))).await.expect("answer");
    assert_eq!(written, Written::Applied, "it is the same file");
    // Somebody else makes a new one in its place.
    fs::rename(&path, &aside).expect("moved away");
    fs::rename(directory.path().join("store.db-wal"), directory.path().join("aside.db-wal"))
        .expect("moved away");
    fs::remove_file(directory.path().join("store.db-shm")).expect("removed");
    let other = open(&path).await.expect("a new store");
    let _ = granted(&other, &ask("order-2")).await;
    let twice = store.reserve(Ask { attempt: AttemptId::random(), ..ask("order-2") }).await;
    assert_eq!(twice.expect_err("refused").kind(), StoreErrorKind::Unavailable);
    let together = join_all([store.reserve(ask("order-3")), store.reserve(ask("order-4"))]).await;
    assert!(together.iter().all(Result::is_err), "{together:?}");
    other.close().await;
}

#[tokio::test]
async fn a_name_that_means_something_to_sqlite_is_still_the_name_of_a_file() {
    let directory = directory();
    for name in [":memory:", "file:store.db", "store.db?mode=memory"] {
        let path = directory.path().join(name);
        let store = open(&path).await.expect("a store");
        complete(&store, "order-1", b"paid").await;
        store.close().await;
        assert!(path.exists(), "{name}");
    }
    // Relative, they would be taken for something else.
    for name in [":memory:", "file:store.db"] {
        assert!(!Path::new(name).exists());
        let store = open(Path::new(name)).await.expect("a store");
        complete(&store, "order-1", b"paid").await;
        store.close().await;
        let again = open(Path::new(name)).await.expect("a store");
        let there = again.load(&ask("order-1").id).await.expect("an answer").is_some();
        again.close().await;
        for suffix in ["", "-wal", "-shm"] {
            let _ = fs::remove_file(format!("{name}{suffix}"));
        }
        assert!(there, "{name} keeps what was acknowledged");
    }
}

#[tokio::test]
async fn a_length_that_cannot_be_is_damage_and_does_not_end_the_process() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let store = open(&path).await.expect("a store");
    complete(&store, "order-1", &[b'a'; 4096]).await;
    complete(&store, "order-2", &[b'a'; 4096]).await;
    for length in ["9223372036854775807", "1000000000000000", "4097", "4095", "-1", "0"] {
        let damage =
            format!("UPDATE onceward_records SET reply_length = {length} WHERE key = 'order-1'");
        let damage: &'static str = Box::leak(damage.into_boxed_str());
        run_sql(&path, damage).await;
        let error = store.load(&ask("order-1").id).await.expect_err("damaged");
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{length}: {error}");
        assert!(store.load(&ask("order-2").id).await.expect("an answer").is_some());
    }
    run_sql(&path, "UPDATE onceward_records SET reply_length = 4096 WHERE key = 'order-1'").await;
    let record = store.load(&ask("order-1").id).await.expect("an answer").expect("a record");
    assert_eq!(record.reply, Some(reply(&[b'a'; 4096])));
}

#[tokio::test]
async fn damaged_rows_do_not_stop_the_workers() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let clock = ManualClock::default();
    let options = SqliteOptions::new(&path).clock(Arc::new(clock.clone()));
    let store = SqliteStore::open(options).await.expect("a store");
    for number in 0..4 {
        let ask = Ask {
            effects: Effects::None,
            lease: Duration::from_secs(60 + number),
            ..ask(&format!("left-{number}"))
        };
        let _ = granted(&store, &ask).await;
        complete(&store, &format!("done-{number}"), &[b'a'; 4096]).await;
        clock.advance(Duration::from_secs(1));
    }
    // The first that are due cannot be read.
    run_sql(
        &path,
        "UPDATE onceward_records SET effects = 'nonsense' WHERE key IN ('left-0', 'left-1'); \
         UPDATE onceward_records SET attempts = -1 WHERE key IN ('done-0', 'done-1')",
    )
    .await;
    clock.advance(Duration::from_secs(70));
    let mut swept = Vec::new();
    for _ in 0..4 {
        swept.extend(store.sweep(1).await.expect("an answer"));
    }
    let swept: Vec<_> = swept.iter().map(|swept| swept.id.key.as_str()).collect();
    assert_eq!(swept, ["left-2", "left-3"]);
    clock.advance(Duration::from_secs(86_400));
    let mut expired = 0;
    for _ in 0..6 {
        expired += store.reap(1).await.expect("an answer").expired;
    }
    assert_eq!(expired, 4, "two that completed, two that were swept");
    let error = store.load(&ask("done-0").id).await.expect_err("still damaged");
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
}

#[tokio::test]
async fn a_long_run_writes_its_log_back_and_does_not_let_it_grow() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let store = open(&path).await.expect("a store");
    let body = noise(16 * 1024);
    for round in 0..20 {
        let mut leases = Vec::new();
        for answer in join_all((0..50).map(|n| store.reserve(ask(&format!("o-{round}-{n}"))))).await
        {
            match answer.expect("an answer") {
                Reservation::Granted { lease, .. } => leases.push(lease),
                other => panic!("not granted: {other:?}"),
            }
        }
        let complete = |lease| store.write(lease, Write::Complete(reply(&body)));
        for answer in join_all(leases.iter().map(complete)).await {
            assert_eq!(answer.expect("an answer"), Written::Applied);
        }
    }
    let file = fs::metadata(&path).expect("there").len();
    let log = fs::metadata(directory.path().join("store.db-wal")).expect("there").len();
    assert!(file > 10 << 20, "{file} bytes were written back");
    assert!(log < 10 << 20, "{log} bytes of log");
}

#[tokio::test]
async fn one_large_batch_does_not_leave_a_large_log_behind() {
    let directory = directory();
    let store = open(&directory.path().join("store.db")).await.expect("a store");
    let log = || fs::metadata(directory.path().join("store.db-wal")).expect("there").len();
    let body = noise(1 << 20);
    let keys: Vec<String> = (0..40).map(|number| format!("order-{number}")).collect();
    let mut leases = Vec::new();
    for key in &keys {
        leases.push(granted(&store, &ask(key)).await);
    }
    let complete = |lease| store.write(lease, Write::Complete(reply(&body)));
    for answer in join_all(leases.iter().map(complete)).await {
        assert_eq!(answer.expect("an answer"), Written::Applied);
    }
    assert!(log() > 40 << 20, "they were one batch");
    let _ = granted(&store, &ask("after")).await;
    assert!(log() < 20 << 20, "{} bytes of log stay", log());
}

#[tokio::test]
async fn a_record_that_its_index_has_lost_is_found_when_the_file_is_opened() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let store = open(&path).await.expect("a store");
    for number in 100..300 {
        complete(&store, &format!("order-{number}"), b"paid").await;
    }
    store.close().await;
    // The key stands in its row and in the index of keys. In the index it turns into another one.
    let mut bytes = fs::read(&path).expect("read");
    let name = b"acmeorder-177";
    let places: Vec<usize> =
        (0..bytes.len() - 300).filter(|at| bytes[*at..].starts_with(name)).collect();
    let is_row = |at: &usize| bytes[*at..*at + 300].windows(8).any(|part| part == b"/charges");
    let (rows, entries): (Vec<usize>, Vec<usize>) = places.into_iter().partition(is_row);
    assert!(!rows.is_empty() && !entries.is_empty(), "{rows:?} {entries:?}");
    for at in entries {
        bytes[at + name.len() - 1] = b'x';
    }
    fs::write(&path, &bytes).expect("written");
    match open(&path).await {
        Err(OpenError::Damaged { what, .. }) => eprintln!("{what}"),
        Err(other) => panic!("{other}"),
        Ok(store) => {
            let again = store.reserve(Ask { attempt: AttemptId::random(), ..ask("order-177") });
            panic!("opened, and the key is taken for a new one: {:?}", again.await);
        }
    }
}

#[tokio::test]
async fn a_reply_that_changed_on_the_disk_is_an_error_and_is_never_replayed() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let store = open(&path).await.expect("a store");
    let damages = [
        "UPDATE onceward_records SET reply_body = CAST('said' AS BLOB) WHERE key = 'order-0'",
        "UPDATE onceward_records SET reply_status = 200 WHERE key = 'order-1'",
        "UPDATE onceward_records SET reply_schema = 'v9' WHERE key = 'order-2'",
        "UPDATE onceward_records SET reply_headers = CAST(substr(reply_headers, 1, 8) || x'01' AS BLOB) \
         WHERE key = 'order-3'",
        "UPDATE onceward_records SET reply_headers = CAST(x'00' || substr(reply_headers, 2) AS BLOB) \
         WHERE key = 'order-4'",
        "UPDATE onceward_records SET reply_headers = NULL WHERE key = 'order-5'",
        "UPDATE onceward_records SET reply_encoding = 'not_stored', reply_length = NULL, reply_body = NULL \
         WHERE key = 'order-6'",
    ];
    let mut sent = reply(b"paid");
    sent.headers.push((http::header::ETAG, http::HeaderValue::from_static("abc")));
    for (number, damage) in damages.into_iter().enumerate() {
        let ask = ask(&format!("order-{number}"));
        let lease = granted(&store, &ask).await;
        let written = store.write(&lease, Write::Complete(sent.clone())).await.expect("answer");
        assert_eq!(written, Written::Applied);
        let record = store.load(&ask.id).await.expect("an answer").expect("a record");
        assert_eq!(record.reply.as_ref(), Some(&sent), "whole before it is damaged");
        run_sql(&path, damage).await;
        let retry = Ask { attempt: AttemptId::random(), ..ask };
        let error = store.reserve(retry).await.expect_err(damage);
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{damage}");
    }
}
