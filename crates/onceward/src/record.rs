//! The record: what a store holds for one scope and key.
//!
//! Two clocks, never one. The lease belongs to an attempt, the retention to the record:
//!
//! ```text
//! reserve        renew      complete                      expires_at           purge
//!    |--- lease ---|--- lease ---|                              |                  |
//!    |<-------- in_progress ---->|<------ completed ----------->|<--- tombstone -->|
//! created_at                finished_at     retention                  no body
//! ```

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Uri};
use sha2::{Digest as _, Sha256};

use crate::{clock::Timestamp, fingerprint::Fingerprint, key::Key, reply::Reply, scope::Scope};

pub(crate) mod handle;
mod provider;

pub use provider::{InvalidProviderId, ProviderId, ProviderNote};

/// The address of a record: a key within its scope.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordId {
    /// Who asks.
    pub scope: Scope,
    /// What the client sent.
    pub key: Key,
}

/// One try to execute: 128 random bits, made before `reserve`, so that a lost answer can be asked
/// for again under the same name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttemptId([u8; 16]);

impl AttemptId {
    /// A new attempt.
    pub fn random() -> Self {
        AttemptId(rand::random())
    }

    /// An attempt as a store or a test has it.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        AttemptId(bytes)
    }

    /// The 128 bits.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The attempt as it is displayed: a UUID.
    pub fn to_text(&self) -> [u8; 36] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        // Where the digits of each byte stand, between four hyphens.
        const PLACES: [usize; 16] = [0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34];
        let mut text = [b'-'; 36];
        for (byte, place) in self.0.iter().zip(PLACES) {
            text[place] = DIGITS[usize::from(byte >> 4)];
            text[place + 1] = DIGITS[usize::from(byte & 15)];
        }
        text
    }

    /// An attempt as it is displayed: a UUID.
    pub fn from_text(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.split('-').collect();
        let lengths = parts.iter().map(|part| part.len());
        let hex = |part: &&str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !lengths.eq([8, 4, 4, 4, 12]) || !parts.iter().all(hex) {
            return None;
        }
        let bits = u128::from_str_radix(&parts.concat(), 16).ok()?;
        Some(AttemptId(bits.to_be_bytes()))
    }
}

impl fmt::Debug for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AttemptId({:08x})", u128::from_be_bytes(self.0) >> 96)
    }
}

impl fmt::Display for AttemptId {
    /// As a UUID.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.to_text()).map_err(|_| fmt::Error)?)
    }
}

/// Says which attempt may still write. Grows with every grant of a record and never returns to an
/// old value, not even after the record expired, was purged and made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(i64);

impl Fence {
    /// The fence of the next grant: one more than the last, and at least the time in microseconds,
    /// so that it grows without a counter that would outlive the record.
    pub fn next(previous: Option<Fence>, now: Timestamp) -> Fence {
        let after_previous = previous.map_or(1, |fence| fence.0.saturating_add(1));
        Fence(after_previous.max(now.as_micros()))
    }

    /// A fence as a store has it.
    pub const fn from_stored(number: i64) -> Self {
        Fence(number)
    }

    /// The number.
    pub const fn number(self) -> i64 {
        self.0
    }
}

/// Where a record stands. Stored by these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// Accepted, and nobody has begun.
    Pending,
    /// An attempt holds the lease.
    InProgress,
    /// There is a final reply, be it a success or an error.
    Completed,
    /// Known not to have acted: the same request may run again.
    FailedRetryable,
    /// May have acted. Only a reconciler or an operator moves it on.
    Unknown,
    /// Retention is over: a tombstone without a body.
    Expired,
}

impl State {
    /// All states.
    pub const ALL: [State; 6] = [
        State::Pending,
        State::InProgress,
        State::Completed,
        State::FailedRetryable,
        State::Unknown,
        State::Expired,
    ];

    /// Whether somebody will or does work on it.
    pub const fn is_at_work(self) -> bool {
        matches!(self, State::Pending | State::InProgress)
    }

