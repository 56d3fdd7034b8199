use std::{
    env, fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{
    postgres::free_port,
    watchdog::{PATIENCE, Watchdog, run},
};

const VERSION: &str = "1.7.12";

/// Restate's server on one node with two partitions, which is what it is fastest with on two cores, and
/// otherwise with its defaults: its log is synced. It ends and leaves nothing behind when it is dropped
/// or when its process dies.
///
/// For comparison only; nothing of it is shipped. All calls block.
pub struct Restate {
    watchdog: Watchdog,
    ingress: u16,
    admin: u16,
}

impl Restate {
    /// Starts it on free ports. Its program is fetched from npm if it is not in the cache.
    ///
    /// # Panics
    ///
    /// If it can neither be found nor fetched, or if it does not start.
    pub fn start() -> Restate {
        let program = program();
        let (ingress, admin, fabric) = (free_port(), free_port(), free_port());
        let watchdog =
            Watchdog::new("KILL", |dir| command(&program, dir, [ingress, admin, fabric]));
        let mut restate = Restate { watchdog, ingress, admin };
        let is_well = |port, path| {
            let answer = ask((Ipv4Addr::LOCALHOST, port).into(), "GET", path, "");
            answer.is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
        };
        let started = restate
            .watchdog
            .start(|_| is_well(admin, "/health") && is_well(ingress, "/restate/health"));
        if let Err(log) = started {
            panic!("Restate does not start:\n{log}");
        }
        restate
    }

    /// Makes the services known that an endpoint serves.
    ///
    /// # Panics
    ///
    /// If it refuses them.
    pub fn register(&self, service: SocketAddr) {
        let deployment = format!("{{\"uri\":\"http://{service}\",\"force\":true}}");
        let admin = (Ipv4Addr::LOCALHOST, self.admin).into();
        let answer = ask(admin, "POST", "/deployments", &deployment).unwrap_or_default();
        assert!(answer.starts_with("HTTP/1.1 201"), "Restate refuses a service:\n{answer}");
    }

    /// Where requests come in.
    pub fn ingress(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.ingress).into()
    }

    /// The directory of its log and of what it keeps.
    pub fn data(&self) -> PathBuf {
        data(self.watchdog.dir())
    }

    /// Its process.
    pub fn pid(&self) -> Option<u32> {
        self.watchdog.pid()
    }
}

fn data(dir: &Path) -> PathBuf {
    dir.join("data")
}

fn command(program: &Path, dir: &Path, [ingress, admin, fabric]: [u16; 3]) -> Vec<String> {
    let config = dir.join("restate.toml");
    let settings = format!(
        "default-num-partitions = 2\ndisable-telemetry = true\nlog-filter = \"warn\"\n\
         listen-mode = \"tcp\"\nbase-dir = \"{}\"\nbind-address = \"127.0.0.1:{fabric}\"\n\
         advertised-address = \"http://127.0.0.1:{fabric}\"\n\
         [ingress]\nbind-address = \"127.0.0.1:{ingress}\"\n\
         [admin]\nbind-address = \"127.0.0.1:{admin}\"\n",
        data(dir).display()
    );
    fs::write(&config, settings).expect("its settings");
    // Another user may run it, who must find it.
    let link = dir.join("restate-server");
    fs::hard_link(program, &link).or_else(|_| fs::copy(program, &link).map(drop)).expect("a copy");
    fs::set_permissions(&link, fs::Permissions::from_mode(0o755)).expect("its permissions");
    let (link, config) = (link.display().to_string(), config.display().to_string());
    [&link, "--no-logo", "--config-file", &config].map(str::to_owned).to_vec()
}

/// What a server answers, if it does.
fn ask(server: SocketAddr, method: &str, path: &str, body: &str) -> Option<String> {
    let mut connection = TcpStream::connect(server).ok()?;
    connection.set_read_timeout(Some(PATIENCE.min(Duration::from_secs(20)))).ok()?;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    connection.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// In the cache; fetched by name and version, and nothing of the package is run to install it.
fn program() -> PathBuf {
    let cache = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    let folder = cache.unwrap_or_default().join(format!("onceward/restate-{VERSION}"));
    let program = folder.join("restate-server");
    if !program.exists() {
        fs::create_dir_all(&folder).expect("a folder in the cache");
        let fetched = tempfile::tempdir_in(&folder).expect("a folder in the cache");
        let package = format!("@restatedev/restate-server-linux-x64@{VERSION}");
        run(Command::new("npm").args(["pack", "--silent", &package]).current_dir(&fetched));
        let archive = format!("restatedev-restate-server-linux-x64-{VERSION}.tgz");
        run(Command::new("tar").args(["xzf", &archive]).current_dir(&fetched));
        fs::rename(fetched.path().join("package/bin/restate-server"), &program)
            .expect("its program");
    }
    program
}
