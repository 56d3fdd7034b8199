//! The store suite, on every store, and what one store alone promises.

use std::sync::Arc;

use onceward::{
    MemoryStore, PgOptions, PgStore, SqliteOptions, SqliteStore, clock::ManualClock, store_suite,
    testing::Fresh,
};
use onceward_testbed::Postgres;

mod memory_limits;
mod memory_poisoned;

store_suite!(memory, |clock| async { MemoryStore::with_clock(Arc::new(clock)) });
store_suite!(file, file_store);
store_suite!(postgres, postgres_store);

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
