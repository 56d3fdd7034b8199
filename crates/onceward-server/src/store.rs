//! Store URLs, opened.

use std::{path::Path, sync::Arc};

use anyhow::{Result, bail};
use onceward::{MemoryStore, Store};

use crate::config::StoreUrl;

/// An open store.
pub(crate) struct OpenStore {
    pub(crate) store: Arc<dyn Store>,
}

impl OpenStore {
    /// Opens what the URL names.
    pub(crate) async fn open(url: &StoreUrl) -> Result<OpenStore> {
        match url {
            StoreUrl::Memory => Ok(OpenStore { store: Arc::new(MemoryStore::new()) }),
            StoreUrl::File(path) => open_file(path).await,
        }
    }

    /// Leaves the store in a clean state. Nothing may be using it any more.
    pub(crate) async fn close(self) {
        drop(self.store);
    }
}

/// PLACEHOLDER until the library has its file store: `SqliteStore::open(SqliteOptions::new(path))`
/// goes here, and its `close` into `OpenStore::close`.
async fn open_file(path: &Path) -> Result<OpenStore> {
    bail!("the store file:{} is not built in; use --store memory:", path.display())
}
