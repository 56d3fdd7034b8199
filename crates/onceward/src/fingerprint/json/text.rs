//! Strings: one way to escape, and the order of member names.

use std::cmp::Ordering;

use super::NotCanonical;

/// Reads the string that `input` starts with and writes its canonical form,
/// quotes included. Answers the rest of the input.
///
/// `input` must be valid UTF-8.
pub(super) fn write<'b>(input: &'b [u8], out: &mut Vec<u8>) -> Result<&'b [u8], NotCanonical> {
    let [b'"', text @ ..] = input else {
        return Err(NotCanonical::Syntax);
    };
    out.push(b'"');
    let mut rest = text;
    loop {
        match copy_plain(rest, out) {
            [b'"', tail @ ..] => {
                out.push(b'"');
                return Ok(tail);
            }
            [b'\\', tail @ ..] => {
                let (decoded, tail) = unescape(tail)?;
                write_char(decoded, out);
                rest = tail;
            }
            // A bare control character, or no closing quote.
            _ => return Err(NotCanonical::Syntax),
        }
    }
}

const ONES: u64 = u64::MAX / 0xff;
const HIGHS: u64 = ONES << 7;

/// Marks, by their high bit, the bytes of a word that are below `limit`, at
/// most 128. Bytes above the lowest hit may be marked wrongly, as the
/// subtraction borrows from them.
fn below(word: u64, limit: u64) -> u64 {
    word.wrapping_sub(ONES * limit) & !word & HIGHS
}

/// Copies what comes before the first quote, backslash or control character.
/// Answers the rest.
///
/// Copies as it looks, a word at a time, and takes back what was too much:
/// for strings as short as most are that beats looking first.
fn copy_plain<'b>(text: &'b [u8], out: &mut Vec<u8>) -> &'b [u8] {
    let mut rest = text;
    while let Some((bytes, tail)) = rest.split_first_chunk::<8>() {
        out.extend_from_slice(bytes);
        let word = u64::from_le_bytes(*bytes);
        let quote = below(word ^ (ONES * u64::from(b'"')), 1);
        let backslash = below(word ^ (ONES * u64::from(b'\\')), 1);
        let hits = quote | backslash | below(word, 0x20);
        if hits != 0 {
            let plain = hits.trailing_zeros() as usize / 8;
            out.truncate(out.len() - bytes.len() + plain);
            return rest.get(plain..).unwrap_or_default();
        }
        rest = tail;
    }
    while let [byte, tail @ ..] = rest
        && !matches!(byte, b'"' | b'\\' | 0..0x20)
    {
        out.push(*byte);
        rest = tail;
    }
    rest
}

/// Decodes what follows a backslash.
fn unescape(text: &[u8]) -> Result<(char, &[u8]), NotCanonical> {
    let Some((kind, rest)) = text.split_first() else {
        return Err(NotCanonical::Syntax);
    };
    let decoded = match kind {
        b'"' => '"',
        b'\\' => '\\',
        b'/' => '/',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => return unescape_unicode(rest),
        _ => return Err(NotCanonical::Syntax),
    };
    Ok((decoded, rest))
}

/// Decodes `hhhh`, or `hhhh\uhhhh` when that is a surrogate pair.
fn unescape_unicode(text: &[u8]) -> Result<(char, &[u8]), NotCanonical> {
    let (high, rest) = four_hex(text)?;
    if let Some(decoded) = char::from_u32(high) {
        return Ok((decoded, rest));
    }
    let [b'\\', b'u', rest @ ..] = rest else {
        return Err(NotCanonical::LoneSurrogate);
    };
    let (low, rest) = four_hex(rest)?;
    match (high, low) {
        (0xd800..0xdc00, 0xdc00..0xe000) => {
            let code = 0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00);
            let decoded = char::from_u32(code).ok_or(NotCanonical::LoneSurrogate)?;
            Ok((decoded, rest))
        }
        _ => Err(NotCanonical::LoneSurrogate),
    }
}

fn four_hex(text: &[u8]) -> Result<(u32, &[u8]), NotCanonical> {
    let Some((digits, rest)) = text.split_first_chunk::<4>() else {
        return Err(NotCanonical::Syntax);
    };
    let mut unit = 0;
    for digit in digits {
        let digit = char::from(*digit).to_digit(16);
        unit = unit * 16 + digit.ok_or(NotCanonical::Syntax)?;
    }
    Ok((unit, rest))
}

