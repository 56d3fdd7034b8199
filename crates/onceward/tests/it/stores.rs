//! The store suite, on every store, and what one store alone promises.

use std::sync::Arc;

use onceward::{MemoryStore, store_suite};

store_suite!(memory, |clock| async { MemoryStore::with_clock(Arc::new(clock)) });

mod memory_limits;
