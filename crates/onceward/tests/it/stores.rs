//! The store suite, on every store, and what one store alone promises.

use std::sync::Arc;

use onceward::{
    DynamoOptions, DynamoStore, KeyRing, MemoryStore, MySqlOptions, MySqlStore, PgOptions, PgStore,
    RedisOptions, RedisStore, RingKey, SealedStore, SqliteOptions, SqliteStore, Store,
    clock::ManualClock, store_suite, testing::Fresh,
};
use onceward_testbed::{DynamoDb, MariaDb, Postgres, Redis, RedisCluster};

mod memory_limits;
mod memory_poisoned;

store_suite!(memory, |clock| async { MemoryStore::with_clock(Arc::new(clock)) });
store_suite!(file, file_store);
store_suite!(postgres, postgres_store);
store_suite!(mariadb, mariadb_store);
store_suite!(redis, redis_store);
store_suite!(redis_cluster, redis_cluster_store);
store_suite!(dynamodb, dynamodb_store);
store_suite!(sealed_memory, |clock| async {
    sealed(Arc::new(MemoryStore::with_clock(Arc::new(clock))))
});
store_suite!(sealed_file, sealed_file_store);
store_suite!(sealed_postgres, |clock| async { sealed(Arc::new(postgres_store(clock).await)) });

/// The same store with what it keeps sealed.
fn sealed(inner: Arc<dyn Store>) -> SealedStore {
    let ring = KeyRing::new([RingKey::new("2026", [1; 32]), RingKey::new("2025", [2; 32])]);
    SealedStore::new(inner, ring.expect("a ring"))
}

async fn sealed_file_store(clock: ManualClock) -> Fresh {
    let directory = tempfile::tempdir().expect("a directory");
    let options = SqliteOptions::new(directory.path().join("store.db")).clock(Arc::new(clock));
    let store = SqliteStore::open(options).await.expect("a store");
    Fresh::from(sealed(Arc::new(store))).keeping(directory)
}

async fn file_store(clock: ManualClock) -> Fresh {
    let directory = tempfile::tempdir().expect("a directory");
    let options = SqliteOptions::new(directory.path().join("store.db")).clock(Arc::new(clock));
    Fresh::from(SqliteStore::open(options).await.expect("a store")).keeping(directory)
}

/// In a schema of its own.
pub(crate) async fn postgres_store(clock: ManualClock) -> PgStore {
    let schema = format!("suite_{:016x}", rand::random::<u64>());
    let url = Postgres::shared().url("postgres");
    let options = PgOptions::new(url).schema(schema).clock(Arc::new(clock));
    PgStore::connect(options).await.expect("a store")
}

/// In a database of its own.
async fn mariadb_store(clock: ManualClock) -> MySqlStore {
    let server = MariaDb::shared();
    let options = MySqlOptions::new(server.url(&server.create_database()));
    MySqlStore::connect(options.clock(Arc::new(clock))).await.expect("a store")
}

/// Under a prefix of its own. With few buckets, so that they are shared.
async fn redis_store(clock: ManualClock) -> RedisStore {
    redis_store_at(Redis::shared().url(), clock).await
}

async fn redis_cluster_store(clock: ManualClock) -> RedisStore {
    redis_store_at(RedisCluster::shared().url(), clock).await
}

async fn redis_store_at(url: String, clock: ManualClock) -> RedisStore {
    let prefix = format!("suite_{:016x}", rand::random::<u64>());
    let options = RedisOptions::best_effort(url).prefix(prefix).buckets(3).clock(Arc::new(clock));
    RedisStore::connect(options).await.expect("a store")
}

/// In a table of its own. Its indexes have few parts, since each part is asked for by itself.
async fn dynamodb_store(clock: ManualClock) -> DynamoStore {
    let table = format!("suite_{:016x}", rand::random::<u64>());
    let options = DynamoOptions::new(table)
        .endpoint(DynamoDb::shared().endpoint())
        .region("local")
        .shards(2)
        .clock(Arc::new(clock));
    DynamoStore::open(options).await.expect("a store")
}
