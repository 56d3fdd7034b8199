//! kill -9 of a serving process at random moments under load.
//!
//! The judge is a ledger that upstream writes, and syncs to disk, before it answers. It holds one
//! line for each time that work was really done. Afterwards:
//!
//! 1. every reply that a client received is replayed byte for byte;
//! 2. no key has two effects.
//!
//! Some keys are first answered with a 503 without an effect, so that reruns that are known to be
//! safe are part of the load. `ONCEWARD_KILLS` and `ONCEWARD_KILL_SEED` repeat a run.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, RwLock},
    thread,
    time::Duration,
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

use crate::support::{Act, Connection, Gateway, Seen, Upstream, binary, ok, request, response};

mod ledger;
use ledger::Ledger;

const CLIENTS: u64 = 16;

#[test]
fn nothing_acknowledged_is_lost_and_nothing_runs_twice_on_the_file_store() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let store = format!("file:{}", folder.path().join("onceward.db").display());
    let rounds = number_from("ONCEWARD_KILLS").unwrap_or(50);
    let judged = Run::new(&store, folder.path()).of_rounds(rounds);
    assert!(judged.replies > rounds as usize && judged.reruns > 0, "no load: {judged:?}");
    assert!(judged.wrong.is_empty(), "{} wrong: {:#?}", judged.wrong.len(), judged.first_wrong());
}

#[test]
fn the_judge_notices_a_store_that_forgets() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let judged = Run::new("memory:", folder.path()).of_rounds(3);
    let noticed = |what: &str| judged.wrong.iter().any(|wrong| wrong.contains(what));
    assert!(noticed("was not replayed"), "{:#?}", judged.first_wrong());
    assert!(noticed("effects"), "{:#?}", judged.first_wrong());
}

#[derive(Debug)]
struct Judged {
    replies: usize,
    reruns: usize,
    wrong: Vec<String>,
}

impl Judged {
    fn first_wrong(&self) -> Vec<&String> {
        self.wrong.iter().take(10).collect()
    }
}

/// What all clients know together.
#[derive(Default)]
struct Known {
    keys: Vec<String>,
    replies: HashMap<String, Vec<u8>>,
    wrong: Vec<String>,
}

struct Run {
    seed: u64,
    store: String,
    config: PathBuf,
    ledger: Ledger,
    upstream: Upstream,
    known: Arc<Mutex<Known>>,
}

impl Run {
    fn new(store: &str, folder: &Path) -> Run {
        let seed = number_from("ONCEWARD_KILL_SEED").unwrap_or_else(rand::random);
        println!("ONCEWARD_KILL_SEED={seed}");
        let ledger = Ledger::create(&folder.join("ledger"));
        let entries = ledger.clone();
        let upstream = Upstream::start(move |_, seen| work(&entries, seen));
        // Leases that end within the run, so that later rounds meet them.
        let config = folder.join("onceward.toml");
        std::fs::write(&config, "config_version = 1\n[defaults]\nlease = \"1s\"\n")
            .expect("written");
        Run { seed, store: store.to_owned(), config, ledger, upstream, known: Arc::default() }
    }

