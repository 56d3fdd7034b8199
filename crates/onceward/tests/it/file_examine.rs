//! Whether a file can be relied on, as it says before it is opened: what a change from outside does to
//! its findings. `onceward doctor` prints them, and its tests have the rest.

use std::{fs, path::Path};

use onceward::{
    SqliteOptions, Store as _,
    store::site::{Finding, Site as _, Standing, Verdict},
};
use tempfile::TempDir;

use crate::file_store::{ask, granted, open, run_sql};

/// On a disk, which the usual place for temporary folders need not be.
fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")
}

async fn examine(path: &Path) -> Vec<Finding> {
    SqliteOptions::new(path).examine().await.expect("it can be looked at")
}

async fn verdict(path: &Path, name: &str) -> (Verdict, String) {
    let findings = examine(path).await;
    let finding = findings.iter().find(|finding| finding.name == name);
    let finding = finding.unwrap_or_else(|| panic!("{name} is not among {findings:?}"));
    (finding.verdict, finding.found.clone())
}

#[tokio::test]
async fn what_was_changed_in_a_file_is_found() {
    let directory = directory();
    for (number, (name, sql, expected, part)) in [
        (
            "tables and indexes",
            "DROP INDEX onceward_records_lease",
            Verdict::Unsafe,
            "missing or changed: index onceward_records_lease",
        ),
        (
            "tables and indexes",
            "DROP TRIGGER onceward_records_at_rest",
            Verdict::Unsafe,
            "missing or changed: trigger onceward_records_at_rest",
        ),
        ("journal_mode", "PRAGMA journal_mode = DELETE", Verdict::Note, "delete"),
        (
            "canary",
            "INSERT INTO onceward_regressions (found) VALUES (1700000000000000)",
            Verdict::Unsafe,
            "found Tue, 14 Nov 2023",
        ),
        (
            "identity",
            "INSERT INTO onceward_meta (name, value) VALUES ('identity', '0123456789abcdef')",
            Verdict::Ok,
            "0123456789ab... is remembered",
        ),
        ("schema", "PRAGMA user_version = 3", Verdict::Note, "version 3"),
        ("schema", "PRAGMA user_version = 99", Verdict::Note, "which may use it"),
        (
            "schema",
            "DELETE FROM onceward_meta WHERE name = 'compatible_since'; PRAGMA user_version = 99",
            Verdict::Unsafe,
            "which must not use it",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let path = directory.path().join(format!("{number}.db"));
        open(&path).await.expect("a store").close().await;
        assert_eq!(verdict(&path, name).await.0, Verdict::Ok, "{name}");
        run_sql(&path, sql).await;
        let (verdict, found) = verdict(&path, name).await;
        assert_eq!(verdict, expected, "{name}: {found}");
        assert!(found.contains(part), "{found}");
    }
}

#[tokio::test]
async fn a_file_at_work_is_looked_at_and_goes_on() {
    let directory = directory();
    let path = directory.path().join("store.db");
    let store = open(&path).await.expect("a store");
    let _ = granted(&store, &ask("order-1")).await;
    let before = fs::metadata(&path).expect("there").len();
    let findings = examine(&path).await;
    assert!(findings.iter().all(|finding| finding.verdict < Verdict::Failed), "{findings:?}");
    let schema = SqliteOptions::new(&path).schema().await.expect("read");
    assert_eq!(schema.standing(), Standing::Current);
    assert_eq!(fs::metadata(&path).expect("there").len(), before);
    let _ = granted(&store, &ask("order-2")).await;
    store.ping().await.expect("it works");
    store.close().await;
    let reopened = open(&path).await.expect("whole");
    let occupied = reopened.reserve(ask("order-1")).await.expect("an answer");
    assert!(matches!(occupied, onceward::store::Reservation::Occupied { .. }), "{occupied:?}");
}
