use super::*;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn the_defaults_are_those_of_the_profile_ietf() {
    let policy = Policy::required();
    assert_eq!(policy.profile, Profile::Ietf);
    assert_eq!((policy.presence, policy.methods), (Presence::Required, Methods::Unsafe));
    assert_eq!((policy.effects, policy.in_flight), (Effects::Undeclared, InFlight::Conflict));
    assert_eq!((policy.lease, policy.max_execution), (seconds(60), seconds(300)));
    assert_eq!((policy.retention, policy.tombstone), (seconds(86_400), seconds(30 * 86_400)));
    assert_eq!((policy.request_cap(), policy.reply_cap()), (1 << 20, 1 << 20));
    assert!(!policy.expired_runs_again);
}

#[test]
fn the_profile_stripe_differs_where_stripe_does() {
    let policy = Policy::of_profile(Profile::Stripe);
    assert_eq!((policy.presence, policy.server_errors), (Presence::Optional, ServerErrors::Store));
    assert!(policy.expired_runs_again);
    assert_eq!(policy.profile.mismatch_status(), 400);
    assert_eq!(Policy::of_profile(Profile::Ietf).profile.mismatch_status(), 422);
}

#[test]
fn a_single_policy_is_local_and_refuses_other_effects() {
    for effects in Effects::ALL {
        let policy = Policy::required().effects(effects).expect("any can be declared");
        assert_eq!((policy.effects, policy.single), (effects, false));
        let single = policy.single();
        assert_eq!((single.effects, single.single), (Effects::Local, true));
        let declared = single.effects(effects).map(|policy| policy.effects);
        let expected = match effects {
            Effects::Local => Ok(Effects::Local),
            other => Err(BadPolicy::SingleIsLocal(other.name())),
        };
        assert_eq!(declared, expected);
    }
}

#[test]
fn times_that_would_break_a_promise_are_refused_and_the_shortest_allowed_are_not() {
    let policy = Policy::required;
    let just_under = |limit: u64| seconds(limit) - Duration::from_nanos(1);
    let short = |result: Result<Policy, BadPolicy>| result.expect_err("too short");
    assert_eq!(short(policy().retention(just_under(3600))), BadPolicy::Retention);
    assert_eq!(short(policy().lease(just_under(1))), BadPolicy::Lease);
    assert_eq!(short(policy().max_execution(just_under(1))), BadPolicy::MaxExecution);
    // And what is too long would block a key for hours after a crash, or keep it for ever.
    let just_over = |seconds: u64| Duration::from_secs(seconds) + Duration::from_nanos(1);
    assert_eq!(short(policy().lease(just_over(3600))), BadPolicy::Lease);
    assert_eq!(short(policy().max_execution(just_over(86_400))), BadPolicy::MaxExecution);
    assert_eq!(short(policy().retention(just_over(400 * 86_400))), BadPolicy::Retention);
    assert!(policy().lease(Duration::from_secs(3600)).is_ok());
    assert!(policy().retention(Duration::from_secs(30 * 86_400)).is_ok());
    let shortest = policy()
        .retention(seconds(3600))
        .and_then(|policy| policy.lease(seconds(1)))
        .and_then(|policy| policy.max_execution(seconds(1)))
        .expect("allowed");
    assert_eq!((shortest.retention, shortest.lease), (seconds(3600), seconds(1)));
}

#[test]
fn a_wait_is_capped() {
    let waits = |at_most| Policy::required().in_flight(InFlight::Wait(at_most)).in_flight;
    assert_eq!(waits(seconds(11)), InFlight::Wait(seconds(10)));
    assert_eq!(waits(seconds(9)), InFlight::Wait(seconds(9)));
}

#[test]
fn a_failure_of_queued_work_is_unknown_unless_it_is_declared_to_be_harmless() {
    let meaning = |effects, errors| {
        let policy = Policy::required().effects(effects).expect("offered").server_errors(errors);
        let policy = policy.queued(Queued::default()).expect("can be queued");
        policy.meaning_of(StatusCode::INTERNAL_SERVER_ERROR)
    };
    for effects in [Effects::Undeclared, Effects::External] {
        assert_eq!(meaning(effects, ServerErrors::ByEffects), Meaning::Unknown);
    }
    for effects in [Effects::None, Effects::Local] {
        assert_eq!(meaning(effects, ServerErrors::ByEffects), Meaning::NotExecuted);
    }
    assert_eq!(meaning(Effects::Undeclared, ServerErrors::Retry), Meaning::NotExecuted);
}

