//! PgBouncer shares the connections of a server between transactions.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use onceward_testbed::{PgBouncer, Postgres};

/// A client that stays connected.
struct Client {
    child: Child,
    statements: ChildStdin,
    rows: BufReader<ChildStdout>,
}

impl Client {
    fn connect(url: &str) -> Client {
        let mut child = Command::new("psql")
            .args(["-X", "-q", "-A", "-t", url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("psql");
        let statements = child.stdin.take().expect("piped");
        let rows = BufReader::new(child.stdout.take().expect("piped"));
        Client { child, statements, rows }
    }

    /// The one row that a statement gives.
    fn row(&mut self, sql: &str) -> String {
        writeln!(self.statements, "{sql};").expect("psql listens");
        let mut row = String::new();
        self.rows.read_line(&mut row).expect("psql answers");
        row.trim().to_owned()
    }

    fn end(self) {
        let Client { mut child, statements, .. } = self;
        drop(statements);
        assert!(child.wait().expect("psql ends").success());
    }
}

#[test]
fn two_clients_share_one_connection_of_the_server_and_a_transaction_has_it_alone() {
    let postgres = Postgres::shared();
    let bouncer = PgBouncer::start(postgres);
    let backend = "SELECT pg_backend_pid()";
    let mut one = Client::connect(&bouncer.url("postgres"));
    let mut other = Client::connect(&bouncer.url("postgres"));
    let shared = one.row(backend);
    assert_eq!(other.row(backend), shared);
    assert_eq!(one.row("BEGIN; SELECT pg_backend_pid()"), shared);
    assert_ne!(other.row(backend), shared);
    assert_eq!(one.row("SELECT pg_backend_pid(); COMMIT"), shared);
    one.end();
    other.end();
}

#[test]
fn a_database_made_later_is_reached_and_the_version_is_told() {
    let postgres = Postgres::shared();
    let bouncer = PgBouncer::start(postgres);
    let database = postgres.create_database();
    let mut client = Client::connect(&bouncer.url(database.name()));
    assert_eq!(client.row("SELECT current_database()"), database.name());
    client.end();
    let version = bouncer.version();
    assert!(version >= (1, 21) && bouncer.keeps_prepared_statements());
}

#[test]
fn a_killed_pool_takes_clients_again_when_it_is_started_again() {
    let postgres = Postgres::shared();
    let mut bouncer = PgBouncer::start_forgetful(postgres);
    assert!(!bouncer.keeps_prepared_statements());
    bouncer.kill_9();
    assert!(TcpStream::connect(bouncer.address()).is_err());
    bouncer.start_again();
    let mut client = Client::connect(&bouncer.url("postgres"));
    assert_eq!(client.row("SELECT 1"), "1");
    client.end();
}

#[test]
fn a_dropped_pool_is_gone_and_its_server_is_not() {
    let postgres = Postgres::shared();
    let bouncer = PgBouncer::start(postgres);
    let address = bouncer.address();
    assert!(TcpStream::connect(address).is_ok());
    drop(bouncer);
    assert!(TcpStream::connect(address).is_err());
    assert_eq!(postgres.psql("postgres", "SELECT 1"), "1");
}
