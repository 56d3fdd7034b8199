//! The scope: the border within which a key is unique. It comes from how the caller authenticated,
//! never from the body, and without one nothing is executed.
//!
//! There is no default that puts two callers into one scope. [`ScopeRule::anonymous`] does, and has
//! to be asked for.

use std::{cell::RefCell, fmt, sync::Arc};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderName, header::AUTHORIZATION, request::Parts};
use sha2::{Digest, Sha256};

#[cfg(feature = "jwt")]
mod jwt;
#[cfg(feature = "jwt")]
pub use jwt::{JwtError, JwtKey, JwtVerifier};

/// A thread remembers no more scopes than this.
const SCOPES_KNOWN: usize = 64;

/// Within which borders a key is one key. Two scopes may use the same key and never meet.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope(Arc<str>);

impl Scope {
    /// Longest scope, in bytes. What is longer is not an account name.
    pub const LEN_MAX: usize = 255;

    /// A scope with a name that operators may read, such as an account number.
    ///
    /// # Errors
    /// When the name is empty, longer than [`Scope::LEN_MAX`], or holds control characters.
    pub fn new(name: impl Into<Arc<str>>) -> Result<Self, NoScope> {
        let name = name.into();
        let well_formed =
            !name.is_empty() && name.len() <= Self::LEN_MAX && !name.chars().any(char::is_control);
        if well_formed { Ok(Scope(name)) } else { Err(NoScope::Missing) }
    }

    /// A scope for a credential: its digest, so that the credential itself is never stored.
    pub fn of_credential(credential: &[u8]) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"onceward-scope/1");
        hash.update(credential);
        Self::of_digest(hash.finalize().into())
    }

    /// Callers come again: a thread remembers some scopes by their digests, so that they are written
    /// once, and are in memory once for many records.
    fn of_digest(digest: [u8; 32]) -> Self {
        type Known = Option<([u8; 32], Scope)>;
        thread_local! {
            static SCOPES: RefCell<[Known; SCOPES_KNOWN]> =
                const { RefCell::new([const { None }; SCOPES_KNOWN]) };
        }
        let written = || {
            let mut name = String::with_capacity(64);
            name.push_str("credential:");
            URL_SAFE_NO_PAD.encode_string(digest, &mut name);
            Scope(name.into())
        };
        SCOPES.with_borrow_mut(|scopes| {
            let Some(place) = scopes.get_mut(usize::from(digest[0]) % SCOPES_KNOWN) else {
                return written();
            };
            match place {
                Some((known, scope)) if *known == digest => scope.clone(),
                _ => place.insert((digest, written())).1.clone(),
            }
        })
    }

    /// The name under which stores keep the scope.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A short digest, for logs and metrics: what a user's function puts into a scope may be personal.
    pub fn digest(&self) -> String {
        let digest = Sha256::digest(self.0.as_bytes());
        URL_SAFE_NO_PAD.encode(digest.get(..6).unwrap_or_default())
    }
}

impl fmt::Debug for Scope {
    /// A digest: what a user's function puts into a scope may be personal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope(#{})", self.digest())
    }
}

/// Why a request has no scope. Nothing is executed for such a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoScope {
    /// The request does not say who is asking.
    #[error("the request carries no usable credential to tell its caller by")]
    Missing,
    /// The credential changes between two attempts of one caller, so that a retry would be taken
    /// for somebody else's request and run again.
    #[error("the credential changes from request to request and cannot tell retries of one caller")]
    Unstable,
}

type ReadScope = dyn Fn(&Parts) -> Result<Scope, NoScope> + Send + Sync;

/// How the scope of a request is found.
#[derive(Clone)]
pub struct ScopeRule {
    name: Box<str>,
    /// What is compared with the store, where the name does not tell it all.
    identity: Option<Box<str>>,
    read: Arc<ReadScope>,
}

impl ScopeRule {
    /// A rule of your own. `name` identifies it: a store that was written under a rule of another
    /// name refuses to be used, since every key would look new.
    pub fn custom(
        name: impl Into<Box<str>>,
        read: impl Fn(&Parts) -> Result<Scope, NoScope> + Send + Sync + 'static,
    ) -> Self {
        ScopeRule { name: name.into(), identity: None, read: Arc::new(read) }
    }