#[test]
fn a_status_means_what_effects_and_policy_say() {
    use Meaning::{Final, NotExecuted, Unknown};
    let policy = |effects, server_errors| {
        let policy = Policy::required().effects(effects).expect("offered");
        policy.server_errors(server_errors)
    };
    let meaning = |policy: &Policy, status: u16| {
        policy.meaning_of(StatusCode::from_u16(status).expect("a status"))
    };
    let undeclared = policy(Effects::Undeclared, ServerErrors::ByEffects);
    for status in [200, 201, 204, 301, 307, 400, 402, 404, 409, 422, 428, 451, 499] {
        assert_eq!(meaning(&undeclared, status), Final, "{status}");
    }
    for effects in Effects::ALL {
        for errors in [
            ServerErrors::ByEffects,
            ServerErrors::Retry,
            ServerErrors::Store,
            ServerErrors::Unknown,
        ] {
            let policy = policy(effects, errors);
            for status in [401, 403, 408, 425, 429] {
                assert_eq!(meaning(&policy, status), NotExecuted, "{status}");
            }
            for status in [100, 101, 199] {
                assert_eq!(meaning(&policy, status), Unknown, "{status}");
            }
            for status in [502, 504] {
                let known = effects == Effects::Phased && errors != ServerErrors::Unknown;
                assert_eq!(meaning(&policy, status) != Unknown, known, "{status} {effects:?}");
            }
            let expected = match (errors, effects) {
                (ServerErrors::Store, _) => Final,
                (ServerErrors::Unknown, _) | (ServerErrors::ByEffects, Effects::External) => {
                    Unknown
                }
                _ => NotExecuted,
            };
            for status in [500, 501, 503, 505, 599] {
                assert_eq!(meaning(&policy, status), expected, "{status} {effects:?} {errors:?}");
            }
        }
    }
}

fn matches(pattern: &str, method: Method, path: &str) -> bool {
    Pattern::parse(pattern).expect("a pattern").matches(&method, path)
}

#[test]
fn a_pattern_matches_its_method_and_path_and_no_other() {
    for (pattern, path, expected) in [
        ("POST /v1/charges", "/v1/charges", true),
        ("POST /v1/charges", "/v1/charges/", false),
        ("POST /v1/charges", "/v1/charges/1", false),
        ("POST /v1/charges", "/v1/Charges", false),
        ("POST /v1/charges", "/v1/%63harges", false),
        ("POST /v1/*", "/v1/charges", true),
        ("POST /v1/*", "/v1/", false),
        ("POST /v1/*", "/v1/a/b", false),
        ("POST /v1/*/items", "/v1/a/items", true),
        ("POST /v1/**", "/v1/a/b/c", true),
        ("POST /v1/**", "/v1", true),
        ("POST /v1/**", "/v1/", true),
        ("POST /v1/**", "/v10", false),
        ("POST /**", "/", true),
        ("POST /**", "/anything/at/all", true),
        ("POST /", "/", true),
        ("POST /", "/a", false),
    ] {
        assert_eq!(matches(pattern, Method::POST, path), expected, "{pattern} {path}");
    }
    assert!(matches("POST|PATCH /a", Method::PATCH, "/a"));
    assert!(!matches("POST|PATCH /a", Method::PUT, "/a"));
    assert!(matches("* /a", Method::PUT, "/a"));
}

#[test]
fn what_is_not_a_pattern_is_refused() {
    for text in [
        "",
        "POST",
        "/a",
        "post /a",
        "POST a",
        "POST| /a",
        "POST /a**",
        "POST /**/a",
        "POST /a?b=1",
    ] {
        let refused = Pattern::parse(text).expect_err(text).to_string();
        assert!(refused.starts_with(&format!("`{text}` is not")), "{refused}");
    }
}

fn name_of(routes: &Routes, method: Method, path: &str) -> Option<String> {
    routes.policy_for(&method, path).map(|policy| policy.name.to_string())
}

