//! `[scope]`: how callers are told apart, and which rules may not be used as they were asked for.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context as _, Result, bail, ensure};
use http::HeaderName;
use onceward::{
    ScopeRule,
    scope::{JwtError, JwtKey, JwtVerifier, NoScope},
};

use super::{TrustedProxies, file, secret::Text, suggest};
use crate::listener::Peer;

/// What is asked of tokens, to be shown. No secrets.
#[derive(Clone, Debug, Default)]
pub(crate) struct TokenRules {
    pub(crate) has_secret: bool,
    pub(crate) has_public_key: bool,
    pub(crate) audience: Option<String>,
    pub(crate) issuer: Option<String>,
}

impl TokenRules {
    pub(super) fn of(file: &file::Scope) -> TokenRules {
        let text = |text: &Option<Text>| text.as_ref().map(|text| text.as_str().to_owned());
        TokenRules {
            has_secret: file.jwt_secret.is_some(),
            has_public_key: file.jwt_public_key.is_some(),
            audience: text(&file.jwt_audience),
            issuer: text(&file.jwt_issuer),
        }
    }
}

pub(super) fn resolve(
    flag: Option<&str>,
    file: &file::Scope,
    proxies: &TrustedProxies,
    listen: SocketAddr,
) -> Result<ScopeRule> {
    let from = flag.or(file.from.as_ref().map(Text::as_str)).unwrap_or("authorization");
    let has_key = file.jwt_secret.is_some() || file.jwt_public_key.is_some();
    ensure!(
        from.starts_with("jwt:") || !(has_key || of_tokens(file)),
        "scope.jwt_secret and its like have a meaning only with from = \"jwt:CLAIM\""
    );
    match from.split_once(':') {
        None if from == "authorization" => Ok(ScopeRule::authorization()),
        None if from == "anonymous" => Ok(ScopeRule::anonymous()),
        Some(("header", name)) => header(name, proxies, listen),
        Some(("jwt", claim)) if !claim.is_empty() => {
            let key = jwt_keys(claim, file)?;
            Ok(ScopeRule::jwt(verifier(claim, key, file)?))
        }
        _ => {
            let known = ["authorization", "anonymous", "header:NAME", "jwt:CLAIM"];
            bail!("the scope `{from}` is not known{}", suggest::hint(from, &known))
        }
    }
}

fn of_tokens(file: &file::Scope) -> bool {
    file.jwt_audience.is_some() || file.jwt_issuer.is_some()
}

/// Whoever can set the header can be anybody, so that only proxies that overwrite it may.
fn header(name: &str, proxies: &TrustedProxies, listen: SocketAddr) -> Result<ScopeRule> {
    let header: HeaderName =
        name.parse().with_context(|| format!("the scope header:{name} does not name a header"))?;
    ensure!(
        !proxies.is_empty() || listen.ip().is_loopback(),
        "with the scope header:{name}, whoever reaches {listen} could be anybody; name the proxies \
         that set the header in scope.trusted_proxies, or listen on a loopback address"
    );
    let rule = ScopeRule::header(header);
    let name: Box<str> = rule.name().into();
    let proxies = proxies.clone();
    // The same name as the plain rule: which proxies are trusted does not change what a scope is.
    Ok(ScopeRule::custom(name, move |parts| match parts.extensions.get::<Arc<Peer>>() {
        Some(peer) if proxies.contain(peer.ip()) => rule.read(parts),
        _ => Err(NoScope::Missing),
    }))
}

/// The key as given: a secret, or a public key whose kind its text does not say.
fn jwt_keys(claim: &str, file: &file::Scope) -> Result<Vec<JwtKey>> {
    match (&file.jwt_secret, &file.jwt_public_key) {
        (Some(secret), None) => {
            let secret = secret.as_str().as_bytes();
            // RFC 7518, 3.2: a shorter key is weaker than the hash it is used with.
            ensure!(secret.len() >= 32, "scope.jwt_secret must have at least 32 bytes");
            Ok(vec![JwtKey::Secret(secret.to_vec())])
        }
        (None, Some(pem)) => {
            let pem = pem.as_str().as_bytes().to_vec();
            Ok(vec![JwtKey::RsaPem(pem.clone()), JwtKey::EcPem(pem.clone()), JwtKey::EdPem(pem)])
        }
        (Some(_), Some(_)) => {
            bail!("scope.jwt_secret and scope.jwt_public_key exclude each other; keep one")
        }
        (None, None) => bail!(
            "the scope jwt:{claim} needs a key to verify tokens with; set scope.jwt_secret or \
             scope.jwt_public_key in the config file"
        ),
    }
}

fn verifier(claim: &str, keys: Vec<JwtKey>, file: &file::Scope) -> Result<JwtVerifier> {
    let verifiers = keys.into_iter().map(|key| JwtVerifier::new(claim, key));
    let mut verifier = verifiers
        .reduce(|first: Result<_, JwtError>, other| first.or(other))
        .context("no key")?
        .context("scope.jwt_public_key is not an RSA, EC or Ed25519 public key in PEM")?;
    if let Some(audience) = &file.jwt_audience {
        verifier = verifier.audience(&[audience.as_str()]);
    }
    if let Some(issuer) = &file.jwt_issuer {
        verifier = verifier.issuer(&[issuer.as_str()]);
    }
    Ok(verifier)
}
