//! Several processes on one file, and processes that die.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use onceward::{
    Scope, SqliteStore, Store,
    record::State,
    store::{
        Identity, OpenError, Reservation, ScopeKey, StoreErrorKind, StoreFuture, Write, Written,
    },
};

use crate::file_store::{ask, directory, granted, open, raw, reply};

/// What a child process is to do, and on which file.
const ROLE: &str = "ONCEWARD_TEST_ROLE";
const FILE: &str = "ONCEWARD_TEST_FILE";

/// This test binary once more, as another process with the given role.
fn start(role: &str, path: &Path) -> Child {
    start_under(&[], role, path)
}

/// The test that is a child process instead when it was given a role.
const HOST: &str =
    "file_store_processes::opening_a_file_twice_in_one_process_keeps_the_lock_of_the_first";

/// The same, started by another program.
fn start_under(program: &[&str], role: &str, path: &Path) -> Child {
    let this = env::current_exe().expect("the path of this test");
    let this = this.to_str().expect("text");
    let mut words = program.iter().chain([&this]);
    let mut command = Command::new(words.next().expect("a program"));
    command
        .args(words)
        .args(["--exact", "--nocapture", HOST])
        .env(ROLE, role)
        .env(FILE, path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child process")
}

/// What a child says, line by line; a line that was cut off by its death is left out.
fn said_by(child: &mut Child) -> impl Iterator<Item = String> + use<> {
    let mut output = BufReader::new(child.stdout.take().expect("piped"));
    std::iter::from_fn(move || {
        let mut line = String::new();
        output.read_line(&mut line).expect("readable").gt(&0).then_some(line)
    })
    .filter_map(|line| Some(line.strip_suffix('\n')?.strip_prefix('@')?.to_owned()))
}

fn run(role: &str, path: &Path) -> Vec<String> {
    let mut child = start(role, path);
    let said = said_by(&mut child).collect();
    assert!(child.wait().expect("ended").success(), "{role} failed");
    said
}

/// One write for each line, so that it is said as a whole or not at all.
fn say(what: &str) {
    let mut output = std::io::stdout();
    output.write_all(format!("@{what}\n").as_bytes()).expect("said");
    output.flush().expect("said");
}

/// What a process does that was started for a role.
async fn child(role: String) {
    let path = env::var(FILE).expect("a file for the role");
    #[cfg(target_os = "linux")]
    if role == "small disk" {
        return small_disk(Path::new(&path)).await;
    }
    let store = Arc::new(open(Path::new(&path)).await.expect("a store"));
    match role.rsplit_once(' ').unwrap_or((&role, "")) {
        ("touch", _) => {}
        ("state", key) => {
            let record = store.load(&ask(key).id).await.expect("an answer");
            say(record.map_or("absent", |record| record.state.name()));
        }
        ("compete", keys) => compete(&store, keys.parse().expect("a number")).await,
        ("storm", round) => storm(&store, round).await,
        ("write until a sync fails", what) => write_until_a_sync_fails(&store, what).await,
        ("erase until a sync fails", _) => erase_until_a_sync_fails(&store).await,
        other => panic!("no such role: {other:?}"),
    }
    store.close().await;
}

/// A process that others do not let in says that nothing happened, and asks again.
async fn patiently<'a, T>(mut call: impl FnMut() -> StoreFuture<'a, T>) -> T {
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(error) => assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}"),
        }
    }
}

/// Takes as many of the keys as it can, and completes what it took.
async fn compete(store: &Arc<SqliteStore>, keys: u32) {
    let me = std::process::id();
    say("ready");
    std::io::stdin().read_line(&mut String::new()).expect("the word to begin");
    let workers = (0..16).map(|worker| {
        let store = Arc::clone(store);
        tokio::spawn(async move {
            for number in (worker..keys).step_by(16) {
                let ask = ask(&format!("order-{number}"));
                let reserve = || store.reserve(ask.clone());
                let Reservation::Granted { lease, .. } = patiently(reserve).await else {
                    continue;
                };
                say(&format!("granted {number}"));
                let complete = Write::Complete(reply(format!("by {me}").as_bytes()));
                let complete = || store.write(&lease, complete.clone());
                assert_eq!(patiently(complete).await, Written::Applied);
                say(&format!("completed {number} by {me}"));
            }
        })
    });
    for worker in futures_util::future::join_all(workers).await {
        worker.expect("no panic");
    }
}

