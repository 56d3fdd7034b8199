//! The provider's side: its export, row by row. Nothing is skipped: a row that cannot be read ends the
//! check, with its line.

use std::{
    cell::Cell,
    io::{self, BufRead, BufReader, Read},
    rc::Rc,
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;
use csv::StringRecord;
use onceward::{Key, LookupKey, clock::Timestamp};
use serde_json::value::RawValue;

use super::{Amount, Charge, pointer::Pointer};
use crate::{admin::time, config::hint};

/// How an export is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Comma-separated values with a line of names (RFC 4180).
    Csv,
    /// One JSON object per line.
    Jsonl,
}

/// Where in a row what stands: names of columns, or of members; a JSON pointer if it begins with a
/// slash.
#[derive(Clone, Debug, Default)]
pub(crate) struct Columns {
    pub(crate) id: String,
    pub(crate) amount: Option<String>,
    pub(crate) currency: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) time: Option<String>,
    /// Only rows with these values count.
    pub(crate) only: Vec<(String, String)>,
    /// Amounts are whole numbers of units that are this many digits smaller.
    pub(crate) minor_units: u8,
}

/// An export that can be read.
pub(crate) struct Export {
    pub(crate) format: Format,
    pub(crate) columns: Columns,
    /// Keys are stored as their HMAC here, and have to be compared as such.
    pub(crate) lookup_key: Option<LookupKey>,
}

/// What a row says; nothing if it does not count.
pub(crate) type Row = Option<(Charge, Option<Timestamp>)>;

impl Export {
    /// Hands on each row. `each` also gets how many bytes were read so far.
    pub(crate) fn read(
        &self,
        input: impl Read,
        each: impl FnMut(Row, u64) -> Result<()>,
    ) -> Result<()> {
        match self.format {
            Format::Csv => self.read_csv(input, each),
            Format::Jsonl => self.read_jsonl(input, each),
        }
    }

    fn read_csv(
        &self,
        input: impl Read,
        mut each: impl FnMut(Row, u64) -> Result<()>,
    ) -> Result<()> {
        let seen = Rc::<Seen>::default();
        let input = Counted { input, seen: Rc::clone(&seen) };
        let mut reader = csv::ReaderBuilder::new().buffer_capacity(1 << 18).from_reader(input);
        let names = reader.headers().map_err(told)?.clone();
        let columns = self.columns.find(&names)?;
        let mut record = StringRecord::new();
        while reader.read_record(&mut record).map_err(told)? {
            let line = record.position().map_or(0, csv::Position::line);
            let cell = |place: &usize| record.get(*place).map(str::to_owned);
            let row = self.row(line, &columns, cell).with_context(|| at_line(line))?;
            each(row, seen.bytes.get())?;
        }
        // The reader takes the rest of the file for one cell and does not mind.
        ensure!(
            seen.quotes.get().is_multiple_of(2),
            "a quotation mark is not closed; is the export cut off?"
        );
        Ok(())
    }

    fn read_jsonl(
        &self,
        input: impl Read,
        mut each: impl FnMut(Row, u64) -> Result<()>,
    ) -> Result<()> {
        let columns = self.columns.pointers()?;
        let mut input = BufReader::with_capacity(1 << 18, input);
        let (mut line, mut text, mut bytes) = (0, Vec::new(), 0);
        loop {
            text.clear();
            line += 1;
            bytes += input.read_until(b'\n', &mut text).with_context(|| at_line(line))? as u64;
            if text.is_empty() {
                return Ok(());
            }
            if text.trim_ascii().is_empty() {
                continue;
            }
            let document = object(&text).with_context(|| at_line(line))?;
            let row = self.row(line, &columns, |pointer| pointer.text(document));
            each(row.with_context(|| at_line(line))?, bytes)?;
        }
    }

    /// What a row says, whose cells `cell` knows.
    fn row<C>(
        &self,
        line: u64,
        columns: &Found<C>,
        cell: impl Fn(&C) -> Option<String>,
    ) -> Result<Row> {
        let cell = |column: &C| {
            let text = cell(column)?;
            let trimmed = text.trim();
            (!trimmed.is_empty()).then(|| trimmed.to_owned())
        };
        let names = &self.columns;
        for ((_, wanted), column) in names.only.iter().zip(&columns.only) {
            if cell(column).unwrap_or_default() != *wanted {
                return Ok(None);
            }
        }
        let must = |column: &Option<C>, name: &Option<String>| -> Result<Option<String>> {
            let Some(column) = column else { return Ok(None) };
            let name = name.as_deref().unwrap_or_default();
            Ok(Some(cell(column).with_context(|| format!("`{name}` is empty"))?))
        };
        let id = cell(&columns.id).with_context(|| format!("`{}` is empty", names.id))?;
        let amount = must(&columns.amount, &names.amount)?;
        let amount = amount.map(|text| {
            let amount = text.parse().and_then(|it: Amount| it.of_minor_units(names.minor_units));
            amount.with_context(|| format!("`{}`: `{text}`", names.amount.as_deref().unwrap_or("")))
        });
        let time = must(&columns.time, &names.time)?;
        let moment = time.as_deref().map(moment).transpose()?;
        let key = columns.key.as_ref().and_then(cell).map(|key| self.stored(key));
        let charge = Charge {
            line,
            id,
            key,
            amount: amount.transpose()?,
            currency: must(&columns.currency, &names.currency)?,
            at: time,
        };
        Ok(Some((charge, moment)))
    }

