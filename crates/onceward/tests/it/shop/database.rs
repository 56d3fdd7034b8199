//! The databases that a shop can be in, with its orders and our records side by side.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use onceward::{
    MySqlOptions, MySqlStore, OutboxStore, PgOptions, PgStore, SqliteOptions, SqliteStore, Store,
    TransactionalDatabase, clock::Clock,
};
use onceward_testbed::{Database as PgDatabase, MariaDb, Postgres as PgServer, READY_FOR_QUERY};
use sqlx::{
    Connection as _, MySql, MySqlConnection, PgConnection, Pool, Postgres, Sqlite,
    SqliteConnection, SqlitePool, Transaction,
    mysql::MySqlPoolOptions,
    postgres::{PgConnectOptions, PgPoolOptions},
    sqlite::{SqliteConnectOptions, SqlitePoolOptions},
};
use tempfile::TempDir;

use crate::postgres_home::new_schema;

/// The same cases on each database that a shop can be in.
macro_rules! on_each_database {
    ($($case:ident),+ $(,)? $(; not_on_mariadb: $($other:ident),+ $(,)?)?) => {
        $crate::shop::on_database!(on_sqlite, sqlx::Sqlite, $($case,)+ $($($other,)+)?);
        $crate::shop::on_database!(on_postgres, sqlx::Postgres, $($case,)+ $($($other,)+)?);
        $crate::shop::on_database!(on_mariadb, sqlx::MySql, $($case,)+);
    };
}

/// Named tests for cases that are written for any database.
macro_rules! on_database {
    ($module:ident, $database:ty, $($case:ident),+ $(,)?) => {
        mod $module {
            $(#[tokio::test]
            async fn $case() {
                super::$case::<$database>().await;
            })+
        }
    };
}

pub(crate) use {on_database, on_each_database};

/// How many connections the pool of a shop has.
const CONNECTIONS: u32 = 4;

/// What differs between databases.
pub(crate) trait Database: TransactionalDatabase {
    type Store: Store + OutboxStore;

    /// Where it is; gone with this.
    type Place: Send + Sync;

    /// Makes the table of orders, if it is not there.
    const ORDERS: &'static str;

    /// Gives all records to others.
    const NEXT_FENCE: &'static str = "UPDATE records SET fence = fence + 1";

    fn place() -> Self::Place;

    /// A place that no transaction of this one reaches, with the same names.
    fn elsewhere(_: &Self::Place) -> Self::Place {
        Self::place()
    }

    fn store(
        place: &Self::Place,
        clock: Arc<dyn Clock>,
    ) -> impl Future<Output = Self::Store> + Send;

    fn pool(place: &Self::Place) -> impl Future<Output = Pool<Self>> + Send;

    /// A pool whose transactions do not wait long for those of others.
    fn impatient_pool(place: &Self::Place) -> impl Future<Output = Pool<Self>> + Send {
        Self::pool(place)
    }

    /// Begins a transaction that is going to write.
    fn begin_to_write(
        pool: &Pool<Self>,
    ) -> impl Future<Output = sqlx::Result<Transaction<'static, Self>>> + Send {
        pool.begin()
    }

    /// A statement that stands alone; how many rows it was about.
    fn run(
        connection: &mut Self::Connection,
        sql: &'static str,
    ) -> impl Future<Output = sqlx::Result<u64>> + Send;

    /// Writes an order.
    fn order(
        tx: &mut Self::Connection,
        name: &str,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// The orders there are, the oldest first.
    fn orders(pool: &Pool<Self>) -> impl Future<Output = Vec<String>> + Send;

    /// How many connections of the pool are inside a transaction and do nothing, at this moment.
    fn idle_in_transactions(
        place: &Self::Place,
        pool: &Pool<Self>,
    ) -> impl Future<Output = i64> + Send;
}

/// A database on a server, to which connections can break.
pub(crate) trait Networked: Database {
    /// How a transaction is committed, and the end of the answer to that.
    const COMMIT: &'static [u8];
    const ANSWERED: &'static [u8];

    fn address() -> SocketAddr;