/// Writes one character of a string.
fn write_char(decoded: char, out: &mut Vec<u8>) {
    let short = match decoded {
        '"' => b'"',
        '\\' => b'\\',
        '\u{8}' => b'b',
        '\t' => b't',
        '\n' => b'n',
        '\u{c}' => b'f',
        '\r' => b'r',
        '\0'..' ' => {
            let code = decoded as u8;
            let low = char::from_digit(u32::from(code % 16), 16).unwrap_or('0');
            out.extend_from_slice(if code < 16 { b"\\u000" } else { b"\\u001" });
            out.push(low as u8);
            return;
        }
        _ => {
            let mut utf8 = [0; 4];
            out.extend_from_slice(decoded.encode_utf8(&mut utf8).as_bytes());
            return;
        }
    };
    out.extend_from_slice(&[b'\\', short]);
}

/// The canonical form of `text` as it stands between the quotes.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    for decoded in text.chars() {
        write_char(decoded, &mut out);
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Compares two member names, as written between their quotes, by the UTF-16
/// code units of what they mean.
#[inline(never)]
pub(super) fn order(a: &[u8], b: &[u8]) -> Ordering {
    // There is one way to write a name, so what is written alike means alike,
    // and the first byte of meaning behind it decides. Skipping quickly
    // matters: names that share a long start would make sorting slow.
    let alike = whole_escapes(a, common_start(a, b));
    let next = |name: &[u8]| Decoded(name.get(alike..)?).next().map(utf16_rank);
    next(a).cmp(&next(b))
}

/// How many bytes two names have in common at their start.
fn common_start(a: &[u8], b: &[u8]) -> usize {
    let blocks = a.as_chunks::<16>().0.iter().zip(b.as_chunks::<16>().0);
    let skipped = 16 * blocks.take_while(|(a, b)| a == b).count();
    let bytes = a.iter().zip(b).skip(skipped);
    skipped + bytes.take_while(|(a, b)| a == b).count()
}

/// Moves `at` back if it lies behind the backslash that begins an escape. A
/// cut further behind, among the digits of `\u00hh`, does no harm: they sort
/// as what they mean.
fn whole_escapes(name: &[u8], at: usize) -> usize {
    let head = name.get(..at).unwrap_or_default();
    // In a run of backslashes every second one is escaped by the one before.
    let backslashes = head.iter().rev().take_while(|byte| **byte == b'\\');
    at - backslashes.count() % 2
}

/// The start of a member name as a number: where two of them differ, [`order`]
/// says the same. Most names differ in their first eight bytes, and comparing
/// two integers is much cheaper.
pub(super) fn order_prefix(name: &[u8]) -> u64 {
    let mut start = [0; 8];
    match name.first_chunk() {
        Some(chunk) => start = *chunk,
        None => start.iter_mut().zip(name).for_each(|(to, byte)| *to = *byte),
    }
    let word = u64::from_be_bytes(start);
    let backslash = below(word ^ (ONES * u64::from(b'\\')), 1);
    if word & HIGHS == 0 && backslash == 0 {
        return word;
    }
    start = [0; 8];
    for (rank, byte) in start.iter_mut().zip(Decoded(name)) {
        *rank = utf16_rank(byte);
    }
    u64::from_be_bytes(start)
}

/// Orders bytes of UTF-8 such that whole strings compare as their UTF-16 code
/// units would.
///
/// The two orders differ in one place: characters beyond U+FFFF become
/// surrogates (D800 to DFFF) and so come before U+E000 to U+FFFF. In UTF-8
/// the former begin with F0 to F4, the latter with EE and EF; these two move
/// behind, to bytes that UTF-8 never uses.
fn utf16_rank(byte: u8) -> u8 {
    match byte {
        0xee | 0xef => byte + 0x10,
        _ => byte,
    }
}

/// The bytes that a canonical string stands for. It was written by
/// [`write_char`], so every escape is complete and means one ASCII character.
struct Decoded<'o>(&'o [u8]);

impl Iterator for Decoded<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        let (decoded, rest) = match self.0 {
            [b'\\', rest @ ..] => {
                let (decoded, rest) = unescape(rest).ok()?;
                (decoded as u8, rest)
            }
            [byte, rest @ ..] => (*byte, rest),
            [] => return None,
        };
        self.0 = rest;
        Some(decoded)
    }
}
