//! Random documents, their canonical form written simply, and any other way
//! to write them.

use std::fmt::Write as _;

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use serde_json::Value;

#[derive(Clone, Debug)]
pub(super) enum Document {
    Null,
    Bool(bool),
    /// The digits have no zero at either end; none at all is zero.
    Number {
        negative: bool,
        digits: String,
        exponent: i64,
    },
    Text(String),
    Array(Vec<Document>),
    Object(Vec<(String, Document)>),
}

fn random_text(rng: &mut StdRng) -> String {
    const CHARS: &[char] = &[
        'a',
        'b',
        'c',
        'z',
        'A',
        '0',
        ' ',
        '/',
        '"',
        '\\',
        '\n',
        '\u{0}',
        '\u{8}',
        '\u{1f}',
        '\u{7f}',
        '\u{80}',
        '\u{e9}',
        '\u{20ac}',
        '\u{2028}',
        '\u{d7ff}',
        '\u{e000}',
        '\u{fb33}',
        '\u{ffff}',
        '\u{10000}',
        '\u{1f602}',
        '\u{10ffff}',
    ];
    // Small alphabets make names with long common starts.
    let alphabet = CHARS.len().min(rng.random_range(2..40));
    let start = rng.random_range(0..=CHARS.len() - alphabet);
    let chars = CHARS.iter().skip(start).take(alphabet);
    let chars: Vec<char> = chars.copied().collect();
    let length = rng.random_range(0..14);
    (0..length).filter_map(|_| chars.choose(rng)).collect()
}

fn random_number(rng: &mut StdRng) -> Document {
    let length = rng.random_range(0..24);
    let digits: String = (0..length).map(|_| char::from(b'0' + rng.random_range(0..10))).collect();
    let digits = digits.trim_matches('0').to_owned();
    Document::Number {
        negative: !digits.is_empty() && rng.random_bool(0.3),
        exponent: match digits.is_empty() {
            true => 0,
            false => rng.random_range(-25..25),
        },
        digits,
    }
}

pub(super) fn random_document(rng: &mut StdRng, depth: usize) -> Document {
    let kinds = if depth == 0 { 4 } else { 8 };
    match rng.random_range(0..kinds) {
        0 => Document::Null,
        1 => Document::Bool(rng.random()),
        2 => random_number(rng),
        3 => Document::Text(random_text(rng)),
        4 => {
            let length = rng.random_range(0..5);
            Document::Array((0..length).map(|_| random_document(rng, depth - 1)).collect())
        }
        _ => {
            let mut members: Vec<(String, Document)> = Vec::new();
            for _ in 0..rng.random_range(0..40_usize).saturating_sub(10) {
                let name = random_text(rng);
                if members.iter().all(|(known, _)| *known != name) {
                    members.push((name, random_document(rng, depth / 2)));
                }
            }
            Document::Object(members)
        }
    }
}

/// The canonical form, written as simply as possible.
pub(super) fn reference(document: &Document, out: &mut String) {
    match document {
        Document::Null => out.push_str("null"),
        Document::Bool(value) => out.push_str(&value.to_string()),
        Document::Number { digits, .. } if digits.is_empty() => out.push('0'),
        Document::Number { negative, digits, exponent } => {
            out.push_str(if *negative { "-" } else { "" });
            out.push_str(digits);
            if *exponent != 0 {
                let _ = write!(out, "e{exponent}");
            }
        }
        // serde_json escapes as RFC 8785 does.
        Document::Text(text) => out.push_str(&Value::from(text.as_str()).to_string()),
        Document::Array(elements) => {
            out.push('[');
            for (index, element) in elements.iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                reference(element, out);
            }
            out.push(']');
        }
        Document::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(name, _)| name.encode_utf16().collect::<Vec<_>>());
            out.push('{');
            for (index, (name, value)) in members.into_iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                out.push_str(&Value::from(name.as_str()).to_string());
                out.push(':');
                reference(value, out);
            }
            out.push('}');
        }
    }
}

/// Any of the ways to write the document.
pub(super) fn spell(document: &Document, rng: &mut StdRng, out: &mut String) {
    spell_space(rng, out);
    match document {
        Document::Null => out.push_str("null"),
        Document::Bool(value) => out.push_str(&value.to_string()),
        Document::Number { negative, digits, exponent } => {
            spell_number(*negative, digits, *exponent, rng, out)
        }
        Document::Text(text) => spell_text(text, rng, out),
        Document::Array(elements) => {
            out.push('[');
            for (index, element) in elements.iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                spell(element, rng, out);
            }
            spell_space(rng, out);
            out.push(']');
        }
        Document::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.shuffle(rng);
            out.push('{');
            for (index, (name, value)) in members.into_iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                spell_space(rng, out);
                spell_text(name, rng, out);
                spell_space(rng, out);
                out.push(':');
                spell(value, rng, out);
            }
            spell_space(rng, out);
            out.push('}');
        }
    }
    spell_space(rng, out);
}

fn spell_space(rng: &mut StdRng, out: &mut String) {
    while rng.random_bool(0.1) {
        out.push(*[' ', '\t', '\n', '\r'].choose(rng).unwrap_or(&' '));
    }
}

fn spell_number(negative: bool, digits: &str, exponent: i64, rng: &mut StdRng, out: &mut String) {
    let zeros = rng.random_range(0..3);
    let mut digits = format!("{digits}{}", "0".repeat(zeros));
    let fraction = match rng.random_bool(0.5) {
        true => rng.random_range(1..30),
        false => 0,
    };
    // At least one digit stays before the point.
    while digits.len() <= fraction {
        digits.insert(0, '0');
    }
    let (whole, fraction) = digits.split_at(digits.len() - fraction);
    let sign =
        if negative || (digits.trim_matches('0').is_empty() && rng.random()) { "-" } else { "" };
    let whole = match whole.trim_start_matches('0') {
        "" => "0",
        whole => whole,
    };
    let _ = write!(out, "{sign}{whole}");
    if !fraction.is_empty() {
        let _ = write!(out, ".{fraction}");
    }
    let exponent = exponent - zeros as i64 + fraction.len() as i64;
    if exponent != 0 || rng.random_bool(0.2) {
        out.push(if rng.random() { 'e' } else { 'E' });
        out.push_str(match exponent {
            ..0 => "-",
            _ if rng.random() => "+",
            _ => "",
        });
        let zeros = "0".repeat(rng.random_range(0..3));
        let _ = write!(out, "{zeros}{}", exponent.abs());
    }
}

fn spell_text(text: &str, rng: &mut StdRng, out: &mut String) {
    out.push('"');
    for decoded in text.chars() {
        let short = match decoded {
            '"' => Some("\\\""),
            '\\' => Some("\\\\"),
            '/' => Some("\\/"),
            '\u{8}' => Some("\\b"),
            '\u{c}' => Some("\\f"),
            '\n' => Some("\\n"),
            '\r' => Some("\\r"),
            '\t' => Some("\\t"),
            _ => None,
        };
        let must_escape = matches!(decoded, '"' | '\\' | '\0'..' ');
        match short {
            Some(short) if rng.random() => out.push_str(short),
            _ if must_escape || rng.random_bool(0.2) => {
                for unit in decoded.encode_utf16(&mut [0; 2]) {
                    let _ = match rng.random() {
                        true => write!(out, "\\u{unit:04x}"),
                        false => write!(out, "\\u{unit:04X}"),
                    };
                }
            }
            _ => out.push(decoded),
        }
    }
    out.push('"');
}
