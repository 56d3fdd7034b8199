//! The key: what the client sent in `Idempotency-Key`, read so that a damaged header is never taken
//! for an absent one.
//!
//! A key arrives as a quoted structured-field string (`"abc"`, RFC 9651) or bare (`abc`); both are
//! one identity, because a client library or proxy that changes the form between two attempts must
//! not cause a second execution. Anything else is refused: two header lines, bytes outside visible
//! ASCII, a wrong length. Trailers are never read.

use std::{borrow::Cow, fmt, sync::Arc};

use http::{HeaderMap, HeaderName, header::HeaderValue};
use sha2::{Digest, Sha256};

mod lookup;
mod made_at;
pub use lookup::{LookupKey, LookupKeyTooShort};

/// The header field that carries the key.
pub static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The value of `Idempotency-Key`, decoded: visible ASCII and space, compared byte for byte.
///
/// `Debug` prints a short digest instead of the key, because clients put secrets into keys and logs
/// leak. Use [`Key::as_str`] where the key itself is needed.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Arc<str>);

impl Key {
    /// Takes a decoded key as a store or a test has it.
    ///
    /// # Errors
    /// When the value is empty, longer than 255 bytes, or holds a byte outside `0x20..=0x7e`.
    pub fn new(decoded: impl Into<Arc<str>>) -> Result<Self, InvalidKey> {
        let decoded = decoded.into();
        check_length(decoded.len(), 1, KeyRules::LEN_MAX)?;
        if !decoded.bytes().all(|byte| (0x20..=0x7e).contains(&byte)) {
            return Err(InvalidKey::Characters);
        }
        Ok(Key(decoded))
    }

    /// The key as the client meant it, without quotes and escapes.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Eight hexadecimal digits that stand for the key in logs and spans.
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(b"onceward-key-digest/1");
        hash.update(self.0.as_bytes());
        let digest = hash.finalize();
        let digit =
            |nibble: u8| char::from(if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 });
        let mut written = String::with_capacity(8);
        for byte in digest.iter().take(4) {
            written.push(digit(byte >> 4));
            written.push(digit(byte & 15));
        }
        written
    }

    /// Whether the key looks like an e-mail address, which does not belong into a key.
    pub fn looks_like_email(&self) -> bool {
        let Some((local, domain)) = self.0.split_once('@') else { return false };
        let Some((host, top)) = domain.rsplit_once('.') else { return false };
        let plain = |part: &str| {
            !part.is_empty()
                && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._%+-".contains(&byte))
        };
        plain(local)
            && plain(host)
            && top.len() >= 2
            && top.bytes().all(|byte| byte.is_ascii_alphabetic())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key(#{})", self.digest())
    }
}

/// How keys may be written, and how long they may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRules {
    /// Which lexical forms are read.
    pub syntax: Syntax,
    /// Shortest accepted key, in bytes after decoding. A heuristic against keys like `1`, not a
    /// proof of entropy.
    pub len_min: usize,
    /// Longest accepted key, in bytes after decoding.
    pub len_max: usize,
    /// What happens to a key that is an e-mail address. It is always counted.
    pub emails: Emails,
}

/// The lexical forms in which a key is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    /// Quoted structured-field strings, and bare keys of a safe alphabet.
    Lenient,
    /// Structured-field strings only.
    Strict,
}

/// What happens to a key that is an e-mail address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emails {
    /// It is used, and counted.
    Count,
    /// It is refused, and counted.
    Reject,
}

impl Default for KeyRules {
    fn default() -> Self {
        KeyRules {
            syntax: Syntax::Lenient,
            len_min: 16,
            len_max: KeyRules::LEN_MAX,
            emails: Emails::Count,
        }
    }
}

impl KeyRules {
    /// No rule may allow more: stores check the same bound.
    pub const LEN_MAX: usize = 255;

    /// Reads the key from the header section.
    ///
    /// `Ok(None)` means that the client sent no such field at all.
    ///
    /// # Errors
    /// When a field is there and is not exactly one well-formed key.
    pub fn read(&self, headers: &HeaderMap) -> Result<Option<Key>, InvalidKey> {
        let mut lines = headers.get_all(&IDEMPOTENCY_KEY).iter();
        let Some(line) = lines.next() else { return Ok(None) };
        if lines.next().is_some() {
            return Err(InvalidKey::Repeated);
        }
        self.parse(line).map(Some)
    }

    fn parse(&self, line: &HeaderValue) -> Result<Key, InvalidKey> {
        let raw = trim_ows(line.as_bytes());
        let decoded = match raw.first() {
            None => return Err(InvalidKey::Empty),
            Some(b'"') => Cow::Owned(quoted(raw)?),
            Some(_) if self.syntax == Syntax::Strict => return Err(InvalidKey::NotQuoted),
            Some(_) => Cow::Borrowed(bare(raw)?),
        };
        check_length(decoded.len(), self.len_min.max(1), self.len_max.min(KeyRules::LEN_MAX))?;
        let key = Key(decoded.into());
        if key.looks_like_email() {
            crate::observe::email_as_key();
            if self.emails == Emails::Reject {
                return Err(InvalidKey::Email);
            }
        }
        Ok(key)
    }
}

