//! A configuration as it holds, with the names that its settings have in the file.

use std::time::Duration;

use http::{HeaderName, HeaderValue};
use onceward::{
    InFlight, KeyRules, Queued, Rate,
    key::{Emails, Syntax},
};
use serde_json::{Map, Value, json};

use super::table::columns;
use crate::config::{
    About, AdminSettings, Config, KeyPair, Limits, ON_5XX, Privacy, ProbeSettings, ReplyStatus,
    Route, SinkSettings, StoreUrl, UpstreamSettings, WebhookSettings, Workers,
};

/// Settings by their name in the file, in its order.
type Settings = Vec<(&'static str, Value)>;

/// What stands for a secret.
const MASKED: &str = "***";

/// The sections, then the routes, the defaults first.
fn sections(config: &Config) -> Vec<(&'static str, Settings)> {
    let origins: Vec<&str> = config.cors.origins.iter().map(|origin| &**origin).collect();
    let networks: Vec<String> = config.proxies.networks().map(ToString::to_string).collect();
    let tokens = &config.tokens;
    let mut defaults = settings(config.routes.defaults());
    defaults.insert(0, ("problem_base", json!(config.problem_base)));
    vec![
        (
            "gateway",
            vec![
                ("upstream", json!(config.upstream.to_string())),
                ("listen", json!(config.listen)),
                ("admin", json!(config.admin)),
                ("cors_origins", json!(origins)),
                ("cors_credentials", json!(config.cors.credentials)),
            ],
        ),
        (
            "store",
            vec![
                ("url", json!(store_url(&config.store))),
                ("canary_file", json!(config.canary.file)),
                ("canary_limit", json!(duration(config.canary.limit))),
            ],
        ),
        (
            "scope",
            vec![
                ("from", json!(config.scope.name())),
                ("trusted_proxies", json!(networks)),
                ("jwt_secret", json!(tokens.has_secret.then_some(MASKED))),
                ("jwt_public_key", json!(tokens.has_public_key.then_some(MASKED))),
                ("jwt_audience", json!(tokens.audience)),
                ("jwt_issuer", json!(tokens.issuer)),
            ],
        ),
        ("key", key(&config.key_rules)),
        ("defaults", defaults),
        ("tls", tls(config.tls.as_ref())),
        ("upstream", upstream(&config.to_upstream)),
        ("limits", limits(&config.limits)),
        ("admin", admin(&config.admin_settings)),
        ("quota", quota(&config.quota)),
        ("privacy", privacy(&config.privacy)),
        ("workers", workers(&config.workers)),
    ]
}

fn admin(settings: &AdminSettings) -> Settings {
    let (owners, hosts) = settings.names();
    let tokens: Map<String, Value> =
        owners.into_iter().map(|owner| (owner.to_owned(), json!(MASKED))).collect();
    vec![("tokens", Value::Object(tokens)), ("hosts", json!(hosts))]
}

fn tls(pair: Option<&KeyPair>) -> Settings {
    vec![
        ("cert_file", json!(pair.map(|pair| &pair.cert_file))),
        ("key_file", json!(pair.map(|pair| &pair.key_file))),
    ]
}

fn upstream(settings: &UpstreamSettings) -> Settings {
    let client = settings.client.as_ref();
    let traceparent = if settings.makes_traceparent { "make" } else { "pass" };
    vec![
        ("http2", json!(settings.http2)),
        ("ca_file", json!(settings.ca_file)),
        ("client_cert_file", json!(client.map(|pair| &pair.cert_file))),
        ("client_key_file", json!(client.map(|pair| &pair.key_file))),
        ("connect_timeout", json!(duration(settings.connect_time_max))),
        ("first_byte_timeout", json!(duration(settings.first_byte_time_max))),
        ("total_timeout", json!(settings.total_time_max.map(duration))),
        ("traceparent", json!(traceparent)),
    ]
}

fn limits(limits: &Limits) -> Settings {
    vec![
        ("headers", json!(limits.headers_max)),
        ("head_bytes", json!(limits.head_bytes_max)),
        ("connections", json!(limits.connections_max)),
        ("buffered_bytes", json!(limits.buffered_bytes_max)),
        ("head_timeout", json!(duration(limits.head_time_max))),
        ("body_timeout", json!(duration(limits.body_time_max))),
        ("stall_timeout", json!(duration(limits.stall_time_max))),
        ("http2_streams", json!(limits.http2_streams_max)),
        ("http2_resets", json!(limits.http2_resets_max)),
    ]
}

fn quota(limits: &onceward::Limits) -> Settings {
    let creations = limits.creations.map(Rate::parts);
    let lookups = limits.lookups.map(Rate::parts);
    vec![
        ("creations_per_second", json!(creations.map(|(per_second, _)| per_second))),
        ("burst", json!(creations.map(|(_, burst)| burst))),
        ("active", json!(limits.active)),
        ("lookups_per_second", json!(lookups.map(|(per_second, _)| per_second))),
    ]
}

fn privacy(privacy: &Privacy) -> Settings {
    let masked = |id: &str| json!({ "id": id, "secret": MASKED });
    let keys: Vec<Value> = privacy.ring_ids().into_iter().map(masked).collect();
    let hashed = privacy.lookup_key.as_ref().map(|_| MASKED);
    vec![("keys", json!(keys)), ("hash_keys", json!(hashed))]
}

fn workers(workers: &Workers) -> Settings {
    vec![
        ("sweep_every", json!(duration(workers.sweep_every))),
        ("reap_every", json!(duration(workers.reap_every))),
        ("survey_every", json!(duration(workers.survey_every))),
        ("audit_retention", json!(duration(workers.audit_retention))),
        ("message_retention", json!(duration(workers.message_retention))),
    ]
}

fn key(rules: &KeyRules) -> Settings {
    let syntax = match rules.syntax {
        Syntax::Lenient => "lenient",
        Syntax::Strict => "strict",
    };
    let emails = match rules.emails {
        Emails::Count => "count",
        Emails::Reject => "reject",
    };
    vec![
        ("min_len", json!(rules.len_min)),
        ("max_len", json!(rules.len_max)),
        ("syntax", json!(syntax)),
        ("emails", json!(emails)),
    ]
}

/// What a route says, or would say.
pub(super) fn settings(route: &Route) -> Settings {
    let rules = route.policy.rules();
    let on_5xx = ON_5XX.iter().find(|(_, meaning)| *meaning == rules.server_errors);
    let methods: Vec<&str> = route.methods.iter().map(http::Method::as_str).collect();
    let (in_flight, wait) = in_flight(rules.in_flight);
    let kept = rules.queued.map_or(&[][..], Queued::kept);
    let kept: Vec<&str> = kept.iter().map(http::HeaderName::as_str).collect();
    let max_age = route.max_age.as_ref();
    let age_header = max_age.and_then(|age| age.header.as_ref().map(http::HeaderName::as_str));
    vec![
        ("profile", json!(rules.profile.name())),
        ("key", json!(route.key.name())),
        ("methods", json!(methods)),
        ("effects", json!(rules.effects.name())),
        ("execution", json!(execution(route))),
        ("queued_for", json!(rules.queued.map(|queued| duration(queued.time())))),
        ("queued_headers", json!(kept)),
        ("in_flight", json!(in_flight)),
        ("wait", json!(wait.map(duration))),
        ("lease", json!(duration(rules.lease))),
        ("max_execution", json!(duration(rules.max_execution))),
        ("retention", json!(duration(rules.retention))),
        ("tombstone", json!(duration(rules.tombstone))),
        ("expired", json!(if rules.expired_runs_again { "execute" } else { "reject" })),
        ("on_5xx", json!(on_5xx.map(|(word, _)| word))),
        ("request_bytes_max", json!(route.policy.request_cap())),
        ("reply_bytes_max", json!(route.policy.reply_cap())),
        ("schema_version", json!(rules.schema_version)),
        ("fingerprint_headers", json!(route.chosen.headers)),
        ("fingerprint_include", json!(route.chosen.include)),
        ("fingerprint_exclude", json!(route.chosen.exclude)),
        ("fingerprint_key", json!(route.chosen.keyed.then_some(MASKED))),
        ("max_request_age", json!(max_age.map(|age| duration(age.at_most)))),
        ("max_request_age_header", json!(age_header)),
        ("upgrade", json!(route.upgrade)),
        ("probe", route.probe.as_deref().map_or(Value::Null, probe)),
    ]
}

fn webhook(webhook: &WebhookSettings) -> Value {
    let (mut operation, mut scope, mut key, mut provider, mut provider_id) = Default::default();
    match &webhook.about {
        About::Operation(at) => operation = Some(at),
        About::Key { scope: in_scope, key: at } => (scope, key) = (Some(in_scope), Some(at)),
        About::ProviderId { provider: of, id } => (provider, provider_id) = (Some(of), Some(id)),
    }
    let reply_status = match &webhook.reply_status {
        ReplyStatus::Is(status) => json!(status),
        ReplyStatus::At(pointer) => json!(pointer.as_str()),
    };
    json!({
        "name": webhook.name,
        "secret": MASKED,
        "tolerance": duration(webhook.tolerance),
        "operation": operation,
        "scope": scope,
        "key": key,
        "provider_id": provider_id,
        "provider": provider,
        "attempt": webhook.attempt,
        "routes": webhook.routes,
        "outcome": webhook.outcome,
        "completed": webhook.completed,
        "not_executed": webhook.not_executed,
        "reply_status": reply_status,
        "reply_body": webhook.reply_body,
    })
}

fn sink(sink: &SinkSettings) -> Value {
    json!({
        "name": sink.name,
        "url": sink.url,
        "idempotent": sink.idempotent,
        "headers": masked(&sink.headers),
        "timeout": duration(sink.timeout),
        "provider_id": sink.provider_id.as_ref().map(ToString::to_string),
    })
}

/// The values of headers may be secrets.
fn masked(headers: &[(HeaderName, HeaderValue)]) -> Value {
    headers.iter().map(|(name, _)| (name.to_string(), json!(MASKED))).collect()
}

fn probe(probe: &ProbeSettings) -> Value {
    json!({
        "url": probe.url.as_str(),
        "method": probe.method.as_str(),
        "headers": masked(&probe.headers),
        "timeout": duration(probe.timeout),
        "allow_private": probe.allow_private,
    })
}

fn execution(route: &Route) -> &'static str {
    if route.policy.rules().queued.is_some() { "queued" } else { "inline" }
}

