//! SIGHUP: the file is read anew, as a whole or not at all.

use std::{path::PathBuf, thread};

use crate::support::{
    Act, Connection, Gate, Gateway, Upstream, binary, eventually, ok, post, response, send,
};

const KEY: &str = "order-0000000000000001";

/// A gateway whose file can be changed.
struct World {
    gateway: Gateway,
    upstream: Upstream,
    file: PathBuf,
    _folder: tempfile::TempDir,
}

impl World {
    fn new(upstream: Upstream, toml: &str) -> World {
        let folder = tempfile::tempdir().expect("temporary folder");
        let file = folder.path().join("onceward.toml");
        std::fs::write(&file, whole(&upstream, toml)).expect("written");
        let mut command = binary();
        command.args(["serve", "--config"]).arg(&file);
        let gateway =
            Gateway::start(command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]));
        World { gateway, upstream, file, _folder: folder }
    }

    /// Writes the file, sends the signal, and waits for the word in the log.
    fn reload(&self, toml: &str, word: &str) -> String {
        std::fs::write(&self.file, whole(&self.upstream, toml)).expect("written");
        let before = self.gateway.log().matches("reloaded").count();
        self.gateway.signal("HUP");
        let log = eventually("the reload", || {
            let log = self.gateway.log();
            (log.matches("reloaded").count() > before).then_some(log)
        });
        let last = log.lines().rfind(|line| line.contains("reloaded")).expect("a line");
        assert!(last.contains(word), "{last}");
        last.to_owned()
    }

    fn without_a_key(&self) -> u16 {
        let post = "POST /charges HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: \
                    close\r\n\r\n{}";
        send(self.gateway.address, post).expect("answer").status
    }
}

fn whole(upstream: &Upstream, toml: &str) -> String {
    let scope = if toml.contains("[scope]") { "" } else { "[scope]\nfrom = \"anonymous\"\n" };
    let store = if toml.contains("[store]") { "" } else { "[store]\nurl = \"memory:\"\n" };
    format!(
        "config_version = 1\n[gateway]\nupstream = \"http://{}\"\n{store}{scope}{toml}",
        upstream.address
    )
}

const DONE: &str = "the configuration was reloaded";
const KEPT: &str = "the old one holds";
const OFF: &str = "[[route]]\nmatch = \"POST /charges\"\nkey = \"off\"\n";

#[test]
fn new_rules_hold_from_the_next_request_on_and_records_stay() {
    let world = World::new(Upstream::start(|number, _| ok(&format!("run {number}"))), "");
    assert_eq!(post(world.gateway.address, KEY, "{}", &[]).text(), "run 0");
    assert_eq!(world.without_a_key(), 400);
    world.reload(OFF, DONE);
    assert_eq!(world.without_a_key(), 200);
    world.reload("[key]\nmin_len = 30\n", DONE);
    assert_eq!(world.without_a_key(), 400);
    let short = post(world.gateway.address, KEY, "{}", &[]);
    assert_eq!(short.summary(), "400 idempotency_key_invalid");
    world.reload("", DONE);
    assert!(post(world.gateway.address, KEY, "{}", &[]).is_replay());
}

#[test]
fn a_file_that_cannot_be_used_changes_nothing_and_the_log_says_why() {
    let world = World::new(Upstream::start(|_, _| ok("")), "");
    for (toml, why) in [
        (&*format!("{OFF}efects = \"none\"\n"), "did you mean `effects`?"),
        (&format!("{OFF}[defaults]\nlease = \"1 hour\"\n"), "defaults.lease"),
        (&format!("{OFF}[store]\nurl = \"file:x.db\"\n"), "store.url needs a restart"),
        (&format!("{OFF}[scope]\nfrom = \"authorization\"\n"), "scope.from needs a restart"),
        (
            &format!("{OFF}[defaults]\nfingerprint_key = \"0123456789abcdef\"\n"),
            "--accept-identity-change",
        ),
    ] {
        let line = world.reload(toml, KEPT);
        assert!(line.contains(why), "{line}");
        assert_eq!(world.without_a_key(), 400, "{why}");
    }
    world.reload(OFF, DONE);
    assert_eq!(world.without_a_key(), 200);
}

#[test]
fn a_request_that_runs_keeps_the_rules_it_began_with() {
    let world = World::new(Upstream::start(|number, _| ok(&format!("run {number}"))), "");
    let mut begun = Connection::open(world.gateway.address).expect("connected");
    let head = format!(
        "POST /charges HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {KEY}\r\nContent-Length: 2\r\n\
         Expect: 100-continue\r\n\r\n"
    );
    begun.write(head.as_bytes()).expect("written");
    // Who asks for the body has found its rules.
    assert_eq!(begun.read_head().expect("consent").status, 100);
    world.reload(OFF, DONE);
    assert_eq!(world.without_a_key(), 200, "for others the new ones hold");
    begun.write(b"{}").expect("written");
    let answer = begun.read_answer().expect("answer");
    assert_eq!(answer.header("onceward-outcome"), Some("executed"), "{answer:?}");
}

