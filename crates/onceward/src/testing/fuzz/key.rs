//! Reading the key.

use http::{HeaderMap, HeaderValue};

use crate::key::{Emails, IDEMPOTENCY_KEY, InvalidKey, Key, KeyRules, Syntax};

/// Takes `data` as the lines of a header section's `Idempotency-Key`, separated by `\n`; no bytes
/// mean no line.
///
/// Only an absent field is absent. Two lines are refused. A key that is read keeps to the rules, is
/// the same in its quoted and its bare form, and what strict rules read, lenient ones read alike.
///
/// # Panics
/// When that is not so.
pub fn key_header(data: &[u8]) {
    let lines: Vec<&[u8]> = match data {
        [] => Vec::new(),
        _ => data.split(|byte| *byte == b'\n').collect(),
    };
    let Some(headers) = headers(&lines) else { return };
    for emails in [Emails::Count, Emails::Reject] {
        for len_min in [1, 16] {
            let lenient = KeyRules { len_min, emails, ..KeyRules::default() };
            let strict = KeyRules { syntax: Syntax::Strict, ..lenient.clone() };
            let (leniently, strictly) = (lenient.read(&headers), strict.read(&headers));
            match lines.len() {
                0 => assert_eq!((&leniently, &strictly), (&Ok(None), &Ok(None))),
                1 => {
                    assert_ne!(leniently, Ok(None), "a field that is there is never absent");
                    assert_ne!(strictly, Ok(None), "a field that is there is never absent");
                }
                _ => assert_eq!(leniently, Err(InvalidKey::Repeated)),
            }
            match strictly {
                Err(InvalidKey::NotQuoted) => {}
                _ => assert_eq!(strictly, leniently, "strict rules know no other quoted form"),
            }
            if let Ok(Some(key)) = leniently {
                keeps_to(&lenient, &key);
                in_all_forms(&lenient, &strict, &key);
            }
        }
    }
}

/// Takes `data` as what follows the opening quote of a structured-field string, and as text that is
/// to be quoted.
///
/// The reader agrees with the algorithm of RFC 9651, 4.2.5, on the string and where it ends, and
/// reads back all text that can be quoted.
///
/// # Panics
/// When that is not so.
pub fn quoted_string(data: &[u8]) {
    let rules = KeyRules { syntax: Syntax::Strict, len_min: 1, ..KeyRules::default() };
    if let Some(headers) = headers(&[&[b"\"", data].concat()]) {
        let read = rules.read(&headers);
        // White space at the end of a field belongs to no value.
        let data = data.trim_ascii_end();
        match (string(data), read) {
            (_, Ok(None)) => panic!("a field that is there is never absent"),
            (None, Ok(Some(_))) => panic!("a damaged string was read"),
            (Some((text, _)), Ok(Some(key))) => {
                assert_eq!(key.as_str(), text);
                keeps_to(&rules, &key);
            }
            (Some((text, [])), Err(refused)) => match text.len() {
                0 => assert_eq!(refused, InvalidKey::Empty),
                256.. => assert_eq!(refused, InvalidKey::TooLong { max: 255 }),
                _ => panic!("a well-formed string was refused: {refused}"),
            },
            (_, Err(_)) => {}
        }
    }
    let text: String = data.iter().take(255).map(|byte| char::from(byte % 0x5f + b' ')).collect();
    if let Ok(key) = Key::new(text) {
        let headers = headers(&[quoted(&key).as_bytes()]).expect("printable ASCII");
        assert_eq!(rules.read(&headers), Ok(Some(key)));
    }
}

fn headers(lines: &[&[u8]]) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    for line in lines {
        headers.append(&IDEMPOTENCY_KEY, HeaderValue::from_bytes(line).ok()?);
    }
    Some(headers)
}

fn keeps_to(rules: &KeyRules, key: &Key) {
    let text = key.as_str();
    assert!((rules.len_min..=rules.len_max).contains(&text.len()));
    assert_eq!(Key::new(text).as_ref(), Ok(key), "stores would refuse it");
    assert!(rules.emails == Emails::Count || !key.looks_like_email());
}

/// Quoted, bare where that can be, and with white space around it, a key is the same.
fn in_all_forms(lenient: &KeyRules, strict: &KeyRules, key: &Key) {
    let quoted = quoted(key);
    for form in [quoted.clone(), format!(" \t{quoted}\t "), format!("{quoted};a;b=\"c\"")] {
        let headers = headers(&[form.as_bytes()]).expect("printable ASCII");
        assert_eq!(strict.read(&headers).as_ref(), Ok(&Some(key.clone())));
        assert_eq!(lenient.read(&headers).as_ref(), Ok(&Some(key.clone())));
    }
    let headers = headers(&[key.as_str().as_bytes()]).expect("printable ASCII");
    assert_ne!(strict.read(&headers).as_ref(), Ok(&Some(key.clone())), "strict means quoted");
    let safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/+=@#$!*&%".contains(&byte);
    let bare = lenient.read(&headers);
    assert_eq!(bare == Ok(Some(key.clone())), key.as_str().bytes().all(safe));
}

fn quoted(key: &Key) -> String {
    format!("\"{}\"", key.as_str().replace('\\', "\\\\").replace('"', "\\\""))
}

/// RFC 9651, 4.2.5, from behind the opening quote: the text, and what follows the closing quote.
fn string(mut input: &[u8]) -> Option<(String, &[u8])> {
    let mut text = String::new();
    loop {
        let (first, rest) = input.split_first()?;
        input = rest;
        match first {
            b'\\' => {
                let (next, rest) = input.split_first()?;
                if !matches!(next, b'"' | b'\\') {
                    return None;
                }
                text.push(char::from(*next));
                input = rest;
            }
            b'"' => return Some((text, input)),
            0x00..=0x1f | 0x7f.. => return None,
            _ => text.push(char::from(*first)),
        }
    }
}
