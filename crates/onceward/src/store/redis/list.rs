//! What operators ask for: lists in pages, and counts. Each bucket has an index by the time at which
//! records were made; a page is taken from the front of all of them.

use std::collections::HashSet;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use tracing::warn;

use super::{
    RedisStore,
    address::{member, read_member},
    look::Look,
    row::{read_audit, read_record},
    script::Script,
    value::Parts,
    workers::AT_ONCE,
};
use crate::{
    clock::Timestamp,
    record::{AuditRecord, Record, RecordId, State},
    store::{
        StoreError,
        list::{AuditPage, AuditQuery, Count, KeyFilter, Order, Page, Query, Sort, Span, Stats},
    },
};

/// How many are taken from a bucket at a time, at least.
const PART_MIN: usize = 16;

/// Of so many records of a bucket past retention it is looked up whether their tombstone is too.
const OVERDUE_LOOKED_UP: u32 = 1000;

/// A way through an index of one bucket.
struct Walk {
    bucket: u16,
    /// The place of the last that was taken, and all that have the same.
    at: Option<i64>,
    there: HashSet<Bytes>,
    is_over: bool,
}

/// Which index is walked, and how.
struct Ways<'a> {
    index: &'a str,
    order: Order,
    least: Option<Timestamp>,
    /// Included: a little more than was asked for.
    greatest: Option<Timestamp>,
}

/// What stands at a place of an index.
struct Entry {
    member: Bytes,
    found: Parts,
    now: Timestamp,
}

impl RedisStore {
    pub(super) async fn page(&self, query: Query) -> Result<Page, StoreError> {
        if let (Some(scope), Some(KeyFilter::Exact(key))) = (&query.scope, &query.key) {
            let id = RecordId { scope: scope.clone(), key: key.clone() };
            let seen = self.look(&id, Look::Record).await?;
            return Ok(query.page(seen.record.iter().map(|record| &**record), seen.now));
        }
        let open = [(State::Pending, "P"), (State::InProgress, "I"), (State::Unknown, "U")];
        let index_of = |state: &State| open.iter().find(|(one, _)| one == state).map(|(_, it)| *it);
        let states: &[State] = match () {
            () if query.overdue => &[State::Pending],
            () if query.dead_letters => &[State::Unknown],
            () => &query.states,
        };
        let indexes: Option<Vec<&str>> = states.iter().map(index_of).collect();
        match indexes {
            // Those that are open are few, and have indexes of their own, in another order.
            Some(indexes) if !indexes.is_empty() => self.page_of_all(&query, &indexes).await,
            _ if query.sort == Sort::ExpiresAt => self.page_of_all(&query, &["c"]).await,
            _ => self.page_in_order(&query).await,
        }
    }

    /// All that these indexes have, put in order here.
    async fn page_of_all(&self, query: &Query, indexes: &[&str]) -> Result<Page, StoreError> {
        let mut found = Vec::new();
        for index in indexes {
            let ways = Ways { index, order: query.order, least: None, greatest: None };
            for mut walk in self.walks() {
                while !walk.is_over {
                    let (further, part) = self.part(walk, &ways, 256).await?;
                    walk = further;
                    found.extend(part.into_iter().flat_map(|entry| listed(query, entry)));
                }
            }
        }
        Ok(query.merge(found))
    }

    /// By the time at which they were made, from the end that was asked for, as far as is needed.
    async fn page_in_order(&self, query: &Query) -> Result<Page, StoreError> {
        let Span { from, before } = query.created;
        let after = query.after.as_ref().map(|after| after.at);
        let ways = match query.order {
            Order::Ascending => {
                Ways { index: "c", order: query.order, least: from.max(after), greatest: before }
            }
            Order::Descending => {
                let greatest = [before, after].into_iter().flatten().min();
                Ways { index: "c", order: query.order, least: from, greatest }
            }
        };
        let place = |record: &Record| record.created_at.as_micros();
        let most = query.page_size() as usize + 1;
        let found = self.in_order(&ways, most, place, |entry| listed(query, entry)).await?;
        Ok(query.merge(found))
    }

    pub(super) async fn audit_page(&self, query: AuditQuery) -> Result<AuditPage, StoreError> {
        let greatest = [query.at.before, query.after.as_ref().map(|after| after.at)];
        let ways = Ways {
            index: "o",
            order: Order::Descending,
            least: query.at.from,
            greatest: greatest.into_iter().flatten().min(),
        };
        let place = |audit: &AuditRecord| audit.at.as_micros();
        let listed = |mut entry: Entry| {
            let id = entry.member.get(16..).and_then(read_member);
            let audit = id.and_then(|id| read_audit(id, &entry.found.bytes().ok()?));
            if audit.is_none() {
                warn!("an audit record cannot be read, and is not listed");
            }
            query.part(audit.iter().map(|(_, audit)| audit))
        };
        let most = query.page_size() as usize + 1;
        let found = self.in_order(&ways, most, place, listed).await?;
        Ok(query.merge(found))
    }

