//! What a batch cannot answer, one record at a time: look, decide by the machine, and change the
//! record if it is still what was looked at.

use std::pin::Pin;

use super::{
    error::{Remedy, STORE, answer_lost, pause, remedy},
    link::{Caller, Link, Lost, call},
    row::{FoundRow, audit_json, damaged, record_json, reply_parts},
};
use crate::{
    clock::Timestamp,
    machine::{self, Change, Step},
    record::{AuditRecord, Lease, Record, RecordId, State},
    reply::Reply,
    store::{
        Ask, Reservation, Resolve, Resolved, StoreError, StoreErrorKind, Write, Written,
        lane::{Element, Sender},
        request::encode_request,
        turn,
    },
};

type Future<'a> = Pin<Box<dyn std::future::Future<Output = ()> + Send + 'a>>;

/// What stands in line for a connection of its own.
pub(super) enum Side {
    Look(Box<Look>),
    Job(Box<dyn for<'l> FnOnce(&'l mut Link) -> Future<'l> + Send>),
}

/// An element that a batch could not answer.
pub(super) enum Look {
    Reserve {
        ask: Ask,
        seen: Option<(Box<Record>, Timestamp)>,
        /// By the batch, whose answer was lost.
        may_have_happened: bool,
        sender: Sender<Reservation>,
    },
    Write {
        lease: Lease,
        write: Write,
        may_have_happened: bool,
        sender: Sender<Written>,
    },
}

/// How often a record is looked at again that others keep changing, or whose connection broke.
const LOOKS_MAX: u32 = 20;

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
            Side::Look(look) => turn::Look::is_abandoned(&**look),
            Side::Job(_) => false,
        }
    }

    async fn run(batch: Vec<Self>, link: &mut Link) {
        for element in batch {
            match element {
                Side::Job(job) => job(link).await,
                Side::Look(look) => {
                    // Whoever is at the record already takes this one along.
                    let Some(mut turn) = link.turns().take(*look) else { continue };
                    while let Some(look) = turn.next() {
                        if let Some(locked) = look.run(link).await {
                            turn.rest().into_iter().for_each(|look| look.answer_locked(&locked));
                        }
                    }
                }
            }
        }
    }
}

/// A record that was locked for longer than one waits, as it was seen.
struct Locked(Option<Box<Record>>);

impl turn::Look for Look {
    fn id(&self) -> &RecordId {
        match self {
            Look::Reserve { ask, .. } => &ask.id,
            Look::Write { lease, .. } => &lease.id,
        }
    }

    fn is_abandoned(&self) -> bool {
        match self {
            Look::Reserve { sender, .. } => sender.is_closed(),
            Look::Write { sender, .. } => sender.is_closed(),
        }
    }
}

impl Look {
    /// Answers its caller; says so if the record was locked.
    async fn run(self, link: &mut Link) -> Option<Locked> {
        match self {
            Look::Reserve { ask, seen, may_have_happened, sender } => {
                let reserved = try_to_reserve(link, &ask, seen).await;
                let locked = Locked::of(&reserved);
                let reserved = or_occupied(reserved, &ask);
                if let Ok(Reservation::Granted { lease, .. }) = &reserved {
                    link.acknowledged(lease, false);
                }
                // The caller may be gone. What was done is done all the same.
                let _ = sender.send(reserved.map_err(|failed| failed.after(may_have_happened)));
                locked
            }
            Look::Write { lease, write, may_have_happened, sender } => {
                let written = self::write(link, &lease, &write).await;
                let locked = Locked::of(&written);
                // The handler may have completed it in a transaction of its own.
                let completed = match &written {
                    Ok(Written::Applied) => matches!(write, Write::Complete(_)),
                    Ok(Written::AppliedAfterRelease) => true,
                    Ok(Written::AlreadyMine(reply)) => reply.is_some(),
                    _ => false,
                };
                if completed {
                    link.acknowledged(&lease, true);
                }
                let _ = sender.send(written.map_err(|failed| failed.after(may_have_happened)));
                locked
            }
        }
    }

