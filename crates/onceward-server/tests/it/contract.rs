//! The SQL contract in another language: the program of the guide behind the real gateway, killed at
//! the worst moments.

use std::{
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
};

use onceward_testbed::{Database, Postgres};
use tempfile::TempDir;

use crate::support::{Answer, Gateway, Upstream, ok, post};

const GUIDE: &str = include_str!("../../../../docs/guide/sql-contract.md");

/// Runs the program of the guide, and kills it -9 around its first COMMIT.
const DRIVER: &str = r#"
import os, runpy, signal, sys
import psycopg2, psycopg2.extensions

moment = sys.argv.pop()

def die(now):
    if moment == now:
        os.kill(os.getpid(), signal.SIGKILL)

class Mortal(psycopg2.extensions.connection):
    def commit(self):
        die("before COMMIT")
        super().commit()
        die("after COMMIT")

    # What `with connection:` does, by the methods above.
    def __exit__(self, kind, error, trace):
        self.commit() if kind is None else self.rollback()

connect = psycopg2.connect
psycopg2.connect = lambda dsn: connect(dsn, connection_factory=Mortal)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"#;

/// The program that the guide shows.
fn program() -> &'static str {
    let (_, after) = GUIDE.split_once("```python\n").expect("a program");
    after.split_once("```").expect("its end").0
}

/// A service in Python, with a database that it shares with the gateway.
struct Shop {
    database: Database<'static>,
    directory: TempDir,
}

impl Shop {
    fn open() -> Shop {
        let database = Postgres::shared().create_database();
        database.psql(
            "CREATE TABLE orders (order_id integer GENERATED ALWAYS AS IDENTITY, amount integer)",
        );
        let directory = tempfile::tempdir().expect("temporary folder");
        for (name, text) in [("shop.py", program()), ("driver.py", DRIVER)] {
            std::fs::write(directory.path().join(name), text).expect("written");
        }
        Shop { database, directory }
    }

    /// On this port, or on any for 0. Dies at the moment of that name.
    fn serve(&self, port: u16, moment: &str) -> Service {
        let mut command = Command::new("/usr/bin/python3");
        command.current_dir(self.directory.path()).args(["driver.py", "shop.py"]);
        command.args([&*self.database.url(), &*port.to_string(), moment]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().expect("python3");
        let said = BufReader::new(child.stdout.take().expect("piped")).lines().next();
        let said = said.expect("it listens").expect("text");
        let address = said.strip_prefix("listening on ").expect("an address");
        Service { child, address: address.parse().expect("an address") }
    }

    fn gateway(&self, before: &Service, defaults: &str) -> Gateway {
        let url = self.database.url();
        let toml = format!("[store]\nurl = \"{url}\"\n[defaults]\n{defaults}\n");
        Gateway::with(before.address, &toml)
    }

    fn orders(&self) -> String {
        self.database.psql("SELECT count(*) FROM orders").trim().to_owned()
    }
}

struct Service {
    child: Child,
    address: SocketAddr,
}

impl Service {
    /// Waits until it has died by itself.
    fn died(mut self) {
        let status = self.child.wait().expect("waited");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn order(gateway: &Gateway, number: u32) -> Answer {
    post(gateway.address, &format!("order-{number:016}"), r#"{"amount":7}"#, &[])
}

fn outcome(answer: &Answer) -> (u16, Option<&str>) {
    (answer.status, answer.header("onceward-outcome"))
}

#[test]
fn a_service_in_python_commits_its_reply_with_its_rows() {
    let shop = Shop::open();
    let service = shop.serve(0, "never");
    for (number, defaults) in [(1, ""), (2, "effects = \"local\"")] {
        let gateway = shop.gateway(&service, defaults);
        let first = order(&gateway, number);
        assert_eq!(outcome(&first), (201, Some("executed")), "{}", first.text());
        assert_eq!(first.text(), format!("{{\"order\": {number}}}"));
        assert_eq!(first.header("location"), Some(&*format!("/orders/{number}")));
        let again = order(&gateway, number);
        assert_eq!(outcome(&again), (201, Some("replayed")));
        assert_eq!(
            (again.text(), again.header("location")),
            (first.text(), first.header("location"))
        );
        assert_eq!(shop.orders(), number.to_string());
        assert!(!gateway.log().contains("ERROR"), "{}", gateway.log());
    }
}

#[test]
fn a_service_that_is_killed_after_its_commit_has_answered() {
    let shop = Shop::open();
    for (number, defaults) in [(1, ""), (2, "effects = \"local\""), (3, "effects = \"external\"")] {
        let service = shop.serve(0, "after COMMIT");
        let gateway = shop.gateway(&service, defaults);
        let first = order(&gateway, number);
        service.died();
        let body = format!("{{\"order\": {number}}}");
        assert_eq!((outcome(&first), first.text()), ((201, Some("executed")), &*body));
        // It is not there to be asked again.
        let again = order(&gateway, number);
        assert_eq!((outcome(&again), again.text()), ((201, Some("replayed")), &*body));
        assert_eq!(shop.orders(), number.to_string());
    }
}

#[test]
fn a_local_service_that_is_killed_before_its_commit_runs_again() {
    let shop = Shop::open();
    let service = shop.serve(0, "before COMMIT");
    let port = service.address.port();
    let gateway = shop.gateway(&service, "effects = \"local\"");
    let first = order(&gateway, 1);
    service.died();
    assert_eq!((first.status, shop.orders()), (503, "0".to_owned()), "{}", first.text());
    let _service = shop.serve(port, "never");
    assert_eq!(outcome(&order(&gateway, 1)), (201, Some("executed")));
    assert_eq!(outcome(&order(&gateway, 1)), (201, Some("replayed")));
    assert_eq!(shop.orders(), "1");
}

#[test]
fn without_a_declaration_nobody_guesses_about_a_service_that_is_killed_before_its_commit() {
    let shop = Shop::open();
    let service = shop.serve(0, "before COMMIT");
    let port = service.address.port();
    let gateway = shop.gateway(&service, "");
    assert_eq!(order(&gateway, 1).summary(), "502 idempotency_outcome_unknown");
    service.died();
    let _service = shop.serve(port, "never");
    assert_eq!(order(&gateway, 1).summary(), "409 idempotency_outcome_unknown");
    assert_eq!(shop.orders(), "0");
    assert_eq!(outcome(&order(&gateway, 2)), (201, Some("executed")), "others are not affected");
}

#[test]
fn a_success_that_a_local_service_did_not_complete_is_unknown_and_logged() {
    let shop = Shop::open();
    let careless = Upstream::start(|_, _| ok("done"));
    let url = shop.database.url();
    let toml = format!("[store]\nurl = \"{url}\"\n[defaults]\neffects = \"local\"\n");
    let gateway = Gateway::with(careless.address, &toml);
    assert_eq!(order(&gateway, 1).summary(), "502 idempotency_outcome_unknown");
    assert_eq!(order(&gateway, 1).summary(), "409 idempotency_outcome_unknown");
    assert_eq!(careless.count(), 1);
    gateway.log_with("ERROR");
}
