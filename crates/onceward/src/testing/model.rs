//! The oracle: the machine over a `BTreeMap`, one call after the other.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    clock::Timestamp,
    machine::{self, Change, Step},
    record::{AuditRecord, Lease, Record, RecordId, SavedStep, StoredRequest},
    store::{
        Advance, Advanced, Ask, Claim, Reaped, Reservation, Resolve, Resolved, Resumable, Swept,
        Which, Write, Written,
        list::{AuditPage, AuditQuery, Page, Query, Stats},
    },
};

/// What a store must do, as plain data: the rules of [`crate::machine`] on a map. A store and a
/// model that are asked the same things at the same times give the same answers and hold the same
/// records.
#[derive(Clone, Debug, Default)]
pub struct Model {
    records: BTreeMap<RecordId, Record>,
    beside: BTreeMap<RecordId, Beside>,
    audit: BTreeMap<RecordId, Trail>,
}

/// What is kept beside a record as long as it is not terminal.
#[derive(Clone, Debug, Default)]
struct Beside {
    request: Option<Arc<StoredRequest>>,
    steps: Vec<SavedStep>,
}

/// The audit records of one scope and key.
#[derive(Clone, Debug, Default)]
struct Trail {
    all: Vec<AuditRecord>,
    /// How many of them are about records that were purged. Whether a store still has those is its
    /// own affair, since audit records have a retention of their own.
    about_purged: usize,
}

impl Model {
    /// See [`crate::Store::reserve`].
    pub fn reserve(&mut self, ask: &Ask, now: Timestamp) -> Reservation {
        let step = machine::reserve(self.records.get(&ask.id), ask, now);
        let answer = self.apply(&ask.id, step);
        if let Some(request) = ask.request.clone().filter(|_| machine::keeps_request(&answer)) {
            self.beside.entry(ask.id.clone()).or_default().request.get_or_insert(request);
        }
        answer
    }

    /// See [`crate::Store::claim`].
    pub fn claim(&mut self, claim: &Claim, now: Timestamp) -> Reservation {
        let step = machine::claim(self.records.get(&claim.id), claim, now);
        self.apply(&claim.id, step)
    }

    /// See [`crate::Store::write`].
    pub fn write(&mut self, lease: &Lease, write: Write, now: Timestamp) -> Written {
        let step = machine::write(self.records.get(&lease.id), lease, write, now);
        self.apply(&lease.id, step)
    }

    /// See [`crate::Store::advance`].
    pub fn advance(&mut self, lease: &Lease, advance: Advance) -> Advanced {
        let mut saved = self.kept_steps(&lease.id).iter();
        let saved = saved.any(|step| *step.name == *advance.name());
        let step = machine::advance(self.records.get(&lease.id), lease, &advance, saved);
        let answer = self.apply(&lease.id, step);
        if let (Advanced::Applied, Advance::Save { name, result }) = (&answer, advance) {
            let beside = self.beside.entry(lease.id.clone()).or_default();
            beside.steps.push(SavedStep { name, result });
        }
        answer
    }

    /// See [`crate::Store::steps`].
    pub fn steps(&self, id: &RecordId, generation: u32) -> Vec<SavedStep> {
        let record = self.records.get(id).filter(|record| record.generation == generation);
        record.map_or_else(Vec::new, |record| self.kept_steps(&record.id).to_vec())
    }

    fn kept_steps(&self, id: &RecordId) -> &[SavedStep] {
        self.beside.get(id).map_or(&[], |beside| &beside.steps)
    }

    /// Whether a store may answer this to [`crate::Store::resumable`]. Which of those whose leases
    /// ended together it tells of first is its own affair.
    ///
    /// # Errors
    /// With all that could be resumed, oldest lease first.
    pub fn agrees_on_resumable(
        &self,
        held: &[Resumable],
        which: Which,
        limit: u32,
        now: Timestamp,
    ) -> Result<(), String> {
        let records = self.records.values().filter(|record| machine::is_resumable(record, now));
        let records = records.filter(|record| which.includes(record));
        let mut due: Vec<Resumable> = records
            .map(|record| {
                let kept = self.beside.get(&record.id);
                let request = kept.and_then(|beside| beside.request.as_deref().cloned());
                Resumable { record: Box::new(record.clone()), request }
            })
            .collect();
        due.sort_by_key(|one| machine::line_of(&one.record));
        let lease_ends = |of: &[Resumable]| -> Vec<(bool, Timestamp)> {
            of.iter().map(|one| machine::line_of(&one.record)).take(limit as usize).collect()
        };
        let is_told_twice = |one: &Resumable| {
            held.iter().filter(|other| other.record.id == one.record.id).count() > 1
        };
        let agreed = held.len() == due.len().min(limit as usize)
            && lease_ends(held) == lease_ends(&due)
            && held.iter().all(|one| due.contains(one) && !is_told_twice(one));
        if agreed { Ok(()) } else { Err(format!("{due:?}")) }
    }

    /// Whether a store may answer this to [`crate::Store::due_unknown`]. Which of those that are due
    /// together it tells of first is its own affair.
    ///
    /// # Errors
    /// With all that are due, the longest waiting first.
    pub fn agrees_on_due_unknown(
        &self,
        held: &[Record],
        limit: u32,
        now: Timestamp,
    ) -> Result<(), String> {
        let mut due: Vec<&Record> =
            self.records.values().filter(|it| machine::is_due_for_probe(it, now)).collect();
        due.sort_by_key(|record| record.reconcile_after);
        let first = due.iter().take(limit as usize).map(|record| record.reconcile_after);
        let is_told_twice =
            |one: &Record| held.iter().filter(|other| other.id == one.id).count() > 1;
        let agreed = first.eq(held.iter().map(|record| record.reconcile_after))
            && held.iter().all(|one| due.contains(&one) && !is_told_twice(one));
        if agreed { Ok(()) } else { Err(format!("{due:?}")) }
    }

