//! Bugs of stores, and of what an engine makes of their answers.

use std::{sync::Arc, time::Duration};

use onceward::{
    clock::Timestamp,
    fingerprint::Fingerprint,
    machine::{self, Change, Step},
    record::{AttemptId, Effects, Fence, Lease, Record, State},
    reply::{Reply, ReplyBody},
    store::{
        Ask, Found, Mode, Reservation, Resolution, Resolve, Resolved, StoreError, StoreErrorKind,
        Write, Written,
    },
};
use tokio::time::{Instant, sleep};

use super::{
    super::{
        faults::ON_ITS_WAY,
        network::NodeStore,
        options::SECOND,
        store::copy,
        world::{World, lock},
    },
    Bug,
};
use crate::history::Cause;

/// The reserve of a node.
pub(in super::super) async fn reserve(
    store: &NodeStore,
    ask: Ask,
) -> Result<Reservation, StoreError> {
    let skew = store.skew;
    let sent = match store.world.bug {
        Some(Bug::NewAttemptOnRepeat) => Ask { attempt: AttemptId::random(), ..ask.clone() },
        _ => ask.clone(),
    };
    let at = Instant::now();
    let answer = store.call("reserve", move |world| {
        world.look_for_reaper(&sent, at);
        let answer = world.reserve_with(&sent, skew);
        if world.bug != Some(Bug::AcceptedNotKept) {
            world.keep_request(&sent, &answer);
        }
        world.check_granted(&sent, &answer);
        answer
    });
    let answer = answer.await;
    match (store.world.bug, answer) {
        (Some(Bug::FailsOpen), Err(_)) if ask.mode == Mode::Execute => {
            let until = store.world.store_now();
            let fence = Fence::next(None, until);
            let (id, attempt) = (ask.id, ask.attempt);
            let lease = Lease { id, attempt, fence, generation: 1, attempt_number: 1, until };
            Ok(Reservation::Granted { lease, found: Found::Absent })
        }
        (Some(Bug::LookThenReserve), Ok(Reservation::Free)) => {
            // It looked free. The reserve itself comes now, and knows better than to look again.
            sleep(ON_ITS_WAY).await;
            Ok(store.world.take(&ask))
        }
        (_, answer) => answer,
    }
}

impl World {
    fn reserve_with(&self, ask: &Ask, callers_skew: i64) -> Reservation {
        let found = lock(&self.records).records.get(&ask.id).cloned();
        let now = self.store_now();
        match (self.bug, found) {
            (Some(Bug::LookThenReserve), None) => Reservation::Free,
            (Some(Bug::ReserveOnReplica), Some(_)) if self.as_of(ask, SECOND).is_none() => {
                self.take(ask)
            }
            (Some(Bug::LeaseIsTimeToLive), Some(record))
                if record.state == State::InProgress && !record.lease_is_live(now) =>
            {
                self.take(ask)
            }
            (Some(Bug::UnknownRunsAgain), Some(record)) if record.state == State::Unknown => {
                self.take(ask)
            }
            (Some(Bug::LeaseOverIsRetryable), Some(record))
                if record.state == State::InProgress && !record.lease_is_live(now) =>
            {
                let free = Record { effects: Effects::None, ..record.clone() };
                let ask = Ask { effects: ask.effects, ..ask.clone() };
                self.step(&ask.id, self.by_reserve(&ask), |_, now| {
                    machine::reserve(Some(&free), &ask, now)
                })
            }
            (Some(Bug::ExpiryByCallersClock), Some(_)) => {
                let now = Timestamp::from_micros(now.as_micros() + callers_skew);
                self.step(&ask.id, self.by_reserve(ask), |found, _| {
                    machine::reserve(found, ask, now)
                })
            }
            (Some(Bug::GenerationNotCounted), Some(_)) => {
                self.step(&ask.id, self.by_reserve(ask), |found, now| {
                    let mut step = machine::reserve(found, ask, now);
                    if let Change::Put(record) = &mut step.change {
                        record.generation = 1;
                    }
                    if let Reservation::Granted { lease, .. } = &mut step.answer {
                        lease.generation = 1;
                    }
                    step
                })
            }
            (Some(Bug::FenceReused), Some(before)) => {
                self.step(&ask.id, self.by_reserve(ask), |found, now| {
                    with_fence(machine::reserve(found, ask, now), before.fence)
                })
            }
            (Some(Bug::MismatchTakesOver), Some(record))
                if record.state == State::FailedRetryable =>
            {
                self.step(&ask.id, self.by_reserve(ask), |_, now| {
                    let record = Record { fingerprint: ask.fingerprint, ..record.clone() };
                    machine::reserve(Some(&record), ask, now)
                })
            }
            (Some(Bug::MismatchIgnored), Some(record)) => {
                let same = Ask { fingerprint: record.fingerprint, ..ask.clone() };
                as_if_same(self.reserve(&same), ask.fingerprint)
            }
            (Some(Bug::TombstoneReplayed), Some(_)) => as_if_alive(self.reserve(ask)),
            _ => self.reserve(ask),
        }
    }

