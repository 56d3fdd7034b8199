//! Real servers for tests and benchmarks, each in a directory and on a port of its own.
//!
//! A server ends with whoever started it, also when that process is killed. A missing server
//! program is a panic, never a skipped test: `./test` installs them all.

mod mariadb; // a MariaDB server, the same
mod postgres; // a PostgreSQL server, with the durability that users get
mod pgbouncer; // a pool before it, in transaction mode
mod redis; // a Redis server that syncs each write, and a Cluster of them
mod dynamodb; // an emulator of DynamoDB
mod restate; // Restate's server, to compare with
mod proxy; // TCP connections that break on purpose
mod fetched; // programs of other versions than the system has
mod watchdog; // ends a server with its owner

pub use dynamodb::DynamoDb;
pub use mariadb::MariaDb;
pub use pgbouncer::PgBouncer;
pub use postgres::{Database, Postgres};
pub use proxy::{Break, CutProxy, Fate, OnFault, READY_FOR_QUERY, Way};
pub use redis::{Redis, RedisCluster};
pub use restate::Restate;
