//! Properties of everything that reads bytes which others wrote.
//!
//! Each target takes any bytes and panics when a property does not hold for them, so that one
//! function serves a coverage-guided fuzzer, a corpus and a loop over random bytes.

mod body;
mod key;

pub use body::{canonical_json, form, json};
pub use key::{key_header, quoted_string};

/// Takes `data` as a record, and as damage done to its row in the file store.
///
/// What was written is read back. A damaged row is never a reason to panic; what is read of it says
/// what the row says; and while only the columns of the reply are damaged, it is an error or still
/// the record that was written.
///
/// # Panics
/// When that is not so.
#[cfg(feature = "sqlite")]
pub fn record(data: &[u8]) {
    crate::store::fuzz_record(data);
}
