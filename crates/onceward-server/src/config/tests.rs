use http::Request;
use onceward::scope::NoScope;

use super::*;
use crate::listener::Peer;

fn args(upstream: &str) -> ServeArgs {
    ServeArgs { upstream: Some(upstream.to_owned()), ..ServeArgs::default() }
}

fn with_file(toml: &str) -> Result<Config> {
    Config::resolve(args("http://127.0.0.1:3000"), toml::from_str(toml).expect(toml))
}

fn refusal(toml: &str) -> String {
    format!("{:#}", with_file(toml).expect_err(toml))
}

#[test]
fn the_defaults_need_only_an_upstream() {
    let config = with_file("").expect("valid");
    assert_eq!(config.listen, loopback(8080));
    assert_eq!(config.admin, loopback(8081));
    assert_eq!(config.store, StoreUrl::File("./onceward.db".into()));
    assert_eq!(config.scope.name(), "authorization");
    assert_eq!(config.max_execution, Duration::from_secs(30));
    assert_eq!(config.key_rules, KeyRules::default());
    let missing = Config::resolve(ServeArgs::default(), File::default()).expect_err("no upstream");
    assert!(missing.to_string().contains("--upstream"), "{missing}");
}

#[test]
fn flags_override_the_file() {
    let file = "[gateway]\nupstream = \"http://a:1\"\nlisten = \"127.0.0.1:1\"\n[store]\nurl = \
                \"memory:\"\n[scope]\nfrom = \"anonymous\"\n[defaults]\nprofile = \"ietf\"";
    let flags = ServeArgs {
        upstream: Some("http://b:2".to_owned()),
        listen: Some(loopback(2)),
        store: Some("file:/x.db".to_owned()),
        scope: Some("authorization".to_owned()),
        profile: Some("stripe".to_owned()),
        ..ServeArgs::default()
    };
    let config = Config::resolve(flags, toml::from_str(file).expect("valid")).expect("valid");
    assert_eq!(config.upstream, "http://b:2");
    assert_eq!(config.listen, loopback(2));
    assert_eq!(config.store, StoreUrl::File("/x.db".into()));
    assert_eq!(config.scope.name(), "authorization");
    assert_eq!(config.key_rules.len_min, 1, "the profile of the flag counts");
    let file = toml::from_str(file).expect("valid");
    let config = Config::resolve(ServeArgs::default(), file).expect("valid");
    assert_eq!(config.upstream, "http://a:1");
    assert_eq!(config.listen, loopback(1));
    assert_eq!(config.store, StoreUrl::Memory);
}

#[test]
fn upstreams_with_and_without_tls_are_taken() {
    for url in ["http://bank:3000", "https://bank", "https://[::1]:3000/api"] {
        let args = ServeArgs { upstream: Some(url.to_owned()), ..ServeArgs::default() };
        assert!(Config::resolve(args, File::default()).is_ok(), "{url}");
    }
}

#[test]
fn upstreams_that_cannot_be_served_are_refused() {
    for (url, part) in [
        ("ftp://bank", "not a URL"),
        ("bank:3000", "not a URL"),
        ("/charges", "not a URL"),
        ("http://user:secret@bank", "not a URL"),
        ("http://bank/?x=1", "not a URL"),
        ("", "not a URL"),
    ] {
        let error = Config::resolve(args(url), File::default()).expect_err(url).to_string();
        assert!(error.contains(part), "{error}");
    }
    for url in ["http://bank", "http://[::1]:3000", "http://bank/api"] {
        assert!(Config::resolve(args(url), File::default()).is_ok(), "{url}");
    }
}

