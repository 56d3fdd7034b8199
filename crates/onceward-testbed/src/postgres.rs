use std::{
    env, fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use crate::{
    pgbouncer::PgBouncer,
    watchdog::{PATIENCE, Watchdog, run, unprivileged},
};

/// Another process may take the port between our look and the server's.
pub(crate) const PORTS_TRIED: usize = 10;

/// A PostgreSQL server with default durability (`fsync` and `synchronous_commit` are on), which
/// ends and leaves nothing behind when it is dropped or when its process dies.
///
/// The only user is `postgres`, and it needs no password. All calls block. `ONCEWARD_POSTGRES_BIN`
/// names a directory with the programs of another version than the newest one installed. Those that
/// only ask a server are taken from there too, if they are there.
pub struct Postgres {
    watchdog: Watchdog,
    programs: PathBuf,
    port: u16,
    pool: Option<Box<PgBouncer>>,
}

impl Postgres {
    /// Makes a cluster and starts it on a free port.
    ///
    /// # Panics
    ///
    /// If there is no PostgreSQL on this machine, or if it does not start.
    pub fn start() -> Postgres {
        Postgres::start_by(&[], &[])
    }

    /// The same with settings (`name=value`) beside ours, run by a program that becomes the server, with
    /// its arguments; or by none.
    ///
    /// # Panics
    ///
    /// As [`Postgres::start`].
    pub fn start_by(program: &[String], settings: &[String]) -> Postgres {
        let programs = programs();
        for _ in 0..PORTS_TRIED {
            let port = free_port();
            let watchdog = Watchdog::new("QUIT", |dir| {
                let more = settings.iter().flat_map(|setting| ["-c".to_owned(), setting.clone()]);
                [program.to_vec(), command(&programs, dir, port), more.collect()].concat()
            });
            initialise(&programs, watchdog.dir());
            let mut postgres = Postgres { watchdog, programs: programs.clone(), port, pool: None };
            match postgres.run() {
                Ok(()) => return postgres,
                Err(log) if log.contains("Address already in use") => {}
                Err(log) => panic!("PostgreSQL does not start:\n{log}"),
            }
        }
        panic!("no free port for PostgreSQL after {PORTS_TRIED} tries");
    }

    /// A second server that copies this one by asynchronous streaming replication, through an address
    /// that leads here: whoever breaks the connections there keeps commits from being shipped. Any
    /// transaction may be asked for there that only reads, until it is promoted.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn standby(&self, through: SocketAddr) -> Postgres {
        let programs = self.programs.clone();
        for _ in 0..PORTS_TRIED {
            let port = free_port();
            let watchdog = Watchdog::new("QUIT", |dir| command(&programs, dir, port));
            copy(&programs, watchdog.dir(), &self.url_through(through, "postgres"));
            let mut standby = Postgres { watchdog, programs: programs.clone(), port, pool: None };
            match standby.run() {
                Ok(()) => return standby,
                Err(log) if log.contains("Address already in use") => {}
                Err(log) => panic!("the standby does not start:\n{log}"),
            }
        }
        panic!("no free port for a standby after {PORTS_TRIED} tries");
    }

    /// Makes a standby take writes, with what it has.
    pub fn promote(&self) {
        assert_eq!(self.psql("postgres", "SELECT pg_promote(true, 60)"), "t", "promoted in time");
    }

    /// Waits until a standby has all that this server has committed.
    ///
    /// # Panics
    ///
    /// If it does not come to that.
    pub fn wait_for(&self, standby: &Postgres) {
        let end = self.psql("postgres", "SELECT pg_current_wal_flush_lsn()");
        let is_there = format!("SELECT pg_last_wal_replay_lsn() >= '{end}'");
        let begun = Instant::now();
        while standby.psql("postgres", &is_there) != "t" {
            assert!(begun.elapsed() < PATIENCE, "the standby does not come after");
            sleep(Duration::from_millis(10));
        }
    }

    /// The one server that all tests of this process share. Take a database or a schema each. Where
    /// `ONCEWARD_POSTGRES_POOLED` is set, its URLs lead through a [`PgBouncer`].
    pub fn shared() -> &'static Postgres {
        static SHARED: OnceLock<Postgres> = OnceLock::new();
        SHARED.get_or_init(|| {
            let mut postgres = Postgres::start();
            if env::var_os("ONCEWARD_POSTGRES_POOLED").is_some() {
                postgres.pool = Some(Box::new(PgBouncer::start(&postgres)));
            }
            postgres
        })
    }

    /// Whether its URLs lead through a pool in transaction mode: what is set on a connection does not
    /// stay there.
    pub fn is_pooled(&self) -> bool {
        self.pool.is_some()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// How to connect to a database of it; `postgres` always exists.
    pub fn url(&self, database: &str) -> String {
        let address = self.pool.as_ref().map_or_else(|| self.address(), |pool| pool.address());
        self.url_through(address, database)
    }

    /// How to connect to a database of it through a proxy or a pool that listens elsewhere.
    pub fn url_through(&self, address: SocketAddr, database: &str) -> String {
        format!("postgres://postgres@{address}/{database}")
    }

    /// A new, empty database, which is dropped with the guard.
    pub fn create_database(&self) -> Database<'_> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let name = format!("test_{}", NUMBER.fetch_add(1, Relaxed));
        self.psql("postgres", &format!("CREATE DATABASE {name}"));
        Database { postgres: self, name }
    }

    /// What `psql` says to a statement: rows as lines, columns divided by `|`.
    ///
    /// # Panics
    ///
    /// With the server's message if the statement fails.
    pub fn psql(&self, database: &str, sql: &str) -> String {
        run(&mut self.psql_command(database, sql))
    }

    /// Kills the server and all its backends, as a crash would.
    pub fn kill_9(&mut self) {
        self.watchdog.kill();
    }

    /// Starts a killed server on the same directory and port, and returns when it has recovered.
    pub fn start_again(&mut self) {
        if let Err(log) = self.run() {
            panic!("PostgreSQL does not start again:\n{log}");
        }
    }

    /// Stops the server and its backends where they are; connections stay open and are silent.
    pub fn hold(&mut self) {
        self.watchdog.hold();
    }

    /// Lets a server go on that was held.
    pub fn go(&mut self) {
        self.watchdog.go();
    }

    /// Holds the server for a time.
    pub fn hold_for(&mut self, time: Duration) {
        self.hold();
        sleep(time);
        self.go();
    }

    /// What the server wrote to its log.
    pub fn log(&self) -> String {
        self.watchdog.log()
    }

    /// The directory that holds everything of this server.
    pub fn dir(&self) -> &Path {
        self.watchdog.dir()
    }

    /// The process of the server; `None` while it is killed.
    pub fn pid(&self) -> Option<u32> {
        self.watchdog.pid()
    }

    fn run(&mut self) -> Result<(), String> {
        let status = self.status();
        // The file of a killed server remains, with another process in its first line.
        self.watchdog.start(|pid| {
            let status = fs::read_to_string(&status).unwrap_or_default();
            let mut lines = status.lines().map(str::trim);
            lines.next() == Some(&pid.to_string())
                && matches!(lines.next_back(), Some("ready" | "standby"))
        })
    }

    /// The file in which the server tells of itself while it runs.
    fn status(&self) -> PathBuf {
        self.watchdog.dir().join("data/postmaster.pid")
    }

    fn psql_command(&self, database: &str, sql: &str) -> Command {
        let mut command = Command::new(client(&self.programs, "psql"));
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d"]);
        command.arg(self.url_through(self.address(), database)).args(["-c", sql]);
        command
    }
}

