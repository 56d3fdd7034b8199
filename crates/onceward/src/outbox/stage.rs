//! Staging in the transaction of a handler.

use super::{Message, Staged};
use crate::{
    operation::Operation,
    phase::{Failure, Misuse},
    transaction::{TransactionError, Transactional, sealing},
};

impl Operation {
    /// Stages a message in the handler's own transaction, or in that of a phase: it is there if and
    /// only if that commits, and is then delivered under [`derived_key`](Self::derived_key) of its
    /// name. The same name twice in one generation is one message, whichever attempt staged it, and
    /// the first one stays. To be called before [`complete_in`](Self::complete_in).
    ///
    /// # Errors
    /// When this attempt has lost its record, so that `?` rolls the transaction back; or when the
    /// message cannot be staged. The transaction must then not be committed.
    ///
    /// # Cancel safety
    /// May be dropped; the transaction must then be rolled back.
    pub async fn stage<C: Transactional>(
        &self,
        tx: &mut C,
        message: Message,
    ) -> Result<(), TransactionError> {
        let database = self.database()?;
        if !self.may_act() {
            return Err(TransactionError::LeaseOver);
        }
        if let Some(ask) = &self.context().ask {
            // As when it completes: a transaction before this one may have been rolled back.
            self.reserve_once(tx, &database, ask).await?;
        }
        let lease = self.lease().ok_or(TransactionError::LeaseOver)?;
        let staged = sealing::stage(tx, &database, &lease, &message).await;
        match staged.map_err(Failure::from)? {
            Staged::Applied | Staged::AlreadyMine => Ok(()),
            Staged::Refused(why) => Err(Misuse::NotStaged(why).into()),
            Staged::Superseded if self.account().completed => {
                Err(Misuse::NotStaged("the operation is completed already").into())
            }
            Staged::Superseded => Err(self.lost().into()),
        }
    }
}
