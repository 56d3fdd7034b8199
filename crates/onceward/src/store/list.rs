//! What operators ask a store: lists in pages, counts, and what was remembered.
//!
//! A list shows records as [`Store::load`](super::Store::load) would at that moment, but for their
//! replies, of which it has the status alone. Pages hang on what was shown last and not on a number,
//! so that a record that stays where it is in the order is shown once, whatever comes and goes
//! around it.

use std::time::Duration;

use crate::{
    clock::Timestamp,
    key::Key,
    machine,
    record::{AuditEvent, AuditRecord, Effects, Record, State},
    reply::Reply,
    scope::Scope,
};

mod cursor;
#[cfg(any(feature = "sqlite", feature = "mysql"))]
pub(super) mod sql;
pub use cursor::{AuditCursor, BadCursor, Cursor};

/// A page has at most this many records, whatever is asked for.
pub const PAGE_MAX: u32 = 1000;

/// Up to so many records are counted one by one for [`Stats`]; of more than that a sample is taken.
pub const COUNTED_MAX: u32 = 100_000;

/// Which records to list, and in which order. All conditions hold at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// In this scope.
    pub scope: Option<Scope>,
    /// With this key, or a key that begins so.
    pub key: Option<KeyFilter>,
    /// In one of these states, as they would be loaded now; empty for any.
    pub states: Vec<State>,
    /// Reserved under the policy of this name.
    pub route: Option<Box<str>>,
    /// Declared to have these effects.
    pub effects: Option<Effects>,
    /// Created within this time.
    pub created: Span,
    /// Come to rest within this time.
    pub finished: Span,
    /// Created at least so long ago, by the store's clock.
    pub older_than: Option<Duration>,
    /// Accepted work only that was not begun in its time, by the store's clock. Sorted by the end of
    /// that time, whatever else is asked for. Found by an index.
    pub overdue: bool,
    /// Dead letters only: unknown outcomes on which the reconciler has given up.
    pub dead_letters: bool,
    /// What they are sorted by.
    pub sort: Sort,
    /// Which of them comes first.
    pub order: Order,
    /// Behind this place of an earlier page, which was asked for with the same sort and order.
    pub after: Option<Cursor>,
    /// At most so many, from 1 to [`PAGE_MAX`].
    pub limit: u32,
}

/// Which keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyFilter {
    /// This one.
    Exact(Key),
    /// All that begin with this.
    Prefix(Box<str>),
}

/// A time from one moment on until before another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The first moment in it.
    pub from: Option<Timestamp>,
    /// The first moment after it.
    pub before: Option<Timestamp>,
}

impl Span {
    /// Whether it is in it.
    pub fn contains(&self, at: Timestamp) -> bool {
        self.from.is_none_or(|from| from <= at) && self.before.is_none_or(|before| at < before)
    }

    fn is_all(&self) -> bool {
        *self == Span::default()
    }
}

/// What a list is sorted by. Ties are broken by scope and key, as bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// When the generation was first seen. Found by an index.
    #[default]
    CreatedAt,
    /// When retention ends. A store may have to read all that the conditions leave.
    ExpiresAt,
}

/// Which end of a list comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The latest.
    #[default]
    Descending,
    /// The earliest.
    Ascending,
}

/// A part of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The records, without the headers and bodies of their replies.
    pub records: Vec<Record>,
    /// Where to go on, if there is more.
    pub next: Option<Cursor>,
}

/// Which audit records to list, the latest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditQuery {
    /// Of this kind.
    pub event: Option<AuditEvent>,
    /// Of this scope.
    pub scope: Option<Scope>,
    /// Within this time.
    pub at: Span,
    /// Behind this place of an earlier page.
    pub after: Option<AuditCursor>,
    /// At most so many, from 1 to [`PAGE_MAX`].
    pub limit: u32,
}

/// A part of the audit records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditPage {
    /// The audit records, without the headers and bodies of the replies in them.
    pub records: Vec<AuditRecord>,
    /// Where to go on, if there is more.
    pub next: Option<AuditCursor>,
}

/// How many records there are, and what has been open for longest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// For each of [`State::ALL`], in that order.
    pub counts: [Count; State::ALL.len()],
    /// When the oldest attempt was begun whose outcome is unknown.
    pub oldest_unknown: Option<Timestamp>,
    /// When the oldest attempt was begun that is in progress.
    pub oldest_in_progress: Option<Timestamp>,
    /// When the oldest record was created that waits to be begun.
    pub oldest_pending: Option<Timestamp>,
}

impl Stats {
    /// How many are in this state.
    pub fn of(&self, state: State) -> Count {
        let counts = State::ALL.into_iter().zip(self.counts);
        counts.filter(|(one, _)| *one == state).map(|(_, count)| count).next().unwrap_or_default()
    }

    pub(crate) fn set(&mut self, state: State, count: Count) {
        let mut counts = State::ALL.into_iter().zip(&mut self.counts);
        if let Some((_, place)) = counts.find(|(one, _)| *one == state) {
            *place = count;
        }
    }
}

/// A number of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// How many.
    pub records: u64,
    /// It was taken from a sample, or stopped at [`COUNTED_MAX`].
    pub estimated: bool,
}

impl Query {
    /// The limit that holds.
    pub fn page_size(&self) -> u32 {
        self.limit.clamp(1, PAGE_MAX)
    }

