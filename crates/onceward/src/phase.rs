//! Phases and effects: an operation in steps, each of which is done once, whoever does it.
//!
//! ```text
//! phase    begin | the handler's statements, the result of the step | commit
//! effect   commit the intent | call somebody else, outside any transaction | commit the result
//! ```
//!
//! An attempt that goes on after another one was cut off finds the results of the steps that were
//! committed and does not do them again. Between an intent and its result nobody can know whether the
//! call was made: it is made again only if its downstream was declared idempotent, under the same
//! key; else the outcome is unknown.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::{Instant, sleep, timeout_at};
use tracing::warn;

use crate::{
    observe,
    operation::{AtWork, Operation, Step},
    record::{Effects, Lease, OpenEffect},
    store::{Advance, Advanced, StoreError, StoreErrorKind, StoreFuture},
};

/// An edge of a step, at which tests may cut an attempt off or let the step fail.
macro_rules! edge {
    ($edge:ident, $name:expr) => {
        #[cfg(feature = "testing")]
        crate::testing::steps::reach(crate::testing::steps::Edge::$edge, $name).await?;
    };
}
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) use edge;

/// A call to somebody else, as one step of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effect<'a> {
    name: &'a str,
    idempotent: bool,
}

impl<'a> Effect<'a> {
    /// A call whose downstream acts once for each key it is given, however often it is called. It
    /// is called again when nobody knows what came of the first call.
    pub fn idempotent(name: &'a str) -> Self {
        Effect { name, idempotent: true }
    }

    /// A call whose downstream acts each time it is called. It is never called again unless it is
    /// known not to have acted.
    pub fn not_idempotent(name: &'a str) -> Self {
        Effect { name, idempotent: false }
    }
}

/// How a call to somebody else failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EffectError<E> {
    /// It is known not to have acted: the connection was refused, or it was declined.
    NotExecuted(E),
    /// It may have acted: a timeout, a reset, an answer that cannot be read. What `?` makes of any
    /// other error.
    Ambiguous(E),
}

impl<E> From<E> for EffectError<E> {
    fn from(error: E) -> Self {
        EffectError::Ambiguous(error)
    }
}