    fn by_reserve(&self, ask: &Ask) -> Cause {
        let attempt = self.attempt_name(ask.attempt);
        Cause::Reserve { attempt, now: self.store_now().as_micros() }
    }

    /// Takes the record whatever it is.
    fn take(&self, ask: &Ask) -> Reservation {
        let fence = lock(&self.records).records.get(&ask.id).map(|record| record.fence);
        let step = |now| {
            let step = machine::reserve(None, ask, now);
            match fence {
                Some(fence) => with_fence(step, Fence::next(Some(fence), now)),
                None => step,
            }
        };
        self.step(&ask.id, self.by_reserve(ask), |_, now| step(now))
    }

    /// The record as it was some time ago.
    fn as_of(&self, ask: &Ask, ago: Duration) -> Option<Record> {
        let records = lock(&self.records);
        let since = Instant::now().checked_sub(ago);
        let mut changes = records.before.iter().filter(|before| before.id == ask.id);
        let first_since = changes.find(|before| since.is_none_or(|since| before.at >= since));
        match first_since {
            Some(before) => before.record.clone(),
            None => records.records.get(&ask.id).cloned(),
        }
    }
}

fn with_fence(mut step: Step<Reservation>, fence: Fence) -> Step<Reservation> {
    if let (Change::Put(record), Reservation::Granted { lease, .. }) =
        (&mut step.change, &mut step.answer)
    {
        record.fence = fence;
        lease.fence = fence;
    }
    step
}

fn as_if_same(reservation: Reservation, fingerprint: Fingerprint) -> Reservation {
    match reservation {
        Reservation::Occupied { mut record, lease_ran_out } => {
            record.fingerprint = fingerprint;
            Reservation::Occupied { record, lease_ran_out }
        }
        other => other,
    }
}

fn as_if_alive(reservation: Reservation) -> Reservation {
    match reservation {
        Reservation::Occupied { mut record, lease_ran_out }
            if record.state == State::Expired && record.reply.is_some() =>
        {
            record.state = State::Completed;
            let gone = record.reply.take();
            record.reply =
                gone.map(|reply| Reply { body: ReplyBody::Stored(bytes::Bytes::new()), ..reply });
            Reservation::Occupied { record, lease_ran_out }
        }
        other => other,
    }
}

/// A write of a node.
pub(in super::super) async fn write(
    store: &NodeStore,
    lease: Lease,
    write: Write,
) -> Result<Written, StoreError> {
    let world = &store.world;
    let write = altered(world, write);
    if world.bug == Some(Bug::AnswersBeforeCompletion) && matches!(write, Write::Complete(_)) {
        let world = Arc::clone(world);
        tokio::spawn(async move {
            sleep(ON_ITS_WAY * 8).await;
            let _ = world.write(&lease, write);
        });
        return Ok(Written::Applied);
    }
    let sent = copy(&lease);
    let completes = matches!(write, Write::Complete(_));
    let answer = store.call("write", move |world| {
        let answer = world.write_with(&sent, write.clone());
        world.check_applied(&sent, &write, &answer);
        answer
    });
    let answer = answer.await;
    let is_open = matches!(&answer, Err(error) if error.kind() == StoreErrorKind::Ambiguous);
    match world.bug {
        Some(Bug::CommitErrorIgnored) if completes && is_open => Ok(Written::Applied),
        Some(Bug::LostCompletionReleases) if completes && is_open => {
            let release = Write::Release("completion_failed".into());
            let _ = world.write(&lease, release);
            answer
        }
        _ => answer,
    }
}

