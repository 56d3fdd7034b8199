//! For tests of stores, and of services that use them: the store suite, and tools that force faults
//! and interleavings.
//!
//! A store of your own is checked by one line in its tests:
//!
//! ```
//! # use std::sync::Arc;
//! # use onceward::MemoryStore as MyStore;
//! onceward::store_suite!(my_store, |clock| async { MyStore::with_clock(Arc::new(clock)) });
//! ```
//!
//! which makes one named test per case, each on a fresh store. See [`store_suite!`](crate::store_suite).

pub mod suite; // the cases, each a sentence
pub mod fuzz; // properties of everything that reads bytes
mod harness;
mod model;
mod random;
pub mod samples;
mod faulty;
mod gate;
pub mod outbox; // the cases of the outbox suite, and an outbox for tests
pub(crate) mod steps;
#[cfg(test)]
mod tests;

pub use faulty::{Fault, FaultyStore, StoreCall};
pub use gate::{Gate, GatedStore, Paused, Point};
pub use harness::{Fresh, Harness, run};
pub use model::Model;
pub use random::{Disagreement, Seed, run as run_random};
pub use steps::{Disturbance, Edge, Ended, Rehearsal, Stage, Trial};
