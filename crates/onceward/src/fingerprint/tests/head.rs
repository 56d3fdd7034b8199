//! Everything but the body.

use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Request};
use sha2::{Digest, Sha256};

use super::super::{Fingerprint, RECIPE, Recipe};
use super::{FORM, JSON, assert_equal, of_body, post};

fn of_line(method: &str, target: &str) -> Fingerprint {
    let method = Method::from_bytes(method.as_bytes()).expect("a method");
    let request = Request::builder().method(method).uri(target).body(());
    let (parts, ()) = request.expect("a valid request").into_parts();
    Recipe::canonical().fingerprint(&parts, b"")
}

fn of_headers(headers: &[(&str, &str)]) -> Fingerprint {
    let chosen = ["x-version", "x-other"].map(HeaderName::from_static);
    Recipe::canonical().with_headers(chosen).fingerprint(&post(headers), b"{}")
}

/// Whether a body with these headers is read as JSON.
fn is_json(headers: &[(&str, &str)]) -> bool {
    let of = |body: &[u8]| Recipe::canonical().fingerprint(&post(headers), body);
    of(b"[1]") == of(b"[ 1 ]")
}

#[track_caller]
fn assert_all_differ(fingerprints: &[Fingerprint]) {
    for (index, one) in fingerprints.iter().enumerate() {
        for (other_index, other) in fingerprints.iter().enumerate().skip(index + 1) {
            assert_ne!(one, other, "number {index} and number {other_index}");
        }
    }
}

#[test]
fn method_path_and_query_matter() {
    assert_eq!(of_line("POST", "/a?b=1"), of_line("POST", "/a?b=1"));
    assert_all_differ(&[
        of_line("POST", "/a?b=1"),
        of_line("PATCH", "/a?b=1"),
        of_line("post", "/a?b=1"),
        of_line("POST", "/A?b=1"),
        of_line("POST", "/a/?b=1"),
        of_line("POST", "/%61?b=1"),
        of_line("POST", "/a?b=2"),
        of_line("POST", "/a?b=1&"),
        of_line("POST", "/a"),
        of_line("POST", "/a?"),
    ]);
}

#[test]
fn an_override_of_the_method_matters_where_it_is_sent() {
    let of = |headers: &[(&str, &str)]| Recipe::canonical().fingerprint(&post(headers), b"{}");
    let names = ["x-http-method", "x-http-method-override", "x-method-override"];
    let [first, second, third] = names.map(|name| of(&[(name, "DELETE")]));
    assert_all_differ(&[of(&[]), first, second, third, of(&[("x-method-override", "PUT")])]);
    // Chosen by name it is there once, and without one nothing changes.
    let chosen = || Recipe::canonical().with_headers([HeaderName::from_static(names[0])]);
    assert_eq!(chosen().fingerprint(&post(&[(names[0], "DELETE")]), b"{}"), first);
    assert_ne!(chosen().fingerprint(&post(&[]), b"{}"), of(&[]));
}

#[test]
fn host_and_scheme_do_not_matter() {
    // A gateway sees both forms of the same request.
    assert_eq!(of_line("POST", "/a?b"), of_line("POST", "http://example.com/a?b"));
}

#[test]
fn bytes_do_not_wander_from_one_part_to_the_next() {
    assert_all_differ(&[
        of_line("POST", "/a?b"),
        of_line("POST", "/a/b"),
        of_line("POST", "/ab"),
        of_line("POST", "/a%3Fb"),
        of_line("POST%3", "/a?b"),
    ]);
    let query_or_body = |target: &str, body: &[u8]| {
        let request = Request::post(target).body(()).expect("a valid request");
        Recipe::canonical().fingerprint(&request.into_parts().0, body)
    };
    assert_all_differ(&[
        query_or_body("/a?bc", b"d"),
        query_or_body("/a?b", b"cd"),
        query_or_body("/a", b"?bcd"),
        query_or_body("/a?bcd", b""),
    ]);
}

#[test]
fn a_body_cannot_pretend_to_be_an_earlier_part() {
    // The second body holds the end of the first message, tag and length
    // included.
    let mut forged = vec![4, 0, 0, 0, 0, 0, 0, 0, 10];
    forged.extend_from_slice(b"text/plain");
    forged.extend_from_slice(&[19, 0, 0, 0, 0, 0, 0, 0, 1, b'x']);
    let without_type = Recipe::canonical().fingerprint(&post(&[]), &forged);
    assert_ne!(without_type, of_body("text/plain", "x"));
    assert_eq!(of_body("text/plain", "x"), of_body("text/plain", "x"));
}

