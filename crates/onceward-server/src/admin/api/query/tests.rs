use onceward::{record::RecordId, store::list::Cursor};

use super::{super::LIST, *};

/// What a list is asked for without any parameter.
fn plain() -> Query {
    Query { limit: LIMIT, sort: Sort::CreatedAt, order: Order::Descending, ..Query::default() }
}

fn asked(parameters: &str) -> Result<Query, Problem> {
    let parameters = Parameters::read(Some(parameters), &LIST)?;
    let filter = parameters.filter();
    parameters.query(filter)
}

fn noon() -> Option<Timestamp> {
    // 2026-01-31T12:00:00Z.
    Some(Timestamp::from_micros(1_769_860_800_000_000))
}

/// For each parameter what it asks the store for, and what it refuses.
#[test]
fn every_parameter_of_a_list_asks_the_store_for_what_it_says() {
    let scope = |name: &str| Some(Scope::new(name).expect("a scope"));
    let exact = KeyFilter::Exact(Key::new("order-1").expect("a key"));
    let cursor = Cursor {
        at: Timestamp::from_micros(5),
        id: RecordId {
            scope: Scope::new("acme").expect("a scope"),
            key: Key::new("order-1").expect("a key"),
        },
    };
    let (most, place) = (PAGE_MAX.to_string(), cursor.to_string());
    let from = Span { from: noon(), before: None };
    let before = Span { from: None, before: noon() };
    let table = [
        ("scope", "acme", Query { scope: scope("acme"), ..plain() }, ""),
        ("key", "order-1", Query { key: Some(exact), ..plain() }, "caf%C3%A9"),
        (
            "key_prefix",
            "order-",
            Query { key: Some(KeyFilter::Prefix("order-".into())), ..plain() },
            "caf%C3%A9",
        ),
        (
            "state",
            "unknown,failed_retryable",
            Query { states: vec![State::Unknown, State::FailedRetryable], ..plain() },
            "unknown,lost",
        ),
        ("route", "POST%20/v1/**", Query { route: Some("POST /v1/**".into()), ..plain() }, ""),
        ("effects", "phased", Query { effects: Some(Effects::Phased), ..plain() }, "some"),
        ("created_from", "2026-01-31T12:00:00Z", Query { created: from, ..plain() }, "noon"),
        ("created_before", "2026-01-31T12:00:00Z", Query { created: before, ..plain() }, "noon"),
        ("finished_from", "2026-01-31T13:00:00%2B01:00", Query { finished: from, ..plain() }, "1"),
        ("finished_before", "2026-01-31T12:00:00Z", Query { finished: before, ..plain() }, "1"),
        (
            "older_than",
            "2h",
            Query { older_than: Some(Duration::from_secs(7200)), ..plain() },
            "soon",
        ),
        ("dead", "true", Query { dead_letters: true, ..plain() }, "false"),
        ("sort", "created_at", plain(), "key"),
        ("sort", "expires_at", Query { sort: Sort::ExpiresAt, ..plain() }, "expiry"),
        ("order", "descending", plain(), "down"),
        ("order", "ascending", Query { order: Order::Ascending, ..plain() }, "up"),
        ("limit", "7", Query { limit: 7, ..plain() }, "0"),
        ("limit", most.as_str(), Query { limit: PAGE_MAX, ..plain() }, "1000000"),
        ("after", place.as_str(), Query { after: Some(cursor), ..plain() }, "here"),
    ];
    for (name, value, expected, wrong) in &table {
        let query = asked(&format!("{name}={value}"));
        assert_eq!(query.as_ref().ok(), Some(expected), "{name}={value}: {query:?}");
        let refused = asked(&format!("{name}={wrong}"));
        assert!(refused.is_err(), "{name}={wrong}: {refused:?}");
    }
    // A parameter that nobody looks at here would be one that does nothing.
    let told: Vec<&str> = table.iter().map(|(name, ..)| *name).collect();
    let forgotten: Vec<_> = LIST.into_iter().filter(|name| !told.contains(name)).collect();
    assert_eq!(forgotten, ["provider_id"], "which is looked for in its own way");
}

#[test]
fn conditions_hold_together_and_none_is_given_twice_or_unknown() {
    let query =
        asked("created_from=2026-01-31T12:00:00Z&created_before=2026-01-31T12:00:00Z&dead=true");
    let within = Span { from: noon(), before: noon() };
    let expected = Query { created: within, dead_letters: true, ..plain() };
    assert_eq!(query.expect("a query"), expected);
    for refused in ["key=a&key_prefix=b", "state=unknown&state=completed", "stat=unknown"] {
        assert!(asked(refused).is_err(), "{refused}");
    }
    assert_eq!(asked("").expect("a query"), plain());
}

#[test]
fn a_provider_id_is_read_with_its_provider_or_without() {
    let read = |text: &str| {
        let parameters = Parameters::read(Some(text), &LIST)?;
        parameters.provider_id()
    };
    let named: ProviderId = "bank ch_7".parse().expect("an id");
    assert_eq!(read("provider_id=bank%20ch_7").expect("an id"), Some(named.clone()));
    let plain: ProviderId = "ch_7".parse().expect("an id");
    assert_eq!(read("provider_id=ch_7").expect("an id"), Some(plain.clone()));
    assert_ne!(named, plain);
    assert_eq!(read("").expect("nothing"), None);
    assert!(read("provider_id=").is_err());
}
