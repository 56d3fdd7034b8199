//! The canonical forms of bodies.

use crate::fingerprint::json;

/// The canonical form of a JSON body that a fingerprint is made of, or nothing if it has none.
pub fn canonical_json(body: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    json::canonicalise(body, None, &mut out).ok().map(|()| out)
}
