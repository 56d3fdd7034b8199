//! The store's atomic step: the rules of [`onceward::machine`] on the one record there is.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use onceward::{
    clock::Timestamp,
    fingerprint::Fingerprint,
    machine::{self, Change, Decision},
    record::{
        AttemptId, Effects, Fence, Inquiry, Lease, Progress, Record, RecordId, State as RecordState,
    },
    reply::{Reply, ReplyBody},
    store::{
        Ask, Claim, Found, Mode, Proof, Reservation, Resolution, Resolve, Resolved, Write, Written,
    },
};

use super::{
    laws::{self, Cause},
    mistake::Mistake,
    situation::{Seen, Situation},
    state::{Answer, FenceNo, Held, Looked, NEVER, Name, Role, State, Stored, Ticks},
    world::World,
};

/// One tick.
const TICK: i64 = machine::SETTLE.as_micros() as i64;

/// The time is always this: everything else is relative to it.
const NOW: i64 = 1_000_000 * TICK;

/// One step on its way: where it leads, what is seen in it, what is wrong with it.
pub(super) struct Turn<'a> {
    pub(super) world: &'a World,
    pub(super) id: &'a RecordId,
    pub(super) mistake: Option<Mistake>,
    pub(super) state: State,
    pub(super) seen: Seen,
    pub(super) wrong: Option<String>,
    /// Whether the step is taken at all.
    pub(super) possible: bool,
}

