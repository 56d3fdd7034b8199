//! The outbox suite, on every store.

use std::sync::Arc;

use onceward::{
    MemoryStore, SqliteOptions, SqliteStore,
    clock::ManualClock,
    outbox_suite,
    testing::outbox::{FreshOutbox, MemoryOutbox},
};

outbox_suite!(memory, memory_outbox);
outbox_suite!(file, file_outbox);

async fn memory_outbox(clock: ManualClock) -> FreshOutbox {
    let store = Arc::new(MemoryStore::with_clock(Arc::new(clock.clone())));
    FreshOutbox::new(store.clone(), Arc::new(MemoryOutbox::new(store, Arc::new(clock))))
}

async fn file_outbox(clock: ManualClock) -> FreshOutbox {
    let directory = tempfile::tempdir().expect("a directory");
    let options = SqliteOptions::new(directory.path().join("store.db")).clock(Arc::new(clock));
    FreshOutbox::from(SqliteStore::open(options).await.expect("a store")).keeping(directory)
}
