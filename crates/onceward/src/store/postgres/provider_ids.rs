//! What providers call operations.

use sqlx::{Row as _, postgres::PgRow, types::Uuid};

use super::{
    link::{Caller as _, Link, call},
    workers::{fetch, unreadable},
};
use crate::{
    clock::Timestamp,
    key::Key,
    record::{AttemptId, Fence, Lease, ProviderId, ProviderNote, RecordId},
    scope::Scope,
    store::{Noted, StoreError},
};

/// May be made twice: who has noted an id is told that it is theirs.
pub(super) async fn note(
    link: &mut Link,
    lease: Lease,
    id: ProviderId,
) -> Result<Noted, StoreError> {
    let bind = |link: &Link| {
        call(&link.statements().note_provider_id)
            .bind(link.now())
            .bind(lease.id.scope.as_str().to_owned())
            .bind(lease.id.key.as_str().to_owned())
            .bind(i32::try_from(lease.generation).unwrap_or(i32::MAX))
            .bind(Uuid::from_bytes(*lease.attempt.as_bytes()))
            .bind(lease.fence.number())
            .bind(id.provider().to_owned())
            .bind(id.id().to_owned())
    };
    let rows = fetch(link, bind).await?;
    let verdict = rows.first().and_then(|row| row.try_get::<&str, _>(0).ok());
    match verdict {
        Some("applied") => Ok(Noted::Applied),
        Some("mine") => Ok(Noted::AlreadyMine),
        Some("taken") => Ok(Noted::Taken),
        Some("absent") => Ok(Noted::Absent),
        _ => Err(unreadable()),
    }
}

pub(super) async fn by_id(
    link: &mut Link,
    id: ProviderId,
) -> Result<Option<ProviderNote>, StoreError> {
    let bind = |link: &Link| {
        call(&link.statements().by_provider_id)
            .bind(id.provider().to_owned())
            .bind(id.id().to_owned())
    };
    let rows = fetch(link, bind).await?;
    rows.first().map(|row| read(row).ok_or_else(unreadable)).transpose()
}

pub(super) async fn of(
    link: &mut Link,
    of: Vec<RecordId>,
) -> Result<Vec<ProviderNote>, StoreError> {
    let bind = |link: &Link| {
        call(&link.statements().provider_ids)
            .bind(of.iter().map(|id| id.scope.as_str().to_owned()).collect::<Vec<_>>())
            .bind(of.iter().map(|id| id.key.as_str().to_owned()).collect::<Vec<_>>())
    };
    fetch(link, bind).await?.iter().map(|row| read(row).ok_or_else(unreadable)).collect()
}

fn read(row: &PgRow) -> Option<ProviderNote> {
    let text = |column: usize| row.try_get::<&str, _>(column).ok();
    let attempt: Uuid = row.try_get(5).ok()?;
    Some(ProviderNote {
        id: ProviderId::new(text(0)?, text(1)?).ok()?,
        record: RecordId { scope: Scope::new(text(2)?).ok()?, key: Key::new(text(3)?).ok()? },
        generation: row.try_get::<i32, _>(4).ok()?.try_into().ok()?,
        attempt: AttemptId::from_bytes(*attempt.as_bytes()),
        fence: Fence::from_stored(row.try_get(6).ok()?),
        at: Timestamp::from_micros(row.try_get(7).ok()?),
    })
}
