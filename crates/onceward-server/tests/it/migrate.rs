//! The schema of a store, ahead of a start: `onceward migrate`.

use std::process::Stdio;

use onceward_testbed::{Database, MariaDb, Postgres};
use serde_json::Value;

use crate::support::{Gateway, Upstream, binary, change_file, folder_on_disk, ok, post};

/// The exit code, and what was printed.
fn migrate(what: &str, store: &str) -> (Option<i32>, Value) {
    let output = binary().args(["migrate", what, "-o", "json", "--store", store]).output();
    let output = output.expect("the binary runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    let told = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{stderr}"));
    (output.status.code(), told)
}

/// The standing of a schema, with the exit code.
fn status(store: &str) -> (Option<i32>, String) {
    let (code, told) = migrate("status", store);
    (code, told["standing"].as_str().expect("text").to_owned())
}

fn names(list: &Value) -> Vec<&str> {
    let list = list.as_array().expect("a list").iter();
    list.map(|step| step["name"].as_str().expect("text")).collect()
}

/// Whether there is a schema of ours.
fn there(database: &Database<'_>) -> bool {
    database.psql("SELECT count(*) FROM pg_namespace WHERE nspname = 'onceward'").trim() == "1"
}

#[test]
pub(crate) fn a_schema_is_planned_made_once_and_then_current() {
    let database = Postgres::shared().create_database();
    let folder = folder_on_disk();
    let file = folder.path().join("x.db");
    for store in [database.url(), format!("file:{}", file.display())] {
        assert_eq!(status(&store), (Some(3), "absent".into()));
        let (code, plan) = migrate("plan", &store);
        assert_eq!(code, Some(0));
        let planned = names(&plan["pending"]);
        assert_eq!((planned.first(), planned.last()), (Some(&"records"), Some(&"provider_ids")));
        assert!(plan["pending"][0]["about"].as_str().is_some_and(|about| !about.is_empty()));
        assert_eq!(status(&store), (Some(3), "absent".into()), "a plan changes nothing");
        assert!(there(&database) != store.starts_with("postgres") && !file.exists());
        let (code, up) = migrate("up", &store);
        assert_eq!((code, names(&up["applied"])), (Some(0), planned));
        assert_eq!(status(&store), (Some(0), "current".into()));
        let (code, again) = migrate("up", &store);
        assert_eq!((code, names(&again["applied"]).len()), (Some(0), 0));
        assert_eq!(again["message"], "Nothing to do.");
        let doctor = binary().args(["doctor", "--store", &store]).output().expect("it runs");
        assert_eq!(doctor.status.code(), Some(0));
    }
    assert_eq!(status("memory:"), (Some(0), "current".into()), "it has no schema");
}

#[test]
fn two_that_migrate_at_once_apply_each_migration_once() {
    let database = Postgres::shared().create_database();
    let folder = folder_on_disk();
    let file = format!("file:{}", folder.path().join("x.db").display());
    for store in [database.url(), file] {
        let both = [(), ()].map(|()| {
            let mut command = binary();
            command.args(["migrate", "up", "-o", "json", "--store", &store]);
            command.stdout(Stdio::piped()).spawn().expect("the binary runs")
        });
        let applied = both.map(|child| {
            let output = child.wait_with_output().expect("it ends");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            names(&told["applied"]).len()
        });
        assert_eq!(applied.iter().filter(|count| **count > 0).count(), 1, "{applied:?}");
        assert_eq!(status(&store), (Some(0), "current".into()));
    }
}

#[test]
fn an_older_schema_is_brought_up_and_then_whole() {
    let database = Postgres::shared().create_database();
    let store = database.url();
    migrate("up", &store);
    database.psql(
        "DROP TABLE onceward.provider_ids CASCADE; \
         DROP FUNCTION onceward.forget_provider_ids CASCADE; \
         DROP FUNCTION onceward.forget_provider_ids_of_one CASCADE; \
         DROP FUNCTION IF EXISTS onceward.note_provider_id, onceward.by_provider_id, \
         onceward.provider_ids_of, onceward.provider_id; \
         DELETE FROM onceward.migrations WHERE version = 4",
    );
    assert_eq!(status(&store), (Some(3), "behind".into()));
    let (code, plan) = migrate("plan", &store);
    assert_eq!((code, names(&plan["pending"])), (Some(0), vec!["provider_ids"]));
    assert_eq!(plan["message"], "Processes of the version before may go on meanwhile.");
    let (code, up) = migrate("up", &store);
    assert_eq!((code, names(&up["applied"])), (Some(0), vec!["provider_ids"]));
    let doctor = binary().args(["doctor", "--store", &store]).output().expect("it runs");
    let text = String::from_utf8_lossy(&doctor.stdout);
    assert_eq!(doctor.status.code(), Some(0), "{text}");
}

