use http::{HeaderMap, HeaderValue};

use super::*;

fn headers(lines: &[&[u8]]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines {
        headers.append(&IDEMPOTENCY_KEY, HeaderValue::from_bytes(line).expect("a header value"));
    }
    headers
}

fn any_length(syntax: Syntax) -> KeyRules {
    KeyRules { syntax, len_min: 1, ..KeyRules::default() }
}

fn read(line: &str) -> Result<String, InvalidKey> {
    let rules = any_length(Syntax::Lenient);
    Ok(rules.read(&headers(&[line.as_bytes()]))?.expect("a key").as_str().to_owned())
}

fn read_strict(line: &str) -> Result<String, InvalidKey> {
    let rules = any_length(Syntax::Strict);
    Ok(rules.read(&headers(&[line.as_bytes()]))?.expect("a key").as_str().to_owned())
}

#[test]
fn quoted_and_bare_keys_are_one_identity() {
    assert_eq!(read("\"abc\""), read("abc"));
    assert_eq!(read("abc").as_deref(), Ok("abc"));
    assert_ne!(read("\"abd\""), read("abc"));
}

#[test]
fn keys_are_compared_case_sensitively() {
    assert_ne!(read("ABC"), read("abc"));
}

#[test]
fn an_absent_header_is_no_key_and_not_an_error() {
    assert_eq!(KeyRules::default().read(&HeaderMap::new()), Ok(None));
}

#[test]
fn two_header_lines_are_refused_even_when_equal() {
    let rules = any_length(Syntax::Lenient);
    assert_eq!(rules.read(&headers(&[b"abc", b"abc"])), Err(InvalidKey::Repeated));
    assert_eq!(rules.read(&headers(&[b"\"foo", b"bar\""])), Err(InvalidKey::Repeated));
    assert!(rules.read(&headers(&[b"abc"])).is_ok());
}

#[test]
fn two_lines_joined_by_a_proxy_are_refused() {
    assert_eq!(read("abc, abc"), Err(InvalidKey::Characters));
    assert_eq!(read("abc,abc"), Err(InvalidKey::Characters));
    assert_eq!(read("\"abc\", \"abc\""), Err(InvalidKey::Malformed));
}

#[test]
fn whitespace_around_a_key_does_not_count() {
    assert_eq!(read("  abc\t").as_deref(), Ok("abc"));
    assert_eq!(read(" \"abc\" ").as_deref(), Ok("abc"));
    assert_eq!(read("\" abc \"").as_deref(), Ok(" abc "), "inside the quotes it does");
}

#[test]
fn an_empty_key_is_refused_in_every_form() {
    for empty in ["", "  ", "\t", "\"\""] {
        assert_eq!(read(empty), Err(InvalidKey::Empty), "{empty:?}");
    }
}

#[test]
fn every_byte_inside_quotes_is_accepted_or_refused_as_rfc_9651_says() {
    for byte in 0_u8..=255 {
        let line = [b"\" ", &[byte][..], b" \""].concat();
        // The HTTP layer refuses control characters before we could see them.
        let Ok(value) = HeaderValue::from_bytes(&line) else {
            assert!(byte < 0x20 || byte == 0x7f);
            continue;
        };
        let result = any_length(Syntax::Strict).parse(&value);
        let literal = (0x20..=0x7e).contains(&byte) && byte != b'"' && byte != b'\\';
        assert_eq!(result.is_ok(), literal, "byte {byte:#04x}: {result:?}");
    }
}

#[test]
fn only_quote_and_backslash_can_be_escaped() {
    for byte in 0x20_u8..=0x7e {
        let line = [b"\"a\\", &[byte][..], b"b\""].concat();
        let value = HeaderValue::from_bytes(&line).expect("a header value");
        let result = any_length(Syntax::Strict).parse(&value);
        match byte {
            b'"' => assert_eq!(result.expect("escaped quote").as_str(), "a\"b"),
            b'\\' => assert_eq!(result.expect("escaped backslash").as_str(), "a\\b"),
            _ => assert_eq!(result, Err(InvalidKey::Malformed), "byte {byte:#04x}"),
        }
    }
}

#[test]
fn an_unfinished_quoted_key_never_falls_back_to_a_bare_one() {
    for broken in ["\"abc", "\"", "\"abc\\", "\"abc\\\"", "\"abc\"def", "\"abc\" def"] {
        assert_eq!(read(broken), Err(InvalidKey::Malformed), "{broken}");
    }
}

