//! The line of a decision. There is one for each request, so that it is written without what makes
//! other lines beautiful.

use std::{
    cell::RefCell,
    fmt::{self, Write as _},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use onceward::{clock::Timestamp, observe::DECISION};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer},
    registry::LookupSpan,
};

use crate::{admin::time::rfc3339, cli::LogFormat};

/// Writes decisions by itself, and leaves all other lines to the usual way, whose form it keeps.
pub(super) struct Decisions<F> {
    pub(super) format: LogFormat,
    pub(super) others: F,
}

impl<S, N, F> FormatEvent<S, N> for Decisions<F>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    N: for<'writer> FormatFields<'writer> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if event.metadata().target() != DECISION {
            return self.others.format_event(context, writer, event);
        }
        thread_local! {
            static LINE: RefCell<String> = const { RefCell::new(String::new()) };
        }
        // Put together here: each part that a writer is given costs more than the part.
        LINE.with_borrow_mut(|line| {
            line.clear();
            self.write_line(event, line);
            writer.write_str(line)
        })
    }
}

impl<F> Decisions<F> {
    fn write_line(&self, event: &Event<'_>, line: &mut String) {
        let level = event.metadata().level().as_str();
        match self.format {
            LogFormat::Text => {
                write_time(line);
                line.extend([" ", " ", level, " ", DECISION, ":"]);
            }
            LogFormat::Json => {
                line.push_str("{\"timestamp\":\"");
                write_time(line);
                line.extend(["\",\"level\":\"", level, "\""]);
            }
        }
        event.record(&mut Fields { format: self.format, line });
        match self.format {
            LogFormat::Text => line.push('\n'),
            LogFormat::Json => {
                line.extend([",\"target\":\"", DECISION, "\"}\n"]);
            }
        }
    }
}

/// The time in UTC, to the microsecond. All but that is the same for a second.
fn write_time(line: &mut String) {
    thread_local! {
        static SECOND: RefCell<(u64, String)> = const { RefCell::new((0, String::new())) };
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    SECOND.with_borrow_mut(|(second, written)| {
        if *second != now.as_secs() || written.is_empty() {
            let whole = i64::try_from(now.as_secs()).unwrap_or(0).saturating_mul(1_000_000);
            *written = rfc3339(Timestamp::from_micros(whole)).replace('Z', ".");
            *second = now.as_secs();
        }
        line.push_str(written);
        push_ascii(line, &digits::<6>(now.subsec_micros().into()).0);
        line.push('Z');
    });
}

/// A number in decimal digits at the end of a room, with zeros before it: and how many of them count.
fn digits<const ROOM: usize>(number: u64) -> ([u8; ROOM], usize) {
    let mut written = [b'0'; ROOM];
    let (mut left, mut count) = (number, 0);
    for digit in written.iter_mut().rev() {
        *digit += u8::try_from(left % 10).unwrap_or(0);
        (left, count) = (left / 10, count + 1);
        if left == 0 {
            break;
        }
    }
    (written, count)
}

fn push_ascii(line: &mut String, text: &[u8]) {
    text.iter().for_each(|byte| line.push(char::from(*byte)));
}

fn write_number(line: &mut String, number: u64) {
    let (digits, count) = digits::<20>(number);
    push_ascii(line, digits.get(20 - count..).unwrap_or_default());
}

/// A number of not too many thousandths, if it is one: milliseconds that were measured in
/// microseconds.
fn thousandths(value: f64) -> Option<u64> {
    let thousandths = (value * 1000.0).round();
    let is_exact = (0.0..1e12).contains(&value) && thousandths / 1000.0 == value;
    is_exact.then_some(thousandths as u64)
}

/// As any number with a fraction is written: with no more digits than it has, and at least one.
fn write_thousandths(line: &mut String, thousandths: u64) {
    write_number(line, thousandths / 1000);
    line.push('.');
    let (fraction, _) = digits::<3>(thousandths % 1000);
    let zeros = fraction.iter().skip(1).rev().take_while(|digit| **digit == b'0').count();
    push_ascii(line, fraction.get(..3 - zeros).unwrap_or_default());
}

struct Fields<'a> {
    format: LogFormat,
    line: &'a mut String,
}