    /// Answers as one that has waited for the same lock in vain.
    fn answer_locked(self, locked: &Locked) {
        let error = StoreError::new(StoreErrorKind::Unavailable, STORE, "the record is locked");
        let failed = StepFailed::Locked { seen: locked.0.clone(), error };
        match self {
            Look::Reserve { ask, may_have_happened, sender, .. } => {
                let reserved = or_occupied(Err(failed), &ask);
                let _ = sender.send(reserved.map_err(|failed| failed.after(may_have_happened)));
            }
            Look::Write { may_have_happened, sender, .. } => {
                let _ = sender.send(Err(failed.after(may_have_happened)));
            }
        }
    }
}

impl Locked {
    fn of<A>(answer: &Result<A, StepFailed>) -> Option<Self> {
        match answer {
            Err(StepFailed::Locked { seen, .. }) => Some(Locked(seen.clone())),
            _ => None,
        }
    }
}

pub(super) async fn write(
    link: &mut impl Caller,
    lease: &Lease,
    write: &Write,
) -> Result<Written, StepFailed> {
    let decide = |found: Option<&Record>, now| machine::write(found, lease, write.clone(), now);
    step(link, &lease.id, None, no_request, decide).await
}

pub(super) async fn complete_in(
    link: &mut impl Caller,
    lease: &Lease,
    reply: &Reply,
) -> Result<Written, StepFailed> {
    let decide =
        |found: Option<&Record>, now| machine::complete_in(found, lease, reply.clone(), now);
    step(link, &lease.id, None, no_request, decide).await
}

pub(super) async fn reserve(
    link: &mut impl Caller,
    ask: &Ask,
    seen: Option<(Box<Record>, Timestamp)>,
) -> Result<Reservation, StepFailed> {
    or_occupied(try_to_reserve(link, ask, seen).await, ask)
}

async fn try_to_reserve(
    link: &mut impl Caller,
    ask: &Ask,
    seen: Option<(Box<Record>, Timestamp)>,
) -> Result<Reservation, StepFailed> {
    let request = ask.request.as_deref().map(encode_request);
    // Whoever only moves a record on does not leave a request with it.
    let kept = |answer: &Reservation| request.as_deref().filter(|_| machine::keeps_request(answer));
    let decide = |found: Option<&Record>, now| machine::reserve(found, ask, now);
    step(link, &ask.id, seen, kept, decide).await
}

/// Work whose row is locked is alive. Whoever has the lock of anything else may be an earlier call of
/// this very attempt: what became of that is known when it has ended.
fn or_occupied(
    reserved: Result<Reservation, StepFailed>,
    ask: &Ask,
) -> Result<Reservation, StepFailed> {
    match reserved {
        Err(StepFailed::Locked { seen: Some(record), .. })
            if record.attempt != ask.attempt && record.state == State::InProgress =>
        {
            Ok(Reservation::Occupied { record, lease_ran_out: false })
        }
        other => other,
    }
}

/// Why a step came to nothing.
pub(super) enum StepFailed {
    /// The row was locked for too long. With what was seen of it.
    Locked {
        seen: Option<Box<Record>>,
        error: StoreError,
    },
    Other(StoreError),
}

impl StepFailed {
    pub(super) fn into_error(self) -> StoreError {
        match self {
            StepFailed::Locked { error, .. } | StepFailed::Other(error) => error,
        }
    }

    /// The error, after a batch that may have been carried out.
    fn after(self, may_have_happened: bool) -> StoreError {
        let error = self.into_error();
        if may_have_happened { answer_lost(error) } else { error }
    }
}

/// For steps that come without a request.
pub(super) fn no_request<A>(_: &A) -> Option<&'static [u8]> {
    None
}

