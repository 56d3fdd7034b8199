//! Store URLs, opened.

use std::{path::Path, sync::Arc};

use anyhow::{Context as _, Result};
use onceward::{
    KeyRing, MemoryStore, MySqlOptions, MySqlStore, OutboxStore, PgOptions, PgStore, SealedStore,
    SqliteOptions, SqliteStore, Store,
};

use crate::config::StoreUrl;

/// An open store.
pub(crate) struct OpenStore {
    pub(crate) store: Arc<dyn Store>,
    /// The same, if what it keeps is sealed.
    sealed: Option<Arc<SealedStore>>,
    kind: Kind,
}

/// What has to be closed in the end.
enum Kind {
    Memory,
    File(Arc<SqliteStore>),
    Postgres(Arc<PgStore>),
    MySql(Arc<MySqlStore>),
}

impl OpenStore {
    /// Opens what the URL names. With a ring, what is kept in it is sealed.
    pub(crate) async fn open(url: &StoreUrl, ring: Option<&KeyRing>) -> Result<OpenStore> {
        let open = match url {
            StoreUrl::Memory => Self::of(Arc::new(MemoryStore::new()), Kind::Memory),
            StoreUrl::File(path) => Self::open_file(path).await?,
            StoreUrl::Postgres(url) => Self::connect(url).await?,
            StoreUrl::MySql(url) => Self::connect_to_mysql(url).await?,
        };
        Ok(match ring {
            Some(ring) => {
                let sealed = Arc::new(SealedStore::new(open.store, ring.clone()));
                OpenStore { store: Arc::clone(&sealed) as _, sealed: Some(sealed), ..open }
            }
            None => open,
        })
    }

    fn of(store: Arc<dyn Store>, kind: Kind) -> OpenStore {
        OpenStore { store, sealed: None, kind }
    }

    /// Its outbox, if it has one. Where the rest is sealed, messages are not.
    pub(crate) fn outbox(&self) -> Option<Arc<dyn OutboxStore>> {
        match &self.kind {
            Kind::Memory => None,
            Kind::File(file) => Some(Arc::clone(file) as _),
            Kind::Postgres(store) => Some(Arc::clone(store) as _),
            Kind::MySql(store) => Some(Arc::clone(store) as _),
        }
    }

    /// Rotates the keys of a sealed store.
    pub(crate) fn set_ring(&self, ring: Option<&KeyRing>) {
        if let (Some(sealed), Some(ring)) = (&self.sealed, ring) {
            sealed.set_ring(ring.clone());
        }
    }

    async fn open_file(path: &Path) -> Result<OpenStore> {
        let file = SqliteStore::open(SqliteOptions::new(path)).await;
        let file = file.with_context(|| format!("the store file:{}", path.display()))?;
        let file = Arc::new(file);
        Ok(Self::of(Arc::clone(&file) as Arc<dyn Store>, Kind::File(file)))
    }

    async fn connect(url: &str) -> Result<OpenStore> {
        let store = PgStore::connect(PgOptions::new(url)).await;
        let store = Arc::new(store.context("the PostgreSQL store")?);
        Ok(Self::of(Arc::clone(&store) as Arc<dyn Store>, Kind::Postgres(store)))
    }

    async fn connect_to_mysql(url: &str) -> Result<OpenStore> {
        // The driver knows the one name of the scheme.
        let url = url.replacen("mariadb://", "mysql://", 1);
        let store = MySqlStore::connect(MySqlOptions::new(url)).await;
        let store = Arc::new(store.context("the MySQL store")?);
        Ok(Self::of(Arc::clone(&store) as Arc<dyn Store>, Kind::MySql(store)))
    }

    /// Leaves the store in a clean state. Nothing may be using it any more.
    pub(crate) async fn close(self) {
        match self.kind {
            Kind::Memory => {}
            Kind::File(file) => file.close().await,
            Kind::Postgres(store) => store.close().await,
            Kind::MySql(store) => store.close().await,
        }
    }
}
