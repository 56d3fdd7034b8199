//! In a transaction of the user's own, on a connection of the user's own to the same database: the
//! same rules and the same rows.
//!
//! It may be at REPEATABLE READ or at READ COMMITTED. So a record is read with its row locked, which
//! is as it was committed last and not as it was when the transaction began; and a record that is not
//! there is inserted and not looked for with a lock, since that would lock the gap in which others
//! insert theirs. So would the insert of one that is there, and a lock that is found by its key.

use sqlx::{Connection as _, MySql, MySqlConnection, Pool, Transaction, pool::PoolConnection};
use tokio::time::Instant;

use super::{
    MySqlDatabase,
    error::{self, Moment, STORE, damaged, is_elsewhere, is_locked, is_no_savepoint, pause},
    link::PATIENCE,
    outbox::stage_in,
    row::{Columns, Values as _, bind_record},
    session::{Changes, Found, Session},
    sql::query,
};
use crate::{
    clock::Timestamp,
    machine::{self, Change, Step},
    outbox::{Message, Staged},
    phase::Misuse,
    record::{Lease, Record, RecordId},
    reply::Reply,
    store::{
        Advance, Advanced, Ask, Database, Reservation, StoreError, StoreErrorKind, Written,
        beside::{self, Beside},
    },
    transaction::sealed::{Begin, Connection, NotWritten},
};

impl Begin for MySql {
    /// With sqlx 0.9 on MySQL, a connection loses count of the server's answers when a call is dropped
    /// on its way: it expects the answer to a statement before that is prepared. Back in the pool it
    /// waits for an answer that never comes, and its place is lost for ever; or it takes one call's
    /// answer for that of the next. So the pool does not get it back.
    async fn begin<'p>(
        pool: &Pool<MySql>,
        place: &'p mut Option<PoolConnection<MySql>>,
    ) -> Result<Transaction<'p, MySql>, sqlx::Error> {
        place.insert(pool.acquire().await?).begin().await
    }

    fn is_locked(error: &sqlx::Error) -> bool {
        is_locked(error)
    }
}

impl MySqlDatabase {
    /// If the records are in this database, and the connection is in a transaction: outside of one,
    /// each statement would commit by itself.
    async fn within<'c>(
        connection: &'c mut MySqlConnection,
        database: &'c Database,
    ) -> Result<Session<'c>, NotWritten> {
        let other = || NotWritten::Misuse(Misuse::OtherDatabase);
        #[allow(irrefutable_let_patterns, reason = "it may be the only database in this build")]
        let Database::MySql(database) = database else { return Err(other()) };
        let statements = &*database.statements;
        let session = Session { connection, statements, clock: database.clock.as_deref() };
        let name = query(&statements.name).fetch_optional(&mut *session.connection).await;
        let name = match name {
            Err(error) if is_elsewhere(&error) => return Err(other()),
            name => name.map_err(not_written)?,
        };
        // Another database may have a store too, in which the same key would be free.
        let name = name.as_ref().and_then(|row| Columns { row, next: 0 }.text("name").ok());
        if name != Some(&*database.name) {
            return Err(other());
        }
        is_in_transaction(&mut *session.connection).await?;
        Ok(session)
    }
}

/// Asks the server itself: a transaction may have been begun by a plain statement, or ended by one that
/// commits without a word, as all that change tables do. Outside of one no savepoint is made. The last
/// one is left, to know this transaction by.
async fn is_in_transaction(connection: &mut MySqlConnection) -> Result<(), NotWritten> {
    let check = "SAVEPOINT onceward_check; RELEASE SAVEPOINT onceward_check; \
                 SAVEPOINT onceward_check";
    match sqlx::raw_sql(check).execute(connection).await {
        Ok(_) => Ok(()),
        Err(error) if is_no_savepoint(&error) => Err(NotWritten::Misuse(Misuse::NotInTransaction)),
        Err(error) => Err(not_written(error)),
    }
}

/// A server may be set up so that a lock that is not had is the end of the transaction
/// (`innodb_rollback_on_timeout`). What was written before is gone then; without autocommit another
/// transaction begins by itself, which does not know the savepoint.
async fn is_the_same_transaction(connection: &mut MySqlConnection) -> Result<(), NotWritten> {
    let check = "RELEASE SAVEPOINT onceward_check; SAVEPOINT onceward_check";
    match sqlx::raw_sql(check).execute(connection).await {
        Ok(_) => Ok(()),
        Err(error) if is_no_savepoint(&error) => {
            let context = "the server took the transaction back, since the record was locked";
            Err(NotWritten::Store(StoreError::new(StoreErrorKind::Unavailable, STORE, context)))
        }
        Err(error) => Err(not_written(error)),
    }
}

fn not_written(error: sqlx::Error) -> NotWritten {
    match is_locked(&error) {
        true => NotWritten::Locked,
        false => NotWritten::Store(error::store_error(&error, Moment::Before)),
    }
}

