//! A second gateway on the same store, in a process of its own: one that can be killed.

use std::{net::SocketAddr, process::Stdio};

use anyhow::{Context as _, Result};
use tempfile::NamedTempFile;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
};

use super::bank::Bank;

/// So that nobody has to watch for a minute until the lease of the dead is over.
const SETTINGS: &str = "config_version = 1\n[defaults]\nlease = \"3s\"\n";

/// A serving process. Killed when dropped.
pub(super) struct Second {
    child: Child,
    pub(super) address: SocketAddr,
    _config: NamedTempFile,
}

impl Second {
    /// Starts this very program in front of the bank, and waits until it serves.
    pub(super) async fn start(bank: &Bank, store: &str) -> Result<Second> {
        let config = NamedTempFile::new().context("no temporary file can be made")?;
        std::fs::write(config.path(), SETTINGS).context("a temporary file cannot be written")?;
        let program = std::env::current_exe().context("this program is not found")?;
        let mut child = Command::new(program)
            .args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .args(["--upstream", &format!("http://{}", bank.address()), "--store", store])
            .arg("--config")
            .arg(config.path())
            .env("RUST_LOG", "error")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("a second gateway cannot be started")?;
        let stdout = child.stdout.take().context("stdout is piped")?;
        let line = BufReader::new(stdout).lines().next_line().await?;
        let address = line.as_deref().and_then(|line| line.strip_prefix("listening on http://"));
        let address = address.context("a second gateway did not start")?.parse()?;
        Ok(Second { child, address, _config: config })
    }

    /// SIGKILL: it has no time to write anything down.
    pub(super) async fn kill(mut self) -> Result<()> {
        self.child.kill().await.context("the second gateway cannot be killed")
    }
}
