//! `[privacy]`: what stores may see.

use std::fmt;

use anyhow::{Context as _, Result, bail, ensure};
use onceward::{Effects, KeyRing, LookupKey, RingKey};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{RouteTable, StoreUrl, secret::Text};

/// The section as it is written.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PrivacyFile {
    /// Keys under which stored replies and requests are sealed. The first one seals, all of them
    /// open. Nothing is sealed without one.
    #[serde(default)]
    pub(crate) keys: Vec<SealingKey>,
    /// A secret, at least 16 bytes: keys are stored as HMAC under it. Never to be changed while keys
    /// live.
    pub(crate) hash_keys: Option<Text>,
}

/// One key of the ring.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SealingKey {
    /// Its name: letters, digits, `-`, `_` and `.`. It is stored with what was sealed under the key.
    pub(crate) id: Text,
    /// 32 bytes in base64, as `onceward privacy new-key` prints them.
    pub(crate) secret: Text,
}

/// What stores may see.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Privacy {
    pub(crate) ring: Option<KeyRing>,
    pub(crate) lookup_key: Option<LookupKey>,
}

impl fmt::Debug for Privacy {
    /// Without the secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Privacy { ring, lookup_key } = self;
        f.debug_struct("Privacy").field("ring", ring).field("lookup_key", lookup_key).finish()
    }
}

impl Privacy {
    /// The names of the keys, the one that seals first.
    pub(crate) fn ring_ids(&self) -> Vec<&str> {
        self.ring.iter().flat_map(KeyRing::ids).collect()
    }
}

pub(super) fn resolve(
    file: &PrivacyFile,
    routes: &RouteTable,
    store: &StoreUrl,
) -> Result<Privacy> {
    let keys = file.keys.iter().map(|key| RingKey::parse(key.id.as_str(), key.secret.as_str()));
    let keys: Result<Vec<RingKey>, _> = keys.collect();
    let keys = keys.context("privacy.keys; `onceward privacy new-key` makes a secret")?;
    let ring = match keys.is_empty() {
        true => None,
        false => Some(KeyRing::new(keys).context("privacy.keys")?),
    };
    let lookup_key =
        file.hash_keys.as_ref().map(|secret| LookupKey::new(secret.as_str().as_bytes()));
    let lookup_key = lookup_key.transpose().context("privacy.hash_keys")?;
    // What a client sends to be executed later may be anything, and lies there for long.
    let queued = routes.all().find(|route| route.policy.rules().queued.is_some());
    if let (Some(queued), None, false) = (queued, &ring, *store == StoreUrl::Memory) {
        bail!(
            "`{}` is queued, so that whole requests are stored: seal them with privacy.keys; \
             `onceward privacy new-key` makes a secret",
            queued.name()
        );
    }
    // The request of a phased operation is kept as it came, with its key.
    let keeps_requests = || {
        let mut rules = routes.all().map(|route| route.policy.rules());
        rules.any(|rules| rules.effects == Effects::Phased)
    };
    ensure!(
        lookup_key.is_none() || ring.is_some() || !keeps_requests(),
        "privacy.hash_keys hides keys from the store, but the requests of phased routes are kept \
         there with their keys; seal them with privacy.keys"
    );
    Ok(Privacy { ring, lookup_key })
}
