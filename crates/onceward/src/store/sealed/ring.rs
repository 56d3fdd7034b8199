//! The keys that wrap the data keys of scopes.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::STANDARD};

/// A key that wraps data keys, with the name under which stores know it.
#[derive(Clone, PartialEq, Eq)]
pub struct RingKey {
    id: Box<str>,
    secret: [u8; 32],
}

impl RingKey {
    /// A key of 32 random bytes, such as those of [`RingKey::random_secret`].
    pub fn new(id: impl Into<Box<str>>, secret: [u8; 32]) -> Self {
        RingKey { id: id.into(), secret }
    }

    /// A key whose secret is written in base64, as [`RingKey::random_secret`] writes it.
    ///
    /// # Errors
    /// When it is not 32 bytes in base64.
    pub fn parse(id: impl Into<Box<str>>, secret: &str) -> Result<Self, KeyRingError> {
        let id = id.into();
        let decoded = STANDARD.decode(secret.trim()).ok();
        let secret = decoded.and_then(|decoded| decoded.try_into().ok());
        match secret {
            Some(secret) => Ok(RingKey { id, secret }),
            None => Err(KeyRingError::Secret(id)),
        }
    }

    /// A fresh secret, in base64.
    pub fn random_secret() -> String {
        STANDARD.encode(rand::random::<[u8; 32]>())
    }

    /// Its name.
    pub fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn secret(&self) -> &[u8; 32] {
        &self.secret
    }
}

impl fmt::Debug for RingKey {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RingKey({})", self.id)
    }
}

/// All keys that a process has: the first one seals, all of them open.
///
/// To rotate: give every process the new key behind the old one, then put it in front everywhere, and
/// take the old one away when nothing is kept any more that was sealed under it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRing(Vec<RingKey>);

/// Why keys are no ring.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyRingError {
    /// There is none.
    #[error("a key ring needs at least one key")]
    Empty,
    /// A name that cannot be stored, or is hard to read.
    #[error("the id of a ring key has 1 to 64 characters: letters, digits, `-`, `_` and `.`")]
    Id,
    /// Two have the same name.
    #[error("two keys of the ring have the id `{0}`")]
    Twice(Box<str>),
    /// Not a secret.
    #[error("the secret of ring key `{0}` is not 32 bytes in base64")]
    Secret(Box<str>),
}

impl KeyRing {
    /// A ring of these keys. The first one seals.
    ///
    /// # Errors
    /// When there is none, or when they cannot be told apart.
    pub fn new(keys: impl IntoIterator<Item = RingKey>) -> Result<Self, KeyRingError> {
        let keys: Vec<RingKey> = keys.into_iter().collect();
        if keys.is_empty() {
            return Err(KeyRingError::Empty);
        }
        for (index, key) in keys.iter().enumerate() {
            let readable = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            if !(1..=64).contains(&key.id.len()) || !key.id.bytes().all(readable) {
                return Err(KeyRingError::Id);
            }
            if keys.iter().take(index).any(|before| before.id == key.id) {
                return Err(KeyRingError::Twice(key.id.clone()));
            }
        }
        Ok(KeyRing(keys))
    }

    /// The key that seals.
    pub fn sealing(&self) -> &RingKey {
        self.0.first().unwrap_or_else(|| unreachable!("a ring has at least one key"))
    }

    /// The names of its keys, the one that seals first.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(RingKey::id)
    }

    pub(super) fn get(&self, id: &str) -> Option<&RingKey> {
        self.0.iter().find(|key| *key.id == *id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_tells_its_keys_apart_and_shows_no_secret() {
        let key = |id: &str| RingKey::new(id, [7; 32]);
        let ring = KeyRing::new([key("new"), key("old")]).expect("a ring");
        assert_eq!((ring.sealing().id(), ring.ids().count()), ("new", 2));
        assert_eq!(KeyRing::new([]), Err(KeyRingError::Empty));
        assert_eq!(KeyRing::new([key("a"), key("a")]), Err(KeyRingError::Twice("a".into())));
        for bad in ["", "with space", "\u{e4}"] {
            assert_eq!(KeyRing::new([key(bad)]), Err(KeyRingError::Id), "{bad}");
        }
        assert_eq!(format!("{ring:?}"), "KeyRing([RingKey(new), RingKey(old)])");
    }

    #[test]
    fn a_secret_is_32_bytes_in_base64() {
        let secret = RingKey::random_secret();
        assert!(RingKey::parse("a", &secret).is_ok());
        assert!(RingKey::parse("a", &format!("{secret}\n")).is_ok(), "as a file has it");
        for bad in ["", "short", "AAAA", &secret[..secret.len() - 4]] {
            assert_eq!(RingKey::parse("a", bad), Err(KeyRingError::Secret("a".into())), "{bad}");
        }
        assert_ne!(RingKey::random_secret(), secret);
    }
}
