//! What is inside a sealed reply.

use bytes::Bytes;

use crate::{
    reply::{Reply, ReplyBody},
    store::headers::{decode_headers, encode_headers},
};

/// The version of the encoding, first byte of it.
const VERSION: u8 = 1;

/// Schema version and headers with their lengths in front; the rest is the body.
pub(super) fn encode_reply(reply: &Reply) -> Vec<u8> {
    let body = match &reply.body {
        ReplyBody::Stored(body) => Some(body),
        ReplyBody::NotStored => None,
    };
    let schema = reply.schema_version.as_deref();
    let flags = u8::from(body.is_some()) | (u8::from(schema.is_some()) << 1);
    let mut encoded = vec![VERSION, flags];
    let headers = encode_headers(&reply.headers);
    for part in [schema.unwrap_or_default().as_bytes(), &headers] {
        encoded.extend(u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
        encoded.extend(part);
    }
    encoded.extend(body.into_iter().flatten());
    encoded
}

/// The reply of which this is the sealed part.
pub(super) fn decode_reply(encoded: Vec<u8>, status: http::StatusCode) -> Option<Reply> {
    let encoded = Bytes::from(encoded);
    let [version, flags] = *encoded.first_chunk::<2>()?;
    if version != VERSION || flags > 3 {
        return None;
    }
    let mut at = 2;
    let mut part = || {
        let length = encoded.get(at..)?.first_chunk::<4>()?;
        let from = at + 4;
        at = from.checked_add(u32::from_be_bytes(*length) as usize)?;
        encoded.get(from..at)
    };
    let schema = std::str::from_utf8(part()?).ok()?;
    let headers = decode_headers(part()?)?;
    Some(Reply {
        status,
        headers,
        body: match flags & 1 {
            0 => ReplyBody::NotStored,
            _ => ReplyBody::Stored(encoded.slice(at..)),
        },
        schema_version: (flags & 2 != 0).then(|| schema.into()),
    })
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue, StatusCode};

    use super::*;

    #[test]
    fn a_reply_survives_its_encoding() {
        let link = |value| (HeaderName::from_static("link"), HeaderValue::from_static(value));
        let whole = Reply {
            headers: vec![link("<a>"), link("<b>")],
            schema_version: Some("v2".into()),
            ..Reply::new(StatusCode::CREATED, &b"\0 body"[..])
        };
        let empty = Reply::new(StatusCode::CREATED, "");
        let not_stored = Reply { body: ReplyBody::NotStored, ..whole.clone() };
        for reply in [whole, empty, not_stored] {
            let decoded = decode_reply(encode_reply(&reply), StatusCode::CREATED);
            assert_eq!(decoded.as_ref(), Some(&reply));
        }
    }

    #[test]
    fn a_reply_that_was_cut_in_its_head_is_not_taken_for_a_shorter_one() {
        let reply = Reply { schema_version: Some("v2".into()), ..Reply::new(StatusCode::OK, "x") };
        let encoded = encode_reply(&reply);
        for cut in 0..encoded.len() - 1 {
            assert_eq!(decode_reply(encoded[..cut].to_vec(), StatusCode::OK), None, "at {cut}");
        }
    }
}
