//! Onceward makes HTTP APIs safe to retry.
//!
//! A client attaches an `Idempotency-Key`; the work behind that key never runs twice unless the
//! first run is known not to have acted or a policy says so; every stored reply is replayed byte for
//! byte; and when nobody can know what happened, Onceward says so instead of guessing.
//!
//! It is not a promise of "exactly once": it is at-least-once delivery with idempotent handling. It
//! is not authentication, not a cache, and it does not make a wrong operation right.
//!
//! The modules, in the order in which a request meets them:

pub mod policy; // which rules hold for this method and path?
pub mod profile; // named sets of rules
pub mod scope; // who is asking?
pub mod key; // what the client sent
pub mod fingerprint; // what is asked
pub mod record; // what a store holds for a scope and key
pub mod store; // what can be asked of a store
pub mod machine; // the rules: pure, and the only place that knows them
pub mod clock; // time, as an argument
pub mod canary; // whether the store still has what it acknowledged
pub mod engine; // the order of the steps
pub mod operation; // a handler's handle on its own record
pub mod phase; // an operation in steps, each done once
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub mod transaction; // in the user's own transaction
pub mod reply; // a stored answer, and responses made of it
pub mod rejection; // our own answers instead of executing
#[cfg(feature = "tower")]
pub mod tower; // bodies in, a task of its own, bodies out
pub mod outbox; // messages that commit with business rows, and the relay that delivers them
#[cfg(any(feature = "worker", feature = "testing"))]
pub mod worker; // what has to be done though no client comes
pub mod observe; // metrics
#[cfg(feature = "testing")]
pub mod testing; // the store suite, and tools to force faults and interleavings

pub use canary::Canary;
pub use engine::{Engine, Limits, Rate, Settings};
pub use fingerprint::Recipe;
pub use key::{Key, KeyRules, LookupKey};
pub use operation::Operation;
pub use outbox::{Message, OutboxStore, Relay, Sink};
pub use phase::{Effect, EffectError, StepError};
pub use policy::{InFlight, Policy, Queued, Routes};
pub use profile::Profile;
pub use record::{Effects, ProviderId};
pub use rejection::Rejection;
pub use reply::Reply;
pub use scope::{Scope, ScopeRule};
#[cfg(feature = "encryption")]
pub use store::{KeyRing, RingKey, SealedStore};
pub use store::{MemoryStore, Store};
#[cfg(feature = "mysql")]
pub use store::{MySqlOptions, MySqlStore};
#[cfg(feature = "postgres")]
pub use store::{PgOptions, PgStore};
#[cfg(feature = "sqlite")]
pub use store::{SqliteOptions, SqliteStore};
#[cfg(feature = "tower")]
pub use tower::{Idempotency, Resumer};
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub use transaction::{TransactionError, Transactional, TransactionalDatabase};
#[cfg(feature = "worker")]
pub use worker::{Finding, Probe, Reconciler, Unknown};

/// The example of the README compiles.
#[cfg(all(doctest, feature = "sqlite"))]
#[doc = include_str!("../../../README.md")]
struct Readme;
