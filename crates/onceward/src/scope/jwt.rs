//! Scopes from a claim of a verified JWT: stable across refreshed tokens.

use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};
use serde_json::{Map, Value};

use super::{NoScope, Scope};

/// The key that tokens are verified with.
#[derive(Clone)]
pub enum JwtKey {
    /// A shared secret, for HS256, HS384 and HS512.
    Secret(Vec<u8>),
    /// An RSA public key in PEM, for RS256, RS384, RS512, PS256, PS384 and PS512.
    RsaPem(Vec<u8>),
    /// An elliptic curve public key in PEM, for ES256 and ES384.
    EcPem(Vec<u8>),
    /// An Edwards curve public key in PEM, for EdDSA.
    EdPem(Vec<u8>),
}

/// Verifies bearer tokens and reads one claim.
#[derive(Clone)]
pub struct JwtVerifier {
    claim: String,
    key: DecodingKey,
    validation: Validation,
}

/// The verification key cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the JWT verification key cannot be used")]
pub struct JwtError(#[from] jsonwebtoken::errors::Error);

impl JwtVerifier {
    /// A verifier that takes the scope from `claim`.
    ///
    /// Expiry (`exp`) is required and checked, and `nbf` if it is there. The algorithms are those
    /// of the key's family, so that a token cannot choose another one.
    ///
    /// # Errors
    /// When the key cannot be parsed.
    pub fn new(claim: impl Into<String>, key: JwtKey) -> Result<Self, JwtError> {
        use Algorithm::{ES256, ES384, EdDSA, HS256, HS384, HS512};
        use Algorithm::{PS256, PS384, PS512, RS256, RS384, RS512};
        let (key, algorithms) = match key {
            JwtKey::Secret(secret) => {
                (DecodingKey::from_secret(&secret), vec![HS256, HS384, HS512])
            }
            JwtKey::RsaPem(pem) => {
                (DecodingKey::from_rsa_pem(&pem)?, vec![RS256, RS384, RS512, PS256, PS384, PS512])
            }
            JwtKey::EcPem(pem) => (DecodingKey::from_ec_pem(&pem)?, vec![ES256, ES384]),
            JwtKey::EdPem(pem) => (DecodingKey::from_ed_pem(&pem)?, vec![EdDSA]),
        };
        let validation = Validation {
            algorithms,
            validate_nbf: true,
            validate_aud: false,
            ..Validation::default()
        };
        Ok(JwtVerifier { claim: claim.into(), key, validation })
    }

    /// Accepts only tokens made for one of these audiences.
    #[must_use]
    pub fn audience(mut self, audience: &[&str]) -> Self {
        self.validation.set_audience(audience);
        self.validation.validate_aud = true;
        self
    }

    /// Accepts only tokens of one of these issuers.
    #[must_use]
    pub fn issuer(mut self, issuer: &[&str]) -> Self {
        self.validation.set_issuer(issuer);
        self
    }

    pub(super) fn claim(&self) -> &str {
        &self.claim
    }

    pub(super) fn scope_of(&self, credential: &[u8]) -> Result<Scope, NoScope> {
        let text = std::str::from_utf8(credential).map_err(|_| NoScope::Missing)?;
        let (scheme, token) = text.split_once(' ').ok_or(NoScope::Missing)?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(NoScope::Missing);
        }
        let token = decode::<Map<String, Value>>(token.trim(), &self.key, &self.validation)
            .map_err(|_| NoScope::Missing)?;
        let name = match token.claims.get(&self.claim) {
            Some(Value::String(name)) if !name.is_empty() => name.clone(),
            Some(Value::Number(number)) => number.to_string(),
            _ => return Err(NoScope::Missing),
        };
        match token.claims.get("iss") {
            Some(Value::String(issuer)) => Scope::new(format!("{}|{name}", escaped(issuer))),
            None => Scope::new(escaped(&name)),
            Some(_) => Err(NoScope::Missing),
        }
    }
}

/// Without the sign that stands between issuer and name.
fn escaped(text: &str) -> String {
    text.replace('%', "%25").replace('|', "%7C")
}
