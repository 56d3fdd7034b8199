//! Whether a store can be relied on, as `onceward doctor` says. Each setting is seen as it should be and
//! as it should not.

use std::{collections::BTreeMap, fs, path::Path, process::Output};

use onceward_testbed::{Database, PgBouncer, Postgres};
use serde_json::Value;

use crate::support::{binary, eventually, folder_on_disk};

/// What was found: the exit code, and for each name the verdict and what was found.
struct Told {
    code: Option<i32>,
    findings: BTreeMap<String, (String, String)>,
}

impl Told {
    #[track_caller]
    fn verdict(&self, name: &str) -> &str {
        self.both(name).0
    }

    #[track_caller]
    fn found(&self, name: &str) -> &str {
        self.both(name).1
    }

    #[track_caller]
    fn both(&self, name: &str) -> (&str, &str) {
        let both = self.findings.get(name);
        let both = both.unwrap_or_else(|| panic!("{name} is not among {:?}", self.findings));
        (&both.0, &both.1)
    }

    /// The one thing that is not safe.
    #[track_caller]
    fn is_unsafe_for(&self, name: &str, part: &str) {
        assert_eq!(self.verdict(name), "unsafe", "{:?}", self.findings);
        assert!(self.found(name).contains(part), "{}", self.found(name));
        assert_eq!(self.code, Some(2));
    }
}

fn run(args: &[&str]) -> Output {
    binary().args(args).output().expect("the binary runs")
}

fn doctor(store: &str) -> Told {
    doctor_with(&["--store", store])
}

fn doctor_with(args: &[&str]) -> Told {
    let output = run(&[&["doctor", "-o", "json"][..], args].concat());
    let text = String::from_utf8(output.stdout).expect("text");
    let stderr = String::from_utf8_lossy(&output.stderr);
    let told: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}{stderr}"));
    let findings = told["findings"].as_array().expect("a list").iter().map(|finding| {
        let text = |name: &str| finding[name].as_str().expect("text").to_owned();
        let needs_advice = text("verdict") != "ok";
        assert_eq!(needs_advice, !text("advice").is_empty(), "{finding}");
        (text("name"), (text("verdict"), text("found")))
    });
    Told { code: output.status.code(), findings: findings.collect() }
}

