//! All of both sides, in any order and any number, with little memory.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context as _, Result};
use onceward::{clock::Timestamp, store::list::Span};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::{
    Charge, Entry, Finding, Summary,
    compare::{self, Group, Ours, Theirs, Told},
    spill::Spill,
};

/// A comparison that is being gathered. What is told goes to a function as soon as it is known.
pub(crate) struct Check<'t> {
    period: Span,
    /// The export tells keys.
    keys: bool,
    by_id: Spill,
    by_key: Spill,
    told: Told<'t>,
    /// Removed in the end, with all that is in it.
    _folder: TempDir,
}

#[derive(Serialize, Deserialize)]
enum Item {
    #[serde(rename = "o")]
    Ours(Ours),
    #[serde(rename = "t")]
    Theirs(Theirs),
}

impl Group {
    fn add(&mut self, item: Item) {
        match item {
            Item::Ours(ours) => self.ours.push(ours),
            Item::Theirs(theirs) => self.theirs.push(theirs),
        }
    }
}

impl<'t> Check<'t> {
    /// Begins one whose files are kept in a folder of their own under `temporary`.
    pub(crate) fn new(
        temporary: &Path,
        period: Span,
        keys: bool,
        tell: impl FnMut(&Finding) -> Result<()> + 't,
    ) -> Result<Check<'t>> {
        let folder = tempfile::Builder::new().prefix("onceward-ledger-").tempdir_in(temporary);
        let folder =
            folder.with_context(|| format!("no temporary folder in {}", temporary.display()))?;
        Ok(Check {
            period,
            keys,
            by_id: Spill::new(folder.path(), "id"),
            by_key: Spill::new(folder.path(), "key"),
            told: Told { summary: Summary::empty(), tell: Box::new(tell) },
            _folder: folder,
        })
    }

    fn is_inside(&self, at: Option<Timestamp>) -> bool {
        at.is_none_or(|at| self.period.contains(at))
    }

    /// Adds what we know.
    pub(crate) fn ours(&mut self, entry: Entry, at: Option<Timestamp>) -> Result<()> {
        self.told.summary.entries += 1;
        let ours = Ours { inside: self.is_inside(at), matched: false, entry };
        match (&ours.entry.provider_id, &ours.entry.sent_key) {
            (Some(id), _) => {
                let id = id.clone();
                self.by_id.put(&id, &Item::Ours(ours))
            }
            (None, Some(key)) if self.keys => {
                let key = key.clone();
                self.by_key.put(&key, &Item::Ours(ours))
            }
            _ => compare::left(&ours, &mut self.told),
        }
    }

    /// Adds what the provider says.
    pub(crate) fn theirs(&mut self, charge: Charge, at: Option<Timestamp>) -> Result<()> {
        self.told.summary.charges += 1;
        let id = charge.id.clone();
        let theirs = Theirs { inside: self.is_inside(at), matched: false, charge };
        self.by_id.put(&id, &Item::Theirs(theirs))
    }

    /// Counts a row of the export that is not compared.
    pub(crate) fn leave_out(&mut self) {
        self.told.summary.left_out += 1;
    }

    /// Compares. `progress` is told how many parts of how many are done.
    pub(crate) fn finish(self, mut progress: impl FnMut(usize)) -> Result<Summary> {
        let Check { keys, by_id, mut by_key, mut told, _folder, .. } = self;
        by_id.read(|part, items| {
            progress(part);
            for (_, group) in groups(items) {
                let group = compare::by_id(group, &mut told)?;
                hand_on(group, keys.then_some(&mut by_key), &mut told)?;
            }
            Ok(())
        })?;
        by_key.read(|part, items| {
            progress(part);
            groups(items).into_values().try_for_each(|group| compare::by_key(group, &mut told))
        })?;
        let mut summary = told.summary;
        summary.agree = summary.differences() == 0;
        Ok(summary)
    }
}

fn groups(items: Vec<(String, Item)>) -> BTreeMap<String, Group> {
    let mut groups = BTreeMap::<String, Group>::new();
    for (name, item) in items {
        groups.entry(name).or_default().add(item);
    }
    groups
}

/// What has a key is looked at once more, if the export tells keys.
fn hand_on(group: Group, mut by_key: Option<&mut Spill>, told: &mut Told<'_>) -> Result<()> {
    for theirs in group.theirs {
        if let (Some(key), Some(by_key)) = (theirs.charge.key.clone(), &mut by_key) {
            by_key.put(&key, &Item::Theirs(theirs))?;
        }
    }
    for ours in group.ours {
        match (ours.entry.sent_key.clone(), &mut by_key) {
            (Some(key), Some(by_key)) => by_key.put(&key, &Item::Ours(ours))?,
            _ if !ours.matched => compare::left(&ours, told)?,
            _ => {}
        }
    }
    Ok(())
}
