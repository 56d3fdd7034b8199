//! The business tables, in the same database as the records: only one database can commit both.
//!
//! The statements are the same on SQLite and PostgreSQL, down to `$1`; what differs is how a database
//! is opened. sqlx's types are per database, so the functions are written once, in a macro.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use onceward::{
    OutboxStore, PgOptions, PgStore, SqliteOptions, SqliteStore, Store, TransactionalDatabase,
};
use serde::{Deserialize, Serialize};
use sqlx::{
    PgConnection, PgPool, Pool, Postgres, Sqlite, SqliteConnection,
    postgres::PgPoolOptions,
    sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteSynchronous},
};

/// An open database: the records, the outbox, and a pool for rows of our own.
pub(crate) struct Opened<D: sqlx::Database> {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) outbox: Arc<dyn OutboxStore>,
    pub(crate) pool: Pool<D>,
}

/// A payment, as it is stored and shown.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Payment {
    pub(crate) id: String,
    pub(crate) reference: String,
    pub(crate) amount: i64,
    pub(crate) state: String,
    pub(crate) bank_reference: Option<String>,
}

type PaymentRow = (String, String, i64, String, Option<String>);

/// What is asked of a database. Each in the transaction that the connection is in.
pub(crate) trait Tables: TransactionalDatabase {
    fn insert_payment(
        tx: &mut Self::Connection,
        payment: &Payment,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Moves a payment from one state to another; `false` if it was in none of the sort.
    fn move_payment(
        tx: &mut Self::Connection,
        id: &str,
        from: &str,
        to: &str,
    ) -> impl Future<Output = sqlx::Result<bool>> + Send;

    fn name_at_bank(
        tx: &mut Self::Connection,
        id: &str,
        bank_reference: &str,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    fn payment(
        connection: &mut Self::Connection,
        id: &str,
    ) -> impl Future<Output = sqlx::Result<Option<Payment>>> + Send;

    fn insert_note(
        tx: &mut Self::Connection,
        payment: &str,
        text: &str,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// `false` if there is one with this address.
    fn insert_customer(
        tx: &mut Self::Connection,
        id: &str,
        email: &str,
    ) -> impl Future<Output = sqlx::Result<bool>> + Send;
}

macro_rules! tables {
    ($database:ty, $connection:ty) => {
        impl Tables for $database {
            async fn insert_payment(tx: &mut $connection, payment: &Payment) -> sqlx::Result<()> {
                let insert = sqlx::query(
                    "INSERT INTO payments (id, reference, amount, state) VALUES ($1, $2, $3, $4)",
                );
                let insert = insert.bind(&payment.id).bind(&payment.reference);
                insert.bind(payment.amount).bind(&payment.state).execute(tx).await?;
                Ok(())
            }

            async fn move_payment(
                tx: &mut $connection,
                id: &str,
                from: &str,
                to: &str,
            ) -> sqlx::Result<bool> {
                let moved =
                    sqlx::query("UPDATE payments SET state = $3 WHERE id = $1 AND state = $2");
                let moved = moved.bind(id).bind(from).bind(to).execute(tx).await?;
                Ok(moved.rows_affected() == 1)
            }

            async fn name_at_bank(
                tx: &mut $connection,
                id: &str,
                bank_reference: &str,
            ) -> sqlx::Result<()> {
                let named = sqlx::query("UPDATE payments SET bank_reference = $2 WHERE id = $1");
                named.bind(id).bind(bank_reference).execute(tx).await?;
                Ok(())
            }

            async fn payment(
                connection: &mut $connection,
                id: &str,
            ) -> sqlx::Result<Option<Payment>> {
                let select = "SELECT id, reference, amount, state, bank_reference \
                              FROM payments WHERE id = $1";
                let row: Option<PaymentRow> =
                    sqlx::query_as(select).bind(id).fetch_optional(connection).await?;
                Ok(row.map(|(id, reference, amount, state, bank_reference)| Payment {
                    id,
                    reference,
                    amount,
                    state,
                    bank_reference,
                }))
            }

            async fn insert_note(
                tx: &mut $connection,
                payment: &str,
                text: &str,
            ) -> sqlx::Result<()> {
                let insert = sqlx::query("INSERT INTO notes (payment_id, text) VALUES ($1, $2)");
                insert.bind(payment).bind(text).execute(tx).await?;
                Ok(())
            }

            async fn insert_customer(
                tx: &mut $connection,
                id: &str,
                email: &str,
            ) -> sqlx::Result<bool> {
                let insert = "INSERT INTO customers (id, email) VALUES ($1, $2) \
                              ON CONFLICT (email) DO NOTHING";
                let inserted = sqlx::query(insert).bind(id).bind(email).execute(tx).await?;
                Ok(inserted.rows_affected() == 1)
            }
        }
    };
}

tables!(Sqlite, SqliteConnection);
tables!(Postgres, PgConnection);

/// One file. The store is opened first: it makes the file.
pub(crate) async fn open_file(path: &Path) -> Result<Opened<Sqlite>> {
    let store = Arc::new(SqliteStore::open(SqliteOptions::new(path)).await?);
    let options = SqliteConnectOptions::new()
        .filename(path)
        // A reply that commits in our transaction is as durable as our transaction.
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(Duration::from_secs(5));
    let pool = SqlitePoolOptions::new().max_connections(8).connect_with(options).await?;
    sqlx::raw_sql(include_str!("../sql/sqlite.sql")).execute(&pool).await.context("the tables")?;
    Ok(Opened { store: store.clone(), outbox: store, pool })
}

/// A PostgreSQL database.
pub(crate) async fn connect(url: &str) -> Result<Opened<Postgres>> {
    let store = Arc::new(PgStore::connect(PgOptions::new(url)).await?);
    let pool: PgPool = PgPoolOptions::new()
        .max_connections(16)
        .acquire_timeout(Duration::from_secs(5))
        .connect(url)
        .await?;
    sqlx::raw_sql(include_str!("../sql/postgres.sql"))
        .execute(&pool)
        .await
        .context("the tables")?;
    Ok(Opened { store: store.clone(), outbox: store, pool })
}
