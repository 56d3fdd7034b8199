//! Headers as bytes, the same in every store that keeps bytes.

use http::{HeaderName, HeaderValue};

/// The version of the header encoding, first byte of what is stored.
const HEADERS_VERSION: u8 = 1;

/// Each header as two strings with their lengths in front: no character needs escaping.
pub(super) fn encode_headers(headers: &[(HeaderName, HeaderValue)]) -> Vec<u8> {
    let mut encoded = vec![HEADERS_VERSION];
    for (name, value) in headers {
        for part in [name.as_str().as_bytes(), value.as_bytes()] {
            encoded.extend(u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
            encoded.extend(part);
        }
    }
    encoded
}

pub(super) fn decode_headers(encoded: &[u8]) -> Option<Vec<(HeaderName, HeaderValue)>> {
    let (version, mut rest) = encoded.split_first()?;
    if *version != HEADERS_VERSION {
        return None;
    }
    let mut part = || {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let (part, after) = after.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        rest = after;
        Some(part)
    };
    let mut headers = Vec::new();
    while let Some(name) = part() {
        let name = HeaderName::from_bytes(name).ok()?;
        headers.push((name, HeaderValue::from_bytes(part()?).ok()?));
    }
    rest.is_empty().then_some(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_their_encoding_in_order() {
        let headers = vec![
            (HeaderName::from_static("link"), HeaderValue::from_static("<a>; rel=\"next\"")),
            (HeaderName::from_static("x-empty"), HeaderValue::from_static("")),
            (HeaderName::from_static("link"), HeaderValue::from_bytes(b"\xe9").expect("obs-text")),
        ];
        assert_eq!(decode_headers(&encode_headers(&headers)), Some(headers));
        assert_eq!(decode_headers(&encode_headers(&[])), Some(Vec::new()));
    }

    #[test]
    fn damaged_headers_are_not_taken_for_fewer_headers() {
        let headers = vec![(HeaderName::from_static("etag"), HeaderValue::from_static("abc"))];
        let encoded = encode_headers(&headers);
        for cut in 0..encoded.len() {
            let damaged = encoded.get(..cut).expect("a prefix");
            // One byte is the version alone: no headers at all, which is what it says.
            assert_eq!(decode_headers(damaged).is_some(), cut == 1, "cut at {cut}");
        }
        assert_eq!(decode_headers(&[2]), None, "an unknown version");
    }
}