fn in_flight(in_flight: InFlight) -> (&'static str, Option<Duration>) {
    match in_flight {
        InFlight::Conflict => ("conflict", None),
        InFlight::Wait(at_most) => ("wait", Some(at_most)),
        InFlight::Accepted => ("accepted", None),
    }
}

pub(super) fn json(config: &Config) -> Value {
    let mut shown: Map<String, Value> = sections(config)
        .into_iter()
        .map(|(name, settings)| (name.to_owned(), object(settings)))
        .collect();
    shown.insert("config_version".to_owned(), json!(1));
    let routes = config.routes.all().filter(|route| route.pattern.is_some());
    let routes = routes.map(|route| {
        let mut settings = settings(route);
        settings.insert(0, ("match", json!(route.name())));
        object(settings)
    });
    shown.insert("route".to_owned(), routes.collect());
    let webhooks = config.webhooks.iter().map(webhook);
    shown.insert("webhook".to_owned(), webhooks.collect());
    shown.insert("sink".to_owned(), config.sinks.iter().map(sink).collect());
    Value::Object(shown)
}

fn object(settings: Settings) -> Value {
    settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// A line for each setting; of a route only what differs from the defaults.
pub(super) fn table(config: &Config) -> String {
    let mut rows: Vec<[String; 2]> = Vec::new();
    for (section, settings) in sections(config) {
        for (name, value) in settings {
            rows.push([format!("{section}.{name}"), cell(&value)]);
        }
    }
    let mut text = columns(&rows);
    let defaults = settings(config.routes.defaults());
    for route in config.routes.all().filter(|route| route.pattern.is_some()) {
        let own = settings(route).into_iter().zip(&defaults).filter(|(own, other)| own != *other);
        let rows: Vec<[String; 2]> =
            own.map(|((name, value), _)| [format!("  {name}"), cell(&value)]).collect();
        text.push_str(&format!("\nroute \"{}\"\n{}", route.name(), columns(&rows)));
    }
    text
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => "-".to_owned(),
        Value::Array(items) => items.iter().map(cell).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

pub(super) fn routes_table(config: &Config) -> String {
    let head =
        ["MATCH", "KEY", "PROTECTS", "EFFECTS", "EXECUTION", "IN FLIGHT", "ON 5XX", "RETENTION"];
    let mut rows = vec![head.map(str::to_owned)];
    for route in config.routes.all() {
        let rules = route.policy.rules();
        let on_5xx = ON_5XX.iter().find(|(_, meaning)| *meaning == rules.server_errors);
        let protects = protects(route);
        let what = |text: String| if protects.is_empty() { "-".to_owned() } else { text };
        rows.push([
            route.pattern.as_ref().map_or("(all others)", |pattern| pattern.as_str()).to_owned(),
            route.key.name().to_owned(),
            what(protects.join(" ")),
            what(rules.effects.name().to_owned()),
            what(execution(route).to_owned()),
            what(in_flight(rules.in_flight).0.to_owned()),
            what(on_5xx.map_or("", |(word, _)| word).to_owned()),
            what(duration(rules.retention)),
        ]);
    }
    columns(&rows)
}

pub(super) fn routes_json(config: &Config) -> Value {
    let routes = config.routes.all().map(|route| {
        let mut settings = settings(route);
        settings.insert(0, ("match", json!(route.pattern.as_ref().map(|_| route.name()))));
        settings.push(("protects", json!(protects(route))));
        object(settings)
    });
    routes.collect()
}

/// The methods on which a key has a meaning.
pub(super) fn protects(route: &Route) -> Vec<String> {
    route.protected_methods().iter().map(|method| method.as_str().to_owned()).collect()
}

/// As it would be written in the file.
pub(super) fn duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    // `24h` says more than `1d` to those who read a retention.
    let fits = |(unit, name): &&(u128, &str)| {
        millis > 0 && millis.is_multiple_of(*unit) && (*name != "d" || millis / unit > 3)
    };
    match units.iter().find(fits) {
        Some((unit, name)) => format!("{}{name}", millis / unit),
        None if millis == 0 => "0s".to_owned(),
        None => format!("{millis}ms"),
    }
}

/// Without its password.
fn store_url(url: &StoreUrl) -> String {
    let (StoreUrl::Postgres(address) | StoreUrl::MySql(address)) = url else {
        return format!("{url:?}");
    };
    let (scheme, rest) = address.split_once("://").unwrap_or(("", address));
    let (address, query) = match rest.split_once('?') {
        Some((address, query)) => (address, Some(query)),
        None => (rest, None),
    };
    let address = match address.rsplit_once('@') {
        Some((user, host)) => match user.split_once(':') {
            Some((user, _)) => format!("{user}:{MASKED}@{host}"),
            None => format!("{user}@{host}"),
        },
        None => address.to_owned(),
    };
    let masked = |pair: &str| match pair.split_once('=') {
        Some((name, _)) if name.contains("password") => format!("{name}={MASKED}"),
        _ => pair.to_owned(),
    };
    let query = query.map(|query| query.split('&').map(masked).collect::<Vec<_>>().join("&"));
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    format!("{scheme}://{address}{query}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_of_stores_are_masked_and_the_rest_stays() {
        for (url, shown) in [
            ("postgres://u:secret@db:5432/shop", "postgres://u:***@db:5432/shop"),
            ("postgres://u:se@cr:et@db/shop", "postgres://u:***@db/shop"),
            ("postgres://u@db/shop?sslmode=require", "postgres://u@db/shop?sslmode=require"),
            ("postgres://db/shop?user=u&password=secret", "postgres://db/shop?user=u&password=***"),
        ] {
            assert_eq!(store_url(&StoreUrl::Postgres(url.to_owned())), shown);
        }
        let mysql = StoreUrl::MySql("mysql://u:secret@db/shop?ssl-mode=REQUIRED".to_owned());
        assert_eq!(store_url(&mysql), "mysql://u:***@db/shop?ssl-mode=REQUIRED");
        assert_eq!(store_url(&StoreUrl::File("./x.db".into())), "file:./x.db");
    }

    #[test]
    fn durations_are_shown_as_they_are_written() {
        for (millis, shown) in [
            (0, "0s"),
            (500, "500ms"),
            (60_000, "1m"),
            (90_000, "90s"),
            (86_400_000, "24h"),
            (30 * 86_400_000, "30d"),
        ] {
            assert_eq!(duration(Duration::from_millis(millis)), shown);
        }
    }
}
