use std::{
    env, fs,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::Command,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::sleep,
    time::Duration,
};

use crate::{
    postgres::{PORTS_TRIED, free_port},
    watchdog::{Watchdog, run, unprivileged},
};

/// A MariaDB server with default durability (`innodb_flush_log_at_trx_commit` is 1), which ends and
/// leaves nothing behind when it is dropped or when its process dies.
///
/// The only user is `root`, and it needs no password. All calls block. `ONCEWARD_MYSQL` names a
/// directory with the programs of MySQL below it, which is started instead.
pub struct MariaDb {
    watchdog: Watchdog,
    port: u16,
}

impl MariaDb {
    /// Makes a server and starts it on a free port.
    ///
    /// # Panics
    ///
    /// If there is no MariaDB on this machine, or if it does not start.
    pub fn start() -> MariaDb {
        MariaDb::start_with(&[])
    }

    /// The same with these settings.
    ///
    /// # Panics
    ///
    /// As for [`MariaDb::start`].
    pub fn start_with(settings: &[&str]) -> MariaDb {
        for _ in 0..PORTS_TRIED {
            let port = free_port();
            // Nothing of it is needed any more at the end.
            let watchdog = Watchdog::new("KILL", |dir| command(dir, port, settings));
            initialise(watchdog.dir());
            let mut server = MariaDb { watchdog, port };
            match server.run() {
                Ok(()) => return server,
                Err(log) if log.contains("Address already in use") => {}
                Err(log) => panic!("MariaDB does not start:\n{log}"),
            }
        }
        panic!("no free port for MariaDB after {PORTS_TRIED} tries");
    }

    /// The one server that all tests of this process share. Take a database each.
    pub fn shared() -> &'static MariaDb {
        static SHARED: OnceLock<MariaDb> = OnceLock::new();
        SHARED.get_or_init(MariaDb::start)
    }

    /// Whether it is MySQL that was started.
    pub fn is_mysql(&self) -> bool {
        mysql().is_some()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// How to connect to a database of it.
    pub fn url(&self, database: &str) -> String {
        self.url_through(self.address(), database)
    }

    /// How to connect to a database of it through a proxy that listens elsewhere.
    pub fn url_through(&self, address: SocketAddr, database: &str) -> String {
        format!("mysql://root@{address}/{database}")
    }

    /// The name of a new, empty database. It goes with the server: dropping one takes as long as a
    /// test.
    pub fn create_database(&self) -> String {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let name = format!("test_{}", NUMBER.fetch_add(1, Relaxed));
        self.sql("mysql", &format!("CREATE DATABASE {name}"));
        name
    }

    /// What the server says to statements: rows as lines, columns divided by tabs.
    ///
    /// # Panics
    ///
    /// With the server's message if one fails.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        let mut command = Command::new("mariadb");
        command.args(["--no-defaults", "--protocol=tcp", "--host=127.0.0.1", "--user=root"]);
        command.args(["--batch", "--skip-column-names"]);
        command.arg(format!("--port={}", self.port)).arg(format!("--database={database}"));
        run(command.arg(format!("--execute={sql}")))
    }

    /// Kills the server, as a crash would.
    pub fn kill_9(&mut self) {
        self.watchdog.kill();
    }

    /// Starts a killed server on the same directory and port, and returns when it has recovered.
    pub fn start_again(&mut self) {
        if let Err(log) = self.run() {
            panic!("MariaDB does not start again:\n{log}");
        }
    }

    /// Holds the server for a time: connections stay open and are silent.
    pub fn hold_for(&mut self, time: Duration) {
        self.watchdog.hold();
        sleep(time);
        self.watchdog.go();
    }

    /// What the server wrote to its log.
    pub fn log(&self) -> String {
        self.watchdog.log()
    }

    /// The process of the server; `None` while it is killed.
    pub fn pid(&self) -> Option<u32> {
        self.watchdog.pid()
    }

    fn run(&mut self) -> Result<(), String> {
        let told = self.watchdog.dir().join("pid");
        // Written when it takes connections. The file of a killed server remains, with another process
        // in it.
        self.watchdog
            .start(|pid| fs::read_to_string(&told).is_ok_and(|told| told.trim() == pid.to_string()))
    }
}

/// Where a MySQL is that is to be taken for a MariaDB.
fn mysql() -> Option<String> {
    env::var("ONCEWARD_MYSQL").ok()
}

/// What both it and its start need to know about MySQL's own places.
fn places_of(mysql: &str) -> [String; 2] {
    [format!("--basedir={mysql}/usr"), "--secure-file-priv=".to_owned()]
}

fn initialise(dir: &Path) {
    let mut install = vec![
        "mariadb-install-db".to_owned(),
        "--no-defaults".to_owned(),
        "--auth-root-authentication-method=normal".to_owned(),
        "--skip-test-db".to_owned(),
    ];
    if let Some(mysql) = mysql() {
        install = vec![format!("{mysql}/bin/mysqld"), "--no-defaults".to_owned()];
        install.push("--initialize-insecure".to_owned());
        install.extend(places_of(&mysql));
    }
    install.extend([format!("--datadir={}", dir.join("data").display()), own_room(dir)]);
    let install = unprivileged(install);
    run(Command::new(&install[0]).args(&install[1..]).current_dir("/"));
}

fn command(dir: &Path, port: u16, settings: &[&str]) -> Vec<String> {
    let mysql = mysql();
    let program = mysql.as_ref().map(|mysql| format!("{mysql}/bin/mysqld"));
    let mut command = vec![
        program.unwrap_or_else(|| "mariadbd".to_owned()),
        "--no-defaults".to_owned(),
        format!("--datadir={}", dir.join("data").display()),
        format!("--socket={}", dir.join("socket").display()),
        format!("--pid-file={}", dir.join("pid").display()),
        format!("--port={port}"),
        "--bind-address=127.0.0.1".to_owned(),
        "--max-connections=500".to_owned(),
        own_room(dir),
    ];
    if let Some(mysql) = mysql {
        command.extend(places_of(&mysql));
        // Without the port of another protocol, which only one server could have; and in the clear, so
        // that a proxy may look into it.
        command.extend(["--mysqlx=OFF", "--tls-version="].map(str::to_owned));
    }
    command.extend(settings.iter().map(|setting| (*setting).to_owned()));
    command
}

/// A server that starts removes the temporary tables of all others that use the same folder.
fn own_room(dir: &Path) -> String {
    format!("--tmpdir={}", dir.display())
}
