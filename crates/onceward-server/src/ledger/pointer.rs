//! Parts of JSON documents, by JSON Pointer (RFC 6901), as they were written: a number is not read as
//! a binary fraction.

use std::{borrow::Cow, collections::HashMap, fmt, str::FromStr};

use serde::Deserialize;
use serde_json::value::RawValue;

/// Which part of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pointer(Vec<String>);

/// Why a text is not a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a JSON pointer begins with a slash, as in /data/id")]
pub(crate) struct BadPointer;

impl FromStr for Pointer {
    type Err = BadPointer;

    fn from_str(text: &str) -> Result<Pointer, BadPointer> {
        let steps = text.strip_prefix('/').ok_or(BadPointer)?;
        Ok(Pointer(
            steps.split('/').map(|step| step.replace("~1", "/").replace("~0", "~")).collect(),
        ))
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|step| write!(f, "/{}", step.replace('~', "~0").replace('/', "~1")))
    }
}

/// An object whose names borrow where they can.
#[derive(Deserialize)]
struct Members<'d>(#[serde(borrow)] HashMap<Name<'d>, &'d RawValue>);

#[derive(Deserialize, PartialEq, Eq, Hash)]
struct Name<'d>(#[serde(borrow)] Cow<'d, str>);

impl Pointer {
    /// The member of this name.
    pub(crate) fn member(name: &str) -> Pointer {
        Pointer(vec![name.to_owned()])
    }

    /// The text or number at this place, as text. None if there is nothing, `null`, or something
    /// else.
    pub(crate) fn text(&self, document: &RawValue) -> Option<String> {
        let mut at = document;
        for step in &self.0 {
            at = match at.get().bytes().next()? {
                b'{' => {
                    let members: Members<'_> = serde_json::from_str(at.get()).ok()?;
                    members.0.get(&Name(Cow::Borrowed(step))).copied()?
                }
                b'[' => {
                    let elements: Vec<&RawValue> = serde_json::from_str(at.get()).ok()?;
                    elements.get(step.parse::<usize>().ok()?).copied()?
                }
                _ => return None,
            };
        }
        match at.get().bytes().next()? {
            b'"' => serde_json::from_str(at.get()).ok(),
            b'-' | b'0'..=b'9' => Some(at.get().to_owned()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(pointer: &str, document: &str) -> Option<String> {
        let document: &RawValue = serde_json::from_str(document).expect("JSON");
        pointer.parse::<Pointer>().expect(pointer).text(document)
    }

    #[test]
    fn texts_and_numbers_are_found_as_they_were_written() {
        let document = r#"{"id":"ch_1","a/b":{"~":[7,1.10,10000000000000000001]},"":"empty"}"#;
        for (pointer, found) in [
            ("/id", "ch_1"),
            ("/a~1b/~0/0", "7"),
            ("/a~1b/~0/1", "1.10"),
            ("/a~1b/~0/2", "10000000000000000001"),
            ("/", "empty"),
        ] {
            assert_eq!(at(pointer, document).as_deref(), Some(found), "{pointer}");
        }
        assert_eq!(at("/\u{e4}", r#"{"\u00e4":"\ud83d\ude00"}"#).as_deref(), Some("\u{1f600}"));
        assert_eq!("/a~1b/~0".parse::<Pointer>().expect("valid").to_string(), "/a~1b/~0");
    }

    #[test]
    fn what_is_not_there_is_nothing_and_never_something_else() {
        let document = r#"{"id":null,"list":[1],"object":{"id":true},"text":"id"}"#;
        for pointer in
            ["/id", "/no", "/list/1", "/list/x", "/list", "/object/id", "/text/0", "/object"]
        {
            assert_eq!(at(pointer, document), None, "{pointer}");
        }
        assert_eq!(at("/list/0", document).as_deref(), Some("1"));
        assert_eq!("id".parse::<Pointer>(), Err(BadPointer));
    }
}
