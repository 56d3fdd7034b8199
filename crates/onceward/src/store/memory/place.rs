//! Where a record is: its id with the hash of it, which is made once for each step. A step looks into
//! several maps, several times.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hash, Hasher},
};

use crate::record::RecordId;

/// A map of what belongs to records.
pub(super) type Map<V> = HashMap<Place, V, BuildHasherDefault<MadeBefore>>;

/// An id, and the hash of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    hash: u64,
    id: RecordId,
}

impl Place {
    /// With a hash that nobody outside can foresee.
    pub(super) fn new(id: &RecordId, hash: u64) -> Self {
        Place { hash, id: id.clone() }
    }

    pub(super) fn id(&self) -> &RecordId {
        &self.id
    }

    /// Which of so many shards it is in. By the bits in the middle: a map looks at both ends.
    pub(super) fn shard_of(&self, shards: usize) -> usize {
        let middle = usize::try_from((self.hash >> 32) & 0xffff).unwrap_or_default();
        middle % shards
    }
}

impl Hash for Place {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// Takes a hash for what it is.
#[derive(Debug, Default)]
pub(super) struct MadeBefore(u64);

impl Hasher for MadeBefore {
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, bytes: &[u8]) {
        // Nothing but places is hashed here.
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
