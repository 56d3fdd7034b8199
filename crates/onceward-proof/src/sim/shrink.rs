//! The shortest list of choices that still fails. Zero is the dull choice, so that a list with more
//! zeros is a simpler story.

use super::{Run, bugs::Bug, run_list};

/// How many runs are spent on it.
const RUNS_MAX: u32 = 3_000;

/// A failing list of choices, made as dull as possible while the same invariant fails.
pub fn shrink(list: Vec<u32>, bug: Option<Bug>) -> (Vec<u32>, Run) {
    let first = run_list(list.clone(), bug);
    let invariant = first.violation.as_ref().map(|violation| violation.invariant);
    let mut best = Best { list, run: first, runs: 0, bug, invariant };
    loop {
        let before = best.list.clone();
        best.cut_the_end();
        let mut size = best.list.len().next_power_of_two();
        while size > 0 {
            best.chunks(size, |list, from, to| {
                list.drain(from..to);
            });
            best.chunks(size, |list, from, to| {
                list.iter_mut().take(to).skip(from).for_each(|chosen| *chosen = 0);
            });
            size /= 2;
        }
        if best.list == before || best.runs >= RUNS_MAX {
            return (best.list, best.run);
        }
    }
}

struct Best {
    list: Vec<u32>,
    run: Run,
    runs: u32,
    bug: Option<Bug>,
    invariant: Option<&'static str>,
}

impl Best {
    fn chunks(&mut self, size: usize, change: impl Fn(&mut Vec<u32>, usize, usize)) {
        let mut from = 0;
        while from < self.list.len() {
            let to = (from + size).min(self.list.len());
            let mut list = self.list.clone();
            change(&mut list, from, to);
            let shorter = list.len() < self.list.len();
            if !(self.try_list(list) && shorter) {
                from += size;
            }
        }
    }

    /// Choices after the last that was asked for, and dull ones at the end, say nothing.
    fn cut_the_end(&mut self) {
        self.list.truncate(self.run.choices.len());
        let used = self.list.iter().rposition(|chosen| *chosen != 0).map_or(0, |last| last + 1);
        self.list.truncate(used);
    }

    fn try_list(&mut self, list: Vec<u32>) -> bool {
        if list == self.list || self.runs >= RUNS_MAX {
            return false;
        }
        self.runs += 1;
        let run = run_list(list.clone(), self.bug);
        let fails = run.violation.as_ref().map(|violation| violation.invariant);
        let same = fails.is_some() && fails == self.invariant;
        if same {
            self.list = list;
            self.run = run;
        }
        same
    }
}
