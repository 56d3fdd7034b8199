//! What a store keeps for the canary: how often each process has written to it, and whether it was
//! found to have lost something.

use std::{fmt, str::FromStr};

use super::SCOPE_WIDE;
use crate::{
    clock::Timestamp,
    key::Key,
    record::{AttemptId, AuditEvent, AuditRecord, Fence, RecordId},
    scope::Scope,
};

/// A process that uses a store, for as long as it remembers what the store acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId([u8; 16]);

impl NodeId {
    /// A new one.
    pub fn random() -> Self {
        NodeId(rand::random())
    }

    /// One as a store or a test has it.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        NodeId(bytes)
    }

    /// The 128 bits.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeId({:08x})", u128::from_be_bytes(self.0) >> 96)
    }
}

impl fmt::Display for NodeId {
    /// 32 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl FromStr for NodeId {
    type Err = std::num::ParseIntError;

    fn from_str(digits: &str) -> Result<Self, Self::Err> {
        u128::from_str_radix(digits, 16).map(|bits| NodeId(bits.to_be_bytes()))
    }
}

/// One beat of a node, with what it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beat {
    /// Whose it is.
    pub node: NodeId,
    /// The highest count that the store has acknowledged to it; 0 before the first.
    pub acked: u64,
}

/// What the store says to a beat. It is durable when this comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pulse {
    /// The count of this beat: more than was ever acknowledged to its node.
    pub count: u64,
    /// What was lost, as long as nobody has acknowledged it.
    pub regression: Option<Regression>,
    /// How many other nodes were there a while ago and have not beaten since the store changed hands:
    /// each may know of a loss that nobody else can know of.
    pub absent: u32,
}

/// The store has lost what it had acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regression {
    /// When the last beat was made that it still has: what came after may be lost. `None` if it has
    /// none: anything may be.
    pub since: Option<Timestamp>,
    /// When it was found.
    pub found: Timestamp,
}

/// The last beat of a node that a store has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beaten {
    /// Its count.
    pub count: u64,
    /// When it was made.
    pub at: Timestamp,
}

impl AuditRecord {
    /// The store was found to have lost something, by this node.
    pub fn regressed(node: NodeId, regression: Regression) -> Self {
        let reason = match regression.since {
            Some(since) => format!("lost after {} us", since.as_micros()),
            None => "no beat is left".to_owned(),
        };
        let Regression { found, .. } = regression;
        about_the_store(AuditEvent::StoreRegressed, node.0, &reason, found, found)
    }

    /// Somebody has said that keys may run again.
    pub fn acknowledged(regression: Regression, reason: &str, at: Timestamp) -> Self {
        about_the_store(AuditEvent::RegressionAcknowledged, [0; 16], reason, regression.found, at)
    }
}

/// What stands for scope and key in audit records that are about the whole store.
fn about_the_store(
    event: AuditEvent,
    node: [u8; 16],
    reason: &str,
    found: Timestamp,
    at: Timestamp,
) -> AuditRecord {
    let valid = "one visible character";
    AuditRecord {
        at,
        id: RecordId {
            scope: Scope::new(SCOPE_WIDE).unwrap_or_else(|_| unreachable!("{valid}")),
            key: Key::new(SCOPE_WIDE).unwrap_or_else(|_| unreachable!("{valid}")),
        },
        generation: 1,
        event,
        attempt: AttemptId::from_bytes(node),
        fence: Fence::from_stored(found.as_micros()),
        reason: reason.into(),
        reply: None,
    }
}
