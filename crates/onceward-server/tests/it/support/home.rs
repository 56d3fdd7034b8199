use std::{path::Path, process::Command};

use onceward_testbed::{CutProxy, Database, Postgres};
use tempfile::TempDir;

use super::{ALICE, Gateway, Upstream};

/// A store that gateways share, and that outlives them unless it is memory.
pub(crate) struct Home {
    pub(crate) url: String,
    folder: TempDir,
    database: Option<Database<'static>>,
}

impl Home {
    pub(crate) fn memory() -> Home {
        Home { url: "memory:".to_owned(), folder: folder(), database: None }
    }

    pub(crate) fn file() -> Home {
        let folder = folder();
        let url = format!("file:{}", folder.path().join("x.db").display());
        Home { url, folder, database: None }
    }

    /// A database of its own on the server that all tests of this process share.
    pub(crate) fn postgres() -> Home {
        let database = Postgres::shared().create_database();
        Home { url: database.url(), folder: folder(), database: Some(database) }
    }

    /// Those that outlive gateways.
    pub(crate) fn durable() -> [Home; 2] {
        [Home::file(), Home::postgres()]
    }

    /// A folder of its own, in which a file store is the file `x.db`.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// For whoever looks at the tables.
    pub(crate) fn database(&self) -> Option<&Database<'static>> {
        self.database.as_ref()
    }

    /// What leads to its server, and where the store is through it.
    pub(crate) fn through_a_proxy(&self) -> (CutProxy, String) {
        let server = Postgres::shared().address();
        let proxy = CutProxy::start(server);
        let url = self.url.replace(&server.to_string(), &proxy.address().to_string());
        (proxy, url)
    }

    /// These settings, with this store and with an operator.
    pub(crate) fn settings(&self, toml: &str) -> String {
        format!("[store]\nurl = \"{}\"\n{ALICE}{toml}", self.url)
    }

    pub(crate) fn gateway(&self, upstream: &Upstream, toml: &str) -> Gateway {
        Gateway::with(upstream.address, &self.settings(toml))
    }

    /// Whether something is in the store, as it is or in a column of bytes.
    pub(crate) fn holds(&self, text: &str) -> bool {
        let has = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).any(|it| it == part);
        let Some(database) = &self.database else {
            let files = std::fs::read_dir(self.folder()).expect("a folder");
            let read = |file: std::io::Result<std::fs::DirEntry>| {
                std::fs::read(file.expect("an entry").path()).unwrap_or_default()
            };
            return files.map(read).any(|bytes| has(&bytes, text.as_bytes()));
        };
        let tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'onceward'";
        let rows = |table| database.psql(&format!("SELECT t::text FROM onceward.{table} t"));
        let all: String = database.psql(tables).lines().map(rows).collect();
        let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
        all.contains(text) || all.contains(&hex)
    }

    /// Makes all records of a durable store older by so many days.
    pub(crate) fn age(&self, days: i64) {
        let by = days * 86_400_000_000;
        if let Some(database) = &self.database {
            database.psql(&format!(
                "UPDATE onceward.records SET expires_at = expires_at - {by}, \
                 reap_at = reap_at - {by}"
            ));
            return;
        }
        let older = format!(
            "UPDATE onceward_records SET expires_at = expires_at - {by}, purge_at = purge_at - {by}"
        );
        change_file(&self.folder().join("x.db"), &older);
    }
}

/// One statement on a file, by another program.
pub(crate) fn change_file(path: &Path, sql: &str) {
    let change = "import sqlite3, sys\n\
                  db = sqlite3.connect(sys.argv[1])\n\
                  db.execute(sys.argv[2])\n\
                  db.commit()";
    let done = Command::new("/usr/bin/python3").args(["-c", change]).arg(path).arg(sql).status();
    assert!(done.expect("python").success());
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("temporary folder")
}
