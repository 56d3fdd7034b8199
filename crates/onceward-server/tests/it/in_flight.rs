//! Duplicates of a request that is at work, and questions about it, on each store.

use std::{
    thread,
    time::{Duration, Instant},
};

use onceward_testbed::Postgres;
use serde_json::{Value, json};

use crate::support::{
    Act, Answer, Connection, Gate, Gateway, Home, Upstream, admin, document, eventually, ok,
    on_each_durable_store, on_each_store, post, request, response, send,
};

const KEY: &str = "order-0000000000000001";
const OTHER: &str = "order-0000000000000002";
/// How long a duplicate waits where nothing else is said.
const WAITED_MAX: Duration = Duration::from_secs(10);
const WAITS: &str = "[defaults]\nin_flight = \"wait\"\n";
const ACCEPTS: &str = "[defaults]\nin_flight = \"accepted\"\n";
const CONFLICT: &str = "409 idempotency_key_in_progress";
const UNKNOWN: &str = "409 idempotency_outcome_unknown";

on_each_store!(
    a_duplicate_waits_where_its_route_says_so_and_gets_the_reply,
    a_duplicate_that_has_waited_long_enough_is_a_conflict,
    a_duplicate_is_accepted_where_its_route_says_so_and_told_where_to_ask,
    the_state_of_an_operation_is_told_to_its_own_caller_only,
);

on_each_durable_store!(
    a_duplicate_at_another_gateway_waits_and_gets_the_reply,
    a_duplicate_at_another_gateway_is_accepted_and_either_tells_its_state,
    a_retry_at_another_gateway_gets_what_a_retry_at_the_first_would,
    what_one_gateway_does_not_know_another_does_not_run,
);

/// An upstream that holds all answers up until the gate is open.
fn holding(gate: &Gate) -> Upstream {
    let at_gate = gate.clone();
    Upstream::start(move |_, _| {
        Act::SendLater(Vec::new(), at_gate.clone(), response(201, "", "done"))
    })
}

/// Sends what the others are duplicates of, and comes back when upstream has it.
fn begun(gateway: &Gateway, gate: &Gate) -> thread::JoinHandle<Answer> {
    let to = gateway.address;
    let first = thread::spawn(move || post(to, KEY, "{}", &[]));
    gate.reached_by(1);
    first
}

/// What a gateway says of the operation at this location, or under this key.
fn state(gateway: &Gateway, location: &str, more: &str) -> Answer {
    let ask = format!("GET {location} HTTP/1.1\r\nHost: x\r\n{more}\r\n");
    send(gateway.address, &ask).expect("an answer")
}

fn state_is(gateway: &Gateway, location: &str, expected: &str) {
    let answer = state(gateway, location, "");
    let document: Value = serde_json::from_str(answer.text()).expect("JSON");
    assert_eq!((answer.status, &document["state"]), (200, &expected.into()));
}

fn waits(home: &Home, gateways: usize) {
    let gate = Gate::default();
    let upstream = holding(&gate);
    let started: Vec<Gateway> = (0..gateways).map(|_| home.gateway(&upstream, WAITS)).collect();
    let (first, last) = (&started[0], &started[gateways - 1]);
    let executed = begun(first, &gate);
    let to = last.address;
    let mut waiting = [0; 3].map(|_| Connection::open(to).expect("connected"));
    for duplicate in &mut waiting {
        duplicate.write(request(to, KEY, "{}", &[]).as_bytes()).expect("written");
    }
    // Those that came later and do not wait are answered meanwhile.
    for _ in 0..20 {
        let at_once = post(to, KEY, "{}", &["Prefer: wait=0"]);
        assert_eq!(at_once.summary(), CONFLICT);
    }
    // What is not the same has nothing to wait for.
    let other = post(to, KEY, "[]", &[]);
    assert_eq!(other.summary(), "422 idempotency_key_reused_with_different_payload");
    gate.open();
    assert!(!executed.join().expect("no panic").is_replay());
    let done = Instant::now();
    for mut duplicate in waiting {
        let waited = duplicate.read_answer().expect("an answer");
        assert_eq!((waited.status, waited.text(), waited.is_replay()), (201, "done", true));
    }
    // They were told of it: whoever gives up looks once more too.
    assert!(done.elapsed() < WAITED_MAX / 2, "{:?} after it was done", done.elapsed());
    assert_eq!(upstream.count(), 1);
}

fn a_duplicate_waits_where_its_route_says_so_and_gets_the_reply(home: &Home) {
    waits(home, 1);
}

fn a_duplicate_at_another_gateway_waits_and_gets_the_reply(home: &Home) {
    waits(home, 2);
}

