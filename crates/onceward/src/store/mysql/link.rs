//! A connection that is made when it is needed, and again when it broke.

use std::{sync::Arc, time::Duration};

use sqlx::{Connection as _, MySqlConnection};
use tokio::time::{Instant, error::Elapsed, timeout};

use super::{
    MySqlOptions,
    batch::{Side, Step},
    error::{Moment, Remedy, STORE, TRIES_MAX, answer_lost, pause, remedy, store_error},
    open,
    session::{Session, Statement},
    sql::Statements,
};
use crate::store::{
    StoreError, StoreErrorKind,
    lane::{Lane, Linked},
    turn::Turns,
    witness::Witnesses,
};

/// No call to the server takes longer: whoever waits for it has been told by then.
pub(super) const CALL_TIME_MAX: Duration = Duration::from_secs(5);

/// A new connection is there within this, or not at all.
pub(super) const CONNECT_TIME_MAX: Duration = Duration::from_secs(3);

/// How long one that is alone waits for others that have its rows locked.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// One connection, used by one task: no call that is dropped can leave it inside a transaction.
pub(super) struct Link {
    pub(super) options: Arc<MySqlOptions>,
    pub(super) statements: Arc<Statements>,
    /// Where single elements go that a batch cannot answer.
    pub(super) side: Option<Lane<Side>>,
    connection: Option<MySqlConnection>,
    /// Which connection of the store this is, of all that were made.
    epoch: u64,
    pub(super) witnesses: Witnesses,
    pub(super) place: usize,
    /// Who is at which record.
    pub(super) turns: Turns<Step>,
}

/// A connection that is in use. Dropped before its end, it is gone, and with it what was begun.
pub(super) struct Open {
    connection: MySqlConnection,
    in_transaction: bool,
}

/// A call that did not come to an answer.
pub(super) enum Lost {
    /// It was never sent.
    NotSent(StoreError),
    /// No answer came in time.
    NoAnswer(Moment),
    /// The server or the driver says so.
    Failed(sqlx::Error, Moment),
}

impl Lost {
    pub(super) fn remedy(&self) -> Option<Remedy> {
        match self {
            Lost::NotSent(_) | Lost::NoAnswer(_) => None,
            Lost::Failed(error, _) => Some(remedy(error)),
        }
    }

    pub(super) fn store_error(&self) -> StoreError {
        match self {
            Lost::NotSent(error) => {
                let source = std::error::Error::source(error).map(ToString::to_string);
                StoreError::new(error.kind(), STORE, "the server cannot be reached")
                    .with_source(source.unwrap_or_default())
            }
            Lost::NoAnswer(Moment::Before) => {
                StoreError::new(StoreErrorKind::Unavailable, STORE, "no answer in time")
            }
            Lost::NoAnswer(Moment::Commit) => {
                StoreError::new(StoreErrorKind::Ambiguous, STORE, "no answer in time")
            }
            Lost::Failed(error, moment) => store_error(error, *moment),
        }
    }
}

impl Link {
    pub(super) fn new(
        options: Arc<MySqlOptions>,
        statements: Arc<Statements>,
        witnesses: Witnesses,
    ) -> Self {
        Link {
            options,
            statements,
            side: None,
            connection: None,
            epoch: 0,
            place: witnesses.place(),
            witnesses,
            turns: Turns::default(),
        }
    }

    /// The same beside others that look at the same records.
    pub(super) fn beside(mut self, turns: &Turns<Step>) -> Self {
        self.turns = turns.clone();
        self
    }

    pub(super) fn with_side(mut self, side: &Lane<Side>) -> Self {
        self.side = Some(side.clone());
        self
    }

    /// Connects anew if others did since this connection was made.
    pub(super) async fn be_as_new_as_any(&mut self) -> Result<(), StoreError> {
        let epoch = self.witnesses.epoch();
        if self.connection.is_none() || self.epoch < epoch {
            self.close().await;
            self.connection = Some(self.connect().await?);
            self.epoch = epoch;
        }
        Ok(())
    }

