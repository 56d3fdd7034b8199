//! The store suite, on every store, and what one store alone promises.

use std::sync::Arc;

use onceward::{
    KeyRing, MemoryStore, MySqlOptions, MySqlStore, PgOptions, PgStore, RingKey, SealedStore,
    SqliteOptions, SqliteStore, Store, clock::ManualClock, store_suite, testing::Fresh,
};
use onceward_testbed::{MariaDb, Postgres};

mod memory_limits;
mod memory_poisoned;

store_suite!(memory, |clock| async { MemoryStore::with_clock(Arc::new(clock)) });
store_suite!(file, file_store);
store_suite!(postgres, postgres_store);
store_suite!(mariadb, mariadb_store);
store_suite!(sealed_memory, |clock| async {
    sealed(Arc::new(MemoryStore::with_clock(Arc::new(clock))))
});
store_suite!(sealed_file, sealed_file_store);
store_suite!(sealed_postgres, |clock| async { sealed(Arc::new(postgres_store(clock).await)) });
store_suite!(sealed_mariadb, |clock| async { sealed(Arc::new(mariadb_store(clock).await)) });

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
async fn postgres_store(clock: ManualClock) -> PgStore {
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