    /// The name under which the state is stored and shown.
    pub const fn name(self) -> &'static str {
        match self {
            State::Pending => "pending",
            State::InProgress => "in_progress",
            State::Completed => "completed",
            State::FailedRetryable => "failed_retryable",
            State::Unknown => "unknown",
            State::Expired => "expired",
        }
    }

    /// The state of that name.
    pub fn from_name(name: &str) -> Option<State> {
        State::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Whether retention runs: nothing is going on and nothing is open.
    pub const fn is_terminal(self) -> bool {
        matches!(self, State::Completed | State::FailedRetryable | State::Expired)
    }
}

/// What the work behind a route can do to the world; decides what an expired lease means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effects {
    /// Nothing was declared: treated as external when an attempt vanishes.
    Undeclared,
    /// Calls somebody else: a vanished attempt may have acted.
    External,
    /// Runs in phases and effects, and can be resumed at its recovery point.
    Phased,
    /// Only writes that commit together with the reply: a vanished attempt was rolled back.
    Local,
    /// No effect at all: can always run again.
    None,
}

impl Effects {
    /// All declarations.
    pub const ALL: [Effects; 5] =
        [Effects::Undeclared, Effects::External, Effects::Phased, Effects::Local, Effects::None];

    /// The name in configuration and stores.
    pub const fn name(self) -> &'static str {
        match self {
            Effects::Undeclared => "undeclared",
            Effects::External => "external",
            Effects::Phased => "phased",
            Effects::Local => "local",
            Effects::None => "none",
        }
    }

    /// The declaration of that name.
    pub fn from_name(name: &str) -> Option<Effects> {
        Effects::ALL.into_iter().find(|effects| effects.name() == name)
    }
}

/// What a store holds for one scope and key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its address.
    pub id: RecordId,
    /// What was asked.
    pub fingerprint: Fingerprint,
    /// Which use of the key this is: 1, then one more each time an expired key ran again.
    pub generation: u32,
    /// Where it stands.
    pub state: State,
    /// The last attempt that was granted, or that accepted the record.
    pub attempt: AttemptId,
    /// The fence of that grant.
    pub fence: Fence,
    /// How many attempts were granted in this generation.
    pub attempts: u32,
    /// What the work can do to the world, as declared when it was reserved.
    pub effects: Effects,
    /// The name of the policy under which it was reserved.
    pub route: Arc<str>,
    /// The request's method, for operators.
    pub method: Arc<str>,
    /// The request's path without its query, for operators.
    pub path: Arc<str>,
    /// When this generation was first seen.
    pub created_at: Timestamp,
    /// When the last attempt was granted.
    pub started_at: Timestamp,
    /// Until when that attempt may be silent; of pending work, when it may be begun.
    pub lease_until: Timestamp,
    /// How long one attempt may go on renewing.
    pub max_execution: Duration,
    /// When the record came to rest.
    pub finished_at: Option<Timestamp>,
    /// When retention ends. Counts in terminal states only.
    pub expires_at: Timestamp,
    /// How long the record is kept from completion on.
    pub retention: Duration,
    /// How long its tombstone is kept after that; zero for none.
    pub tombstone: Duration,
    /// The stored answer, in `completed`; of a tombstone's only the status is left.
    pub reply: Option<Reply>,
    /// Why the last attempt did not complete, as a stable code.
    pub last_error: Option<Box<str>>,
    /// When the reconciler should look at it, in `unknown` only. [`Timestamp::NEVER`] when it has
    /// given up: a dead letter.
    pub reconcile_after: Option<Timestamp>,
    /// What the reconciler has done about it, in `unknown` only.
    pub inquiry: Inquiry,
    /// Nothing stands behind this tombstone: an operator withdrew the reply, or the generation never
    /// acted. The next use runs as a new generation whatever the policy.
    pub void: bool,
    /// How far this generation has come, if its work is phased.
    pub progress: Progress,
    /// Until when it may wait to be begun, if it was accepted for later: it is *queued*. Pending, it
    /// is not begun before [`Record::lease_until`].
    pub queued_until: Option<Timestamp>,
}

impl Record {
    /// When the tombstone goes too, and the key is new.
    pub fn purge_at(&self) -> Timestamp {
        self.expires_at.plus(self.tombstone)
    }

    /// Whether an attempt is alive, as far as the store can know.
    pub fn lease_is_live(&self, now: Timestamp) -> bool {
        self.state == State::InProgress && now < self.lease_until
    }

