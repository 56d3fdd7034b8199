//! Chosen parts of JSON bodies.

use super::super::{BadPointer, Fingerprint, Recipe};
use super::{FORM, JSON, of_body, post};

fn including(pointers: &[&str]) -> Recipe {
    Recipe::canonical().include(pointers).expect("good pointers")
}

fn excluding(pointers: &[&str]) -> Recipe {
    Recipe::canonical().exclude(pointers).expect("good pointers")
}

fn of(recipe: &Recipe, body: &str) -> Fingerprint {
    recipe.fingerprint(&post(&[("content-type", JSON)]), body.as_bytes())
}

#[track_caller]
fn assert_equal(recipe: &Recipe, one: &str, other: &str) {
    assert!(of(recipe, one) == of(recipe, other), "{one} and {other} differ");
}

#[track_caller]
fn assert_differ(recipe: &Recipe, one: &str, other: &str) {
    assert!(of(recipe, one) != of(recipe, other), "{one} and {other} are equal");
}

#[test]
fn what_is_excluded_does_not_matter_and_the_rest_does() {
    let recipe = excluding(&["/sent_at", "/client/clock"]);
    let body = r#"{"amount":1,"client":{"clock":5,"id":7},"sent_at":"now"}"#;
    for equal in [
        r#"{"amount":1,"client":{"clock":6,"id":7},"sent_at":"then"}"#,
        r#"{"amount":1,"client":{"id":7}}"#,
        r#"{"sent_at":{"a":[1,{"b":2}]},"client":{"id":7.0,"clock":[]},"amount":1}"#,
    ] {
        assert_equal(&recipe, body, equal);
    }
    for different in [
        r#"{"amount":2,"client":{"clock":5,"id":7},"sent_at":"now"}"#,
        r#"{"amount":1,"client":{"clock":5,"id":8},"sent_at":"now"}"#,
        r#"{"amount":1,"client":{"clock":5,"id":7,"clock2":5},"sent_at":"now"}"#,
        r#"{"amount":1,"clock":5,"client":{"id":7},"sent_at":"now"}"#,
        r#"{"amount":1,"sent_at":"now"}"#,
    ] {
        assert_differ(&recipe, body, different);
    }
}

#[test]
fn what_is_included_matters_and_the_rest_does_not() {
    let recipe = including(&["/amount", "/to/account"]);
    let body = r#"{"amount":1,"note":"x","to":{"account":"A","name":"N"}}"#;
    for equal in [
        r#"{"to":{"name":"M","account":"A"},"amount":1.0}"#,
        r#"{"amount":1,"to":{"account":"A"},"more":{"amount":2}}"#,
    ] {
        assert_equal(&recipe, body, equal);
    }
    for different in [
        r#"{"amount":2,"note":"x","to":{"account":"A","name":"N"}}"#,
        r#"{"amount":1,"note":"x","to":{"account":"B","name":"N"}}"#,
        r#"{"amount":1,"note":"x","to":{"name":"N"}}"#,
        r#"{"amount":1,"note":"x"}"#,
        r#"{"amount":{"amount":1},"to":{"account":"A"}}"#,
        r#"{"amount":null,"to":{"account":"A"}}"#,
    ] {
        assert_differ(&recipe, body, different);
    }
}

