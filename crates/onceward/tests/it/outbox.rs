//! The outbox suite, on every store.

use std::sync::Arc;

use onceward::{
    MemoryStore, MySqlOptions, MySqlStore, PgOptions, PgStore, SqliteOptions, SqliteStore,
    clock::ManualClock,
    outbox_suite,
    testing::outbox::{FreshOutbox, MemoryOutbox},
};
use onceward_testbed::{MariaDb, Postgres};

outbox_suite!(memory, memory_outbox);
outbox_suite!(file, file_outbox);
outbox_suite!(postgres, postgres_outbox);
outbox_suite!(mariadb, mariadb_outbox);

async fn memory_outbox(clock: ManualClock) -> FreshOutbox {
    let store = Arc::new(MemoryStore::with_clock(Arc::new(clock.clone())));
    FreshOutbox::new(store.clone(), Arc::new(MemoryOutbox::new(store, Arc::new(clock))))
}

async fn file_outbox(clock: ManualClock) -> FreshOutbox {
    let directory = tempfile::tempdir().expect("a directory");
    let options = SqliteOptions::new(directory.path().join("store.db")).clock(Arc::new(clock));
    FreshOutbox::from(SqliteStore::open(options).await.expect("a store")).keeping(directory)
}

/// In a schema of its own.
async fn postgres_outbox(clock: ManualClock) -> PgStore {
    let schema = format!("outbox_{:016x}", rand::random::<u64>());
    let options = PgOptions::new(Postgres::shared().url("postgres")).schema(schema);
    PgStore::connect(options.clock(Arc::new(clock))).await.expect("a store")
}

/// In a database of its own.
async fn mariadb_outbox(clock: ManualClock) -> MySqlStore {
    let server = MariaDb::shared();
    let options = MySqlOptions::new(server.url(&server.create_database()));
    MySqlStore::connect(options.clock(Arc::new(clock))).await.expect("a store")
}
