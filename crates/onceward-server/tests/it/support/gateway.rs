use std::{
    fs::File,
    io::{BufRead as _, BufReader, Lines, PipeReader, Read as _, Seek as _},
    net::{Ipv4Addr, SocketAddr},
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
};

use tempfile::NamedTempFile;

use super::eventually;

/// The binary under test.
pub(crate) fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onceward"));
    command.env_remove("RUST_LOG").env("NO_COLOR", "1");
    command
}

/// A gateway process on ports that the system chose. Killed when dropped.
pub(crate) struct Gateway {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    stdout: Lines<BufReader<ChildStdout>>,
    log: File,
    /// Read again on SIGHUP.
    config: Option<NamedTempFile>,
}

impl Gateway {
    /// One for everybody, in memory, in front of this upstream.
    pub(crate) fn before(upstream: SocketAddr) -> Gateway {
        Self::with(upstream, "")
    }

    /// The same with more settings, as lines of TOML.
    pub(crate) fn with(upstream: SocketAddr, toml: &str) -> Gateway {
        Self::with_lines(&format!("http://{upstream}"), "", toml)
    }

    /// The same with more flags.
    pub(crate) fn with_flags(upstream: SocketAddr, toml: &str, flags: &[&str]) -> Gateway {
        Self::with_all(&format!("http://{upstream}"), "", toml, flags)
    }

    /// The same with more lines under `[gateway]`.
    pub(crate) fn with_gateway(upstream: SocketAddr, lines: &str) -> Gateway {
        Self::with_lines(&format!("http://{upstream}"), lines, "")
    }

    /// The same before an upstream that is given as a URL.
    pub(crate) fn before_url(upstream: &str, toml: &str) -> Gateway {
        Self::with_lines(upstream, "", toml)
    }

    fn with_lines(upstream: &str, gateway: &str, toml: &str) -> Gateway {
        Self::with_all(upstream, gateway, toml, &[])
    }

    fn with_all(upstream: &str, gateway: &str, toml: &str, flags: &[&str]) -> Gateway {
        let scope = if toml.contains("[scope]") { "" } else { "[scope]\nfrom = \"anonymous\"\n" };
        let store = if toml.contains("[store]") { "" } else { "[store]\nurl = \"memory:\"\n" };
        let config = NamedTempFile::new().expect("temporary file");
        let toml = format!(
            "config_version = 1\n[gateway]\nupstream = \"{upstream}\"\n{gateway}{store}{scope}{toml}"
        );
        std::fs::write(config.path(), toml).expect("written");
        let mut command = binary();
        command.env("RUST_LOG", "onceward=trace").args(["serve", "--config"]).arg(config.path());
        let ports = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        let mut gateway = Self::start(command.args(ports).args(flags));
        gateway.config = Some(config);
        gateway
    }

    /// A command that serves, and says where.
    pub(crate) fn start(command: &mut Command) -> Gateway {
        let log = tempfile::tempfile().expect("temporary file");
        let stderr = Stdio::from(log.try_clone().expect("duplicate"));
        Self::start_to(command, log, stderr)
    }

    /// The same, whose log goes into a pipe that nobody reads.
    pub(crate) fn start_unread(command: &mut Command) -> (Gateway, PipeReader) {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let log = tempfile::tempfile().expect("temporary file");
        (Self::start_to(command, log, writer.into()), reader)
    }

    fn start_to(command: &mut Command, log: File, stderr: Stdio) -> Gateway {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().expect("the binary starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("piped")).lines();
        let said = |line: &str, what: &str| -> Option<SocketAddr> {
            let address = line.strip_prefix(what)?.split_once("://")?.1;
            Some(address.parse().expect("address"))
        };
        let mut next = || stdout.next().and_then(Result::ok).unwrap_or_default();
        let mut line = next();
        let address = said(&line, "listening on ");
        if address.is_some() {
            line = next();
        }
        let Some(mut admin) = said(&line, "admin on ") else {
            let _ = child.kill();
            panic!("the gateway did not start:\n{}", read(log));
        };
        if admin.ip().is_unspecified() {
            admin.set_ip(Ipv4Addr::LOCALHOST.into());
        }
        // One that only works listens nowhere.
        let address = address.unwrap_or(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
        Gateway { child, address, admin, stdout, log, config: None }
    }

    /// The file that it was started with.
    pub(crate) fn config(&self) -> &std::path::Path {
        self.config.as_ref().expect("it was started with a file").path()
    }

    /// The token that it printed, as it does when it was given none.
    pub(crate) fn admin_token(&mut self) -> String {
        let line = self.stdout.next().expect("a line").expect("text");
        line.rsplit_once(": ").expect("a token").1.to_owned()
    }

    /// Sends a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        let sent = Command::new("sh").args(["-c", &kill]).status().expect("sh");
        assert!(sent.success());
    }

    /// The most memory that the process has had so far, in KiB.
    pub(crate) fn memory_peak(&self) -> u64 {
        self.memory("VmHWM:")
    }

    /// The memory that the process has now, in KiB.
    pub(crate) fn memory_now(&self) -> u64 {
        self.memory("VmRSS:")
    }

    fn memory(&self, line: &str) -> u64 {
        memory_of(self.child.id(), line).expect("a number of KiB")
    }

    pub(crate) fn exit_status(&mut self) -> ExitStatus {
        eventually("the end of the process", || self.child.try_wait().expect("waited"))
    }

    /// The log, as soon as it has this: lines are written a little later than they are made.
    pub(crate) fn log_with(&self, text: &str) -> String {
        eventually(&format!("a line with `{text}`"), || {
            Some(self.log()).filter(|log| log.contains(text))
        })
    }

    /// What the process logged so far.
    pub(crate) fn log(&self) -> String {
        read(self.log.try_clone().expect("duplicate"))
    }
}

/// What the system says in this line of the memory of a process, in KiB; nothing once that has ended.
pub(crate) fn memory_of(process: u32, line: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let memory = status.lines().find_map(|given| given.strip_prefix(line))?;
    memory.trim().strip_suffix(" kB")?.trim().parse().ok()
}

fn read(mut log: File) -> String {
    let mut text = String::new();
    log.rewind().expect("rewound");
    log.read_to_string(&mut text).expect("text");
    text
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of the gateway\n{}---", self.log());
        }
    }
}
