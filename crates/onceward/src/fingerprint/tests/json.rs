//! JSON bodies.

use super::super::json::{DEPTH_MAX, NotCanonical, canonicalise};
use super::super::{Fingerprint, Recipe};
use super::{JSON, assert_distinct, assert_equal, of_body, post};

fn canonical(body: impl AsRef<[u8]>) -> Result<String, NotCanonical> {
    let mut out = b"before".to_vec();
    let result = canonicalise(body.as_ref(), None, &mut out);
    let written = String::from_utf8(out).expect("canonical JSON is UTF-8");
    let written = written.strip_prefix("before").expect("nothing is lost");
    if result.is_err() {
        assert_eq!(written, "", "a failure leaves something behind");
    }
    result.map(|()| written.to_owned())
}

/// The body has no canonical form, so it is equal to itself and to nothing
/// else: not with a space behind it, not to the same bytes taken raw.
#[track_caller]
fn assert_falls_back(reason: NotCanonical, body: impl AsRef<[u8]>) {
    let body = body.as_ref();
    assert_eq!(canonical(body), Err(reason));
    let fallback = of_body(JSON, body);
    assert_eq!(fallback, of_body(JSON, body));
    assert_ne!(fallback, of_body(JSON, [body, b" "].concat()));
    assert_ne!(fallback, raw(body));
}

fn raw(body: &[u8]) -> Fingerprint {
    Recipe::raw().fingerprint(&post(&[("content-type", JSON)]), body)
}

