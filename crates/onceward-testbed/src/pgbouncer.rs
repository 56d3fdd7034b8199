use std::{
    env, fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    fetched::fetched,
    postgres::{PORTS_TRIED, Postgres, free_port},
    watchdog::{Watchdog, run},
};

/// PgBouncer keeps prepared statements across transactions since this version.
const PREPARES_SINCE: (u32, u32) = (1, 21);

/// PgBouncer in transaction mode before a [`Postgres`]: each transaction of a client may run on
/// another connection of the server.
pub struct PgBouncer {
    watchdog: Watchdog,
    port: u16,
    version: (u32, u32),
    keeps: bool,
}

impl PgBouncer {
    /// Starts one that keeps prepared statements (1.21 or later: the one that is installed, or the one
    /// that was fetched), on a free port, with four connections to the server for each database.
    /// `ONCEWARD_PGBOUNCER` names another program.
    ///
    /// # Panics
    ///
    /// If there is no such PgBouncer on this machine, or if it does not start.
    pub fn start(postgres: &Postgres) -> PgBouncer {
        let mut program = installed();
        if version_of(&program) < PREPARES_SINCE {
            program = fetched("pgbouncer-trixie/bin/pgbouncer");
        }
        PgBouncer::start_as(postgres, &program, true)
    }

    /// The same, but that a statement which a client prepared is not known in its later transactions:
    /// the one that is installed, whatever its version.
    ///
    /// # Panics
    ///
    /// If there is no PgBouncer on this machine, or if it does not start.
    pub fn start_forgetful(postgres: &Postgres) -> PgBouncer {
        PgBouncer::start_as(postgres, &installed(), false)
    }

    fn start_as(postgres: &Postgres, program: &Path, keeps: bool) -> PgBouncer {
        let version = version_of(program);
        for _ in 0..PORTS_TRIED {
            let port = free_port();
            // It has nothing to lose, and which signal it ends with depends on its version.
            let watchdog = Watchdog::new("KILL", |dir| {
                let settings = dir.join("pgbouncer.ini");
                fs::write(&settings, ini(postgres, port, version, keeps)).expect("its settings");
                vec![program.display().to_string(), settings.display().to_string()]
            });
            let mut bouncer = PgBouncer { watchdog, port, version, keeps };
            match bouncer.run() {
                Ok(()) => return bouncer,
                Err(log) if log.contains("in use") => {}
                Err(log) => panic!("PgBouncer does not start:\n{log}"),
            }
        }
        panic!("no free port for PgBouncer after {PORTS_TRIED} tries");
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// How to connect through it to a database of the server.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@{}/{database}", self.address())
    }

    /// Its version, major and minor.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// Whether a statement that a client prepared is known in its later transactions.
    pub fn keeps_prepared_statements(&self) -> bool {
        self.keeps
    }

    /// Kills it, as a crash would. The server is as it was.
    pub fn kill_9(&mut self) {
        self.watchdog.kill();
    }

    /// Starts a killed one on the same port.
    pub fn start_again(&mut self) {
        if let Err(log) = self.run() {
            panic!("PgBouncer does not start again:\n{log}");
        }
    }

    /// What it wrote to its log.
    pub fn log(&self) -> String {
        self.watchdog.log()
    }

    fn run(&mut self) -> Result<(), String> {
        // Its own word: whoever else answers on the port is not asked. One that is started again has
        // an older one in its log.
        let listens = format!("listening on 127.0.0.1:{}\n", self.port);
        let log = self.watchdog.dir().join("log");
        let count = || fs::read_to_string(&log).unwrap_or_default().matches(&listens).count();
        let before = count();
        self.watchdog.start(|_| count() > before)
    }
}

fn installed() -> PathBuf {
    if let Some(named) = env::var_os("ONCEWARD_PGBOUNCER") {
        return named.into();
    }
    // Debian's place is not in the path of everybody.
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin")])
        .map(|dir| dir.join("pgbouncer"))
        .find(|program| program.exists())
        .expect("no PgBouncer on this machine; ./test installs it")
}

fn version_of(program: &Path) -> (u32, u32) {
    version(&run(Command::new(program).arg("--version")))
}

/// The numbers in "PgBouncer 1.18.0".
fn version(said: &str) -> (u32, u32) {
    let numbers = said.lines().next().and_then(|line| line.strip_prefix("PgBouncer "));
    let mut numbers = numbers.unwrap_or_default().split('.').map_while(|part| part.parse().ok());
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) => (major, minor),
        _ => panic!("no version of PgBouncer: {said}"),
    }
}

fn ini(postgres: &Postgres, port: u16, version: (u32, u32), keeps: bool) -> String {
    let server = postgres.address().port();
    // One that is too old does not know the setting; later ones keep statements unless told not to.
    let prepared = match (version >= PREPARES_SINCE, keeps) {
        (true, true) => "max_prepared_statements = 200\n",
        (true, false) => "max_prepared_statements = 0\n",
        (false, _) => "",
    };
    format!(
        "[databases]\n\
         * = host=127.0.0.1 port={server} user=postgres\n\
         [pgbouncer]\n\
         listen_addr = 127.0.0.1\n\
         listen_port = {port}\n\
         unix_socket_dir =\n\
         auth_type = any\n\
         pool_mode = transaction\n\
         default_pool_size = 4\n\
         max_client_conn = 500\n\
         ignore_startup_parameters = extra_float_digits\n\
         {prepared}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_from_what_the_program_says() {
        assert_eq!(version("PgBouncer 1.18.0\nlibevent 2.1.12-stable"), (1, 18));
        assert_eq!(version("PgBouncer 1.24.1"), (1, 24));
    }

    #[test]
    #[should_panic(expected = "no version of PgBouncer")]
    fn what_is_no_version_is_a_panic() {
        version("PgBouncer");
    }

    #[test]
    fn prepared_statements_are_asked_for_or_not_where_they_are_known() {
        let said = |minor, keeps| ini(Postgres::shared(), 1, (1, minor), keeps);
        assert!(said(21, true).contains("max_prepared_statements = 200"));
        assert!(said(21, false).contains("max_prepared_statements = 0"));
        assert!(!said(20, false).contains("max_prepared"));
    }
}
