//! What `[defaults]` or a route says, checked, and made a policy.

use std::{fmt, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use http::{HeaderName, Method};
use onceward::{
    Effects, InFlight, Policy, Profile, Queued, Recipe,
    fingerprint::FingerprintKey,
    policy::{Pattern, Presence, ServerErrors},
};

use super::{
    StoreUrl, duration,
    file::Settings,
    one_of,
    probe::{self, ProbeSettings},
    route::{Chosen, KeyUse, Route, in_lower_case},
    secret::Text,
};
use crate::gateway::MaxAge;

/// Upstream is behind a network and answers within this, or its outcome is called unknown.
const MAX_EXECUTION: Duration = Duration::from_secs(30);

/// The words of the file for what the library has types for.
pub(crate) const ON_5XX: [(&str, ServerErrors); 4] = [
    ("by_effects", ServerErrors::ByEffects),
    ("retry", ServerErrors::Retry),
    ("store", ServerErrors::Store),
    ("unknown", ServerErrors::Unknown),
];

/// Where a setting stands, to be named in errors: `defaults.`, or the route.
#[derive(Clone, Debug)]
pub(super) enum Section {
    Defaults,
    Route { pattern: String, line: usize },
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Section::Defaults => f.write_str("defaults."),
            Section::Route { pattern, line } => write!(f, "route \"{pattern}\" (line {line}): "),
        }
    }
}

/// One section being read.
pub(super) struct Reader<'a> {
    pub(super) section: Section,
    pub(super) settings: &'a Settings,
    pub(super) store: &'a StoreUrl,
}

