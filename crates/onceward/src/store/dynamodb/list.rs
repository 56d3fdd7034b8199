//! Lists and counts, for operators. They read the indexes, never the whole table, and no bodies.

use futures_util::future::try_join_all;

use super::{
    Inner,
    call::damaged,
    item::{Item, key_of},
    open::{BY_DUE, BY_LISTED},
    row::{AUDIT, Held, LISTED, WAITING, partition, read_audit, shard},
    table::{Slice, at},
};
use crate::{
    clock::Timestamp,
    record::{AuditRecord, Record, RecordId, State},
    store::{
        StoreError,
        list::{AuditPage, AuditQuery, Count, KeyFilter, Order, Page, Query, Sort, Span, Stats},
    },
};

/// Up to so many entries of each kind are counted: each costs a part of a read.
const COUNTED_MAX: u64 = 10_000;

/// How many entries are read from each part of an index at a time.
const PAGE: i32 = 200;

/// What an audit record has in a list.
const LISTED_AUDIT: [&str; 12] = [
    "pk",
    "sk",
    "scope",
    "key",
    "at",
    "generation",
    "event",
    "attempt",
    "fence",
    "reason",
    "order",
    "reply_status",
];

/// Goes through an index by time, over all its parts at once.
struct Walk<'a> {
    inner: &'a Inner,
    kind: &'a str,
    within: (i64, i64),
    ascending: bool,
    /// Of each part that has more: its number, where to go on, and how far it was read.
    parts: Vec<(u32, Option<Item>)>,
    /// What was read of some parts, and other parts may have something before it.
    ahead: Vec<Item>,
}

impl<'a> Walk<'a> {
    fn new(inner: &'a Inner, kind: &'a str, within: (i64, i64), ascending: bool) -> Self {
        let parts = (0..inner.shards).map(|number| (number, None)).collect();
        Walk { inner, kind, within, ascending, parts, ahead: Vec::new() }
    }

    /// The next entries: everything that is not listed behind them comes later. None at the end.
    async fn next(&mut self) -> Result<Vec<Item>, StoreError> {
        loop {
            if self.parts.is_empty() {
                return Ok(std::mem::take(&mut self.ahead));
            }
            let parts = std::mem::take(&mut self.parts);
            let (kind, (from, to), ascending) = (self.kind, self.within, self.ascending);
            let inner = self.inner;
            let pages = parts.into_iter().map(|(number, after)| async move {
                let slice = Slice {
                    index: BY_LISTED,
                    names: ("listed", "listed_at"),
                    part: shard(kind, number),
                    from,
                    to,
                    ascending,
                    limit: Some(PAGE),
                    after,
                };
                Ok::<_, StoreError>((number, inner.slice(&slice).await?))
            });
            let mut border = None;
            for (number, (items, next)) in try_join_all(pages).await? {
                if let Some(next) = next {
                    let reached = at(&next, "listed_at").unwrap_or_default();
                    border = Some(match border {
                        None => reached,
                        Some(other) if ascending => reached.min(other),
                        Some(other) => reached.max(other),
                    });
                    self.parts.push((number, Some(next)));
                }
                self.ahead.extend(items);
            }
            let Some(border) = border else { continue };
            // At the border itself a part may have more.
            let is_done = |item: &mut Item| {
                let time = at(item, "listed_at").unwrap_or_default();
                if ascending { time < border } else { time > border }
            };
            let done: Vec<Item> = self.ahead.extract_if(.., is_done).collect();
            if !done.is_empty() {
                return Ok(done);
            }
        }
    }
}

impl Inner {
    pub(super) async fn list_records(&self, query: Query) -> Result<Page, StoreError> {
        let now = self.clock.now();
        if let (Some(scope), Some(KeyFilter::Exact(key))) = (&query.scope, &query.key) {
            let id = RecordId { scope: scope.clone(), key: key.clone() };
            let found = self.load(&id).await?;
            return Ok(query.page(found.iter().map(|held| &held.record), now));
        }
        if let Some(kinds) = open_kinds(&query) {
            let found = self.all_due(&kinds, Timestamp::NEVER, &LISTED).await?;
            return Ok(query.page(found.iter().map(|held| &held.record), now));
        }
        let ascending = query.order == Order::Ascending;
        let mut walk = Walk::new(self, "record", within(&query, now), ascending);
        let mut found: Vec<Record> = Vec::new();
        // One more than a page: there may be a next one. By another time than the index's, all of it.
        let enough = query.page_size() as usize;
        while query.sort != Sort::CreatedAt || found.len() <= enough {
            let entries = walk.next().await?;
            if entries.is_empty() {
                break;
            }
            let held: Vec<Held> = self.records_of(&entries, &LISTED).await?;
            found.extend(query.part(held.iter().map(|held| &held.record), now));
        }
        Ok(query.merge(found))
    }

    pub(super) async fn audit(&self, id: &RecordId) -> Result<Vec<AuditRecord>, StoreError> {
        let items = self.range(&partition(id), AUDIT, &format!("{AUDIT}~")).await?;
        let audits = items.iter().map(|item| read_audit(item).map_err(damaged));
        let mut audits: Vec<(i64, AuditRecord)> = audits.collect::<Result<_, _>>()?;
        audits.sort_by_key(|(order, _)| *order);
        Ok(audits.into_iter().map(|(_, audit)| audit).collect())
    }