    /// The same place by another way.
    fn through(place: &Self::Place, address: SocketAddr) -> Self::Place;
}

/// The statements that are the same, but for the types of sqlx.
macro_rules! statements {
    ($connection:ty, $insert:literal) => {
        async fn run(connection: &mut $connection, sql: &'static str) -> sqlx::Result<u64> {
            Ok(sqlx::query(sql).execute(connection).await?.rows_affected())
        }

        async fn order(tx: &mut $connection, name: &str) -> sqlx::Result<()> {
            sqlx::query($insert).bind(name).execute(tx).await.map(drop)
        }

        async fn orders(pool: &Pool<Self>) -> Vec<String> {
            let orders = sqlx::query_scalar("SELECT name FROM orders ORDER BY number");
            orders.fetch_all(pool).await.expect("orders")
        }
    };
}

/// In a file of its own.
impl Database for Sqlite {
    type Store = SqliteStore;
    type Place = TempDir;
    const ORDERS: &'static str = "CREATE TABLE IF NOT EXISTS orders \
        (number INTEGER PRIMARY KEY, name TEXT NOT NULL)";

    const NEXT_FENCE: &'static str = "UPDATE onceward_records SET fence = fence + 1";

    fn place() -> TempDir {
        tempfile::tempdir().expect("a directory")
    }

    async fn store(place: &TempDir, clock: Arc<dyn Clock>) -> SqliteStore {
        let options = SqliteOptions::new(place.path().join("shop.db")).clock(clock);
        SqliteStore::open(options).await.expect("a store")
    }

    async fn pool(place: &TempDir) -> SqlitePool {
        pool_on(place.path().join("shop.db")).await
    }

    async fn impatient_pool(place: &TempDir) -> SqlitePool {
        let options = SqliteConnectOptions::new().filename(place.path().join("shop.db"));
        let options = options.busy_timeout(Duration::from_millis(50));
        SqlitePoolOptions::new().connect_with(options).await.expect("a pool")
    }

    /// Locks the file at once: one that has read before cannot wait for others.
    async fn begin_to_write(pool: &SqlitePool) -> sqlx::Result<Transaction<'static, Sqlite>> {
        pool.begin_with("BEGIN IMMEDIATE").await
    }

    async fn idle_in_transactions(_: &TempDir, pool: &SqlitePool) -> i64 {
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            connections.push(pool.acquire().await.expect("acquired"));
        }
        let mut open = 0;
        for connection in &mut connections {
            // SQLite refuses a transaction within another.
            match sqlx::query("BEGIN").execute(&mut **connection).await {
                Ok(_) => drop(sqlx::query("ROLLBACK").execute(&mut **connection).await),
                Err(_) => open += 1,
            }
        }
        open
    }

    statements!(SqliteConnection, "INSERT INTO orders (name) VALUES (?)");
}

/// A pool of the shop's own.
pub(crate) async fn pool_on(path: impl AsRef<std::path::Path>) -> SqlitePool {
    let options = SqliteConnectOptions::new().filename(path).create_if_missing(true);
    let pool = SqlitePoolOptions::new().max_connections(CONNECTIONS);
    pool.connect_with(options).await.expect("a pool")
}

/// A schema on the server that all tests share, in which the connections of a shop find all tables. In
/// a database of its own where they come through a pool: nothing is set on a connection there.
pub(crate) struct PgPlace {
    url: String,
    schema: String,
    database: Option<PgDatabase<'static>>,
}

impl PgPlace {
    fn apart(schema: String) -> PgPlace {
        let database = PgServer::shared().create_database();
        let name = database.name();
        database.psql(&format!("ALTER DATABASE {name} SET search_path = {schema}"));
        PgPlace { url: database.url(), schema, database: Some(database) }
    }
}

impl Database for Postgres {
    type Store = PgStore;
    type Place = PgPlace;
    const ORDERS: &'static str = "CREATE TABLE IF NOT EXISTS orders \
        (number BIGINT GENERATED ALWAYS AS IDENTITY, name TEXT NOT NULL)";

