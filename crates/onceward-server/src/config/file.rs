//! The TOML file as it is written. What its values mean is decided in `config`.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use serde::Deserialize;

use super::{secret::Text, suggest};

/// The version of the file format that this program reads.
const VERSION: i64 = 1;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    /// Checked before anything else, see `parse`.
    #[serde(rename = "config_version")]
    _config_version: Option<i64>,
    #[serde(default)]
    pub(crate) gateway: Gateway,
    #[serde(default)]
    pub(crate) admin: super::admin::Admin,
    #[serde(default)]
    pub(crate) store: Store,
    #[serde(default)]
    pub(crate) scope: Scope,
    #[serde(default)]
    pub(crate) key: Key,
    #[serde(default)]
    pub(crate) defaults: Defaults,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Gateway {
    pub(crate) upstream: Option<Text>,
    pub(crate) listen: Option<Text>,
    pub(crate) admin: Option<Text>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Store {
    pub(crate) url: Option<Text>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scope {
    pub(crate) from: Option<Text>,
    #[serde(default)]
    pub(crate) trusted_proxies: Vec<Text>,
    pub(crate) jwt_secret: Option<Text>,
    pub(crate) jwt_public_key: Option<Text>,
    pub(crate) jwt_audience: Option<Text>,
    pub(crate) jwt_issuer: Option<Text>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Key {
    pub(crate) min_len: Option<usize>,
    pub(crate) max_len: Option<usize>,
    pub(crate) syntax: Option<Text>,
    pub(crate) emails: Option<Text>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Defaults {
    pub(crate) profile: Option<Text>,
    pub(crate) key: Option<Text>,
    pub(crate) effects: Option<Text>,
    pub(crate) in_flight: Option<Text>,
    pub(crate) wait: Option<Text>,
    pub(crate) lease: Option<Text>,
    pub(crate) max_execution: Option<Text>,
    pub(crate) retention: Option<Text>,
    pub(crate) tombstone: Option<Text>,
    pub(crate) expired: Option<Text>,
    pub(crate) server_errors: Option<Text>,
    pub(crate) request_bytes_max: Option<usize>,
    pub(crate) reply_bytes_max: Option<usize>,
    pub(crate) schema_version: Option<Text>,
    #[serde(default)]
    pub(crate) fingerprint_headers: Vec<Text>,
    #[serde(default)]
    pub(crate) fingerprint_include: Vec<Text>,
    #[serde(default)]
    pub(crate) fingerprint_exclude: Vec<Text>,
    pub(crate) fingerprint_key: Option<Text>,
    pub(crate) problem_base: Option<Text>,
}

/// Reads a file. Errors name the file, the line and what to do.
pub(crate) fn read(path: &Path) -> Result<File> {
    let name = path.display();
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("the config file {name} cannot be read"))?;
    parse(&text).with_context(|| name.to_string())
}

fn parse(text: &str) -> Result<File> {
    let table: toml::Table = toml::from_str(text).map_err(|error| explained(&error, text))?;
    if table.contains_key("route") {
        bail!(
            "[[route]] is not known yet: this version has one policy for all routes, so write it \
             under [defaults]"
        );
    }
    // The version comes first: what another version means by its keys is not ours to judge.
    match table.get("config_version").map(toml::Value::as_integer) {
        Some(Some(VERSION)) => {}
        Some(_) => bail!("config_version must be {VERSION}, the only version that is known"),
        None => bail!("config_version is missing; write `config_version = {VERSION}` at the top"),
    }
    toml::from_str(text).map_err(|error| explained(&error, text))
}

/// One line: where, what, and what was probably meant. The line itself is not repeated, since it may
/// hold a secret.
fn explained(error: &toml::de::Error, text: &str) -> anyhow::Error {
    let place = error.span().map(|span| Place::of(span.start, text)).unwrap_or_default();
    let message = error.message().lines().next().unwrap_or("cannot be read");
    let Some(rest) = message.strip_prefix("unknown field ") else {
        return anyhow!("{}{message}", place.line());
    };
    // serde names the unknown field first and then those it knows, each in backticks.
    let mut names = rest.split('`').skip(1).step_by(2);
    let unknown = names.next().unwrap_or_default();
    let known: Vec<&str> = names.filter(|name| *name != "config_version").collect();
    let section = place.section.filter(|_| !known.contains(&"gateway"));
    let within = section.map(|section| format!(" in [{section}]")).unwrap_or_default();
    let hint = suggest::hint(unknown, &known);
    anyhow!("{}unknown key `{unknown}`{within}{hint}", place.line())
}

#[derive(Default)]
struct Place<'a> {
    line: Option<usize>,
    section: Option<&'a str>,
}

impl<'a> Place<'a> {
    fn of(offset: usize, text: &'a str) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let headers = before.lines().filter_map(|line| line.trim().strip_prefix('['));
        let section = headers.filter_map(|header| header.split(']').next()).next_back();
        Place { line: Some(before.matches('\n').count() + 1), section: section.map(str::trim) }
    }

    fn line(&self) -> String {
        self.line.map(|line| format!("line {line}: ")).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        format!("{:#}", parse(text).expect_err(text))
    }

    #[test]
    fn a_full_file_is_read() {
        let file = parse(
            r#"
            config_version = 1
            [gateway]
            upstream = "http://127.0.0.1:3000"
            [scope]
            trusted_proxies = ["10.0.0.0/8"]
            [key]
            min_len = 1
            [defaults]
            wait = "5s"
            "#,
        )
        .expect("valid");
        assert_eq!(file.gateway.upstream.expect("given").as_str(), "http://127.0.0.1:3000");
        assert_eq!(file.scope.trusted_proxies.len(), 1);
        assert_eq!(file.key.min_len, Some(1));
        assert_eq!(file.defaults.wait.expect("given").as_str(), "5s");
    }

    #[test]
    fn an_unknown_key_is_named_with_its_place_and_the_nearest_known_one() {
        assert_eq!(
            error("config_version = 1\n[gateway]\nlisen = \"127.0.0.1:1\"\n"),
            "line 3: unknown key `lisen` in [gateway]; did you mean `listen`?"
        );
        assert_eq!(
            error("config_version = 1\n[gatway]\nlisten = \"127.0.0.1:1\"\n"),
            "line 2: unknown key `gatway`; did you mean `gateway`?"
        );
        assert_eq!(
            error("config_version = 1\n[store]\nzzz = 1\n"),
            "line 3: unknown key `zzz` in [store]; use one of url"
        );
    }

    #[test]
    fn a_file_without_its_version_or_with_another_one_is_refused() {
        assert!(error("[gateway]\n").contains("config_version is missing"));
        assert!(error("config_version = 2\n[new]\nx = 1\n").contains("config_version must be 1"));
        assert!(error("config_version = \"1\"\n").contains("config_version must be 1"));
    }

    #[test]
    fn routes_are_refused_with_what_to_do_instead() {
        let text = "config_version = 1\n[[route]]\nmatch = \"POST /v1/**\"\n";
        assert!(error(text).contains("one policy for all routes"));
    }

    #[test]
    fn damaged_toml_and_wrong_types_name_their_line() {
        assert!(error("config_version = 1\n[gateway\n").starts_with("line 2: "));
        let wrong_type = error("config_version = 1\n[key]\nmin_len = \"16\"\n");
        assert!(wrong_type.starts_with("line 3: invalid type"), "{wrong_type}");
        let missing = error("config_version = 1\n[store]\nurl = \"${env:ONCEWARD_NOT_SET}\"\n");
        assert!(missing.starts_with("line 3: ") && missing.contains("ONCEWARD_NOT_SET"));
    }
}
