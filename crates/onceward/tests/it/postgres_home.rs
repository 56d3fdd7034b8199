//! A PostgreSQL store of its own for each test, and a second pair of eyes on its tables.

use std::sync::Arc;

use onceward::{
    PgOptions, PgStore, Store as _,
    record::Lease,
    store::{Ask, Reservation, StoreFuture, Write, Written},
};
use onceward_testbed::Postgres;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Postgres as Pg};

/// A store in a schema of its own.
pub(crate) struct Home {
    pub(crate) store: Arc<PgStore>,
    pub(crate) url: String,
    pub(crate) schema: String,
}

impl Home {
    /// On the shared server.
    pub(crate) async fn new() -> Home {
        Home::at(Postgres::shared().url("postgres"), |options| options).await
    }

    /// In this database.
    pub(crate) async fn at(url: String, options: impl FnOnce(PgOptions) -> PgOptions) -> Home {
        let schema = new_schema();
        let store = PgStore::connect(options(PgOptions::new(&*url).schema(&*schema))).await;
        Home { store: Arc::new(store.expect("a store")), url, schema }
    }

    /// A connection that finds our tables by their bare names.
    pub(crate) async fn connection(&self) -> PgConnection {
        let mut connection = PgConnection::connect(&self.url).await.expect("a connection");
        run(&mut connection, &format!("SET search_path = {}, public", self.schema)).await;
        connection
    }

    /// Reserves what must be free.
    pub(crate) async fn grant(&self, ask: &Ask) -> Lease {
        match self.store.reserve(ask.clone()).await.expect("reserve answers") {
            Reservation::Granted { lease, .. } => lease,
            other => panic!("expected a grant, found {other:?}"),
        }
    }

    /// Reserves what must be free, for an attempt that is not heard of again.
    pub(crate) async fn occupy(&self, ask: &Ask) {
        let _lease = self.grant(ask).await;
    }

    /// A write that must be applied.
    pub(crate) async fn write(&self, lease: &Lease, write: Write) {
        let written = self.store.write(lease, write).await.expect("write answers");
        assert_eq!(written, Written::Applied);
    }
}

pub(crate) fn new_schema() -> String {
    format!("home_{:016x}", rand::random::<u64>())
}

/// Statements that must succeed.
pub(crate) async fn run(connection: &mut PgConnection, sql: &str) {
    if let Err(error) = attempt(connection, sql).await {
        panic!("{sql}: {error}");
    }
}

pub(crate) async fn attempt(connection: &mut PgConnection, sql: &str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(connection).await.map(drop)
}

/// The code with which the server refuses a statement; empty when it does not.
pub(crate) async fn refusal(connection: &mut PgConnection, sql: &str) -> String {
    let refused = attempt(connection, sql).await.err();
    let refused = refused.as_ref().and_then(|error| error.as_database_error()?.code());
    refused.map(Into::into).unwrap_or_default()
}

/// The one value of a query.
pub(crate) async fn one<T>(connection: &mut PgConnection, sql: &str) -> T
where
    T: for<'r> sqlx::Decode<'r, Pg> + sqlx::Type<Pg> + Send + Unpin,
{
    let query = sqlx::query_scalar(AssertSqlSafe(sql.to_owned()));
    query.fetch_one(connection).await.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// The first column of all rows.
pub(crate) async fn lines(connection: &mut PgConnection, sql: &str) -> Vec<String> {
    let query = sqlx::query_scalar(AssertSqlSafe(sql.to_owned()));
    query.fetch_all(connection).await.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// Repeats a call until the store answers it.
pub(crate) async fn insist<'a, A>(call: impl Fn() -> StoreFuture<'a, A>) -> A {
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(error) => assert!(error.may_be_repeated(), "{error:?}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// An error with all its causes.
pub(crate) fn whole(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |whole, cause| format!("{whole}: {cause}"))
}

pub(crate) fn copy(lease: &Lease) -> Lease {
    Lease { id: lease.id.clone(), ..*lease }
}
