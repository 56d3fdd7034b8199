//! What was asked: a digest of a request that is equal for honest retries and
//! different for everything else.
//!
//! A key that comes back with another fingerprint is refused, so the digest
//! errs towards *different*: what cannot be read in one way only is taken as
//! bytes. It covers the method, the path and query as they were sent, the
//! media type, the content coding, the headers a route chose, and the body.
//! Credentials, dates, trace headers and the key itself are not part of it
//! unless chosen, since they change from one retry to the next.
//!
//! # The recipe, `onceward-fp/1`
//!
//! SHA-256 (HMAC-SHA-256 with a [`FingerprintKey`]) over the ASCII bytes
//! `onceward-fp/1` and then, for each part, a tag of one byte, the length as a
//! big-endian `u64`, and the bytes. Lengths instead of delimiters: no part can
//! pretend to be two. A part that a request does not have is not written, so
//! an absent query differs from an empty one.
//!
//! | tag | part |
//! | --- | --- |
//! | 1 | method |
//! | 2 | path |
//! | 3 | query, without the `?` |
//! | 4 | media type: `type/subtype` in lower case, without parameters |
//! | 5 | instead of 4, each `Content-Type` as it came, when there are several or it is malformed |
//! | 6 | each line of `Content-Encoding` in lower case, except `identity` |
//! | 7, 8, 9 | for each chosen header, in the order of the names: name; number of values as `u64`; each value. After them in the same way for each of [`METHOD_OVERRIDES`] that was sent and was not chosen |
//! | 16 | body: empty |
//! | 17 | body: canonical JSON |
//! | 18 | body: canonical form pairs |
//! | 19 | body: bytes as they came |
//! | 20 | body: bytes as they came, though said to be JSON or a form |
//!
//! Bodies of `application/json` and `*/*+json` in UTF-8 without a content
//! coding are read as JSON: order of members, white space, escapes and the
//! spelling of numbers do not matter, but `1.0` and `1.00000000000000001`
//! differ, as numbers are never rounded. Bodies of
//! `application/x-www-form-urlencoded` are decoded and sorted by name, pairs
//! of one name keeping their order. A body that has no canonical form (invalid,
//! two members of one name, half a surrogate pair, nested deeper than 128, a
//! power of ten beyond an `i64`) is taken as bytes under tag 20 and so equals
//! only itself.

pub(crate) mod form;
pub(crate) mod json;
mod media;
mod message;
mod pointer;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::fmt;
use std::hash::{Hash, Hasher};

use hmac::{Hmac, KeyInit, Mac};
use http::header::{CONTENT_TYPE, HeaderName};
use http::request::Parts;
use sha2::{Digest, Sha256};

use media::{Media, Reading};
use message::{Message, tag};
pub use pointer::BadPointer;
use pointer::{Selection, Sense};

/// The version of the recipe that [`Recipe::fingerprint`] follows.
pub const RECIPE: u16 = 1;

/// Headers by which many services take a request for one of another method. A POST that is to be a
/// DELETE is not a retry of one that is not, so that they count wherever they are sent.
pub static METHOD_OVERRIDES: [HeaderName; 3] = [
    HeaderName::from_static("x-http-method"),
    HeaderName::from_static("x-http-method-override"),
    HeaderName::from_static("x-method-override"),
];

/// What [`FingerprintKey`] digests for its id. No message of a recipe starts
/// like it.
const KEY_ID_LABEL: &[u8] = b"onceward-fp-key-id/1";

/// Shorter keys could be guessed from stored fingerprints.
const KEY_BYTES_MIN: usize = 16;

/// Digest of what was asked, with the version of the recipe that made it.
///
/// Fingerprints of different recipes are never equal. Comparing takes the same
/// time wherever two digests differ.
#[derive(Clone, Copy)]
pub struct Fingerprint {
    recipe: u16,
    digest: [u8; 32],
}

impl Fingerprint {
    /// Puts a fingerprint together again from what a store kept.
    pub fn from_stored(recipe: u16, digest: [u8; 32]) -> Self {
        Self { recipe, digest }
    }

    /// The version of the recipe that made it.
    pub fn recipe(&self) -> u16 {
        self.recipe
    }

    /// The digest, to be stored with [`recipe`](Self::recipe).
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}

impl PartialEq for Fingerprint {
    fn eq(&self, other: &Self) -> bool {
        let pairs = self.digest.iter().zip(&other.digest);
        let differing_bits = pairs.fold(0, |bits, (a, b)| bits | (a ^ b));
        self.recipe == other.recipe && differing_bits == 0
    }
}

impl Eq for Fingerprint {}

impl Hash for Fingerprint {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.recipe.hash(state);
        self.digest.hash(state);
    }
}