/// However many wait for however many keys at a node, one call at a time looks for all of them.
#[test]
fn many_who_wait_at_a_node_share_one_look_at_the_store() {
    const KEYS: usize = 20;
    let home = Home::postgres();
    let database = home.database().expect("a database");
    let name = database.name();
    // No other test has its statements logged.
    database.psql(&format!("ALTER DATABASE {name} SET log_min_duration_statement = 0"));
    let looks = || {
        let log = Postgres::shared().log();
        let is_look = |line: &&str| line.contains(" execute ") && line.contains(".settled(");
        log.lines().filter(is_look).count()
    };
    let gate = Gate::default();
    let upstream = holding(&gate);
    let nodes = [0; 3].map(|_| home.gateway(&upstream, WAITS));
    let key = |number: usize| format!("order-{number:016}");
    let send = |to: &Gateway, number| {
        let mut connection = Connection::open(to.address).expect("connected");
        let request = request(to.address, &key(number), "{}", &[]);
        connection.write(request.as_bytes()).expect("written");
        connection
    };
    let mut executed: Vec<_> = (0..KEYS).map(|number| send(&nodes[0], number)).collect();
    gate.reached_by(KEYS);
    let begun = Instant::now();
    let elsewhere = |number| [&nodes[1], &nodes[1], &nodes[2]].map(|node| send(node, number));
    let mut waiting: Vec<_> = (0..KEYS).flat_map(elsewhere).collect();
    eventually("looks", || (looks() >= 8).then_some(()));
    gate.open();
    for connection in executed.iter_mut().chain(&mut waiting) {
        assert_eq!(connection.read_answer().expect("an answer").status, 201);
    }
    // At two nodes, four times a second.
    let most = 2 * (begun.elapsed().as_millis() as usize / 250 + 2);
    let looked = looks();
    assert!(looked <= most, "{looked} looks by two nodes in {:?}", begun.elapsed());
    assert_eq!(upstream.count(), KEYS);
}

fn a_duplicate_that_has_waited_long_enough_is_a_conflict(home: &Home) {
    let gate = Gate::default();
    let upstream = holding(&gate);
    let gateway = home.gateway(&upstream, &format!("{WAITS}wait = \"1s\"\n"));
    let executed = begun(&gateway, &gate);
    let asked = Instant::now();
    let waited = post(gateway.address, KEY, "{}", &[]);
    assert_eq!(waited.summary(), CONFLICT);
    assert!(asked.elapsed() >= Duration::from_secs(1), "{:?}", asked.elapsed());
    gate.open();
    assert_eq!(executed.join().expect("no panic").status, 201);
    assert!(post(gateway.address, KEY, "{}", &[]).is_replay());
}

fn accepts(home: &Home, gateways: usize) {
    let gate = Gate::default();
    let upstream = holding(&gate);
    let started: Vec<Gateway> = (0..gateways).map(|_| home.gateway(&upstream, ACCEPTS)).collect();
    let executed = begun(&started[0], &gate);
    let duplicate = post(started[gateways - 1].address, KEY, "{}", &[]);
    assert_eq!((duplicate.status, duplicate.header("onceward-outcome")), (202, Some("accepted")));
    assert!(duplicate.header("retry-after").is_some());
    let location = duplicate.header("location").expect("where to ask").to_owned();
    assert!(!location.contains(KEY), "{location}");
    for gateway in &started {
        state_is(gateway, &location, "in_progress");
    }
    gate.open();
    assert_eq!(executed.join().expect("no panic").text(), "done");
    for gateway in &started {
        state_is(gateway, &location, "completed");
        let retry = post(gateway.address, KEY, "{}", &[]);
        assert_eq!((retry.status, retry.text(), retry.is_replay()), (201, "done", true));
    }
    assert_eq!(upstream.count(), 1);
}

fn a_duplicate_is_accepted_where_its_route_says_so_and_told_where_to_ask(home: &Home) {
    accepts(home, 1);
}

fn a_duplicate_at_another_gateway_is_accepted_and_either_tells_its_state(home: &Home) {
    accepts(home, 2);
}

