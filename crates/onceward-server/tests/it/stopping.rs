//! SIGTERM: nothing new, what runs is finished, exit 0. And starting again.

use std::{
    io::{BufRead as _, BufReader},
    net::TcpStream,
    process::Stdio,
    thread,
};

use crate::support::{Act, Gate, Gateway, Upstream, binary, eventually, ok, post, response, send};

#[test]
fn an_idle_gateway_ends_at_once_with_0() {
    let upstream = Upstream::start(|_, _| ok("done"));
    for signal in ["TERM", "INT"] {
        let mut gateway = Gateway::before(upstream.address);
        assert_eq!(post(gateway.address, "order-0000000000000001", "{}", &[]).status, 200);
        gateway.signal(signal);
        assert_eq!(gateway.exit_status().code(), Some(0), "{signal}");
    }
}

#[test]
fn a_request_that_runs_is_finished_before_the_end() {
    let gate = Gate::default();
    let at_gate = gate.clone();
    let upstream = Upstream::start(move |_, _| {
        Act::SendLater(Vec::new(), at_gate.clone(), response(200, "", "done"))
    });
    let mut gateway = Gateway::before(upstream.address);
    let to = gateway.address;
    let running = thread::spawn(move || post(to, "order-0000000000000001", "{}", &[]));
    gate.reached_by(1);
    gateway.signal("TERM");
    let admin = gateway.admin;
    eventually("the end of readiness", || {
        let ready = send(admin, "GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n").expect("answer");
        (ready.status == 503).then_some(())
    });
    let alive = send(admin, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").expect("answer");
    assert_eq!(alive.status, 200, "it still lives");
    eventually("no new connections", || TcpStream::connect(to).is_err().then_some(()));
    gate.open();
    let answer = running.join().expect("no panic");
    assert_eq!((answer.status, answer.text()), (200, "done"));
    assert_eq!(gateway.exit_status().code(), Some(0));
    assert_eq!(upstream.count(), 1);
}

#[test]
fn a_reply_outlives_the_process_on_the_file_store() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let store = format!("[store]\nurl = \"file:{}\"\n", folder.path().join("x.db").display());
    let upstream = Upstream::start(|number, _| ok(&format!("run {number}")));
    let mut first = Gateway::with(upstream.address, &store);
    let reply = post(first.address, "order-0000000000000001", "{}", &[]);
    first.signal("TERM");
    assert_eq!(first.exit_status().code(), Some(0));
    let second = Gateway::with(upstream.address, &store);
    let replay = post(second.address, "order-0000000000000001", "{}", &[]);
    assert_eq!((replay.is_replay(), replay.text()), (true, reply.text()));
    assert_eq!(upstream.count(), 1);
}

/// A process that was stopped in the middle of a write holds the file, as long as it is stopped.
#[test]
fn a_start_waits_for_a_file_that_another_process_holds() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let file = folder.path().join("x.db");
    let upstream = Upstream::start(|number, _| ok(&format!("run {number}")));
    let mut serve = binary();
    serve.env("RUST_LOG", "onceward=warn").args(["serve", "--scope", "anonymous"]);
    serve.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    serve.arg("--store").arg(format!("file:{}", file.display()));
    serve.arg("--upstream").arg(format!("http://{}", upstream.address));
    drop(Gateway::start(&mut serve));

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let held = runtime.block_on(async {
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&file);
        let mut held = sqlx::ConnectOptions::connect(&options).await.expect("opened");
        sqlx::query("BEGIN IMMEDIATE").execute(&mut held).await.expect("held");
        held
    });
    let mut second = serve.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    let log = BufReader::new(second.stderr.take().expect("piped"));
    let mut log = log.lines().map(|line| line.expect("text"));
    let waits = log.find(|line| line.contains("does not answer yet"));
    assert!(waits.is_some(), "it ended instead");
    runtime.block_on(sqlx::Connection::close(held)).expect("let go");
    let mut said = BufReader::new(second.stdout.take().expect("piped")).lines();
    let said = said.next().map(|line| line.expect("text"));
    second.kill().expect("killed");
    second.wait().expect("waited");
    assert!(said.is_some_and(|said| said.starts_with("listening on")));
}
