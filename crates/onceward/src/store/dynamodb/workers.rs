//! What workers ask for. The index only says where to look: it may be behind the table, so that each
//! record is read anew and changed under a condition.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures_util::future::{join_all, try_join_all};
use tracing::{debug, error};

use super::{
    Inner,
    call::damaged,
    item::{Item, Reader, key_of},
    open::{BY_DUE, BY_LISTED},
    row::{Held, LISTED, RECORD, WAITING, partition, read_id, read_record, shard},
    step::{Commit, Committed},
    table::{Slice, at},
};
use crate::{
    clock::Timestamp,
    machine::{self, Change},
    record::{Effects, Record, RecordId, State},
    store::{Reaped, Resumable, StoreError, Swept, Which},
};

/// How many records are worked on at a time.
const AT_ONCE: usize = 16;

/// How many candidates are read from each part of an index at a time.
const PAGE: i32 = 100;

/// What cannot be read today cannot be read tomorrow: it is told of in the log, and must not stand in the
/// way of the others.
fn or_left_alone<T>(done: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match done {
        Err(error) if !error.may_be_repeated() => {
            error!(%error, "an item is damaged, and is left alone");
            Ok(None)
        }
        done => done.map(Some),
    }
}

/// Goes through the records of some kinds that are due, the earliest first within each page of each
/// part of the index.
struct Due<'a> {
    inner: &'a Inner,
    /// Of each part that has more: its name, and where to go on.
    parts: Vec<(String, Option<Item>)>,
    /// What the index has shown, and nobody has looked at yet.
    ahead: VecDeque<Item>,
    until: Timestamp,
    page: i32,
}

impl<'a> Due<'a> {
    fn new(inner: &'a Inner, kinds: &[&str], until: Timestamp, limit: u32) -> Self {
        let parts = kinds
            .iter()
            .flat_map(|kind| (0..inner.shards).map(|number| (shard(kind, number), None)));
        let page = i32::try_from(limit).unwrap_or(PAGE).clamp(1, PAGE);
        Due { inner, parts: parts.collect(), ahead: VecDeque::new(), until, page }
    }

    /// Some of the next records, as they are now: those attributes of them, if any are named. None at
    /// the end. What the index still shows and is gone is left out.
    async fn next(&mut self, only: &[&str]) -> Result<Option<Vec<Held>>, StoreError> {
        while self.ahead.is_empty() {
            if self.parts.is_empty() {
                return Ok(None);
            }
            self.read_on().await?;
        }
        let some: Vec<Item> = self.ahead.drain(..AT_ONCE.min(self.ahead.len())).collect();
        self.inner.records_of(&some, only).await.map(Some)
    }

    async fn read_on(&mut self) -> Result<(), StoreError> {
        let parts = std::mem::take(&mut self.parts);
        let (inner, until, page) = (self.inner, self.until, self.page);
        let pages = parts.into_iter().map(|(part, after)| {
            let slice = Slice {
                index: BY_DUE,
                names: ("due", "due_at"),
                part,
                from: i64::MIN,
                to: until.as_micros(),
                ascending: true,
                limit: Some(page),
                after,
            };
            async move { Ok::<_, StoreError>((inner.slice(&slice).await?, slice.part)) }
        });
        for ((items, next), part) in try_join_all(pages).await? {
            self.ahead.extend(items);
            self.parts.extend(next.map(|next| (part, Some(next))));
        }
        self.ahead.make_contiguous().sort_by_key(|item| at(item, "due_at"));
        Ok(())
    }
}

impl Inner {
    /// The records that these entries of an index tell of, as they are now. One that cannot be read is
    /// told of in the log, and does not hide the others.
    pub(super) async fn records_of(
        &self,
        entries: &[Item],
        only: &[&str],
    ) -> Result<Vec<Held>, StoreError> {
        let is_record = |item: &&Item| Reader(item).text("sk").is_ok_and(|sort| sort == RECORD);
        let keys = entries.iter().filter(is_record).map(|item| key_of(item).map_err(damaged));
        let items = self.get_many(keys.collect::<Result<_, _>>()?, only).await?;
        let mut found = Vec::with_capacity(items.len());
        for item in &items {
            match read_record(item) {
                Ok(held) => found.push(held),
                Err(error) => error!(%error, "a record is damaged, and is left alone"),
            }
        }
        Ok(found)
    }