    /// The page of a store that can go through all its records.
    pub fn page<'r>(&self, all: impl Iterator<Item = &'r Record>, now: Timestamp) -> Page {
        self.merge(self.part(all, now))
    }

    /// What some of the records have to do with the page.
    pub(crate) fn part<'r>(
        &self,
        some: impl Iterator<Item = &'r Record>,
        now: Timestamp,
    ) -> Vec<Record> {
        let shown = some.filter_map(|record| machine::load(Some(record), now));
        let shown = shown.filter(|record| self.matches(record, now));
        let is_behind =
            |record: &Record| self.after.as_ref().is_none_or(|after| self.is_behind(record, after));
        shown.filter(is_behind).map(without_reply).collect()
    }

    pub(crate) fn merge(&self, mut found: Vec<Record>) -> Page {
        found.sort_by_cached_key(|record| self.place(record));
        if self.order == Order::Descending {
            found.reverse();
        }
        self.cut(found)
    }

    /// The page of those that were found, in order, of which there is one too many if there is more.
    pub(crate) fn cut(&self, mut found: Vec<Record>) -> Page {
        let size = self.page_size() as usize;
        let more = found.len() > size;
        found.truncate(size);
        let last = found.last().filter(|_| more);
        let next = last.map(|record| self.place(record));
        Page { records: found, next }
    }

    /// The place of a record in the order.
    fn place(&self, record: &Record) -> Cursor {
        let at = match self.sort {
            _ if self.overdue => record.queued_until.unwrap_or(Timestamp::NEVER),
            Sort::CreatedAt => record.created_at,
            Sort::ExpiresAt => record.expires_at,
        };
        Cursor { at, id: record.id.clone() }
    }

    fn is_behind(&self, record: &Record, after: &Cursor) -> bool {
        match self.order {
            Order::Ascending => self.place(record) > *after,
            Order::Descending => self.place(record) < *after,
        }
    }

    fn matches(&self, record: &Record, now: Timestamp) -> bool {
        let key_matches = match &self.key {
            None => true,
            Some(KeyFilter::Exact(key)) => record.id.key == *key,
            Some(KeyFilter::Prefix(prefix)) => record.id.key.as_str().starts_with(&**prefix),
        };
        let finished = record.finished_at.is_some_and(|at| self.finished.contains(at));
        key_matches
            && self.scope.as_ref().is_none_or(|scope| record.id.scope == *scope)
            && (self.states.is_empty() || self.states.contains(&record.state))
            && self.route.as_ref().is_none_or(|route| *record.route == **route)
            && self.effects.is_none_or(|effects| record.effects == effects)
            && self.created.contains(record.created_at)
            && (self.finished.is_all() || finished)
            && (!self.overdue || is_overdue(record, now))
            && (!self.dead_letters || record.is_dead_letter())
            && self.older_than.is_none_or(|age| record.created_at.plus(age) <= now)
    }
}

impl AuditQuery {
    /// The limit that holds.
    pub fn page_size(&self) -> u32 {
        self.limit.clamp(1, PAGE_MAX)
    }

    /// The page of a store that can go through all its audit records.
    pub fn page<'r>(&self, all: impl Iterator<Item = &'r AuditRecord>) -> AuditPage {
        self.merge(self.part(all))
    }

    /// What some of the audit records have to do with the page.
    pub(crate) fn part<'r>(&self, some: impl Iterator<Item = &'r AuditRecord>) -> Vec<AuditRecord> {
        let found = some.filter(|audit| {
            self.event.is_none_or(|event| audit.event == event)
                && self.scope.as_ref().is_none_or(|scope| audit.id.scope == *scope)
                && self.at.contains(audit.at)
                && self.after.as_ref().is_none_or(|after| AuditCursor::of(audit) < *after)
        });
        found.cloned().map(without_evidence).collect()
    }

    pub(crate) fn merge(&self, mut found: Vec<AuditRecord>) -> AuditPage {
        found.sort_by_cached_key(AuditCursor::of);
        found.reverse();
        self.cut(found)
    }

    /// The page of those that were found, in order, of which there is one too many if there is more.
    pub(crate) fn cut(&self, mut found: Vec<AuditRecord>) -> AuditPage {
        let size = self.page_size() as usize;
        let more = found.len() > size;
        found.truncate(size);
        let next = found.last().filter(|_| more).map(AuditCursor::of);
        AuditPage { records: found, next }
    }
}

impl Stats {
    /// The numbers of a store that can go through all its records.
    pub fn count<'r>(all: impl Iterator<Item = &'r Record>, now: Timestamp) -> Stats {
        let mut stats = Stats::default();
        stats.add(all, now);
        stats
    }

    pub(crate) fn add<'r>(&mut self, some: impl Iterator<Item = &'r Record>, now: Timestamp) {
        for record in some {
            let Some(state) = machine::state_at(record, now) else { continue };
            let records = self.of(state).records + 1;
            self.set(state, Count { records, estimated: false });
            // Not the time that it has waited before.
            let since = match state {
                State::InProgress | State::Unknown => record.started_at,
                _ => record.created_at,
            };
            self.note_oldest(state, Some(since));
        }
    }

    pub(crate) fn note_oldest(&mut self, state: State, at: Option<Timestamp>) {
        let oldest = match state {
            State::Unknown => &mut self.oldest_unknown,
            State::InProgress => &mut self.oldest_in_progress,
            State::Pending => &mut self.oldest_pending,
            _ => return,
        };
        *oldest = [*oldest, at].into_iter().flatten().min();
    }
}

fn is_overdue(record: &Record, now: Timestamp) -> bool {
    record.state == State::Pending && record.queued_until.is_some_and(|end| end <= now)
}

/// A list is no place for what was answered.
fn without_reply(mut record: Record) -> Record {
    record.reply = record.reply.map(Reply::status_only);
    record
}

fn without_evidence(mut audit: AuditRecord) -> AuditRecord {
    audit.reply = audit.reply.map(Reply::status_only);
    audit
}

/// The record that a row tells of, as it is shown now.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) fn shown(record: &Record, now: Timestamp) -> Option<Record> {
    machine::load(Some(record), now).map(without_reply)
}
