//! Random documents in random spellings, against a slow and simple writer;
//! and random damage, against serde_json.
//!
//! A failure names its seed; `ONCEWARD_SEED` repeats it, `ONCEWARD_ROUNDS`
//! sets how long to try.

mod document;

use rand::rngs::StdRng;
use rand::seq::{IndexedMutRandom, IndexedRandom};
use rand::{RngExt, SeedableRng};
use serde_json::Value;

use super::super::json::{NotCanonical, canonicalise};
use super::super::pointer::{Selection, Sense};
use super::{JSON, of_body};
use document::{Document, random_document, reference, spell};

fn from_env<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

fn rounds(ordinary: u32) -> u32 {
    from_env("ONCEWARD_ROUNDS").unwrap_or(ordinary)
}

fn seed() -> u64 {
    let seed = from_env("ONCEWARD_SEED").unwrap_or_else(rand::random);
    println!("ONCEWARD_SEED={seed}");
    seed
}

fn canonical(body: &[u8]) -> Result<Vec<u8>, NotCanonical> {
    let mut out = Vec::new();
    canonicalise(body, None, &mut out).map(|()| out)
}

/// Changes one thing in the document.
fn mutate(document: &mut Document, rng: &mut StdRng) {
    match document {
        Document::Array(elements) if !elements.is_empty() && rng.random_bool(0.9) => {
            let element = elements.choose_mut(rng).expect("not empty");
            mutate(element, rng);
        }
        Document::Object(members) if !members.is_empty() && rng.random_bool(0.9) => {
            let (name, value) = members.choose_mut(rng).expect("not empty");
            match rng.random_bool(0.2) {
                // Longer than any other name.
                true => name.push_str("a new and longer name"),
                false => mutate(value, rng),
            }
        }
        Document::Array(elements) => elements.push(Document::Null),
        Document::Object(members) => members.push(("a new member's name".into(), Document::Null)),
        Document::Null => *document = Document::Bool(false),
        Document::Bool(value) => *value = !*value,
        Document::Text(text) => match text.pop() {
            Some('x') | None => text.push_str("yy"),
            Some(_) => text.push('x'),
        },
        Document::Number { negative, digits, exponent } => match rng.random_range(0..3) {
            0 if !digits.is_empty() => *negative = !*negative,
            1 if !digits.is_empty() => *exponent += 1,
            _ => digits.push('1'),
        },
    }
}

#[test]
fn every_spelling_of_a_document_is_equal_and_every_change_is_seen() {
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    for round in 0..rounds(200) {
        let document = random_document(&mut rng, 4);
        let mut expected = String::new();
        reference(&document, &mut expected);
        let fingerprint = of_body(JSON, &expected);
        for _ in 0..3 {
            let mut body = String::new();
            spell(&document, &mut rng, &mut body);
            let written = canonical(body.as_bytes()).map(String::from_utf8);
            let written = written.expect("valid JSON").expect("UTF-8");
            assert_eq!(written, expected, "seed {seed}, round {round}, {body}");
            assert_eq!(of_body(JSON, &body), fingerprint, "seed {seed}, round {round}");
        }
        let mut changed = document.clone();
        mutate(&mut changed, &mut rng);
        let mut body = String::new();
        spell(&changed, &mut rng, &mut body);
        let seen = of_body(JSON, &body) != fingerprint;
        assert!(seen, "seed {seed}, round {round}, {document:?} and {changed:?}");
    }
}

/// The paths of everything in the document.
fn paths(document: &Document, here: &mut Vec<String>, all: &mut Vec<Vec<String>>) {
    let mut below = |token: String, value: &Document| {
        here.push(token);
        all.push(here.clone());
        paths(value, here, all);
        here.pop();
    };
    match document {
        Document::Array(elements) => {
            for (index, element) in elements.iter().enumerate() {
                below(index.to_string(), element);
            }
        }
        Document::Object(members) => {
            for (name, value) in members {
                below(name.clone(), value);
            }
        }
        _ => {}
    }
}

/// The document without the parts whose paths do not count.
fn reduce(
    document: &Document,
    here: &mut Vec<String>,
    counts: &dyn Fn(&[String]) -> bool,
) -> Document {
    let mut below = |token: String, value: &Document| {
        here.push(token);
        let reduced = counts(here).then(|| reduce(value, here, counts));
        here.pop();
        reduced
    };
    match document {
        Document::Array(elements) => {
            let elements = elements.iter().enumerate();
            let reduced = elements.filter_map(|(index, value)| below(index.to_string(), value));
            Document::Array(reduced.collect())
        }
        Document::Object(members) => {
            let reduced = members
                .iter()
                .filter_map(|(name, value)| Some((name.clone(), below(name.clone(), value)?)));
            Document::Object(reduced.collect())
        }
        scalar => scalar.clone(),
    }
}

