use super::*;

fn table(toml: &str) -> Result<RouteTable> {
    let file = toml::from_str(toml).expect(toml);
    RouteTable::read(Profile::Ietf, &file, &StoreUrl::Memory)
}

fn refusal(toml: &str) -> String {
    format!("{:#}", table(toml).expect_err(toml))
}

fn routes(matches: &[&str]) -> String {
    matches.iter().map(|text| format!("[[route]]\nmatch = \"{text}\"\n")).collect()
}

#[test]
fn the_first_route_that_matches_wins_and_the_rest_falls_under_the_defaults() {
    let table = table(&routes(&["POST /v1/charges", "POST|PUT /v1/*/items", "* /v1/**"]));
    let table = table.expect("valid");
    for (method, path, expected) in [
        (Method::POST, "/v1/charges", "POST /v1/charges"),
        (Method::POST, "//v1/./ch%61rges/", "POST /v1/charges"),
        (Method::PATCH, "/v1/charges", "* /v1/**"),
        (Method::PUT, "/v1/7/items", "POST|PUT /v1/*/items"),
        (Method::DELETE, "/v1/7/items", "* /v1/**"),
        (Method::POST, "/v1", "* /v1/**"),
        (Method::POST, "/v2/charges", "default"),
        (Method::POST, "/public/../v1/charges", "POST /v1/charges"),
        (Method::POST, "/v1%2Fcharges", "default"),
    ] {
        assert_eq!(table.find(&method, path).name(), expected, "{method} {path}");
    }
}

#[test]
fn methods_are_protected_when_they_are_unsafe_or_asked_for() {
    let toml = "[[route]]\nmatch = \"POST|PUT /a\"\n[[route]]\nmatch = \"* /b\"\n\
                methods = [\"DELETE\"]\n[[route]]\nmatch = \"* /c\"\nkey = \"off\"\n\
                [[route]]\nmatch = \"* /d\"\nkey = \"shadow\"\n[[route]]\nmatch = \"* /e\"\n\
                key = \"optional\"\n";
    let table = table(toml).expect("valid");
    use Treatment::{Observe, PassOn, Protect};
    for (method, path, expected) in [
        (Method::POST, "/a", Protect),
        (Method::PUT, "/a", Protect),
        (Method::PUT, "/b", PassOn),
        (Method::DELETE, "/b", Protect),
        (Method::PATCH, "/b", Protect),
        (Method::GET, "/b", PassOn),
        (Method::OPTIONS, "/b", PassOn),
        (Method::POST, "/c", PassOn),
        (Method::POST, "/d", Observe),
        (Method::GET, "/d", PassOn),
        (Method::POST, "/e", Protect),
        (Method::POST, "/f", Protect),
        (Method::PUT, "/f", PassOn),
    ] {
        let found = table.find(&method, path).treatment(&method);
        assert_eq!(found, expected, "{method} {path}");
    }
}

#[test]
fn a_route_says_what_differs_and_the_defaults_say_the_rest() {
    let toml = "[defaults]\nlease = \"10s\"\nretention = \"48h\"\nin_flight = \"wait\"\n\
                wait = \"2s\"\n[[route]]\nmatch = \"POST /a\"\nretention = \"72h\"\n\
                in_flight = \"conflict\"\n[[route]]\nmatch = \"POST /b\"\nprofile = \"stripe\"\n";
    let table = table(toml).expect("valid");
    let hours = |path: &str| {
        let rules = table.find(&Method::POST, path).policy.rules();
        (rules.lease.as_secs(), rules.retention.as_secs() / 3600)
    };
    assert_eq!((hours("/a"), hours("/b"), hours("/c")), ((10, 72), (10, 48), (10, 48)));
    let in_flight = |path: &str| table.find(&Method::POST, path).policy.rules().in_flight;
    assert_eq!(in_flight("/a"), onceward::InFlight::Conflict);
    assert_eq!(in_flight("/b"), onceward::InFlight::Wait(std::time::Duration::from_secs(2)));
    assert_eq!(table.find(&Method::POST, "/b").key, KeyUse::Optional, "as the profile has it");
}

#[test]
fn routes_that_no_request_reaches_are_refused() {
    for (matches, hidden_by) in [
        (&["* /v1/**", "POST /v1/charges"][..], "\"* /v1/**\" comes first"),
        (&["POST /v1/*", "POST /v1/charges"], "\"POST /v1/*\" comes first"),
        (&["POST /a", "POST /a"], "\"POST /a\" comes first"),
        (&["POST /**", "PATCH /**", "POST|PATCH /a"], "\"POST /**\" and \"PATCH /**\""),
    ] {
        let refused = refusal(&routes(matches));
        assert!(refused.contains("no request reaches it"), "{refused}");
        assert!(refused.contains(hidden_by), "{refused}");
    }
    for matches in [
        &["POST /v1/charges", "* /v1/**"][..],
        &["POST /**", "POST|PATCH /a"],
        &["POST /v1/*/x", "POST /v1/**"],
        &["POST /a", "PATCH /a"],
    ] {
        let table = table(&routes(matches)).expect("each can be reached");
        assert!(table.warnings.is_empty(), "{:?}", table.warnings);
    }
}

#[test]
fn routes_that_overlap_without_one_being_the_narrower_are_noted() {
    let table = table(&routes(&["POST /v1/*/items", "POST /v1/orders/*"])).expect("valid");
    assert_eq!(table.warnings.len(), 1);
    assert!(table.warnings[0].contains("match some requests both"), "{:?}", table.warnings);
}

#[test]
fn wrong_routes_are_named_by_their_text() {
    let route = |lines: &str| format!("[[route]]\nmatch = \"POST /a\"\n{lines}\n");
    for (toml, part) in [
        (routes(&["/a"]), "`/a` is not a route pattern"),
        (routes(&["post /a"]), "is not a route pattern"),
        (routes(&["POST /a/"]), "would never match; write `/a`"),
        (routes(&["POST /a//b"]), "write `/a/b`"),
        (routes(&["GET /a"]), "GET is never protected"),
        (route("methods = [\"GET\"]"), "methods: GET is never protected"),
        (route("methods = [\"put\"]"), "`put` is not a method"),
        (
            route("key = \"of\""),
            "route \"POST /a\" (line 0): key: `of` is not known; did you mean `off`?",
        ),
        (route("key = \"off\"\nlease = \"5s\""), "lease has no meaning with key = \"off\""),
        (route("lease = \"5\""), "route \"POST /a\" (line 0): lease: `5` is not a duration"),
        (route("effects = \"local\""), "postgres:// store only"),
        (route("wait = \"5s\""), "wait has a meaning only with"),
        (route("max_request_age = \"24h\""), "must be less than the retention (86400s)"),
        (route("max_request_age_header = \"Date\""), "only with max_request_age"),
        (
            route("max_request_age = \"1h\"\nmax_request_age_header = \"a b\""),
            "not the name of a header",
        ),
        (route("profile = \"strpe\""), "did you mean `stripe`?"),
    ] {
        let refused = refusal(&toml);
        assert!(refused.contains(part), "{toml}\n{refused}");
        assert!(!refused.contains('\n'), "one line: {refused}");
    }
    for toml in [
        route("key = \"off\"\nupgrade = true"),
        route("max_request_age = \"23h\""),
        route("max_request_age = \"0s\""),
        "[[route]]\nmatch = \"GET /a\"\nkey = \"off\"".to_owned(),
        "[defaults]\nkey = \"off\"".to_owned(),
    ] {
        assert!(table(&toml).is_ok(), "{toml}");
    }
}
