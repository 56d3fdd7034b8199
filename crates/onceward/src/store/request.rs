//! A stored request as bytes.

use bytes::Bytes;
use http::{Method, Uri};

use super::headers::{decode_headers, encode_headers};
use crate::record::StoredRequest;

/// The version of the encoding, first byte of what is stored.
const REQUEST_VERSION: u8 = 1;

/// Method, URI and headers with their lengths in front; the rest is the body.
pub(super) fn encode_request(request: &StoredRequest) -> Vec<u8> {
    let mut encoded = vec![REQUEST_VERSION];
    let uri = request.uri.to_string();
    let headers = encode_headers(&request.headers);
    for part in [request.method.as_str().as_bytes(), uri.as_bytes(), &headers] {
        encoded.extend(u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
        encoded.extend(part);
    }
    encoded.extend(&request.body);
    encoded
}

pub(super) fn decode_request(encoded: &[u8]) -> Option<StoredRequest> {
    let (version, mut rest) = encoded.split_first()?;
    if *version != REQUEST_VERSION {
        return None;
    }
    let mut part = || {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let (part, after) = after.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        rest = after;
        Some(part)
    };
    let (method, uri, headers) = (part()?, part()?, part()?);
    Some(StoredRequest {
        method: Method::from_bytes(method).ok()?,
        uri: Uri::try_from(uri).ok()?,
        headers: decode_headers(headers)?,
        body: Bytes::copy_from_slice(rest),
    })
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn request() -> StoredRequest {
        let header = |value| (HeaderName::from_static("x-tag"), HeaderValue::from_static(value));
        StoredRequest {
            method: Method::POST,
            uri: Uri::from_static("/payments?currency=eur"),
            headers: vec![header("a"), header("b")],
            body: Bytes::from_static(b"{\"amount\":\x00 1}"),
        }
    }

    #[test]
    fn a_request_survives_its_encoding() {
        assert_eq!(decode_request(&encode_request(&request())), Some(request()));
    }

    #[test]
    fn a_request_that_was_cut_in_its_head_is_not_taken_for_a_shorter_one() {
        let encoded = encode_request(&request());
        let head = encoded.len() - request().body.len();
        for cut in 0..head {
            assert_eq!(decode_request(encoded.get(..cut).expect("a prefix")), None, "at {cut}");
        }
    }
}
