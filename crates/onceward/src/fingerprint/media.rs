//! What `Content-Type` and `Content-Encoding` say about a body.

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};

/// How a body may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    Json,
    Form,
    /// As bytes only.
    Raw,
}

/// The one `Content-Type` of a request.
#[derive(Clone, Copy)]
pub(crate) struct Media<'h> {
    /// The `type/subtype`, in the case it came in.
    pub(crate) essence: &'h [u8],
    /// What comes after it.
    parameters: &'h [u8],
}

impl<'h> Media<'h> {
    /// Nothing when there is none, more than one, or one that is malformed.
    pub(crate) fn of(headers: &'h HeaderMap) -> Option<Self> {
        let (essence, parameters) = content_type(headers)?;
        let slash = essence.iter().position(|byte| *byte == b'/')?;
        let (kind, subtype) = essence.split_at_checked(slash)?;
        let subtype = subtype.strip_prefix(b"/")?;
        (is_token(kind) && is_token(subtype)).then_some(Media { essence, parameters })
    }
}

/// Decides how the body of a request with these headers may be read. Whatever
/// is unclear is read as bytes.
pub(crate) fn reading(media: Option<Media<'_>>, headers: &HeaderMap) -> Reading {
    let Some(Media { essence, parameters }) = media else {
        return Reading::Raw;
    };
    if codings(headers).next().is_some() {
        return Reading::Raw;
    }
    let is = |name: &str| essence.eq_ignore_ascii_case(name.as_bytes());
    if is("application/x-www-form-urlencoded") {
        return Reading::Form;
    }
    let suffix = b"+json";
    let has_suffix =
        essence.last_chunk().is_some_and(|end: &[u8; 5]| end.eq_ignore_ascii_case(suffix));
    if (is("application/json") || has_suffix) && charset_is_utf8(parameters) {
        return Reading::Json;
    }
    Reading::Raw
}

/// The codings of the body other than `identity`, one for each header line.
pub(crate) fn codings(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    headers
        .get_all(CONTENT_ENCODING)
        .iter()
        .map(|value| value.as_bytes().trim_ascii())
        .filter(|coding| !coding.eq_ignore_ascii_case(b"identity"))
}

/// Splits the one `Content-Type` into what comes before the first `;` and
/// after it.
fn content_type(headers: &HeaderMap) -> Option<(&[u8], &[u8])> {
    let mut values = headers.get_all(CONTENT_TYPE).iter();
    let value = values.next()?.as_bytes();
    if values.next().is_some() {
        return None;
    }
    let end = value.iter().position(|byte| *byte == b';');
    let (essence, parameters) = value.split_at_checked(end.unwrap_or(value.len()))?;
    Some((essence.trim_ascii(), parameters))
}

/// Whether every `charset` parameter says UTF-8. Parameters that cannot be
/// parsed might say anything.
fn charset_is_utf8(mut parameters: &[u8]) -> bool {
    loop {
        parameters = parameters.trim_ascii_start();
        let [b';', tail @ ..] = parameters else {
            return parameters.is_empty();
        };
        parameters = tail.trim_ascii_start();
        // Clients do send `application/json;` with nothing behind it.
        if matches!(parameters, [] | [b';', ..]) {
            continue;
        }
        let Some((name, value, rest)) = parameter(parameters) else {
            return false;
        };
        if name.eq_ignore_ascii_case(b"charset") && !value.eq_ignore_ascii_case(b"utf-8") {
            return false;
        }
        parameters = rest;
    }
}

/// Splits `name=value` or `name="value"` off the front. A quoted value with
/// backslashes comes back with them, which no charset has.
fn parameter(text: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let equals = text.iter().position(|byte| *byte == b'=')?;
    let (name, rest) = text.split_at_checked(equals)?;
    let (value, rest) = match rest.strip_prefix(b"=")? {
        [b'"', quoted @ ..] => {
            let end = closing_quote(quoted)?;
            let (value, rest) = quoted.split_at_checked(end)?;
            (value, rest.strip_prefix(b"\"")?)
        }
        bare => {
            let end = bare.iter().position(|byte| !is_token_byte(*byte));
            let (value, rest) = bare.split_at_checked(end.unwrap_or(bare.len()))?;
            (is_token(value).then_some(value)?, rest)
        }
    };
    is_token(name).then_some((name, value, rest))
}

fn closing_quote(quoted: &[u8]) -> Option<usize> {
    let mut after_backslash = false;
    quoted.iter().position(|byte| {
        let ends = *byte == b'"' && !after_backslash;
        after_backslash = *byte == b'\\' && !after_backslash;
        ends
    })
}

fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().copied().all(is_token_byte)
}

/// RFC 9110, 5.6.2.
fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
