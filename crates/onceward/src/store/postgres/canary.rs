//! Beats of this process, and what it saw acknowledged since the last one.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use sqlx::{Row as _, postgres::PgRow, types::Uuid};

use super::{
    link::{Caller as _, Link, call},
    row::micros,
    workers::{fetch, unreadable},
};
use crate::{
    clock::Timestamp,
    machine::BEATS_KEPT,
    record::Lease,
    store::{Beat, NodeId, Pulse, Regression, StoreError},
};

/// What all connections of a store share.
#[derive(Clone, Default)]
pub(super) struct Witnesses {
    epoch: Arc<AtomicU64>,
    seen: Arc<Mutex<Seen>>,
    /// Held while a beat asks for what was seen.
    asking: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
struct Seen {
    /// Of each connection, by its number.
    last: Vec<Option<Witness>>,
    /// Of connections that are no more, until a beat has asked for them.
    before: VecDeque<Witness>,
    /// The highest count of a beat that was answered, also to a caller that had gone.
    acked: Option<(NodeId, u64)>,
}

/// So that a store without a canary does not gather them for ever.
const BEFORE_MAX: usize = 256;

/// The last of what was acknowledged on a connection, of that which must not be forgotten: a grant, a
/// completion, a step. A server has a commit only if it has those that came before on the same
/// connection: if this one is there, nothing is lost.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Witness {
    /// A lease is not given twice: here it is only looked at.
    pub(super) lease: Arc<Lease>,
    pub(super) completed: bool,
    /// The step that was saved, or the effect that was about to be called.
    pub(super) step: Option<Box<str>>,
}

impl Witnesses {
    /// A place for one more connection.
    pub(super) fn place(&self) -> usize {
        let last = &mut self.lock().last;
        last.push(None);
        last.len() - 1
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// A connection is made anew. Counted before anything is asked on it.
    pub(super) fn next_epoch(&self) -> u64 {
        self.epoch.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(super) fn put(&self, place: usize, witness: Witness) {
        if let Some(last) = self.lock().last.get_mut(place) {
            *last = Some(witness);
        }
    }

    /// The same beside what was there: it may be taken back.
    pub(super) fn put_beside(&self, place: usize, witness: Witness) {
        self.retire(place);
        self.put(place, witness);
    }

    /// The connection is another one from now on, perhaps to another server: what was acknowledged on
    /// the old one must not be replaced by what the new one says.
    pub(super) fn retire(&self, place: usize) {
        let Seen { last, before, .. } = &mut *self.lock();
        before.extend(last.get_mut(place).and_then(Option::take));
        let too_many = before.len().saturating_sub(BEFORE_MAX);
        before.drain(..too_many);
    }

    /// An effect that was announced, on whichever connection, is about to be withdrawn: no beat may
    /// ask for it from then on.
    pub(super) async fn withdraw(&self, lease: &Lease, name: &str) {
        let is_it = |witness: &Witness| {
            witness.step.as_deref() == Some(name)
                && witness.lease.id == lease.id
                && witness.lease.fence == lease.fence
        };
        self.remove(is_it);
        drop(self.asking.lock().await);
    }

    /// The count that was acknowledged to this node, by its own word or by ours.
    fn acked(&self, beat: Beat) -> u64 {
        let seen = self.lock().acked.filter(|(node, _)| *node == beat.node);
        seen.map_or(beat.acked, |(_, count)| count.max(beat.acked))
    }

    fn all(&self) -> Vec<Witness> {
        let seen = self.lock();
        seen.last.iter().flatten().chain(&seen.before).cloned().collect()
    }

    /// A beat was acknowledged after these: it stands for them. They may be purged one day.
    fn forget(&self, vouched: &[Witness], node: NodeId, count: u64) {
        self.lock().acked = Some((node, count));
        self.remove(|witness| vouched.contains(witness));
    }

    fn remove(&self, is_it: impl Fn(&Witness) -> bool) {
        let mut seen = self.lock();
        for last in &mut seen.last {
            last.take_if(|witness| is_it(witness));
        }
        seen.before.retain(|witness| !is_it(witness));
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sent on a connection that is not older than any other: one that is may lead to a server that is
/// not asked any more.
pub(super) async fn beat(link: &mut Link, beat: Beat) -> Result<Pulse, StoreError> {
    link.be_as_new_as_any().await?;
    let shared = link.witnesses().clone();
    let _asking = shared.asking.lock().await;
    let (witnesses, acked) = (shared.all(), shared.acked(beat));
    let bind = |link: &Link| {
        let column =
            |value: fn(&Witness) -> String| witnesses.iter().map(value).collect::<Vec<_>>();
        call(&link.statements().beat)
            .bind(link.now())
            .bind(Uuid::from_bytes(*beat.node.as_bytes()))
            .bind(i64::try_from(acked).unwrap_or(i64::MAX))
            .bind(micros(BEATS_KEPT))
            .bind(column(|witness| witness.lease.id.scope.as_str().to_owned()))
            .bind(column(|witness| witness.lease.id.key.as_str().to_owned()))
            .bind(witnesses.iter().map(|it| number(it.lease.generation)).collect::<Vec<_>>())
            .bind(witnesses.iter().map(|it| number(it.lease.attempt_number)).collect::<Vec<_>>())
            .bind(witnesses.iter().map(|it| it.lease.fence.number()).collect::<Vec<_>>())
            .bind(witnesses.iter().map(|witness| witness.completed).collect::<Vec<_>>())
            .bind(
                witnesses
                    .iter()
                    .map(|it| it.step.as_deref().map(str::to_owned))
                    .collect::<Vec<_>>(),
            )
    };
    let rows = fetch(link, bind).await?;
    let row = rows.first().ok_or_else(unreadable)?;
    let count: i64 = row.try_get(0).map_err(|_| unreadable())?;
    let absent: i64 = row.try_get(3).map_err(|_| unreadable())?;
    let pulse = Pulse {
        count: u64::try_from(count).map_err(|_| unreadable())?,
        regression: read(row, 1)?,
        absent: u32::try_from(absent).map_err(|_| unreadable())?,
    };
    shared.forget(&witnesses, beat.node, pulse.count);
    Ok(pulse)
}

pub(super) async fn acknowledge(
    link: &mut Link,
    reason: Box<str>,
) -> Result<Option<Regression>, StoreError> {
    let bind = |link: &Link| {
        call(&link.statements().acknowledge_regression).bind(link.now()).bind(reason.to_string())
    };
    let rows = fetch(link, bind).await?;
    rows.first().map_or(Ok(None), |row| read(row, 0))
}

fn number(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// What was lost, in two columns from this one on.
fn read(row: &PgRow, first: usize) -> Result<Option<Regression>, StoreError> {
    let time = |column: usize| row.try_get::<Option<i64>, _>(column).map_err(|_| unreadable());
    let (since, found) = (time(first)?, time(first + 1)?);
    Ok(found.map(|found| Regression {
        since: since.map(Timestamp::from_micros),
        found: Timestamp::from_micros(found),
    }))
}
