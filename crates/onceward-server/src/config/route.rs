//! Routes: which rules hold for a request. The first one that matches wins.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use http::{HeaderName, Method};
use onceward::{
    Policy, Profile, Recipe,
    policy::{BadPattern, Pattern},
};

use super::{
    StoreUrl, file, one_of,
    policy::{Reader, Section},
    probe::ProbeSettings,
    secret::Text,
};
use crate::gateway::MaxAge;

mod path; // paths, made comparable

/// The rules for some requests.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    /// None for the defaults.
    pub(crate) pattern: Option<Pattern>,
    /// The pattern in lower case, if it is not.
    pub(super) in_lower_case: Option<Pattern>,
    pub(crate) key: KeyUse,
    /// Methods that are protected beside POST, PATCH and those that the pattern names.
    pub(crate) methods: Vec<Method>,
    pub(crate) policy: Arc<Policy>,
    pub(crate) recipe: Recipe,
    pub(crate) chosen: Chosen,
    pub(crate) max_age: Option<MaxAge>,
    /// Whether connections may change their protocol.
    pub(crate) upgrade: bool,
    /// How unknown outcomes are asked about.
    pub(crate) probe: Option<Arc<ProbeSettings>>,
}

/// What goes into fingerprints beside what always does, to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub(crate) headers: Vec<String>,
    pub(crate) include: Vec<String>,
    pub(crate) exclude: Vec<String>,
    pub(crate) keyed: bool,
}

/// What a key is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyUse {
    /// It has to be there.
    Required,
    /// Requests with one are protected.
    Optional,
    /// Nothing: requests are passed on.
    Off,
    /// Nothing, but what it would have done is told.
    Shadow,
}

impl KeyUse {
    pub(crate) const WORDS: [(&str, KeyUse); 4] = [
        ("required", KeyUse::Required),
        ("optional", KeyUse::Optional),
        ("off", KeyUse::Off),
        ("shadow", KeyUse::Shadow),
    ];

    pub(crate) fn name(self) -> &'static str {
        let word = KeyUse::WORDS.into_iter().find(|(_, key)| *key == self);
        word.map_or("", |(name, _)| name)
    }

    /// Whether a key on this method is always ignored.
    pub(crate) fn never_applies_to(method: &Method) -> bool {
        method.is_safe() || *method == Method::CONNECT
    }
}

/// What is to be done with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Treatment {
    PassOn,
    Observe,
    Protect,
}

impl Route {
    /// The text of the route in logs, metrics and records.
    pub(crate) fn name(&self) -> &str {
        self.pattern.as_ref().map_or("default", Pattern::as_str)
    }

    /// What is to be done with a request of this method.
    pub(crate) fn treatment(&self, method: &Method) -> Treatment {
        if !self.protects(method) {
            return Treatment::PassOn;
        }
        match self.key {
            KeyUse::Required | KeyUse::Optional => Treatment::Protect,
            KeyUse::Shadow => Treatment::Observe,
            KeyUse::Off => Treatment::PassOn,
        }
    }

    /// How much is asked of a request of this method: of two readings of a request, the one of which
    /// more is asked counts.
    pub(crate) fn strictness(&self, method: &Method) -> u8 {
        match (self.treatment(method), self.key) {
            (Treatment::Protect, KeyUse::Required) => 3,
            (Treatment::Protect, _) => 2,
            (Treatment::Observe, _) => 1,
            (Treatment::PassOn, _) => 0,
        }
    }

    /// The headers by which a request is told from another, and old from new.
    pub(crate) fn deciding_headers(&self) -> impl Iterator<Item = HeaderName> {
        let chosen = self.chosen.headers.iter().filter_map(|name| name.parse().ok());
        chosen.chain(self.max_age.as_ref().and_then(|age| age.header.clone()))
    }

    fn protects(&self, method: &Method) -> bool {
        if KeyUse::never_applies_to(method) {
            return false;
        }
        let named = self.pattern.as_ref().and_then(Pattern::methods).unwrap_or_default();
        matches!(*method, Method::POST | Method::PATCH)
            || named.contains(method)
            || self.methods.contains(method)
    }

    /// The methods that are protected, as far as the pattern lets them through.
    pub(crate) fn protected_methods(&self) -> Vec<Method> {
        let named = self.pattern.as_ref().and_then(Pattern::methods);
        let candidates = match named {
            Some(named) => named.to_vec(),
            None => [&[Method::POST, Method::PATCH], &*self.methods].concat(),
        };
        let mut methods = Vec::new();
        for method in candidates {
            if self.treatment(&method) != Treatment::PassOn && !methods.contains(&method) {
                methods.push(method);
            }
        }
        methods
    }
}

