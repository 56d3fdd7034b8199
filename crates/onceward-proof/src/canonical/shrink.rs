//! Makes a document shorter while something stays true of it.

use std::ops::Range;

/// From here on down bytes are left out at every place, not only side by side.
const SHORT: usize = 300;

/// The shortest document found for which `holds`, which it does for `document`.
pub(super) fn shrunk(mut document: Vec<u8>, holds: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    loop {
        let before = document.len();
        document = without_parts(document, &holds);
        document = without_bytes(document, &holds);
        if document.len() == before {
            return document;
        }
    }
}

/// Puts a `0`, or a part of it, in the place of an array, object or string.
fn without_parts(mut document: Vec<u8>, holds: &impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut number = 0;
    while let Some(part) = parts(&document).get(number).cloned() {
        let inner = parts(&document[part.clone()]).into_iter().skip(1);
        let inner = inner.map(|range| document[part.clone()][range].to_vec());
        let shorter = std::iter::once(b"0".to_vec()).chain(inner).find_map(|instead| {
            let mut shorter = document.clone();
            shorter.splice(part.clone(), instead);
            (shorter.len() < document.len() && holds(&shorter)).then_some(shorter)
        });
        match shorter {
            Some(shorter) => document = shorter,
            None => number += 1,
        }
    }
    document
}

/// Arrays, objects and strings, as far as they can be told in a document that may be damaged, in the
/// order in which they begin.
fn parts(document: &[u8]) -> Vec<Range<usize>> {
    let mut open: Vec<(u8, usize)> = Vec::new();
    let mut parts = Vec::new();
    let mut escaped = false;
    for (at, byte) in document.iter().enumerate() {
        let inside_string = matches!(open.last(), Some((b'"', _)));
        match byte {
            _ if escaped => escaped = false,
            b'\\' if inside_string => escaped = true,
            b'"' if inside_string => parts.extend(open.pop().map(|(_, start)| start..at + 1)),
            _ if inside_string => {}
            b'"' | b'[' | b'{' => open.push((*byte, at)),
            b']' | b'}' => parts.extend(open.pop().map(|(_, start)| start..at + 1)),
            _ => {}
        }
    }
    parts.sort_by_key(|part| part.start);
    parts
}

/// Leaves out bytes: half of them at once, then fewer.
fn without_bytes(mut document: Vec<u8>, holds: &impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut length = document.len();
    while length > 0 {
        let mut start = 0;
        while start < document.len() {
            let mut shorter = document.clone();
            shorter.drain(start..(start + length).min(document.len()));
            match holds(&shorter) {
                true => document = shorter,
                false if document.len() <= SHORT => start += 1,
                false => start += length,
            }
        }
        length = if length > 16 { length / 2 } else { length - 1 };
    }
    document
}
