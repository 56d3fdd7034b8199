//! The store: the rules of the machine on a map.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use onceward::{
    clock::Timestamp,
    machine::{self, Change, Step},
    record::{
        AuditEvent, AuditRecord, Fence, Lease, Record, RecordId, SavedStep, State, StoredRequest,
    },
    store::{
        Advance, Advanced, Ask, Claim, Proof, Reaped, Reservation, Resolution, Resolve, Resolved,
        Resumable, StoreError, StoreErrorKind, Swept, Which, Write, Written,
    },
};
use tokio::time::Instant;

use super::{
    bugs,
    options::RETENTION,
    world::{World, lock},
};
use crate::{
    check::Violation,
    history::{Cause, What},
};

/// What the store holds.
#[derive(Debug, Default)]
pub(super) struct Records {
    pub(super) records: BTreeMap<RecordId, Record>,
    beside: BTreeMap<RecordId, Beside>,
    /// What was there before each commit, for a store that forgets its last ones.
    pub(super) before: Vec<Before>,
    pub(super) is_down: bool,
    /// What was noted about results that came too late or contradict others, which is told once.
    noted: Vec<AuditRecord>,
    /// The attempt of each record that the sweeper last moved on.
    swept: BTreeMap<RecordId, Fence>,
    /// When a sweep last moved something, and whose it was.
    last_sweep: Option<(Instant, u32)>,
    /// The attempt of each record about which a reconciler last decided.
    reconciled: BTreeMap<RecordId, Fence>,
    /// When each record was last reaped.
    reaped: BTreeMap<RecordId, Instant>,
}

/// What is kept beside a record that is not terminal.
#[derive(Clone, Debug, Default)]
struct Beside {
    request: Option<Arc<StoredRequest>>,
    steps: Vec<SavedStep>,
}

/// What was there before a commit.
#[derive(Debug)]
pub(super) struct Before {
    pub(super) at: Instant,
    pub(super) id: RecordId,
    pub(super) record: Option<Record>,
    beside: Option<Beside>,
}

pub(super) fn error(kind: StoreErrorKind) -> StoreError {
    StoreError::new(kind, "simulated", "a fault of the simulation")
}

impl World {
    pub(super) fn arrive<T>(&self, step: &impl Fn(&World) -> T) -> Result<T, StoreError> {
        if lock(&self.records).is_down {
            return Err(error(StoreErrorKind::Unavailable));
        }
        Ok(step(self))
    }

    /// One atomic step on one record.
    pub(super) fn step<A>(
        &self,
        id: &RecordId,
        cause: Cause,
        decide: impl FnOnce(Option<&Record>, Timestamp) -> Step<A>,
    ) -> A {
        let now = self.store_now();
        let before = lock(&self.records).records.get(id).cloned();
        let step = decide(before.as_ref(), now);
        match step.change {
            Change::Keep => {}
            Change::Put(record) => self.put(id, before, Some(*record), cause),
            Change::Remove => self.put(id, before, None, cause),
        }
        if let Some(audit) = step.audit {
            self.note(audit);
        }
        step.answer
    }

    /// Remembers what happened to a record. A result that comes too late again and again is one thing, and
    /// so is one that contradicts another.
    pub(super) fn note(&self, audit: AuditRecord) {
        let is_incident = audit.event == AuditEvent::Incident;
        if is_incident || audit.event == AuditEvent::SupersededResult {
            let noted = &mut lock(&self.records).noted;
            let is_known = noted.iter().any(|known| audit.repeats(known));
            if is_known {
                return;
            }
            noted.push(audit.clone());
        }
        let AuditRecord { id, event, attempt, fence, reason, reply, .. } = audit;
        let words = reply.filter(|_| is_incident).map(|reply| {
            let (status, body) = (reply.status.as_u16(), reply.body_bytes());
            format!("{reason}: {status} {:?} {}", reply.headers, String::from_utf8_lossy(&body))
        });
        self.record(What::Noted {
            subject: self.subject(&id),
            note: event.name().to_owned(),
            attempt: self.attempt_name(attempt),
            fence: fence.number(),
            told: words.unwrap_or_default(),
        });
    }

