//! What workers and operators ask for, one call at a time.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use sqlx::{Row as _, postgres::PgRow, types::Uuid};
use tokio::time::Instant;
use tracing::warn;

use super::{
    PgStore,
    error::{Remedy, TRIES_MAX, answer_lost, pause, remedy},
    link::{Call, Caller, Link, Lost, call},
    row::{BadRow, FoundRow, damaged, read_audit},
};
use crate::{
    key::Key,
    record::{AttemptId, AuditRecord, Record, RecordId, State},
    scope::Scope,
    store::{Identity, IdentityCheck, Reaped, StoreError, StoreErrorKind, Swept},
};

/// A call that may be made twice.
pub(super) async fn fetch(
    link: &mut Link,
    bind: impl Fn(&Link) -> Call<'static>,
) -> Result<Vec<PgRow>, StoreError> {
    let mut may_have_happened = false;
    let mut tries = 0;
    loop {
        tries += 1;
        let lost = match link.fetch(bind(link)).await {
            Ok(rows) => return Ok(rows),
            Err(lost) => lost,
        };
        let error = lost.store_error();
        match &lost {
            Lost::Failed(cause) if remedy(cause) == Remedy::Reconnect && tries < TRIES_MAX => {
                may_have_happened |= error.kind() == StoreErrorKind::Ambiguous;
            }
            Lost::Failed(cause) if remedy(cause) == Remedy::Again && tries < TRIES_MAX => {
                pause().await;
            }
            _ => return Err(if may_have_happened { answer_lost(error) } else { error }),
        }
    }
}

/// Those that nobody is at work on any more, or whose lease is over.
pub(super) async fn settled(
    link: &mut Link,
    ids: Vec<RecordId>,
) -> Result<Vec<RecordId>, StoreError> {
    let bind = |link: &Link| {
        call(&link.statements().settled)
            .bind(link.now())
            .bind(ids.iter().map(|id| id.scope.as_str()).collect::<Vec<_>>())
            .bind(ids.iter().map(|id| id.key.as_str()).collect::<Vec<_>>())
    };
    let rows = fetch(link, bind).await?;
    let settled = |row: &PgRow| {
        let place: i64 = row.try_get(0).ok()?;
        ids.get(usize::try_from(place).ok()?.checked_sub(1)?).cloned()
    };
    rows.iter().map(|row| settled(row).ok_or_else(unreadable)).collect()
}

pub(super) async fn audit(link: &mut Link, id: RecordId) -> Result<Vec<AuditRecord>, StoreError> {
    let bind =
        |link: &Link| call(&link.statements().audit).bind(id.scope.as_str()).bind(id.key.as_str());
    let rows = fetch(link, bind).await?;
    rows.iter().map(|row| read_audit(row, &id).map_err(damaged)).collect()
}

/// How long a sweep looks through the list of leases. The next one goes on from there.
const SWEEP_TIME_MAX: Duration = Duration::from_secs(2);

/// Behind which row of the list of leases a sweep goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    check_at: i64,
    lease_id: i64,
}

impl Place {
    const START: Place = Place { check_at: i64::MIN, lease_id: 0 };
}

/// In statements that look at some rows each. Each stands in line for itself, so that others go in
/// between and a caller who has gone has the last one sent.
///
/// # Cancel safety
/// May be dropped: the next one goes on from there.
pub(super) async fn sweep(store: &PgStore, limit: u32) -> Result<Vec<Swept>, StoreError> {
    let limit = limit as usize;
    let begun = Instant::now();
    let mut swept: Vec<Swept> = Vec::new();
    let goes_on = || store.sweeps_on.lock().unwrap_or_else(PoisonError::into_inner);
    let mut place = goes_on().unwrap_or(Place::START);
    let mut is_whole = place == Place::START;
    while swept.len() < limit && begun.elapsed() < SWEEP_TIME_MAX {
        let most = limit - swept.len();
        let part = store.single(move |link| Box::pin(sweep_some(link, most, place))).await;
        let (some, next) = match part {
            Ok(part) => part,
            Err(error) if swept.is_empty() => return Err(error),
            // What was done is told first.
            Err(_) => break,
        };
        swept.extend(some);
        *goes_on() = next.or((!is_whole).then_some(Place::START));
        match next {
            Some(next) => place = next,
            None if is_whole => break,
            // Those before the place where it began may be due by now.
            None => (place, is_whole) = (Place::START, true),
        }
    }
    Ok(swept)
}

/// One statement of a sweep. With the place behind which there may be more.
async fn sweep_some(
    link: &mut Link,
    most: usize,
    after: Place,
) -> Result<(Vec<Swept>, Option<Place>), StoreError> {
    let most = i32::try_from(most).unwrap_or(i32::MAX);
    let bind = |link: &Link| {
        let call = call(&link.statements().sweep).bind(link.now()).bind(most);
        call.bind(after.check_at).bind(after.lease_id)
    };
    let mut swept = Vec::new();
    for row in &fetch(link, bind).await? {
        if let Some(check_at) = row.try_get(5).map_err(|_| unreadable())? {
            let lease_id = row.try_get(6).map_err(|_| unreadable())?;
            return Ok((swept, Some(Place { check_at, lease_id })));
        }
        swept.push(read_swept(row).ok_or_else(unreadable)?);
    }
    Ok((swept, None))
}

