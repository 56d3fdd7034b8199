//! A store on MariaDB of its own for each test, and a second pair of eyes on its tables.

use std::sync::Arc;

use onceward::{
    MySqlOptions, MySqlStore, Store as _,
    record::Lease,
    store::{Ask, Reservation, Write, Written},
};
use onceward_testbed::MariaDb;
use sqlx::{AssertSqlSafe, Connection as _, MySql, MySqlConnection};

/// A store in a database of its own.
pub(crate) struct Home {
    pub(crate) store: Arc<MySqlStore>,
    pub(crate) url: String,
}

impl Home {
    /// On the shared server.
    pub(crate) async fn new() -> Home {
        let server = MariaDb::shared();
        Home::at(server.url(&server.create_database()), |options| options).await
    }

    /// In this database.
    pub(crate) async fn at(
        url: String,
        options: impl FnOnce(MySqlOptions) -> MySqlOptions,
    ) -> Home {
        let store = MySqlStore::connect(options(MySqlOptions::new(&*url))).await;
        Home { store: Arc::new(store.expect("a store")), url }
    }

    pub(crate) async fn connection(&self) -> MySqlConnection {
        MySqlConnection::connect(&self.url).await.expect("a connection")
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

/// The numbers from 1 to an even one, as a table that can be joined: `numbers.number`. MySQL has no
/// tables that are sequences, and recurses a thousand times at most.
pub(crate) fn numbers(last: u32) -> String {
    let half = last / 2;
    format!(
        "(WITH RECURSIVE counted (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM counted \
         WHERE number < {half}) SELECT number FROM counted \
         UNION ALL SELECT number + {half} FROM counted) AS numbers"
    )
}

/// Statements that must succeed.
pub(crate) async fn run(connection: &mut MySqlConnection, sql: &str) {
    let ran = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(connection).await;
    ran.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// The one value of a query.
pub(crate) async fn one<T>(connection: &mut MySqlConnection, sql: &str) -> T
where
    T: for<'r> sqlx::Decode<'r, MySql> + sqlx::Type<MySql> + Send + Unpin,
{
    let query = sqlx::query_scalar(AssertSqlSafe(sql.to_owned()));
    query.fetch_one(connection).await.unwrap_or_else(|error| panic!("{sql}: {error}"))
}
