use std::{
    env,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::Path,
    process::Command,
    sync::OnceLock,
    thread::sleep,
    time::{Duration, Instant},
};

use crate::{
    postgres::{PORTS_TRIED, free_port},
    watchdog::{PATIENCE, Watchdog, run},
};

/// What a Redis server does when it is asked to sync each write.
const DURABLE: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];

/// The same, once a second.
const QUICK: &[&str] = &["--appendonly", "yes", "--appendfsync", "everysec"];

/// A Redis server that syncs each write, which ends and leaves nothing behind when it is dropped or
/// when its process dies. All calls block. `ONCEWARD_REDIS` names another program, such as Valkey's.
pub struct Redis {
    watchdog: Watchdog,
    port: u16,
}

impl Redis {
    /// Starts it on a free port.
    ///
    /// # Panics
    ///
    /// If there is no Redis server on this machine, or if it does not start.
    pub fn start() -> Redis {
        Redis::start_with(DURABLE)
    }

    /// The same without anything on a disk: a restart loses everything.
    pub fn start_forgetful() -> Redis {
        Redis::start_with(&["--appendonly", "no"])
    }

    /// The same with a second port, which it returns, for TLS with these certificates.
    ///
    /// # Panics
    ///
    /// As for [`Redis::start`].
    pub fn start_with_tls(authority: &str, certificate: &str, key: &str) -> (Redis, u16) {
        let port = free_port();
        let tls = ["--tls-port", &port.to_string(), "--tls-auth-clients", "no"].map(str::to_owned);
        let files = [
            ["--tls-ca-cert-file", authority],
            ["--tls-cert-file", certificate],
            ["--tls-key-file", key],
        ];
        let tls: Vec<&str> =
            tls.iter().map(String::as_str).chain(files.into_iter().flatten()).collect();
        (Redis::start_with(&[DURABLE, &tls].concat()), port)
    }

    /// Starts it with these settings.
    ///
    /// # Panics
    ///
    /// As for [`Redis::start`].
    pub fn start_with(settings: &[&str]) -> Redis {
        for _ in 0..PORTS_TRIED {
            let port = free_port();
            // Nobody needs its data any more, and while it writes its first file it would not end.
            let watchdog = Watchdog::new("KILL", |dir| command(dir, port, settings));
            let mut redis = Redis { watchdog, port };
            match redis.run() {
                Ok(()) => return redis,
                Err(log) if log.contains("in use") => {}
                Err(log) => panic!("Redis does not start; ./test installs it:\n{log}"),
            }
        }
        panic!("no free port for Redis after {PORTS_TRIED} tries");
    }

    /// A second server that copies this one, asynchronously, through an address that leads here: whoever
    /// breaks the connections there keeps writes from being shipped.
    pub fn replica_through(&self, through: SocketAddr) -> Redis {
        let port = through.port().to_string();
        let replica = Redis::start_with(&[DURABLE, &["--replicaof", "127.0.0.1", &port]].concat());
        let linked = || replica.cli(&["INFO", "replication"]).contains("master_link_status:up");
        wait_until("a replica copies its master", linked);
        replica
    }

    /// Waits until a replica has all that this server has written.
    ///
    /// # Panics
    ///
    /// If it does not come to that.
    pub fn wait_for(&self, replica: &Redis) {
        let offset = |redis: &Redis| {
            let info = redis.cli(&["INFO", "replication"]);
            let line = info.lines().find_map(|line| line.strip_prefix("master_repl_offset:"));
            line.and_then(|offset| offset.trim().parse::<u64>().ok()).expect("an offset")
        };
        let end = offset(self);
        wait_until("a replica has it all", || offset(replica) >= end);
    }

    /// The one server that all tests of this process share. It syncs once a second, so that they do not
    /// wait for the disk. Take a prefix each.
    pub fn shared() -> &'static Redis {
        static SHARED: OnceLock<Redis> = OnceLock::new();
        SHARED.get_or_init(|| Redis::start_with(QUICK))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// How to connect to it.
    pub fn url(&self) -> String {
        self.url_through(self.address())
    }

