//! The steps of phased operations.

use bytes::Bytes;
use sqlx::{Row as _, postgres::PgRow};
use tracing::warn;

use super::{
    link::{Call, Caller, Link, call},
    look,
    row::{FoundRow, damaged, uuid},
    workers::{fetch, unreadable},
};
use crate::{
    key::Key,
    machine::{ANOTHER_EFFECT_IS_OPEN, STEP_HAS_A_RESULT},
    record::{Lease, RecordId, SavedStep},
    scope::Scope,
    store::{Advance, Advanced, Resumable, StoreError, Which, request::decode_request},
};

/// One step, guarded by attempt and fence.
pub(super) async fn advance(
    link: &mut Link,
    lease: Lease,
    advance: Advance,
) -> Result<Advanced, StoreError> {
    if let Advance::Withdraw { name } = &advance {
        link.witnesses().withdraw(&lease, name).await;
    }
    let rows =
        fetch(link, |link| bind_step(call(&link.statements().step), &lease, &advance)).await?;
    match read_verdict(&rows)? {
        Verdict::Is(advanced) => {
            if matches!(advanced, Advanced::Applied | Advanced::AlreadyMine) {
                link.acknowledged_step(&lease, &advance);
            }
            Ok(advanced)
        }
        Verdict::Superseded => {
            let (record, _) = look::load_one(link, &lease.id).await?;
            Ok(Advanced::Superseded(record))
        }
    }
}

/// What the function `step` says.
pub(super) enum Verdict {
    Is(Advanced),
    Superseded,
}

pub(super) fn bind_step(call: Call<'static>, lease: &Lease, advance: &Advance) -> Call<'static> {
    let (kind, idempotent, result) = match advance {
        Advance::Save { result, .. } => ("save", None, Some(&result[..])),
        Advance::Intend { idempotent, .. } => ("intend", Some(*idempotent), None),
        Advance::Withdraw { .. } => ("withdraw", None, None),
    };
    call.bind(lease.id.scope.as_str().to_owned())
        .bind(lease.id.key.as_str().to_owned())
        .bind(uuid(lease.attempt))
        .bind(lease.fence.number())
        .bind(kind)
        .bind(advance.name().to_owned())
        .bind(idempotent)
        .bind(result.map(<[u8]>::to_vec))
}

pub(super) fn read_verdict(rows: &[PgRow]) -> Result<Verdict, StoreError> {
    let verdict: Option<&str> = rows.first().and_then(|row| row.try_get(0).ok());
    Ok(match verdict {
        Some("applied") => Verdict::Is(Advanced::Applied),
        Some("mine") => Verdict::Is(Advanced::AlreadyMine),
        Some("superseded") => Verdict::Superseded,
        Some(code) if code == ANOTHER_EFFECT_IS_OPEN => {
            Verdict::Is(Advanced::Refused(ANOTHER_EFFECT_IS_OPEN))
        }
        Some(code) if code == STEP_HAS_A_RESULT => {
            Verdict::Is(Advanced::Refused(STEP_HAS_A_RESULT))
        }
        _ => return Err(unreadable()),
    })
}

/// The steps that were saved in this generation, oldest first.
pub(super) async fn saved(
    link: &mut Link,
    id: RecordId,
    generation: u32,
) -> Result<Vec<SavedStep>, StoreError> {
    let generation = i32::try_from(generation).unwrap_or(i32::MAX);
    let bind = |link: &Link| {
        call(&link.statements().steps)
            .bind(id.scope.as_str().to_owned())
            .bind(id.key.as_str().to_owned())
            .bind(generation)
    };
    let read = |row: &PgRow| {
        let result: &[u8] = row.try_get(1).ok()?;
        Some(SavedStep {
            name: row.try_get::<&str, _>(0).ok()?.into(),
            result: Bytes::copy_from_slice(result),
        })
    };
    fetch(link, bind).await?.iter().map(|row| read(row).ok_or_else(unreadable)).collect()
}

/// Operations that wait for a worker. One that cannot be read is left out, and its place taken by
/// another: it must not stand in the way of the others.
pub(super) async fn resumable(
    link: &mut Link,
    which: Which,
    limit: u32,
) -> Result<Vec<Resumable>, StoreError> {
    let read = |row: &PgRow| -> Result<Resumable, StoreError> {
        let scope: &str = row.try_get("scope").map_err(|_| unreadable())?;
        let key: &str = row.try_get("key").map_err(|_| unreadable())?;
        let id = RecordId {
            scope: Scope::new(scope).map_err(|_| unreadable())?,
            key: Key::new(key).map_err(|_| unreadable())?,
        };
        let request: Option<&[u8]> = row.try_get("request").map_err(|_| unreadable())?;
        // Without it nobody can go on, but what has waited for too long is still given up.
        let request = request.and_then(decode_request);
        let record = FoundRow::by_name(row).record(&id).map_err(damaged)?;
        Ok(Resumable { record: Box::new(record), request })
    };
    let readable = |row: &PgRow| {
        let read = read(row);
        if let Err(error) = &read {
            warn!(%error, "an operation that waits for a worker cannot be read");
        }
        read.ok()
    };
    let limit = limit as usize;
    let mut resumable: Vec<Resumable> = Vec::new();
    let mut seen = 0;
    loop {
        let page = limit - resumable.len();
        let bind = |link: &Link| {
            call(&link.statements().resumable)
                .bind(link.now())
                .bind(which == Which::Accepted)
                .bind(page as i64)
                .bind(seen as i64)
        };
        let rows = fetch(link, bind).await?;
        seen += rows.len();
        for one in rows.iter().filter_map(readable) {
            // What moved between two pages may come twice.
            if !resumable.iter().any(|other| other.record.id == one.record.id) {
                resumable.push(one);
            }
        }
        if rows.len() < page || resumable.len() >= limit {
            return Ok(resumable);
        }
    }
}