    /// Replaces a record.
    pub(super) fn put(
        &self,
        id: &RecordId,
        before: Option<Record>,
        after: Option<Record>,
        cause: Cause,
    ) {
        if before == after {
            return;
        }
        let from = before.as_ref().map(|record| self.stand(record));
        let to = after.as_ref().map(|record| self.stand(record));
        {
            let mut records = lock(&self.records);
            let beside = records.beside.get(id).cloned();
            if after.as_ref().is_none_or(|record| record.state.is_terminal()) {
                records.beside.remove(id);
            }
            match after {
                Some(record) => drop(records.records.insert(id.clone(), record)),
                None => drop(records.records.remove(id)),
            }
            let (at, id) = (Instant::now(), id.clone());
            records.before.push(Before { at, id, record: before, beside });
        }
        self.record(What::Moved { subject: self.subject(id), from, to, cause });
    }

    /// Forgets the commits of the last `window`.
    pub(super) fn lose_commits(&self, window: Duration) -> usize {
        let since = Instant::now().checked_sub(window);
        let mut lost = 0;
        loop {
            let last = {
                let mut records = lock(&self.records);
                let is_recent = |at: Instant| since.is_none_or(|since| at >= since);
                match records.before.last() {
                    Some(last) if is_recent(last.at) => records.before.pop(),
                    _ => None,
                }
            };
            let Some(Before { id, record, beside, .. }) = last else { return lost };
            let now = lock(&self.records).records.get(&id).cloned();
            self.put(&id, now, record, Cause::Lost);
            let mut records = lock(&self.records);
            match beside {
                Some(beside) => drop(records.beside.insert(id, beside)),
                None => drop(records.beside.remove(&id)),
            }
            // Forgetting is not a commit of its own.
            records.before.pop();
            lost += 1;
        }
    }

    pub(super) fn reserve(&self, ask: &Ask) -> Reservation {
        let cause = Cause::Reserve {
            attempt: self.attempt_name(ask.attempt),
            now: self.store_now().as_micros(),
        };
        self.step(&ask.id, cause, |found, now| machine::reserve(found, ask, now))
    }

    /// Keeps the request of an operation that a worker may have to go on with.
    pub(super) fn keep_request(&self, ask: &Ask, answer: &Reservation) {
        if let Some(request) = ask.request.as_ref().filter(|_| machine::keeps_request(answer)) {
            let mut records = lock(&self.records);
            let beside = records.beside.entry(ask.id.clone()).or_default();
            beside.request.get_or_insert_with(|| Arc::clone(request));
        }
    }

    /// Whether a reserve and the reaper have met: it was sent before the record was reaped, or finds
    /// what the reaper has not come to yet.
    pub(super) fn look_for_reaper(&self, ask: &Ask, sent: Instant) {
        let (reaped, found) = {
            let records = lock(&self.records);
            let reaped = records.reaped.get(&ask.id).is_some_and(|at| *at >= sent);
            (reaped, records.records.get(&ask.id).cloned())
        };
        let now = self.store_now();
        if reaped {
            self.met("reaper_then_reserve");
        }
        if found.is_some_and(|it| it.state == State::Completed && it.expires_at <= now) {
            self.met("reserve_then_reaper");
        }
    }

    pub(super) fn claim(&self, claim: &Claim) -> Reservation {
        let cause = self.cause_of_claim(claim);
        let found = lock(&self.records).records.get(&claim.id).map(|record| record.fence);
        if claim.fence.is_some() && found != claim.fence {
            self.met("two_workers");
        }
        self.step(&claim.id, cause, |found, now| machine::claim(found, claim, now))
    }

    pub(super) fn cause_of_claim(&self, claim: &Claim) -> Cause {
        Cause::Claim {
            attempt: self.attempt_name(claim.attempt),
            fence: claim.fence.map_or(0, Fence::number),
            now: self.store_now().as_micros(),
        }
    }

    pub(super) fn write(&self, lease: &Lease, write: Write) -> Written {
        let cause = self.cause_of_write(lease, &write);
        self.look_for_sweeper(lease, &write);
        self.look_for_reconciler(lease, &write);
        let completes = matches!(write, Write::Complete(_));
        let answer =
            self.step(&lease.id, cause, |found, now| machine::write(found, lease, write, now));
        if completes && matches!(answer, Written::Applied | Written::AppliedAfterRelease) {
            self.stage(&lease.id);
        }
        answer
    }

