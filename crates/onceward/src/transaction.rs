//! In the user's own transaction: the reply, or the result of a phase, commits together with the
//! business rows, or neither does.
//!
//! The types are sqlx's: connections that are in a transaction, and pools to begin one on.

use std::convert::Infallible;

use sqlx::Pool;
use tracing::warn;

use crate::{
    operation::{Operation, Taken},
    phase::{Failure, Misuse, edge},
    record::State,
    reply::Reply,
    store::{Ask, Database, Reservation, StoreError, StoreErrorKind, Write, Written},
};

pub(crate) mod begun; // transactions that may be dropped
mod phase; // a step of a phased operation
pub(crate) mod sealing; // the same, sealed where the store is

/// A connection that may be in a transaction which records take part in.
pub trait Transactional: sealed::Connection {}

/// A database whose transactions records may take part in.
pub trait TransactionalDatabase: sqlx::Database<Connection: Transactional> + sealed::Begin {}

#[cfg(feature = "sqlite")]
impl Transactional for sqlx::SqliteConnection {}
#[cfg(feature = "sqlite")]
impl TransactionalDatabase for sqlx::Sqlite {}

#[cfg(feature = "postgres")]
impl Transactional for sqlx::PgConnection {}
#[cfg(feature = "postgres")]
impl TransactionalDatabase for sqlx::Postgres {}

#[cfg(feature = "mysql")]
impl Transactional for sqlx::MySqlConnection {}
#[cfg(feature = "mysql")]
impl TransactionalDatabase for sqlx::MySql {}

/// Nobody else can say how records are written into a transaction.
pub(crate) mod sealed {
    use std::future::Future;

    use sqlx::{Pool, Transaction, pool::PoolConnection};

    use crate::{
        outbox::{Message, Staged},
        phase::Misuse,
        record::Lease,
        reply::Reply,
        store::{Advance, Advanced, Ask, Database, Reservation, StoreError, Written},
    };

    /// Why a record could not be written into a transaction.
    #[derive(Debug)]
    pub enum NotWritten {
        Misuse(Misuse),
        Store(StoreError),
        /// Somebody else's transaction has the record, for longer than one waits.
        Locked,
    }

    /// Each is one step on one record, in the transaction that the connection is in.
    pub trait Connection: Send {
        fn reserve_in(
            &mut self,
            database: &Database,
            ask: &Ask,
        ) -> impl Future<Output = Result<Reservation, NotWritten>> + Send;

        fn complete(
            &mut self,
            database: &Database,
            lease: &Lease,
            reply: Reply,
        ) -> impl Future<Output = Result<Written, NotWritten>> + Send;

        fn advance(
            &mut self,
            database: &Database,
            lease: &Lease,
            advance: Advance,
        ) -> impl Future<Output = Result<Advanced, NotWritten>> + Send;

        fn stage(
            &mut self,
            database: &Database,
            lease: &Lease,
            message: &Message,
        ) -> impl Future<Output = Result<Staged, NotWritten>> + Send;
    }

    /// How a transaction begins.
    pub trait Begin: sqlx::Database {
        /// The connection stays in the given place, if the pool must not get it back from a
        /// transaction that was dropped.
        fn begin<'p>(
            pool: &Pool<Self>,
            place: &'p mut Option<PoolConnection<Self>>,
        ) -> impl Future<Output = Result<Transaction<'p, Self>, sqlx::Error>> + Send;

        /// Whether the error says that somebody else's transaction is in the way.
        fn is_locked(error: &sqlx::Error) -> bool;
    }
}

use begun::{Begun, Place};
use sealed::NotWritten;

impl From<StoreError> for NotWritten {
    fn from(error: StoreError) -> Self {
        NotWritten::Store(error)
    }
}

/// Why a transaction did not complete its operation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransactionError<E = Infallible> {
    /// The handler's own error: rolled back.
    #[error("the work of the transaction failed")]
    Work(#[source] E),
    /// The lease was over by this process's own clock: nothing was done.
    #[error("the lease of this attempt is over")]
    LeaseOver,
    /// Another attempt has the record, or it was decided about: to be rolled back.
    #[error("this attempt has lost its record")]
    LeaseLost,
    /// Of a `single` route: somebody else has the key, or had it first. To be rolled back; the client
    /// is answered by what was found, whatever the handler answers.
    #[error("another request has this key")]
    Taken,
    /// A bug of the handler: to be rolled back.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// The database failed, and the transaction was rolled back or has to be.
    #[error("the transaction was not committed")]
    Store(#[source] StoreError),
    /// The answer to COMMIT was lost, and nobody could be asked. The engine finds out what is true
    /// when the handler has ended.
    #[error("it is not known whether the transaction was committed")]
    NotAcknowledged(#[source] StoreError),
}

impl<E> From<Failure> for TransactionError<E> {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::LeaseOver => TransactionError::LeaseOver,
            Failure::LeaseLost => TransactionError::LeaseLost,
            Failure::Misuse(misuse) => TransactionError::Misuse(misuse),
            Failure::Store(error) => TransactionError::Store(error),
        }
    }
}

