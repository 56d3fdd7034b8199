//! Which keys belong together: a record, what is kept of it, and the indexes that tell of it are in one
//! bucket, whose tag puts them into one slot of a Cluster.

use sha2::{Digest as _, Sha256};

use crate::{key::Key, record::RecordId, scope::Scope};

/// The slots of every Cluster.
const SLOTS: u16 = 16384;

/// How records are spread over buckets. All processes of a store agree on it.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) prefix: Box<str>,
    pub(super) buckets: u16,
}

impl Layout {
    /// What the keys of a bucket begin with.
    pub(super) fn tag(&self, bucket: u16) -> String {
        format!("{{{}:{bucket}}}", self.prefix)
    }

    /// A key of a bucket.
    pub(super) fn key(&self, bucket: u16, kind: &str, rest: &[u8]) -> Vec<u8> {
        let mut key = self.tag(bucket).into_bytes();
        key.extend(kind.as_bytes());
        key.extend(rest);
        key
    }

    pub(super) fn bucket(&self, name: &[u8]) -> u16 {
        let digest = Sha256::digest(name);
        let (first, _) =
            digest.split_first_chunk::<8>().unwrap_or_else(|| unreachable!("32 bytes"));
        u16::try_from(u64::from_be_bytes(*first) % u64::from(self.buckets)).unwrap_or_default()
    }

    pub(super) fn slot(&self, bucket: u16) -> u16 {
        crc16(format!("{}:{bucket}", self.prefix).as_bytes()) % SLOTS
    }
}

/// How a record is called in the keys and indexes of its bucket. The length in front says where the
/// scope ends.
pub(super) fn member(id: &RecordId) -> Vec<u8> {
    format!("{}:{}{}", id.scope.as_str().len(), id.scope.as_str(), id.key.as_str()).into_bytes()
}

/// The record of that name.
pub(super) fn read_member(member: &[u8]) -> Option<RecordId> {
    let (length, both) = std::str::from_utf8(member).ok()?.split_once(':')?;
    let (scope, key) = both.split_at_checked(length.parse().ok()?)?;
    Some(RecordId { scope: Scope::new(scope).ok()?, key: Key::new(key).ok()? })
}

/// CRC-16/XMODEM, by which a Cluster finds the slot of a tag.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |mut crc: u16, byte| {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        }
        crc
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_that_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
    }

    #[test]
    fn a_record_is_found_by_its_name() {
        for (scope, key) in [("a", "1:b"), ("1:a", "b"), ("\u{e4}\u{1f980}", "k")] {
            let id = RecordId {
                scope: Scope::new(scope).expect("a scope"),
                key: Key::new(key).expect("a key"),
            };
            assert_eq!(read_member(&member(&id)), Some(id));
        }
        for bad in ["", "a", ":", "9:ab", "1:", "x:ab"] {
            assert_eq!(read_member(bad.as_bytes()), None, "{bad}");
        }
    }
}
