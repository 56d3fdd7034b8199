//! What a provider calls an operation, told by its handler.

use http::HeaderMap;
use tracing::{error, warn};

use super::Operation;
use crate::{
    observe,
    record::ProviderId,
    reply::ONCEWARD_PROVIDER_ID,
    store::{Noted, StoreError},
};

/// Why a provider id is not noted. The operation goes on all the same.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoteError {
    /// Another operation has it. It stays there; an incident was counted and audited.
    #[error("another operation has this provider id")]
    Taken,
    /// This use of the key is over and purged.
    #[error("the record of this operation is gone")]
    Absent,
    /// A `single` route has no record before it has reserved.
    #[error("the operation has not been reserved yet")]
    NotReserved,
    /// The store failed.
    #[error("the provider id was not acknowledged")]
    Store(#[source] StoreError),
}

impl Operation {
    /// Notes what a provider calls this operation, durably and at once, before its outcome is known: if
    /// this process dies now, whoever has the provider's id still finds the operation by
    /// [`Store::by_provider_id`](crate::Store::by_provider_id). Repeated, it changes nothing; an
    /// operation may have many.
    ///
    /// It is not part of a transaction of the handler's, and on SQLite would wait for one.
    ///
    /// # Errors
    /// When another operation has this id, or the store does not take it within its deadline.
    ///
    /// # Cancel safety
    /// May be dropped. It is then noted, or not.
    pub async fn note_provider_id(&self, id: ProviderId) -> Result<(), NoteError> {
        let lease = self.lease().ok_or(NoteError::NotReserved)?;
        let store = &self.context().store;
        let note = || store.note_provider_id(&lease, id.clone());
        match self.repeat("note_provider_id", note).await.map_err(NoteError::Store)? {
            Noted::Applied | Noted::AlreadyMine => Ok(()),
            Noted::Absent => Err(NoteError::Absent),
            Noted::Taken => {
                let route = &self.context().policy.name;
                observe::incident(route);
                error!(route = &**route, "two operations have one provider id; the first keeps it");
                Err(NoteError::Taken)
            }
        }
    }
}

impl ProviderId {
    /// Takes what a handler said in `Onceward-Provider-Id` out of the headers of its answer, one id in
    /// each line. What is none is left out with a warning.
    pub fn take_from(headers: &mut HeaderMap) -> Vec<ProviderId> {
        let http::header::Entry::Occupied(told) = headers.entry(&ONCEWARD_PROVIDER_ID) else {
            return Vec::new();
        };
        let (_, values) = told.remove_entry_mult();
        let ids = values.filter_map(|value| match value.to_str().ok()?.parse() {
            Ok(id) => Some(id),
            Err(error) => {
                warn!(%error, "Onceward-Provider-Id cannot be read");
                None
            }
        });
        ids.collect()
    }
}
