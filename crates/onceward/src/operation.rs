//! The operation: a handler's handle on its own record, and the opaque id under which a client may
//! ask for its state.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::{
    clock::Clock,
    key::Key,
    policy::Policy,
    record::{AttemptId, Fence, Lease, OpenEffect, RecordId, SavedStep},
    scope::Scope,
    store::{Ask, Store},
};

mod account;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql", feature = "dynamodb"))]
mod completing;
mod provider;

pub(crate) use account::{Account, AtWork, Step, Taken};
pub use provider::NoteError;

/// A handler's handle on its own record. In the extensions of every protected request, and an axum
/// extractor.
#[derive(Clone)]
pub struct Operation(Arc<Inner>);

struct Inner {
    id: RecordId,
    attempt: AttemptId,
    /// What was granted. None before an operation of a `single` route has reserved.
    lease: Mutex<Option<Arc<Lease>>>,
    deadline: Mutex<Instant>,
    context: Context,
    /// The results of the steps that earlier attempts of this generation saved.
    saved: HashMap<Box<str>, Bytes>,
    account: Mutex<Account>,
}

/// What an operation needs of its engine.
pub(crate) struct Context {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) policy: Arc<Policy>,
    /// How long a store call is repeated.
    pub(crate) store_deadline: Duration,
    /// The reserve that an operation of a `single` route makes in its own transaction.
    #[cfg_attr(
        not(any(feature = "sqlite", feature = "postgres", feature = "mysql")),
        expect(dead_code, reason = "only transactions use it")
    )]
    pub(crate) ask: Option<Ask>,
}

/// How far earlier attempts of this generation have come.
#[derive(Debug, Default)]
pub(crate) struct Recalled {
    pub(crate) saved: Vec<SavedStep>,
    pub(crate) open_effect: Option<OpenEffect>,
}

impl Operation {
    /// The operation of an attempt that was granted.
    pub(crate) fn new(
        lease: &Lease,
        deadline: Instant,
        recalled: Recalled,
        context: Context,
    ) -> Self {
        let operation = Self::make(lease.id.clone(), lease.attempt, deadline, recalled, context);
        operation.hold(lease);
        operation
    }

    /// The operation of a `single` route, which is reserved in its own transaction.
    pub(crate) fn unreserved(ask: &Ask, deadline: Instant, context: Context) -> Self {
        let recalled = Recalled::default();
        Self::make(ask.id.clone(), ask.attempt, deadline, recalled, context)
    }

    fn make(
        id: RecordId,
        attempt: AttemptId,
        deadline: Instant,
        recalled: Recalled,
        context: Context,
    ) -> Self {
        let account = Account::after(&recalled);
        Operation(Arc::new(Inner {
            id,
            attempt,
            lease: Mutex::new(None),
            deadline: Mutex::new(deadline),
            context,
            saved: recalled.saved.into_iter().map(|step| (step.name, step.result)).collect(),
            account: Mutex::new(account),
        }))
    }

    /// The scope and key it belongs to.
    pub fn id(&self) -> &RecordId {
        &self.0.id
    }

    /// What the SQL functions `onceward.complete` and its like call this operation, for drivers other
    /// than sqlx. They also want [`Operation::attempt`] and [`Operation::fence`].
    pub fn handle(&self) -> String {
        self.id().handle()
    }

    /// Which use of the key this is: 1 unless an expired key runs again. Of a `single` route known
    /// once it has reserved.
    pub fn generation(&self) -> u32 {
        self.lease().map_or(1, |lease| lease.generation)
    }

    /// Which attempt of this generation this is. From 2 on, an earlier one was begun and is known
    /// not to have acted, or stopped between two steps. Of a `single` route known once it has
    /// reserved.
    pub fn attempt_number(&self) -> u32 {
        self.lease().map_or(1, |lease| lease.attempt_number)
    }

    /// The random id of this attempt.
    pub fn attempt(&self) -> AttemptId {
        self.0.attempt
    }

    /// The fence of this attempt: larger than that of any attempt before. Of a `single` route known
    /// once it has reserved.
    pub fn fence(&self) -> Fence {
        self.lease().map_or(Fence::from_stored(0), |lease| lease.fence)
    }