#[test]
fn what_other_machines_could_misuse_is_refused() {
    let memory = "[gateway]\nlisten = \"0.0.0.0:8080\"\n[store]\nurl = \"memory:\"";
    assert!(refusal(memory).contains("loopback"));
    assert!(with_file(&memory.replace("0.0.0.0", "127.0.0.1")).is_ok());
    assert!(with_file(&memory.replace("memory:", "file:x.db")).is_ok());
    let admin = "[gateway]\nadmin = \"0.0.0.0:8081\"";
    assert!(refusal(admin).contains("admin address 0.0.0.0:8081"));
    assert!(with_file(&admin.replace("0.0.0.0", "[::1]")).is_ok());
    let header = "[gateway]\nlisten = \"0.0.0.0:8080\"\n[scope]\nfrom = \"header:X-Account\"";
    assert!(refusal(header).contains("scope.trusted_proxies"));
    assert!(with_file(&format!("{header}\ntrusted_proxies = [\"10.0.0.0/8\"]")).is_ok());
    assert!(with_file(&header.replace("0.0.0.0", "127.0.0.1")).is_ok());
}

#[test]
fn a_jwt_scope_needs_a_key_that_can_be_used() {
    let jwt = "[scope]\nfrom = \"jwt:sub\"\n";
    assert!(refusal(jwt).contains("needs a key"));
    assert!(refusal(&format!("{jwt}jwt_secret = \"short\"")).contains("32 bytes"));
    assert!(refusal(&format!("{jwt}jwt_public_key = \"PEM\"")).contains("public key in PEM"));
    let secret = format!("jwt_secret = \"{}\"", "s".repeat(32));
    assert!(refusal(&format!("{jwt}{secret}\njwt_public_key = \"x\"")).contains("exclude"));
    assert!(refusal(&format!("[scope]\n{secret}")).contains("jwt:CLAIM"));
    let config = with_file(&format!("{jwt}{secret}\njwt_audience = \"shop\"")).expect("valid");
    assert_eq!(config.scope.name(), "jwt:sub");
}

#[test]
fn a_header_scope_is_read_from_trusted_peers_only() {
    let config = with_file(
        "[gateway]\nlisten = \"0.0.0.0:8080\"\n[scope]\nfrom = \"header:X-Account\"\n\
         trusted_proxies = [\"10.0.0.0/8\"]",
    );
    let rule = config.expect("valid").scope;
    assert_eq!(rule.name(), "header:x-account", "the identity is that of the plain rule");
    let scope = |peer: Option<&str>| {
        let request = Request::post("/").header("x-account", "acme").body(()).expect("valid");
        let (mut parts, ()) = request.into_parts();
        if let Some(peer) = peer {
            parts.extensions.insert(Arc::new(Peer::new(peer.parse().expect("address"), false)));
        }
        rule.read(&parts).map(|scope| scope.as_str().to_owned())
    };
    assert_eq!(scope(Some("10.1.2.3:99")).as_deref(), Ok("acme"));
    assert_eq!(scope(Some("192.0.2.1:99")), Err(NoScope::Missing));
    assert_eq!(scope(Some("127.0.0.1:99")), Err(NoScope::Missing));
    assert_eq!(scope(None), Err(NoScope::Missing));
}

