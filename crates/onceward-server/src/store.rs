//! Store URLs, opened.

use std::{path::Path, sync::Arc};

use anyhow::{Context as _, Result};
use onceward::{MemoryStore, SqliteOptions, SqliteStore, Store};

use crate::config::StoreUrl;

/// An open store.
pub(crate) struct OpenStore {
    pub(crate) store: Arc<dyn Store>,
    file: Option<Arc<SqliteStore>>,
}

impl OpenStore {
    /// Opens what the URL names.
    pub(crate) async fn open(url: &StoreUrl) -> Result<OpenStore> {
        match url {
            StoreUrl::Memory => Ok(OpenStore { store: Arc::new(MemoryStore::new()), file: None }),
            StoreUrl::File(path) => Self::open_file(path).await,
        }
    }

    async fn open_file(path: &Path) -> Result<OpenStore> {
        let file = SqliteStore::open(SqliteOptions::new(path)).await;
        let file = file.with_context(|| format!("the store file:{}", path.display()))?;
        let file = Arc::new(file);
        Ok(OpenStore { store: Arc::clone(&file) as Arc<dyn Store>, file: Some(file) })
    }

    /// Leaves the store in a clean state. Nothing may be using it any more.
    pub(crate) async fn close(self) {
        if let Some(file) = self.file {
            file.close().await;
        }
    }
}
