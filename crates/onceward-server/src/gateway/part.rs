//! Parts of JSON documents that others wrote, byte for byte as they wrote them.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::value::RawValue;

/// The part at a JSON pointer. `None` when it is not there, or the document is no JSON. Of two members
/// of one name the last one counts.
pub(super) fn at<'d>(document: &'d [u8], pointer: &str) -> Option<&'d str> {
    let document: &RawValue = serde_json::from_slice(document).ok()?;
    let mut part = document.get();
    for step in pointer.strip_prefix('/')?.split('/') {
        let step = step.replace("~1", "/").replace("~0", "~");
        let inner: &RawValue = match part.as_bytes().first()? {
            b'{' => {
                serde_json::from_str::<BTreeMap<String, &RawValue>>(part).ok()?.remove(&step)?
            }
            b'[' => {
                let is_number = step == "0" || !step.starts_with(['0', '+']);
                let index: usize = step.parse().ok().filter(|_| is_number)?;
                serde_json::from_str::<Vec<&RawValue>>(part).ok()?.into_iter().nth(index)?
            }
            _ => return None,
        };
        part = inner.get();
    }
    Some(part)
}

/// The same as bytes of the document, without a copy.
pub(super) fn bytes(document: &Bytes, pointer: &str) -> Option<Bytes> {
    at(document, pointer).map(|part| document.slice_ref(part.as_bytes()))
}

/// What a part says: the text of a string, the digits of a number. `None` of a list or an object.
pub(super) fn word(document: &[u8], pointer: &str) -> Option<String> {
    let part = at(document, pointer)?;
    match part.as_bytes().first()? {
        b'"' => serde_json::from_str(part).ok(),
        b'{' | b'[' => None,
        _ => Some(part.to_owned()),
    }
}

/// The text of a string.
pub(super) fn text(document: &[u8], pointer: &str) -> Option<String> {
    serde_json::from_str(at(document, pointer)?).ok()
}

/// A number that can be the status of a reply.
pub(super) fn status(document: &[u8], pointer: &str) -> Option<u16> {
    serde_json::from_str(at(document, pointer)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str =
        r#" {"z": {"b": 10.10, "a": [1, {"x/y~": "\u0041"}]}, "n": 10.10, "t": true, "n": 2.50} "#;

    #[test]
    fn parts_are_the_bytes_that_were_written() {
        let document = Bytes::from_static(DOCUMENT.as_bytes());
        let part = bytes(&document, "/z").expect("a part");
        assert_eq!(part, r#"{"b": 10.10, "a": [1, {"x/y~": "\u0041"}]}"#);
        assert_eq!(at(DOCUMENT.as_bytes(), "/z/a/1/x~1y~0"), Some(r#""\u0041""#));
        assert_eq!(at(DOCUMENT.as_bytes(), "/z/b"), Some("10.10"));
        for absent in ["/y", "/z/a/2", "/z/a/01", "/z/a/x", "/t/x", "z", "/z/b/0"] {
            assert_eq!(at(DOCUMENT.as_bytes(), absent), None, "{absent}");
        }
        assert_eq!(at(b"{\"a\": 1} x", "/a"), None);
        assert_eq!(at(b"[", "/0"), None);
    }

    #[test]
    fn words_are_the_text_of_strings_and_what_was_written_of_the_rest() {
        let document = DOCUMENT.as_bytes();
        assert_eq!(word(document, "/z/a/1/x~1y~0").as_deref(), Some("A"));
        assert_eq!(word(document, "/n").as_deref(), Some("2.50"));
        assert_eq!(word(document, "/t").as_deref(), Some("true"));
        assert_eq!(word(document, "/z"), None);
        assert_eq!((text(document, "/t"), status(document, "/z/a/0")), (None, Some(1)));
    }
}