    /// Whether this attempt still holds its lease by its own monotonic clock. Ask right before an
    /// effect: a process that was paused must not act on a right it may have lost.
    pub fn may_act(&self) -> bool {
        let deadline = *self.0.deadline.lock().unwrap_or_else(PoisonError::into_inner);
        self.context().clock.monotonic() < deadline
    }

    /// For handlers whose whole work is to send one request to somebody: nothing of it was sent so
    /// far. If the process has to stop now, it is known that nothing was done.
    pub fn not_yet_sent(&self) {
        self.account().unsent = true;
    }

    /// The same as [`may_act`](Self::may_act), right before such a handler sends: from here on it may
    /// have acted.
    pub fn may_send(&self) -> bool {
        let may = self.may_act();
        if may {
            self.account().unsent = false;
        }
        may
    }

    pub(crate) fn lease_left(&self) -> Duration {
        let deadline = *self.0.deadline.lock().unwrap_or_else(PoisonError::into_inner);
        deadline.saturating_duration_since(self.context().clock.monotonic())
    }

    /// Somebody else decided about the record: this attempt may not act any more.
    pub(crate) fn lose_lease(&self) {
        self.extend_deadline(self.context().clock.monotonic());
    }

    pub(crate) fn extend_deadline(&self, deadline: Instant) {
        *self.0.deadline.lock().unwrap_or_else(PoisonError::into_inner) = deadline;
    }

    pub(crate) fn context(&self) -> &Context {
        &self.0.context
    }

    /// What was granted, if anything was.
    pub(crate) fn lease(&self) -> Option<Arc<Lease>> {
        self.0.lease.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn hold(&self, lease: &Lease) {
        let lease = Lease { id: lease.id.clone(), ..*lease };
        *self.0.lease.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(lease));
    }

    pub(crate) fn saved(&self, name: &str) -> Option<&Bytes> {
        self.0.saved.get(name)
    }

    /// What the handler did with its operation so far.
    pub(crate) fn account(&self) -> MutexGuard<'_, Account> {
        self.0.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A key for a call to somebody else, the same for every attempt of this generation, so that
    /// a downstream that knows idempotency keys does not act twice either.
    pub fn derived_key(&self, name: &str) -> String {
        derived_key(&self.0.id, self.generation(), name)
    }
}

/// The key of that name for one generation of a record: what [`Operation::derived_key`] is, for
/// whoever looks at the record later.
pub fn derived_key(id: &RecordId, generation: u32, name: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(b"onceward-derived-key/1");
    for part in [id.scope.as_str(), id.key.as_str(), name] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.update(generation.to_be_bytes());
    URL_SAFE_NO_PAD.encode(hash.finalize().get(..24).unwrap_or_default())
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation")
            .field("id", &self.0.id)
            .field("generation", &self.generation())
            .field("attempt_number", &self.attempt_number())
            .field("fence", &self.fence())
            .finish()
    }
}

#[cfg(feature = "axum")]
impl<S: Send + Sync> axum_core::extract::FromRequestParts<S> for Operation {
    type Rejection = NotProtected;

    async fn from_request_parts(
        parts: &mut http::request::Parts,
        _state: &S,
    ) -> Result<Self, Self::Rejection> {
        parts.extensions.get::<Operation>().cloned().ok_or(NotProtected)
    }
}

/// A handler asked for its operation, and the request did not come through the layer with a key.
#[cfg(feature = "axum")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this route is not behind an Idempotency layer, or the request has no key")]
pub struct NotProtected;

#[cfg(feature = "axum")]
impl axum_core::response::IntoResponse for NotProtected {
    fn into_response(self) -> axum_core::response::Response {
        (http::StatusCode::INTERNAL_SERVER_ERROR, self.to_string()).into_response()
    }
}

/// The id under which a client asks for the state of its operation. Opaque, so that the key does not
/// appear in addresses and access logs; it is the key sealed for its scope, so that no store needs
/// an index for it and nobody else's id opens.
pub(crate) mod sealed_id {
    use base64::Engine as _;

    use super::{Digest, Hmac, Key, KeyInit, Mac, Scope, Sha256, URL_SAFE_NO_PAD};