#[test]
fn a_gateway_that_was_reloaded_still_finishes_what_runs_before_it_ends() {
    let gate = Gate::default();
    let at_gate = gate.clone();
    let upstream = Upstream::start(move |_, _| {
        Act::SendLater(Vec::new(), at_gate.clone(), response(200, "", "done"))
    });
    let mut world = World::new(upstream, "");
    let to = world.gateway.address;
    let first = thread::spawn(move || post(to, KEY, "{}", &[]));
    gate.reached_by(1);
    world.reload("[defaults]\nretention = \"48h\"\n", DONE);
    world.gateway.signal("TERM");
    eventually("stopping", || world.gateway.log().contains("stopping").then_some(()));
    gate.open();
    assert_eq!(first.join().expect("no panic").text(), "done");
    assert_eq!(world.gateway.exit_status().code(), Some(0));
}

#[test]
fn other_quotas_hold_from_the_next_request_on() {
    let gate = Gate::default();
    let at_gate = gate.clone();
    let upstream = Upstream::start(move |number, _| match number {
        0 => Act::SendLater(Vec::new(), at_gate.clone(), response(200, "", "done")),
        _ => ok("done at once"),
    });
    let world = World::new(upstream, "");
    let to = world.gateway.address;
    let first = thread::spawn(move || post(to, KEY, "{}", &[]));
    gate.reached_by(1);
    let other = || post(to, "order-0000000000000002", "{}", &[]);
    // What began without limits takes no place under them.
    world.reload("[quota]\nactive = 1\nlookups_per_second = 1\n", DONE);
    assert_eq!(other().text(), "done at once");
    let limited = eventually("the end of the quota", || {
        let answer = other();
        (answer.status == 429).then_some(answer)
    });
    assert_eq!(limited.summary(), "429 idempotency_rate_limited");
    world.reload("", DONE);
    assert!(other().is_replay());
    gate.open();
    assert_eq!(first.join().expect("no panic").text(), "done");
}

#[test]
fn a_gateway_without_a_file_survives_the_signal() {
    let upstream = Upstream::start(|_, _| ok("done"));
    let mut command = binary();
    command.args(["serve", "--upstream", &format!("http://{}", upstream.address)]);
    command.args(["--store", "memory:", "--scope", "anonymous"]);
    let gateway =
        Gateway::start(command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]));
    gateway.signal("HUP");
    eventually("a word", || gateway.log().contains("there is no file").then_some(()));
    assert_eq!(post(gateway.address, KEY, "{}", &[]).text(), "done");
}

#[test]
fn keys_of_the_ring_are_rotated_and_sealing_is_not_switched_by_a_reload() {
    let key = |id: &str, secret: &str| format!("{{ id = \"{id}\", secret = \"{secret}\" }}");
    let old = key("old", "YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE=");
    let new = key("new", "YmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmI=");
    let sealing = |keys: &[&str]| format!("[privacy]\nkeys = [{}]\n", keys.join(", "));
    let world = World::new(Upstream::start(|_, _| ok("done")), &sealing(&[&old]));
    let send = |key: &str| post(world.gateway.address, key, "{}", &[]);
    send(KEY);
    world.reload(&sealing(&[&new, &old]), "was reloaded");
    assert!(send(KEY).is_replay());
    send("order-0000000000000002");
    world.reload(&sealing(&[&new]), "was reloaded");
    assert_eq!(send(KEY).summary(), "503 idempotency_store_unavailable");
    assert!(send("order-0000000000000002").is_replay());
    world.reload(&sealing(&[&old, &new]), "was reloaded");
    assert!(send(KEY).is_replay(), "an old key can be put back");
    for refused in ["", "[privacy]\nhash_keys = \"a secret of some length\"\n"] {
        world.reload(refused, "not reloaded");
        assert!(send(KEY).is_replay());
    }
    assert_eq!(world.upstream.count(), 2);
}

#[test]
fn a_route_becomes_queued_and_inline_again_and_what_was_accepted_is_executed() {
    let gate = Gate::default();
    let at_gate = gate.clone();
    let upstream = Upstream::start(move |number, _| match number {
        0 => Act::Send(response(429, "", "busy")),
        1 => Act::SendLater(Vec::new(), at_gate.clone(), response(200, "", "done")),
        _ => ok("more"),
    });
    let world = World::new(upstream, "");
    world.reload("[defaults]\nexecution = \"queued\"\n", "was reloaded");
    assert_eq!(post(world.gateway.address, KEY, "{}", &[]).status, 202);
    eventually("the first attempt", || (world.upstream.count() == 1).then_some(()));
    world.reload("", "was reloaded");
    // Its second attempt is made without any queued route; a retry meets it.
    gate.open();
    let reply = eventually("the reply", || {
        let answer = post(world.gateway.address, KEY, "{}", &[]);
        (answer.status == 200).then_some(answer)
    });
    assert!(reply.is_replay() && reply.text() == "done", "{}", reply.text());
    assert_eq!(world.upstream.count(), 2);
}
