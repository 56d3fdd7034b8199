//! Effects are counted: at most one for each use of a key, other than those declared re-runnable.

use super::{
    Verdict, Violation,
    known::{Call, CallEnd, Known, Story, Use},
};
use crate::history::{CallNo, Rules, UpstreamAnswer};

/// After a call acted or ended.
pub(super) fn check(known: &Known, number: CallNo) -> Verdict {
    let Some(call) = known.call(number) else {
        let what = format!("call {number} acted, which nobody made");
        return Err(Violation { invariant: "I7", subject: None, what });
    };
    let story = known.story(call.story);
    match story.use_of(call.place).and_then(|used| twice(known, story, used)) {
        Some(found) => Err(found),
        None => Ok(()),
    }
}

/// At the end of the world, when calls that never ended never will.
pub(super) fn check_all(known: &Known) -> Vec<Violation> {
    let uses = known.stories().flat_map(|story| story.uses.iter().map(move |used| (story, used)));
    uses.filter_map(|(story, used)| twice(known, story, used)).collect()
}

fn twice(known: &Known, story: &Story, used: &Use) -> Option<Violation> {
    if story.lost || used.acted.len() < 2 {
        return None;
    }
    let mut counted = used
        .acted
        .iter()
        .filter(|number| known.call(**number).is_some_and(|call| counts(known, call)));
    let (first, second) = (counted.next()?, counted.next()?);
    let generation = used.place.generation;
    let what = format!("calls {first} and {second} both acted in generation {generation}");
    Some(Violation::of("I1", &story.subject, what))
}

/// Whether the effect of this call is certain to be one that must stay the only one.
fn counts(known: &Known, call: &Call) -> bool {
    let rules = known.rules_of(call);
    if rules.is_some_and(|rules| !rules.acts) {
        return false;
    }
    match &call.end {
        CallEnd::NotYet => known.ended,
        CallEnd::BrokeOff => true,
        CallEnd::Answered(answer) => !rules.is_some_and(|rules| may_rerun(answer, rules)),
    }
}

/// Whether the same request may run again after this answer. Upstream's own word goes before its
/// status, and a word that is not understood is no leave.
pub(super) fn may_rerun(answer: &UpstreamAnswer, rules: &Rules) -> bool {
    match &answer.executed {
        Some(word) => word.trim().eq_ignore_ascii_case("no"),
        None => rules.rerunnable.contains(&answer.status),
    }
}
