//! The canonical form of a JSON body, written in one pass over its bytes.
//!
//! The form is RFC 8785 except for numbers: no white space, members sorted by
//! the UTF-16 code units of their names, one way to escape. RFC 8785 rounds
//! numbers to doubles, which makes different amounts of money equal, so here
//! they stay exact decimals (see [`number`]). The result is JSON again, and
//! its own canonical form.
//!
//! No tree is built. Values are written to the output as they are read; an
//! object remembers where its members lie, and moves them at its end if they
//! came out of order. A body that two readers could understand differently
//! (equal names, lone surrogates) has no canonical form at all.
//!
//! Each level of nesting may move what is inside it, so the worst body costs
//! copying [`DEPTH_MAX`] times its size.

mod number;
mod text;

use std::cmp::Ordering;

use super::pointer::{Choice, Selection};
pub(crate) use text::escaped;

/// How deep arrays and objects may nest. It bounds the stack, and few readers
/// go deeper: serde_json stops one level before.
pub(crate) const DEPTH_MAX: usize = 128;

/// Members that fit before the list of them grows.
const MEMBERS_FIRST: usize = 24;

/// Why a body has no canonical form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotCanonical {
    NotUtf8,
    /// Not JSON as RFC 8259 defines it; a byte order mark is not either.
    Syntax,
    /// Two members of one object have the same name. Readers take the first,
    /// the last or neither.
    DuplicateName,
    /// An escape names half of a surrogate pair.
    LoneSurrogate,
    TooDeep,
    /// The exponent of a number does not fit an `i64`, as sent or as it would
    /// be written.
    ExponentTooLarge,
}

/// Appends the canonical form of the chosen parts of `body` to `out`.
///
/// Parts that are not chosen must be valid all the same. When there is no
/// canonical form `out` is left as it was.
pub(crate) fn canonicalise(
    body: &[u8],
    selection: Option<&Selection>,
    out: &mut Vec<u8>,
) -> Result<(), NotCanonical> {
    // Checked once for the whole body, which is far cheaper than string by
    // string. Everything after relies on it.
    if std::str::from_utf8(body).is_err() {
        return Err(NotCanonical::NotUtf8);
    }
    let before = out.len();
    // Room for the largest object to be sorted behind itself.
    out.reserve(body.len() * 2);
    let mut pass =
        Pass { rest: body, out: std::mem::take(out), members: Vec::with_capacity(MEMBERS_FIRST) };
    let written = pass.document(Choice::root(selection));
    *out = pass.out;
    if written.is_err() {
        out.truncate(before);
    }
    written
}

/// The one pass over a body.
struct Pass<'b> {
    rest: &'b [u8],
    out: Vec<u8>,
    /// The members of all objects that are still open, innermost last.
    members: Vec<Member>,
}

/// Where a member lies in the output: its name with quotes, then `:`, the
/// value and `,`. A member that does not count keeps its name there until its
/// object ends, because a second one of that name must still be seen.
struct Member {
    start: usize,
    name_end: usize,
    end: usize,
    /// See [`text::order_prefix`].
    prefix: u64,
    counts: bool,
}

impl Member {
    /// The name as written, without its quotes.
    fn name<'o>(&self, out: &'o [u8]) -> &'o [u8] {
        out.get(self.start + 1..self.name_end - 1).unwrap_or_default()
    }

    fn order(&self, other: &Self, out: &[u8]) -> Ordering {
        let by_prefix = self.prefix.cmp(&other.prefix);
        by_prefix.then_with(|| text::order(self.name(out), other.name(out)))
    }
}

