//! How what is sealed is told from what is not. Known in every build: a process that has no keys must
//! not take a sealed reply for a reply.

use http::HeaderName;

use crate::{record::StoredRequest, reply::Reply};

/// The only header of a sealed reply or request; its value says how it was sealed. Handlers cannot
/// set it.
pub(crate) static SEALED: HeaderName = HeaderName::from_static("onceward-sealed");

/// What sealed bytes begin with. No result of a step does, since JSON has no such byte.
pub(crate) const MAGIC: &[u8] = b"\0onceward-sealed/1";

impl Reply {
    /// Whether it is sealed: nothing of it but its status can be read.
    pub fn is_sealed(&self) -> bool {
        self.headers.iter().any(|(name, _)| *name == SEALED)
    }
}

impl StoredRequest {
    /// Whether it is sealed: nothing of it but its method can be read.
    pub fn is_sealed(&self) -> bool {
        self.headers.iter().any(|(name, _)| *name == SEALED)
    }
}

/// Whether the result of a step is sealed.
pub(crate) fn is_sealed(result: &[u8]) -> bool {
    result.starts_with(MAGIC)
}
