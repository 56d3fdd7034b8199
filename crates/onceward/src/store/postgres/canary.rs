//! Beats of this process, and what it saw acknowledged since the last one.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
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
    record::{Fence, RecordId},
    store::{Beat, Pulse, Regression, StoreError},
};

/// What all connections of a store share.
#[derive(Clone, Default)]
pub(super) struct Witnesses {
    epoch: Arc<AtomicU64>,
    /// Of each connection, by its number.
    last: Arc<Mutex<Vec<Option<Witness>>>>,
}

/// The last of what was acknowledged on a connection. A server has a commit only if it has those that
/// came before on the same connection: if this one is there, nothing is lost.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Witness {
    pub(super) id: RecordId,
    pub(super) fence: Fence,
    pub(super) completed: bool,
    /// The step that was saved, or the effect that was about to be called.
    pub(super) step: Option<Box<str>>,
}

impl Witnesses {
    /// A place for one more connection.
    pub(super) fn place(&self) -> usize {
        let mut last = self.lock();
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
        let mut all = self.lock();
        // An effect may be withdrawn on another connection than the one it was announced on.
        for last in all.iter_mut() {
            if last.as_ref().is_some_and(|last| last.step.is_some() && last.id == witness.id) {
                *last = None;
            }
        }
        if let Some(last) = all.get_mut(place) {
            *last = Some(witness);
        }
    }

    fn all(&self) -> Vec<Witness> {
        self.lock().iter().flatten().cloned().collect()
    }

    /// A beat was acknowledged after these: it stands for them. They may be purged one day.
    fn forget(&self, vouched: &[Witness]) {
        for last in self.lock().iter_mut() {
            if last.as_ref().is_some_and(|witness| vouched.contains(witness)) {
                *last = None;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<Witness>>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sent on a connection that is not older than any other: one that is may lead to a server that is
/// not asked any more.
pub(super) async fn beat(link: &mut Link, beat: Beat) -> Result<Pulse, StoreError> {
    link.be_as_new_as_any().await?;
    let witnesses = link.witnesses().all();
    let bind = |link: &Link| {
        let column =
            |value: fn(&Witness) -> String| witnesses.iter().map(value).collect::<Vec<_>>();
        call(&link.statements().beat)
            .bind(link.now())
            .bind(Uuid::from_bytes(*beat.node.as_bytes()))
            .bind(i64::try_from(beat.acked).unwrap_or(i64::MAX))
            .bind(micros(BEATS_KEPT))
            .bind(column(|witness| witness.id.scope.as_str().to_owned()))
            .bind(column(|witness| witness.id.key.as_str().to_owned()))
            .bind(witnesses.iter().map(|witness| witness.fence.number()).collect::<Vec<_>>())
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
    link.witnesses().forget(&witnesses);
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

/// What was lost, in two columns from this one on.
fn read(row: &PgRow, first: usize) -> Result<Option<Regression>, StoreError> {
    let time = |column: usize| row.try_get::<Option<i64>, _>(column).map_err(|_| unreadable());
    let (since, found) = (time(first)?, time(first + 1)?);
    Ok(found.map(|found| Regression {
        since: since.map(Timestamp::from_micros),
        found: Timestamp::from_micros(found),
    }))
}