impl Turn<'_> {
    pub(super) fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    pub(super) fn see(&mut self, situation: Situation, when: bool) {
        if when {
            self.seen.add(situation);
        }
    }

    pub(super) fn wrong(&mut self, why: impl Into<String>) {
        self.wrong.get_or_insert(why.into());
    }

    pub(super) fn name(&self, slot: usize) -> Name {
        Name { slot: slot as u8, nonce: self.state.attempts[slot].nonce }
    }

    pub(super) fn ask(&self, slot: usize) -> Ask {
        let attempt = &self.state.attempts[slot];
        let world = self.world;
        Ask {
            id: self.id.clone(),
            fingerprint: fingerprint(attempt.asks),
            attempt: attempt_id(self.name(slot)),
            mode: if attempt.role == Role::Accepts { Mode::Accept } else { Mode::Execute },
            lease: duration(world.lease),
            max_execution: duration(world.max_execution),
            retention: world.retention.map_or(Duration::MAX, duration),
            tombstone: duration(world.tombstone),
            expired_runs_again: world.expired_runs_again,
            effects: world.effects,
            route: "".into(),
            method: "".into(),
            path: "".into(),
            request: None,
            queued_for: Duration::MAX,
        }
    }

    /// Reserves, or claims if that is the attempt's part.
    pub(super) fn reserve(&mut self, slot: usize) -> Reservation {
        let mut ask = self.ask(slot);
        let claims = self.state.attempts[slot].role == Role::Claims;
        let mut found = self.found();
        if let Some(record) = &mut found {
            let in_progress = record.state == RecordState::InProgress;
            if self.makes(Mistake::AttemptNotCompared) && in_progress {
                ask.attempt = record.attempt;
            }
            if self.makes(Mistake::LeaseOverIsRetryable) && in_progress {
                record.effects = Effects::None;
            }
        }
        let step = if claims {
            let claim = Claim {
                id: ask.id.clone(),
                attempt: ask.attempt,
                lease: ask.lease,
                max_execution: ask.max_execution,
                effects: ask.effects,
                fence: None,
            };
            machine::claim(found.as_ref(), &claim, now())
        } else {
            machine::reserve(found.as_ref(), &ask, now())
        };
        let (mut change, mut answer) = (step.change, step.answer);
        if self.makes(Mistake::FenceRestarts) && found.is_none() {
            let first = Fence::from_stored(NOW - 20);
            if let Change::Put(record) = &mut change {
                record.fence = first;
            }
            if let Reservation::Granted { lease, .. } = &mut answer {
                lease.fence = first;
            }
        }
        if let Reservation::Occupied { record, .. } = &mut answer
            && self.makes(Mistake::MismatchNotChecked)
        {
            record.fingerprint = ask.fingerprint;
        }
        let (granted, began) = match &answer {
            Reservation::Granted { found, .. } => (*found != Found::Mine, is_new_use(*found)),
            Reservation::Accepted { found } => (false, is_new_use(*found)),
            Reservation::Occupied { .. } | Reservation::Completed(_) | Reservation::Free => {
                (false, false)
            }
        };
        self.state.uses += u8::from(began);
        let asks = self.state.attempts[slot].asks;
        let name = self.name(slot);
        self.apply(change, Cause::Reserve { name, asks, claims, granted, began });
        answer
    }

    /// Renews, completes, releases or marks unknown under the lease of an attempt.
    pub(super) fn write(&mut self, slot: usize, write: Write) -> Written {
        let Some(held) = self.state.attempts[slot].lease else {
            return Written::Superseded(None);
        };
        let name = self.name(slot);
        let mut lease = Lease {
            id: self.id.clone(),
            attempt: attempt_id(name),
            fence: fence(held.fence),
            generation: u32::from(held.generation),
            attempt_number: 1,
            until: now(),
        };
        let completes = matches!(write, Write::Complete(_));
        let mut found = self.found();
        if let Some(record) = &mut found {
            if self.makes(Mistake::FenceNotCompared) {
                lease.fence = record.fence;
            }
            let released = record.state == RecordState::FailedRetryable;
            if self.makes(Mistake::CompletesAfterRelease) && completes && released {
                record.state = RecordState::InProgress;
            }
            if self.makes(Mistake::ReplyAfterReleaseIsEvidence) {
                record.last_error = None;
            }
        }
        let step = machine::write(found.as_ref(), &lease, write, now());
        if completes && let Written::Superseded(Some(record)) = &step.answer {
            let by_resolve = record.attempt == lease.attempt;
            self.see(Situation::SupersededByResolve, by_resolve);
            self.see(Situation::SupersededCompletion, !by_resolve);
        }
        let superseded = matches!(step.answer, Written::Superseded(Some(_)));
        let late = found.as_ref().is_some_and(|record| record.state == RecordState::Unknown);
        let applied = matches!(step.answer, Written::Applied | Written::AppliedAfterRelease);
        if completes && (superseded || (late && applied)) && step.audit.is_none() {
            self.wrong("a result that came late was not kept as evidence");
        }
        let still_its_own =
            |record: &Stored| record.denied && record.attempt == name && record.fence == held.fence;
        if completes && !applied && self.state.record.as_ref().is_some_and(still_its_own) {
            self.wrong("I1: it did act, nobody runs it again yet, and somebody may");
        }
        self.apply(step.change, Cause::Write { name, fence: held.fence, completes });
        step.answer
    }

    /// Looks without taking: whatever is found, nothing changes.
    pub(super) fn look(&mut self, slot: usize) -> Decision {
        let ask = Ask { mode: Mode::LookupOnly, ..self.ask(slot) };
        let step = machine::reserve(self.found().as_ref(), &ask, now());
        if step.change != Change::Keep {
            self.wrong("a look changed the record");
        }
        machine::decide(step.answer, &ask, now())
    }

    pub(super) fn sweep(&mut self) {
        let Some(mut record) = self.found() else { return };
        if self.makes(Mistake::SweepsLiveLeases) {
            record.lease_until = now();
        }
        if self.makes(Mistake::LeaseOverIsRetryable) {
            record.effects = Effects::None;
        }
        let step = machine::sweep(&record, now());
        if step.answer.is_some() && step.audit.is_none() {
            self.wrong("the end of a lease was not audited");
        }
        self.apply(step.change, Cause::Sweep);
    }

    pub(super) fn reap(&mut self) {
        let Some(mut record) = self.found() else { return };
        if self.makes(Mistake::ReapsWhatIsNotTerminal) && !record.state.is_terminal() {
            record.state = RecordState::Completed;
        }
        let change = machine::reap(&record, now());
        self.apply(change, Cause::Reap);
    }

    pub(super) fn resolve(&mut self, of: Looked, resolution: Resolution, by: By) -> Resolved {
        let void = matches!(resolution, Resolution::Void);
        let release = matches!(resolution, Resolution::Release(_));
        let resolve = Resolve {
            id: self.id.clone(),
            generation: u32::from(of.generation),
            fence: fence(of.fence),
            resolution,
            reason: "".into(),
        };
        // The mistaken reconciler counts two probes that came at once as one settle apart.
        let later = self.makes(Mistake::ProbesNotApart) && release;
        let now = if later { at(1) } else { now() };
        let step = machine::resolve(self.found().as_ref(), resolve, now);
        if matches!(step.answer, Resolved::Applied(_)) && step.audit.is_none() {
            self.wrong("a resolution was not audited");
        }
        self.apply(step.change, Cause::Resolve { release, void, by });
        step.answer
    }

    /// What anybody may look at without changing it.
    pub(super) fn found(&self) -> Option<Record> {
        self.state.record.as_ref().map(|record| unpack(record, self.id, self.world))
    }

    fn apply(&mut self, change: Change, cause: Cause) {
        let before = self.state.record;
        let use_no = match (&cause, before) {
            (Cause::Reserve { began: true, .. }, _) | (_, None) => self.state.uses,
            (_, Some(before)) => before.use_no,
        };
        self.state.record = match change {
            Change::Keep => return,
            Change::Remove => {
                self.state.clock_moves();
                None
            }
            Change::Put(record) => {
                Some(Stored { effects: self.world.effects, ..pack(&record, use_no) })
            }
        };
        laws::judge(self, before, cause);
    }

    /// The lease as the attempt keeps it.
    pub(super) fn held(&self, lease: &Lease) -> Held {
        Held {
            fence: fence_no(lease.fence),
            generation: small(lease.generation),
            use_no: self.state.record.map_or(0, |record| record.use_no),
        }
    }
}