#[test]
fn headers_that_were_not_chosen_do_not_matter() {
    let plain = of_headers(&[("content-type", JSON)]);
    for (name, value) in [
        ("authorization", "Bearer another"),
        ("date", "Sun, 15 Nov 2026 20:00:00 GMT"),
        ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("idempotency-key", "\"k\""),
        ("signature", "sig1=:AA==:"),
        ("content-length", "2"),
    ] {
        assert_eq!(plain, of_headers(&[("content-type", JSON), (name, value)]));
    }
    assert_ne!(plain, of_headers(&[("content-type", JSON), ("x-version", "1")]));
}

#[test]
fn chosen_headers_matter_by_name_number_order_and_bytes_of_their_values() {
    assert_all_differ(&[
        of_headers(&[]),
        of_headers(&[("x-version", "")]),
        of_headers(&[("x-version", "1")]),
        of_headers(&[("x-other", "1")]),
        of_headers(&[("x-version", "1"), ("x-other", "1")]),
        of_headers(&[("x-version", "1"), ("x-other", "")]),
        of_headers(&[("x-version", "1"), ("x-version", "2")]),
        of_headers(&[("x-version", "2"), ("x-version", "1")]),
        of_headers(&[("x-version", "1"), ("x-version", "")]),
        of_headers(&[("x-version", "1, 2")]),
        of_headers(&[("x-version", "1,2")]),
        of_headers(&[("x-version", "12")]),
        of_headers(&[("x-version", "1x-other1")]),
    ]);
    assert_eq!(
        of_headers(&[("X-Version", "1"), ("x-other", "2")]),
        of_headers(&[("x-other", "2"), ("x-version", "1")]),
    );
}

#[test]
fn the_order_in_which_headers_are_chosen_does_not_matter() {
    let names = ["x-version", "x-other", "accept"].map(HeaderName::from_static);
    let [version, other, accept] = names.clone();
    let parts = post(&[("x-version", "1"), ("accept", "*/*")]);
    let one = Recipe::canonical().with_headers(names);
    let two =
        Recipe::canonical().with_headers([accept, version.clone()]).with_headers([other, version]);
    assert_eq!(one.fingerprint(&parts, b""), two.fingerprint(&parts, b""));
    assert_ne!(
        one.fingerprint(&parts, b""),
        one.fingerprint(&post(&[("x-version", "2"), ("accept", "*/*")]), b"")
    );
}

#[test]
fn the_media_type_matters_without_its_parameters() {
    assert_eq!(of_body("text/plain", "x"), of_body("Text/Plain ; charset=utf-8", "x"));
    assert_all_differ(&[
        of_body("text/plain", "1"),
        of_body("text/html", "1"),
        of_body("application/json", "1"),
        of_body("application/problem+json", "1"),
        of_body(FORM, "1"),
        Recipe::canonical().fingerprint(&post(&[]), b"1"),
        of_body("", "1"),
        of_body("text", "1"),
        of_body("text/", "1"),
        of_body("text/pl ain", "1"),
    ]);
}

#[test]
fn a_malformed_media_type_is_taken_as_it_came() {
    for (malformed, other) in
        [("text", "TEXT"), ("te xt/x", "te xt/X"), ("a/", "a/;b"), ("/a", "/A")]
    {
        assert_ne!(of_body(malformed, "x"), of_body(other, "x"));
        assert_eq!(of_body(malformed, "x"), of_body(malformed, "x"));
    }
    assert_eq!(of_body("text/x", "x"), of_body("text/X;b", "x"));
}

#[test]
fn parameters_of_the_media_type_matter_when_content_type_is_chosen() {
    let recipe = Recipe::canonical().with_headers([CONTENT_TYPE]);
    let of = |media_type| recipe.fingerprint(&post(&[("content-type", media_type)]), b"{}");
    assert_ne!(of("application/json;v=1"), of("application/json;v=2"));
    assert_eq!(of("application/json;v=1"), of("application/json;v=1"));
}

#[test]
fn several_content_types_are_taken_as_they_came_and_the_body_as_bytes() {
    let two = |first, second| [("content-type", first), ("content-type", second)];
    let of = |headers: &[(&str, &str)]| Recipe::canonical().fingerprint(&post(headers), b"[1]");
    assert!(!is_json(&two(JSON, JSON)));
    assert_all_differ(&[
        of(&two(JSON, JSON)),
        of(&two(JSON, FORM)),
        of(&two(FORM, JSON)),
        of(&[("content-type", JSON)]),
        of(&[("content-type", "application/json, application/json")]),
    ]);
    assert_eq!(of(&two(JSON, FORM)), of(&two(JSON, FORM)));
}

