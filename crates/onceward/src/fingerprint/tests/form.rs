//! Bodies of HTML forms.

use super::super::Recipe;
use super::{FORM, assert_distinct, assert_equal, of_body, post};

/// Reordering the pairs of a body with no canonical form is seen, and so is
/// reading it as bytes on purpose.
#[track_caller]
fn assert_falls_back(body: &str) {
    let behind = format!("{body}&z=1");
    let before = format!("z=1&{body}");
    assert_distinct(FORM, &[body, &behind, &before]);
    let raw = Recipe::raw().fingerprint(&post(&[("content-type", FORM)]), body.as_bytes());
    assert_ne!(of_body(FORM, body), raw);
    assert_equal(FORM, &[body, body]);
}

#[test]
fn the_order_of_different_names_does_not_matter() {
    assert_equal(FORM, &["a=1&b=2&c=3", "c=3&a=1&b=2", "b=2&c=3&a=1"]);
    assert_equal(FORM, &["card[number]=42&card[cvc]=1", "card[cvc]=1&card[number]=42"]);
    assert_distinct(FORM, &["a=1&b=2", "a=2&b=1", "a=1", "a=1&b=2&b=2"]);
}

#[test]
fn the_order_of_equal_names_matters() {
    assert_distinct(FORM, &["a=1&a=2", "a=2&a=1"]);
    assert_equal(FORM, &["a=1&b=0&a=2", "a=1&a=2&b=0", "b=0&a=1&a=2"]);
}

#[test]
fn the_order_of_equal_names_is_kept_in_long_bodies() {
    let pairs: Vec<String> = (0..100).map(|i| format!("n{}={i}", i % 3)).collect();
    let in_order = pairs.join("&");
    let mut grouped = pairs.clone();
    grouped.sort_by_key(|pair| pair.split('=').next().map(str::to_owned));
    assert_equal(FORM, &[&in_order, &grouped.join("&")]);
    let mut swapped = pairs;
    swapped.swap(30, 33);
    assert_distinct(FORM, &[&in_order, &swapped.join("&")]);
}

#[test]
fn the_way_a_byte_is_encoded_does_not_matter() {
    assert_equal(FORM, &["a=x+y", "a=x%20y", "%61=%78+%79"]);
    assert_equal(FORM, &["a=%c3%a9", "a=%C3%A9", "a=\u{e9}"]);
    assert_distinct(FORM, &["a=x+y", "a=x%2By", "a=xy", "a=x%2520y"]);
    assert_distinct(FORM, &["a=%ff", "a=%fe", "a=%00", "a="]);
}

#[test]
fn a_name_without_equals_sign_differs_from_an_empty_value() {
    assert_distinct(FORM, &["a", "a=", "a=a", "=a", "=", "a=="]);
    assert_equal(FORM, &["a&b=", "b=&a"]);
}

#[test]
fn no_pair_is_dropped() {
    assert_distinct(FORM, &["a=1", "a=1&", "a=1&&", "a=1&=", "&", "&&", "=&", "&="]);
    assert_equal(FORM, &["a=1&", "&a=1"]);
    assert_equal(FORM, &["a=1&&", "&a=1&"]);
}

#[test]
fn encoded_delimiters_do_not_delimit() {
    assert_distinct(FORM, &["a=b&c=d", "a=b%26c%3Dd", "a%3Db=&c=d", "a=b%26c"]);
    assert_distinct(FORM, &["ab=c", "a=bc", "abc=", "abc"]);
    // Bytes that look like the lengths between the pairs.
    let forged = "a=1%01%00%00%00%00%00%00%00%01b%00%00%00%00%00%00%00%012";
    assert_distinct(FORM, &["a=1&b=2", forged]);
    assert_equal(FORM, &["a=b%26c%3Dd", "a=b%26c=d"]);
}

#[test]
fn malformed_escapes_fall_back() {
    for body in ["a=%", "a=%2", "a=%zz", "a=%2g", "%=1", "a=%%20", "a=%+1"] {
        assert_falls_back(body);
    }
    assert_equal(FORM, &["a=%25&b", "b&a=%25"]);
}

#[test]
fn names_whose_meaning_depends_on_their_place_fall_back() {
    assert_falls_back("item[][name]=x&item[][price]=1");
    assert_falls_back("tags[]=a");
    assert_falls_back("tags%5B%5D=a");
    assert_falls_back("tags%5b]=a");
    assert_equal(FORM, &["note=[]&b=1", "b=1&note=[]"]);
}

#[test]
fn a_semicolon_that_may_separate_pairs_falls_back() {
    assert_falls_back("a=1;b=2");
    assert_equal(FORM, &["a=1%3Bb=2&c", "c&a=1%3bb=2"]);
}

#[test]
fn an_empty_form_equals_only_an_empty_form() {
    assert_equal(FORM, &["", ""]);
    assert_distinct(FORM, &["", "=", "&", "a"]);
}