#[test]
pub(crate) fn a_newer_schema_that_lets_this_version_in_is_served_and_another_one_is_not() {
    let database = Postgres::shared().create_database();
    let store = database.url();
    migrate("up", &store);
    database.psql("INSERT INTO onceward.migrations (version) VALUES (99)");
    let says = |since: &str| {
        database.psql(&format!(
            "UPDATE onceward.meta SET value = '{since}' WHERE name = 'compatible_since'"
        ));
    };
    says("99");
    assert_eq!(status(&store), (Some(2), "incompatible".into()));
    for what in ["plan", "up"] {
        let (code, told) = migrate(what, &store);
        assert_eq!(code, Some(2));
        assert_eq!(told["standing"], "incompatible");
    }
    let doctor = || binary().args(["doctor", "--store", &store]).output().expect("it runs");
    assert_eq!(doctor().status.code(), Some(2));
    let serve = binary()
        .args(["serve", "--upstream", "http://127.0.0.1:9", "--scope", "anonymous"])
        .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--store", &store])
        .output()
        .expect("it runs");
    assert_eq!(serve.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&serve.stderr).contains("use a newer onceward"));

    says("1");
    assert_eq!(status(&store), (Some(0), "ahead".into()));
    assert_eq!(doctor().status.code(), Some(0));
    let upstream = Upstream::start(|_, _| ok("done"));
    let gateway = Gateway::with(upstream.address, &format!("[store]\nurl = \"{store}\"\n"));
    let answers = [(), ()].map(|()| post(gateway.address, "order-0000000000000001", "{}", &[]));
    assert_eq!(answers.each_ref().map(|answer| answer.status), [200, 200]);
    assert_eq!(answers.each_ref().map(|answer| answer.is_replay()), [false, true]);
    let version = database.psql("SELECT max(version) FROM onceward.migrations");
    assert_eq!(version.trim(), "99", "nothing was taken back");
}

#[test]
fn a_schema_that_another_build_made_under_the_same_numbers_is_refused_by_all() {
    let postgres = Postgres::shared().create_database();
    let mariadb = MariaDb::shared();
    let mysql = mariadb.create_database();
    let folder = folder_on_disk();
    let path = folder.path().join("x.db");
    let forget = |meta: &str| format!("DELETE FROM {meta} WHERE name = 'migration 1'");
    type Edit<'a> = Box<dyn Fn() + 'a>;
    let stores: [(String, Edit<'_>); 3] = [
        (postgres.url(), Box::new(|| drop(postgres.psql(&forget("onceward.meta"))))),
        (mariadb.url(&mysql), Box::new(|| drop(mariadb.sql(&mysql, &forget("onceward_meta"))))),
        (
            format!("file:{}", path.display()),
            Box::new(|| change_file(&path, &forget("onceward_meta"))),
        ),
    ];
    for (store, edit) in &stores {
        assert_eq!(migrate("up", store).0, Some(0));
        assert_eq!(status(store), (Some(0), "current".into()));
        edit();
        for what in ["status", "plan", "up"] {
            let (code, told) = migrate(what, store);
            assert_eq!((code, &told["standing"]), (Some(2), &"changed".into()), "{told}");
            assert!(told["changed"]["name"].as_str().is_some_and(|name| name.contains("records")));
        }
        let doctor = binary().args(["doctor", "--store", store]).output().expect("it runs");
        assert_eq!(doctor.status.code(), Some(2));
        let serve = binary()
            .args(["serve", "--upstream", "http://127.0.0.1:9", "--scope", "anonymous"])
            .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--store", store])
            .output()
            .expect("it runs");
        assert_eq!(serve.status.code(), Some(2));
        let why = String::from_utf8_lossy(&serve.stderr);
        assert!(why.contains("in another text than this version has"), "{why}");
    }
}