/// What was decided and may stand already, by a try whose answer was lost, would be refused when it is
/// told again: nobody knows then whether this one or somebody else's stands.
pub(super) async fn resolve(link: &mut Link, resolve: Resolve) -> Result<Resolved, StoreError> {
    let decide = |found: Option<&Record>, now| machine::resolve(found, resolve.clone(), now);
    let in_doubt = |answer: &Resolved| matches!(answer, Resolved::Refused(_) | Resolved::Absent);
    let resolved = step_unless(link, &resolve.id, None, no_request, decide, in_doubt).await;
    resolved.map_err(StepFailed::into_error)
}

/// One atomic step on one record. `kept` says which request is kept beside the record, by the answer.
pub(super) async fn step<'r, C: Caller, A>(
    link: &mut C,
    id: &RecordId,
    seen: Option<(Box<Record>, Timestamp)>,
    kept: impl Fn(&A) -> Option<&'r [u8]>,
    decide: impl Fn(Option<&Record>, Timestamp) -> Step<A>,
) -> Result<A, StepFailed> {
    step_unless(link, id, seen, kept, decide, |_| false).await
}

/// The same, unless its answer is in doubt after a try that may have happened.
async fn step_unless<'r, C: Caller, A>(
    link: &mut C,
    id: &RecordId,
    mut seen: Option<(Box<Record>, Timestamp)>,
    kept: impl Fn(&A) -> Option<&'r [u8]>,
    decide: impl Fn(Option<&Record>, Timestamp) -> Step<A>,
    in_doubt: impl Fn(&A) -> bool,
) -> Result<A, StepFailed> {
    let mut may_have_happened = false;
    let mut last = StoreError::new(StoreErrorKind::Unavailable, STORE, "a record keeps changing");
    for _ in 0..LOOKS_MAX {
        let lost = match try_once(link, id, seen.take(), &kept, &decide).await {
            Ok(Some(answer)) if may_have_happened && in_doubt(&answer) => break,
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) => continue,
            Err(lost) => lost,
        };
        let error = match lost {
            Trouble::Bad(error) => return Err(StepFailed::Other(error)),
            Trouble::Lost { lost, seen: record, wrote } => {
                let error = lost.store_error();
                let may_be_written = wrote && error.kind() == StoreErrorKind::Ambiguous;
                match &lost {
                    Lost::Failed(cause) => match remedy(cause) {
                        Remedy::Reconnect | Remedy::Again if C::MAY_REPEAT => {}
                        // Whether an earlier try of ours has the lock is known when it has ended.
                        Remedy::Locked if may_have_happened => {
                            return Err(StepFailed::Other(answer_lost(error)));
                        }
                        Remedy::Locked => {
                            return Err(StepFailed::Locked { seen: record, error });
                        }
                        _ if may_have_happened => {
                            return Err(StepFailed::Other(answer_lost(error)));
                        }
                        _ => return Err(StepFailed::Other(error)),
                    },
                    Lost::NotSent(_) | Lost::NoAnswer => {
                        may_have_happened |= may_be_written;
                        last = error;
                        break;
                    }
                }
                may_have_happened |= may_be_written;
                error
            }
        };
        last = error;
        pause().await;
    }
    Err(StepFailed::Other(if may_have_happened { answer_lost(last) } else { last }))
}

enum Trouble {
    Lost {
        lost: Lost,
        seen: Option<Box<Record>>,
        /// A mere look leaves nothing behind.
        wrote: bool,
    },
    Bad(StoreError),
}