    pub(super) async fn audit_log(&self, query: AuditQuery) -> Result<AuditPage, StoreError> {
        let (from, mut to) = span(&query.at);
        if let Some(after) = &query.after {
            to = to.min(after.at.as_micros());
        }
        let mut walk = Walk::new(self, "audit", (from, to), false);
        let mut found = Vec::new();
        while found.len() <= query.page_size() as usize {
            let entries = walk.next().await?;
            if entries.is_empty() {
                break;
            }
            let keys = entries.iter().map(|item| key_of(item).map_err(damaged));
            let items = self.get_many(keys.collect::<Result<_, _>>()?, &LISTED_AUDIT).await?;
            let audits = items.iter().map(|item| read_audit(item).map_err(damaged));
            let audits: Vec<(i64, AuditRecord)> = audits.collect::<Result<_, _>>()?;
            found.extend(query.part(audits.iter().map(|(_, audit)| audit)));
        }
        Ok(query.merge(found))
    }

    /// Counts the entries of the index, up to a limit for each kind.
    pub(super) async fn stats(&self) -> Result<Stats, StoreError> {
        let now = self.clock.now();
        let mut stats = Stats::default();
        let kinds = [
            (State::Pending, State::Pending.name()),
            (State::InProgress, State::InProgress.name()),
            (State::InProgress, WAITING),
            (State::Completed, State::Completed.name()),
            (State::FailedRetryable, State::FailedRetryable.name()),
            (State::Unknown, State::Unknown.name()),
            (State::Expired, State::Expired.name()),
        ];
        for (state, kind) in kinds {
            self.count(&mut stats, state, kind, now).await?;
        }
        Ok(stats)
    }

    async fn count(
        &self,
        stats: &mut Stats,
        state: State,
        kind: &str,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let mut read = 0;
        for number in 0..self.shards {
            let mut after = None;
            loop {
                let slice = Slice {
                    index: BY_DUE,
                    names: ("due", "due_at"),
                    part: shard(kind, number),
                    from: i64::MIN,
                    to: i64::MAX,
                    ascending: true,
                    limit: None,
                    after,
                };
                let (items, next) = self.slice(&slice).await?;
                read += items.len() as u64;
                for item in &items {
                    count_one(stats, state, item, now);
                }
                after = next;
                if read >= COUNTED_MAX && (after.is_some() || number + 1 < self.shards) {
                    let records = stats.of(state).records;
                    stats.set(state, Count { records, estimated: true });
                    return Ok(());
                }
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// Counts a record by the state in which it would be loaded.
fn count_one(stats: &mut Stats, state: State, entry: &Item, now: Timestamp) {
    let time = |name| at(entry, name).map(Timestamp::from_micros);
    let due = time("due_at").unwrap_or(Timestamp::NEVER);
    let tombstone = u64::try_from(at(entry, "tombstone").unwrap_or(0)).unwrap_or(0);
    let shown = match state {
        State::Expired if due <= now => return,
        State::Completed | State::FailedRetryable if due <= now => {
            if due.plus(std::time::Duration::from_micros(tombstone)) <= now {
                return;
            }
            State::Expired
        }
        other => other,
    };
    let Count { records, estimated } = stats.of(shown);
    stats.set(shown, Count { records: records + 1, estimated });
    let since = match shown {
        State::InProgress | State::Unknown => time("started_at"),
        _ => time("created_at"),
    };
    stats.note_oldest(shown, since);
}

/// The kinds of the index by due time that hold all that is asked for, if it is about open work only:
/// of that there is little, however large the table is.
fn open_kinds(query: &Query) -> Option<Vec<&'static str>> {
    if query.overdue {
        return Some(vec![State::Pending.name()]);
    }
    if query.dead_letters {
        return Some(vec![State::Unknown.name()]);
    }
    let is_open = |state: &State| !state.is_terminal();
    if query.states.is_empty() || !query.states.iter().all(is_open) {
        return None;
    }
    let mut kinds: Vec<&str> = query.states.iter().map(|state| state.name()).collect();
    if query.states.contains(&State::InProgress) {
        kinds.push(WAITING);
    }
    kinds.sort_unstable();
    kinds.dedup();
    Some(kinds)
}

fn span(span: &Span) -> (i64, i64) {
    let from = span.from.map_or(i64::MIN, Timestamp::as_micros);
    (from, span.before.map_or(i64::MAX, |before| before.as_micros().saturating_sub(1)))
}

/// When the records of a page may have been created.
fn within(query: &Query, now: Timestamp) -> (i64, i64) {
    let (mut from, mut to) = span(&query.created);
    if let Some(age) = query.older_than {
        let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
        to = to.min(now.as_micros().saturating_sub(age));
    }
    if let Some(after) = query.after.as_ref().filter(|_| query.sort == Sort::CreatedAt) {
        match query.order {
            Order::Ascending => from = from.max(after.at.as_micros()),
            Order::Descending => to = to.min(after.at.as_micros()),
        }
    }
    (from, to.max(from))
}
