//! What workers ask for, bucket by bucket.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};

use super::{
    RedisStore,
    address::read_member,
    error::{damaged, unreadable},
    look::{Beside, Changed, Look, Seen},
    row::{micros, read_record, stamp},
    script::Script,
    value::Parts,
};
use crate::{
    clock::Timestamp,
    machine::{self, Change},
    record::{AuditRecord, Record, RecordId, State},
    store::{Reaped, Resumable, StoreError, Swept, Which, request::decode_request},
};

/// How many records are moved on in one call.
const PAGE_MAX: u32 = 256;

/// How many buckets are asked, or records changed, at a time.
pub(super) const AT_ONCE: usize = 32;

/// What a worker does to a record.
struct Move<A> {
    change: Change,
    audit: Option<AuditRecord>,
    answer: A,
}

impl RedisStore {
    pub(super) async fn sweep_some(&self, limit: u32) -> Result<Vec<Swept>, StoreError> {
        let sweep = |record: &Record, now| {
            let step = machine::sweep(record, now);
            let moved = |answer| Move { change: step.change, audit: step.audit, answer };
            step.answer.map(moved)
        };
        self.move_due(&["w"], limit, sweep).await
    }

    pub(super) async fn reap_some(&self, limit: u32) -> Result<Reaped, StoreError> {
        let reap = |record: &Record, now| match machine::reap(record, now) {
            Change::Keep => None,
            change => {
                let answer = change == Change::Remove;
                Some(Move { change, audit: None, answer })
            }
        };
        let removed = self.move_due(&["C", "F", "E"], limit, reap).await?;
        let purged = removed.iter().filter(|removed| **removed).count() as u32;
        Ok(Reaped { expired: removed.len() as u32 - purged, purged })
    }

    /// Moves on what is due in these indexes. What somebody else has changed meanwhile is his.
    async fn move_due<A>(
        &self,
        indexes: &[&str],
        limit: u32,
        decide: impl Fn(&Record, Timestamp) -> Option<Move<A>>,
    ) -> Result<Vec<A>, StoreError> {
        let limit = limit.min(PAGE_MAX) as usize;
        let mut moved = Vec::new();
        let due = |bucket| self.due(bucket, indexes, 0, limit);
        let mut buckets =
            stream::iter(self.buckets_from_anywhere()).map(due).buffer_unordered(AT_ONCE);
        while let Some(due) = buckets.next().await {
            let mut due = due?;
            let mut passed = 0;
            loop {
                let rows = due.rows;
                let moves: Vec<_> = due
                    .seen
                    .into_iter()
                    .filter_map(|seen| Some((decide(seen.record.as_deref()?, seen.now)?, seen)))
                    .take(limit - moved.len())
                    .collect();
                let tried = moves.len();
                let apply = |(step, seen): (Move<A>, Seen)| self.apply_move(step, seen);
                let mut applied = stream::iter(moves).map(apply).buffer_unordered(AT_ONCE);
                while let Some(answer) = applied.next().await {
                    moved.extend(answer?);
                }
                drop(applied);
                if moved.len() >= limit {
                    return Ok(moved);
                }
                passed += rows - tried;
                // Those that were left alone are still the first.
                if rows < limit || passed == 0 {
                    break;
                }
                due = self.due(due.bucket, indexes, passed, limit).await?;
            }
        }
        Ok(moved)
    }

    async fn apply_move<A>(&self, step: Move<A>, seen: Seen) -> Result<Option<A>, StoreError> {
        let Some(id) = seen.record.as_ref().map(|record| record.id.clone()) else {
            return Ok(None);
        };
        let audits = step.audit.as_slice();
        let changed = self.change(&id, &seen, &step.change, audits, Beside::default()).await?;
        Ok(matches!(changed, Changed::Applied).then_some(step.answer))
    }

    /// Without those that cannot be read: they must not stand in the way of the others.
    async fn due(
        &self,
        bucket: u16,
        indexes: &[&str],
        passed: usize,
        limit: usize,
    ) -> Result<Due, StoreError> {
        let mut args = vec![self.client.now(), passed.to_string().into(), limit.to_string().into()];
        args.extend(indexes.iter().map(|index| Vec::from(*index)));
        let mut answer = self.call_bucket(bucket, Script::Due, args).await?;
        let now = answer.time()?;
        let mut due = Due { bucket, rows: 0, seen: Vec::new() };
        for row in answer.parts()? {
            due.rows += 1;
            let mut row = Parts::of(row)?;
            let (member, found) = (row.bytes()?, row.pairs()?);
            let record = read_member(&member).and_then(|id| read_record(id, &found));
            due.seen.extend(record.map(|record| Seen {
                record: Some(Box::new(record)),
                stamp: stamp(&found),
                now,
                saved: false,
            }));
        }
        Ok(due)
    }