impl Fields<'_> {
    fn name(&mut self, field: &Field) {
        let [before, after] = match self.format {
            LogFormat::Text => [" ", "="],
            LogFormat::Json => [",\"", "\":"],
        };
        self.line.extend([before, field.name(), after]);
    }

    fn text(&mut self, text: &str) {
        let is_plain = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
        match self.format {
            _ if text.bytes().all(is_plain) => {
                self.line.extend(["\"", text, "\""]);
            }
            LogFormat::Text => self.debug(&text),
            LogFormat::Json => self.line.push_str(&serde_json::Value::from(text).to_string()),
        }
    }

    fn debug(&mut self, value: &dyn fmt::Debug) {
        // Writing to a text does not fail.
        let _ = write!(self.line, "{value:?}");
    }
}

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.name(field);
        self.text(value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.name(field);
        write_number(self.line, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.name(field);
        match thousandths(value) {
            Some(thousandths) => write_thousandths(self.line, thousandths),
            None => self.debug(&value),
        }
    }

    /// What it says, which is first.
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" && matches!(self.format, LogFormat::Text) {
            self.line.push(' ');
            return self.debug(value);
        }
        self.name(field);
        self.text(&format!("{value:?}"));
    }
}
#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        sync::{Arc, Mutex},
    };

    use tracing::{info, subscriber::with_default};
    use tracing_subscriber::fmt::{MakeWriter, format, format::JsonFields};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("not poisoned").write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Written {
        type Writer = Written;

        fn make_writer(&self) -> Written {
            self.clone()
        }
    }

    fn events() {
        for (route, duration_ms) in [
            ("POST /v1/**", 12.4),
            ("\"\\\u{e9}\n", 3.0),
            ("r", 0.007),
            ("r", 1234.56),
            ("r", 0.1 + 0.2),
        ] {
            let (attempt, nothing) = (Some(1_u32), None::<u32>);
            let (status, generation) = (201_u16, 12_u32);
            let digest = "3f8a01bc";
            info!(target: DECISION, parent: None, route, status, duration_ms, attempt, nothing,
                generation, key.digest = digest, "{}", "decision");
        }
        info!(why = "stop", "another line");
    }

    fn lines(format: LogFormat, by_hand: bool) -> Vec<String> {
        let written = Written::default();
        let subscriber = tracing_subscriber::fmt().with_writer(written.clone()).with_ansi(false);
        match (format, by_hand) {
            (LogFormat::Text, false) => with_default(subscriber.finish(), events),
            (LogFormat::Text, true) => {
                let others = format::format().with_ansi(false);
                let subscriber = subscriber.event_format(Decisions { format, others });
                with_default(subscriber.finish(), events);
            }
            (LogFormat::Json, by_hand) => {
                let others = format::format().json().flatten_event(true).with_span_list(false);
                let subscriber = subscriber.fmt_fields(JsonFields::new());
                match by_hand {
                    false => with_default(subscriber.event_format(others).finish(), events),
                    true => {
                        let subscriber = subscriber.event_format(Decisions { format, others });
                        with_default(subscriber.finish(), events);
                    }
                }
            }
        }
        let written = written.0.lock().expect("not poisoned").clone();
        String::from_utf8(written).expect("text").lines().map(str::to_owned).collect()
    }

    /// How a time looks.
    fn shape(time: &str) -> String {
        time.replace(|char: char| char.is_ascii_digit(), "0")
    }

    #[test]
    fn a_decision_is_written_as_any_other_line() {
        let (ours, usual) = (lines(LogFormat::Text, true), lines(LogFormat::Text, false));
        assert_eq!((ours.len(), usual.len()), (6, 6));
        for (ours, usual) in ours.iter().zip(&usual) {
            let (our_time, ours) = ours.split_at(27);
            let (usual_time, usual) = usual.split_at(27);
            assert_eq!((shape(our_time), ours), (shape(usual_time), usual));
        }
    }

    #[test]
    fn a_decision_in_json_has_the_same_parts_as_any_other_line() {
        let (ours, usual) = (lines(LogFormat::Json, true), lines(LogFormat::Json, false));
        assert_eq!((ours.len(), usual.len()), (6, 6));
        for (ours, usual) in ours.iter().zip(&usual) {
            let [mut ours, mut usual] = [ours, usual]
                .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("an object"));
            let [our_time, usual_time] = [&mut ours, &mut usual]
                .map(|line| line["timestamp"].take().as_str().map(shape).expect("a time"));
            assert_eq!((our_time, ours), (usual_time, usual));
        }
    }
}
