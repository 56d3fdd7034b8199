//! `[defaults]`: the one policy of this version.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http::HeaderName;
use onceward::{
    Effects, InFlight, Policy, Profile, Recipe,
    fingerprint::FingerprintKey,
    policy::{Presence, ServerErrors},
};

use super::{StoreUrl, duration, file::Defaults, one_of, secret::Text};

/// Upstream is behind a network and answers within this, or its outcome is called unknown.
const MAX_EXECUTION: Duration = Duration::from_secs(30);

pub(super) struct Resolved {
    pub(super) policy: Policy,
    pub(super) max_execution: Duration,
}

pub(super) fn resolve(profile: Profile, file: &Defaults, store: &StoreUrl) -> Result<Resolved> {
    let max_execution = time("max_execution", &file.max_execution)?.unwrap_or(MAX_EXECUTION);
    let mut policy = Policy::of_profile(profile)
        .fingerprint(recipe(file)?)
        .max_execution(max_execution)
        .context("defaults.max_execution")?;
    if let Some(text) = &file.key {
        let known = [("required", Presence::Required), ("optional", Presence::Optional)];
        policy = policy.presence(one_of("defaults.key", text.as_str(), &known)?);
    }
    if let Some(text) = &file.effects {
        let known = Effects::ALL.map(|effects| (effects.name(), effects));
        let effects = one_of("defaults.effects", text.as_str(), &known)?;
        // Upstream takes part by SQL, or not at all: each success would then be unknown.
        ensure!(
            !matches!(effects, Effects::Local | Effects::Phased)
                || matches!(store, StoreUrl::Postgres(_)),
            "defaults.effects: effects `{}` need an upstream that completes in its own transaction, \
             which it can with a postgres:// store only",
            effects.name()
        );
        policy = policy.effects(effects).context("defaults.effects")?;
    }
    policy = policy.in_flight(in_flight(file)?);
    if let Some(lease) = time("lease", &file.lease)? {
        policy = policy.lease(lease).context("defaults.lease")?;
    }
    if let Some(retention) = time("retention", &file.retention)? {
        policy = policy.retention(retention).context("defaults.retention")?;
    }
    if let Some(tombstone) = time("tombstone", &file.tombstone)? {
        policy = policy.tombstone(tombstone);
    }
    if let Some(text) = &file.expired {
        let known = [("reject", false), ("execute", true)];
        policy = policy.expired_runs_again(one_of("defaults.expired", text.as_str(), &known)?);
    }
    if let Some(text) = &file.server_errors {
        let known = [
            ("by_effects", ServerErrors::ByEffects),
            ("retry", ServerErrors::Retry),
            ("store", ServerErrors::Store),
            ("unknown", ServerErrors::Unknown),
        ];
        policy = policy.server_errors(one_of("defaults.server_errors", text.as_str(), &known)?);
    }
    if let Some(bytes) = file.request_bytes_max {
        policy = policy.request_bytes_max(bytes);
    }
    if let Some(bytes) = file.reply_bytes_max {
        policy = policy.reply_bytes_max(bytes);
    }
    if let Some(version) = &file.schema_version {
        policy = policy.schema_version(version.as_str());
    }
    Ok(Resolved { policy, max_execution })
}

fn in_flight(file: &Defaults) -> Result<InFlight> {
    let wait = time("wait", &file.wait)?;
    let known = [
        ("conflict", InFlight::Conflict),
        ("wait", InFlight::Wait(wait.unwrap_or(InFlight::WAIT_MAX))),
        ("accepted", InFlight::Accepted),
    ];
    let in_flight = match &file.in_flight {
        Some(text) => one_of("defaults.in_flight", text.as_str(), &known)?,
        None => InFlight::Conflict,
    };
    ensure!(
        wait.is_none() || matches!(in_flight, InFlight::Wait(_)),
        "defaults.wait has a meaning only with in_flight = \"wait\""
    );
    ensure!(
        wait.is_none_or(|wait| wait <= InFlight::WAIT_MAX),
        "defaults.wait must be at most {}s",
        InFlight::WAIT_MAX.as_secs()
    );
    Ok(in_flight)
}

fn recipe(file: &Defaults) -> Result<Recipe> {
    let headers: Result<Vec<HeaderName>> = file
        .fingerprint_headers
        .iter()
        .map(|text| {
            let name = text.as_str();
            name.parse().with_context(|| format!("`{name}` is not the name of a header"))
        })
        .collect();
    let mut recipe =
        Recipe::canonical().with_headers(headers.context("defaults.fingerprint_headers")?);
    let include: Vec<&str> = file.fingerprint_include.iter().map(Text::as_str).collect();
    let exclude: Vec<&str> = file.fingerprint_exclude.iter().map(Text::as_str).collect();
    if !include.is_empty() {
        recipe = recipe.include(&include).context("defaults.fingerprint_include")?;
    }
    recipe = recipe.exclude(&exclude).context("defaults.fingerprint_exclude")?;
    if let Some(key) = &file.fingerprint_key {
        let key = FingerprintKey::new(key.as_str().as_bytes());
        recipe = recipe.keyed(key.context("defaults.fingerprint_key")?);
    }
    Ok(recipe)
}

fn time(key: &str, text: &Option<Text>) -> Result<Option<Duration>> {
    let Some(text) = text else { return Ok(None) };
    let parsed = duration::parse(text.as_str());
    parsed.map(Some).with_context(|| format!("defaults.{key}"))
}
