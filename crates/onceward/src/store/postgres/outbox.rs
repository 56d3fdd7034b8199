//! The outbox: staged in the user's transaction or in one of our own.

use sqlx::{Row as _, postgres::PgRow};

use super::{
    link::{Call, Caller, call},
    row::uuid,
    workers::unreadable,
};
use crate::{
    outbox::{Message, Owner, Staged},
    record::Lease,
    store::StoreError,
};

pub(super) fn bind_stage(link: &impl Caller, lease: &Lease, message: &Message) -> Call<'static> {
    let owner = Owner::from(lease);
    call(&link.statements().stage)
        .bind(link.now())
        .bind(owner.id.scope.as_str())
        .bind(owner.id.key.as_str())
        .bind(uuid(owner.attempt))
        .bind(owner.fence.number())
        .bind(owner.derived_key(&message.name))
        .bind(&*message.name)
        .bind(&*message.sink)
        .bind(message.aggregate.as_deref())
        .bind(&*message.content_type)
        .bind(&message.payload[..])
}

pub(super) fn read_staged(rows: &[PgRow]) -> Result<Staged, StoreError> {
    match rows.first().and_then(|row| row.try_get(0).ok()) {
        Some("applied") => Ok(Staged::Applied),
        Some("mine") => Ok(Staged::AlreadyMine),
        Some("superseded") => Ok(Staged::Superseded),
        Some("former_use") => {
            Ok(Staged::Refused("a message of a former use of the key is not delivered yet"))
        }
        _ => Err(unreadable()),
    }
}