    /// How to connect to it through a proxy that listens elsewhere.
    pub fn url_through(&self, address: SocketAddr) -> String {
        format!("redis://{address}")
    }

    /// What `redis-cli` says to a command.
    ///
    /// # Panics
    ///
    /// If it cannot be asked.
    pub fn cli(&self, command: &[&str]) -> String {
        let mut cli = Command::new("redis-cli");
        run(cli.args(["-p", &self.port.to_string()]).args(command))
    }

    /// The process of the server; `None` while it is killed.
    pub fn pid(&self) -> Option<u32> {
        self.watchdog.pid()
    }

    /// Kills the server, as a crash would.
    pub fn kill_9(&mut self) {
        self.watchdog.kill();
    }

    /// Starts a killed server on the same directory and port, and returns when it has loaded its data.
    pub fn start_again(&mut self) {
        if let Err(log) = self.run() {
            panic!("Redis does not start again:\n{log}");
        }
    }

    /// Stops the server where it is; connections stay open and are silent.
    pub fn hold(&mut self) {
        self.watchdog.hold();
    }

    /// Lets a server go on that was held.
    pub fn go(&mut self) {
        self.watchdog.go();
    }

    fn run(&mut self) -> Result<(), String> {
        let port = self.port;
        // Its own word: whoever else answers on the port is not taken for it.
        self.watchdog.start(|pid| {
            let own = format!("process_id:{pid}\r");
            let is_loaded = |info: String| info.contains(&own) && info.contains("loading:0\r");
            info(port).is_some_and(is_loaded)
        })
    }
}

/// A Redis Cluster of three masters with a replica each.
pub struct RedisCluster {
    nodes: Vec<Redis>,
}

impl RedisCluster {
    /// Starts six servers and makes a Cluster of them.
    ///
    /// # Panics
    ///
    /// If they do not start, or do not come to agree.
    pub fn start() -> RedisCluster {
        RedisCluster::start_with(DURABLE)
    }

    fn start_with(settings: &[&str]) -> RedisCluster {
        let start = |_| {
            let bus = free_port().to_string();
            let cluster = ["--cluster-enabled", "yes", "--cluster-port", &bus];
            let quick = ["--cluster-node-timeout", "1000"];
            Redis::start_with(&[settings, &cluster, &quick].concat())
        };
        let nodes: Vec<Redis> = (0..6).map(start).collect();
        let addresses: Vec<String> = nodes.iter().map(|node| node.address().to_string()).collect();
        let mut create = Command::new("redis-cli");
        create.args(["--cluster", "create"]).args(&addresses);
        run(create.args(["--cluster-replicas", "1", "--cluster-yes"]));
        let cluster = RedisCluster { nodes };
        cluster.wait_until_whole();
        cluster
    }