#[test]
fn json_is_read_as_json_under_its_names_in_utf_8_only() {
    for media_type in [
        "application/json",
        "Application/JSON",
        "application/json;",
        "application/json; ;charset=utf-8",
        "application/json;charset=utf-8",
        "application/json ; Charset=\"UTF-8\" ; v=1",
        "application/json; profile=\"a;charset=latin1\\\";\"",
        "application/vnd.api+json",
        "application/merge-patch+JSON",
        "model/gltf+json",
    ] {
        assert!(is_json(&[("content-type", media_type)]), "{media_type}");
        assert_eq!(of_body(media_type, "[1]"), of_body(&media_type.to_ascii_uppercase(), "[1.0]"));
    }
    for media_type in [
        "text/plain",
        "application/jsonx",
        "application/x+json+xml",
        "json",
        "+json",
        "application/+json/x",
        "application/json; charset=latin1",
        "application/json; charset=\"utf-8",
        "application/json; charset",
        "application/json; charset=",
        "application/json; charset = utf-8",
        "application/json; charset=utf-8 x",
        "application/json; charset=utf-8; charset=utf-16",
        "application/json, text/plain",
        "application/json charset=utf-8",
    ] {
        assert!(!is_json(&[("content-type", media_type)]), "{media_type}");
    }
    assert!(!is_json(&[]));
}

#[test]
fn a_form_is_a_form_whatever_its_parameters() {
    assert_equal(FORM, &["a=1&b=2", "b=2&a=1"]);
    assert_eq!(
        of_body(FORM, "a=1&b=2"),
        of_body("application/X-WWW-form-urlencoded; charset=UTF-8", "b=2&a=1")
    );
    assert_ne!(of_body("text/plain", "a=1&b=2"), of_body("text/plain", "b=2&a=1"));
}

#[test]
fn a_coded_body_is_taken_as_bytes_and_its_coding_matters() {
    let json = ("content-type", JSON);
    assert!(!is_json(&[json, ("content-encoding", "gzip")]));
    assert!(is_json(&[json, ("content-encoding", "identity")]));
    assert!(is_json(&[json, ("content-encoding", " Identity ")]));
    let of = |headers: &[(&str, &str)]| Recipe::canonical().fingerprint(&post(headers), b"[1]");
    assert_all_differ(&[
        of(&[json]),
        of(&[json, ("content-encoding", "gzip")]),
        of(&[json, ("content-encoding", "br")]),
        of(&[json, ("content-encoding", "br, gzip")]),
        of(&[json, ("content-encoding", "br"), ("content-encoding", "gzip")]),
        of(&[json, ("content-encoding", "gzip"), ("content-encoding", "br")]),
        of(&[json, ("content-encoding", "")]),
    ]);
    assert_eq!(of(&[json]), of(&[json, ("content-encoding", "identity")]));
    assert_eq!(
        of(&[json, ("content-encoding", "gzip")]),
        of(&[json, ("content-encoding", "GZip")])
    );
}

#[test]
fn a_header_value_that_is_not_text_matters_by_its_bytes() {
    let with = |bytes: &[u8]| {
        let mut parts: Parts = post(&[]);
        let value = HeaderValue::from_bytes(bytes).expect("visible bytes");
        parts.headers.insert("x-version", value);
        let names = [HeaderName::from_static("x-version")];
        Recipe::canonical().with_headers(names).fingerprint(&parts, b"")
    };
    assert_ne!(with(b"\xff"), with(b"\xfe"));
    assert_eq!(with(b"\xff"), with(b"\xff"));
}

/// The recipe laid out by hand, byte for byte.
#[test]
fn the_digest_is_the_documented_one() {
    let part = |tag: u8, bytes: &[u8]| {
        let length = (bytes.len() as u64).to_be_bytes();
        [&[tag][..], &length, bytes].concat()
    };
    let message = [
        b"onceward-fp/1".to_vec(),
        part(1, b"POST"),
        part(2, b"/v1/payments"),
        part(3, b"expand=1"),
        part(4, b"application/json"),
        part(7, b"x-other"),
        part(8, &0_u64.to_be_bytes()),
        part(7, b"x-version"),
        part(8, &2_u64.to_be_bytes()),
        part(9, b"2026"),
        part(9, b""),
        part(17, b"{\"amount\":125e-1,\"currency\":\"EUR\"}"),
    ]
    .concat();
    let request = Request::post("/v1/payments?expand=1")
        .header("Content-Type", "Application/Json; charset=utf-8")
        .header("X-Version", "2026")
        .header("X-Version", "")
        .header("Authorization", "Bearer secret");
    let (parts, ()) = request.body(()).expect("a valid request").into_parts();
    let body = br#"{ "currency": "EUR", "amount": 12.50 }"#;
    let recipe =
        Recipe::canonical().with_headers(["x-version", "x-other"].map(HeaderName::from_static));
    let fingerprint = recipe.fingerprint(&parts, body);
    assert_eq!(fingerprint.recipe(), RECIPE);
    let expected: [u8; 32] = Sha256::digest(message).into();
    assert_eq!(*fingerprint.digest(), expected);
}
