use super::*;

#[test]
fn a_segment_is_what_stands_in_the_place_of_the_braces() {
    assert_eq!(segment("/keys", "/keys"), Some(None));
    assert_eq!(segment("/keys/{}", "/keys/v1.a.b"), Some(Some("v1.a.b")));
    assert_eq!(segment("/keys/{}/void", "/keys/x/void"), Some(Some("x")));
    for other in ["/keys/", "/keys/a/b", "/keys//void", "/keys/void", "/key"] {
        assert_eq!(segment("/keys/{}/void", other), None, "{other}");
    }
    assert_eq!(segment("/keys/{}", "/keys/"), None);
}

#[test]
fn every_schema_that_is_named_is_there() {
    let document = document();
    let schemas = document["components"]["schemas"].as_object().expect("schemas");
    let text = document.to_string();
    let named = text.split("#/components/schemas/").skip(1);
    let named: Vec<&str> = named.filter_map(|rest| rest.split('"').next()).collect();
    assert!(named.len() > 20, "{}", named.len());
    for name in named {
        assert!(schemas.contains_key(name), "{name}");
    }
    let paths = document["paths"].as_object().expect("paths");
    assert_eq!(
        paths.values().filter_map(|item| item.as_object()).map(|it| it.len()).sum::<usize>(),
        21
    );
}

#[test]
fn an_array_is_not_taken_for_a_document() {
    let good = br#"{"action":"void","filter":{"state":"completed"},"reason":"x"}"#;
    assert!(parse::<PlanRequest>(good).is_ok());
    for bad in [
        &br#"{"action":"void","filter":[null,null],"reason":"x"}"#[..],
        br#"[{"state":"completed"},"void","x",null]"#,
        br#"{"action":"void","filter":{"stat":"completed"},"reason":"x"}"#,
        br#"{"action":"void","filter":{"state":"completed"}}"#,
        b"",
    ] {
        assert!(parse::<PlanRequest>(bad).is_err(), "{}", String::from_utf8_lossy(bad));
    }
}
