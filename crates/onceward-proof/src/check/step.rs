//! An operation in steps: what is saved is not made again, and every try of a step has the same key.

use super::{Verdict, Violation, known::Known};
use crate::history::CallNo;

pub(super) fn check(known: &Known, number: CallNo, name: &str, key: &str) -> Verdict {
    let Some(call) = known.call(number) else { return Ok(()) };
    let story = known.story(call.story);
    let Some(used) = story.use_of(call.place).filter(|_| !story.lost) else { return Ok(()) };
    let wrong = |what| Err(Violation::of("STEP", &story.subject, what));
    if used.saved.iter().any(|saved| saved == name) {
        return wrong(format!("call {number} makes the step {name} again, which is saved"));
    }
    let mut keys = used.keys.iter();
    match keys.find(|(known, held)| (known == name) != (held == key)) {
        None => Ok(()),
        Some((other, _)) if other == name => {
            wrong(format!("call {number} has another key than the step {name} had before"))
        }
        Some((other, _)) => wrong(format!("call {number} has the key of the step {other}")),
    }
}