    /// Whether an owner and the sweeper have met: the one comes when the other has just decided, or
    /// when it could have.
    fn look_for_sweeper(&self, lease: &Lease, write: &Write) {
        let (swept, found) = {
            let records = lock(&self.records);
            (
                records.swept.get(&lease.id) == Some(&lease.fence),
                records.records.get(&lease.id).cloned(),
            )
        };
        let now = self.store_now();
        let mine = |it: &Record| it.fence == lease.fence && it.state == State::InProgress;
        let first = found.is_some_and(|it| mine(&it) && it.lease_until <= now);
        match write {
            Write::Renew(_) if swept => self.met("sweeper_then_renewal"),
            Write::Renew(_) if first => self.met("renewal_then_sweeper"),
            Write::Complete(_) if swept => self.met("sweeper_then_completion"),
            Write::Complete(_) if first => self.met("completion_then_sweeper"),
            _ => {}
        }
    }

    /// Whether an owner comes late, while it is asked about or after that was decided.
    fn look_for_reconciler(&self, lease: &Lease, write: &Write) {
        if !matches!(write, Write::Complete(_)) {
            return;
        }
        let records = lock(&self.records);
        let found = records.records.get(&lease.id);
        let asked = found.is_some_and(|it| {
            it.state == State::Unknown && it.fence == lease.fence && it.inquiry.asked_at.is_some()
        });
        let decided = records.reconciled.get(&lease.id) == Some(&lease.fence);
        drop(records);
        if asked {
            self.met("late_owner_is_asked_about");
        }
        if decided {
            self.met("reconciler_then_late_owner");
        }
    }

    pub(super) fn advance(&self, lease: &Lease, advance: &Advance) -> Advanced {
        let saved = |records: &Records| {
            let beside = records.beside.get(&lease.id);
            beside.is_some_and(|it| it.steps.iter().any(|step| *step.name == *advance.name()))
        };
        let is_saved = saved(&lock(&self.records));
        let cause = Cause::Write {
            write: match advance {
                Advance::Save { .. } => "save".into(),
                Advance::Intend { .. } => "intend".into(),
                Advance::Withdraw { .. } => "withdraw".into(),
            },
            attempt: self.attempt_name(lease.attempt),
            fence: lease.fence.number(),
        };
        let answer = self
            .step(&lease.id, cause, |found, _| machine::advance(found, lease, advance, is_saved));
        if let (Advanced::Applied, Advance::Save { name, result }) = (&answer, advance) {
            let step = SavedStep { name: name.clone(), result: result.clone() };
            lock(&self.records).beside.entry(lease.id.clone()).or_default().steps.push(step);
        }
        answer
    }

    /// I6: a step whose result the store says it saved is there.
    pub(super) fn check_saved(&self, lease: &Lease, advance: &Advance, answer: &Advanced) {
        let saves = matches!(advance, Advance::Save { .. });
        if !saves || *answer != Advanced::Applied {
            return;
        }
        let records = lock(&self.records);
        let beside = records.beside.get(&lease.id);
        let is_there =
            beside.is_some_and(|it| it.steps.iter().any(|step| *step.name == *advance.name()));
        drop(records);
        if !is_there {
            self.violate(Violation {
                invariant: "I6",
                subject: Some(self.subject(&lease.id)),
                what: format!("the step {} was acknowledged, and is not saved", advance.name()),
            });
        }
    }

    pub(super) fn steps(&self, id: &RecordId, generation: u32) -> Vec<SavedStep> {
        let steps = {
            let records = lock(&self.records);
            let is_current = records.records.get(id).is_some_and(|it| it.generation == generation);
            let beside = records.beside.get(id).filter(|_| is_current);
            beside.map(|beside| beside.steps.clone()).unwrap_or_default()
        };
        if !steps.is_empty() {
            self.met("resumed_after_a_step");
        }
        steps
    }

    pub(super) fn resumable(&self, which: Which, limit: u32) -> Vec<Resumable> {
        let now = self.store_now();
        let records = lock(&self.records);
        let due = records.records.values().filter(|it| machine::is_resumable(it, now));
        let due = due.filter(|it| which.includes(it));
        let mut due: Vec<_> = due
            .map(|record| {
                let kept = records.beside.get(&record.id);
                let request = kept.and_then(|beside| beside.request.as_deref().cloned());
                Resumable { record: Box::new(record.clone()), request }
            })
            .collect();
        due.sort_by_key(|one| machine::line_of(&one.record));
        due.truncate(limit as usize);
        due
    }

    /// I6: what the store says it granted is there.
    pub(super) fn check_granted(&self, ask: &Ask, answer: &Reservation) {
        let Reservation::Granted { lease, .. } = answer else { return };
        // The owner counts from when it sent this call, be it the first or a repeated one.
        self.check_there(lease, "was granted", |record, now| {
            record.lease_is_live(now) && record.lease_until >= now.plus(ask.lease)
        });
    }

