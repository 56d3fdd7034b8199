//! Steps on records, many in one transaction: their rows are locked, the machine decides one after
//! the other, and what it says is written and committed.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    time::Duration,
};

use tokio::time::{Instant, timeout};
use tracing::warn;

use super::{
    error::{Remedy, STORE, TRIES_MAX, answer_lost, damaged, pause},
    link::{CALL_TIME_MAX, Link, Lost, PATIENCE},
    session::{Changes, Found, Lock, Session, is_accompanied},
};
use crate::{
    clock::Timestamp,
    machine::{self, Change},
    record::{Record, RecordId, State},
    store::{
        StoreError, StoreErrorKind, StoreFuture, lane::Element, step::PendingStep, turn,
        witness::Witness,
    },
};

/// What is noted of a step that was committed, and whether it stays.
pub(super) type Noted = (Witness, bool);

/// A step that stands in line.
pub(super) struct Step {
    pub(super) pending: Box<dyn PendingStep<Noted>>,
    /// How large it is, roughly.
    pub(super) bytes: usize,
    /// A reserve may be answered by what is in the way, also while that is locked.
    pub(super) reserves: bool,
    /// It was sent before, and no answer came.
    pub(super) lost: bool,
    /// Its record was not there, and is being inserted.
    pub(super) inserts: bool,
}

/// What stands in line for a connection beside the batches.
pub(super) enum Side {
    /// A step that a batch could not make.
    Step(Step),
    Job(Job),
}

/// Work that is not a step on a record.
type Job = Box<dyn for<'l> FnOnce(&'l mut Link) -> StoreFuture<'l, ()> + Send>;

/// How often a batch tries for rows that others have locked, before it does without them.
const LOCK_TRIES_MAX: u32 = 5;

/// And for how long.
const LOCK_TIME_MAX: Duration = Duration::from_millis(100);

impl Element for Step {
    type Link = Link;
    const STORE: &'static str = STORE;
    const BATCH_MAX: usize = 256;
    const BATCH_EAGER: usize = 24;

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn is_abandoned(&self) -> bool {
        self.pending.is_abandoned()
    }

    async fn run(mut batch: Vec<Self>, link: &mut Link) {
        // In one order everywhere, so that batches cannot wait for each other in a circle. Steps on
        // one record stay in the order in which they came.
        batch.sort_by(|one, other| one.pending.id().cmp(other.pending.id()));
        let mut parts = vec![batch];
        while let Some(part) = parts.pop() {
            // One element that is locked or cannot be written must not be in the way of the rest.
            if let Some(mut part) = send(part, link).await {
                if part.len() == 1 {
                    hand_over(part, link).await;
                    continue;
                }
                let rest = part.split_off(part.len() / 2);
                parts.extend([rest, part]);
            }
        }
    }
}

async fn hand_over(part: Vec<Step>, link: &Link) {
    for step in part {
        // Dropped without a side, its caller is told.
        if let Some(side) = &link.side {
            side.hand_over(Side::Step(step)).await;
        }
    }
}

/// Makes all these steps and answers them. Those that are returned are to be made in parts.
async fn send(mut steps: Vec<Step>, link: &mut Link) -> Option<Vec<Step>> {
    let mut begun = Instant::now();
    let mut tries = 0;
    loop {
        tries += 1;
        let failed = match make(&mut steps, link).await {
            Ok(read) => {
                answer(steps, read, link);
                return None;
            }
            Err(failed) => failed,
        };
        let error = failed.store_error();
        if error.kind() == StoreErrorKind::Ambiguous {
            steps.iter_mut().for_each(|step| step.lost = true);
        }
        match failed.remedy() {
            Some(Remedy::Reconnect) if tries < TRIES_MAX => {}
            Some(Remedy::Again) if tries < TRIES_MAX => pause().await,
            // An insert has waited for as little as a server can be told, which is long. Each part
            // would wait as long again.
            Some(Remedy::Locked) if steps.iter().any(|step| step.inserts) => {
                let (inserts, rest) = steps.into_iter().partition(|step| step.inserts);
                hand_over(inserts, link).await;
                if rest.is_empty() {
                    return None;
                }
                steps = rest;
                (begun, tries) = (Instant::now(), 0);
            }
            Some(Remedy::Locked) if tries < LOCK_TRIES_MAX && begun.elapsed() < LOCK_TIME_MAX => {
                pause().await;
            }
            Some(Remedy::Locked | Remedy::Again) => return Some(steps),
            Some(Remedy::Refused) if steps.len() > 1 => {
                // In parts, most will come through: a defect of ours would go unnoticed.
                warn!(%error, "the server refused a batch");
                return Some(steps);
            }
            _ => {
                steps.into_iter().for_each(|step| step.fail(&error));
                return None;
            }
        }
    }
}

