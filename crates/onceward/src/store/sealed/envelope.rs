//! Bytes that are sealed: for one purpose and place, with one data key.
//!
//! ```text
//! magic | id of the data key, 16 | nonce, 24 | XChaCha20-Poly1305 of the contents
//! ```
//!
//! The place is not in there but has to be known to open it: whatever is moved to another place does
//! not open.

use chacha20poly1305::{
    XChaCha20Poly1305,
    aead::{Aead as _, KeyInit as _, Payload},
};

use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use crate::{
    fingerprint::Fingerprint,
    record::{AttemptId, Fence, Lease, Record, RecordId},
    store::mark::MAGIC,
};

const NONCE_LEN: usize = 24;

/// A key that seals and opens.
pub(super) struct Cipher {
    cipher: XChaCha20Poly1305,
    /// Of the same key, for nonces only.
    nonces: [u8; 32],
}

impl Cipher {
    pub(super) fn new(key: &[u8; 32]) -> Self {
        let nonces = mac(key, &[b"onceward-nonce/1"]);
        Cipher { cipher: XChaCha20Poly1305::new(&(*key).into()), nonces }
    }

    /// Nonce and sealed contents. The nonce is made of the contents and their place by a secret, so
    /// that no two contents share one, and that a call which is repeated after a lost answer seals the
    /// same thing in the same way: stores tell repetitions by that. Nobody learns more from it than
    /// that the same contents came twice to the same place.
    pub(super) fn seal(&self, contents: &[u8], place: &Place) -> Option<Vec<u8>> {
        let length = (place.0.len() as u64).to_be_bytes();
        let made = mac(&self.nonces, &[&length, &place.0, contents]);
        let nonce = made.first_chunk::<NONCE_LEN>()?;
        let payload = Payload { msg: contents, aad: &place.0 };
        let sealed = self.cipher.encrypt(&(*nonce).into(), payload).ok()?;
        Some([&nonce[..], &sealed].concat())
    }

    pub(super) fn open(&self, sealed: &[u8], place: &Place) -> Option<Vec<u8>> {
        let (nonce, sealed) = sealed.split_first_chunk::<NONCE_LEN>()?;
        self.cipher.decrypt(&(*nonce).into(), Payload { msg: sealed, aad: &place.0 }).ok()
    }
}

fn mac(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    let mut block = [0; 64];
    block.iter_mut().zip(key).for_each(|(byte, key)| *byte = *key);
    let mut mac = <Hmac<Sha256> as hmac::KeyInit>::new(&block.into());
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

/// A sealed thing, taken apart.
pub(super) struct Envelope<'a> {
    pub(super) key_id: [u8; 16],
    pub(super) sealed: &'a [u8],
}

impl<'a> Envelope<'a> {
    pub(super) fn write(key_id: &[u8; 16], sealed: &[u8]) -> Vec<u8> {
        [MAGIC, key_id, sealed].concat()
    }

    pub(super) fn read(bytes: &'a [u8]) -> Option<Self> {
        let (key_id, sealed) = bytes.strip_prefix(MAGIC)?.split_first_chunk::<16>()?;
        Some(Envelope { key_id: *key_id, sealed })
    }
}

/// What a sealed thing is, and where it belongs.
pub(super) struct Place(Vec<u8>);

impl Place {
    fn new(purpose: &str, parts: &[&[u8]]) -> Self {
        let mut place = b"onceward-seal/1".to_vec();
        for part in [purpose.as_bytes()].iter().chain(parts) {
            place.extend((part.len() as u64).to_be_bytes());
            place.extend(*part);
        }
        Place(place)
    }

    /// The data key of a scope, under a key of the ring.
    pub(super) fn data_key(scope: &str, id: &[u8; 16], wrapped_by: &str) -> Self {
        Place::new("data key", &[scope.as_bytes(), id, wrapped_by.as_bytes()])
    }

