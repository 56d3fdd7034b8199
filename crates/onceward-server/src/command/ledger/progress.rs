use std::{
    io::{IsTerminal as _, Write as _},
    time::{Duration, Instant},
};

/// Often enough to see that it moves.
const EVERY: Duration = Duration::from_millis(500);

/// The clock is not asked for each row.
const ROWS: u32 = 1000;

/// One line on stderr, again and again.
pub(super) struct Progress {
    shown: bool,
    terminal: bool,
    last: Instant,
    rows: u32,
}

impl Progress {
    /// Shown on a terminal, or where it is asked for.
    pub(super) fn new(asked: bool) -> Progress {
        let terminal = std::io::stderr().is_terminal();
        Progress { shown: asked || terminal, terminal, last: Instant::now(), rows: 0 }
    }

    /// One row further. What is said about it is made only when it is shown.
    pub(super) fn row(&mut self, text: impl FnOnce() -> String) {
        self.rows = self.rows.wrapping_add(1);
        if self.rows.is_multiple_of(ROWS) {
            self.step(text);
        }
    }

    /// Many rows further.
    pub(super) fn step(&mut self, text: impl FnOnce() -> String) {
        if self.last.elapsed() >= EVERY {
            self.last = Instant::now();
            self.write(&text());
        }
    }

    /// The last row of a side.
    pub(super) fn done(&self, text: &str) {
        self.write(text);
    }

    fn write(&self, text: &str) {
        if !self.shown {
            return;
        }
        // Nobody may be left to read it.
        let _ = match self.terminal {
            true => write!(std::io::stderr(), "\r\x1b[K{text}"),
            false => writeln!(std::io::stderr(), "{text}"),
        };
    }

    /// Makes room for what comes.
    pub(super) fn end(&self) {
        if self.shown && self.terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
