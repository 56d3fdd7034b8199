//! Who else used the machine during a measurement. A figure from a busy machine is none.

use std::{collections::HashMap, fs, path::Path};

use anyhow::Context as _;
use serde::Serialize;

/// Shares of the whole machine's processor time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Interference {
    /// Processes that do not belong to the benchmark.
    pub(crate) foreign: f64,
    /// What the host gave to other machines.
    pub(crate) steal: f64,
}

/// Processor time used so far, in ticks. Interrupts belong to nobody, and are left out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Snapshot {
    total: u64,
    busy: u64,
    steal: u64,
    ours: u64,
}

impl Snapshot {
    /// `roots` are the processes that, with all their descendants, belong to the benchmark.
    pub(crate) fn take(roots: &[u32]) -> anyhow::Result<Self> {
        let machine = fs::read_to_string("/proc/stat").context("no /proc/stat: not on Linux?")?;
        let mut snapshot = Self::parse(&machine).context("/proc/stat is not understood")?;
        let mut processes = HashMap::new();
        for entry in fs::read_dir("/proc")?.flatten() {
            let id = entry.file_name().to_str().and_then(|name| name.parse().ok());
            // A process may end while we look.
            if let Some(id) = id
                && let Some(process) = Process::read(&entry.path())
            {
                processes.insert(id, process);
            }
        }
        let ours = |id: &u32| ancestry(*id, &processes).any(|id| roots.contains(&id));
        snapshot.ours =
            processes.iter().filter(|(id, _)| ours(id)).map(|(_, one)| one.ticks + one.ended).sum();
        Ok(snapshot)
    }

    fn parse(machine: &str) -> Option<Self> {
        let all = machine.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> =
            all.split_whitespace().filter_map(|field| field.parse().ok()).collect();
        // Guests, the last two, are part of user and nice.
        let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = ticks[..] else {
            return None;
        };
        let busy = user + nice + system;
        let total = busy + idle + iowait + irq + softirq + steal;
        Some(Snapshot { total, busy, steal, ours: 0 })
    }

    /// What others did between an earlier one and this one.
    pub(crate) fn since(self, earlier: Self) -> Interference {
        let total = (self.total - earlier.total).max(1) as f64;
        let ours = self.ours.saturating_sub(earlier.ours);
        let foreign = (self.busy - earlier.busy).saturating_sub(ours);
        Interference {
            foreign: foreign as f64 / total,
            steal: (self.steal - earlier.steal) as f64 / total,
        }
    }
}

/// How long the processors have worked for a process so far, in seconds.
pub(crate) fn worked_for(process: u32) -> anyhow::Result<f64> {
    // On Linux a tick is a hundredth of a second for whoever reads it here.
    const TICKS_PER_SECOND: f64 = 100.0;
    let read = Process::read(&Path::new("/proc").join(process.to_string()));
    Ok(read.context("a contestant has ended")?.ticks as f64 / TICKS_PER_SECOND)
}

struct Process {
    parent: u32,
    ticks: u64,
    /// Of its children that have ended.
    ended: u64,
}

impl Process {
    fn read(directory: &Path) -> Option<Self> {
        Self::parse(&fs::read_to_string(directory.join("stat")).ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        // The name, in parentheses, may hold anything. After it: state, parent, and so on.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        let parent = u32::try_from(number(1)?).ok()?;
        let (ticks, ended) = (number(11)? + number(12)?, number(13)? + number(14)?);
        Some(Process { parent, ticks, ended })
    }
}

/// A process, its parent, and so on.
fn ancestry(id: u32, processes: &HashMap<u32, Process>) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(id), |id| processes.get(id).map(|one| one.parent))
        .take(processes.len() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_ours_is_foreign() {
        let before = Snapshot { total: 1000, busy: 100, steal: 0, ours: 50 };
        let after = Snapshot { total: 1200, busy: 200, steal: 20, ours: 100 };
        assert_eq!(after.since(before), Interference { foreign: 0.25, steal: 0.1 });
        let after = Snapshot { ours: 150, ..after };
        assert_eq!(after.since(before), Interference { foreign: 0.0, steal: 0.1 });
    }

    #[test]
    fn the_files_of_proc_are_read_field_by_field() {
        let machine = Snapshot::parse("cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2 3 4\n");
        assert_eq!(machine, Some(Snapshot { total: 36, busy: 6, steal: 8, ours: 0 }));
        assert_eq!(Snapshot::parse("cpu0 1 2 3"), None);
        let process =
            Process::parse("7 (a) b) S 3 7 7 0 -1 0 0 0 0 0 40 2 9 9 20 0").expect("read");
        assert_eq!((process.parent, process.ticks, process.ended), (3, 42, 18));
    }

    #[test]
    fn our_own_work_is_ours() {
        let own = [std::process::id()];
        let before = Snapshot::take(&own).expect("on Linux");
        let mut work = 0_u64;
        let after = loop {
            work = (0..1_000_000).fold(work, |sum, next| std::hint::black_box(sum ^ next));
            let now = Snapshot::take(&own).expect("on Linux");
            if now.ours > before.ours {
                break now;
            }
        };
        assert!(after.busy > before.busy);
        assert!(worked_for(own[0]).expect("on Linux") > 0.0);
        assert_eq!(Snapshot::take(&[u32::MAX]).expect("on Linux").ours, 0);
    }
}
