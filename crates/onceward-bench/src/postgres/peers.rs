//! Alternatives that others publish, in a package outside of the workspace, which is built when one of
//! them takes part.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use anyhow::{Context as _, ensure};
use onceward_testbed::Restate;

use super::contestant::{Before, Started};
use crate::process::Process;

/// A session that nobody knows: it is made with the first request. Without one `axum-idempotent` passes
/// everything on.
const SESSION: &str = "Cookie: session=AAAAAAAAAAAAAAAAAAAAAA\r\n";

/// The published crate of this name, on its own store for PostgreSQL. It reserves nothing: it looks, does
/// the work, and stores the answer.
pub(super) fn axum_idempotent(url: &str, pool: u32) -> anyhow::Result<Started> {
    let mut command = Command::new(folder()?.join("axum-idempotent"));
    let service = Process::start("axum-idempotent", command.args([url, &pool.to_string()]))?;
    Ok(Started { path: "/payments", headers: SESSION, service, before: None })
}

/// Restate's server, and the service behind it. Both are new, with an empty log.
pub(super) fn restate() -> anyhow::Result<Started> {
    let mut command = Command::new(folder()?.join("restate-handler"));
    let service = Process::start("restate-handler", &mut command)?;
    let restate = Restate::start();
    restate.register(service.address);
    Ok(Started {
        path: "/Payments/pay",
        headers: "",
        service,
        before: Some(Before::Restate(restate)),
    })
}

/// Where the programs are, which are built once in each run.
fn folder() -> anyhow::Result<PathBuf> {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    if let Some(folder) = FOLDER.get() {
        return Ok(folder.clone());
    }
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
    let own = env::current_exe()?;
    // Beside what was built of the workspace, so that one folder holds all of it.
    let target = own.ancestors().nth(2).context("a folder of what is built")?.join("peers");
    let built = Command::new(cargo)
        .current_dir(package)
        .args(["build", "--release", "--locked", "--target-dir"])
        .arg(&target)
        .status()?;
    ensure!(built.success(), "the alternatives could not be built: {built}");
    Ok(FOLDER.get_or_init(|| target.join("release")).clone())
}