#[test]
fn a_bare_key_has_a_safe_alphabet() {
    for good in ["550e8400-e29b-41d4-a716-446655440000", "a.b_c~d:e/f+g=h@i#j$k!l*m&n%o"] {
        assert_eq!(read(good).as_deref(), Ok(good));
    }
    for bad in ["a b", "a;b", "a,b", "a\\b", "a\"b", "'abc'", "a\tb", "(abc)", "a|b"] {
        assert_eq!(read(bad), Err(InvalidKey::Characters), "{bad}");
    }
    let not_ascii = any_length(Syntax::Lenient).read(&headers(&["k\u{e9}y".as_bytes()]));
    assert_eq!(not_ascii, Err(InvalidKey::Characters));
}

#[test]
fn strict_syntax_takes_quoted_strings_only() {
    assert_eq!(read_strict("\"abc\"").as_deref(), Ok("abc"));
    for other_item in ["abc", "1", "-1.5", "?1", ":aGk=:", "@12345", "%\"a\""] {
        assert_eq!(read_strict(other_item), Err(InvalidKey::NotQuoted), "{other_item}");
    }
}

#[test]
fn parameters_are_parsed_and_are_not_part_of_the_key() {
    for line in ["\"abc\";a", "\"abc\"; a=1;b=\"x;\\\"y\"", "\"abc\";*q=tok", "\"abc\";a=?1"] {
        assert_eq!(read(line).as_deref(), Ok("abc"), "{line}");
    }
    for broken in
        ["\"abc\";", "\"abc\";A=1", "\"abc\";a=", "\"abc\";a=\"x", "\"abc\";1a", "\"abc\" ;a"]
    {
        assert_eq!(read(broken), Err(InvalidKey::Malformed), "{broken}");
    }
}

#[test]
fn length_is_counted_after_decoding() {
    let rules = KeyRules::default();
    let read = |line: String| rules.read(&headers(&[line.as_bytes()])).map(|key| key.is_some());
    assert_eq!(read("a".repeat(15)), Err(InvalidKey::TooShort { min: 16 }));
    assert_eq!(read("a".repeat(16)), Ok(true));
    assert_eq!(read(format!("\"{}\"", "a".repeat(15))), Err(InvalidKey::TooShort { min: 16 }));
    assert_eq!(read(format!("\"{}\"", "a".repeat(255))), Ok(true));
    assert_eq!(read("a".repeat(255)), Ok(true));
    assert_eq!(read("a".repeat(256)), Err(InvalidKey::TooLong { max: 255 }));
    assert_eq!(read(format!("\"{}\"", "\\\\".repeat(255))), Ok(true), "255 after decoding");
}

#[test]
fn the_bounds_of_the_length_can_be_set_and_never_above_255() {
    let read = |len_min, len_max, len: usize| {
        let rules = KeyRules { len_min, len_max, ..KeyRules::default() };
        rules.read(&headers(&["a".repeat(len).as_bytes()])).map(|key| key.is_some())
    };
    assert_eq!(read(1, 100, 1), Ok(true));
    assert_eq!(read(1, 100, 100), Ok(true));
    assert_eq!(read(1, 100, 101), Err(InvalidKey::TooLong { max: 100 }));
    assert_eq!(read(20, 100, 19), Err(InvalidKey::TooShort { min: 20 }));
    assert_eq!(read(0, 1000, 255), Ok(true));
    assert_eq!(read(0, 1000, 256), Err(InvalidKey::TooLong { max: 255 }));
}

#[test]
fn an_email_address_is_accepted_or_refused_by_rule() {
    let count = KeyRules::default();
    let reject = KeyRules { emails: Emails::Reject, ..KeyRules::default() };
    let email = headers(&[b"jane.doe+pay@mail.example.com"]);
    assert!(count.read(&email).is_ok());
    assert_eq!(reject.read(&email), Err(InvalidKey::Email));
    let not_email = headers(&[b"order@2024-11-03:0017"]);
    assert!(reject.read(&not_email).is_ok());
}

#[test]
fn debug_output_never_shows_the_key() {
    let key = Key::new("super-secret-key-value").expect("a key");
    let shown = format!("{key:?}");
    assert!(!shown.contains("secret"), "{shown}");
    assert_eq!(shown, format!("{:?}", Key::new("super-secret-key-value").expect("a key")));
    assert_ne!(shown, format!("{:?}", Key::new("super-secret-key-valuf").expect("a key")));
}
