//! What came of it all, as a table.

use std::{
    fmt,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use super::{Explored, Mistake, Seen, Situation, World, explore};

/// What the worlds and the mistakes came to.
#[derive(Debug)]
pub struct Report {
    worlds: Vec<(World, Explored)>,
    mistakes: Vec<(Mistake, Explored)>,
}

/// Explores the worlds, and looks for every mistake.
pub fn run(worlds: &[World]) -> Report {
    let worlds = on_all_cores(worlds, |world| explore(*world, None));
    let mistakes = on_all_cores(&Mistake::ALL, |mistake| explore(mistake.world(), Some(*mistake)));
    Report { worlds, mistakes }
}

fn on_all_cores<T: Copy + Sync + Send, R: Send>(
    tasks: &[T],
    work: impl Fn(&T) -> R + Sync,
) -> Vec<(T, R)> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..cores.min(tasks.len()) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(task) = tasks.get(number) else { return };
                    let result = work(task);
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    done.push((number, *task, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(number, ..)| *number);
    done.into_iter().map(|(_, task, result)| (task, result)).collect()
}

impl Report {
    /// The worlds, with what was found in them.
    pub fn worlds(&self) -> &[(World, Explored)] {
        &self.worlds
    }

    /// The mistakes, with how they were found.
    pub fn mistakes(&self) -> &[(Mistake, Explored)] {
        &self.mistakes
    }

    /// The situations that came up in no world.
    pub fn missing(&self) -> Vec<Situation> {
        let mut seen = Seen::default();
        self.worlds.iter().for_each(|(_, explored)| seen |= explored.seen);
        seen.missing()
    }

    /// Whether nothing is wrong in any world, every situation came up, and every mistake was found.
    pub fn holds(&self) -> bool {
        let right = self.worlds.iter().all(|(_, explored)| explored.counterexample.is_none());
        let found = self.mistakes.iter().all(|(_, explored)| explored.counterexample.is_some());
        right && found && self.missing().is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<38} {:>9} {:>11} {:>6} {:>8}  verdict",
            "world", "states", "transitions", "depth", "seconds"
        )?;
        let (mut states, mut transitions, mut took) = (0, 0, Duration::ZERO);
        for (world, explored) in &self.worlds {
            let verdict = if explored.counterexample.is_some() { "WRONG" } else { "holds" };
            let Explored { states: here, transitions: steps, depth, .. } = explored;
            let seconds = explored.took.as_secs_f64();
            writeln!(
                f,
                "{:<38} {here:>9} {steps:>11} {depth:>6} {seconds:>8.2}  {verdict}",
                world.name
            )?;
            states += here;
            transitions += steps;
            took += explored.took;
        }
        let (all, seconds) = (self.worlds.len(), took.as_secs_f64());
        let total = format!("{all} worlds");
        writeln!(f, "{total:<38} {states:>9} {transitions:>11} {:>6} {seconds:>8.2}", "")?;
        for (world, explored) in &self.worlds {
            if let Some(counterexample) = &explored.counterexample {
                writeln!(f, "\n{}: {counterexample}", world.name)?;
            }
        }
        self.write_situations(f)?;
        self.write_mistakes(f)
    }
}

impl Report {
    fn write_situations(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let missing = self.missing();
        let came_up = Situation::ALL.len() - missing.len();
        writeln!(f, "\n{came_up} of {} situations came up", Situation::ALL.len())?;
        missing.iter().try_for_each(|missing| writeln!(f, "  NEVER: {}", missing.text()))
    }

    fn write_mistakes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{:<56} {:>7} {:>6}  found as",
            "mistake made on purpose", "states", "steps"
        )?;
        for (mistake, explored) in &self.mistakes {
            let (steps, found) = match &explored.counterexample {
                Some(found) => (found.steps.len(), &*found.wrong),
                None => (0, "NOT FOUND"),
            };
            writeln!(f, "{:<56} {:>7} {steps:>6}  {found}", mistake.text(), explored.states)?;
        }
        Ok(())
    }
}
