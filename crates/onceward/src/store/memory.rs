//! Records in memory: for tests and development. Nothing survives the process.

use std::{
    collections::{HashMap, hash_map::RandomState},
    hash::BuildHasher as _,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::list::{AuditPage, AuditQuery, Page, Query, Stats};
use super::{
    Advance, Advanced, Ask, Beat, Beaten, Claim, Identity, IdentityCheck, NodeId, Noted, Pulse,
    Reaped, Regression, Reservation, Resolve, Resolved, Resumable, ScopeKey, Store, StoreError,
    StoreErrorKind, StoreFuture, Swept, Which, Write, Written,
};
use crate::{
    clock::{Clock, SystemClock},
    machine::{self, Change, Step},
    record::{
        AuditRecord, Lease, ProviderId, ProviderNote, Record, RecordId, SavedStep, StoredRequest,
    },
    scope::Scope,
};

mod examine;
mod notes;
mod place; // ids with their hash

use notes::Notes;
use place::{Map, Place};

const SHARDS: usize = 64;

/// So that results of attempts that come late again and again cannot fill the memory.
const AUDIT_MAX_PER_RECORD: usize = 64;

/// A store in memory. When it is full, new keys are refused; records that live are never evicted.
///
/// Time is the process's own, so that it holds for one process only, as everything else here does.
#[derive(Debug)]
pub struct MemoryStore {
    shards: Vec<Mutex<Shard>>,
    hasher: RandomState,
    clock: Arc<dyn Clock>,
    len: AtomicUsize,
    len_max: usize,
    identity: OnceLock<Mutex<Identity>>,
    scope_keys: Mutex<HashMap<Scope, Vec<ScopeKey>>>,
    beats: Mutex<Beats>,
    /// Locked after a shard, never before one.
    notes: Mutex<Notes>,
}

#[derive(Debug, Default)]
struct Beats {
    nodes: HashMap<NodeId, Beaten>,
    regression: Option<Regression>,
}

#[derive(Debug, Default)]
struct Shard {
    /// Boxed, so that a table that grows moves little.
    records: Map<Box<Record>>,
    beside: Map<Beside>,
    audit: Map<Vec<AuditRecord>>,
}

/// What is kept beside a record that is not terminal. All of it belongs to one generation, since
/// there is no way to the next one but through a terminal state.
#[derive(Debug, Default)]
struct Beside {
    request: Option<Arc<StoredRequest>>,
    steps: Vec<SavedStep>,
}

impl MemoryStore {
    /// A store for at most a million records.
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// The same on another clock.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        MemoryStore {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            clock,
            len: AtomicUsize::new(0),
            len_max: 1_000_000,
            identity: OnceLock::new(),
            scope_keys: Mutex::default(),
            beats: Mutex::default(),
            notes: Mutex::default(),
        }
    }

    /// The same for at most this many records.
    #[must_use]
    pub fn with_capacity(mut self, records: usize) -> Self {
        self.len_max = records;
        self
    }

    /// Remembers what happened without a step on a record.
    pub(crate) fn remember(&self, audit: AuditRecord) {
        let place = self.place(&audit.id);
        self.shard(&place).remember(&place, audit);
    }

    fn place(&self, id: &RecordId) -> Place {
        Place::new(id, self.hasher.hash_one(id))
    }

    fn shard(&self, place: &Place) -> MutexGuard<'_, Shard> {
        let shard = self.shards.get(place.shard_of(SHARDS));
        lock(shard.unwrap_or_else(|| unreachable!("an index below SHARDS")))
    }

    /// One atomic step on one record.
    fn step<A>(
        &self,
        id: &RecordId,
        decide: impl FnOnce(Option<&Record>) -> Step<A>,
    ) -> Result<A, StoreError> {
        let place = self.place(id);
        let mut shard = self.shard(&place);
        let step = decide(shard.record(&place));
        self.take(&mut shard, &place, step)
    }

    fn take<A>(&self, shard: &mut Shard, place: &Place, step: Step<A>) -> Result<A, StoreError> {
        self.apply(shard, place, step.change)?;
        if let Some(audit) = step.audit {
            shard.remember(place, audit);
        }
        Ok(step.answer)
    }

    fn apply(&self, shard: &mut Shard, place: &Place, change: Change) -> Result<(), StoreError> {
        match change {
            Change::Keep => {}
            Change::Put(record) => {
                if record.state.is_terminal() {
                    shard.beside.remove(place);
                }
                match shard.records.get_mut(place) {
                    Some(before) => {
                        if machine::is_made_anew(before, &record) {
                            lock(&self.notes).forget(&record.id);
                        }
                        *before = record;
                    }
                    None if self.len.fetch_add(1, Ordering::Relaxed) >= self.len_max => {
                        self.len.fetch_sub(1, Ordering::Relaxed);
                        let full = format!("full: it holds {} records already", self.len_max);
                        return Err(StoreError::new(StoreErrorKind::Unavailable, "memory", full));
                    }
                    None => {
                        shard.records.insert(place.clone(), record);
                    }
                }
            }
            Change::Remove => {
                shard.beside.remove(place);
                lock(&self.notes).forget(place.id());
                if shard.records.remove(place).is_some() {
                    self.len.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
        Ok(())
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Shard {
    fn record(&self, place: &Place) -> Option<&Record> {
        self.records.get(place).map(|record| &**record)
    }

    fn all(&self) -> impl Iterator<Item = &Record> {
        self.records.values().map(|record| &**record)
    }

    fn steps(&self, place: &Place) -> &[SavedStep] {
        self.beside.get(place).map_or(&[], |beside| &beside.steps)
    }

    fn remember(&mut self, place: &Place, audit: AuditRecord) {
        let remembered = self.audit.entry(place.clone()).or_default();
        let is_known = remembered.iter().any(|known| audit.repeats(known));
        if remembered.len() < AUDIT_MAX_PER_RECORD && !is_known {
            remembered.push(audit);
        }
    }
}

/// A poisoned lock is taken all the same: nothing panics between the assignments of a step, so that
/// it cannot have been left half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All steps are done when the future is polled first, without an await in between.
fn ready<'a, T: Send + 'a>(
    step: impl FnOnce() -> Result<T, StoreError> + Send + 'a,
) -> StoreFuture<'a, T> {
    Box::pin(async move { step() })
}

impl Store for MemoryStore {
    fn reserve(&self, ask: Ask) -> StoreFuture<'_, Reservation> {
        ready(move || {
            let place = self.place(&ask.id);
            let mut shard = self.shard(&place);
            let step = machine::reserve(shard.record(&place), &ask, self.clock.now());
            let answer = self.take(&mut shard, &place, step)?;
            if let Some(request) = ask.request.filter(|_| machine::keeps_request(&answer)) {
                shard.beside.entry(place).or_default().request.get_or_insert(request);
            }
            Ok(answer)
        })
    }

    fn claim(&self, claim: Claim) -> StoreFuture<'_, Reservation> {
        ready(move || self.step(&claim.id, |found| machine::claim(found, &claim, self.clock.now())))
    }

    fn write<'a>(&'a self, lease: &'a Lease, write: Write) -> StoreFuture<'a, Written> {
        ready(move || {
            let write = match write {
                Write::Complete(reply) => Write::Complete(reply.compact()),
                other => other,
            };
            self.step(&lease.id, |found| machine::write(found, lease, write, self.clock.now()))
        })
    }

    fn advance<'a>(&'a self, lease: &'a Lease, advance: Advance) -> StoreFuture<'a, Advanced> {
        ready(move || {
            let place = self.place(&lease.id);
            let mut shard = self.shard(&place);
            let saved = shard.steps(&place).iter().any(|step| *step.name == *advance.name());
            let step = machine::advance(shard.record(&place), lease, &advance, saved);
            let answer = self.take(&mut shard, &place, step)?;
            if let (Advanced::Applied, Advance::Save { name, result }) = (&answer, advance) {
                let beside = shard.beside.entry(place).or_default();
                beside.steps.push(SavedStep { name, result });
            }
            Ok(answer)
        })
    }

    fn steps<'a>(&'a self, id: &'a RecordId, generation: u32) -> StoreFuture<'a, Vec<SavedStep>> {
        ready(move || {
            let place = self.place(id);
            let shard = self.shard(&place);
            let is_current = shard.record(&place).is_some_and(|it| it.generation == generation);
            Ok(if is_current { shard.steps(&place).to_vec() } else { Vec::new() })
        })
    }

    fn resumable(&self, which: Which, limit: u32) -> StoreFuture<'_, Vec<Resumable>> {
        ready(move || {
            let now = self.clock.now();
            let mut resumable = Vec::new();
            for shard in &self.shards {
                let shard = lock(shard);
                let due = shard.records.iter().filter(|(_, it)| machine::is_resumable(it, now));
                let due = due.filter(|(_, it)| which.includes(it));
                resumable.extend(due.map(|(place, record)| {
                    let kept = shard.beside.get(place);
                    let request = kept.and_then(|beside| beside.request.as_deref().cloned());
                    Resumable { record: record.clone(), request }
                }));
            }
            resumable.sort_by_key(|one| machine::line_of(&one.record));
            resumable.truncate(limit as usize);
            Ok(resumable)
        })
    }

    fn due_unknown(&self, limit: u32, except: Vec<Arc<str>>) -> StoreFuture<'_, Vec<Record>> {
        ready(move || {
            let now = self.clock.now();
            let is_due = |record: &&Record| {
                machine::is_due_for_probe(record, now) && !except.contains(&record.route)
            };
            let mut due = Vec::new();
            for shard in &self.shards {
                due.extend(lock(shard).all().filter(is_due).cloned());
            }
            due.sort_by_key(|record| record.reconcile_after);
            due.truncate(limit as usize);
            Ok(due)
        })
    }

    fn note_provider_id<'a>(&'a self, lease: &'a Lease, id: ProviderId) -> StoreFuture<'a, Noted> {
        ready(move || {
            let place = self.place(&lease.id);
            let mut shard = self.shard(&place);
            let mut notes = lock(&self.notes);
            let holder = notes.get(&id);
            let found = shard.record(&place);
            let step = machine::note(found, holder, lease, id.clone(), self.clock.now());
            step.put.into_iter().for_each(|note| notes.put(note));
            step.audit.into_iter().for_each(|audit| shard.remember(&place, audit));
            Ok(step.answer)
        })
    }

    fn by_provider_id<'a>(&'a self, id: &'a ProviderId) -> StoreFuture<'a, Option<ProviderNote>> {
        ready(move || Ok(lock(&self.notes).get(id).cloned()))
    }

    fn provider_ids(&self, of: Vec<RecordId>) -> StoreFuture<'_, Vec<ProviderNote>> {
        ready(move || {
            let notes = lock(&self.notes);
            Ok(of.iter().flat_map(|record| notes.of(record)).cloned().collect())
        })
    }

    fn resolve(&self, resolve: Resolve) -> StoreFuture<'_, Resolved> {
        ready(move || {
            let id = resolve.id.clone();
            self.step(&id, |found| machine::resolve(found, resolve, self.clock.now()))
        })
    }

    fn load<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Option<Record>> {
        ready(move || {
            let place = self.place(id);
            Ok(machine::load(self.shard(&place).record(&place), self.clock.now()))
        })
    }

    fn audit<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Vec<AuditRecord>> {
        ready(move || {
            let place = self.place(id);
            Ok(self.shard(&place).audit.get(&place).cloned().unwrap_or_default())
        })
    }

    fn list_records(&self, query: Query) -> StoreFuture<'_, Page> {
        ready(move || {
            let now = self.clock.now();
            // One shard after the other: nobody waits for all of it.
            let parts = self.shards.iter().flat_map(|shard| query.part(lock(shard).all(), now));
            Ok(query.merge(parts.collect()))
        })
    }

    fn audit_log(&self, query: AuditQuery) -> StoreFuture<'_, AuditPage> {
        ready(move || {
            let parts = self.shards.iter().flat_map(|shard| {
                let shard = lock(shard);
                query.part(shard.audit.values().flatten())
            });
            Ok(query.merge(parts.collect()))
        })
    }

    fn stats(&self) -> StoreFuture<'_, Stats> {
        ready(move || {
            let now = self.clock.now();
            let mut stats = Stats::default();
            for shard in &self.shards {
                stats.add(lock(shard).all(), now);
            }
            Ok(stats)
        })
    }

    fn sweep(&self, limit: u32) -> StoreFuture<'_, Vec<Swept>> {
        ready(move || {
            let now = self.clock.now();
            let mut swept = Vec::new();
            for shard in &self.shards {
                let mut shard = lock(shard);
                let due: Vec<(Place, Step<Option<Swept>>)> = shard
                    .records
                    .iter()
                    .map(|(place, record)| (place, machine::sweep(record, now)))
                    .filter(|(_, step)| step.answer.is_some())
                    .take(limit as usize - swept.len())
                    .map(|(place, step)| (place.clone(), step))
                    .collect();
                for (place, step) in due {
                    swept.extend(self.take(&mut shard, &place, step)?);
                }
            }
            Ok(swept)
        })
    }

    fn reap(&self, limit: u32) -> StoreFuture<'_, Reaped> {
        ready(move || {
            let now = self.clock.now();
            let mut reaped = Reaped::default();
            for shard in &self.shards {
                let mut shard = lock(shard);
                let left = limit - reaped.expired - reaped.purged;
                let due: Vec<(Place, Change)> = shard
                    .records
                    .iter()
                    .map(|(place, record)| (place, machine::reap(record, now)))
                    .filter(|(_, change)| *change != Change::Keep)
                    .take(left as usize)
                    .map(|(place, change)| (place.clone(), change))
                    .collect();
                for (place, change) in due {
                    match change {
                        Change::Remove => reaped.purged += 1,
                        Change::Keep | Change::Put(_) => reaped.expired += 1,
                    }
                    self.apply(&mut shard, &place, change)?;
                }
            }
            Ok(reaped)
        })
    }

    fn purge_audit(&self, older_than: Duration, limit: u32) -> StoreFuture<'_, u32> {
        ready(move || {
            let now = self.clock.now();
            let mut left = limit;
            for shard in &self.shards {
                let mut shard = lock(shard);
                let Shard { records, audit, .. } = &mut *shard;
                audit.retain(|place, remembered| {
                    let kept = records.get(place).map(|record| record.generation);
                    remembered.retain(|audit| {
                        let is_old = audit.at.plus(older_than) <= now;
                        let goes = left > 0 && is_old && kept != Some(audit.generation);
                        left -= u32::from(goes);
                        !goes
                    });
                    !remembered.is_empty()
                });
            }
            Ok(limit - left)
        })
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        ready(|| Ok(()))
    }

    fn check_identity<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, IdentityCheck> {
        ready(move || {
            let known = self.identity.get_or_init(|| Mutex::new(identity.clone()));
            Ok(if *lock(known) == *identity {
                IdentityCheck::Same
            } else {
                IdentityCheck::Different
            })
        })
    }

    fn accept_identity<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, ()> {
        ready(move || {
            *lock(self.identity.get_or_init(|| Mutex::new(identity.clone()))) = identity.clone();
            Ok(())
        })
    }

    fn scope_keys<'a>(
        &'a self,
        scope: &'a Scope,
        proposed: Option<ScopeKey>,
    ) -> StoreFuture<'a, Vec<ScopeKey>> {
        ready(move || {
            let mut keys = lock(&self.scope_keys);
            let Some(proposed) = proposed else {
                return Ok(keys.get(scope).cloned().unwrap_or_default());
            };
            let keys = keys.entry(scope.clone()).or_default();
            let has_one = |key: &ScopeKey| key.stands() && key.wrapped_by == proposed.wrapped_by;
            if !keys.iter().any(has_one) {
                keys.push(proposed);
            }
            Ok(keys.clone())
        })
    }

    fn drop_scope_keys<'a>(&'a self, scope: &'a Scope, reason: &'a str) -> StoreFuture<'a, u32> {
        ready(move || {
            let mut keys = lock(&self.scope_keys);
            let standing = keys.get_mut(scope).into_iter().flatten().filter(|key| key.stands());
            let mut dropped = 0;
            for key in standing {
                key.wrapped = None;
                dropped += 1;
                self.remember(AuditRecord::erased(scope.clone(), key.id, reason, self.clock.now()));
            }
            Ok(dropped)
        })
    }

    fn beat(&self, beat: Beat) -> StoreFuture<'_, Pulse> {
        ready(move || {
            let mut beats = lock(&self.beats);
            let now = self.clock.now();
            let last = beats.nodes.get(&beat.node).copied();
            let step = machine::beat(last, beats.regression, &beat, now);
            if last.is_none() {
                beats.nodes.retain(|_, beaten| now.since(beaten.at) < machine::BEATS_KEPT);
            }
            beats.nodes.insert(beat.node, step.beaten);
            beats.regression = step.pulse.regression;
            step.audit.into_iter().for_each(|audit| self.remember(audit));
            Ok(step.pulse)
        })
    }

    fn acknowledge_regression<'a>(
        &'a self,
        reason: &'a str,
    ) -> StoreFuture<'a, Option<Regression>> {
        ready(move || {
            let known = lock(&self.beats).regression.take();
            if let Some(known) = known {
                self.remember(AuditRecord::acknowledged(known, reason, self.clock.now()));
            }
            Ok(known)
        })
    }
}