#[test]
fn an_included_part_is_taken_with_all_that_is_in_it() {
    let recipe = including(&["/to", "/to/account"]);
    assert_differ(&recipe, r#"{"to":{"name":"M"}}"#, r#"{"to":{"name":"N"}}"#);
    assert_equal(
        &recipe,
        r#"{"to":{"a":[{"c":1,"b":2}]},"x":1}"#,
        r#"{"to":{"a":[{"b":2,"c":1}]}}"#,
    );
}

#[test]
fn a_scalar_on_the_way_to_an_included_part_is_kept() {
    let recipe = including(&["/to/account"]);
    assert_differ(&recipe, r#"{"to":1}"#, r#"{"to":2}"#);
    assert_differ(&recipe, r#"{"to":1}"#, r#"{"to":{}}"#);
    assert_differ(&recipe, "1", "2");
    assert_equal(&recipe, r#"{"to":1,"x":1}"#, r#"{"to":1.0,"x":2}"#);
}

#[test]
fn array_elements_are_addressed_by_their_index() {
    let first = including(&["/lines/0/price"]);
    let body = r#"{"lines":[{"price":1,"x":0},{"price":2}]}"#;
    assert_equal(&first, body, r#"{"lines":[{"price":1},{"price":3},4]}"#);
    assert_differ(&first, body, r#"{"lines":[{"price":2},{"price":2}]}"#);
    assert_differ(&first, body, r#"{"lines":[]}"#);
    let but_second = excluding(&["/1"]);
    assert_equal(&but_second, "[1,2,3]", "[1,4,3]");
    assert_differ(&but_second, "[1,2,3]", "[1,2,4]");
    assert_differ(&but_second, "[1,2,3]", "[3,2,1]");
    let tenth = including(&["/10"]);
    assert_equal(&tenth, "[0,1,2,3,4,5,6,7,8,9,10,11]", "[9,9,9,9,9,9,9,9,9,9,10]");
    assert_differ(&tenth, "[0,1,2,3,4,5,6,7,8,9,10]", "[0,1,2,3,4,5,6,7,8,9,11]");
}

#[test]
fn an_index_has_one_spelling() {
    for pointer in ["/01", "/-", "/+1", "/1.0", "/ 1", "/"] {
        let recipe = excluding(&[pointer]);
        assert_differ(&recipe, "[1,2,3]", "[1,4,3]");
        let name = pointer.trim_start_matches('/');
        let with_member = |value: u8| format!("{{\"{name}\":{value}}}");
        assert_equal(&recipe, &with_member(1), &with_member(2));
    }
    assert_equal(&excluding(&["/1"]), "[1,2,3]", "[1,4,3]");
}

#[test]
fn escapes_in_pointers_are_decoded_in_the_right_order() {
    let recipe = excluding(&["/a~1b", "/c~0d", "/e~01f", "/"]);
    let body = r#"{"a/b":1,"c~d":1,"e~1f":1,"":1,"x":1}"#;
    assert_equal(&recipe, body, r#"{"a/b":2,"c~d":2,"e~1f":2,"":2,"x":1}"#);
    assert_differ(&recipe, body, r#"{"a/b":1,"c~d":1,"e~1f":1,"":1,"x":2}"#);
    assert_differ(&recipe, r#"{"e/f":1}"#, r#"{"e/f":2}"#);
}

#[test]
fn a_pointer_names_a_member_however_it_is_escaped_in_the_body() {
    let recipe = excluding(&["/caf\u{e9}\n\"\u{1f602}"]);
    let body = |value: u8| {
        format!(r#"{{"\u0063afe":1,"\u0063af\u00e9\u000a\u0022\ud83d\ude02":{value}}}"#)
    };
    assert_equal(&recipe, &body(1), &body(2));
    assert_equal(&recipe, &body(1), r#"{"cafe":1}"#);
    assert_differ(&recipe, &body(1), r#"{"cafe":2}"#);
}

#[test]
fn the_whole_document_can_be_included() {
    let recipe = including(&[""]);
    assert_equal(&recipe, r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1}"#);
    assert_differ(&recipe, r#"{"a":1,"b":2}"#, r#"{"a":1,"b":3}"#);
    assert_eq!(of(&recipe, r#"{"a":1}"#), of_body(JSON, r#"{"a":1}"#));
}

#[test]
fn parts_that_do_not_count_must_be_valid_all_the_same() {
    for recipe in [excluding(&["/x"]), including(&["/a"])] {
        for invalid in [
            r#"{"a":1,"x":{"b":1,"b":2}}"#,
            r#"{"a":1,"x":1,"x":2}"#,
            r#"{"x":1,"a":1,"x":2}"#,
            r#"{"a":1,"x":1,"\u0078":1}"#,
            r#"{"a":1,"x":"\ud800"}"#,
            r#"{"a":1,"x":01}"#,
            r#"{"a":1,"x":}"#,
            r#"{"a":1,"x":1e99999999999999999999}"#,
        ] {
            let indented = invalid.replacen(':', ": ", 1);
            assert_differ(&recipe, invalid, &indented);
            assert_differ(&recipe, invalid, r#"{"a":1}"#);
        }
        assert_equal(&recipe, r#"{"a":1,"x":{"b":1,"c":2}}"#, r#"{"a":1}"#);
    }
}

#[test]
fn only_json_bodies_have_parts() {
    let recipe = excluding(&["/a"]);
    let of =
        |media_type, body: &[u8]| recipe.fingerprint(&post(&[("content-type", media_type)]), body);
    assert_ne!(of(FORM, b"a=1"), of(FORM, b"a=2"));
    assert_ne!(of("text/plain", br#"{"a":1}"#), of("text/plain", br#"{"a":2}"#));
    assert_eq!(of(JSON, br#"{"a":1}"#), of(JSON, br#"{"a":2}"#));
}

#[test]
fn a_body_without_the_excluded_part_keeps_its_fingerprint() {
    assert_eq!(of(&excluding(&["/x"]), r#"{"a":1}"#), of_body(JSON, r#"{"a":1}"#));
    assert_ne!(of(&excluding(&["/x"]), r#"{"x":1}"#), of_body(JSON, r#"{"x":1}"#));
}

#[test]
fn pointers_may_be_added_one_by_one() {
    let recipe = including(&["/a"]).include(&["/b/c", "/a"]).expect("good pointers");
    assert_equal(&recipe, r#"{"a":1,"b":{"c":2,"d":3},"e":4}"#, r#"{"a":1,"b":{"c":2}}"#);
    assert_differ(&recipe, r#"{"a":1,"b":{"c":2}}"#, r#"{"a":1,"b":{"c":3}}"#);
    assert_differ(&recipe, r#"{"a":1,"b":{"c":2}}"#, r#"{"a":2,"b":{"c":2}}"#);
}

#[test]
fn malformed_pointers_are_refused() {
    let include = |pointer: &str| Recipe::canonical().include(&["/good", pointer]).err();
    let exclude = |pointer: &str| Recipe::canonical().exclude(&["/good", pointer]).err();
    for pointer in ["a", "a/b", "#/a", " /a"] {
        let expected = Some(BadPointer::NoLeadingSlash(pointer.to_owned()));
        assert_eq!(include(pointer), expected);
        assert_eq!(exclude(pointer), expected);
    }
    for pointer in ["/~", "/a~", "/~2", "/a/~x/b", "/~~0", "/~\u{e9}"] {
        let expected = Some(BadPointer::BadEscape(pointer.to_owned()));
        assert_eq!(include(pointer), expected);
        assert_eq!(exclude(pointer), expected);
    }
    let deep = |steps: usize| "/a".repeat(steps);
    assert_eq!(include(&deep(129)), Some(BadPointer::TooDeep(deep(129))));
    for pointer in ["/", "/a", "//", "/~0~1", "/-", "/caf\u{e9}", &deep(128)] {
        assert_eq!(include(pointer), None);
        assert_eq!(exclude(pointer), None);
    }
}

#[test]
fn selections_that_make_no_sense_are_refused() {
    let both = including(&["/a"]).exclude(&["/b"]).err();
    assert_eq!(both, Some(BadPointer::IncludeAndExclude));
    let both = excluding(&["/a"]).include(&["/b"]).err();
    assert_eq!(both, Some(BadPointer::IncludeAndExclude));
    let nothing = Recipe::canonical().include(&[]).err();
    assert_eq!(nothing, Some(BadPointer::NothingIncluded));
    let nothing = Recipe::canonical().exclude(&["/a", ""]).err();
    assert_eq!(nothing, Some(BadPointer::EverythingExcluded));
    assert_eq!(Recipe::raw().include(&["/a"]).err(), Some(BadPointer::RawBody));
    assert_eq!(Recipe::raw().exclude(&["/a"]).err(), Some(BadPointer::RawBody));
    let all = Recipe::canonical().exclude(&[]).expect("excluding nothing");
    assert_eq!(of(&all, r#"{"a":1}"#), of_body(JSON, r#"{"a":1}"#));
    assert!(all.include(&["/a"]).is_ok());
}