/// `None` when the record was not any more what was looked at.
async fn try_once<'r, A>(
    link: &mut impl Caller,
    id: &RecordId,
    seen: Option<(Box<Record>, Timestamp)>,
    kept: &impl Fn(&A) -> Option<&'r [u8]>,
    decide: &impl Fn(Option<&Record>, Timestamp) -> Step<A>,
) -> Result<Option<A>, Trouble> {
    let (found, now) = match seen {
        Some((record, now)) => (Some(record), now),
        None => load(link, id).await?,
    };
    let step = decide(found.as_deref(), now);
    let request = kept(&step.answer);
    let changed = match &step.change {
        Change::Keep => match &step.audit {
            None => Ok(true),
            Some(audit) => remember(link, audit).await.map(|()| true),
        },
        Change::Put(record) => {
            change(link, id, found.as_deref(), Some(record), step.audit.as_ref(), request).await
        }
        Change::Remove => {
            change(link, id, found.as_deref(), None, step.audit.as_ref(), request).await
        }
    };
    match changed {
        Ok(changed) => Ok(changed.then_some(step.answer)),
        Err(lost) => Err(Trouble::Lost { lost, seen: found, wrote: true }),
    }
}

/// The record as it is, with the server's time.
pub(super) async fn load_one(
    link: &mut impl Caller,
    id: &RecordId,
) -> Result<(Option<Box<Record>>, Timestamp), StoreError> {
    let mut tries = 0;
    loop {
        tries += 1;
        match load(link, id).await {
            Ok(found) => return Ok(found),
            Err(Trouble::Bad(error)) => return Err(error),
            Err(Trouble::Lost { lost, .. }) => match &lost {
                Lost::Failed(error) if remedy(error) == Remedy::Reconnect && tries < 3 => {}
                _ => return Err(lost.store_error()),
            },
        }
    }
}

async fn load(
    link: &mut impl Caller,
    id: &RecordId,
) -> Result<(Option<Box<Record>>, Timestamp), Trouble> {
    let query = call(&link.statements().load)
        .bind(link.now())
        .bind(vec![id.scope.as_str()])
        .bind(vec![id.key.as_str()]);
    let not_loaded = |lost| Trouble::Lost { lost, seen: None, wrote: false };
    let rows = link.fetch(query).await.map_err(not_loaded)?;
    let missing = || StoreError::new(StoreErrorKind::Unavailable, STORE, "no row came back");
    let row = FoundRow::new(rows.first().ok_or_else(|| Trouble::Bad(missing()))?);
    let bad = |bad| Trouble::Bad(damaged(bad));
    let now = row.now().map_err(bad)?;
    let record = row.is_there().then(|| row.record(id)).transpose().map_err(bad)?;
    Ok((record.map(Box::new), now))
}

async fn change(
    link: &mut impl Caller,
    id: &RecordId,
    expected: Option<&Record>,
    record: Option<&Record>,
    audit: Option<&AuditRecord>,
    request: Option<&[u8]>,
) -> Result<bool, Lost> {
    use sqlx::Row as _;
    let completed = record.filter(|record| record.state == State::Completed);
    let reply = completed.and_then(|record| record.reply.as_ref()).map(reply_parts);
    let evidence = audit.and_then(|audit| audit.reply.as_ref()).map(reply_parts);
    let query = call(&link.statements().change)
        .bind(id.scope.as_str())
        .bind(id.key.as_str())
        .bind(expected.map(|record| record_json(record).to_string()))
        .bind(record.map(|record| record_json(record).to_string()))
        .bind(reply.as_ref().map(|reply| &reply.1[..]))
        .bind(reply.as_ref().and_then(|reply| reply.3))
        .bind(request)
        .bind(audit.map(|audit| audit_json(audit).to_string()))
        .bind(evidence.as_ref().map(|reply| &reply.1[..]))
        .bind(evidence.as_ref().and_then(|reply| reply.3));
    let rows = link.fetch(query).await?;
    Ok(rows.first().and_then(|row| row.try_get(0).ok()).unwrap_or(false))
}

async fn remember(link: &mut impl Caller, audit: &AuditRecord) -> Result<(), Lost> {
    let reply = audit.reply.as_ref().map(reply_parts);
    let query = call(&link.statements().remember)
        .bind(audit_json(audit).to_string())
        .bind(reply.as_ref().map(|reply| &reply.1[..]))
        .bind(reply.as_ref().and_then(|reply| reply.3));
    link.fetch(query).await.map(drop)
}