/// Reserves and completes until it is killed.
async fn storm(store: &Arc<SqliteStore>, round: &str) {
    let workers = (0..32).map(|worker| {
        let (store, round) = (Arc::clone(store), round.to_owned());
        tokio::spawn(async move {
            for number in 0_u64.. {
                let key = format!("order-{round}-{worker}-{number}");
                let lease = granted(&*store, &ask(&key)).await;
                let complete = Write::Complete(reply(key.as_bytes()));
                assert_eq!(store.write(&lease, complete).await.expect("answer"), Written::Applied);
                say(&key);
            }
        })
    });
    futures_util::future::join_all(workers).await;
}

/// How many ranges of the file itself this process has locked, as the kernel tells. It tells in
/// pieces: while others lock and unlock, a line may come twice or be left out of one reading.
#[cfg(target_os = "linux")]
fn locks_on(path: &Path) -> usize {
    use std::os::unix::fs::MetadataExt as _;
    let inode = std::fs::metadata(path).expect("there").ino();
    let (owner, file) = (std::process::id().to_string(), format!(":{inode}"));
    let mut ranges = std::collections::BTreeSet::new();
    for _ in 0..5 {
        let locks = std::fs::read_to_string("/proc/locks").expect("readable");
        for line in locks.lines() {
            let mut words = line.split_whitespace().skip(4);
            let ours = words.next() == Some(&owner);
            if ours && words.next().is_some_and(|word| word.ends_with(&file)) {
                ranges.insert(words.collect::<Vec<_>>().join(" "));
            }
        }
    }
    ranges.len()
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn opening_a_file_twice_in_one_process_keeps_the_lock_of_the_first() {
    if let Ok(role) = env::var(ROLE) {
        return child(role).await;
    }
    let directory = directory();
    let path = directory.path().join("store.db");
    let store = open(&path).await.expect("a store");
    let lease = granted(&store, &ask("order-1")).await;
    assert_eq!(locks_on(&path), 1, "so that nobody else takes itself for the only one");
    // POSIX takes all locks of a process on a file away when any descriptor of it is closed.
    let second = open(&path).await.expect("the same store");
    assert_eq!(locks_on(&path), 1, "still there");
    run("touch", &path);
    let written = store.write(&lease, Write::Complete(reply(b"paid"))).await.expect("answer");
    assert_eq!(written, Written::Applied);
    assert_eq!(run("state order-1", &path), ["completed"], "what was acknowledged is there");
    second.close().await;
    store.close().await;
    assert_eq!(locks_on(&path), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn three_processes_that_want_the_same_keys_grant_each_once_and_keep_every_reply() {
    const KEYS: u32 = 600;
    let directory = directory();
    let path = directory.path().join("store.db");
    // All three make the file at the same time, too.
    let mut children: Vec<Child> =
        (0..3).map(|_| start(&format!("compete {KEYS}"), &path)).collect();
    let mut said: Vec<_> = children.iter_mut().map(said_by).collect();
    for words in &mut said {
        assert_eq!(words.next().as_deref(), Some("ready"));
    }
    for child in &mut children {
        child.stdin.take().expect("piped").write_all(b"go\n").expect("told");
    }
    let mut granted = BTreeSet::new();
    let mut completed = BTreeMap::new();
    for (child, said) in children.iter_mut().zip(said) {
        let mut grants = 0;
        for line in said {
            let words: Vec<&str> = line.split(' ').collect();
            let key: u32 = words[1].parse().expect("a number");
            match words[0] {
                "granted" => {
                    grants += 1;
                    assert!(granted.insert(key), "order-{key} was granted twice");
                }
                "completed" => assert!(completed.insert(key, words[2..].join(" ")).is_none()),
                other => panic!("no such word: {other}"),
            }
        }
        assert!(child.wait().expect("ended").success(), "no call failed");
        eprintln!("one process was granted {grants} keys");
    }
    assert_eq!(granted, (0..KEYS).collect(), "every key was granted");
    let store = open(&path).await.expect("a store");
    for (key, body) in &completed {
        let record = store.load(&ask(&format!("order-{key}")).id).await.expect("an answer");
        let record = record.expect("a record");
        assert_eq!(record.reply, Some(reply(body.as_bytes())), "order-{key}");
        assert_eq!((record.attempts, record.generation), (1, 1), "order-{key}");
    }
    assert_eq!(completed.len(), granted.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_survives_kill_9_twenty_times() {
    let directory = directory();
    let path = directory.path().join("store.db");
    open(&path).await.expect("a store").close().await;
    let mut acknowledged = Vec::new();
    for round in 0..20 {
        let mut child = start(&format!("storm {round}"), &path);
        let mut said = said_by(&mut child);
        // The first word says that it runs. Then it dies at some moment.
        let first = said.next().expect("it runs");
        let moment = Duration::from_micros(rand::random_range(0..40_000));
        tokio::time::sleep(moment).await;
        child.kill().expect("killed");
        child.wait().expect("ended");
        let before = acknowledged.len();
        acknowledged.push(first);
        acknowledged.extend(said);
        eprintln!("round {round}: killed {moment:?} after {}", acknowledged.len() - before);
    }
    let mut connection = raw(&path).await;
    let verdict: String = sqlx::query_scalar("PRAGMA integrity_check")
        .fetch_one(&mut connection)
        .await
        .expect("a verdict");
    assert_eq!(verdict, "ok");
    let store = open(&path).await.expect("a store");
    for key in &acknowledged {
        let record = store.load(&ask(key).id).await.expect("an answer").expect("a record");
        assert_eq!((record.state, record.attempts), (State::Completed, 1), "{key}");
        assert_eq!(record.reply, Some(reply(key.as_bytes())), "{key}");
    }
    eprintln!("{} acknowledged in all", acknowledged.len());
}

/// Mounts a disk of this size on the directory, or makes the one that is there larger or smaller.
#[cfg(target_os = "linux")]
fn mount(directory: &Path, kib: u32, again: bool) -> bool {
    let size = format!("{}size={kib}k", if again { "remount," } else { "" });
    let mut command = Command::new("mount");
    command.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(directory);
    command.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

#[cfg(target_os = "linux")]
async fn small_disk(path: &Path) {
    let disk = path.parent().expect("a directory");
    if !mount(disk, 4, false) {
        return say("not allowed to mount");
    }
    let (mut refused, mut opened) = (0, 0);
    for kib in (4..400).step_by(4) {
        assert!(mount(disk, kib, true), "{kib}");
        match open(path).await {
            Ok(store) => {
                store.close().await;
                opened += 1;
            }
            Err(error) => {
                assert!(matches!(error, OpenError::Full(_)), "{kib} KiB: {error:?}");
                refused += 1;
            }
        }
        assert!(mount(disk, 4096, true));
        let store = open(path).await.expect("with room again it can be used, or is made anew");
        store.close().await;
        std::fs::remove_file(path).expect("removed");
        assert_eq!(std::fs::read_dir(disk).expect("listed").count(), 0, "no leftovers");
    }
    say(&format!("refused {} opened {}", refused > 5, opened > 5));
    // A disk that fills up under a running store.
    assert!(mount(disk, 600, true));
    let store = open(path).await.expect("a store");
    let noise: Vec<u8> = (0..5000).map(|_| rand::random()).collect();
    let mut acknowledged = Vec::new();
    let mut full = 0;
    for round in 0..40 {
        let asks: Vec<_> = (0..4).map(|number| ask(&format!("order-{round}-{number}"))).collect();
        let calls = asks.iter().map(|ask| async {
            let Reservation::Granted { lease, .. } = store.reserve(ask.clone()).await? else {
                panic!("not granted");
            };
            store.write(&lease, Write::Complete(reply(&noise))).await
        });
        let answers = futures_util::future::join_all(calls).await;
        for (ask, answer) in asks.into_iter().zip(answers) {
            match answer {
                Ok(written) => {
                    assert_eq!(written, Written::Applied);
                    acknowledged.push(ask);
                }
                Err(error) => {
                    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
                    full += 1;
                }
            }
        }
    }
    say(&format!("full {} acknowledged {}", full > 0, acknowledged.len() > 10));
    assert!(mount(disk, 4096, true));
    let _ = granted(&store, &ask("after-the-flood")).await;
    store.close().await;
    let store = open(path).await.expect("a store");
    for ask in &acknowledged {
        let record = store.load(&ask.id).await.expect("an answer").expect("a record");
        assert_eq!(record.reply, Some(reply(&noise)));
    }
    say("kept");
}

#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_is_full_is_a_clear_error_and_loses_nothing() {
    let directory = directory();
    // A disk of its own, seen by the child only.
    let program = ["unshare", "--map-root-user", "--mount"];
    let mut child = start_under(&program, "small disk", &directory.path().join("store.db"));
    let said: Vec<String> = said_by(&mut child).collect();
    let status = child.wait().expect("ended");
    assert!(status.success(), "{said:?}");
    assert_eq!(said, ["refused true opened true", "full true acknowledged true", "kept"]);
}

/// One fsync of this process fails, and all later ones succeed.
async fn write_until_a_sync_fails(store: &SqliteStore, what: &str) {
    let identity = |number| Identity::from_stored(format!("settings-{number}"));
    let mut acknowledged = 0;
    let error = loop {
        let (identity, ask) = (identity(acknowledged), ask(&format!("order-{acknowledged}")));
        let written = match what {
            "records" => store.reserve(ask).await.map(drop),
            "settings" => store.accept_identity(&identity).await,
            other => panic!("no such thing: {other}"),
        };
        match written {
            Ok(()) if acknowledged < 1000 => acknowledged += 1,
            Ok(()) => return say("no sync failed"),
            Err(error) => break error,
        }
    };
    say(&format!("acknowledged {}", acknowledged > 0));
    // It may be on the disk or not, and nobody can find out by asking again.
    assert_eq!(error.kind(), StoreErrorKind::Ambiguous, "{error:?}");
    let later = [
        store.reserve(ask("later")).await.map(drop),
        store.load(&ask("order-0").id).await.map(drop),
        store.ping().await,
        store.accept_identity(&identity(0)).await,
    ];
    for error in later {
        let error = error.expect_err("nothing is believed any more");
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
        let source = std::error::Error::source(&error).expect("a cause").to_string();
        assert!(source.contains("restart"), "{source}");
    }
    say("poisoned");
}

#[cfg(target_os = "linux")]
#[test]
fn after_a_failed_fsync_the_store_refuses_everything_until_it_is_opened_anew() {
    for what in ["records", "settings"] {
        let directory = directory();
        let path = directory.path().join("store.db");
        let fault = "inject=fdatasync,fsync:error=EIO:when=30";
        let program = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", fault];
        let role = format!("write until a sync fails {what}");
        let mut child = start_under(&program, &role, &path);
        let said: Vec<String> = said_by(&mut child).collect();
        assert!(child.wait().expect("ended").success(), "{what}: {said:?}");
        assert_eq!(said, ["acknowledged true", "poisoned"], "{what}");
        assert_eq!(run("state later", &path), ["absent"], "{what}");
    }
}

/// The same while keys of scopes are erased: the first call after it says so, whichever it was.
async fn erase_until_a_sync_fails(store: &SqliteStore) {
    for number in 0..100 {
        let scope = Scope::new(format!("tenant-{number}")).expect("scope");
        let key = ScopeKey {
            id: [7; 16],
            wrapped_by: "test".into(),
            wrapped: Some(Bytes::from_static(b"wrapped")),
        };
        if store.scope_keys(&scope, Some(key)).await.is_err() {
            return say("not proposed");
        }
        match store.drop_scope_keys(&scope, "test").await {
            Err(_) => return say("not erased"),
            Ok(erased) => assert_eq!(erased, 1),
        }
        if let Err(error) = store.ping().await {
            let source = std::error::Error::source(&error).expect("a cause").to_string();
            assert!(source.contains("restart"), "{source}");
            return say("erased, then poisoned");
        }
    }
    say("no sync failed");
}

#[cfg(target_os = "linux")]
#[test]
fn after_a_failed_fsync_while_erased_keys_leave_the_log_the_store_refuses_everything() {
    let mut said = BTreeSet::new();
    // Each of the syncs of one turn.
    for number in 40..46 {
        let directory = directory();
        let path = directory.path().join("store.db");
        let fault = format!("inject=fdatasync,fsync:error=EIO:when={number}");
        let program = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", &fault];
        let mut child = start_under(&program, "erase until a sync fails ", &path);
        said.extend(said_by(&mut child));
        assert!(child.wait().expect("ended").success(), "{number}: {said:?}");
    }
    let expected = ["erased, then poisoned", "not erased", "not proposed"].map(str::to_owned);
    assert_eq!(said, BTreeSet::from(expected));
}