    /// Whether the reconciler has given up on it, so that a person must see it.
    pub fn is_dead_letter(&self) -> bool {
        self.state == State::Unknown && self.reconcile_after == Some(Timestamp::NEVER)
    }

    /// Whether a client was promised that it would be executed later.
    pub fn is_queued(&self) -> bool {
        self.queued_until.is_some()
    }
}

/// What was done to learn an unknown outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inquiry {
    /// How many probes were begun.
    pub probes: u32,
    /// When the last one was begun.
    pub asked_at: Option<Timestamp>,
    /// When the first probe was begun that found nothing executed and that counts.
    pub absent_at: Option<Timestamp>,
}

/// How far a phased operation has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The name of the last step that was committed.
    pub recovery_point: Option<Box<str>>,
    /// The effect whose intent is committed and whose result is not: it may have acted.
    pub open_effect: Option<OpenEffect>,
}

impl Progress {
    /// Whether no step was committed, and none is on its way: nothing can have acted.
    pub fn is_none(&self) -> bool {
        self.recovery_point.is_none() && self.open_effect.is_none()
    }

    /// Whether an effect is open that must not be called again.
    pub fn must_not_go_on(&self) -> bool {
        self.open_effect.as_ref().is_some_and(|effect| !effect.idempotent)
    }
}

/// An effect that was about to be called, and of which nobody has said yet what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenEffect {
    /// Its name.
    pub name: Box<str>,
    /// Whether its downstream was declared idempotent, so that it may be called again.
    pub idempotent: bool,
}

/// A step of one generation, as it was committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedStep {
    /// Its name, which no other step of the generation has.
    pub name: Box<str>,
    /// What it came to.
    pub result: Bytes,
}

/// The request of a phased or queued operation, kept so that a worker can go on with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRequest {
    /// The method.
    pub method: Method,
    /// The target, with its query.
    pub uri: Uri,
    /// The headers that are kept, in order, repeated ones too.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The whole body.
    pub body: Bytes,
}

/// The right of one attempt to execute. Dropping it releases nothing: an attempt that vanished may
/// have done its work.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a lease that is not completed, released or marked unknown blocks its key until it ends"]
pub struct Lease {
    /// The record.
    pub id: RecordId,
    /// The attempt that holds the lease.
    pub attempt: AttemptId,
    /// The fence of this grant.
    pub fence: Fence,
    /// The generation of the record.
    pub generation: u32,
    /// Which attempt of this generation it is: 1 for the first.
    pub attempt_number: u32,
    /// When it ends, by the store's clock, unless it is renewed.
    pub until: Timestamp,
}

/// Something that happened to a record and that a person may have to understand later. Kept apart
/// from the record, with a retention of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRecord {
    /// When.
    pub at: Timestamp,
    /// Which record.
    pub id: RecordId,
    /// Which generation of it.
    pub generation: u32,
    /// What happened.
    pub event: AuditEvent,
    /// The attempt it is about.
    pub attempt: AttemptId,
    /// The fence that attempt held.
    pub fence: Fence,
    /// Who did it, and why, in words. Empty for what happens by itself.
    pub reason: Box<str>,
    /// The reply that came with it: evidence, when it was not applied.
    pub reply: Option<Reply>,
}

impl AuditRecord {
    /// Whether both tell of the same thing: a call that was repeated after a lost answer. A store keeps
    /// the first.
    pub fn repeats(&self, known: &AuditRecord) -> bool {
        let of = |it: &AuditRecord| (it.generation, it.event, it.attempt, it.fence);
        known.id == self.id
            && of(known) == of(self)
            && match self.event {
                AuditEvent::DeadLettered | AuditEvent::Redriven => known.at == self.at,
                AuditEvent::Incident => known.told() == self.told(),
                event => !event.is_of_message(),
            }
    }

    /// What tells one incident of an attempt from another: what was told, and by whom. None of
    /// anything else. A sealed reply of one attempt is sealed in the same way each time.
    pub(crate) fn told(&self) -> Option<[u8; 32]> {
        if self.event != AuditEvent::Incident {
            return None;
        }
        let mut digest = Sha256::new();
        let mut part = |bytes: &[u8]| {
            digest.update((bytes.len() as u64).to_be_bytes());
            digest.update(bytes);
        };
        part(self.reason.as_bytes());
        if let Some(reply) = &self.reply {
            part(&reply.status.as_u16().to_be_bytes());
            part(reply.schema_version.as_deref().unwrap_or_default().as_bytes());
            for (name, value) in &reply.headers {
                part(name.as_str().as_bytes());
                part(value.as_bytes());
            }
            part(&reply.body_bytes());
        }
        Some(digest.finalize().into())
    }
}

