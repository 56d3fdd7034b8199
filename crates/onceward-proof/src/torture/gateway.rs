//! One `onceward serve` process.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};

use super::http::{self, Message};
use crate::history::Subject;

/// What a process says of a key comes within this, or it is not waited for.
const STATE_MAX: Duration = Duration::from_millis(500);

/// The shortest times there are, so that a run meets all of them.
const SETTINGS: &str = "\
config_version = 1
[defaults]
lease = \"1s\"
max_execution = \"1s\"
";

/// How processes are started, again and again.
pub(super) struct Starting {
    binary: PathBuf,
    store: String,
    config: PathBuf,
    folder: PathBuf,
    starts: AtomicU64,
}

impl Starting {
    /// Of this binary on this store. Settings and logs go into the folder.
    pub(super) fn new(
        binary: &Path,
        store: String,
        cache: Option<&str>,
        folder: &Path,
    ) -> Result<Starting> {
        let config = folder.join("onceward.toml");
        // Must be said of a store that may lose what it has acknowledged.
        let durability = match store.starts_with("redis") {
            true => "durability = \"best-effort\"\n",
            false => "",
        };
        let cache = cache.map(|url| format!("cache = \"{url}\"\n")).unwrap_or_default();
        std::fs::write(&config, format!("{SETTINGS}[store]\n{durability}{cache}"))
            .context("the config file cannot be written")?;
        let (binary, folder) = (binary.to_owned(), folder.to_owned());
        Ok(Starting { binary, store, config, folder, starts: AtomicU64::new(0) })
    }

    /// Starts a process in front of an upstream, and waits until it serves.
    pub(super) fn start(&self, upstream: &str) -> Result<Gateway> {
        let log = self.folder.join(format!("log-{}", self.starts.fetch_add(1, SeqCst)));
        let stderr = File::create(&log).context("a log cannot be created")?;
        let mut child = Command::new(&self.binary)
            .env("RUST_LOG", "error")
            .args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .args(["--upstream", upstream, "--store", &self.store])
            .arg("--config")
            .arg(&self.config)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .with_context(|| format!("{} cannot be started", self.binary.display()))?;
        let stdout = child.stdout.take().context("stdout is piped")?;
        // Ends the process if it does not serve.
        let mut gateway = Gateway { child, address: ([127, 0, 0, 1], 0).into(), log };
        match announced(stdout) {
            Some(address) => gateway.address = address,
            None => bail!("a gateway did not start:\n{}", gateway.log_tail()),
        }
        Ok(gateway)
    }
}

fn announced(stdout: ChildStdout) -> Option<SocketAddr> {
    let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
    lines.find_map(|line| line.strip_prefix("listening on http://")?.parse().ok())
}

/// What a process says of a key: the name of its state, or that there is none. None if it does not say.
pub(super) fn stored_state(gateway: SocketAddr, subject: &Subject) -> Option<Option<String>> {
    let Subject { tenant, key } = subject;
    let headers = [
        ("Host", "charges.example".to_owned()),
        ("Authorization", format!("Bearer {tenant}")),
        ("Connection", "close".to_owned()),
    ];
    let headers = headers.map(|(name, value)| (name.to_owned(), value));
    let line = format!("GET /.onceward/operations/{key} HTTP/1.1");
    let mut stream = TcpStream::connect(gateway).ok()?;
    stream.set_read_timeout(Some(STATE_MAX)).ok()?;
    stream.write_all(&http::bytes(&line, &headers, "")).ok()?;
    let answer = Message::read(&mut BufReader::new(stream)).ok()??;
    match answer.status()? {
        200 => {
            let document: serde_json::Value = serde_json::from_str(&answer.body).ok()?;
            Some(Some(document.get("state")?.as_str()?.to_owned()))
        }
        404 => Some(None),
        _ => None,
    }
}

/// A serving process. Killed when dropped.
pub(super) struct Gateway {
    child: Child,
    pub(super) address: SocketAddr,
    log: PathBuf,
}

impl Gateway {
    /// Ends the process at once.
    pub(super) fn kill(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("a gateway ended by itself: {status}\n{}", self.log_tail());
        }
        self.child.kill().context("SIGKILL")?;
        self.child.wait().context("the killed process")?;
        Ok(())
    }

    /// Sends a signal by name. The process was not waited for, so that its id is its own.
    pub(super) fn signal(&self, name: &str) -> Result<()> {
        let kill = format!("kill -{name} {}", self.child.id());
        let sent = Command::new("sh").args(["-c", &kill]).status().context("sh")?;
        ensure!(sent.success(), "SIG{name} could not be sent");
        Ok(())
    }

    /// The end of what the process logged.
    fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