    /// I6: what the store says it wrote is there.
    pub(super) fn check_applied(&self, lease: &Lease, write: &Write, answer: &Written) {
        if !matches!(answer, Written::Applied | Written::AppliedAfterRelease) {
            return;
        }
        let what = format!("was acknowledged: {}", word(write));
        // Retention counts from here, by the policy and not by what the record says of itself.
        let kept = |record: &Record, now: Timestamp| record.expires_at >= now.plus(RETENTION);
        self.check_there(lease, &what, |record, now| match write {
            Write::Renew(by) => record.lease_until >= now.plus(*by),
            Write::Complete(reply) => record.reply.as_ref() == Some(reply) && kept(record, now),
            Write::Release(_) => match record.state {
                State::Pending => record.is_queued(),
                State::InProgress => !record.progress.is_none() && !record.lease_is_live(now),
                State::Unknown => record.progress.must_not_go_on(),
                state => state == State::FailedRetryable && kept(record, now),
            },
            Write::MarkUnknown(_) => record.state == State::Unknown,
        });
    }

    fn check_there(
        &self,
        lease: &Lease,
        what: &str,
        is_there: impl FnOnce(&Record, Timestamp) -> bool,
    ) {
        let now = self.store_now();
        let found = lock(&self.records).records.get(&lease.id).cloned();
        let mine = |record: &Record| record.attempt == lease.attempt && record.fence == lease.fence;
        if found.is_some_and(|record| mine(&record) && is_there(&record, now)) {
            return;
        }
        let attempt = self.attempt_name(lease.attempt);
        self.violate(Violation {
            invariant: "I6",
            subject: Some(self.subject(&lease.id)),
            what: format!("{what} to {attempt}, and is not in the store"),
        });
    }

    pub(super) fn cause_of_write(&self, lease: &Lease, write: &Write) -> Cause {
        Cause::Write {
            write: word(write).into(),
            attempt: self.attempt_name(lease.attempt),
            fence: lease.fence.number(),
        }
    }

    /// `looked_at` is the fence of the record that whoever resolves it has seen.
    pub(super) fn resolve(&self, resolve: Resolve, looked_at: Fence) -> Resolved {
        let (resolution, proof) = match &resolve.resolution {
            Resolution::Complete(_) => ("complete", None),
            Resolution::Executed { .. } => ("executed", None),
            Resolution::GiveUp(_) => ("give_up", None),
            Resolution::Release(Proof::Authoritative) => ("release", Some("authoritative")),
            Resolution::Release(Proof::TwoProbes { .. }) => ("release", Some("two_probes")),
            Resolution::Void => ("void", None),
            Resolution::Ask { .. } => ("ask", None),
            Resolution::Absent { .. } if self.is_believed(&resolve) => {
                ("release", Some("two_probes"))
            }
            Resolution::Absent { .. } => ("absent", None),
            Resolution::DeadLetter { .. } => ("dead_letter", None),
            Resolution::Redrive => ("redrive", None),
        };
        self.look_for_owner(&resolve);
        let (id, fence) = (resolve.id.clone(), resolve.fence);
        let asks = matches!(resolve.resolution, Resolution::Ask { .. });
        let decides = matches!(
            resolve.resolution,
            Resolution::Executed { .. } | Resolution::Absent { .. } | Resolution::Release(_)
        );
        let gives_up = matches!(resolve.resolution, Resolution::DeadLetter { .. });
        let resolved = self.resolve_by(resolution, proof, resolve, looked_at);
        match &resolved {
            Resolved::Applied(_) if decides => {
                lock(&self.records).reconciled.insert(id, fence);
            }
            Resolved::Applied(_) if gives_up => self.met("unknown_becomes_dead_letter"),
            Resolved::Refused(_) if asks => self.met("two_reconcilers"),
            _ => {}
        }
        resolved
    }

    /// Whether this probe that found nothing is the one that decides.
    fn is_believed(&self, resolve: &Resolve) -> bool {
        let found = lock(&self.records).records.get(&resolve.id).cloned();
        let step = machine::resolve(found.as_ref(), resolve.clone(), self.store_now());
        matches!(step.answer, Resolved::Applied(_))
    }