impl Step {
    fn fail(self, error: &StoreError) {
        let source = std::error::Error::source(error).map(ToString::to_string);
        let error = StoreError::new(error.kind(), STORE, error.to_string());
        let error = error.with_source(source.unwrap_or_default());
        self.pending.answer(Err(if self.lost { answer_lost(error) } else { error }));
    }
}

/// Notes what was committed, in order, and answers.
fn answer(steps: Vec<Step>, read: Vec<Result<(), StoreError>>, link: &Link) {
    for (step, read) in steps.into_iter().zip(read) {
        match step.pending.noted().filter(|_| read.is_ok()) {
            Some((witness, true)) => link.witnesses.put(link.place, witness),
            Some((witness, false)) => link.witnesses.put_beside(link.place, witness),
            None => {}
        }
        step.pending.answer(read);
    }
}

/// One transaction. Returns for each step whether its record could be read.
async fn make(steps: &mut [Step], link: &mut Link) -> Result<Vec<Result<(), StoreError>>, Lost> {
    let mut open = link.open(true).await?;
    let ran = timeout(CALL_TIME_MAX, decide_and_write(&mut link.session(&mut open), steps)).await;
    link.end(open, ran).await
}

async fn decide_and_write(
    session: &mut Session<'_>,
    steps: &mut [Step],
) -> sqlx::Result<Vec<Result<(), StoreError>>> {
    let mut ids: Vec<RecordId> = steps.iter().map(|step| step.pending.id().clone()).collect();
    ids.dedup();
    let (before, now) = session.load(&ids, Lock::Rows).await?;
    let asked = steps.iter().filter_map(|step| {
        let name = step.pending.step_name()?;
        let record = before.get(step.pending.id())?.record.as_ref().ok()?;
        Some((record.id.clone(), record.generation, name.into()))
    });
    let asked: Vec<_> = asked.collect();
    let mut beside = session.load_saved(&asked).await?;
    let mut read = Vec::with_capacity(steps.len());
    // What becomes of each; `None` if it goes.
    let mut after: HashMap<RecordId, Option<Record>> = HashMap::new();
    let mut audits = Vec::new();
    for Step { pending, inserts, .. } in &mut *steps {
        *inserts = false;
        // A step sees what those before it in the same transaction wrote.
        let current = match (after.get(pending.id()), before.get(pending.id())) {
            (Some(changed), _) => changed.as_ref(),
            (None, Some(Found { record: Err(()), .. })) => {
                read.push(Err(damaged()));
                continue;
            }
            (None, found) => found.and_then(|found| found.record.as_ref().ok()),
        };
        let saved = beside.is_saved(current, pending.step_name());
        let ran = pending.run(current, saved, now);
        read.push(Ok(()));
        audits.extend(ran.audit);
        let current = match ran.change {
            Change::Keep => current.cloned().filter(|_| ran.beside.is_some()),
            Change::Put(record) => {
                beside.follow(&record);
                let record = *record;
                note(&mut after, pending.id(), Some(record.clone()));
                Some(record)
            }
            Change::Remove => {
                beside.drop_all_of(pending.id());
                note(&mut after, pending.id(), None);
                None
            }
        };
        if let (Some(kept), Some(record)) = (ran.beside, current) {
            beside.keep(&record, kept);
        }
    }
    let mut changes = Changes { audits: &audits, ..Changes::default() };
    for (id, changed) in &after {
        changes.add(id, before.get(id), changed.as_ref());
    }
    changes.sort();
    changes.beside = beside;
    insert(session, steps, std::mem::take(&mut changes.inserts)).await?;
    session.write(changes).await?;
    Ok(read)
}

/// An insert waits for others that make the same record: if that was in vain, those steps are known.
async fn insert(
    session: &mut Session<'_>,
    steps: &mut [Step],
    records: Vec<&Record>,
) -> sqlx::Result<()> {
    let ids: HashSet<&RecordId> = records.iter().map(|record| &record.id).collect();
    steps.iter_mut().for_each(|step| step.inserts = ids.contains(step.pending.id()));
    session.insert(&records).await?;
    steps.iter_mut().for_each(|step| step.inserts = false);
    Ok(())
}

fn note(after: &mut HashMap<RecordId, Option<Record>>, id: &RecordId, record: Option<Record>) {
    match after.entry(id.clone()) {
        Entry::Occupied(mut entry) => *entry.get_mut() = record,
        Entry::Vacant(entry) => {
            entry.insert(record);
        }
    }
}