impl Connection for MySqlConnection {
    async fn reserve_in(
        &mut self,
        database: &Database,
        ask: &Ask,
    ) -> Result<Reservation, NotWritten> {
        let mut session = MySqlDatabase::within(self, database).await?;
        // The transaction may have reserved before, or the key may have been used.
        if session.sees(&ask.id).await.map_err(not_written)?.is_some() {
            let found = locked(&mut session, &ask.id).await?;
            if found.1.is_some() {
                return decide(&mut session, &ask.id, found, None, |found, _, now| {
                    beside::reserve(found, ask, now)
                })
                .await;
            }
        }
        let now = session.now().await.map_err(not_written)?;
        let (step, kept) = beside::reserve(None, ask, now);
        let Change::Put(record) = &step.change else { return Ok(step.answer) };
        take(&mut session, record).await?;
        let found = locked(&mut session, &ask.id).await?;
        let is_ours = |found: &Record| {
            found.attempt == record.attempt
                && found.fence == record.fence
                && found.created_at == record.created_at
        };
        match found.1.as_ref().and_then(|found| found.record.as_ref().ok()) {
            Some(found) if is_ours(found) => {
                let mut changes = Changes::default();
                if let Some(kept) = kept {
                    changes.beside.keep(found, kept);
                }
                session.write(changes).await.map_err(not_written)?;
                Ok(step.answer)
            }
            _ => {
                decide(&mut session, &ask.id, found, None, |found, _, now| {
                    beside::reserve(found, ask, now)
                })
                .await
            }
        }
    }

    async fn complete(
        &mut self,
        database: &Database,
        lease: &Lease,
        reply: Reply,
    ) -> Result<Written, NotWritten> {
        let mut session = MySqlDatabase::within(self, database).await?;
        let found = locked(&mut session, &lease.id).await?;
        decide(&mut session, &lease.id, found, None, |found, _, now| {
            (machine::complete_in(found, lease, reply, now), None)
        })
        .await
    }

    async fn advance(
        &mut self,
        database: &Database,
        lease: &Lease,
        advance: Advance,
    ) -> Result<Advanced, NotWritten> {
        let mut session = MySqlDatabase::within(self, database).await?;
        let found = locked(&mut session, &lease.id).await?;
        let name = Some(advance.name());
        decide(&mut session, &lease.id, found, name, |found, saved, _| {
            beside::advance(found, lease, &advance, saved)
        })
        .await
    }

    async fn stage(
        &mut self,
        database: &Database,
        lease: &Lease,
        message: &Message,
    ) -> Result<Staged, NotWritten> {
        let mut session = MySqlDatabase::within(self, database).await?;
        let found = locked(&mut session, &lease.id).await?;
        let record = found.1.map(|found| found.record).transpose();
        let record = record.map_err(|()| NotWritten::Store(damaged()))?;
        let staged = stage_in(&mut session, record.as_ref(), &lease.into(), message, found.0).await;
        staged.map_err(not_written)
    }
}

/// Inserts the record if it is not there, and waits for whoever is inserting it. Its row is locked
/// afterwards, be it this one or another; if it is another, so is the gap before it.
async fn take(session: &mut Session<'_>, record: &Record) -> Result<(), NotWritten> {
    // An insert cannot be asked not to wait, or not for long; the setting is that of the user's again
    // afterwards.
    let lower = "SET @onceward_patience = @@SESSION.innodb_lock_wait_timeout, \
                 SESSION innodb_lock_wait_timeout = 1";
    let restore = "SET SESSION innodb_lock_wait_timeout = @onceward_patience";
    sqlx::raw_sql(lower).execute(&mut *session.connection).await.map_err(not_written)?;
    let take = bind_record(query(&session.statements.take).integer(None::<i64>), record);
    let taken = take.execute(&mut *session.connection).await;
    let restored = sqlx::raw_sql(restore).execute(&mut *session.connection).await;
    taken.map_err(not_written)?;
    restored.map_err(not_written)?;
    Ok(())
}

/// The record with its row locked, and what time it is.
async fn locked(
    session: &mut Session<'_>,
    id: &RecordId,
) -> Result<(Timestamp, Option<Found>), NotWritten> {
    let begun = Instant::now();
    let mut waited = false;
    loop {
        match session.lock_one(id).await {
            Ok((found, now)) => {
                if waited {
                    is_the_same_transaction(&mut *session.connection).await?;
                }
                return Ok((now, found));
            }
            Err(error)
                if error::remedy(&error) == error::Remedy::Locked && begun.elapsed() < PATIENCE =>
            {
                waited = true;
                pause().await;
            }
            Err(error) => return Err(not_written(error)),
        }
    }
}

/// One step on a record that is locked.
async fn decide<A>(
    session: &mut Session<'_>,
    id: &RecordId,
    (now, found): (Timestamp, Option<Found>),
    step_name: Option<&str>,
    decide: impl FnOnce(Option<&Record>, bool, Timestamp) -> (Step<A>, Option<Beside>),
) -> Result<A, NotWritten> {
    let record = found.as_ref().map(|found| found.record.as_ref()).transpose();
    let record = record.map_err(|()| NotWritten::Store(damaged()))?;
    let asked = record.zip(step_name).map(|(it, name)| (id.clone(), it.generation, name.into()));
    let asked: Vec<_> = asked.into_iter().collect();
    let mut gathered = session.load_saved(&asked).await.map_err(not_written)?;
    let saved = gathered.is_saved(record, step_name);
    let (step, kept) = decide(record, saved, now);
    let audits: Vec<_> = step.audit.into_iter().collect();
    let mut changes = Changes { audits: &audits, ..Changes::default() };
    match &step.change {
        Change::Keep => {}
        Change::Put(after) => {
            gathered.follow(after);
            if let Some(kept) = kept {
                gathered.keep(after, kept);
            }
            changes.add(id, found.as_ref(), Some(&**after));
        }
        Change::Remove => {
            gathered.drop_all_of(id);
            changes.add(id, found.as_ref(), None);
        }
    }
    changes.beside = gathered;
    session.write(changes).await.map_err(not_written)?;
    Ok(step.answer)
}