    /// The reply of an attempt, with its status, which is not sealed.
    pub(super) fn reply(purpose: &str, of: &Of<'_>, fence: Fence, status: u16) -> Self {
        Place::new(
            purpose,
            &[
                of.id.scope.as_str().as_bytes(),
                of.id.key.as_str().as_bytes(),
                &of.generation.to_be_bytes(),
                of.attempt.as_bytes(),
                &fence.number().to_be_bytes(),
                &status.to_be_bytes(),
            ],
        )
    }

    /// The result of a step of one generation.
    pub(super) fn step(id: &RecordId, generation: u32, name: &str) -> Self {
        let (scope, key) = (id.scope.as_str().as_bytes(), id.key.as_str().as_bytes());
        Place::new("step", &[scope, key, &generation.to_be_bytes(), name.as_bytes()])
    }

    /// The request of a record. It is kept before there is a fence.
    pub(super) fn request(id: &RecordId, fingerprint: &Fingerprint) -> Self {
        let (scope, key) = (id.scope.as_str().as_bytes(), id.key.as_str().as_bytes());
        let recipe = fingerprint.recipe().to_be_bytes();
        Place::new("request", &[scope, key, &recipe, fingerprint.digest()])
    }
}

/// Whose reply it is.
pub(crate) struct Of<'a> {
    pub(crate) id: &'a RecordId,
    pub(crate) generation: u32,
    pub(crate) attempt: AttemptId,
    pub(crate) fence: Fence,
}

impl<'a> From<&'a Lease> for Of<'a> {
    fn from(lease: &'a Lease) -> Self {
        let Lease { id, generation, attempt, fence, .. } = lease;
        Of { id, generation: *generation, attempt: *attempt, fence: *fence }
    }
}

impl<'a> From<&'a Record> for Of<'a> {
    fn from(record: &'a Record) -> Self {
        let Record { id, generation, attempt, fence, .. } = record;
        Of { id, generation: *generation, attempt: *attempt, fence: *fence }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sealed_opens_in_its_place_and_nowhere_else() {
        let cipher = Cipher::new(&[1; 32]);
        let place = Place::new("reply", &[b"ab", b"c"]);
        let sealed = cipher.seal(b"contents", &place).expect("sealed");
        assert_eq!(cipher.open(&sealed, &place).as_deref(), Some(&b"contents"[..]));
        for elsewhere in [
            Place::new("step", &[b"ab", b"c"]),
            Place::new("reply", &[b"a", b"bc"]),
            Place::new("reply", &[b"ab"]),
            Place::new("reply", &[b"ab", b"d"]),
        ] {
            assert_eq!(cipher.open(&sealed, &elsewhere), None);
        }
        assert_eq!(Cipher::new(&[2; 32]).open(&sealed, &place), None, "another key");
    }

    #[test]
    fn damaged_bytes_do_not_open() {
        let cipher = Cipher::new(&[1; 32]);
        let place = Place::new("reply", &[]);
        let sealed = cipher.seal(b"contents", &place).expect("sealed");
        for index in 0..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[index] ^= 1;
            assert_eq!(cipher.open(&damaged, &place), None, "byte {index}");
            assert_eq!(cipher.open(&sealed[..index], &place), None, "cut at {index}");
        }
    }

    #[test]
    fn only_the_same_contents_in_the_same_place_under_the_same_key_look_the_same() {
        let sealed = |key: u8, contents: &[u8], place: &[u8]| {
            let sealed = Cipher::new(&[key; 32]).seal(contents, &Place::new("reply", &[place]));
            sealed.expect("sealed")
        };
        let first = sealed(1, b"contents", b"a");
        assert_eq!(sealed(1, b"contents", b"a"), first);
        for other in [
            sealed(2, b"contents", b"a"),
            sealed(1, b"contentz", b"a"),
            sealed(1, b"contents", b"b"),
        ] {
            assert_ne!(other[..NONCE_LEN], first[..NONCE_LEN]);
            assert_ne!(other[NONCE_LEN..], first[NONCE_LEN..]);
        }
    }
}