impl TransactionError {
    fn with_work<E>(self) -> TransactionError<E> {
        match self {
            TransactionError::Work(never) => match never {},
            TransactionError::LeaseOver => TransactionError::LeaseOver,
            TransactionError::LeaseLost => TransactionError::LeaseLost,
            TransactionError::Taken => TransactionError::Taken,
            TransactionError::Misuse(misuse) => TransactionError::Misuse(misuse),
            TransactionError::Store(error) => TransactionError::Store(error),
            TransactionError::NotAcknowledged(error) => TransactionError::NotAcknowledged(error),
        }
    }
}

impl From<NotWritten> for Failure {
    fn from(not_written: NotWritten) -> Self {
        match not_written {
            NotWritten::Misuse(misuse) => Failure::Misuse(misuse),
            NotWritten::Store(error) => Failure::Store(error),
            NotWritten::Locked => Failure::Store(StoreError::new(
                StoreErrorKind::Unavailable,
                "transaction",
                "another transaction holds the record for too long",
            )),
        }
    }
}

impl Operation {
    /// Writes the reply in the handler's own transaction: it is stored if and only if that commits.
    /// For routes declared `local` or `phased`.
    ///
    /// When the handler has ended, the engine asks the store what is true: if the transaction was
    /// committed, the client gets these bytes, whatever the handler answered.
    ///
    /// # Errors
    /// When this attempt has lost its record, so that `?` rolls the transaction back; or when the
    /// record cannot be written. The transaction must then not be committed.
    ///
    /// # Cancel safety
    /// May be dropped; the transaction must then be rolled back.
    pub async fn complete_in<C: Transactional>(
        &self,
        tx: &mut C,
        reply: Reply,
    ) -> Result<(), TransactionError> {
        let database = self.may_complete()?;
        let context = self.context();
        if let Some(ask) = &context.ask {
            // Also if it has reserved before: that transaction may have been rolled back.
            self.reserve_once(tx, &database, ask).await?;
        }
        let lease = self.lease().ok_or(TransactionError::LeaseOver)?;
        // From here on only the store knows.
        self.account().completed = true;
        let kept = self.as_kept(reply.clone());
        let written = sealing::complete(tx, &database, &lease, kept).await;
        match written.map_err(Failure::from)? {
            Written::Applied | Written::AppliedAfterRelease => Ok(()),
            Written::AlreadyMine(Some(stored)) if stored == self.as_kept(reply) => Ok(()),
            Written::AlreadyMine(_) => Err(Misuse::Refused("completed_twice").into()),
            Written::Superseded(_) => Err(self.lost().into()),
        }
    }

    /// Reserves the key of a `single` route in the handler's own transaction, which should be its
    /// first statement: duplicates then wait for it instead of doing the same work in vain.
    ///
    /// # Errors
    /// When somebody else has the key, so that `?` rolls the transaction back; or when the record
    /// cannot be written. The transaction must then not be committed.
    ///
    /// # Cancel safety
    /// May be dropped; the transaction must then be rolled back.
    pub async fn reserve_in<C: Transactional>(&self, tx: &mut C) -> Result<(), TransactionError> {
        let database = self.may_complete()?;
        let ask = self.context().ask.as_ref().ok_or(Misuse::NotSingle)?;
        if !self.may_act() {
            return Err(TransactionError::LeaseOver);
        }
        self.reserve_once(tx, &database, ask).await
    }

