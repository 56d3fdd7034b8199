//! Keys as stores see them, where they must not see what the client sent.

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::Key;

/// A secret under which keys are stored as HMAC-SHA-256: whoever reads the store learns no key, and
/// cannot try any. Never to be changed while keys live: under another one every key looks new. All
/// processes that share a store need the same one; it is part of their
/// [`Identity`](crate::store::Identity).
#[derive(Clone)]
pub struct LookupKey(Hmac<Sha256>);

/// What stored keys begin with.
const PREFIX: &str = "hmac-sha256:";

const SECRET_LEN_MIN: usize = 16;

/// A [`LookupKey`] has fewer than 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a lookup key has at least {SECRET_LEN_MIN} bytes")]
pub struct LookupKeyTooShort;

impl LookupKey {
    /// Takes a secret of at least 16 bytes, best 32 random ones.
    ///
    /// # Errors
    /// When it is shorter.
    pub fn new(secret: &[u8]) -> Result<Self, LookupKeyTooShort> {
        if secret.len() < SECRET_LEN_MIN {
            return Err(LookupKeyTooShort);
        }
        Hmac::new_from_slice(secret).map(LookupKey).map_err(|_| LookupKeyTooShort)
    }

    /// The key of a client, as it is stored.
    pub fn stored(&self, key: &Key) -> Key {
        Key(format!("{PREFIX}{}", self.hex(&[b"key", key.as_str().as_bytes()], 32)).into())
    }

    /// The key that an operator gives, as it is stored: one that was copied from a list is that
    /// already.
    pub fn stored_unless_it_is(&self, key: &Key) -> Key {
        let digits = key.as_str().strip_prefix(PREFIX);
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        match digits.is_some_and(|digits| digits.len() == 64 && digits.bytes().all(is_digit)) {
            true => key.clone(),
            false => self.stored(key),
        }
    }

    /// Tells one secret from another without telling it.
    pub(crate) fn id(&self) -> String {
        self.hex(&[b"id"], 8)
    }

    fn hex(&self, parts: &[&[u8]], bytes: usize) -> String {
        let mut mac = self.0.clone();
        mac.update(b"onceward-lookup-key/1");
        for part in parts {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        let digest: [u8; 32] = mac.finalize().into_bytes().into();
        digest.iter().take(bytes).map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Debug for LookupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LookupKey(..)")
    }
}

impl PartialEq for LookupKey {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Eq for LookupKey {}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::new(text).expect("a key")
    }

    #[test]
    fn a_stored_key_is_stable_and_tells_nothing() {
        let lookup = LookupKey::new(&[1; 32]).expect("a secret");
        let other = LookupKey::new(&[2; 32]).expect("a secret");
        let stored = lookup.stored(&key("order-1"));
        assert_eq!(stored, lookup.clone().stored(&key("order-1")));
        assert_eq!(stored.as_str().len(), PREFIX.len() + 64);
        assert_ne!(stored, lookup.stored(&key("order-2")));
        assert_ne!(stored, other.stored(&key("order-1")));
        assert_ne!(lookup.id(), other.id());
        assert!(!format!("{lookup:?}{stored:?}").contains("order"));
        assert_eq!(LookupKey::new(&[1; 15]), Err(LookupKeyTooShort));
    }

    #[test]
    fn a_client_cannot_name_a_stored_key_and_an_operator_can() {
        let lookup = LookupKey::new(&[1; 32]).expect("a secret");
        let stored = lookup.stored(&key("order-1"));
        assert_ne!(lookup.stored(&stored), stored);
        assert_eq!(lookup.stored_unless_it_is(&stored), stored);
        assert_eq!(lookup.stored_unless_it_is(&key("order-1")), stored);
        let almost = key(&stored.as_str()[..stored.as_str().len() - 1]);
        assert_ne!(lookup.stored_unless_it_is(&almost), almost);
    }
}
