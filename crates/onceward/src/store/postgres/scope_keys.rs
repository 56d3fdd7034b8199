//! The data keys of scopes.

use bytes::Bytes;
use sqlx::{Row as _, postgres::PgRow};

use super::{
    link::{Caller as _, Link, call},
    workers::{fetch, unreadable},
};
use crate::{
    scope::Scope,
    store::{ScopeKey, StoreError},
};

pub(super) async fn keys_of(
    link: &mut Link,
    scope: Scope,
    proposed: Option<ScopeKey>,
) -> Result<Vec<ScopeKey>, StoreError> {
    let bind = |link: &Link| {
        let proposed = proposed.as_ref();
        call(&link.statements().scope_keys)
            .bind(scope.as_str().to_owned())
            .bind(proposed.map(|key| key.id.to_vec()))
            .bind(proposed.map(|key| key.wrapped_by.to_string()))
            .bind(proposed.and_then(|key| key.wrapped.as_ref()).map(|wrapped| wrapped.to_vec()))
    };
    fetch(link, bind).await?.iter().map(|row| read(row).ok_or_else(unreadable)).collect()
}

fn read(row: &PgRow) -> Option<ScopeKey> {
    let wrapped: Option<&[u8]> = row.try_get(2).ok()?;
    Some(ScopeKey {
        id: row.try_get::<&[u8], _>(0).ok()?.try_into().ok()?,
        wrapped_by: row.try_get::<&str, _>(1).ok()?.into(),
        wrapped: wrapped.map(Bytes::copy_from_slice),
    })
}

pub(super) async fn drop_keys_of(
    link: &mut Link,
    scope: Scope,
    reason: Box<str>,
) -> Result<u32, StoreError> {
    let bind = |link: &Link| {
        call(&link.statements().drop_scope_keys)
            .bind(scope.as_str().to_owned())
            .bind(reason.to_string())
            .bind(link.now())
    };
    let rows = fetch(link, bind).await?;
    let dropped: i64 = rows.first().and_then(|row| row.try_get(0).ok()).ok_or_else(unreadable)?;
    u32::try_from(dropped).map_err(|_| unreadable())
}