    /// See [`crate::Store::resolve`].
    pub fn resolve(&mut self, resolve: Resolve, now: Timestamp) -> Resolved {
        let id = resolve.id.clone();
        let step = machine::resolve(self.records.get(&id), resolve, now);
        self.apply(&id, step)
    }

    /// See [`crate::Store::load`].
    pub fn load(&self, id: &RecordId, now: Timestamp) -> Option<Record> {
        machine::load(self.records.get(id), now)
    }

    /// All the records that a sweep would move on now, and what it would say of them.
    pub fn due_to_sweep(&self, now: Timestamp) -> Vec<Swept> {
        let records = self.records.values();
        records.filter_map(|record| machine::sweep(record, now).answer).collect()
    }

    /// Sweeps the same records as the store did: which ones it takes first is its own affair.
    ///
    /// # Errors
    /// When the store swept what was not due, something twice, or not as many as it could.
    pub fn sweep_as(&mut self, swept: &[Swept], limit: u32, now: Timestamp) -> Result<(), String> {
        let due = self.due_to_sweep(now);
        let expected = due.len().min(limit as usize);
        if swept.len() != expected {
            return Err(format!("{expected} records were to be swept, {} were", swept.len()));
        }
        for one in swept {
            let Some(record) = self.records.get(&one.id) else {
                return Err(format!("{one:?} was swept and does not exist"));
            };
            let step = machine::sweep(record, now);
            if step.answer.as_ref() != Some(one) {
                return Err(format!("{one:?} was swept, expected {:?}", step.answer));
            }
            self.apply(&one.id, step);
        }
        Ok(())
    }

    /// What a reap without a limit would do now.
    pub fn due_to_reap(&self, now: Timestamp) -> Reaped {
        let mut due = Reaped::default();
        for record in self.records.values() {
            match machine::reap(record, now) {
                Change::Keep => {}
                Change::Put(_) => due.expired += 1,
                Change::Remove => due.purged += 1,
            }
        }
        due
    }

    /// Reaps everything that is due.
    pub fn reap(&mut self, now: Timestamp) -> Reaped {
        let due = self.due_to_reap(now);
        for (id, record) in std::mem::take(&mut self.records) {
            match machine::reap(&record, now) {
                Change::Keep => drop(self.records.insert(id, record)),
                Change::Put(left) => {
                    self.beside.remove(&id);
                    self.records.insert(id, *left);
                }
                Change::Remove => self.forget(&id),
            }
        }
        due
    }

    /// Whether a store may have these audit records. Those about purged records may be gone.
    ///
    /// # Errors
    /// With the audit records it should have.
    pub fn agrees_on_audit(&self, id: &RecordId, held: &[AuditRecord]) -> Result<(), String> {
        let Some(trail) = self.audit.get(id) else {
            return if held.is_empty() { Ok(()) } else { Err("no audit records".into()) };
        };
        let may_be_held =
            (0..=trail.about_purged).map(|gone| without_repetitions(&trail.all[gone..]));
        if may_be_held.into_iter().any(|kept| kept.iter().copied().eq(held)) {
            return Ok(());
        }
        Err(format!("{:?}", trail.all))
    }

    /// The audit records of one scope and key, oldest first.
    pub fn audit(&self, id: &RecordId) -> Vec<AuditRecord> {
        let trail = self.audit.get(id).map_or(&[][..], |trail| &trail.all);
        without_repetitions(trail).into_iter().cloned().collect()
    }

    /// See [`crate::Store::list_records`].
    pub fn list(&self, query: &Query, now: Timestamp) -> Page {
        query.page(self.records.values(), now)
    }

    /// See [`crate::Store::audit_log`]. Of a model from which nothing was purged.
    pub fn audit_log(&self, query: &AuditQuery) -> AuditPage {
        let trails = self.audit.values().flat_map(|trail| without_repetitions(&trail.all));
        query.page(trails)
    }

    /// See [`crate::Store::stats`].
    pub fn stats(&self, now: Timestamp) -> Stats {
        Stats::count(self.records.values(), now)
    }

    fn forget(&mut self, id: &RecordId) {
        self.beside.remove(id);
        if let Some(trail) = self.audit.get_mut(id) {
            trail.about_purged = trail.all.len();
        }
    }

    fn apply<A>(&mut self, id: &RecordId, step: Step<A>) -> A {
        match step.change {
            Change::Keep => {}
            Change::Put(record) => {
                if record.state.is_terminal() {
                    self.beside.remove(id);
                }
                self.records.insert(id.clone(), *record);
            }
            Change::Remove => {
                self.beside.remove(id);
                self.records.remove(id);
            }
        }
        if let Some(audit) = step.audit {
            let trail = self.audit.entry(id.clone()).or_default();
            trail.all.push(audit);
        }
        step.answer
    }
}

/// A call that is repeated after a lost answer leaves one trace, not two.
fn without_repetitions(trail: &[AuditRecord]) -> Vec<&AuditRecord> {
    let mut kept: Vec<&AuditRecord> = Vec::new();
    for audit in trail {
        let is_known = kept.iter().any(|known| audit.repeats(known));
        if !is_known {
            kept.push(audit);
        }
    }
    kept
}
