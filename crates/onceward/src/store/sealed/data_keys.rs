//! The data keys of scopes, unwrapped: read from the store, and remembered for a short while.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    KeyRing,
    envelope::{Cipher, Place},
};
use crate::{
    scope::Scope,
    store::{ScopeKey, Store, StoreError, StoreErrorKind},
};

/// A data key that another process dropped may be used here for so long.
pub(super) const REMEMBERED_FOR: Duration = Duration::from_secs(30);

/// So many scopes are remembered at most.
const REMEMBERED_MAX: usize = 10_000;

pub(super) struct DataKeys {
    ring: RwLock<Arc<KeyRing>>,
    remembered: Mutex<Remembered>,
}

/// The data keys of scopes, and when they were read.
type Remembered = HashMap<Scope, (Instant, Arc<[DataKey]>)>;

/// One data key, as far as this process can use it.
pub(super) struct DataKey {
    pub(super) id: [u8; 16],
    pub(super) wrapped_by: Box<str>,
    pub(super) state: KeyState,
}

pub(super) enum KeyState {
    Usable(Cipher),
    /// Its scope was erased.
    Dropped,
    /// The key that wraps it is not in the ring.
    NotInRing,
    /// The key of that name in the ring does not open it.
    DoesNotOpen,
}

impl DataKeys {
    pub(super) fn new(ring: KeyRing) -> Self {
        DataKeys { ring: RwLock::new(Arc::new(ring)), remembered: Mutex::default() }
    }

    pub(super) fn ring(&self) -> Arc<KeyRing> {
        Arc::clone(&self.ring.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn set_ring(&self, ring: KeyRing) {
        *self.ring.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(ring);
        self.lock().clear();
    }

    pub(super) fn forget(&self, scope: &Scope) {
        self.lock().remove(scope);
    }

    fn lock(&self) -> MutexGuard<'_, Remembered> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is remembered of a scope, if it is fresh enough.
    pub(super) fn remembered(&self, scope: &Scope) -> Option<Arc<[DataKey]>> {
        let remembered = self.lock();
        let (read_at, keys) = remembered.get(scope)?;
        (read_at.elapsed() < REMEMBERED_FOR).then(|| Arc::clone(keys))
    }

    /// Reads the data keys of a scope anew.
    pub(super) async fn read(
        &self,
        store: &dyn Store,
        scope: &Scope,
        proposed: Option<ScopeKey>,
    ) -> Result<Arc<[DataKey]>, StoreError> {
        let ring = self.ring();
        // Counted from before the store is asked: what changes meanwhile is not fresh.
        let read_at = Instant::now();
        let keys = store.scope_keys(scope, proposed).await?;
        let keys: Arc<[DataKey]> = keys.iter().map(|key| unwrap(&ring, scope, key)).collect();
        let mut remembered = self.lock();
        if remembered.len() >= REMEMBERED_MAX {
            remembered.retain(|_, (read_at, _)| read_at.elapsed() < REMEMBERED_FOR);
        }
        if remembered.len() >= REMEMBERED_MAX {
            remembered.clear();
        }
        // A ring that was replaced in between unwraps other keys.
        if Arc::ptr_eq(&ring, &self.ring()) {
            remembered.insert(scope.clone(), (read_at, Arc::clone(&keys)));
        }
        Ok(keys)
    }

    /// A new data key for a scope, wrapped by the key that seals.
    pub(super) fn propose(&self, scope: &Scope) -> Option<ScopeKey> {
        let ring = self.ring();
        let wraps = ring.sealing();
        let (id, key): ([u8; 16], [u8; 32]) = rand::random();
        let place = Place::data_key(scope.as_str(), &id, wraps.id());
        let wrapped = Cipher::new(wraps.secret()).seal(&key, &place)?;
        Some(ScopeKey { id, wrapped_by: wraps.id().into(), wrapped: Some(wrapped.into()) })
    }
}

fn unwrap(ring: &KeyRing, scope: &Scope, key: &ScopeKey) -> DataKey {
    let state = match (&key.wrapped, ring.get(&key.wrapped_by)) {
        (None, _) => KeyState::Dropped,
        (Some(_), None) => KeyState::NotInRing,
        (Some(wrapped), Some(wraps)) => {
            let place = Place::data_key(scope.as_str(), &key.id, &key.wrapped_by);
            let opened = Cipher::new(wraps.secret()).open(wrapped, &place);
            match opened.and_then(|opened| opened.try_into().ok()) {
                Some(opened) => KeyState::Usable(Cipher::new(&opened)),
                None => KeyState::DoesNotOpen,
            }
        }
    };
    DataKey { id: key.id, wrapped_by: key.wrapped_by.clone(), state }
}

/// What cannot be opened is damaged as far as this process can tell: never absent, never empty.
pub(super) fn unopened(why: impl Into<Box<str>>) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, "sealed", why)
}

impl DataKey {
    /// Why it cannot be used.
    pub(super) fn unusable(&self) -> StoreError {
        let by = &self.wrapped_by;
        match self.state {
            KeyState::NotInRing => unopened(format!("ring key `{by}` is not in the key ring")),
            KeyState::DoesNotOpen => unopened(format!(
                "ring key `{by}` does not open a data key of its name: it has another secret, or the \
                 data key was moved"
            )),
            KeyState::Dropped => unopened("its scope was erased"),
            KeyState::Usable(_) => unopened("it was moved here, or damaged"),
        }
    }
}