/// All routes of a gateway.
#[derive(Clone, Debug)]
pub(crate) struct RouteTable {
    routes: Vec<Arc<Route>>,
    defaults: Arc<Route>,
    /// What is allowed and probably not meant.
    pub(crate) warnings: Vec<String>,
}

impl RouteTable {
    /// The profile is that of the flag or of the defaults; a route may have another one.
    pub(super) fn read(
        profile: Profile,
        file: &file::File,
        store: &StoreUrl,
    ) -> Result<RouteTable> {
        let settings = file.defaults.settings();
        let reader = Reader { section: Section::Defaults, settings: &settings, store };
        let defaults = Arc::new(reader.route(profile, None)?);
        let mut routes = Vec::new();
        for route in &file.routes {
            routes.push(Arc::new(read_route(profile, route, &settings, store)?));
        }
        let mut table = RouteTable { routes, defaults, warnings: Vec::new() };
        table.compare(&file.routes)?;
        table.look_at_queued(store);
        Ok(table)
    }

    /// The rules for a request. Where services may read its path in several ways, the strictest of
    /// what they could mean: a spelling must not lead past protection. Some do not care about upper
    /// and lower case either.
    pub(crate) fn find<'a>(&'a self, method: &Method, path: &str) -> &'a Arc<Route> {
        if path::is_plain(path) && !self.may_differ_in_case(path) {
            return self.matching(method, path);
        }
        let comparable = path::comparable(path);
        let mut found = self.matching(method, &comparable);
        // Of several that are as strict, the first counts.
        let mut consider = |other: &'a Arc<Route>| {
            if other.strictness(method) > found.strictness(method) {
                found = other;
            }
        };
        self.in_any_case(method, &comparable).map(&mut consider);
        for reading in path::other_readings(path).iter().flatten() {
            consider(self.matching(method, reading));
            self.in_any_case(method, reading).map(&mut consider);
        }
        found
    }

    /// The route of a service that takes upper and lower case for the same. `None` where there is
    /// nothing that could differ.
    fn in_any_case(&self, method: &Method, path: &str) -> Option<&Arc<Route>> {
        if !self.may_differ_in_case(path) {
            return None;
        }
        let path = path.to_ascii_lowercase();
        let matches = |route: &&Arc<Route>| {
            let pattern = route.in_lower_case.as_ref().or(route.pattern.as_ref());
            pattern.is_some_and(|pattern| pattern.matches(method, &path))
        };
        Some(self.routes.iter().find(matches).unwrap_or(&self.defaults))
    }

    fn may_differ_in_case(&self, path: &str) -> bool {
        path.bytes().any(|byte| byte.is_ascii_uppercase())
            || self.routes.iter().any(|route| route.in_lower_case.is_some())
    }

    fn matching(&self, method: &Method, path: &str) -> &Arc<Route> {
        let matches = |route: &&Arc<Route>| {
            route.pattern.as_ref().is_some_and(|pattern| pattern.matches(method, path))
        };
        self.routes.iter().find(matches).unwrap_or(&self.defaults)
    }

    /// All routes in the order in which they are tried, the defaults last.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Route>> {
        self.routes.iter().chain([&self.defaults])
    }

    /// The rules for what no route matches.
    pub(crate) fn defaults(&self) -> &Arc<Route> {
        &self.defaults
    }

    /// The policies under which something is stored, for the engine.
    pub(crate) fn protected(&self) -> Result<onceward::Routes, BadPattern> {
        let stores = |route: &Route| matches!(route.key, KeyUse::Required | KeyUse::Optional);
        let mut routes = match stores(&self.defaults) {
            true => onceward::Routes::with_default((*self.defaults.policy).clone()),
            false => onceward::Routes::only(),
        };
        for route in self.routes.iter().filter(|route| stores(route)) {
            routes = routes.route(route.name(), (*route.policy).clone())?;
        }
        Ok(routes)
    }

    /// Notes routes whose promise does not outlive the process.
    fn look_at_queued(&mut self, store: &StoreUrl) {
        let queued = self.all().filter(|route| route.policy.rules().queued.is_some());
        let queued: Vec<String> = queued.map(|route| format!("\"{}\"", route.name())).collect();
        if *store == StoreUrl::Memory && !queued.is_empty() {
            self.warnings.push(format!(
                "{}: what is accepted is lost when the process ends, since the store is in memory",
                queued.join(", ")
            ));
        }
    }

    /// Refuses routes that no request can reach, and notes those whose order matters.
    fn compare(&mut self, written: &[file::Route]) -> Result<()> {
        let patterns: Vec<(&Pattern, usize)> = self
            .routes
            .iter()
            .zip(written)
            .filter_map(|(route, written)| Some((route.pattern.as_ref()?, written.line)))
            .collect();
        for (number, (pattern, line)) in patterns.iter().enumerate() {
            let earlier = patterns.get(..number).unwrap_or_default();
            let hidden_by: Vec<&str> = hiding(pattern, earlier);
            if !hidden_by.is_empty() {
                bail!(
                    "route \"{}\" (line {line}): no request reaches it, since \"{}\" comes first; \
                     put the narrower route before the wider one",
                    pattern.as_str(),
                    hidden_by.join("\" and \"")
                );
            }
            for (other, other_line) in earlier {
                let nested = other.covers_path_of(pattern) || pattern.covers_path_of(other);
                if pattern.overlaps(other) && !nested {
                    self.warnings.push(format!(
                        "routes \"{}\" (line {other_line}) and \"{}\" (line {line}) match some \
                         requests both; the first one holds for them",
                        other.as_str(),
                        pattern.as_str()
                    ));
                }
            }
        }
        Ok(())
    }
}