impl Pass<'_> {
    fn document(&mut self, choice: Choice<'_>) -> Result<(), NotCanonical> {
        self.skip_space();
        self.value(choice, 0)?;
        self.skip_space();
        match self.rest {
            [] => Ok(()),
            _ => Err(NotCanonical::Syntax),
        }
    }

    /// Reads one value; `depth` arrays and objects are open around it.
    fn value(&mut self, choice: Choice<'_>, depth: usize) -> Result<(), NotCanonical> {
        match self.rest {
            [b'"', ..] => self.string(),
            [b'-' | b'0'..=b'9', ..] => {
                self.rest = number::write(self.rest, &mut self.out)?;
                Ok(())
            }
            [b'{', ..] => self.object(choice, depth + 1),
            [b'[', ..] => self.array(choice, depth + 1),
            [b't', ..] => self.literal(b"true"),
            [b'f', ..] => self.literal(b"false"),
            [b'n', ..] => self.literal(b"null"),
            _ => Err(NotCanonical::Syntax),
        }
    }

    fn literal(&mut self, literal: &'static [u8]) -> Result<(), NotCanonical> {
        let Some(rest) = self.rest.strip_prefix(literal) else {
            return Err(NotCanonical::Syntax);
        };
        self.out.extend_from_slice(literal);
        self.rest = rest;
        Ok(())
    }

    fn string(&mut self) -> Result<(), NotCanonical> {
        self.rest = text::write(self.rest, &mut self.out)?;
        Ok(())
    }

    fn array(&mut self, choice: Choice<'_>, depth: usize) -> Result<(), NotCanonical> {
        let start = self.open(b'[', depth)?;
        if self.take(b']') {
            self.out.push(b']');
            return Ok(());
        }
        for index in 0.. {
            let element = choice.element(index);
            let before = self.out.len();
            self.value(element, depth)?;
            self.out.push(b',');
            // Leaving elements out without a trace is safe: the selection
            // tells which indices the remaining ones had.
            if !element.counts() {
                self.out.truncate(before);
            }
            if self.ends(b']')? {
                break;
            }
        }
        self.close(start, b']');
        Ok(())
    }

    fn object(&mut self, choice: Choice<'_>, depth: usize) -> Result<(), NotCanonical> {
        let start = self.open(b'{', depth)?;
        if self.take(b'}') {
            self.out.push(b'}');
            return Ok(());
        }
        let first = self.members.len();
        let mut in_place = true;
        loop {
            in_place = self.member(choice, first, in_place, depth)?;
            if self.ends(b'}')? {
                break;
            }
        }
        if !in_place {
            self.rearrange(start, first)?;
        }
        self.members.truncate(first);
        self.close(start, b'}');
        Ok(())
    }

    /// Reads one member. Answers whether it and all before it (`in_place`)
    /// lie where the canonical form wants them.
    fn member(
        &mut self,
        choice: Choice<'_>,
        first: usize,
        in_place: bool,
        depth: usize,
    ) -> Result<bool, NotCanonical> {
        let start = self.out.len();
        self.string()?;
        let mut member =
            Member { start, name_end: self.out.len(), end: 0, prefix: 0, counts: true };
        let name = member.name(&self.out);
        let chosen = choice.member(name);
        member.prefix = text::order_prefix(name);
        member.counts = chosen.counts();
        // Once one member is out of order all are sorted and compared anyway.
        let before = self.members.get(first..).and_then(<[Member]>::last);
        let in_order =
            in_place && before.is_none_or(|before| before.order(&member, &self.out).is_lt());

        self.skip_space();
        if !self.take(b':') {
            return Err(NotCanonical::Syntax);
        }
        self.out.push(b':');
        let place = self.members.len();
        self.members.push(member);
        self.value(chosen, depth)?;
        self.out.push(b',');

        let Some(member) = self.members.get_mut(place) else {
            return Err(NotCanonical::Syntax);
        };
        if !member.counts {
            self.out.truncate(member.name_end);
        }
        member.end = self.out.len();
        Ok(in_order && member.counts)
    }

    /// Sorts the members of the object that ends here, refuses equal names
    /// and drops what does not count.
    fn rearrange(&mut self, start: usize, first: usize) -> Result<(), NotCanonical> {
        let out = &mut self.out;
        let Some(members) = self.members.get_mut(first..) else {
            return Err(NotCanonical::Syntax);
        };
        members.sort_unstable_by(|a, b| a.order(b, out));
        let same_name = |pair: &[Member]| matches!(pair, [a, b] if a.order(b, out).is_eq());
        if members.windows(2).any(same_name) {
            return Err(NotCanonical::DuplicateName);
        }
        // The sorted copy grows behind the original and then slides over it.
        let end = out.len();
        for member in members.iter().filter(|member| member.counts) {
            out.extend_from_within(member.start..member.end);
        }
        let kept = out.len() - end;
        out.copy_within(end.., start);
        out.truncate(start + kept);
        Ok(())
    }

    /// Takes an opening bracket and the space after it. Answers where the
    /// first element or member will be written.
    fn open(&mut self, bracket: u8, depth: usize) -> Result<usize, NotCanonical> {
        if depth > DEPTH_MAX {
            return Err(NotCanonical::TooDeep);
        }
        self.take(bracket);
        self.out.push(bracket);
        Ok(self.out.len())
    }

    /// Every element and member is written with a comma behind it, so that
    /// they can be moved as they are; the last comma gives way here.
    fn close(&mut self, start: usize, bracket: u8) {
        if self.out.len() > start {
            self.out.pop();
        }
        self.out.push(bracket);
    }

    /// After a value: true at the closing bracket, false at a comma.
    fn ends(&mut self, bracket: u8) -> Result<bool, NotCanonical> {
        self.skip_space();
        if self.take(b',') {
            return Ok(false);
        }
        if self.take(bracket) {
            return Ok(true);
        }
        Err(NotCanonical::Syntax)
    }

    /// Takes `byte` and the space after it, if it comes next.
    fn take(&mut self, byte: u8) -> bool {
        match self.rest {
            [next, rest @ ..] if *next == byte => {
                self.rest = rest;
                self.skip_space();
                true
            }
            _ => false,
        }
    }

    fn skip_space(&mut self) {
        while let [b' ' | b'\t' | b'\n' | b'\r', rest @ ..] = self.rest {
            self.rest = rest;
        }
    }
}
