use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use onceward_testbed::{Database, Postgres};
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection, SqliteConnection};
use tempfile::TempDir;
use tokio::time::sleep;

mod client; // requests, and answers to them
pub(crate) use client::Answer;

/// Long enough for a machine with other things to do.
const PATIENCE: Duration = Duration::from_secs(180);
const PAUSE: Duration = Duration::from_millis(50);

/// Where payments are kept.
pub(crate) struct Store {
    dir: TempDir,
    /// What the application is told.
    url: String,
    /// Where a test looks.
    direct: String,
    _database: Option<Database<'static>>,
}

impl Store {
    pub(crate) fn file() -> Store {
        let dir = tempfile::tempdir().expect("a directory");
        let url = format!("file:{}", dir.path().join("payments.db").display());
        Store { direct: url.clone(), url, dir, _database: None }
    }

    /// A database of its own on the server that all tests share.
    pub(crate) fn postgres() -> Store {
        let database = Postgres::shared().create_database();
        let url = database.url();
        Store { _database: Some(database), ..Self::at(&url, &url) }
    }

    /// A database that the application reaches by another way than the test.
    pub(crate) fn at(url: &str, direct: &str) -> Store {
        let dir = tempfile::tempdir().expect("a directory");
        Store { dir, url: url.to_owned(), direct: direct.to_owned(), _database: None }
    }
}

/// Whether the bank knows what it has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    Remembers,
    Forgets,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Messages {
    Delivered,
    Kept,
}

/// A bank, its ledger, and a database for the application.
pub(crate) struct World {
    store: Store,
    bank: Server,
    memory: Memory,
    lease: &'static str,
    client: reqwest::Client,
}

impl World {
    pub(crate) fn new(store: Store, memory: Memory) -> World {
        let mut command = payments();
        command.args(["bank", "--listen", "127.0.0.1:0", "--ledger"]);
        command.arg(store.dir.path().join("ledger"));
        if memory == Memory::Forgets {
            command.arg("--forgetful");
        }
        let bank = Server::start(command, store.dir.path().join("bank.log"));
        let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(30));
        let client = client.build().expect("a client");
        World { store, bank, memory, lease: "1s", client }
    }

    /// The same with a longer lease, for tests in which nothing dies.
    pub(crate) fn lease(mut self, lease: &'static str) -> World {
        self.lease = lease;
        self
    }

    /// An application process.
    pub(crate) fn node(&self) -> Node {
        self.launch("node", &[], Messages::Delivered)
    }

    /// One that delivers no messages: nobody but requests commits anything.
    pub(crate) fn node_without_messages(&self) -> Node {
        self.launch("node", &[], Messages::Kept)
    }

    /// One that dies the first time it is at this edge.
    pub(crate) fn node_dying_at(&self, edge: &str) -> Node {
        let marker = self.store.dir.path().join(format!("died-{edge}"));
        let marker = marker.display().to_string();
        let settings = [("PAYMENTS_DIE_AT", edge), ("PAYMENTS_DIE_MARKER", &*marker)];
        self.launch(edge, &settings, Messages::Delivered)
    }

    /// Whether a process has died at this edge, and forgets it.
    pub(crate) fn died_at(&self, edge: &str) -> bool {
        fs::remove_file(self.store.dir.path().join(format!("died-{edge}"))).is_ok()
    }

    fn launch(&self, name: &str, settings: &[(&str, &str)], messages: Messages) -> Node {
        let bank = format!("http://{}", self.bank.address);
        let mut args = vec!["serve", "--listen", "127.0.0.1:0", "--lease", self.lease];
        let notify = format!("{bank}/notifications");
        args.extend(["--store", &self.store.url, "--bank", &bank]);
        if messages == Messages::Delivered {
            args.extend(["--notify", &notify]);
        }
        if self.memory == Memory::Forgets {
            args.push("--bank-is-forgetful");
        }
        let owned = |text: &&str| (*text).to_owned();
        let launch = Launch {
            args: args.iter().map(owned).collect(),
            settings: settings.iter().map(|(name, value)| (owned(name), owned(value))).collect(),
            log: self.store.dir.path().join(format!("{name}.log")),
        };
        let server = Mutex::new(launch.start());
        Node { launch, server }
    }

    /// Tells the bank how to behave.
    pub(crate) async fn faults(&self, faults: Value) {
        let faults = serde_json::to_vec(&faults).expect("JSON");
        let post = self.client.post(format!("http://{}/faults", self.bank.address)).body(faults);
        let post = post.header("content-type", "application/json").send().await;
        assert_eq!(post.expect("the bank answers").status(), 204);
    }

    /// What the bank did and was told for this reference, in order, each by its kind.
    pub(crate) fn ledger(&self, reference: &str) -> Vec<String> {
        let text = fs::read_to_string(self.store.dir.path().join("ledger")).expect("a ledger");
        // The last line may still be on its way.
        let entries = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mine = entries.filter(|entry| entry["reference"] == reference);
        mine.filter_map(|entry| Some(entry["kind"].as_str()?.to_owned())).collect()
    }

    /// How often the bank did this for this reference.
    pub(crate) fn times(&self, kind: &str, reference: &str) -> usize {
        self.ledger(reference).iter().filter(|done| *done == kind).count()
    }

    /// How much the bank did and was told, for anybody.
    pub(crate) fn ledger_len(&self) -> usize {
        let text = fs::read_to_string(self.store.dir.path().join("ledger")).expect("a ledger");
        text.lines().count()
    }

    /// The states of all payments, by reference. A payment that is there twice has two.
    pub(crate) async fn payments(&self) -> BTreeMap<String, Vec<String>> {
        let rows = self.rows("SELECT reference, state FROM payments").await;
        rows.into_iter().fold(BTreeMap::new(), |mut payments, (reference, state)| {
            payments.entry(reference).or_insert_with(Vec::new).push(state);
            payments
        })
    }

    /// Rows of two texts each.
    pub(crate) async fn rows(&self, sql: &'static str) -> Vec<(String, String)> {
        match self.store.direct.strip_prefix("file:") {
            Some(path) => {
                let mut file = SqliteConnection::connect(path).await.expect("the file opens");
                sqlx::query_as(sql).fetch_all(&mut file).await.expect("rows")
            }
            None => {
                let mut server =
                    PgConnection::connect(&self.store.direct).await.expect("connected");
                sqlx::query_as(sql).fetch_all(&mut server).await.expect("rows")
            }
        }
    }
}

