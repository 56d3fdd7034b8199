//! Store URLs, opened.

use std::{path::Path, sync::Arc};

use anyhow::{Context as _, Result};
use onceward::{MemoryStore, PgOptions, PgStore, SqliteOptions, SqliteStore, Store};

use crate::config::StoreUrl;

/// An open store.
pub(crate) struct OpenStore {
    pub(crate) store: Arc<dyn Store>,
    kind: Kind,
}

/// What has to be closed in the end.
enum Kind {
    Memory,
    File(Arc<SqliteStore>),
    Postgres(Arc<PgStore>),
}

impl OpenStore {
    /// Opens what the URL names.
    pub(crate) async fn open(url: &StoreUrl) -> Result<OpenStore> {
        match url {
            StoreUrl::Memory => {
                Ok(OpenStore { store: Arc::new(MemoryStore::new()), kind: Kind::Memory })
            }
            StoreUrl::File(path) => Self::open_file(path).await,
            StoreUrl::Postgres(url) => Self::connect(url).await,
        }
    }

    async fn open_file(path: &Path) -> Result<OpenStore> {
        let file = SqliteStore::open(SqliteOptions::new(path)).await;
        let file = file.with_context(|| format!("the store file:{}", path.display()))?;
        let file = Arc::new(file);
        Ok(OpenStore { store: Arc::clone(&file) as Arc<dyn Store>, kind: Kind::File(file) })
    }

    async fn connect(url: &str) -> Result<OpenStore> {
        let store = PgStore::connect(PgOptions::new(url)).await;
        let store = Arc::new(store.context("the PostgreSQL store")?);
        Ok(OpenStore { store: Arc::clone(&store) as Arc<dyn Store>, kind: Kind::Postgres(store) })
    }

    /// Leaves the store in a clean state. Nothing may be using it any more.
    pub(crate) async fn close(self) {
        match self.kind {
            Kind::Memory => {}
            Kind::File(file) => file.close().await,
            Kind::Postgres(store) => store.close().await,
        }
    }
}
