//! Proof: what stands behind the claim that nothing runs twice.
//!
//! Worlds, simulated or real, record a history. One judge reads it, whoever recorded it.

pub mod canonical; // the canonical form of JSON, by two implementations
pub mod history; // what happened, as clients, upstream and the store saw it