    /// The first of all buckets together, at least so many of them as are asked for.
    async fn in_order<T>(
        &self,
        ways: &Ways<'_>,
        most: usize,
        place: impl Fn(&T) -> i64,
        listed: impl Fn(Entry) -> Vec<T>,
    ) -> Result<Vec<T>, StoreError> {
        let mut walks = self.walks();
        let mut found = Vec::new();
        let size = PART_MIN.max(2 * most / usize::from(self.client.layout.buckets));
        loop {
            // Those that have come least far decide what is still missing.
            let is_before = |one: i64, other: i64| match ways.order {
                Order::Ascending => one < other,
                Order::Descending => one > other,
            };
            let open = walks.iter().filter(|walk| !walk.is_over);
            let mut front: Option<Option<i64>> = None;
            for walk in open {
                front = Some(match (front, walk.at) {
                    (None, at) => at,
                    (Some(None), _) | (_, None) => None,
                    (Some(Some(one)), Some(at)) => Some(if is_before(at, one) { at } else { one }),
                });
            }
            let Some(front) = front else { return Ok(found) };
            if let Some(front) = front {
                let sure = found.iter().filter(|one| is_before(place(one), front)).count();
                if sure >= most {
                    return Ok(found);
                }
            }
            let is_behind = |walk: &Walk| match (walk.at, front) {
                (None, _) => true,
                (Some(at), Some(front)) => !is_before(front, at),
                (Some(_), None) => false,
            };
            let (behind, ahead): (Vec<Walk>, Vec<Walk>) =
                walks.into_iter().filter(|walk| !walk.is_over).partition(is_behind);
            walks = ahead;
            let ask = |walk: Walk| self.part(walk, ways, size);
            let mut parts = stream::iter(behind).map(ask).buffer_unordered(AT_ONCE);
            while let Some(part) = parts.next().await {
                let (walk, entries) = part?;
                walks.push(walk);
                found.extend(entries.into_iter().flat_map(&listed));
            }
        }
    }

    fn walks(&self) -> Vec<Walk> {
        let walk = |bucket| Walk { bucket, at: None, there: HashSet::new(), is_over: false };
        self.buckets().map(walk).collect()
    }

    /// The next of a bucket. What stays where it is, is told of once.
    async fn part(
        &self,
        mut walk: Walk,
        ways: &Ways<'_>,
        size: usize,
    ) -> Result<(Walk, Vec<Entry>), StoreError> {
        let edge = |at: Option<Timestamp>, else_at: &str| {
            at.map_or(else_at.to_owned(), |at| at.as_micros().to_string())
        };
        let (mut least, mut greatest) = (edge(ways.least, "-inf"), edge(ways.greatest, "+inf"));
        if let Some(at) = walk.at {
            match ways.order {
                Order::Ascending => least = at.to_string(),
                Order::Descending => greatest = at.to_string(),
            }
        }
        let direction = match ways.order {
            Order::Ascending => "up",
            Order::Descending => "down",
        };
        // With those of that place that were told of already.
        let size = size + walk.there.len();
        let args = vec![
            self.client.now(),
            ways.index.into(),
            direction.into(),
            least.into(),
            greatest.into(),
            "0".into(),
            size.to_string().into(),
        ];
        let mut answer = self.call_bucket(walk.bucket, Script::Range, args).await?;
        let now = answer.time()?;
        let mut entries = Vec::new();
        let mut rows = 0;
        for row in answer.parts()? {
            rows += 1;
            let mut row = Parts::of(row)?;
            let (member, at, found) = (row.bytes()?, row.score()?, row.parts()?);
            if walk.at != Some(at) {
                walk.at = Some(at);
                walk.there.clear();
            }
            if walk.there.insert(member.clone()) {
                entries.push(Entry { member, found, now });
            }
        }
        walk.is_over = rows < size;
        Ok((walk, entries))
    }

    pub(super) async fn audit_of(&self, id: &RecordId) -> Result<Vec<AuditRecord>, StoreError> {
        let member = member(id);
        let bucket = self.bucket(&member);
        let mut all = redis::cmd("HVALS");
        all.arg(self.client.layout.key(bucket, "a:", &member));
        let mut audits = Vec::new();
        for kept in Parts::of(self.client.command(bucket, &all).await?)? {
            let audit = read_audit(id.clone(), &super::value::bytes(kept)?);
            audits.push(audit.ok_or_else(|| super::error::damaged("an audit record"))?);
        }
        audits.sort_by_key(|(place, _)| *place);
        Ok(audits.into_iter().map(|(_, audit)| audit).collect())
    }

    pub(super) async fn count(&self) -> Result<Stats, StoreError> {
        let ask = |bucket| {
            let args = vec![self.client.now(), OVERDUE_LOOKED_UP.to_string().into()];
            self.call_bucket(bucket, Script::Stats, args)
        };
        let mut buckets = stream::iter(self.buckets()).map(ask).buffer_unordered(AT_ONCE);
        let mut stats = Stats::default();
        while let Some(answer) = buckets.next().await {
            let mut answer = answer?;
            let states = [
                State::Pending,
                State::InProgress,
                State::Completed,
                State::FailedRetryable,
                State::Unknown,
                State::Expired,
            ];
            for state in states {
                let Count { records, estimated } = stats.of(state);
                stats.set(state, Count { records: records + answer.natural()?, estimated });
            }
            if answer.natural()? == 1 {
                let expired = stats.of(State::Expired);
                stats.set(State::Expired, Count { estimated: true, ..expired });
            }
            for state in [State::Pending, State::InProgress, State::Unknown] {
                let oldest = answer.optional_score()?.map(Timestamp::from_micros);
                stats.note_oldest(state, oldest);
            }
        }
        Ok(stats)
    }
}

/// What an entry of an index has to do with a page of records.
fn listed(query: &Query, entry: Entry) -> Vec<Record> {
    let Entry { member, found, now } = entry;
    let found = found.into_pairs().unwrap_or_default();
    // It went between the index and here.
    if found.is_empty() {
        return Vec::new();
    }
    let record = read_member(&member).and_then(|id| read_record(id, &found));
    if record.is_none() {
        warn!("a record cannot be read, and is not listed");
    }
    query.part(record.iter(), now)
}
