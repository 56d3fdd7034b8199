//! Beats of this process, with what it saw acknowledged since the last one.

use sqlx::{Row as _, postgres::PgRow, types::Uuid};

use super::{
    link::{Caller as _, Link, call},
    row::micros,
    workers::{fetch, unreadable},
};
use crate::{
    clock::Timestamp,
    machine::BEATS_KEPT,
    store::{Beat, Pulse, Regression, StoreError, witness::Witness},
};

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