/// What is due to be asked about. One that cannot be read is left out: it must not stand in the way of
/// the others.
pub(super) async fn due_unknown(
    link: &mut Link,
    limit: u32,
    except: Vec<Arc<str>>,
) -> Result<Vec<Record>, StoreError> {
    let limit = limit as usize;
    let mut due = Vec::new();
    let mut seen: i64 = 0;
    loop {
        let page = limit - due.len();
        let bind = |link: &Link| {
            call(&link.statements().due_unknown)
                .bind(link.now())
                .bind(page as i64)
                .bind(seen)
                .bind(except.iter().map(|route| route.to_string()).collect::<Vec<_>>())
        };
        let rows = fetch(link, bind).await?;
        for row in &rows {
            match read_due(row) {
                Ok(record) => due.push(record),
                Err(error) => warn!(%error, "an unknown outcome that is due cannot be read"),
            }
        }
        if rows.len() < page || due.len() >= limit {
            return Ok(due);
        }
        seen += rows.len() as i64;
    }
}

fn read_due(row: &PgRow) -> Result<Record, BadRow> {
    let found = FoundRow::by_name(row);
    let scope = Scope::new(found.text("scope")?).map_err(|_| BadRow("scope"))?;
    let key = Key::new(found.text("key")?).map_err(|_| BadRow("key"))?;
    found.record(&RecordId { scope, key })
}

fn read_swept(row: &PgRow) -> Option<Swept> {
    let scope = Scope::new(row.try_get::<&str, _>(0).ok()?).ok()?;
    let key = Key::new(row.try_get::<&str, _>(1).ok()?).ok()?;
    let attempt: Uuid = row.try_get(3).ok()?;
    Some(Swept {
        id: RecordId { scope, key },
        state: State::from_name(row.try_get(2).ok()?)?,
        attempt: AttemptId::from_bytes(attempt.into_bytes()),
        route: row.try_get::<Option<&str>, _>(4).ok()?.unwrap_or_default().into(),
    })
}

pub(super) fn unreadable() -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, super::error::STORE, "an answer cannot be read")
}

/// So many statements at most for one call, once it has something to tell of. Each looks at no more rows
/// than the call may move, since what was filed too early is looked at and left: no lock is held for
/// longer than that takes.
const STATEMENTS_MAX: u32 = 20;

pub(super) async fn reap(link: &mut Link, limit: u32) -> Result<Reaped, StoreError> {
    let mut reaped = Reaped::default();
    for statement in 1.. {
        let done = reaped.expired + reaped.purged;
        let most = i32::try_from(limit - done).unwrap_or(i32::MAX);
        let bind = |link: &Link| call(&link.statements().reap).bind(link.now()).bind(most);
        let rows = fetch(link, bind).await?;
        let row = rows.first().ok_or_else(unreadable)?;
        let count = |column: usize| -> Result<u32, StoreError> {
            let count: i32 = row.try_get(column).map_err(|_| unreadable())?;
            u32::try_from(count).map_err(|_| unreadable())
        };
        reaped.expired += count(0)?;
        reaped.purged += count(1)?;
        let done = reaped.expired + reaped.purged;
        let more: bool = row.try_get(2).map_err(|_| unreadable())?;
        if !more || done >= limit || (statement >= STATEMENTS_MAX && done > 0) {
            break;
        }
    }
    Ok(reaped)
}

pub(super) async fn purge_audit(
    link: &mut Link,
    older_than: Duration,
    limit: u32,
) -> Result<u32, StoreError> {
    let age = i64::try_from(older_than.as_micros()).unwrap_or(i64::MAX);
    let bind = |link: &Link| {
        call(&link.statements().purge_audit).bind(link.now()).bind(age).bind(i64::from(limit))
    };
    let rows = fetch(link, bind).await?;
    let purged: i64 = rows.first().and_then(|row| row.try_get(0).ok()).ok_or_else(unreadable)?;
    Ok(u32::try_from(purged).unwrap_or(u32::MAX))
}

/// A write to no row: to answer reads only is not to be well.
pub(super) async fn ping(link: &mut Link) -> Result<(), StoreError> {
    fetch(link, |link| call(&link.statements().ping)).await.map(drop)
}

pub(super) async fn check_identity(
    link: &mut Link,
    identity: Identity,
) -> Result<IdentityCheck, StoreError> {
    let bind = |link: &Link| call(&link.statements().check_identity).bind(identity.as_str());
    let rows = fetch(link, bind).await?;
    let same: bool = rows.first().and_then(|row| row.try_get(0).ok()).ok_or_else(unreadable)?;
    Ok(if same { IdentityCheck::Same } else { IdentityCheck::Different })
}

pub(super) async fn accept_identity(link: &mut Link, identity: Identity) -> Result<(), StoreError> {
    let bind = |link: &Link| call(&link.statements().accept_identity).bind(identity.as_str());
    fetch(link, bind).await.map(drop)
}
