//! Records in memory: for tests and development. Nothing survives the process.

use std::{
    collections::{HashMap, hash_map::RandomState},
    hash::BuildHasher as _,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::{
    Ask, Claim, Identity, IdentityCheck, Reaped, Reservation, Resolve, Resolved, Store, StoreError,
    StoreErrorKind, StoreFuture, Swept, Write, Written,
};
use crate::{
    clock::{Clock, SystemClock},
    machine::{self, Change, Step},
    record::{AuditRecord, Lease, Record, RecordId},
};

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
}

#[derive(Debug, Default)]
struct Shard {
    records: HashMap<RecordId, Record>,
    audit: HashMap<RecordId, Vec<AuditRecord>>,
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
        }
    }

    /// The same for at most this many records.
    #[must_use]
    pub fn with_capacity(mut self, records: usize) -> Self {
        self.len_max = records;
        self
    }

    fn shard(&self, id: &RecordId) -> MutexGuard<'_, Shard> {
        let index = self.hasher.hash_one(id) % SHARDS as u64;
        let index = usize::try_from(index).unwrap_or_default();
        lock(self.shards.get(index).unwrap_or_else(|| unreachable!("an index below SHARDS")))
    }

    /// One atomic step on one record.
    fn step<A>(
        &self,
        id: &RecordId,
        decide: impl FnOnce(Option<&Record>) -> Step<A>,
    ) -> Result<A, StoreError> {
        let mut shard = self.shard(id);
        let step = decide(shard.records.get(id));
        self.apply(&mut shard, id, step.change)?;
        if let Some(audit) = step.audit {
            shard.remember(audit);
        }
        Ok(step.answer)
    }

    fn apply(&self, shard: &mut Shard, id: &RecordId, change: Change) -> Result<(), StoreError> {
        match change {
            Change::Keep => {}
            Change::Put(record) => {
                let is_new = !shard.records.contains_key(id);
                if is_new && self.len.fetch_add(1, Ordering::Relaxed) >= self.len_max {
                    self.len.fetch_sub(1, Ordering::Relaxed);
                    let full = format!("full: it holds {} records already", self.len_max);
                    return Err(StoreError::new(StoreErrorKind::Unavailable, "memory", full));
                }
                shard.records.insert(id.clone(), *record);
            }
            Change::Remove => {
                if shard.records.remove(id).is_some() {
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
    fn remember(&mut self, audit: AuditRecord) {
        let remembered = self.audit.entry(audit.id.clone()).or_default();
        let is_known = |known: &AuditRecord| {
            known.event == audit.event
                && known.attempt == audit.attempt
                && known.fence == audit.fence
        };
        if remembered.len() < AUDIT_MAX_PER_RECORD && !remembered.iter().any(is_known) {
            remembered.push(audit);
        }
    }
}

/// A poisoned lock is taken all the same: every step on a record is one assignment, so that a panic
/// cannot have left it half done.
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
        ready(move || self.step(&ask.id, |found| machine::reserve(found, &ask, self.clock.now())))
    }

    fn claim(&self, claim: Claim) -> StoreFuture<'_, Reservation> {
        ready(move || self.step(&claim.id, |found| machine::claim(found, &claim, self.clock.now())))
    }

    fn write<'a>(&'a self, lease: &'a Lease, write: Write) -> StoreFuture<'a, Written> {
        ready(move || {
            self.step(&lease.id, |found| machine::write(found, lease, write, self.clock.now()))
        })
    }

    fn resolve(&self, resolve: Resolve) -> StoreFuture<'_, Resolved> {
        ready(move || {
            let id = resolve.id.clone();
            self.step(&id, |found| machine::resolve(found, resolve, self.clock.now()))
        })
    }

    fn load<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Option<Record>> {
        ready(move || Ok(machine::load(self.shard(id).records.get(id), self.clock.now())))
    }

    fn audit<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Vec<AuditRecord>> {
        ready(move || Ok(self.shard(id).audit.get(id).cloned().unwrap_or_default()))
    }

    fn sweep(&self, limit: u32) -> StoreFuture<'_, Vec<Swept>> {
        ready(move || {
            let now = self.clock.now();
            let mut swept = Vec::new();
            for shard in &self.shards {
                let mut shard = lock(shard);
                let due: Vec<Step<Option<Swept>>> = shard
                    .records
                    .values()
                    .map(|record| machine::sweep(record, now))
                    .filter(|step| step.answer.is_some())
                    .take(limit as usize - swept.len())
                    .collect();
                for step in due {
                    let Some(moved) = step.answer else { continue };
                    self.apply(&mut shard, &moved.id, step.change)?;
                    step.audit.into_iter().for_each(|audit| shard.remember(audit));
                    swept.push(moved);
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
                let due: Vec<(RecordId, Change)> = shard
                    .records
                    .values()
                    .map(|record| (record.id.clone(), machine::reap(record, now)))
                    .filter(|(_, change)| *change != Change::Keep)
                    .take(left as usize)
                    .collect();
                for (id, change) in due {
                    match change {
                        Change::Remove => reaped.purged += 1,
                        Change::Keep | Change::Put(_) => reaped.expired += 1,
                    }
                    self.apply(&mut shard, &id, change)?;
                }
            }
            Ok(reaped)
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
}