fn altered(world: &World, write: Write) -> Write {
    let released = |why: &str| match world.bug {
        Some(Bug::StopReleases) => why == "process_stopped",
        Some(Bug::TimeoutReleases) => why == "max_execution_exceeded",
        Some(Bug::PanicReleases) => why == "handler_panicked",
        _ => false,
    };
    match write {
        Write::MarkUnknown(why) if released(&why) => Write::Release(why),
        Write::Complete(mut reply) => {
            match world.bug {
                Some(Bug::RepeatedHeadersLost) => {
                    let last = reply.headers.clone();
                    reply.headers.dedup_by(|later, earlier| later.0 == earlier.0);
                    for (name, value) in &mut reply.headers {
                        let found = last.iter().rfind(|(known, _)| known == name);
                        if let Some((_, of_last)) = found {
                            *value = of_last.clone();
                        }
                    }
                }
                Some(Bug::BodyCut) => {
                    let body = reply.body_bytes();
                    reply.body = ReplyBody::Stored(body.slice(..body.len().min(20)));
                }
                Some(Bug::CookieReplayed) => {
                    let cookie = http::HeaderValue::from_static("session=first");
                    reply.headers.push((http::header::SET_COOKIE, cookie));
                }
                _ => {}
            }
            Write::Complete(reply)
        }
        other => other,
    }
}

impl World {
    fn write_with(&self, lease: &Lease, write: Write) -> Written {
        let found = lock(&self.records).records.get(&lease.id).cloned();
        let cause = self.cause_of_write(lease, &write);
        let as_owner = |record: &Record, state: State| {
            let owned = Record { attempt: lease.attempt, fence: lease.fence, ..record.clone() };
            Record { state, reply: None, ..owned }
        };
        match (self.bug, found, &write) {
            (Some(Bug::WriteByKeyOnly), Some(record), _) => {
                let mine = as_owner(&record, record.state);
                self.step(&lease.id, cause, |_, now| machine::write(Some(&mine), lease, write, now))
            }
            (Some(Bug::CompletionOverwrites), Some(record), Write::Complete(_))
                if record.state == State::Completed =>
            {
                let mine = as_owner(&record, State::InProgress);
                self.step(&lease.id, cause, |_, now| machine::write(Some(&mine), lease, write, now))
            }
            (Some(Bug::CompletionAfterRelease), Some(record), Write::Complete(_))
                if matches!(record.state, State::FailedRetryable | State::InProgress) =>
            {
                let mine = as_owner(&record, State::InProgress);
                self.step(&lease.id, cause, |_, now| machine::write(Some(&mine), lease, write, now))
            }
            (Some(Bug::QueuedIsReleased), Some(record), Write::Release(_)) => {
                let record = Record { queued_until: None, ..record };
                self.step(&lease.id, cause, |_, now| {
                    machine::write(Some(&record), lease, write, now)
                })
            }
            (Some(Bug::RenewalNotWritten), _, Write::Renew(_)) => Written::Applied,
            (Some(Bug::LeaseNeverEnds), _, Write::Release(_)) => Written::Applied,
            _ => self.write(lease, write),
        }
    }
}

/// What becomes of a record when the reaper comes.
pub(in super::super) fn reap(
    world: &World,
    record: &Record,
    now: Timestamp,
    callers_skew: i64,
) -> Change {
    match world.bug {
        Some(Bug::ReapByCallersClock) => {
            machine::reap(record, Timestamp::from_micros(now.as_micros() + callers_skew))
        }
        Some(Bug::ReapsWhatIsUnknown) if record.state == State::Unknown => Change::Remove,
        Some(Bug::ReaperIgnoresState) if now >= record.expires_at => Change::Remove,
        Some(Bug::NoTombstone) if record.state.is_terminal() && now >= record.expires_at => {
            Change::Remove
        }
        _ => machine::reap(record, now),
    }
}

/// A resolution that arrived.
pub(in super::super) fn resolve(world: &World, mut resolve: Resolve, looked_at: Fence) -> Resolved {
    let found = lock(&world.records).records.get(&resolve.id).cloned();
    let Some(record) = found else { return world.resolve(resolve, looked_at) };
    match (world.bug, &mut resolve.resolution) {
        (Some(Bug::ResolvedByKeyOnly), resolution)
            if !matches!(resolution, Resolution::Executed { .. }) =>
        {
            (resolve.generation, resolve.fence) = (record.generation, record.fence);
        }
        (Some(Bug::GivenUpTooEarly), Resolution::GiveUp(reply)) => {
            resolve.resolution = Resolution::Complete(reply.clone());
            return world.resolve_by("give_up", None, resolve, looked_at);
        }
        (Some(Bug::AskedWithoutCondition), Resolution::Ask { probes }) => {
            *probes = record.inquiry.probes;
            let due = Record { reconcile_after: Some(world.store_now()), ..record };
            let cause = world.cause_of_resolve("ask", None, looked_at);
            let id = resolve.id.clone();
            return world.step(&id, cause, |_, now| machine::resolve(Some(&due), resolve, now));
        }
        (Some(Bug::RedriveNotWritten), Resolution::Redrive) => {
            return Resolved::Applied(Box::new(record));
        }
        _ => {}
    }
    world.resolve(resolve, looked_at)
}