impl Drop for Postgres {
    /// A crashed server leaves shared memory behind, which only its next start removes.
    fn drop(&mut self) {
        if self.pid().is_none() && self.status().exists() {
            let _ = self.run();
        }
    }
}

/// A database of its own for one test; dropped with this guard, whoever is connected.
pub struct Database<'a> {
    postgres: &'a Postgres,
    name: String,
}

impl Database<'_> {
    /// How to connect to it.
    pub fn url(&self) -> String {
        self.postgres.url(&self.name)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What `psql` says to a statement, as [`Postgres::psql`].
    pub fn psql(&self, sql: &str) -> String {
        self.postgres.psql(&self.name, sql)
    }
}

impl Drop for Database<'_> {
    fn drop(&mut self) {
        // A failed test must not panic twice; the server takes its databases with it anyway.
        let sql = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        let _ = self.postgres.psql_command("postgres", &sql).output();
    }
}

/// Where `initdb` and `postgres` are.
fn programs() -> PathBuf {
    if let Some(named) = env::var_os("ONCEWARD_POSTGRES_BIN") {
        let named = PathBuf::from(named);
        assert!(named.join("postgres").exists(), "no PostgreSQL in {}", named.display());
        return named;
    }
    installed()
}

/// A program that asks a server, which may be older than it is.
fn client(programs: &Path, name: &str) -> PathBuf {
    let beside = programs.join(name);
    if beside.exists() { beside } else { installed().join(name) }
}

/// The newest version that the system has.
fn installed() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions
        .filter_map(|version| version.file_name().to_str()?.parse::<u32>().ok())
        .map(|version| (version, PathBuf::from(format!("/usr/lib/postgresql/{version}/bin"))))
        .filter(|(_, programs)| programs.join("postgres").exists())
        .max();
    let path = env::var_os("PATH").unwrap_or_default();
    newest
        .map(|(_, programs)| programs)
        .or_else(|| env::split_paths(&path).find(|dir| dir.join("initdb").exists()))
        .expect("no PostgreSQL server on this machine; ./test installs it")
}

fn initialise(programs: &Path, dir: &Path) {
    let initdb = unprivileged(vec![
        programs.join("initdb").display().to_string(),
        "--username=postgres".to_owned(),
        "--auth=trust".to_owned(),
        "--encoding=UTF8".to_owned(),
        "--locale=C.UTF-8".to_owned(),
        // For the new files only; the server itself syncs.
        "--no-sync".to_owned(),
        "--pgdata".to_owned(),
        dir.join("data").display().to_string(),
    ]);
    run(Command::new(&initdb[0]).args(&initdb[1..]).current_dir("/"));
}

/// A copy of a running server that follows it.
fn copy(programs: &Path, dir: &Path, url: &str) {
    let copy = unprivileged(vec![
        client(programs, "pg_basebackup").display().to_string(),
        "--dbname".to_owned(),
        url.to_owned(),
        "--pgdata".to_owned(),
        dir.join("data").display().to_string(),
        "--write-recovery-conf".to_owned(),
        "--checkpoint=fast".to_owned(),
        "--no-sync".to_owned(),
    ]);
    run(Command::new(&copy[0]).args(&copy[1..]).current_dir("/"));
}

fn command(programs: &Path, dir: &Path, port: u16) -> Vec<String> {
    vec![
        programs.join("postgres").display().to_string(),
        "-D".to_owned(),
        dir.join("data").display().to_string(),
        "-p".to_owned(),
        port.to_string(),
        "-c".to_owned(),
        "listen_addresses=127.0.0.1".to_owned(),
        "-c".to_owned(),
        format!("unix_socket_directories={}", dir.display()),
        "-c".to_owned(),
        "max_connections=200".to_owned(),
    ]
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("bound").port()
}
