//! The SQL contract in another language: the program of the guide behind the real gateway, killed at
//! the worst moments.

use std::{
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use onceward_testbed::{Database, Postgres};
use tempfile::TempDir;

use crate::support::{Answer, Gateway, Upstream, eventually, ok, post, request, send};

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

/// A service in two steps, the second of which completes. A first attempt waits between them while there
/// is a file `wait`, and says in `late` how it was refused after that; later ones say in `resumed` what
/// they were sent.
const STEPS: &str = r#"
import os, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg2
from psycopg2.extras import Json

DATABASE, PORT = sys.argv[1], int(sys.argv[2])


def step(handed, name, ends):
    connection = psycopg2.connect(DATABASE)
    try:
        with connection, connection.cursor() as sql:
            sql.execute("SELECT onceward.saved(%s, %s, %s, %s)", [*handed, name])
            if sql.fetchone()[0] is None:
                sql.execute("INSERT INTO steps (name) VALUES (%s)", [name])
                sql.execute("SELECT onceward.advance(%s, %s, %s, %s, %s)", [*handed, name, Json(7)])
            if ends:
                reply = [201, Json({}), b"shipped"]
                sql.execute("SELECT onceward.complete(%s, %s, %s, %s, %s, %s)", [*handed, *reply])
    finally:
        connection.close()


def note(name, text):
    with open(name + ".new", "w") as file:
        file.write(text)
    os.rename(name + ".new", name)


class Shop(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        names = ["Onceward-Operation", "Onceward-Attempt-Id", "Onceward-Fence"]
        handed = [self.headers[name] for name in names]
        first = self.headers["Onceward-Attempt"] is None
        if not first:
            note("resumed", f"{self.headers['X-Forwarded-For']} {self.headers['Authorization']}")
        step(handed, "book", False)
        while first and os.path.exists("wait"):
            time.sleep(0.01)
        try:
            step(handed, "ship", True)
        except psycopg2.Error as error:
            note("late", error.pgcode)
        self.send_response(503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", PORT), Shop)
print(f"listening on {server.server_address[0]}:{server.server_address[1]}", flush=True)
server.serve_forever()
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
            "CREATE TABLE orders (order_id integer GENERATED ALWAYS AS IDENTITY, amount integer); \
             CREATE TABLE steps (number integer GENERATED ALWAYS AS IDENTITY, name text)",
        );
        let directory = tempfile::tempdir().expect("temporary folder");
        for (name, text) in [("shop.py", program()), ("driver.py", DRIVER), ("steps.py", STEPS)] {
            std::fs::write(directory.path().join(name), text).expect("written");
        }
        Shop { database, directory }
    }

    /// On this port, or on any for 0. Dies at the moment of that name.
    fn serve(&self, port: u16, moment: &str) -> Service {
        self.run("shop.py", port, moment)
    }

    /// The same with the program that works in steps.
    fn serve_in_steps(&self, port: u16, moment: &str) -> Service {
        self.run("steps.py", port, moment)
    }

    fn run(&self, program: &str, port: u16, moment: &str) -> Service {
        let mut command = Command::new("/usr/bin/python3");
        command.current_dir(self.directory.path()).args(["driver.py", program]);
        command.args([&*self.database.url(), &*port.to_string(), moment]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().expect("python3");
        let said = BufReader::new(child.stdout.take().expect("piped")).lines().next();
        let said = said.expect("it listens").expect("text");
        let address = said.strip_prefix("listening on ").expect("an address");
        Service { child, address: address.parse().expect("an address") }
    }

    fn gateway(&self, before: &Service, defaults: &str) -> Gateway {
        self.gateway_with(before, defaults, &[])
    }

    fn gateway_with(&self, before: &Service, defaults: &str, flags: &[&str]) -> Gateway {
        let url = self.database.url();
        let toml = format!("[store]\nurl = \"{url}\"\n[defaults]\n{defaults}\n");
        Gateway::with_flags(before.address, &toml, flags)
    }

    fn orders(&self) -> String {
        self.database.psql("SELECT count(*) FROM orders").trim().to_owned()
    }

    /// The steps that were made, in their order.
    fn steps(&self) -> String {
        let names = "SELECT string_agg(name, ' ' ORDER BY number) FROM steps";
        self.database.psql(names).trim().to_owned()
    }

    /// What the service has noted under this name.
    fn noted(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.directory.path().join(name)).ok()
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

const ORDER: &str = r#"{"amount":7}"#;

fn key(number: u32) -> String {
    format!("order-{number:016}")
}

fn order(gateway: &Gateway, number: u32) -> Answer {
    post(gateway.address, &key(number), ORDER, &[])
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

const PHASED: &str = "effects = \"phased\"\nlease = \"1s\"";

/// The last step is made though nobody asks again, and everybody who does is told of it.
fn is_carried_on(shop: &Shop, gateway: &Gateway) {
    eventually("the last step", || (shop.steps() == "book ship").then_some(()));
    // Its head is as upstream is to see it, without the credentials of then.
    assert_eq!(shop.noted("resumed").as_deref(), Some("127.0.0.1 None"));
    let reply = order(gateway, 1);
    assert_eq!((outcome(&reply), reply.text()), ((201, Some("replayed")), "shipped"));
}

#[test]
fn steps_of_a_service_that_was_killed_between_them_are_carried_on_though_no_client_comes() {
    let shop = Shop::open();
    let service = shop.serve_in_steps(0, "after COMMIT");
    let port = service.address.port();
    let gateway = shop.gateway(&service, PHASED);
    let first = post(gateway.address, &key(1), ORDER, &["Authorization: Bearer of-a-client"]);
    service.died();
    assert_eq!((first.status, &*shop.steps()), (503, "book"), "{}", first.text());
    let _service = shop.serve_in_steps(port, "never");
    is_carried_on(&shop, &gateway);
}

#[test]
fn steps_whose_gateway_was_killed_between_them_are_carried_on_and_the_late_attempt_is_refused() {
    let shop = Shop::open();
    let wait = shop.directory.path().join("wait");
    std::fs::write(&wait, "").expect("written");
    let service = shop.serve_in_steps(0, "never");
    let gateway = shop.gateway(&service, PHASED);
    let address = gateway.address;
    let sent = ["Authorization: Bearer of-a-client"];
    let client = thread::spawn(move || send(address, &request(address, &key(1), ORDER, &sent)));
    eventually("the first step", || (shop.steps() == "book").then_some(()));
    gateway.signal("KILL");
    drop(gateway);
    assert!(client.join().expect("it ends").is_err(), "the client was not answered");
    let next = shop.gateway(&service, PHASED);
    is_carried_on(&shop, &next);
    std::fs::remove_file(wait).expect("removed");
    let late = eventually("the end of the first attempt", || shop.noted("late"));
    assert_eq!((&*late, &*shop.steps()), ("OW001", "book ship"));
}

#[test]
fn where_no_worker_runs_nobody_carries_steps_on_but_the_client() {
    let shop = Shop::open();
    let service = shop.serve_in_steps(0, "after COMMIT");
    let port = service.address.port();
    let gateway = shop.gateway_with(&service, PHASED, &["--no-workers"]);
    assert_eq!(order(&gateway, 1).status, 503);
    service.died();
    let _service = shop.serve_in_steps(port, "never");
    // Longer than a lease, and than it takes a dispatcher to look.
    thread::sleep(Duration::from_millis(2_100));
    assert_eq!((&*shop.steps(), shop.noted("resumed")), ("book", None));
    assert_eq!(outcome(&order(&gateway, 1)), (201, Some("executed")));
    assert_eq!(shop.steps(), "book ship");
}