    /// Does the whole work in one transaction that commits together with the reply: begins it,
    /// reserves if the route is `single`, calls `work`, writes the reply, commits. For routes declared
    /// `local` or `phased`.
    ///
    /// # Errors
    /// With the handler's own error, or because the transaction could not be begun or committed.
    /// Rolled back in either case but one, [`TransactionError::NotAcknowledged`].
    ///
    /// # Cancel safety
    /// May be dropped: rolled back, unless the commit was on its way already.
    pub async fn transaction<D, E>(
        &self,
        pool: &Pool<D>,
        work: impl AsyncFnOnce(&mut D::Connection) -> Result<Reply, E>,
    ) -> Result<Reply, TransactionError<E>>
    where
        D: TransactionalDatabase,
    {
        self.may_complete()?;
        if !self.may_act() {
            return Err(TransactionError::LeaseOver);
        }
        let mut place = Place::new();
        let begun = Begun::begin(pool, &mut place).await;
        let mut tx = begun.map_err(|error| self.not_begun::<D, E>(error))?;
        if self.context().ask.is_some()
            && let Err(error) = self.reserve_in(&mut *tx).await
        {
            tx.roll_back().await;
            return Err(error.with_work());
        }
        let reply = match work(&mut tx).await {
            Ok(reply) => reply,
            Err(error) => {
                tx.roll_back().await;
                return Err(TransactionError::Work(error));
            }
        };
        if let Err(error) = self.complete_in(&mut *tx, reply.clone()).await {
            tx.roll_back().await;
            return Err(error.with_work());
        }
        edge!(Written, "reply");
        if let Err(error) = tx.commit().await {
            self.was_completed(error).await.map_err(TransactionError::with_work)?;
        }
        edge!(Saved, "reply");
        Ok(reply)
    }

    /// The answer to COMMIT was lost. Says whether it took place; for that it repeats, under the same
    /// attempt, what waits for the record's lock.
    async fn was_completed(&self, error: sqlx::Error) -> Result<(), TransactionError> {
        warn!(%error, "the answer to a COMMIT was lost");
        let context = self.context();
        if let Some(ask) = &context.ask {
            let reserve = || context.store.reserve(ask.clone());
            let reserved = self.repeat("reserve", reserve).await;
            return match reserved.map_err(TransactionError::NotAcknowledged)? {
                Reservation::Occupied { record, .. }
                    if record.attempt == ask.attempt && record.state == State::Completed =>
                {
                    Ok(())
                }
                Reservation::Completed(found) if found.attempt == ask.attempt => Ok(()),
                Reservation::Granted { lease, .. } => {
                    self.hold(&lease);
                    Err(not_committed("COMMIT failed", error).into())
                }
                found @ (Reservation::Occupied { .. } | Reservation::Completed(_)) => {
                    Err(self.taken(Taken::By(found)))
                }
                Reservation::Accepted { .. } | Reservation::Free => {
                    Err(not_committed("COMMIT failed", error).into())
                }
            };
        }
        let lease = self.lease().ok_or(TransactionError::LeaseOver)?;
        let renew = || context.store.write(&lease, Write::Renew(context.policy.lease));
        let renewed = self.repeat("renew", renew).await;
        match renewed.map_err(TransactionError::NotAcknowledged)? {
            Written::AlreadyMine(Some(_)) => Ok(()),
            Written::Applied | Written::AppliedAfterRelease | Written::AlreadyMine(None) => {
                Err(not_committed("COMMIT failed", error).into())
            }
            Written::Superseded(_) => Err(self.lost().into()),
        }
    }

    pub(crate) async fn reserve_once<C: Transactional>(
        &self,
        tx: &mut C,
        database: &Database,
        ask: &Ask,
    ) -> Result<(), TransactionError> {
        let reservation = match sealing::reserve(tx, database, ask).await {
            Ok(reservation) => reservation,
            Err(NotWritten::Locked) => return Err(self.taken(Taken::Locked)),
            Err(other) => return Err(Failure::from(other).into()),
        };
        match reservation {
            Reservation::Granted { lease, .. } => {
                self.hold(&lease);
                self.account().taken = None;
                Ok(())
            }
            found @ (Reservation::Occupied { .. } | Reservation::Completed(_)) => {
                Err(self.taken(Taken::By(found)))
            }
            Reservation::Accepted { .. } | Reservation::Free => {
                Err(Misuse::Refused("not_reserved").into())
            }
        }
    }

    fn taken(&self, taken: Taken) -> TransactionError {
        self.account().taken = Some(taken);
        TransactionError::Taken
    }

    fn not_begun<D: TransactionalDatabase, E>(&self, error: sqlx::Error) -> TransactionError<E> {
        if self.context().ask.is_some() && D::is_locked(&error) {
            return self.taken(Taken::Locked).with_work();
        }
        not_committed("BEGIN failed", error).into()
    }
}

fn not_committed(what: &'static str, error: sqlx::Error) -> Failure {
    let error =
        StoreError::new(StoreErrorKind::Unavailable, "transaction", what).with_source(error);
    Failure::Store(error)
}
