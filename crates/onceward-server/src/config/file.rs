//! The TOML file as it is written. What its values mean is decided in `config`. What is said here of
//! each key is also what `onceward config schema` says.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;

use super::{privacy, probe, quota, secret::Text, sink, suggest, transport, webhook, workers};

/// The version of the file format that this program reads.
const VERSION: i64 = 1;

/// The settings of an Onceward gateway.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Onceward configuration")]
pub(crate) struct File {
    /// The version of the file format: 1.
    // Checked before anything else, see `parse`.
    #[serde(rename = "config_version")]
    #[schemars(required, range(min = 1, max = 1))]
    _config_version: Option<i64>,
    /// Where the gateway listens, and in front of what.
    #[serde(default)]
    pub(crate) gateway: Gateway,
    /// Where records are kept.
    #[serde(default)]
    pub(crate) admin: super::admin::Admin,
    #[serde(default)]
    pub(crate) store: Store,
    /// How callers are told apart.
    #[serde(default)]
    pub(crate) scope: Scope,
    /// How keys may look.
    #[serde(default)]
    pub(crate) key: Key,
    /// The rules for every request that no route matches, and for what a route does not say.
    #[serde(default)]
    pub(crate) defaults: Defaults,
    /// Rules for some requests. The first route that matches wins.
    #[serde(default, rename = "route")]
    pub(crate) routes: Vec<Route>,
    /// TLS towards clients.
    #[serde(default)]
    pub(crate) tls: transport::TlsFile,
    /// How upstream is spoken to.
    #[serde(default)]
    pub(crate) upstream: transport::UpstreamFile,
    /// What clients may take up.
    #[serde(default)]
    pub(crate) limits: transport::LimitsFile,
    /// What one scope may ask for.
    #[serde(default)]
    pub(crate) quota: quota::QuotaFile,
    /// What stores may see.
    #[serde(default)]
    pub(crate) privacy: privacy::PrivacyFile,
    /// What is done though no client comes, and how often.
    #[serde(default)]
    pub(crate) workers: workers::WorkersFile,
    /// Providers that tell by themselves what became of operations.
    #[serde(default, rename = "webhook")]
    pub(crate) webhooks: Vec<webhook::WebhookFile>,
    /// Where the messages of the outbox are delivered.
    #[serde(default, rename = "sink")]
    pub(crate) sinks: Vec<sink::SinkFile>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Gateway {
    /// The service behind the gateway, such as `http://127.0.0.1:3000`.
    pub(crate) upstream: Option<Text>,
    /// Where clients connect. 127.0.0.1:8080 by default.
    pub(crate) listen: Option<Text>,
    /// Where operators connect. 127.0.0.1:8081 by default.
    pub(crate) admin: Option<Text>,
    /// Origins whose pages may read the gateway's own answers (replays and rejections), as in
    /// `https://shop.example`. What upstream answers keeps the CORS headers of upstream.
    pub(crate) cors_origins: Option<Vec<Text>>,
    /// Whether those pages may send cookies. No by default.
    pub(crate) cors_credentials: Option<bool>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Store {
    /// `file:PATH`, `postgres://...`, `mysql://...`, `redis://...` (`rediss://` with TLS,
    /// `redis+cluster://` for a Cluster), `dynamodb://TABLE`, or `memory:` for trying things out.
    /// `file:./onceward.db` by
    /// default.
    pub(crate) url: Option<Text>,
    /// `durable`, the default, or `best-effort`: it is understood that a Redis store can lose what it
    /// has acknowledged. Without that it takes no routes whose effects are external or undeclared.
    pub(crate) durability: Option<Text>,
    /// A Redis or Valkey server, `redis://...`, that answers replays so that the store need not. It
    /// decides nothing. None by default.
    pub(crate) cache: Option<Text>,
    /// A file in which this process remembers what the store acknowledged, so that a store that has
    /// lost data is found out also after a restart. Not where the store is. None by default.
    pub(crate) canary_file: Option<Text>,
    /// How long keys are refused that a store may have lost, unless somebody acknowledges the loss
    /// before. 24h by default, never under `1h`.
    pub(crate) canary_limit: Option<Text>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scope {
    /// `authorization` (the default), `header:NAME`, `jwt:CLAIM` or `anonymous`.
    pub(crate) from: Option<Text>,
    /// Networks of the proxies that are believed, such as `10.0.0.0/8`.
    #[serde(default)]
    pub(crate) trusted_proxies: Vec<Text>,
    /// The secret of tokens signed with HMAC, at least 32 bytes.
    pub(crate) jwt_secret: Option<Text>,
    /// The public key of tokens signed with RSA, EC or Ed25519, in PEM.
    pub(crate) jwt_public_key: Option<Text>,
    /// The audience that tokens have to name.
    pub(crate) jwt_audience: Option<Text>,
    /// The issuer that tokens have to name.
    pub(crate) jwt_issuer: Option<Text>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Key {
    /// The shortest key. 16 by default, 1 in the profile `stripe`.
    #[schemars(range(min = 1, max = 255))]
    pub(crate) min_len: Option<usize>,
    /// The longest key. 255 by default, and never more.
    #[schemars(range(min = 1, max = 255))]
    pub(crate) max_len: Option<usize>,
    /// `lenient` (quoted and bare keys, the default) or `strict` (quoted ones only).
    #[schemars(extend("enum" = ["lenient", "strict"]))]
    pub(crate) syntax: Option<Text>,
    /// What happens to keys that are e-mail addresses: `count` (the default) or `reject`.
    #[schemars(extend("enum" = ["count", "reject"]))]
    pub(crate) emails: Option<Text>,
}

/// What `[defaults]` and each route can say: the same keys, told once.
macro_rules! settings {
    ($( $(#[$meta:meta])* $name:ident: $type:ty, )+) => {
        #[derive(Debug, Default, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct Defaults {
            /// Where error codes are described: a URL to which the code is appended. The member
            /// `type` of problem documents is a URN without it.
            pub(crate) problem_base: Option<Text>,
            $( $(#[$meta])* pub(crate) $name: Option<$type>, )+
        }

        #[derive(Debug, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct Route {
            /// Methods and a path, such as `POST /v1/**`, `POST|PUT /v1/*/items` or `* /public/**`.
            #[serde(rename = "match")]
            #[schemars(with = "String")]
            pub(crate) pattern: Spanned<Text>,
            /// Where in the file, from 1.
            #[serde(skip)]
            pub(crate) line: usize,
            $( $(#[$meta])* pub(crate) $name: Option<$type>, )+
        }

        /// The settings of one policy.
        #[derive(Clone, Debug, Default)]
        pub(crate) struct Settings {
            $( pub(crate) $name: Option<$type>, )+
        }

        impl Defaults {
            pub(crate) fn settings(&self) -> Settings {
                Settings { $( $name: self.$name.clone(), )+ }
            }
        }

        impl Route {
            /// What the route says, and for what it does not say the defaults.
            pub(crate) fn over(&self, defaults: &Settings) -> Settings {
                Settings { $( $name: self.$name.clone().or_else(|| defaults.$name.clone()), )+ }
            }

            /// The keys that the route gives.
            pub(crate) fn given(&self) -> Vec<&'static str> {
                let given = [$( self.$name.is_some().then_some(stringify!($name)), )+];
                given.into_iter().flatten().collect()
            }
        }
    };
}

settings! {
    /// A named set of rules: `ietf` (the default) or `stripe`.
    #[schemars(extend("enum" = ["ietf", "stripe"]))]
    profile: Text,
    /// Whether a key has to be there: `required`, `optional` (without one a request passes
    /// unprotected), `off` (passed on untouched) or `shadow` (passed on untouched, and what
    /// `required` would have done is counted and logged).
    #[schemars(extend("enum" = ["required", "optional", "off", "shadow"]))]
    key: Text,
    /// Methods that are protected beside POST and PATCH, such as `PUT` and `DELETE`. Those that
    /// `match` names are protected too.
    methods: Vec<Text>,
    /// What the work can do to the world: `undeclared`, `external`, `phased`, `local` or `none`.
    #[schemars(extend("enum" = ["undeclared", "external", "phased", "local", "none"]))]
    effects: Text,
    /// When a request is executed: `inline` (its client waits for the reply) or `queued` (answered 202 as
    /// soon as it is stored, executed later, and tried again while it was not).
    #[schemars(extend("enum" = ["inline", "queued"]))]
    execution: Text,
    /// How long an accepted request may wait to be executed, before it is given up and its client is told
    /// so. 24h by default, at most 30d.
    queued_for: Text,
    /// The headers of a queued request that are stored and sent later. By default those that say how it is
    /// to be read and where it comes from, and no credentials: who lists `authorization` has it stored.
    queued_headers: Vec<Text>,
    /// What a retry gets while the first attempt is at work: `conflict` (409), `wait` or `accepted`
    /// (202 with a status address).
    #[schemars(extend("enum" = ["conflict", "wait", "accepted"]))]
    in_flight: Text,
    /// How long `in_flight = "wait"` waits. 10s by default, and never longer.
    wait: Text,
    /// How long an attempt may be silent before it is taken for dead. 60s by default.
    lease: Text,
    /// How long upstream may take before the outcome is called unknown. 30s by default.
    max_execution: Text,
    /// How long a reply is kept. 24h by default, never under 1h.
    retention: Text,
    /// How long an expired key is told from a new one. 30d by default, 0s for not at all.
    tombstone: Text,
    /// What happens to an expired key: `reject` (410) or `execute` (it runs again as the next
    /// generation).
    #[schemars(extend("enum" = ["reject", "execute"]))]
    expired: Text,
    /// What upstream's own 5xx means, other than 502 and 504: `by_effects`, `retry` (a retry runs
    /// fresh), `store` (it is the reply) or `unknown`.
    #[schemars(extend("enum" = ["by_effects", "retry", "store", "unknown"]))]
    on_5xx: Text,
    /// The largest request body, in bytes. 1048576 by default.
    request_bytes_max: usize,
    /// The largest reply that is kept, in bytes. 1048576 by default.
    reply_bytes_max: usize,
    /// The schema version of replies, stored with them and told on replay.
    schema_version: Text,
    /// Headers that belong to what is asked: another value under the same key is a mismatch.
    fingerprint_headers: Vec<Text>,
    /// The only parts of a JSON body that count, as JSON pointers.
    fingerprint_include: Vec<Text>,
    /// Parts of a JSON body that do not count, as JSON pointers.
    fingerprint_exclude: Vec<Text>,
    /// A secret for fingerprints, at least 16 bytes: without it nobody can guess bodies from them.
    fingerprint_key: Text,
    /// A request older than this is refused. Its age is that of its key, which has to be a UUIDv7,
    /// or of `max_request_age_header`. Must be less than the retention; 0s for any age.
    max_request_age: Text,
    /// The header that tells when a request was made: an HTTP-date, or seconds since 1970.
    max_request_age_header: Text,
    /// Whether connections may change their protocol (WebSocket). No by default.
    upgrade: bool,
    /// How unknown outcomes are asked about: see `docs/guide/reconciling.md`. They wait for a person
    /// without it.
    probe: probe::ProbeFile,
}

/// Reads a file. Errors name the file, the line and what to do.
pub(crate) fn read(path: &Path) -> Result<File> {
    let name = path.display();
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("the config file {name} cannot be read"))?;
    parse(&text).with_context(|| name.to_string())
}

fn parse(text: &str) -> Result<File> {
    let table: toml::Table = toml::from_str(text).map_err(|error| explained(&error, text, None))?;
    // The version comes first: what another version means by its keys is not ours to judge.
    match table.get("config_version").map(toml::Value::as_integer) {
        Some(Some(VERSION)) => {}
        Some(_) => bail!("config_version must be {VERSION}, the only version that is known"),
        None => bail!("config_version is missing; write `config_version = {VERSION}` at the top"),
    }
    let file: Result<File, _> = toml::from_str(text);
    let mut file = file.map_err(|error| explained(&error, text, Some(&table)))?;
    for route in &mut file.routes {
        route.line = line_of(route.pattern.span().start, text);
    }
    Ok(file)
}

/// One line: where, what, and what was probably meant. The line itself is not repeated, since it may
/// hold a secret.
fn explained(error: &toml::de::Error, text: &str, table: Option<&toml::Table>) -> anyhow::Error {
    let offset = error.span().map(|span| span.start);
    let line = offset.map(|offset| format!("line {}: ", line_of(offset, text)));
    let line = line.unwrap_or_default();
    let within = offset.and_then(|offset| section_of(offset, text, table)).unwrap_or_default();
    let message = error.message().lines().next().unwrap_or("cannot be read");
    if message == "missing field `match`" {
        return anyhow!("{line}a [[route]] needs `match`, such as match = \"POST /v1/**\"");
    }
    let Some(rest) = message.strip_prefix("unknown field ") else {
        return anyhow!("{line}{message}");
    };
    // serde names the unknown field first and then those it knows, each in backticks.
    let mut names = rest.split('`').skip(1).step_by(2);
    let unknown = names.next().unwrap_or_default();
    let known: Vec<&str> = names.filter(|name| *name != "config_version").collect();
    let within = if known.contains(&"gateway") { String::new() } else { within };
    anyhow!("{line}unknown key `{unknown}`{within}{}", suggest::hint(unknown, &known))
}

fn line_of(offset: usize, text: &str) -> usize {
    text.get(..offset).unwrap_or(text).matches('\n').count() + 1
}

/// The section around a place: ` in [store]`, ` in [[route]] "POST /v1/**"`.
fn section_of(offset: usize, text: &str, table: Option<&toml::Table>) -> Option<String> {
    let before = text.get(..offset).unwrap_or(text);
    let headers = before.lines().map(str::trim).filter(|line| line.starts_with('['));
    let name =
        |header: &str| header.trim_start_matches('[').split(']').next()?.trim().to_owned().into();
    let names: Vec<String> = headers.filter_map(name).collect();
    let last = names.last()?;
    if last != "route" {
        return Some(format!(" in [{last}]"));
    }
    let number = names.iter().filter(|name| *name == "route").count() - 1;
    let routes = table.and_then(|table| table.get("route")?.as_array());
    let pattern = routes.and_then(|routes| routes.get(number)?.get("match")?.as_str());
    let pattern = pattern.map(|pattern| format!(" \"{pattern}\"")).unwrap_or_default();
    Some(format!(" in [[route]]{pattern}"))
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
            "line 3: unknown key `zzz` in [store]; use one of url, durability, cache, canary_file, canary_limit"
        );
    }

    #[test]
    fn a_file_without_its_version_or_with_another_one_is_refused() {
        assert!(error("[gateway]\n").contains("config_version is missing"));
        assert!(error("config_version = 2\n[new]\nx = 1\n").contains("config_version must be 1"));
        assert!(error("config_version = \"1\"\n").contains("config_version must be 1"));
    }

    #[test]
    fn routes_are_read_in_order_and_know_their_lines() {
        let text = "config_version = 1\n[[route]]\nmatch = \"POST /v1/**\"\n\
                    [[route]]\nlease = \"5s\"\nmatch = \"* /**\"\n";
        let file = parse(text).expect("valid");
        let found: Vec<(&str, usize)> = file
            .routes
            .iter()
            .map(|route| (route.pattern.get_ref().as_str(), route.line))
            .collect();
        assert_eq!(found, [("POST /v1/**", 3), ("* /**", 6)]);
        assert_eq!(file.routes[1].given(), ["lease"]);
    }

    #[test]
    fn a_mistake_in_a_route_names_the_route() {
        let text = "config_version = 1\n[[route]]\nmatch = \"POST /a\"\n\
                    [[route]]\nmatch = \"POST /b\"\nefects = \"none\"\n";
        assert_eq!(
            error(text),
            "line 6: unknown key `efects` in [[route]] \"POST /b\"; did you mean `effects`?"
        );
        let without = error("config_version = 1\n[[route]]\nkey = \"off\"\n");
        assert!(without.contains("needs `match`"), "{without}");
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