/// The earlier patterns that together take every request away from this one; none if one is left.
fn hiding<'a>(pattern: &Pattern, earlier: &[(&'a Pattern, usize)]) -> Vec<&'a str> {
    let wider: Vec<&Pattern> = earlier
        .iter()
        .map(|(other, _)| *other)
        .filter(|other| other.covers_path_of(pattern))
        .collect();
    if let Some(all) = wider.iter().find(|other| other.methods().is_none()) {
        return vec![all.as_str()];
    }
    let Some(methods) = pattern.methods() else { return Vec::new() };
    let takes = |method: &Method| {
        let other = wider.iter().find(|other| other.methods().is_some_and(|m| m.contains(method)));
        other.map(|other| other.as_str())
    };
    let mut hidden_by: Vec<&str> = methods.iter().map_while(takes).collect();
    if hidden_by.len() < methods.len() {
        return Vec::new();
    }
    hidden_by.dedup();
    hidden_by
}

/// The same pattern for paths in lower case, where it is another one.
pub(super) fn in_lower_case(pattern: &Pattern) -> Option<Pattern> {
    let (methods, path) = pattern.as_str().split_once(' ')?;
    let lower = path.to_ascii_lowercase();
    // What parses in one case parses in the other.
    (lower != path).then(|| Pattern::parse(&format!("{methods} {lower}")).ok()).flatten()
}

fn read_route(
    profile: Profile,
    written: &file::Route,
    defaults: &file::Settings,
    store: &StoreUrl,
) -> Result<Route> {
    let text = written.pattern.get_ref().as_str();
    let section = Section::Route { pattern: text.to_owned(), line: written.line };
    let pattern = Pattern::parse(text).with_context(|| format!("line {}: match", written.line))?;
    let (_, wanted) = text.trim().split_once(' ').unwrap_or_default();
    ensure!(
        path::comparable(wanted.trim()) == wanted.trim(),
        "{section}match: paths are compared without `//`, `.`, `..`, a slash at their end and \
         needless escapes, so that this one would never match; write `{}`",
        path::comparable(wanted.trim())
    );
    let mut settings = written.over(defaults);
    if written.execution.is_some() {
        // How to wait is said together with the wish to be queued.
        settings.queued_for.clone_from(&written.queued_for);
        settings.queued_headers.clone_from(&written.queued_headers);
    }
    if written.in_flight.is_some() {
        // How long to wait is said together with the wish to wait.
        settings.wait.clone_from(&written.wait);
    }
    let profile = match &written.profile {
        Some(name) => {
            let known = Profile::ALL.map(|profile| (profile.name(), profile));
            one_of(&format!("{section}profile"), name.as_str(), &known)?
        }
        None => profile,
    };
    let of_route = written.key.as_ref().map(Text::as_str) == Some("off");
    let idle = written.given().into_iter().find(|key| !["key", "upgrade"].contains(key));
    if let (true, Some(key)) = (of_route, idle) {
        bail!("{section}{key} has no meaning with key = \"off\"");
    }
    let reader = Reader { section: section.clone(), settings: &settings, store };
    let route = reader.route(profile, Some(pattern))?;
    let named = route.pattern.as_ref().and_then(Pattern::methods).unwrap_or_default();
    let safe = named.iter().find(|method| KeyUse::never_applies_to(method));
    if let (Some(method), true) = (safe, route.key != KeyUse::Off && !route.upgrade) {
        bail!(
            "{section}match: {method} is never protected, and a key on it is ignored; leave it out, \
             or say key = \"off\""
        );
    }
    Ok(route)
}

#[cfg(test)]
mod tests;
