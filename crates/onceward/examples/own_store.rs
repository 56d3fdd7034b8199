//! A store of your own: here a map behind one lock. The rules come from `machine`, so that a store
//! only has to make each step atomic. Its tests are one line: the public suite.
//!
//! `cargo test -p onceward --features testing --example own_store`

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use onceward::{
    Scope, Store,
    clock::{Clock, SystemClock},
    machine::{self, Change, Step},
    record::{
        AuditRecord, Lease, ProviderId, ProviderNote, Record, RecordId, SavedStep, StoredRequest,
    },
    store::{
        Advance, Advanced, Ask, Beat, Beaten, Claim, Identity, IdentityCheck, NodeId, Noted, Pulse,
        Reaped, Regression, Reservation, Resolve, Resolved, Resumable, ScopeKey, StoreFuture,
        Swept, Which, Write, Written,
        list::{AuditPage, AuditQuery, Page, Query, Stats},
    },
};

#[derive(Debug)]
struct OneLockStore {
    clock: Arc<dyn Clock>,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    records: BTreeMap<RecordId, Record>,
    // Of records that are not terminal only.
    requests: BTreeMap<RecordId, Arc<StoredRequest>>,
    steps: BTreeMap<RecordId, Vec<SavedStep>>,
    audit: Vec<AuditRecord>,
    identity: Option<Identity>,
    scope_keys: BTreeMap<Scope, Vec<ScopeKey>>,
    beats: BTreeMap<NodeId, Beaten>,
    regression: Option<Regression>,
    provider_ids: Vec<ProviderNote>,
}

impl Inside {
    fn apply(&mut self, id: &RecordId, change: Change) {
        let is_gone = match (&change, self.records.get(id)) {
            (Change::Put(record), Some(before)) => machine::is_made_anew(before, record),
            (change, _) => *change == Change::Remove,
        };
        if is_gone {
            self.provider_ids.retain(|note| note.record != *id);
        }
        match change {
            Change::Keep => {}
            Change::Put(record) => drop(self.records.insert(id.clone(), *record)),
            Change::Remove => drop(self.records.remove(id)),
        }
        if self.records.get(id).is_none_or(|record| record.state.is_terminal()) {
            self.requests.remove(id);
            self.steps.remove(id);
        }
    }

    fn take<A>(&mut self, id: &RecordId, step: Step<A>) -> A {
        self.apply(id, step.change);
        step.audit.into_iter().for_each(|audit| self.remember(audit));
        step.answer
    }

    fn remember(&mut self, audit: AuditRecord) {
        // What is told twice is one thing.
        if !self.audit.iter().any(|known| audit.repeats(known)) {
            self.audit.push(audit);
        }
    }
}

impl OneLockStore {
    fn new(clock: Arc<dyn Clock>) -> Self {
        OneLockStore { clock, inside: Mutex::default() }
    }

    /// Everything in here happens at once, without an await: that is what makes it atomic.
    fn locked<'a, T: Send + 'a>(
        &'a self,
        step: impl FnOnce(&mut Inside) -> T + Send + 'a,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move {
            Ok(step(&mut self.inside.lock().unwrap_or_else(PoisonError::into_inner)))
        })
    }

    fn step<'a, A: Send + 'a>(
        &'a self,
        id: RecordId,
        decide: impl FnOnce(Option<&Record>) -> Step<A> + Send + 'a,
    ) -> StoreFuture<'a, A> {
        self.locked(move |inside| {
            let step = decide(inside.records.get(&id));
            inside.take(&id, step)
        })
    }
}