#[test]
fn the_first_route_that_matches_wins_and_the_rest_falls_under_the_default() {
    let routes = Routes::with_default(Policy::required())
        .route("POST /v1/a", Policy::optional())
        .and_then(|routes| routes.unprotected("* /v1/open/**"))
        .and_then(|routes| routes.route("* /v1/**", Policy::required()))
        .expect("patterns");
    let name = |method, path| name_of(&routes, method, path);
    assert_eq!(name(Method::POST, "/v1/a").as_deref(), Some("POST /v1/a"));
    assert_eq!(name(Method::PATCH, "/v1/a").as_deref(), Some("* /v1/**"));
    assert_eq!(name(Method::POST, "/v1/open/door"), None);
    assert_eq!(name(Method::POST, "/v2").as_deref(), Some("default"));
    assert_eq!(name(Method::GET, "/v1/a"), None);
    assert_eq!(routes.policies().count(), 3);
    assert_eq!(name_of(&Routes::only(), Method::POST, "/v2"), None);
}

#[test]
fn a_route_that_names_put_or_delete_protects_them_and_a_star_does_not() {
    let routes = |pattern| Routes::only().route(pattern, Policy::required()).expect("a pattern");
    for method in [Method::PUT, Method::DELETE] {
        assert_eq!(name_of(&routes("* /a"), method.clone(), "/a"), None);
        assert!(name_of(&routes("POST|PUT|DELETE /a"), method.clone(), "/a").is_some());
        let asked = Policy::required().methods(Methods::UnsafeAndIdempotent);
        assert!(name_of(&Routes::from(asked), method, "/a").is_some());
    }
    assert_eq!(name_of(&routes("GET|PUT /a"), Method::GET, "/a"), None);
}

#[test]
fn a_wider_pattern_covers_the_paths_of_a_narrower_one_and_not_the_other_way_round() {
    let covers = |wide: &str, narrow: &str| {
        let parse = |path: &str| Pattern::parse(&format!("* {path}")).expect(path);
        parse(wide).covers_path_of(&parse(narrow))
    };
    for (wide, narrow) in [
        ("/**", "/v1/charges"),
        ("/**", "/"),
        ("/v1/**", "/v1"),
        ("/v1/**", "/v1/*/items"),
        ("/v1/*", "/v1/charges"),
        ("/*/items", "/v1/items"),
    ] {
        assert!(covers(wide, narrow), "{wide} covers {narrow}");
        assert!(!covers(narrow, wide), "{narrow} does not cover {wide}");
        assert!(covers(narrow, narrow));
    }
    for (one, other) in [("/v1/*", "/v1/a/b"), ("/v1/**", "/v2/**"), ("/*", "/"), ("/a/*", "/*/b")]
    {
        assert!(!covers(one, other) && !covers(other, one), "{one} and {other}");
    }
}

#[test]
fn patterns_overlap_when_one_request_can_match_both() {
    let overlap = |one: &str, other: &str| {
        let parse = |text: &str| Pattern::parse(text).expect(text);
        let found = parse(one).overlaps(&parse(other));
        assert_eq!(found, parse(other).overlaps(&parse(one)), "{one} and {other}");
        found
    };
    for (one, other) in [
        ("POST /v1/*/items", "POST /v1/orders/*"),
        ("POST /v1/**", "* /v1/charges"),
        ("POST|PATCH /a", "PATCH /a"),
        ("POST /**", "POST /"),
    ] {
        assert!(overlap(one, other), "{one} and {other}");
    }
    for (one, other) in [
        ("POST /a", "PATCH /a"),
        ("POST /a/*", "POST /b/*"),
        ("POST /a", "POST /a/b"),
        ("POST /*", "POST /"),
        ("POST /a/*/c", "POST /a/b"),
    ] {
        assert!(!overlap(one, other), "{one} and {other}");
    }
}

#[test]
fn the_rules_of_a_policy_are_those_that_were_set() {
    let policy = Policy::of_profile(Profile::Stripe)
        .named("charges")
        .effects(Effects::External)
        .and_then(|policy| policy.lease(seconds(7)))
        .expect("valid")
        .schema_version("v2");
    let rules = policy.rules();
    assert_eq!((rules.name, rules.profile), ("charges", Profile::Stripe));
    assert_eq!((rules.presence, rules.effects), (Presence::Optional, Effects::External));
    assert_eq!((rules.lease, rules.schema_version), (seconds(7), Some("v2")));
    assert_eq!((rules.server_errors, rules.in_flight), (ServerErrors::Store, InFlight::Conflict));
    assert_eq!((rules.max_execution, rules.retention), (seconds(300), seconds(86_400)));
    assert_eq!((rules.tombstone, rules.expired_runs_again), (seconds(30 * 86_400), true));
}
