//! Proof: what stands behind the claim that nothing runs twice.
//!
//! Worlds, simulated or real, record a history. One judge reads it, whoever recorded it.

pub mod canonical; // the canonical form of JSON, by two implementations
pub mod history; // what happened, as clients, upstream and the store saw it
pub mod check; // what is wrong with it
pub mod timeline; // what happened to one key, for people
pub mod model; // the protocol in small worlds, in every order
pub mod sim; // worlds in which everything breaks, from a seed
pub mod torture; // real processes, broken on purpose
pub mod gate; // what has to hold before a change is taken
