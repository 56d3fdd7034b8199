//! Properties of everything that reads bytes which others wrote.
//!
//! Each function takes any bytes and panics when a property does not hold for them, so that one
//! function serves a coverage-guided fuzzer, a corpus and a loop over random bytes.

mod body;

pub use body::canonical_json;