    /// Whether an owner came while a reconciler asked what had become of it.
    fn look_for_owner(&self, resolve: &Resolve) {
        let decides = matches!(
            resolve.resolution,
            Resolution::Executed { .. } | Resolution::Absent { .. } | Resolution::Release(_)
        );
        let completed = {
            let records = lock(&self.records);
            let found = records.records.get(&resolve.id);
            found.is_some_and(|it| it.state == State::Completed && it.fence == resolve.fence)
        };
        if decides && completed {
            self.met("late_owner_then_reconciler");
        }
    }

    /// The same, told in these words.
    pub(super) fn resolve_by(
        &self,
        resolution: &str,
        proof: Option<&str>,
        resolve: Resolve,
        looked_at: Fence,
    ) -> Resolved {
        let cause = self.cause_of_resolve(resolution, proof, looked_at);
        let id = resolve.id.clone();
        self.step(&id, cause, |found, now| machine::resolve(found, resolve, now))
    }

    pub(super) fn cause_of_resolve(
        &self,
        resolution: &str,
        proof: Option<&str>,
        looked_at: Fence,
    ) -> Cause {
        Cause::Resolve {
            resolution: resolution.into(),
            proof: proof.map(Into::into),
            fence: looked_at.number(),
            now: self.store_now().as_micros(),
        }
    }

    /// What should be asked about, the longest waiting first.
    pub(super) fn due_unknown(&self, limit: u32, except: &[Arc<str>]) -> Vec<Record> {
        let now = self.store_now();
        let records = lock(&self.records);
        let due = records.records.values().filter(|it| machine::is_due_for_probe(it, now));
        let mut due: Vec<_> = due.filter(|it| !except.contains(&it.route)).cloned().collect();
        due.sort_by_key(|record| record.reconcile_after);
        due.truncate(limit as usize);
        due
    }

    /// A sweep of this node, sent at this time.
    pub(super) fn sweep_by(&self, node: u32, sent: Instant, limit: u32) -> Vec<Swept> {
        let last = lock(&self.records).last_sweep;
        if last.is_some_and(|(at, by)| by != node && at >= sent) {
            self.met("two_sweepers");
        }
        let swept = self.sweep(limit);
        let mut records = lock(&self.records);
        if !swept.is_empty() {
            records.last_sweep = Some((Instant::now(), node));
        }
        for one in &swept {
            let Some(fence) = records.records.get(&one.id).map(|record| record.fence) else {
                continue;
            };
            records.swept.insert(one.id.clone(), fence);
        }
        drop(records);
        swept
    }

    pub(super) fn sweep(&self, limit: u32) -> Vec<Swept> {
        let ids: Vec<RecordId> = lock(&self.records).records.keys().cloned().collect();
        let now = self.store_now().as_micros();
        let swept = ids.iter().filter_map(|id| {
            self.step(id, Cause::Sweep { now }, |found, now| match found {
                Some(record) => machine::sweep(record, now),
                None => Step { change: Change::Keep, audit: None, answer: None },
            })
        });
        swept.take(limit as usize).collect()
    }

    /// A reap, asked for by a process whose clock is wrong by `skew`.
    pub(super) fn reap(&self, limit: u32, skew: i64) -> Reaped {
        let ids: Vec<RecordId> = lock(&self.records).records.keys().cloned().collect();
        let at = self.store_now();
        let mut reaped = Reaped::default();
        for id in ids {
            if reaped.expired + reaped.purged >= limit {
                break;
            }
            let Some(record) = lock(&self.records).records.get(&id).cloned() else { continue };
            let left = match bugs::reap(self, &record, at, skew) {
                Change::Keep => continue,
                Change::Put(left) => {
                    reaped.expired += 1;
                    Some(*left)
                }
                Change::Remove => {
                    reaped.purged += 1;
                    None
                }
            };
            lock(&self.records).reaped.insert(id.clone(), Instant::now());
            self.put(&id, Some(record), left, Cause::Reap { now: at.as_micros() });
        }
        reaped
    }
}

fn word(write: &Write) -> &'static str {
    match write {
        Write::Renew(_) => "renew",
        Write::Complete(_) => "complete",
        Write::Release(_) => "release",
        Write::MarkUnknown(_) => "mark_unknown",
    }
}

/// A lease is not meant to be copied; a message that carries one is.
pub(super) fn copy(lease: &Lease) -> Lease {
    Lease {
        id: lease.id.clone(),
        attempt: lease.attempt,
        fence: lease.fence,
        generation: lease.generation,
        attempt_number: lease.attempt_number,
        until: lease.until,
    }
}