/// What a handler must not do with its operation. A bug of the handler, not of its surroundings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Misuse {
    /// Phases and effects need a policy that says so.
    #[error("phases and effects are for routes that are declared `phased`")]
    NotPhased,
    /// Completing in a transaction needs a policy that says so.
    #[error("completing in a transaction is for routes that are declared `local` or `phased`")]
    NotDeclared,
    /// Only `single` routes reserve in a transaction.
    #[error("reserving in a transaction is for routes that are `single`")]
    NotSingle,
    /// Not every database could keep it.
    #[error("the name of a step must have 1 to 255 bytes, none of them 0")]
    BadName,
    /// A second step would get the result of the first.
    #[error("two steps of one operation have the same name")]
    NameUsedTwice,
    /// No call to somebody else inside a transaction, and no transaction inside another.
    #[error("a phase of this operation is open")]
    PhaseIsOpen,
    /// An effect that may have acted has to get its result first.
    #[error("an effect of this operation is open")]
    EffectIsOpen,
    /// The connection is not in a transaction, so that the reply would not be part of one.
    #[error("the connection is not in a transaction")]
    NotInTransaction,
    /// The connection's commits would be acknowledged before they are on the disk.
    #[error(
        "the connection does not wait for the disk when it commits: on SQLite open it with \
         `PRAGMA synchronous = FULL` and leave `journal_mode` at WAL, on PostgreSQL leave \
         `synchronous_commit` on"
    )]
    NotDurable,
    /// The records are elsewhere, so that they cannot be part of the transaction.
    #[error("the transaction is on another database than the records")]
    OtherDatabase,
    /// The store keeps its records where no transaction of a user's can be.
    #[error("the store of this service has no transactions")]
    NoTransactions,
    /// No sink could take the message, or it would be part of something else.
    #[error("the message cannot be staged: {0}")]
    NotStaged(&'static str),
    /// The store found the steps in the wrong order.
    #[error("the step does not follow the one before: {0}")]
    Refused(&'static str),
}

/// Why a step has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError<E = Infallible> {
    /// The handler's own error. The step is known not to have acted.
    #[error("the step failed")]
    Failed(#[source] E),
    /// The handler's own error, about a call that may have acted. The operation cannot end before
    /// that is known: whatever the handler answers now, the client is told to come back.
    #[error("the effect may have acted, and its result is not known")]
    Ambiguous(#[source] E),
    /// The lease was over by this process's own clock: nothing was done.
    #[error("the lease of this attempt is over")]
    LeaseOver,
    /// Another attempt has the record, or it was decided about: what was done was rolled back. An
    /// effect that was called may have acted.
    #[error("this attempt has lost its record")]
    LeaseLost,
    /// A bug of the handler: nothing was done.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// The result cannot be saved, or one that was saved by another version cannot be read.
    #[error("the result of the step cannot be written or read as JSON")]
    Result(#[source] serde_json::Error),
    /// The database or the store failed. The next attempt finds out what is true.
    #[error("the step was not acknowledged")]
    Store(#[source] StoreError),
}

/// A step failed before or after the handler's own part in it.
pub(crate) enum Failure {
    LeaseOver,
    LeaseLost,
    Misuse(Misuse),
    Store(StoreError),
}

impl<E> From<Failure> for StepError<E> {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::LeaseOver => StepError::LeaseOver,
            Failure::LeaseLost => StepError::LeaseLost,
            Failure::Misuse(misuse) => StepError::Misuse(misuse),
            Failure::Store(error) => StepError::Store(error),
        }
    }
}

impl From<Misuse> for Failure {
    fn from(misuse: Misuse) -> Self {
        Failure::Misuse(misuse)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Failure::Store(error)
    }
}

impl Operation {
    /// Calls somebody else, as one step of a phased operation: commits the intent, makes the call
    /// outside any transaction with a key that is the same for every attempt, commits its result. If
    /// an earlier attempt has the result, it is returned without a call.
    ///
    /// The call may fail with [`EffectError::NotExecuted`] if it is known not to have acted, which says
    /// nothing about an earlier one of which nobody knows; any other failure leaves the effect open, and the operation cannot be completed before it has a
    /// result. An idempotent effect may be tried again under the same name, by this attempt or by the
    /// next; one that is not makes the outcome of the operation unknown.
    ///
    /// # Errors
    /// With the handler's own error, or because the step could not be begun or saved.
    ///
    /// # Cancel safety
    /// May be dropped. If the call was begun, the effect stays open.
    pub async fn effect<T, E>(
        &self,
        effect: Effect<'_>,
        call: impl AsyncFnOnce(String) -> Result<T, EffectError<E>>,
    ) -> Result<T, StepError<E>>
    where
        T: Serialize + DeserializeOwned,
    {
        let Effect { name, idempotent } = effect;
        let _at_work = self.enter(Step::Effect, name)?;
        if let Some(result) = self.recalled(name) {
            return result;
        }
        let lease = self.held()?;
        let was_open = self.account().open_effect.is_some();
        let intend = Advance::Intend { name: name.into(), idempotent };
        let intended = self.advance(&lease, intend).await;
        if matches!(intended, Ok(()) | Err(Failure::Store(_))) {
            // As far as we know: the answer may have been lost.
            self.account().open_effect = Some(OpenEffect { name: name.into(), idempotent });
        }
        let may_call = intended.and_then(|()| self.held());
        if let Err(why) = may_call {
            // This attempt has not called it, and the record should say so; if no other has.
            if !was_open && self.account().open_effect.is_some() {
                self.withdraw(&lease, name).await?;
            }
            return Err(why.into());
        }
        self.account().has_progress = true;
        edge!(Intended, name);
        let called = call(self.derived_key(name)).await;
        edge!(Called, name);
        match called {
            Ok(value) => {
                let result = written(&value)?;
                self.advance(&lease, Advance::Save { name: name.into(), result }).await?;
                self.finish_step(name);
                edge!(Saved, name);
                Ok(value)
            }
            // This call did not act, but one before it may have, and its result is still to come.
            Err(EffectError::NotExecuted(error)) if was_open => Err(StepError::Ambiguous(error)),
            Err(EffectError::NotExecuted(error)) => {
                self.withdraw(&lease, name).await?;
                Err(StepError::Failed(error))
            }
            Err(EffectError::Ambiguous(error)) => {
                warn!(effect = name, "an effect may have acted, and its result is not known");
                Err(StepError::Ambiguous(error))
            }
        }
    }

    /// The effect of this name is known not to have acted.
    async fn withdraw(&self, lease: &Lease, name: &str) -> Result<(), Failure> {
        self.advance(lease, Advance::Withdraw { name: name.into() }).await?;
        self.account().open_effect = None;
        Ok(())
    }

    pub(crate) fn enter(&self, step: Step, name: &str) -> Result<AtWork<'_>, Failure> {
        if self.context().policy.effects != Effects::Phased {
            return Err(Misuse::NotPhased.into());
        }
        if !(1..=255).contains(&name.len()) || name.contains('\0') {
            return Err(Misuse::BadName.into());
        }
        Ok(self.begin_step(step, name)?)
    }

    /// The result that an earlier attempt saved.
    pub(crate) fn recalled<T, E>(&self, name: &str) -> Option<Result<T, StepError<E>>>
    where
        T: DeserializeOwned,
    {
        let result = self.saved(name)?;
        let value = serde_json::from_slice(result).map_err(StepError::Result);
        if value.is_ok() {
            self.finish_step(name);
        }
        Some(value)
    }

    /// The lease, if this attempt may still act on it.
    pub(crate) fn held(&self) -> Result<Arc<Lease>, Failure> {
        let lease = self.lease().filter(|_| self.may_act());
        lease.ok_or_else(|| {
            self.account().cut_short = true;
            Failure::LeaseOver
        })
    }

    async fn advance(&self, lease: &Lease, advance: Advance) -> Result<(), Failure> {
        let store = &self.context().store;
        let advanced = self.repeat("advance", || store.advance(lease, advance.clone())).await?;
        self.understand(advanced)
    }

    pub(crate) fn understand(&self, advanced: Advanced) -> Result<(), Failure> {
        match advanced {
            Advanced::Applied | Advanced::AlreadyMine => Ok(()),
            Advanced::Refused(why) => Err(Misuse::Refused(why).into()),
            Advanced::Superseded(_) => Err(self.lost()),
        }
    }

    /// Somebody else decided about the record.
    pub(crate) fn lost(&self) -> Failure {
        warn!("a step came from an attempt that had lost its record");
        observe::fenced_write(&self.context().policy.name);
        self.lose_lease();
        self.account().cut_short = true;
        Failure::LeaseLost
    }

    /// Repeats the same store call until it is answered or the store's deadline passes.
    pub(crate) async fn repeat<'a, A>(
        &self,
        call: &'static str,
        mut ask: impl FnMut() -> StoreFuture<'a, A>,
    ) -> Result<A, StoreError> {
        let give_up = Instant::now() + self.context().store_deadline;
        let mut pause = PAUSE_FIRST;
        loop {
            let answer = timeout_at(give_up, ask()).await;
            let error = match answer.unwrap_or_else(|_| Err(timed_out())) {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            warn!(call, %error, "a store call failed");
            observe::count(observe::STORE_ERROR, &self.context().policy.name);
            if !error.may_be_repeated() || Instant::now() + pause >= give_up {
                return Err(error);
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_LONGEST);
        }
    }
}

const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_LONGEST: Duration = Duration::from_secs(1);

fn timed_out() -> StoreError {
    StoreError::new(StoreErrorKind::Ambiguous, "any", "no answer in time")
}

/// The result of a step, as it is saved.
pub(crate) fn written<T: Serialize, E>(value: &T) -> Result<Bytes, StepError<E>> {
    serde_json::to_vec(value).map(Bytes::from).map_err(StepError::Result)
}