    fn place() -> PgPlace {
        let server = PgServer::shared();
        if server.is_pooled() {
            return PgPlace::apart(new_schema());
        }
        PgPlace { url: server.url("postgres"), schema: new_schema(), database: None }
    }

    /// Schemas of one database are within reach of each other.
    fn elsewhere(place: &PgPlace) -> PgPlace {
        PgPlace::apart(place.schema.clone())
    }

    async fn store(place: &PgPlace, clock: Arc<dyn Clock>) -> PgStore {
        let options = PgOptions::new(&*place.url).schema(&*place.schema).clock(clock);
        PgStore::connect(options).await.expect("a store")
    }

    async fn pool(place: &PgPlace) -> Pool<Postgres> {
        let options: PgConnectOptions = place.url.parse().expect("an address");
        let mut options = options.application_name(&place.schema);
        if place.database.is_none() {
            options = options.options([("search_path", &*place.schema)]);
        }
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS);
        pool.connect_with(options).await.expect("a pool")
    }

    async fn idle_in_transactions(place: &PgPlace, _: &Pool<Postgres>) -> i64 {
        let idle = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 \
                    AND state LIKE 'idle in transaction%'";
        let mut look = PgConnection::connect(&place.url).await.expect("a connection");
        let idle = sqlx::query_scalar(idle).bind(&place.schema);
        idle.fetch_one(&mut look).await.expect("a number")
    }

    statements!(PgConnection, "INSERT INTO orders (name) VALUES ($1)");
}

impl Networked for Postgres {
    const COMMIT: &'static [u8] = b"COMMIT";
    const ANSWERED: &'static [u8] = READY_FOR_QUERY;

    fn address() -> SocketAddr {
        PgServer::shared().address()
    }

    fn through(place: &PgPlace, address: SocketAddr) -> PgPlace {
        let database = place.database.as_ref().map_or("postgres", |database| database.name());
        let url = PgServer::shared().url_through(address, database);
        PgPlace { url, schema: place.schema.clone(), database: None }
    }
}

/// In a database of its own on the server that all tests share.
pub(crate) struct MySqlPlace {
    url: String,
    database: String,
}

impl Database for MySql {
    type Store = MySqlStore;
    type Place = MySqlPlace;
    const ORDERS: &'static str = "CREATE TABLE IF NOT EXISTS orders \
        (number BIGINT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(100) NOT NULL)";
    const NEXT_FENCE: &'static str = "UPDATE onceward_records SET fence = fence + 1";

    fn place() -> MySqlPlace {
        let server = MariaDb::shared();
        let database = server.create_database();
        MySqlPlace { url: server.url(&database), database }
    }

    async fn store(place: &MySqlPlace, clock: Arc<dyn Clock>) -> MySqlStore {
        let options = MySqlOptions::new(&*place.url).clock(clock);
        MySqlStore::connect(options).await.expect("a store")
    }

    async fn pool(place: &MySqlPlace) -> Pool<MySql> {
        let pool = MySqlPoolOptions::new().max_connections(CONNECTIONS);
        pool.connect(&place.url).await.expect("a pool")
    }

    async fn idle_in_transactions(place: &MySqlPlace, _: &Pool<MySql>) -> i64 {
        let idle = "SELECT COUNT(*) FROM information_schema.innodb_trx t \
                    JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id \
                    WHERE p.db = DATABASE() AND p.command = 'Sleep'";
        let mut look = MySqlConnection::connect(&place.url).await.expect("a connection");
        sqlx::query_scalar(idle).fetch_one(&mut look).await.expect("a number")
    }

    statements!(MySqlConnection, "INSERT INTO orders (name) VALUES (?)");
}

impl Networked for MySql {
    const COMMIT: &'static [u8] = b"\x03COMMIT";
    /// Any answer at all.
    const ANSWERED: &'static [u8] = b"";

    fn address() -> SocketAddr {
        MariaDb::shared().address()
    }

    fn through(place: &MySqlPlace, address: SocketAddr) -> MySqlPlace {
        let database = place.database.clone();
        MySqlPlace { url: MariaDb::shared().url_through(address, &database), database }
    }
}