/// An application that is started again when it has died.
pub(crate) struct Node {
    launch: Launch,
    server: Mutex<Server>,
}

impl Node {
    fn server(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server().address
    }

    pub(crate) fn kill_9(&self) {
        self.server().kill();
    }

    /// Starts it again if it is dead.
    pub(crate) fn revive(&self) {
        let mut server = self.server();
        if server.is_dead() {
            *server = self.launch.start();
        }
    }
}

struct Launch {
    args: Vec<String>,
    settings: Vec<(String, String)>,
    log: PathBuf,
}

impl Launch {
    fn start(&self) -> Server {
        let mut command = payments();
        command.args(&self.args).envs(self.settings.iter().map(|(name, value)| (name, value)));
        Server::start(command, self.log.clone())
    }
}

fn payments() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_payments"));
    command.env_remove("PAYMENTS_DIE_AT");
    command
}

/// A process that serves, and says where. Killed when dropped.
struct Server {
    child: Child,
    address: SocketAddr,
    log: PathBuf,
}

impl Server {
    fn start(mut command: Command, log: PathBuf) -> Server {
        let stderr = File::options().create(true).append(true).open(&log).expect("a log");
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().expect("the binary starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let said = lines.next().and_then(Result::ok);
        let address = said.as_deref().and_then(|line| line.strip_prefix("listening on http://"));
        match address.map(|address| address.parse().expect("an address")) {
            Some(address) => Server { child, address, log },
            None => {
                let _ = child.kill();
                panic!("it did not start:\n{}", read(&log));
            }
        }
    }

    fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("waited");
    }

    fn is_dead(&mut self) -> bool {
        self.child.try_wait().expect("waited").is_some()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- {}\n{}---", self.log.display(), read(&self.log));
        }
    }
}

fn read(log: &Path) -> String {
    fs::read_to_string(log).unwrap_or_default()
}

/// Waits until something is so.
pub(crate) async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !is_so().await {
        assert!(begun.elapsed() < PATIENCE, "waited in vain for {what}");
        sleep(PAUSE).await;
    }
}

/// What is to be paid.
pub(crate) fn order(reference: &str) -> Value {
    json!({ "reference": reference, "amount": 1000 })
}
