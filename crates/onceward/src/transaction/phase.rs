//! A step of a phased operation, in a transaction of its own.

use serde::{Serialize, de::DeserializeOwned};
use sqlx::Pool;

use super::{
    TransactionalDatabase,
    begun::{Begun, Place},
    not_committed, sealing,
};
use crate::{
    operation::{Operation, Step},
    phase::{Failure, StepError, edge, written},
    store::{Advance, Write, Written},
};

impl Operation {
    /// Does one step of a phased operation in a transaction of its own, which also saves its result.
    /// If an earlier attempt has the result, it is returned and `work` is not called. No call to
    /// somebody else belongs in it: that is what [`Operation::effect`] is for.
    ///
    /// # Errors
    /// With the handler's own error, or because the step could not be begun or committed.
    ///
    /// # Cancel safety
    /// May be dropped: rolled back, unless the commit was on its way already.
    pub async fn phase<D, T, E>(
        &self,
        pool: &Pool<D>,
        name: &str,
        work: impl AsyncFnOnce(&mut D::Connection) -> Result<T, E>,
    ) -> Result<T, StepError<E>>
    where
        D: TransactionalDatabase,
        T: Serialize + DeserializeOwned,
    {
        let _at_work = self.enter(Step::Phase, name)?;
        if let Some(result) = self.recalled(name) {
            return result;
        }
        let lease = self.held()?;
        let database = self.database()?;
        let mut place = Place::new();
        let begun = Begun::begin(pool, &mut place).await;
        let mut tx = begun.map_err(|error| not_committed("BEGIN failed", error))?;
        let value = match work(&mut tx).await {
            Ok(value) => value,
            Err(error) => {
                tx.roll_back().await;
                return Err(StepError::Failed(error));
            }
        };
        let saved = async {
            let result = written(&value)?;
            let save = Advance::Save { name: name.into(), result };
            let advanced = sealing::advance(&mut *tx, &database, &lease, save).await;
            let advanced = advanced.map_err(Failure::from)?;
            self.understand(advanced)?;
            edge!(Written, name);
            Ok(())
        };
        if let Err(error) = saved.await {
            tx.roll_back().await;
            return Err(error);
        }
        if let Err(error) = tx.commit().await {
            self.was_saved(name, error).await?;
        }
        self.finish_step(name);
        edge!(Saved, name);
        Ok(value)
    }

    /// The answer to COMMIT was lost. Renewing waits for the record's lock, so that after it there is
    /// no commit on its way any more, and what is read is the truth.
    async fn was_saved(&self, name: &str, error: sqlx::Error) -> Result<(), Failure> {
        let context = self.context();
        let lease = self.lease().ok_or(Failure::LeaseOver)?;
        let lease_time = context.policy.lease;
        let renew = || context.store.write(&lease, Write::Renew(lease_time));
        match self.repeat("renew", renew).await? {
            Written::Applied | Written::AppliedAfterRelease | Written::AlreadyMine(_) => {}
            Written::Superseded(_) => return Err(self.lost()),
        }
        let steps = || context.store.steps(&lease.id, lease.generation);
        let steps = self.repeat("steps", steps).await?;
        match steps.iter().any(|step| *step.name == *name) {
            true => Ok(()),
            false => Err(not_committed("COMMIT failed", error)),
        }
    }
}