    async fn connect(&self) -> Result<MySqlConnection, StoreError> {
        self.witnesses.retire(self.place);
        open::connect(&self.options).await.map_err(|error| {
            let context = "the server cannot be reached";
            StoreError::new(StoreErrorKind::Unavailable, STORE, context)
                .with_source(error.to_string())
        })
    }

    /// The connection for some statements, in a transaction or each by itself.
    pub(super) async fn open(&mut self, in_transaction: bool) -> Result<Open, Lost> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let connection = self.connect().await.map_err(Lost::NotSent)?;
                self.epoch = self.witnesses.next_epoch();
                connection
            }
        };
        if in_transaction {
            let begin = sqlx::raw_sql("BEGIN").execute(&mut connection);
            match timeout(CALL_TIME_MAX, begin).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(Lost::Failed(error, Moment::Before)),
                Err(_) => return Err(Lost::NoAnswer(Moment::Before)),
            }
        }
        Ok(Open { connection, in_transaction })
    }

    pub(super) fn session<'s>(&'s self, open: &'s mut Open) -> Session<'s> {
        Session {
            connection: &mut open.connection,
            statements: &self.statements,
            clock: self.options.clock.as_deref(),
        }
    }

    /// Commits what was done, or takes it back. A connection that did not answer is not used again.
    pub(super) async fn end<A>(
        &mut self,
        open: Open,
        ran: Result<sqlx::Result<A>, Elapsed>,
    ) -> Result<A, Lost> {
        let Open { mut connection, in_transaction } = open;
        let answer = match ran {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                if remedy(&error) != Remedy::Reconnect
                    && (!in_transaction || rolls_back(&mut connection).await)
                {
                    self.connection = Some(connection);
                }
                return Err(Lost::Failed(error, Moment::Before));
            }
            Err(_) => return Err(Lost::NoAnswer(Moment::Before)),
        };
        if in_transaction {
            let commit = sqlx::raw_sql("COMMIT").execute(&mut connection);
            match timeout(CALL_TIME_MAX, commit).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => {
                    if remedy(&error) != Remedy::Reconnect && rolls_back(&mut connection).await {
                        self.connection = Some(connection);
                    }
                    return Err(Lost::Failed(error, Moment::Commit));
                }
                Err(_) => return Err(Lost::NoAnswer(Moment::Commit)),
            }
        }
        self.connection = Some(connection);
        Ok(answer)
    }

    /// Runs a statement until it is answered, or until there is no point.
    pub(super) async fn state<S: Statement>(
        &mut self,
        statement: &S,
    ) -> Result<S::Answer, StoreError> {
        let begun = Instant::now();
        let mut lost = false;
        let mut tries = 0;
        loop {
            tries += 1;
            let failed = match self.state_once(statement).await {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            let error = failed.store_error();
            lost |= error.kind() == StoreErrorKind::Ambiguous;
            let again = match failed.remedy() {
                Some(Remedy::Reconnect | Remedy::Again) => tries < TRIES_MAX,
                Some(Remedy::Locked) => begun.elapsed() < PATIENCE,
                Some(Remedy::Refused) | None => false,
            };
            if !again {
                return Err(if lost { answer_lost(error) } else { error });
            }
            pause().await;
        }
    }

    async fn state_once<S: Statement>(&mut self, statement: &S) -> Result<S::Answer, Lost> {
        let mut open = self.open(!S::READS).await?;
        let ran = timeout(CALL_TIME_MAX, statement.run(&mut self.session(&mut open))).await;
        self.end(open, ran).await
    }
}

async fn rolls_back(connection: &mut MySqlConnection) -> bool {
    let roll_back = sqlx::raw_sql("ROLLBACK").execute(connection);
    matches!(timeout(CONNECT_TIME_MAX, roll_back).await, Ok(Ok(_)))
}

impl Linked for Link {
    fn give_up(&mut self) {
        self.connection = None;
    }

    async fn close(&mut self) {
        if let Some(connection) = self.connection.take() {
            // It is gone either way.
            let _ = timeout(CONNECT_TIME_MAX, connection.close()).await;
        }
    }
}
