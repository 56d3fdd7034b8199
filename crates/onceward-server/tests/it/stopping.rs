//! SIGTERM: nothing new, what runs is finished, exit 0.

use std::{
    net::{TcpListener, TcpStream},
    thread,
};

use crate::support::{
    Act, Connection, Gate, Gateway, Home, Upstream, eventually, get, ok, on_each_durable_store,
    post, request, response, tls::Authority, until_not_ready,
};

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

on_each_durable_store!(
    a_request_that_runs_is_finished_before_the_end,
    what_still_connects_at_the_end_of_the_drain_has_not_acted_and_a_retry_runs,
    a_reply_outlives_the_process,
);

fn a_request_that_runs_is_finished_before_the_end(home: &Home) {
    let gate = Gate::default();
    let at_gate = gate.clone();
    let upstream = Upstream::start(move |_, _| {
        Act::SendLater(Vec::new(), at_gate.clone(), response(200, "", "done"))
    });
    let mut gateway = home.gateway(&upstream, "");
    let to = gateway.address;
    let running = thread::spawn(move || post(to, "order-0000000000000001", "{}", &[]));
    gate.reached_by(1);
    gateway.signal("TERM");
    until_not_ready(&gateway);
    assert_eq!(get(gateway.admin, "/livez").status, 200, "it still lives");
    eventually("no new connections", || TcpStream::connect(to).is_err().then_some(()));
    gate.open();
    let answer = running.join().expect("no panic");
    assert_eq!((answer.status, answer.text()), (200, "done"));
    assert_eq!(gateway.exit_status().code(), Some(0));
    let next = home.gateway(&upstream, "");
    let replay = post(next.address, "order-0000000000000001", "{}", &[]);
    assert_eq!((replay.is_replay(), replay.text()), (true, "done"));
    assert_eq!(upstream.count(), 1);
}

fn what_still_connects_at_the_end_of_the_drain_has_not_acted_and_a_retry_runs(home: &Home) {
    let authority = Authority::new();
    let store = home.settings("[defaults]\nlease = \"5m\"\nmax_execution = \"5m\"\n");
    // It takes connections, and no handshake of TLS comes about.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("https://{}", silent.local_addr().expect("bound"));
    let ca = authority.path("ca.crt");
    let slow = format!("[upstream]\nca_file = \"{}\"\nconnect_timeout = \"2m\"\n", ca.display());
    let mut gateway = Gateway::before_url(&url, &format!("{store}{slow}"));
    let to = gateway.address;
    let key = "order-0000000000000001";
    let mut client = Connection::open(to).expect("connected");
    client.write(request(to, key, "{}", &[]).as_bytes()).expect("written");
    let _connecting = silent.accept().expect("a connection");
    gateway.signal("TERM");
    // The drain takes 25 s by design.
    let answer = client.read_late_answer().expect("an answer");
    assert_eq!(answer.summary(), "503 idempotency_store_unavailable");
    assert_eq!(gateway.exit_status().code(), Some(0));
    let upstream = Upstream::start(|_, _| ok("done"));
    let next = Gateway::with(upstream.address, &store);
    assert_eq!(post(next.address, key, "{}", &[]).text(), "done");
    assert_eq!(upstream.seen()[0].header("onceward-attempt"), Some("2"));
}

fn a_reply_outlives_the_process(home: &Home) {
    let upstream = Upstream::start(|number, _| ok(&format!("run {number}")));
    let mut first = home.gateway(&upstream, "");
    let reply = post(first.address, "order-0000000000000001", "{}", &[]);
    first.signal("TERM");
    assert_eq!(first.exit_status().code(), Some(0));
    let second = home.gateway(&upstream, "");
    let replay = post(second.address, "order-0000000000000001", "{}", &[]);
    assert_eq!((replay.is_replay(), replay.text()), (true, reply.text()));
    assert_eq!(upstream.count(), 1);
}