fn the_state_of_an_operation_is_told_to_its_own_caller_only(home: &Home) {
    let upstream = Upstream::start(|_, seen| match &seen.body[..] {
        b"\"vanish\"" => Act::SendAndClose(Vec::new(), Gate::default()),
        b"\"broken\"" => Act::Send(response(500, "", "broken")),
        _ => ok("done"),
    });
    let gateway = home.gateway(&upstream, "[scope]\nfrom = \"header:X-Account\"\n");
    let (acme, evil) = ("X-Account: acme", "X-Account: evil");
    for (number, (body, expected, outcome)) in [
        ("{}", "completed", "executed"),
        ("\"vanish\"", "unknown", "unknown"),
        ("\"broken\"", "failed_retryable", "not_executed"),
    ]
    .iter()
    .enumerate()
    {
        let key = format!("order-{number:016}");
        post(gateway.address, &key, body, &[acme]);
        let path = format!("/.onceward/operations/{key}");
        let own = state(&gateway, &path, &format!("{acme}\r\n"));
        let document: Value = serde_json::from_str(own.text()).expect("JSON");
        assert_eq!(
            (own.status, &document["state"], &document["outcome"]),
            (200, &(*expected).into(), &(*outcome).into()),
        );
        // What is somebody else's is as if it were not there, and so is what nobody could have.
        let absent =
            state(&gateway, "/.onceward/operations/no-such-key-0001", &format!("{acme}\r\n"));
        for path in [path.as_str(), "/.onceward/operations/%zz", "/.onceward/operations/"] {
            let foreign = state(&gateway, path, &format!("{evil}\r\n"));
            let without_date = |answer: &Answer| {
                let mut answer = answer.clone();
                answer.headers.retain(|(name, _)| name != "date");
                answer
            };
            assert_eq!(without_date(&foreign), without_date(&absent), "{path}");
            assert_eq!(foreign.status, 404);
        }
        assert_eq!(state(&gateway, &path, "").status, 401, "nobody asks for nobody");
    }
    assert_eq!(upstream.count(), 3, "questions are not passed on");
}

fn a_retry_at_another_gateway_gets_what_a_retry_at_the_first_would(home: &Home) {
    let large = "y".repeat(5_000);
    let upstream = Upstream::start(move |number, seen| match (&seen.body[..], number) {
        (b"\"large\"", _) => Act::Send(response(200, "", &large)),
        (b"\"once broken\"", 0) => Act::Send(response(500, "", "broken")),
        _ => ok("done"),
    });
    let settings = "[defaults]\nreply_bytes_max = 1000\n";
    let (first, second) = (home.gateway(&upstream, settings), home.gateway(&upstream, settings));
    let broken = post(first.address, KEY, "\"once broken\"", &[]);
    assert_eq!((broken.status, broken.text()), (500, "broken"));
    let retry = post(second.address, KEY, "\"once broken\"", &[]);
    assert_eq!((retry.status, retry.is_replay()), (200, false));
    assert_eq!(upstream.seen()[1].header("onceward-attempt"), Some("2"));
    let replay = post(first.address, KEY, "\"once broken\"", &[]);
    assert_eq!((replay.text(), replay.is_replay()), ("done", true));
    let mismatch = "422 idempotency_key_reused_with_different_payload";
    for gateway in [&first, &second] {
        assert_eq!(post(gateway.address, KEY, "{}", &[]).summary(), mismatch);
    }
    assert_eq!(post(second.address, OTHER, "\"large\"", &[]).body.len(), 5_000);
    let not_stored = post(first.address, OTHER, "\"large\"", &[]);
    assert_eq!(not_stored.summary(), "410 idempotency_reply_not_stored");
    assert_eq!(upstream.count(), 3);
}

fn what_one_gateway_does_not_know_another_does_not_run(home: &Home) {
    let upstream = Upstream::start(|_, _| Act::SendAndClose(Vec::new(), Gate::default()));
    let (first, second) = (home.gateway(&upstream, ""), home.gateway(&upstream, ""));
    let vanished = post(first.address, KEY, "{}", &[]);
    assert_eq!(vanished.summary(), "502 idempotency_outcome_unknown");
    for gateway in [&second, &first] {
        let told = post(gateway.address, KEY, "{}", &[]);
        assert_eq!(told.summary(), UNKNOWN);
        state_is(gateway, told.header("location").expect("where to ask"), "unknown");
    }
    // An operator says at the second what had happened, and the first tells it.
    resolve(&second);
    for gateway in [&first, &second] {
        let told = post(gateway.address, KEY, "{}", &[]);
        assert_eq!((told.status, told.text(), told.is_replay()), (201, "it was done", true));
    }
    assert_eq!(upstream.count(), 1);
}

/// As an operator does, who has asked the provider.
fn resolve(gateway: &Gateway) {
    let listed = document(&admin(gateway, "GET", "/api/v1/keys?state=unknown", None));
    let record = &listed["records"][0];
    let id = record["id"].as_str().expect("an id");
    let resolution = json!({
        "outcome": "completed",
        "reply": { "status": 201, "content_type": "text/plain", "body": "it was done" },
        "reason": "ticket 7",
        "evidence": { "source": "the provider's ledger" },
        "generation": record["generation"],
        "fence": record["fence"],
    });
    let path = format!("/api/v1/keys/{id}/resolve");
    document(&admin(gateway, "POST", &path, Some(&resolution)));
}
