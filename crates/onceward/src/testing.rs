//! For tests of stores, and of services that use them: the store suite, and tools that force faults
//! and interleavings.
//!
//! A store of your own is checked by one line in its tests:
//!
//! ```ignore
//! onceward::store_suite!(my_store, |clock| async move { Arc::new(MyStore::new(clock)) });
//! ```
//!
//! which makes one named test per case, each on a fresh store.

mod faulty;
mod gate;

pub use faulty::{Fault, FaultyStore, StoreCall};
pub use gate::{Gate, GatedStore, Paused, Point};
