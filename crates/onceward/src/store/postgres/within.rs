//! In a transaction of the user's own, on a connection of the user's own to the same database: the
//! same functions and the same rules.

use sqlx::{
    Connection as _, PgConnection, Pool, Postgres, Row as _, Transaction, pool::PoolConnection,
    postgres::PgRow,
};

use super::{
    PgDatabase,
    error::{Remedy, remedy, store_error},
    link::{Call, Caller, Lost, call},
    look::{self, StepFailed},
    open::Statements,
    outbox::{bind_stage, read_staged},
    reserve::{Answer, bind_reserve, read_answer},
    row::{FoundRow, damaged},
    steps::{Verdict, bind_step, read_verdict},
    write::{attempts, bind_complete},
};
use crate::{
    outbox::{Message, Staged},
    phase::Misuse,
    record::Lease,
    reply::Reply,
    store::{Advance, Advanced, Ask, Database, Reservation, Written},
    transaction::{
        begun::in_a_task,
        sealed::{Begin, Connection, NotWritten},
    },
};

/// How long one in its own transaction waits for others that have the key or its record locked: a
/// lock that is not had in time is the end of the whole transaction.
const PATIENCE: &str = "1s";

impl Begin for Postgres {
    async fn begin<'p>(
        pool: &Pool<Postgres>,
        _: &'p mut Option<PoolConnection<Postgres>>,
    ) -> Result<Transaction<'p, Postgres>, sqlx::Error> {
        let pool = pool.clone();
        in_a_task(async move { pool.begin().await }).await
    }

    fn is_locked(error: &sqlx::Error) -> bool {
        remedy(error) == Remedy::Locked
    }
}

/// A connection that is in a transaction.
struct Within<'c> {
    connection: &'c mut PgConnection,
    database: &'c PgDatabase,
}

impl<'c> Within<'c> {
    /// If the records are in PostgreSQL, and the connection is in a transaction: outside of one, each
    /// statement would commit by itself.
    fn new(connection: &'c mut PgConnection, database: &'c Database) -> Result<Self, NotWritten> {
        #[allow(irrefutable_let_patterns, reason = "it may be the only database in this build")]
        let Database::Postgres(database) = database else {
            return Err(NotWritten::Misuse(Misuse::OtherDatabase));
        };
        if !connection.is_in_transaction() {
            return Err(NotWritten::Misuse(Misuse::NotInTransaction));
        }
        Ok(Within { connection, database })
    }
}

impl Caller for Within<'_> {
    const MAY_REPEAT: bool = false;

    fn statements(&self) -> &Statements {
        &self.database.statements
    }

    fn now(&self) -> Option<i64> {
        self.database.clock.as_ref().map(|clock| clock.now().as_micros())
    }

    fn mostly_new(&self) -> bool {
        true
    }

    async fn fetch(&mut self, call: Call<'_>) -> Result<Vec<PgRow>, Lost> {
        call.fetch_all(&mut *self.connection).await.map_err(Lost::Failed)
    }
}

/// The rows, if the transaction will be on the disk when it is committed: if not, nothing was done.
fn durable(rows: Vec<PgRow>) -> Result<Vec<PgRow>, NotWritten> {
    match rows.first().map(|row| row.try_get("durable")) {
        Some(Ok(false)) => Err(NotWritten::Misuse(Misuse::NotDurable)),
        _ => Ok(rows),
    }
}

fn not_written(lost: Lost) -> NotWritten {
    match lost {
        Lost::Failed(error) if is_elsewhere(&error) => NotWritten::Misuse(Misuse::OtherDatabase),
        Lost::Failed(error) if remedy(&error) == Remedy::Locked => NotWritten::Locked,
        Lost::Failed(error) => NotWritten::Store(store_error(&error)),
        lost => NotWritten::Store(lost.store_error()),
    }
}

/// Whether the server does not know our schema or its functions.
fn is_elsewhere(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    matches!(code.as_deref(), Some("3F000" | "42883" | "42P01"))
}

fn step_failed(failed: StepFailed) -> NotWritten {
    match failed {
        StepFailed::Locked { .. } => NotWritten::Locked,
        StepFailed::Other(error) => NotWritten::Store(error),
    }
}

impl Connection for PgConnection {
    async fn reserve_in(
        &mut self,
        database: &Database,
        ask: &Ask,
    ) -> Result<Reservation, NotWritten> {
        let mut within = Within::new(self, database)?;
        let statement = call(&within.statements().reserve_within);
        let reserve = bind_reserve(statement, &within, ask, Some(PATIENCE));
        let rows = within.fetch(reserve).await.map_err(|lost| match &lost {
            // At REPEATABLE READ and above: somebody else has made the record, or changed it, since this
            // transaction began to look.
            Lost::Failed(error) if remedy(error) == Remedy::Again => NotWritten::Locked,
            _ => not_written(lost),
        })?;
        // Another database may have a store too, in which the same key would be free.
        if let Some(row) = rows.first()
            && row.try_get("store").ok() != Some(&*within.database.name)
        {
            return Err(NotWritten::Misuse(Misuse::OtherDatabase));
        }
        let rows = durable(rows)?;
        let found = rows.first().map(FoundRow::new).filter(|row| !row.verdict().is_empty());
        let seen = match found.map(|row| read_answer(&row, ask)) {
            Some(Answer::Now(reservation)) => return Ok(reservation),
            Some(Answer::Bad(bad)) => return Err(NotWritten::Store(damaged(bad))),
            Some(Answer::Look(record, now)) => Some((record, now)),
            Some(Answer::Later) | None => None,
        };
        look::reserve(&mut within, ask, seen).await.map_err(step_failed)
    }

    async fn complete(
        &mut self,
        database: &Database,
        lease: &Lease,
        reply: Reply,
    ) -> Result<Written, NotWritten> {
        let mut within = Within::new(self, database)?;
        let complete = call(&within.statements().complete_within);
        let complete = bind_complete(complete, &within, lease, &reply, Some(PATIENCE));
        let rows = durable(within.fetch(complete).await.map_err(not_written)?)?;
        if attempts(&rows).contains(&lease.attempt) {
            return Ok(Written::Applied);
        }
        look::complete_in(&mut within, lease, &reply).await.map_err(step_failed)
    }

    async fn advance(
        &mut self,
        database: &Database,
        lease: &Lease,
        advance: Advance,
    ) -> Result<Advanced, NotWritten> {
        let mut within = Within::new(self, database)?;
        let step = bind_step(call(&within.statements().step_within), lease, &advance);
        let rows = durable(within.fetch(step).await.map_err(not_written)?)?;
        match read_verdict(&rows).map_err(NotWritten::Store)? {
            Verdict::Is(advanced) => Ok(advanced),
            Verdict::Superseded => Ok(Advanced::Superseded(None)),
        }
    }

    async fn stage(
        &mut self,
        database: &Database,
        lease: &Lease,
        message: &Message,
    ) -> Result<Staged, NotWritten> {
        let mut within = Within::new(self, database)?;
        if let Some(refusal) = message.refusal() {
            return Ok(Staged::Refused(refusal));
        }
        let stage = call(&within.statements().stage_within);
        let stage = bind_stage(stage, &within, lease, message);
        let rows = durable(within.fetch(stage).await.map_err(not_written)?)?;
        read_staged(&rows).map_err(NotWritten::Store)
    }
}