    fn of_rounds(self, rounds: u64) -> Judged {
        let address = Arc::new(RwLock::new(None));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (known, address) = (Arc::clone(&self.known), Arc::clone(&address));
                let mut random = StdRng::seed_from_u64(self.seed ^ (number + 1));
                thread::spawn(move || {
                    loop {
                        // Copied, so that the lock is free while the request runs.
                        let target: Option<Target> = *address.read().expect("lock");
                        match target {
                            Some(Target::At(to)) => one_request(to, &known, &mut random),
                            Some(Target::Done) => return,
                            None => thread::sleep(Duration::from_millis(1)),
                        }
                    }
                })
            })
            .collect();
        let mut random = StdRng::seed_from_u64(self.seed);
        for _ in 0..rounds {
            let gateway = self.serve();
            set(&address, Some(Target::At(gateway.address)));
            thread::sleep(Duration::from_millis(random.random_range(10..250)));
            gateway.kill();
        }
        set(&address, Some(Target::Done));
        clients.into_iter().for_each(|client| client.join().expect("no panic"));
        self.judge()
    }

    fn serve(&self) -> Gateway {
        let mut command = binary();
        command.env("RUST_LOG", "error").args(["serve", "--scope", "anonymous"]);
        command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        command.args(["--store", &self.store]).arg("--config").arg(&self.config);
        Gateway::start(command.arg("--upstream").arg(format!("http://{}", self.upstream.address)))
    }

    /// Asks again for every reply that was received, and reads the ledger.
    fn judge(self) -> Judged {
        let gateway = self.serve();
        let to = gateway.address;
        let known = std::mem::take(&mut *self.known.lock().expect("lock"));
        let replies: Vec<(&String, &Vec<u8>)> = known.replies.iter().collect();
        let mut wrong: Vec<String> = thread::scope(|scope| {
            let workers = replies.chunks(replies.len().div_ceil(8).max(1));
            let workers: Vec<_> = workers
                .map(|some| {
                    scope.spawn(move || some.iter().filter_map(|of| replay(to, of)).collect())
                })
                .collect();
            let found = workers.into_iter().map(|worker| worker.join().expect("no panic"));
            found.flat_map(|found: Vec<String>| found).collect()
        });
        wrong.extend(known.wrong);
        let (effects, reruns) = self.ledger.read();
        for (key, count) in effects.iter().filter(|(_, count)| **count > 1) {
            wrong.push(format!("{key} has {count} effects"));
        }
        for key in known.replies.keys().filter(|key| !effects.contains_key(*key)) {
            wrong.push(format!("{key} was answered without an effect"));
        }
        println!("{} replies, {} effects, {reruns} reruns", replies.len(), effects.len());
        Judged { replies: replies.len(), reruns, wrong }
    }
}

#[derive(Clone, Copy)]
enum Target {
    At(std::net::SocketAddr),
    Done,
}

fn set(address: &RwLock<Option<Target>>, target: Option<Target>) {
    *address.write().expect("lock") = target;
}

/// Upstream's work: an effect that is on disk before the answer.
fn work(ledger: &Ledger, seen: &Seen) -> Act {
    let key = seen.header("idempotency-key").expect("the key is passed on");
    let attempt = seen.header("onceward-attempt").unwrap_or("1");
    // A fifth of the keys is refused at first, and nothing is done for them.
    if key.ends_with(['0', '5']) && attempt == "1" {
        return Act::Send(response(503, "", "later"));
    }
    let line = ledger.append(key, attempt);
    ok(&format!("{{\"key\":\"{key}\",\"effect\":{line}}}"))
}

/// A new key, or one that was used before.
fn one_request(to: std::net::SocketAddr, known: &Mutex<Known>, random: &mut StdRng) {
    let key = {
        let mut known = known.lock().expect("lock");
        if known.keys.is_empty() || random.random_bool(0.5) {
            let key = format!("key-{:020}", random.random::<u64>());
            known.keys.push(key.clone());
            key
        } else {
            // Mostly the latest ones: those that a kill may have met.
            let last = known.keys.len() - 1;
            let back = random.random_range(0..32.min(last + 1));
            known.keys[last - back].clone()
        }
    };
    let Some((200, body)) = ask(to, &key) else { return };
    let mut known = known.lock().expect("lock");
    let first = known.replies.entry(key.clone()).or_insert_with(|| body.clone());
    if *first != body {
        known.wrong.push(format!("{key} had two replies"));
    }
}

/// What is wrong with the replay of a reply that was received, if anything is.
fn replay(to: std::net::SocketAddr, (key, body): &(&String, &Vec<u8>)) -> Option<String> {
    match ask(to, key) {
        Some((200, again)) if again == **body => None,
        other => Some(format!("{key} was not replayed: {other:?}")),
    }
}

/// Status and body; `None` when the process was killed before its answer was whole.
fn ask(to: std::net::SocketAddr, key: &str) -> Option<(u16, Vec<u8>)> {
    let mut connection = Connection::open(to).ok()?;
    connection.write(request(to, key, "{}", &[]).as_bytes()).ok()?;
    let answer = connection.read_answer().ok()?;
    Some((answer.status, answer.body))
}

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}
