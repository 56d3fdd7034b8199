//! A connection that is made when it is needed, and again when it broke.

use std::{sync::Arc, time::Duration};

use sqlx::{
    AssertSqlSafe, Connection as _, PgConnection, Postgres,
    postgres::{PgArguments, PgRow},
};
use tokio::time::timeout;

use super::{
    PgOptions,
    error::{STORE, no_answer},
    look::{Look, Side},
    open::{self, Statements},
};
use crate::{
    record::Lease,
    store::{
        Advance, StoreError, StoreErrorKind,
        lane::{Lane, Linked},
        turn::Turns,
        witness::{Witness, Witnesses},
    },
};

/// No call to the server takes longer: whoever waits for it has been told by then.
pub(super) const CALL_TIME_MAX: Duration = Duration::from_secs(5);

/// A new connection is there within this, or not at all.
pub(super) const CONNECT_TIME_MAX: Duration = Duration::from_secs(3);

pub(super) type Call<'q> = sqlx::query::Query<'q, Postgres, PgArguments>;

/// One connection, used by one task.
pub(super) struct Link {
    options: Arc<PgOptions>,
    statements: Arc<Statements>,
    /// Where single elements go that a batch cannot answer.
    side: Option<Lane<Side>>,
    connection: Option<PgConnection>,
    /// Which connection of the store this is, of all that were made.
    epoch: u64,
    witnesses: Witnesses,
    place: usize,
    /// Who is at which record.
    turns: Turns<Look>,
    /// Whether most of what was reserved last was new.
    pub(super) mostly_new: bool,
}

/// What makes calls: a link, or a connection in a transaction of the user's.
pub(super) trait Caller: Send {
    /// Whether a call that failed may be made again: not within a transaction, which is then over.
    const MAY_REPEAT: bool;

    fn statements(&self) -> &Statements;

    /// The time that tests want it to be.
    fn now(&self) -> Option<i64>;

    /// Whether what is reserved is new, probably. Only how fast a reserve is depends on it.
    fn mostly_new(&self) -> bool;

    /// Makes the call.
    fn fetch(&mut self, call: Call<'_>) -> impl Future<Output = Result<Vec<PgRow>, Lost>> + Send;
}

/// A call that did not come to an answer.
pub(super) enum Lost {
    /// It was never sent.
    NotSent(StoreError),
    /// It may have been carried out.
    NoAnswer,
    /// The server or the driver says so.
    Failed(sqlx::Error),
}

impl Link {
    pub(super) fn new(
        options: Arc<PgOptions>,
        statements: Arc<Statements>,
        witnesses: Witnesses,
    ) -> Self {
        Link {
            epoch: 0,
            place: witnesses.place(),
            witnesses,
            options,
            statements,
            side: None,
            connection: None,
            turns: Turns::default(),
            mostly_new: true,
        }
    }

    /// The same beside others that look at the same records.
    pub(super) fn beside(mut self, turns: &Turns<Look>) -> Self {
        self.turns = turns.clone();
        self
    }

    pub(super) fn turns(&self) -> &Turns<Look> {
        &self.turns
    }

    pub(super) fn with_side(mut self, side: &Lane<Side>) -> Self {
        self.side = Some(side.clone());
        self
    }

    /// Has an element looked at by itself. Dropped without a side, its caller is told.
    pub(super) async fn look_closer(&self, look: Look) {
        if let Some(side) = &self.side {
            side.hand_over(Side::Look(Box::new(look))).await;
        }
    }

    pub(super) fn witnesses(&self) -> &Witnesses {
        &self.witnesses
    }

    /// The server has said that this was granted, or completed.
    pub(super) fn acknowledged(&self, lease: &Lease, completed: bool) {
        self.witnesses.put(self.place, Witness::of(lease, completed));
    }

    /// The same of a step of a phased operation.
    pub(super) fn acknowledged_step(&self, lease: &Lease, advance: &Advance) {
        match Witness::of_step(lease, advance) {
            Some((witness, true)) => self.witnesses.put(self.place, witness),
            Some((witness, false)) => self.witnesses.put_beside(self.place, witness),
            None => {}
        }
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

    async fn connect(&self) -> Result<PgConnection, StoreError> {
        self.witnesses.retire(self.place);
        open::connect(&self.options).await.map_err(|error| {
            let context = "the server cannot be reached";
            StoreError::new(StoreErrorKind::Unavailable, STORE, context)
                .with_source(error.to_string())
        })
    }
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

impl Caller for Link {
    const MAY_REPEAT: bool = true;

    fn statements(&self) -> &Statements {
        &self.statements
    }

    fn now(&self) -> Option<i64> {
        self.options.clock.as_ref().map(|clock| clock.now().as_micros())
    }

    fn mostly_new(&self) -> bool {
        self.mostly_new
    }

    /// A connection that did not answer is not used again: it may be inside anything.
    ///
    /// # Cancel safety
    /// The connection is given up.
    async fn fetch(&mut self, call: Call<'_>) -> Result<Vec<PgRow>, Lost> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let connection = self.connect().await.map_err(Lost::NotSent)?;
                self.epoch = self.witnesses.next_epoch();
                connection
            }
        };
        match timeout(CALL_TIME_MAX, call.fetch_all(&mut connection)).await {
            Ok(Ok(rows)) => {
                self.connection = Some(connection);
                Ok(rows)
            }
            Ok(Err(error)) => {
                if super::error::remedy(&error) != super::error::Remedy::Reconnect {
                    self.connection = Some(connection);
                }
                Err(Lost::Failed(error))
            }
            Err(_) => Err(Lost::NoAnswer),
        }
    }
}

impl Lost {
    pub(super) fn store_error(&self) -> StoreError {
        match self {
            Lost::NotSent(error) => {
                let source = std::error::Error::source(error).map(ToString::to_string);
                StoreError::new(error.kind(), STORE, "the server cannot be reached")
                    .with_source(source.unwrap_or_default())
            }
            Lost::NoAnswer => no_answer(),
            Lost::Failed(error) => super::error::store_error(error),
        }
    }
}

/// A call of one of our own statements.
pub(super) fn call(statement: &Arc<str>) -> Call<'static> {
    sqlx::query(AssertSqlSafe(Arc::clone(statement)))
}
