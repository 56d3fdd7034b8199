use std::{
    collections::HashMap,
    fs::{File, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{SystemTime, UNIX_EPOCH},
};

/// An append-only file: one line for each effect, on disk before it is acknowledged.
#[derive(Clone)]
pub(super) struct Ledger {
    path: PathBuf,
    file: Arc<Mutex<(File, u64)>>,
}

impl Ledger {
    pub(super) fn create(path: &Path) -> Ledger {
        let file = OpenOptions::new().append(true).create_new(true).open(path).expect("created");
        Ledger { path: path.to_owned(), file: Arc::new(Mutex::new((file, 0))) }
    }

    /// Writes an effect, and returns its number.
    pub(super) fn append(&self, key: &str, attempt: &str) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros();
        let (number, file) = {
            let (file, lines) = &mut *self.file.lock().expect("lock");
            file.write_all(format!("{key} {attempt} {now}\n").as_bytes()).expect("written");
            *lines += 1;
            (*lines, file.try_clone().expect("duplicate"))
        };
        // Outside of the lock, so that those who wait share the time of the disk.
        file.sync_data().expect("synced");
        number
    }

    /// How often each key had an effect, and how many effects were those of a rerun.
    pub(super) fn read(&self) -> (HashMap<String, usize>, usize) {
        let mut effects = HashMap::new();
        let mut reruns = 0;
        for line in std::fs::read_to_string(&self.path).expect("read").lines() {
            let mut words = line.split(' ');
            let key = words.next().expect("a key").to_owned();
            reruns += usize::from(words.next() != Some("1"));
            *effects.entry(key).or_default() += 1;
        }
        (effects, reruns)
    }
}