/// Shows enough to tell two apart in a log, not enough to test guesses of a
/// body against.
impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({}:", self.recipe)?;
        for byte in self.digest.iter().take(4) {
            write!(f, "{byte:02x}")?;
        }
        f.write_str("..)")
    }
}

/// A secret that makes fingerprints useless to whoever reads the store:
/// without it, a body with few unknown digits can be found by trying.
///
/// All processes that share a store need the same one; see
/// [`Recipe::key_id`].
#[derive(Clone)]
pub struct FingerprintKey {
    keyed: Hmac<Sha256>,
    id: [u8; 8],
}

impl FingerprintKey {
    /// Takes a key of at least 16 bytes, best 32 random ones.
    ///
    /// # Errors
    ///
    /// When the key is shorter.
    pub fn new(key: &[u8]) -> Result<Self, KeyTooShort> {
        if key.len() < KEY_BYTES_MIN {
            return Err(KeyTooShort);
        }
        let keyed = Hmac::<Sha256>::new_from_slice(key).map_err(|_| KeyTooShort)?;
        let digest = keyed.clone().chain_update(KEY_ID_LABEL).finalize();
        let digest: [u8; 32] = digest.into_bytes().into();
        let (id, _) = digest.split_first_chunk().ok_or(KeyTooShort)?;
        Ok(Self { id: *id, keyed })
    }
}

impl fmt::Debug for FingerprintKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FingerprintKey(..)")
    }
}

/// A [`FingerprintKey`] has fewer than 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyTooShort;

impl fmt::Display for KeyTooShort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fingerprint key has fewer than {KEY_BYTES_MIN} bytes")
    }
}

impl Error for KeyTooShort {}

/// What of a request goes into its fingerprint: one per route.
///
/// Changing the recipe of a route changes fingerprints only where the change
/// touches the request: a body without an excluded part keeps its
/// fingerprint, so retries that are under way go on matching.
///
/// ```
/// use http::Request;
/// use onceward::fingerprint::Recipe;
///
/// let payment = |body: &str| {
///     let request = Request::post("/payments").header("Content-Type", "application/json");
///     let (parts, ()) = request.body(()).unwrap().into_parts();
///     Recipe::canonical().fingerprint(&parts, body.as_bytes())
/// };
/// let first = payment(r#"{"amount": 10.0, "currency": "EUR"}"#);
/// assert_eq!(first, payment(r#"{"currency":"EUR","amount":10}"#));
/// assert_ne!(first, payment(r#"{"currency":"EUR","amount":20}"#));
/// ```
#[derive(Clone, Debug)]
pub struct Recipe {
    body: Body,
    headers: Vec<HeaderName>,
    key: Option<FingerprintKey>,
}

#[derive(Clone, Debug)]
enum Body {
    Canonical(Option<Selection>),
    Raw,
}

impl Default for Recipe {
    fn default() -> Self {
        Self::canonical()
    }
}

impl Recipe {
    /// Takes the meaning of JSON and form bodies, and the bytes of others.
    pub fn canonical() -> Self {
        Self { body: Body::Canonical(None), headers: Vec::new(), key: None }
    }

    /// Takes the bytes of every body as they came.
    pub fn raw() -> Self {
        Self { body: Body::Raw, ..Self::canonical() }
    }