    /// All records of these kinds that are due until then. For kinds of which there are few.
    pub(super) async fn all_due(
        &self,
        kinds: &[&str],
        until: Timestamp,
        only: &[&str],
    ) -> Result<Vec<Held>, StoreError> {
        let mut due = Due::new(self, kinds, until, u32::MAX);
        let mut found = Vec::new();
        while let Some(some) = due.next(only).await? {
            found.extend(some);
        }
        Ok(found)
    }

    pub(super) async fn sweep(&self, limit: u32) -> Result<Vec<Swept>, StoreError> {
        let mut due = Due::new(self, &[State::InProgress.name()], self.clock.now(), limit);
        let mut swept = Vec::new();
        while swept.len() < limit as usize
            && let Some(some) = due.next(&[]).await?
        {
            let room = limit as usize - swept.len();
            let moved = some.iter().take(room).map(|held| self.sweep_one(held));
            for moved in join_all(moved).await {
                swept.extend(or_left_alone(moved)?.flatten());
            }
        }
        Ok(swept)
    }

    /// If somebody else was faster, it is alive, or moved on already.
    async fn sweep_one(&self, held: &Held) -> Result<Option<Swept>, StoreError> {
        // By the answer that told of this record.
        self.skew.check()?;
        let step = machine::sweep(&held.record, self.clock.now());
        let (Some(swept), Change::Put(record)) = (step.answer, step.change) else {
            return Ok(None);
        };
        let after = Held::follow(Some(held), *record);
        let is_terminal = after.record.state.is_terminal();
        let commit = Commit {
            id: &held.record.id,
            before: Some(held),
            after: Some(&after),
            audit: step.audit.as_ref(),
            beside: Vec::new(),
        };
        match self.commit(commit).await? {
            Committed::Changed(_) => Ok(None),
            Committed::Done => {
                if is_terminal && held.has_beside() {
                    self.clean_beside(&partition(&held.record.id), held.beside).await;
                }
                Ok(Some(swept))
            }
        }
    }

    pub(super) async fn reap(&self, limit: u32) -> Result<Reaped, StoreError> {
        let kinds = [State::Completed, State::FailedRetryable, State::Expired].map(State::name);
        let mut due = Due::new(self, &kinds, self.clock.now(), limit);
        let mut reaped = Reaped::default();
        let count = |reaped: &Reaped| reaped.expired + reaped.purged;
        // What was replied goes, and need not be read for that.
        while count(&reaped) < limit
            && let Some(some) = due.next(&LISTED).await?
        {
            let room = (limit - count(&reaped)) as usize;
            for done in join_all(some.iter().take(room).map(|held| self.reap_one(held))).await {
                let done = or_left_alone(done)?.unwrap_or_default();
                reaped.expired += done.expired;
                reaped.purged += done.purged;
            }
        }
        Ok(reaped)
    }

    async fn reap_one(&self, held: &Held) -> Result<Reaped, StoreError> {
        self.skew.check()?;
        let record = &held.record;
        let (after, done) = match machine::reap(record, self.clock.now()) {
            Change::Keep => return Ok(Reaped::default()),
            Change::Put(left) => {
                let left = Held::follow(Some(held), *left);
                (Some(left), Reaped { expired: 1, purged: 0 })
            }
            Change::Remove => (None, Reaped { expired: 0, purged: 1 }),
        };
        // What a process that died has left behind, before the record that tells of it goes.
        if record.effects == Effects::Phased || record.is_queued() || !record.progress.is_none() {
            self.clean_beside(&partition(&record.id), record.fence.number()).await;
        }
        let commit = Commit {
            id: &record.id,
            before: Some(held),
            after: after.as_ref(),
            audit: None,
            beside: Vec::new(),
        };
        match self.commit(commit).await? {
            Committed::Done => {
                // After the record: one that was taken anew meanwhile keeps what is noted of it.
                if after.is_none()
                    && let Err(error) = self.clean_notes(held).await
                {
                    debug!(%error, "what was noted of a record that is gone was left");
                }
                Ok(done)
            }
            Committed::Changed(_) => Ok(Reaped::default()),
        }
    }

