//! The canonical forms of bodies.

use http::{Method, Request, header::CONTENT_TYPE};

use crate::fingerprint::{Fingerprint, Recipe, form, json};

/// The canonical form of a JSON body that a fingerprint is made of, or nothing if it has none.
pub fn canonical_json(body: &[u8]) -> Option<Vec<u8>> {
    canonical(body, |body, out| json::canonicalise(body, None, out).is_ok())
}

/// Takes `data` as a JSON body.
///
/// A canonical form is its own, no more than twice as long, and the same for a body with other white
/// space and another order of members. Equal forms mean equal fingerprints, whatever parts of the
/// body a recipe looks at.
///
/// # Panics
/// When that is not so.
pub fn json(data: &[u8]) {
    let Some(form) = canonical_json(data) else { return };
    assert_eq!(canonical_json(&form).as_ref(), Some(&form), "a form of its own");
    assert!(form.len() <= 2 * data.len(), "short");
    let (mut other, mut rest) = (Vec::new(), &form[..]);
    spell_otherwise(&mut rest, &mut other);
    assert_eq!(canonical_json(&other), Some(form), "{}", other.escape_ascii());
    let (whole, some) = (Recipe::canonical(), ["/a", "/b/0", "/0/a/-", "/\u{e9}"]);
    let others = [whole.clone().include(&some), whole.clone().exclude(&some)];
    for recipe in others.into_iter().flatten().chain([whole]) {
        let of = |body| fingerprint(&recipe, "application/json", body);
        assert_eq!(of(data), of(&other));
    }
}

/// Takes `data` as a form body.
///
/// A canonical form holds as many pairs as were sent, and is the same when names that differ change
/// places and everything is escaped.
///
/// # Panics
/// When that is not so.
pub fn form(data: &[u8]) {
    let canonicalise =
        |body: &[u8]| canonical(body, |body, out| form::canonicalise(body, out).is_ok());
    let Some(form) = canonicalise(data) else { return };
    let mut pairs = pairs(&form);
    assert_eq!(pairs.len(), data.split(|byte| *byte == b'&').count());
    // Stable, so that pairs of one name keep their order.
    pairs.sort_by(|a, b| b.name.cmp(a.name));
    let escaped = |half: &[u8]| half.iter().map(|byte| format!("%{byte:02X}")).collect::<String>();
    let spell = |pair: &Pair<'_>| match pair.has_equals {
        true => format!("{}={}", escaped(pair.name), escaped(pair.value)),
        false => escaped(pair.name),
    };
    let other = pairs.iter().map(spell).collect::<Vec<_>>().join("&");
    assert_eq!(canonicalise(other.as_bytes()), Some(form), "{other}");
    let of = |body| fingerprint(&Recipe::canonical(), "application/x-www-form-urlencoded", body);
    assert!(data.is_empty() || other.is_empty() || of(data) == of(other.as_bytes()));
}

/// What `write` appends behind something that must stay.
fn canonical(body: &[u8], write: impl Fn(&[u8], &mut Vec<u8>) -> bool) -> Option<Vec<u8>> {
    let mut out = b"before".to_vec();
    let written = write(body, &mut out);
    let form = out.strip_prefix(b"before").expect("what was there before stays");
    assert!(written || form.is_empty(), "a body without a form leaves nothing");
    written.then(|| form.to_vec())
}

fn fingerprint(recipe: &Recipe, media_type: &str, body: &[u8]) -> Fingerprint {
    let request = Request::builder().method(Method::POST).uri("/").header(CONTENT_TYPE, media_type);
    let (parts, ()) = request.body(()).expect("a request").into_parts();
    recipe.fingerprint(&parts, body)
}

/// Writes the canonical value that `rest` begins with, members last to first, with white space
/// between all parts.
fn spell_otherwise(rest: &mut &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b" \t\r\n");
    let bracket = take(rest);
    out.push(bracket);
    match bracket {
        b'{' => {
            let mut members = Vec::new();
            while !matches!(rest.first(), Some(b'}') | None) {
                let mut member = Vec::new();
                spell_otherwise(rest, &mut member);
                member.push(take(rest));
                spell_otherwise(rest, &mut member);
                members.push(member);
                *rest = rest.strip_prefix(b",").unwrap_or(rest);
            }
            members.reverse();
            out.extend(members.join(&b','));
            out.push(take(rest));
        }
        b'[' => {
            while !matches!(rest.first(), Some(b']') | None) {
                spell_otherwise(rest, out);
                if let Some(next) = rest.strip_prefix(b",") {
                    out.push(b',');
                    *rest = next;
                }
            }
            out.push(take(rest));
        }
        b'"' => loop {
            let byte = take(rest);
            out.push(byte);
            match byte {
                b'\\' => out.push(take(rest)),
                b'"' => break,
                _ => {}
            }
        },
        _ => {
            let end = rest.iter().position(|byte| b",]}".contains(byte)).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            out.extend_from_slice(word);
            *rest = after;
        }
    }
    out.push(b' ');
}

fn take(rest: &mut &[u8]) -> u8 {
    let (first, after) = rest.split_first().expect("a canonical form is complete");
    *rest = after;
    *first
}

struct Pair<'f> {
    has_equals: bool,
    name: &'f [u8],
    value: &'f [u8],
}

/// Reads the canonical form of a form body.
fn pairs(mut form: &[u8]) -> Vec<Pair<'_>> {
    let mut pairs = Vec::new();
    while !form.is_empty() {
        let has_equals = take(&mut form) == 1;
        let [name, value] = [(); 2].map(|()| {
            let (length, rest) = form.split_first_chunk().expect("a length");
            let length = usize::try_from(u64::from_be_bytes(*length)).expect("a length in memory");
            let (half, rest) = rest.split_at(length);
            form = rest;
            half
        });
        pairs.push(Pair { has_equals, name, value });
    }
    pairs
}