#[test]
fn wrong_values_are_named_with_their_key_and_what_was_probably_meant() {
    for (toml, message) in [
        (
            "[defaults]\nin_flight = \"wiat\"",
            "defaults.in_flight: `wiat` is not known; did you mean `wait`?",
        ),
        (
            "[defaults]\nprofile = \"strpe\"",
            "defaults.profile: `strpe` is not known; did you mean `stripe`?",
        ),
        ("[defaults]\nlease = \"60\"", "defaults.lease: `60` is not a duration"),
        (
            "[defaults]\nlease = \"500ms\"",
            "defaults.lease: a lease must be between one second and one hour",
        ),
        (
            "[defaults]\nretention = \"5m\"",
            "defaults.retention: retention must be between one hour and 400 days",
        ),
        ("[defaults]\neffects = \"local\"", "defaults.effects: effects `local` need an upstream"),
        ("[defaults]\nwait = \"5s\"", "defaults.wait has a meaning only with in_flight"),
        ("[defaults]\nin_flight = \"wait\"\nwait = \"11s\"", "defaults.wait must be at most 10s"),
        (
            "[defaults]\nfingerprint_key = \"short\"",
            "defaults.fingerprint_key: fingerprint key has fewer",
        ),
        ("[defaults]\nfingerprint_include = [\"a\"]", "defaults.fingerprint_include: "),
        (
            "[defaults]\nfingerprint_headers = [\"a b\"]",
            "defaults.fingerprint_headers: `a b` is not",
        ),
        ("[defaults]\nproblem_base = \"errors\"", "defaults.problem_base: `errors` is not a URL"),
        ("[key]\nmin_len = 0", "key.min_len must be at least 1"),
        ("[key]\nmin_len = 20\nmax_len = 10", "key.min_len (20) is more than key.max_len (10)"),
        ("[key]\nmax_len = 256", "key.max_len must be at most 255"),
        (
            "[key]\nsyntax = \"strickt\"",
            "key.syntax: `strickt` is not known; did you mean `strict`?",
        ),
        ("[gateway]\ncors_origins = [\"https://a/b\"]", "is not an origin such as"),
        ("[gateway]\ncors_credentials = true", "only with cors_origins"),
        ("[gateway]\nlisten = \"8080\"", "gateway.listen: `8080`: invalid socket address"),
        ("[scope]\nfrom = \"authorisation\"", "did you mean `authorization`?"),
        (
            "[scope]\ntrusted_proxies = [\"10.0.0.1/8\"]",
            "scope.trusted_proxies: `10.0.0.1/8` has bits",
        ),
        ("[store]\nurl = \"oracle://user:pw@db\"", "the store is neither postgres://"),
        (
            "[store]\nurl = \"sqlite:x\"",
            "neither postgres://, mysql://, dynamodb://TABLE, redis://, file:PATH nor memory:",
        ),
    ] {
        let error = refusal(toml);
        assert!(error.contains(message), "{toml}\n{error}");
        assert!(!error.contains("pw@"), "{error}");
        assert!(!error.contains('\n'), "one line: {error}");
    }
}

#[test]
fn every_setting_of_a_route_is_understood() {
    let config = with_file(
        r#"
        [key]
        min_len = 1
        max_len = 64
        syntax = "strict"
        emails = "reject"
        [defaults]
        profile = "stripe"
        key = "required"
        effects = "external"
        in_flight = "wait"
        wait = "500ms"
        lease = "10s"
        max_execution = "5s"
        retention = "48h"
        tombstone = "0s"
        expired = "reject"
        on_5xx = "unknown"
        request_bytes_max = 100
        reply_bytes_max = 200
        schema_version = "v2"
        fingerprint_headers = ["X-Version"]
        fingerprint_exclude = ["/sent_at"]
        fingerprint_key = "0123456789abcdef"
        problem_base = "https://example.com/errors/"
        "#,
    )
    .expect("valid");
    assert_eq!(config.max_execution, Duration::from_secs(5));
    let policy = &config.routes.defaults().policy;
    assert_eq!((policy.request_cap(), policy.reply_cap()), (100, 200));
    assert_eq!((config.key_rules.len_min, config.key_rules.len_max), (1, 64));
    assert_eq!(config.problem_base.as_deref(), Some("https://example.com/errors/"));
    // The policy keeps its fields to itself; its debug form shows that they arrived.
    let policy = format!("{policy:?}");
    for part in [
        "Stripe",
        "presence: Required",
        "External",
        "Wait(500ms)",
        "lease: 10s",
        "server_errors: Unknown",
        "expired_runs_again: false",
        "retention: 172800s",
        "tombstone: 0ns",
        "x-version",
        "v2",
    ] {
        assert!(policy.contains(part), "{part} in {policy}");
    }
}