    pub(super) async fn resumable(
        &self,
        which: Which,
        limit: u32,
    ) -> Result<Vec<Resumable>, StoreError> {
        let now = self.clock.now();
        let mut resumable = Vec::new();
        for kind in [State::Pending.name(), WAITING] {
            let left = limit as usize - resumable.len();
            resumable.extend(self.resumable_of(kind, &which, now, left).await?);
        }
        resumable.sort_by_key(|one| machine::line_of(&one.record));
        Ok(resumable)
    }

    /// Those of one kind. One whose request cannot be read does not take the place of another.
    async fn resumable_of(
        &self,
        kind: &str,
        which: &Which,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<Resumable>, StoreError> {
        let mut damaged: Vec<RecordId> = Vec::new();
        loop {
            let wanted = |held: &Held| {
                machine::is_resumable(&held.record, now)
                    && which.includes(&held.record)
                    && !damaged.contains(&held.record.id)
            };
            let (mut readable, mut unreadable) = (Vec::new(), Vec::new());
            for held in self.earliest(kind, limit, wanted, machine::line_of).await? {
                match or_left_alone(self.request(&held).await)? {
                    Some(request) => {
                        readable.push(Resumable { record: Box::new(held.record), request });
                    }
                    None => unreadable.push(held.record.id),
                }
            }
            if unreadable.is_empty() {
                return Ok(readable);
            }
            damaged.append(&mut unreadable);
        }
    }

    pub(super) async fn due_unknown(
        &self,
        limit: u32,
        except: Vec<Arc<str>>,
    ) -> Result<Vec<Record>, StoreError> {
        let now = self.clock.now();
        let wanted = |held: &Held| {
            machine::is_due_for_probe(&held.record, now) && !except.contains(&held.record.route)
        };
        let kind = State::Unknown.name();
        let found = self.earliest(kind, limit as usize, wanted, |it| it.reconcile_after).await?;
        Ok(found.into_iter().map(|held| held.record).collect())
    }

    /// The first that are due of one kind and wanted.
    async fn earliest<O: Ord>(
        &self,
        kind: &str,
        limit: usize,
        wanted: impl Fn(&Held) -> bool,
        order: impl Fn(&Record) -> O,
    ) -> Result<Vec<Held>, StoreError> {
        let page = u32::try_from(limit).unwrap_or(u32::MAX);
        let mut due = Due::new(self, &[kind], self.clock.now(), page);
        let mut found = Vec::new();
        while found.len() < limit
            && let Some(some) = due.next(&[]).await?
        {
            found.extend(some.into_iter().filter(&wanted));
        }
        found.sort_by_key(|held| order(&held.record));
        found.truncate(limit);
        Ok(found)
    }

    pub(super) async fn purge_audit(
        &self,
        older_than: Duration,
        limit: u32,
    ) -> Result<u32, StoreError> {
        let age = i64::try_from(older_than.as_micros()).unwrap_or(i64::MAX);
        let until = self.clock.now().as_micros().saturating_sub(age);
        let mut parts: Vec<(u32, Option<Item>)> =
            (0..self.shards).map(|number| (number, None)).collect();
        let mut purged = 0;
        while !parts.is_empty() && purged < limit {
            let mut candidates = Vec::new();
            for (number, after) in std::mem::take(&mut parts) {
                let slice = Slice {
                    index: BY_LISTED,
                    names: ("listed", "listed_at"),
                    part: shard("audit", number),
                    from: i64::MIN,
                    to: until,
                    ascending: true,
                    limit: Some(PAGE),
                    after,
                };
                let (items, next) = self.slice(&slice).await?;
                candidates.extend(items);
                parts.extend(next.map(|next| (number, Some(next))));
            }
            candidates.sort_by_key(|item| at(item, "listed_at"));
            for candidate in candidates {
                if purged < limit && self.purge_one(&candidate).await? {
                    purged += 1;
                }
            }
        }
        Ok(purged)
    }

    /// Whether it went: those of a generation that is still there stay.
    async fn purge_one(&self, candidate: &Item) -> Result<bool, StoreError> {
        let key = key_of(candidate).map_err(damaged)?;
        let Some(item) = self.get(key.clone()).await? else { return Ok(false) };
        let read = Reader(&item);
        let (id, generation) = (read_id(&read), read.number::<u32>("generation"));
        let held = self.load(&id.map_err(damaged)?).await?;
        if held.map(|held| held.record.generation) == Some(generation.map_err(damaged)?) {
            return Ok(false);
        }
        self.delete(key).await?;
        Ok(true)
    }
}