    /// A key as stores have it.
    fn stored(&self, key: String) -> String {
        match (&self.lookup_key, Key::new(key.as_str())) {
            (Some(lookup), Ok(sent)) => lookup.stored_unless_it_is(&sent).as_str().to_owned(),
            _ => key,
        }
    }
}

/// The columns, found.
struct Found<C> {
    id: C,
    amount: Option<C>,
    currency: Option<C>,
    key: Option<C>,
    time: Option<C>,
    only: Vec<C>,
}

impl Columns {
    fn each<C>(&self, find: impl Fn(&str) -> Result<C>) -> Result<Found<C>> {
        let given = |name: &Option<String>| name.as_deref().map(&find).transpose();
        Ok(Found {
            id: find(&self.id)?,
            amount: given(&self.amount)?,
            currency: given(&self.currency)?,
            key: given(&self.key)?,
            time: given(&self.time)?,
            only: self.only.iter().map(|(name, _)| find(name)).collect::<Result<_>>()?,
        })
    }

    fn find(&self, names: &StringRecord) -> Result<Found<usize>> {
        self.each(|wanted| {
            let mut places = names.iter().enumerate().filter(|(_, name)| name.trim() == wanted);
            match (places.next(), places.next()) {
                (Some((place, _)), None) => Ok(place),
                (Some(_), Some(_)) => bail!("line 1: there are two columns `{wanted}`"),
                (None, _) => {
                    let known: Vec<&str> = names.iter().collect();
                    bail!("line 1: there is no column `{wanted}`{}", hint(wanted, &known))
                }
            }
        })
    }

    fn pointers(&self) -> Result<Found<Pointer>> {
        self.each(|name| match name.starts_with('/') {
            true => Ok(name.parse()?),
            false => Ok(Pointer::member(name)),
        })
    }
}

/// The object that a line holds.
pub(super) fn object(line: &[u8]) -> Result<&RawValue> {
    let document: &RawValue = serde_json::from_slice(line).map_err(bad_json)?;
    ensure!(document.get().starts_with('{'), "not a JSON object");
    Ok(document)
}

/// Without the line within the line, which is always 1.
pub(super) fn bad_json(error: serde_json::Error) -> anyhow::Error {
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or_default();
    anyhow::anyhow!("{what} (column {})", error.column())
}

pub(super) fn at_line(line: u64) -> String {
    format!("line {line}")
}

/// What the CSV reader complains about, with its line first.
fn told(error: csv::Error) -> anyhow::Error {
    let line = error.position().map(csv::Position::line);
    let what = match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("{len} cells where the first line has {expected_len}")
        }
        csv::ErrorKind::Utf8 { .. } => "not UTF-8".to_owned(),
        _ => error.to_string(),
    };
    match line {
        Some(line) => anyhow::anyhow!("{}: {what}", at_line(line)),
        None => anyhow::anyhow!(what),
    }
}

/// A time as exports have it: RFC 3339, or without a zone, which is UTC then, or a date, or seconds
/// since 1970.
pub(crate) fn moment(text: &str) -> Result<Timestamp> {
    let seconds = text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<i64>().ok());
    if let Some(micros) = seconds.flatten().and_then(|seconds| seconds.checked_mul(1_000_000)) {
        return Ok(Timestamp::from_micros(micros));
    }
    let spellings = ["", "Z", ":00Z", "T00:00:00Z"].map(|rest| format!("{text}{rest}"));
    let found = spellings.iter().find_map(|spelling| time::parse(spelling));
    found.with_context(|| format!("`{text}` is not a time such as 2026-01-31T12:00:00Z"))
}

/// What went through a reader.
#[derive(Default)]
struct Seen {
    bytes: Cell<u64>,
    quotes: Cell<u64>,
}

/// Leaves carriage returns out: with them the reader counts lines wrongly, and no cell that is
/// compared has one.
struct Counted<R> {
    input: R,
    seen: Rc<Seen>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.input.read(buffer)?;
            let mut kept = 0;
            for place in 0..read {
                let byte = buffer[place];
                if byte != b'\r' {
                    buffer[kept] = byte;
                    kept += 1;
                }
            }
            let new = buffer.get(..kept).unwrap_or_default();
            let quotes = new.iter().filter(|byte| **byte == b'"').count();
            self.seen.bytes.set(self.seen.bytes.get() + read as u64);
            self.seen.quotes.set(self.seen.quotes.get() + quotes as u64);
            // Nothing would mean the end.
            if kept > 0 || read == 0 {
                return Ok(kept);
            }
        }
    }
}