fn migrate(store: &str) {
    let output = run(&["migrate", "up", "--store", store]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A database with our schema.
fn database() -> Database<'static> {
    let database = Postgres::shared().create_database();
    migrate(&database.url());
    database
}

#[test]
fn a_postgres_as_it_comes_can_be_relied_on() {
    let database = database();
    let told = doctor(&database.url());
    for name in [
        "server version",
        "primary",
        "pool",
        "transport",
        "fsync",
        "full_page_writes",
        "synchronous_commit",
        "isolation",
        "clock skew",
        "connections",
        "autovacuum",
        "schema",
        "permissions",
        "tables, indexes and functions",
        "dead rows",
        "identity",
        "canary",
    ] {
        assert_eq!(told.verdict(name), "ok", "{name}: {}", told.found(name));
    }
    assert_eq!(told.verdict("synchronous standbys"), "note");
    assert!(told.found("server version").starts_with("PostgreSQL "));
    assert!(told.found("clock skew").contains("give or take"));
    assert_eq!(told.code, Some(0));
    let table = run(&["doctor", "--store", &database.url()]);
    let table = String::from_utf8(table.stdout).expect("text");
    assert!(table.starts_with("VERDICT  WHAT"), "{table}");
    assert!(table.ends_with("The store can be relied on.\n"), "{table}");
}

#[test]
fn a_postgres_that_does_not_sync_is_unsafe_unless_best_effort_is_declared() {
    let postgres = Postgres::start();
    let url = postgres.url("postgres");
    migrate(&url);
    set(&postgres, "fsync", "off");
    set(&postgres, "full_page_writes", "off");
    let told = doctor(&url);
    told.is_unsafe_for("fsync", "off");
    told.is_unsafe_for("full_page_writes", "off");
    let told = doctor_with(&["--store", &url, "--class", "best-effort"]);
    assert_eq!([told.verdict("fsync"), told.verdict("full_page_writes")], ["note", "note"]);
    assert_eq!(told.code, Some(0));
    set(&postgres, "fsync", "on");
    set(&postgres, "full_page_writes", "on");
    assert_eq!(doctor(&url).code, Some(0));

    let standby = postgres.standby(postgres.address());
    postgres.wait_for(&standby);
    doctor(&standby.url("postgres")).is_unsafe_for("primary", "a standby");
    let told = doctor(&url);
    assert_eq!(told.verdict("synchronous standbys"), "note");
    assert!(told.found("synchronous standbys").contains("without being waited for"));
    set(&postgres, "synchronous_standby_names", "nobody");
    doctor(&url).is_unsafe_for("synchronous standbys", "none of them is connected");
    set(&postgres, "synchronous_standby_names", "*");
    let told = eventually("the standby is waited for", || {
        Some(doctor(&url)).filter(|told| told.verdict("synchronous standbys") == "ok")
    });
    assert_eq!(told.code, Some(0));
}

/// Changes a setting of a server, and waits until it holds.
fn set(postgres: &Postgres, name: &str, value: &str) {
    postgres.psql("postgres", &format!("ALTER SYSTEM SET {name} = '{value}'"));
    postgres.psql("postgres", "SELECT pg_reload_conf()");
    eventually("the setting holds", || {
        (postgres.psql("postgres", &format!("SHOW {name}")).trim() == value).then_some(())
    });
}

#[test]
fn the_settings_of_a_database_count() {
    let database = database();
    let name = database.name();
    for (setting, value, finding) in [
        ("synchronous_commit", "off", "synchronous_commit"),
        ("default_transaction_isolation", "serializable", "isolation"),
        ("default_transaction_read_only", "on", "primary"),
    ] {
        let admin = Postgres::shared();
        admin.psql("postgres", &format!("ALTER DATABASE {name} SET {setting} = '{value}'"));
        doctor(&database.url()).is_unsafe_for(finding, "");
        admin.psql("postgres", &format!("ALTER DATABASE {name} RESET {setting}"));
        assert_eq!(doctor(&database.url()).verdict(finding), "ok");
    }
    Postgres::shared().psql("postgres", &format!("ALTER DATABASE {name} CONNECTION LIMIT 3"));
    doctor(&database.url()).is_unsafe_for("connections", "the database allows 3");
    Postgres::shared().psql("postgres", &format!("ALTER DATABASE {name} CONNECTION LIMIT -1"));
    database.psql("ALTER TABLE onceward.records SET (autovacuum_enabled = off)");
    let told = doctor(&database.url());
    assert_eq!(told.both("autovacuum"), ("note", "off for records"));
    assert_eq!(told.code, Some(0), "worth knowing, and not unsafe");
}

#[test]
fn what_is_missing_from_the_schema_is_found() {
    const NAME: &str = "tables, indexes and functions";
    for (sql, missing) in [
        ("DROP INDEX onceward.records_reap", "index records_reap"),
        (
            "ALTER TABLE onceward.records DROP CONSTRAINT records_scope_key_key",
            "unique 1 of records",
        ),
        ("ALTER TABLE onceward.records DISABLE TRIGGER records_gone", "trigger records_gone"),
        ("DROP FUNCTION onceward.reap", "function reap"),
        (
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'onceward.records_due'::regclass",
            "index records_due",
        ),
    ] {
        let database = database();
        assert_eq!(doctor(&database.url()).verdict(NAME), "ok");
        database.psql(sql);
        doctor(&database.url()).is_unsafe_for(NAME, missing);
    }
}

#[test]
fn a_missing_right_is_found_and_a_role_needs_no_more_than_its_rights() {
    let database = database();
    let role = format!("app_{}", database.name());
    database.psql(&format!(
        "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA onceward TO {role}; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA onceward TO {role}"
    ));
    let url = database.url().replace("postgres@", &format!("{role}@"));
    let told = doctor(&url);
    assert_eq!(told.verdict("permissions"), "ok", "{}", told.found("permissions"));
    assert_eq!(told.code, Some(0));
    database.psql(&format!("REVOKE DELETE ON onceward.leases FROM {role}"));
    doctor(&url).is_unsafe_for("permissions", "missing: DELETE on leases");
    database.psql(&format!("REVOKE USAGE ON SCHEMA onceward FROM {role}"));
    let told = doctor(&url);
    told.is_unsafe_for("permissions", "USAGE on schema onceward");
    assert_eq!(told.verdict("schema"), "failed", "it may not be read");
    // Where there is no schema, somebody has to make it.
    let empty = Postgres::shared().create_database();
    let url = empty.url().replace("postgres@", &format!("{role}@"));
    doctor(&url).is_unsafe_for("permissions", "may not make the schema");
    empty.psql(&format!("GRANT CREATE ON DATABASE {} TO {role}", empty.name()));
    assert_eq!(doctor(&url).verdict("permissions"), "ok");
    drop(empty);
    drop(database);
    Postgres::shared().psql("postgres", &format!("DROP ROLE {role}"));
}

#[test]
fn a_pool_is_told_with_its_version_and_whether_it_keeps_statements() {
    let postgres = Postgres::shared();
    let database = database();
    for pool in [PgBouncer::start(postgres), PgBouncer::start_forgetful(postgres)] {
        let told = doctor(&pool.url(database.name()));
        let (major, minor) = pool.version();
        let version = format!("PgBouncer {major}.{minor}.");
        assert!(told.found("pool").starts_with(&version), "{}", told.found("pool"));
        if pool.keeps_prepared_statements() {
            assert_eq!(told.verdict("pool"), "ok");
        } else {
            told.is_unsafe_for("pool", "forgotten");
        }
        assert_eq!(told.verdict("schema"), "ok", "everything else is seen through it");
    }
    assert_eq!(doctor(&database.url()).both("pool"), ("ok", "none"));
}

#[test]
fn a_server_that_is_too_old_and_a_store_that_has_lost_data_are_unsafe() {
    let database = database();
    // No old server is at hand: this one says that it is.
    database.psql(
        "CREATE SCHEMA old; CREATE FUNCTION old.current_setting(name text) RETURNS text \
         LANGUAGE sql AS $$ SELECT CASE name WHEN 'server_version_num' THEN '120022' \
         WHEN 'server_version' THEN '12.22' ELSE pg_catalog.current_setting(name) END $$",
    );
    let old = format!("{}?options=-csearch_path%3Dold,pg_catalog", database.url());
    doctor(&old).is_unsafe_for("server version", "12.22");
    database.psql("INSERT INTO onceward.regressions (found) VALUES (1700000000000000)");
    doctor(&database.url()).is_unsafe_for("canary", "found Tue, 14 Nov 2023");
    database.psql("DELETE FROM onceward.regressions");
    assert_eq!(doctor(&database.url()).code, Some(0));
}

#[test]
pub(crate) fn what_cannot_be_looked_at_is_1_and_no_password_is_told() {
    let folder = folder_on_disk();
    let text = folder.path().join("text");
    fs::write(&text, "this is not an SQLite file, and longer than its header").expect("written");
    let text = format!("file:{}", text.display());
    let nobody = Postgres::shared().url("postgres").replace("postgres@", "nobody:hunter2@");
    for args in [
        &["--store", "postgres://app:hunter2@127.0.0.1:1/shop"][..],
        &["--store", nobody.as_str()],
        &["--store", "postgres://app:hunter2@[/shop"],
        &["--store", "oracle://app:hunter2@db"],
        &["--store", text.as_str()],
        &["--config", "/does/not/exist.toml"],
        &[],
    ] {
        for command in [&["doctor"][..], &["doctor", "-o", "json"], &["migrate", "status"]] {
            let output = run(&[command, args].concat());
            assert_eq!(output.status.code(), Some(1), "{args:?}");
            let all = [&output.stdout[..], &output.stderr].concat();
            let all = String::from_utf8_lossy(&all);
            assert!(!all.contains("hunter2"), "{all}");
            assert_eq!(all.lines().count(), 1, "{all}");
        }
    }
    let database = database();
    let url = database.url().replace("postgres@", "postgres:hunter2@");
    for output in ["table", "json"] {
        let told = run(&["doctor", "--store", &url, "-o", output]);
        assert_eq!(told.status.code(), Some(0));
        assert!(!String::from_utf8_lossy(&told.stdout).contains("hunter2"));
    }
}

#[test]
fn nothing_is_written_where_there_is_no_schema_and_no_file() {
    let database = Postgres::shared().create_database();
    let before = database.psql("SELECT count(*), max(oid) FROM pg_class");
    let told = doctor(&database.url());
    assert_eq!(told.both("schema"), ("note", "not there yet"));
    assert_eq!(told.code, Some(0));
    assert_eq!(database.psql("SELECT count(*), max(oid) FROM pg_class"), before);

    let folder = folder_on_disk();
    let store = format!("file:{}", folder.path().join("x.db").display());
    let told = doctor(&store);
    assert_eq!([told.verdict("file"), told.verdict("schema")], ["note", "note"]);
    assert!(names_in(folder.path()).is_empty(), "nothing was made");
    migrate(&store);
    let file = folder.path().join("x.db");
    let before = fs::read(&file).expect("read");
    assert_eq!(doctor(&store).code, Some(0));
    assert_eq!(names_in(folder.path()), ["x.db"], "not even a log");
    assert_eq!(fs::read(&file).expect("read"), before);
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_file_is_judged_by_its_place_its_mode_and_its_bytes() {
    let folder = folder_on_disk();
    let file = folder.path().join("x.db");
    let store = format!("file:{}", file.display());
    migrate(&store);
    let told = doctor(&store);
    for name in [
        "file",
        "free space",
        "permissions",
        "journal_mode",
        "synchronous",
        "integrity",
        "schema",
        "tables and indexes",
        "canary",
        "identity",
    ] {
        assert_eq!(told.verdict(name), "ok", "{name}: {}", told.found(name));
    }
    assert_ne!(told.verdict("file system"), "unsafe", "{}", told.found("file system"));
    let mode = |mode: u32| {
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("set");
    };
    mode(0o644);
    assert_eq!(doctor(&store).verdict("permissions"), "note");
    mode(0o444);
    doctor(&store).is_unsafe_for("permissions", "may not write the file");
    mode(0o600);
    let mut bytes = fs::read(&file).expect("read");
    bytes[4096 * 4..4096 * 9].iter_mut().for_each(|byte| *byte ^= 0x5a);
    fs::write(&file, &bytes).expect("written");
    doctor(&store).is_unsafe_for("integrity", "");
    fs::write(&file, "").expect("written");
    doctor(&store).is_unsafe_for("file", "empty");
    fs::remove_file(&file).expect("removed");
    fs::write(folder.path().join("x.db-wal"), "x").expect("written");
    doctor(&store).is_unsafe_for("file", "missing, while its write-ahead log is there");

    let shared_memory = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    let store = format!("file:{}", shared_memory.path().join("x.db").display());
    migrate(&store);
    doctor(&store).is_unsafe_for("file system", "tmpfs");
    let told = doctor_with(&["--store", &store, "--class", "best-effort"]);
    assert_eq!(told.code, Some(0));
}

#[test]
pub(crate) fn memory_is_unsafe_unless_best_effort_is_declared() {
    doctor("memory:").is_unsafe_for("durability", "nothing survives");
    let told = doctor_with(&["--store", "memory:", "--class", "best-effort"]);
    assert_eq!((told.verdict("durability"), told.code), ("note", Some(0)));
}

#[test]
fn the_store_of_a_configuration_is_looked_at() {
    let folder = folder_on_disk();
    let config = folder.path().join("onceward.toml");
    let text = "config_version = 1\n[gateway]\nupstream = \"http://127.0.0.1:9\"\n\
                [store]\nurl = \"memory:\"\n[scope]\nfrom = \"anonymous\"\n";
    fs::write(&config, text).expect("written");
    let config = config.to_str().expect("text");
    doctor_with(&["--config", config]).is_unsafe_for("durability", "");
    let file = format!("file:{}", folder.path().join("x.db").display());
    let told = doctor_with(&["--config", config, "--store", &file]);
    assert_eq!(told.code, Some(0), "the flag is nearer");
}