/// Who resolves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Reconciler,
    Operator,
    /// The attempt itself, which knows that it never called.
    Attempt,
}

fn is_new_use(found: Found) -> bool {
    matches!(found, Found::Absent | Found::Expired)
}

pub(super) const fn now() -> Timestamp {
    Timestamp::from_micros(NOW)
}

fn at(ticks: Ticks) -> Timestamp {
    match ticks {
        NEVER => Timestamp::from_micros(i64::MAX),
        _ => Timestamp::from_micros(NOW + i64::from(ticks) * TICK),
    }
}

fn ticks(time: Timestamp) -> Ticks {
    match time.as_micros() {
        i64::MAX => NEVER,
        micros => i8::try_from((micros - NOW) / TICK).expect("times stay near"),
    }
}

fn duration(ticks: Ticks) -> Duration {
    machine::SETTLE * u32::try_from(ticks).expect("durations are not negative")
}

fn fence(number: FenceNo) -> Fence {
    Fence::from_stored(NOW + i64::from(number))
}

fn fence_no(fence: Fence) -> FenceNo {
    i8::try_from(fence.number() - NOW).expect("fences stay near")
}

fn small(number: u32) -> u8 {
    u8::try_from(number).expect("generations stay few")
}

fn fingerprint(asks: u8) -> Fingerprint {
    Fingerprint::from_stored(1, [asks; 32])
}

fn attempt_id(name: Name) -> AttemptId {
    let mut bytes = [0; 16];
    bytes[0] = name.slot;
    bytes[1] = name.nonce;
    AttemptId::from_bytes(bytes)
}

pub(super) fn name_of(attempt: AttemptId) -> Name {
    let [slot, nonce, ..] = *attempt.as_bytes();
    Name { slot, nonce }
}

/// The proof of two probes.
pub(super) fn two_probes(first: Ticks, second: Ticks) -> Proof {
    Proof::TwoProbes { first: at(first), second: at(second) }
}

/// The reply of an attempt.
pub(super) fn reply_of(slot: usize) -> Reply {
    const SLOTS: &[u8] = &[0, 1, 2];
    reply(ReplyBody::Stored(Bytes::from_static(&SLOTS[slot..=slot])))
}

fn reply(body: ReplyBody) -> Reply {
    Reply { status: StatusCode::CREATED, headers: Vec::new(), body, schema_version: None }
}

pub(super) fn whose(reply: &Reply) -> Answer {
    match &reply.body {
        ReplyBody::Stored(body) => body.first().map_or(Answer::Gone, |slot| Answer::Of(*slot)),
        ReplyBody::NotStored => Answer::Gone,
    }
}

fn unpack(record: &Stored, id: &RecordId, world: &World) -> Record {
    Record {
        id: id.clone(),
        fingerprint: fingerprint(record.asks),
        generation: u32::from(record.generation),
        state: record.state,
        attempt: attempt_id(record.attempt),
        fence: fence(record.fence),
        attempts: 1,
        effects: record.effects,
        route: "".into(),
        method: "".into(),
        path: "".into(),
        created_at: now(),
        started_at: now(),
        lease_until: at(record.lease_until),
        max_execution: duration(world.max_execution),
        finished_at: None,
        expires_at: at(record.expires_at),
        retention: world.retention.map_or(Duration::MAX, duration),
        tombstone: duration(world.tombstone),
        reply: record.reply.map(|answer| match answer {
            Answer::Of(slot) => reply_of(usize::from(slot)),
            Answer::Gone => reply(ReplyBody::NotStored),
        }),
        last_error: record.denied.then(|| machine::RESOLVED_NOT_EXECUTED.into()),
        reconcile_after: record.has_ticket.then(now),
        inquiry: Inquiry::default(),
        void: record.void,
        progress: Progress::default(),
        queued_until: record.queued.then(|| at(NEVER)),
    }
}

fn is_denied(record: &Record) -> bool {
    matches!(record.state, RecordState::FailedRetryable | RecordState::Pending)
        && record.last_error.as_deref() == Some(machine::RESOLVED_NOT_EXECUTED)
}

fn pack(record: &Record, use_no: u8) -> Stored {
    Stored {
        state: record.state,
        asks: record.fingerprint.digest()[0],
        generation: small(record.generation),
        attempt: name_of(record.attempt),
        fence: fence_no(record.fence),
        effects: record.effects,
        lease_until: ticks(record.lease_until),
        expires_at: ticks(record.expires_at),
        reply: record.reply.as_ref().map(whose),
        has_ticket: record.reconcile_after.is_some(),
        void: record.void,
        queued: record.is_queued(),
        denied: is_denied(record),
        use_no,
    }
}