/// Kinds of audit records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AuditEvent {
    /// A lease ran out and the record was moved on by its declared effects.
    LeaseExpired,
    /// The attempt that was marked unknown completed after all.
    LateCompletion,
    /// A result came from an attempt that had lost its right; it was kept and not applied.
    SupersededResult,
    /// An unknown outcome was found to be completed.
    ResolvedCompleted,
    /// An unknown outcome was found not to have executed.
    Released,
    /// A stored reply was withdrawn.
    Voided,
    /// The data keys of the whole scope were dropped: nothing that was sealed for it opens any more.
    Erased,
    /// Work that was accepted for later was given up before it acted.
    GivenUp,
    /// The reconciler gave up on an unknown outcome: a person must see it.
    DeadLettered,
    /// An unknown outcome was handed to the reconciler again.
    Redriven,
    /// A dead letter of the outbox was made ready again: one of the operation's messages.
    MessageRedriven,
    /// A dead letter of the outbox was deleted: one of the operation's messages.
    MessageDiscarded,
    /// Two results for one generation that do not agree, or a result of what was said not to have
    /// acted. The stored one stands; here is the one that was told. Each is remembered once.
    Incident,
    /// The store was found to have lost what it had acknowledged.
    StoreRegressed,
    /// Somebody said that keys may run again after such a loss.
    RegressionAcknowledged,
}

impl AuditEvent {
    /// All events.
    pub const ALL: [AuditEvent; 15] = [
        AuditEvent::LeaseExpired,
        AuditEvent::LateCompletion,
        AuditEvent::SupersededResult,
        AuditEvent::ResolvedCompleted,
        AuditEvent::Released,
        AuditEvent::Voided,
        AuditEvent::Erased,
        AuditEvent::GivenUp,
        AuditEvent::DeadLettered,
        AuditEvent::Redriven,
        AuditEvent::MessageRedriven,
        AuditEvent::MessageDiscarded,
        AuditEvent::Incident,
        AuditEvent::StoreRegressed,
        AuditEvent::RegressionAcknowledged,
    ];

    /// The name under which the event is stored and shown.
    pub const fn name(self) -> &'static str {
        match self {
            AuditEvent::LeaseExpired => "lease_expired",
            AuditEvent::LateCompletion => "late_completion",
            AuditEvent::SupersededResult => "superseded_result",
            AuditEvent::ResolvedCompleted => "resolved_completed",
            AuditEvent::Released => "released",
            AuditEvent::Voided => "voided",
            AuditEvent::Erased => "erased",
            AuditEvent::GivenUp => "given_up",
            AuditEvent::DeadLettered => "dead_lettered",
            AuditEvent::Redriven => "redriven",
            AuditEvent::MessageRedriven => "message_redriven",
            AuditEvent::MessageDiscarded => "message_discarded",
            AuditEvent::Incident => "incident",
            AuditEvent::StoreRegressed => "store_regressed",
            AuditEvent::RegressionAcknowledged => "regression_acknowledged",
        }
    }

    /// Whether it can happen again to one attempt. What cannot is remembered once, however often it
    /// is told; so is the same incident ([`AuditRecord::repeats`]).
    pub const fn may_recur(self) -> bool {
        matches!(self, AuditEvent::DeadLettered | AuditEvent::Redriven | AuditEvent::Incident)
            || self.is_of_message()
    }

    /// Whether it is about one message of the operation. Many of them may have been claimed by one
    /// attempt, so that they differ by nothing but the message. It is remembered in the step that it is
    /// about, and so never told twice.
    pub(crate) const fn is_of_message(self) -> bool {
        matches!(self, AuditEvent::MessageRedriven | AuditEvent::MessageDiscarded)
    }

    /// The event of that name.
    pub fn from_name(name: &str) -> Option<AuditEvent> {
        AuditEvent::ALL.into_iter().find(|event| event.name() == name)
    }
}
