//! The same steps in the user's transaction, sealed where the store is.

use super::{Transactional, sealed::NotWritten};
use crate::{
    outbox::{Message, Staged},
    record::Lease,
    reply::Reply,
    store::{Advance, Advanced, Ask, Database, Reservation, Written},
};

pub(crate) async fn reserve<C: Transactional>(
    tx: &mut C,
    database: &Database,
    ask: &Ask,
) -> Result<Reservation, NotWritten> {
    #[cfg(feature = "encryption")]
    if let Database::Sealed(sealed) = database {
        let ask = sealed.seals.seal_ask(ask.clone()).await?;
        let reservation = tx.reserve_in(&sealed.inner, &ask).await?;
        return Ok(sealed.seals.open_reservation(&ask.id, reservation).await?);
    }
    tx.reserve_in(database, ask).await
}

pub(crate) async fn complete<C: Transactional>(
    tx: &mut C,
    database: &Database,
    lease: &Lease,
    reply: Reply,
) -> Result<Written, NotWritten> {
    #[cfg(feature = "encryption")]
    if let Database::Sealed(sealed) = database {
        let reply = sealed.seals.seal_reply(lease.into(), &reply).await?;
        let written = tx.complete(&sealed.inner, lease, reply).await?;
        return Ok(sealed.seals.open_written(lease, written).await?);
    }
    tx.complete(database, lease, reply).await
}

pub(crate) async fn advance<C: Transactional>(
    tx: &mut C,
    database: &Database,
    lease: &Lease,
    advance: Advance,
) -> Result<Advanced, NotWritten> {
    #[cfg(feature = "encryption")]
    if let Database::Sealed(sealed) = database {
        let advance = sealed.seals.seal_advance(lease, advance).await?;
        let advanced = tx.advance(&sealed.inner, lease, advance).await?;
        return Ok(sealed.seals.open_advanced(advanced).await?);
    }
    tx.advance(database, lease, advance).await
}

/// Messages are not sealed: whoever delivers them may be another process.
pub(crate) async fn stage<C: Transactional>(
    tx: &mut C,
    database: &Database,
    lease: &Lease,
    message: &Message,
) -> Result<Staged, NotWritten> {
    #[cfg(feature = "encryption")]
    if let Database::Sealed(sealed) = database {
        return tx.stage(&sealed.inner, lease, message).await;
    }
    tx.stage(database, lease, message).await
}
