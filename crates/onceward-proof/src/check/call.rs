//! Upstream is called: by an attempt that was granted, in time, for what was asked.

use super::{Verdict, Violation, known::Known};
use crate::history::{CallNo, Holder, Subject};

pub(super) fn check(
    known: &Known,
    call: CallNo,
    subject: &Subject,
    asks: &str,
    holder: Option<&Holder>,
) -> Verdict {
    let wrong = |invariant, what| Err(Violation::of(invariant, subject, what));
    let story = known.story_of(subject);
    if let Some(Holder { attempt, fence, generation, attempt_number, lease_left }) = holder {
        if *lease_left <= 0 {
            let over = -lease_left;
            return wrong(
                "R5",
                format!("call {call}: the lease of {attempt} was over for {over} us"),
            );
        }
        let granted = holder.and_then(|holder| story.and_then(|story| story.grant(holder)));
        let lost = story.is_some_and(|story| story.lost);
        if granted.is_none() && !lost {
            return wrong(
                "I7",
                format!(
                    "call {call} by {attempt} with fence {fence} in generation {generation}, \
                     which was never granted"
                ),
            );
        }
        let number = holder.and_then(|holder| story.and_then(|story| story.number_of(holder)));
        if number.is_some_and(|number| number != *attempt_number) && !lost {
            let what = format!("call {call} by {attempt} says that it is number {attempt_number}");
            return wrong("I7", what);
        }
    }
    if !story.is_some_and(|story| story.was_asked(asks)) {
        return wrong("I9", format!("call {call} asks for \"{asks}\", which no request did"));
    }
    Ok(())
}