    /// Adds headers to look at, such as the version of the API or, where
    /// parameters of the media type matter, `Content-Type`. An absent header
    /// differs from an empty one.
    #[must_use]
    pub fn with_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.headers.extend(names);
        // The order in which a policy lists them must not matter.
        self.headers.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
        self.headers.dedup();
        self
    }

    /// Looks only at these parts of a JSON body, named by JSON Pointers
    /// (RFC 6901); `""` is the whole body. Other bodies are not affected.
    ///
    /// Members and elements that no pointer leads to are left out. A scalar
    /// where a pointer expects an object or array is kept. All of the body must
    /// be valid JSON without equal names, or it is taken whole, as bytes.
    ///
    /// # Errors
    ///
    /// When a pointer is malformed, when there is none, or after
    /// [`exclude`](Self::exclude) or [`raw`](Self::raw).
    pub fn include(self, pointers: &[&str]) -> Result<Self, BadPointer> {
        if pointers.is_empty() {
            return Err(BadPointer::NothingIncluded);
        }
        self.select(Sense::Include, pointers)
    }

    /// Looks at all of a JSON body but these parts: what a client renews with
    /// each retry, such as its own clock.
    ///
    /// # Errors
    ///
    /// When a pointer is malformed or names the whole body, or after
    /// [`include`](Self::include) or [`raw`](Self::raw).
    pub fn exclude(self, pointers: &[&str]) -> Result<Self, BadPointer> {
        if pointers.is_empty() {
            return Ok(self);
        }
        self.select(Sense::Exclude, pointers)
    }

    fn select(mut self, sense: Sense, pointers: &[&str]) -> Result<Self, BadPointer> {
        let Body::Canonical(selection) = &mut self.body else {
            return Err(BadPointer::RawBody);
        };
        let selection = selection.get_or_insert_with(|| Selection::new(sense));
        if selection.sense() != sense {
            return Err(BadPointer::IncludeAndExclude);
        }
        for pointer in pointers {
            selection.add(pointer)?;
        }
        Ok(self)
    }

    /// Uses HMAC-SHA-256 with this key instead of SHA-256.
    #[must_use]
    pub fn keyed(mut self, key: FingerprintKey) -> Self {
        self.key = Some(key);
        self
    }

    /// Names the key of [`keyed`](Self::keyed) without giving it away, so that
    /// processes on one store can check that they have the same.
    pub fn key_id(&self) -> Option<[u8; 8]> {
        self.key.as_ref().map(|key| key.id)
    }

    /// Computes the fingerprint of a request. Every request has one.
    pub fn fingerprint(&self, parts: &Parts, body: &[u8]) -> Fingerprint {
        let mut message = Message::new();
        let media = Media::of(&parts.headers);
        self.write_head(parts, media, &mut message);
        // What is canonical is written behind the head; what is raw is not
        // copied but digested from where it is.
        let raw = match self.write_canonical(parts, media, body, &mut message) {
            Ok(()) => &[][..],
            Err(tag) => {
                message.announce(tag, body.len());
                body
            }
        };
        Fingerprint { recipe: RECIPE, digest: self.digest(message.bytes(), raw) }
    }

    fn write_head(&self, parts: &Parts, media: Option<Media<'_>>, message: &mut Message) {
        message.part(tag::METHOD, parts.method.as_str().as_bytes());
        message.part(tag::PATH, parts.uri.path().as_bytes());
        if let Some(query) = parts.uri.query() {
            message.part(tag::QUERY, query.as_bytes());
        }
        match media {
            Some(media) => message.lowercase_part(tag::MEDIA_TYPE, media.essence),
            None => {
                for value in parts.headers.get_all(CONTENT_TYPE) {
                    message.part(tag::CONTENT_TYPE_AS_SENT, value.as_bytes());
                }
            }
        }
        for coding in media::codings(&parts.headers) {
            message.lowercase_part(tag::CONTENT_CODING, coding);
        }
        // Few requests have any: their names are looked at once.
        let overrides: &[HeaderName] =
            match parts.headers.keys().any(|name| METHOD_OVERRIDES.contains(name)) {
                true => &METHOD_OVERRIDES,
                false => &[],
            };
        let overrides = overrides
            .iter()
            .filter(|name| parts.headers.contains_key(*name) && !self.headers.contains(name));
        for name in self.headers.iter().chain(overrides) {
            let values = parts.headers.get_all(name);
            let count = values.iter().count() as u64;
            message.part(tag::HEADER_NAME, name.as_str().as_bytes());
            message.part(tag::HEADER_COUNT, &count.to_be_bytes());
            for value in values {
                message.part(tag::HEADER_VALUE, value.as_bytes());
            }
        }
    }

    /// Writes the body in its canonical form, or answers the tag under which
    /// its bytes are to be taken.
    fn write_canonical(
        &self,
        parts: &Parts,
        media: Option<Media<'_>>,
        body: &[u8],
        message: &mut Message,
    ) -> Result<(), u8> {
        let Body::Canonical(selection) = &self.body else {
            return Err(match body {
                [] => tag::BODY_EMPTY,
                _ => tag::BODY_RAW,
            });
        };
        if body.is_empty() {
            return Err(tag::BODY_EMPTY);
        }
        match media::reading(media, &parts.headers) {
            Reading::Raw => Err(tag::BODY_RAW),
            Reading::Json => message.part_written_by(tag::BODY_JSON, |out| {
                json::canonicalise(body, selection.as_ref(), out).map_err(|_| tag::BODY_FALLBACK)
            }),
            Reading::Form => message.part_written_by(tag::BODY_FORM, |out| {
                form::canonicalise(body, out).map_err(|_| tag::BODY_FALLBACK)
            }),
        }
    }

    fn digest(&self, message: &[u8], raw: &[u8]) -> [u8; 32] {
        match &self.key {
            None => {
                let digest = Sha256::new().chain_update(message).chain_update(raw);
                digest.finalize().into()
            }
            Some(key) => {
                let digest = key.keyed.clone().chain_update(message).chain_update(raw);
                digest.finalize().into_bytes().into()
            }
        }
    }
}