#[test]
fn upstreams_take_part_in_transactions_where_they_share_a_database() {
    for effects in ["local", "phased"] {
        let defaults = format!("[defaults]\neffects = \"{effects}\"\n");
        let shared = format!("{defaults}[store]\nurl = \"postgres://127.0.0.1/shop\"");
        let config = with_file(&shared).expect("valid");
        assert_eq!(config.routes.defaults().policy.rules().effects.name(), effects);
        for other in ["memory:", "file:x.db"] {
            let refused = refusal(&format!("{defaults}[store]\nurl = \"{other}\""));
            assert!(refused.contains("postgres:// store only"), "{refused}");
        }
    }
}

const WEBHOOK: &str = "[[route]]\nmatch = \"POST /a\"\n[[webhook]]\nname = \"bank\"\n\
                       secret = \"0123456789abcdef\"\noperation = \"/operation\"\n\
                       outcome = \"/status\"\ncompleted = [\"done\"]\n";

#[test]
fn a_webhook_names_its_routes_and_where_the_attempt_is_if_it_may_release() {
    let with = |more: &str| format!("{WEBHOOK}{more}\n");
    let routes = "routes = [\"POST /a\", \"default\"]\n";
    let config = with_file(&with(routes)).expect("valid");
    assert_eq!(config.webhooks[0].routes, ["POST /a", "default"]);
    assert!(toml::from_str::<File>(WEBHOOK).is_err(), "routes have to be given");
    assert!(refusal(&with("routes = []")).contains("at least one"));
    assert!(refusal(&with("routes = [\"POST /b\"]")).contains("no route"));
    let releases = format!("{routes}not_executed = [\"canceled\"]\n");
    assert!(refusal(&with(&releases)).contains("needs `attempt`"));
    with_file(&with(&format!("{releases}attempt = \"/attempt\""))).expect("valid");
    for (status, good) in [(199, false), (200, true), (599, true), (600, false)] {
        let toml = with(&format!("{routes}reply_status = {status}"));
        assert_eq!(with_file(&toml).is_ok(), good, "{status}");
    }
}

#[test]
fn a_webhook_that_goes_by_provider_ids_says_whose_they_are_if_there_are_two() {
    let by_id = |name: &str, more: &str| {
        format!(
            "[[webhook]]\nname = \"{name}\"\nsecret = \"0123456789abcdef\"\noutcome = \"/status\"\n\
             completed = [\"ok\"]\nroutes = [\"default\"]\n{more}\n"
        )
    };
    let about = |toml: &str| format!("{:?}", with_file(toml).expect("valid").webhooks[0].about);
    let plain = by_id("bank", "provider_id = \"/id\"");
    assert_eq!(about(&plain), r#"ProviderId { provider: "default", id: "/id" }"#);
    let named = by_id("bank", "provider_id = \"/id\"\nprovider = \"stripe\"");
    assert_eq!(about(&named), r#"ProviderId { provider: "stripe", id: "/id" }"#);
    let other = by_id("other", "provider_id = \"/id\"\nprovider = \"dhl\"");
    assert_eq!(with_file(&format!("{named}{other}")).expect("valid").webhooks.len(), 2);
    for (wrong, why) in [
        (format!("{plain}{other}"), "two webhooks have `provider_id`"),
        (by_id("bank", ""), "or `provider_id`"),
        (by_id("bank", "provider_id = \"/id\"\noperation = \"/o\""), "or `provider_id`"),
        (by_id("bank", "provider_id = \"/id\"\nscope = \"/s\"\nkey = \"/k\""), "or `provider_id`"),
        (by_id("bank", "provider_id = \"id\""), "not a JSON pointer"),
        (by_id("bank", "provider_id = \"/id\"\nprovider = \"a b\""), "name of a provider"),
        (by_id("bank", "operation = \"/o\"\nprovider = \"stripe\""), "only with `provider_id`"),
        (by_id("bank", "provider_id = \"/id\"\nnot_executed = [\"no\"]"), "needs `attempt`"),
    ] {
        let said = refusal(&wrong);
        assert!(said.contains(why), "{wrong}: {said}");
    }
}
