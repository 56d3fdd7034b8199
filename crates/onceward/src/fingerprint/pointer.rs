//! Which parts of a JSON body a fingerprint looks at, named by JSON Pointers
//! (RFC 6901).
//!
//! The pointers of a route become one tree, so that the single pass over the
//! body walks the tree beside it and never goes back.

use std::error::Error;
use std::fmt;

use super::json::{self, DEPTH_MAX};

/// Why a set of JSON Pointers cannot select parts of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadPointer {
    /// A pointer other than the empty one does not start with `/`.
    NoLeadingSlash(String),
    /// A `~` is not followed by `0` or `1`.
    BadEscape(String),
    /// A pointer is longer than any body that is read as JSON is deep.
    TooDeep(String),
    /// `include` was given no pointer: every body would look the same.
    NothingIncluded,
    /// `exclude` was given the empty pointer, which names the whole body:
    /// every body would look the same.
    EverythingExcluded,
    /// `include` and `exclude` on one recipe: which of them wins would be a
    /// guess.
    IncludeAndExclude,
    /// The recipe takes the body as it came, so it has no parts to choose.
    RawBody,
}

impl fmt::Display for BadPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLeadingSlash(pointer) => {
                write!(f, "JSON pointer {pointer:?} does not start with '/'")
            }
            Self::BadEscape(pointer) => {
                write!(f, "JSON pointer {pointer:?} has a '~' without 0 or 1 after it")
            }
            Self::TooDeep(pointer) => {
                write!(f, "JSON pointer {pointer:?} has more than {DEPTH_MAX} steps")
            }
            Self::NothingIncluded => f.write_str("no JSON pointer to include"),
            Self::EverythingExcluded => {
                f.write_str("the empty JSON pointer excludes the whole body")
            }
            Self::IncludeAndExclude => {
                f.write_str("a fingerprint either includes or excludes parts, not both")
            }
            Self::RawBody => f.write_str("a raw body has no parts to include or exclude"),
        }
    }
}

impl Error for BadPointer {}

/// Whether the pointers name what is looked at or what is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sense {
    Include,
    Exclude,
}

/// The parts of a JSON body that count.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    sense: Sense,
    root: Node,
}

/// One place in a body that a pointer names or passes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    /// A pointer ends here.
    named: bool,
    steps: Vec<Step>,
}

#[derive(Clone, Debug)]
struct Step {
    /// The member name in the canonical escapes, so that it compares with
    /// what was just written without decoding either.
    member: String,
    /// The same token read as the index of an array element, if it is one.
    element: Option<usize>,
    to: Node,
}

impl Selection {
    pub(crate) fn new(sense: Sense) -> Self {
        Self { sense, root: Node::default() }
    }

    pub(crate) fn sense(&self) -> Sense {
        self.sense
    }

    /// Adds what `pointer` names.
    pub(crate) fn add(&mut self, pointer: &str) -> Result<(), BadPointer> {
        let tokens = tokens(pointer)?;
        if tokens.is_empty() && self.sense == Sense::Exclude {
            return Err(BadPointer::EverythingExcluded);
        }
        let end = tokens.iter().fold(&mut self.root, |node, token| node.step_mut(token));
        end.named = true;
        Ok(())
    }
}

impl Node {
    fn step_mut<'n>(&'n mut self, token: &str) -> &'n mut Node {
        let member = json::escaped(token);
        let step = match self.steps.iter().position(|step| step.member == member) {
            Some(known) => self.steps.swap_remove(known),
            None => Step { member, element: element_index(token), to: Node::default() },
        };
        &mut self.steps.push_mut(step).to
    }
}

/// Splits a pointer into its decoded tokens.
fn tokens(pointer: &str) -> Result<Vec<String>, BadPointer> {
    if pointer.is_empty() {
        return Ok(Vec::new());
    }
    let Some(path) = pointer.strip_prefix('/') else {
        return Err(BadPointer::NoLeadingSlash(pointer.to_owned()));
    };
    let tokens = path
        .split('/')
        .map(|token| decoded(token).ok_or_else(|| BadPointer::BadEscape(pointer.to_owned())))
        .collect::<Result<Vec<_>, _>>()?;
    // A deeper pointer could never match, which its author would not notice.
    if tokens.len() > DEPTH_MAX {
        return Err(BadPointer::TooDeep(pointer.to_owned()));
    }
    Ok(tokens)
}

fn decoded(token: &str) -> Option<String> {
    let mut pieces = token.split('~');
    let mut text = pieces.next()?.to_owned();
    for piece in pieces {
        let (escaped, plain) = match piece.as_bytes().first()? {
            b'0' => ('~', piece.get(1..)?),
            b'1' => ('/', piece.get(1..)?),
            _ => return None,
        };
        text.push(escaped);
        text.push_str(plain);
    }
    Some(text)
}

/// Reads a token as an array index. RFC 6901 allows one spelling per index:
/// no sign, no leading zero. `-` names the element after the last one, which
/// no body has.
fn element_index(token: &str) -> Option<usize> {
    let digits_only = token.bytes().all(|byte| byte.is_ascii_digit());
    let leading_zero = token.len() > 1 && token.starts_with('0');
    if !digits_only || leading_zero {
        return None;
    }
    token.parse().ok()
}

/// What counts of the value that is being read.
#[derive(Clone, Copy)]
pub(crate) enum Choice<'s> {
    All,
    None,
    /// A pointer goes on below this value. A scalar here counts: had it been
    /// left out, a body without the named part would match more bodies.
    Within(Sense, &'s Node),
}

impl<'s> Choice<'s> {
    pub(crate) fn root(selection: Option<&'s Selection>) -> Self {
        match selection {
            None => Self::All,
            Some(selection) => Self::at(selection.sense, &selection.root),
        }
    }

    fn at(sense: Sense, node: &'s Node) -> Self {
        match (node.named, sense) {
            (true, Sense::Include) => Self::All,
            (true, Sense::Exclude) => Self::None,
            (false, _) => Self::Within(sense, node),
        }
    }

    pub(crate) fn counts(self) -> bool {
        !matches!(self, Self::None)
    }

    /// The choice for the member with this name, in canonical escapes.
    pub(crate) fn member(self, name: &[u8]) -> Self {
        self.below(|step| step.member.as_bytes() == name)
    }

    /// The choice for the array element at this index.
    pub(crate) fn element(self, index: usize) -> Self {
        self.below(|step| step.element == Some(index))
    }

    fn below(self, is_next: impl Fn(&Step) -> bool) -> Self {
        match self {
            // What lies inside a part that does not count is read whole and
            // then taken back as one piece, so nothing is left to choose.
            Self::All | Self::None => Self::All,
            Self::Within(sense, node) => match node.steps.iter().find(|step| is_next(step)) {
                Some(step) => Self::at(sense, &step.to),
                None if sense == Sense::Include => Self::None,
                None => Self::All,
            },
        }
    }
}