/// Drops optional whitespace as RFC 9110 has it: space and tab, nothing else.
fn trim_ows(field: &[u8]) -> &[u8] {
    let is_ows = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = field.iter().position(|byte| !is_ows(byte)).unwrap_or(field.len());
    let end = field.iter().rposition(|byte| !is_ows(byte)).map_or(start, |last| last + 1);
    field.get(start..end).unwrap_or_default()
}

fn check_length(len: usize, min: usize, max: usize) -> Result<(), InvalidKey> {
    match len {
        0 => Err(InvalidKey::Empty),
        len if len < min => Err(InvalidKey::TooShort { min }),
        len if len > max => Err(InvalidKey::TooLong { max }),
        _ => Ok(()),
    }
}

/// A bare key. Comma is excluded because a proxy may have joined two header lines with it, and
/// semicolon because it would begin a parameter.
fn bare(raw: &[u8]) -> Result<&str, InvalidKey> {
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~:/+=@#$!*&%".contains(byte);
    if !raw.iter().all(allowed) {
        return Err(InvalidKey::Characters);
    }
    std::str::from_utf8(raw).map_err(|_| InvalidKey::Characters)
}

/// A structured-field Item whose value is a String, to the end of the field. Parameters are parsed,
/// so that a damaged one is noticed, and are not part of the key.
fn quoted(raw: &[u8]) -> Result<String, InvalidKey> {
    let mut input = raw.iter().copied().skip(1).peekable();
    let mut decoded = String::with_capacity(raw.len());
    loop {
        match input.next().ok_or(InvalidKey::Malformed)? {
            b'"' => break,
            b'\\' => match input.next() {
                Some(escaped @ (b'"' | b'\\')) => decoded.push(char::from(escaped)),
                _ => return Err(InvalidKey::Malformed),
            },
            byte @ 0x20..=0x7e => decoded.push(char::from(byte)),
            _ => return Err(InvalidKey::Characters),
        }
    }
    let rest: Vec<u8> = input.collect();
    parameters(&rest)?;
    Ok(decoded)
}

/// `*( ";" *SP key [ "=" bare-item ] )`. The values are checked for shape only.
fn parameters(mut rest: &[u8]) -> Result<(), InvalidKey> {
    while let Some(after) = rest.strip_prefix(b";") {
        let after = skip_while(after, |byte| byte == b' ');
        let name_end = skip_while(after, |byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(&byte)
        });
        match after.first() {
            Some(first) if first.is_ascii_lowercase() || *first == b'*' => {}
            _ => return Err(InvalidKey::Malformed),
        }
        rest = match name_end.strip_prefix(b"=") {
            Some(value) => parameter_value(value)?,
            None => name_end,
        };
    }
    if rest.is_empty() { Ok(()) } else { Err(InvalidKey::Malformed) }
}

fn parameter_value(value: &[u8]) -> Result<&[u8], InvalidKey> {
    if let Some(mut inside) = value.strip_prefix(b"\"") {
        loop {
            match inside {
                [b'"', rest @ ..] => return Ok(rest),
                [b'\\', b'"' | b'\\', rest @ ..] | [0x20..=0x5b | 0x5d..=0x7e, rest @ ..] => {
                    inside = rest;
                }
                _ => return Err(InvalidKey::Malformed),
            }
        }
    }
    let rest =
        skip_while(value, |byte| (0x21..=0x7e).contains(&byte) && !b"\";,\\".contains(&byte));
    if rest.len() == value.len() { Err(InvalidKey::Malformed) } else { Ok(rest) }
}

fn skip_while(bytes: &[u8], matches: impl Fn(u8) -> bool) -> &[u8] {
    let end = bytes.iter().position(|byte| !matches(*byte)).unwrap_or(bytes.len());
    bytes.get(end..).unwrap_or_default()
}

/// Why a key was refused. The text is for the client; it never repeats the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKey {
    /// More than one field line: which one would be meant?
    #[error("the header was sent more than once")]
    Repeated,
    /// The field is there and holds nothing.
    #[error("the key is empty")]
    Empty,
    /// A quoted string that does not parse to its end.
    #[error("the quoted key is not a well-formed structured-field string")]
    Malformed,
    /// A byte that no key may hold.
    #[error("the key holds a character that is not allowed")]
    Characters,
    /// A bare key where only quoted ones are accepted.
    #[error("the key must be written in double quotes")]
    NotQuoted,
    /// Shorter than the rules allow.
    #[error("the key is shorter than {min} characters")]
    TooShort {
        /// The shortest accepted length.
        min: usize,
    },
    /// Longer than the rules allow.
    #[error("the key is longer than {max} characters")]
    TooLong {
        /// The longest accepted length.
        max: usize,
    },
    /// An e-mail address, refused by policy.
    #[error("the key is an e-mail address; use a random value such as a UUID")]
    Email,
}

#[cfg(test)]
mod tests;