impl Store for OneLockStore {
    fn reserve(&self, ask: Ask) -> StoreFuture<'_, Reservation> {
        self.locked(move |inside| {
            let step = machine::reserve(inside.records.get(&ask.id), &ask, self.clock.now());
            let answer = inside.take(&ask.id, step);
            if let Some(request) = ask.request.filter(|_| machine::keeps_request(&answer)) {
                inside.requests.entry(ask.id).or_insert(request);
            }
            answer
        })
    }

    fn claim(&self, claim: Claim) -> StoreFuture<'_, Reservation> {
        self.step(claim.id.clone(), move |found| machine::claim(found, &claim, self.clock.now()))
    }

    fn write<'a>(&'a self, lease: &'a Lease, write: Write) -> StoreFuture<'a, Written> {
        self.step(lease.id.clone(), move |found| {
            machine::write(found, lease, write, self.clock.now())
        })
    }

    fn advance<'a>(&'a self, lease: &'a Lease, advance: Advance) -> StoreFuture<'a, Advanced> {
        self.locked(move |inside| {
            let mut saved = inside.steps.get(&lease.id).into_iter().flatten();
            let saved = saved.any(|step| *step.name == *advance.name());
            let found = inside.records.get(&lease.id);
            let step = machine::advance(found, lease, &advance, saved);
            let answer = inside.take(&lease.id, step);
            if let (Advanced::Applied, Advance::Save { name, result }) = (&answer, advance) {
                let steps = inside.steps.entry(lease.id.clone()).or_default();
                steps.push(SavedStep { name, result });
            }
            answer
        })
    }

    fn steps<'a>(&'a self, id: &'a RecordId, generation: u32) -> StoreFuture<'a, Vec<SavedStep>> {
        self.locked(move |inside| {
            let record = inside.records.get(id).filter(|it| it.generation == generation);
            record.and_then(|it| inside.steps.get(&it.id).cloned()).unwrap_or_default()
        })
    }

    fn resumable(&self, which: Which, limit: u32) -> StoreFuture<'_, Vec<Resumable>> {
        self.locked(move |inside| {
            let now = self.clock.now();
            let due = inside.records.values().filter(|it| machine::is_resumable(it, now));
            let due = due.filter(|it| which.includes(it));
            let mut due: Vec<Resumable> = due
                .map(|record| Resumable {
                    record: Box::new(record.clone()),
                    request: inside.requests.get(&record.id).map(|kept| (**kept).clone()),
                })
                .collect();
            due.sort_by_key(|one| machine::line_of(&one.record));
            due.truncate(limit as usize);
            due
        })
    }

    fn due_unknown(&self, limit: u32, except: Vec<Arc<str>>) -> StoreFuture<'_, Vec<Record>> {
        self.locked(move |inside| {
            let now = self.clock.now();
            let due = inside.records.values().filter(|it| machine::is_due_for_probe(it, now));
            let due = due.filter(|record| !except.contains(&record.route));
            let mut due: Vec<Record> = due.cloned().collect();
            due.sort_by_key(|record| record.reconcile_after);
            due.truncate(limit as usize);
            due
        })
    }

    fn note_provider_id<'a>(&'a self, lease: &'a Lease, id: ProviderId) -> StoreFuture<'a, Noted> {
        self.locked(move |inside| {
            let known = inside.provider_ids.iter().position(|note| note.id == id);
            let holder = known.and_then(|place| inside.provider_ids.get(place));
            let found = inside.records.get(&lease.id);
            let step = machine::note(found, holder, lease, id, self.clock.now());
            match (step.put, known) {
                (Some(note), Some(place)) => inside.provider_ids[place] = note,
                (Some(note), None) => inside.provider_ids.push(note),
                (None, _) => {}
            }
            step.audit.into_iter().for_each(|audit| inside.remember(audit));
            step.answer
        })
    }

    fn by_provider_id<'a>(&'a self, id: &'a ProviderId) -> StoreFuture<'a, Option<ProviderNote>> {
        self.locked(move |inside| inside.provider_ids.iter().find(|note| note.id == *id).cloned())
    }

    fn provider_ids(&self, of: Vec<RecordId>) -> StoreFuture<'_, Vec<ProviderNote>> {
        self.locked(move |inside| {
            let mut notes = Vec::new();
            for id in &of {
                notes.extend(inside.provider_ids.iter().filter(|it| it.record == *id).cloned());
            }
            notes
        })
    }

    fn resolve(&self, resolve: Resolve) -> StoreFuture<'_, Resolved> {
        self.step(resolve.id.clone(), move |found| {
            machine::resolve(found, resolve, self.clock.now())
        })
    }

    fn load<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Option<Record>> {
        self.locked(move |inside| machine::load(inside.records.get(id), self.clock.now()))
    }

    fn audit<'a>(&'a self, id: &'a RecordId) -> StoreFuture<'a, Vec<AuditRecord>> {
        self.locked(move |inside| inside.audit.iter().filter(|a| a.id == *id).cloned().collect())
    }

    fn list_records(&self, query: Query) -> StoreFuture<'_, Page> {
        self.locked(move |inside| query.page(inside.records.values(), self.clock.now()))
    }

    fn audit_log(&self, query: AuditQuery) -> StoreFuture<'_, AuditPage> {
        self.locked(move |inside| query.page(inside.audit.iter()))
    }

    fn stats(&self) -> StoreFuture<'_, Stats> {
        self.locked(|inside| Stats::count(inside.records.values(), self.clock.now()))
    }

    fn sweep(&self, limit: u32) -> StoreFuture<'_, Vec<Swept>> {
        self.locked(move |inside| {
            let now = self.clock.now();
            let steps = inside.records.values().map(|record| machine::sweep(record, now));
            let due: Vec<_> =
                steps.filter(|step| step.answer.is_some()).take(limit as usize).collect();
            let mut swept = Vec::new();
            for step in due {
                let Some(id) = step.answer.as_ref().map(|moved| moved.id.clone()) else { continue };
                swept.extend(inside.take(&id, step));
            }
            swept
        })
    }

    fn reap(&self, limit: u32) -> StoreFuture<'_, Reaped> {
        self.locked(move |inside| {
            let now = self.clock.now();
            let changes = inside.records.values().map(|r| (r.id.clone(), machine::reap(r, now)));
            let due: Vec<_> = changes
                .filter(|(_, change)| *change != Change::Keep)
                .take(limit as usize)
                .collect();
            let mut reaped = Reaped::default();
            for (id, change) in due {
                match change {
                    Change::Remove => reaped.purged += 1,
                    _ => reaped.expired += 1,
                }
                inside.apply(&id, change);
            }
            reaped
        })
    }

    fn purge_audit(&self, older_than: Duration, limit: u32) -> StoreFuture<'_, u32> {
        self.locked(move |inside| {
            let (now, mut left) = (self.clock.now(), limit);
            let Inside { audit, records, .. } = inside;
            audit.retain(|audit| {
                let kept = records.get(&audit.id).map(|record| record.generation);
                let is_old = audit.at.plus(older_than) <= now;
                let goes = left > 0 && is_old && kept != Some(audit.generation);
                left -= u32::from(goes);
                !goes
            });
            limit - left
        })
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        self.locked(|_| ())
    }

    fn check_identity<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, IdentityCheck> {
        self.locked(move |inside| {
            match inside.identity.get_or_insert_with(|| identity.clone()) == identity {
                true => IdentityCheck::Same,
                false => IdentityCheck::Different,
            }
        })
    }

    fn accept_identity<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, ()> {
        self.locked(move |inside| inside.identity = Some(identity.clone()))
    }

    fn scope_keys<'a>(
        &'a self,
        scope: &'a Scope,
        proposed: Option<ScopeKey>,
    ) -> StoreFuture<'a, Vec<ScopeKey>> {
        self.locked(move |inside| {
            let keys = inside.scope_keys.entry(scope.clone()).or_default();
            let same = |key: &&ScopeKey, new: &ScopeKey| key.wrapped_by == new.wrapped_by;
            if let Some(new) = proposed
                && keys.iter().filter(|key| same(key, &new)).all(|key| !key.stands())
            {
                keys.push(new);
            }
            keys.clone()
        })
    }

    fn drop_scope_keys<'a>(&'a self, scope: &'a Scope, reason: &'a str) -> StoreFuture<'a, u32> {
        self.locked(move |inside| {
            let Inside { scope_keys, audit, .. } = inside;
            let keys = scope_keys.get_mut(scope).into_iter().flatten();
            let mut dropped = 0;
            for key in keys.filter(|key| key.stands()) {
                key.wrapped = None;
                dropped += 1;
                let now = self.clock.now();
                audit.push(AuditRecord::erased(scope.clone(), key.id, reason, now));
            }
            dropped
        })
    }

    fn beat(&self, beat: Beat) -> StoreFuture<'_, Pulse> {
        self.locked(move |inside| {
            let last = inside.beats.get(&beat.node).copied();
            let step = machine::beat(last, inside.regression, &beat, self.clock.now());
            inside.beats.insert(beat.node, step.beaten);
            inside.regression = step.pulse.regression;
            step.audit.into_iter().for_each(|audit| inside.remember(audit));
            step.pulse
        })
    }

    fn acknowledge_regression<'a>(
        &'a self,
        reason: &'a str,
    ) -> StoreFuture<'a, Option<Regression>> {
        self.locked(move |inside| {
            let known = inside.regression.take();
            if let Some(known) = known {
                inside.remember(AuditRecord::acknowledged(known, reason, self.clock.now()));
            }
            known
        })
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = OneLockStore::new(Arc::new(SystemClock));
    store.ping().await?;
    let identity = Identity::new("authorization", "onceward-key/1", []);
    assert_eq!(store.check_identity(&identity).await?, IdentityCheck::Same);
    println!("a store of one's own; its tests are `cargo test --example own_store`");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    onceward::store_suite!(one_lock, |clock| async { OneLockStore::new(Arc::new(clock)) });
}
