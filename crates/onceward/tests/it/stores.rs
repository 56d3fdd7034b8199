//! The store suite, on every store, and what one store alone promises.

use std::sync::Arc;

use onceward::{
    MemoryStore, SqliteOptions, SqliteStore, clock::ManualClock, store_suite, testing::Fresh,
};

mod memory_limits;
mod memory_poisoned;

store_suite!(memory, |clock| async { MemoryStore::with_clock(Arc::new(clock)) });
store_suite!(file, file_store);

async fn file_store(clock: ManualClock) -> Fresh {
    let directory = tempfile::tempdir().expect("a directory");
    let options = SqliteOptions::new(directory.path().join("store.db")).clock(Arc::new(clock));
    Fresh::from(SqliteStore::open(options).await.expect("a store")).keeping(directory)
}