    pub(super) async fn resumable_some(
        &self,
        which: Which,
        limit: u32,
    ) -> Result<Vec<Resumable>, StoreError> {
        let indexes: &[&str] = match which {
            Which::All => &["d", "h", "H"],
            Which::Accepted => &["d", "H"],
        };
        let mut line = self.line(limit.min(PAGE_MAX), &[], indexes).await?;
        // As `machine::line_of`: what is pending first, then by the time from which it waits.
        line.sort_by_key(|waiting| (&*waiting.index != b"d", waiting.since));
        line.truncate(limit as usize);
        let load = |waiting: Waiting| self.load_with_request(waiting.id);
        let mut loaded = stream::iter(line).map(load).buffered(AT_ONCE);
        let mut resumable = Vec::new();
        while let Some(one) = loaded.next().await {
            match one {
                Ok(Some((one, now))) => {
                    let waits = machine::is_resumable(&one.record, now);
                    resumable.extend((waits && which.includes(&one.record)).then_some(one));
                }
                Ok(None) => {}
                // It must not stand in the way of the others.
                Err(error) if !error.may_be_repeated() => {}
                Err(error) => return Err(error),
            }
        }
        resumable.sort_by_key(|one| machine::line_of(&one.record));
        Ok(resumable)
    }

    async fn load_with_request(
        &self,
        id: RecordId,
    ) -> Result<Option<(Resumable, Timestamp)>, StoreError> {
        let (seen, beside) = self.look_beside(&id).await?;
        let Some(record) = seen.record else { return Ok(None) };
        let kept = beside.iter().find(|(name, _)| &name[..] == b"q");
        let request = match kept {
            None => None,
            Some((_, kept)) => Some(decode_request(kept).ok_or_else(|| damaged("its request"))?),
        };
        Ok(Some((Resumable { record, request }, seen.now)))
    }

    pub(super) async fn due_unknown_some(
        &self,
        limit: u32,
        except: &[Arc<str>],
    ) -> Result<Vec<Record>, StoreError> {
        let mut line = self.line(limit.min(PAGE_MAX), except, &["u"]).await?;
        line.sort_by_key(|waiting| waiting.since);
        line.truncate(limit as usize);
        let load = |waiting: Waiting| async move { self.look(&waiting.id, Look::Record).await };
        let mut loaded = stream::iter(line).map(load).buffered(AT_ONCE);
        let mut due = Vec::new();
        while let Some(seen) = loaded.next().await {
            match seen {
                Ok(Seen { record: Some(record), now, .. }) => {
                    due.extend(machine::is_due_for_probe(&record, now).then_some(*record));
                }
                Ok(_) => {}
                Err(error) if !error.may_be_repeated() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(due)
    }

    /// Who waits in these indexes, of each bucket those that have waited longest.
    async fn line(
        &self,
        limit: u32,
        except: &[Arc<str>],
        indexes: &[&str],
    ) -> Result<Vec<Waiting>, StoreError> {
        let ask = |bucket| async move {
            let mut args = vec![
                self.client.now(),
                limit.to_string().into(),
                except.len().to_string().into_bytes(),
            ];
            args.extend(except.iter().map(|route| route.as_bytes().to_vec()));
            args.extend(indexes.iter().map(|index| Vec::from(*index)));
            self.call_bucket(bucket, Script::Line, args).await
        };
        let mut buckets = stream::iter(self.buckets()).map(ask).buffer_unordered(AT_ONCE);
        let mut line = Vec::new();
        while let Some(answer) = buckets.next().await {
            let mut answer = answer?;
            answer.time()?;
            for waiting in answer.parts()? {
                let mut waiting = Parts::of(waiting)?;
                let (index, member, since) = (waiting.bytes()?, waiting.bytes()?, waiting.score()?);
                line.extend(read_member(&member).map(|id| Waiting { index, id, since }));
            }
        }
        Ok(line)
    }

    pub(super) async fn settled_of(&self, ids: Vec<RecordId>) -> Result<Vec<RecordId>, StoreError> {
        let ask = |id: RecordId| async move {
            let member = super::address::member(&id);
            let bucket = self.bucket(&member);
            let mut state = redis::cmd("HGET");
            state.arg(self.record_key(bucket, &member)).arg("s");
            (self.client.command(bucket, &state).await, id)
        };
        let mut asked = stream::iter(ids).map(ask).buffered(AT_ONCE);
        let mut settled = Vec::new();
        while let Some((state, id)) = asked.next().await {
            let state = match state? {
                redis::Value::Nil => None,
                other => {
                    let name = super::value::bytes(other)?;
                    let name = std::str::from_utf8(&name).ok().and_then(State::from_name);
                    Some(name.ok_or_else(|| damaged("its state"))?)
                }
            };
            if state.is_none_or(|state| !state.is_at_work()) {
                settled.push(id);
            }
        }
        Ok(settled)
    }

    pub(super) async fn purge_some_audit(
        &self,
        older_than: Duration,
        limit: u32,
    ) -> Result<u32, StoreError> {
        let mut purged = 0;
        for bucket in self.buckets() {
            let mut passed = 0;
            while purged < limit {
                let args = vec![
                    self.client.now(),
                    micros(older_than).to_string().into(),
                    (limit - purged).min(PAGE_MAX).to_string().into(),
                    passed.to_string().into(),
                ];
                let mut answer = self.call_bucket(bucket, Script::Purge, args).await?;
                let (gone, looked, page) =
                    (answer.natural()?, answer.natural()?, answer.natural()?);
                purged += u32::try_from(gone).map_err(|_| unreadable())?;
                passed += looked - gone;
                if looked == page && page < 256 || page == 0 {
                    break;
                }
            }
        }
        Ok(purged)
    }
}

/// What is due in a bucket.
struct Due {
    bucket: u16,
    /// How many there are, with those that cannot be read.
    rows: usize,
    seen: Vec<Seen>,
}

/// Somebody who waits for a worker.
struct Waiting {
    index: Bytes,
    id: RecordId,
    since: i64,
}