#[test]
fn white_space_does_not_matter() {
    assert_equal(
        JSON,
        &[r#"{"a":[1,2,{}],"b":null}"#, " {\r\n\t\"a\" : [ 1 , 2 , { } ] , \"b\" : null }\n"],
    );
    assert_distinct(JSON, &[r#"{"a":"x y"}"#, r#"{"a":"xy"}"#, r#"{"a ":"xy"}"#]);
}

#[test]
fn the_order_of_members_does_not_matter_at_any_depth() {
    assert_equal(
        JSON,
        &[
            r#"{"a":1,"b":[{"c":2,"d":{"e":3,"f":4}}],"g":5}"#,
            r#"{"g":5,"b":[{"d":{"f":4,"e":3},"c":2}],"a":1}"#,
            r#"{"b":[{"d":{"f":4,"e":3},"c":2}],"a":1,"g":5}"#,
        ],
    );
    assert_distinct(JSON, &[r#"{"a":1,"b":2}"#, r#"{"a":2,"b":1}"#]);
}

#[test]
fn the_order_of_array_elements_matters() {
    assert_distinct(JSON, &["[1,2]", "[2,1]", "[1,2,2]", "[[1],2]", "[1,[2]]"]);
    assert_equal(JSON, &["[1,2]", "[ 1, 2 ]"]);
}

#[test]
fn members_with_a_common_start_are_sorted_to_their_end() {
    let body = r#"{"customer_name":1,"customer_id":2,"customer":3,"customer_":4,"custom":5}"#;
    let sorted = r#"{"custom":5,"customer":3,"customer_":4,"customer_id":2,"customer_name":1}"#;
    assert_eq!(canonical(body), Ok(sorted.to_owned()));
}

#[test]
fn a_name_sorts_before_the_names_it_starts_even_with_a_null_character_next() {
    let body = r#"{"a\u0000b":1,"a\u0000":2,"a":3,"":4}"#;
    let sorted = r#"{"":4,"a":3,"a\u0000":2,"a\u0000b":1}"#;
    assert_eq!(canonical(body), Ok(sorted.to_owned()));
}

#[test]
fn names_are_sorted_by_utf_16_code_units() {
    // In UTF-16 U+1F602 begins with D83D, before FB33; in UTF-8 it is behind.
    let (face, dalet) = ("\u{1f602}", "\u{fb33}");
    let sorted = format!("{{\"z\":0,\"{face}\":1,\"{dalet}\":2}}");
    for body in [
        format!("{{\"{dalet}\":2,\"{face}\":1,\"z\":0}}"),
        format!("{{\"{face}\":1,\"z\":0,\"{dalet}\":2}}"),
        r#"{"\uFB33":2,"\ud83d\uDE02":1,"z":0}"#.to_owned(),
        sorted.clone(),
    ] {
        assert_eq!(canonical(&body).as_ref(), Ok(&sorted));
    }
}

#[test]
fn utf_16_order_holds_behind_the_first_eight_bytes_too() {
    let names = ["\u{d7ff}", "\u{10000}", "\u{10ffff}", "\u{e000}", "\u{ffff}"];
    let member = |name: &&str| format!("\"long enough {name}\":0");
    let sorted = format!("{{{}}}", names.iter().map(member).collect::<Vec<_>>().join(","));
    let reverse = names.iter().rev().map(member).collect::<Vec<_>>();
    let reverse = format!("{{{}}}", reverse.join(","));
    assert_eq!(canonical(reverse), Ok(sorted));
}

#[test]
fn names_are_sorted_by_what_they_mean_not_by_their_escapes() {
    // Written, a line feed begins with a backslash, which is behind `A`.
    let body = r#"{"A":1,"\n":2,"]":3,"\\":4,"\"":5,"!":6}"#;
    let sorted = r#"{"\n":2,"!":6,"\"":5,"A":1,"\\":4,"]":3}"#;
    assert_eq!(canonical(body), Ok(sorted.to_owned()));
}

#[test]
fn any_two_names_are_sorted_right_wherever_their_escapes_begin_to_differ() {
    let mut names = vec![String::new()];
    for length in 0..2 {
        let longest: Vec<String> =
            names.iter().filter(|name| name.len() == length).cloned().collect();
        for name in longest {
            names.extend(
                ['a', 'u', '"', '\\', '\n', '\u{1}', '\u{1f}'].map(|next| format!("{name}{next}")),
            );
        }
    }
    let utf_16 = |name: &str| name.encode_utf16().collect::<Vec<_>>();
    let written = |name: &str| serde_json::Value::from(name).to_string();
    for (one, other) in names.iter().flat_map(|one| names.iter().map(move |other| (one, other))) {
        if utf_16(one) >= utf_16(other) {
            continue;
        }
        for start in ["", "eight or more bytes", "eight or more \\\\\n\\"] {
            let (one, other) = (format!("{start}{one}"), format!("{start}{other}"));
            let sorted = format!("{{{}:1,{}:2}}", written(&one), written(&other));
            let reverse = format!("{{{}:2,{}:1}}", written(&other), written(&one));
            assert_eq!(canonical(&sorted).as_ref(), Ok(&sorted));
            assert_eq!(canonical(&reverse), Ok(sorted));
        }
    }
}

#[test]
fn the_way_a_character_is_escaped_does_not_matter() {
    assert_equal(JSON, &[r#""aA/\u00e9""#, r#""a\u0041\/\u00E9""#, "\"\\u0061A/\u{e9}\""]);
    assert_equal(JSON, &["\"\u{1f602}\"", r#""\ud83d\ude02""#, r#""\uD83D\uDE02""#]);
    assert_equal(JSON, &[r#""\b\t\n\f\r\"\\""#, r#""\u0008\u0009\u000A\u000c\u000d\u0022\u005C""#]);
    assert_distinct(JSON, &[r#""\n""#, r#""\\n""#, r#""n""#, r#""\r""#, r#""\\\n""#]);
    assert_distinct(JSON, &[r#""\u0000""#, r#""\u0001""#, r#""\u0010""#, r#""""#, r#""0""#]);
}

#[test]
fn strings_are_written_as_rfc_8785_says() {
    let body = r#""\u20ac\u000F\u001f\u007f\u2028\/\u0008\u0022""#;
    let expected = "\"\u{20ac}\\u000f\\u001f\u{7f}\u{2028}/\\b\\\"\"";
    assert_eq!(canonical(body), Ok(expected.to_owned()));
}

#[test]
fn strings_of_every_length_are_copied_whole() {
    for length in 0..40 {
        let text: String = ('a'..='z').cycle().take(length).collect();
        let plain = format!("{{\"{text}\":\"{text}\"}}");
        assert_eq!(canonical(&plain), Ok(plain));
        let escaped = format!("[\"{text}\\n{text}\\u00e9{text}\"]");
        let expected = format!("[\"{text}\\n{text}\u{e9}{text}\"]");
        assert_eq!(canonical(&escaped), Ok(expected));
        let control = format!("\"{text}\u{1f}{text}\"");
        assert_eq!(canonical(&control), Err(NotCanonical::Syntax));
    }
}

#[test]
fn text_is_not_normalised() {
    assert_distinct(JSON, &["\"\u{e5}\"", "\"a\u{30a}\"", "\"\u{212b}\""]);
    assert_equal(JSON, &["\"a\u{30a}\"", r#""a\u030a""#]);
}

#[test]
fn the_spelling_of_a_number_does_not_matter() {
    assert_equal(JSON, &["1", "1.0", "1.000", "10e-1", "0.1e1", "1E0", "1e+0", "1e-0", "0.01e002"]);
    assert_equal(JSON, &["0", "-0", "0.0", "-0.00", "0e7", "-0E-7", "0.000e+3"]);
    assert_equal(JSON, &["-12.50", "-12.5", "-1250e-2", "-0.125E+2", "-125e-1"]);
    assert_equal(JSON, &["100", "1e2", "1.00e2", "100.0", "10000e-2"]);
    assert_equal(JSON, &["0.002", "2e-3", "0.2e-2", "20.0e-4"]);
    assert_distinct(JSON, &["1", "-1", "10", "0.1", "11", "1.01", "0", "\"1\"", "true", "[1]"]);
}

#[test]
fn numbers_are_written_as_digits_and_a_power_of_ten() {
    for (body, expected) in [
        ("0", "0"),
        ("-0.0e5", "0"),
        ("120", "12e1"),
        ("-12.50", "-125e-1"),
        ("0.0012", "12e-4"),
        ("10.01", "1001e-2"),
        ("1000000e-6", "1"),
        ("1e-9223372036854775808", "1e-9223372036854775808"),
    ] {
        assert_eq!(canonical(body), Ok(expected.to_owned()), "{body}");
    }
}

#[test]
fn two_to_the_53_and_its_successor_differ() {
    assert_distinct(JSON, &["9007199254740992", "9007199254740993"]);
    assert_equal(JSON, &["9007199254740993", "9007199254740993.0"]);
}

#[test]
fn digits_that_a_double_would_lose_still_count() {
    assert_distinct(JSON, &["0.1", "0.10000000000000000555", "0.1000000000000000055"]);
    assert_distinct(JSON, &["123456789012345678901234567890", "123456789012345678901234567891"]);
    assert_equal(JSON, &["0.10000000000000000555", "10000000000000000555e-20"]);
}

#[test]
fn numbers_beyond_doubles_differ() {
    assert_distinct(JSON, &["1e400", "1e401", "-1e400", "1e-400", "0", "1e308"]);
    assert_equal(JSON, &["1e400", "10e399", "0.1e401"]);
}

#[test]
fn an_exponent_that_overflows_falls_back() {
    for body in [
        "1e9223372036854775808",
        "1e-9223372036854775809",
        "10e9223372036854775807",
        "0.1e-9223372036854775808",
        "0e99999999999999999999",
        "[1e99999999999999999999999999999999]",
    ] {
        assert_falls_back(NotCanonical::ExponentTooLarge, body);
    }
    assert_equal(JSON, &["1e9223372036854775807", "1E+0009223372036854775807"]);
    assert_equal(JSON, &["0", "0e9223372036854775807", "-0.00e-9223372036854775808"]);
}

#[test]
fn values_of_different_kinds_differ() {
    assert_distinct(
        JSON,
        &[
            "null",
            "false",
            "true",
            "0",
            "\"\"",
            "[]",
            "{}",
            "\"null\"",
            "[null]",
            "[[]]",
            "[{}]",
            r#"{"":null}"#,
            "{\"a\":null}",
            "{\"a\":{}}",
            "{\"a\":[]}",
        ],
    );
    assert_equal(JSON, &["null", " null "]);
}

#[test]
fn a_string_cannot_pretend_to_be_two_members() {
    assert_distinct(JSON, &[r#"{"a":"b\",\"c\":\"d"}"#, r#"{"a":"b","c":"d"}"#]);
    assert_distinct(JSON, &[r#"["a,b"]"#, r#"["a","b"]"#, r#"["a\",\"b"]"#]);
}

#[test]
fn duplicate_names_fall_back() {
    for body in [
        r#"{"a":1,"a":1}"#,
        r#"{"a":1,"b":2,"a":3}"#,
        r#"{"b":1,"c":2,"a":3,"c":4}"#,
        r#"[{"x":{"a":1,"a":2}}]"#,
        r#"{"a":1,"\u0061":2}"#,
        r#"{"\n":1,"\u000a":2}"#,
        r#"{"":1,"":2}"#,
        "{\"\u{1f602}\":1,\"x\":2,\"\\ud83d\\ude02\":3}",
    ] {
        assert_falls_back(NotCanonical::DuplicateName, body);
    }
    // Equal names in different objects are no duplicates.
    assert_equal(JSON, &[r#"{"a":{"a":1},"b":{"a":1}}"#, r#"{"b":{"a":1},"a":{"a":1}}"#]);
    // Which of the two counts is for the reader, so all of them differ.
    assert_distinct(JSON, &[r#"{"a":1,"a":2}"#, r#"{"a":2,"a":1}"#, r#"{"a":1}"#, r#"{"a":2}"#]);
}

#[test]
fn half_a_surrogate_pair_falls_back() {
    for body in [
        r#""\ud83d""#,
        r#""\ude02""#,
        r#""\ud83dx""#,
        r#""\ud83d\n""#,
        r#""\ud83d\ud83d""#,
        r#""\ude02\ud83d""#,
        r#""\ud83d\u0041""#,
        r#"{"\udfff":1}"#,
    ] {
        assert_falls_back(NotCanonical::LoneSurrogate, body);
    }
    assert_equal(JSON, &[r#""\ud800\udc00""#, "\"\u{10000}\""]);
    assert_equal(JSON, &[r#""\udbff\udfff""#, "\"\u{10ffff}\""]);
}

#[test]
fn what_is_not_utf_8_falls_back() {
    for body in
        [&b"\"\xff\""[..], b"\"\xc3\"", b"\"\xed\xa0\x80\"", b"\"\xc0\xaf\"", b"\xfe\xff\0{\0}"]
    {
        assert_falls_back(NotCanonical::NotUtf8, body);
    }
    assert_equal(JSON, &["\"\u{e9}\"", r#""\u00e9""#]);
}

#[test]
fn what_is_not_json_falls_back() {
    let invalid = "\u{feff}{}| |{|[|}|]|[1|[1,|[1,]|[,1]|[1 2]|[1}|{\"a\"}|{\"a\":}|{\"a\":1,}|{\"a\":1]\
        |{a:1}|{'a':1}|{\"a\" 1}|{\"a\":1 \"b\":2}|{,}|{1:2}|01|-01|00|-|+1|.5|1.|1.e5|1e|1e+|1e1.5\
        |0x10|1_000|NaN|Infinity|-Infinity|nul|nullx|tru|True|truefalse|\"|\"a|\"\\|\"\\x\"|\"\\u12\"\
        |\"\\u12g4\"|\"\\u+123\"|\"\\ud83d\\u12\"|\"a\nb\"|\"\t\"|\"\u{0}\"|\"\u{1f}\"|{} {}|{}x|1 2|{}\u{0}\
        |//c\n{}|[1]/**/|\u{a0}{}|\u{c}{}|\u{b}1";
    for body in invalid.split('|') {
        assert_falls_back(NotCanonical::Syntax, body);
    }
    for body in ["{}", "[1]", "\"a\"", "-0.5e+5", "true", "\u{20}\t\r\n1"] {
        assert!(canonical(body).is_ok(), "{body:?}");
    }
}

#[test]
fn nesting_beyond_128_falls_back_and_does_not_overflow_the_stack() {
    let arrays = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    let objects = |depth: usize| "{\"a\":".repeat(depth) + "1" + &"}".repeat(depth);
    for nested in [arrays(DEPTH_MAX), objects(DEPTH_MAX)] {
        assert_equal(JSON, &[&nested, &format!(" {nested} ")]);
    }
    for depth in [DEPTH_MAX + 1, 100_000] {
        assert_falls_back(NotCanonical::TooDeep, arrays(depth));
        assert_falls_back(NotCanonical::TooDeep, objects(depth));
        assert_falls_back(NotCanonical::TooDeep, "[".repeat(depth));
    }
    // Width is not depth.
    let wide = "[[],[]".to_owned() + &",[]".repeat(1000) + "]";
    assert!(canonical(&wide).is_ok());
}

#[test]
fn the_canonical_form_is_its_own_canonical_form() {
    let body = r#" {"b":[1.50,-0,{"z":"\u00e9\n","\u0000":1e-7}],"a":{"y":null,"x":true}} "#;
    let once = canonical(body).expect("valid JSON");
    assert_eq!(canonical(&once), Ok(once.clone()));
    assert_equal(JSON, &[body, &once]);
}

#[test]
fn bytes_taken_raw_cannot_pretend_to_be_canonical() {
    let body = r#"{"a":1}"#;
    assert_eq!(canonical(body).as_deref(), Ok(body));
    assert_ne!(of_body(JSON, body), raw(body.as_bytes()));
    assert_eq!(raw(body.as_bytes()), raw(body.as_bytes()));
    assert_ne!(raw(body.as_bytes()), raw(br#"{"a": 1}"#));
}

#[test]
fn an_empty_body_is_no_json_and_equals_only_an_empty_body() {
    assert_equal(JSON, &["", ""]);
    assert_distinct(JSON, &["", " ", "null", "\"\"", "{}"]);
    assert_eq!(of_body(JSON, ""), raw(b""));
}
