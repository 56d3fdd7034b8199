//! Transactions on a connection of the user's pool, which may be dropped at any moment.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use sqlx::{Database, Pool, Transaction, pool::PoolConnection};
use tracing::info;

use super::TransactionalDatabase;

/// Where the connection of a transaction is. One whose transaction did not come to its end is closed,
/// by which the database takes back what was done on it.
pub(crate) struct Place<D: Database> {
    connection: Option<PoolConnection<D>>,
    ended: AtomicBool,
}

impl<D: Database> Place<D> {
    pub(crate) fn new() -> Self {
        Place { connection: None, ended: AtomicBool::new(false) }
    }
}

impl<D: Database> Drop for Place<D> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.as_mut().filter(|_| !*self.ended.get_mut()) {
            connection.close_on_drop();
        }
    }
}

/// A transaction that was begun.
pub(crate) struct Begun<'p, D: Database> {
    tx: Transaction<'p, D>,
    ended: &'p AtomicBool,
}

impl<D: Database> fmt::Debug for Begun<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Begun").finish_non_exhaustive()
    }
}

impl<'p, D: TransactionalDatabase> Begun<'p, D> {
    pub(crate) async fn begin(
        pool: &Pool<D>,
        place: &'p mut Place<D>,
    ) -> Result<Self, sqlx::Error> {
        let tx = D::begin(pool, &mut place.connection).await?;
        Ok(Begun { tx, ended: &place.ended })
    }

    pub(crate) async fn commit(self) -> Result<(), sqlx::Error> {
        self.tx.commit().await?;
        self.ended.store(true, Relaxed);
        Ok(())
    }

    /// Not left to `Drop`, so that the lock is gone when the handler goes on. If it fails the
    /// connection is broken, and the database rolls back by itself.
    pub(crate) async fn roll_back(self) {
        match self.tx.rollback().await {
            Ok(()) => self.ended.store(true, Relaxed),
            Err(error) => info!(%error, "a transaction was not rolled back by word"),
        }
    }
}

impl<D: Database> Deref for Begun<'_, D> {
    type Target = D::Connection;

    fn deref(&self) -> &D::Connection {
        &self.tx
    }
}

impl<D: Database> DerefMut for Begun<'_, D> {
    fn deref_mut(&mut self) -> &mut D::Connection {
        &mut self.tx
    }
}

/// Begins a transaction in a task of its own: with sqlx 0.9 on PostgreSQL, a `begin` that is dropped
/// while it is on its way leaves the transaction open, on a connection that goes back to the pool. For
/// SQLite the driver itself takes such a one back.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) async fn in_a_task<D: Database>(
    begin: impl Future<Output = Result<Transaction<'static, D>, sqlx::Error>> + Send + 'static,
) -> Result<Transaction<'static, D>, sqlx::Error> {
    tokio::spawn(begin).await.unwrap_or(Err(sqlx::Error::WorkerCrashed))
}
