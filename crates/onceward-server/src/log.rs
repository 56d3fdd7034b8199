//! Log lines to stderr, by a thread of its own: who reads them slowly holds up no request.

use std::{
    io::{self, Write},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tracing_subscriber::{EnvFilter, fmt, fmt::MakeWriter};

use crate::cli::LogFormat;

mod decision; // one line for each request

use decision::Decisions;

/// What may wait to be written. A line that finds no room is dropped, and counted.
const WAITING_MAX: usize = 4 << 20;

/// Under load, lines are written together this often. A line alone is written at once.
const TOGETHER: Duration = Duration::from_millis(5);

/// How long the end of the process waits for a reader.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(2);

/// Logs are written until this is dropped; what waits then is written first.
#[must_use]
pub(crate) struct Logs {
    queue: Arc<Queue>,
    writer: Option<JoinHandle<()>>,
}

/// Sends logs to stderr: what RUST_LOG says, else from `level` on.
pub(crate) fn install(format: LogFormat, level: &str) -> Logs {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let (logs, lines) = Logs::to(io::stderr(), format);
    let subscriber = fmt().with_env_filter(filter).with_writer(lines).with_ansi(false);
    match format {
        LogFormat::Text => {
            let others = fmt::format().with_ansi(false);
            subscriber.event_format(Decisions { format, others }).init();
        }
        LogFormat::Json => {
            let others = fmt::format().json().flatten_event(true).with_span_list(false);
            let fields = fmt::format::JsonFields::new();
            subscriber.fmt_fields(fields).event_format(Decisions { format, others }).init();
        }
    }
    logs
}

impl Logs {
    fn to(out: impl Write + Send + 'static, format: LogFormat) -> (Logs, Lines) {
        let queue = Arc::<Queue>::default();
        let theirs = Arc::clone(&queue);
        let writer = thread::Builder::new().name("onceward-log".into());
        // Without a thread lines are written where they are said.
        let writer = writer.spawn(move || theirs.write_to(out, format)).ok();
        let lines = Lines { queue: writer.is_some().then(|| Arc::clone(&queue)) };
        (Logs { queue, writer }, lines)
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        self.queue.lock().ends = true;
        self.queue.more.notify_all();
        let until = Instant::now() + FLUSH_TIME_MAX;
        let Some(writer) = self.writer.take() else { return };
        let mut waiting = self.queue.lock();
        while !waiting.ended && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            waiting = match self.queue.done.wait_timeout(waiting, left) {
                Ok((waiting, _)) => waiting,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        if waiting.ended {
            drop(waiting);
            // It has nothing more to do.
            let _ = writer.join();
        }
    }
}

/// Where lines wait.
#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    /// There is a line, or the end.
    more: Condvar,
    /// All is written.
    done: Condvar,
}

#[derive(Default)]
struct Waiting {
    lines: Vec<u8>,
    dropped: u64,
    /// Nobody looks unless told.
    asleep: bool,
    ends: bool,
    ended: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lines come whole.
    fn push(&self, line: &[u8]) {
        let mut waiting = self.lock();
        if waiting.lines.len() + line.len() > WAITING_MAX {
            waiting.dropped += 1;
            return;
        }
        waiting.lines.extend_from_slice(line);
        if std::mem::take(&mut waiting.asleep) {
            drop(waiting);
            self.more.notify_one();
        }
    }

    fn write_to(&self, mut out: impl Write, format: LogFormat) {
        let mut lines = Vec::new();
        loop {
            let mut waiting = self.lock();
            while waiting.lines.is_empty() && waiting.dropped == 0 && !waiting.ends {
                waiting.asleep = true;
                waiting = self.more.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            }
            waiting.asleep = false;
            std::mem::swap(&mut waiting.lines, &mut lines);
            let dropped = std::mem::take(&mut waiting.dropped);
            let ends = waiting.ends;
            drop(waiting);
            // There is nobody to tell that stderr is closed.
            let _ = out.write_all(&lines);
            if dropped > 0 {
                let _ = out.write_all(dropped_line(dropped, format).as_bytes());
            }
            let _ = out.flush();
            lines.clear();
            if ends && self.lock().lines.is_empty() {
                self.lock().ended = true;
                self.done.notify_all();
                return;
            }
            if !ends {
                thread::sleep(TOGETHER);
            }
        }
    }
}

/// Takes lines, and never waits for who reads them.
struct Lines {
    queue: Option<Arc<Queue>>,
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = &'a Lines;

    fn make_writer(&'a self) -> &'a Lines {
        self
    }
}

impl Write for &Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match &self.queue {
            Some(queue) => {
                queue.push(line);
                Ok(line.len())
            }
            None => io::stderr().write(line),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn dropped_line(lines: u64, format: LogFormat) -> String {
    match format {
        LogFormat::Text => {
            format!("WARN onceward: log lines were dropped: stderr is slow lines={lines}\n")
        }
        LogFormat::Json => format!(
            "{{\"level\":\"WARN\",\"message\":\"log lines were dropped: stderr is slow\",\"lines\":{lines}}}\n"
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A reader that takes one write for each permit, and keeps what it read.
    struct Reader {
        permits: mpsc::Receiver<()>,
        read: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // Without a sender all is permitted.
            let _ = self.permits.recv();
            self.read.lock().expect("not poisoned").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logs(format: LogFormat) -> (Logs, Lines, mpsc::Sender<()>, Arc<Mutex<Vec<u8>>>) {
        let (permit, permits) = mpsc::channel();
        let read = Arc::<Mutex<Vec<u8>>>::default();
        let (logs, lines) = Logs::to(Reader { permits, read: Arc::clone(&read) }, format);
        (logs, lines, permit, read)
    }

    fn text(read: &Mutex<Vec<u8>>) -> String {
        String::from_utf8(read.lock().expect("not poisoned").clone()).expect("text")
    }

    #[test]
    fn lines_come_whole_and_in_order_and_are_all_written_at_the_end() {
        let (logs, lines, permit, read) = logs(LogFormat::Text);
        drop(permit);
        let said: Vec<_> = (0..1000).map(|number| format!("line {number}\n")).collect();
        for line in &said {
            (&lines).write_all(line.as_bytes()).expect("taken");
        }
        drop(logs);
        assert_eq!(text(&read), said.concat());
    }

    #[test]
    fn who_reads_nothing_holds_up_nobody_and_is_told_what_was_dropped() {
        for (format, says) in [
            (LogFormat::Text, "stderr is slow lines="),
            (LogFormat::Json, "stderr is slow\",\"lines\":"),
        ] {
            let (logs, lines, permit, read) = logs(format);
            let line = [b'x'; 1023];
            let many = 3 * WAITING_MAX / 1024;
            for _ in 0..many {
                (&lines).write_all(&line).expect("taken");
                (&lines).write_all(b"\n").expect("taken");
            }
            drop(permit);
            drop(logs);
            let text = text(&read);
            assert!(text.contains(says), "{}", &text[text.len() - 100..]);
            assert!(text.len() < 3 * WAITING_MAX, "{}", text.len());
        }
    }
}