#[test]
fn random_selections_leave_what_they_say() {
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    for round in 0..rounds(200) {
        let document = random_document(&mut rng, 4);
        let mut all = vec![vec!["nowhere".to_owned()]];
        paths(&document, &mut Vec::new(), &mut all);
        let chosen: Vec<_> =
            (0..rng.random_range(1..5)).filter_map(|_| all.choose(&mut rng).cloned()).collect();
        let sense = match rng.random() {
            true => Sense::Include,
            false => Sense::Exclude,
        };
        let mut selection = Selection::new(sense);
        for path in &chosen {
            let escape = |token: &String| token.replace('~', "~0").replace('/', "~1");
            let tokens: Vec<_> = path.iter().map(escape).collect();
            let added = selection.add(&format!("/{}", tokens.join("/")));
            added.expect("a good pointer");
        }
        let counts = |path: &[String]| match sense {
            Sense::Exclude => !chosen.iter().any(|named| path.starts_with(named)),
            Sense::Include => {
                chosen.iter().any(|named| path.starts_with(named) || named.starts_with(path))
            }
        };
        let mut expected = String::new();
        reference(&reduce(&document, &mut Vec::new(), &counts), &mut expected);
        let mut body = String::new();
        spell(&document, &mut rng, &mut body);
        let mut out = Vec::new();
        canonicalise(body.as_bytes(), Some(&selection), &mut out).expect("valid JSON");
        let written = String::from_utf8(out).expect("UTF-8");
        assert_eq!(written, expected, "seed {seed}, round {round}, {selection:?}, {body}");
    }
}

/// Overwrites, removes, repeats or inserts bytes, mostly such that mean
/// something in JSON.
fn damage(body: &mut Vec<u8>, rng: &mut StdRng) {
    const PIECES: &[&[u8]] = &[
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"\"",
        b"\\",
        b"\\u",
        b"\\ud83d",
        b"\\ude02",
        b"0",
        b"-",
        b"+",
        b".",
        b"e",
        b"E9",
        b"1e400",
        b"e-99999999999999999999",
        b"1",
        b"null",
        b"true",
        b" ",
        b"\n",
        b"\0",
        b"\x1f",
        b"\x7f",
        b"\xc3",
        b"\xa9",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
        b"/",
        b"\"a\":1,",
    ];
    for _ in 0..rng.random_range(1..4) {
        let at = rng.random_range(0..=body.len());
        let end = body.len().min(at + rng.random_range(0..4));
        match rng.random_range(0..4) {
            0 => drop(body.drain(at..end)),
            1 => body.extend_from_within(at..end),
            2 => body.insert(at, rng.random()),
            _ => {
                let piece = PIECES.choose(rng).copied().unwrap_or_default();
                body.splice(at..end, piece.iter().copied());
            }
        }
    }
}

/// Equal up to the way numbers are kept: serde_json tells 1 from 1.0 and is
/// not exact in the last bit.
fn alike(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            let (one, other) = (one.as_f64(), other.as_f64());
            let pair = one.zip(other);
            pair.is_some_and(|(one, other)| (one - other).abs() <= 1e-12 * one.abs().max(1e-290))
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| alike(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let same = |((name, one), (other_name, other)): ((&String, _), (&String, _))| {
                name == other_name && alike(one, other)
            };
            one.len() == other.len() && one.iter().zip(other).all(same)
        }
        _ => one == other,
    }
}

#[test]
fn what_serde_json_accepts_is_accepted_and_means_the_same() {
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut accepted = 0;
    for round in 0..rounds(2000) {
        let document = random_document(&mut rng, 2);
        let mut body = String::new();
        spell(&document, &mut rng, &mut body);
        let mut body = body.into_bytes();
        damage(&mut body, &mut rng);
        let context =
            || format!("seed {seed}, round {round}, {:?}", body.escape_ascii().to_string());

        let ours = canonical(&body);
        let theirs = serde_json::from_slice::<Value>(&body);
        match (ours, theirs) {
            (Ok(written), Ok(value)) => {
                accepted += 1;
                let again = serde_json::from_slice(&written).expect("canonical JSON is JSON");
                assert!(alike(&value, &again), "{}", context());
                assert_eq!(canonical(&written), Ok(written), "{}", context());
            }
            // Numbers stay exact here, so none is too large.
            (Ok(_), Err(error)) => {
                assert!(
                    error.to_string().starts_with("number out of range"),
                    "{error}, {}",
                    context()
                );
            }
            // serde_json takes the last of several members with one name,
            // and zero for numbers that are too small.
            (Err(reason), Ok(_)) => {
                let stricter = [NotCanonical::DuplicateName, NotCanonical::ExponentTooLarge];
                assert!(stricter.contains(&reason), "{reason:?}, {}", context());
            }
            (Err(_), Err(_)) => {}
        }
    }
    assert!(accepted > 0, "seed {seed}: the damage leaves nothing to compare");
}