impl<'a> Changes<'a> {
    /// A record that was found like this, if it was there, and is to become that.
    pub(super) fn add(
        &mut self,
        id: &'a RecordId,
        found: Option<&Found>,
        changed: Option<&'a Record>,
    ) {
        let before = found.and_then(|found| found.record.as_ref().ok());
        if before.is_some_and(is_accompanied) {
            self.accompanied.push(id);
        }
        let is_made_anew =
            |after: &Record| before.is_some_and(|before| machine::is_made_anew(before, after));
        if changed.is_none_or(is_made_anew) {
            self.forgotten.push(id);
        }
        match (found, changed) {
            (None, Some(record)) => self.inserts.push(record),
            (Some(found), Some(record)) => self.updates.push((found.row, record)),
            (Some(found), None) => self.removed.push((found.row, id)),
            (None, None) => {}
        }
    }

    fn sort(&mut self) {
        self.inserts.sort_by(|one, other| one.id.cmp(&other.id));
        self.updates.sort_by_key(|(row, _)| *row);
        self.removed.sort_by_key(|(row, _)| *row);
    }
}

impl turn::Look for Step {
    fn id(&self) -> &RecordId {
        self.pending.id()
    }

    fn is_abandoned(&self) -> bool {
        self.pending.is_abandoned()
    }
}

impl Element for Side {
    type Link = Link;
    const STORE: &'static str = STORE;
    const BATCH_MAX: usize = 1;
    const BATCH_EAGER: usize = 1;

    fn bytes(&self) -> usize {
        0
    }

    fn is_abandoned(&self) -> bool {
        match self {
            Side::Step(step) => step.pending.is_abandoned(),
            Side::Job(_) => false,
        }
    }

    async fn run(batch: Vec<Self>, link: &mut Link) {
        for element in batch {
            match element {
                // Its caller has been told.
                Side::Job(job) => drop(job(link).await),
                Side::Step(step) => {
                    // Whoever is at the record already takes this one along.
                    let Some(mut turn) = link.turns.clone().take(step) else { continue };
                    while let Some(step) = turn.next() {
                        if let Some(locked) = alone(step, link).await {
                            turn.rest().into_iter().for_each(|step| locked.answer(step));
                        }
                    }
                }
            }
        }
    }
}

/// A record that was locked for longer than one waits, as it was committed last.
struct Locked {
    seen: Option<Record>,
    error: StoreError,
}

impl Locked {
    /// Work whose row is locked is alive. Whoever has the lock of anything else may be an earlier call
    /// of this very attempt: what became of that is known when it has ended.
    fn answer(&self, mut step: Step) {
        if let Some(record) = self.seen.as_ref().filter(|_| step.reserves && !step.lost)
            && record.state == State::InProgress
        {
            let alive = Timestamp::from_micros(record.lease_until.as_micros().saturating_sub(1));
            let ran = step.pending.run(Some(record), false, alive);
            if ran.change == Change::Keep && ran.audit.is_none() {
                return step.pending.answer(Ok(()));
            }
        }
        step.fail(&self.error);
    }
}

/// Makes one step, and waits for others that are at its record. Says so if that was in vain.
async fn alone(step: Step, link: &mut Link) -> Option<Locked> {
    let begun = Instant::now();
    let id = step.pending.id().clone();
    let mut steps = vec![step];
    loop {
        // The lane has tried it before, with others.
        let failed = match make(&mut steps, link).await {
            Ok(read) => {
                answer(steps, read, link);
                return None;
            }
            Err(failed) => failed,
        };
        let error = failed.store_error();
        if error.kind() == StoreErrorKind::Ambiguous {
            steps.iter_mut().for_each(|step| step.lost = true);
        }
        match failed.remedy() {
            Some(Remedy::Refused) | None => {
                steps.into_iter().for_each(|step| step.fail(&error));
                return None;
            }
            Some(_) if begun.elapsed() < PATIENCE => pause().await,
            Some(Remedy::Locked) => {
                let locked = Locked { seen: seen(link, id).await, error };
                steps.into_iter().for_each(|step| locked.answer(step));
                return Some(locked);
            }
            Some(_) => {
                steps.into_iter().for_each(|step| step.fail(&error));
                return None;
            }
        }
    }
}

/// The record as it was committed last, if that can be said.
async fn seen(link: &mut Link, id: RecordId) -> Option<Record> {
    let (found, _) = link.state(&super::workers::Load(vec![id.clone()])).await.ok()?;
    found.into_values().next()?.record.ok()
}
