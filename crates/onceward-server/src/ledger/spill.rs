//! Items on disk, in parts by a hash: what shares a name is in one part, and a part fits in memory
//! though the whole does not.

use std::{
    fs::File,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::{BufRead as _, BufReader, BufWriter, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use serde::{Serialize, de::DeserializeOwned};

/// Each part of ten million rows is some ten megabytes; as many files are open at a time.
const PARTS: usize = 128;

const FULL: &str = "the comparison cannot be written to its temporary folder (see --temp-dir)";

pub(super) struct Spill {
    folder: PathBuf,
    name: &'static str,
    parts: Vec<Option<BufWriter<File>>>,
    line: Vec<u8>,
}

impl Spill {
    pub(super) fn new(folder: &Path, name: &'static str) -> Spill {
        let parts = (0..PARTS).map(|_| None).collect();
        Spill { folder: folder.to_owned(), name, parts, line: Vec::new() }
    }

    fn path(&self, part: usize) -> PathBuf {
        self.folder.join(format!("{}-{part}", self.name))
    }

    /// Keeps an item under a name.
    pub(super) fn put(&mut self, name: &str, item: &impl Serialize) -> Result<()> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, &(name, item)).context("an item cannot be kept")?;
        self.line.push(b'\n');
        let part = part_of(name);
        let path = self.path(part);
        let Some(place) = self.parts.get_mut(part) else { return Ok(()) };
        let file = match place {
            Some(file) => file,
            None => place.insert(BufWriter::new(File::create_new(path).context(FULL)?)),
        };
        file.write_all(&self.line).context(FULL)
    }

    /// Reads the parts one after the other. `each` gets the number of a part and all that is in it,
    /// in the order in which it was put.
    pub(super) fn read<T: DeserializeOwned>(
        mut self,
        mut each: impl FnMut(usize, Vec<(String, T)>) -> Result<()>,
    ) -> Result<()> {
        for file in self.parts.iter_mut().flatten() {
            file.flush().context(FULL)?;
        }
        let there: Vec<bool> = self.parts.iter().map(Option::is_some).collect();
        self.parts.clear();
        for (part, _) in there.into_iter().enumerate().filter(|(_, is_there)| *is_there) {
            let path = self.path(part);
            each(part, read_part(&path)?)?;
            // Its room is needed for what comes after.
            std::fs::remove_file(&path).context("a temporary file cannot be removed")?;
        }
        Ok(())
    }
}

fn read_part<T: DeserializeOwned>(path: &Path) -> Result<Vec<(String, T)>> {
    let broken = "a temporary file cannot be read back";
    let mut file = BufReader::new(File::open(path).context(broken)?);
    let (mut items, mut line) = (Vec::new(), Vec::new());
    loop {
        line.clear();
        if file.read_until(b'\n', &mut line).context(broken)? == 0 {
            return Ok(items);
        }
        items.push(serde_json::from_slice(&line).context(broken)?);
    }
}

/// The same in every run, so that reports come in the same order.
fn part_of(name: &str) -> usize {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    usize::try_from(hasher.finish() % PARTS as u64).unwrap_or_default()
}
