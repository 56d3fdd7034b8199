//! One `onceward serve` process.

use std::{
    fs::{File, OpenOptions},
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};

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
    log: PathBuf,
}

impl Starting {
    /// Of this binary on this store. Settings and logs go into the folder.
    pub(super) fn new(binary: &Path, store: String, folder: &Path) -> Result<Starting> {
        let config = folder.join("onceward.toml");
        std::fs::write(&config, SETTINGS).context("the config file cannot be written")?;
        Ok(Starting { binary: binary.to_owned(), store, config, log: folder.join("log") })
    }

    /// Starts a process in front of an upstream, and waits until it serves.
    pub(super) fn start(&self, upstream: &str) -> Result<Gateway> {
        let log = OpenOptions::new().append(true).create(true).open(&self.log);
        let log = log.context("the log cannot be opened")?;
        let mut child = Command::new(&self.binary)
            .env("RUST_LOG", "error")
            .args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .args(["--upstream", upstream, "--store", &self.store])
            .arg("--config")
            .arg(&self.config)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .with_context(|| format!("{} cannot be started", self.binary.display()))?;
        let stdout = child.stdout.take().context("stdout is piped")?;
        // Ends the process if it does not serve.
        let mut gateway = Gateway { child, address: ([127, 0, 0, 1], 0).into() };
        match announced(stdout) {
            Some(address) => gateway.address = address,
            None => bail!("the gateway did not start:\n{}", self.log_tail()),
        }
        Ok(gateway)
    }

    /// The end of what all processes logged.
    pub(super) fn log_tail(&self) -> String {
        let log = File::open(&self.log).map(BufReader::new);
        let lines: Vec<String> =
            log.into_iter().flat_map(|log| log.lines().map_while(Result::ok)).collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

fn announced(stdout: ChildStdout) -> Option<SocketAddr> {
    let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
    lines.find_map(|line| line.strip_prefix("listening on http://")?.parse().ok())
}

/// A serving process. Killed when dropped.
pub(super) struct Gateway {
    child: Child,
    pub(super) address: SocketAddr,
}

impl Gateway {
    /// Ends the process at once.
    pub(super) fn kill(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("a gateway ended by itself: {status}");
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
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
