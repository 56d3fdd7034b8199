use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::{fs::MetadataExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

const SCRIPT: &str = include_str!("watchdog.sh");

/// The user that servers run as when we are root, which they refuse to be.
const USER: &str = "postgres";

/// How long anything may take before the test is given up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A server in a directory of its own. Both are gone once this is dropped or its process died.
pub(crate) struct Watchdog {
    dir: PathBuf,
    child: Child,
    words: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    pid: Option<u32>,
}

impl Watchdog {
    /// A new directory and somebody to remove it. `command` gets the directory and says what to
    /// run; nothing is started yet. `end_with` is the signal that ends the server in good order.
    pub(crate) fn new(end_with: &str, command: impl FnOnce(&Path) -> Vec<String>) -> Watchdog {
        let dir = tempfile::Builder::new()
            .prefix("onceward-")
            .tempdir()
            .expect("a temporary directory")
            .keep();
        if is_root() {
            run(Command::new("chown").arg(format!("{USER}:")).arg(&dir));
        }
        let mut child = Command::new("sh")
            .args(["-c", SCRIPT, "onceward-watchdog"])
            .arg(&dir)
            .arg(end_with)
            .args(unprivileged(command(&dir)))
            .current_dir("/")
            // Ctrl-C is for the owner alone.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell");
        let words = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        Watchdog { dir, child, words, answers, pid: None }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The server's process; `None` before its start and after its kill.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.pid
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// Starts the server and waits until `ready` says so, given its process. An error if it
    /// ended instead.
    pub(crate) fn start(&mut self, ready: impl Fn(u32) -> bool) -> Result<(), String> {
        assert!(self.pid.is_none(), "it runs already");
        let pid = self.say("start").parse().expect("a process id");
        self.pid = Some(pid);
        let begun = Instant::now();
        while !ready(pid) {
            if !is_alive(pid) {
                self.pid = None;
                return Err(self.log());
            }
            assert!(begun.elapsed() < PATIENCE, "a server is not ready:\n{}", self.log());
            sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Kills the server and its children as a crash would, and returns once they are gone.
    pub(crate) fn kill(&mut self) {
        assert!(self.pid.is_some(), "it does not run");
        self.pid = None;
        let killed = self.say("kill");
        let begun = Instant::now();
        for pid in killed.split_whitespace().filter_map(|pid| pid.parse().ok()) {
            while is_alive(pid) {
                assert!(begun.elapsed() < PATIENCE, "process {pid} does not die");
                sleep(Duration::from_millis(1));
            }
        }
    }

    /// Stops the server and its children where they are.
    pub(crate) fn hold(&mut self) {
        assert!(self.pid.is_some(), "it does not run");
        self.say("hold");
    }

    /// Lets those go on who were held.
    pub(crate) fn go(&mut self) {
        assert!(self.pid.is_some(), "it does not run");
        self.say("go");
    }

    fn say(&mut self, word: &str) -> String {
        let mut words = self.words.as_ref().expect("open until dropped");
        writeln!(words, "{word}").expect("the watchdog listens");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("the watchdog answers");
        answer.trim().to_owned()
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.words = None;
        let _ = self.child.wait();
    }
}

/// Whether a process runs. A dead one stays listed until its parent asks for it.
fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").expect("/proc").uid() == 0
}

/// The command as a user that servers accept.
pub(crate) fn unprivileged(command: Vec<String>) -> Vec<String> {
    let mut whole = Vec::new();
    if is_root() {
        let (user, group) = (format!("--reuid={USER}"), format!("--regid={USER}"));
        whole = vec!["setpriv".to_owned(), user, group, "--clear-groups".to_owned()];
    }
    whole.extend(command);
    whole
}

/// Runs a program to its end and returns what it printed; anything but success is a panic.
pub(crate) fn run(command: &mut Command) -> String {
    let output = match command.stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) => panic!("{command:?}: {error}; ./test installs what is missing"),
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
    text(&output.stdout)
}
