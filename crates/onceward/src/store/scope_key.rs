//! The data key of a scope, as a store keeps it.

use bytes::Bytes;

use crate::{
    clock::Timestamp,
    key::Key,
    record::{AttemptId, AuditEvent, AuditRecord, Fence, RecordId},
    scope::Scope,
};

/// The key under which what is sealed for a scope is found again, itself wrapped by a key that the
/// store does not have. A scope has one for each key that wraps; one that was dropped is known by
/// its id alone, so that what was sealed with it can be told from what was tampered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeKey {
    /// Random, and named by everything that is sealed with it.
    pub id: [u8; 16],
    /// The name of the key that wraps it.
    pub wrapped_by: Box<str>,
    /// The wrapped key; `None` once it was dropped.
    pub wrapped: Option<Bytes>,
}

impl ScopeKey {
    /// Whether it was not dropped.
    pub fn stands(&self) -> bool {
        self.wrapped.is_some()
    }
}

/// What stands for the key in audit records that are about a whole scope.
pub const SCOPE_WIDE: &str = "*";

impl AuditRecord {
    /// The data key of this id was dropped.
    pub fn erased(scope: Scope, key: [u8; 16], reason: &str, at: Timestamp) -> Self {
        let all = Key::new(SCOPE_WIDE).unwrap_or_else(|_| unreachable!("one visible character"));
        AuditRecord {
            at,
            id: RecordId { scope, key: all },
            generation: 1,
            event: AuditEvent::Erased,
            attempt: AttemptId::from_bytes(key),
            fence: Fence::from_stored(0),
            reason: reason.into(),
            reply: None,
        }
    }
}