    /// The one Cluster that all tests of this process share, which syncs once a second. Take a prefix
    /// each, and break nothing.
    pub fn shared() -> &'static RedisCluster {
        static SHARED: OnceLock<RedisCluster> = OnceLock::new();
        SHARED.get_or_init(|| RedisCluster::start_with(QUICK))
    }

    /// How to connect to it, by any of its nodes.
    pub fn url(&self) -> String {
        let addresses: Vec<_> = self.nodes.iter().map(|it| it.address().to_string()).collect();
        format!("redis+cluster://{}", addresses.join(","))
    }

    /// Its nodes.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// Which of its nodes are masters that live.
    pub fn masters(&self) -> Vec<usize> {
        let is_master = |node: &Redis| {
            node.watchdog.pid().is_some() && node.cli(&["ROLE"]).starts_with("master")
        };
        (0..self.nodes.len()).filter(|index| is_master(&self.nodes[*index])).collect()
    }

    /// The slot of a tag, and the node that has it.
    ///
    /// # Panics
    ///
    /// If no node says that it is its own.
    pub fn place_of(&self, tag: &str) -> (u16, usize) {
        let slot = self.nodes[0].cli(&["CLUSTER", "KEYSLOT", tag]);
        // Of those that do not send one elsewhere.
        let has = |node: &usize| !self.nodes[*node].cli(&["EXISTS", tag]).contains("MOVED");
        let node = self.masters().into_iter().find(has).expect("a node that has the slot");
        (slot.parse().expect("a slot"), node)
    }

    /// Begins to move a slot: from now on its keys may be on either side.
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let (slot, [from_id, to_id]) = (slot.to_string(), [from, to].map(|node| self.id_of(node)));
        let set = |node: usize, state, of: &str| {
            let said = self.nodes[node].cli(&["CLUSTER", "SETSLOT", &slot, state, of]);
            assert_eq!(said, "OK", "SETSLOT {state}");
        };
        set(to, "IMPORTING", &from_id);
        set(from, "MIGRATING", &to_id);
    }

    /// Moves those keys of the slot that are still there and that `which` says. Says how many.
    pub fn move_keys(
        &self,
        slot: u16,
        from: usize,
        to: usize,
        which: impl Fn(&str) -> bool,
    ) -> usize {
        let there =
            self.nodes[from].cli(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "100000"]);
        let keys: Vec<&str> = there.lines().filter(|key| !key.is_empty() && which(key)).collect();
        let port = self.nodes[to].address().port().to_string();
        for some in keys.chunks(100) {
            let migrate = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            let said = self.nodes[from].cli(&[&migrate, some].concat());
            assert!(matches!(&*said, "OK" | "NOKEY"), "MIGRATE: {said}");
        }
        keys.len()
    }

    /// Moves what is left, and gives the slot to its new node.
    pub fn end_move(&self, slot: u16, from: usize, to: usize) {
        while self.move_keys(slot, from, to, |_| true) > 0 {}
        let (slot, id) = (slot.to_string(), self.id_of(to));
        // The new one first, as one that does not know it yet would send everybody away.
        let rest = self.masters().into_iter().filter(|node| *node != to);
        for node in [to].into_iter().chain(rest) {
            let said = self.nodes[node].cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
            assert_eq!(said, "OK", "SETSLOT NODE");
        }
    }

    fn id_of(&self, node: usize) -> String {
        self.nodes[node].cli(&["CLUSTER", "MYID"])
    }

    /// Kills a node, as a crash would.
    pub fn kill_9(&mut self, node: usize) {
        self.nodes[node].kill_9();
    }

    /// Starts a killed node again.
    pub fn start_again(&mut self, node: usize) {
        self.nodes[node].start_again();
    }

    /// Waits until all nodes that live agree that every slot is served, and every replica of a master
    /// that lives copies it.
    ///
    /// # Panics
    ///
    /// If they do not come to that.
    pub fn wait_until_whole(&self) {
        wait_until("a Cluster serves", || {
            let living = self.nodes.iter().filter(|node| node.watchdog.pid().is_some());
            let serves = |node: &Redis| {
                let replication = node.cli(&["INFO", "replication"]);
                node.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
                    && (replication.contains("role:master")
                        || replication.contains("master_link_status:up"))
            };
            living.into_iter().all(serves)
        });
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain until {what}");
        sleep(Duration::from_millis(50));
    }
}

/// What a server says about itself, if one answers.
fn info(port: u16) -> Option<String> {
    let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
    connection.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    connection.write_all(b"INFO\r\nQUIT\r\n").ok()?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).ok()?;
    Some(answer)
}

fn command(dir: &Path, port: u16, settings: &[&str]) -> Vec<String> {
    let program = env::var("ONCEWARD_REDIS").unwrap_or_else(|_| "redis-server".to_owned());
    let port = port.to_string();
    let dir = dir.display().to_string();
    let fixed = [&*program, "--port", &port, "--bind", "127.0.0.1", "--dir", &dir];
    let quiet = ["--save", "", "--repl-diskless-sync-delay", "0"];
    let all = fixed.iter().chain(&quiet).chain(settings);
    all.map(|word| (*word).to_owned()).collect()
}
