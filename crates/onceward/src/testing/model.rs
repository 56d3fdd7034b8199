//! The oracle: the machine over a `BTreeMap`, one call after the other.

use std::collections::BTreeMap;

use crate::{
    clock::Timestamp,
    machine::{self, Change, Step},
    record::{AuditRecord, Lease, Record, RecordId},
    store::{Ask, Claim, Reaped, Reservation, Resolve, Resolved, Swept, Write, Written},
};

/// What a store must do, as plain data: the rules of [`crate::machine`] on a map. A store and a
/// model that are asked the same things at the same times give the same answers and hold the same
/// records.
#[derive(Clone, Debug, Default)]
pub struct Model {
    records: BTreeMap<RecordId, Record>,
    audit: BTreeMap<RecordId, Trail>,
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
        self.apply(&ask.id, step)
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
                Change::Put(left) => drop(self.records.insert(id, *left)),
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

    fn forget(&mut self, id: &RecordId) {
        if let Some(trail) = self.audit.get_mut(id) {
            trail.about_purged = trail.all.len();
        }
    }

    fn apply<A>(&mut self, id: &RecordId, step: Step<A>) -> A {
        match step.change {
            Change::Keep => {}
            Change::Put(record) => drop(self.records.insert(id.clone(), *record)),
            Change::Remove => drop(self.records.remove(id)),
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
        let is_known = kept.iter().any(|known| {
            (known.event, known.attempt, known.fence) == (audit.event, audit.attempt, audit.fence)
        });
        if !is_known {
            kept.push(audit);
        }
    }
    kept
}
