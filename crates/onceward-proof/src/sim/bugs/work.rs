//! Bugs of workers, and of stores where workers come to them.

use std::time::Duration;

use onceward::{
    Operation, OutboxStore as _,
    machine::{self, Change, Step},
    outbox::{Claimed, DeadLetter, MessageState, Settlement},
    record::{
        AttemptId, AuditEvent, AuditRecord, Effects, Lease, Record, RecordId, SavedStep, State,
    },
    store::{Advance, Advanced, Claim, Reservation, StoreError, Swept},
};
use tokio::time::{Instant, sleep};

use super::{
    super::{
        faults::ON_ITS_WAY,
        network::NodeStore,
        options::SECOND,
        outbox::now,
        world::{World, lock},
    },
    Bug,
};
use crate::history::Cause;

/// The sweep of a node.
pub(in super::super) async fn sweep(
    store: &NodeStore,
    limit: u32,
) -> Result<Vec<Swept>, StoreError> {
    let world = &store.world;
    match world.bug {
        Some(Bug::LeaseNeverEnds | Bug::SweeperSleeps) => return Ok(Vec::new()),
        Some(Bug::SweepWithoutCondition) => return sweep_in_two_steps(store).await,
        Some(Bug::SweepNotesFirst) => {
            due(world).iter().for_each(|record| world.note(lease_expired(record)));
        }
        Some(Bug::SweepTooEarly | Bug::SweepMakesRetryable | Bug::SweepWithoutTicket) => {
            return store.call("sweep", |world| world.sweep_wrongly()).await;
        }
        _ => {}
    }
    let (node, sent) = (store.node, Instant::now());
    store.call("sweep", move |world| world.sweep_by(node, sent, limit)).await
}

fn due(world: &World) -> Vec<Record> {
    let now = world.store_now();
    let records = lock(&world.records);
    let all = records.records.values();
    all.filter(|record| machine::sweep(record, now).answer.is_some()).cloned().collect()
}

fn lease_expired(record: &Record) -> AuditRecord {
    AuditRecord {
        at: record.lease_until,
        id: record.id.clone(),
        generation: record.generation,
        event: AuditEvent::LeaseExpired,
        attempt: record.attempt,
        fence: record.fence,
        reason: "".into(),
        reply: None,
    }
}

async fn sweep_in_two_steps(store: &NodeStore) -> Result<Vec<Swept>, StoreError> {
    let world = &store.world;
    let (now, due) = (world.store_now(), due(world));
    sleep(ON_ITS_WAY * 50).await;
    for record in due {
        let cause = Cause::Sweep { now: now.as_micros() };
        let _ = world.step(&record.id, cause, |_, now| machine::sweep(&record, now));
    }
    Ok(Vec::new())
}

impl World {
    fn sweep_wrongly(&self) -> Vec<Swept> {
        let ids: Vec<_> = lock(&self.records).records.keys().cloned().collect();
        let cause = Cause::Sweep { now: self.store_now().as_micros() };
        let early = if self.bug == Some(Bug::SweepTooEarly) { SECOND } else { Duration::ZERO };
        let nothing = || Step { change: Change::Keep, audit: None, answer: None };
        let swept = ids.iter().filter_map(|id| {
            self.step(id, cause.clone(), |found, now| {
                let Some(record) = found else { return nothing() };
                if self.bug == Some(Bug::SweepMakesRetryable) && record.progress.is_none() {
                    let free = Record { effects: Effects::None, ..record.clone() };
                    return machine::sweep(&free, now);
                }
                let mut step = machine::sweep(record, now.plus(early));
                if let (Some(Bug::SweepWithoutTicket), Change::Put(put)) =
                    (self.bug, &mut step.change)
                {
                    put.reconcile_after = None;
                }
                step
            })
        });
        swept.collect()
    }
}

/// A claim that arrived.
pub(in super::super) fn claim(world: &World, claim: &Claim) -> Reservation {
    let cause = world.cause_of_claim(claim);
    let anything = Claim { fence: None, ..claim.clone() };
    match world.bug {
        Some(Bug::ClaimWithoutFence) => {
            world.step(&claim.id, cause, |found, now| machine::claim(found, &anything, now))
        }
        Some(Bug::ClaimTakesOver) => world.step(&claim.id, cause, |found, now| {
            let due = |record: &Record| Record {
                lease_until: now,
                state: match record.state {
                    State::InProgress if record.is_queued() => State::Pending,
                    other => other,
                },
                ..record.clone()
            };
            machine::claim(found.map(due).as_ref(), &anything, now)
        }),
        _ => world.claim(claim),
    }
}

/// A step that arrived.
pub(in super::super) fn advance(world: &World, lease: &Lease, advance: &Advance) -> Advanced {
    match (world.bug, advance) {
        (Some(Bug::StepNotSaved), Advance::Save { .. }) => Advanced::Applied,
        (Some(Bug::OpenEffectRepeated), Advance::Intend { name, .. }) => {
            let intend = Advance::Intend { name: name.clone(), idempotent: true };
            world.advance(lease, &intend)
        }
        _ => world.advance(lease, advance),
    }
}

/// The steps that were made so far.
pub(in super::super) fn steps(world: &World, id: &RecordId, generation: u32) -> Vec<SavedStep> {
    match world.bug {
        Some(Bug::StepsForgotten) => Vec::new(),
        _ => world.steps(id, generation),
    }
}

/// The key under which a step is made.
pub(in super::super) fn key_of_step(world: &World, key: String, operation: &Operation) -> String {
    match world.bug {
        Some(Bug::KeyOfAttempt) => format!("{key}-{}", operation.attempt_number()),
        _ => key,
    }
}

/// A relay claims messages.
pub(in super::super) fn claim_messages(
    world: &World,
    limit: u32,
    sinks: &[&str],
    lease: Duration,
    attempt: AttemptId,
) -> Vec<Claimed> {
    let Some(outbox) = &world.outbox else { return Vec::new() };
    if world.bug == Some(Bug::DeadLetterPassed) {
        let dead = now(outbox.rows.list(MessageState::Dead, None, u32::MAX));
        let dead: Vec<_> = dead.iter().map(DeadLetter::from).collect();
        let _ = now(outbox.rows.discard(&dead, "in the way"));
    }
    let mut claimed = now(outbox.rows.claim(limit, sinks, lease, attempt));
    for one in &mut claimed {
        match world.bug {
            Some(Bug::MarkedBeforeSent) => {
                let done = Settlement::Done { provider_id: None };
                let _ = world.settle(one.message_id, attempt, one.fence, done);
            }
            Some(Bug::KeyOfDelivery) => {
                one.derived_key = format!("{}-{}", one.derived_key, one.attempts).into();
            }
            _ => {}
        }
    }
    claimed
}