    /// The `Authorization` credential, hashed.
    ///
    /// Refuses credentials that differ between two attempts of the same caller: bearer tokens that
    /// are JWTs (a refreshed token would be a new scope) and schemes that sign each request.
    pub fn authorization() -> Self {
        Self::custom("authorization", |parts| {
            let credential = only_value(parts, &AUTHORIZATION)?;
            if changes_between_attempts(credential) {
                return Err(NoScope::Unstable);
            }
            Ok(Scope::of_credential(credential))
        })
    }

    /// The value of a header. Only for headers that the client cannot set itself: a trusted proxy
    /// has to overwrite it on every request.
    pub fn header(name: HeaderName) -> Self {
        Self::custom(format!("header:{name}"), move |parts| {
            let value =
                std::str::from_utf8(only_value(parts, &name)?).map_err(|_| NoScope::Missing)?;
            Scope::new(value.trim())
        })
    }

    /// A value that an earlier layer put into the request's extensions, such as the authenticated
    /// account of an axum middleware. `name` identifies the rule, see [`ScopeRule::custom`].
    pub fn extension<T: Send + Sync + 'static>(
        name: &str,
        scope_of: impl Fn(&T) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self::custom(format!("extension:{name}"), move |parts| {
            let name = parts.extensions.get::<T>().and_then(&scope_of).ok_or(NoScope::Missing)?;
            Scope::new(name)
        })
    }

    /// A claim of a bearer JWT, after its signature and times were verified, behind the issuer that
    /// gave it: `https://login.example|acme`. What an issuer calls `acme` is nobody of another one's.
    #[cfg(feature = "jwt")]
    pub fn jwt(verifier: JwtVerifier) -> Self {
        let name = format!("jwt:{}", verifier.claim());
        let identity = Some(format!("{name} behind its issuer").into());
        let rule =
            Self::custom(name, move |parts| verifier.scope_of(only_value(parts, &AUTHORIZATION)?));
        ScopeRule { identity, ..rule }
    }

    /// One scope for everybody. For services without callers to tell apart, and for trying things
    /// out: whoever guesses a key gets its reply.
    pub fn anonymous() -> Self {
        Self::custom("anonymous", |_| Ok(Scope("anonymous".into())))
    }

    /// The name that identifies this rule.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What makes a scope what it is: a store that was written under another one refuses to be used.
    pub(crate) fn identity(&self) -> &str {
        self.identity.as_ref().unwrap_or(&self.name)
    }

    /// Finds the scope of a request.
    ///
    /// # Errors
    /// When the request does not say reliably who is asking.
    pub fn read(&self, parts: &Parts) -> Result<Scope, NoScope> {
        (self.read)(parts)
    }
}

impl fmt::Debug for ScopeRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScopeRule({})", self.name)
    }
}

/// The one value of a header. Two values are as good as none: which of them would be meant?
fn only_value<'a>(parts: &'a Parts, name: &HeaderName) -> Result<&'a [u8], NoScope> {
    let mut values = parts.headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) if !value.as_bytes().trim_ascii().is_empty() => {
            Ok(value.as_bytes().trim_ascii())
        }
        _ => Err(NoScope::Missing),
    }
}

/// Schemes whose credential is made anew for each request.
const PER_REQUEST_SCHEMES: [&str; 10] = [
    "digest",
    "hawk",
    "aws4-hmac-sha256",
    "aws4-ecdsa-p256-sha256",
    "signature",
    "oauth",
    "negotiate",
    "ntlm",
    "hoba",
    "mutual",
];

fn changes_between_attempts(credential: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(credential) else { return false };
    let (scheme, token) = text.split_once(' ').unwrap_or(("", text));
    let is_scram =
        scheme.as_bytes().get(..6).is_some_and(|start| start.eq_ignore_ascii_case(b"scram-"));
    is_scram
        || PER_REQUEST_SCHEMES.iter().any(|known| known.eq_ignore_ascii_case(scheme))
        || is_shaped_like_jwt(token.trim())
}

/// Three (signed) or five (encrypted) base64url segments of which the first is a JSON object.
fn is_shaped_like_jwt(token: &str) -> bool {
    let dots = token.bytes().filter(|byte| *byte == b'.').count();
    let is_base64url = |byte: u8| byte.is_ascii_alphanumeric() || b"-_=.".contains(&byte);
    if !matches!(dots, 2 | 4) || !token.bytes().all(is_base64url) {
        return false;
    }
    let header = token.split('.').next().unwrap_or_default().trim_end_matches('=');
    URL_SAFE_NO_PAD.decode(header).is_ok_and(|json| json.trim_ascii_start().starts_with(b"{"))
}

#[cfg(test)]
mod tests;
