//! The schema of a store, ahead of a start: `onceward migrate`.

use std::process::Stdio;

use onceward_testbed::{Database, DynamoDb, MariaDb, Postgres, Redis};
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

/// A store that a later release has brought to version 99.
struct Later<'s> {
    url: String,
    /// What else the settings say of it.
    settings: &'static str,
    /// Has it say from which version on it may be used.
    says: Box<dyn Fn(&str) + 's>,
}

impl<'s> Later<'s> {
    fn new(url: String, says: impl Fn(&str) + 's) -> Later<'s> {
        Later { url, settings: "", says: Box::new(says) }
    }

    /// As lines of TOML.
    fn toml(&self) -> String {
        format!("[store]\nurl = \"{}\"\n{}", self.url, self.settings)
    }

    /// How the gateway ends that is started on it, and what it complains about.
    fn refusal(&self) -> (Option<i32>, String) {
        let config = tempfile::NamedTempFile::new().expect("a file");
        let toml = format!(
            "config_version = 1\n[gateway]\nupstream = \"http://127.0.0.1:9\"\n\
             listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n[scope]\nfrom = \"anonymous\"\n{}",
            self.toml()
        );
        std::fs::write(config.path(), toml).expect("written");
        let mut serve = binary();
        let ended = serve.args(["serve", "--config"]).arg(config.path()).output().expect("it ends");
        (ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned())
    }
}

/// Has a table of the emulator say of which version its items are, and from which one on they may be used.
pub(crate) fn write_table_version(table: &str, version: u32, since: Option<u32>) {
    let (update, value) = match since {
        Some(since) => {
            (", compatible_since = :since", format!(r#", ":since": {{"N": "{since}"}}"#))
        }
        None => (" REMOVE compatible_since", String::new()),
    };
    let call = format!(
        r##"{{"TableName": "{table}", "Key": {{"pk": {{"S": "meta"}}, "sk": {{"S": "schema"}}}},
        "UpdateExpression": "SET #version = :version{update}",
        "ExpressionAttributeNames": {{"#version": "version"}},
        "ExpressionAttributeValues": {{":version": {{"N": "{version}"}}{value}}}}}"##
    );
    let said = DynamoDb::shared().call("UpdateItem", &call);
    assert!(said.starts_with("HTTP/1.1 200"), "{said}");
}

/// A store of each kind that has a schema.
#[test]
pub(crate) fn a_newer_schema_that_lets_this_version_in_is_served_and_another_one_is_not() {
    let postgres = Postgres::shared().create_database();
    let mariadb = MariaDb::shared();
    let tables = mariadb.create_database();
    let folder = folder_on_disk();
    let path = folder.path().join("x.db");
    let redis = Redis::start();
    let meta = |table: &str, since: &str| {
        format!("UPDATE {table} SET value = '{since}' WHERE name = 'compatible_since'")
    };
    let stores = [
        Later::new(postgres.url(), |since| {
            postgres.psql(&format!(
                "INSERT INTO onceward.migrations (version) VALUES (99) ON CONFLICT DO NOTHING; {}",
                meta("onceward.meta", since)
            ));
        }),
        Later::new(mariadb.url(&tables), |since| {
            let newer = "INSERT IGNORE INTO onceward_migrations (version) VALUES (99)";
            mariadb.sql(&tables, &format!("{newer}; {}", meta("onceward_meta", since)));
        }),
        Later::new(format!("file:{}", path.display()), |since| {
            change_file(&path, "PRAGMA user_version = 99");
            change_file(&path, &meta("onceward_meta", since));
        }),
        Later {
            settings: "durability = \"best-effort\"\n",
            ..Later::new(redis.url(), |since| {
                redis.cli(&["SET", "{onceward:0}layout", &format!("99 128 {since}")]);
            })
        },
        Later::new(DynamoDb::shared().url("later-release"), |since| {
            write_table_version("later-release", 99, since.parse().ok());
        }),
    ];
    for store in &stores {
        is_served_if_it_lets_this_version_in(store);
    }
}

fn is_served_if_it_lets_this_version_in(store: &Later<'_>) {
    let url = &*store.url;
    assert_eq!(migrate("up", url).0, Some(0));
    assert_eq!(status(url), (Some(0), "current".into()), "{url}");
    let doctor = || binary().args(["doctor", "--store", url]).output().expect("it runs");
    assert_eq!(doctor().status.code(), Some(0), "{url}");

    (store.says)("99");
    assert_eq!(status(url), (Some(2), "incompatible".into()), "{url}");
    for what in ["plan", "up"] {
        let (code, told) = migrate(what, url);
        assert_eq!((code, &told["standing"]), (Some(2), &"incompatible".into()), "{url}");
    }
    assert_eq!(doctor().status.code(), Some(2), "{url}");
    let (code, why) = store.refusal();
    assert_eq!(code, Some(2), "{why}");
    assert!(why.contains("use a newer onceward"), "{why}");

    (store.says)("1");
    assert_eq!(status(url), (Some(0), "ahead".into()), "{url}");
    for (what, list) in [("plan", "pending"), ("up", "applied")] {
        let (code, told) = migrate(what, url);
        assert_eq!((code, names(&told[list]).len()), (Some(0), 0), "{url}");
    }
    assert_eq!(doctor().status.code(), Some(0), "{url}");
    let upstream = Upstream::start(|_, _| ok("done"));
    let gateway = Gateway::with(upstream.address, &store.toml());
    let answers = [(), ()].map(|()| post(gateway.address, "order-0000000000000001", "{}", &[]));
    assert_eq!(answers.each_ref().map(|answer| answer.status), [200, 200], "{url}");
    assert_eq!(answers.each_ref().map(|answer| answer.is_replay()), [false, true], "{url}");
    let told = migrate("status", url).1;
    assert_eq!((&told["version"], &told["compatible_since"]), (&99.into(), &1.into()), "{told}");
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
