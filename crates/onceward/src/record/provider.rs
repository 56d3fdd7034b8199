//! What a provider calls an operation.

use std::{fmt, str::FromStr};

use super::{AttemptId, Fence, RecordId};
use crate::clock::Timestamp;

/// The id that a provider gave an operation: a charge, a transfer, a shipment. No other operation has
/// the same one of the same provider.
///
/// As text it is the id alone, or the name of its provider, a space, and the id: `ch_1`, `stripe ch_1`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProviderId {
    provider: Box<str>,
    id: Box<str>,
}

impl ProviderId {
    /// The provider of an id that names none.
    pub const DEFAULT_PROVIDER: &'static str = "default";

    /// The longest id.
    pub const LEN_MAX: usize = 255;

    /// The id that this provider gave.
    ///
    /// # Errors
    /// When the name of the provider is not 1 to 64 letters, digits, `-`, `_` and `.`, or the id not 1
    /// to 255 visible characters of ASCII, without spaces.
    pub fn new(
        provider: impl Into<Box<str>>,
        id: impl Into<Box<str>>,
    ) -> Result<Self, InvalidProviderId> {
        let (provider, id) = (provider.into(), id.into());
        let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if !(1..=64).contains(&provider.len()) || !provider.bytes().all(good) {
            return Err(InvalidProviderId::Provider);
        }
        let visible = |byte: u8| byte.is_ascii_graphic();
        if !(1..=Self::LEN_MAX).contains(&id.len()) || !id.bytes().all(visible) {
            return Err(InvalidProviderId::Id);
        }
        Ok(ProviderId { provider, id })
    }

    /// Who gave it.
    pub fn provider(&self) -> &str {
        &self.provider
    }

    /// What it is.
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl fmt::Display for ProviderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self.provider != *Self::DEFAULT_PROVIDER {
            write!(f, "{} ", self.provider)?;
        }
        f.write_str(&self.id)
    }
}

impl FromStr for ProviderId {
    type Err = InvalidProviderId;

    fn from_str(text: &str) -> Result<Self, InvalidProviderId> {
        let text = text.trim_ascii();
        let (provider, id) = text.split_once(' ').unwrap_or((Self::DEFAULT_PROVIDER, text));
        ProviderId::new(provider, id)
    }
}

/// What cannot be the id that a provider gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidProviderId {
    /// The name of the provider.
    #[error("the name of a provider is 1 to 64 letters, digits, `-`, `_` and `.`")]
    Provider,
    /// The id.
    #[error("a provider id is 1 to 255 visible characters of ASCII, without spaces")]
    Id,
}

/// What a store keeps of a provider id: which operation has it, and since which attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderNote {
    /// What the provider calls it.
    pub id: ProviderId,
    /// Whose it is.
    pub record: RecordId,
    /// Which use of the key.
    pub generation: u32,
    /// The last attempt that noted it.
    pub attempt: AttemptId,
    /// The fence of that attempt.
    pub fence: Fence,
    /// When it was noted first.
    pub at: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_is_displayed() {
        for text in ["ch_1", "stripe ch_1", "a.b-c_D 9/x:\"y\""] {
            let id: ProviderId = text.parse().expect("an id");
            assert_eq!(id.to_string(), text);
        }
        let named: ProviderId = "default ch_1".parse().expect("an id");
        assert_eq!(named, "ch_1".parse().expect("an id"));
        assert_eq!((named.provider(), named.id()), ("default", "ch_1"));
    }

    #[test]
    fn what_no_provider_gives_is_refused() {
        let long = "x".repeat(256);
        for (provider, id, why) in [
            ("", "ch_1", InvalidProviderId::Provider),
            ("a b", "ch_1", InvalidProviderId::Provider),
            (&*"x".repeat(65), "ch_1", InvalidProviderId::Provider),
            ("bank", "", InvalidProviderId::Id),
            ("bank", "ch 1", InvalidProviderId::Id),
            ("bank", "ch\u{7f}", InvalidProviderId::Id),
            ("bank", "ch\u{e9}", InvalidProviderId::Id),
            ("bank", &long, InvalidProviderId::Id),
        ] {
            assert_eq!(ProviderId::new(provider, id), Err(why), "{provider} {id}");
        }
        assert!(ProviderId::new("x".repeat(64), "y".repeat(255)).is_ok());
    }
}