impl Reader<'_> {
    pub(super) fn route(&self, profile: Profile, pattern: Option<Pattern>) -> Result<Route> {
        let chosen = self.chosen();
        let recipe = self.recipe(&chosen)?;
        let mut policy = self.policy(profile, recipe.clone())?;
        if let Some(pattern) = &pattern {
            policy = policy.named(pattern.as_str());
        }
        let key = self.word("key", &self.settings.key, &KeyUse::WORDS)?;
        let key = key.unwrap_or(match policy.rules().presence {
            Presence::Required => KeyUse::Required,
            Presence::Optional => KeyUse::Optional,
        });
        let policy = policy.presence(match key {
            KeyUse::Optional => Presence::Optional,
            KeyUse::Required | KeyUse::Off | KeyUse::Shadow => Presence::Required,
        });
        let max_age = self.max_age()?;
        let retention = policy.rules().retention;
        ensure!(
            max_age.as_ref().is_none_or(|age| age.at_most < retention),
            "{}max_request_age must be less than the retention ({}s): a request that is young enough \
             has to meet the reply that is kept for it",
            self.section,
            retention.as_secs()
        );
        Ok(Route {
            in_lower_case: pattern.as_ref().and_then(in_lower_case),
            pattern,
            key,
            methods: self.methods(key)?,
            policy: Arc::new(policy),
            recipe,
            chosen,
            max_age,
            upgrade: self.settings.upgrade.unwrap_or(false),
            probe: self.probe()?,
        })
    }

    fn probe(&self) -> Result<Option<Arc<ProbeSettings>>> {
        let Some(file) = &self.settings.probe else { return Ok(None) };
        let probe = probe::resolve(file).with_context(|| self.at("probe"))?;
        Ok(Some(Arc::new(probe)))
    }

    fn policy(&self, profile: Profile, recipe: Recipe) -> Result<Policy> {
        let file = self.settings;
        let max_execution = self.time("max_execution", &file.max_execution)?;
        let mut policy = Policy::of_profile(profile)
            .fingerprint(recipe)
            .max_execution(max_execution.unwrap_or(MAX_EXECUTION))
            .with_context(|| self.at("max_execution"))?
            .in_flight(self.in_flight()?);
        if let Some(effects) = self.effects()? {
            policy = policy.effects(effects).with_context(|| self.at("effects"))?;
        }
        if let Some(queued) = self.queued()? {
            policy = policy.queued(queued).with_context(|| self.at("execution"))?;
        }
        if let Some(lease) = self.time("lease", &file.lease)? {
            policy = policy.lease(lease).with_context(|| self.at("lease"))?;
        }
        if let Some(retention) = self.time("retention", &file.retention)? {
            policy = policy.retention(retention).with_context(|| self.at("retention"))?;
        }
        if let Some(tombstone) = self.time("tombstone", &file.tombstone)? {
            policy = policy.tombstone(tombstone);
        }
        let expired = [("reject", false), ("execute", true)];
        if let Some(runs_again) = self.word("expired", &file.expired, &expired)? {
            policy = policy.expired_runs_again(runs_again);
        }
        if let Some(server_errors) = self.word("on_5xx", &file.on_5xx, &ON_5XX)? {
            policy = policy.server_errors(server_errors);
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
        Ok(policy)
    }

    fn effects(&self) -> Result<Option<Effects>> {
        let known = Effects::ALL.map(|effects| (effects.name(), effects));
        let effects = self.word("effects", &self.settings.effects, &known)?;
        // Upstream takes part by SQL, or not at all: each success would then be unknown.
        ensure!(
            !matches!(effects, Some(Effects::Local | Effects::Phased))
                || matches!(self.store, StoreUrl::Postgres(_)),
            "{}effects: effects `{}` need an upstream that completes in its own transaction, which \
             it can with a postgres:// store only",
            self.section,
            effects.map(Effects::name).unwrap_or_default()
        );
        Ok(effects)
    }

    /// Of a queued route, how its requests wait. What else a queued route needs is asked for here.
    fn queued(&self) -> Result<Option<Queued>> {
        let file = self.settings;
        let known = [("inline", false), ("queued", true)];
        let is_queued = self.word("execution", &file.execution, &known)?.unwrap_or(false);
        for (key, given) in [
            ("queued_for", file.queued_for.is_some()),
            ("queued_headers", file.queued_headers.is_some()),
        ] {
            ensure!(
                is_queued || !given,
                "{}{key} has a meaning only with execution = \"queued\"",
                self.section
            );
        }
        if !is_queued {
            return Ok(None);
        }
        let mut queued = match self.time("queued_for", &file.queued_for)? {
            Some(time) => Queued::within(time).with_context(|| self.at("queued_for"))?,
            None => Queued::default(),
        };
        if let Some(given) = &file.queued_headers {
            let headers: Result<Vec<HeaderName>> =
                given.iter().map(|text| self.header("queued_headers", text)).collect();
            let headers = headers?;
            let ours = headers.iter().find(|name| name.as_str().starts_with("onceward-"));
            ensure!(
                ours.is_none(),
                "{}queued_headers: `{}` is said anew at each attempt, and never by a client",
                self.section,
                ours.map(HeaderName::as_str).unwrap_or_default()
            );
            queued = queued.headers(headers);
        }
        Ok(Some(queued))
    }

    fn in_flight(&self) -> Result<InFlight> {
        let wait = self.time("wait", &self.settings.wait)?;
        let known = [
            ("conflict", InFlight::Conflict),
            ("wait", InFlight::Wait(wait.unwrap_or(InFlight::WAIT_MAX))),
            ("accepted", InFlight::Accepted),
        ];
        let in_flight = self.word("in_flight", &self.settings.in_flight, &known)?;
        let in_flight = in_flight.unwrap_or(InFlight::Conflict);
        ensure!(
            wait.is_none() || matches!(in_flight, InFlight::Wait(_)),
            "{}wait has a meaning only with in_flight = \"wait\"",
            self.section
        );
        ensure!(
            wait.is_none_or(|wait| wait <= InFlight::WAIT_MAX),
            "{}wait must be at most {}s",
            self.section,
            InFlight::WAIT_MAX.as_secs()
        );
        Ok(in_flight)
    }

    /// Methods that are safe do nothing that could be done twice, and a preflight never has a key.
    fn methods(&self, key: KeyUse) -> Result<Vec<Method>> {
        let given = self.settings.methods.iter().flatten().map(|text| {
            let name = text.as_str();
            let upper = name.bytes().all(|byte| byte.is_ascii_uppercase());
            let method = name.parse::<Method>().ok().filter(|_| upper);
            method.with_context(|| format!("{}methods: `{name}` is not a method", self.section))
        });
        let methods: Vec<Method> = given.collect::<Result<_>>()?;
        let safe = methods.iter().find(|method| KeyUse::never_applies_to(method));
        if let (Some(method), true) = (safe, key != KeyUse::Off) {
            anyhow::bail!("{}methods: {method} is never protected", self.section);
        }
        Ok(methods)
    }

    fn max_age(&self) -> Result<Option<MaxAge>> {
        let header = match &self.settings.max_request_age_header {
            Some(text) => Some(self.header("max_request_age_header", text)?),
            None => None,
        };
        let at_most = self.time("max_request_age", &self.settings.max_request_age)?;
        ensure!(
            at_most.is_some() || header.is_none(),
            "{}max_request_age_header has a meaning only with max_request_age",
            self.section
        );
        let at_most = at_most.filter(|at_most| !at_most.is_zero());
        Ok(at_most.map(|at_most| MaxAge { at_most, header }))
    }

    fn chosen(&self) -> Chosen {
        let texts = |texts: &Option<Vec<Text>>| -> Vec<String> {
            texts.iter().flatten().map(|text| text.as_str().to_owned()).collect()
        };
        Chosen {
            headers: texts(&self.settings.fingerprint_headers),
            include: texts(&self.settings.fingerprint_include),
            exclude: texts(&self.settings.fingerprint_exclude),
            keyed: self.settings.fingerprint_key.is_some(),
        }
    }

    fn recipe(&self, chosen: &Chosen) -> Result<Recipe> {
        let given = self.settings.fingerprint_headers.iter().flatten();
        let headers: Result<Vec<HeaderName>> =
            given.map(|text| self.header("fingerprint_headers", text)).collect();
        let mut recipe = Recipe::canonical().with_headers(headers?);
        let include: Vec<&str> = chosen.include.iter().map(String::as_str).collect();
        let exclude: Vec<&str> = chosen.exclude.iter().map(String::as_str).collect();
        if !include.is_empty() {
            recipe = recipe.include(&include).with_context(|| self.at("fingerprint_include"))?;
        }
        recipe = recipe.exclude(&exclude).with_context(|| self.at("fingerprint_exclude"))?;
        if let Some(key) = &self.settings.fingerprint_key {
            let key = FingerprintKey::new(key.as_str().as_bytes());
            recipe = recipe.keyed(key.with_context(|| self.at("fingerprint_key"))?);
        }
        Ok(recipe)
    }

    fn at(&self, key: &str) -> String {
        format!("{}{key}", self.section)
    }

    fn word<T: Copy>(
        &self,
        key: &str,
        text: &Option<Text>,
        known: &[(&str, T)],
    ) -> Result<Option<T>> {
        let Some(text) = text else { return Ok(None) };
        one_of(&self.at(key), text.as_str(), known).map(Some)
    }

    fn time(&self, key: &str, text: &Option<Text>) -> Result<Option<Duration>> {
        let Some(text) = text else { return Ok(None) };
        let parsed = duration::parse(text.as_str());
        parsed.map(Some).with_context(|| self.at(key))
    }

    fn header(&self, key: &str, text: &Text) -> Result<HeaderName> {
        let name = text.as_str();
        let parsed = name.parse().with_context(|| format!("`{name}` is not the name of a header"));
        parsed.with_context(|| self.at(key))
    }
}