    const TAG_LEN: usize = 16;

    pub(crate) fn seal(scope: &Scope, key: &Key) -> String {
        let secret = secret_of(scope);
        let tag = mac(&secret, &[b"tag", key.as_str().as_bytes()]);
        let tag = tag.get(..TAG_LEN).unwrap_or_default();
        let sealed = [tag, &masked(&secret, tag, key.as_str().as_bytes())].concat();
        URL_SAFE_NO_PAD.encode(sealed)
    }

    pub(crate) fn open(scope: &Scope, id: &str) -> Option<Key> {
        let sealed = URL_SAFE_NO_PAD.decode(id).ok()?;
        let (tag, body) = sealed.split_at_checked(TAG_LEN)?;
        let secret = secret_of(scope);
        let key = String::from_utf8(masked(&secret, tag, body)).ok()?;
        let expected = mac(&secret, &[b"tag", key.as_bytes()]);
        if expected.get(..TAG_LEN) != Some(tag) {
            return None;
        }
        Key::new(key).ok()
    }

    fn secret_of(scope: &Scope) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(b"onceward-operation-id/1");
        hash.update(scope.as_str());
        hash.finalize().into()
    }

    fn masked(secret: &[u8; 32], tag: &[u8], bytes: &[u8]) -> Vec<u8> {
        let blocks = (0_u64..).flat_map(|block| mac(secret, &[b"mask", tag, &block.to_be_bytes()]));
        bytes.iter().zip(blocks).map(|(byte, mask)| byte ^ mask).collect()
    }

    fn mac(secret: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
        let mut block = [0; 64];
        block.iter_mut().zip(secret).for_each(|(byte, secret)| *byte = *secret);
        let mut mac = Hmac::<Sha256>::new(&block.into());
        parts.iter().for_each(|part| mac.update(part));
        mac.finalize().into_bytes().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(scope: &str, key: &str) -> RecordId {
        RecordId { scope: Scope::new(scope).expect("scope"), key: Key::new(key).expect("key") }
    }

    fn operation(scope: &str, key: &str, generation: u32, attempt: u8) -> Operation {
        let lease = Lease {
            id: id(scope, key),
            attempt: AttemptId::from_bytes([attempt; 16]),
            fence: Fence::from_stored(i64::from(attempt)),
            generation,
            attempt_number: u32::from(attempt),
            until: crate::clock::Timestamp::from_micros(0),
        };
        let context = Context {
            store: Arc::new(crate::MemoryStore::new()),
            clock: Arc::new(crate::clock::SystemClock),
            policy: Arc::new(Policy::required()),
            store_deadline: Duration::ZERO,
            ask: None,
        };
        Operation::new(&lease, Instant::now(), Recalled::default(), context)
    }

    #[test]
    fn an_operation_id_opens_in_its_scope_only() {
        let mine = id("acme", "order-0000000000000001");
        let sealed = sealed_id::seal(&mine.scope, &mine.key);
        assert_eq!(sealed_id::open(&mine.scope, &sealed), Some(mine.key));
        assert_eq!(sealed_id::open(&Scope::new("evil").expect("scope"), &sealed), None);
        assert!(!sealed.contains("order"));
    }

    #[test]
    fn a_damaged_operation_id_does_not_open() {
        let mine = id("acme", "order-0000000000000001");
        for damaged in ["", "AAAA", "not base64!", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"] {
            assert_eq!(sealed_id::open(&mine.scope, damaged), None, "{damaged}");
        }
    }

    #[test]
    fn a_derived_key_is_stable_across_attempts_and_differs_otherwise() {
        let first = operation("acme", "key-1", 1, 1).derived_key("charge");
        assert_eq!(operation("acme", "key-1", 1, 2).derived_key("charge"), first);
        for other in [
            operation("acme", "key-1", 2, 1).derived_key("charge"),
            operation("acme", "key-2", 1, 1).derived_key("charge"),
            operation("evil", "key-1", 1, 1).derived_key("charge"),
            operation("acme", "key-1", 1, 1).derived_key("refund"),
            operation("acmek", "ey-1", 1, 1).derived_key("charge"),
        ] {
            assert_ne!(other, first);
        }
    }
}
