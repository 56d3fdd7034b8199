use std::{
    env, fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    sync::OnceLock,
};

use crate::{
    fetched::fetched,
    postgres::{PORTS_TRIED, free_port},
    watchdog::Watchdog,
};

/// An emulator of DynamoDB (dynoxide) that knows conditions, transactions and `ALL_OLD`, which ends
/// and leaves nothing behind when it is dropped or when its process dies.
///
/// It takes any credentials. All calls block. `ONCEWARD_DYNOXIDE` names another program than the one
/// that `./test` has fetched.
pub struct DynamoDb {
    watchdog: Watchdog,
    port: u16,
}

impl DynamoDb {
    /// Starts one that keeps its tables in a file, on a free port.
    ///
    /// # Panics
    ///
    /// If the program is not on this machine, or if it does not start.
    pub fn start() -> DynamoDb {
        Self::start_with(true)
    }

    /// Starts one that keeps its tables in memory: faster, and empty after a kill.
    ///
    /// # Panics
    ///
    /// If the program is not on this machine, or if it does not start.
    pub fn start_in_memory() -> DynamoDb {
        Self::start_with(false)
    }

    fn start_with(keeps: bool) -> DynamoDb {
        let program = program();
        for _ in 0..PORTS_TRIED {
            let port = free_port();
            // It has nothing to end in good order: each answer was given after its commit.
            let watchdog = Watchdog::new("KILL", |dir| command(&program, dir, port, keeps));
            let mut dynamodb = DynamoDb { watchdog, port };
            match dynamodb.run() {
                Ok(()) => return dynamodb,
                Err(log) if log.contains("in use") => {}
                Err(log) => panic!("the emulator of DynamoDB does not start:\n{log}"),
            }
        }
        panic!("no free port for the emulator of DynamoDB after {PORTS_TRIED} tries");
    }

    /// The one that all tests of this process share, in memory. Take a table each.
    pub fn shared() -> &'static DynamoDb {
        static SHARED: OnceLock<DynamoDb> = OnceLock::new();
        SHARED.get_or_init(DynamoDb::start_in_memory)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Its endpoint, as the SDK wants it.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address())
    }

    /// How the gateway is told of a table of it.
    pub fn url(&self, table: &str) -> String {
        format!("dynamodb://{table}?endpoint={}&region=local", self.endpoint())
    }

    /// What it says to a call of the service's protocol, whatever credentials come with it: head and body.
    ///
    /// # Panics
    ///
    /// If it does not answer.
    pub fn call(&self, operation: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(self.address()).expect("connected");
        let request = format!(
            "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Amz-Date: 20261118T000000Z\r\n\
             X-Amz-Target: DynamoDB_20120810.{operation}\r\n\
             Content-Type: application/x-amz-json-1.0\r\n\
             Authorization: AWS4-HMAC-SHA256 Credential=a/20261118/local/dynamodb/aws4_request, \
             SignedHeaders=host, Signature=x\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("written");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    /// Kills it, as a crash would.
    pub fn kill_9(&mut self) {
        self.watchdog.kill();
    }

    /// Starts a killed one on the same port, with the file that it had, if it had one.
    pub fn start_again(&mut self) {
        if let Err(log) = self.run() {
            panic!("the emulator of DynamoDB does not start again:\n{log}");
        }
    }

    /// The directory that holds everything of this server.
    pub fn dir(&self) -> &Path {
        self.watchdog.dir()
    }

    /// Its process; `None` while it is killed.
    pub fn pid(&self) -> Option<u32> {
        self.watchdog.pid()
    }

    /// What it wrote to its log.
    pub fn log(&self) -> String {
        self.watchdog.log()
    }

    fn run(&mut self) -> Result<(), String> {
        // Its own word: whoever else answers on the port is not asked. One that is started again has
        // an older one in its log.
        let listens = format!("listening on http://{}\n", self.address());
        let log = self.watchdog.dir().join("log");
        let count = || fs::read_to_string(&log).unwrap_or_default().matches(&listens).count();
        let before = count();
        self.watchdog.start(|_| count() > before)
    }
}

fn command(program: &Path, dir: &Path, port: u16, keeps: bool) -> Vec<String> {
    let mut command = vec![
        program.display().to_string(),
        "--host".to_owned(),
        "127.0.0.1".to_owned(),
        "--port".to_owned(),
        port.to_string(),
    ];
    if keeps {
        let file = dir.join("tables.db").display().to_string();
        command.extend(["--db-path".to_owned(), file]);
    }
    command
}

/// Where `./test` has put it.
fn program() -> PathBuf {
    match env::var_os("ONCEWARD_DYNOXIDE") {
        Some(named) => named.into(),
        None => fetched("dynoxide-1.2.1/dynoxide"),
    }
}
