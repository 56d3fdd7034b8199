//! Where a page ended, as a text that means nothing to others.

use std::{fmt, str::FromStr};

use crate::{
    clock::Timestamp,
    key::Key,
    record::{
        AttemptId, AuditEvent, AuditRecord, Fence, RecordId,
        handle::{decode, encode},
    },
    scope::Scope,
};

/// The place of a record in a list. As text it goes to a client and comes back.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    /// The time by which the list is sorted.
    pub at: Timestamp,
    /// The record.
    pub id: RecordId,
}

/// The place of an audit record in their list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AuditCursor {
    /// When it happened.
    pub at: Timestamp,
    /// To which record.
    pub id: RecordId,
    /// To which generation of it.
    pub generation: u32,
    /// What happened, by its stored name.
    pub event: &'static str,
    /// To which attempt.
    pub attempt: AttemptId,
    /// With which fence.
    pub fence: Fence,
}

/// A text that is not a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not a cursor of an earlier page")]
pub struct BadCursor;

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&encode(&place(self.at, &self.id)))
    }
}

impl FromStr for Cursor {
    type Err = BadCursor;

    fn from_str(text: &str) -> Result<Self, BadCursor> {
        read_cursor(text).ok_or(BadCursor)
    }
}

impl AuditCursor {
    /// The place of this one.
    pub fn of(audit: &AuditRecord) -> Self {
        AuditCursor {
            at: audit.at,
            id: audit.id.clone(),
            generation: audit.generation,
            event: audit.event.name(),
            attempt: audit.attempt,
            fence: audit.fence,
        }
    }
}

impl fmt::Display for AuditCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attempt = u128::from_be_bytes(*self.attempt.as_bytes());
        let text = format!(
            "{} {} {} {attempt} {}",
            place(self.at, &self.id),
            self.generation,
            self.event,
            self.fence.number(),
        );
        f.write_str(&encode(&text))
    }
}

impl FromStr for AuditCursor {
    type Err = BadCursor;

    fn from_str(text: &str) -> Result<Self, BadCursor> {
        read_audit_cursor(text).ok_or(BadCursor)
    }
}

fn read_cursor(text: &str) -> Option<Cursor> {
    let text = decode(text)?;
    let mut parts = text.split(' ');
    let (at, id) = read_place(&mut parts)?;
    parts.next().is_none().then_some(Cursor { at, id })
}

fn read_audit_cursor(text: &str) -> Option<AuditCursor> {
    let text = decode(text)?;
    let mut parts = text.split(' ');
    let (at, id) = read_place(&mut parts)?;
    let generation = parts.next()?.parse().ok()?;
    let event = AuditEvent::from_name(parts.next()?)?.name();
    let attempt: u128 = parts.next()?.parse().ok()?;
    let attempt = AttemptId::from_bytes(attempt.to_be_bytes());
    let fence = Fence::from_stored(parts.next()?.parse().ok()?);
    let cursor = AuditCursor { at, id, generation, event, attempt, fence };
    parts.next().is_none().then_some(cursor)
}

/// Scopes and keys may hold anything, a blank among it.
fn place(at: Timestamp, id: &RecordId) -> String {
    let [scope, key] = [id.scope.as_str(), id.key.as_str()].map(encode);
    format!("1 {} {scope} {key}", at.as_micros())
}

fn read_place<'t>(parts: &mut impl Iterator<Item = &'t str>) -> Option<(Timestamp, RecordId)> {
    if parts.next()? != "1" {
        return None;
    }
    let at = Timestamp::from_micros(parts.next()?.parse().ok()?);
    let scope = Scope::new(decode(parts.next()?)?).ok()?;
    let key = Key::new(decode(parts.next()?)?).ok()?;
    Some((at, RecordId { scope, key }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> RecordId {
        RecordId {
            scope: Scope::new("tenant 1 \u{e4}").expect("scope"),
            key: Key::new("key 1").expect("key"),
        }
    }

    #[test]
    fn a_cursor_comes_back_as_it_was() {
        let cursor = Cursor { at: Timestamp::from_micros(-5), id: id() };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        let audit = AuditCursor {
            at: Timestamp::from_micros(i64::MAX),
            id: id(),
            generation: 3,
            event: AuditEvent::Voided.name(),
            attempt: AttemptId::from_bytes([255; 16]),
            fence: Fence::from_stored(7),
        };
        assert_eq!(audit.to_string().parse(), Ok(audit));
    }

    #[test]
    fn what_is_not_a_cursor_is_refused() {
        let good = Cursor { at: Timestamp::from_micros(5), id: id() }.to_string();
        let other_version = encode("2 5 YQ YQ");
        let too_much = encode("1 5 YQ YQ 1");
        let no_number = encode("1 x YQ YQ");
        for bad in ["", "*", "MQ", &good[1..], &other_version, &too_much, &no_number] {
            assert_eq!(bad.parse::<Cursor>(), Err(BadCursor), "{bad}");
        }
        assert_eq!(good.parse::<AuditCursor>(), Err(BadCursor), "of another list");
    }
}
