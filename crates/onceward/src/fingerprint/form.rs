//! The canonical form of an `application/x-www-form-urlencoded` body.
//!
//! Pairs are decoded (`+` is a space) and sorted by the bytes of their names;
//! pairs of one name keep their order, as readers make lists of them or take
//! the first or last. Nothing is dropped: `a` and `a=` differ, and so do
//! `a=1` and `a=1&`.
//!
//! Sorting is only right while different names are independent of each other.
//! Two kinds of body where they are not have no canonical form: a name with
//! `[]` gets its meaning from the pairs around it
//! (`item[][name]=x&item[][price]=1&item[][name]=y`), and a bare `;` separates
//! pairs for some readers.

use std::ops::Range;

/// The body has no canonical form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotCanonical;

/// One pair, by where its decoded halves lie.
struct Pair {
    name: Range<usize>,
    value: Range<usize>,
    has_equals: bool,
}

/// Appends the canonical form of `body` to `out`: for each pair a byte that
/// tells whether there was a `=`, then name and value, each behind its length.
/// When there is no canonical form `out` is left as it was.
pub(crate) fn canonicalise(body: &[u8], out: &mut Vec<u8>) -> Result<(), NotCanonical> {
    let mut decoded = Vec::with_capacity(body.len());
    let mut pairs = Vec::new();
    for pair in body.split(|byte| *byte == b'&') {
        let equals = pair.iter().position(|byte| *byte == b'=');
        let (name, value) = match equals.and_then(|at| pair.split_at_checked(at)) {
            Some((name, value)) => (name, value.strip_prefix(b"=").unwrap_or(value)),
            None => (pair, &[][..]),
        };
        let name = decode(name, &mut decoded)?;
        let value = decode(value, &mut decoded)?;
        if contains_brackets(text(&decoded, &name)) {
            return Err(NotCanonical);
        }
        pairs.push(Pair { name, value, has_equals: equals.is_some() });
    }
    // Stable: pairs of one name keep their order.
    pairs.sort_by(|a, b| text(&decoded, &a.name).cmp(text(&decoded, &b.name)));
    out.reserve(decoded.len() + pairs.len() * 17);
    for pair in &pairs {
        out.push(u8::from(pair.has_equals));
        for half in [&pair.name, &pair.value] {
            out.extend_from_slice(&(half.len() as u64).to_be_bytes());
            out.extend_from_slice(text(&decoded, half));
        }
    }
    Ok(())
}

fn text<'d>(decoded: &'d [u8], range: &Range<usize>) -> &'d [u8] {
    decoded.get(range.clone()).unwrap_or_default()
}

fn contains_brackets(name: &[u8]) -> bool {
    name.windows(2).any(|pair| pair == b"[]")
}

/// Appends what `encoded` stands for, and answers where.
fn decode(mut encoded: &[u8], decoded: &mut Vec<u8>) -> Result<Range<usize>, NotCanonical> {
    let start = decoded.len();
    while let [byte, rest @ ..] = encoded {
        encoded = rest;
        match byte {
            b'+' => decoded.push(b' '),
            b'%' => {
                let [high, low, rest @ ..] = encoded else {
                    return Err(NotCanonical);
                };
                decoded.push(hex(*high)? << 4 | hex(*low)?);
                encoded = rest;
            }
            b';' => return Err(NotCanonical),
            _ => decoded.push(*byte),
        }
    }
    Ok(start..decoded.len())
}

fn hex(digit: u8) -> Result<u8, NotCanonical> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        b'A'..=b'F' => Ok(digit - b'A' + 10),
        _ => Err(NotCanonical),
    }
}
